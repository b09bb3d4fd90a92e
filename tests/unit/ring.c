/* Rings under load: order, counts, holes, chains, limits, early ends, wake-ups.
 *
 * Items are numbers in pointers; value v passes as one item, as none (a hole) or as a chain, by a rule on v
 * alone, so the consumer knows exactly what must come out. "Stalls" are yields and short sleeps at points
 * that a counter picks, so a run is the same mix every time.
 *
 * @label short
 * @timeout 60
 */
#include "core/flow/ring.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define ITEM(v) GSIZE_TO_POINTER(v)
#define VALUE(p) GPOINTER_TO_SIZE(p)

static _Atomic(gint64) dropped;

static void drop(gpointer item)
{
    g_assert_nonnull(item);
    atomic_fetch_add(&dropped, 1);
}

typedef struct {
    FlowRing *in, *out;
    pthread_mutex_t dispatch;
    gboolean stall, holes, chains;
    gsize nbytes;
    _Atomic(gint64) taken, given; /* items */
} Node;

/* How many items value v becomes. */
static gsize copies(const Node *node, gsize v)
{
    return node->holes && v % 7 == 0 ? 0 : node->chains && v % 5 == 0 ? 1 + v % 4 : 1;
}

/* An ordered parallel node: pop and reserve under one lock, work, commit in any order. */
static void *worker(void *data)
{
    Node *node = data;
    gpointer item;
    guint64 ticket;
    for (;;) {
        pthread_mutex_lock(&node->dispatch);
        FlowStatus status = flow_ring_pop(node->in, &item);
        if (status == FLOW_OK) {
            atomic_fetch_add(&node->taken, 1);
            status = flow_ring_reserve(node->out, &ticket);
        }
        pthread_mutex_unlock(&node->dispatch);
        if (status == FLOW_EOS)
            flow_ring_consumer_done(node->in);
        if (status != FLOW_OK)
            break;
        gsize v = VALUE(item);
        if (node->stall && v % 13 == 0)
            usleep(v % 300);
        else if (node->stall && v % 3 == 0)
            sched_yield();
        gpointer chain[4] = {item, item, item, item};
        gsize n = copies(node, v);
        atomic_fetch_add(&node->given, (gint64)n);
        flow_ring_commit(node->out, ticket, chain, n, n * node->nbytes);
    }
    flow_ring_producer_done(node->out);
    return NULL;
}

typedef struct {
    FlowRing *ring;
    gsize first, step, n, nbytes;
    FlowStatus last;
    gint64 pushed;
} Source;

static void *source(void *data)
{
    Source *s = data;
    for (gsize v = s->first; v <= s->n && s->last == FLOW_OK; v += s->step) {
        s->last = flow_ring_push(s->ring, ITEM(v), s->nbytes);
        s->pushed += s->last == FLOW_OK;
    }
    flow_ring_producer_done(s->ring);
    return NULL;
}

typedef struct {
    guint workers;
    gsize n;
    guint32 capacity;
    gsize nbytes, max_bytes;
    gboolean stall, holes, chains;
    gint64 stop_at; /* the consumer leaves after so many */
} Case;

/* Reads all and checks what comes; returns the number of items. */
static gint64 drain(const Case *c, const Node *node, FlowRing *ring, FlowStatus *status)
{
    gpointer item;
    gsize last = 0, repeat = 0;
    gint64 got = 0;
    while ((*status = flow_ring_pop(ring, &item)) == FLOW_OK) {
        gsize v = VALUE(item);
        if (v == last) {
            g_assert_cmpuint(++repeat, <, copies(node, v));
        } else {
            g_assert_cmpuint(v, >, last);
            if (last > 0)
                g_assert_cmpuint(repeat + 1, ==, copies(node, last));
            for (gsize skipped = last + 1; skipped < v; skipped++)
                g_assert_cmpuint(copies(node, skipped), ==, 0);
            last = v;
            repeat = 0;
        }
        got++;
        FlowRingStats stats;
        flow_ring_stats(ring, &stats);
        g_assert_cmpuint(stats.fill, <=, c->capacity);
        if (c->max_bytes && !c->chains && c->workers == 0)
            g_assert_cmpuint(stats.bytes, <=, MAX(c->max_bytes, c->nbytes));
        if (c->stop_at && got >= c->stop_at) {
            flow_ring_consumer_done(ring);
            break;
        }
    }
    return got;
}

