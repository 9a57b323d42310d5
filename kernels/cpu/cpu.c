/* The flexible layer and networks of it on a CPU, whole graphs at a time, in cache.
 *
 *   Y = act(sum_{k<K} A^k X W_k + b)      reference.py defines it; float32
 *
 * A tile is a run of whole graphs of at least TILE_ROWS rows. Its hops, its products with W, bias and
 * activation are done before the next tile is touched, so that nothing but X, W and Y crosses the
 * second-level cache. Edges are read where the packed dataset holds them: a batch is a list of (first
 * packed node, first row) and nothing is gathered. With A = S A' S, S diagonal, a hop adds rows that
 * carry their S already: edges have no values to read.
 * Bytes that must move, a node: 4 h_in read + 4 h_out written + 4 for S + 8 for four neighbours, or 4
 * an edge where nodes have many; whatever K is.
 *
 * A first layer on a table of a few kinds of nodes does its products for each kind, of which the nodes
 * copy rows that lie in cache: 4 + 4 h_out a node then, without 4 h_in.
 *
 * A network keeps of each layer Y alone, before its norm: norm, activation and dropout are done as the
 * next layer reads it, both ways.
 *
 * Threads take parts (runs of graphs) from a counter. What the parts add up, they add in buffers of
 * their own, which are summed in order: results depend on shapes, never on timing.
 *
 * Plain C with GCC's and Clang's vector types, in headers from vectors.h up to network.h. It is
 * compiled once for each instruction set that native/loading.py may choose from.
 */
#include "csr.h"
#include "dense.h"
#include "edges.h"
#include "network.h"
#include "room.h"
#include "rows.h"

EXPORT int vector_lanes(void) { return VL; }
/* Whether this is AVX-512 on a processor that is not Intel's, where MKL is slow: native/dense.py. */
EXPORT int outruns_mkl(void) {
#if VL == 16
    return !__builtin_cpu_is("intel");
#else
    return 0;
#endif
}
EXPORT int interface(void) { return 15; } /* loading.py's INTERFACE; raise both with a signature */

/* GOMP_parallel, see threads.h; or NULL. */
EXPORT void use_openmp(void *entry) { *(void **)&openmp = entry; }

/* --- Edges -------------------------------------------------------------------------------------- */

EXPORT int sort_edges(edge_list *l) { return sort_edges_of(l); }
EXPORT void group_edges(i64 nodes, const i64 *rowptr, const int32_t *col, const i64 *group,
                        int16_t *listed) {
    list_groups(nodes, rowptr, col, group, listed);
}
EXPORT void pool_weights(const graphs *g, i64 parts, int threads, i64 order, i64 nodes, i64 mean,
                         float *p) {
    pool_task t = {g, order, nodes, mean, p};
    parallel(pool_part, &t, parts, useful(threads, order * nodes * (4 + 2 * g->degree)));
}

/* --- Sparse matrices --------------------------------------------------------------------------- */

EXPORT void csr_matmul(i64 rows, i64 width, i64 add, int threads, const int32_t *rowptr,
                       const int32_t *col, const float *value, const float *x, float *y) {
    csr_product p = {rows, width, 4 * threads, add, rowptr, col, value, x, y};
    i64 cycles = (rows + rowptr[rows]) * (4 + vectors(width));
    threads = useful(threads, cycles);
    if (threads == 1) p.parts = 1;
    parallel(csr_part, &p, p.parts, threads);
}

/* --- Products with a small matrix -------------------------------------------------------------- */

EXPORT void matmul(i64 rows, i64 len, i64 width, int threads, const float *x, const float *w, i64 w_row,
                   i64 w_column, const float *init, i64 init_row, float *y) {
    float *packed = zeros(len * padded(width));
    lay_out(w, w_row, w_column, len, width, packed, padded(width));
    dense_product d = {rows, len, width, 4 * threads, x, packed, init, init_row, y};
    threads = useful(threads, rows * len * vectors(width) / 2);
    if (threads == 1) d.parts = 1;
    parallel(dense_part, &d, d.parts, threads);
    free(packed);
}
EXPORT void matmul_columns(i64 rows, i64 len, i64 width, i64 parts, int threads, const float *x,
                           const float *y, float *out) {
    i64 size = padded(len * width);
    columns_product c = {rows, len, width, parts, x, y, zeros((parts + 1) * size)};
    parallel(columns_part, &c, parts, useful(threads, rows * len * vectors(width) / 2));
    add_rows(c.sums, parts, size);
    memcpy(out, c.sums + parts * size, sizeof(float) * (size_t)(len * width));
    free(c.sums);
}

/* --- One layer --------------------------------------------------------------------------------- */

typedef struct {
    const graphs *g;
    const layer *l;
    const gradients *sums;
} task;

static float *enter_part(const task *t, i64 part, i64 *own) {
    i64 rows = largest_tile(t->g, part);
    *own = tile_floats(rows);
    return scratch(*own + scratch_floats(t->l, t->g, rows));
}

static void layer_part(const void *args, i64 part) {
    const task *p = args;
    i64 own;
    float *memory = enter_part(p, part, &own);
    for (walk w = first_tile(p->g, sides_of(p->l), part); w.start < w.end; next_tile(&w)) {
        tile t = enter_tile(&w, memory);
        if (p->sums) backward_tile(p->l, &t, p->sums, part, memory + own);
        else forward_tile(p->l, &t, memory + own);
    }
}

