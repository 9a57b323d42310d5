/* One tile of the flexible layer, Y = act(sum_{k<K} A^k X W_k + b), and of its gradients. */
#pragma once
#include "graphs.h"
#include "norm.h"
#include "product.h"

typedef struct {
    i64 order, h_in, h_out, relu;
    const float *w;    /* as `pack_weight` lays it out */
    const float *bias; /* padded, zeros where there is none */
    const float *w_t;  /* as `pack_transposed` does */
    i64 back, by_grad; /* whether it is a backward pass, and which of the two ways */
    const float *x;    /* [n, h_in] by row of the batch, or by node of the dataset */
    i64 ldx, packed;   /* floats from row to row; whether x is the dataset's */
    const int32_t *code, *kind; /* [N], [codes]; or NULL: node i's row of x is then kind[code[i]], of */
    i64 kinds;         /* `kinds` rows (kinds.h): X going back, X [W_0, ...] + [b, 0, ...] forward */
    float *y;          /* [n, h_out] */
    const float *grad; /* dY, [n, h_out] */
    const norm *norm; /* or NULL: dY is then of what a norm made of y */
    float *dx;         /* [n, h_in] in rows of lddx, or NULL */
    i64 lddx;
    float *dvalue;     /* gradient of the edges' weights, [E] by target, or NULL */
} layer;

/* Clock cycles a row, roughly: half a cycle for a vector's multiply-add. Which rewrite of the same sum
 * is cheaper depends on the widths and on the dataset's edges alone. */
static i64 horner_cycles(i64 order, i64 h_in, i64 h_out, i64 hop) {
    return h_in * vectors(order * h_out) / 2 + (order - 1) * hop * vectors(h_out);
}
static i64 first_cycles(i64 order, i64 h_in, i64 h_out, i64 hop) {
    return order * h_in * vectors(h_out) / 2 + (order - 1) * (hop + 2) * vectors(h_in);
}
static i64 forward_cycles(i64 order, i64 h_in, i64 h_out, i64 hop) {
    return horner_cycles(order, h_in, h_out, hop) + (h_in + h_out) / 4; /* the last: what memory takes */
}
static int propagates_first(i64 order, i64 h_in, i64 h_out, i64 hop) {
    return order > 1 && first_cycles(order, h_in, h_out, hop) <= horner_cycles(order, h_in, h_out, hop);
}
static i64 by_grad_cycles(i64 order, i64 h_in, i64 h_out, i64 hop, int needs_dx) {
    i64 dx = order * h_out * vectors(h_in) / 2;
    return (order - 1) * (hop + 2) * vectors(h_out) + h_in * vectors(order * h_out) / 2 + needs_dx * dx;
}
static i64 by_input_cycles(i64 order, i64 h_in, i64 h_out, i64 hop, int needs_dx) {
    i64 dx = h_out * vectors(order * h_in) / 2 + (order - 1) * hop * vectors(h_in);
    return first_cycles(order, h_in, h_out, hop) + needs_dx * dx;
}

/* --- Operands as the products want them ------------------------------------------------------- */

/* Floats of a row that holds `order` blocks of `width` one after another, each readable and
 * writable in whole vectors. */
INLINE i64 row_of(i64 order, i64 width) { return padded((order - 1) * width + padded(width)); }

/* W [order, h_in, h_out] as rows of whole vectors: (k, i) -> out where `stacked`, else
 * i -> (k, out), blocks one after another. */
static float *pack_weight(const float *w, i64 order, i64 h_in, i64 h_out, int stacked) {
    i64 ld = stacked ? padded(h_out) : row_of(order, h_out), rows = stacked ? order * h_in : h_in;
    float *packed = zeros(rows * ld);
    for (i64 k = 0; k < order; k++)
        lay_out(w + k * h_in * h_out, h_out, 1, h_in, h_out,
                packed + k * (stacked ? h_in * ld : h_out), ld);
    return packed;
}

/* W_k transposed: (k, o) -> in where `stacked`, else o -> (k, in). */
static float *pack_transposed(const float *w, i64 order, i64 h_in, i64 h_out, int stacked) {
    i64 ld = stacked ? padded(h_in) : row_of(order, h_in), rows = stacked ? order * h_out : h_out;
    float *packed = zeros(rows * ld);
    for (i64 k = 0; k < order; k++)
        lay_out(w + k * h_in * h_out, 1, h_out, h_out, h_in,
                packed + k * (stacked ? h_out * ld : h_in), ld);
    return packed;
}

