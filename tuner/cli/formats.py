"""Short forms that tables and lines share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.config import SLAB_K, KernelConfig
from tuner.hardware import device_class
from tuner.shape import GemmShape, Problem

if TYPE_CHECKING:
    from tuner.lookup import Timing

CONFIG_LEGEND = (
    "config: tile, s stages, consumers and how they cut it (p: ping-pong), c cluster, order and "
    "group of tiles; k: K in so many shares (kt: in the last wave alone), t: operands exchanged, "
    "d: direct store, e: early, as a dependent launch"
)


def short_config(config: KernelConfig, sms: int) -> str:
    """A config in one column of a table, read with CONFIG_LEGEND; `sms` are all there are."""
    v, k = config.variant, config.knobs
    order = {"along_m": f"m{k.group}", "along_n": f"n{k.group}", "hilbert": "h"}[k.raster]
    consumers = "p" if v.schedule == "pingpong" else v.split
    parts = [
        f"{v.block_m}x{v.block_n}x{SLAB_K * v.slabs_per_stage}",
        f"s{v.stages}",
        f"{v.consumers}{consumers}",
        f"c{v.cluster_m}x{v.cluster_n}",
        order,
    ]
    parts += [f"{k.num_sms} SMs"] * (k.num_sms != sms)
    parts += [f"{'kt' if k.split_tail else 'k'}{k.split_k}"] * (k.split_k > 1)
    parts += ["t"] * v.transposed_store + ["d"] * (v.store == "direct")
    parts += ["e"] * k.dependent_launch
    return " ".join(parts)


def called(problem: Problem, device_key: str) -> str:
    """A shape, and its budget of multiprocessors where that is not all the device has."""
    device = device_class(device_key)
    whole = device is None or problem.sms == device.sms
    return str(problem.shape) if whole else f"{problem.shape} on {problem.sms} SMs"


def microseconds(value: float) -> str:
    """Three significant digits below 1000, whole microseconds above."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def times_faster(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def confidence(timing: "Timing") -> str:
    """How sure the median is: samples, and half the 95 % interval as a share of the median."""
    low, high = timing.ci95_us
    return f"{timing.samples} ±{(high - low) / 2 / timing.median_us:.1%}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(counts: Sequence[tuple[str, int]]) -> str:
    """`3 ok, 1 timeout` from pairs of a name and a count."""
    return ", ".join(f"{count} {name}" for name, count in counts)


def ended_without(shape: GemmShape, state: str, detail: str) -> str:
    """A line for a shape without a result; most details begin with the shape already."""
    return detail if detail.startswith(f"{shape} ") else f"{shape} {state}: {detail}"
