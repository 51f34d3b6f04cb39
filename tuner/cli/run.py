"""`tuner run`: tune every shape of some files, and layers."""

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import console, exits
from tuner.cli.devices import Cuda, choose_device
from tuner.cli.extents import (
    BudgetsOption,
    LayerOption,
    SpanOption,
    parse_budgets,
    parse_layer,
    parse_span,
    within,
)
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
    PatienceOption,
    SecondsOption,
    ShapesOption,
    TrialsOption,
    command_line,
    settings,
    shape_paths,
)
from tuner.hardware import DeviceIdentity
from tuner.lookup.cross_races import Span
from tuner.shape import GemmShape, Problem
from tuner.shape_files import ShapeList, read_shape_files

if TYPE_CHECKING:
    from tuner.cli.tuning import Tuned


def run(
    context: typer.Context,
    shapes: ShapesOption = None,
    more: MoreShapes = None,
    layer: LayerOption = None,
    m: SpanOption = None,
    sms: BudgetsOption = None,
    device: DeviceOption = None,
    db: DatabaseOption = None,
    trials: TrialsOption = None,
    seconds_per_shape: SecondsOption = None,
    patience: PatienceOption = None,
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
    """Tune every shape or layer, store every measurement, and print the best configs.

    Shapes that were tuned before are not tuned again, so the same command resumes an interrupted
    run. A shape that cannot be tuned says why, and the others go on. Several runs on several GPUs
    may share a list and a database: each shape is tuned by one of them.

    A layer is tuned at 12 Ms at most: both ends of --m, powers of two, and more where the best
    config changes. The winners of all of them then race at each, and the layer is stored as
    intervals of M, from which every M between is answered.

    Examples:

    tuner run --shapes examples/shapes.txt --device replay

    tuner run --shapes llama.txt deepseek.csv --trials 200 --db postgresql://tuner@db/tuner

    tuner run --layer 6144,4096 --layer 4096,14336 --m 1..8192 --sms 132,66
    """
    span, named = _layers(layer, m)
    if revalidate and named:
        raise typer.BadParameter(
            "layers are tuned, not revalidated; name shapes, or none for all that are stored",
            param_hint="--layer",
        )
    budgets = parse_budgets(sms) if sms is not None else []
    files = shape_paths(shapes, more) if shapes or more or not (named or revalidate) else []
    listing = read_shape_files(files) if files else ShapeList((), ())
    where = choose_device(device)
    if realtime and isinstance(where, Cuda):
        raise typer.BadParameter("a GPU takes its own time", param_hint="--realtime")
    # Loads Optuna and SQLAlchemy, which `tuner --help` and a refused file should not wait for.
    from tuner.cli.layers import tasks_of
    from tuner.cli.opening import opened
    from tuner.cli.revalidating import revalidate_shapes, show, stored_problems
    from tuner.cli.tuning import tune_all
    from tuner.store.engine import open_store
    from tuner.store.leases import Leases
    from tuner.store.spooling import SpoolingRepository
    from tuner.study import Budget

    budget = Budget(seconds_per_shape=seconds_per_shape, patience=patience)
    chosen = settings(db)
    progress = console.stderr()
    say = partial(progress.print, markup=False, soft_wrap=True)
    with (
        interruptible(),
        opened(where, chosen.cache_dir, jobs, realtime) as found,
        open_store(chosen.database_url) as database,
        SpoolingRepository(database, chosen.cache_dir / "spool", say) as repository,
    ):
        identity = found.device.identify()
        granted = within(budgets, identity.sms, identity.name)
        tasks = tasks_of(named, span, granted, d.layout) if span else []
        problems = [Problem(s, n, d=d.layout) for n in granted for s in listing.shapes]
        if revalidate:
            report = revalidate_shapes(
                problems or stored_problems(database, identity.key),
                found,
                database,
                repository,
                Leases(database, patiently=repository.patiently),
                command_line(context),
                progress,
            )
            show(report, db, device, as_json)
            raise typer.Exit(report.exit_code)
        if not as_json:
            what = [str(listing)] * bool(files)
            what += [f"{plural(len(named), 'layer')}, M {span}"] * bool(named)
            beside = f", on {', '.join(map(str, granted))} SMs" if budgets else ""
            _announce(listing, ", ".join(what) + beside, identity, repository.location)
        tuned = tune_all(
            problems,
            tasks,
            found,
            repository,
            Leases(database, patiently=repository.patiently),
            replace(budget, trials=trials) if trials else budget,
            command_line(context),
            progress,
        )
    asked = len(problems) + sum(task.most_ms for task in tasks)
    _report(tuned, asked, db, as_json)
    raise typer.Exit(tuned.exit_code)


def _layers(layer: list[str] | None, m: str | None) -> tuple[Span | None, list[GemmShape]]:
    """Raises: BadParameter for one option without the other."""
    if bool(layer) != (m is not None):
        given, lacking = ("--layer", "--m LOW..HIGH") if layer else ("--m", "--layer N,K")
        raise typer.BadParameter(f"it goes with {lacking}", param_hint=given)
    if not layer or m is None:
        return None, []
    return parse_span(m), list(dict.fromkeys(map(parse_layer, layer)))


def _announce(listing: ShapeList, what: str, device: DeviceIdentity, database: str) -> None:
    if len(listing.files) > 1:
        for file in listing.files:
            typer.echo(str(file), err=True)
    typer.echo(f"{what} on {device.name} ({device.key}); database {database}", err=True)


def _report(tuned: "Tuned", asked: int, db: str | None, as_json: bool) -> None:
    from tuner.cli import layers, summary

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
                "layers": layers.to_json(tuned.layers),
            }
        )
    else:
        out = console.stdout()
        if tuned.results:
            summary.print_table(out, tuned.results)
        if tuned.layers:
            layers.print_layers(out, tuned.layers)
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
            budget = f" --sms {outcome.problem.sms}" * (outcome.problem.sms != tuned.device.sms)
            order = " --d col" if outcome.problem.d == "col" else ""
            best = f"tuner best {shape.m} {shape.n} {shape.k}{order}{budget}{where}"
            return f"`{best}`, or `tuner serve{where}`"
    return f"`tuner doctor{where}`"
