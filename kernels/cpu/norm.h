/* Batch or layer normalisation, activation and dropout of a tile: between two layers they are never
 * stored.
 *
 * A batch norm is scale * y + shift with numbers of each column, known once all nodes were seen. A
 * layer norm is scale * (y - mean) / deviation + shift with those of each row, found again whenever
 * the row is read: `find_rows`. */
#pragma once
#include "activations.h"
#include "threads.h"

/* Of one layer in training. `mean` to `shift` are [padded(h)]; where there is no norm, scale is 1 and
 * shift 0. */
typedef struct {
    i64 n, h, by_column, by_row;         /* batch norm, layer norm */
    float eps;                           /* of the latter */
    const float *y;                      /* [n, h], what the layer gave */
    float *mean, *rstd, *scale, *shift;  /* act = f(scale * y + shift) */
    activation f;
    float *mean_grad, *mean_dot;         /* means of dY behind f and dropout, and of it times the
                                            normalised y */
    const float *grad;                   /* that dY, [n, h] */
    uint64_t seed;
    uint32_t level;                      /* an element falls where its random word is below this */
    float keep;                          /* 1 / (1 - p) */
} norm;

/* 1 / sqrt(x) without the C library's: two steps of Newton's method from a float's. */
static double inverse_sqrt(double x) {
    if (x > 1e300) return 0; /* an infinite variance */
    double down = x > 1e30 ? 0x1p-100 : x < 1e-30 ? 0x1p100 : 1; /* a float ends at 3e38 */
    double r = 1.0 / (double)__builtin_sqrtf((float)(x * down * down));
    for (int i = 0; i < 2; i++) r = r * (1.5 - 0.5 * x * down * down * r * r);
    return r * down;
}

/* Two words of a counter, well mixed (the finaliser of splitmix64). */
INLINE uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A word for each element of a vector of columns, and the dropout factor of these columns in a row:
 * keep or 0, by multiplicative hashing with a pair of words for the row. A function of the seed and
 * the place alone, so the backward pass makes it again instead of reading it. */
INLINE uvec column_words(const norm *t, i64 column) {
    uvec x;
    for (int i = 0; i < VL; i++) x[i] = (uint32_t)mix(~t->seed + (uint64_t)(column + i));
    return x;
}
INLINE vec kept(const norm *t, uvec columns, i64 row) {
    uint64_t key = mix(t->seed + (uint64_t)row);
    uvec x = (columns ^ (uint32_t)key) * ((uint32_t)(key >> 32) | 1);
    return (vec)((ivec)(zero() + t->keep) & ~(ivec)(x < t->level));
}

/* The columns of a layer's rows, a vector at a time. */
#define FOR_COLUMNS(t) for (i64 c = 0, lanes = (t)->h; c < (t)->h; c += VL, lanes -= VL)

/* What a layer norm finds of a row; the last two are means of what its gradient takes off. */
typedef struct {
    float mean, rstd, grad, dot;
} row_stats;
/* Whole vectors: what lies behind is read and written by them, and one that straddles two cache lines
 * takes twice as long. */
INLINE i64 stats_floats(i64 rows) { return padded(rows * (i64)(sizeof(row_stats) / sizeof(float))); }

/* In double, the squared deviations of numbers from their mean that float has no room for. */
static double wide_squares(const float *y, i64 count, i64 step, double mean) {
    double sum = 0;
    for (i64 i = 0; i < count; i++) sum += (y[i * step] - mean) * (y[i * step] - mean);
    return sum;
}

static void find_rows(const norm *t, i64 row0, i64 rows, row_stats *of) {
    const float *y = t->y + row0 * t->h;
    for (i64 i = 0; i < rows; i++, y += t->h) {
        vec sum = zero(), squares = zero();
        FOR_COLUMNS(t) sum += load_part(y + c, lanes);
        of[i].mean = sum_of(sum) / (float)t->h;
        FOR_COLUMNS(t) {
            vec d = first_lanes(load_part(y + c, lanes) - of[i].mean, lanes);
            squares += d * d;
        }
        float about = sum_of(squares);
        of[i].rstd = 1.0f / __builtin_sqrtf(about / (float)t->h + t->eps);
        if (about > 1e38f)
            of[i].rstd = (float)inverse_sqrt(wide_squares(y, t->h, 1, of[i].mean) / (double)t->h);
    }
}

