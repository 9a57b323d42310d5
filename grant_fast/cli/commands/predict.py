"""`grant-fast predict`."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...files import check_apart, check_writable
from ..entry import Device, app
from ..messages import described_judgement, report_skipped
from ..runs import use_fitting_threads
from ..terminal import readable, say, uncollected

#: Which of the molecules with a label are judged by themselves.
_UNSEEN = "unlike any in training"


@app.command()
@readable
def predict(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folder; of several runs the answers' mean is taken."),
    ],
    source: Annotated[
        str,
        typer.Argument(help="A CSV of SMILES, a *.sdf, a *.smi (or a *.gz of one), or a *.gfast."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="File to write, *.csv or *.tsv (either may be a *.gz); one that is there is "
            "replaced.",
        ),
    ],
    smiles_column: Annotated[
        str | None, typer.Option(help="The CSV column that holds the SMILES.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an unparsable molecule.")
    ] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Use the last weights, not the best.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Predict for new graphs with the network of a run, or of several.

    A CSV keeps its columns, an SDF its data fields. After them come values in
    the target's own units (regression), or probabilities: of class 1 (binary),
    of each label (multilabel), of each class (multiclass); of several runs
    their means and standard deviations. Graphs of a packed file are numbered by
    their rows in the table that was packed (a CSV's header is row 1), or from 0.
    If the source has labels, in columns called as the run's targets, the
    metrics are printed.
    """
    with uncollected():
        from ...training.answers import (
            check_alike,
            check_answers_name,
            check_new_graphs,
            predict_packed,
            predict_table,
        )
        from ...training.folder import check_spares
        from ...training.predict import continued, load_predictor
        from ...training.records import is_finished
        from ...workers import cores

    for run in runs:
        check_spares(run, out)
    check_writable(out)
    check_apart(source, out)
    check_answers_name(out)
    check_new_graphs(source)
    packed = source.lower().endswith(".gfast")
    if packed and (smiles_column is not None or strict):
        raise InputError(f"{source} holds no SMILES: leave out --smiles-column and --strict")
    predictors = [load_predictor(run, last=last, device=device) for run in runs]
    check_alike(runs, predictors)
    for predictor in predictors:
        check_apart(predictor.config.source, out, "what a run learned from")
    use_fitting_threads(predictors[0].config)
    for run, predictor in zip(runs, predictors, strict=True):
        if not is_finished(run):
            say(f"{run} has no result yet: {continued(run, predictor.config)}")
    if packed:
        outcome = predict_packed(predictors, source, out, progress=True)
    else:
        outcome = predict_table(
            predictors,
            source,
            out,
            smiles_column=smiles_column,
            strict=strict,
            workers=cores(),
            progress=True,
        )
        report_skipped(outcome.failures, source, "left empty")
    for line in outcome.doubts:
        say(line)
    for judged, which in ((outcome.judged, "with a label"), (outcome.unseen, _UNSEEN)):
        if judged is not None:
            print("\n".join(described_judgement(judged, source, which)))
    print(f"predictions: {out}")
