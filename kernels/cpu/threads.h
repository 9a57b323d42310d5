/* Memory, and threads that take parts of the work from a counter. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

/* Memory that was asked for; without it the process ends, and says why. */
static void *obtained(void *memory) {
    if (memory) return memory;
    fputs("grant_fast: the CPU kernels ran out of memory: take smaller batches\n", stderr);
    abort();
}
static void *cleared(i64 count, size_t size) { return obtained(calloc((size_t)(count + 1), size)); }

static float *buffer(i64 floats) {
    return obtained(aligned_alloc(LINE, (size_t)(4 * floats + LINE - 1) / LINE * LINE + LINE));
}

/* Padding is computed with, though never read out: it starts without denormals, which are slow. */
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
 * pages. One block for each use. The system frees it with the thread, which may be the user's, if
 * the process had a key left to say so. */
enum { SCRATCH, EDGES, EDGES_TRANSPOSED, USES };
typedef struct {
    float *at;
    i64 size;
} kept_block;
static _Thread_local kept_block *kept_memory; /* [USES] */
static pthread_key_t kept_key;
static int has_key;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;

static void free_kept(void *memory) {
    kept_block *blocks = memory;
    for (int use = 0; use < USES; use++) free(blocks[use].at);
    free(blocks);
}
static void make_key(void) { has_key = !pthread_key_create(&kept_key, free_kept); }

static void *memory_of(int use, i64 floats) {
    if (!kept_memory) {
        pthread_once(&kept_once, make_key);
        kept_memory = cleared(USES, sizeof(kept_block));
        if (has_key) pthread_setspecific(kept_key, kept_memory);
    }
    if (floats > kept_memory[use].size) {
        free(kept_memory[use].at);
        kept_memory[use].at = zeros(floats);
        kept_memory[use].size = floats;
    }
    return kept_memory[use].at;
}
static float *scratch(i64 floats) { return memory_of(SCRATCH, floats); }

static void run_parts(void *args) {
    job *j = args;
    for (i64 part; (part = atomic_fetch_add(&j->next, 1)) < j->parts;) j->work(j->args, part);
}

/* OpenMP's own entry, GOMP_parallel(work, its argument, threads, flags), of the library that PyTorch
 * has loaded. Its threads look out for work for milliseconds after PyTorch's last operator: others
 * would have to share the cores with them. NULL where there is none. */
static void (*openmp)(void (*)(void *), void *, unsigned, unsigned);

static void *run_thread(void *j) {
    run_parts(j);
    return NULL;
}

/* All threads where there is something to do for each, by a rough count of clock cycles, else one: a
 * team of another size than PyTorch's would be a new one each time. */
static int useful(int threads, i64 cycles) {
    i64 least = openmp ? 50000 : 1500000; /* to wake a thread, or to begin one */
    return cycles < least * threads ? 1 : threads;
}

static void parallel(work_fn work, const void *args, i64 parts, int threads) {
    job j = {work, args, parts, 0};
    pthread_t ids[MAX_THREADS];
    int started = 0, wanted = (int)min64(min64(threads, parts), MAX_THREADS) - 1;
    if (openmp && wanted > 0) {
        openmp(run_parts, &j, (unsigned)threads, 0);
        return;
    }
    while (started < wanted && !pthread_create(&ids[started], NULL, run_thread, &j)) started++;
    run_parts(&j);
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
}
