/* Edges as PyG lists them, sorted into the arrays that graphs.h reads; and what follows from edges
 * alone. */
#pragma once
#include "graphs.h"

/* What `sort_edges` reads (above) and fills in. Edges run from source to target. */
typedef struct {
    i64 nodes, edges, graphs, most; /* `most`: nodes that a graph may have */
    const i64 *source, *target;     /* [E] */
    const float *weight;            /* [E], or NULL: all 1 */
    i64 named;                      /* whether `batch` says which graphs there are; else they are
                                       runs of nodes that no edge leaves, whole tiles where possible */
    const i64 *batch;               /* [n] graph of each node, ascending */
    i64 *ptr;                       /* [graphs + 1], or [n + 1] */
    i64 *rowptr[2];                 /* [n + 1], by target and by source */
    int32_t *col[2];                /* [E], a row's in ascending order, within their graphs */
    float *value[2];                /* [E], or NULL */
    i64 symmetric;                  /* whether both sides are the same */
} edge_list;

/* ptr of the graphs that `batch` names; 0 where it descends or names others. */
static int take_graphs(edge_list *l) {
    i64 graph = 0;
    l->ptr[0] = 0;
    for (i64 i = 0; i < l->nodes; i++) {
        if (l->batch[i] < graph || l->batch[i] >= l->graphs) return 0;
        while (graph < l->batch[i]) l->ptr[++graph] = i;
    }
    while (graph < l->graphs) l->ptr[++graph] = l->nodes;
    return 1;
}

/* ptr of runs of nodes that no edge leaves, of TILE_ROWS nodes or more (but for the last) unless that
 * takes them beyond `most`; ptr[i + 1] is how far edges from or to i reach, and read before it is
 * written to. */
static void find_graphs(edge_list *l) {
    i64 run = 0, piece = 0, last = 0; /* where the run begins, and the shortest one at its end */
    l->ptr[0] = l->graphs = 0;
    for (i64 i = 0; i < l->nodes; i++) {
        if (l->ptr[i + 1] > last) last = l->ptr[i + 1];
        if (last > i) continue;
        if (i + 1 - run > l->most && piece > run) run = l->ptr[++l->graphs] = piece;
        if (i + 1 - run >= TILE_ROWS) run = l->ptr[++l->graphs] = i + 1;
        last = piece = i + 1;
    }
    if (run < l->nodes) l->ptr[++l->graphs] = l->nodes;
}

/* Counts of edges in rowptr[1 ...] to where each row begins; its next edge goes to `next`. */
static void begin_rows(i64 nodes, i64 *rowptr, int32_t *next) {
    for (i64 i = 0; i < nodes; i++) {
        next[i] = (int32_t)rowptr[i];
        rowptr[i + 1] += rowptr[i];
    }
}

/* One side of the edges from the other: columns ascend, and of equal ones the order stays. */
static void transpose(const edge_list *l, int from, const int32_t *first, int32_t *next) {
    const i64 *rowptr = l->rowptr[from], *to = l->rowptr[1 - from];
    for (i64 i = 0; i < l->nodes; i++) next[i] = (int32_t)to[i];
    for (i64 i = 0; i < l->nodes; i++)
        for (i64 e = rowptr[i]; e < rowptr[i + 1]; e++) {
            i64 at = next[first[i] + l->col[from][e]]++;
            l->col[1 - from][at] = (int32_t)i - first[i];
            if (l->weight) l->value[1 - from][at] = l->value[from][e];
        }
}

/* Sorts by counting: by source, and that transposed twice. 0 where this is no list of edges within
 * graphs of up to `most` nodes, and then nothing is said of what was written. */
