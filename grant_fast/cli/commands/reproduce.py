"""`grant-fast reproduce`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InputError
from ..entry import SEEDS, Device, Overwrite, Resume, app
from ..messages import show_results
from ..options import with_settings
from ..runs import again, command, holds_comparison, interrupted, load, use_fitting_threads
from ..terminal import readable, stderr, uncollected


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
    seeds: Annotated[
        int | None,
        typer.Option(
            help=f"Seeds for each arm. Default: with --resume the folder's, else {SEEDS}."
        ),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also run GCN, GCN + virtual node and InfoBatch; with --resume, where they have "
            "begun.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Folder. Default: runs/reproduce-NAME, the recipe's name."
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    pass_size: Annotated[
        int | None,
        typer.Option(
            help="How many graphs batch norm normalises together. Default: a batch, as published."
        ),
    ] = None,
    device: Device = "auto",
    **given: Any,
) -> None:
    """Run a benchmark of the paper: full, random, (B) and (S), beside the published figures."""
    with uncollected():
        from ...studies.compare import begun, check_seeds, num_seeds
        from ...studies.curves import draw_curves
        from ...studies.paper_table import (
            cells,
            known_differences,
            terminal_table,
            write_reproduction,
        )
        from ...studies.recipe import load_recipe
        from ...studies.report import title_of
        from ...studies.reproduce import ARMS, BASELINES
        from ...studies.reproduce import reproduce as run_all
        from ...training.console import ConsoleObserver
        from ...training.folder import COMPARISON, CURVES_FILE, check_free
        from ...training.metrics import metrics_for
        from ...training.model import resolve_device

    recipe = load_recipe(name)
    check_seeds(SEEDS if seeds is None else seeds)
    out = out or Path("runs") / f"reproduce-{recipe.name}"
    config = dataclasses.replace(
        recipe.config,
        source=data or recipe.source,
        epochs=recipe.config.epochs if epochs is None else epochs,
        graphs=graphs,
        pass_size=recipe.config.pass_size if pass_size is None else pass_size,
        device=device,
        **given,
    )
    if resume and seeds is None:
        seeds = num_seeds(begun(out), config.seed) or None
    seeds = seeds or SEEDS
    check_free(out, resume, overwrite, COMPARISON, config.source)
    try:
        dataset = load(config)
        if config.metric not in metrics_for(dataset.task):
            raise InputError(
                f"the recipe {recipe.name} is judged by {config.metric}, and {config.source} is a "
                f"{dataset.task.kind} task, which has no such metric: give other --data or --target"
            )
        use_fitting_threads(config, dataset.graphs)
        baselines = baselines or (resume and any(begun(out / each) for each in BASELINES))
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
                overwrite=overwrite,
                observer=shown,
            )
        title = title_of(dataset)
        if dataset.name != recipe.name:  # as of other data, or of a file of them
            title = f"{recipe.name}: {title}"
        differences = known_differences(recipe, dataset, config, seeds, resolve_device(device))
        write_reproduction(out, recipe, config, rows, title, differences, command())
        draw_curves(out / CURVES_FILE, runs, title)
    except KeyboardInterrupt:
        raise interrupted(resume or holds_comparison(out, config), again()) from None
    table = terminal_table(cells(recipe, config, rows), title)
    show_results(out, table, [f"- {sentence}" for sentence in differences], width=120)
