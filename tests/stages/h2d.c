/* h2d: a slot is filled again only when its last reader is gone, in turn, and nothing hangs.
 *
 * @label short
 * @timeout 60
 */
#include "tests/data_lab.h"
#include <pthread.h>

/* -- t_slow: the step -------------------------------------------------------------------
 * Reads every value of a batch late, again and again, while the next ones are on their way; hands some
 * batches to another thread that lets go of them in its own time. */

static _Atomic(gint64) slow_bad, slow_seen, slow_out, slow_most;
static FlowRing *later;

static FlowRing *new_ring(void)
{
    return flow_ring_new("later", 64, 0, 1, (GDestroyNotify)flow_item_unref);
}

static void check_constant(const FlowItem *item)
{
    const float want = (float)item->cursor.position;
    const FlowField fields[] = {FLOW_F_LATENT_MEAN, FLOW_F_LATENT_LOGVAR, FLOW_F_CONTEXT};
    for (guint f = 0; f < G_N_ELEMENTS(fields); f++) {
        const FlowValue *v = flow_item_get(item, fields[f]);
        for (gsize i = 0; v && i < flow_value_count(v); i++)
            if (((const float *)v->data)[i] != want)
                slow_bad++;
    }
}

static void nap(guint64 key, guint us)
{
    guint64 n = flow_random_below(key, 0, us + 1);
    nanosleep(&(struct timespec){0, (long)n * 1000}, NULL);
}

static gpointer later_main(gpointer unused G_GNUC_UNUSED)
{
    gpointer next = NULL;
    while (flow_ring_pop(later, &next) == FLOW_OK) {
        FlowItem *item = next;
        nap((guint64)item->cursor.position + 9, 400);
        check_constant(item);
        slow_out--;
        flow_item_unref(item);
    }
    return NULL;
}

static FlowStatus t_slow_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    guint64 key = flow_random_key(1, "slow", &in[0]->cursor.position, 1);
    gint64 out = ++slow_out;
    slow_most = MAX(slow_most, out);
    slow_seen++;
    check_constant(in[0]);
    nap(key, 200);
    check_constant(in[0]);
    if (key % 3 == 0) {
        return flow_ring_push(later, flow_take(&in[0]), 0);
    }
    slow_out--;
    return FLOW_OK;
}

static const FlowPort t_slow_in[] = {
    {.name = "in", .kind = FLOW_BATCH, .doc = "Batches.", .needs = "latent_mean"}, FLOW_END};
static const FlowStage t_slow = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_slow",
                                 .summary = "Read late.",
                                 .version = 1,
                                 .flags = FLOW_STATEFUL,
                                 .inputs = t_slow_in,
                                 .process = t_slow_process};

/* -- t_collector: holds batches, and says so -------------------------------------------- */

static gint64 t_collector_hold(FlowNode *node G_GNUC_UNUSED)
{
    return 5;
}

static const FlowStage t_collector = {.abi = FLOW_ABI,
                                      .size = sizeof(FlowStage),
                                      .name = "t_collector",
                                      .summary = "Hold.",
                                      .version = 1,
                                      .flags = FLOW_STATEFUL,
                                      .inputs = t_slow_in,
                                      .process = t_slow_process,
                                      .hold = t_collector_hold};

/* -------------------------------------------------------------------------------------- */

static FlowItem *constant_batch(gint64 k)
{
    FlowItem *item = flow_item_new(FLOW_BATCH);
    item->cursor.position = k;
    flow_item_set_i64(item, FLOW_F_MICRO, (gint64[]){k, 0, 1, 2, 0, 0}, 6);
    for (int which = 0; which < 2; which++) {
        FlowValue *v = flow_value_new(NET_F32, 4, (gint64[]){2, 4, 4, 4});
        for (gsize i = 0; i < flow_value_count(v); i++)
            ((float *)v->data)[i] = (float)k;
        flow_item_set(item, which ? FLOW_F_LATENT_LOGVAR : FLOW_F_LATENT_MEAN, v);
    }
    FlowValue *context = flow_value_new(NET_F32, 3, (gint64[]){2, 3, 5});
    for (gsize i = 0; i < flow_value_count(context); i++)
        ((float *)context->data)[i] = (float)k;
    flow_item_set(item, FLOW_F_CONTEXT, context);
    return item;
}

static void prepare(gint64 n)
{
    data_lab_clean();
    lab_gives = "micro latent_mean latent_logvar context";
    for (gint64 k = 0; k < n; k++)
        g_ptr_array_add(lab_items, constant_batch(k));
    slow_bad = slow_seen = slow_out = slow_most = 0;
}

/* Batch k is full of k, which half precision holds exactly up to 2048: whatever a reader sees late must still
 * be k. Packed, so that every batch is unpacked into its slot's own memory. */
