"""Every arm against its honest controls: same weights, same data order, same clock, several seeds.

(GraNT (B) keeps its batches whole, and so takes them in an order of its own.)

By default two controls are added, because a curriculum that grows from few graphs to all of them
saves time whoever picks the graphs: *random*, the same share on the same schedule picked by chance,
and *full-equal-budget*, plain training on everything. With `equal_budget` all arms stop after
equally many visits of graphs, but full and InfoBatch, whose rule ends with epochs of everything.
"""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from ..data.dataset import Dataset
from ..errors import InputError
from ..files import alone_in
from ..teaching.schedules import Curriculum, share_size
from ..training.config import ARMS, EQUAL_BUDGET, INFOBATCH, ON_REQUEST, RunConfig
from ..training.folder import (
    COMPARISON,
    CONFIG_FILE,
    LENGTH,
    REPORT_FILES,
    check_free,
    check_whole,
    clear_folder,
    has_weights,
    load_state,
    make_folder,
    prepare_folder,
    read_config,
    remove_files,
)
from ..training.model import resolve_device
from ..training.observers import Observer
from ..training.records import Run, is_finished, read_run
from ..training.trainer import Trainer

CONTROLS = ("random", EQUAL_BUDGET)
KNOWN = ("full", EQUAL_BUDGET, *ARMS[1:], *ON_REQUEST)  # in the order of reports
MOST_SEEDS = 1_000


def compare(
    dataset: Dataset,
    config: RunConfig,
    out: str | Path,
    *,
    arms: Sequence[str] = ARMS,
    controls: Sequence[str] = CONTROLS,
    equal_budget: bool = True,
    seeds: int = 3,
    resume: bool = False,
    overwrite: bool = False,
    observer: Observer | None = None,
    parts: Sequence[str] = (),
) -> list[Run]:
    """Run every arm with every seed, one after another in this process, and collect the results.

    Seeds are the outer loop and each begins with another arm, so that a machine that slows down or
    warms up favours none; a short run beforehand pays for what only a first run pays for.

    Args:
        dataset: what to train on; its split is the same for all.
        config: the settings shared by all; `arm`, `seed` and `visits` are set here.
        out: a folder; runs go to `out/ARM/seed-S`.
        arms: which arms; a string is one.
        controls: what is added to them, likewise.
        equal_budget: stop all arms but full and infobatch after equally many graph visits;
            otherwise each runs for all epochs, as the paper's do, and there is no such control as
            full-equal-budget.
        seeds: how many seeds, at most 1,000, from `config.seed` upwards.
        resume: keep finished runs and go on with begun ones.
        overwrite: replace the comparison in `out`.
        observer: who is told how they go on.
        parts: folders in `out` of further comparisons, which are emptied with this one.

    Returns:
        One run for each arm and seed, arms in the order of reports and seeds ascending.

    Raises:
        InputError: an unknown arm, no seeds or too many, or what `Trainer` raises; the folder is
            not empty (without `resume` and `overwrite`), or another process writes to it.
    """
    check_seeds(seeds)
    names = with_controls(arms, controls)
    if EQUAL_BUDGET in names and not equal_budget:
        raise InputError(
            f"{EQUAL_BUDGET} is {names[0]} without a budget: leave equal_budget=True, or leave it "
            "out with controls=['random']"
        )
    dataset = dataset.grouped()
    visits = planned_visits(config, len(dataset.split["train"])) if equal_budget else None
    dataset = replace(dataset, graphs=dataset.graphs.to(resolve_device(config.device)))
    folder = Path(out)
    plan: list[tuple[Path, RunConfig]] = []
    for index in range(seeds):
        seed, shift = config.seed + index, index % len(names)
        for name in (*names[shift:], *names[:shift]):
            plan.append((run_folder(folder, name, seed), arm_config(config, name, seed, visits)))
    check_free(folder, resume, overwrite, COMPARISON, config.source)
    if not resume:
        _warm_up(dataset, config)  # what cannot be trained leaves an earlier comparison as it was
    make_folder(folder)
    with alone_in(folder):  # another process may have been quicker
        check_free(folder, resume, overwrite, COMPARISON, config.source)
        if not resume:
            _clear([folder, *(folder / part for part in parts)])
        checksum, metric = dataset.checksum, config.metric_of(dataset.metric)
        done = [_is_done(run_dir, run, checksum, metric) for run_dir, run in plan]
        for run_dir, run in plan:  # the folder says what is to be done, if this is interrupted
            make_folder(run_dir)
            prepare_folder(run_dir, run, fresh=False)
        if resume and not all(done):
            _warm_up(dataset, config)
        observer = observer or Observer()
        for (run_dir, run), is_done in zip(plan, done, strict=True):
            if is_done:
                observer.kept()
            else:
                with alone_in(run_dir):  # from a `train --resume` of this one
                    Trainer(dataset, run, run_dir, resume=resume).fit(observer)
    last = config.seed + seeds
    return [
        read_run(run_folder(folder, name, seed))
        for name in names
        for seed in range(config.seed, last)
    ]


