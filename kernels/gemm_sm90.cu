// D[rows_a, rows_b] = A[rows_a, K] x B[rows_b, K]^T: bf16 in, fp32 accumulate, bf16 out; A and B
// K-contiguous, D stored as it is or transposed. Warpgroup 0 loads, the others multiply and store.
// Which operand of the user's product is A, and every extent, is decided at launch.
#include "config.cuh"
#include "config_checks.cuh"
#include "consumer.cuh"
#include "epilogue.cuh"
#include "launch_arguments.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "split_reduction.cuh"
#include "tile_scheduler.cuh"

constexpr int32 threads = (1 + Config::consumers) * warpgroup_threads;

// A consumer's part of a tile is complete, or its share of K is. `row` and `column`: where it begins.
DEVICE void deliver(const Accumulators& accumulators, Epilogue& epilogue,
                    const LaunchArguments& launch, const WorkUnit& unit, int32 consumer, int32 row,
                    int32 column) {
    if constexpr (Config::can_split) {
        if (unit.position >= launch.tiles.whole) {
            SplitReduction(launch, consumer).reduce(accumulators, unit, row, column);
            return;
        }
    }
    epilogue.store(accumulators, row, column);
}

// Consumers that share every tile, each a part of it.
DEVICE void consume_cooperative(const SharedLayout& shared, Epilogue& epilogue,
                                const LaunchArguments& launch, int32 consumer) {
    const ClusterPlace place = ClusterPlace::here();
    const StageRelease release(shared);
    const int32 part_m = Config::split_m ? consumer * Config::consumer_m : 0;
    const int32 part_n = Config::split_m ? 0 : consumer * Config::consumer_n;
    RingPosition ring;
    for (int32 turn = cluster_index(); turn < turn_count(launch.tiles); turn += cluster_count()) {
        const WorkUnit unit = work_unit(launch.tiles, launch.k_steps, turn);
        const Tile cluster = launch.tiles.at(unit.position);
        Accumulators accumulators;
        accumulate_tile(accumulators, shared, release, ring, unit.steps, part_m, part_n);
        finish_tile(accumulators, release, ring);
        deliver(accumulators, epilogue, launch, unit, consumer,
                (cluster.m * Config::cluster_m + place.m) * Config::block_m + part_m,
                (cluster.n * Config::cluster_n + place.n) * Config::block_n + part_n);
    }
}

// Two consumers that take turns: one multiplies its tile while the other stores. Each waits for its
// turn before it reads the ring: without that order a consumer could run more than one round of the
// ring behind, where a phase's parity looks the same as the one it waits for.
DEVICE void consume_pingpong(const SharedLayout& shared, Epilogue& epilogue,
                             const LaunchArguments& launch, int32 consumer) {
    const ClusterPlace place = ClusterPlace::here();
    const StageRelease release(shared);
    const int32 mine = barrier_order + consumer, others = barrier_order + 1 - consumer;
    RingPosition ring;
    int32 turn = cluster_index();
    if (consumer == 1) {
        ring.skip(work_unit(launch.tiles, launch.k_steps, turn).steps);
        turn += cluster_count();
        ptx::named_barrier_arrive(others, 2 * warpgroup_threads);  // consumer 0 goes first
    }
    for (; turn < turn_count(launch.tiles); turn += 2 * cluster_count()) {
        const WorkUnit unit = work_unit(launch.tiles, launch.k_steps, turn);
        const Tile cluster = launch.tiles.at(unit.position);
        Accumulators accumulators;
        ptx::named_barrier_sync(mine, 2 * warpgroup_threads);
        accumulate_tile(accumulators, shared, release, ring, unit.steps, 0, 0);
        ptx::named_barrier_arrive(others, 2 * warpgroup_threads);
        finish_tile(accumulators, release, ring);
        ring.skip(work_unit(launch.tiles, launch.k_steps, turn + cluster_count()).steps);
        deliver(accumulators, epilogue, launch, unit, consumer,
                (cluster.m * Config::cluster_m + place.m) * Config::block_m,
                (cluster.n * Config::cluster_n + place.n) * Config::block_n);
    }
}

// PTX ISA "Performance-tuning directives": a minimum of one resident block is what makes the
// compiler honour setmaxnreg (C7508 otherwise).
extern "C" __global__ __launch_bounds__(threads, 1) CLUSTER_DIMENSIONS void gemm_sm90(
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
    const __grid_constant__ TensorMap map_d, const __grid_constant__ TensorMap map_d_tail,
    const __grid_constant__ LaunchArguments launch) {
    extern __shared__ unsigned char dynamic_shared[];
    const SharedLayout shared(static_cast<uint32>(__cvta_generic_to_shared(dynamic_shared)));
    // Uniform over a warp, and known to the compiler to be.
    const int32 warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    const int32 warpgroup = warp / 4;

    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(map_a);
        ptx::prefetch_tensormap(map_b);
        shared.init_barriers();
    }
    __syncwarp();  // what follows is executed by whole warps
    if constexpr (cluster_size > 1) {
        ptx::cluster_sync();  // no peer may signal a barrier that is not there yet
    }

    if (warpgroup == 0) {
        if constexpr (Config::producer_registers > 0) {
            ptx::lower_registers<Config::producer_registers>();
        }
        if (warp == 0) {
            // Only the consumers wait for the barriers; the first loads need not.
            if constexpr (cluster_size == 1) {
                ptx::named_barrier_arrive(barrier_setup, threads - 3 * 32);
            }
            if (threadIdx.x == 0) {
                // Whoever depends on this grid may take up the multiprocessors as they come free; it
                // waits here itself, before it reads what others wrote or its consumers write.
                ptx::launch_dependents();
                ptx::wait_for_prerequisites();
                produce(shared, map_a, map_b, launch);
            }
            __syncwarp();
        }
    } else {
        if constexpr (Config::consumer_registers > 0) {
            ptx::raise_registers<Config::consumer_registers>();
        }
        if constexpr (cluster_size == 1) {
            ptx::named_barrier_sync(barrier_setup, threads - 3 * 32);
        }
        const int32 consumer = warpgroup - 1;
        Epilogue epilogue(shared, map_d, map_d_tail, launch, consumer);
        if constexpr (Config::pingpong) {
            consume_pingpong(shared, epilogue, launch, consumer);
        } else {
            consume_cooperative(shared, epilogue, launch, consumer);
        }
        epilogue.drain();
        __syncwarp();
    }
    // A peer may still be multicasting into this block's shared memory, or arriving on its barriers.
    if constexpr (cluster_size > 1) ptx::cluster_sync();
}
