/* The flexible layer on a CPU, whole graphs at a time, in cache.
 *
 *   Y = act(sum_{k<K} A^k X W_k + b)      reference.py defines it; float32
 *
 * Tiling: a tile is a run of whole graphs of at least TILE_ROWS rows. Its hops, its products with
 * W, bias and activation are done before the next tile is touched, so that nothing but X, W and Y
 * crosses the second-level cache. Edges are read where the packed dataset holds them: a batch is a
 * list of (first packed node, first row) and nothing is gathered.
 * Bytes that must move, a node: 4 h_in read + 4 h_out written + 8 an edge, whatever K is.
 *
 * Threads take parts (runs of graphs or of rows) from a counter. What the parts add up, they add in
 * buffers of their own, which are summed in order: results depend on shapes, never on timing.
 *
 * Plain C with GCC's and Clang's vector types. It is compiled once for each instruction set that
 * cpu.py may choose from; VL is the number of floats in one of its registers.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16
#define UP_TO_6(X, NV) X(1, NV) X(2, NV) X(3, NV) X(4, NV) X(5, NV) X(6, NV)
#define UP_TO_8(X, NV) UP_TO_6(X, NV) X(7, NV) X(8, NV)
#define UP_TO_12(X, NV) UP_TO_8(X, NV) X(9, NV) X(10, NV) X(11, NV) X(12, NV)
#define ROWS_1(X) UP_TO_12(X, 1) /* rows of a block of 1 to 4 vectors: */
#define ROWS_2(X) UP_TO_12(X, 2) /* their sums must fit in the registers */
#define ROWS_3(X) UP_TO_8(X, 3)
#define ROWS_4(X) UP_TO_6(X, 4)
#else
#if defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif
#define UP_TO_3(X, NV) X(1, NV) X(2, NV) X(3, NV)
#define UP_TO_6(X, NV) UP_TO_3(X, NV) X(4, NV) X(5, NV) X(6, NV)
#define ROWS_1(X) UP_TO_6(X, 1) X(7, 1) X(8, 1)
#define ROWS_2(X) UP_TO_6(X, 2)
#define ROWS_3(X) UP_TO_3(X, 3) X(4, 3)
#define ROWS_4(X) UP_TO_3(X, 4)
#endif

#ifndef TILE_ROWS
#define TILE_ROWS 64
#endif
#define MAX_THREADS 64
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef int64_t i64;
typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL)));
typedef uint32_t uvec __attribute__((vector_size(4 * VL)));

EXPORT int vector_lanes(void) { return VL; }
EXPORT int interface(void) { return 1; } /* native.py's INTERFACE; raise both with a signature */

INLINE i64 min64(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 padded(i64 width) { return (width + VL - 1) / VL * VL; }
INLINE vec zero(void) { return (vec){0}; }
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

/* The first n lanes; the others are 0, or stay as they are in memory. */
INLINE vec load_part(const float *p, i64 n) {
    if (n >= VL) return load(p);
#if VL == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vec v = zero();
    for (i64 i = 0; i < n; i++) v[i] = p[i];
    return v;
#endif
}
INLINE void store_part(float *p, vec v, i64 n) {
    if (n >= VL) {
        store(p, v);
        return;
    }
#if VL == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    for (i64 i = 0; i < n; i++) p[i] = v[i];
#endif
}
INLINE vec select_above(vec test, vec value) { /* value where test > 0, else 0; NaN passes */
    return (vec)((ivec)value & ~(ivec)(test <= 0.0f));
}

/* --- Memory and threads --------------------------------------------------------------------------------- */

static float *buffer(i64 floats) {
    return aligned_alloc(64, (size_t)(4 * floats + 63) / 64 * 64 + 64);
}

/* Padding is computed with, though never read out: it must not hold denormals, which are slow. */
static float *zeros(i64 floats) {
    float *p = buffer(floats);
    memset(p, 0, sizeof(float) * (size_t)floats);
    return p;
}

typedef void (*work_fn)(const void *args, i64 part);
typedef struct {
    work_fn work;
    const void *args;
    i64 parts;
    atomic_llong next;
} job;

/* Scratch memory of the thread: asking for it anew would have the system clear its pages. */
static _Thread_local float *scratch_memory;
static _Thread_local i64 scratch_size;

static float *scratch(i64 floats) {
    if (floats > scratch_size) {
        free(scratch_memory);
        scratch_memory = zeros(floats);
        scratch_size = floats;
    }
    return scratch_memory;
}

static void run_parts(job *j) {
    for (i64 part; (part = atomic_fetch_add(&j->next, 1)) < j->parts;) j->work(j->args, part);
}

static void *run_thread(void *j) {
    run_parts(j);
    free(scratch_memory);
    return NULL;
}

/* A thread takes a tenth of a millisecond to begin and to end: each should have several times that
 * to do, by a rough count of clock cycles. */
static int useful(int threads, i64 cycles) {
    i64 most = cycles / 1500000;
    return most < 2 ? 1 : (int)min64(threads, most);
}

static void parallel(work_fn work, const void *args, i64 parts, int threads) {
    job j = {work, args, parts, 0};
    pthread_t ids[MAX_THREADS];
    int started = 0, wanted = (int)min64(min64(threads, parts), MAX_THREADS) - 1;
    while (started < wanted && !pthread_create(&ids[started], NULL, run_thread, &j)) started++;
    run_parts(&j);
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
}

/* Square root without the C library's: two steps of Newton's method from a float's. */
static double inverse_sqrt(double x) {
    double r = 1.0 / (double)__builtin_sqrtf((float)x);
    for (int i = 0; i < 2; i++) r = r * (1.5 - 0.5 * x * r * r);
    return r;
}

/* --- Products -------------------------------------------------------------------------------- */

/* A product's operands. C[m, n] = init + sum over segments s and j < len of
 * A[m*row + s*segment + j*column] * B[(s*len + j) * ldb + n]; init is 0, or init[m*init_row + n].
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
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++)
            acc[r][v] = p->init ? load(p->init + (m + r) * p->init_row + n + v * VL) : zero();
    const float *b = p->b + n;
    const i64 row = p->row, third = 3 * row; /* few addresses: base + {0, 1, 2} rows */
    for (i64 s = 0; s < p->segments; s++) {
        const float *a = p->a + m * p->row + s * p->segment;
        for (i64 j = 0; j < p->len; j++, a += p->column, b += p->ldb) {
            vec w[4];
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) w[v] = load(b + v * VL);
#pragma GCC unroll 16
            for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
                for (int v = 0; v < NV; v++) acc[r][v] += w[v] * a[r / 3 * third + r % 3 * row];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
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
    i64 vectors = (width + VL - 1) / VL, strips = (vectors + 3) / 4;
    for (i64 strip = 0, first = 0; strip < strips; strip++) {
        i64 take = (vectors - first + strips - strip - 1) / (strips - strip), n = first * VL;
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

/* --- Graphs ---------------------------------------------------------------------------------- */

typedef struct {
    const i64 *ptr;        /* [B + 1] first row of each graph in the batch */
    const i64 *first;      /* [B] first node of each graph in the packed dataset */
    const i64 *rowptr;     /* [N + 1] over the packed nodes */
    const int32_t *row;    /* [E] within its graph; NULL where rows have many edges */
    const int32_t *col;    /* [E] likewise */
    const float *value;    /* [E], or NULL: all 1 */
    const i64 *rowptr_t;   /* the transpose likewise */
    const int32_t *row_t;
    const int32_t *col_t;
    const float *value_t;
    const i64 *part;       /* [parts + 1] first graph of each part */
    i64 count;             /* graphs */
} graphs;

/* Row by row: the sum stays in registers. */
INLINE void hop_rows(const int NV, i64 rows, const i64 *rowptr, const int32_t *col,
                     const float *value, const float *from, i64 from_ld, float *to, i64 ld) {
    for (i64 i = 0; i < rows; i++, to += ld) {
        vec acc[4], odd[4];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[v] = load(to + v * VL), odd[v] = zero();
        i64 e = rowptr[i], end = rowptr[i + 1];
        for (; e + 1 < end; e += 2) /* two sums: each edge need not wait for the one before */
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) {
                acc[v] += load(from + col[e] * from_ld + v * VL) * (value ? value[e] : 1.0f);
                odd[v] += load(from + col[e + 1] * from_ld + v * VL) * (value ? value[e + 1] : 1.0f);
            }
        if (e < end)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++)
                acc[v] += load(from + col[e] * from_ld + v * VL) * (value ? value[e] : 1.0f);
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(to + v * VL, acc[v] + odd[v]);
    }
}

/* Edge by edge: rows of two or three edges, as atoms have, end where no
 * processor can foresee, and a wrong guess costs more than an edge. */
INLINE void hop_edges(const int NV, i64 edges, const int32_t *row, const int32_t *col,
                      const float *value, const float *from, i64 from_ld, float *to, i64 ld) {
    for (i64 e = 0; e < edges; e++) {
        const float *source = from + col[e] * from_ld;
        float *target = to + row[e] * ld, weight = value ? value[e] : 1.0f;
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++)
            store(target + v * VL, load(target + v * VL) + load(source + v * VL) * weight);
    }
}