static int sort_list(edge_list *l, int32_t *next, int32_t *first) {
    i64 n = l->nodes, *by_target = l->rowptr[0], *by_source = l->rowptr[1];
    if (n >= INT32_MAX || l->edges >= INT32_MAX) return 0;
    memset(by_target, 0, sizeof(i64) * (size_t)(n + 1));
    memset(by_source, 0, sizeof(i64) * (size_t)(n + 1));
    for (i64 i = 0; i < n && !l->named; i++) l->ptr[i + 1] = i;
    for (i64 e = 0; e < l->edges; e++) {
        i64 source = l->source[e], target = l->target[e];
        i64 low = min64(source, target), high = source > target ? source : target;
        if (low < 0 || high >= n || high - low >= l->most) return 0;
        by_source[source + 1]++;
        by_target[target + 1]++;
        if (!l->named && high > l->ptr[low + 1]) l->ptr[low + 1] = high;
    }
    if (!l->named) find_graphs(l);
    else if (!take_graphs(l)) return 0;
    for (i64 b = 0; b < l->graphs; b++) {
        if (l->ptr[b + 1] - l->ptr[b] > l->most) return 0;
        for (i64 i = l->ptr[b]; i < l->ptr[b + 1]; i++) first[i] = (int32_t)l->ptr[b];
    }
    begin_rows(n, by_source, next);
    for (i64 e = 0; e < l->edges; e++) {
        i64 source = l->source[e], target = l->target[e], at = next[source]++;
        if (first[source] != first[target]) return 0;
        l->col[1][at] = (int32_t)target - first[target];
        if (l->weight) l->value[1][at] = l->weight[e];
    }
    begin_rows(n, by_target, next);
    transpose(l, 1, first, next);
    transpose(l, 0, first, next);
    if (!l->edges) return l->symmetric = 1;
    size_t bytes = sizeof(float) * (size_t)l->edges;
    l->symmetric = !memcmp(by_target, by_source, sizeof(i64) * (size_t)(n + 1)) &&
                   !memcmp(l->col[0], l->col[1], bytes) &&
                   (!l->weight || !memcmp(l->value[0], l->value[1], bytes));
    return 1;
}

static int sort_edges_of(edge_list *l) {
    int32_t *memory = malloc(2 * sizeof(int32_t) * (size_t)(l->nodes + 1));
    int sorted = memory && sort_list(l, memory, memory + l->nodes);
    free(memory);
    return sorted;
}

/* The columns of each row, in `listed`, filled up to whole groups with -1: as many as `group` says, or
 * one, of the row's first edges. */
static void list_groups(i64 nodes, const i64 *rowptr, const int32_t *col, const i64 *group,
                        int16_t *listed) {
    for (i64 i = 0; i < nodes; i++) {
        int16_t *to = listed + GROUP * (group ? group[i] : i);
        i64 room = GROUP * (group ? group[i + 1] - group[i] : 1), edges = rowptr[i + 1] - rowptr[i];
        for (i64 k = 0; k < room; k++) to[k] = k < edges ? (int16_t)col[rowptr[i] + k] : -1;
    }
}

/* --- Weights of a pooled layer ------------------------------------------------------------------ */

/* p_k = rho A^k, which is 1 or 1/n for k = 0, and then p_k j = the sum of p_(k-1) i over edges j -> i. */
typedef struct {
    const graphs *g;
    i64 order, nodes, mean;
    float *p; /* [order, N] */
} pool_task;

static void pool_part(const void *args, i64 part) {
    const pool_task *t = args;
    const graphs *g = t->g;
    const side *s = g->sides + 1;
    for (i64 b = g->part[part]; b < g->part[part + 1]; b++) {
        i64 first = g->first[b], n = g->ptr[b + 1] - g->ptr[b];
        const float *scale = g->scale ? g->scale + first : NULL;
        float *p = t->p + first;
        for (i64 i = 0; i < n; i++) p[i] = t->mean ? 1.0f / (float)n : 1.0f;
        for (i64 k = 1; k < t->order; k++, p += t->nodes)
            for (i64 i = 0; i < n; i++) {
                float sum = 0;
                for (i64 e = s->rowptr[first + i]; e < s->rowptr[first + i + 1]; e++) {
                    i64 j = s->col[e];
                    sum += p[j] * (scale ? scale[j] : 1.0f) * (s->weight ? s->weight[e] : 1.0f);
                }
                p[t->nodes + i] = sum * (scale ? scale[i] : 1.0f);
            }
    }
}
