"""One point of the search space, under the names that Python, CUDA, SQL and JSON share.

A `KernelConfig` is a `KernelVariant` (what the compiler must know) and a `LaunchKnobs` (what a
launch may choose). Tuning a shape that reuses a variant compiles nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args, get_origin

from tuner.errors import InvalidConfig
from tuner.hardware import (
    SMEM_ALIGNMENT_SLACK_BYTES,
    SMEM_BYTES_PER_BLOCK,
    WARPGROUP_THREADS,
)
from tuner.shape import ELEMENT_BYTES

SLAB_K = 64
"""Elements of K in one slab: a 128-byte row, the widest that 128B swizzle allows."""
STORE_PIECE = 64
"""Rows and columns of one piece of the epilogue: 128 bytes wide, swizzled."""
STORE_PIECE_BYTES = STORE_PIECE * STORE_PIECE * ELEMENT_BYTES
BARRIER_BYTES = 16
"""A full and an empty mbarrier, 8 bytes each, per stage."""

Split = Literal["m", "n"]
Schedule = Literal["cooperative", "pingpong"]
Reduction = Literal["none", "workspace"]
Store = Literal["tma", "direct"]
Raster = Literal["along_m", "along_n", "hilbert"]
Eviction = Literal["normal", "first", "last"]
PROMOTIONS = (0, 64, 128, 256)
"""Bytes that L2 can be told to fetch at a time; 0 leaves it the default."""


@dataclass(frozen=True, slots=True, order=True)
class KernelVariant:
    """What is compiled in; one variant is one cubin.

    block_m, block_n: tile extents in elements along WGMMA's M and N. With `transposed_store` the
        operands are exchanged, so block_m then spans the output's N and block_n its M.
    stages: depth of the ring; slabs_per_stage: 64-wide slabs of K behind one barrier.
    consumers: consumer warpgroups. Cooperative ones share a tile, cut along `split`; ping-pong
        ones (always two) own a tile each.
    producer_registers, consumer_registers: per thread after setmaxnreg; 0 and 0 leave the
        compiler's own allocation, which one consumer warpgroup needs no more than.
    cluster_m, cluster_n: thread blocks of a cluster along M and N, sharing operands by multicast.
    store: `tma` from shared memory, or `direct` for outputs whose pitch TMA cannot address.
    reduction: `none`, or `workspace` in a kernel that can split K, whose thread blocks exchange
        fp32 partial tiles through device memory.
    """

    block_m: int
    block_n: int
    stages: int
    slabs_per_stage: int = 1
    consumers: int = 2
    split: Split = "m"
    schedule: Schedule = "cooperative"
    producer_registers: int = 24
    consumer_registers: int = 240
    cluster_m: int = 1
    cluster_n: int = 1
    transposed_store: bool = False
    store: Store = "tma"
    reduction: Reduction = "none"

    @property
    def threads(self) -> int:
        return (1 + self.consumers) * WARPGROUP_THREADS

    @property
    def cluster_size(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def consumer_m(self) -> int:
        """Rows of the tile that one consumer warpgroup accumulates."""
        shares = self.schedule == "cooperative" and self.split == "m"
        return self.block_m // self.consumers if shares else self.block_m

    @property
    def consumer_n(self) -> int:
        """Columns of the tile that one consumer warpgroup accumulates."""
        shares = self.schedule == "cooperative" and self.split == "n"
        return self.block_n // self.consumers if shares else self.block_n

    @property
    def accumulators(self) -> int:
        """fp32 accumulators each consumer thread holds."""
        return self.consumer_m * self.consumer_n // WARPGROUP_THREADS

    @property
    def stage_bytes(self) -> int:
        rows = self.block_m + self.block_n
        return rows * SLAB_K * ELEMENT_BYTES * self.slabs_per_stage

    @property
    def ring_bytes(self) -> int:
        """Stages, their barriers, and the slack that aligns them."""
        return self.stages * (self.stage_bytes + BARRIER_BYTES) + SMEM_ALIGNMENT_SLACK_BYTES

    @property
    def store_bytes(self) -> int:
        """Shared memory of the epilogue: one or two pieces for each consumer."""
        return self.store_buffers * self.consumers * STORE_PIECE_BYTES

    @property
    def store_buffers(self) -> int:
        """Two pieces per consumer where they fit beside the ring, so stores overlap; else one."""
        pair_bytes = 2 * self.consumers * STORE_PIECE_BYTES
        return 2 if self.ring_bytes + pair_bytes <= SMEM_BYTES_PER_BLOCK else 1

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one launch, alignment slack included."""
        return self.ring_bytes + self.store_bytes