static float *pack_bias(const float *bias, i64 order, i64 h_out) {
    float *packed = zeros(row_of(order, h_out)); /* of Horner's terms, the first has the bias */
    if (bias) memcpy(packed, bias, sizeof(float) * (size_t)h_out);
    return packed;
}

INLINE const float *x_rows(const layer *l, const graphs *g, i64 b) {
    return l->x + (l->packed ? g->first[b] : g->ptr[b]) * l->ldx;
}
/* Rows of a batch follow each other, those of a dataset do so within a graph: the end of a run. */
INLINE i64 run_end(const layer *l, const tile *t, i64 b) { return l->packed ? b + 1 : t->b1; }

/* --- Sums of hops ----------------------------------------------------------------------------- */

/* Floats of `order` blocks of a row, for a tile of so many rows, and a row more that hops may write
 * to. And of all scratch: such blocks at the width at which the layer hops, and two to hop between;
 * the way back that keeps two such sums has both, and dY. */
static i64 blocks_floats(i64 order, i64 width, i64 rows) {
    return (rows + 1) * order * padded(width) + VL;
}
static i64 scratch_floats(const layer *l, const graphs *g, i64 rows) {
    i64 h_in = l->h_in, h_out = l->h_out;
    if (l->back && !l->by_grad)
        return 2 * blocks_floats(l->order, h_in, rows) + 2 * blocks_floats(1, h_in, rows) +
               blocks_floats(1, h_out, rows);
    int on_x = !l->back && !l->kind && propagates_first(l->order, h_in, h_out, hop_cycles(g->degree));
    i64 width = on_x ? h_in : h_out;
    return blocks_floats(l->order, width, rows) + 2 * blocks_floats(1, width, rows);
}

/* X of a tile, padded, in block 0 of z; then block k = A^k X. `pair` is room for two blocks. */
static void propagate(const layer *l, const tile *t, float *z, float *pair) {
    i64 in = padded(l->h_in), ld = l->order * in;
    for (i64 b = t->b0, end; b < t->b1; b = end) {
        end = run_end(l, t, b);
        widen(x_rows(l, t->g, b), l->ldx, l->h_in, z + (t->g->ptr[b] - t->row0) * ld, ld,
              t->g->ptr[end] - t->g->ptr[b]);
    }
    float *now = pair, *next = pair + blocks_floats(1, l->h_in, t->rows);
    if (l->order > 1) scale_rows(t, z, ld, now, in);
    for (i64 k = 1; k < l->order; k++) {
        hop_rows h = {.from = now, .width = in, .to = z + k * in, .to_ld = ld, .tail = VL,
                      .next = k + 1 < l->order ? next : NULL};
        hop(t, 0, &h);
        float *swap = now;
        now = next, next = swap;
    }
}

/* Horner's rule over blocks u_k of `width` in rows of `ld`: u_0 + A(u_1 + A(u_2 + ...)), at least
 * two of them, written to `to` unless that is NULL; what is in the brackets, to the blocks if they are
 * to `keep` it. `pair` is room for two blocks. */
static void horner(const tile *t, int transposed, i64 order, float *u, i64 ld, i64 width, float *pair,
                   float *to, i64 to_ld, i64 relu, int keep) {
    i64 step = padded(width);
    float *now = pair, *next = pair + blocks_floats(1, width, t->rows);
    scale_rows(t, u + (order - 1) * width, ld, now, step);
    for (i64 k = order - 2; k >= !to; k--) {
        hop_rows h = {.from = now, .width = step, .init = u + k * width, .init_ld = ld,
                      .tail = width - (step - VL), .relu = relu};
        if (k) h.next = next;
        if (!k) h.to = to, h.to_ld = to_ld;
        else if (keep) h.to = u + k * width, h.to_ld = ld;
        hop(t, transposed, &h);
        float *swap = now;
        now = next, next = swap;
    }
}

/* --- Forward ---------------------------------------------------------------------------------- */

