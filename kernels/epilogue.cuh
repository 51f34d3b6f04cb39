// fp32 accumulators -> bf16 -> swizzled shared memory -> global memory, in pieces of 64 x 64, so that
// the ring keeps the shared memory. Each consumer warpgroup stores its own part of the tile.
#pragma once
#include "consumer.cuh"
#include "launch_arguments.cuh"
#include "pipeline.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"

constexpr int32 piece = 64;
constexpr int32 tail = Config::consumer_n % piece;  // columns of a last, narrower piece

// `outer` x `inner` as they lie in the output, inner contiguous.
struct Extents {
    int32 outer, inner;
};

class Epilogue {
  public:
    DEVICE Epilogue(const SharedLayout& shared, const TensorMap& map, const TensorMap& map_tail,
                    const LaunchArguments& launch, int32 consumer)
        : shared_(shared), map_(map), map_tail_(map_tail), launch_(launch), consumer_(consumer) {}

    // `row` and `column`: the first of this consumer's part along WGMMA's M and N.
    DEVICE void store(const Accumulators& accumulators, int32 row, int32 column) {
#pragma unroll
        for (int32 block = 0; block < row_blocks; ++block) {
#pragma unroll
            for (int32 first = 0; first + piece <= Config::consumer_n; first += piece) {
                store_piece<piece>(accumulators[block], first, row + block * 64, column + first);
            }
            if constexpr (tail > 0) {
                constexpr int32 first = Config::consumer_n - tail;
                store_piece<tail>(accumulators[block], first, row + block * 64, column + first);
            }
        }
    }

    // Shared memory may go once every store has read it.
    DEVICE void drain() {
        if (Config::tma_store && is_issuer()) ptx::bulk_wait_read<0>();
    }

  private:
    // Columns first .. first+columns-1 of one 64-row block of accumulators.
    template <int32 columns>
    DEVICE void store_piece(const float (&block)[Config::consumer_n / 2], int32 first, int32 row,
                            int32 column) {
        const uint32 buffer = shared_.store_piece(consumer_, buffer_);
        if constexpr (Config::store_buffers > 1) buffer_ ^= 1;
        // The piece that used this buffer before has been read, by TMA or by the copying threads.
        if (Config::tma_store && is_issuer()) ptx::bulk_wait_read<Config::store_buffers - 1>();
        sync();
        write_shared<columns>(block, first, buffer);
        if constexpr (Config::tma_store) {
            ptx::fence_proxy_async();
            sync();
            if (is_issuer()) {
                const TensorMap& map = columns == piece ? map_ : map_tail_;
                const int32 inner = Config::transposed_store ? row : column;
                const int32 outer = Config::transposed_store ? column : row;
                ptx::tma_store(map, buffer, inner, outer);
                ptx::bulk_commit();
            }
        } else {
            sync();
            copy_direct<columns>(buffer, row, column);
        }
    }

    // PTX ISA "Register fragments and shared memory matrix layouts" of wgmma: thread t of a warp holds
    // row t/4 and t/4+8, columns 2(t%4) and +1 of every 8-column group, which is what stmatrix takes.
    // Rows of a piece are 128 bytes; 128B swizzle puts 16-byte chunk c of row r at c ^ (r % 8).
    template <int32 columns>
    DEVICE void write_shared(const float (&block)[Config::consumer_n / 2], int32 first,
                             uint32 buffer) const {
        const int32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const int32 matrix = lane / 8, matrix_row = lane % 8;
        // Matrices 0 and 1 hold rows 0-7 and 8-15 of the warp, 2 and 3 the same of the next columns.
        const int32 row_chunk = warp * 2 + matrix % 2;
#pragma unroll
        for (int32 offset = 0; offset < columns; offset += 16) {
            const int32 column_chunk = offset / 8 + matrix / 2;
            const int32 chunk = Config::transposed_store ? row_chunk : column_chunk;
            const int32 line = (Config::transposed_store ? column_chunk : row_chunk) * 8 + matrix_row;
            const uint32 address = buffer + line * 128 + ((chunk ^ matrix_row) * 16);
            const float* v = &block[(first + offset) / 2];
            const uint32 r0 = ptx::pack_bf16(v[0], v[1]), r1 = ptx::pack_bf16(v[2], v[3]);
            if (offset + 16 <= columns) {
                ptx::store_matrices<Config::transposed_store>(
                    address, r0, r1, ptx::pack_bf16(v[4], v[5]), ptx::pack_bf16(v[6], v[7]));
            } else {
                ptx::store_matrices<Config::transposed_store>(address, r0, r1);
            }
        }
    }

    // For outputs whose rows are not multiples of 16 bytes, which TMA cannot address.
    template <int32 columns>
    DEVICE void copy_direct(uint32 buffer, int32 row, int32 column) const {
        constexpr Extents lines = Config::transposed_store ? Extents{columns, piece}
                                                           : Extents{piece, columns};
        const Extents limit = Config::transposed_store ? Extents{launch_.rows_b, launch_.rows_a}
                                                       : Extents{launch_.rows_a, launch_.rows_b};
        const Extents origin = Config::transposed_store ? Extents{column, row} : Extents{row, column};
        uint16* d = static_cast<uint16*>(launch_.d);
        for (int32 i = threadIdx.x % warpgroup_threads; i < lines.outer * lines.inner;
             i += warpgroup_threads) {
            const int32 line = i / lines.inner, inner = i % lines.inner;
            // Unsigned: the last tile of an extent near 2^31 begins before it and ends after.
            const uint32 to_outer = static_cast<uint32>(origin.outer) + line;
            const uint32 to_inner = static_cast<uint32>(origin.inner) + inner;
            if (to_outer < static_cast<uint32>(limit.outer) &&
                to_inner < static_cast<uint32>(limit.inner)) {
                uint16 value;
                const uint32 address =
                    buffer + line * 128 + (((inner / 8) ^ (line % 8)) * 16) + inner % 8 * 2;
                asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
                d[static_cast<int64>(to_outer) * launch_.pitch + to_inner] = value;
            }
        }
    }

    // Bulk groups belong to a thread, so one fixed thread issues and waits.
    DEVICE bool is_issuer() const { return threadIdx.x % warpgroup_threads == 0; }
    DEVICE void sync() const {
        ptx::named_barrier_sync(barrier_epilogue + consumer_, warpgroup_threads);
    }

    const SharedLayout& shared_;
    const TensorMap& map_;
    const TensorMap& map_tail_;
    const LaunchArguments& launch_;
    const int32 consumer_;
    int32 buffer_ = 0;
};
