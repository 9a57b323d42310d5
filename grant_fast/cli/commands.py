"""The command line: train, compare, reproduce, pack, predict, doctor."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import check_apart, check_writable, unzipped_name
from ..training.config import ARMS, DATA, ON_REQUEST, RunConfig
from .options import config_of, with_settings
from .shell import (
    again,
    begun_comparison,
    check_flags,
    check_free,
    described,
    described_share,
    described_test,
    holds_run,
    holds_runs,
    interrupted,
    load,
    report_skipped,
    saved_config,
    show_results,
    use_fitting_threads,
)
from .terminal import lose_output, readable, say, set_up, stderr

app = typer.Typer(
    name="grant-fast",
    help="Train flexible graph convolutional networks on many graphs, with GraNT as the teacher.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    from .. import __version__

    if asked:
        typer.echo(f"grant-fast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


_SOURCES = (
    "gen-reg, gen-cls, a *.csv or *.tsv of SMILES and targets, a *.sdf, a *.smi (the target is "
    "the penalised logP), any of these as *.gz, a *.gfast, QM9, ZINC or ogbg-mol*."
)
Source = Annotated[str, typer.Argument(help=_SOURCES)]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run where it stopped.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs in the folder.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
_UsageError: Any = typer.BadParameter.__base__  # click's, or typer's own copy of it


def main() -> None:
    """Entry point of `grant-fast`."""
    set_up()
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()  # here, where its failure can be said
        raise SystemExit(status)
    except _UsageError as error:
        if said := error.format_message():  # else it has shown the help
            say(f"error: {said}")
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except OSError as error:  # commands say what is wrong with a file that has a name
        lose_output(error)
        raise SystemExit(1) from None


@app.command()
@readable
@with_settings()
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            help="The data set (see compare --help). With --resume, give it only if the data have "
            "moved."
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

    The folder gets the weights, the metrics, which part of the split each
    graph was in (split.csv), and the predictions for the test graphs (test.csv;
    not written where each node has a target).
    """
    from ..training.console import ConsoleObserver
    from ..training.folder import CONFIG_FILE, LAST_FILE
    from ..training.observers import Observers, TensorBoard
    from ..training.predict import write_parts
    from ..training.records import is_finished
    from ..training.trainer import Trainer

    check_flags(resume, overwrite)
    changes = given if source is None else {**given, "source": source}
    saved = saved_config(out, source, changes) if resume and out else None
    if saved is None and source is None:
        raise InputError("nothing to train on: give a SOURCE, or --resume with -o RUN_FOLDER")
    config = saved or config_of(changes)  # nonsense is refused before data are read
    out = out or Path("runs") / f"{unzipped_name(config.source).stem}-{config.label}"
    check_free(out, resume, overwrite)
    begins = not (out / LAST_FILE).exists()
    if resume and begins and is_finished(out):
        raise InputError(
            f"{out} holds the result of a run without its {LAST_FILE}: restore that, or train "
            "again with --overwrite"
        )
    try:
        dataset = load(config)
    except InputError as error:
        if saved is None or source is not None:
            raise
        raise InputError(
            f"{error} ({config.source} is the source in {out / CONFIG_FILE}: if the data have "
            "moved, give a SOURCE with --resume)"
        ) from error
    config = saved or config_of(changes, dataset)
    use_fitting_threads(config)
    observers: list[Any] = [TensorBoard()] if tensorboard else []
    try:
        about = [*described(dataset, config), *described_share(config)]
        if resume and begins:
            about.append(f"{out} has no {LAST_FILE} to continue from: the run starts at epoch 1")
        with ConsoleObserver(stderr(), about=about) as shown:
            trainer = Trainer(dataset, config, out, resume=resume)
            result = trainer.fit(Observers([shown, *observers]))
        write_parts(out, dataset)
    except KeyboardInterrupt:
        command = shlex.join(["grant-fast", "train", "--resume", "-o", str(out)])
        raise interrupted(holds_run(out, config), command) from None
    for line in described_test(result, dataset):
        print(line)
    print(f"run folder: {out}")