/* `width` floats of what the layer has for the kind of each row of a tile. */
static void take_kinds(const layer *l, const tile *t, float *to, i64 ld, i64 width) {
    for (i64 b = t->b0; b < t->b1; b++) {
        const int32_t *code = l->code + t->g->first[b];
        for (i64 i = 0; i < t->g->ptr[b + 1] - t->g->ptr[b]; i++, to += ld) {
            const float *from = l->x + l->kind[code[i]] * l->ldx;
            for (i64 n = 0; n < width; n += VL) store_part(to + n, load(from + n), width - n);
        }
    }
}

static void forward_tile(const layer *l, const tile *t, float *z) {
    const graphs *g = t->g;
    i64 hop = hop_cycles(g->degree);
    float *y = l->y + t->row0 * l->h_out;
    if (!l->kind && propagates_first(l->order, l->h_in, l->h_out, hop)) { /* one product with [X, AX, ...] */
        i64 in = padded(l->h_in);
        propagate(l, t, z, z + blocks_floats(l->order, l->h_in, t->rows));
        product p = {z, l->order * in, 1, in, l->order, l->h_in, l->w, padded(l->h_out), l->bias,
                     0, y, l->h_out, l->relu, NULL};
        multiply(&p, t->rows, l->h_out);
        return;
    }
    /* X [W_0, W_1, ...], then hops at the width of the output. */
    int direct = l->order == 1;
    i64 ld = row_of(l->order, l->h_out), ldc = direct ? l->h_out : ld;
    if (l->kind) take_kinds(l, t, direct ? y : z, ldc, ldc);
    for (i64 b = t->b0, end; b < t->b1 && !l->kind; b = end) {
        end = run_end(l, t, b);
        product p = {x_rows(l, g, b), l->ldx, 1, 0, 1, l->h_in, l->w, ld, l->bias, 0,
                     (direct ? y : z) + (g->ptr[b] - t->row0) * ldc, ldc, direct && l->relu, NULL};
        if (l->packed && end < g->count) p.ahead = x_rows(l, g, end);
        multiply(&p, g->ptr[end] - g->ptr[b], direct ? l->h_out : padded(l->order * l->h_out));
    }
    if (direct) return;
    horner(t, 0, l->order, z, ld, l->h_out, z + blocks_floats(l->order, l->h_out, t->rows), y,
           l->h_out, l->relu, 0);
}

/* --- Backward --------------------------------------------------------------------------------- */

/* dY of a tile (0 where the ReLU gave 0) in rows of `ld`, whole vectors; the same times scale in
 * `scaled`, padded, unless that is NULL; its column sums go to db. */
static void take_grad(const layer *l, const tile *t, float *to, i64 ld, float *scaled, float *db) {
    i64 width = padded(l->h_out), first = t->row0 * l->h_out;
    for (i64 n = 0, lanes = l->h_out; n < l->h_out; n += VL, lanes -= VL) {
        norm_column column = l->norm ? grad_column(l->norm, n) : (norm_column){0};
        vec sum = zero();
        for (i64 i = 0, at = first + n; i < t->rows; i++, at += l->h_out) {
            vec v = l->norm ? norm_grad(l->norm, &column, at, lanes) : load_part(l->grad + at, lanes);
            if (l->relu) v = select_above(load_part(l->y + at, lanes), v);
            sum += v;
            store(to + i * ld + n, v);
            if (scaled) store(scaled + i * width + n, v * (t->scale ? t->scale[i] : 1.0f));
        }
        store(db + n, load(db + n) + sum);
    }
}

/* Rows of [G_0, G_1, ...] to those of their kinds, of which `sums` has the layer's `kinds`. */
static void add_to_kinds(const layer *l, const tile *t, const float *z, i64 ld, float *sums) {
    for (i64 b = t->b0; b < t->b1; b++) {
        const int32_t *code = l->code + t->g->first[b];
        for (i64 i = 0; i < t->g->ptr[b + 1] - t->g->ptr[b]; i++, z += ld) {
            float *to = sums + l->kind[code[i]] * ld;
            for (i64 n = 0; n < ld; n += VL) store(to + n, load(to + n) + load(z + n));
        }
    }
}

