"""`tuner db`: the schema and the soundness of the database."""

import typer

from tuner.cli import console, exits
from tuner.cli.formats import plural
from tuner.cli.options import DatabaseOption, JsonOption, settings
from tuner.cli.retention import backup, failures, prune

db = typer.Typer(
    help="Upgrade, check, copy and prune the database, or ask it what failed.",
    no_args_is_help=True,
)


@db.command()
def upgrade(db: DatabaseOption = None) -> None:
    """Bring the database to the newest schema; an empty one gets its tables.

    A SQLite file of an older schema is copied beside itself first. Every command that opens the
    database does the same; this one is for deployments that want it done before.

    Example: tuner db upgrade --db postgresql://tuner@db/tuner
    """
    # Loads SQLAlchemy and Alembic, which `tuner --help` should not wait for.
    from tuner.store.engine import locate, upgrade_store

    url = settings(db).database_url
    stood = upgrade_store(url)
    if stood.is_head:
        typer.echo(f"{locate(url)} is at schema {stood.head}, the newest.")
    else:
        typer.echo(f"{locate(url)}: schema {stood.current or 'none'} -> {stood.head}.")


@db.command()
def check(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Read every page and every row of the database, and change nothing.

    Rows must be what their digests say, of known devices, and possible.
    Exit code 5: something is wrong, and what to do is said.
    """
    from tuner.store.health import check_store

    health = check_store(settings(db).database_url)
    if as_json:
        console.print_json(
            {
                "database": health.location,
                "schema": health.revision,
                "newest_schema": health.head,
                "rows": dict(health.rows),
                "problems": list(health.problems),
                "notes": list(health.notes),
            }
        )
    elif health.ok:
        rows = ", ".join(plural(count, table.rstrip("s")) for table, count in health.rows.items())
        typer.echo(f"{health.location}: sound, schema {health.revision}; {rows}.")
    else:
        for problem in health.problems:
            typer.echo(problem, err=True)
    for note in health.notes if not as_json else ():
        typer.echo(f"Note: {note}", err=True)
    if not health.ok:
        raise typer.Exit(exits.NO_DATABASE)


db.command()(prune)
db.command()(backup)
db.command()(failures)