def begun(out: Path) -> list[tuple[str, int]]:
    """Arm and seed of each run in a comparison's folder, arms in the order of reports."""
    folders = [path.parent for path in out.glob(f"*/seed-*/{CONFIG_FILE}")]
    runs = [(folder.parent.name, folder.name.removeprefix("seed-")) for folder in folders]
    known = [(arm, int(seed)) for arm, seed in runs if arm in KNOWN and seed.isdecimal()]
    return sorted(known, key=lambda run: (KNOWN.index(run[0]), run[1]))


def num_seeds(there: Sequence[tuple[str, int]], first: int) -> int:
    """How many seeds, counted from the first, what `begun` gave has runs of."""
    seeds = {seed for _, seed in there}
    return next(n for n in count() if first + n not in seeds)


def begun_config(out: Path) -> RunConfig | None:
    """The settings that the runs in a comparison's folder share, with the lowest of their seeds;
    None where there are no runs.

    Raises:
        InputError: they cannot be read.
    """
    if not (runs := begun(out)):
        return None
    arm, seed = min(runs, key=lambda run: run[1])
    return replace(read_config(run_folder(out, arm, seed)), visits=None)


def arm_config(config: RunConfig, name: str, seed: int, visits: int | None) -> RunConfig:
    """The config of one run of a comparison; `visits` is the equal budget, if there is one."""
    if name in ("full", INFOBATCH):
        return replace(config, arm=name, visits=None, seed=seed)
    arm = "full" if name == EQUAL_BUDGET else name
    return replace(config, arm=arm, visits=visits, seed=seed)


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of an arm and a seed lives."""
    return out / name / f"seed-{seed}"


def planned_visits(config: RunConfig, num_train: int) -> int:
    """How many graphs the schedule will have shown by the end, known before it begins.

    Exact for random, grant-s, grant-global and grant-proportional; grant-b rounds its share up to
    whole batches, and so would see more.
    """
    plan = Curriculum(config.epochs, config.start_ratio, config.ratio_schedule, config.interval)  # type: ignore[arg-type]
    return sum(share_size(plan.ratio(epoch), num_train) for epoch in range(config.epochs))


def _clear(folders: Sequence[Path]) -> None:
    """Remove an earlier comparison and those in parts of its folder, of whatever arms and seeds,
    and nothing else.

    All of it at once: a later --resume must not take an old result for one of this comparison.

    Raises:
        InputError: another process writes to one of its runs, and nothing was removed; or something
            cannot be.
    """
    arms = [out / arm for out in folders for arm in KNOWN]
    runs = [path for arm in arms for path in arm.glob("seed-*") if path.is_dir()]
    for run_dir in runs:
        with alone_in(run_dir):
            pass
    remove_files(folders[0], REPORT_FILES)  # first: without runs they would be anybody's
    for run_dir in runs:
        clear_folder(run_dir)
    for path in (*runs, *arms, *folders[1:]):
        with suppress(OSError):  # it is not there, or something else is in it
            path.rmdir()


def _is_done(run_dir: Path, config: RunConfig, checksum: int, metric: str) -> bool:
    """Whether the run is finished and has its weights, which going on with it would write anew; one
    of other settings or other data is an error, if begun, and so is one whose state is gone."""
    check_whole(run_dir)
    state = load_state(run_dir, config, checksum, metric)
    if state is None or not is_finished(run_dir) or not has_weights(run_dir):
        return False
    return all(state["config"].get(name) == getattr(config, name) for name in LENGTH)


def check_seeds(seeds: int) -> None:
    """Refuse a number of seeds that no comparison can have (InputError)."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError(
            f"seeds={seeds} cannot be used: give at least 1 and at most {MOST_SEEDS:,}"
        )


def with_controls(arms: Sequence[str], controls: Sequence[str] = CONTROLS) -> tuple[str, ...]:
    """The arms to run, the controls among them, in the order of reports.

    Raises:
        InputError: an arm is unknown, or there are none.
    """
    if not arms and not controls:
        raise InputError("there are no arms to compare: give one or more")
    arms, controls = ([named] if isinstance(named, str) else named for named in (arms, controls))
    for name in (*arms, *controls):
        if name not in KNOWN:
            raise InputError(f"arm={name} cannot be used: give one of {', '.join(KNOWN)}")
    wanted = {*arms, *controls}
    return tuple(name for name in KNOWN if name in wanted)


def _warm_up(dataset: Dataset, config: RunConfig) -> None:
    """Fill caches and wake threads: one epoch that scores, trains and validates, thrown away."""
    # Patience goes with the arm "full" alone.
    short = replace(
        config, patience=None, arm="grant-global", epochs=1, visits=None, start_ratio=0.1
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(dataset, short, folder).fit()
