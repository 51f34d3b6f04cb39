"""`tuner run --revalidate`: every shape in turn, and what the report says of them."""

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.table import Table

from tuner.cli import console, exits
from tuner.cli.formats import listed, plural, short_config, times_faster
from tuner.cli.opening import Opened
from tuner.cli.provenance import this_worker
from tuner.errors import StoreError, TunerError
from tuner.hardware import DeviceIdentity
from tuner.lookup.choose import TIE_MARGIN
from tuner.shape import Problem
from tuner.store.leases import Leases
from tuner.store.repository import Repository
from tuner.store.spooling import SpoolingRepository
from tuner.study import Tools
from tuner.study.revalidate import TOP, Drift, Revalidated, revalidate
from tuner.trial import ShapeState

UNMENDED = frozenset({Drift.NOT_TUNED, Drift.TAKEN, Drift.FAILED})
"""Ends after which a shape has no config of the current kernel."""


@dataclass(frozen=True, slots=True)
class Report:
    """Every shape that was looked at, and how the command ended."""

    run_id: str
    device: DeviceIdentity
    database: str
    results: Sequence[Revalidated]
    exit_code: int
    ended_by: TunerError | None = None


def stored_problems(database: Repository, device_key: str) -> list[Problem]:
    """What was tuned on the device, with any kernel."""
    return [o.problem for o in database.shapes(device_key) if o.state is ShapeState.TUNED]


def revalidate_shapes(
    problems: Sequence[Problem],
    opened: Opened,
    database: Repository,
    repository: SpoolingRepository,
    leases: Leases,
    command: str,
    progress: Console,
) -> Report:
    """Look at `problems` in order; an interrupt or a fatal error ends it, and is reported.

    Raises: DeviceError or StoreError if it cannot even begin.
    """
    identity = opened.device.identify()
    run_id = uuid4().hex
    repository.start_run(run_id, command, opened.source, identity)
    tools = Tools(
        opened.device,
        opened.compiler,
        repository,
        run_id,
        opened.source,
        worker=this_worker(),
        menu=opened.menu,
        leases=leases,
    )
    results: list[Revalidated] = []
    ended_by: TunerError | None = None
    try:
        for position, problem in enumerate(problems, start=1):
            one = revalidate(problem, tools, lambda p: database.races(p, identity.key))
            results.append(one)
            line = f"[{position}/{len(problems)}] {_line(one)}"
            progress.print(line, markup=False, soft_wrap=True)
        failed = any(one.drift in UNMENDED for one in results)
        exit_code = exits.PARTIAL if failed else exits.DONE
    except KeyboardInterrupt:
        exit_code = exits.INTERRUPTED
    except TunerError as error:
        exit_code, ended_by = exits.exit_code(error), error
    with suppress(StoreError):  # the run's own record is worth less than its summary
        repository.finish_run(run_id, exit_code)
    return Report(run_id, identity, repository.location, results, exit_code, ended_by)


def show(report: Report, db: str | None, device: str | None, as_json: bool) -> None:
    """The table, the counts, and the command that tunes anew what drifted."""
    again = command_for(report.results, device, db)
    if as_json:
        console.print_json(
            {
                "run_id": report.run_id,
                "device": {"name": report.device.name, "key": report.device.key},
                "database": report.database,
                "exit_code": report.exit_code,
                "top": TOP,
                "tie_margin": TIE_MARGIN,
                "shapes": [to_json(one) for one in report.results],
                "tune_anew": again,
            }
        )
    else:
        _print_table(console.stdout(), report.results)
        states = Counter(one.drift.value for one in report.results)
        counted = listed([(d.value, states[d.value]) for d in Drift if states[d.value]])
        typer.echo(f"{plural(len(report.results), 'shape')}: {counted or 'nothing to do'}.")
        if again:
            typer.echo(
                f"Drifted by more than {TIE_MARGIN:.1%}, or another config won. To tune anew:"
            )
            typer.echo(again)
    if report.ended_by:
        typer.echo(str(report.ended_by), err=True)
    if report.exit_code == exits.INTERRUPTED:
        done = f"Interrupted after {plural(len(report.results), 'shape')}; what was measured is"
        typer.echo(f"{done} kept. The same command goes on from here.", err=True)


def command_for(results: Sequence[Revalidated], device: str | None, db: str | None) -> str | None:
    """A command that tunes the drifted shapes anew; None if none drifted."""
    where = f" --device {shlex.quote(device)}" if device else ""
    where += f" --db {shlex.quote(db)}" if db else ""
    commands = []
    for layout, order in (("row", ""), ("col", " --d col")):
        drifted = [
            o.problem.shape for o in results if o.drift is Drift.DRIFTED and o.problem.d == layout
        ]
        if drifted:
            rows = "".join(f"{s.m} {s.n} {s.k}\\n" for s in drifted)
            file = f"drifted-{layout}.txt"
            commands.append(f"printf '{rows}' > {file} && tuner run --shapes {file}{order}{where}")
    return " && ".join(commands) or None


def to_json(one: Revalidated) -> dict[str, Any]:
    shape = one.problem.shape
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "d": one.problem.d,
        "drift": one.drift.value,
        "detail": one.detail,
        "timed": one.timed,
        "old_ratio": one.old_ratio,
        "new_ratio": one.new_ratio,
        "config": one.config.to_dict() if one.config else None,
        "winner": one.winner.to_dict() if one.winner else None,
    }


def _line(one: Revalidated) -> str:
    shape = one.problem.shape
    if one.drift in (Drift.KEPT, Drift.DRIFTED):
        ratios = f"{times_faster(one.old_ratio)} -> {times_faster(one.new_ratio)} x cuBLAS"
        winner = "winner kept" if one.winner == one.config else "another config wins"
        return f"{shape} {one.drift}: {ratios}, {winner}"
    return f"{shape} {one.drift}{f': {one.detail}' if one.detail else ''}"


def _print_table(out: Console, results: Sequence[Revalidated]) -> None:
    timed = [one for one in results if one.drift in (Drift.KEPT, Drift.DRIFTED)]
    if not timed:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("M x N x K", "drift", "was", "is", "winner"):
        table.add_column(heading, no_wrap=heading != "winner")
    for one in timed:
        assert one.winner is not None
        kept = "kept" if one.winner == one.config else short_config(one.winner, one.problem.sms)
        ratios = (times_faster(one.old_ratio), times_faster(one.new_ratio))
        table.add_row(str(one.problem.shape), one.drift.value, *ratios, kept)
    out.print(table)
    out.print("was, is: x cuBLAS of the stored winner, hot and cool together", style="dim")
