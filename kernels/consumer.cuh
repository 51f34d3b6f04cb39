// A consumer warpgroup's main loop: wait for a stage, multiply, release the stage before.
#pragma once
#include "pipeline.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "wgmma_instruction.cuh"

// Named barriers; 0 is __syncthreads. Epilogue and order take one for each consumer.
constexpr int32 barrier_setup = 1;
constexpr int32 barrier_epilogue = 2;
constexpr int32 barrier_order = barrier_epilogue + Config::consumers;

constexpr int32 row_blocks = Config::consumer_m / 64;
using Accumulators = float[row_blocks][Config::consumer_n / 2];

// Tells producers that this warpgroup is done with a stage: its own, and in a cluster those of every
// thread block whose loads reach this one's shared memory. One thread of the first warp for each of
// them: a WGMMA is one operation of the four warps, and its completion, which wait_group waits for
// (SASS: WARPGROUP.DEPBAR), is that of all four.
class StageRelease {
  public:
    DEVICE explicit StageRelease(const SharedLayout& shared) {
        const int32 thread = threadIdx.x % warpgroup_threads;
        barriers_ = shared.empty_barrier(0);
        arrives_ = thread < Config::cluster_m + Config::cluster_n - 1;
        if constexpr (cluster_size > 1) {
            const ClusterPlace here = ClusterPlace::here();
            int32 m = here.m, n = thread;
            if (thread >= Config::cluster_n) {  // the rest of the column, without this block
                const int32 other = thread - Config::cluster_n;
                m = other < here.m ? other : other + 1;
                n = here.n;
            }
            const int32 rank = arrives_ ? here.rank_of(m, n) : 0;
            barriers_ = ptx::map_to_rank(barriers_, rank);
        }
    }

    DEVICE void operator()(int32 stage) const {
        if (!arrives_) return;
        if constexpr (cluster_size > 1) {
            ptx::mbarrier_arrive_cluster(barriers_ + stage * 8);
        } else {
            ptx::mbarrier_arrive(barriers_ + stage * 8);
        }
    }

  private:
    uint32 barriers_;
    bool arrives_;
};

// Issues one stage: every slab, 16 of K at a time, every block of 64 rows.
DEVICE void multiply_stage(Accumulators& accumulators, uint64 a, uint64 b, bool& accumulate) {
#pragma unroll
    for (int32 slab = 0; slab < Config::slabs_per_stage; ++slab) {
#pragma unroll
        for (int32 k = 0; k < slab_k; k += 16) {
            const uint64 a_k = a + ptx::descriptor_step(slab * slab_a_bytes + k * 2);
            const uint64 b_k = b + ptx::descriptor_step(slab * slab_b_bytes + k * 2);
#pragma unroll
            for (int32 block = 0; block < row_blocks; ++block) {
                ptx::wgmma_multiply(accumulators[block],
                                    a_k + ptx::descriptor_step(block * 64 * slab_row_bytes), b_k,
                                    accumulate);
            }
            accumulate = true;
        }
    }
}

// Accumulates one tile over `steps` stages of the ring. One stage stays in flight: a stage is
// released when the next one has been issued and its own multiplies are complete.
DEVICE void accumulate_tile(Accumulators& accumulators, const SharedLayout& shared,
                            const StageRelease& release, RingPosition& ring, int32 steps,
                            int32 first_row, int32 first_column) {
    const uint64 a0 = ptx::swizzled_descriptor(shared.slab_a(0, 0) + first_row * slab_row_bytes);
    const uint64 b0 = ptx::swizzled_descriptor(shared.slab_b(0, 0) + first_column * slab_row_bytes);
    bool accumulate = false;  // the first multiply overwrites, so nothing has to be zeroed
    int32 previous = 0;
    for (int32 step = 0; step < steps; ++step, ring.advance()) {
        ptx::mbarrier_wait(shared.full_barrier(ring.stage), ring.phase);
        ptx::wgmma_fence();
        const uint64 stage = ptx::descriptor_step(stage_bytes) * ring.stage;
        multiply_stage(accumulators, a0 + stage, b0 + stage, accumulate);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (step > 0) release(previous);
        previous = ring.stage;
    }
}

// The last stage of a tile is complete: its accumulators may be read and its stage released.
DEVICE void finish_tile(Accumulators& accumulators, const StageRelease& release,
                        const RingPosition& ring) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int32 block = 0; block < row_blocks; ++block) {
#pragma unroll
        for (int32 i = 0; i < Config::consumer_n / 2; ++i) {
            ptx::pin_accumulator(accumulators[block][i]);
        }
    }
    release(ring.stage == 0 ? Config::stages - 1 : ring.stage - 1);
}
