/* A graph runs: order for every number of workers and size of rings, ends from both sides, marks, tees,
 * joins, errors, skips, stops, and nothing left behind.
 *
 * @label short
 * @timeout 60
 */
#include "tests/graph_lab.h"
#include <dirent.h>
#include <pthread.h>

static const char *const workers[] = {"1", "2", "8"};
static const char *const rings[] = {"1", "2", "7", "64"};

static void test_linear(void)
{
    lab_run("[a]\nstage=t_count\nitems=5\n[b]\nstage=t_work\nin=a\n[c]\nstage=t_sink\nin=b\n", NULL, NULL);
    g_assert_cmpstr(lab_seen->str, ==, "0=1 1=4 2=7 3=10 4=13 <epoch> <end>");
}

/* Holes and chains of several epochs come out in the same order whatever the threads do. */
static void test_order(void)
{
    g_autofree char *expected = NULL;
    g_setenv("FLOW_STALL", "1", TRUE);
    for (guint w = 0; w < G_N_ELEMENTS(workers); w++)
        for (guint r = 0; r < G_N_ELEMENTS(rings); r++) {
            g_autofree char *text =
                g_strdup_printf("[graph]\nring=%s\n[a]\nstage=t_count\nitems=40\nepochs=2\n"
                                "[b]\nstage=t_work\nin=a\nworkers=%s\nholes=5\nchains=4\n"
                                "[c]\nstage=t_work\nin=b\nworkers=%s\n[d]\nstage=t_sink\nin=c\n",
                                rings[r], workers[w], workers[w]);
            lab_run(text, NULL, NULL);
            if (!expected)
                expected = g_strdup(lab_seen->str);
            g_assert_cmpstr(lab_seen->str, ==, expected);
        }
    g_unsetenv("FLOW_STALL");
    g_assert_nonnull(strstr(expected, "0=4 2=22 2=22 2=22 3=31"));
}

static void test_any_order(void)
{
    lab_run("[a]\nstage=t_count\nitems=50\n[b]\nstage=t_work\nin=a\nworkers=4\norder=any\n[c]\nstage=t_"
            "sink\nin=b\n",
            NULL, NULL);
    for (guint i = 0; i < 50; i++) {
        g_autofree char *one = g_strdup_printf("%u=%u ", i, 3 * i + 1);
        g_assert_nonnull(strstr(lab_seen->str, one));
    }
    /* the mark still comes after everything before it */
    g_assert_true(g_str_has_suffix(lab_seen->str, " <epoch> <end>"));
}

/* -- tees and joins ----------------------------------------------------------------- */

static void test_tee_join(void)
{
    for (guint w = 0; w < G_N_ELEMENTS(workers); w++) {
        g_autofree char *text =
            g_strdup_printf("[a]\nstage=t_count\nitems=4\nepochs=2\n[b]\nstage=t_work\nin=a\nworkers=%s\n"
                            "[z]\nstage=t_zip\nin.a=b\nin.b=a\nworkers=%s\n[s]\nstage=t_sink\nin=z\n",
                            workers[w], workers[w]);
        lab_run(text, NULL, NULL);
        g_assert_cmpstr(lab_seen->str, ==,
                        "0=1000 1=4001 2=7002 3=10003 <epoch> 0=1000 1=4001 2=7002 3=10003 <epoch> <end>");
    }
}

static void test_out_of_step(void)
{
    g_autofree char *said = NULL;
    FlowRunStatus status = lab_run("[a]\nstage=t_count\n[b]\nstage=t_work\nin=a\nholes=4\n"
                                   "[z]\nstage=t_zip\nin.a=b\nin.b=a\n[s]\nstage=t_sink\nin=z\n",
                                   NULL, &said);
    g_assert_cmpint(status, ==, FLOW_RUN_FAILED);
    g_assert_cmpstr(
        said, ==,
        "lab.ini:7: [z] the inputs are out of step: 'a' brings item-2 where 'b' brings item-1; a node on "
        "the way leaves items out");
}

