"""How the commands speak with whoever typed them: refusals, messages, what is written over."""

import _thread
import errno
import functools
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from .errors import InputError, MissingExtraError
from .training.config import INFOBATCH, RunConfig

if TYPE_CHECKING:
    from .training.records import RunResult

_NARROW, _FEW_THREADS = 32, 4
_IMPORT = "<frozen importlib._bootstrap>"
_FEW_NAMES = 3
_MOST_CLASSES = 10
_FEW_TARGETS = 20


def readable(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can cause into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            with _here():
                command(**values)
        except (InputError, MissingExtraError, OSError) as error:
            if isinstance(error, OSError) and _is_of_output(error):
                raise  # to `lose_output`
            said = " ".join(str(error).split())
            if isinstance(error, PermissionError) and error.filename is not None:
                said = f"{error.filename}: {error.strerror}; see to the rights of its folder"
            say(f"error: {said}")
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            say("error: the memory is not enough: give a smaller batch size, narrower layers, …")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "interrupted")
            raise typer.Exit(130) from interrupt

    return run


@contextmanager
def _here() -> Iterator[None]:
    """Refuse to work in a folder that was deleted (InputError), before or meanwhile: PyTorch's
    kernels end there."""
    try:
        os.getcwd()
        yield
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        raise InputError("the current folder was deleted: go to another one (cd)") from error


def _is_of_output(error: OSError) -> bool:
    """Whether it is of what is printed: a pipe or a disk, and no file that has a name."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch's CPU allocator raises a mere RuntimeError, its GPU allocators a kind of it."""
    words = str(error)
    known = ("DefaultCPUAllocator", "out of memory")
    return isinstance(error, MemoryError) or any(word in words for word in known)


def use_fitting_threads(config: RunConfig) -> None:
    """Half of the cores, and few, for narrow networks, unless the user chose by OMP_NUM_THREADS.

    Their kernels take a fraction of a millisecond each: where a thread has to share its core with
    something else, all the others wait for it. On two cores two threads take less time than one if
    both are idle, and several times more if one is busy.
    """
    import torch

    widest = max(*config.hidden_channels, config.embedding, config.head or 0)
    if widest <= _NARROW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads() // 2, _FEW_THREADS)))


def load(config: RunConfig) -> Any:
    """The data set that a config names; what was left out of it is said."""
    from .data.load import load_dataset
    from .workers import cores

    dataset = load_dataset(
        config.source,
        smiles_column=config.smiles_column,
        target=list(config.target) or None,
        task=None if config.task == "auto" else config.task,  # type: ignore[arg-type]
        split=config.split,  # type: ignore[arg-type]
        split_column=config.split_column,
        num_graphs=config.graphs,
        seed=config.data_seed,
        strict=config.strict,
        workers=cores(),
    )
    report_skipped(dataset.skipped, "skipped")
    if dataset.unlabelled:
        several = "s" * (dataset.unlabelled != 1)
        say(f"{dataset.unlabelled} row{several} without any label left out")
    return dataset


def described(dataset: Any, config: RunConfig) -> list[str]:
    """What will be learned from what, in a line; and a doubt, if the task was guessed."""
    from .data.table import table_kind
    from .training.report import counted
    from .training.targets import constant_targets, targets_of, unlabelled_targets

    task = dataset.task
    words = [
        f"{Path(config.source).name}: {counted(dataset.sizes)} graphs ({dataset.splitting} split)"
    ]
    names = task.names or config.target
    if names:
        few = f"target{'s' * (len(names) > 1)} {', '.join(names)}"
        words.append(few if len(names) <= _FEW_NAMES else f"{len(names)} targets")
    words.append(task.kind)
    if task.kind == "multiclass":
        words.append(f"{task.num_outputs} classes")
    y = targets_of(dataset.graphs, dataset.split["train"])
    if task.kind == "binary":
        words.append(f"{int((y == 1).sum()):,} positives in training")
    lines = [", ".join(words)]
    guessed = config.task == "auto" and table_kind(config.source) in (".csv", ".tsv")
    if guessed and task.kind == "regression" and all(map(_looks_like_classes, y.T)):
        lines.append("targets look like classes: for a classification give --task")
    if unknown := unlabelled_targets(y, task):
        which = _few(unknown)
        lines.append(f"no label in training, so that predictions mean nothing: target {which}")
    if constant := constant_targets(y, task):
        only = f"one {_value(task)} only in training"
        lines.append(f"{only}, so that there is nothing to learn: target {_few(constant)}")
    return lines


def _few(names: list[str]) -> str:
    return ", ".join(names[:_FEW_NAMES]) + (", …" if len(names) > _FEW_NAMES else "")


def described_share(config: RunConfig) -> list[str]:
    """That a run does not train on all graphs in every epoch, in a line; none where it does."""
    if config.arm == "full" or config.arm == INFOBATCH or config.start_ratio == 1:
        return []
    what = "batches" if config.arm == "grant-b" else "graphs"
    share = f"{config.start_ratio:.0%} of the {what}, one or more, at first"
    return [f"{config.arm}: {share} (--arm full takes all)"]