static void run(const Case *c)
{
    atomic_store(&dropped, 0);
    FlowRing *a = flow_ring_new("a", c->capacity, c->max_bytes, 1, drop);
    FlowRing *b = flow_ring_new("b", c->capacity, c->max_bytes, MAX(c->workers, 1), drop);
    Node node = {
        .in = a, .out = b, .stall = c->stall, .holes = c->holes, .chains = c->chains, .nbytes = c->nbytes};
    pthread_mutex_init(&node.dispatch, NULL);
    Source s = {c->workers ? a : b, 1, 1, c->n, c->nbytes, FLOW_OK, 0};
    pthread_t producer, thread[8];
    g_assert_cmpint(pthread_create(&producer, NULL, source, &s), ==, 0);
    for (guint i = 0; i < c->workers; i++)
        g_assert_cmpint(pthread_create(&thread[i], NULL, worker, &node), ==, 0);
    FlowStatus status;
    gint64 got = drain(c, &node, b, &status);
    pthread_join(producer, NULL);
    for (guint i = 0; i < c->workers; i++)
        pthread_join(thread[i], NULL);
    FlowRingStats stats;
    flow_ring_stats(b, &stats);
    g_assert_cmpuint(stats.high, <=, c->capacity);
    flow_ring_free(a);
    flow_ring_free(b);
    pthread_mutex_destroy(&node.dispatch);
    if (!c->stop_at) {
        gint64 expected = 0;
        for (gsize v = 1; v <= c->n; v++)
            expected += (gint64)copies(&node, v);
        g_assert_cmpint(status, ==, FLOW_EOS);
        g_assert_cmpint(got, ==, expected);
        g_assert_cmpint(atomic_load(&dropped), ==, 0);
    } else if (c->workers == 0) {
        g_assert_cmpint(s.last, ==, FLOW_EOS);
        g_assert_cmpint(got, ==, c->stop_at);
        /* everything that was made has either come out or been dropped, the refused one included */
        g_assert_cmpint(s.pushed + 1, ==, got + atomic_load(&dropped));
    }
}

static void test_order(void)
{
    static const guint32 capacities[] = {1, 2, 7, 64};
    static const guint workers[] = {0, 1, 2, 8};
    for (gsize i = 0; i < G_N_ELEMENTS(capacities); i++)
        for (gsize w = 0; w < G_N_ELEMENTS(workers); w++)
            run(&(Case){.workers = workers[w], .n = 4000, .capacity = capacities[i]});
}

static void test_holes_and_chains(void)
{
    static const guint32 capacities[] = {1, 2, 7, 64};
    for (gsize i = 0; i < G_N_ELEMENTS(capacities); i++)
        for (guint w = 1; w <= 8; w *= 2)
            for (guint mode = 1; mode < 4; mode++)
                run(&(Case){.workers = w,
                            .n = 1000,
                            .capacity = capacities[i],
                            .stall = TRUE,
                            .holes = mode & 1,
                            .chains = mode & 2});
}

/* F-19 */
static void test_bytes(void)
{
    static const gsize limits[] = {1, 99, 100, 101, 250, 1000};
    for (gsize i = 0; i < G_N_ELEMENTS(limits); i++)
        for (guint w = 0; w <= 8; w = w ? w * 2 : 1)
            run(&(Case){.workers = w,
                        .n = 800,
                        .capacity = 16,
                        .nbytes = 100,
                        .max_bytes = limits[i],
                        .holes = w > 0});
}

static void test_early_exit(void)
{
    for (guint w = 0; w <= 8; w = w ? w * 2 : 1)
        for (gint64 stop = 1; stop <= 100; stop *= 10)
            run(&(Case){.workers = w, .n = 100000, .capacity = 4, .stop_at = stop, .holes = w > 0});
}

