/* The training loop as a graph: lora_step, scaler, adamw, validate, save_lora, monitor around recorded
 * batches.
 *
 * @label stage short
 * @link jansson
 * @timeout 120
 */
#include "tests/loop_lab.h"
#include <sys/resource.h>

/* -- one run ---------------------------------------------------------------------------- */

static void test_log(void)
{
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "groups = 6", .adam = "schedule = linear"}, NULL), ==,
                    FLOW_RUN_DONE);
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), ==, 6);
    for (gsize i = 0; i < 6; i++) {
        g_assert_cmpfloat(loop_number(log, i, "step"), ==, (double)i + 1);
        g_assert_cmpfloat(loop_number(log, i, "samples"), ==, 2);
        g_assert_cmpfloat_with_epsilon(loop_number(log, i, "lr"), 1e-3 * (6 - (double)i) / 6, 1e-9);
        g_assert_cmpfloat(loop_number(log, i, "grad_norm"), >, 0);
    }
    /* The recorded trajectory starts with other A, but B = 0: the first loss is that of the base model. */
    g_assert_cmpfloat(fabs(loop_number(log, 0, "loss") / 1.340873020066712 - 1), <, 2e-6);
    json_decref(log);
}

/* D-15: untrained B is zero, one update moves it, every module takes part. */
static void check_moved(const char *name, gboolean moved)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = loop_path(name);
    SafeFile *file = safe_open(path, &error);
    g_assert_no_error(error);
    guint n, up = 0;
    const SafeTensor *tensors = safe_tensors(file, &n);
    for (guint i = 0; i < n; i++) {
        if (!strstr(tensors[i].name, "lora_up"))
            continue;
        g_autofree float *data = golden_f32(file, tensors[i].name);
        gboolean zero = TRUE;
        for (gint64 k = 0; k < tensors[i].count; k++)
            zero &= data[k] == 0;
        g_assert_cmpint(zero, ==, !moved);
        up++;
    }
    g_assert_cmpuint(up, ==, 48);
    safe_close(file);
}

static void test_saved(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 4", .save = "every = 2"}, NULL);
    /* H-01 */
    check_moved("out-step00000002.safetensors", TRUE);
    check_moved("out-step00000004.safetensors", TRUE);
    check_moved("out.safetensors", TRUE);
    g_autoptr(GBytes) step = loop_file("out-step00000004.safetensors"), end = loop_file("out.safetensors");
    g_assert_cmpuint(g_bytes_get_size(step), ==, g_bytes_get_size(end));
}

/* Same seed, same bytes; another seed, other bytes. */
static void test_repeats(void)
{
    const LoopText text = {.source = "groups = 3"};
    loop_clean();
    loop_run(&text, NULL);
    g_autoptr(GBytes) first = loop_file("out.safetensors");
    loop_run(&text, NULL);
    g_autoptr(GBytes) second = loop_file("out.safetensors");
    g_assert_true(g_bytes_equal(first, second));
}

/* -- length ----------------------------------------------------------------------------- */

/* D-09: 24 micro-batches, 4 a group, 2 epochs of 3 groups: 6 updates, and the rate ends with the last. */
static void test_accumulate(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 3\nepochs = 2\naccumulate = 4",
                         .adam = "schedule = linear\nwarmup = 2"},
             NULL);
    static const double rate[] = {0.5, 1, 1, 0.75, 0.5, 0.25};
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), ==, 6);
    for (gsize i = 0; i < 6; i++) {
        g_assert_cmpfloat_with_epsilon(loop_number(log, i, "lr"), 1e-3 * rate[i], 1e-9);
        g_assert_cmpfloat(loop_number(log, i, "samples"), ==, 8);
        g_assert_cmpfloat(loop_number(log, i, "epoch"), ==, i < 3 ? 0 : 1);
    }
    json_decref(log);
}

/* D-19: four equal micro-batches a group train and log as one does. */
static void test_mean(void)
{
    double loss[2][3], norm[2][3];
    for (guint k = 0; k < 2; k++) {
        loop_clean();
        loop_run(&(LoopText){.source = k ? "groups = 3\nsame = 1\naccumulate = 4" : "groups = 3\nsame = 1"},
                 NULL);
        json_t *log = loop_log();
        for (gsize i = 0; i < 3; i++) {
            loss[k][i] = loop_number(log, i, "loss");
            norm[k][i] = loop_number(log, i, "grad_norm");
        }
        json_decref(log);
    }
    for (gsize i = 0; i < 3; i++) { /* order of summation only */
        g_assert_cmpfloat(fabs(loss[1][i] / loss[0][i] - 1), <, 1e-6);
        g_assert_cmpfloat(fabs(norm[1][i] / norm[0][i] - 1), <, 1e-5);
    }
}