#define HOPS(NV)                                                                                   \
    static void hop_##NV(i64 rows, const i64 *rowptr, const int32_t *row, const int32_t *col,      \
                         const float *value, const float *from, i64 from_ld, float *to, i64 ld) {  \
        i64 e = rowptr[0], edges = rowptr[rows] - e;                                               \
        if (row)                                                                                   \
            hop_edges(NV, edges, row + e, col + e, value ? value + e : NULL, from, from_ld, to,    \
                      ld);                                                                         \
        else                                                                                       \
            hop_rows(NV, rows, rowptr, col, value, from, from_ld, to, ld);                         \
    }
HOPS(1) HOPS(2) HOPS(3) HOPS(4)

/* to = A from, or init + A from, for the graphs of a tile, at `width` whole vectors. Of `from` and
 * `init` lanes beyond the layer's width may be anything: they are never read out of `to`. */
static void hop(const graphs *g, int transposed, i64 b0, i64 b1, const float *from, i64 from_ld,
                float *to, i64 ld, i64 width, const float *init, i64 init_ld) {
    static void (*const hops[4])(i64, const i64 *, const int32_t *, const int32_t *, const float *,
                                 const float *, i64, float *, i64) = {hop_1, hop_2, hop_3, hop_4};
    const i64 *rowptr = transposed ? g->rowptr_t : g->rowptr;
    const int32_t *row = transposed ? g->row_t : g->row;
    const int32_t *col = transposed ? g->col_t : g->col;
    const float *value = transposed ? g->value_t : g->value;
    for (i64 i = 0; i < g->ptr[b1] - g->ptr[b0]; i++)
        for (i64 n = 0; n < width; n += VL)
            store(to + i * ld + n, init ? load(init + i * init_ld + n) : zero());
    for (i64 b = b0; b < b1; b++) {
        i64 start = g->ptr[b] - g->ptr[b0], rows = g->ptr[b + 1] - g->ptr[b];
        for (i64 n = 0; n < width; n += 4 * VL)
            hops[min64((width - n) / VL, 4) - 1](rows, rowptr + g->first[b], row, col, value,
                                                 from + start * from_ld + n, from_ld,
                                                 to + start * ld + n, ld);
    }
}

/* The next tile of a part: graphs b0 up to the returned one. */
static i64 tile_end(const graphs *g, i64 b0, i64 last) {
    i64 b1 = b0 + 1;
    while (b1 < last && g->ptr[b1] - g->ptr[b0] < TILE_ROWS) b1++;
    return b1;
}

/* Graphs are drawn from all over the dataset, and no hardware foresees where the next one lies: two
 * tiles ahead its row pointers are asked for, one tile ahead its edges. */
static void prefetch_rows(const graphs *g, i64 b0, i64 b1) {
    for (i64 b = b0; b < b1; b++)
        for (i64 i = 0; i <= min64(g->ptr[b + 1] - g->ptr[b], 64); i += 8)
            __builtin_prefetch(g->rowptr + g->first[b] + i);
}
static void prefetch_edges(const graphs *g, i64 b0, i64 b1) {
    for (i64 b = b0; b < b1; b++) {
        const i64 *rowptr = g->rowptr + g->first[b];
        i64 start = rowptr[0], end = min64(rowptr[g->ptr[b + 1] - g->ptr[b]], start + 256);
        for (i64 e = start; e < end + 15; e += 16) {
            __builtin_prefetch(g->col + e);
            if (g->row) __builtin_prefetch(g->row + e);
            if (g->value) __builtin_prefetch(g->value + e);
        }
    }
}

/* The graphs of a part, tile by tile. */
typedef struct {
    const graphs *g;
    i64 start, end, next, last;
} tiles;

static tiles first_tile(const graphs *g, i64 part) {
    i64 b0 = g->part[part], last = g->part[part + 1];
    if (b0 == last) return (tiles){g, b0, b0, b0, b0};
    i64 b1 = tile_end(g, b0, last), b2 = b1 < last ? tile_end(g, b1, last) : last;
    prefetch_rows(g, b0, b2);
    return (tiles){g, b0, b1, b2, last};
}
static void step(tiles *t) {
    i64 after = t->next < t->last ? tile_end(t->g, t->next, t->last) : t->last;
    t->start = t->end, t->end = t->next, t->next = after;
}
static void look_ahead(const tiles *t) {
    prefetch_edges(t->g, t->end, t->next);
    if (t->next < t->last) prefetch_rows(t->g, t->next, tile_end(t->g, t->next, t->last));
}

