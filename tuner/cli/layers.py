"""Layers on the command line: how they are named, and what is shown of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.cli.formats import short_config
from tuner.lookup import Layer, Terms
from tuner.lookup.cross_races import Span
from tuner.shape import GemmShape, OutputLayout, Problem
from tuner.store.spooling import SpoolingRepository
from tuner.study import LayerTask
from tuner.trial import Toolchain

LEGEND = (
    "loses: the most that the config is slower than the fastest at a measured M, and the mean; Ms: "
    "how many were measured; use: the kernel or cuBLAS"
)


@dataclass(frozen=True, slots=True)
class TunedLayer:
    """What was asked for, and the layer that its races show; None if they show none."""

    task: LayerTask
    layer: Layer | None


def tasks_of(
    layers: Sequence[GemmShape], span: Span, budgets: Sequence[int], d: OutputLayout
) -> list[LayerTask]:
    """Every layer under every budget of multiprocessors. Raises: InvalidLayer."""
    return [LayerTask(Problem(shape, sms, d=d), span) for sms in budgets for shape in layers]


def tuned_layer(
    task: LayerTask, repository: SpoolingRepository, device_key: str, toolchain: Toolchain
) -> TunedLayer:
    """With what look-ups that ask for nothing particular are answered from."""
    found = repository.layers_at(task.key, device_key, toolchain)
    return TunedLayer(task, next((one for one in found if one.terms == Terms()), None))


def print_layers(console: Console, tuned: Sequence[TunedLayer]) -> None:
    """One row per interval."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("N x K", "SMs", "M"):
        table.add_column(heading, no_wrap=True)
    table.add_column("config")
    for heading in ("loses", "mean", "Ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("use", no_wrap=True)
    for one in tuned:
        shape, sms = one.task.key.shape, one.task.key.sms
        name = f"{shape.n}x{shape.k}"
        if one.layer is None:
            table.add_row(name, str(sms), str(one.task.span), "no intervals")
            continue
        for interval in one.layer.intervals:
            table.add_row(
                name,
                str(sms),
                str(Span(interval.low, interval.high)),
                short_config(interval.config, sms),
                f"{interval.regret.p95:.1%}",
                f"{interval.regret.mean:.1%}",
                str(len(interval.measured)),
                interval.use,
            )
    console.print(table)
    console.print(LEGEND, style="dim")


def to_json(tuned: Sequence[TunedLayer]) -> list[dict[str, Any]]:
    return [
        {
            "n": one.task.key.shape.n,
            "k": one.task.key.shape.k,
            "sms": one.task.key.sms,
            "m": [one.task.span.low, one.task.span.high],
            "layer": one.layer.to_json() if one.layer else None,
        }
        for one in tuned
    ]
