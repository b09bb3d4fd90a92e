/* Checkpoints: a run that died goes on to the same end, files survive damage and full disks, graphs that
 * differ are told or refused.
 *
 * @label short
 * @timeout 60
 */
#include "core/flow/checkpoint.h"
#include "tests/train_lab.h"
#include <glib/gstdio.h>
#include <unistd.h>

static char *folder, *path;

/* -- stages ------------------------------------------------------------------------- */

/* Turns the order of each three items round and numbers them anew: what stands before it must see all items
 * of a resumed epoch, what stands behind it only those from the cursor on. */
typedef struct {
    FlowItem *held[3];
    guint n;
    gint64 position;
} TOrder;

static FlowStatus t_order_release(FlowCtx *ctx)
{
    TOrder *order = flow_ctx_state(ctx);
    FlowStatus status = FLOW_OK;
    while (order->n > 0 && status == FLOW_OK) {
        FlowItem *item = flow_item_writable(&order->held[--order->n]);
        item->cursor.position = order->position++;
        status = flow_emit(ctx, 0, g_steal_pointer(&order->held[order->n]));
    }
    return status;
}

static FlowStatus t_order_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    TOrder *order = flow_ctx_state(ctx);
    flow_node_count(flow_ctx_node(ctx), "seen", 1);
    order->held[order->n++] = flow_take(&in[0]);
    return order->n < 3 ? FLOW_OK : t_order_release(ctx);
}

static FlowStatus t_order_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    FlowStatus status = t_order_release(ctx);
    ((TOrder *)flow_ctx_state(ctx))->position = 0;
    return status;
}

static void t_order_close(FlowNode *node)
{
    TOrder *order = flow_node_state(node);
    while (order->n > 0)
        flow_item_unref(order->held[--order->n]);
}

static const FlowStage t_order = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_order",
                                  .summary = "Reorder.",
                                  .flags = FLOW_STATEFUL | FLOW_REORDERS,
                                  .state_size = sizeof(TOrder),
                                  .inputs = t_work_in,
                                  .outputs = t_work_out,
                                  .process = t_order_process,
                                  .mark = t_order_mark,
                                  .close = t_order_close};

/* Named as the real one: the host looks for it. */
typedef struct {
    char *path;
    gint64 every, keep;
} TKeep;

static FlowStatus t_keep_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const TKeep *keep = flow_ctx_state(ctx);
    gint64 step = *flow_item_i64(in[0], FLOW_F_STEP);
    if (!(*flow_item_i32(in[0], FLOW_F_FLAGS)) && step % keep->every == 0) {
        FlowCursor next = in[0]->cursor;
        next.position++;
        if (!flow_checkpoint_write(flow_node_graph(flow_ctx_node(ctx)), keep->path, &next, step,
                                   (guint)keep->keep, error))
            return FLOW_ERROR;
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowParam t_keep_params[] = {
    FLOW_PATH(TKeep, path, NULL, "File.", | FLOW_P_NORESULT),
    FLOW_INT(TKeep, every, "1", 1, 1e9, "", "Steps.", | FLOW_P_NORESULT),
    FLOW_INT(TKeep, keep, "0", 0, 9, "", "Older files.", | FLOW_P_NORESULT), FLOW_END};
static const FlowPort t_keep_in[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "step flags"}, FLOW_END};
static const FlowStage t_keep = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "checkpoint",
                                 .summary = "Keep.",
                                 .flags = FLOW_STATEFUL,
                                 .state_size = sizeof(TKeep),
                                 .params = t_keep_params,
                                 .inputs = t_keep_in,
                                 .outputs = t_adam_out,
                                 .process = t_keep_process};

/* -- running ------------------------------------------------------------------------ */

static char *train(const char *source, const char *step, const char *adam, const char *keep)
{
    return g_strdup_printf(
        "[src]\nstage=t_count\nitems=8\nepochs=3\n%s\n[order]\nstage=t_order\nin=src\n"
        "[work]\nstage=t_work\nin=order\nworkers=2\n"
        "[step]\nstage=t_step\nin.batch=work\nin.params=keep\n%s\n"
        "[adam]\nstage=t_adam\nin=step\n%s\n[keep]\nstage=checkpoint\nin=adam\npath=%s\n%s\n",
        source, step, adam, path, keep);
}

typedef struct {
    double sum, seen, worked;
    char *said;
} Result;

static Result run(const char *text, const char *resume)
{
    FlowGraph *graph = lab_open(text);
    FlowRunOptions options = {.resume = resume};
    g_autoptr(GError) error = NULL;
    FlowNodeStats stats;
    g_string_truncate(rounds, 0);
    flow_graph_run(graph, &options, &error);
    flow_node_stats(flow_graph_node_named(graph, "work"), &stats);
    Result result = {.sum = flow_node_counter(flow_graph_node_named(graph, "adam"), "sum"),
                     .seen = flow_node_counter(flow_graph_node_named(graph, "order"), "seen"),
                     .worked = (double)stats.in,
                     .said = error ? g_strdup(error->message) : NULL};
    flow_graph_free(graph);
    return result;
}