/* dropout(f(norm(y))) of some rows, padded; and its slope in norm(y), unless that is NULL. `of` has
 * room for their numbers. */
static void activate(const norm *t, i64 row0, i64 rows, row_stats *of, float *to, float *slope) {
    i64 ld = padded(t->h);
    if (t->by_row) find_rows(t, row0, rows, of);
    FOR_COLUMNS(t) {
        vec scale = load(t->scale + c), shift = load(t->shift + c);
        const float *y = t->y + row0 * t->h + c;
        uvec words = column_words(t, c);
        for (i64 i = 0; i < rows; i++) {
            vec a = load_part(y + i * t->h, lanes);
            if (t->by_row) a = (a - of[i].mean) * of[i].rstd;
            a = a * scale + shift;
            vec s, f = activated(t->f, a, &s), factor = zero() + 1.0f;
            if (t->level) factor = kept(t, words, row0 + i);
            store(to + i * ld + c, f * factor);
            if (slope) store(slope + i * ld + c, s * factor);
        }
    }
}

INLINE void add_to(double *sums, vec v) {
    for (int i = 0; i < VL; i++) sums[i] += v[i];
}

/* Column sums of y and of its squares: deviations from a tile's own mean are squared in float, the
 * rest is done in double, so that a large mean does not drown a small variance. */
static void add_moments(const norm *t, i64 row0, i64 rows, double *sums) {
    i64 width = padded(t->h);
    FOR_COLUMNS(t) {
        const float *y = t->y + row0 * t->h + c;
        vec sum = zero(), odd = zero(), squares = zero();
        for (i64 i = 0; i < rows; i++) {
            vec v = load_part(y + i * t->h, lanes);
            if (i & 1) odd += v;
            else sum += v;
        }
        sum += odd;
        vec mean = sum / (float)(rows ? rows : 1);
        for (i64 i = 0; i < rows; i++) {
            vec d = load_part(y + i * t->h, lanes) - mean;
            squares += d * d;
        }
        for (int k = 0; k < VL; k++) {
            double m = mean[k], n = (double)rows, rest = sum[k] - m * n;
            sums[c + k] += sum[k];
            double about = squares[k] <= 1e38f ? squares[k] : wide_squares(y + k, rows, t->h, m);
            sums[width + c + k] += about + m * (m * n + 2 * rest);
        }
    }
}

/* What f and dropout let pass of a gradient: of a ReLU `act` is what they gave, above 0 where both let
 * an element pass; else it is their slope. Padding is 0. */
INLINE vec passed(const norm *t, const float *act, const float *grad, i64 lanes) {
    if (t->f.kind == RELU) return select_above(load(act), load(grad) * t->keep);
    return first_lanes(load(act) * load(grad), lanes);
}

/* The gradient of what f and dropout gave, padded in rows of `grad`, goes through them to `to` [n, h];
 * its column sums there, and those of it times the normalised y. `act` as for `passed`. */
static void add_column_grad(const norm *t, i64 row0, i64 rows, const float *act, const float *grad,
                            float *to, double *sums) {
    i64 ld = padded(t->h);
    FOR_COLUMNS(t) {
        vec mean = load(t->mean + c), rstd = load(t->rstd + c), sum = zero(), dot = zero();
        for (i64 i = 0; i < rows; i++) {
            i64 at = (row0 + i) * t->h + c;
            vec g = passed(t, act + i * ld + c, grad + i * ld + c, lanes);
            sum += g;
            dot += g * ((load_part(t->y + at, lanes) - mean) * rstd);
            store_part(to + at, g, lanes);
        }
        add_to(sums + c, sum);
        add_to(sums + ld + c, dot);
    }
}

/* The same of a layer norm, whose dY is at hand as soon as its row is: that is stored. `of` is what
 * `activate` found. */
