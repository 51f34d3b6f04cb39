// What a launch passes besides its tensor maps; tuner/device/cuda/launch.py packs the same fields.
#pragma once
#include "tile_scheduler.cuh"
#include "types.cuh"

struct LaunchArguments {
    void* d;       // output, for direct stores
    int64 pitch;   // elements between its rows (outer extents)
    int32 rows_a;  // extent along WGMMA's M: rows of the first operand
    int32 rows_b;  // extent along WGMMA's N: rows of the second operand
    int32 k_steps;  // barrier phases of one tile; TMA fills the last with zeros beyond K
    TileGrid tiles;
    uint64 policy_a;  // L2 eviction priorities, as `createpolicy` encodes them
    uint64 policy_b;
    float* partials;   // for split K: one fp32 tile for each work unit of a split position
    uint32* arrivals;  // one counter for each part of a split tile; zero between launches
};
