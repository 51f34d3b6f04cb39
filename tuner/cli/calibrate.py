"""`tuner calibrate`: time here what is fastest elsewhere, and write it down for others."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from rich.console import Console
from rich.table import Table

from tuner.cli import console, exits
from tuner.cli.devices import DEFAULT_RECORDING, choose_device
from tuner.cli.formats import ended_without, plural, short_config, times_faster
from tuner.cli.interrupts import interruptible
from tuner.cli.options import DeviceOption, JobsOption, JsonOption, command_line, settings

if TYPE_CHECKING:
    from tuner.cli.opening import Opened
    from tuner.store.repository import Repository
    from tuner.study.calibrate import Calibrated, Proposal

DEFAULT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is to be timed here, and on what device it was measured."""

    source: str
    device_name: str
    proposals: "Sequence[Proposal]"


def calibrate(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The bundle: a file that `tuner import` takes."),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE|DB",
            help="What was measured elsewhere: a file of `tuner export` or a database. Default: "
            "the recording that is shipped.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="The time it may take, in seconds.")
    ] = DEFAULT_SECONDS,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time the best few configs of another device and the libraries here; write a bundle.

    The shapes in which the best config saves most beside cuBLAS come first, and what does not fit
    the time is left out. The bundle holds every measurement; it claims no shape as tuned, so that
    `tuner run` still tunes them all. Exit codes: 3, a shape could not be timed.

    Example: tuner calibrate h100.jsonl.gz --device cuda:0
    """
    where = choose_device(device)
    from tuner.cli.opening import opened
    from tuner.store.engine import open_store
    from tuner.store.exports import export_lines
    from tuner.store.output import OutputError
    from tuner.store.source import opened_source

    if out.is_dir() or not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: name a file in a folder that is there.")
    progress = console.stderr()
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="tuner-calibrate-") as folder,
        opened(where, settings(None).cache_dir, jobs) as found,
    ):
        elsewhere = read(source, found.device.identify().sms, Path(folder) / "elsewhere.db")
        url = f"sqlite:///{Path(folder) / 'bundle.db'}"
        with open_store(url) as store:
            results, code = _timed(
                elsewhere, found, store, seconds, command_line(context), progress
            )
        with opened_source(url) as bundle:
            written = export_lines(bundle, out)
        name = found.device.identify().name
    _report(elsewhere, results, name, out, written.content_hash, as_json)
    raise typer.Exit(code)


def read(source: str | None, here_sms: int, scratch: Path) -> Elsewhere:
    """The proposals of a database, a file of rows, or the shipped recording.

    Raises: StoreError, InvalidRow or DeviceUnavailable for a source that cannot be used.
    """
    from tuner.device.replay import Recording
    from tuner.lookup.race import races_of
    from tuner.store.engine import open_store
    from tuner.store.source import SourceUnusable
    from tuner.store.transfer import import_file
    from tuner.study.calibrate import propose

    if source is None:
        recording = Recording.load(DEFAULT_RECORDING)
        there = recording.device
        rows = (recording.rows(problem) for problem in recording.problems())
        races = [races_of(row for row in of_one if row.race is not None) for of_one in rows]
        label = f"the recording {recording.name}"
        return Elsewhere(label, there.name, propose(races, there.sms, here_sms))
    if "://" in source:
        with open_store(source, create=False) as database:
            return _of_database(database, source, here_sms)
    with open_store(f"sqlite:///{scratch}") as database:
        try:
            import_file(database, Path(source))
        except OSError as error:
            raise SourceUnusable(f"{source} cannot be read: {error.strerror or error}.") from error
        return _of_database(database, source, here_sms)


def _of_database(database: "Repository", source: str, here_sms: int) -> Elsewhere:
    """What was measured on the device of which it has the most shapes."""
    from tuner.lookup.race import races_of
    from tuner.store.best_answers import raced_problems
    from tuner.store.source import SourceUnusable
    from tuner.study.calibrate import propose

    devices = database.devices()
    if not devices:
        raise SourceUnusable(f"{source} holds no measurement; name one that does with --from.")
    there = max(devices, key=lambda stored: (stored.shapes, stored.key))
    with database.transaction(writes=False) as connection:
        races = [races_of(rows) for rows in raced_problems(connection, there.key)]
    return Elsewhere(source, there.name, propose(races, there.sms, here_sms))


def _timed(
    elsewhere: Elsewhere,
    found: "Opened",
    store: "Repository",
    seconds: float,
    command: str,
    progress: Console,
) -> "tuple[list[Calibrated], int]":
    """What was timed, and the exit code; an interrupt keeps what was timed until then."""
    from tuner.cli.provenance import this_worker
    from tuner.study import Tools
    from tuner.study.calibrate import calibrate as each_calibrated
    from tuner.trial import ShapeState

    identity, run_id = found.device.identify(), uuid4().hex
    store.start_run(run_id, command, found.source, identity)
    tools = Tools(
        found.device, found.compiler, store, run_id, found.source, this_worker(), found.menu
    )
    results: list[Calibrated] = []
    code = exits.DONE
    try:
        timing = each_calibrated(
            elsewhere.proposals, tools, lambda p: store.races(p, identity.key), seconds
        )
        for one in timing:
            results.append(one)
            line = f"[{len(results)}/{len(elsewhere.proposals)}] {_line(one)}"
            progress.print(line, markup=False, soft_wrap=True)
        if not results or any(one.state is not ShapeState.TUNED for one in results):
            code = exits.PARTIAL
    except KeyboardInterrupt:
        code = exits.INTERRUPTED
    store.finish_run(run_id, code)
    return results, code


def _report(
    elsewhere: Elsewhere,
    results: "Sequence[Calibrated]",
    here: str,
    out: Path,
    content_hash: str,
    as_json: bool,
) -> None:
    left_out = [p.problem.shape for p in elsewhere.proposals[len(results) :]]
    kept = sum(one.winner_kept for one in results)
    if as_json:
        console.print_json(
            {
                "from": elsewhere.source,
                "there": elsewhere.device_name,
                "here": here,
                "order": "microseconds saved beside cuBLAS there, most first",
                "shapes": [to_json(one) for one in results],
                "left_out": [{"m": s.m, "n": s.n, "k": s.k} for s in left_out],
                "bundle": str(out),
                "content_hash": content_hash,
            }
        )
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("M x N x K", "there", "here", "ranking", "best here"):
        table.add_column(heading, no_wrap=heading != "best here")
    for one in results:
        table.add_row(str(one.proposal.problem.shape), *_cells(one))
    if results:
        console.stdout().print(table)
        typer.echo(f"there: {elsewhere.device_name}; here: {here}; x cuBLAS, hot and cool together")
    typer.echo(
        f"{plural(len(results), 'shape')} timed, those first that save most beside cuBLAS there; "
        f"winner kept in {kept}; {len(left_out)} left out for lack of time."
    )
    typer.echo(f"{out}: content {content_hash}. Others take it by `tuner import {out}`.")


def to_json(one: "Calibrated") -> dict[str, Any]:
    proposal = one.proposal
    shape = proposal.problem.shape
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "d": proposal.problem.d,
        "state": one.state.value,
        "detail": one.detail,
        "seconds": round(one.seconds, 3),
        "winner_kept": one.winner_kept,
        "ranking_kept": one.ranking_kept,
        "configs": [
            {"config": c.to_dict(), "ratio_there": there, "ratio_here": one.ratios.get(c)}
            for c, there in proposal.ratios.items()
        ],
    }


def _line(one: "Calibrated") -> str:
    shape = one.proposal.problem.shape
    if not one.ratios:
        return ended_without(shape, one.state, one.detail)
    there, here, ranking, _ = _cells(one)
    return f"{shape} {there} x cuBLAS there, {here} here, ranking {ranking}, {one.seconds:.1f} s"


def _cells(one: "Calibrated") -> tuple[str, str, str, str]:
    there = times_faster(next(iter(one.proposal.ratios.values())))
    if not one.ratios:
        return there, "", one.state.value, ""
    best, ratio = next(iter(one.ratios.items()))
    ranking = "kept" if one.ranking_kept else "winner kept" if one.winner_kept else "changed"
    return there, times_faster(ratio), ranking, short_config(best, one.proposal.problem.sms)
