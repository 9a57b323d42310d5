/* What stands between two layers, and its slope. */
#pragma once
#include "vectors.h"

/* Of x <= 0, e^x = (rest + 1) * power, to two units in the last place; 0 below -87. NaN stays NaN. */
typedef struct {
    vec rest, power;
    ivec tiny;
} exponent;
INLINE exponent split_exponent(vec x) {
    ivec tiny = (ivec)(x < -87.0f);
    x = choose(tiny, zero() - 87.0f, x);
    vec n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to a whole number */
    vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vec p = r * 1.9875691e-4f + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665795e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 5.0000001e-1f;
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return (exponent){p * r * r + r, (vec)power, tiny};
}
INLINE vec whole(exponent e) { return (vec)((ivec)((e.rest + 1.0f) * e.power) & ~e.tiny); }
INLINE vec less_1(exponent e) { return e.rest * e.power + (e.power - 1.0f); } /* loses no digits */
INLINE vec exponential(vec x) { return whole(split_exponent(x)); }

INLINE vec minus_size(vec x) { return (vec)((ivec)x | (int32_t)0x80000000); } /* -|x| */

INLINE vec sigmoid(vec x) {
    vec e = exponential(minus_size(x)), one = zero() + 1.0f; /* nothing overflows */
    return choose(x < 0.0f, e, one) / (one + e);
}

INLINE vec hyperbolic_tangent(vec x) {
    vec m = less_1(split_exponent(2.0f * minus_size(x))), size = m / (m + 2.0f);
    return choose(x > 0.0f, -size, size);
}

/* The normal distribution's density and its integral: Abramowitz and Stegun, 7.1.26, to 1e-7. */
INLINE vec normal_density(vec x) { return exponential(x * x * -0.5f) * 0.398942280f; }
INLINE vec normal_below(vec x) {
    vec t = 1.0f / (1.0f - minus_size(x) * (0.3275911f * 0.707106781f));
    vec p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vec tail = p * t * exponential(x * x * -0.5f) * 0.5f;
    return choose(x < 0.0f, tail, 1.0f - tail);
}

/* In the order of native/network.py. */
enum { RELU, IDENTITY, LEAKY_RELU, ELU, GELU, SIGMOID, SILU, TANH };
typedef struct {
    i64 kind;
    double alpha; /* below 0 a leaky ReLU is alpha * x and an ELU alpha * (e^x - 1) */
} activation;

/* f(x); and f'(x), unless that is NULL. */
INLINE vec activated(activation f, vec x, vec *slope) {
    vec one = zero() + 1.0f, alpha = zero() + (float)f.alpha, y = x, s = one;
    if (f.kind == RELU) {
        y = select_above(x, x), s = select_above(x, one);
    } else if (f.kind == LEAKY_RELU) {
        s = choose(x > 0.0f, one, alpha), y = x * s;
    } else if (f.kind == ELU) {
        exponent e = split_exponent((vec)((ivec)x & ~(ivec)(x > 0.0f)));
        y = choose(x > 0.0f, x, alpha * less_1(e)), s = choose(x > 0.0f, one, alpha * whole(e));
    } else if (f.kind == GELU) {
        vec below = normal_below(x);
        y = x * below, s = below + x * normal_density(x);
    } else if (f.kind == SIGMOID) {
        y = sigmoid(x), s = y * (one - y);
    } else if (f.kind == SILU) {
        vec g = sigmoid(x);
        y = x * g, s = g + y * (one - g);
    } else if (f.kind == TANH) {
        y = hyperbolic_tangent(x), s = one - y * y;
    }
    if (slope) *slope = s;
    return y;
}
