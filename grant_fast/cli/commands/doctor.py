"""`grant-fast doctor`."""

from typing import Annotated

import typer

from ..entry import app
from ..terminal import readable


@app.command()
@readable
def doctor(
    compile_kernels: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Also compile the Triton kernels for NVIDIA and AMD targets, which takes minutes; "
            "needs no GPU.",
        ),
    ] = False,
) -> None:
    """Show what is installed, what works here, and what computes a typical model."""
    from ..doctor import compiled_kernels, examine

    sound = True
    for check in examine():
        mark = {None: "", True: "ok", False: "NO"}[check.ok]
        print(f"{mark:<2} {check.name:<28} {check.detail}", flush=True)
        sound &= check.ok is not False
    if compile_kernels:
        print()
        for line, passed in compiled_kernels():
            print(line, flush=True)
            sound &= passed
    if not sound:
        raise typer.Exit(1)
