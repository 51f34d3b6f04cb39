"""`tuner publish` and `tuner generations`: what a device serves, and what it served before."""

import getpass
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import console
from tuner.cli.devices import resolve_stored
from tuner.cli.formats import plural, times_faster
from tuner.cli.options import DatabaseOption, JsonOption, settings

if TYPE_CHECKING:
    from tuner.lookup.entries import Entry
    from tuner.store.generations import Published

SHOWN_DIGITS = 16
"""Of an id in a table; enough to name it by."""

generations = typer.Typer(
    help="List, show, compare and roll back what was published.", no_args_is_help=True
)
DeviceKey = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="KEY",
        help="Key or name of a stored device. Not needed while one device is stored.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Six or more digits of a generation's id.")]


def publish(
    device: DeviceKey = None,
    note: Annotated[str, typer.Option(help="Why, kept with the generation.")] = "",
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the best answers of a device, as they are now, the generation it serves.

    A generation never changes, and its id is the hash of its content: the same answers have the
    same id. Readers that pin an id agree whenever they start.

    Example: tuner publish --note "after the driver update"
    """
    from tuner.store.engine import open_store
    from tuner.store.generations import Generations

    with open_store(settings(db).database_url, create=False) as repository:
        key = resolve_stored(repository.devices(), device).key
        _say(Generations(repository).publish(key, _acting(), note), as_json)


@generations.command("list")
def list_(
    device: Annotated[
        str | None, typer.Option("--device", metavar="KEY", help="Only those of one device.")
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every generation, the newest first; the one that is served is marked."""
    from rich.table import Table

    from tuner.store.engine import open_store
    from tuner.store.generations import Generations

    with open_store(settings(db).database_url, create=False) as repository:
        key = resolve_stored(repository.devices(), device).key if device else None
        found = Generations(repository).all(key)
    if as_json:
        console.print_json(
            [
                {
                    "id": g.id,
                    "device_key": g.device_key,
                    "created_at": g.created_at.isoformat(),
                    "created_by": g.created_by,
                    "parent": g.parent,
                    "note": g.note,
                    "entries": g.entries,
                    "current": g.current,
                }
                for g in found
            ]
        )
        return
    if not found:
        typer.echo("Nothing was published yet; `tuner publish` does it.")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("", "id", "device", "made", "by", "shapes", "note"):
        table.add_column(name)
    for g in found:
        made = f"{g.created_at:%Y-%m-%d %H:%M} UTC"
        cells = (g.id[:SHOWN_DIGITS], g.device_key, made, g.created_by, str(g.entries), g.note)
        table.add_row("*" if g.current else "", *cells)
    console.stdout().print(table)


@generations.command()
def show(id: Id, db: DatabaseOption = None) -> None:
    """Print a generation as JSON, the bytes that its id is the hash of."""
    from tuner.store.engine import open_store
    from tuner.store.generations import Generations

    with open_store(settings(db).database_url, create=False) as repository:
        stored = Generations(repository)
        typer.echo(stored.snapshot(stored.find(id).id).body.decode(), nl=False)


@generations.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="The earlier one.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The later one.")],
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Which shapes came, went, have another config or routine, or were only measured anew."""
    from tuner.lookup.snapshot import compare
    from tuner.store.engine import open_store
    from tuner.store.generations import Generations

    with open_store(settings(db).database_url, create=False) as repository:
        stored = Generations(repository)
        one, other = (stored.snapshot(stored.find(id).id) for id in (before, after))
    changes = compare(one, other)
    if as_json:
        told = [
            {"kind": c.kind, "problem": c.problem, "before": c.before, "after": c.after}
            for c in changes
        ]
        console.print_json({"before": one.id, "after": other.id, "changes": told})
        return
    for change in changes:
        typer.echo(
            f"{change.kind:<10}  {change.problem}: {_short(change.before)} -> "
            f"{_short(change.after)}"
        )
    typer.echo(f"{plural(len(changes), 'shape')} of {len(other.entries)} differ.")


@generations.command()
def rollback(
    id: Id,
    reason: Annotated[str, typer.Option(help="Why, kept with the publication.")] = "",
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an older generation again.

    Example: tuner generations rollback 3f9c21aa
    """
    from tuner.store.engine import open_store
    from tuner.store.generations import Generations

    with open_store(settings(db).database_url, create=False) as repository:
        _say(Generations(repository).rollback(id, _acting(), reason), as_json)


def _acting() -> str:
    """Who does it, for the record: user and machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _say(done: "Published", as_json: bool) -> None:
    if as_json:
        told: dict[str, Any] = {
            "id": done.id,
            "device_key": done.device_key,
            "entries": done.entries,
            "new": done.new,
            "before": done.before,
        }
        console.print_json(told)
        return
    before = f", before {done.before[:SHOWN_DIGITS]}" if done.before and done.new else ""
    again = "" if done.new else " already"
    shapes = plural(done.entries, "shape")
    typer.echo(f"{done.device_key} serves {done.id}{again}: {shapes}{before}.")


def _short(entry: "Entry | None") -> str:
    if entry is None:
        return "nothing"
    config = entry["config"]
    tile = f"{config['block_m']}x{config['block_n']}"
    return f"{entry['use']} {tile} {times_faster(entry['speedup'])}"
