/* A first layer on nodes of few kinds, as atoms are: X [W_0, W_1, ...] is a product for each kind, which
 * its nodes copy, and their gradients are summed for each kind before any product. */
#pragma once
#include "layer.h"

/* The kinds that a batch's nodes are of, in the order in which they first come. */
typedef struct {
    i64 count, ld;
    int32_t *of, *code; /* [n] the kind of each node; [count] which row of the table it is */
    float *x;           /* [count, ld], whole vectors */
    float *terms;       /* X [W_0, W_1, ...] + [b, 0, ...]; or NULL */
} kinds;

static void free_kinds(kinds *k) {
    free(k->of);
    free(k->code);
    free(k->x);
    free(k->terms);
}

/* `table` has the rows [most, width] that `code` [N] names. */
static kinds find_kinds(const graphs *g, const int32_t *code, i64 most, const float *table, i64 ld,
                        i64 width) {
    i64 n = g->ptr[g->count];
    kinds k = {.ld = padded(width), .of = malloc(sizeof(int32_t) * (size_t)(n + 1)),
               .code = malloc(sizeof(int32_t) * (size_t)(most + 1))};
    int32_t *seen = malloc(sizeof(int32_t) * (size_t)(most + 1)), *of = k.of;
    memset(seen, -1, sizeof(int32_t) * (size_t)(most + 1));
    for (i64 b = 0; b < g->count; b++) {
        const int32_t *from = code + g->first[b];
        if (b + 8 < g->count) ask_for(code + g->first[b + 8], 64);
        for (i64 i = 0; i < g->ptr[b + 1] - g->ptr[b]; i++) {
            int32_t c = from[i];
            if (seen[c] < 0) {
                k.code[k.count] = c;
                seen[c] = (int32_t)k.count++;
            }
            *of++ = seen[c];
        }
    }
    free(seen);
    k.x = buffer(k.count * k.ld);
    for (i64 j = 0; j < k.count; j++) widen(table + k.code[j] * ld, ld, width, k.x + j * k.ld, k.ld, 1);
    return k;
}

/* A product over N rows pays back one over so many kinds. */
static int kinds_pay(const kinds *k, i64 rows) { return 8 * k->count <= rows; }

/* Lets a layer that is packed for it read what its kinds give, each computed once. */
static void read_terms(layer *l, kinds *k) {
    i64 ld = row_of(l->order, l->h_out);
    k->terms = buffer(k->count * ld + VL);
    product p = {k->x, k->ld, 1, 0, 1, l->h_in, l->w, ld, l->bias, 0, k->terms, ld,
                 l->order == 1 && l->relu, NULL};
    multiply(&p, k->count, padded(l->order * l->h_out));
    l->x = k->terms, l->ldx = ld;
}

/* dtable [most, width] of the rows of dx [count, width]. */
static void spread_kinds(const kinds *k, const float *dx, i64 width, float *dtable, i64 most) {
    memset(dtable, 0, sizeof(float) * (size_t)(most * width));
    for (i64 j = 0; j < k->count; j++)
        memcpy(dtable + k->code[j] * width, dx + j * width, sizeof(float) * (size_t)width);
}
