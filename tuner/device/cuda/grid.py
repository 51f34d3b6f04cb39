"""How a launch covers the output; plain arithmetic, without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.config import KernelConfig, Raster

RASTERS: Mapping[Raster, int] = {"along_m": 0, "along_n": 1, "hilbert": 2}
"""`Raster` of kernels/tile_scheduler.cuh."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How a launch covers the output, in clusters of tiles."""

    clusters_m: int
    clusters_n: int
    blocks: int


def grid_of(config: KernelConfig, rows_a: int, rows_b: int) -> Grid:
    """Persistent: as many clusters as `num_sms` holds, or as there are tiles to do."""
    v = config.variant
    clusters_m = -(-rows_a // (v.block_m * v.cluster_m))
    clusters_n = -(-rows_b // (v.block_n * v.cluster_n))
    resident = config.knobs.num_sms // v.cluster_size
    return Grid(clusters_m, clusters_n, min(resident, clusters_m * clusters_n) * v.cluster_size)