static void test_no_early_reuse(void)
{
    enum { BATCHES = 2000 };
    prepare(BATCHES);
    for (int depth = 1; depth <= 3; depth += 2) {
        pthread_t other;
        double v[2];
        g_autofree char *text =
            g_strdup_printf("[graph]\nring=8\n[a]\nstage=t_batches\n[p]\nstage=precision_encode\nin=a\n"
                            "schedule=half\n[h]\nstage=h2d\nin=p\ndepth=%d\n[s]\nstage=t_slow\nin=h\n",
                            depth);
        slow_bad = slow_seen = slow_out = slow_most = 0;
        later = new_ring();
        g_assert_cmpint(pthread_create(&other, NULL, later_main, NULL), ==, 0);
        data_lab_run(text, (const char *const[]){"h.transfers", "h.bytes", NULL}, v);
        flow_ring_producer_done(later);
        pthread_join(other, NULL);
        flow_ring_free(later);
        /* H-04 */
        g_assert_cmpint(slow_bad, ==, 0);
        g_assert_cmpint(slow_seen, ==, BATCHES);
        g_assert_cmpint(slow_most, <=, depth); /* the bound on what is on the device */
        g_assert_cmpfloat(v[0], ==, BATCHES);
        g_assert_cmpfloat(v[1], >, BATCHES * 2 * (2 * 64 * 2)); /* halves of two tensors, and the rest */
    }
}

/* f32 tensors are handed over where they lie, and the slot is held all the same. */
static void test_handed_over(void)
{
    prepare(20);
    data_lab_run("[a]\nstage=t_batches\n[h]\nstage=h2d\nin=a\ndepth=64\n[z]\nstage=t_got\nin=h\n", NULL,
                 NULL);
    g_assert_cmpuint(lab_got->len, ==, 20);
    for (guint i = 0; i < 20; i++) {
        const FlowItem *before = g_ptr_array_index(lab_items, i), *after = g_ptr_array_index(lab_got, i);
        g_assert_true(flow_item_get(before, FLOW_F_LATENT_MEAN)->data ==
                      flow_item_get(after, FLOW_F_LATENT_MEAN)->data);
        check_constant(after);
    }
    g_assert_cmpint(slow_bad, ==, 0);
}

/* Held-back pictures are kept for the whole run: they take no slots. */
static void test_held_back(void)
{
    prepare(10);
    lab_gives = "micro latent_mean latent_logvar context role";
    for (guint i = 0; i < 10; i++)
        flow_item_set_i32(g_ptr_array_index(lab_items, i), FLOW_F_ROLE, (gint32[]){1}, 1);
    data_lab_run("[a]\nstage=t_batches\n[p]\nstage=precision_encode\nin=a\n[h]\nstage=h2d\nin=p\ndepth=1\n"
                 "[z]\nstage=t_got\nin=h\n",
                 NULL, NULL);
    for (guint i = 0; i < 10; i++)
        check_constant(g_ptr_array_index(lab_got, i));
    g_assert_cmpuint(lab_got->len, ==, 10);
    g_assert_cmpint(slow_bad, ==, 0);
}

/* A node that collects more than there are slots would wait for ever: refused at the start. */
static void test_too_few_slots(void)
{
    prepare(1);
    data_lab_refused("[a]\nstage=t_batches\n[h]\nstage=h2d\nin=a\ndepth=5\n[c]\nstage=t_collector\nin=h\n",
                     "depth = 5 is too small: [c] behind it holds up to 5 items");
    later = new_ring();
    data_lab_run("[a]\nstage=t_batches\n[h]\nstage=h2d\nin=a\ndepth=6\n[c]\nstage=t_collector\nin=h\n", NULL,
                 NULL);
    flow_ring_free(later);
}

static gpointer stop_soon(gpointer graph)
{
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    flow_graph_stop(graph);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    flow_graph_stop(graph);
    return NULL;
}

/* Somebody keeps every batch, h2d waits for a slot: the run can still be torn down. */
static void test_torn_down(void)
{
    pthread_t other;
    prepare(10);
    FlowGraph *graph =
        lab_open("[a]\nstage=t_batches\n[h]\nstage=h2d\nin=a\ndepth=2\n[z]\nstage=t_got\nin=h\n");
    g_assert_cmpint(pthread_create(&other, NULL, stop_soon, graph), ==, 0);
    g_autoptr(GError) error = NULL;
    flow_graph_run(graph, NULL, &error);
    pthread_join(other, NULL);
    flow_graph_free(graph);
    g_assert_cmpuint(lab_got->len, ==, 2);
    for (guint i = 0; i < 2; i++) /* the memory outlives the node */
        check_constant(g_ptr_array_index(lab_got, i));
    g_assert_cmpint(slow_bad, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    flow_plugin_add(&t_slow, NULL);
    flow_plugin_add(&t_collector, NULL);
    g_test_add_func("/h2d/no-early-reuse", test_no_early_reuse);
    g_test_add_func("/h2d/handed-over", test_handed_over);
    g_test_add_func("/h2d/held-back", test_held_back);
    g_test_add_func("/h2d/too-few-slots", test_too_few_slots);
    g_test_add_func("/h2d/torn-down", test_torn_down);
    int rc = g_test_run();
    data_lab_clean();
    return rc;
}
