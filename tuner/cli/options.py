"""Options that several commands share, and the settings they override."""

import os
import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tuner.settings import Settings
from tuner.shape import OutputLayout
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT


class RaceProtocol(StrEnum):
    """Short names of the protocols that races are run under."""

    HOT = "hot"
    COOL = "cool"

    @property
    def id(self) -> str:
        return PROTOCOL_HOT if self is RaceProtocol.HOT else PROTOCOL_COOL


class Output(StrEnum):
    """Memory order of D."""

    ROW = "row"
    COL = "col"

    @property
    def layout(self) -> OutputLayout:
        return "row" if self is Output.ROW else "col"


ShapesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--shapes",
        metavar="FILE...",
        help="Shape files: `M N K` a line, or columns that a first line names. Blanks, tabs, "
        "commas or x between; # starts a comment. A line that is not understood is refused "
        "before anything starts.",
    ),
]
MoreShapes = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More shape files.")]
"""What follows the first file of `--shapes a.txt b.txt`."""
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cuda:N for a GPU; replay, or replay:NAME, for recorded measurements. "
        "Default: cuda:0.",
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="sqlite:///FILE, postgresql://USER@HOST/NAME, or the path of a SQLite file. "
        "Default: TUNER_DATABASE_URL, else tuner.db in the user's data folder.",
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--d", help="Memory order of the output: row as in PyTorch, col as BLAS.")
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Compiler processes. Default: one for each CPU core."),
]
TrialsOption = Annotated[
    int | None, typer.Option("--trials", min=1, help="Configs to try per shape. Default: 96.")
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds-per-shape",
        min=0.1,
        help="End the search of a shape after this long. Default: no limit.",
    ),
]
PatienceOption = Annotated[
    int | None,
    typer.Option(
        "--patience",
        min=1,
        help="End the search of a shape after so many configs none of which was faster. "
        "Default: use up the trials.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def settings(db: str | None = None) -> Settings:
    """The environment's settings; `db`, where given, names the database instead."""
    found = Settings.from_environment(os.environ)
    return replace(found, database_url=database_url(db or found.database_url))


def database_url(named: str) -> str:
    """A URL as it is, a path as the URL of a SQLite file."""
    return named if "://" in named else f"sqlite:///{Path(named).expanduser().absolute()}"


def command_line(context: typer.Context) -> str:
    """The command as it was typed, which `main` hands down."""
    return shlex.join(["tuner", *context.obj])


def shape_paths(given: list[Path] | None, more: list[Path] | None) -> list[Path]:
    """Raises: BadParameter if no file is named."""
    if paths := [*(given or ()), *(more or ())]:
        return paths
    raise typer.BadParameter("name at least one shape file", param_hint="--shapes")
