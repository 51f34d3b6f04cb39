// Split K: thread blocks that each multiplied a share of K exchange fp32 partial tiles through the
// workspace; then each of them adds up a stretch of the tile, always in the order of the shares, and
// stores it. Every consumer warpgroup exchanges its own part of the tile with its peers.
#pragma once
#include "consumer.cuh"
#include "launch_arguments.cuh"
#include "pipeline.cuh"
#include "ptx/grid.cuh"
#include "ptx/warpgroup.cuh"

class SplitReduction {
  public:
    DEVICE SplitReduction(const LaunchArguments& launch, int32 consumer)
        : launch_(launch), consumer_(consumer) {}

    // `row` and `column`: the first of this consumer's part along WGMMA's M and N.
    DEVICE void reduce(const Accumulators& accumulators, const WorkUnit& unit, int32 row,
                       int32 column) const {
        const int32 split = unit.position - launch_.tiles.whole;
        write_partial(accumulators, partial(split, unit.share));
        sync();
        if (threadIdx.x % warpgroup_threads == 0) wait_for_peers(split);
        sync();
        add_stretch(split, unit.share, row, column);
    }

  private:
    // A part lies in the workspace as in the output: lines of `inner` contiguous elements.
    static constexpr int32 inner =
        Config::transposed_store ? Config::consumer_m : Config::consumer_n;
    static constexpr int32 part_elements = Config::consumer_m * Config::consumer_n;
    static constexpr int32 parts = cluster_size * (Config::pingpong ? 1 : Config::consumers);

    // Which part of its cluster's tiles this warpgroup computes.
    DEVICE int32 part() const {
        const ClusterPlace place = ClusterPlace::here();
        const int32 rank = ClusterPlace::rank_of(place.m, place.n);
        return Config::pingpong ? rank : rank * Config::consumers + consumer_;
    }
    DEVICE float* partial(int32 split, int32 share) const {
        const int64 unit = static_cast<int64>(split) * launch_.tiles.split_k + share;
        return launch_.partials + (unit * parts + part()) * part_elements;
    }

    // The fragment layout of epilogue.cuh.
    DEVICE void write_partial(const Accumulators& accumulators, float* to) const {
        const int32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int32 block = 0; block < row_blocks; ++block) {
            const int32 row = block * 64 + warp * 16 + lane / 4;
#pragma unroll
            for (int32 i = 0; i < Config::consumer_n / 2; i += 4) {
                const float* v = &accumulators[block][i];
                const int32 column = i * 2 + lane % 4 * 2;
                if constexpr (Config::transposed_store) {
                    to[column * inner + row] = v[0];
                    to[(column + 1) * inner + row] = v[1];
                    to[column * inner + row + 8] = v[2];
                    to[(column + 1) * inner + row + 8] = v[3];
                } else {
                    *reinterpret_cast<float2*>(&to[row * inner + column]) = {v[0], v[1]};
                    *reinterpret_cast<float2*>(&to[(row + 8) * inner + column]) = {v[2], v[3]};
                }
            }
        }
    }

    // One thread, after all of its warpgroup have written: the barrier before it and the release of
    // the counter make their writes visible to the peers. The last arrival sets the counter back.
    DEVICE void wait_for_peers(int32 split) const {
        uint32* counter = launch_.arrivals + static_cast<int64>(split) * parts + part();
        const uint32 last = launch_.tiles.split_k - 1;
        if (ptx::count_arrival(counter, last) == last) return;
        while (ptx::load_acquire(counter) != 0) {
        }
    }

    DEVICE void add_stretch(int32 split, int32 share, int32 row, int32 column) const {
        constexpr int32 quads = part_elements / 4;
        const int32 shares = launch_.tiles.split_k;
        const int32 end = quads * (share + 1) / shares;
        const float* first = partial(split, 0);
        for (int32 quad = quads * share / shares + threadIdx.x % warpgroup_threads; quad < end;
             quad += warpgroup_threads) {
            const float4 sum = add_shares(first + quad * 4, shares);
            const int32 line = quad * 4 / inner, offset = quad * 4 % inner;
            store_quad(sum, Config::transposed_store ? column + line : row + line,
                       (Config::transposed_store ? row : column) + offset);
        }
    }

    // Several loads are in flight at once, but the order of the additions is that of the shares.
    DEVICE static float4 add_shares(const float* from, int32 shares) {
        constexpr int32 batch = 8;
        float4 sum = {0, 0, 0, 0};
        for (int32 share = 0; share < shares; share += batch) {
            float4 values[batch];
#pragma unroll
            for (int32 i = 0; i < batch; ++i) {
                values[i] = {0, 0, 0, 0};
                if (share + i < shares) {
                    values[i] = ptx::load_l2(from + static_cast<int64>(share + i) * parts * part_elements);
                }
            }
#pragma unroll
            for (int32 i = 0; i < batch; ++i) {
                sum = {sum.x + values[i].x, sum.y + values[i].y, sum.z + values[i].z,
                       sum.w + values[i].w};
            }
        }
        return sum;
    }

    // Unsigned: the last tile of an extent near 2^31 begins before it and ends after.
    DEVICE void store_quad(const float4& sum, uint32 outer, uint32 first) const {
        const uint32 outer_end = Config::transposed_store ? launch_.rows_b : launch_.rows_a;
        const uint32 inner_end = Config::transposed_store ? launch_.rows_a : launch_.rows_b;
        if (outer >= outer_end || first >= inner_end) return;
        const uint2 packed = {ptx::pack_bf16(sum.x, sum.y), ptx::pack_bf16(sum.z, sum.w)};
        uint16* d = static_cast<uint16*>(launch_.d) + static_cast<int64>(outer) * launch_.pitch + first;
        if constexpr (Config::tma_store) {  // lines are multiples of 16 bytes
            *reinterpret_cast<uint2*>(d) = packed;
        } else {
#pragma unroll
            for (uint32 i = 0; i < 4; ++i) {
                const uint32 pair = i < 2 ? packed.x : packed.y;
                if (first + i < inner_end) d[i] = static_cast<uint16>(pair >> (i % 2 * 16));
            }
        }
    }

    DEVICE void sync() const {
        ptx::named_barrier_sync(barrier_epilogue + consumer_, warpgroup_threads);
    }

    const LaunchArguments& launch_;
    const int32 consumer_;
};
