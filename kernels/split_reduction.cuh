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
    // A part lies in the workspace as its threads hold it (epilogue.cuh): quads, which are two columns
    // of a row and of the row 8 below, of 8 columns after 8 columns, and within those of thread after
    // thread. A warp so writes and reads 512 bytes in a row.
    static constexpr int32 column_groups = Config::consumer_n / 8;
    static constexpr int32 quads = row_blocks * column_groups * warpgroup_threads;
    static constexpr int32 part_elements = quads * 4;
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

    DEVICE void write_partial(const Accumulators& accumulators, float* to) const {
        to += threadIdx.x % warpgroup_threads * 4;
#pragma unroll
        for (int32 block = 0; block < row_blocks; ++block) {
#pragma unroll
            for (int32 group = 0; group < column_groups; ++group) {
                const float* v = &accumulators[block][group * 4];
                *reinterpret_cast<float4*>(
                    &to[(block * column_groups + group) * warpgroup_threads * 4]) = {v[0], v[1], v[2],
                                                                                     v[3]};
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

    DEVICE void add_stretch(int32 split, int32 share, uint32 row, uint32 column) const {
        const int32 shares = launch_.tiles.split_k;
        const int32 end = quads * (share + 1) / shares;
        const float* first = partial(split, 0);
        for (int32 quad = quads * share / shares + threadIdx.x % warpgroup_threads; quad < end;
             quad += warpgroup_threads) {
            const float4 sum = add_shares(first + quad * 4, shares);
            const int32 thread = quad % warpgroup_threads, groups = quad / warpgroup_threads;
            store_quad(sum, row + groups / column_groups * 64 + thread / 32 * 16 + thread % 32 / 4,
                       column + groups % column_groups * 8 + thread % 4 * 2);
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

    DEVICE void store_quad(const float4& sum, uint32 row, uint32 column) const {
        store_pair(ptx::pack_bf16(sum.x, sum.y), row, column);
        store_pair(ptx::pack_bf16(sum.z, sum.w), row + 8, column);
    }

    // Two columns of a row. Unsigned: the last tile of an extent near 2^31 begins before it and ends
    // after. A line that TMA can store has an even length, so that both columns are in it or neither.
    DEVICE void store_pair(uint32 pair, uint32 row, uint32 column) const {
        const uint32 rows = launch_.rows_a, columns = launch_.rows_b;
        if (row >= rows || column >= columns) return;
        uint16* d = static_cast<uint16*>(launch_.d);
        if constexpr (Config::transposed_store) {
            d += static_cast<int64>(column) * launch_.pitch + row;
            d[0] = static_cast<uint16>(pair);
            if (column + 1 < columns) d[launch_.pitch] = static_cast<uint16>(pair >> 16);
        } else {
            d += static_cast<int64>(row) * launch_.pitch + column;
            if constexpr (Config::tma_store) {
                *reinterpret_cast<uint32*>(d) = pair;
            } else {
                d[0] = static_cast<uint16>(pair);
                if (column + 1 < columns) d[1] = static_cast<uint16>(pair >> 16);
            }
        }
    }

    DEVICE void sync() const {
        ptx::named_barrier_sync(barrier_epilogue + consumer_, warpgroup_threads);
    }

    const LaunchArguments& launch_;
    const int32 consumer_;
};
