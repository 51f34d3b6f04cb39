// What thread blocks of a grid, and grids of a stream, do together: one PTX instruction per function.
#pragma once
#include "types.cuh"

namespace ptx {

// PTX ISA "griddepcontrol": waits until the grids that this one depends on have finished and their
// writes can be seen; returns at once where the launch allowed no overlap; sm_90.
DEVICE void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// PTX ISA "griddepcontrol": once every thread block has said so, or ended, a dependent grid may start.
DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// PTX ISA "atom": one more arrival, back to zero at `last`; returns the arrivals before. Everything
// that happens before it in this thread can be seen by who acquires the counter.
DEVICE uint32 count_arrival(uint32* counter, uint32 last) {
    uint32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(last)
                 : "memory");
    return before;
}

// PTX ISA "ld.acquire".
DEVICE uint32 load_acquire(const uint32* counter) {
    uint32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// PTX ISA "ld", cache operator .cg: from L2, where other multiprocessors' stores are.
DEVICE float4 load_l2(const float* source) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(source)
                 : "memory");
    return value;
}

}  // namespace ptx
