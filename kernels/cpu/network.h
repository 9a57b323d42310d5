/* A whole network: layers with a norm, an activation and dropout behind them, then a last layer
 * for every node, or the sums that a pooled last layer is a product with. */
#pragma once
#include <time.h>

#include "kinds.h"
#include "scores.h"

/* What native/network.py fills in. A hidden layer's norm is there where gamma is not NULL: a
 * batch norm, or a layer norm where `mean` is NULL. */
typedef struct {
    i64 order, h_in, h_out;
    const float *w, *bias, *gamma, *beta;
    float *mean, *var; /* running statistics: read in evaluation, moved in training */
    double eps, momentum;
    uint64_t seed, level; /* of dropout, see norm.h; level 0: none */
    double keep;
    float *y, *state;     /* training keeps [n, h_out] and mean, 1/deviation, scale, shift, padded */
    float *dw, *db, *dgamma, *dbeta;
} net_layer;

typedef struct {
    i64 depth;               /* hidden layers; at node level one more follows them */
    activation f;            /* behind each hidden layer */
    const net_layer *layers;
    const float *x;          /* [n, h] of the batch, [N, h] of the dataset where `packed`, or */
    i64 ldx, packed;
    const int32_t *code;     /* [N]: X = x[code], or NULL */
    i64 kinds;               /* rows of x, where there is a code */
    float *dx;               /* the gradient of x, or NULL */
    const float *weight;     /* readout: [order, nodes]; NULL: node level */
    i64 order, nodes;
    float *out;              /* [B, order * h], or [n, h] */
    const float *grad;       /* of out */
    float *to, *from;        /* for the backward pass: [n, widest hidden output, and with dx and code
                                also the first input], VL more */
    const i64 *label;        /* [N], or NULL: `out` is then [B], what class_score says of each graph */
    double *seconds;         /* of each of its passes over the graphs in turn, or NULL */
} network;

INLINE int by_row(const net_layer *l) { return l->gamma && !l->mean; }

/* Scale and shift, as `activate` reads them, where they depend on no moments. */
static void take_affine(norm *t, const net_layer *l) {
    for (i64 c = 0; c < l->h_out; c++) t->scale[c] = 1.0f, t->shift[c] = 0.0f;
    if (!by_row(l)) return;
    memcpy(t->scale, l->gamma, sizeof(float) * (size_t)l->h_out);
    memcpy(t->shift, l->beta, sizeof(float) * (size_t)l->h_out);
}

INLINE i64 last_width(const network *n) { return n->layers[n->depth - 1].h_out; }

/* --- Nodes to graphs --------------------------------------------------------------------------- */

/* [sum_i w_0i x_i, sum_i w_1i x_i, ...] of one graph; w_k begins `stride` after w_(k-1). x in rows of
 * `ld`, readable in whole vectors. */
static void pool_graph(const float *w, i64 stride, i64 order, const float *x, i64 ld, i64 rows,
                       i64 h, float *out) {
    for (i64 k = 0; k < order; k++, w += stride)
        for (i64 c = 0; c < h; c += VL) {
            vec even = zero(), odd = zero();
            i64 i = 0;
            for (; i + 1 < rows; i += 2) {
                even += load(x + i * ld + c) * w[i];
                odd += load(x + (i + 1) * ld + c) * w[i + 1];
            }
            if (i < rows) even += load(x + i * ld + c) * w[i];
            store_part(out + k * h + c, even + odd, h - c);
        }
}

static void pool_tile(const network *n, const walk *w, const float *x, i64 ld) {
    const graphs *g = w->g;
    i64 h = last_width(n);
    for (i64 b = w->start; b < w->end; b++)
        pool_graph(n->weight + g->first[b], n->nodes, n->order, x + (g->ptr[b] - g->ptr[w->start]) * ld,
                   ld, g->ptr[b + 1] - g->ptr[b], h, n->out + b * n->order * h);
}

/* Its gradient: rows of `to` for the nodes of a tile. */
static void spread_tile(const network *n, const walk *w, float *to, i64 ld) {
    const graphs *g = w->g;
    i64 h = last_width(n);
    for (i64 b = w->start; b < w->end; b++)
        for (i64 i = g->ptr[b]; i < g->ptr[b + 1]; i++, to += ld) {
            const float *weight = n->weight + g->first[b] + (i - g->ptr[b]);
            const float *grad = n->grad + b * n->order * h;
            for (i64 c = 0; c < h; c += VL) {
                vec sum = zero();
                for (i64 k = 0; k < n->order; k++)
                    sum += load_part(grad + k * h + c, h - c) * weight[k * n->nodes];
                store(to + c, sum);
            }
        }
}

