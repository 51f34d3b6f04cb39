// The ring of stages between the producer and the consumers: shared memory, barriers, phases.
#pragma once
#include "config.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "tile_scheduler.cuh"
#include "types.cuh"

constexpr int32 warpgroup_threads = 128;
constexpr int32 slab_k = 64;             // elements of K in a slab: one 128-byte swizzled row
constexpr int32 slab_row_bytes = 128;
constexpr int32 slab_a_bytes = Config::block_m * slab_row_bytes;
constexpr int32 slab_b_bytes = Config::block_n * slab_row_bytes;
constexpr int32 stage_bytes = Config::slabs_per_stage * (slab_a_bytes + slab_b_bytes);
constexpr int32 store_piece_bytes = 64 * 128;
constexpr int32 cluster_size = Config::cluster_m * Config::cluster_n;

// Where the next step of the ring is; `phase` is the parity its full barrier completes with.
struct RingPosition {
    int32 stage = 0;
    uint32 phase = 0;

    DEVICE void advance() {
        if (++stage == Config::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    DEVICE void skip(int32 steps) {
        const int32 reached = stage + steps;
        phase ^= (reached / Config::stages) & 1;
        stage = reached % Config::stages;
    }
};

// This thread block's place in its cluster; ranks run along N first.
struct ClusterPlace {
    int32 m, n;

    DEVICE static ClusterPlace here() {
        if constexpr (cluster_size == 1) return {0, 0};
        const int32 rank = static_cast<int32>(ptx::cluster_rank());
        return {rank / Config::cluster_n, rank % Config::cluster_n};
    }
    DEVICE static constexpr int32 rank_of(int32 m, int32 n) { return m * Config::cluster_n + n; }
};

// Persistent: cluster c of C takes turns c, c+C, c+2C, ... of the order in which work is handed out.
DEVICE int32 cluster_index() { return blockIdx.x / cluster_size; }
DEVICE int32 cluster_count() { return static_cast<int32>(ptx::grid_blocks()) / cluster_size; }

// How many turns there are, and the work of one. A kernel that cannot split K knows nothing of units:
// its producer has too few registers for them (docs/kernel-log.md, section 7).
DEVICE int32 turn_count(const TileGrid& tiles) {
    return Config::can_split ? tiles.units() : tiles.size();
}
DEVICE WorkUnit work_unit(const TileGrid& tiles, int32 k_steps, int32 turn) {
    if constexpr (Config::can_split) return tiles.unit(turn, k_steps);
    return {turn, 0, 0, k_steps};
}

// Addresses within the dynamic shared memory of a launch: the ring, the epilogue's pieces, the
// barriers. The ring starts at a multiple of 1024 bytes, as 128B swizzle requires (PTX ISA
// "Swizzling modes"), and every slab keeps that alignment because extents are multiples of 8 rows.
struct SharedLayout {
    uint32 base;

    DEVICE explicit SharedLayout(uint32 unaligned) : base((unaligned + 1023) & ~1023u) {}

    DEVICE uint32 slab_a(int32 stage, int32 slab) const {
        return base + stage * stage_bytes + slab * slab_a_bytes;
    }
    DEVICE uint32 slab_b(int32 stage, int32 slab) const {
        return base + stage * stage_bytes + Config::slabs_per_stage * slab_a_bytes +
               slab * slab_b_bytes;
    }
    DEVICE uint32 store_piece(int32 consumer, int32 buffer) const {
        return base + Config::stages * stage_bytes +
               (consumer * Config::store_buffers + buffer) * store_piece_bytes;
    }
    DEVICE uint32 full_barrier(int32 stage) const { return barriers() + stage * 8; }
    DEVICE uint32 empty_barrier(int32 stage) const {
        return barriers() + (Config::stages + stage) * 8;
    }

    // One thread. A stage is full when its producer has arrived and all its bytes have; it is empty
    // when every consumer of every thread block that this one's loads reach has released it.
    DEVICE void init_barriers() const {
        constexpr int32 readers = Config::pingpong ? 1 : Config::consumers;
        constexpr int32 reached = Config::cluster_m + Config::cluster_n - 1;
        for (int32 stage = 0; stage < Config::stages; ++stage) {
            ptx::mbarrier_init(full_barrier(stage), 1);
            ptx::mbarrier_init(empty_barrier(stage), readers * reached);
        }
        ptx::fence_mbarrier_init();
    }

  private:
    DEVICE uint32 barriers() const {
        return store_piece(Config::consumers, 0);
    }
};
