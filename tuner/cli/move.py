"""`tuner export`, `import` and `merge`: rows between databases, and answers for other programs."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import console, exits
from tuner.cli.devices import resolve_stored
from tuner.cli.formats import plural
from tuner.cli.options import DatabaseOption, JsonOption, database_url, settings
from tuner.trial_json import InvalidRow

if TYPE_CHECKING:
    from tuner.store.repository import Repository
    from tuner.store.transfer import Moved

SHOWN_REFUSALS = 10
"""Of one file; the rest is counted."""


class Format(StrEnum):
    """What an export is written as."""

    JSONL = "jsonl"
    SQLITE = "sqlite"
    CSV = "csv"
    VLLM = "vllm"


_BY_SUFFIX = {
    ".db": Format.SQLITE,
    ".sqlite": Format.SQLITE,
    ".sqlite3": Format.SQLITE,
    ".csv": Format.CSV,
}
StoredOption = Annotated[
    str | None,
    typer.Option("--device", metavar="KEY", help="Key or name of a stored device. Default: all."),
]


def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file, or for vllm the folder.")],
    format: Annotated[
        Format | None,
        typer.Option(
            help="jsonl (compressed if OUT ends in .gz) and sqlite hold rows and can be imported; "
            "csv and vllm hold the best answers. Default: by the ending of OUT, else jsonl."
        ),
    ] = None,
    device: StoredOption = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the database, or one device of it, to a file that appears whole or not at all.

    jsonl and sqlite print the hash of their content: equal hashes, equal rows. vllm writes one
    file for each device name, N and K as vLLM names its own; the fields in it are this kernel's.

    Example: tuner export rows.jsonl.gz --device "NVIDIA H200"
    """
    from tuner.store.exports import export_lines, export_sqlite
    from tuner.store.foreign_formats import export_csv, export_vllm
    from tuner.store.repository import Repository
    from tuner.store.source import opened_source

    chosen = format or _BY_SUFFIX.get(out.suffix.lower(), Format.JSONL)
    with opened_source(settings(db).database_url) as source:
        repository = Repository(source.engine, source.location)
        keys = _device_keys(repository, device)
        only = keys[0] if device is not None else None
        if chosen in (Format.JSONL, Format.SQLITE):
            write = export_lines if chosen is Format.JSONL else export_sqlite
            done = write(source, out, only)
            told: dict[str, Any] = {
                "file": str(out),
                "content_hash": done.content_hash,
                "rows": dict(done.rows),
                "left_out": done.left_out,
            }
            line = f"{out}: {_counted(done.rows)}; content {done.content_hash}."
        else:
            for_others = export_csv if chosen is Format.CSV else export_vllm
            written = for_others(repository, out, keys)
            told = {"files": list(map(str, written.paths)), "answers": written.answers}
            line = f"{out}: {plural(written.answers, 'answer')}"
            line += f" in {plural(len(written.paths), 'file')}." if chosen is Format.VLLM else "."
    if as_json:
        console.print_json(told)
    else:
        typer.echo(line)
    if told.get("left_out"):
        typer.echo(
            f"{plural(told['left_out'], 'row')} that this version cannot read or that were changed "
            "were left out; `tuner db check` names them.",
            err=True,
        )
        raise typer.Exit(exits.PARTIAL)


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files of `tuner export`.")
    ],
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the rows of exported files, JSON Lines or SQLite; what is stored already stays one row.

    A row that cannot be used is named and skipped, and the rest goes in. Exit codes: 3, rows were
    skipped or a file was changed since it was exported; 2, no file could be used.

    Example: tuner import rows.jsonl.gz
    """
    from tuner.store.engine import open_store
    from tuner.store.source import SourceUnusable
    from tuner.store.transfer import import_file, stored_hash

    moved: list[Moved] = []
    unusable = 0
    with open_store(settings(db).database_url) as repository:
        for path in files:
            try:
                moved.append(import_file(repository, path))
            except OSError as error:
                unusable += 1
                typer.echo(f"{path} cannot be read: {error.strerror or error}.", err=True)
            except (SourceUnusable, InvalidRow) as error:
                unusable += 1
                typer.echo(str(error), err=True)
        content = stored_hash(repository)
    _report(moved, content, repository.location, as_json)
    _end(moved, unusable)


def merge(
    into: Annotated[str, typer.Argument(metavar="INTO", help="The database that grows.")],
    sources: Annotated[list[str], typer.Argument(metavar="FROM...", help="Those it learns from.")],
    as_json: JsonOption = False,
) -> None:
    """Add every row of other databases; the union is the same in whatever order they come.

    Databases are URLs or paths of SQLite files; those merged from are not changed. Generations
    come along, what is served does not change. Exit codes: as those of `tuner import`.

    Example: tuner merge team.db alice.db postgresql://tuner@db/tuner
    """
    from tuner.store.engine import open_store
    from tuner.store.source import SourceUnusable
    from tuner.store.transfer import merge, stored_hash

    moved: list[Moved] = []
    unusable = 0
    with open_store(database_url(into)) as repository:
        for source in sources:
            try:
                moved.append(merge(repository, database_url(source)))
            except SourceUnusable as error:
                unusable += 1
                typer.echo(str(error), err=True)
        content = stored_hash(repository)
    _report(moved, content, repository.location, as_json)
    _end(moved, unusable)


def _report(moved: "list[Moved]", content: str, location: str, as_json: bool) -> None:
    for one in moved:
        for refused in one.refused[:SHOWN_REFUSALS]:
            typer.echo(str(refused), err=True)
        if (more := len(one.refused) - SHOWN_REFUSALS) > 0:
            typer.echo(f"{one.origin}: {plural(more, 'more row')} skipped.", err=True)
        if one.changed:
            typer.echo(f"{one.origin}: {one.changed}", err=True)
    if as_json:
        console.print_json(
            {"database": location, "content_hash": content, "sources": list(map(_told, moved))}
        )
        return
    for one in moved:
        skipped = f", {plural(len(one.refused), 'row')} skipped" if one.refused else ""
        new = _counted(one.added) if one.added else "nothing new"
        typer.echo(f"{one.origin}: {_counted(one.seen)} read; new: {new}{skipped}.")
    typer.echo(f"{location}: content {content}.")


def _told(moved: "Moved") -> dict[str, Any]:
    return {
        "source": moved.origin,
        "content_hash": moved.content_hash,
        "read": dict(moved.seen),
        "added": dict(moved.added),
        "skipped": [str(refused) for refused in moved.refused],
        "changed": moved.changed,
    }


def _end(moved: "list[Moved]", unusable: int) -> None:
    if unusable and not moved:
        raise typer.Exit(exits.BAD_INPUT)
    if unusable or not all(one.whole for one in moved):
        raise typer.Exit(exits.PARTIAL)


def _device_keys(repository: "Repository", device: str | None) -> list[str]:
    stored = repository.devices()
    return [resolve_stored(stored, device).key] if device is not None else [d.key for d in stored]


def _counted(rows: Mapping[str, int]) -> str:
    named = ((name.removeprefix("shape_").removesuffix("s"), n) for name, n in rows.items())
    return ", ".join(plural(count, noun) for noun, count in named) or "no rows"