static void ask_for_nodes(const network *n, const graphs *g, i64 b0, i64 b1) {
    for (i64 b = b0; b < b1; b++) {
        i64 bytes = 4 * min64(g->ptr[b + 1] - g->ptr[b], 256);
        if (n->code) ask_for(n->code + g->first[b], bytes);
        for (i64 k = 0; k < n->order; k++) ask_for(n->weight + k * n->nodes + g->first[b], bytes);
    }
}

/* --- Where a layer's input comes from ---------------------------------------------------------- */

static i64 input_floats(i64 width, i64 rows) { return (rows + 1) * padded(width); }

/* Makes `l` read the rows of this tile from `memory`, in rows of whole vectors. */
static void read_from(layer *l, const tile *t, const float *memory) {
    l->ldx = padded(l->h_in), l->packed = 0;
    l->x = memory - t->row0 * l->ldx;
}

/* The first layer's: rows of the table gathered in `memory`, or x as it lies. */
static void read_first(const network *n, layer *l, const tile *t, float *memory) {
    const graphs *g = t->g;
    if (l->kind) return; /* what it reads does not depend on the tile */
    l->x = n->x, l->ldx = n->ldx, l->packed = n->packed;
    if (!n->code) return;
    i64 ld = padded(l->h_in);
    float *to = memory;
    for (i64 b = t->b0; b < t->b1; b++)
        for (i64 i = 0; i < g->ptr[b + 1] - g->ptr[b]; i++, to += ld) {
            const float *row = n->x + n->code[g->first[b] + i] * n->ldx;
            for (i64 c = 0; c < l->h_in; c += VL) store(to + c, load_part(row + c, l->h_in - c));
        }
    read_from(l, t, memory);
}

/* Has the first layer go by the kinds of the batch's nodes, where that pays. They are to be freed. */
static kinds take_batch_kinds(const network *n, const graphs *g, i64 parts, layer *l) {
    if (!n->code) return (kinds){0};
    kinds k = batch_kinds(g, n->code, n->kinds, n->x, n->ldx, l->h_in);
    if (kinds_pay(&k, g, parts, l))
        l->code = n->code, l->kind = k.of, l->kinds = k.count, l->x = k.x, l->ldx = k.ld;
    return k;
}

/* --- In evaluation mode: one pass, nothing between the layers is stored ------------------------ */

typedef struct {
    const graphs *g;
    const network *n;
    layer *layers;
    norm *norms; /* what is left for `activate`: layers do a batch norm, and a ReLU behind it, themselves */
    i64 count;   /* layers */
} evaluation;

static void evaluate_part(const void *args, i64 part) {
    const evaluation *e = args;
    const network *n = e->n;
    i64 rows = largest_tile(e->g, part), widest = n->code ? n->layers[0].h_in : 0, work = 0;
    int sides = 0;
    for (i64 k = 0; k < e->count; k++) {
        const layer *l = e->layers + k;
        sides |= sides_of(l);
        i64 need = scratch_floats(l, e->g, rows);
        if (need > work) work = need;
        if (l->h_out > widest) widest = l->h_out;
    }
    i64 size = input_floats(widest, rows) + VL, own = tile_floats(rows), stats = stats_floats(rows);
    float *memory = scratch(own + 2 * size + stats + work), *now = memory + own, *next = now + size;
    row_stats *of = (row_stats *)(next + size);
    float *z = next + size + stats;
    for (walk w = first_tile(e->g, sides, part); w.start < w.end; next_tile(&w)) {
        tile t = enter_tile(&w, memory);
        ask_for_nodes(n, e->g, w.end, w.next);
        i64 ld = 0;
        for (i64 k = 0; k < e->count; k++) {
            layer l = e->layers[k];
            int stored = k == n->depth && !n->label; /* the last of a node-level network */
            if (k) l.x = now - t.row0 * ld, l.ldx = ld, l.packed = 0;
            else read_first(n, &l, &t, now);
            l.y = stored ? n->out : next - t.row0 * l.h_out;
            forward_tile(&l, &t, z);
            if (e->norms[k].h) { /* from `next` to `now`, in rows of whole vectors */
                norm found = e->norms[k];
                found.y = l.y;
                activate(&found, t.row0, t.rows, of, now, NULL);
                ld = padded(l.h_out);
                continue;
            }
            float *swap = now;
            now = next, next = swap, ld = l.h_out;
        }
        if (n->weight) pool_tile(n, &w, now, ld);
        for (i64 b = t.b0; b < t.b1 && n->label; b++) {
            i64 classes = n->layers[n->depth].h_out;
            n->out[b] = class_score(now + (e->g->ptr[b] - t.row0) * classes, classes,
                                    n->label + e->g->first[b], e->g->ptr[b + 1] - e->g->ptr[b]);
        }
    }
}

