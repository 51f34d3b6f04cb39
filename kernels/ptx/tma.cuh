// The tensor memory accelerator: one PTX instruction per function. Coordinates are in elements,
// innermost dimension first; what lies outside the tensor is zero when loaded, dropped when stored.
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "prefetch": brings a tensor map near; sm_90.
DEVICE void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// PTX ISA "cp.async.bulk.tensor", global to shared; sm_90.
DEVICE void tma_load(uint32 destination, const TensorMap& map, uint32 barrier, int32 inner,
                     int32 outer, uint64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
        "l"(&map), "r"(barrier), "r"(inner), "r"(outer), "l"(policy)
        : "memory");
}

// PTX ISA "cp.async.bulk.tensor" with multicast: written to, and signalled at, the same offset in
// every thread block of `mask`; sm_90.
DEVICE void tma_load_multicast(uint32 destination, const TensorMap& map, uint32 barrier,
                               int32 inner, int32 outer, uint16 mask, uint64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(destination),
        "l"(&map), "r"(barrier), "r"(inner), "r"(outer), "h"(mask), "l"(policy)
        : "memory");
}

// PTX ISA "cp.async.bulk.tensor", shared to global; sm_90.
DEVICE void tma_store(const TensorMap& map, uint32 source, int32 inner, int32 outer) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            &map),
        "r"(source), "r"(inner), "r"(outer)
        : "memory");
}

// PTX ISA "cp.async.bulk.commit_group". Groups belong to the thread that committed them.
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// PTX ISA "cp.async.bulk.wait_group": all but the last `pending` groups have read their source.
template <int pending>
DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// PTX ISA "Async proxy": ordinary writes to shared memory become visible to TMA.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace ptx
