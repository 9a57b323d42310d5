/* Products of many rows of floats with a small matrix, and of the columns of two such: what a layer
 * takes whose graphs are too large for a tile.
 *
 *   Y = X W, Y += X W, or Y = X W + b        dW = X^T dY
 *
 * Some rows at a time stay in cache while the columns of W pass by; of dW, the sums for some columns of X
 * do while the rows pass by. Bytes a row: 4 h_in of X, and 4 h_out of Y for every TERMS_AT_ONCE columns of
 * X, or of dY for every COLUMNS_AT_ONCE. */
#pragma once
#include "product.h"
#include "threads.h"

#define ROWS_AT_ONCE 128
#define TERMS_AT_ONCE 512
#define COLUMNS_AT_ONCE 192

typedef struct {
    i64 rows, len, width, parts;
    const float *x, *w; /* [rows, len]; [len, width], its rows padded to whole vectors */
    const float *init;  /* [width], or [rows, width] where init_row is not 0; or NULL */
    i64 init_row;
    float *y; /* [rows, width] */
} dense_product;

static void dense_part(const void *args, i64 part) {
    const dense_product *d = args;
    i64 end = d->rows * (part + 1) / d->parts;
    for (i64 i = d->rows * part / d->parts; i < end; i += ROWS_AT_ONCE)
        for (i64 j = 0; j < d->len; j += TERMS_AT_ONCE) {
            float *y = d->y + i * d->width;
            const float *init = d->init ? d->init + i * d->init_row : NULL;
            product p = {d->x + i * d->len + j, d->len, 1, 0, 1, min64(d->len - j, TERMS_AT_ONCE),
                         d->w + j * padded(d->width), padded(d->width), j ? y : init,
                         j ? d->width : d->init_row, y, d->width, 0, NULL};
            multiply(&p, min64(end - i, ROWS_AT_ONCE), d->width);
        }
}

/* Every part adds up its own product of columns, in rows of `sums`. */
typedef struct {
    i64 rows, len, width, parts;
    const float *x, *y; /* [rows, len], [rows, width] */
    float *sums;        /* [parts, len * width, padded] */
} columns_product;

static void columns_part(const void *args, i64 part) {
    const columns_product *c = args;
    i64 ld = padded(c->width), end = c->rows * (part + 1) / c->parts;
    float *sum = c->sums + part * padded(c->len * c->width), *y = scratch(ROWS_AT_ONCE * ld);
    for (i64 j = 0; j < c->len; j += COLUMNS_AT_ONCE)
        for (i64 i = c->rows * part / c->parts; i < end; i += ROWS_AT_ONCE) {
            i64 rows = min64(end - i, ROWS_AT_ONCE);
            float *to = sum + j * c->width;
            widen(c->y + i * c->width, c->width, c->width, y, ld, rows);
            product p = {c->x + i * c->len + j, 1, c->len, 0, 1, rows, y, ld, to, c->width, to,
                         c->width, 0, NULL};
            multiply(&p, min64(c->len - j, COLUMNS_AT_ONCE), c->width);
        }
}