static i64 cycles_of(const graphs *g, const network *n) {
    i64 cycles = 0;
    for (i64 k = 0; k < n->depth + !n->weight; k++) {
        const net_layer *l = n->layers + k;
        cycles += forward_cycles(l->order, l->h_in, l->h_out, hop_cycles(g->degree)) + 15 * vectors(l->h_out);
    }
    return cycles * g->ptr[g->count];
}

static void evaluate(const graphs *g, i64 parts, int threads, const network *n) {
    i64 count = n->depth + !n->weight;
    layer *layers = cleared(count, sizeof(layer));
    norm *norms = cleared(count, sizeof(norm));
    kinds known = {0};
    for (i64 k = 0; k < count; k++) {
        const net_layer *given = n->layers + k;
        i64 h_out = given->h_out, size = given->order * given->h_in * h_out;
        int apart = k < n->depth && (by_row(given) || n->f.kind != RELU);
        float *w = buffer(size), *bias = zeros(h_out);
        memcpy(w, given->w, sizeof(float) * (size_t)size);
        if (given->bias) memcpy(bias, given->bias, sizeof(float) * (size_t)h_out);
        for (i64 c = 0; c < h_out && given->gamma && given->mean; c++) { /* an affine map of the layer: fold it in */
            float scale = (float)(given->gamma[c] * inverse_sqrt((double)given->var[c] + given->eps));
            for (i64 j = c; j < size; j += h_out) w[j] *= scale;
            bias[c] = (bias[c] - given->mean[c]) * scale + given->beta[c];
        }
        layers[k] = (layer){.order = given->order, .h_in = given->h_in, .h_out = h_out,
                            .relu = k < n->depth && !apart};
        if (!k) known = take_batch_kinds(n, g, parts, layers);
        pack_layer(layers + k, g, w, bias);
        if (layers[k].kind) read_terms(layers + k, &known);
        if (apart) {
            float *affine = zeros(2 * padded(h_out));
            norms[k] = (norm){.h = h_out, .by_row = by_row(given), .eps = (float)given->eps, .f = n->f,
                              .scale = affine, .shift = affine + padded(h_out)};
            take_affine(norms + k, given);
        }
        free(w);
        free(bias);
    }
    evaluation e = {g, n, layers, norms, count};
    parallel(evaluate_part, &e, parts, useful(threads, cycles_of(g, n)));
    for (i64 k = 0; k < count; k++) {
        free_layer(layers + k);
        free(norms[k].scale);
    }
    free_kinds(&known);
    free(layers);
    free(norms);
}

/* --- In training ------------------------------------------------------------------------------- */

/* One pass over the graphs: layer k, what goes into it, and what comes out of it. */
typedef struct {
    const graphs *g;
    const network *n;
    const norm *norms; /* [depth] */
    layer l;
    i64 k;             /* the layer; `depth` where the pass is the readout's or the last layer's */
    double *sums;      /* [parts + 1, 2, padded(width of the norm that sums are for)] */
    float *to;         /* backward: the gradient of what norm k - 1 gave, [n, h] */
    const gradients *gradients;
} pass;

static i64 pass_floats(const pass *p, i64 rows) {
    i64 h_in = p->k == p->n->depth ? last_width(p->n) : p->l.h_in;
    i64 own = tile_floats(rows) + stats_floats(rows) + 3 * input_floats(h_in, rows);
    return own + scratch_floats(&p->l, p->g, rows);
}

/* What goes into the layer, made anew: the layer reads it from `memory`, or as it lies. `slope` as for
 * `activate`. */
static void read_input(const pass *p, layer *l, const tile *t, row_stats *of, float *memory,
                       float *slope) {
    if (!p->k) {
        read_first(p->n, l, t, memory);
        return;
    }
    activate(p->norms + p->k - 1, t->row0, t->rows, of, memory, slope);
    read_from(l, t, memory);
}

