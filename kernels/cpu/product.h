/* Products of small matrices, blocks of whose results stay in the registers. */
#pragma once
#include <string.h>

#include "vectors.h"

/* A product's operands. C[m, n] = init + sum over segments s and j < len of
 * A[m*row + s*segment + j*column] * B[(s*len + j) * ldb + n]; init is 0, or init[m*init_row + n]. It is
 * added last: where it is the sum of other tiles, the rounding of one does not depend on their number.
 * A's elements are broadcast, so it may lie transposed (row 1); B's rows are whole vectors. */
typedef struct {
    const float *a;
    i64 row, column, segment, segments, len;
    const float *b;
    i64 ldb;
    const float *init;
    i64 init_row;
    float *c;
    i64 ldc;
    i64 relu;
    const float *ahead; /* what to ask memory for meanwhile: as many rows as A has, or NULL */
} product;

INLINE void block(const int MR, const int NV, const product *p, i64 m, i64 n, i64 tail) {
    vec acc[16][4];
    UNROLL
    for (int r = 0; r < MR; r++)
        UNROLL
        for (int v = 0; v < NV; v++) acc[r][v] = zero();
    const float *b = p->b + n;
    const i64 row = p->row, third = 3 * row; /* few addresses: base + {0, 1, 2} rows */
    for (i64 s = 0; s < p->segments; s++) {
        const float *a = p->a + m * p->row + s * p->segment;
        for (i64 j = 0; j < p->len; j++, a += p->column, b += p->ldb) {
            vec w[4];
            UNROLL
            for (int v = 0; v < NV; v++) w[v] = load(b + v * VL);
            UNROLL
            for (int r = 0; r < MR; r++)
                UNROLL
                for (int v = 0; v < NV; v++) acc[r][v] += w[v] * a[r / 3 * third + r % 3 * row];
        }
    }
    if (p->init)
        UNROLL
        for (int r = 0; r < MR; r++)
            UNROLL
            for (int v = 0; v < NV; v++) /* beyond a row may be what another thread writes */
                acc[r][v] += load_part(p->init + (m + r) * p->init_row + n + v * VL,
                                       v == NV - 1 ? tail : VL);
    UNROLL
    for (int r = 0; r < MR; r++)
        UNROLL
        for (int v = 0; v < NV; v++) {
            vec out = p->relu ? select_above(acc[r][v], acc[r][v]) : acc[r][v];
            store_part(p->c + (m + r) * p->ldc + n + v * VL, out, v == NV - 1 ? tail : VL);
        }
}

#define SPECIALISE(MR, NV)                                                                         \
    static void block_##MR##_##NV(const product *p, i64 m, i64 n, i64 tail) {                      \
        block(MR, NV, p, m, n, tail);                                                              \
    }
ROWS_1(SPECIALISE) ROWS_2(SPECIALISE) ROWS_3(SPECIALISE) ROWS_4(SPECIALISE)

typedef void (*block_fn)(const product *, i64, i64, i64);
#define NAME(MR, NV) block_##MR##_##NV,
static const block_fn NARROW[] = {ROWS_1(NAME)}, PAIR[] = {ROWS_2(NAME)};
static const block_fn TRIPLE[] = {ROWS_3(NAME)}, WIDE[] = {ROWS_4(NAME)};
static const struct {
    const block_fn *of; /* by rows - 1 */
    i64 most;
} BLOCK[4] = {
    {NARROW, sizeof NARROW / sizeof *NARROW},
    {PAIR, sizeof PAIR / sizeof *PAIR},
    {TRIPLE, sizeof TRIPLE / sizeof *TRIPLE},
    {WIDE, sizeof WIDE / sizeof *WIDE},
};

/* `rows` rows and `width` columns of a product, in blocks of nearly equal size: a small block left
 * over would wait for its few sums. */
static void multiply(const product *p, i64 rows, i64 width) {
    i64 all = vectors(width), strips = (all + 3) / 4;
    for (i64 strip = 0, first = 0; strip < strips; strip++) {
        i64 take = (all - first + strips - strip - 1) / (strips - strip), n = first * VL;
        i64 tail = min64(width - n - (take - 1) * VL, VL), most = BLOCK[take - 1].most;
        for (i64 m = 0, blocks = (rows + most - 1) / most; blocks; blocks--) {
            i64 height = (rows - m + blocks - 1) / blocks;
            if (p->ahead && !strip)
                for (i64 i = m * p->row; i < (m + height) * p->row; i += 16)
                    __builtin_prefetch(p->ahead + i, 0, 2);
            BLOCK[take - 1].of[height - 1](p, m, n, tail);
            m += height;
        }
        first += take;
    }
}

/* Rows of `width` floats into rows of `ld`, padded with zeros to whole vectors. */
static void widen(const float *from, i64 from_ld, i64 width, float *to, i64 ld, i64 rows) {
    for (i64 i = 0; i < rows; i++, from += from_ld, to += ld)
        for (i64 n = 0; n < width; n += VL) store(to + n, load_part(from + n, width - n));
}

/* A matrix whose numbers lie `row` and `column` floats apart into rows of `ld`. */
static void lay_out(const float *from, i64 row, i64 column, i64 rows, i64 width, float *to, i64 ld) {
    for (i64 i = 0; i < rows; i++, from += row, to += ld)
        if (column == 1) memcpy(to, from, sizeof(float) * (size_t)width);
        else
            for (i64 n = 0; n < width; n++) to[n] = from[n * column];
}

/* What parts have added up, each in a row of its own, in their order: in the row behind the last. */
static void add_rows(float *rows, i64 count, i64 width) {
    for (i64 part = 0; part < count; part++)
        for (i64 n = 0; n < width; n += VL)
            store(rows + count * width + n,
                  load(rows + count * width + n) + load(rows + part * width + n));
}