/* `steps` ends an endless source, and not one group more is computed. */
static void test_steps(void)
{
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "epochs = 0", .adam = "steps = 5"}, NULL), ==,
                    FLOW_RUN_DONE);
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), ==, 5);
    json_decref(log);
    check_moved("out.safetensors", TRUE);
}

static void test_nothing(void)
{
    g_autofree char *said = NULL;
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "groups = 0"}, &said), ==, FLOW_RUN_FAILED);
    g_assert_nonnull(strstr(said, "no batch arrived"));
    g_assert_null(loop_file("out.safetensors"));
}

/* -- not finite ---------------------------------------------------------------------------- */

static gsize skipped(json_t *log)
{
    gsize n = 0;
    for (gsize i = 0; i < json_array_size(log); i++)
        n += json_is_true(json_object_get(json_array_get(log, i), "skipped"));
    return n;
}

/* D-01: every gradient overflows. The scale falls to its floor, then the run stops and says so. */
static void test_never_finite(void)
{
    g_autofree char *said = NULL;
    loop_clean();
    g_assert_cmpint(
        loop_run(&(LoopText){.source = "epochs = 0\nblow = 1e38",
                             .scale = "mode = dynamic\ninit = 1e38\nmax = 1e38\nmin = 1e36\nmax_skips = 12",
                             .adam = "steps = 100"},
                 &said),
        ==, FLOW_RUN_FAILED);
    g_assert_nonnull(strstr(said, "no finite gradients for 12 steps"));
    json_t *log = loop_log();
    g_assert_cmpuint(skipped(log), >=, 11); /* the error may end the run before the last line is written */
    g_assert_cmpuint(json_array_size(log), ==, skipped(log));
    g_assert_cmpfloat(loop_number(log, 10, "scale") / 1e36, >=, 0.999);
    json_decref(log);
    g_assert_null(loop_file("out.safetensors")); /* nothing was learned */
}

/* The same after good steps: what was learned is saved before the run ends with the error. */
static void test_saved_before_failing(void)
{
    g_autofree char *said = NULL;
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "poison_at = 4"}, &said), ==, FLOW_RUN_FAILED);
    /* D-04 */
    g_assert_nonnull(strstr(said, "step 4: the gradient is not finite"));
    check_moved("out.safetensors", TRUE); /* golden_f32 and != 0 would let a NaN pass, so: */
    g_autoptr(GBytes) file = loop_file("out.safetensors");
    g_autoptr(GBytes) before = NULL;
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 3"}, NULL);
    before = loop_file("out.safetensors");
    /* Parameters are those after three updates; the metadata tells another length of the run. */
    gsize n, m;
    const guint8 *a = g_bytes_get_data(file, &n), *b = g_bytes_get_data(before, &m);
    gsize data = 48 * 4 * (2 * 64) * sizeof(float) / 4;
    g_assert_cmpmem(a + n - data, data, b + m - data, data);
}

/* D-02: the scale grows every step and stops at its limit. */
static void test_growth(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 8",
                         .scale = "mode = dynamic\ninit = 1\ngrowth_interval = 1\nmax = 16"},
             NULL);
    json_t *log = loop_log();
    for (gsize i = 0; i < 8; i++)
        g_assert_cmpfloat(loop_number(log, i, "scale"), ==, MIN(1 << (i + 1), 16));
    g_assert_cmpuint(skipped(log), ==, 0);
    json_decref(log);
}

/* D-03: the first steps overflow; neither schedule nor bias correction nor the number of updates moves. */
static void test_skips(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "epochs = 0\nblow = 100",
                         .scale = "mode = dynamic\ninit = 3e38\nmax = 3e38\nbackoff = 0.01",
                         .adam = "steps = 6\nschedule = linear\nwarmup = 2"},
             NULL);
    static const double rate[] = {0.5, 1, 1, 0.75, 0.5, 0.25};
    json_t *log = loop_log();
    gsize skips = skipped(log), done = 0;
    g_assert_cmpuint(skips, >=, 1);
    g_assert_cmpuint(json_array_size(log), ==, 6 + skips);
    for (gsize i = 0; i < json_array_size(log); i++) {
        if (json_is_true(json_object_get(json_array_get(log, i), "skipped"))) {
            g_assert_cmpfloat(loop_number(log, i, "step"), ==, (double)done);
            continue;
        }
        g_assert_cmpfloat_with_epsilon(loop_number(log, i, "lr"), 1e-3 * rate[done], 1e-9);
        g_assert_cmpfloat(loop_number(log, i, "step"), ==, (double)++done);
    }
    json_decref(log);
}

