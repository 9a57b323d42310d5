"""`grant-fast predict`."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...files import check_apart, check_writable
from ..entry import app
from ..shell import report_skipped
from ..terminal import readable, say


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
    from ...data.load import check_kind
    from ...training.folder import check_spares
    from ...training.predict import (
        check_answers_name,
        check_new_graphs,
        load_predictor,
        predict_csv,
        predict_packed,
    )
    from ...training.records import is_finished
    from ...workers import cores

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
