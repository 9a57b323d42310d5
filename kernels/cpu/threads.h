/* Memory, and threads that take parts of the work from a counter. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

static float *buffer(i64 floats) {
    return aligned_alloc(64, (size_t)(4 * floats + 63) / 64 * 64 + 64);
}

/* Padding is computed with, though never read out: it must not hold denormals, which are slow. */
static float *zeros(i64 floats) {
    float *p = buffer(floats);
    memset(p, 0, sizeof(float) * (size_t)floats);
    return p;
}

#define MAX_THREADS 64

typedef void (*work_fn)(const void *args, i64 part);
typedef struct {
    work_fn work;
    const void *args;
    i64 parts;
    atomic_llong next;
} job;

/* Memory of the thread, kept between calls: asking for it anew would have the system clear its
 * pages. One block for each use. */
enum { SCRATCH, EDGES, EDGES_TRANSPOSED, USES };
static _Thread_local struct {
    float *at;
    i64 size;
} kept_memory[USES];

static void *memory_of(int use, i64 floats) {
    if (floats > kept_memory[use].size) {
        free(kept_memory[use].at);
        kept_memory[use].at = zeros(floats);
        kept_memory[use].size = floats;
    }
    return kept_memory[use].at;
}
static float *scratch(i64 floats) { return memory_of(SCRATCH, floats); }

static void run_parts(job *j) {
    for (i64 part; (part = atomic_fetch_add(&j->next, 1)) < j->parts;) j->work(j->args, part);
}

static void *run_thread(void *j) {
    run_parts(j);
    for (int use = 0; use < USES; use++) free(kept_memory[use].at);
    return NULL;
}

/* A thread takes a tenth of a millisecond to begin and to end: each should have several times that
 * to do, by a rough count of clock cycles. */
static int useful(int threads, i64 cycles) {
    i64 most = cycles / 1500000;
    return most < 2 ? 1 : (int)min64(threads, most);
}

static void parallel(work_fn work, const void *args, i64 parts, int threads) {
    job j = {work, args, parts, 0};
    pthread_t ids[MAX_THREADS];
    int started = 0, wanted = (int)min64(min64(threads, parts), MAX_THREADS) - 1;
    while (started < wanted && !pthread_create(&ids[started], NULL, run_thread, &j)) started++;
    run_parts(&j);
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
}