static i64 largest_tile(const graphs *g, i64 b0, i64 last) {
    i64 rows = 0;
    for (i64 b = b0; b < last;) {
        i64 end = tile_end(g, b, last), n = g->ptr[end] - g->ptr[b];
        if (n > rows) rows = n;
        b = end;
    }
    return rows;
}

/* --- The layer ------------------------------------------------------------------------------- */

typedef struct {
    i64 order, h_in, h_out, relu;
    const float *w;    /* as `pack_weight` lays it out */
    const float *bias; /* padded, zeros where there is none */
    const float *w_t;  /* as `pack_transposed` does */
    const float *x;    /* [n, h_in] by row of the batch, or by node of the dataset */
    i64 ldx, packed;   /* floats from row to row; whether x is the dataset's */
    float *y;          /* [n, h_out] */
    const float *grad; /* dY */
    float *dx, *dw, *db; /* dw, db: a buffer for each part */
} layer;

/* Clock cycles a row, roughly: half a cycle for a vector's multiply-add, twenty for a vector's hop.
 * Which rewrite of the same sum is cheaper depends on the widths alone. */
INLINE i64 vectors(i64 width) { return (width + VL - 1) / VL; }
static i64 forward_cycles(i64 order, i64 h_in, i64 h_out) {
    return h_in * vectors(order * h_out) / 2 + (order - 1) * 20 * vectors(h_out) +
           (h_in + h_out) / 4; /* the last: what memory takes */
}
static int propagates_first(i64 order, i64 h_in, i64 h_out) {
    i64 first = order * h_in * vectors(h_out) / 2 + (order - 1) * 20 * vectors(h_in);
    i64 horner = h_in * vectors(order * h_out) / 2 + (order - 1) * 22 * vectors(h_out);
    return order > 1 && first <= horner;
}
static int hops_grad(i64 order, i64 h_in, i64 h_out, int needs_dx) {
    i64 grad = (order - 1) * 23 * vectors(h_out) + h_in * vectors(order * h_out) / 2;
    i64 again = (order - 1) * 20 * vectors(h_in) + order * h_in * vectors(h_out) / 2;
    if (needs_dx) {
        grad += order * h_out * vectors(h_in) / 2;
        again += h_out * vectors(order * h_in) / 2 + (order - 1) * 22 * vectors(h_in);
    }
    return grad <= again;
}
/* Floats of a row that holds `order` blocks of `width` one after another, each readable and
 * writable in whole vectors. */
INLINE i64 row_of(i64 order, i64 width) { return padded((order - 1) * width + padded(width)); }

/* Rows of `width` floats into rows of `ld`, padded with zeros to whole vectors. */
static void widen(const float *from, i64 from_ld, i64 width, float *to, i64 ld, i64 rows) {
    for (i64 i = 0; i < rows; i++, from += from_ld, to += ld)
        for (i64 n = 0; n < width; n += VL) store(to + n, load_part(from + n, width - n));
}

/* W [order, h_in, h_out] as rows of whole vectors: (k, i) -> out where `stacked`, else
 * i -> (k, out), blocks one after another. */
static float *pack_weight(const float *w, i64 order, i64 h_in, i64 h_out, int stacked) {
    i64 ld = stacked ? padded(h_out) : row_of(order, h_out), rows = stacked ? order * h_in : h_in;
    float *packed = zeros(rows * ld);
    for (i64 k = 0; k < order; k++)
        for (i64 i = 0; i < h_in; i++)
            memcpy(packed + (stacked ? (k * h_in + i) * ld : i * ld + k * h_out),
                   w + (k * h_in + i) * h_out, sizeof(float) * (size_t)h_out);
    return packed;
}

/* W_k transposed: (k, o) -> in where `stacked`, else o -> (k, in). */
static float *pack_transposed(const float *w, i64 order, i64 h_in, i64 h_out, int stacked) {
    i64 ld = stacked ? padded(h_in) : row_of(order, h_in), rows = stacked ? order * h_out : h_out;
    float *packed = zeros(rows * ld);
    for (i64 k = 0; k < order; k++)
        for (i64 o = 0; o < h_out; o++) {
            float *row = packed + (stacked ? (k * h_out + o) * ld : o * ld + k * h_in);
            for (i64 i = 0; i < h_in; i++) row[i] = w[(k * h_in + i) * h_out + o];
        }
    return packed;
}

static float *pack_bias(const float *bias, i64 order, i64 h_out) {
    i64 ld = row_of(order, h_out);
    float *packed = zeros(ld); /* of Horner's terms, the first has the bias */
    if (bias) memcpy(packed, bias, sizeof(float) * (size_t)h_out);
    return packed;
}

INLINE const float *x_rows(const layer *l, const graphs *g, i64 b) {
    return l->x + (l->packed ? g->first[b] : g->ptr[b]) * l->ldx;
}

/* X of a tile, padded, in block 0 of z; then block k = A^k X. */
static void propagate(const layer *l, const graphs *g, i64 b0, i64 b1, float *z) {
    i64 in = padded(l->h_in), ld = l->order * in;
    for (i64 b = b0; b < b1; b++) {
        i64 end = l->packed ? b + 1 : b1;
        widen(x_rows(l, g, b), l->ldx, l->h_in, z + (g->ptr[b] - g->ptr[b0]) * ld, ld,
              g->ptr[end] - g->ptr[b]);
        b = end - 1;
    }
    for (i64 k = 1; k < l->order; k++)
        hop(g, 0, b0, b1, z + (k - 1) * in, ld, z + k * in, ld, in, NULL, 0);
}

/* Horner's rule over blocks u_k of `width` in rows of `ld`: u_0 + A(u_1 + A(u_2 + ...)), padded, in
 * one of the two halves of `pair`, which is returned. */
static const float *horner(const graphs *g, int transposed, i64 b0, i64 b1, i64 order,
                           const float *u, i64 ld, i64 width, float *pair) {
    i64 rows = g->ptr[b1] - g->ptr[b0], step = padded(width), now_ld = ld;
    const float *now = u + (order - 1) * width;
    float *next = pair, *other = pair + rows * step;
    for (i64 k = order - 2; k >= 0; k--, now_ld = step) {
        hop(g, transposed, b0, b1, now, now_ld, next, step, step, u + k * width, ld);
        float *swap = next;
        now = next, next = other, other = swap;
    }
    return now;
}

/* Floats of scratch that a tile of `rows` rows needs, either way and in either direction. */
static i64 scratch_floats(i64 order, i64 h_in, i64 h_out, i64 rows) {
    i64 widest = h_in > h_out ? h_in : h_out;
    return rows * (2 * row_of(order, widest) + order * padded(widest) + 2 * padded(widest)) + VL;
}

