"""`grant-fast train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InputError
from ...files import unzipped_name
from ...training.defaults import check_heeded, config_of
from ..entry import SOURCES, Board, Overwrite, Resume, app
from ..messages import described, described_share, described_test
from ..options import with_settings
from ..runs import holds_run, interrupted, load, saved_config, use_fitting_threads
from ..terminal import busy, readable, stderr, uncollected


@app.command()
@readable
@with_settings()
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"{SOURCES} With --resume and -o, give it only if the data have moved."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/NAME-ARM.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Train one network and test it.

    The folder gets the weights, the metrics, a picture of these and of the
    test (run.png), which part of the split each graph was in (split.csv),
    which molecules could not be read (skipped.csv), and the predictions for
    the test graphs (test.csv; not written where each node has a target).
    """
    with uncollected():
        from ...training.console import ConsoleObserver
        from ...training.folder import (
            CONFIG_FILE,
            PICTURE_FILE,
            check_flags,
            check_free,
            is_of_comparison,
        )
        from ...training.observers import Observers, TensorBoard
        from ...training.predict import resuming
        from ...training.run import train_to_the_end
        from ...training.trainer import Trainer

    check_flags(resume, overwrite)
    changes = given if source is None else {**given, "source": source}
    if source is None and not (resume and out):
        raise InputError("nothing to train on: give a SOURCE, or --resume with -o RUN_FOLDER")
    if out is None:
        out = Path("runs") / f"{unzipped_name(str(source)).stem}-{config_of(changes).label}"
    saved = saved_config(out, source, changes) if resume else None
    config = saved or config_of(changes)  # nonsense is refused before data are read
    if saved is None:
        check_heeded(config, given)
    check_free(out, resume, overwrite, source=config.source)
    try:
        # As the trainer wants it, which else would hold a second one.
        dataset = load(config, out / CONFIG_FILE if source is None else None).grouped()
        config = saved or config_of(changes, dataset)
        use_fitting_threads(config, dataset.graphs)
        observers: list[Any] = [TensorBoard()] if tensorboard else []
        with busy("looking at the data"):
            trainer = Trainer(dataset, config, out, resume=resume)
            share = described_share(config, len(dataset.split["train"]))
            about = [*described(dataset, config), *share]
        if resume and trainer.epoch == 0:
            about.append(f"{out} has no finished epoch to continue from: the run starts at epoch 1")
        with ConsoleObserver(stderr(), about=about) as shown:
            result = train_to_the_end(
                trainer, dataset, Observers([shown, *observers]), resume, overwrite
            )
    except KeyboardInterrupt:
        raise interrupted(holds_run(out, config), resuming(out, config)) from None
    can_grow = result.arm == "full" and not is_of_comparison(out)
    for line in described_test(result, dataset, can_grow):
        print(line)
    print(f"run folder: {out}\npicture: {out / PICTURE_FILE}")