/* Tickets are committed in an order of our choice: what a consumer may see is the committed prefix. */
static void test_tickets(void)
{
    FlowRing *r = flow_ring_new("r", 5, 0, 1, drop);
    guint64 t[5];
    gpointer item, chain[3] = {ITEM(20), ITEM(21), ITEM(22)}, one = ITEM(10), seen[8];
    for (int i = 0; i < 5; i++)
        g_assert_cmpint(flow_ring_reserve(r, &t[i]), ==, FLOW_OK);
    flow_ring_commit(r, t[2], chain, 3, 3);
    flow_ring_commit(r, t[1], NULL, 0, 0);
    g_assert_cmpint(flow_ring_try_pop(r, &item), ==, FLOW_OK);
    g_assert_null(item);
    g_assert_cmpuint(flow_ring_peek(r, seen, 8), ==, 0);
    flow_ring_commit(r, t[0], &one, 1, 1);
    g_assert_cmpuint(flow_ring_peek(r, seen, 8), ==, 4);
    g_assert_true(seen[0] == ITEM(10) && seen[3] == ITEM(22));
    g_assert_cmpuint(flow_ring_peek(r, seen, 2), ==, 2);
    static const gsize order[] = {10, 20, 21, 22};
    for (gsize i = 0; i < G_N_ELEMENTS(order); i++) {
        g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_OK);
        g_assert_cmpuint(VALUE(item), ==, order[i]);
        g_assert_cmpuint(flow_ring_peek(r, seen, 8), ==, 3 - i);
    }
    FlowRingStats stats;
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(stats.fill, ==, 2);
    g_assert_cmpuint(stats.bytes, ==, 0);
    g_assert_cmpuint(stats.pushed, ==, 4);
    g_assert_cmpuint(stats.popped, ==, 4);
    /* a hole at the head leaves nothing behind */
    flow_ring_commit(r, t[3], NULL, 0, 0);
    flow_ring_commit(r, t[4], NULL, 0, 0);
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(stats.fill, ==, 0);
    flow_ring_producer_done(r);
    for (int i = 0; i < 2; i++)
        g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_EOS);
    g_assert_cmpint(flow_ring_try_pop(r, &item), ==, FLOW_EOS);
    flow_ring_free(r);
}

/* A hole that frees the only slot lets a waiting producer go on though no consumer is there. */
static void test_hole_frees(void)
{
    FlowRing *r = flow_ring_new("r", 1, 0, 1, drop);
    Source s = {r, 5, 1, 5, 0, FLOW_OK, 0};
    guint64 ticket;
    pthread_t thread;
    g_assert_cmpint(flow_ring_reserve(r, &ticket), ==, FLOW_OK);
    g_assert_cmpint(pthread_create(&thread, NULL, source, &s), ==, 0);
    usleep(20000);
    flow_ring_commit(r, ticket, NULL, 0, 0);
    pthread_join(thread, NULL);
    g_assert_cmpint(s.pushed, ==, 1);
    atomic_store(&dropped, 0);
    flow_ring_free(r);
    g_assert_cmpint(atomic_load(&dropped), ==, 1);
}

/* Waits until somebody waits for `kind` on the ring. */
static void await(FlowWait *wait, FlowRing *ring, FlowWaitKind kind)
{
    while (atomic_load(&wait->kind) != (int)kind || atomic_load(&wait->ring) != ring)
        usleep(1000);
}

typedef struct {
    FlowRing *ring;
    FlowWait wait;
    FlowStatus status;
    gboolean pops;
} Blocked;

static void *blocked(void *data)
{
    Blocked *b = data;
    gpointer item;
    flow_ring_self(&b->wait);
    b->status = b->pops ? flow_ring_pop(b->ring, &item) : flow_ring_push(b->ring, ITEM(99), 1);
    flow_ring_self(NULL);
    return NULL;
}

/* Blocks one producer or consumer, calls `end`, and returns what the blocked one got. */
static FlowStatus unblock(gboolean pops, void (*end)(FlowRing *))
{
    FlowRing *r = flow_ring_new("r", 1, 0, 1, drop);
    Blocked b = {.ring = r, .pops = pops};
    pthread_t thread;
    if (!pops)
        g_assert_cmpint(flow_ring_push(r, ITEM(1), 1), ==, FLOW_OK);
    g_assert_cmpint(pthread_create(&thread, NULL, blocked, &b), ==, 0);
    await(&b.wait, r, pops ? FLOW_WAIT_EMPTY : FLOW_WAIT_FULL);
    usleep(2000);
    end(r);
    pthread_join(thread, NULL);
    g_assert_cmpint(atomic_load(&b.wait.kind), ==, FLOW_WAIT_NONE);
    g_assert_cmpuint(atomic_load(pops ? &b.wait.wait_empty_ns : &b.wait.wait_full_ns), >, 1000000);
    FlowRingStats stats;
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(pops ? stats.wait_empty_ns : stats.wait_full_ns, >, 1000000);
    flow_ring_free(r);
    return b.status;
}

static void test_unblock(void)
{
    g_assert_cmpint(unblock(FALSE, flow_ring_abort), ==, FLOW_CANCELLED);
    g_assert_cmpint(unblock(TRUE, flow_ring_abort), ==, FLOW_CANCELLED);
    g_assert_cmpint(unblock(FALSE, flow_ring_cut), ==, FLOW_EOS);
    g_assert_cmpint(unblock(TRUE, flow_ring_cut), ==, FLOW_EOS);
    g_assert_cmpint(unblock(FALSE, flow_ring_consumer_done), ==, FLOW_EOS);
    g_assert_cmpint(unblock(TRUE, flow_ring_producer_done), ==, FLOW_EOS);
}