static void forward_tile(const layer *l, const graphs *g, i64 b0, i64 b1, float *z) {
    i64 row0 = g->ptr[b0], rows = g->ptr[b1] - row0;
    float *y = l->y + row0 * l->h_out;
    if (propagates_first(l->order, l->h_in, l->h_out)) { /* one product with [X, AX, ...] */
        i64 in = padded(l->h_in);
        propagate(l, g, b0, b1, z);
        product p = {z, l->order * in, 1, in, l->order, l->h_in, l->w, padded(l->h_out), l->bias,
                     0, y, l->h_out, l->relu, NULL};
        multiply(&p, rows, l->h_out);
        return;
    }
    /* X [W_0, W_1, ...], then hops at the width of the output. */
    int direct = l->order == 1;
    i64 ld = row_of(l->order, l->h_out), ldc = direct ? l->h_out : ld;
    for (i64 b = b0; b < b1; b++) { /* rows of a batch follow each other: one product */
        i64 end = l->packed ? b + 1 : b1, row = g->ptr[b] - row0;
        product p = {x_rows(l, g, b), l->ldx, 1, 0, 1, l->h_in, l->w, ld, l->bias, 0,
                     (direct ? y : z) + row * ldc, ldc, direct && l->relu, NULL};
        if (l->packed && end < g->count) p.ahead = x_rows(l, g, end);
        multiply(&p, g->ptr[end] - g->ptr[b], direct ? l->h_out : padded(l->order * l->h_out));
        b = end - 1;
    }
    if (direct) return;
    i64 step = padded(l->h_out);
    const float *out = horner(g, 0, b0, b1, l->order, z, ld, l->h_out, z + rows * ld);
    for (i64 i = 0; i < rows; i++)
        for (i64 n = 0; n < l->h_out; n += VL) {
            vec v = load(out + i * step + n);
            store_part(y + i * l->h_out + n, l->relu ? select_above(v, v) : v, l->h_out - n);
        }
}

/* dY of a tile, padded, in g (0 where the ReLU gave 0); its column sums go to db. */
static void take_grad(const layer *l, i64 row0, i64 rows, float *to, float *db) {
    i64 ld = padded(l->h_out);
    for (i64 n = 0; n < l->h_out; n += VL) {
        vec sum = load(db + n);
        for (i64 i = 0; i < rows; i++) {
            i64 at = (row0 + i) * l->h_out + n, lanes = l->h_out - n;
            vec v = load_part(l->grad + at, lanes);
            if (l->relu) v = select_above(load_part(l->y + at, lanes), v);
            sum += v;
            store(to + i * ld + n, v);
        }
        store(db + n, sum);
    }
}

/* Padded rows into block k of rows of `ld`; what spills over belongs to block k + 1. */
static void place(const float *from, i64 width, float *to, i64 ld, i64 k, i64 rows) {
    i64 step = padded(width);
    for (i64 i = 0; i < rows; i++)
        for (i64 n = 0; n < width; n += VL)
            store(to + i * ld + k * width + n, load(from + i * step + n));
}

/* G_k = (A^T)^k dY serves both dX = sum_k G_k W_k^T and dW_k = X^T G_k. */
static void backward_by_grad(const layer *l, const graphs *g, i64 b0, i64 b1, float *z, float *dw,
                             float *db) {
    i64 row0 = g->ptr[b0], rows = g->ptr[b1] - row0, out = padded(l->h_out);
    i64 ld = row_of(l->order, l->h_out);
    float *now = z + rows * ld, *next = now + rows * out;
    take_grad(l, row0, rows, now, db);
    place(now, l->h_out, z, ld, 0, rows);
    for (i64 k = 1; k < l->order; k++) {
        hop(g, 1, b0, b1, now, out, next, out, out, NULL, 0);
        place(next, l->h_out, z, ld, k, rows);
        float *swap = now;
        now = next, next = swap;
    }
    i64 width = l->order * l->h_out;
    for (i64 b = b0; b < b1; b++) {
        i64 end = l->packed ? b + 1 : b1;
        product p = {x_rows(l, g, b), 1, l->ldx, 0, 1, g->ptr[end] - g->ptr[b],
                     z + (g->ptr[b] - row0) * ld, ld, dw, width, dw, width, 0, NULL};
        multiply(&p, l->h_in, width);
        b = end - 1;
    }
    if (!l->dx) return;
    product p = {z, ld, 1, 0, 1, width, l->w_t, padded(l->h_in), NULL, 0,
                 l->dx + row0 * l->h_in, l->h_in, 0, NULL};
    multiply(&p, rows, l->h_in);
}

/* Z_k = A^k X again, dW_k = Z_k^T dY; dX by Horner's rule over dY [W_0^T, W_1^T, ...]. */
static void backward_by_input(const layer *l, const graphs *g, i64 b0, i64 b1, float *z, float *dw,
                              float *db) {
    i64 row0 = g->ptr[b0], rows = g->ptr[b1] - row0, in = padded(l->h_in), out = padded(l->h_out);
    float *grad = z + rows * l->order * in, *u = grad + rows * out;
    take_grad(l, row0, rows, grad, db);
    propagate(l, g, b0, b1, z);
    for (i64 k = 0; k < l->order; k++) {
        float *c = dw + k * l->h_in * l->h_out;
        product p = {z + k * in, 1, l->order * in, 0, 1, rows, grad, out, c, l->h_out, c, l->h_out,
                     0, NULL};
        multiply(&p, l->h_in, l->h_out);
    }
    if (!l->dx) return;
    i64 ld = row_of(l->order, l->h_in);
    product p = {grad, out, 1, 0, 1, l->h_out, l->w_t, ld, NULL, 0, u, ld, 0, NULL};
    multiply(&p, rows, padded(l->order * l->h_in));
    const float *sum = horner(g, 1, b0, b1, l->order, u, ld, l->h_in, z);
    for (i64 i = 0; i < rows; i++)
        for (i64 n = 0; n < l->h_in; n += VL)
            store_part(l->dx + (row0 + i) * l->h_in + n, load(sum + i * in + n), l->h_in - n);
}

typedef struct {
    const graphs *g;
    const layer *l;
    i64 by_grad, stride; /* floats of a part's dW and of its db */
    i64 stride_db;
} task;

static void forward_part(const void *args, i64 part) {
    const task *t = args;
    const layer *l = t->l;
    i64 rows = largest_tile(t->g, t->g->part[part], t->g->part[part + 1]);
    float *z = scratch(scratch_floats(l->order, l->h_in, l->h_out, rows));
    for (tiles i = first_tile(t->g, part); i.start < i.end; step(&i)) {
        look_ahead(&i);
        forward_tile(l, t->g, i.start, i.end, z);
    }
}

