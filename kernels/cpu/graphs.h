/* Tiles of whole graphs of a packed dataset, and the product of their adjacency with a tile's rows. */
#pragma once
#include "threads.h"

#ifndef TILE_ROWS
#define TILE_ROWS 64
#endif
#define GROUP 4 /* edges that are added up at a time */

/* One direction of a dataset's edges; a graph's nodes are numbered within it. */
typedef struct {
    const i64 *rowptr;    /* [N + 1] */
    const int32_t *col;   /* [E] */
    const float *weight;  /* [E], or NULL: all 1 */
    const int16_t *listed; /* col again, each row filled up to whole groups of GROUP with -1; or NULL */
    const i64 *group;     /* [N + 1] first group of each row; NULL: one a row, whatever its edges */
    const i64 *busy_ptr;  /* [N + 1] then: which of `busy` are before a node; NULL: there are none */
    const int16_t *busy;  /* rows of more than GROUP edges */
} side;

typedef struct {
    const i64 *ptr;       /* [B + 1] first row of each graph in the batch */
    const i64 *first;     /* [B] first node of each graph in the packed dataset */
    const float *scale;   /* [N] D^(-1/2), for scale A scale instead of A; or NULL */
    side sides[2];        /* by target and by source */
    const i64 *part;      /* [parts + 1] first graph of each part */
    i64 count;            /* graphs */
    i64 degree;           /* edges a node in the dataset, which chooses between rewrites of a sum */
} graphs;

/* --- The tiles of a part ---------------------------------------------------------------------- */

/* A tile is a run of whole graphs of at least TILE_ROWS rows. */
typedef struct {
    const graphs *g;
    i64 b0, b1, row0, rows; /* its graphs, the first of its rows in the batch, and their number */
    float *scale;           /* [rows], or NULL: none, or there are no hops */
    uint32_t *edges[2];     /* where the rows lie that a row adds up, in bytes for each vector of a
                               row, GROUP at a time: missing ones name row `rows`; NULL: not listed */
    int32_t *ends[2];       /* [rows], each row's end in `edges`; NULL: GROUP a row */
} tile;

static i64 tile_end(const graphs *g, i64 b0, i64 last) {
    i64 b1 = b0 + 1;
    while (b1 < last && g->ptr[b1] - g->ptr[b0] < TILE_ROWS) b1++;
    return b1;
}

static i64 largest_tile(const graphs *g, i64 part) {
    i64 rows = 0, last = g->part[part + 1];
    for (i64 b = g->part[part]; b < last;) {
        i64 end = tile_end(g, b, last), n = g->ptr[end] - g->ptr[b];
        if (n > rows) rows = n;
        b = end;
    }
    return rows;
}

/* Of a symmetric dataset both sides are one. */
INLINE int is_symmetric(const graphs *g) { return g->sides[1].rowptr == g->sides[0].rowptr; }

/* Which sides of the edges hops go by: bit 0, by target; bit 1, by source. */
INLINE int goes_by(const graphs *g, int sides, int which) {
    return is_symmetric(g) ? sides && !which : sides >> which & 1;
}

/* Graphs are drawn from all over the dataset, and no hardware foresees where the next one lies: two
 * tiles ahead its row pointers are asked for, one tile ahead its edges. */
