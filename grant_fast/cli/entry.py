"""The `grant-fast` command itself: what its subcommands hang on, and what they share."""

import gc
import sys
from typing import Annotated, Any

import typer

from .terminal import lose_output, say, set_up, wait_briefly

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


SOURCES = (
    "gen-reg, gen-cls, a *.csv or *.tsv of SMILES and targets, a *.sdf, a *.smi (the target is "
    "the penalised logP), any of these as *.gz, a *.gfast, QM9, ZINC or ogbg-mol*."
)
SEEDS = 3  # of each arm, where neither the user nor a folder says
Source = Annotated[str, typer.Argument(help=SOURCES)]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run where it stopped.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the runs in the folder.")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto uses a GPU.")]
_UsageError: Any = typer.BadParameter.__base__  # click's, or typer's own copy of it


def main() -> None:
    """Entry point of `grant-fast`."""
    set_up()
    wait_briefly()
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()  # here, where its failure can be said
        raise SystemExit(status)
    except _UsageError as error:
        if said := error.format_message():  # else it has shown the help
            if said.startswith("Missing"):
                said = f"{said} {' '.join(error.ctx.get_usage().split())}"
            say(f"error: {said}")
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except OSError as error:  # commands say what is wrong with a file that has a name
        lose_output(error)
        raise SystemExit(1) from None
    finally:
        gc.freeze()  # what is left: Python would search all of it for garbage before it ends
