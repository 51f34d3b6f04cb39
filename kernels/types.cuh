// Integer types and the tensor map, declared here because NVRTC is given no CUDA header.
#pragma once

#if defined(__CUDACC__)
#define HOST_DEVICE __host__ __device__ __forceinline__
#define DEVICE __device__ __forceinline__
#else  // tile_scheduler.cuh is also compiled for the CPU, by the tests.
#define HOST_DEVICE inline
#endif

using int32 = int;
using int64 = long long;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;

#if defined(__CUDACC__)
// CUDA Driver API, "CUtensorMap": 128 opaque bytes, 64-byte aligned.
struct alignas(64) TensorMap {
    uint64 opaque[16];
};
#endif

HOST_DEVICE int32 ceil_div(int32 value, int32 by) { return value / by + (value % by != 0); }
HOST_DEVICE int32 smaller(int32 a, int32 b) { return a < b ? a : b; }