INLINE void ask_for(const void *from, i64 bytes) {
    for (const char *p = from, *end = p + bytes + LINE - 1; p < end; p += LINE) __builtin_prefetch(p);
}
static void ask_for_rows(const graphs *g, int sides, i64 b0, i64 b1) {
    for (int s = 0; s < 2; s++)
        for (i64 b = b0; b < b1 && goes_by(g, sides, s); b++) {
            const side *e = g->sides + s;
            const i64 *rows = e->listed ? e->group : e->rowptr;
            if (rows) ask_for(rows + g->first[b], 8 * min64(g->ptr[b + 1] - g->ptr[b] + 1, 256));
        }
}
static void ask_for_edges(const graphs *g, int sides, i64 b0, i64 b1) {
    for (i64 b = b0; b < b1 && sides; b++) {
        i64 first = g->first[b], rows = min64(g->ptr[b + 1] - g->ptr[b], 256);
        if (g->scale) ask_for(g->scale + first, 4 * rows);
        for (int s = 0; s < 2; s++) {
            const side *e = g->sides + s;
            if (!goes_by(g, sides, s)) continue;
            if (e->listed) {
                i64 start = e->group ? e->group[first] : first;
                i64 groups = e->group ? min64(e->group[first + rows] - start, 1024) : rows;
                ask_for(e->listed + GROUP * start, 2 * GROUP * groups);
                if (e->busy_ptr) ask_for(e->busy_ptr + first, 1);
                continue;
            }
            i64 start = e->rowptr[first], edges = min64(e->rowptr[first + rows] - start, 4096);
            ask_for(e->col + start, 4 * edges);
            if (e->weight) ask_for(e->weight + start, 4 * edges);
        }
    }
}

/* Where a walk over the tiles of a part is: graphs start to end now, those up to `next` after. */
typedef struct {
    const graphs *g;
    int sides; /* that its tiles list, see `goes_by` */
    i64 start, end, next, last;
} walk;

static walk first_tile(const graphs *g, int sides, i64 part) {
    i64 b0 = g->part[part], last = g->part[part + 1];
    if (b0 == last) return (walk){g, sides, b0, b0, b0, b0};
    i64 b1 = tile_end(g, b0, last), b2 = b1 < last ? tile_end(g, b1, last) : last;
    ask_for_rows(g, sides, b0, b2);
    return (walk){g, sides, b0, b1, b2, last};
}
static void next_tile(walk *w) {
    i64 after = w->next < w->last ? tile_end(w->g, w->next, w->last) : w->last;
    w->start = w->end, w->end = w->next, w->next = after;
}

/* Floats of memory that `enter_tile` needs for a tile of so many rows. */
static i64 tile_floats(i64 rows) { return padded(rows) + VL; }

#define LISTED 65536 /* edges of a tile whose list still lies in the cache */
#define ROW_BYTES (4 * VL)

/* The edges of one side, as hops read them, in memory of their own: for all of a tile's layers. */
static void list_edges(tile *t, int which) {
    const graphs *g = t->g;
    const side *s = g->sides + which;
    i64 groups = t->rows;
    for (i64 b = t->b0; b < t->b1 && s->listed && s->group; b++)
        groups += s->group[g->first[b] + g->ptr[b + 1] - g->ptr[b]] - s->group[g->first[b]];
    if (!s->listed || GROUP * groups > LISTED + GROUP * t->rows) return;
    uint32_t *to = t->edges[which] = memory_of(EDGES + which, GROUP * groups + t->rows);
    int32_t *end = (int32_t *)to + GROUP * groups, none = (int32_t)t->rows;
    t->ends[which] = s->group ? end : NULL;
    for (i64 b = t->b0; b < t->b1; b++) {
        i64 first = g->first[b], rows = g->ptr[b + 1] - g->ptr[b], before = to - t->edges[which];
        i64 start = s->group ? s->group[first] : first;
        i64 many = GROUP * (s->group ? s->group[first + rows] - start : rows);
        const int16_t *from = s->listed + GROUP * start;
        int32_t row0 = (int32_t)(g->ptr[b] - t->row0);
        for (i64 i = 0; i < many; i++) {
            int32_t row = from[i] < 0 ? none : row0 + from[i];
            to[i] = (uint32_t)row * ROW_BYTES;
        }
        for (i64 i = 0; i < rows && s->group; i++)
            *end++ = (int32_t)(before + GROUP * (s->group[first + i + 1] - start));
        to += many;
    }
}

