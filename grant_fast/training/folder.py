"""A run's folder: which files it has, and how the state in it is written and taken up again."""

import dataclasses
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError, few, option
from ..files import atomic_write_text, check_name, closest
from .checkpoints import load_checkpoint, save_checkpoint, taken_from
from .config import MEMORY, RunConfig
from .records import METRICS_FILE, RESULT_FILE, is_finished, write_history

CONFIG_FILE = "config.json"
LAST_FILE = "last.pt"
BEST_FILE = "best.pt"
SPLIT_FILE = "split.csv"
TEST_FILE = "test.csv"
SKIPPED_FILE = "skipped.csv"
PICTURE_FILE = "run.png"
_TABLES = (METRICS_FILE, SPLIT_FILE, SKIPPED_FILE, TEST_FILE)
_FILES = (RESULT_FILE, LAST_FILE, BEST_FILE, *_TABLES, PICTURE_FILE, CONFIG_FILE)
BOARD = "tensorboard"  # the folder of a run's TensorBoard events
#: The settings that say how long a run of all graphs lasts, and do nothing else.
LENGTH = ("epochs", "patience")
#: What a comparison's folder has beside its runs.
REPORT_FILES = RESULTS_FILE, PAGE_FILE, CURVES_FILE = "results.json", "results.md", "curves.png"


def prepare_folder(run_dir: Path, config: RunConfig, *, fresh: bool, done: bool = True) -> None:
    """Empty a folder of an earlier run if `fresh`, and write the config into it. Of a run that is
    not `done`, what came out when it was to be shorter goes, too.

    Raises:
        InputError: it cannot be written.
    """
    if fresh:
        clear_folder(run_dir)
    elif not done:
        remove_files(run_dir, (RESULT_FILE, TEST_FILE, PICTURE_FILE))
    atomic_write_text(run_dir / CONFIG_FILE, config.to_json())


def clear_folder(run_dir: Path) -> None:
    """Remove the files of an earlier run, and nothing else; see `remove_files`."""
    board = run_dir / BOARD
    remove_files(board, [path.name for path in board.glob("events.out.tfevents.*")])
    with suppress(OSError):  # it is not there, or something else is in it
        board.rmdir()
    remove_files(run_dir, _FILES)


def remove_files(folder: Path, names: Sequence[str]) -> None:
    """Remove what there is of these files.

    Raises:
        InputError: one cannot be removed; it is a folder, say.
    """
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot remove {folder / name}: {error.strerror}; {_elsewhere()}"
            ) from error


def _elsewhere() -> str:
    """A remedy, for a message."""
    return f"give another folder with {option('out')}"


def check_spares(run_dir: Path, out: Path) -> None:
    """Refuse an output that would replace a file of the run (InputError)."""
    if os.path.realpath(out) in [os.path.realpath(run_dir / name) for name in _FILES]:
        remedy = f"give another name with {option('out')}"
        raise InputError(f"cannot write {out}: it is the run's own; {remedy}")


def check_flags(resume: bool, overwrite: bool) -> None:
    """Refuse what contradicts itself."""
    if resume and overwrite:
        raise InputError("resume and overwrite exclude each other: give one of them")


#: What a folder may hold.
RUN, COMPARISON = "a run", "a comparison"


def check_free(
    out: Path, resume: bool, overwrite: bool, kind: str = RUN, source: str = MEMORY
) -> None:
    """Never write over a run unasked, nor over one that cannot be gone on with, nor a comparison
    among the files of a run or the reverse, nor over what is not ours, the source of the data above
    all (InputError)."""
    check_flags(resume, overwrite)
    check_name(Path(os.path.abspath(out)))
    if resume:
        check_whole(out)
    for path in (out, *out.parents):
        if path.is_file():
            raise InputError(f"{path} is a file: give a folder with {option('out')}")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (resume or overwrite):
        raise InputError(
            f"{out} is not empty: resume or overwrite what is there with "
            f"{option('resume', True)} or {option('overwrite', True)}, or {_elsewhere()}"
        )
    held = _held(out)
    for other in held:
        if other != kind:
            raise InputError(f"{out} holds {other}, not {kind}: {_elsewhere()}")
    if resume and not held:
        raise InputError(f"{out} holds other files, and not {kind} to continue: {_elsewhere()}")
    own = _FILES if kind == RUN else REPORT_FILES
    if not held and (foreign := [name for name in own if (out / name).exists()]):
        raise InputError(
            f"{out} is no folder of {kind}, and its {few(foreign)} would be lost: {_elsewhere()}"
        )
    if _is_within(Path(os.path.realpath(source)), Path(os.path.realpath(out)), kind):
        raise InputError(f"{source}, the source of the data, would be lost: {_elsewhere()}")


