"""What a command does about its run: its data, its threads, and how a stopped one is taken up."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, few, typed
from ..training.config import RunConfig
from .messages import report_skipped
from .terminal import say, uncollected

if TYPE_CHECKING:
    from ..graphs import PackedGraphs

#: Up to so wide a network, or so many nodes a step, has kernels too short for many threads.
_NARROW, _FEW_NODES = 32, 2_000
_FEW_THREADS = 4


def use_fitting_threads(config: RunConfig, graphs: "PackedGraphs | None" = None) -> None:
    """Half of the cores, and few, for narrow networks and for steps over few of the `graphs` that
    are trained on, unless the user chose by OMP_NUM_THREADS.

    Their kernels take a fraction of a millisecond each: where a thread has to share its core with
    something else, all the others wait for it. On two cores two threads take hardly less time than
    one if both are idle, and several times more if one is busy.
    """
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        return
    light = max(*config.hidden_channels, config.embedding, config.head or 0) <= _NARROW
    if graphs is not None and config.step_every == "batch":
        light |= config.batch_size * graphs.num_nodes <= _FEW_NODES * len(graphs)
    if light:
        torch.set_num_threads(max(1, min(torch.get_num_threads() // 2, _FEW_THREADS)))


def load(config: RunConfig, saved_in: Path | None = None) -> Any:
    """The data set that a config names; what was left out of it is said.

    An error mentions where the config was saved, if the source was not given anew.
    """
    with uncollected():
        from ..training.config import MEMORY
        from ..training.model import resolve_device
        from ..training.source import dataset_of
        from ..workers import cores

    resolve_device(config.device)  # what cannot be used is refused before data are read
    try:
        dataset = dataset_of(config, workers=cores(), progress=True)
    except InputError as error:
        if saved_in is None or config.source.startswith(MEMORY):
            raise
        raise InputError(
            f"{error} ({config.source} is the source in {saved_in}: if the data have moved, give a "
            "SOURCE with --resume)"
        ) from error
    report_skipped(dataset.skipped, config.source, "skipped")
    if dataset.unlabelled:
        several = "s" * (dataset.unlabelled != 1)
        say(f"skipped {dataset.unlabelled} row{several} without any label")
    if dataset.left_out:
        names = few([repr(name) for name in dataset.left_out])
        say(f"left out of the targets, as some cells are no numbers, or all are empty: {names}")
        for why in filter(None, dataset.left_out.values()):
            say(why)
    if (name := dataset.says_parts) is not None:
        option = f"--split-column {typed(name)}"
        say(f"column {name!r} says train and test, and is not used: {option} would split by it")
    return dataset


def command() -> str:
    """This command, as one would give it in an empty folder."""
    words = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return typed("grant-fast", *words)


def again() -> str:
    """The command that goes on with this one, were it interrupted."""
    return f"{command()} --resume"


def interrupted(can_go_on: bool, going_on: str) -> KeyboardInterrupt:
    """What to say at Ctrl-C: how to go on, if there is something to go on with."""
    if can_go_on:
        return KeyboardInterrupt(f"interrupted; continue with: {going_on}")
    return KeyboardInterrupt("interrupted before training began: run the command again")


def holds_run(out: Path, config: RunConfig) -> bool:
    """Whether this very run, not an earlier one, has begun in a folder."""
    from ..training.folder import read_config

    try:
        return read_config(out) == config
    except InputError:
        return False


def holds_comparison(out: Path, config: RunConfig) -> bool:
    """Whether this very comparison, not an earlier one, has begun in a folder."""
    from ..studies.compare import begun_config

    try:
        found = begun_config(out)
    except InputError:
        return False
    return found is not None and dataclasses.replace(found, arm=config.arm) == config


def saved_config(out: Path, source: str | None, changes: dict[str, Any]) -> RunConfig | None:
    """The config to resume the run in a folder with; None where none has begun there.

    Raises:
        InputError: the changes are more than another place of the data; or there is neither a run
            nor a source to begin one with.
    """
    from ..training.folder import CONFIG_FILE, check_same, read_config

    if source is not None and not (out / CONFIG_FILE).exists():
        return None
    saved = read_config(out)
    asked = dataclasses.replace(saved, **changes)
    check_same(saved, asked, out)
    return asked