@app.command()
@readable
@with_settings(without=["arm"])
def compare(
    source: Annotated[
        str | None,
        typer.Argument(
            help=f"{_SOURCES} With --resume and -o it may be left out: the data and the settings "
            "below, except --arm and --seeds, are then taken from the folder."
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
    seeds: Annotated[int, typer.Option(help="Seeds for each arm.")] = 3,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Compare teachers with plain training and two controls, over several seeds."""
    from ..studies.compare import check_seeds, with_controls
    from ..studies.compare import compare as run_all
    from ..studies.curves import draw_curves
    from ..studies.report import summarize, terminal_table, title_of, write_report
    from ..training.console import ConsoleObserver
    from ..training.observers import Observers, TensorBoard

    chosen = [name for text in arms or ARMS for name in text.replace(" ", "").split(",")]
    check_seeds(seeds)
    num_runs = seeds * len(with_controls(chosen))
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
    dataset = load(config)
    config = saved or config_of(given, dataset)
    use_fitting_threads(config)
    observers: list[Any] = [TensorBoard()] if tensorboard else []
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
    draw_curves(out / "curves.png", runs, title)
    result = runs[0].result
    table = terminal_table(summaries, result.metric, result.higher_is_better, title)
    show_results(out, table, sentences)


@app.command()
@readable
@with_settings(only=("smiles_column", "target"))
def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="QM9, ZINC, ogbg-molhiv, ogbg-molpcba, gen-reg, gen-cls, or a *.json."),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Data to use instead of the recipe's: hiv.csv for ogbg-molhiv, a *.smi for ZINC; "
            "or, for timing only, noise in the shape of a data set: twin:QM9, twin:ZINC, "
            "twin:ogbg-molpcba."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs. Default: the recipe's.")] = None,
    graphs: Annotated[int | None, typer.Option(help="Use only this many graphs.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for each arm.")] = 3,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also run GCN, GCN + virtual node and InfoBatch.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder. Default: runs/reproduce-NAME.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    pass_size: Annotated[
        int | None,
        typer.Option(
            help="How many graphs batch norm normalises together. Default: a batch, as published."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto uses a GPU.")] = "auto",
    **given: Any,
) -> None:
    """Run a benchmark of the paper: full, random, (B) and (S), beside the published figures."""
    from ..studies.compare import check_seeds
    from ..studies.curves import draw_curves
    from ..studies.paper_table import cells, known_differences, terminal_table, write_reproduction
    from ..studies.recipe import load_recipe
    from ..studies.report import title_of
    from ..studies.reproduce import ARMS, BASELINES
    from ..studies.reproduce import reproduce as run_all
    from ..training.console import ConsoleObserver
    from ..training.model import resolve_device

    recipe = load_recipe(name)
    check_seeds(seeds)
    out = out or Path("runs") / f"reproduce-{recipe.name}"
    check_flags(resume, overwrite)
    config = dataclasses.replace(
        recipe.config,
        source=data or recipe.source,
        epochs=recipe.config.epochs if epochs is None else epochs,
        graphs=graphs,
        pass_size=recipe.config.pass_size if pass_size is None else pass_size,
        device=device,
        **given,
    )
    use_fitting_threads(config)
    check_free(out, resume, overwrite)
    dataset = load(config)
    try:
        num_arms = len(ARMS) + (len(BASELINES) if baselines else 0)
        with ConsoleObserver(stderr(), seeds * num_arms) as shown:
            runs, rows = run_all(
                recipe,
                dataset,
                config,
                out,
                baselines=baselines,
                seeds=seeds,
                resume=resume,
                observer=shown,
            )
    except KeyboardInterrupt:
        raise interrupted(holds_runs(out), again()) from None
    title = f"{recipe.name}: {title_of(dataset)}"
    differences = known_differences(recipe, dataset, config, seeds, resolve_device(device))
    command = shlex.join(["grant-fast", *sys.argv[1:]])
    write_reproduction(out, recipe, config, rows, title, differences, command)
    draw_curves(out / "curves.png", runs, title)
    table = terminal_table(cells(recipe, config, rows), title)
    show_results(out, table, [f"- {sentence}" for sentence in differences], width=120)


@app.command()
@readable
@with_settings(only=DATA)
def pack(
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write, *.gfast.")],
    **given: Any,
) -> None:
    """Read or generate a data set once, and write it to one file that loads quickly."""
    from ..data.dataset import check_packed_name, save_dataset

    check_packed_name(out)  # before the data are read
    check_writable(out)
    check_apart(source, out)
    dataset = load(RunConfig(source=source, **given))
    save_dataset(dataset, out)
    print(f"{dataset.graphs.num_graphs:,} graphs written to {out}")


@app.command()
@readable
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    source: Annotated[
        str,
        typer.Argument(help="A CSV of SMILES, a *.sdf, a *.smi (or a *.gz of one), or a *.gfast."),
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write, *.csv or *.tsv (either may be a *.gz)."),
    ],
    smiles_column: Annotated[
        str | None, typer.Option(help="The CSV column that holds the SMILES.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at an unparsable SMILES.")] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Use the last weights, not the best.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto uses a GPU.")] = "auto",
) -> None:
    """Predict for new graphs with the network of a run.

    A CSV keeps its columns, an SDF its data fields. After them come values in
    the target's own units (regression), or probabilities: of class 1 (binary),
    of each label (multilabel), of each class (multiclass). Graphs of a packed
    file are numbered by their rows in the table that was packed (its header is
    row 1), or from 0.
    """
    from ..data.load import check_kind
    from ..training.folder import check_spares
    from ..training.predict import (
        check_answers_name,
        check_new_graphs,
        load_predictor,
        predict_csv,
        predict_packed,
    )
    from ..training.records import is_finished
    from ..workers import cores

    check_spares(run, out)
    check_writable(out)
    check_apart(source, out)
    check_answers_name(out)
    check_new_graphs(source)
    check_kind(source)
    packed = source.lower().endswith(".gfast")
    if packed and (smiles_column is not None or strict):
        raise InputError(f"{source} holds no SMILES: leave out --smiles-column and --strict")
    predictor = load_predictor(run, last=last, device=device)
    if not is_finished(run):
        say(
            f"{run} has no result yet, because its training was stopped: train --resume -o {run} "
            "continues it"
        )
    if packed:
        predict_packed(predictor, source, out)
    else:
        failures = predict_csv(
            predictor,
            source,
            out,
            smiles_column=smiles_column,
            strict=strict,
            workers=cores(),
            progress=True,
        )
        report_skipped(failures, source, "left empty")
    print(f"predictions: {out}")


@app.command()
@readable
def doctor(
    compile_kernels: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Also compile the Triton kernels for NVIDIA and AMD targets; needs no GPU.",
        ),
    ] = False,
) -> None:
    """Show what is installed, what works here, and what computes a typical model."""
    from .doctor import compiled_kernels, examine

    checks = examine()
    for check in checks:
        print(f"{ {None: ' ', True: '✓', False: '✗'}[check.ok] } {check.name:<28} {check.detail}")
    sound = all(check.ok is not False for check in checks)
    if compile_kernels:
        print()
        for line, passed in compiled_kernels():
            print(line, flush=True)
            sound &= passed
    if not sound:
        raise typer.Exit(1)
