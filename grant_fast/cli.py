"""The command line: train, compare, reproduce, pack, predict, doctor."""

import dataclasses
import functools
import inspect
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from .errors import InputError, MissingExtraError
from .training.config import ARMS, RunConfig
from .training.defaults import defaults_for

app = typer.Typer(
    name="grant-fast",
    help="Train flexible graph convolutional networks on many graphs, taught by GraNT.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[
    str,
    typer.Argument(
        help="gen-reg, gen-cls, a *.csv of SMILES, a *.smi, a *.gfast, QM9, ZINC or ogbg-mol*."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs in the folder.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events, too.")]
_UsageError: Any = typer.BadParameter.__base__  # click's, or typer's own copy of it
_NARROW = 32
_DATA = ("smiles_column", "target", "task", "split", "graphs", "data_seed", "strict")


def main() -> None:
    """Entry point of `grant-fast`."""
    # A scheduler's polite kill leaves a resumable run, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        raise SystemExit(app(standalone_mode=False))
    except _UsageError as error:
        if said := error.format_message():  # else it has shown the help
            _say(f"error: {said}")
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None


def _use_fitting_threads(config: RunConfig) -> None:
    """One thread for narrow networks, unless the user chose with OMP_NUM_THREADS.

    Their operators are done before a second thread would have woken up: two were no faster on two
    idle cores, and three times slower where something else used one of them.
    """
    import torch

    widest = max(*config.hidden_channels, config.embedding, config.head or 0)
    if widest <= _NARROW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _readable(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can cause into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            command(**values)
        except (InputError, MissingExtraError, OSError) as error:
            _say(f"error: {' '.join(str(error).split())}")
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            _say("error: the memory is not enough: give a smaller batch size, narrower layers, …")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            _say(str(interrupt) or "interrupted")
            raise typer.Exit(130) from interrupt

    return run


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch's CPU allocator raises a mere RuntimeError, its GPU allocators a kind of it."""
    words = str(error)
    known = ("DefaultCPUAllocator", "out of memory")
    return isinstance(error, MemoryError) or any(word in words for word in known)


def _with_settings(
    *, only: Sequence[str] = (), without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of `RunConfig`; it gets those that the user gave."""
    specs = {spec.name: spec for spec in dataclasses.fields(RunConfig)}
    names = only or [name for name in specs if name not in ("source", "visits", *without)]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind != p.VAR_KEYWORD]
        options = [_option(specs[name]) for name in names]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: _parsed(specs[name], values.pop(name)) for name in names}
            command(**values, **{name: v for name, v in given.items() if v is not None})

        signature = inspect.Signature([*own, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return wrap


def _option(spec: "dataclasses.Field[Any]") -> inspect.Parameter:
    """A field as an option; None unless given, so that defaults can follow the data."""
    flag = f"--{spec.name.replace('_', '-')}"
    kind: Any = str  # also of numbers: the config is who refuses, in one way
    if isinstance(spec.default, bool):
        kind, flag = bool, f"{flag}/--no-{spec.name.replace('_', '-')}"
    text = spec.metadata["help"]
    limit = spec.metadata["limit"].words
    if isinstance(spec.default, tuple):
        kind, text = list[str], f"{text}; repeat it, or separate by commas"
    if limit.startswith(("one of", "above", "at least")):
        text = f"{text}; {limit}"
    if spec.name in {**defaults_for("gen-reg"), **defaults_for("*.csv")}:
        text = f"{text}. Default: what suits the data"
    elif spec.default not in (None, ()):
        text = f"{text}. Default: {str(spec.default).lower()}"
    option = typer.Option(
        flag,
        help=f"{text[0].upper()}{text[1:]}.",
        show_default=False,
        metavar={int: "<int>", float: "<float>"}.get(_bare(spec.type)),
    )
    return inspect.Parameter(
        spec.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _bare(kind: Any) -> Any:
    """`int` for `int | None`; a true union stays what it is."""
    members = [member for member in get_args(kind) if member is not type(None)]
    return members[0] if len(members) == 1 else kind


def _parsed(spec: "dataclasses.Field[Any]", value: Any) -> Any:
    """What the config holds for what the user typed; None where nothing was typed."""
    if isinstance(value, list):
        if spec.name == "target":
            return tuple(value)  # a column's name may hold a comma
        words = [word.strip() for text in value for word in text.split(",") if word.strip()]
        return tuple(map(_number, words))
    is_number = spec.name == "interval" or _bare(spec.type) in (int, float)
    return _number(value) if is_number and value is not None else value


def _number(text: str) -> int | float | str:
    """A number where it is one; else the text, which the config will refuse by name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@app.command()
@_readable
@_with_settings()
def train(
    source: Annotated[str | None, typer.Argument(help="As for compare; not with --resume.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/NAME-ARM.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Train one network and test it."""
    from .training.console import ConsoleObserver
    from .training.folder import CONFIG_FILE, check_same, read_config
    from .training.observers import Observers, TensorBoard
    from .training.trainer import Trainer

    _check_flags(resume, overwrite)
    saved = read_config(out) if resume and out and (out / CONFIG_FILE).exists() else None
    if saved is None and source is None:
        raise InputError("nothing to train on: give a SOURCE, or --resume with -o RUN_FOLDER")
    changes = {**given, "source": source} if source else given
    if saved is not None and out is not None:
        check_same(saved, dataclasses.replace(saved, **changes), out)
    config = saved or _config(changes)  # nonsense is refused before data are read
    out = out or Path("runs") / f"{Path(config.source).stem}-{config.label}"
    _check_free(out, resume, overwrite)
    dataset = _load(config)
    config = saved or _config(changes, dataset)
    _use_fitting_threads(config)
    observers: list[Any] = [TensorBoard()] if tensorboard else []
    try:
        with ConsoleObserver(_stderr()) as shown:
            trainer = Trainer(dataset, config, out, resume=resume)
            result = trainer.fit(Observers([shown, *observers]))
    except KeyboardInterrupt:
        again = shlex.join(["grant-fast", "train", "--resume", "-o", str(out)])
        raise KeyboardInterrupt(f"interrupted; go on with: {again}") from None
    metric = "not measurable" if result.test_metric is None else f"{result.test_metric:.4g}"
    print(f"test {result.metric}: {metric} (weights of epoch {result.best_epoch}, best by valid)")
    print(f"run folder: {out}")


@app.command()
@_readable
@_with_settings(without=["arm"])
def compare(
    source: Source,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder. Default: runs/compare-NAME.")
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option("--arm", help="Arms to run, beside the controls; repeat it. Default: all."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for each arm.")] = 3,
    resume: Resume = False,
    overwrite: Overwrite = False,
    tensorboard: Board = False,
    **given: Any,
) -> None:
    """Compare teachers with plain training and with two controls, over several seeds."""
    from .training.compare import check_seeds, with_controls
    from .training.compare import compare as run_all
    from .training.console import ConsoleObserver
    from .training.curves import draw_curves
    from .training.observers import Observers, TensorBoard
    from .training.report import summarize, terminal_table, write_report

    chosen = [name for text in arms or ARMS for name in text.split(",")]
    check_seeds(seeds)
    num_runs = seeds * len(with_controls(chosen))
    out = out or Path("runs") / f"compare-{Path(source).stem}"
    _check_flags(resume, overwrite)
    given["source"] = source
    config = _config(given)  # nonsense is refused before data are read
    _check_free(out, resume, overwrite)
    dataset = _load(config)
    config = _config(given, dataset)
    _use_fitting_threads(config)
    observers: list[Any] = [TensorBoard()] if tensorboard else []
    try:
        with ConsoleObserver(_stderr(), num_runs) as shown:
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
        raise KeyboardInterrupt(f"interrupted; go on with: {_again()}") from None
    sizes = " / ".join(f"{len(ids):,}" for ids in dataset.split.values())
    title = f"{dataset.name}, {sizes} graphs to train, validate and test"
    summaries = summarize(runs)
    sentences = write_report(out, runs, summaries, title)
    draw_curves(out / "curves.png", runs, title)
    console = Console(width=None if sys.stdout.isatty() else 100)
    result = runs[0].result
    console.print(terminal_table(summaries, result.metric, result.higher_is_better, title))
    for sentence in sentences:
        print(sentence)
    print(f"\nnumbers: {out / 'results.json'}, {out / 'results.md'}\npicture: {out / 'curves.png'}")


@app.command()
@_readable
def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="QM9, ZINC, ogbg-molhiv, ogbg-molpcba, gen-reg, gen-cls, or a *.json."),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Other data than the recipe's: hiv.csv for ogbg-molhiv, a *.smi for ZINC, "
            "or twin:QM9, twin:ZINC, twin:ogbg-molpcba: noise of that shape, to time."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs. Default: the recipe's.")] = None,
    graphs: Annotated[int | None, typer.Option(help="Only so many graphs.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for each arm.")] = 3,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Run GCN, GCN + virtual node and InfoBatch, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder. Default: runs/reproduce-NAME.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Run a benchmark of the paper: full, random, (B), (S), beside the published figures."""
    from .training.console import ConsoleObserver
    from .training.curves import draw_curves
    from .training.model import resolve_device
    from .training.paper_table import (
        cells,
        known_differences,
        terminal_table,
        title_of,
        write_reproduction,
    )
    from .training.recipe import load_recipe
    from .training.reproduce import ARMS, BASELINES
    from .training.reproduce import reproduce as run_all

    recipe = load_recipe(name)
    out = out or Path("runs") / f"reproduce-{recipe.name}"
    _check_flags(resume, overwrite)
    config = dataclasses.replace(
        recipe.config,
        source=data or recipe.source,
        epochs=recipe.config.epochs if epochs is None else epochs,
        graphs=graphs,
        device=device,
    )
    _use_fitting_threads(config)
    _check_free(out, resume, overwrite)
    dataset = _load(config)
    try:
        num_arms = len(ARMS) + (len(BASELINES) if baselines else 0)
        with ConsoleObserver(_stderr(), seeds * num_arms) as shown:
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
        raise KeyboardInterrupt(f"interrupted; go on with: {_again()}") from None
    title = title_of(recipe, dataset)
    differences = known_differences(recipe, dataset, config, seeds, resolve_device(device))
    command = shlex.join(["grant-fast", *sys.argv[1:]])
    write_reproduction(out, recipe, config, rows, title, differences, command)
    draw_curves(out / "curves.png", runs, title)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(terminal_table(cells(recipe, config, rows), title))
    for sentence in differences:
        print(f"- {sentence}")
    print(f"\nnumbers: {out / 'results.json'}, {out / 'results.md'}\npicture: {out / 'curves.png'}")


@app.command()
@_readable
@_with_settings(only=_DATA)
def pack(
    source: Source,
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write, *.gfast.")],
    **given: Any,
) -> None:
    """Read or generate a data set once, into one file that loads at once."""
    from .data.dataset import save_dataset

    dataset = _load(RunConfig(source=source, **given))
    save_dataset(dataset, out)
    print(f"{dataset.graphs.num_graphs:,} graphs written to {out}")


@app.command()
@_readable
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    source: Annotated[str, typer.Argument(help="A CSV of SMILES, or a packed *.gfast file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="CSV to write.")],
    smiles_column: Annotated[str | None, typer.Option(help="The CSV's column of SMILES.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at an unparsable SMILES.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Use the last weights.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Predict for new graphs with a trained run."""
    from .training.folder import check_spares
    from .training.predict import load_predictor, predict_csv, predict_packed

    check_spares(run, out)
    predictor = load_predictor(run, last=last, device=device)
    if source.lower().endswith(".gfast"):
        predict_packed(predictor, source, out)
    else:
        failures = predict_csv(
            predictor, source, out, smiles_column=smiles_column, strict=strict, progress=True
        )
        _report_skipped(failures, "left empty")
    print(f"predictions: {out}")


@app.command()
@_readable
def doctor(
    compile_kernels: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the Triton kernels for NVIDIA and AMD targets, too; needs no GPU.",
        ),
    ] = False,
) -> None:
    """Say what is installed, what works here, and who computes a usual model."""
    from .training.doctor import compiled_kernels, examine

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


def _config(given: dict[str, Any], dataset: Any = None) -> RunConfig:
    """What the user gave, and for the rest what suits the source, or better the data in it."""
    layers = len(given["orders"]) if "orders" in given else None
    if dataset is None:
        suits = defaults_for(given["source"], layers=layers)
    else:
        suits = defaults_for(dataset.name, len(dataset.graphs), layers)
    return RunConfig(**{**suits, **given})


def _load(config: RunConfig) -> Any:
    from .data.load import load_dataset

    dataset = load_dataset(
        config.source,
        smiles_column=config.smiles_column,
        target=list(config.target) or None,
        task=None if config.task == "auto" else config.task,  # type: ignore[arg-type]
        split=config.split,  # type: ignore[arg-type]
        num_graphs=config.graphs,
        seed=config.data_seed,
        strict=config.strict,
        workers=os.cpu_count(),
    )
    _report_skipped(dataset.skipped, "skipped")
    if dataset.unlabelled:
        _say(f"{dataset.unlabelled} rows without any label left out")
    return dataset


def _again() -> str:
    """The command that goes on with this one, were it interrupted."""
    words = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return shlex.join(["grant-fast", *words, "--resume"])


def _report_skipped(failures: Sequence[tuple[int, str]], fate: str) -> None:
    if failures:
        shown = ", ".join(f"row {row} {text[:30]!r}" for row, text in failures[:3])
        more = ", …" if len(failures) > 3 else ""
        _say(f"{len(failures)} unparsable SMILES {fate}: {shown}{more}")


def _check_flags(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise InputError("--resume and --overwrite exclude each other: give one of them")


def _check_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Never write over a run unasked."""
    if out.is_file():
        raise InputError(f"{out} is a file: give a folder with -o")
    if out.is_dir() and any(out.iterdir()) and not (resume or overwrite):
        raise InputError(
            f"{out} is not empty: give --resume, --overwrite or another folder with -o"
        )


def _stderr() -> Console:
    return Console(stderr=True, width=None if sys.stderr.isatty() else 100)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
