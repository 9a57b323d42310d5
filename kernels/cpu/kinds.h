/* A first layer on nodes of few kinds, as atoms are: X [W_0, W_1, ...] is a product for each kind, which
 * its nodes copy, and their gradients are summed for each kind before any product. */
#pragma once
#include "layer.h"

/* The kinds that the nodes of a batch are of, in the order of their codes. */
typedef struct {
    i64 codes, count, ld;
    int32_t *of;  /* [codes] which row of x it is, -1 where the batch has none */
    float *x;     /* [count, ld], whole vectors */
    float *terms; /* X [W_0, W_1, ...] + [b, 0, ...], or NULL */
} kinds;

static void free_kinds(kinds *k) {
    free(k->of);
    free(k->x);
    free(k->terms);
}

/* `code` [N] names rows of `table` [codes, width]. */
static kinds batch_kinds(const graphs *g, const int32_t *code, i64 codes, const float *table, i64 ld,
                        i64 width) {
    size_t bytes = sizeof(int32_t) * (size_t)codes;
    kinds k = {.codes = codes, .ld = padded(width), .of = memset(obtained(malloc(bytes)), -1, bytes)};
    for (i64 b = 0; b < g->count; b++) {
        const int32_t *from = code + g->first[b];
        i64 a = b + 8; /* to be asked for ahead, as in graphs.h */
        if (a < g->count) ask_for(code + g->first[a], 4 * min64(g->ptr[a + 1] - g->ptr[a], 256));
        for (i64 i = 0; i < g->ptr[b + 1] - g->ptr[b]; i++) k.of[from[i]] = 0;
    }
    for (i64 c = 0; c < codes; c++) k.count += k.of[c] == 0;
    k.x = buffer(k.count * k.ld);
    for (i64 c = 0, j = 0; c < codes; c++) {
        if (k.of[c] < 0) continue;
        widen(table + c * ld, ld, width, k.x + j * k.ld, k.ld, 1);
        k.of[c] = (int32_t)j++;
    }
    return k;
}

#define SUMS (1 << 24) /* floats that all parts' sums may take, going back */

/* Clock cycles a row, roughly, of rows of terms copied at two a vector, and of their hops. */
static i64 kinds_cycles(i64 order, i64 h_out, i64 hop) {
    return ((order - 1) * hop + 2 * order) * vectors(h_out);
}

/* Whether a layer should go by them. Going back, rows are added to at six cycles a vector, out of the
 * first cache. Their own products must be few beside those of the nodes. */
static int kinds_pay(const kinds *k, const graphs *g, i64 parts, const layer *l) {
    i64 hop = hop_cycles(g->degree), order = l->order, h_in = l->h_in, h_out = l->h_out;
    i64 hops = (order - 1) * hop * vectors(h_out), moved = order * vectors(h_out);
    if (8 * k->count > g->ptr[g->count]) return 0;
    if (!l->grad) {
        i64 other = min64(first_cycles(order, h_in, h_out, hop), horner_cycles(order, h_in, h_out, hop));
        return kinds_cycles(order, h_out, hop) <= other + 4 * vectors(h_in);
    }
    if ((parts + 1) * k->count * row_of(order, h_out) > SUMS) return 0;
    int dx = l->dx != NULL;
    i64 other = min64(by_grad_cycles(order, h_in, h_out, hop, dx),
                      by_input_cycles(order, h_in, h_out, hop, dx));
    return hops + 2 * (order - 1) * vectors(h_out) + 6 * moved <= other;
}

/* Lets a layer that is packed for it read what its kinds give, each computed once. */
static void read_terms(layer *l, kinds *k) {
    i64 ld = row_of(l->order, l->h_out);
    k->terms = zeros(k->count * ld + VL);
    product p = {k->x, k->ld, 1, 0, 1, l->h_in, l->w, ld, l->bias, 0, k->terms, ld,
                 l->order == 1 && l->relu, NULL};
    multiply(&p, k->count, padded(l->order * l->h_out));
    l->x = k->terms, l->ldx = ld;
}

/* The gradient of the table, [codes, width], from dx [count, width]. */
static void spread_kinds(const kinds *k, const float *dx, i64 width, float *dtable) {
    size_t bytes = sizeof(float) * (size_t)width;
    for (i64 c = 0; c < k->codes; c++, dtable += width) {
        if (k->of[c] < 0) memset(dtable, 0, bytes);
        else memcpy(dtable, dx + k->of[c] * width, bytes);
    }
}