/* A merge gets everything that its links bring, one of which brings nothing. */
static void test_fan_in(void)
{
    const guint counts[] = {0, 1, 2, 3};
    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        for (guint again = 0; again < 50; again++) {
            g_autofree char *text = g_strdup_printf(
                "[graph]\nring=2\n[a]\nstage=t_count\nitems=%u\n[b]\nstage=t_work\nin=a\nholes=1000\n"
                "[n]\nstage=limit\nitems=0\nin=a\n[s]\nstage=t_sink\nin=b, n\n",
                counts[i]);
            lab_run(text, NULL, NULL);
            guint equals = 0, ends = 0;
            for (const char *p = lab_seen->str; *p; p++) {
                equals += *p == '=';
                ends += g_str_has_prefix(p, "<end>");
            }
            g_assert_cmpuint(equals, ==, counts[i] > 1 ? counts[i] - 1 : counts[i]);
            /* F-17 */
            g_assert_cmpuint(ends, ==, 1);
        }
}

/* -- ends --------------------------------------------------------------------------- */

static void test_early_end(void)
{
    for (guint w = 0; w < G_N_ELEMENTS(workers); w++) {
        g_autofree char *text =
            g_strdup_printf("[a]\nstage=t_count\nepochs=0\n[b]\nstage=t_work\nin=a\nworkers=%s\nring=1\n"
                            "[l]\nstage=limit\nitems=3\nin=b\n[s]\nstage=t_sink\nin=l\n",
                            workers[w]);
        g_assert_cmpint(lab_run(text, NULL, NULL), ==, FLOW_RUN_DONE);
        /* F-17 */
        g_assert_cmpstr(lab_seen->str, ==, "0=1 1=4 2=7 <end>");
    }
    /* one branch of a tee ends, the other goes on */
    lab_run("[a]\nstage=t_count\nitems=40\n[l]\nstage=limit\nitems=1\nin=a\nring=1\n[n]\nstage=null\nin=l\n"
            "[s]\nstage=t_sink\nin=a\n",
            NULL, NULL);
    g_assert_nonnull(strstr(lab_seen->str, "39=39 <epoch> <end>"));
}

static void test_limit_option(void)
{
    FlowRunOptions options = {.limit = 2};
    lab_run("[a]\nstage=t_count\nepochs=0\nprefill=yes\nitems=3\n[s]\nstage=t_sink\nin=a\n", &options, NULL);
    g_assert_cmpstr(lab_seen->str, ==, "<prefill_done> 0=0 1=1 <end>"); /* nobody wants prefill items */
}

typedef struct {
    FlowGraph *graph;
    guint times;
} Stopper;

static void *stop_soon(void *data)
{
    Stopper *stopper = data;
    for (guint i = 0; i < stopper->times; i++) {
        nanosleep(&(struct timespec){0, 30000000}, NULL);
        flow_graph_stop(stopper->graph);
    }
    return NULL;
}

static FlowRunStatus run_stopped(const char *text, guint times, double *seconds)
{
    gint64 before = flow_item_live(), start = g_get_monotonic_time();
    FlowGraph *graph = lab_open(text);
    Stopper stopper = {graph, times};
    pthread_t thread;
    g_assert_cmpint(pthread_create(&thread, NULL, stop_soon, &stopper), ==, 0);
    g_autoptr(GError) error = NULL;
    FlowRunStatus status = flow_graph_run(graph, NULL, &error);
    *seconds = (double)(g_get_monotonic_time() - start) / 1e6;
    pthread_join(thread, NULL);
    g_assert_no_error(error);
    flow_graph_free(graph);
    g_assert_cmpint(flow_item_live(), ==, before);
    return status;
}

static void test_stop(void)
{
    double seconds;
    /* asked once, the source ends and everything that was made arrives */
    FlowRunStatus status =
        run_stopped("[a]\nstage=t_count\nitems=1000000\nepochs=0\n[b]\nstage=t_work\nin=a\n"
                    "workers=2\nms=1\n[s]\nstage=t_sink\nin=b\n",
                    1, &seconds);
    g_assert_cmpint(status, ==, FLOW_RUN_STOPPED);
    g_assert_true(g_str_has_suffix(lab_seen->str, "<end>"));
    /* asked twice, nothing more is worked on: 16 waiting items of 1 s each are dropped */
    status = run_stopped(
        "[a]\nstage=t_count\nitems=1000000\n[b]\nstage=delay\nin=a\nms=1000\n[s]\nstage=t_sink\nin=b\n", 2,
        &seconds);
    g_assert_cmpint(status, ==, FLOW_RUN_STOPPED);
    g_assert_false(g_str_has_suffix(lab_seen->str, "<end>"));
    g_assert_cmpfloat(seconds, <, 0.9);
}

