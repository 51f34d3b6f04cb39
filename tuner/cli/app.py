"""Assembles the commands, and turns what ends them into one sentence and an exit code."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tuner import __version__
from tuner.cli import exits
from tuner.cli.bench import bench
from tuner.cli.best import best
from tuner.cli.calibrate import calibrate
from tuner.cli.db import db
from tuner.cli.doctor import doctor
from tuner.cli.generations import generations, publish
from tuner.cli.move import export, import_, merge
from tuner.cli.run import run
from tuner.cli.serve import serve
from tuner.cli.worker import worker
from tuner.errors import ShapeFileError, TunerError

EXTRAS = {
    "optuna": "tune",
    "sqlalchemy": "tune",
    "alembic": "tune",
    "psycopg": "postgres",
    "fastapi": "api",
    "uvicorn": "api",
    "jinja2": "api",
    "cuda": "worker",
    "cupy": "worker",
    "numpy": "worker",
}
"""Which extra of the distribution brings a package that a command needs."""


class Commands(TyperGroup):
    """Commands whose expected errors are sentences on stderr, never tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TunerError as error:
            typer.echo(str(error), err=True)
            if isinstance(error, ShapeFileError):
                typer.echo("Nothing was started.", err=True)
            raise typer.Exit(exits.exit_code(error)) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(exits.INTERRUPTED) from None
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            typer.echo(
                f"`tuner {ctx.invoked_subcommand}` needs the package {package}, which is not "
                f"installed. Install gemm-tuner[{EXTRAS[package]}].",
                err=True,
            )
            raise typer.Exit(exits.BAD_INPUT) from None


app = typer.Typer(
    cls=Commands,
    help="Finds, proves and serves the fastest configuration of a Hopper bf16 GEMM kernel.",
    epilog="Settings: TUNER_DATABASE_URL, the database; TUNER_CACHE_DIR, for compiled "
    "kernels; TUNER_API_TOKEN, what the service asks of those who queue shapes.\n\n"
    "Exit codes: 0 every shape has a config; 2 bad usage or input, nothing started; "
    "3 finished, some shapes have none; 4 no usable device; 5 database unusable; "
    "130 interrupted, finished work kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gemm-tuner {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=show_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """What every command shares."""


app.command()(run)
app.command()(best)
app.command()(serve)
app.command()(worker)
app.command()(bench)
app.command()(calibrate)
app.command()(doctor)
app.command()(export)
app.command("import")(import_)
app.command()(merge)
app.command()(publish)
app.add_typer(generations, name="generations")
app.add_typer(db, name="db")
