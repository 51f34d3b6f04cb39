"""`tuner run`: tune every shape of some files."""

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import console, exits
from tuner.cli.devices import Cuda, choose_device
from tuner.cli.formats import plural
from tuner.cli.interrupts import interruptible
from tuner.cli.options import (
    DatabaseOption,
    DeviceOption,
    JobsOption,
    JsonOption,
    MoreShapes,
    Output,
    OutputOption,
    SecondsOption,
    ShapesOption,
    TrialsOption,
    command_line,
    settings,
    shape_paths,
)
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.shape_files import ShapeList, read_shape_files

if TYPE_CHECKING:
    from tuner.cli.tuning import Tuned


def run(
    context: typer.Context,
    shapes: ShapesOption = None,
    more: MoreShapes = None,
    device: DeviceOption = None,
    db: DatabaseOption = None,
    trials: TrialsOption = None,
    seconds_per_shape: SecondsOption = None,
    d: OutputOption = Output.ROW,
    jobs: JobsOption = None,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="With replay: take as long as the device took.")
    ] = False,
    revalidate: Annotated[
        bool,
        typer.Option(
            "--revalidate",
            help="Time the best few configs of shapes that were tuned with another kernel, "
            "compiler or driver again, and report drift. Without --shapes: of all stored shapes.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Tune every shape, store every measurement, and print the best configs.

    Shapes that were tuned before are not tuned again, so the same command resumes an interrupted
    run. A shape that cannot be tuned says why, and the others go on. Several runs on several GPUs
    may share a list and a database: each shape is tuned by one of them.

    Examples:

    tuner run --shapes examples/shapes.txt --device replay

    tuner run --shapes llama.txt deepseek.csv --trials 200 --db postgresql://tuner@db/tuner
    """
    everything = revalidate and not (shapes or more)
    listing = None if everything else read_shape_files(shape_paths(shapes, more))
    where = choose_device(device)
    if realtime and isinstance(where, Cuda):
        raise typer.BadParameter("a GPU takes its own time", param_hint="--realtime")
    # Loads Optuna and SQLAlchemy, which `tuner --help` and a refused file should not wait for.
    from tuner.cli.opening import opened
    from tuner.cli.revalidating import revalidate_shapes, show, stored_problems
    from tuner.cli.tuning import tune_shapes
    from tuner.store.engine import open_store
    from tuner.store.leases import Leases
    from tuner.store.spooling import SpoolingRepository
    from tuner.study import Budget

    budget = Budget(seconds_per_shape=seconds_per_shape)
    chosen = settings(db)
    progress = console.stderr()
    say = partial(progress.print, markup=False, soft_wrap=True)
    with (
        interruptible(),
        opened(where, chosen.cache_dir, jobs, realtime) as found,
        open_store(chosen.database_url) as database,
        SpoolingRepository(database, chosen.cache_dir / "spool", say) as repository,
    ):
        sms = found.device.identify().sms
        asked = [Problem(shape, sms, d=d.layout) for shape in listing.shapes] if listing else []
        if revalidate:
            problems = asked or stored_problems(database, found.device.identify().key)
            leases = Leases(database, patiently=repository.patiently)
            told = command_line(context)
            report = revalidate_shapes(
                problems, found, database, repository, leases, told, progress
            )
            show(report, db, device, as_json)
            raise typer.Exit(report.exit_code)
        assert listing is not None
        if not as_json:
            _announce(listing, found.device.identify(), repository.location)
        tuned = tune_shapes(
            asked,
            found,
            repository,
            Leases(database, patiently=repository.patiently),
            replace(budget, trials=trials) if trials else budget,
            command_line(context),
            progress,
        )
    _report(tuned, len(listing.shapes), db, as_json)
    raise typer.Exit(tuned.exit_code)


def _announce(listing: ShapeList, device: DeviceIdentity, database: str) -> None:
    if len(listing.files) > 1:
        for file in listing.files:
            typer.echo(str(file), err=True)
    typer.echo(f"{listing} on {device.name} ({device.key}); database {database}", err=True)


def _report(tuned: "Tuned", asked: int, db: str | None, as_json: bool) -> None:
    from tuner.cli import summary

    if as_json:
        console.print_json(
            {
                "run_id": tuned.run_id,
                "device": {"name": tuned.device.name, "key": tuned.device.key},
                "database": tuned.database,
                "asked": asked,
                "exit_code": tuned.exit_code,
                "usage": summary.usage_json(tuned.usage),
                "shapes": summary.to_json(tuned.results),
            }
        )
    else:
        out = console.stdout()
        if tuned.results:
            summary.print_table(out, tuned.results)
        typer.echo(summary.counts(tuned.results))
        typer.echo(summary.used(tuned.usage))
        typer.echo(f"Database: {tuned.database}")
    if tuned.ended_by:
        typer.echo(str(tuned.ended_by), err=True)
    if tuned.exit_code == exits.INTERRUPTED:
        typer.echo(
            f"Interrupted after {len(tuned.results)} of {plural(asked, 'shape')}; what was "
            "measured is kept. The same command goes on from here.",
            err=True,
        )
    elif not as_json:
        typer.echo(f"Next: {_next(tuned, db)}")


def _next(tuned: "Tuned", db: str | None) -> str:
    """A command to type, which works as it stands."""
    where = f" --db {shlex.quote(db)}" if db else ""
    for outcome, answer in tuned.results:
        if answer:
            shape = outcome.problem.shape
            order = " --d col" if outcome.problem.d == "col" else ""
            best = f"tuner best {shape.m} {shape.n} {shape.k}{order}{where}"
            return f"`{best}`, or `tuner serve{where}`"
    return f"`tuner doctor{where}`"
