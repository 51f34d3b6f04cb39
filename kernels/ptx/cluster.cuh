// Thread block clusters: one PTX instruction per function.
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "%cluster_ctarank"; sm_90.
DEVICE uint32 cluster_rank() {
    uint32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// PTX ISA "%nctaid". Volatile, so that it is read again rather than kept in a register for the length
// of a producer's loop, where the last register matters.
DEVICE uint32 grid_blocks() {
    uint32 blocks;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return blocks;
}

// PTX ISA "mapa": the address of `address` in thread block `rank` of the cluster; sm_90.
DEVICE uint32 map_to_rank(uint32 address, uint32 rank) {
    uint32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// PTX ISA "barrier.cluster": every thread of every thread block of the cluster.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace ptx
