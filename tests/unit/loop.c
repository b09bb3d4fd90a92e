/* The training loop's way of running: an opening item, feedback before each step, a closing item at the end
 * or at a stop; prefill items and fields of the loop end where they should.
 *
 * @label short
 * @timeout 60
 */
#include "tests/train_lab.h"
#include <pthread.h>

/* Wants prefill items. */
static FlowStatus t_store_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    flow_node_count(flow_ctx_node(ctx), in[0]->cursor.epoch < 0 ? "prefill" : "train", 1);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowStage t_store = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_store",
                                  .summary = "Store.",
                                  .flags = FLOW_PREFILL | FLOW_PARALLEL,
                                  .inputs = t_work_in,
                                  .outputs = t_work_out,
                                  .process = t_store_process};

/* -- tests -------------------------------------------------------------------------- */

static const char *const loop = "[step]\nstage=t_step\nin.batch=src\nin.params=adam\n%s"
                                "[adam]\nstage=t_adam\nin=step\n[mon]\nstage=t_monitor\nin=adam\nring=1\n";

static char *graph_text(const char *before, const char *more)
{
    g_autofree char *tail = g_strdup_printf(loop, more);
    return g_strconcat(before, tail, NULL);
}

static void test_rounds(void)
{
    const char *const expected[] = {"0o 0l ", "0o 0 1l ", "0o 0 1 2l ", "0o 0 1 2 3l "};
    for (guint n = 0; n < 4; n++)
        for (guint again = 0; again < 20; again++) {
            g_autofree char *source = g_strdup_printf("[graph]\nring=1\n[src]\nstage=t_count\nitems=%u\n", n);
            g_autofree char *text = graph_text(source, "");
            g_string_truncate(rounds, 0);
            g_assert_cmpint(lab_run(text, NULL, NULL), ==, FLOW_RUN_DONE);
            g_assert_cmpstr(rounds->str, ==, expected[n]);
        }
}

static void *stop_once(void *graph)
{
    nanosleep(&(struct timespec){0, 120000000}, NULL);
    flow_graph_stop(graph);
    return NULL;
}

/* What waits before the loop is dropped, also in slow nodes; the closing item says that it is a stop. */
static void test_stop(void)
{
    g_autofree char *text = graph_text("[src]\nstage=t_count\nepochs=0\n[slow]\nstage=delay\nms=300\nin=src\n"
                                       "[fast]\nstage=t_work\nin=slow\n",
                                       "delay_ms=10\n");
    g_auto(GStrv) halves = g_strsplit(text, "in.batch=src", 2);
    g_autofree char *linked = g_strjoinv("in.batch=fast", halves);
    gint64 before = flow_item_live(), start = g_get_monotonic_time();
    FlowGraph *graph = lab_open(linked);
    pthread_t thread;
    g_autoptr(GError) error = NULL;
    g_string_truncate(rounds, 0);
    g_assert_cmpint(pthread_create(&thread, NULL, stop_once, graph), ==, 0);
    g_assert_cmpint(flow_graph_run(graph, NULL, &error), ==, FLOW_RUN_STOPPED);
    g_assert_no_error(error);
    g_assert_true(g_str_has_suffix(rounds->str, "ls "));
    g_assert_cmpint(g_get_monotonic_time() - start, <, 1000000); /* one call of `slow`, not seventeen */
    pthread_join(thread, NULL);
    flow_graph_free(graph);
    g_assert_cmpint(flow_item_live(), ==, before);
}

static void test_feedback_deadlock(void)
{
    /* the loop needs the first step to come back, but `gate` keeps it */
    g_autofree char *said = NULL;
    const char *text = "[src]\nstage=t_count\n[step]\nstage=t_step\nin.batch=src\nin.params=hold\n"
                       "[adam]\nstage=t_adam\nin=step\n[hold]\nstage=gate\nitems=3\nin=adam\n";
    g_assert_cmpint(lab_run(text, NULL, &said), ==, FLOW_RUN_STALLED);
    g_assert_nonnull(strstr(said, "[step] waits for feedback on hold.out -> step.params (0 of 16)"));
    g_assert_nonnull(strstr(said, "no larger ring would help"));
}

static void test_prefill(void)
{
    FlowGraph *graph = lab_open("[src]\nstage=t_count\nprefill=yes\nitems=3\n[one]\nstage=t_store\nin=src\n"
                                "[two]\nstage=t_store\nin=one\nworkers=2\n[out]\nstage=t_sink\nin=two\n");
    g_autoptr(GError) error = NULL;
    flow_graph_run(graph, NULL, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < 2; i++) {
        FlowNode *store = flow_graph_node_named(graph, i ? "two" : "one");
        g_assert_cmpfloat(flow_node_counter(store, "prefill"), ==, 3);
        g_assert_cmpfloat(flow_node_counter(store, "train"), ==, 3);
    }
    g_assert_cmpstr(lab_seen->str, ==, "<prefill_done> 0=0 1=1 2=2 <epoch> <end>");
    flow_graph_free(graph);
}

static void saw(const FlowRunProgress *progress, gpointer data)
{
    *(FlowRunProgress *)data = *progress;
}

static void test_progress(void)
{
    FlowRunProgress last = {0};
    FlowRunOptions options = {.progress = saw, .progress_data = &last};
    g_autofree char *text = graph_text("[src]\nstage=t_count\nitems=4\n", "");
    lab_run(text, &options, NULL);
    g_assert_cmpint(last.step, ==, 4);
    g_assert_cmpfloat(last.loss, >, 0.25);
    g_assert_cmpfloat(last.loss, <, 1);
    g_assert_cmpfloat(last.seconds, >, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    lab_add_loop();
    g_assert_true(flow_plugin_add(&t_store, NULL));
    g_test_add_func("/loop/rounds", test_rounds);
    g_test_add_func("/loop/stop", test_stop);
    g_test_add_func("/loop/feedback_deadlock", test_feedback_deadlock);
    g_test_add_func("/loop/prefill", test_prefill);
    g_test_add_func("/loop/progress", test_progress);
    return g_test_run();
}
