"""Races from the first shape to the last, or to what ended them, and how they are shown."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tuner.bench import (
    ARTICLE,
    PLAIN,
    TUNED,
    BenchState,
    Raced,
    Terms,
    Tools,
    geometric_mean,
    race,
)
from tuner.cli import exits
from tuner.cli.formats import (
    CONFIG_LEGEND,
    ended_without,
    listed,
    microseconds,
    plural,
    short_config,
    times_faster,
)
from tuner.config import KernelConfig
from tuner.errors import TunerError
from tuner.shape import Problem

PLAIN_LINE = "  plain"


@dataclass(frozen=True, slots=True)
class Races:
    """Raced shapes and how the races ended; `ended_by` is the error that stopped them, if any."""

    results: Sequence[Raced]
    exit_code: int
    ended_by: TunerError | None = None

    @property
    def complete(self) -> bool:
        return self.exit_code in (exits.DONE, exits.PARTIAL)


def race_shapes(
    problems: Sequence[Problem], tools: Tools, terms: Terms, progress: Console
) -> Races:
    """Race `problems` in order; an interrupt or a fatal error ends the races, and is reported."""
    results: list[Raced] = []
    try:
        for position, problem in enumerate(problems, start=1):
            raced = race(problem, tools, terms)
            results.append(raced)
            line = f"[{position}/{len(problems)}] {_line(raced)}"
            progress.print(line, markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        return Races(results, exits.INTERRUPTED)
    except TunerError as error:
        return Races(results, exits.exit_code(error), error)
    done = all(raced.state is BenchState.RACED for raced in results)
    return Races(results, exits.DONE if done else exits.PARTIAL)


def print_races(console: Console, results: Sequence[Raced], article: bool) -> None:
    """One row per raced shape, geometric means, and the states of the others.

    A config launched dependently has the best plain one below it.
    """
    raced = [one for one in results if one.state is BenchState.RACED]
    if raced:
        _print_table(console, raced, article)
        console.print(CONFIG_LEGEND, style="dim")
        console.print(
            "ratios: their time / ours, median over rounds; A/A: cuBLAS against itself; plain: the "
            "best without dependent launch, which is the one above where no other is shown",
            style="dim",
        )
    states = Counter(one.state.value for one in results)
    console.print(f"{plural(len(results), 'shape')}: {listed(states.most_common())}.")


def _print_table(console: Console, raced: Sequence[Raced], article: bool) -> None:
    baselines = {"cublas": "x cuBLAS", "cublaslt_best": "x Lt best"}
    if article:
        baselines[ARTICLE] = "x article"
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_footer=len(raced) > 1,
    )
    table.add_column("M x N x K", f"geometric mean\n{PLAIN_LINE}", no_wrap=True)
    table.add_column("config")
    for heading in ("us", "TFLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, heading in baselines.items():
        means = [times_faster(geometric_mean(raced, name, ours)) for ours in (TUNED, PLAIN)]
        table.add_column(heading, "\n".join(means), justify="right", no_wrap=True)
    table.add_column("A/A", justify="right", no_wrap=True)
    for one in raced:
        assert one.config is not None
        assert one.plain_config is not None
        shape = str(one.problem.shape)
        table.add_row(*_cells(shape, one, one.config, TUNED, baselines), times_faster(one.noise))
        if one.plain_config != one.config:
            table.add_row(*_cells(PLAIN_LINE, one, one.plain_config, PLAIN, baselines))
    console.print(table)


def _cells(
    name: str, one: Raced, config: KernelConfig, ours: str, baselines: Iterable[str]
) -> list[str]:
    us = one.median_us(ours)
    assert us is not None
    return [
        name,
        short_config(config, one.problem.sms),
        microseconds(us),
        f"{one.problem.shape.flops / us / 1e6:.0f}",
        *(times_faster(one.ratio(baseline, ours)) for baseline in baselines),
    ]


def _line(raced: Raced) -> str:
    if raced.state is not BenchState.RACED:
        return ended_without(raced.problem.shape, raced.state, raced.detail)
    line = f"{raced.problem.shape} {_beside_cublas(raced, TUNED)}"
    other = raced.plain_config != raced.config
    return line + f"; plain {_beside_cublas(raced, PLAIN)}" * other


def _beside_cublas(raced: Raced, ours: str) -> str:
    us = raced.median_us(ours)
    assert us is not None
    return f"{microseconds(us)} us, {times_faster(raced.ratio('cublas', ours))} x cuBLAS"
