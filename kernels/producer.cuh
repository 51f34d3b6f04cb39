// One thread that keeps the ring full: TMA loads of A and B, tile after tile, without a pause
// between tiles.
#pragma once
#include "launch_arguments.cuh"
#include "pipeline.cuh"
#include "ptx/tma.cuh"
#include "tile_scheduler.cuh"

// One operand of this thread block: the slice of rows it loads, and whom it loads them for. Thread
// blocks that share a tile of the operand each load one slice and multicast it to all of them. Where
// its groups of 8 rows do not divide among them, slices differ by a group, loaded one at a time.
template <int32 extent, int32 sharers>
struct Operand {
    static constexpr int32 groups = extent / 8;
    static constexpr bool even = groups % sharers == 0;
    static constexpr int32 slice_rows = extent / sharers;  // if even
    // CUDA Driver API, "cuTensorMapEncodeTiled": a box has at most 256 rows.
    static constexpr int32 boxes = (slice_rows + 255) / 256;
    static constexpr int32 box_rows = even ? slice_rows / boxes : 8;
    static_assert(!even || (box_rows * boxes == slice_rows && box_rows % 8 == 0),
                  "equal boxes of 8-row groups");

    const TensorMap& map;
    const uint64& policy;
    int32 sharer;  // this block's place among those that share the tile
    uint16 mask;   // their ranks in the cluster

    DEVICE static int32 first_row(int32 sharer) {
        return even ? sharer * slice_rows : groups * sharer / sharers * 8;
    }

    DEVICE void load(uint32 slab, uint32 barrier, int32 k, int32 tile_row) const {
        const int32 count = even ? boxes : (first_row(sharer + 1) - first_row(sharer)) / 8;
        for (int32 box = 0; box < count; ++box) {
            const int32 row = first_row(sharer) + box * box_rows;
            const uint32 destination = slab + row * slab_row_bytes;
            if constexpr (sharers > 1) {
                ptx::tma_load_multicast(destination, map, barrier, k, tile_row + row, mask, policy);
            } else {
                ptx::tma_load(destination, map, barrier, k, tile_row + row, policy);
            }
        }
    }
};

// Ranks of the cluster that share this block's tile of A (its row) and of B (its column).
DEVICE uint16 row_mask(ClusterPlace place) {
    constexpr uint32 row = (1u << Config::cluster_n) - 1;
    return static_cast<uint16>(row << ClusterPlace::rank_of(place.m, 0));
}
DEVICE uint16 column_mask(ClusterPlace place) {
    uint32 column = 0;
    for (int32 m = 0; m < Config::cluster_m; ++m) column |= 1u << ClusterPlace::rank_of(m, 0);
    return static_cast<uint16>(column << place.n);
}

DEVICE void produce(const SharedLayout& shared, const TensorMap& map_a, const TensorMap& map_b,
                    const LaunchArguments& launch) {
    using OperandA = Operand<Config::block_m, Config::cluster_n>;
    using OperandB = Operand<Config::block_n, Config::cluster_m>;
    RingPosition ring;
#pragma unroll 1
    for (int32 turn = cluster_index(); turn < turn_count(launch.tiles); turn += cluster_count()) {
        const WorkUnit unit = work_unit(launch.tiles, launch.k_steps, turn);
        const Tile cluster = launch.tiles.at(unit.position);
        // Looked up for every tile: the few registers of a producer are needed for its order.
        const ClusterPlace place = ClusterPlace::here();
        const OperandA a{map_a, launch.policy_a, place.n, row_mask(place)};
        const OperandB b{map_b, launch.policy_b, place.m, column_mask(place)};
        const int32 row_a = (cluster.m * Config::cluster_m + place.m) * Config::block_m;
        const int32 row_b = (cluster.n * Config::cluster_n + place.n) * Config::block_n;
#pragma unroll 1
        for (int32 step = unit.first_step; step < unit.first_step + unit.steps;
             ++step, ring.advance()) {
            const uint32 full = shared.full_barrier(ring.stage);
            ptx::mbarrier_wait(shared.empty_barrier(ring.stage), ring.phase ^ 1);
            ptx::mbarrier_arrive_expect_tx(full, stage_bytes);
            for (int32 slab = 0; slab < Config::slabs_per_stage; ++slab) {
                const int32 k = (step * Config::slabs_per_stage + slab) * slab_k;
                a.load(shared.slab_a(ring.stage, slab), full, k, row_a);
                b.load(shared.slab_b(ring.stage, slab), full, k, row_b);
            }
        }
    }
}
