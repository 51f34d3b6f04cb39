// What warps and warpgroups do together: registers, named barriers, matrix stores.
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "setmaxnreg"; sm_90a. Executed by every warp of a warpgroup.
template <int registers>
DEVICE void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
DEVICE void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// PTX ISA "bar / barrier": waits until `threads` threads have arrived, this one included.
DEVICE void named_barrier_sync(int32 id, int32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// PTX ISA "bar / barrier": arrives without waiting.
DEVICE void named_barrier_arrive(int32 id, int32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// PTX ISA "cvt": two fp32 to two bf16, round to nearest even; `low` at the lower address.
DEVICE uint32 pack_bf16(float low, float high) {
    uint32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// PTX ISA "stmatrix"; sm_90. Lanes 8i..8i+7 give the row addresses of 8x8 matrix i.
template <bool transposed>
DEVICE void store_matrices(uint32 address, uint32 r0, uint32 r1, uint32 r2, uint32 r3) {
    if constexpr (transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         address),
                     "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                     : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         address),
                     "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                     : "memory");
    }
}
template <bool transposed>
DEVICE void store_matrices(uint32 address, uint32 r0, uint32 r1) {
    if constexpr (transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};" ::"r"(
                         address),
                     "r"(r0), "r"(r1)
                     : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared::cta.b16 [%0], {%1, %2};" ::"r"(address),
                     "r"(r0), "r"(r1)
                     : "memory");
    }
}

}  // namespace ptx