/* The tile that a walk has come to; `memory` is its own until it is left. */
static tile enter_tile(const walk *w, float *memory) {
    const graphs *g = w->g;
    tile t = {.g = g, .b0 = w->start, .b1 = w->end, .row0 = g->ptr[w->start]};
    t.rows = g->ptr[t.b1] - t.row0;
    ask_for_edges(g, w->sides, w->end, w->next);
    if (w->next < w->last) ask_for_rows(g, w->sides, w->next, tile_end(g, w->next, w->last));
    if (w->sides && g->scale) t.scale = memory;
    for (i64 b = t.b0; b < t.b1 && t.scale; b++)
        for (i64 i = 0, n = g->ptr[b + 1] - g->ptr[b]; i < n; i += VL)
            store(memory + g->ptr[b] - t.row0 + i, load_part(g->scale + g->first[b] + i, n - i));
    for (int s = 0; s < 2; s++)
        if (goes_by(g, w->sides, s)) list_edges(&t, s);
    if (is_symmetric(g)) t.edges[1] = t.edges[0], t.ends[1] = t.ends[0];
    return t;
}

/* --- Hops ------------------------------------------------------------------------------------- */

/* One product with scale A scale. V = init + scale A from: `from` is scaled already, as `next` is
 * for the hop after, and both are in rows of `width` floats, whole vectors. Of `from` and `init` lanes
 * beyond the layer's width may be anything, and row `rows` of `from` must be there to write to. */
typedef struct {
    float *from;
    i64 width;
    const float *init; /* or NULL: 0 */
    i64 init_ld;
    float *to; /* V, or NULL; of its last vector `tail` lanes */
    i64 to_ld, tail, relu;
    float *next; /* scale V, or NULL */
} hop_rows;

INLINE void finish_row(const int NV, const hop_rows *h, i64 i, i64 ld, i64 n, const vec *sum,
                       float scale, i64 tail) {
    UNROLL
    for (int v = 0; v < NV; v++) {
        i64 at = n + v * VL;
        vec value = sum[v] * scale;
        if (h->init) value += load(h->init + i * h->init_ld + at);
        if (h->to)
            store_part(h->to + i * h->to_ld + at, h->relu ? select_above(value, value) : value,
                       v == NV - 1 ? tail : VL);
        if (h->next) store(h->next + i * ld + at, value * scale);
    }
}

/* GROUP rows that are listed, added to as many sums: an addition waits four cycles for the one before. */
INLINE void add_listed(const int NV, const uint32_t *edge, const float *from, i64 vectors, vec acc[4][4]) {
    UNROLL
    for (int u = 0; u < GROUP; u++)
        UNROLL
        for (int v = 0; v < NV; v++)
            acc[u][v] += load((const float *)((const char *)from + edge[u] * (uint64_t)vectors) + v * VL);
}
INLINE void clear(const int NV, vec acc[4][4]) {
    UNROLL
    for (int u = 0; u < 4; u++)
        UNROLL
        for (int v = 0; v < NV; v++) acc[u][v] = zero();
}
INLINE void add_up(const int NV, vec acc[4][4], vec *sum) {
    UNROLL
    for (int v = 0; v < NV; v++) sum[v] = (acc[0][v] + acc[1][v]) + (acc[2][v] + acc[3][v]);
}

INLINE void add_edge(const int NV, const side *s, i64 e, const float *from, i64 ld, vec *sum) {
    const float *row = from + s->col[e] * ld;
    float weight = s->weight ? s->weight[e] : 1.0f;
    UNROLL
    for (int v = 0; v < NV; v++) sum[v] += load(row + v * VL) * weight;
}

/* Node i of graph b by the dataset's own arrays. */
INLINE void hop_node(const int NV, const tile *t, const side *s, const hop_rows *h, i64 b, i64 i,
                     i64 ld, i64 n, i64 tail) {
    i64 start = t->g->ptr[b] - t->row0, e = s->rowptr[t->g->first[b] + i];
    i64 end = s->rowptr[t->g->first[b] + i + 1];
    const float *from = h->from + start * ld + n;
    vec acc[4][4], sum[4];
    clear(NV, acc);
    for (; e + 1 < end; e += 2) {
        add_edge(NV, s, e, from, ld, acc[0]);
        add_edge(NV, s, e + 1, from, ld, acc[1]);
    }
    if (e < end) add_edge(NV, s, e, from, ld, acc[0]);
    add_up(NV, acc, sum);
    finish_row(NV, h, start + i, ld, n, sum, t->scale ? t->scale[start + i] : 1.0f, tail);
}

