"""Tensor maps: what the TMA unit is told about an operand or an output in global memory."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cuda.bindings import driver

from tuner.config import SLAB_K, STORE_PIECE, KernelVariant
from tuner.device.cuda.driver import check
from tuner.legality import operand_boxes, uneven
from tuner.shape import ELEMENT_BYTES

GROUP_ROWS = 8
"""Rows of a swizzle atom: no load is smaller."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row-major bf16 matrix in device memory: `outer` rows of `inner` elements, `pitch` apart."""

    address: int
    outer: int
    inner: int
    pitch: int


def operand_box_rows(extent: int, sharers: int) -> int:
    """Rows of one load: a block's slice of a tile in equal boxes, or one group where slices differ.

    The same as `Operand::box_rows` of kernels/producer.cuh.
    """
    if uneven(extent, sharers):
        return GROUP_ROWS
    return extent // (sharers * operand_boxes(extent, sharers))


def store_boxes(variant: KernelVariant) -> tuple[tuple[int, int], tuple[int, int]]:
    """(outer, inner) of an epilogue piece, and of the narrower last piece of a tile."""
    tail = variant.consumer_n % STORE_PIECE or STORE_PIECE
    if variant.transposed_store:
        return (STORE_PIECE, STORE_PIECE), (tail, STORE_PIECE)
    return (STORE_PIECE, STORE_PIECE), (STORE_PIECE, tail)


def operand_map(matrix: Matrix, box_rows: int, promotion: int) -> Any:
    """Loads of 64 elements of K by `box_rows` rows, 128B-swizzled; zeros beyond the matrix."""
    return encode(matrix, box_rows, SLAB_K, promotion)


@lru_cache(maxsize=4096)
def encode(matrix: Matrix, box_outer: int, box_inner: int, promotion: int) -> Any:
    """CUDA Driver API, "cuTensorMapEncodeTiled". Promotion is in bytes, 0 for none.

    The cache key is everything the map holds, so a map can never describe another matrix.
    """
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    swizzle = driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
    promotions = driver.CUtensorMapL2promotion
    return check(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            matrix.address,
            [wide(matrix.inner), wide(matrix.outer)],
            [wide(matrix.pitch * ELEMENT_BYTES)],
            [narrow(box_inner), narrow(box_outer)],
            [narrow(1), narrow(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            {
                0: promotions.CU_TENSOR_MAP_L2_PROMOTION_NONE,
                64: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
                128: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                256: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            }[promotion],
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