/* D-05: clipping after unscaling: powers of two change no bit. */
static void test_scale_is_exact(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 4", .scale = "mode = static\ninit = 1\nclip = 0.01"}, NULL);
    g_autoptr(GBytes) one = loop_file("out.safetensors");
    json_t *log = loop_log();
    g_assert_cmpfloat(loop_number(log, 0, "grad_norm"), >, 0.01); /* so that it is clipped */
    json_decref(log);
    loop_run(&(LoopText){.source = "groups = 4", .scale = "mode = static\ninit = 65536\nclip = 0.01"}, NULL);
    g_autoptr(GBytes) large = loop_file("out.safetensors");
    g_assert_true(g_bytes_equal(one, large));
}

/* H-05: memory is that of the first steps, also when every other step overflows and is given up. */
static void test_flat(void)
{
    const char *sanitizer = g_getenv("LORAFLOW_SANITIZE");
    gboolean sanitized = sanitizer && *sanitizer;
    struct rusage early, late;
    LoopText text = {.source = "epochs = 0\nblow = 100",
                     .scale = "mode = dynamic\ninit = 3e38\nmax = 3e38\nbackoff = 0.001\ngrowth = 1000\n"
                              "growth_interval = 1",
                     .adam = "steps = 10"};
    loop_clean();
    loop_run(&text, NULL);
    getrusage(RUSAGE_SELF, &early);
    text.adam = sanitized ? "steps = 12" : "steps = 50";
    loop_clean();
    loop_run(&text, NULL);
    getrusage(RUSAGE_SELF, &late);
    json_t *log = loop_log();
    g_assert_cmpuint(skipped(log), >=, sanitized ? 5 : 30);
    json_decref(log);
    if (!sanitized) /* a sanitizer keeps freed memory back */
        g_assert_cmpint(late.ru_maxrss - early.ru_maxrss, <, 4096);
}

/* -- arithmetic of the adapters ------------------------------------------------------------- */

/* D-12: with B = 0, doubling alpha doubles the gradient of B, exactly. */
static void test_alpha(void)
{
    double norm[2];
    for (guint k = 0; k < 2; k++) {
        loop_clean();
        loop_run(&(LoopText){.source = "groups = 1", .step = k ? "alpha = 8" : "alpha = 4"}, NULL);
        json_t *log = loop_log();
        norm[k] = loop_number(log, 0, "grad_norm");
        json_decref(log);
    }
    g_assert_cmpfloat(norm[1], ==, 2 * norm[0]);
}

/* D-11: masters are f32, so tiny updates add up; what f16 cannot hold in the file is told, not hidden. */
static void test_tiny_updates(void)
{
    g_autoptr(GError) error = NULL;
    loop_clean();
    g_autofree char *text =
        loop_text(&(LoopText){.source = "groups = 2", .adam = "lr = 1e-9", .save = "dtype = f16"});
    FlowGraph *graph = loop_load(text, NULL);
    flow_graph_open(graph, &error);
    g_assert_no_error(error);
    flow_graph_run(graph, NULL, &error);
    g_assert_no_error(error);
    /* B is about 2e-9 everywhere: below the smallest f16 */
    /* H-12 */
    g_assert_cmpfloat(flow_node_counter(flow_graph_node_named(graph, "save"), "flushed"), >=, 48 * 32 * 4);
    flow_graph_free(graph);
    check_moved("out.safetensors", FALSE);
    loop_run(&(LoopText){.source = "groups = 2", .adam = "lr = 1e-9"}, NULL);
    check_moved("out.safetensors", TRUE);
}

/* -- stop and measure ------------------------------------------------------------------------ */

static void test_stop(void)
{
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "epochs = 0\nstop_at = 24", .adam = "steps = 1000"}, NULL),
                    ==, FLOW_RUN_STOPPED);
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), >=, 4); /* at most a ring of batches was dropped */
    g_assert_cmpuint(json_array_size(log), <, 24);
    json_decref(log);
    check_moved("out.safetensors", TRUE);
}

static void test_stop_first(void)
{
    loop_clean();
    g_assert_cmpint(loop_run(&(LoopText){.source = "epochs = 0\nstop_at = 1", .adam = "steps = 1000"}, NULL),
                    ==, FLOW_RUN_STOPPED);
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), <=, 1);
    if (json_array_size(log) == 0)
        g_assert_null(loop_file("out.safetensors"));
    json_decref(log);
}