static void forward_part(const void *args, i64 part) {
    const pass *p = args;
    const network *n = p->n;
    i64 rows = largest_tile(p->g, part);
    float *memory = scratch(pass_floats(p, rows)), *own = memory + tile_floats(rows);
    float *input = own + stats_floats(rows);
    row_stats *of = (row_stats *)own;
    for (walk w = first_tile(p->g, sides_of(&p->l), part); w.start < w.end; next_tile(&w)) {
        if (p->k == n->depth && n->weight) {
            i64 row0 = p->g->ptr[w.start], h = last_width(n);
            ask_for_nodes(n, p->g, w.end, w.next);
            activate(p->norms + p->k - 1, row0, p->g->ptr[w.end] - row0, of, input, NULL);
            pool_tile(n, &w, input, padded(h));
            continue;
        }
        tile t = enter_tile(&w, memory);
        layer l = p->l;
        if (!p->k) ask_for_nodes(n, p->g, w.end, w.next);
        read_input(p, &l, &t, of, input, NULL);
        forward_tile(&l, &t, input + input_floats(l.h_in, rows));
        if (p->k < n->depth && p->norms[p->k].by_column)
            add_moments(p->norms + p->k, t.row0, t.rows, p->sums + part * 2 * padded(l.h_out));
    }
}