/* G_k = (A^T)^k dY serves both dX = sum_k G_k W_k^T and dW_k = X^T G_k, here or kind by kind. */
static void backward_by_grad(const layer *l, const tile *t, float *z, float *dw, float *db) {
    i64 out = padded(l->h_out), ld = row_of(l->order, l->h_out);
    float *now = z + blocks_floats(l->order, l->h_out, t->rows);
    float *next = now + blocks_floats(1, l->h_out, t->rows);
    take_grad(l, t, z, ld, l->order > 1 ? now : NULL, db); /* what spills over is written later */
    for (i64 k = 1; k < l->order; k++) {
        hop_rows h = {.from = now, .width = out, .to = z + k * l->h_out, .to_ld = ld, .tail = VL,
                      .next = k + 1 < l->order ? next : NULL};
        hop(t, 1, &h);
        float *swap = now;
        now = next, next = swap;
    }
    if (l->kind) {
        add_to_kinds(l, t, z, ld, dw);
        return;
    }
    i64 width = l->order * l->h_out;
    for (i64 b = t->b0, end; b < t->b1; b = end) {
        end = run_end(l, t, b);
        product p = {x_rows(l, t->g, b), 1, l->ldx, 0, 1, t->g->ptr[end] - t->g->ptr[b],
                     z + (t->g->ptr[b] - t->row0) * ld, ld, dw, width, dw, width, 0, NULL};
        multiply(&p, l->h_in, width);
    }
    if (!l->dx) return;
    product p = {z, ld, 1, 0, 1, width, l->w_t, padded(l->h_in), NULL, 0,
                 l->dx + t->row0 * l->lddx, l->lddx, 0, NULL};
    multiply(&p, t->rows, l->h_in);
}

/* Of an edge j -> i, the sum over k of the products of row i of u_k and row j of z_(k-1). */
static void add_products(const layer *l, const tile *t, const float *z, const float *u, i64 ld) {
    const graphs *g = t->g;
    const side *s = g->sides;
    i64 in = padded(l->h_in), ld_z = l->order * in;
    for (i64 b = t->b0; b < t->b1; b++) {
        i64 first = g->first[b], row0 = g->ptr[b] - t->row0;
        for (i64 i = 0; i < g->ptr[b + 1] - g->ptr[b]; i++)
            for (i64 e = s->rowptr[first + i]; e < s->rowptr[first + i + 1]; e++) {
                const float *of_i = u + (row0 + i) * ld, *of_j = z + (row0 + s->col[e]) * ld_z;
                vec sum = zero();
                for (i64 k = 1; k < l->order; k++)
                    for (i64 n = 0; n < l->h_in; n += VL)
                        sum += first_lanes(load(of_i + k * l->h_in + n), l->h_in - n) *
                               load(of_j + (k - 1) * in + n);
                l->dvalue[e] = sum_of(sum);
            }
    }
}

/* Z_k = A^k X again, dW_k = Z_k^T dY; dX by Horner's rule over dY [W_0^T, W_1^T, ...]. */
static void backward_by_input(const layer *l, const tile *t, float *z, float *dw, float *db) {
    i64 in = padded(l->h_in), out = padded(l->h_out);
    float *u = z + blocks_floats(l->order, l->h_in, t->rows);
    float *pair = u + blocks_floats(l->order, l->h_in, t->rows);
    float *grad = pair + 2 * blocks_floats(1, l->h_in, t->rows);
    take_grad(l, t, grad, out, NULL, db);
    propagate(l, t, z, pair);
    for (i64 k = 0; k < l->order; k++) {
        float *c = dw + k * l->h_in * l->h_out;
        product p = {z + k * in, 1, l->order * in, 0, 1, t->rows, grad, out, c, l->h_out, c,
                     l->h_out, 0, NULL};
        multiply(&p, l->h_in, l->h_out);
    }
    int direct = l->order == 1;
    if (!l->dx && (!l->dvalue || direct)) return;
    i64 ld = row_of(l->order, l->h_in);
    float *dx = l->dx ? l->dx + t->row0 * l->lddx : NULL;
    product p = {grad, out, 1, 0, 1, l->h_out, l->w_t, ld, NULL, 0, direct ? dx : u,
                 direct ? l->lddx : ld, 0, NULL};
    multiply(&p, t->rows, direct ? l->h_in : padded(l->order * l->h_in));
    if (direct) return;
    horner(t, 1, l->order, u, ld, l->h_in, pair, dx, l->lddx, 0, l->dvalue != NULL);
    if (l->dvalue) add_products(l, t, z, u, ld);
}