static void test_validation(void)
{
    loop_clean();
    loop_run(&(LoopText){.source = "groups = 8\nheld = 2", .measure = "every = 4\ntimesteps = 100, 500, 900"},
             NULL);
    json_t *log = loop_log();
    double middle = loop_number(log, 3, "validation"), end = loop_number(log, 7, "validation");
    g_assert_cmpfloat(middle, >, 0);
    g_assert_cmpfloat(end, >, 0);
    g_assert_cmpfloat(middle, !=, end);
    g_assert_true(isnan(loop_number(log, 2, "validation")));
    json_decref(log);
    /* Measuring does not change what is learned. */
    g_autoptr(GBytes) with = loop_file("out.safetensors");
    loop_run(&(LoopText){.source = "groups = 8"}, NULL);
    g_autoptr(GBytes) without = loop_file("out.safetensors");
    g_assert_true(g_bytes_equal(with, without));
}

/* -- what is refused --------------------------------------------------------------------------- */

static void refused(const LoopText *text, const char *why)
{
    g_autofree char *said = NULL;
    g_assert_cmpint(loop_run(text, &said), ==, FLOW_RUN_FAILED);
    if (!said || !strstr(said, why))
        g_error("'%s' is not said in: %s", why, said);
}

/* H-01: gradients that are zero everywhere train nothing: that is an error at once, and no file. */
static void test_unmoved(void)
{
    loop_clean();
    refused(&(LoopText){.source = "epochs = 0\nblow = 0", .adam = "steps = 100"},
            "no module of 48 has a gradient");
    json_t *log = loop_log();
    g_assert_cmpuint(json_array_size(log), ==, 0);
    json_decref(log);
    g_assert_null(loop_file("out.safetensors"));
}

static void test_refused(void)
{
    loop_clean();
    refused(&(LoopText){.adam = "warmup = 200%"}, "warmup");
    refused(&(LoopText){.adam = "warmup = some"}, "warmup");
    refused(&(LoopText){.scale = "init = 0.5"}, "init = 0.5 is outside min..max");
    refused(&(LoopText){.measure = "timesteps = 1000"}, "'1000' is not a number of 0..999");
    refused(&(LoopText){.step = "targets = nothing"}, "nothing");
    refused(&(LoopText){.source = "epochs = 0", .adam = "schedule = cosine"}, "needs to know the length");
}

/* D-14: limits of the rank. */
static void test_rank(void)
{
    static const char *const text =
        "[source]\nstage = t_batches\n[step]\nstage = lora_step\nin.batch = source\n"
        "in.params = adam\nlatents = given\nbase = tests/fixtures/tiny-sd\nrank = %s\n"
        "[adam]\nstage = adamw\nin = step\nsteps = 1\n";
    static const struct {
        const char *rank, *why;
    } bad[] = {{"0", "rank"}, {"-1", "rank"}, {"4.5", "rank"}, {"1000000", "rank"}, {"40", "rank"}};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autofree char *said = NULL, *graph_text = g_strdup_printf(text, bad[i].rank);
        g_autoptr(GError) error = NULL;
        FlowGraph *graph = loop_load(graph_text, &said);
        if (graph) {
            g_assert_false(flow_graph_open(graph, &error));
            said = g_strdup(error->message);
            flow_graph_free(graph);
        }
        if (!strstr(said, bad[i].why) || !strstr(said, "[step]"))
            g_error("rank %s: %s", bad[i].rank, said);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    loop_start();
    g_test_add_func("/loop/log", test_log);
    g_test_add_func("/loop/saved", test_saved);
    g_test_add_func("/loop/repeats", test_repeats);
    g_test_add_func("/loop/accumulate", test_accumulate);
    g_test_add_func("/loop/mean", test_mean);
    g_test_add_func("/loop/steps", test_steps);
    g_test_add_func("/loop/nothing", test_nothing);
    g_test_add_func("/loop/never-finite", test_never_finite);
    g_test_add_func("/loop/saved-before-failing", test_saved_before_failing);
    g_test_add_func("/loop/growth", test_growth);
    g_test_add_func("/loop/skips", test_skips);
    g_test_add_func("/loop/flat", test_flat);
    g_test_add_func("/loop/scale-is-exact", test_scale_is_exact);
    g_test_add_func("/loop/alpha", test_alpha);
    g_test_add_func("/loop/tiny-updates", test_tiny_updates);
    g_test_add_func("/loop/stop", test_stop);
    g_test_add_func("/loop/stop-first", test_stop_first);
    g_test_add_func("/loop/validation", test_validation);
    g_test_add_func("/loop/unmoved", test_unmoved);
    g_test_add_func("/loop/refused", test_refused);
    g_test_add_func("/loop/rank", test_rank);
    int rc = g_test_run();
    loop_end();
    return rc;
}