static void clean(void)
{
    for (guint i = 0; i < 5; i++) {
        g_autofree char *name = i ? g_strdup_printf("%s.%u", path, i) : g_strdup(path);
        g_unlink(name);
    }
}

/* Dies at every step in turn; each resumed run ends as the undisturbed one. */
static void test_same_end(void)
{
    g_autofree char *whole = train("", "", "", "every=1000");
    Result reference = run(whole, NULL);
    g_assert_cmpstr(reference.said, ==, NULL);
    g_assert_cmpfloat(reference.worked, ==, 24);
    for (gint64 die = 1; die < 24; die++) {
        g_autofree char *adam = g_strdup_printf("die=%d", (int)die);
        g_autofree char *dies = train("", "", adam, "every=1"), *goes_on = train("", "", "", "every=1");
        clean();
        Result first = run(dies, NULL);
        g_assert_nonnull(strstr(first.said, "[adam] died on purpose"));
        g_free(first.said);
        Result second = run(goes_on, path);
        g_assert_cmpstr(second.said, ==, NULL);
        g_assert_cmpfloat(second.sum, ==, reference.sum);
        /* the node that orders sees the epoch from its start, what is behind it only what is left */
        /* D-17 */
        g_assert_cmpfloat(second.worked, ==, 24 - die);
        g_assert_cmpfloat(second.seen, ==, 24 - (die - 1) / 8 * 8);
        g_assert_cmpint(atoi(rounds->str), ==, die);
    }
}

/* -- files -------------------------------------------------------------------------- */

static gboolean resumes(const char *text, const char *why)
{
    Result result = run(text, path);
    g_autofree char *said = result.said;
    if (why && said && !strstr(said, why))
        g_error("'%s' does not say '%s'", said, why);
    return !said;
}

static void make_checkpoints(const char *keep)
{
    g_autofree char *settings = g_strdup_printf("every=2\n%s", keep);
    g_autofree char *text = train("", "", "die=7", settings);
    clean();
    g_free(run(text, NULL).said);
}

static void damage(const char *name, gssize cut, gsize flip)
{
    char *bytes;
    gsize n;
    g_assert_true(g_file_get_contents(name, &bytes, &n, NULL));
    if (flip)
        bytes[flip % n] ^= 1;
    g_assert_true(g_file_set_contents(name, bytes, cut ? cut : (gssize)n, NULL));
    g_free(bytes);
}

static gint64 step_of(const char *name)
{
    gint64 step = -1;
    FlowCheckpointFile *file = flow_checkpoint_file_open(name, NULL);
    g_autoptr(GBytes) cursor = file ? flow_checkpoint_file_part(file, "cursor") : NULL;
    if (cursor)
        step = ((const gint64 *)g_bytes_get_data(cursor, NULL))[4];
    flow_checkpoint_file_free(file);
    return step;
}

static void test_older_files(void)
{
    g_autofree char *one = g_strconcat(path, ".1", NULL), *two = g_strconcat(path, ".2", NULL);
    g_autofree char *three = g_strconcat(path, ".3", NULL), *goes_on = train("", "", "", "every=1000");
    make_checkpoints("keep=2");
    g_assert_cmpint(step_of(path), ==, 6);
    g_assert_cmpint(step_of(one), ==, 4);
    g_assert_cmpint(step_of(two), ==, 2);
    g_assert_false(g_file_test(three, G_FILE_TEST_EXISTS));
    damage(path, 100, 0);
    damage(one, 0, 777);
    /* E-16 */
    g_assert_true(resumes(goes_on, NULL));
    g_assert_cmpint(atoi(rounds->str), ==, 2);
    g_unlink(path);
    g_unlink(one);
    damage(two, 0, 30);
    g_assert_false(resumes(goes_on, "cannot resume: there is no checkpoint"));
}

/* Every length, every bit of the header and some of the rest: never believed, never a crash. */
static void test_damage(void)
{
    g_autofree char *other = g_strconcat(path, ".copy", NULL);
    make_checkpoints("");
    char *bytes;
    gsize n;
    g_assert_true(g_file_get_contents(path, &bytes, &n, NULL));
    for (gsize i = 0; i < n; i = i < 200 ? i + 1 : i + 97) {
        g_autoptr(GError) error = NULL;
        g_assert_true(g_file_set_contents(other, bytes, (gssize)i, NULL));
        g_assert_null(flow_checkpoint_file_open(other, &error));
        g_assert_nonnull(error);
        g_clear_error(&error);
        bytes[i] ^= 0x10;
        g_assert_true(g_file_set_contents(other, bytes, (gssize)n, NULL));
        bytes[i] ^= 0x10;
        g_assert_true(i >= 12 && i < 16 ? TRUE : !flow_checkpoint_file_open(other, &error));
    }
    g_free(bytes);
    g_unlink(other);
}

