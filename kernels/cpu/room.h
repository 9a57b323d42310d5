/* A batch laid out for the kernels of a GPU: what batches/padded.py and batches/tiles.py define in
 * NumPy, many times faster, so that a recorded step need not wait for the host. */
#pragma once
#include <string.h>

#include "vectors.h"

#define TILE_HEIGHT 32 /* TILE, SLOTS and PLANES of batches/tiles.py */
#define TILE_SLOTS 8
#define PLANE 64
#define MOST_PLANES 4

/* Graphs of 1 to TILE_HEIGHT nodes, n of them, share tiles: the largest first, then the largest that
 * fits; a tile's pattern of sizes is repeated as often as the counts allow. `order` [n]: which, tile
 * after tile; `tile` [n + 1]: where each begins; `sorted` [n]: room. Returns how many tiles. */
static i64 pack_tiles(i64 n, const i64 *size, i64 *order, i64 *tile, i64 *sorted) {
    i64 left[TILE_HEIGHT + 1] = {0}, next[TILE_HEIGHT + 1], used = 0, tiles = 0;
    for (i64 i = 0; i < n; i++) left[size[i]]++;
    for (i64 s = TILE_HEIGHT, begin = 0; s > 0; s--) next[s] = begin, begin += left[s];
    for (i64 i = 0; i < n; i++) sorted[next[size[i]]++] = i;
    for (i64 s = 1; s <= TILE_HEIGHT; s++) next[s] -= left[s];
    tile[0] = 0;
    while (used < n) {
        i64 rows = TILE_HEIGHT, slots = TILE_SLOTS, repeats = n, kinds = 0;
        i64 kind[TILE_SLOTS], many[TILE_SLOTS];
        for (i64 s = TILE_HEIGHT; s > 0 && slots; s--) {
            i64 m = min64(min64(left[s], rows / s), slots);
            if (!m) continue;
            repeats = min64(repeats, left[s] / m);
            rows -= m * s, slots -= m;
            kind[kinds] = s, many[kinds++] = m;
        }
        for (i64 r = 0; r < repeats; r++) {
            for (i64 k = 0; k < kinds; k++)
                for (i64 j = 0; j < many[k]; j++) order[used++] = sorted[next[kind[k]]++];
            tile[++tiles] = used;
        }
        for (i64 k = 0; k < kinds; k++) left[kind[k]] -= repeats * many[k];
    }
    return tiles;
}

/* What a room of batches/padded.py holds at most; `numbers` of its table, and the empty graph that fills
 * up places of larger ones. */
typedef struct {
    i64 graphs, rows, tiles, larger[MOST_PLANES], numbers, empty;
} capacity;

INLINE i64 *take_part(i64 **table, i64 count) {
    i64 *part = *table;
    *table += count + count % 2; /* `cut` of indexing.py */
    return part;
}

/* The graphs at `position` [graphs] in `table`, whose parts are `_Tables`; 0 where they do not fit. `ptr`
 * [G + 1] and `fits` [G] are the dataset's; `memory`: 5 graphs + 1. */
static int fill_table(const capacity *c, const i64 *position, const i64 *ptr, const uint8_t *fits,
                      i64 *table, i64 *memory) {
    i64 n = c->graphs, total = 0, small = 0, larger[MOST_PLANES] = {0}, *large[MOST_PLANES];
    i64 *small_size = memory, *which = memory + n, *order = memory + 2 * n, *begin = memory + 3 * n;
    memset(table, 0, sizeof(i64) * (size_t)c->numbers);
    i64 *positions = take_part(&table, n), *sizes = take_part(&table, n);
    i64 *first_row = take_part(&table, n + 1), *first_node = take_part(&table, n);
    i64 *node_count = take_part(&table, 1), *tile = take_part(&table, c->tiles + 1);
    i64 *graph = take_part(&table, n), *row = take_part(&table, n);
    for (int p = 0; p < MOST_PLANES; p++) {
        large[p] = take_part(&table, 2 * c->larger[p]);
        for (i64 i = 0; i < c->larger[p]; i++) large[p][i] = c->empty;
    }
    int32_t *node = (int32_t *)table;
    for (i64 b = 0; b < n; b++) {
        i64 g = position[b];
        if (g < 0 || g >= c->empty || !fits[g]) return 0;
        i64 size = ptr[g + 1] - ptr[g];
        if (total + size > c->rows) return 0;
        positions[b] = g, sizes[b] = size, first_row[b] = total, first_node[b] = ptr[g];
        if (size > TILE_HEIGHT) {
            i64 p = (size - 1) / PLANE, at = larger[p]++;
            if (at == c->larger[p]) return 0;
            large[p][at] = g, large[p][c->larger[p] + at] = total;
        } else if (size) {
            small_size[small] = size, which[small++] = b;
        }
        for (i64 i = 0; i < size; i++) *node++ = (int32_t)(ptr[g] + i);
        total += size;
    }
    i64 tiles = pack_tiles(small, small_size, order, begin, memory + 4 * n + 1);
    if (total < 2 || tiles > c->tiles) return 0;
    first_row[n] = *node_count = total;
    for (i64 i = 0; i <= c->tiles; i++) tile[i] = i < tiles ? begin[i] : small;
    for (i64 i = 0; i < small; i++) {
        i64 b = which[order[i]];
        graph[i] = position[b], row[i] = first_row[b];
    }
    return 1;
}
