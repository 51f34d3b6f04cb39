// Which tile a thread block takes next. Persistent: cluster c of C takes positions c, c+C, c+2C, ...
// of one order over all tiles. Plain integer code, compiled for the CPU by tests/kernels.
#pragma once
#include "types.cuh"

enum class Raster : int32 { along_m = 0, along_n = 1, hilbert = 2 };

struct Tile {
    int32 m, n;
};

// Walks along `major`, in bands `group` tiles wide; the last band may be narrower.
HOST_DEVICE void banded_position(int32 position, int32 majors, int32 minors, int32 group,
                                 int32& major, int32& minor) {
    const int32 width = smaller(group, minors);
    const int32 band = position / (width * majors);
    const int32 inside = position - band * width * majors;
    const int32 band_width = smaller(width, minors - band * width);
    major = inside / band_width;
    minor = band * width + inside - major * band_width;
}

HOST_DEVICE int32 magnitude(int32 signed_length) {
    return signed_length < 0 ? -signed_length : signed_length;
}
HOST_DEVICE int32 sign(int32 value) { return (value > 0) - (value < 0); }

// Half of a side, rounded so that the two parts of a cut stay connected.
HOST_DEVICE int32 even_half(int32 side) {
    const int32 half = side / 2;
    return half % 2 && magnitude(side) > 2 ? half + sign(side) : half;
}

// Position on a space-filling curve over any width x height rectangle, found by descending into the
// part that holds it: about log2(tiles) steps and no table, so no size can overflow one. A long
// rectangle is cut across, any other into the three legs of a Hilbert cell. `along` and `across` are
// the signed sides of the part; `turned` says that `along` runs in y.
HOST_DEVICE Tile hilbert_position(int32 position, int32 width, int32 height) {
    bool turned = height > width;
    int32 along = turned ? height : width, across = turned ? width : height;
    int32 x = 0, y = 0;
    while (magnitude(along) > 1 && magnitude(across) > 1) {
        if (2 * magnitude(along) > 3 * magnitude(across)) {
            const int32 half = even_half(along);
            const int32 first = magnitude(half * across);
            if (position < first) {
                along = half;
            } else {
                position -= first;
                (turned ? y : x) += half;
                along -= half;
            }
            continue;
        }
        const int32 half = even_half(across);
        const int32 first = magnitude(half * (along / 2));
        if (position < first) {
            across = along / 2;
            along = half;
            turned = !turned;
            continue;
        }
        position -= first;
        (turned ? x : y) += half;
        const int32 second = magnitude(along * (across - half));
        if (position < second) {
            across -= half;
            continue;
        }
        position -= second;
        (turned ? y : x) += along - sign(along);
        (turned ? x : y) -= sign(across);
        across = along / 2 - along;
        along = -half;
        turned = !turned;
    }
    if (magnitude(across) == 1) {
        (turned ? y : x) += sign(along) * position;
    } else {
        (turned ? x : y) += sign(across) * position;
    }
    return {x, y};
}

// One piece of work: steps first_step .. first_step + steps - 1 of K, of the tiles at `position`.
struct WorkUnit {
    int32 position;
    int32 share;  // which of the shares of K; 0 where K is not split
    int32 first_step, steps;
};

// What there is to hand out, counted in whole clusters of tiles; made by the host. The clusters at
// the edge may hold tiles outside the output: TMA loads them as zeros and drops their stores, and
// every thread block of a cluster runs the same number of steps.
struct TileGrid {
    int32 clusters_m, clusters_n;
    int32 raster;  // a Raster
    int32 group;
    int32 whole;    // positions before this one are not split along K
    int32 split_k;  // shares of K at every other position, at most its steps

    HOST_DEVICE int32 size() const { return clusters_m * clusters_n; }

    // Work units, if K is split at all: those of the whole positions come first.
    HOST_DEVICE int32 units() const { return whole + (size() - whole) * split_k; }

    // Shares of one position have neighbouring indices, so a thread block that waits for the other
    // shares of its position waits for nobody who waits for it.
    HOST_DEVICE WorkUnit unit(int32 index, int32 k_steps) const {
        if (index < whole) return {index, 0, 0, k_steps};
        const int32 split = (index - whole) / split_k;
        const int32 share = index - whole - split * split_k;
        const int32 first = share_begin(k_steps, share);
        return {whole + split, share, first, share_begin(k_steps, share + 1) - first};
    }

    // Shares differ by at most a step, the longer ones first. No product of steps and shares, which
    // need not fit 32 bits; a division in 64 bits takes registers that a producer does not have.
    HOST_DEVICE int32 share_begin(int32 k_steps, int32 share) const {
        const int32 least = k_steps / split_k;
        return least * share + smaller(share, k_steps - least * split_k);
    }

    // The cluster of tiles at one position of the order.
    HOST_DEVICE Tile at(int32 position) const {
        Tile tile;
        if (raster == static_cast<int32>(Raster::along_m)) {
            banded_position(position, clusters_m, clusters_n, group, tile.m, tile.n);
        } else if (raster == static_cast<int32>(Raster::along_n)) {
            banded_position(position, clusters_n, clusters_m, group, tile.n, tile.m);
        } else {
            tile = hilbert_position(position, clusters_m, clusters_n);
        }
        return tile;
    }
};