static void backward_part(const void *args, i64 part) {
    const pass *p = args;
    const network *n = p->n;
    const norm *before = p->k ? p->norms + p->k - 1 : NULL;
    i64 rows = largest_tile(p->g, part), ld = padded(before ? before->h : p->l.h_in);
    float *memory = scratch(pass_floats(p, rows)), *own = memory + tile_floats(rows);
    float *input = own + stats_floats(rows);
    row_stats *of = (row_stats *)own;
    float *dx = input + (rows + 1) * ld, *slope = dx + (rows + 1) * ld, *z = slope + (rows + 1) * ld;
    float *act = slope; /* as `passed` reads it */
    if (!before || before->f.kind == RELU) slope = NULL, act = input;
    double *sums = before ? p->sums + part * 2 * ld : NULL;
    for (walk w = first_tile(p->g, sides_of(&p->l), part); w.start < w.end; next_tile(&w)) {
        if (p->k == n->depth && n->weight) {
            i64 row0 = p->g->ptr[w.start], height = p->g->ptr[w.end] - row0;
            ask_for_nodes(n, p->g, w.end, w.next);
            activate(before, row0, height, of, input, slope);
            spread_tile(n, &w, dx, ld);
            add_grad(before, row0, height, act, dx, of, p->to, sums);
            continue;
        }
        tile t = enter_tile(&w, memory);
        layer l = p->l;
        if (!p->k) ask_for_nodes(n, p->g, w.end, w.next);
        read_input(p, &l, &t, of, input, slope);
        if (before) l.dx = dx - t.row0 * ld, l.lddx = ld;
        backward_tile(&l, &t, p->gradients, part, z);
        if (before) add_grad(before, t.row0, t.rows, act, dx, of, p->to, sums);
    }
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_pass(const pass *p, work_fn work, i64 parts, int threads, i64 number) {
    double start = now_seconds();
    parallel(work, p, parts, threads);
    if (p->n->seconds) p->n->seconds[number] = now_seconds() - start;
}

/* The norms of the hidden layers; their `mean_grad` and `mean_dot` are in `means`. */
static norm *make_norms(const graphs *g, const network *n, float *means) {
    norm *norms = cleared(n->depth, sizeof(norm));
    for (i64 k = 0; k < n->depth; k++) {
        const net_layer *l = n->layers + k;
        i64 width = padded(l->h_out);
        norms[k] = (norm){.n = g->ptr[g->count], .h = l->h_out, .y = l->y,
                          .by_column = l->gamma && l->mean, .by_row = by_row(l),
                          .eps = (float)l->eps, .f = n->f, .mean = l->state, .rstd = l->state + width,
                          .scale = l->state + 2 * width, .shift = l->state + 3 * width,
                          .mean_grad = means, .mean_dot = means + width,
                          .seed = l->seed, .level = (uint32_t)l->level, .keep = (float)l->keep};
        means += means ? 2 * width : 0;
    }
    return norms;
}

static i64 total_width(const network *n) {
    i64 total = 0;
    for (i64 k = 0; k < n->depth; k++) total += padded(n->layers[k].h_out);
    return total;
}

static void train_forward(const graphs *g, i64 parts, int threads, const network *n) {
    norm *norms = make_norms(g, n, NULL);
    kinds known = {0};
    threads = useful(threads, cycles_of(g, n) / (n->depth + 1));
    for (i64 k = 0; k <= n->depth; k++) {
        const net_layer *given = n->layers + k;
        pass p = {.g = g, .n = n, .norms = norms, .k = k};
        int has_layer = k < n->depth || !n->weight, moments = k < n->depth && norms[k].by_column;
        if (has_layer) {
            p.l = (layer){.order = given->order, .h_in = given->h_in, .h_out = given->h_out,
                          .y = k < n->depth ? given->y : n->out};
            if (!k) known = take_batch_kinds(n, g, parts, &p.l);
            pack_layer(&p.l, g, given->w, given->bias);
            if (p.l.kind) read_terms(&p.l, &known);
        }
        i64 width = padded(has_layer ? given->h_out : 0);
        if (moments) p.sums = cleared((parts + 1) * 2 * width, sizeof(double));
        if (k < n->depth) {
            memset(given->state, 0, sizeof(float) * (size_t)(4 * width));
            for (i64 c = 0; c < given->h_out; c++) norms[k].rstd[c] = 1.0f;
            take_affine(norms + k, given);
        }
        run_pass(&p, forward_part, parts, threads, k);
        if (moments) {
            add_parts(p.sums, parts, width);
            take_moments(norms + k, p.sums + parts * 2 * width, given->gamma, given->beta, given->eps,
                         given->momentum, given->mean, given->var);
        }
        if (has_layer) free_layer(&p.l);
        free(p.sums);
    }
    free_kinds(&known);
    free(norms);
}

/* dtable[code[i]] += dx[i], node by node in the order of the batch; in double, as there may be a
 * million nodes of a kind. */
static void add_to_table(const graphs *g, const network *n, i64 h, const float *dx) {
    double *sums = cleared(n->kinds * h, sizeof(double));
    for (i64 b = 0; b < g->count; b++)
        for (i64 i = g->ptr[b]; i < g->ptr[b + 1]; i++, dx += h) {
            double *row = sums + n->code[g->first[b] + i - g->ptr[b]] * h;
            for (i64 c = 0; c < h; c++) row[c] += (double)dx[c];
        }
    for (i64 i = 0; i < n->kinds * h; i++) n->dx[i] = (float)sums[i];
    free(sums);
}

static void train_backward(const graphs *g, i64 parts, int threads, const network *n) {
    float *means = zeros(2 * total_width(n)), *to = n->to, *from = n->from;
    norm *norms = make_norms(g, n, means);
    kinds known = {0};
    threads = useful(threads, 2 * cycles_of(g, n) / (n->depth + 1));
    for (i64 k = n->depth; k >= 0; k--) {
        const net_layer *given = n->layers + k;
        int has_layer = k < n->depth || !n->weight;
        pass p = {.g = g, .n = n, .norms = norms, .k = k, .to = to};
        gradients sums;
        if (has_layer) {
            p.l = (layer){.order = given->order, .h_in = given->h_in, .h_out = given->h_out,
                          .grad = n->grad, .norm = k < n->depth ? norms + k : NULL};
            if (!k && n->dx) p.l.dx = n->code ? to : n->dx, p.l.lddx = given->h_in;
            if (!k) known = take_batch_kinds(n, g, parts, &p.l);
            pack_layer_back(&p.l, g, given->w, k || n->dx);
            sums = make_gradients(&p.l, parts);
            p.gradients = &sums;
        }
        i64 width = k ? padded(norms[k - 1].h) : 0;
        p.sums = cleared((parts + 1) * 2 * width, sizeof(double));
        run_pass(&p, backward_part, parts, threads, 2 * n->depth + 1 - k);
        if (has_layer) {
            finish_gradients(&p.l, &sums, given->dw, given->db);
            free_layer(&p.l);
        }
        if (k) {
            norm *t = norms + k - 1;
            const net_layer *l = n->layers + k - 1;
            const double *total = p.sums + parts * 2 * width;
            add_parts(p.sums, parts, width);
            for (i64 c = 0; c < t->h && l->gamma; c++) {
                t->mean_grad[c] = (float)(total[c] / (double)t->n);
                t->mean_dot[c] = (float)(total[width + c] / (double)t->n);
                l->dbeta[c] = (float)total[c], l->dgamma[c] = (float)total[width + c];
            }
            t->grad = to;
            float *swap = to;
            to = from, from = swap;
        } else if (n->dx && p.l.kind) {
            spread_kinds(&known, to, given->h_in, n->dx);
        } else if (n->dx && n->code) {
            add_to_table(g, n, given->h_in, to);
        }
        free(p.sums);
    }
    free_kinds(&known);
    free(norms);
    free(means);
}
