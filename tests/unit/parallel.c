/* net_parallel_for: every index once, chunks independent of the team, nesting, several callers at once.
 * @label short
 */
#include "kernels/parallel.h"
#include <pthread.h>
#include <stdatomic.h>

enum { N = 10007 };
typedef struct {
    atomic_uint seen[N];
    gsize n, grain;
    atomic_uint bad;
} Visit;

static void visit(gsize begin, gsize end, gsize chunk, gpointer data)
{
    Visit *v = data;
    if (begin != chunk * v->grain || end != MIN(v->n, begin + v->grain) ||
        net_thread_index() >= net_threads())
        atomic_fetch_add(&v->bad, 1);
    for (gsize i = begin; i < end; i++)
        atomic_fetch_add(&v->seen[i], 1);
}

static void check_visits(gsize n, gsize grain)
{
    g_autofree Visit *v = g_new0(Visit, 1);
    v->n = n;
    v->grain = grain;
    net_parallel_for(n, grain, visit, v);
    g_assert_cmpuint(v->bad, ==, 0);
    for (gsize i = 0; i < N; i++)
        g_assert_cmpuint(v->seen[i], ==, i < n);
}

static void test_cover(void)
{
    static const guint teams[] = {1, 2, 3, 8};
    static const gsize sizes[] = {0, 1, 2, 31, 1000, N}, grains[] = {1, 2, 7, 1000, 20000};
    for (guint t = 0; t < G_N_ELEMENTS(teams); t++) {
        net_set_threads(teams[t]);
        g_assert_cmpuint(net_threads(), ==, teams[t]);
        for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
            for (guint g = 0; g < G_N_ELEMENTS(grains); g++)
                check_visits(sizes[s], grains[g]);
    }
    net_set_threads(0);
    g_assert_cmpuint(net_threads(), >=, 1);
}

/* A chunk is never run by two threads that share a number at the same time. */
static void exclusive(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)begin, (void)end, (void)chunk;
    atomic_uint *busy = data;
    guint me = net_thread_index();
    if (atomic_fetch_add(&busy[me], 1))
        atomic_fetch_add(&busy[64], 1);
    for (volatile guint spin = 0; spin < 2000; spin = spin + 1)
        ;
    atomic_fetch_sub(&busy[me], 1);
}

static void test_index(void)
{
    atomic_uint busy[65] = {0};
    net_set_threads(4);
    net_parallel_for(400, 1, exclusive, busy);
    g_assert_cmpuint(busy[64], ==, 0);
    g_assert_cmpuint(net_thread_index(), ==, 0);
}

typedef struct {
    atomic_uint sum;
    atomic_uint elsewhere;
    pthread_t outer;
} Inner;

static void inner(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    Inner *n = data;
    atomic_fetch_add(&n->sum, (guint)(end - begin));
    if (!pthread_equal(n->outer, pthread_self()))
        atomic_fetch_add(&n->elsewhere, 1);
}

static void outer(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)begin, (void)end, (void)chunk;
    Inner n = {.outer = pthread_self()};
    net_parallel_for(100, 3, inner, &n);
    if (n.sum != 100 || n.elsewhere)
        atomic_fetch_add((atomic_uint *)data, 1);
}

static void test_nested(void)
{
    atomic_uint bad = 0;
    net_set_threads(4);
    net_parallel_for(50, 1, outer, &bad);
    g_assert_cmpuint(bad, ==, 0);
}

static void *caller(void *unused)
{
    (void)unused;
    for (guint i = 0; i < 50; i++)
        check_visits(777, 10);
    return NULL;
}

static void test_callers(void)
{
    pthread_t threads[3];
    net_set_threads(2);
    for (guint i = 0; i < 3; i++)
        g_assert_cmpint(pthread_create(&threads[i], NULL, caller, NULL), ==, 0);
    for (guint i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/parallel/cover", test_cover);
    g_test_add_func("/parallel/index", test_index);
    g_test_add_func("/parallel/nested", test_nested);
    g_test_add_func("/parallel/callers", test_callers);
    return g_test_run();
}