/* Every write of a checkpoint fails once: the run says so, the file before it stays, no other is left. */
static void test_full_disk(void)
{
    g_autofree char *text = train("", "", "", "every=8"), *temporary = g_strconcat(path, ".tmp", NULL);
    guint failed = 0;
    for (guint n = 1;; n++) {
        g_autofree char *fault = g_strdup_printf("write:%u", n);
        clean();
        g_setenv("FLOW_FAULT", fault, TRUE);
        Result result = run(text, NULL);
        g_autofree char *said = result.said;
        g_assert_false(g_file_test(temporary, G_FILE_TEST_EXISTS));
        if (!said)
            break;
        g_assert_nonnull(strstr(said, "[keep] cannot write"));
        gint64 step = step_of(path);
        g_assert_true(step == -1 || step == 8 || step == 16);
        failed++;
    }
    g_unsetenv("FLOW_FAULT");
    g_assert_cmpuint(failed, >, 30);
    g_assert_cmpint(step_of(path), ==, 24);
}

/* -- other graphs ------------------------------------------------------------------- */

static void test_refused(void)
{
    make_checkpoints("");
    const struct {
        const char *source, *step, *adam, *why;
    } cases[] = {
        {"", "width=8", "", "[step] width = 8, the checkpoint was made with 4"},
        {"", "", "[more]\nstage=t_adam\nin=adam", "[more] this node is not in the checkpoint"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = train(cases[i].source, cases[i].step, cases[i].adam, "");
        g_auto(GStrv) parts = g_strsplit(text, "[keep]\nstage=checkpoint\nin=adam", 2);
        g_autofree char *linked =
            g_strjoinv(i ? "[keep]\nstage=checkpoint\nin=more" : "[keep]\nstage=checkpoint\nin=adam", parts);
        /* D-18 */
        g_assert_false(resumes(linked, cases[i].why));
    }
}

static void test_told(void)
{
    if (g_test_subprocess()) {
        make_checkpoints("");
        /* a default written out, another spelling: nothing to tell */
        g_autofree char *same = train("", "width=4", "lr=0.0001", "every=2");
        g_printerr("[same]\n");
        g_assert_true(resumes(same, NULL));
        g_autofree char *other =
            train("prefill=yes\n[graph]\nring=3\nseed=9\n", "delay_ms=1\nring.batch=4", "lr=2e-4", "every=5");
        g_printerr("[other]\n");
        g_assert_true(resumes(other, NULL));
        return;
    }
    g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
    g_test_trap_assert_passed();
    g_test_trap_assert_stderr_unmatched("*?same?*warning*?other?*");
    g_test_trap_assert_stderr("*warning: resume: seed = 9, the checkpoint was made with (not set)*");
    g_test_trap_assert_stderr("*\nresume: ring = 3, the checkpoint was made with (not set)*");
    g_test_trap_assert_stderr("*warning: ?src? resume: prefill = yes, the checkpoint was made with no*");
    g_test_trap_assert_stderr("*: ?step? resume: delay_ms = 1, the checkpoint was made with 0*");
    g_test_trap_assert_stderr("*: ?step? resume: ring.batch = 4, the checkpoint was made with (not set)*");
    g_test_trap_assert_stderr("*warning: ?adam? resume: lr = 0.0002, the checkpoint was made with 0.0001*");
    g_test_trap_assert_stderr("*: ?keep? resume: every = 5, the checkpoint was made with 2*");
    g_test_trap_assert_stderr_unmatched("*warning: ?step?*");
    g_test_trap_assert_stderr_unmatched("*width*");
}

/* The graph in the file runs by itself. */
static void test_graph_text(void)
{
    make_checkpoints("");
    g_autoptr(GError) error = NULL;
    g_autofree char *text = flow_checkpoint_graph(path, &error);
    g_assert_no_error(error);
    g_assert_nonnull(strstr(text, "in.batch = work.out"));
    g_auto(GStrv) parts = g_strsplit(text, "die = 7", 2);
    g_autofree char *lives = g_strjoinv("die = -1", parts), *whole = train("", "", "", "every=1000");
    Result result = run(lives, path), reference = run(whole, NULL);
    g_assert_cmpstr(result.said, ==, NULL);
    g_assert_cmpfloat(result.sum, ==, reference.sum);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    lab_add_loop();
    g_assert_true(flow_plugin_add(&t_order, NULL));
    g_assert_true(flow_plugin_add(&t_keep, NULL));
    /* hundreds of synced files: in memory where there is such a place */
    folder = g_strdup("/dev/shm/loraflow-resume-XXXXXX");
    if (!g_mkdtemp(folder)) {
        g_free(folder);
        folder = g_dir_make_tmp("loraflow-resume-XXXXXX", NULL);
    }
    path = g_build_filename(folder, "run.ckpt", NULL);
    g_test_add_func("/resume/same_end", test_same_end);
    g_test_add_func("/resume/older_files", test_older_files);
    g_test_add_func("/resume/damage", test_damage);
    g_test_add_func("/resume/full_disk", test_full_disk);
    g_test_add_func("/resume/refused", test_refused);
    g_test_add_func("/resume/told", test_told);
    g_test_add_func("/resume/graph_text", test_graph_text);
    int status = g_test_run();
    clean();
    g_rmdir(folder);
    g_free(path);
    g_free(folder);
    g_string_free(rounds, TRUE);
    return status;
}