/* Rows of a few edges, as atoms have, end where no processor can foresee, and a wrong guess costs
 * more than an edge: four are always summed, of which the missing ones are row `rows`, zeros. The
 * structures are copied: what is stored could else change them, as far as the compiler knows. */
INLINE void hop_strip(const int NV, const tile *on, int transposed, const hop_rows *given, i64 ld,
                      i64 n, i64 tail) {
    const tile t = *on;
    const hop_rows h = *given;
    const side s = t.g->sides[transposed];
    const uint32_t *edge = t.edges[transposed];
    const int32_t *ends = t.ends[transposed];
    const float *from = h.from + n;
    vec acc[4][4], sum[4];
    if (edge)
        UNROLL
        for (int v = 0; v < NV; v++) store(h.from + t.rows * ld + n + v * VL, zero());
    if (edge && ends) {
        const uint32_t *first = edge;
        for (i64 i = 0; i < t.rows; i++) {
            clear(NV, acc);
            for (const uint32_t *end = first + ends[i]; edge < end; edge += GROUP)
                add_listed(NV, edge, from, ld / VL, acc);
            add_up(NV, acc, sum);
            finish_row(NV, &h, i, ld, n, sum, t.scale ? t.scale[i] : 1.0f, tail);
        }
        return;
    }
    for (i64 i = 0; i < t.rows && edge; i++, edge += GROUP) {
        clear(NV, acc);
        add_listed(NV, edge, from, ld / VL, acc);
        add_up(NV, acc, sum);
        finish_row(NV, &h, i, ld, n, sum, t.scale ? t.scale[i] : 1.0f, tail);
    }
    if (edge && !s.busy_ptr) return;
    for (i64 b = t.b0; b < t.b1; b++) {
        i64 rows = t.g->ptr[b + 1] - t.g->ptr[b], k = 0, end = rows;
        if (edge) k = s.busy_ptr[t.g->first[b]], end = s.busy_ptr[t.g->first[b] + rows];
        for (; k < end; k++) hop_node(NV, &t, &s, &h, b, edge ? s.busy[k] : k, ld, n, tail);
    }
}

#define HOPS(NV)                                                                                   \
    static void hop_##NV(const tile *t, int transposed, const hop_rows *h, i64 n, i64 tail) {      \
        if (h->width == NV * VL) /* an address is then no product */                               \
            hop_strip(NV, t, transposed, h, NV * VL, n, tail);                                     \
        else                                                                                       \
            hop_strip(NV, t, transposed, h, h->width, n, tail);                                    \
    }
HOPS(1) HOPS(2) HOPS(3) HOPS(4)

static void hop(const tile *t, int transposed, const hop_rows *h) {
    static void (*const hops[4])(const tile *, int, const hop_rows *, i64, i64) = {hop_1, hop_2, hop_3,
                                                                                   hop_4};
    for (i64 n = 0; n < h->width; n += 4 * VL) {
        i64 take = min64((h->width - n) / VL, 4);
        hops[take - 1](t, transposed, h, n, n + take * VL == h->width ? h->tail : VL);
    }
}

/* Rows of whole vectors times scale, one after another. */
static void scale_rows(const tile *t, const float *from, i64 from_ld, float *to, i64 width) {
    for (i64 i = 0; i < t->rows; i++)
        for (i64 n = 0; n < width; n += VL)
            store(to + i * width + n, load(from + i * from_ld + n) * (t->scale ? t->scale[i] : 1.0f));
}

/* Clock cycles of a hop of one vector, roughly, in a dataset of so many edges a node. */
static i64 hop_cycles(i64 degree) { return degree <= GROUP ? 6 : 16 + degree; }
