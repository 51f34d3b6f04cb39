"""One launch of our kernel: which operand plays which role, the tensor maps, the arguments."""

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.config import KernelConfig
from tuner.device.cuda.arguments import LaunchArguments, TileGrid
from tuner.device.cuda.driver import check
from tuner.device.cuda.grid import RASTERS, grid_of
from tuner.device.cuda.operands import OperandSet
from tuner.device.cuda.tensor_map import encode, operand_box_rows, operand_map, store_boxes
from tuner.legality import k_steps
from tuner.shape import Problem

_POLICIES = {
    "normal": 0x1000000000000000,
    "first": 0x12F0000000000000,
    "last": 0x14F0000000000000,
}
"""What `createpolicy.fractional` returns for a whole access on sm_90."""


class Launch:
    """A config bound to one set of operands; `enqueue` may be called, or captured, many times."""

    def __init__(
        self, function: Any, config: KernelConfig, problem: Problem, operands: OperandSet
    ) -> None:
        v, knobs = config.variant, config.knobs
        # The kernel writes what lies along its second operand contiguously, or, transposed, what
        # lies along its first. The output's contiguous side is N for d=row and M for d=col.
        exchanged = v.transposed_store != (problem.d == "col")
        a, b = (operands.b, operands.a) if exchanged else (operands.a, operands.b)
        d = operands.d
        grid = grid_of(config, a.outer, b.outer)
        map_a = operand_map(a, operand_box_rows(v.block_m, v.cluster_n), knobs.promotion)
        map_b = operand_map(b, operand_box_rows(v.block_n, v.cluster_m), knobs.promotion)
        if v.store == "tma":
            whole, tail = store_boxes(v)
            map_d, map_d_tail = encode(d, *whole, 0), encode(d, *tail, 0)
        else:
            map_d = map_d_tail = map_a  # not read by a kernel that stores directly
        self._arguments = LaunchArguments(
            d=d.address,
            pitch=d.pitch,
            rows_a=a.outer,
            rows_b=b.outer,
            k_steps=k_steps(problem.shape.k, v),
            tiles=TileGrid(grid.clusters_m, grid.clusters_n, RASTERS[knobs.raster], knobs.group),
            policy_a=_POLICIES[knobs.evict_a],
            policy_b=_POLICIES[knobs.evict_b],
        )
        self._function = function
        self._blocks, self._threads, self._smem_bytes = grid.blocks, v.threads, v.smem_bytes
        self._maps = (map_a, map_b, map_d, map_d_tail)
        self._parameters = (ctypes.c_void_p * 5)(
            *(m.getPtr() for m in self._maps), ctypes.addressof(self._arguments)
        )

    def enqueue(self, stream: int) -> None:
        """Launch on `stream`; arguments are copied by the call."""
        check(
            driver.cuLaunchKernel(
                self._function,
                *(self._blocks, 1, 1),
                *(self._threads, 1, 1),
                self._smem_bytes,
                stream,
                ctypes.addressof(self._parameters),
                0,
            )
        )
