"""How a launch cuts a problem into tiles, and the tiles into work; plain arithmetic.

`kernels/tile_scheduler.cuh` hands out the same work units; a test holds the two together.
"""

from dataclasses import dataclass

from tuner.config import SLAB_K, KernelConfig, KernelVariant
from tuner.shape import Problem

PARTIAL_BYTES = 4
"""One fp32 element of a partial tile."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one launch covers one problem.

    clusters_m, clusters_n: clusters of tiles along WGMMA's M and N.
    resident: clusters that are started, if there is work for so many.
    whole: clusters of tiles whose K is not split; they are handed out first.
    split_k: shares of K of each of the others.
    split_tiles: tiles whose K is split; tile_elements: elements of one.
    parts: consumer warpgroups that share a tile, each of which adds up its own part.
    """

    clusters_m: int
    clusters_n: int
    resident: int
    whole: int
    split_k: int
    cluster_size: int
    tile_elements: int
    parts: int

    @property
    def units(self) -> int:
        """Pieces of work for a cluster."""
        return self.whole + (self.clusters_m * self.clusters_n - self.whole) * self.split_k

    @property
    def blocks(self) -> int:
        """Thread blocks of the launch."""
        return min(self.resident, self.units) * self.cluster_size

    @property
    def split_tiles(self) -> int:
        return (self.clusters_m * self.clusters_n - self.whole) * self.cluster_size

    @property
    def partials_bytes(self) -> int:
        """Device memory for the partial tiles that are exchanged."""
        if self.split_k == 1:
            return 0
        return self.split_tiles * self.split_k * self.tile_elements * PARTIAL_BYTES

    @property
    def arrival_counters(self) -> int:
        """Counters of shares that have arrived, one for each part of a split tile."""
        return self.split_tiles * self.parts if self.split_k > 1 else 0


def tiling_of(config: KernelConfig, problem: Problem) -> Tiling:
    """The tiling of a launch. With `split_tail` all full waves stay whole."""
    v, knobs = config.variant, config.knobs
    tiles_m, tiles_n = tile_grid(problem, v)
    clusters_m, clusters_n = tiles_m // v.cluster_m, tiles_n // v.cluster_n
    resident = max(knobs.num_sms // v.cluster_size, 1)
    full = clusters_m * clusters_n
    whole = full // resident * resident if knobs.split_tail else 0
    return Tiling(
        clusters_m,
        clusters_n,
        resident,
        whole=full if knobs.split_k == 1 else whole,
        split_k=knobs.split_k,
        cluster_size=v.cluster_size,
        tile_elements=v.block_m * v.block_n,
        parts=1 if v.schedule == "pingpong" else v.consumers,
    )


def operands_exchanged(problem: Problem, transposed_store: bool) -> bool:
    """Whether B goes along WGMMA's M, and A along its N.

    The kernel writes what lies along its second operand contiguously, or, transposed, what lies
    along its first. The output's contiguous side is N for d=row and M for d=col.
    """
    return transposed_store != (problem.d == "col")


def wgmma_extents(problem: Problem, transposed_store: bool) -> tuple[int, int]:
    """Elements of the output along WGMMA's M and N, which `block_m` and `block_n` cut."""
    shape = problem.shape
    exchanged = operands_exchanged(problem, transposed_store)
    return (shape.n, shape.m) if exchanged else (shape.m, shape.n)


def tile_grid(problem: Problem, variant: KernelVariant) -> tuple[int, int]:
    """Tiles along WGMMA's M and N, rounded up to whole clusters."""
    rows, columns = wgmma_extents(problem, variant.transposed_store)
    return (
        round_up(-(-rows // variant.block_m), variant.cluster_m),
        round_up(-(-columns // variant.block_n), variant.cluster_n),
    )


def k_steps(k: int, variant: KernelVariant) -> int:
    """Barrier phases that one tile takes; what the last has beyond K, TMA fills with zeros."""
    width = SLAB_K * variant.slabs_per_stage
    return -(-k // width)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