static void add_row_grad(const norm *t, i64 row0, i64 rows, const float *act, const float *grad,
                         row_stats *of, float *to, double *sums) {
    i64 ld = padded(t->h);
    for (i64 i = 0; i < rows; i++) {
        vec sum = zero(), dot = zero();
        FOR_COLUMNS(t) {
            vec g = passed(t, act + i * ld + c, grad + i * ld + c, lanes);
            g *= load(t->scale + c);
            sum += g;
            dot += g * ((load_part(t->y + (row0 + i) * t->h + c, lanes) - of[i].mean) * of[i].rstd);
        }
        of[i].grad = sum_of(sum) / (float)t->h, of[i].dot = sum_of(dot) / (float)t->h;
    }
    FOR_COLUMNS(t) {
        vec scale = load(t->scale + c), sum = zero(), dot = zero();
        for (i64 i = 0; i < rows; i++) {
            i64 at = (row0 + i) * t->h + c;
            vec g = passed(t, act + i * ld + c, grad + i * ld + c, lanes);
            vec normal = (load_part(t->y + at, lanes) - of[i].mean) * of[i].rstd;
            sum += g;
            dot += g * normal;
            store_part(to + at, (g * scale - of[i].grad - normal * of[i].dot) * of[i].rstd, lanes);
        }
        add_to(sums + c, sum);
        add_to(sums + ld + c, dot);
    }
}

static void add_grad(const norm *t, i64 row0, i64 rows, const float *act, const float *grad,
                     row_stats *of, float *to, double *sums) {
    if (t->by_row) add_row_grad(t, row0, rows, act, grad, of, to, sums);
    else add_column_grad(t, row0, rows, act, grad, to, sums);
}

/* dY of the layer, scale * (grad - its mean - normalised y * mean of grad times normalised y), of a
 * vector of columns: what is the same for all rows, and a row's. */
typedef struct {
    vec scale, mean, mean_grad, mean_dot;
} norm_column;

INLINE norm_column grad_column(const norm *t, i64 c) {
    if (!t->by_column) return (norm_column){zero() + 1.0f, zero(), zero(), zero()};
    return (norm_column){load(t->scale + c), load(t->mean + c), load(t->mean_grad + c),
                         load(t->mean_dot + c) * load(t->rstd + c)};
}
INLINE vec norm_grad(const norm *t, const norm_column *k, i64 at, i64 lanes) {
    vec y = load_part(t->y + at, lanes), g = load_part(t->grad + at, lanes);
    if (t->by_column) g = k->scale * (g - k->mean_grad - (y - k->mean) * k->mean_dot);
    return g;
}

/* The sums of all parts, in order: two rows of [padded(h)] after the parts'. */
static void add_parts(double *sums, i64 parts, i64 width) {
    double *total = sums + parts * 2 * width;
    memset(total, 0, sizeof(double) * (size_t)(2 * width));
    for (i64 part = 0; part < parts; part++)
        for (i64 c = 0; c < 2 * width; c++) total[c] += sums[part * 2 * width + c];
}

/* From sums of y and of its squares to scale and shift. The running statistics move by `momentum`
 * towards the batch's, with the unbiased variance. */
static void take_moments(norm *t, const double *total, const float *gamma, const float *beta,
                         double eps, double momentum, float *running_mean, float *running_var) {
    i64 width = padded(t->h);
    double count = (double)t->n;
    for (i64 c = 0; c < t->h; c++) {
        double m = total[c] / count, v = total[width + c] / count - m * m;
        v = v > 0 ? v : v == v ? 0 : v; /* never below 0 by rounding; NaN stays NaN */
        t->mean[c] = (float)m;
        t->rstd[c] = (float)inverse_sqrt(v + eps);
        t->scale[c] = gamma[c] * t->rstd[c];
        t->shift[c] = beta[c] - t->scale[c] * t->mean[c];
        running_mean[c] = (float)(momentum * m + (1 - momentum) * running_mean[c]);
        running_var[c] = (float)(momentum * v * count / (count - 1) + (1 - momentum) * running_var[c]);
    }
}
