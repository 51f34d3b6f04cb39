"""`tuner db prune`, `backup` and `failures`: what to keep, where else, and what not to try."""

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import console
from tuner.cli.devices import resolve_stored
from tuner.cli.formats import plural
from tuner.cli.options import DatabaseOption, JsonOption, settings

_DAYS = {"d": 1, "w": 7, "y": 365}
MOST_DAYS = 36_500


def prune(
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Days, weeks or years, such as 90d, 12w or 1y.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say it, and remove nothing.")] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove old measurements that nothing rests on.

    Kept whatever their age: races that answer a shape today or are in a generation, every failure,
    and the latest outcome of each shape.

    Example: tuner db prune --older-than 90d --dry-run
    """
    from tuner.store.engine import open_store
    from tuner.store.retention import prune as remove

    before = datetime.now(UTC) - _age(older_than)
    with open_store(settings(db).database_url, create=False) as repository:
        done = remove(repository, before, dry_run)
    if as_json:
        console.print_json(
            {
                "before": before.isoformat(),
                "dry_run": dry_run,
                "removed": {
                    "screenings": done.screenings,
                    "races": done.races,
                    "outcomes": done.outcomes,
                    "runs": done.runs,
                },
                "kept": dict(done.kept),
            }
        )
        return
    would = "would be removed" if dry_run else "removed"
    kept = ", ".join(f"{count} {why}" for why, count in done.kept.items())
    typer.echo(
        f"{plural(done.screenings, 'screening')}, {plural(done.races, 'row')} of races, "
        f"{plural(done.outcomes, 'outcome')} and {plural(done.runs, 'run')} from before "
        f"{before:%Y-%m-%d} {would}. Kept of that age: {kept}."
    )


def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The SQLite file to write.")],
    db: DatabaseOption = None,
) -> None:
    """Copy the database while it is in use; the file appears whole or not at all.

    Of Postgres it is what `tuner export --format sqlite` writes, without leases, misses and what
    is served; the server's own pg_dump copies everything.

    Example: tuner db backup monday.db
    """
    from tuner.store.backup import back_up

    everything = back_up(settings(db).database_url, out)
    what = "the whole database" if everything else "measurements, outcomes, runs and generations"
    typer.echo(f"{out}: {what}, {plural(out.stat().st_size, 'byte')}.")


def failures(
    device: Annotated[
        str | None, typer.Option("--device", metavar="KEY", help="Only on one stored device.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="HASH", help="Only with one kernel source.")
    ] = None,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Which kernel variants hung, were wrong, spilled or crashed, and on how many shapes.

    Example: tuner db failures --device "NVIDIA H200"
    """
    from rich.table import Table

    from tuner.store.engine import open_store
    from tuner.store.failures import variant_failures

    with open_store(settings(db).database_url, create=False) as repository:
        key = resolve_stored(repository.devices(), device).key if device else None
        found = variant_failures(repository, key, kernel)
    if as_json:
        console.print_json(
            [
                {
                    "device_key": f.device_key,
                    "kernel_hash": f.toolchain.kernel_hash,
                    "nvrtc_version": f.toolchain.nvrtc_version,
                    "variant": asdict(f.variant),
                    "state": f.state,
                    "attempts": f.attempts,
                    "shapes": f.shapes,
                    "detail": f.detail,
                }
                for f in found
            ]
        )
        return
    if not found:
        typer.echo("No attempt failed.")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("state", "attempts", "shapes", "variant", "kernel", "device", "detail"):
        table.add_column(name, overflow="fold")
    for f in found:
        v = f.variant
        variant = (
            f"{v.block_m}x{v.block_n} s{v.stages} {v.consumers} {v.schedule} "
            f"c{v.cluster_m}x{v.cluster_n}"
        )
        kernel_hash = f.toolchain.kernel_hash[:12]
        counts = (str(f.attempts), str(f.shapes))
        table.add_row(f.state, *counts, variant, kernel_hash, f.device_key, f.detail[:60])
    console.stdout().print(table)


def _age(text: str) -> timedelta:
    """Raises: BadParameter for what is no age."""
    told = re.fullmatch(r"([0-9]{1,5})\s*([dwy])", text.strip().lower())
    days = int(told[1]) * _DAYS[told[2]] if told else 0
    if not 1 <= days <= MOST_DAYS:
        raise typer.BadParameter(
            f"{text!a} is no age from one day to {MOST_DAYS} days; write 90d, 12w or 1y",
            param_hint="--older-than",
        )
    return timedelta(days=days)
