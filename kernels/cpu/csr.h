/* The product of any sparse matrix with rows of floats: for graphs that are no part of a packed
 * dataset, or too large for a tile.
 *
 *   Y = A X, or Y += A X; A [rows, columns] in CSR
 *
 * A row of Y is summed in registers, up to four vectors of it at a time. Rows of X come from all over
 * memory; those longer than a cache line are asked for some entries ahead (for others that takes
 * longer than it saves). Bytes, an entry: 8 for its column and value and 4 h for a row of X, unless
 * that still is in cache; and 4 h a row of Y. */
#pragma once
#include "threads.h"

typedef struct {
    i64 rows, width, parts, add;
    const int32_t *rowptr, *col; /* [rows + 1], [E] */
    const float *value, *x;      /* [E], [columns, width] */
    float *y;                    /* [rows, width] */
} csr_product;

#define AHEAD 16  /* entries between asking for a row and reading it */
#define RUN 1024  /* entries that are summed apart, so that a row of a million keeps its digits */

INLINE vec part_of_row(const int NV, const float *row, int v, i64 tail) {
    return v == NV - 1 ? load_part(row + v * VL, tail) : load(row + v * VL);
}

/* Entry e times its row of X, of whose last vector there are `tail` lanes. */
INLINE void add_entry(const int NV, const csr_product *p, i64 e, i64 n, i64 ld, i64 last, i64 tail,
                      vec *sum) {
    if (4 * NV * VL > LINE && e < last) {
        const char *next = (const char *)(p->x + p->col[e + AHEAD] * ld + n);
        for (int byte = 0; byte < 4 * NV * VL; byte += LINE) __builtin_prefetch(next + byte);
    }
    const float *row = p->x + p->col[e] * ld + n;
    float value = p->value[e];
    UNROLL
    for (int v = 0; v < NV; v++) sum[v] += part_of_row(NV, row, v, tail) * value;
}

INLINE void csr_strip(const int NV, const csr_product *given, i64 start, i64 end, i64 n, i64 tail) {
    const csr_product p = *given; /* what is stored could else change it, as far as the compiler knows */
    i64 ld = p.width, last = p.rowptr[p.rows] - AHEAD;
    for (i64 i = start, e = p.rowptr[start]; i < end; i++) {
        i64 add = p.add;
        do {
            vec even[4], odd[4];
            i64 stop = min64(p.rowptr[i + 1], e + RUN);
            UNROLL
            for (int v = 0; v < NV; v++) even[v] = odd[v] = zero();
            for (; e + 1 < stop; e += 2) {
                add_entry(NV, &p, e, n, ld, last, tail, even);
                add_entry(NV, &p, e + 1, n, ld, last, tail, odd);
            }
            if (e < stop) add_entry(NV, &p, e++, n, ld, last, tail, even);
            float *y = p.y + i * ld + n;
            UNROLL
            for (int v = 0; v < NV; v++) {
                vec sum = even[v] + odd[v];
                if (add) sum += part_of_row(NV, y, v, tail);
                store_part(y + v * VL, sum, v == NV - 1 ? tail : VL);
            }
            add = 1;
        } while (e < p.rowptr[i + 1]);
    }
}

#define CSR_STRIPS(NV)                                                                             \
    static void csr_strip_##NV(const csr_product *p, i64 start, i64 end, i64 n, i64 tail) {        \
        if (tail == VL) csr_strip(NV, p, start, end, n, VL);                                       \
        else csr_strip(NV, p, start, end, n, tail);                                                \
    }
CSR_STRIPS(1) CSR_STRIPS(2) CSR_STRIPS(3) CSR_STRIPS(4)

/* The first row of a part: parts have as many rows and entries together. */
static i64 csr_part_start(const csr_product *p, i64 part) {
    i64 low = 0, high = p->rows, before = (p->rowptr[p->rows] + p->rows) / p->parts * part;
    if (part == p->parts) return p->rows;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (p->rowptr[middle] + middle < before) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void csr_part(const void *args, i64 part) {
    static void (*const strips[4])(const csr_product *, i64, i64, i64, i64) = {
        csr_strip_1, csr_strip_2, csr_strip_3, csr_strip_4};
    const csr_product *p = args;
    i64 start = csr_part_start(p, part), end = csr_part_start(p, part + 1);
    for (i64 n = 0; n < p->width; n += 4 * VL) {
        i64 take = min64(vectors(p->width - n), 4);
        strips[take - 1](p, start, end, n, min64(p->width - n - (take - 1) * VL, VL));
    }
}