static void grow_to_two(FlowRing *r)
{
    flow_ring_grow(r, 2);
}

static void test_grow(void)
{
    g_assert_cmpint(unblock(FALSE, grow_to_two), ==, FLOW_OK);
    /* tickets and order survive, wherever head and tail stand in the old array */
    for (gsize shift = 0; shift < 5; shift++) {
        FlowRing *r = flow_ring_new("r", 3, 300, 1, drop);
        gpointer item, x = ITEM(2);
        guint64 t;
        for (gsize i = 0; i < shift; i++) {
            flow_ring_push(r, ITEM(7), 100);
            flow_ring_pop(r, &item);
        }
        flow_ring_push(r, ITEM(1), 100);
        flow_ring_reserve(r, &t);
        flow_ring_push(r, ITEM(3), 100);
        flow_ring_grow(r, 2);
        flow_ring_grow(r, 6);
        for (gsize v = 4; v <= 6; v++)
            flow_ring_push(r, ITEM(v), 100);
        flow_ring_commit(r, t, &x, 1, 100);
        for (gsize v = 1; v <= 6; v++) {
            g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_OK);
            g_assert_cmpuint(VALUE(item), ==, v);
        }
        flow_ring_free(r);
    }
}

/* After a cut nothing comes out, what was in is dropped once, and tickets under way may still be committed.
 */
static void test_cut(void)
{
    atomic_store(&dropped, 0);
    FlowRing *r = flow_ring_new("r", 8, 0, 1, drop);
    gpointer item, chain[2] = {ITEM(2), ITEM(3)}, late = ITEM(9), seen[8];
    guint64 t[3];
    for (int i = 0; i < 3; i++)
        flow_ring_reserve(r, &t[i]);
    flow_ring_push(r, ITEM(4), 1);
    flow_ring_commit(r, t[0], chain, 2, 2);
    g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_OK);
    g_assert_cmpuint(flow_ring_peek(r, seen, 8), ==, 1);
    flow_ring_cut(r);
    g_assert_cmpint(atomic_load(&dropped), ==, 0); /* lent items live until the next pop */
    g_assert_cmpuint(flow_ring_peek(r, seen, 8), ==, 0);
    g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_EOS);
    g_assert_cmpint(atomic_load(&dropped), ==, 2);
    flow_ring_commit(r, t[1], &late, 1, 1);
    g_assert_cmpint(atomic_load(&dropped), ==, 3);
    g_assert_cmpint(flow_ring_push(r, ITEM(5), 1), ==, FLOW_EOS);
    g_assert_cmpint(atomic_load(&dropped), ==, 4);
    g_assert_cmpint(flow_ring_try_pop(r, &item), ==, FLOW_EOS);
    flow_ring_commit(r, t[2], NULL, 0, 0);
    flow_ring_free(r);
    g_assert_cmpint(atomic_load(&dropped), ==, 4);
}