/* What a layer's hops go by, as `goes_by` reads it. */
static int sides_of(const layer *l) {
    if (l->order <= 1) return 0;
    if (!l->back) return 1;
    return l->by_grad ? 2 : 3;
}

/* --- What a layer prepares and adds up -------------------------------------------------------- */

/* The gradients of a pass: every part adds up its own, in rows of `dw` and `db`; the last row is the
 * sum of the others, in order. With kinds of nodes `dw` has the sums of [G_0, G_1, ...] of each. */
typedef struct {
    i64 parts, size, width;
    float *dw, *db;
} gradients;

static gradients make_gradients(const layer *l, i64 parts) {
    i64 width = padded(l->h_out), size = l->kind ? l->kinds * row_of(l->order, l->h_out)
                                                 : padded(l->order * l->h_in * l->h_out);
    return (gradients){parts, size, width, zeros((parts + 1) * size), zeros((parts + 1) * width)};
}

static void backward_tile(const layer *l, const tile *t, const gradients *sums, i64 part, float *z) {
    (l->by_grad ? backward_by_grad : backward_by_input)(l, t, z, sums->dw + part * sums->size,
                                                        sums->db + part * sums->width);
}

/* dW [order, h_in, h_out] and db [h_out] or NULL; with kinds of nodes also their dX, where it is asked
 * for. Frees the buffers. */
static void finish_gradients(const layer *l, gradients *sums, float *dw, float *db) {
    add_rows(sums->dw, sums->parts, sums->size);
    add_rows(sums->db, sums->parts, sums->width);
    float *sum = sums->dw + sums->parts * sums->size, *of_kinds = NULL;
    if (l->kind) {
        i64 width = l->order * l->h_out, ld = row_of(l->order, l->h_out);
        of_kinds = buffer(l->h_in * width);
        product p = {l->x, 1, l->ldx, 0, 1, l->kinds, sum, ld, NULL, 0, of_kinds, width, 0, NULL};
        multiply(&p, l->h_in, width);
        product q = {sum, ld, 1, 0, 1, width, l->w_t, padded(l->h_in), NULL, 0, l->dx, l->lddx, 0, NULL};
        if (l->dx) multiply(&q, l->kinds, l->h_in);
        sum = of_kinds;
    }
    for (i64 k = 0; k < l->order; k++)
        for (i64 i = 0; i < l->h_in; i++) /* by_grad sums them as [i, k], the other as [k, i] */
            memcpy(dw + (k * l->h_in + i) * l->h_out,
                   sum + (l->by_grad ? i * l->order + k : k * l->h_in + i) * l->h_out,
                   sizeof(float) * (size_t)l->h_out);
    if (db) memcpy(db, sums->db + sums->parts * sums->width, sizeof(float) * (size_t)l->h_out);
    free(of_kinds);
    free(sums->dw);
    free(sums->db);
}

/* The weights as forward_tile wants them, or as backward_tile does; `free_layer` frees either. */
static void pack_layer(layer *l, const graphs *g, const float *w, const float *bias) {
    int stacked = !l->kind && propagates_first(l->order, l->h_in, l->h_out, hop_cycles(g->degree));
    l->w = pack_weight(w, l->order, l->h_in, l->h_out, stacked);
    l->bias = pack_bias(bias, l->order, l->h_out);
}
static void pack_layer_back(layer *l, const graphs *g, const float *w, int needs_dx) {
    l->back = 1;
    int learned = l->dvalue != NULL; /* whose gradient needs Z_k and what Horner's rule sums */
    i64 hop = hop_cycles(g->degree);
    l->by_grad = l->kind || (!learned && by_grad_cycles(l->order, l->h_in, l->h_out, hop, needs_dx) <=
                                             by_input_cycles(l->order, l->h_in, l->h_out, hop, needs_dx));
    if (needs_dx || learned) l->w_t = pack_transposed(w, l->order, l->h_in, l->h_out, (int)l->by_grad);
}
static void free_layer(const layer *l) {
    free((void *)l->w);
    free((void *)l->bias);
    free((void *)l->w_t);
}
