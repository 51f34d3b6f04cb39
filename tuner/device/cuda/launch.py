"""One launch of our kernel: which operand plays which role, the tensor maps, the arguments."""

import ctypes
from typing import Any

from cuda.bindings import driver

from tuner.config import KernelConfig, KernelVariant
from tuner.device.cuda.arguments import RASTERS, LaunchArguments, TileGrid
from tuner.device.cuda.driver import check
from tuner.device.cuda.operands import OperandSet
from tuner.device.cuda.tensor_map import encode, operand_box_rows, operand_map, store_boxes
from tuner.device.cuda.workspace import Workspace
from tuner.shape import Problem
from tuner.tiling import k_steps, operands_exchanged, tiling_of

_POLICIES = {
    "normal": 0x1000000000000000,
    "first": 0x12F0000000000000,
    "last": 0x14F0000000000000,
}
"""What `createpolicy.fractional` returns for a whole access on sm_90."""


class Launch:
    """A config bound to one set of operands; `enqueue` may be called, or captured, many times."""

    def __init__(
        self,
        function: Any,
        config: KernelConfig,
        problem: Problem,
        operands: OperandSet,
        workspace: Workspace,
    ) -> None:
        v, knobs = config.variant, config.knobs
        exchanged = operands_exchanged(problem, v.transposed_store)
        a, b = (operands.b, operands.a) if exchanged else (operands.a, operands.b)
        d = operands.d
        tiling = tiling_of(config, problem)
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
            tiles=TileGrid(
                clusters_m=tiling.clusters_m,
                clusters_n=tiling.clusters_n,
                raster=RASTERS[knobs.raster],
                group=knobs.group,
                whole=tiling.whole,
                split_k=tiling.split_k,
            ),
            policy_a=_POLICIES[knobs.evict_a],
            policy_b=_POLICIES[knobs.evict_b],
            partials=workspace.partials_address,
            arrivals=workspace.arrivals_address,
        )
        self._function, self._workspace, self._tiling = function, workspace, tiling
        self._config = _launch_config(tiling.blocks, v, dependent=knobs.dependent_launch)
        self._maps = (map_a, map_b, map_d, map_d_tail)
        self._parameters = (ctypes.c_void_p * 5)(
            *(m.getPtr() for m in self._maps), ctypes.addressof(self._arguments)
        )

    def residency_fault(self) -> str | None:
        """Why thread blocks that wait for each other would wait for ever; None if they do not."""
        if self._tiling.split_k == 1 or self._tiling.cluster_size == 1:
            return None  # each thread block has a multiprocessor of its own
        resident = check(driver.cuOccupancyMaxActiveClusters(self._function, self._config))
        needed = self._tiling.blocks // self._tiling.cluster_size
        if needed <= resident:
            return None
        return (
            f"it starts {needed} clusters of {self._tiling.cluster_size} thread blocks that wait "
            f"for each other, and this device holds {resident} at once"
        )

    def enqueue(self, stream: int) -> None:
        """Launch on `stream`; arguments are copied by the call."""
        self._config.hStream = stream
        parameters = ctypes.addressof(self._parameters)
        check(driver.cuLaunchKernelEx(self._config, self._function, parameters, 0))


def _launch_config(blocks: int, variant: KernelVariant, *, dependent: bool) -> Any:
    """CUDA Driver API, "cuLaunchKernelEx"; a dependent launch may overlap the one before it."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = variant.threads, 1, 1
    config.sharedMemBytes = variant.smem_bytes
    if dependent:
        attribute = driver.CUlaunchAttribute()
        attribute.id = (
            driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        )
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    return config
