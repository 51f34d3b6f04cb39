// Warpgroup matrix multiply: ordering and operand descriptors. The multiply itself is generated for
// the N in use (wgmma_instruction.cuh, from tuner/compiler/source.py).
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "wgmma.fence": earlier register and shared accesses come before the next wgmma; sm_90a.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// PTX ISA "wgmma.commit_group".
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// PTX ISA "wgmma.wait_group": all but the last `pending` groups are complete.
template <int pending>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving uses of an accumulator across the wait that completes it.
DEVICE void pin_accumulator(float& value) { asm volatile("" : "+f"(value)::"memory"); }

// PTX ISA "Matrix-descriptor format": K-major rows of 128 bytes under 128B swizzle. Bits 0-13 the
// address, 32-45 the stride between groups of 8 rows (both >> 4), 62-63 the swizzle mode.
DEVICE uint64 swizzled_descriptor(uint32 address) {
    constexpr uint64 group_stride = 8 * 128;
    return ((address & 0x3FFFF) >> 4) | (group_stride >> 4) << 32 | 1ull << 62;
}

// Steps of a descriptor's address field.
DEVICE constexpr uint64 descriptor_step(uint32 bytes) { return bytes >> 4; }

}  // namespace ptx