/* -- errors ------------------------------------------------------------------------- */

static void test_error(void)
{
    const char *const numbers[] = {"0", "7", "19"};
    for (guint w = 0; w < G_N_ELEMENTS(workers); w++)
        for (guint n = 0; n < G_N_ELEMENTS(numbers); n++) {
            g_autofree char *text =
                g_strdup_printf("[a]\nstage=t_count\nitems=20\n\n[b]\nstage=t_work\nin=a\n"
                                "workers=%s\nfail=%s\nring=1\n[s]\nstage=t_sink\nin=b\nring=1\n",
                                workers[w], numbers[n]);
            g_autofree char *said = NULL,
                            *expected = g_strdup_printf("lab.ini:5: [b] cannot work on number %s (item-%s)",
                                                        numbers[n], numbers[n]);
            /* F-18 */
            g_assert_cmpint(lab_run(text, NULL, &said), ==, FLOW_RUN_FAILED);
            g_assert_cmpstr(said, ==, expected);
            g_assert_false(g_str_has_suffix(lab_seen->str, "<end>"));
        }
}

/* Every emit of a run fails once: an error each time, no hang, nothing left. */
static void test_faults(void)
{
    const char *text = "[a]\nstage=t_count\nitems=6\n[b]\nstage=t_work\nin=a\nworkers=2\nchains=3\n"
                       "[g]\nstage=gate\nitems=4\nin=b\n[s]\nstage=t_sink\nin=g\n";
    const char *const kinds[] = {"emit", "process", "thread"};
    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
        guint n = 1;
        for (FlowRunStatus status = FLOW_RUN_FAILED; status != FLOW_RUN_DONE; n++) {
            g_autofree char *fault = g_strdup_printf("%s:%u", kinds[k], n), *said = NULL;
            g_setenv("FLOW_FAULT", fault, TRUE);
            status = lab_run(text, NULL, &said);
            g_assert_true((status == FLOW_RUN_DONE) == (said == NULL));
            if (said && k == 2)
                /* F-24 */
                g_assert_nonnull(strstr(said, "cannot start thread"));
            else if (said)
                g_assert_nonnull(strstr(said, "] injected fault"));
        }
        g_assert_cmpuint(n, >, 5);
    }
    g_unsetenv("FLOW_FAULT");
}

static void test_skip(void)
{
    FlowGraph *graph = lab_open("[a]\nstage=t_count\nitems=7\n[b]\nstage=t_work\nin=a\nworkers=2\nskip=3\n"
                                "on_error=skip:3\n[s]\nstage=t_sink\nin=b\n");
    FlowNodeStats stats;
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(flow_graph_run(graph, NULL, &error), ==, FLOW_RUN_DONE);
    flow_node_stats(flow_graph_node_named(graph, "b"), &stats);
    g_assert_cmpstr(lab_seen->str, ==, "1=4 2=7 4=13 5=16 <epoch> <end>");
    g_assert_cmpuint(stats.in, ==, 7);
    g_assert_cmpuint(stats.out, ==, 4);
    g_assert_cmpuint(stats.skipped, ==, 3);
    flow_graph_free(graph);
    g_autofree char *said = NULL;
    lab_run("[a]\nstage=t_count\nitems=7\n[b]\nstage=t_work\nin=a\nskip=3\non_error=skip:2\n[s]\nstage=t_"
            "sink\nin=b\n",
            NULL, &said);
    g_assert_cmpstr(said, ==, "lab.ini:4: [b] more than 2 items are bad (on_error): bad number 6 (item-6)");
}

static void test_skip_is_an_error(void)
{
    g_autofree char *said = NULL;
    lab_run("[a]\nstage=t_count\n[b]\nstage=t_work\nin=a\nskip=4\n[s]\nstage=t_sink\nin=b\n", NULL, &said);
    g_assert_cmpstr(said, ==, "lab.ini:3: [b] bad number 0 (item-0)");
}

/* -- stages that do not keep the rules ------------------------------------------------ */

typedef struct {
    int fault;
} TBad;
enum { BAD_SILENT, BAD_OK_WITH_ERROR, BAD_CANCELS, BAD_START, BAD_FLUSH, BAD_MARK, BAD_MISSING };

static gboolean t_bad_start(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    return ((TBad *)flow_ctx_state(ctx))->fault != BAD_START;
}