EXPORT void flex_conv_forward(const graphs *g, i64 parts, int threads, const float *x, i64 ldx,
                              i64 packed, i64 order, i64 h_in, i64 h_out, i64 relu, const float *w,
                              const float *bias, float *y) {
    layer l = {.order = order, .h_in = h_in, .h_out = h_out, .relu = relu, .x = x, .ldx = ldx,
               .packed = packed, .y = y};
    pack_layer(&l, g, w, bias);
    task t = {g, &l, NULL};
    i64 cycles = g->ptr[g->count] * forward_cycles(order, h_in, h_out, hop_cycles(g->degree));
    parallel(layer_part, &t, parts, useful(threads, cycles));
    free_layer(&l);
}

EXPORT void flex_conv_backward(const graphs *g, i64 parts, int threads, const float *x, i64 ldx,
                               i64 packed, i64 order, i64 h_in, i64 h_out, i64 relu,
                               const float *w, const float *y, const float *grad, float *dx,
                               float *dw, float *db, float *dvalue) {
    layer l = {.order = order, .h_in = h_in, .h_out = h_out, .relu = relu, .x = x, .ldx = ldx,
               .packed = packed, .y = (float *)y, .grad = grad, .dx = dx, .lddx = h_in,
               .dvalue = dvalue};
    pack_layer_back(&l, g, w, dx != NULL);
    gradients sums = make_gradients(&l, parts);
    task t = {g, &l, &sums};
    i64 cycles = 2 * g->ptr[g->count] * forward_cycles(order, h_in, h_out, hop_cycles(g->degree));
    parallel(layer_part, &t, parts, useful(threads, cycles));
    finish_gradients(&l, &sums, dw, db);
    free_layer(&l);
}

/* What a first layer on constant features is fastest from: 0, the features; 1, [X, AX, ...] of the whole
 * dataset, for one product that reads `order` times as much, three cycles for eight bytes; 2, the kinds
 * of nodes, where they are `few`. */
EXPORT int first_source(i64 degree, i64 order, i64 h_in, i64 h_out, i64 few) {
    i64 hop = hop_cycles(degree), kinds = kinds_cycles(order, h_out, hop);
    i64 features = forward_cycles(order, h_in, h_out, hop) + h_in * 3 / 2;
    i64 cached = order * h_in * vectors(h_out) / 2 + order * h_in * 3 / 2;
    if (few && kinds <= cached && kinds <= first_cycles(order, h_in, h_out, hop)) return 2;
    return cached <= features;
}

/* --- Networks ----------------------------------------------------------------------------------- */

EXPORT void network_evaluate(const graphs *g, i64 parts, int threads, const network *n) {
    evaluate(g, parts, threads, n);
}
EXPORT void network_forward(const graphs *g, i64 parts, int threads, const network *n) {
    train_forward(g, parts, threads, n);
}
EXPORT void network_backward(const graphs *g, i64 parts, int threads, const network *n) {
    train_backward(g, parts, threads, n);
}

/* --- Kinds of nodes ------------------------------------------------------------------------------ */

EXPORT int few_rows(i64 n, i64 bytes, i64 ld, const char *x, int32_t *code, i64 *first) {
    return (int)find_distinct(n, bytes, ld, x, code, first);
}

/* --- Batches for a GPU --------------------------------------------------------------------------- */

EXPORT int fill_room(const capacity *c, const i64 *position, const i64 *ptr, const uint8_t *fits,
                     i64 *table, i64 *memory) {
    return fill_table(c, position, ptr, fits, table, memory);
}

/* --- Scores of node-level classification -------------------------------------------------------- */

typedef struct {
    const i64 *ptr, *label; /* [B + 1], [n] */
    const float *f;         /* [n, classes] */
    i64 graphs, classes;
    float *out;             /* [B] */
} class_task;

#define PART_GRAPHS 64 /* graphs of a part */

static void class_part(const void *args, i64 part) {
    const class_task *t = args;
    for (i64 b = part * PART_GRAPHS; b < min64(t->graphs, (part + 1) * PART_GRAPHS); b++)
        t->out[b] = class_score(t->f + t->ptr[b] * t->classes, t->classes,
                                t->label + t->ptr[b], t->ptr[b + 1] - t->ptr[b]);
}

EXPORT void class_scores(const i64 *ptr, const i64 *label, i64 count, int threads, i64 classes,
                         const float *f, float *out) {
    class_task t = {ptr, label, f, count, classes, out};
    threads = useful(threads, ptr[count] * classes * 2);
    parallel(class_part, &t, (count + PART_GRAPHS - 1) / PART_GRAPHS, threads);
}

/* --- Scores of graphs with many targets ---------------------------------------------------------- */

typedef struct {
    const float *f, *y; /* [B, columns] */
    i64 graphs, columns;
    int sigmoid, labels;
    float *out; /* [B] */
} target_task;

static void target_part(const void *args, i64 part) {
    const target_task *t = args;
    for (i64 b = part * PART_GRAPHS; b < min64(t->graphs, (part + 1) * PART_GRAPHS); b++)
        t->out[b] = target_score(t->f + b * t->columns, t->y + b * t->columns, t->columns, t->sigmoid,
                                 t->labels);
}

EXPORT void target_scores(i64 count, int threads, i64 columns, i64 sigmoid, i64 labels,
                          const float *f, const float *y, float *out) {
    target_task t = {f, y, count, columns, (int)sigmoid, (int)labels, out};
    threads = useful(threads, count * columns);
    parallel(target_part, &t, (count + PART_GRAPHS - 1) / PART_GRAPHS, threads);
}
