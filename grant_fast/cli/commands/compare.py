"""`grant-fast compare`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, typed
from ...files import unzipped_name
from ...training.config import ARMS, ON_REQUEST, RunConfig
from ...training.defaults import config_of, given_of
from ..entry import SEEDS, SOURCES, Board, Overwrite, Resume, app
from ..messages import described, described_stay, show_results
from ..options import as_options, with_settings
from ..runs import again, command, holds_comparison, interrupted, load, use_fitting_threads
from ..terminal import busy, readable, stderr, uncollected

if TYPE_CHECKING:
    from ...training.records import Run

_TEACHERS = [name for name in ARMS if name != "random"]


@app.command()
@readable
@with_settings(without=["arm", "patience"])
def compare(
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"{SOURCES} With --resume and -o, give it only if the data have moved: settings, "
            "arms and seeds are taken from the folder."
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
            f"with --resume the folder's, else {', '.join(_TEACHERS)}; "
            "the controls, random and full-equal-budget, always run. Extra: "
            f"{', '.join(ON_REQUEST)}.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help=f"How many seeds for each arm. Default: with --resume the folder's, else {SEEDS}."
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Compare teachers with plain training and two controls, over several seeds."""
    with uncollected():
        from ...studies.compare import begun, begun_config, check_seeds, num_seeds, with_controls
        from ...studies.compare import compare as run_all
        from ...studies.curves import draw_curves
        from ...studies.report import summarize, terminal_table, title_of, write_report
        from ...training.console import ConsoleObserver
        from ...training.folder import COMPARISON, CURVES_FILE, check_flags, check_free
        from ...training.observers import Observers, TensorBoard

    chosen = [name for text in arms or () for name in text.replace(" ", "").split(",")]
    with_controls(chosen)
    check_seeds(SEEDS if seeds is None else seeds)
    check_flags(resume, overwrite)
    if source is not None:
        given["source"] = source
        out = out or Path("runs") / f"compare-{unzipped_name(source).stem}"
    if out is None or (source is None and not resume):
        raise InputError("nothing to compare: give a SOURCE, or --resume with -o FOLDER")
    saved = begun_config(out) if resume else None
    if saved is None and source is None:
        raise InputError(f"{out} holds no comparison to continue: give a SOURCE")
    if saved is not None:
        saved = dataclasses.replace(saved, **given)
        there = begun(out)
        chosen = chosen or list(dict.fromkeys(arm for arm, _ in there))
        seeds = seeds or num_seeds(there, saved.seed)
    chosen, seeds = chosen or list(ARMS), seeds or SEEDS
    config = saved or config_of(given)  # nonsense is refused before data are read
    check_free(out, resume, overwrite, COMPARISON, config.source)
    try:
        dataset = load(config, out if source is None else None).grouped()
        config = saved or config_of(given, dataset)
        use_fitting_threads(config, dataset.graphs)
        observers: list[Any] = [TensorBoard()] if tensorboard else []
        with busy("looking at the data"):
            every, about = with_controls(chosen), described(dataset, config)
        stay = described_stay(config, every)
        about += stay
        if saved is not None:
            about.append(
                f"continues {out}: {', '.join(every)}; {seeds} seed{'s' * (seeds != 1)} each"
            )
        with ConsoleObserver(stderr(), seeds * len(every), about) as shown:
            runs = run_all(
                dataset,
                config,
                out,
                arms=chosen,
                seeds=seeds,
                resume=resume,
                overwrite=overwrite,
                observer=Observers([shown, *observers]),
            )
        title = title_of(dataset)
        summaries = summarize(runs)
        how = command() if saved is None else _anew(config, dataset, out, every, seeds)
        sentences = write_report(out, runs, summaries, title, how, config, stay)
        draw_curves(out / CURVES_FILE, runs, title)
    except KeyboardInterrupt:
        raise interrupted(resume or holds_comparison(out, config), again()) from None
    sentences += _not_shown(begun(out), runs)
    result = runs[0].result
    table = terminal_table(summaries, result.metric, result.higher_is_better, title)
    show_results(out, table, sentences)


def _anew(config: RunConfig, dataset: Any, out: Path, arms: Sequence[str], seeds: int) -> str:
    """The command that makes a comparison from the start which was taken up from its folder."""
    from ...studies.compare import CONTROLS

    given = given_of(dataclasses.replace(config, arm="full"), dataset)
    chosen = [arm for arm in arms if arm not in CONTROLS] or CONTROLS  # which always run
    words = ["grant-fast", "compare", config.source, *as_options(given)]
    if chosen != _TEACHERS:
        words += ["--arm", ",".join(chosen)]
    return typed(*words, "--seeds", str(seeds), "-o", str(out))


def _not_shown(there: list[tuple[str, int]], runs: list["Run"]) -> list[str]:
    """What else is in the folder, a sentence for arms and one for seeds."""
    shown = {run.result.arm for run in runs}, {run.result.seed for run in runs}
    arms = dict.fromkeys(arm for arm, _ in there if arm not in shown[0])
    seeds = sorted({seed for _, seed in there if seed not in shown[1]})
    sentences = []
    if arms:
        sentences.append(f"Not shown, as --arm does not name them: {', '.join(arms)}.")
    if seeds:
        which = ", ".join(map(str, seeds))
        sentences.append(f"Not shown, as these seeds were not asked for: {which}.")
    return sentences
