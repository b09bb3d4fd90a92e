/* bench ring: what passing an item costs, from one thread to the next and through ordered workers that do
 * nothing. Items are numbers, so nothing but the ring is measured. */
#include "core/cli/bench.h"
#include <pthread.h>
#include <time.h>

enum { ITEMS = 200000, MAX_WORKERS = 8 };

typedef struct {
    FlowRing *in, *out;
    pthread_mutex_t dispatch;
} Node;

static void *produce(void *data)
{
    FlowRing *ring = data;
    for (gsize i = 1; i <= ITEMS; i++)
        flow_ring_push(ring, GSIZE_TO_POINTER(i), 0);
    flow_ring_producer_done(ring);
    return NULL;
}

static void *work(void *data)
{
    Node *node = data;
    for (;;) {
        gpointer item;
        guint64 ticket;
        pthread_mutex_lock(&node->dispatch);
        gboolean ok =
            flow_ring_pop(node->in, &item) == FLOW_OK && flow_ring_reserve(node->out, &ticket) == FLOW_OK;
        pthread_mutex_unlock(&node->dispatch);
        if (!ok)
            break;
        flow_ring_commit(node->out, ticket, &item, 1, 0);
    }
    flow_ring_producer_done(node->out);
    return NULL;
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ns an item; 0 workers: one ring from thread to thread. */
static double pass(guint32 capacity, guint workers)
{
    pthread_t producer, thread[MAX_WORKERS];
    FlowRing *out = flow_ring_new("out", capacity, 0, MAX(workers, 1), NULL);
    FlowRing *in = workers ? flow_ring_new("in", capacity, 0, 1, NULL) : out;
    Node node = {.in = in, .out = out};
    pthread_mutex_init(&node.dispatch, NULL);
    double start = now_ns();
    gboolean made = pthread_create(&producer, NULL, produce, in) == 0;
    for (guint i = 0; i < workers; i++)
        made &= pthread_create(&thread[i], NULL, work, &node) == 0;
    if (!made)
        g_error("threads cannot be made");
    gpointer item;
    while (flow_ring_pop(out, &item) == FLOW_OK)
        ;
    double ns = (now_ns() - start) / ITEMS;
    pthread_join(producer, NULL);
    for (guint i = 0; i < workers; i++)
        pthread_join(thread[i], NULL);
    if (in != out)
        flow_ring_free(in);
    flow_ring_free(out);
    pthread_mutex_destroy(&node.dispatch);
    return ns;
}

int bench_ring(gboolean json)
{
    static const guint32 capacities[] = {1, 16, 128, 1024};
    json_t *array = json_array();
    CliTable *table = cli_table_new(4);
    cli_table_align(table, "rrrr");
    cli_table_row(table, "CAPACITY", "WORKERS", "ns/ITEM", "ITEMS/s", NULL);
    for (guint i = 0; i < G_N_ELEMENTS(capacities); i++)
        for (guint workers = 0; workers <= MAX_WORKERS; workers = workers ? workers * 2 : 1) {
            double ns = pass(capacities[i], workers);
            g_autofree char *capacity = g_strdup_printf("%u", capacities[i]);
            g_autofree char *n = workers ? g_strdup_printf("%u", workers) : g_strdup("-");
            g_autofree char *cost = g_strdup_printf("%.0f", ns), *rate = g_strdup_printf("%.0f", 1e9 / ns);
            cli_table_row(table, capacity, n, cost, rate, NULL);
            json_array_append_new(array,
                                  json_pack("{s:i, s:i, s:f, s:f}", "capacity", (int)capacities[i], "workers",
                                            (int)workers, "ns_per_item", ns, "items_per_s", 1e9 / ns));
        }
    cli_table_print(table, json ? NULL : stdout);
    if (json)
        cli_json_print(json_pack("{s:o}", "rings", array));
    else
        json_decref(array);
    return CLI_OK;
}