def _is_within(path: Path, out: Path, kind: str) -> bool:
    """Whether a file is one of a run's or a comparison's own."""
    if kind == RUN:
        return path.parent == out and path.name in _FILES
    of_run = path.match("*/seed-*/*") and out in path.parents and path.name in _FILES
    return of_run or (path.parent == out and path.name in REPORT_FILES)


def check_whole(run_dir: Path) -> None:
    """Refuse to resume a finished run whose state is gone, which would begin anew (InputError)."""
    if is_finished(run_dir) and not (run_dir / LAST_FILE).exists():
        raise InputError(
            f"{run_dir} holds the result of a run without its {LAST_FILE}: restore that, or remove "
            "the folder to train again"
        )


def _held(out: Path) -> list[str]:
    """What of a run and a comparison there is in a folder."""
    there = {
        RUN: (out / LAST_FILE).exists() or is_finished(out) or _has_config(out),
        COMPARISON: any(out.glob(f"*/seed-*/{CONFIG_FILE}")),
    }
    return [kind for kind, is_there in there.items() if is_there]


def _has_config(out: Path) -> bool:
    """Whether a run has begun in a folder; others have a config.json, too."""
    try:
        return bool(read_config(out))
    except InputError:
        return False


def make_folder(path: Path) -> None:
    """Make a folder and its parents, or say why not (InputError)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        culprit = Path(error.filename)
        hollow = culprit.is_symlink() and not culprit.exists()
        why = f"{culprit} is a broken link" if hollow else error.strerror
        raise InputError(f"cannot make the folder {path}: {why}; {_elsewhere()}") from error


def read_config(run_dir: Path) -> RunConfig:
    """The config of the run in a folder.

    Raises:
        InputError: there is no run, or its config is damaged.
    """
    path = run_dir / CONFIG_FILE
    try:
        return RunConfig.from_json(path.read_text(encoding="utf-8"), origin=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{run_dir} is not a run folder: {_instead(run_dir)}") from error


def _instead(run_dir: Path) -> str:
    """Where the run may be that was looked for in vain."""
    if run_dir.is_file():
        return f"it is a file; give its folder, {run_dir.parent}"
    if (run_dir / CONFIG_FILE).exists():
        return f"its {CONFIG_FILE} cannot be read; restore it, or train again"
    if run_dir.is_dir():
        inside = sorted((*run_dir.glob(f"*/{CONFIG_FILE}"), *run_dir.glob(f"*/*/{CONFIG_FILE}")))
        hint = (
            f"give a run in it, as {inside[0].parent}" if inside else "give one of grant-fast train"
        )
        return f"it has no {CONFIG_FILE}; {hint}"
    if not run_dir.parent.is_dir():
        return f"the folder {run_dir.parent} does not exist; check the path"
    found = [*run_dir.parent.glob(f"*/{CONFIG_FILE}"), *run_dir.parent.glob(f"*/*/{CONFIG_FILE}")]
    runs = [str(path.parent.relative_to(run_dir.parent)) for path in found]
    if near := closest(run_dir.name, runs):
        return f"there is no such folder; did you mean {run_dir.parent / near}?"
    listed = f"has {few(sorted(runs), 5)}" if runs else "has no runs"
    where = "the current folder" if run_dir.parent == Path() else str(run_dir.parent)
    return f"there is no such folder; {where} {listed}"


def save_state(run_dir: Path, state: dict[str, Any]) -> None:
    """Write a run's state as last.pt, its best weights as best.pt, its history as metrics.csv.

    Each is replaced whole. last.pt alone is what resuming needs, so they cannot disagree.
    """
    history = [dataclasses.astuple(record) for record in state["history"]]
    save_checkpoint(run_dir / LAST_FILE, {**state, "history": history})
    best = state["best"]
    if best is not None:
        shared = {name: state[name] for name in ("config", "spec", "data", "metric")}
        weights = {"model": best["weights"], "epoch": best["epoch"]}
        save_checkpoint(run_dir / BEST_FILE, shared | weights)
    write_history(run_dir, state["history"])


def has_weights(run_dir: Path) -> bool:
    """Whether there are the best weights of a run, and can be read."""
    try:
        return bool(load_checkpoint(run_dir / BEST_FILE))
    except InputError:
        return False


def load_state(
    run_dir: Path, config: RunConfig, checksum: int, metric: str
) -> dict[str, Any] | None:
    """The state that a run can be resumed from; None where it has not come to save one.

    Args:
        run_dir: the run's folder.
        config: the settings to go on with.
        checksum: of the data to go on with, see `Dataset.checksum`.
        metric: that would judge the run, as `RunConfig.metric_of` says.

    Raises:
        InputError: the run was made with other settings, and names the first that differs; or on
            other data, or with another metric.
    """
    path = run_dir / LAST_FILE
    if not path.exists():
        return None
    state = load_checkpoint(path)
    with taken_from(path):
        saved = RunConfig.from_dict(state["config"], origin=str(path))
        data, judge = state["data"], state["metric"]
    check_same(saved, config, path)
    if data != checksum:
        raise InputError(
            f"{path}: the run was made on other data, or on another split of them, than "
            f"{config.source} gives now: restore them, or give another folder"
        )
    if judge != metric:
        raise InputError(
            f"{path}: the run was judged by {judge}, but would continue with {metric}: start it "
            f"again with {option('overwrite', True)}, or in another folder"
        )
    return state


def check_same(saved: RunConfig, config: RunConfig, origin: Path) -> None:
    """Refuse to take up a run under settings that would have made another one of it.

    Of another source `load_state` compares what it holds.

    Raises:
        InputError: names the first setting that differs.
    """
    if unlike := difference(saved, config):
        as_long = dataclasses.replace(config, epochs=saved.epochs)
        why = ""
        if config.epochs > saved.epochs and not difference(saved, as_long):
            why = f"a run of {saved.label} cannot be lengthened, as how many epochs there are "
            why += "decides what each of them shows; "
        elif saved.label == "full" and config.epochs < saved.epochs:
            why = "a run can be lengthened, and not shortened; "
        raise InputError(
            f"{origin}: the run was made with {unlike}: "
            f"{why}keep to its own settings, or give another folder"
        )


def difference(saved: RunConfig, config: RunConfig) -> str | None:
    """The first setting in which a run differs from what it would have been, in words; None where
    there is none. The source may have moved, and a run of all graphs may go on for longer."""
    for spec in dataclasses.fields(RunConfig):
        before, now = getattr(saved, spec.name), getattr(config, spec.name)
        if before != now and spec.name != "source" and not _lengthens(saved, spec.name, now):
            return f"{spec.name}={before}, not {now}"
    return None


def is_of_comparison(run_dir: Path) -> bool:
    """Whether a run is one of several of a comparison, which must stay alike."""
    runs = [path.parent for path in run_dir.parent.parent.glob(f"*/seed-*/{CONFIG_FILE}")]
    return run_dir in runs and len(runs) > 1


def check_length(run_dir: Path, config: RunConfig) -> None:
    """Refuse to lengthen one run of a comparison (InputError)."""
    if not is_of_comparison(run_dir):
        return
    saved = read_config(run_dir)
    if any(getattr(saved, name) != getattr(config, name) for name in LENGTH):
        raise InputError(
            f"{run_dir} is one run of a comparison, which would fit the others no more: compare "
            "with more epochs in another folder, or train in another one"
        )


def _lengthens(saved: RunConfig, name: str, value: Any) -> bool:
    """Whether another value of a setting lets a run go on for longer and changes nothing before:
    any curriculum and budget depends on how many epochs there are."""
    if saved.label != "full" or name not in LENGTH:
        return False
    before = getattr(saved, name)
    return before is not None and (value is None or value > before)