static void backward_part(const void *args, i64 part) {
    const task *t = args;
    const layer *l = t->l;
    i64 rows = largest_tile(t->g, t->g->part[part], t->g->part[part + 1]);
    float *z = scratch(scratch_floats(l->order, l->h_in, l->h_out, rows));
    float *dw = l->dw + part * t->stride, *db = l->db + part * t->stride_db;
    memset(dw, 0, sizeof(float) * (size_t)t->stride);
    memset(db, 0, sizeof(float) * (size_t)t->stride_db);
    for (tiles i = first_tile(t->g, part); i.start < i.end; step(&i)) {
        look_ahead(&i);
        (t->by_grad ? backward_by_grad : backward_by_input)(l, t->g, i.start, i.end, z, dw, db);
    }
}

EXPORT void flex_conv_forward(const graphs *g, i64 parts, int threads, const float *x, i64 ldx,
                              i64 packed, i64 order, i64 h_in, i64 h_out, i64 relu, const float *w,
                              const float *bias, float *y) {
    float *wp = pack_weight(w, order, h_in, h_out, propagates_first(order, h_in, h_out));
    float *bp = pack_bias(bias, order, h_out);
    layer l = {.order = order, .h_in = h_in, .h_out = h_out, .relu = relu, .w = wp, .bias = bp,
               .x = x, .ldx = ldx, .packed = packed, .y = y};
    task t = {.g = g, .l = &l};
    threads = useful(threads, g->ptr[g->count] * forward_cycles(order, h_in, h_out));
    parallel(forward_part, &t, parts, threads);
    free(wp);
    free(bp);
}

static void add_rows(float *sum, const float *parts, i64 count, i64 width) {
    memset(sum, 0, sizeof(float) * (size_t)width);
    for (i64 part = 0; part < count; part++)
        for (i64 n = 0; n < width; n += VL)
            store(sum + n, load(sum + n) + load(parts + part * width + n));
}

EXPORT void flex_conv_backward(const graphs *g, i64 parts, int threads, const float *x, i64 ldx,
                               i64 packed, i64 order, i64 h_in, i64 h_out, i64 relu,
                               const float *w, const float *y, const float *grad, float *dx,
                               float *dw, float *db) {
    int by_grad = hops_grad(order, h_in, h_out, dx != NULL);
    i64 size = padded(order * h_in * h_out), width = padded(h_out);
    float *w_t = dx ? pack_transposed(w, order, h_in, h_out, by_grad) : NULL;
    float *dws = buffer((parts + 1) * size), *dbs = buffer((parts + 1) * width);
    layer l = {.order = order, .h_in = h_in, .h_out = h_out, .relu = relu, .w_t = w_t, .x = x,
               .ldx = ldx, .packed = packed, .y = (float *)y, .grad = grad, .dx = dx, .dw = dws,
               .db = dbs};
    task t = {.g = g, .l = &l, .by_grad = by_grad, .stride = size, .stride_db = width};
    threads = useful(threads, 2 * g->ptr[g->count] * forward_cycles(order, h_in, h_out));
    parallel(backward_part, &t, parts, threads);
    float *sum = dws + parts * size;
    add_rows(sum, dws, parts, size);
    add_rows(dbs + parts * width, dbs, parts, width);
    for (i64 k = 0; k < order; k++)
        for (i64 i = 0; i < h_in; i++) /* summed as [i, k] by the gradient's hops, else as [k, i] */
            memcpy(dw + (k * h_in + i) * h_out,
                   sum + (by_grad ? i * order + k : k * h_in + i) * h_out,
                   sizeof(float) * (size_t)h_out);
    if (db) memcpy(db, dbs + parts * width, sizeof(float) * (size_t)h_out);
    free(w_t);
    free(dws);
    free(dbs);
}

/* --- Batch norm, ReLU and dropout in one ----------------------------------------------------- */

#define NORM_ROWS 1024 /* rows of a part */

typedef struct {
    i64 n, h;
    const float *y;           /* [n, h] */
    const float *scale, *shift; /* act = relu(scale * y + shift), padded */
    const float *mean, *rstd;
    uint64_t seed;
    uint32_t level;           /* an element falls where its random word is below this */
    float keep;               /* 1 / (1 - p) */
    float *out;               /* [n, h] */
    const float *grad;
    double *sums;             /* [parts, 2, padded(h)] */
    const float *centre;
} norm;

/* Two words of a counter, well mixed (the finaliser of splitmix64). */
INLINE uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The dropout factor of VL elements: keep or 0. A function of the seed and the place alone, so the
 * backward pass makes it again instead of reading it. */
