"""`grant-fast compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InputError
from ...files import unzipped_name
from ...training.config import ARMS, ON_REQUEST
from ...training.defaults import config_of
from ..entry import SOURCES, Board, Overwrite, Resume, app
from ..options import with_settings
from ..shell import (
    again,
    begun_comparison,
    described,
    holds_runs,
    interrupted,
    load,
    show_results,
    use_fitting_threads,
)
from ..terminal import readable, stderr

_SEEDS = 3


@app.command()
@readable
@with_settings(without=["arm"])
def compare(
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"{SOURCES} With --resume and -o it may be left out: the data and the settings "
            "below are then taken from the folder."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder. Default: runs/compare-NAME.")
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help="Arms to run; repeat the option, or separate names with commas. Default: "
            f"{', '.join(name for name in ARMS if name != 'random')}; the controls, random "
            f"and full-equal-budget, always run. Extra: {', '.join(ON_REQUEST)}.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help=f"How many seeds for each arm. Default: {_SEEDS}.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Compare teachers with plain training and two controls, over several seeds."""
    from ...studies.compare import begun, beside, check_seeds, with_controls
    from ...studies.compare import compare as run_all
    from ...studies.curves import draw_curves
    from ...studies.report import summarize, terminal_table, title_of, write_report
    from ...training.console import ConsoleObserver
    from ...training.folder import check_flags, check_free
    from ...training.observers import Observers, TensorBoard

    chosen = [name for text in arms or () for name in text.replace(" ", "").split(",")]
    with_controls(chosen)
    check_seeds(_SEEDS if seeds is None else seeds)
    check_flags(resume, overwrite)
    saved = None
    if source is not None:
        given["source"] = source
    elif resume and out:
        saved = begun_comparison(out, given)
    else:
        raise InputError("nothing to compare: give a SOURCE, or --resume with -o FOLDER")
    config = saved or config_of(given)  # nonsense is refused before data are read
    out = out or Path("runs") / f"compare-{unzipped_name(config.source).stem}"
    check_free(out, resume, overwrite)
    if resume:
        there, of_seeds = begun(out)
        chosen, seeds = chosen or there, seeds or len(of_seeds)
    chosen, seeds = chosen or list(ARMS), seeds or _SEEDS
    dataset = load(config)
    check_free(out, resume, overwrite)  # another process may have been quicker
    config = saved or config_of(given, dataset)
    use_fitting_threads(config)
    observers: list[Any] = [TensorBoard()] if tensorboard else []
    num_runs = seeds * len(with_controls(chosen))
    try:
        with ConsoleObserver(stderr(), num_runs, described(dataset, config)) as shown:
            runs = run_all(
                dataset,
                config,
                out,
                arms=chosen,
                seeds=seeds,
                resume=resume,
                observer=Observers([shown, *observers]),
            )
    except KeyboardInterrupt:
        raise interrupted(holds_runs(out), again()) from None
    title = title_of(dataset)
    summaries = summarize(runs)
    sentences = write_report(out, runs, summaries, title)
    other_arms, other_seeds = beside(out, runs)
    if other_arms:
        sentences.append(f"Not shown, as --arm does not name them: {', '.join(other_arms)}.")
    if other_seeds:
        which = ", ".join(map(str, other_seeds))
        sentences.append(f"Not shown, as they are beyond --seeds {seeds}: runs of seed {which}.")
    draw_curves(out / "curves.png", runs, title)
    result = runs[0].result
    table = terminal_table(summaries, result.metric, result.higher_is_better, title)
    show_results(out, table, sentences)