/* A cut in the middle of traffic: nothing is lost and nothing comes twice. */
static void test_cut_under_load(void)
{
    for (guint32 capacity = 1; capacity <= 64; capacity *= 4) {
        atomic_store(&dropped, 0);
        FlowRing *a = flow_ring_new("a", capacity, 0, 1, drop), *b = flow_ring_new("b", capacity, 0, 4, drop);
        Node node = {.in = a, .out = b, .holes = TRUE, .chains = TRUE};
        pthread_mutex_init(&node.dispatch, NULL);
        Source s = {a, 1, 1, G_MAXSIZE / 2, 0, FLOW_OK, 0};
        pthread_t producer, thread[4];
        pthread_create(&producer, NULL, source, &s);
        for (int i = 0; i < 4; i++)
            pthread_create(&thread[i], NULL, worker, &node);
        gpointer item;
        gint64 got = 0;
        for (FlowStatus status; (status = flow_ring_pop(b, &item)) != FLOW_EOS; got++) {
            g_assert_cmpint(status, ==, FLOW_OK);
            if (got == 500)
                flow_ring_cut(b);
        }
        flow_ring_consumer_done(b);
        pthread_join(producer, NULL);
        for (int i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        flow_ring_free(a);
        flow_ring_free(b);
        g_assert_cmpint(s.last, ==, FLOW_EOS);
        gint64 in_a = s.pushed - atomic_load(&node.taken) + 1;
        g_assert_cmpint(atomic_load(&dropped), ==, in_a + atomic_load(&node.given) - got);
        pthread_mutex_destroy(&node.dispatch);
    }
}

/* Several producers at once: each one's items keep their order. */
static void test_many_producers(void)
{
    FlowRing *r = flow_ring_new("r", 3, 10, 4, drop);
    Source s[4];
    pthread_t thread[4];
    for (gsize i = 0; i < 4; i++) {
        s[i] = (Source){r, i + 1, 4, 4000, i + 1, FLOW_OK, 0};
        pthread_create(&thread[i], NULL, source, &s[i]);
    }
    gpointer item;
    gsize last[4] = {0}, got = 0;
    while (flow_ring_pop(r, &item) == FLOW_OK) {
        gsize v = VALUE(item);
        g_assert_cmpuint(v, >, last[v % 4]);
        last[v % 4] = v;
        got++;
    }
    g_assert_cmpuint(got, ==, 4000);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    flow_ring_free(r);
}

typedef struct {
    FlowRing *ring;
    FlowWait wait;
    _Atomic(int) *inside;
} Consumer;

static void *hold_one(void *data)
{
    Consumer *c = data;
    gpointer item;
    flow_ring_self(&c->wait);
    g_assert_cmpint(flow_ring_pop(c->ring, &item), ==, FLOW_OK);
    atomic_fetch_add(c->inside, 1);
    while (atomic_load(c->inside) < 2) /* a whole process() call, as long as the other one */
        usleep(1000);
    return NULL;
}

/* A burst of two wakes both consumers; if the second slept on, neither would finish (and the test time out).
 */
static void test_burst_wakes_both(void)
{
    for (int round = 0; round < 200; round++) {
        FlowRing *r = flow_ring_new("r", 8, 0, 1, drop);
        _Atomic(int) inside = 0;
        Consumer c[2] = {{.ring = r, .inside = &inside}, {.ring = r, .inside = &inside}};
        pthread_t thread[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&thread[i], NULL, hold_one, &c[i]);
        if (round % 2 == 0)
            for (int i = 0; i < 2; i++)
                await(&c[i].wait, r, FLOW_WAIT_EMPTY);
        gpointer pair[2] = {ITEM(1), ITEM(2)};
        guint64 t;
        g_assert_cmpint(flow_ring_reserve(r, &t), ==, FLOW_OK);
        flow_ring_commit(r, t, pair, 2, 0);
        for (int i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
        flow_ring_free(r);
    }
}

/* The byte limit alone: exact for equal sizes, and an item above it passes when the ring is empty. */
static void test_byte_limit(void)
{
    FlowRing *r = flow_ring_new("r", 100, 250, 1, drop);
    FlowRingStats stats;
    Blocked b = {.ring = r};
    gpointer item;
    pthread_t thread;
    flow_ring_push(r, ITEM(1), 100);
    flow_ring_push(r, ITEM(2), 100);
    flow_ring_push(r, ITEM(3), 50);
    g_assert_cmpint(pthread_create(&thread, NULL, blocked, &b), ==, 0); /* one byte too many */
    await(&b.wait, r, FLOW_WAIT_FULL);
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(stats.fill, ==, 3);
    g_assert_cmpuint(stats.bytes, ==, 250);
    g_assert_cmpint(flow_ring_pop(r, &item), ==, FLOW_OK);
    pthread_join(thread, NULL);
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(stats.bytes, ==, 151);
    for (int i = 0; i < 3; i++)
        flow_ring_pop(r, &item);
    g_assert_cmpint(flow_ring_push(r, ITEM(4), 10000), ==, FLOW_OK);
    flow_ring_stats(r, &stats);
    g_assert_cmpuint(stats.bytes, ==, 10000);
    flow_ring_free(r);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ring/tickets", test_tickets);
    g_test_add_func("/ring/hole-frees", test_hole_frees);
    g_test_add_func("/ring/byte-limit", test_byte_limit);
    g_test_add_func("/ring/unblock", test_unblock);
    g_test_add_func("/ring/grow", test_grow);
    g_test_add_func("/ring/cut", test_cut);
    g_test_add_func("/ring/burst-wakes-both", test_burst_wakes_both);
    g_test_add_func("/ring/many-producers", test_many_producers);
    g_test_add_func("/ring/order", test_order);
    g_test_add_func("/ring/holes-and-chains", test_holes_and_chains);
    g_test_add_func("/ring/bytes", test_bytes);
    g_test_add_func("/ring/early-exit", test_early_exit);
    g_test_add_func("/ring/cut-under-load", test_cut_under_load);
    return g_test_run();
}
