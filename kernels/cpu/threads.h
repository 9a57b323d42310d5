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

/* A thread should have several times what it takes to wake it, by a rough count of clock cycles. */
static int useful(int threads, i64 cycles) {
    i64 most = cycles / 300000;
    return most < 2 ? 1 : (int)min64(threads, most);
}

/* Threads that wait for work, begun when they are first asked for. One call has them at a time:
 * another, from another thread of the program, works alone. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    job *job;
    int count, working;
    atomic_int wanted, taken; /* how many more may help; whether a call has them */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

/* The passes of a call follow each other within microseconds: a thread looks out for the next one
 * before it goes to sleep. */
#define LOOKS 1000
INLINE void pause_a_little(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void *help(void *unused) {
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.wanted) pthread_cond_wait(&pool.wake, &pool.lock);
        pool.wanted--;
        pool.working++;
        job *j = pool.job;
        pthread_mutex_unlock(&pool.lock);
        run_parts(j);
        pthread_mutex_lock(&pool.lock);
        if (!--pool.working) pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.lock);
        for (int i = 0; i < LOOKS && !pool.wanted; i++) pause_a_little();
        pthread_mutex_lock(&pool.lock);
    }
    return unused;
}

/* A process that forks leaves its threads behind. */
static void forget_threads(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.count = pool.working = 0;
    pool.wanted = pool.taken = 0;
}

static void parallel(work_fn work, const void *args, i64 parts, int threads) {
    static int watches_forks;
    job j = {work, args, parts, 0};
    int wanted = (int)min64(min64(threads, parts), MAX_THREADS) - 1;
    if (wanted < 1 || atomic_exchange(&pool.taken, 1)) {
        run_parts(&j);
        return;
    }
    if (!watches_forks) watches_forks = !pthread_atfork(NULL, NULL, forget_threads);
    pthread_mutex_lock(&pool.lock);
    for (pthread_t id; pool.count < wanted && !pthread_create(&id, NULL, help, NULL); pool.count++)
        pthread_detach(id);
    pool.job = &j, pool.wanted = (int)min64(wanted, pool.count);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    run_parts(&j);
    pthread_mutex_lock(&pool.lock);
    pool.wanted = 0; /* who has not come by now need not come */
    while (pool.working) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pool.taken = 0;
}