static FlowStatus t_bad_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    switch (((TBad *)flow_ctx_state(ctx))->fault) {
    case BAD_SILENT:
        return FLOW_ERROR;
    case BAD_OK_WITH_ERROR:
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "it went wrong");
        return FLOW_OK;
    case BAD_CANCELS:
        return FLOW_CANCELLED;
    case BAD_MISSING:
        flow_item_writable(&in[0]);
        flow_item_drop(in[0], FLOW_F_NOISE_KEY);
        break;
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static FlowStatus t_bad_flush(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    return ((TBad *)flow_ctx_state(ctx))->fault == BAD_FLUSH ? FLOW_ERROR : FLOW_OK;
}

static FlowStatus t_bad_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    return ((TBad *)flow_ctx_state(ctx))->fault == BAD_MARK ? FLOW_ERROR : FLOW_OK;
}

static const FlowParam t_bad_params[] = {FLOW_ENUM(TBad, fault, NULL,
                                                   "silent|ok_with_error|cancels|start|flush|mark|missing",
                                                   "What it does wrong."),
                                         FLOW_END};
static const FlowStage t_bad = {.abi = FLOW_ABI,
                                .size = sizeof(FlowStage),
                                .name = "t_bad",
                                .summary = "Break the rules.",
                                .flags = FLOW_PARALLEL,
                                .state_size = sizeof(TBad),
                                .params = t_bad_params,
                                .inputs = t_work_in,
                                .outputs = t_work_out,
                                .worker_start = t_bad_start,
                                .process = t_bad_process,
                                .flush = t_bad_flush,
                                .mark = t_bad_mark};

static void test_bad_stage(void)
{
    static const char *const cases[][2] = {
        {"silent", "lab.ini:3: [b] returned an error without a message (item-0)"},
        {"ok_with_error", "lab.ini:3: [b] it went wrong (item-0)"},
        {"cancels", "lab.ini:3: [b] gave up although nobody asked it to (item-0)"},
        {"start", "lab.ini:3: [b] worker_start() failed without saying why"},
        {"flush", "lab.ini:3: [b] returned an error without a message"},
        {"mark", "lab.ini:3: [b] returned an error without a message (end of epoch)"},
        {"missing",
         "lab.ini:7: [w] item-0 arrived without 'noise_key', which a node before it declares to give"},
    };
    flow_plugin_add(&t_bad, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *said = NULL;
        g_autofree char *text = g_strdup_printf("[a]\nstage=t_count\n[b]\nstage=t_bad\nfault=%s\nin=a\n"
                                                "[w]\nstage=t_work\nin=b\n[s]\nstage=t_sink\nin=w\n",
                                                cases[i][0]);
        /* F-18 */
        lab_run(text, NULL, &said);
        g_assert_cmpstr(said, ==, cases[i][1]);
    }
}

/* -- nothing is left ---------------------------------------------------------------- */

static guint entries(const char *folder)
{
    guint n = 0;
    DIR *dir = opendir(folder);
    g_assert_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void test_leaks(void)
{
    const char *text = "[a]\nstage=t_count\n[b]\nstage=t_work\nin=a\nworkers=3\n[s]\nstage=t_sink\nin=b\n";
    lab_run(text, NULL, NULL);
    guint threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
    for (guint i = 0; i < 100; i++)
        lab_run(text, NULL, NULL);
    /* F-22 */
    g_assert_cmpuint(entries("/proc/self/task"), ==, threads);
    g_assert_cmpuint(entries("/proc/self/fd"), ==, files);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    g_test_add_func("/run/linear", test_linear);
    g_test_add_func("/run/order", test_order);
    g_test_add_func("/run/any_order", test_any_order);
    g_test_add_func("/run/tee_join", test_tee_join);
    g_test_add_func("/run/out_of_step", test_out_of_step);
    g_test_add_func("/run/fan_in", test_fan_in);
    g_test_add_func("/run/early_end", test_early_end);
    g_test_add_func("/run/limit_option", test_limit_option);
    g_test_add_func("/run/stop", test_stop);
    g_test_add_func("/run/error", test_error);
    g_test_add_func("/run/faults", test_faults);
    g_test_add_func("/run/skip", test_skip);
    g_test_add_func("/run/skip_is_an_error", test_skip_is_an_error);
    g_test_add_func("/run/bad_stage", test_bad_stage);
    g_test_add_func("/run/leaks", test_leaks);
    return g_test_run();
}