@dataclass(frozen=True, slots=True, order=True)
class LaunchKnobs:
    """What a launch chooses; changing it compiles nothing.

    raster: order in which tiles are handed out; group: tiles across, before the order moves on.
    num_sms: thread blocks to start, at most the SMs of the query.
    promotion: bytes that L2 fetches at a time for the operands, one of PROMOTIONS.
    evict_a, evict_b: L2 eviction priority of the operands on WGMMA's M and N side.
    split_k: shares of K that different thread blocks multiply; 1 does not split.
    split_tail: split only the tiles of the last wave, which would leave multiprocessors idle.
    dependent_launch: start before the stream's previous kernel has ended, and wait inside.
    """

    num_sms: int
    raster: Raster = "along_m"
    group: int = 8
    promotion: int = 128
    evict_a: Eviction = "normal"
    evict_b: Eviction = "normal"
    split_k: int = 1
    split_tail: bool = False
    dependent_launch: bool = False


@dataclass(frozen=True, slots=True, order=True)
class KernelConfig:
    """One candidate: a compiled variant and how it is launched."""

    variant: KernelVariant
    knobs: LaunchKnobs

    def to_dict(self) -> dict[str, Any]:
        """The flat form, every field named."""
        return {**asdict(self.variant), **asdict(self.knobs)}

    def to_stored(self) -> dict[str, Any]:
        """The flat form that SQL and JSON Lines hold: without what IMPLICIT says.

        So a config has one text, whichever version wrote it.
        """
        return {n: v for n, v in self.to_dict().items() if n not in IMPLICIT or v != IMPLICIT[n]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the flat form back.

        Raises: InvalidConfig for a missing, unknown or mistyped field.
        """
        expected = {f.name: f for part in (KernelVariant, LaunchKnobs) for f in fields(part)}
        values = {**IMPLICIT, **values}
        if unknown := sorted(set(values) - set(expected)):
            raise InvalidConfig(f"config has unknown fields {unknown}; it is from another version.")
        if missing := sorted(set(expected) - set(values)):
            raise InvalidConfig(f"config lacks the fields {missing}; it is from another version.")
        for name, value in values.items():
            if not _fits(name, value):
                raise InvalidConfig(f"config field {name} cannot be {value!r}.")
        return cls(
            KernelVariant(**{f.name: values[f.name] for f in fields(KernelVariant)}),
            LaunchKnobs(**{f.name: values[f.name] for f in fields(LaunchKnobs)}),
        )

    def __str__(self) -> str:
        v, k = self.variant, self.knobs
        parts = [
            f"{v.block_m}x{v.block_n}x{SLAB_K * v.slabs_per_stage}",
            f"{v.stages} stages",
            f"{v.consumers} {v.schedule}" + (f" along {v.split}" if v.consumers > 1 else ""),
            f"cluster {v.cluster_m}x{v.cluster_n}",
            f"{k.raster} {k.group}",
            f"{k.num_sms} SMs",
        ]
        parts += ["exchanged"] * v.transposed_store + ["direct store"] * (v.store == "direct")
        if k.split_k > 1:
            parts.append(f"split {k.split_k}" + " at the tail" * k.split_tail)
        parts += ["dependent launch"] * k.dependent_launch
        return ", ".join(parts)


CHOICES: Mapping[str, tuple[str, ...]] = {
    field.name: get_args(field.type)
    for part in (KernelVariant, LaunchKnobs)
    for field in fields(part)
    if get_origin(field.type) is Literal
}
"""What each field may be that is chosen by name, in a fixed order."""


IMPLICIT: Mapping[str, Any] = {
    "reduction": "none",
    "split_k": 1,
    "split_tail": False,
    "dependent_launch": False,
}
"""Fields that came after the first stored rows, and what a config without them means."""
SWITCHES = ("transposed_store", "split_tail", "dependent_launch")


def _fits(name: str, value: object) -> bool:
    if name in SWITCHES:
        return isinstance(value, bool)
    if name in CHOICES:
        return value in CHOICES[name]
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
