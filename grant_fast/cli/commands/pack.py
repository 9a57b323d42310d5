"""`grant-fast pack`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...files import check_apart, check_writable
from ...training.config import DATA, RunConfig
from ..entry import Source, app
from ..options import with_settings
from ..runs import load
from ..terminal import busy, readable, uncollected


@app.command()
@readable
@with_settings(only=DATA)
def pack(
    source: Source,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write, *.gfast; one that is there is replaced."),
    ],
    **given: Any,
) -> None:
    """Read or generate a data set once, and write it to one file that loads quickly."""
    with uncollected():
        from ...data.dataset import check_packed_name

    check_packed_name(out)  # before the data are read
    check_writable(out)
    check_apart(source, out)
    dataset = load(RunConfig(source=source, **given))
    with busy("writing the file"):
        dataset.save(out)
    print(f"{dataset.graphs.num_graphs:,} graphs written to {out}")
