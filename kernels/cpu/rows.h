/* The distinct rows of a matrix, found by a hash of their bytes. */
#pragma once
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

INLINE uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash << 29 | hash >> 35; /* what a product leaves in the upper bits, the next needs below */
}

static uint64_t hash_row(const char *row, i64 bytes) {
    uint64_t even = 1, odd = 2, word[2]; /* two chains of products side by side */
    for (; bytes >= 16; bytes -= 16, row += 16) {
        memcpy(word, row, 16);
        even = mixed(even, word[0]), odd = mixed(odd, word[1]);
    }
    word[0] = word[1] = 0;
    memcpy(word, row, (size_t)bytes);
    return mixed(mixed(even, word[0]), mixed(odd, word[1]));
}

#define MANY 4096 /* rows that may all be distinct before there are too many */

/* Which of the distinct rows each of n rows of `bytes` is, in `code`, and where each of them comes
 * first, in `first` [n / 4]. Returns how many they are; -1 where that is more than a quarter of all, or
 * than MANY and a quarter of all up to there. Rows are `ld` bytes apart. */
static i64 find_distinct(i64 n, i64 bytes, i64 ld, const char *x, int32_t *code, i64 *first) {
    i64 slots = 8, count = 0, i = 0;
    while (slots < n) slots *= 2;
    int32_t *taken = calloc((size_t)slots, sizeof(int32_t)); /* 1 + the row that is in a slot, or 0 */
    for (; i < n && taken; i++) {
        const char *row = x + i * ld;
        i64 at = (i64)(hash_row(row, bytes) & (uint64_t)(slots - 1));
        while (taken[at] && memcmp(row, x + first[taken[at] - 1] * ld, (size_t)bytes))
            at = (at + 1) & (slots - 1);
        if (!taken[at]) {
            if (4 * (count + 1) > n || (count >= MANY && 4 * count > i)) break;
            first[count++] = i, taken[at] = (int32_t)count;
        }
        code[i] = taken[at] - 1;
    }
    free(taken);
    return i < n ? -1 : count;
}
