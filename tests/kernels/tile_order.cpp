// The kernel's own tile order, called from tests/kernels/test_tile_scheduler.py.
#include "tile_scheduler.cuh"

extern "C" {

// Fills m[i], n[i] with the tile at each turn that cluster `first` of `stride` takes; returns how many.
int walk(int clusters_m, int clusters_n, int raster, int group, int first, int stride, int* m,
         int* n) {
    const TileGrid grid{clusters_m, clusters_n, raster, group, clusters_m * clusters_n, 1};
    int count = 0;
    for (int turn = first; turn < grid.size(); turn += stride) {
        const Tile tile = grid.at(turn);
        m[count] = tile.m;
        n[count] = tile.n;
        ++count;
    }
    return count;
}

// Fills four numbers for each work unit: position, share, first step, steps; returns how many units.
int units(int positions, int whole, int split_k, int k_steps, int* filled) {
    const TileGrid grid{positions, 1, 0, 1, whole, split_k};
    for (int index = 0; index < grid.units(); ++index) {
        const WorkUnit unit = grid.unit(index, k_steps);
        *filled++ = unit.position;
        *filled++ = unit.share;
        *filled++ = unit.first_step;
        *filled++ = unit.steps;
    }
    return grid.units();
}

// One position, for grids too large to walk.
void at(int clusters_m, int clusters_n, int raster, int group, int position, int* m, int* n) {
    const Tile tile = TileGrid{clusters_m, clusters_n, raster, group, 0, 1}.at(position);
    *m = tile.m;
    *n = tile.n;
}
}
