"""`tuner best`: the service's answer, without the service."""

from typing import Annotated

import typer

from tuner.cli import console, exits
from tuner.cli.devices import resolve_stored
from tuner.cli.extents import within
from tuner.cli.formats import confidence, microseconds, plural, times_faster
from tuner.cli.options import (
    DatabaseOption,
    JsonOption,
    Output,
    OutputOption,
    RaceProtocol,
    settings,
)
from tuner.lookup import Answer, Miss, Terms, nothing_stored, why_none
from tuner.shape import Problem
from tuner.shape_files import parse_shape


def best(
    shape: Annotated[
        list[str], typer.Argument(metavar="M N K", help="Extents of the product, or MxNxK.")
    ],
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Key or name of a stored device, or cuda:N or replay for what they are stored "
            "as. Not needed while one device is stored.",
        ),
    ] = None,
    d: OutputOption = Output.ROW,
    sms: Annotated[
        int | None,
        typer.Option(
            "--sms", min=1, help="Multiprocessors that the product may use. Default: all there are."
        ),
    ] = None,
    protocol: Annotated[
        RaceProtocol | None,
        typer.Option(
            help="Rank by one protocol: hot (products back to back) or cool (idle gaps between "
            "them). Default: both count."
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Only configs without dependent launch, which begin when the stream's previous "
            "kernel has ended.",
        ),
    ] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the best stored config of one shape, or that of the layer it belongs to.

    It is the answer of the service's GET /best-config. Exit code 3: there is none.

    Example: tuner best 4096 4096 4096 --protocol hot --json
    """
    # Loads SQLAlchemy, which `tuner --help` should not wait for.
    from tuner.cli.opening import stored_key
    from tuner.store.engine import open_store
    from tuner.store.layers import layer_answer

    wanted = parse_shape(" ".join(shape))
    with open_store(settings(db).database_url, create=False) as repository:
        named = stored_key(device) if device is not None else None
        devices = repository.devices()
        found: Answer | Miss
        if not devices and named is None:
            found = nothing_stored(wanted)
        else:
            stored = resolve_stored(devices, named)
            (budget,) = within([sms] if sms else [], stored.sms, stored.name)
            problem = Problem(wanted, budget, d=d.layout)
            terms = Terms(protocol.id if protocol else None, plain)
            found = (
                repository.best(problem, stored.key, terms.protocol, plain=plain)
                or layer_answer(repository, problem, stored, terms)
                or why_none(
                    problem,
                    stored.name,
                    repository.latest_outcome(problem, stored.key),
                    plain=plain,
                )
            )
    if isinstance(found, Miss):
        _say_why_none(found, as_json)
        raise typer.Exit(exits.PARTIAL)
    if as_json:
        console.print_json(found.to_json())
    else:
        _print(found)


def _say_why_none(miss: Miss, as_json: bool) -> None:
    if as_json:
        console.print_json({"state": miss.state, "detail": miss.detail})
    else:
        typer.echo(miss.detail, err=True)


def _print(answer: Answer) -> None:
    from rich.table import Table

    problem = answer.problem
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    grid.add_row("shape", f"{problem.shape} {problem.dtype}, d={problem.d}, {problem.sms} SMs")
    grid.add_row("device", f"{answer.device_name} ({answer.device_key})")
    if answer.match.tier != "exact":
        grid.add_row("match", f"{answer.match.tier}, from {answer.match.from_shape}")
    grid.add_row("config", str(answer.config))
    for timing in answer.timings:
        lt = timing.cublaslt_best_us
        grid.add_row(
            timing.protocol,
            f"{microseconds(timing.median_us)} us, {timing.tflops:.0f} TFLOP/s "
            f"({confidence(timing)}); {times_faster(timing.speedup)} x cuBLAS "
            f"({microseconds(timing.cublas_us)} us), "
            f"{times_faster(lt / timing.median_us if lt else None)} x cuBLASLt best",
        )
    if regret := answer.confidence.expected_regret:
        lost = f"at most {regret.p95:.1%} at {plural(regret.cases, 'measured M')}"
        grid.add_row("loses", f"{lost}, {regret.mean:.1%} on average")
    grid.add_row("use", _use(answer))
    if answer.ties:
        grid.add_row("ties", f"{plural(len(answer.ties), 'config')} cannot be told from this one")
    made_with = f"kernel {answer.toolchain.kernel_hash}, NVRTC {answer.toolchain.nvrtc_version}"
    measured = f", {answer.measured_at:%Y-%m-%d %H:%M} UTC" if answer.measured_at else ""
    grid.add_row(answer.source, made_with + measured + (", stale" if answer.stale else ""))
    console.stdout().print(grid)


def _use(answer: Answer) -> str:
    if answer.library is None:
        return answer.use
    version = f" {answer.library.cublas_version}" if answer.library.cublas_version else ""
    algorithm = f", algorithm {answer.library.algorithm}" if answer.library.algorithm else ""
    return f"{answer.use}{version}{algorithm}: it measured faster than the kernel"
