// Barriers in shared memory: one PTX instruction per function.
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "mbarrier.init"; PTX 7.0, sm_80.
DEVICE void mbarrier_init(uint32 barrier, uint32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// PTX ISA "fence.mbarrier_init": makes the inits visible to the cluster and to TMA; sm_90.
DEVICE void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// PTX ISA "mbarrier.arrive.expect_tx": one arrival that also announces bytes to come; sm_90.
DEVICE void mbarrier_arrive_expect_tx(uint32 barrier, uint32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// PTX ISA "mbarrier.arrive"; sm_80.
DEVICE void mbarrier_arrive(uint32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// PTX ISA "mbarrier.arrive" on a barrier of any thread block of the cluster, addressed through `mapa`;
// sm_90. The default semantics suffice, and cluster scope was measured to slow clustered variants.
DEVICE void mbarrier_arrive_cluster(uint32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// PTX ISA "mbarrier.test_wait / mbarrier.try_wait"; sm_90. The hardware may give up early and
// return false: callers loop.
DEVICE bool mbarrier_try_wait(uint32 barrier, uint32 parity) {
    uint32 done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}

DEVICE void mbarrier_wait(uint32 barrier, uint32 parity) {
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

}  // namespace ptx
