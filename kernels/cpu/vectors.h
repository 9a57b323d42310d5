/* A register of floats, VL of them, in the vector types of GCC and Clang. */
#pragma once
#include <stdint.h>

#if defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif

/* Rows of a block of 1 to 4 vectors: with what they add, their sums must fit in the registers. Of these
 * there are 32, 32 (but an element of A takes one, too), or 16. */
#define UP_TO_3(X, NV) X(1, NV) X(2, NV) X(3, NV)
#define UP_TO_4(X, NV) UP_TO_3(X, NV) X(4, NV)
#define UP_TO_5(X, NV) UP_TO_4(X, NV) X(5, NV)
#define UP_TO_6(X, NV) UP_TO_5(X, NV) X(6, NV)
#define UP_TO_7(X, NV) UP_TO_6(X, NV) X(7, NV)
#define UP_TO_8(X, NV) UP_TO_7(X, NV) X(8, NV)
#define UP_TO_10(X, NV) UP_TO_8(X, NV) X(9, NV) X(10, NV)
#define UP_TO_12(X, NV) UP_TO_10(X, NV) X(11, NV) X(12, NV)
#if defined(__AVX512F__)
#define ROWS_1(X) UP_TO_12(X, 1)
#define ROWS_2(X) UP_TO_12(X, 2)
#define ROWS_3(X) UP_TO_8(X, 3)
#define ROWS_4(X) UP_TO_6(X, 4)
#elif defined(__aarch64__)
#define ROWS_1(X) UP_TO_12(X, 1)
#define ROWS_2(X) UP_TO_10(X, 2)
#define ROWS_3(X) UP_TO_7(X, 3)
#define ROWS_4(X) UP_TO_5(X, 4)
#else
#define ROWS_1(X) UP_TO_8(X, 1)
#define ROWS_2(X) UP_TO_6(X, 2)
#define ROWS_3(X) UP_TO_4(X, 3)
#if defined(__clang__) /* which takes none of what is added from memory */
#define ROWS_4(X) X(1, 4) X(2, 4)
#else
#define ROWS_4(X) UP_TO_3(X, 4)
#endif
#endif

/* A loop of few turns, one after another in the code: what it adds up then stays in the registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define LINE 64 /* bytes of a cache line */
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

typedef int64_t i64;
typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VL)));
typedef uint32_t uvec __attribute__((vector_size(4 * VL)));

INLINE i64 min64(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 vectors(i64 width) { return (width + VL - 1) / VL; }
INLINE i64 padded(i64 width) { return vectors(width) * VL; }
INLINE vec zero(void) { return (vec){0}; }
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

#if VL == 8
INLINE __m256i first_of_8(i64 n) {
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(mask + 8 - n));
}
#endif

/* The first n lanes; the others are 0, or stay as they are in memory. */
INLINE vec load_part(const float *p, i64 n) {
    if (n >= VL) return load(p);
#if VL == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif VL == 8
    return (vec)_mm256_maskload_ps(p, first_of_8(n));
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
#elif VL == 8
    _mm256_maskstore_ps(p, first_of_8(n), (__m256)v);
#else
    for (i64 i = 0; i < n; i++) p[i] = v[i];
#endif
}
INLINE float sum_of(vec v) {
#if VL == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0;
    for (int i = 0; i < VL; i++) sum += v[i];
    return sum;
#endif
}
/* The first n lanes; the others 0. */
INLINE vec first_lanes(vec v, i64 n) {
    ivec lane;
    for (int i = 0; i < VL; i++) lane[i] = i;
    return (vec)((ivec)v & (lane < (int32_t)min64(n, VL)));
}
INLINE vec choose(ivec where, vec yes, vec no) {
    return (vec)(((ivec)yes & where) | ((ivec)no & ~where));
}
INLINE vec select_above(vec test, vec value) { /* value where test > 0, else 0; NaN passes */
    return (vec)((ivec)value & ~(ivec)(test <= 0.0f));
}
