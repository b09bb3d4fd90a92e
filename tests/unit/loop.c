/* The training loop's way of running: an opening item, feedback before each step, a closing item at the end
 * or at a stop; prefill items and fields of the loop end where they should.
 *
 * @label short
 * @timeout 60
 */
#include "tests/graph_lab.h"
#include <pthread.h>

/* -- a step that waits for its parameters, and an optimizer -------------------------- */

typedef struct {
    gint64 delay_ms, steps;
    gboolean opened;
} TStep;

static FlowItem *step_item(gint64 step, gint32 flags)
{
    FlowItem *item = flow_item_new(FLOW_STEP);
    gint64 v[4] = {step, 0, 0, 0};
    flow_item_set_i64(item, FLOW_F_STEP, v, 4);
    flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
    flow_item_set(item, FLOW_F_MODEL, flow_value_object("lora.model", NULL, NULL));
    return item;
}

/* Emits and waits until it has gone round. */
static FlowStatus go_round(FlowCtx *ctx, FlowItem *item, gint64 *settled, GError **error)
{
    g_autoptr(FlowItem) back = NULL;
    FlowStatus status = flow_emit(ctx, 0, item);
    if (status == FLOW_OK)
        status = flow_pop(ctx, 1, &back, error);
    if (status == FLOW_OK)
        *settled = *flow_item_i64(back, FLOW_F_STEP);
    return status;
}

static FlowStatus open_round(FlowCtx *ctx, TStep *state, GError **error)
{
    if (state->opened)
        return FLOW_OK;
    state->opened = TRUE;
    return go_round(ctx, step_item(0, FLOW_STEP_OPENING), &state->steps, error);
}

static FlowStatus t_step_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TStep *state = flow_ctx_state(ctx);
    g_assert_null(in[1]);
    FlowStatus status = open_round(ctx, state, error);
    if (state->delay_ms)
        nanosleep(&(struct timespec){0, state->delay_ms * 1000000}, NULL);
    return status == FLOW_OK ? go_round(ctx, step_item(state->steps, 0), &state->steps, error) : status;
}

static FlowStatus t_step_flush(FlowCtx *ctx, GError **error)
{
    TStep *state = flow_ctx_state(ctx);
    FlowStatus status = open_round(ctx, state, error);
    gint32 flags = FLOW_STEP_LAST | (flow_ctx_stopping(ctx) ? FLOW_STEP_STOP : 0);
    return status == FLOW_OK ? go_round(ctx, step_item(state->steps, flags), &state->steps, error) : status;
}

static const FlowParam t_step_params[] = {FLOW_INT(TStep, delay_ms, "0", 0, 999, "ms", "Time of a step."),
                                          FLOW_END};
static const FlowPort t_step_in[] = {
    {.name = "batch", .doc = "Samples.", .needs = "sample"},
    {.name = "params", .kind = FLOW_STEP, .doc = "Settled.", .needs = "step", .flags = FLOW_PORT_FEEDBACK},
    FLOW_END};
static const FlowPort t_step_out[] = {
    {.name = "out", .kind = FLOW_STEP, .doc = "Steps.", .gives = "step flags model", .flags = FLOW_PORT_NEW},
    FLOW_END};
static const FlowStage t_step = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_step",
                                 .summary = "Step.",
                                 .flags = FLOW_STATEFUL,
                                 .state_size = sizeof(TStep),
                                 .params = t_step_params,
                                 .inputs = t_step_in,
                                 .outputs = t_step_out,
                                 .process = t_step_process,
                                 .flush = t_step_flush};

static GString *rounds; /* what the optimizer saw */

static FlowStatus t_adam_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    gint64 step = *flow_item_i64(in[0], FLOW_F_STEP);
    gint32 flags = *flow_item_i32(in[0], FLOW_F_FLAGS);
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_MODEL));
    g_string_append_printf(rounds, "%d%s%s%s ", (int)step, flags & FLOW_STEP_OPENING ? "o" : "",
                           flags & FLOW_STEP_LAST ? "l" : "", flags & FLOW_STEP_STOP ? "s" : "");
    if (!flags) {
        gint64 v[4] = {step + 1, 0, 0, 0};
        flow_item_writable(&in[0]);
        flow_item_set_i64(in[0], FLOW_F_STEP, v, 4);
        flow_progress(ctx, step + 1, 0, 1.0 / (double)(step + 1));
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowPort t_adam_in[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "step flags model"}, FLOW_END};
static const FlowPort t_adam_out[] = {{.name = "out", .kind = FLOW_STEP, .doc = "Steps.", .gives = "step"},
                                      FLOW_END};
static const FlowStage t_adam = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_adam",
                                 .summary = "Update.",
                                 .flags = FLOW_STATEFUL,
                                 .inputs = t_adam_in,
                                 .outputs = t_adam_out,
                                 .process = t_adam_process};

/* Outside the loop: sees numbers, not the model. */
static FlowStatus t_monitor_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_assert_null(flow_item_get(in[0], FLOW_F_MODEL));
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_STEP));
    return FLOW_OK;
}

static const FlowPort t_monitor_in[] = {{.name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "step"},
                                        FLOW_END};
static const FlowStage t_monitor = {.abi = FLOW_ABI,
                                    .size = sizeof(FlowStage),
                                    .name = "t_monitor",
                                    .summary = "Watch.",
                                    .inputs = t_monitor_in,
                                    .process = t_monitor_process};

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
    const FlowStage *stages[] = {&t_step, &t_adam, &t_monitor, &t_store};
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    rounds = g_string_new(NULL);
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(stages[i], &error);
        g_assert_no_error(error);
    }
    g_test_add_func("/loop/rounds", test_rounds);
    g_test_add_func("/loop/stop", test_stop);
    g_test_add_func("/loop/feedback_deadlock", test_feedback_deadlock);
    g_test_add_func("/loop/prefill", test_prefill);
    g_test_add_func("/loop/progress", test_progress);
    return g_test_run();
}
