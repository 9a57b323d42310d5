/* How wrong a network is on a graph: a classifier of its nodes, or one with many targets of its own. */
#pragma once
#include "activations.h"

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

/* |softmax(f) - onehot(y)|_F over the nodes of a graph, divided by the number of those with a label:
 * f [rows, classes], label [rows], below 0 where it is missing. With e = exp(f - max), S and Q the
 * sums of e and of e^2 over the wrong classes, a node's square is (Q + S^2) / (S + e_y)^2. A register
 * holds one class of VL nodes. */
static float class_score(const float *f, i64 classes, const i64 *label, i64 rows) {
    vec squares = zero(), counts = zero();
    ivec whole;
    for (int i = 0; i < VL; i++) whole[i] = (int32_t)(i * classes);
    for (i64 first = 0; first < rows; first += VL, f += VL * classes) {
        ivec at = whole, right_class;
        if (first + VL <= rows)
            for (int i = 0; i < VL; i++) right_class[i] = (int32_t)label[first + i];
        else /* what is beyond the last row counts as missing */
            for (int i = 0; i < VL; i++) {
                i64 row = min64(first + i, rows - 1);
                at[i] = (int32_t)((row - first) * classes);
                right_class[i] = first + i < rows ? (int32_t)label[row] : -1;
            }
        vec most = zero(), wrong = zero(), right = zero(), wrong_squares = zero();
        vec kept[KEPT_CLASSES];
        for (i64 c = 0; c < classes; c++) {
            vec v = one_class(f + c, at);
            if (c < KEPT_CLASSES) kept[c] = v;
            ivec above = c ? ~(ivec)(v <= most) : ~(ivec){0}; /* a NaN is above all */
            most = choose(above, v, most);
        }
        for (i64 c = 0; c < classes; c++) {
            vec e = exponential((c < KEPT_CLASSES ? kept[c] : one_class(f + c, at)) - most);
            ivec is_right = right_class == (int32_t)c;
            vec other = (vec)((ivec)e & ~is_right);
            right += (vec)((ivec)e & is_right);
            wrong += other;
            wrong_squares += other * other;
        }
        vec total = wrong + right, square = (wrong_squares + wrong * wrong) / (total * total);
        ivec known = right_class >= 0;
        squares += (vec)((ivec)square & known);
        counts += (vec)((ivec)(zero() + 1.0f) & known);
    }
    double sum = 0, count = 0;
    for (int i = 0; i < VL; i++) sum += squares[i], count += counts[i];
    return (float)__builtin_sqrt(sum) / (count > 1 ? (float)count : 1.0f);
}

/* |g(f) - y|_2 over the targets [columns] of a graph that are known (not NaN), divided by their
 * number; g is the sigmoid where f are `logits`, else the identity. -1 where a label is none:
 * below 0, or above 1. */
static float target_score(const float *f, const float *y, i64 columns, int logits, int labels) {
    vec squares = zero(), counts = zero(), wrong = zero();
    for (i64 c = 0; c < columns; c += VL) {
        i64 n = columns - c;
        vec v = load_part(f + c, n), target = load_part(y + c, n), one = zero() + 1.0f;
        ivec known = (target == target) & (ivec)(first_lanes(one, n) > 0.0f);
        vec error = v - target;
        /* g(f) - y, of which nothing cancels where the right label is certain: */
        if (logits) error = (one - target) * sigmoid(v) - target * sigmoid(-v);
        squares += (vec)((ivec)(error * error) & known);
        counts += (vec)((ivec)one & known);
        wrong += (vec)((ivec)one & known & ((target < 0.0f) | (target > 1.0f)));
    }
    if (labels && sum_of(wrong) > 0) return -1;
    float count = sum_of(counts);
    return __builtin_sqrtf(sum_of(squares)) / (count > 1 ? count : 1);
}