INLINE vec kept(const norm *t, i64 row, i64 column) {
    if (!t->level) return zero() + t->keep;
    uint64_t key = mix(t->seed + (uint64_t)(row * padded(t->h) + column));
    uvec x;
    for (int i = 0; i < VL; i++) x[i] = 0x9e3779b9u * (uint32_t)(i + 1);
    x ^= (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x ^= (uint32_t)(key >> 32);
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    x ^= x >> 16;
    return (vec)((ivec)(zero() + t->keep) & ~(ivec)(x < t->level));
}

/* The rows of a part, a few at a time: they stay in the first-level cache while their columns are
 * taken in turn. */
#define FOR_BLOCKS                                                                                 \
    i64 last = min64(t->n, (part + 1) * NORM_ROWS);                                                \
    for (i64 begin = part * NORM_ROWS, end; end = min64(last, begin + 64), begin < last;           \
         begin = end)                                                                              \
        for (i64 c = 0, lanes = t->h; c < t->h; c += VL, lanes -= VL)

INLINE void add_to(double *sums, vec v) {
    for (int i = 0; i < VL; i++) sums[i] += v[i];
}

/* Column sums of y and of its squares: deviations from a block's own mean are squared in float, the
 * rest is done in double, so that a large mean does not drown a small variance. */
static void norm_sums_part(const void *args, i64 part) {
    const norm *t = args;
    i64 width = padded(t->h);
    double *sums = t->sums + part * 2 * width;
    FOR_BLOCKS {
        const float *y = t->y + begin * t->h + c;
        vec sum = zero(), squares = zero();
        for (i64 i = 0; i < end - begin; i++) sum += load_part(y + i * t->h, lanes);
        vec mean = sum / (float)(end - begin);
        for (i64 i = 0; i < end - begin; i++) {
            vec d = load_part(y + i * t->h, lanes) - mean;
            squares += d * d;
        }
        for (int k = 0; k < VL; k++) {
            double m = mean[k], n = (double)(end - begin), rest = sum[k] - m * n;
            sums[c + k] += sum[k];
            sums[width + c + k] += squares[k] + m * (m * n + 2 * rest);
        }
    }
}

static void norm_apply_part(const void *args, i64 part) {
    const norm *t = args;
    FOR_BLOCKS {
        vec scale = load(t->scale + c), shift = load(t->shift + c);
        for (i64 i = begin; i < end; i++) {
            vec a = load_part(t->y + i * t->h + c, lanes) * scale + shift;
            store_part(t->out + i * t->h + c, select_above(a, a) * kept(t, i, c), lanes);
        }
    }
}

/* out = dY behind dropout and ReLU; sums of it, and of it times the normalised y. */
static void norm_grad_part(const void *args, i64 part) {
    const norm *t = args;
    i64 width = padded(t->h);
    double *sums = t->sums + part * 2 * width;
    FOR_BLOCKS {
        vec scale = load(t->scale + c), shift = load(t->shift + c);
        vec mean = load(t->mean + c), rstd = load(t->rstd + c), sum = zero(), dot = zero();
        for (i64 i = begin; i < end; i++) {
            vec y = load_part(t->y + i * t->h + c, lanes);
            vec g = load_part(t->grad + i * t->h + c, lanes) * kept(t, i, c);
            g = select_above(y * scale + shift, g);
            sum += g;
            dot += g * ((y - mean) * rstd);
            store_part(t->out + i * t->h + c, g, lanes);
        }
        add_to(sums + c, sum);
        add_to(sums + width + c, dot);
    }
}

/* out = scale * (out - mean of dY - normalised y * mean of dY times normalised y). */
static void norm_finish_part(const void *args, i64 part) {
    const norm *t = args;
    FOR_BLOCKS {
        vec scale = load(t->scale + c), mean = load(t->mean + c);
        vec first = load(t->shift + c), second = load(t->centre + c) * load(t->rstd + c);
        for (i64 i = begin; i < end; i++) {
            vec y = load_part(t->y + i * t->h + c, lanes);
            vec g = load_part(t->out + i * t->h + c, lanes);
            store_part(t->out + i * t->h + c, scale * (g - first - (y - mean) * second), lanes);
        }
    }
}

static void add_parts(const double *sums, i64 parts, i64 width, i64 which, double *total) {
    memset(total, 0, sizeof(double) * (size_t)width);
    for (i64 part = 0; part < parts; part++)
        for (i64 c = 0; c < width; c++) total[c] += sums[(part * 2 + which) * width + c];
}

/* state: [4, padded(h)] floats kept for the backward pass: mean, 1/deviation, scale and shift. gamma
 * is NULL where there is no norm: then out = dropout(relu(y)). The running statistics move by
 * `momentum` towards the batch's, with the unbiased variance. */
EXPORT void norm_relu_dropout_forward(i64 n, i64 h, int threads, const float *y,
                                      const float *gamma, const float *beta, double eps,
                                      double momentum, float *running_mean, float *running_var,
                                      uint64_t seed, uint32_t level, float keep, float *state,
                                      float *out) {
    i64 width = padded(h), parts = (n + NORM_ROWS - 1) / NORM_ROWS;
    threads = useful(threads, n * vectors(h) * 15); /* of one of its passes */
    float *mean = state, *rstd = state + width, *scale = state + 2 * width;
    float *shift = state + 3 * width;
    double *sums = calloc((size_t)(2 * (parts + 1) * width), sizeof(double));
    double *first = sums + 2 * parts * width, *second = first + width, count = (double)n;
    norm t = {.n = n, .h = h, .y = y, .scale = scale, .shift = shift, .seed = seed, .level = level,
              .keep = keep, .out = out, .sums = sums};
    memset(state, 0, sizeof(float) * (size_t)(4 * width));
    if (gamma) parallel(norm_sums_part, &t, parts, threads);
    add_parts(sums, parts, width, 0, first);
    add_parts(sums, parts, width, 1, second);
    for (i64 c = 0; c < h; c++) {
        scale[c] = rstd[c] = 1.0f;
        if (!gamma) continue;
        double m = first[c] / count, v = second[c] / count - m * m;
        v = v > 0 ? v : v == v ? 0 : v; /* never below 0 by rounding; NaN stays NaN */
        mean[c] = (float)m;
        rstd[c] = (float)inverse_sqrt(v + eps);
        scale[c] = gamma[c] * rstd[c];
        shift[c] = beta[c] - scale[c] * mean[c];
        running_mean[c] += (float)(momentum * (m - running_mean[c]));
        running_var[c] += (float)(momentum * (v * count / (count - 1) - running_var[c]));
    }
    parallel(norm_apply_part, &t, parts, threads);
    free(sums);
}

EXPORT void norm_relu_dropout_backward(i64 n, i64 h, int threads, const float *y,
                                       const float *grad, int has_norm, uint64_t seed,
                                       uint32_t level, float keep, const float *state, float *dy,
                                       float *dgamma, float *dbeta) {
    i64 width = padded(h), parts = (n + NORM_ROWS - 1) / NORM_ROWS;
    threads = useful(threads, n * vectors(h) * 15); /* of one of its passes */
    double *sums = calloc((size_t)(2 * (parts + 1) * width), sizeof(double));
    float *means = buffer(2 * width);
    norm t = {.n = n, .h = h, .y = y, .mean = state, .rstd = state + width,
              .scale = state + 2 * width, .shift = state + 3 * width, .seed = seed,
              .level = level, .keep = keep, .out = dy, .grad = grad, .sums = sums};
    parallel(norm_grad_part, &t, parts, threads);
    if (has_norm) {
        double *total = sums + 2 * parts * width;
        for (int which = 0; which < 2; which++) {
            add_parts(sums, parts, width, which, total);
            for (i64 c = 0; c < width; c++) means[which * width + c] = (float)(total[c] / (double)n);
            for (i64 c = 0; c < h; c++) (which ? dgamma : dbeta)[c] = (float)total[c];
        }
        t.shift = means, t.centre = means + width;
        parallel(norm_finish_part, &t, parts, threads);
    }
    free(sums);
    free(means);
}

/* --- Readout and embedding ------------------------------------------------------------------- */

typedef struct {
    const i64 *ptr, *first;
    i64 graphs, order, h, nodes; /* nodes: of the dataset, the stride of the weights */
    const float *weight;         /* [order, nodes] */
    const float *x;              /* [n, h] */
    float *out;                  /* [B, order * h]; backward: dX [n, h] */
    const float *grad;
} readout;

#define READOUT_GRAPHS 64 /* graphs of a part */
#define AHEAD 8           /* graphs that are asked for before they are read */

static void ask_for_weights(const readout *t, i64 b) {
    if (b + AHEAD < t->graphs)
        for (i64 k = 0; k < t->order; k++)
            for (i64 i = 0; i < 2 * VL; i += VL)
                __builtin_prefetch(t->weight + k * t->nodes + t->first[b + AHEAD] + i);
}

/* [sum_i w_0i x_i, sum_i w_1i x_i, ...] of one graph; w_k begins `stride` after w_(k-1). */
static void pool_graph(const float *w, i64 stride, i64 order, const float *x, i64 rows, i64 h,
                       float *out) {
    for (i64 k = 0; k < order; k++, w += stride)
        for (i64 c = 0; c < h; c += VL) {
            vec even = zero(), odd = zero();
            i64 i = 0;
            for (; i + 1 < rows; i += 2) {
                even += load_part(x + i * h + c, h - c) * w[i];
                odd += load_part(x + (i + 1) * h + c, h - c) * w[i + 1];
            }
            if (i < rows) even += load_part(x + i * h + c, h - c) * w[i];
            store_part(out + k * h + c, even + odd, h - c);
        }
}

static void readout_part(const void *args, i64 part) {
    const readout *t = args;
    for (i64 b = part * READOUT_GRAPHS; b < min64(t->graphs, (part + 1) * READOUT_GRAPHS); b++) {
        ask_for_weights(t, b);
        pool_graph(t->weight + t->first[b], t->nodes, t->order, t->x + t->ptr[b] * t->h,
                   t->ptr[b + 1] - t->ptr[b], t->h, t->out + b * t->order * t->h);
    }
}

static void readout_grad_part(const void *args, i64 part) {
    const readout *t = args;
    for (i64 b = part * READOUT_GRAPHS; b < min64(t->graphs, (part + 1) * READOUT_GRAPHS); b++) {
        ask_for_weights(t, b);
        for (i64 i = t->ptr[b]; i < t->ptr[b + 1]; i++) {
            const float *w = t->weight + t->first[b] + (i - t->ptr[b]);
            for (i64 c = 0; c < t->h; c += VL) {
                vec sum = zero();
                for (i64 k = 0; k < t->order; k++)
                    sum += load_part(t->grad + (b * t->order + k) * t->h + c, t->h - c) *
                           w[k * t->nodes];
                store_part(t->out + i * t->h + c, sum, t->h - c);
            }
        }
    }
}

EXPORT void pool_nodes(const i64 *ptr, const i64 *first, i64 count, int threads, i64 order, i64 h,
                       i64 nodes, const float *weight, const float *x, float *out) {
    readout t = {ptr, first, count, order, h, nodes, weight, x, out, NULL};
    threads = useful(threads, ptr[count] * order * vectors(h) * 5);
    parallel(readout_part, &t, (count + READOUT_GRAPHS - 1) / READOUT_GRAPHS, threads);
}

EXPORT void pool_nodes_backward(const i64 *ptr, const i64 *first, i64 count, int threads, i64 order,
                                i64 h, i64 nodes, const float *weight, const float *grad,
                                float *dx) {
    readout t = {ptr, first, count, order, h, nodes, weight, NULL, dx, grad};
    threads = useful(threads, ptr[count] * order * vectors(h) * 5);
    parallel(readout_grad_part, &t, (count + READOUT_GRAPHS - 1) / READOUT_GRAPHS, threads);
}

/* Rows of a table. Written in whole vectors: what spills over is the next row's, written after. */
INLINE void embed_graph(const float *table, i64 width, const int32_t *code, i64 rows, float *to) {
    for (i64 i = 0; i < rows; i++)
        for (i64 n = 0; n < width; n += VL)
            store(to + i * width + n, load_part(table + code[i] * width + n, width - n));
}

/* --- A network in evaluation mode ------------------------------------------------------------- */

/* A layer with batch normalisation behind it, gamma NULL where there is none. */
typedef struct {
    i64 order, h_in, h_out, relu;
    const float *w, *bias, *gamma, *beta, *mean, *var;
    double eps;
} net_layer;

typedef struct {
    const graphs *g;
    i64 depth;
    layer *layers;
    const int32_t *code;  /* [N]: X = table[code], or NULL: the first layer's own x */
    const float *table;
    const float *weight;  /* the readout's, [order, nodes]; NULL: the last layer's y is the output */
    i64 order, nodes;
    float *out;           /* [B, order * h], or [n, h] */
} network;

static void network_part(const void *args, i64 part) {
    const network *t = args;
    const graphs *g = t->g;
    i64 rows = largest_tile(g, g->part[part], g->part[part + 1]), widest = 0, work = 0;
    for (i64 i = 0; i < t->depth; i++) {
        const layer *l = t->layers + i;
        i64 need = scratch_floats(l->order, l->h_in, l->h_out, rows);
        i64 wide = l->h_out < l->h_in && !l->packed ? l->h_in : l->h_out;
        if (need > work) work = need;
        if (wide > widest) widest = wide;
    }
    i64 size = rows * widest + VL;
    float *now = scratch(2 * size + work), *next = now + size, *z = next + size;
    for (tiles i = first_tile(g, part); i.start < i.end; step(&i)) {
        i64 b0 = i.start, b1 = i.end, row0 = g->ptr[b0], width = t->layers[0].h_in;
        look_ahead(&i);
        for (i64 b = i.end; b < i.next; b++) {
            if (t->code) __builtin_prefetch(t->code + g->first[b]);
            for (i64 k = 0; k < t->order; k++)
                __builtin_prefetch(t->weight + k * t->nodes + g->first[b]);
        }
        for (i64 b = b0; b < b1 && t->code; b++)
            embed_graph(t->table, width, t->code + g->first[b], g->ptr[b + 1] - g->ptr[b],
                        now + (g->ptr[b] - row0) * width);
        for (i64 k = 0; k < t->depth; k++) {
            layer l = t->layers[k];
            /* Between layers X and Y are a tile's: row `row0` of the batch is their first. */
            if (k || t->code) l.x = now - row0 * l.h_in, l.ldx = l.h_in, l.packed = 0;
            l.y = k == t->depth - 1 && !t->weight ? t->out : next - row0 * l.h_out;
            forward_tile(&l, g, b0, b1, z);
            float *swap = now;
            now = next, next = swap;
            width = l.h_out;
        }
        for (i64 b = b0; b < b1 && t->weight; b++)
            pool_graph(t->weight + g->first[b], t->nodes, t->order, now + (g->ptr[b] - row0) * width,
                       g->ptr[b + 1] - g->ptr[b], width, t->out + b * t->order * width);
    }
}

EXPORT void network_forward(const graphs *g, i64 parts, int threads, i64 depth,
                            const net_layer *given, const float *x, i64 ldx, i64 packed,
                            const int32_t *code, const float *weight, i64 order, i64 nodes,
                            float *out) {
    layer *layers = calloc((size_t)depth, sizeof(layer));
    for (i64 i = 0; i < depth; i++) {
        const net_layer *n = given + i;
        i64 size = n->order * n->h_in * n->h_out;
        float *w = buffer(size), *bias = zeros(n->h_out);
        memcpy(w, n->w, sizeof(float) * (size_t)size);
        if (n->bias) memcpy(bias, n->bias, sizeof(float) * (size_t)n->h_out);
        for (i64 c = 0; c < n->h_out && n->gamma; c++) { /* an affine map of the layer: fold it in */
            float scale = (float)(n->gamma[c] * inverse_sqrt((double)n->var[c] + n->eps));
            for (i64 j = c; j < size; j += n->h_out) w[j] *= scale;
            bias[c] = (bias[c] - n->mean[c]) * scale + n->beta[c];
        }
        int stacked = propagates_first(n->order, n->h_in, n->h_out);
        layers[i] = (layer){.order = n->order, .h_in = n->h_in, .h_out = n->h_out,
                            .relu = n->relu, .x = x, .ldx = ldx, .packed = packed && !i,
                            .w = pack_weight(w, n->order, n->h_in, n->h_out, stacked),
                            .bias = pack_bias(bias, n->order, n->h_out)};
        free(w);
        free(bias);
    }
    network t = {g, depth, layers, code, x, weight, order, nodes, out};
    i64 cycles = 0;
    for (i64 i = 0; i < depth; i++)
        cycles += forward_cycles(layers[i].order, layers[i].h_in, layers[i].h_out);
    threads = useful(threads, g->ptr[g->count] * cycles);
    parallel(network_part, &t, parts, threads);
    for (i64 i = 0; i < depth; i++) {
        free((void *)layers[i].w);
        free((void *)layers[i].bias);
    }
    free(layers);
}

/* x[i] = table[code of node i] for the rows of a batch; and the table's gradient. */
EXPORT void embed_nodes(const i64 *ptr, const i64 *first, i64 count, const int32_t *code, i64 h,
                        const float *table, float *x) {
    for (i64 b = 0; b < count; b++) {
        if (b + AHEAD < count) __builtin_prefetch(code + first[b + AHEAD]);
        for (i64 i = ptr[b]; i < ptr[b + 1]; i++)
            for (i64 n = 0; n < h; n += VL)
                store_part(x + i * h + n, load_part(table + code[first[b] + i - ptr[b]] * h + n, h - n),
                           h - n);
    }
}

EXPORT void embed_nodes_backward(const i64 *ptr, const i64 *first, i64 count, const int32_t *code,
                                 i64 h, const float *grad, float *table) {
    for (i64 b = 0; b < count; b++)
        for (i64 i = ptr[b]; i < ptr[b + 1]; i++) {
            float *row = table + (i64)code[first[b] + i - ptr[b]] * h;
            for (i64 c = 0; c < h; c += VL)
                store_part(row + c, load_part(row + c, h - c) + load_part(grad + i * h + c, h - c),
                           h - c);
        }
}

/* --- Scores of node-level classification ----------------------------------------------------- */

/* e^x for x <= 0, to two units in the last place; 0 below -87. NaN stays NaN. */
INLINE vec exponential(vec x) {
    ivec tiny = (ivec)(x < -87.0f);
    x = (vec)(((ivec)(zero() - 87.0f) & tiny) | ((ivec)x & ~tiny));
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to a whole number */
    vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665795e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return (vec)(((ivec)(p * (vec)power)) & ~tiny);
}

typedef struct {
    const i64 *ptr, *first; /* [B + 1], [B]: rows of a batch, nodes of the dataset */
    const i64 *label;       /* [N], or where `first` is NULL [n]; below 0: missing */
    const float *f;         /* [n, classes] */
    i64 graphs, classes;
    float *out;             /* [B] */
} class_task;

#define KEPT_CLASSES 32 /* classes whose outputs are read once */

INLINE vec one_class(const float *f, ivec at) {
#if VL == 16
    return (vec)_mm512_i32gather_ps((__m512i)at, f, 4);
#else
    vec v;
    for (int i = 0; i < VL; i++) v[i] = f[at[i]];
    return v;
#endif
}

/* |softmax(f) - onehot(y)|_F over the nodes of a graph, divided by the number of those with a label.
 * With e = exp(f - max), S and Q the sums of e and of e^2 over the wrong classes, a node's square is
 * (Q + S^2) / (S + e_y)^2. A register holds one class of VL nodes. */
static void class_part(const void *args, i64 part) {
    const class_task *t = args;
    for (i64 b = part * READOUT_GRAPHS; b < min64(t->graphs, (part + 1) * READOUT_GRAPHS); b++) {
        i64 end = t->ptr[b + 1];
        const i64 *y = t->label + (t->first ? t->first[b] - t->ptr[b] : 0);
        vec squares = zero(), counts = zero();
        for (i64 first = t->ptr[b]; first < end; first += VL) {
            const float *f = t->f + first * t->classes;
            ivec at, label;
            for (int i = 0; i < VL; i++) {
                i64 row = min64(first + i, end - 1);
                at[i] = (int32_t)((row - first) * t->classes);
                label[i] = first + i < end ? (int32_t)y[row] : -1;
            }
            vec most = zero(), wrong = zero(), right = zero(), wrong_squares = zero();
            vec kept[KEPT_CLASSES];
            for (i64 c = 0; c < t->classes; c++) {
                vec v = one_class(f + c, at);
                if (c < KEPT_CLASSES) kept[c] = v;
                ivec above = c ? ~(ivec)(v <= most) : ~(ivec){0}; /* a NaN is above all */
                most = (vec)(((ivec)v & above) | ((ivec)most & ~above));
            }
            for (i64 c = 0; c < t->classes; c++) {
                vec e = exponential((c < KEPT_CLASSES ? kept[c] : one_class(f + c, at)) - most);
                ivec is_right = label == (int32_t)c;
                vec other = (vec)((ivec)e & ~is_right);
                right += (vec)((ivec)e & is_right);
                wrong += other;
                wrong_squares += other * other;
            }
            vec total = wrong + right, square = (wrong_squares + wrong * wrong) / (total * total);
            ivec known = label >= 0;
            squares += (vec)((ivec)square & known);
            counts += (vec)((ivec)(zero() + 1.0f) & known);
        }
        double sum = 0, count = 0;
        for (int i = 0; i < VL; i++) sum += squares[i], count += counts[i];
        t->out[b] = (float)__builtin_sqrt(sum) / (count > 1 ? (float)count : 1.0f);
    }
}

EXPORT void class_scores(const i64 *ptr, const i64 *first, const i64 *label, i64 count,
                         int threads, i64 classes, const float *f, float *out) {
    class_task t = {ptr, first, label, f, count, classes, out};
    threads = useful(threads, ptr[count] * classes * 2);
    parallel(class_part, &t, (count + READOUT_GRAPHS - 1) / READOUT_GRAPHS, threads);
}
