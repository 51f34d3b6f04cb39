"""What a launch passes beside its tensor maps, laid out as the kernel reads it."""

import ctypes
from collections.abc import Mapping

from tuner.config import Raster

RASTERS: Mapping[Raster, int] = {"along_m": 0, "along_n": 1, "hilbert": 2}
"""`Raster` of kernels/tile_scheduler.cuh."""


class TileGrid(ctypes.Structure):
    """`TileGrid` of kernels/tile_scheduler.cuh."""

    _fields_ = (
        ("clusters_m", ctypes.c_int32),
        ("clusters_n", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("whole", ctypes.c_int32),
        ("split_k", ctypes.c_int32),
    )


class LaunchArguments(ctypes.Structure):
    """`LaunchArguments` of kernels/launch_arguments.cuh."""

    _fields_ = (
        ("d", ctypes.c_void_p),
        ("pitch", ctypes.c_int64),
        ("rows_a", ctypes.c_int32),
        ("rows_b", ctypes.c_int32),
        ("k_steps", ctypes.c_int32),
        ("tiles", TileGrid),
        ("policy_a", ctypes.c_uint64),
        ("policy_b", ctypes.c_uint64),
        ("partials", ctypes.c_void_p),
        ("arrivals", ctypes.c_void_p),
    )