def described_test(result: "RunResult", dataset: Any) -> list[str]:
    """What a run's test gave, and of which weights, in a line; in another, each of its targets."""
    if result.test_metric is None:
        metric = f"not measurable, as {_why_unmeasured(dataset, 'test')}"
    else:
        metric = f"{result.test_metric:.4g}"
    chosen = "best by valid"
    if result.valid_metric is None:
        chosen = f"the last, as {_why_unmeasured(dataset, 'valid')}"
    lines = [f"test {result.metric}: {metric} (weights of epoch {result.best_epoch}, {chosen})"]
    if result.test_metric_each:
        lines.append(_described_each(result.test_metric_each))
    return lines


def _described_each(metrics: dict[str, float | None]) -> str:
    """The metric of each of several targets, of which the mean was said."""
    known = {name: value for name, value in metrics.items() if value is not None}
    words = f"that is the mean of {len(known)} of {len(metrics)} targets"
    if len(metrics) > _FEW_TARGETS:
        return f"{words}; each is in result.json"
    return f"{words}: {', '.join(f'{name} {value:.4g}' for name, value in known.items())}"


def _why_unmeasured(dataset: Any, part: str) -> str:
    """What keeps every metric from being measured on a part of the data."""
    from .tasks import measured
    from .training.targets import targets_of

    labelled = measured(targets_of(dataset.graphs, dataset.split[part]), dataset.task).any()
    if not labelled:
        return f"the {part} split has no labels"
    return f"the {part} split has labels of one {_value(dataset.task)} only"


def _value(task: Any) -> str:
    return "value" if task.kind == "regression" else "class"


def _looks_like_classes(column: Any) -> bool:
    """Whether a target takes few values, all of them whole numbers."""
    values = column[~column.isnan()].unique()
    return 1 < len(values) <= _MOST_CLASSES and bool((values == values.round()).all())


def again() -> str:
    """The command that goes on with this one, were it interrupted."""
    words = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return shlex.join(["grant-fast", *words, "--resume"])


def interrupt(_number: int, frame: FrameType | None) -> None:
    """For `signal.signal`: KeyboardInterrupt, but once what is being imported is there.

    C code that imports (PyTorch takes up NumPy so) drops an exception, aborts, or fails later on.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT or frame.f_code is interrupt_again.__code__:
            return _interrupt_soon()
        frame = frame.f_back
    raise KeyboardInterrupt


def interrupt_again(lost: Any) -> None:
    """For `sys.unraisablehook`: an interrupt in a callback, where Python drops it, comes again, but
    once this has returned."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _interrupt_soon()
    else:
        sys.__unraisablehook__(lost)


def _interrupt_soon() -> None:
    # Not as SIGINT, which a shell's background jobs ignore.
    threading.Timer(0.01, _thread.interrupt_main, [signal.SIGTERM]).start()


def interrupted(can_go_on: bool, command: str) -> KeyboardInterrupt:
    """What to say at Ctrl-C: how to go on, if there is something to go on with."""
    return KeyboardInterrupt(f"interrupted; go on with: {command}" if can_go_on else "")


def holds_runs(out: Path) -> bool:
    """Whether a comparison has begun in a folder."""
    return any(out.glob("*/seed-*/config.json"))


def holds_run(out: Path, config: RunConfig) -> bool:
    """Whether this very run, not an earlier one, has begun in a folder."""
    from .training.folder import read_config

    try:
        return read_config(out) == config
    except InputError:
        return False


def report_skipped(failures: Sequence[tuple[int, str]], fate: str) -> None:
    """Say how many SMILES could not be parsed, and name a few."""
    if failures:
        shown = ", ".join(f"row {row} {text[:30]!r}" for row, text in failures[:3])
        more = ", …" if len(failures) > 3 else ""
        say(f"{len(failures)} unparsable SMILES {fate}: {shown}{more}")


def check_flags(resume: bool, overwrite: bool) -> None:
    """Refuse what contradicts itself."""
    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other: give one of them")


def check_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Never write over a run unasked."""
    if out.is_file():
        raise InputError(f"{out} is a file: give a folder with -o")
    if out.is_dir() and any(out.iterdir()) and not (resume or overwrite):
        raise InputError(
            f"{out} is not empty: give --resume, --overwrite or another folder with -o"
        )


def stderr() -> Console:
    """A console for messages, 100 columns wide where no terminal says how wide it is."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 100)


def open_streams() -> None:
    """Put a null device where a standard stream is closed, which Python gives as None.

    The first files that are opened would take its number, and get what C code prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def lose_output(error: OSError) -> None:
    """Say, if that can be said, that what is printed cannot be written, and print no more of it."""
    with suppress(OSError):
        say(
            f"error: cannot write what is printed here: {error.strerror or error}; "
            "let it go to a file or terminal that takes it"
        )
    with suppress(OSError), open(os.devnull, "w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())  # what waits to be written is tried again


def say(line: str) -> None:
    """A line for people, apart from a command's results."""
    print(line, file=sys.stderr)
