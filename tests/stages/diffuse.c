/* diffuse: draws are a function of seed, group and sample; weights follow the schedule.
 *
 * @label short
 */
#include "core/model/model.h"
#include "tests/data_lab.h"
#include <math.h>

static char *graph_text(const char *graph, const char *params)
{
    return g_strdup_printf(
        "[graph]\n%s\n[a]\nstage=t_batches\n[d]\nstage=diffuse\nin=a\n%s\n[z]\nstage=t_got\nin=d\n", graph,
        params);
}

static FlowItem *batch(gint64 group, const gint64 *sample, gint64 n, float weight)
{
    FlowItem *item = flow_item_new(FLOW_BATCH);
    item->cursor.position = group;
    flow_item_set_i64(item, FLOW_F_MICRO, (gint64[]){group, 0, 1, n, 0, 0}, 6);
    flow_item_set_i64(item, FLOW_F_SAMPLE, sample, n);
    FlowValue *w = flow_value_new(NET_F32, 1, &n);
    for (gint64 i = 0; i < n; i++)
        ((float *)w->data)[i] = weight;
    flow_item_set(item, FLOW_F_WEIGHT, w);
    g_ptr_array_add(lab_items, item);
    return item;
}

static void prepare(gint64 groups)
{
    data_lab_clean();
    lab_gives = "micro sample weight";
    for (gint64 g = 0; g < groups; g++)
        batch(g, (gint64[]){g % 5, 7, 9}, 3, 1.0f / 3);
}

static const FlowItem *got(guint i)
{
    return g_ptr_array_index(lab_got, i);
}

static guint64 digest(void)
{
    guint64 h = 0;
    for (guint i = 0; i < lab_got->len; i++)
        for (guint j = 0; j < 3; j++)
            h = flow_random_key(h, NULL,
                                (gint64[]){flow_item_i32(got(i), FLOW_F_TIMESTEP)[j],
                                           flow_item_i64(got(i), FLOW_F_NOISE_KEY)[j],
                                           (gint64)(flow_item_f32(got(i), FLOW_F_WEIGHT)[j] * 1e9)},
                                3);
    return h;
}

/* The same for every number of workers, ring and scheduling; another seed is another run. */
static void test_deterministic(void)
{
    guint64 expected = 0;
    const char *graphs[] = {"ring=1", "ring=64"}, *workers[] = {"workers=1", "workers=2", "workers=8"};
    prepare(60);
    g_setenv("FLOW_STALL", "1", TRUE);
    for (guint g = 0; g < 2; g++)
        for (guint w = 0; w < 3; w++) {
            g_autofree char *params = g_strdup_printf("%s\nmin_snr_gamma=5", workers[w]);
            g_autofree char *text = graph_text(graphs[g], params);
            data_lab_run(text, NULL, NULL);
            if (!expected)
                expected = digest();
            g_assert_true(digest() == expected);
        }
    g_unsetenv("FLOW_STALL");
    g_autofree char *other = graph_text("seed=1", "min_snr_gamma=5");
    data_lab_run(other, NULL, NULL);
    g_assert_true(digest() != expected);
}

/* A sample's numbers do not depend on its batch; twice in a group it draws twice; groups differ. */
static void test_keys(void)
{
    g_autofree char *text = graph_text("", "");
    data_lab_clean();
    lab_gives = "micro sample weight";
    batch(4, (gint64[]){11, 12, 11, 13}, 4, 0.25f);
    batch(4, (gint64[]){13}, 1, 0.25f);
    batch(5, (gint64[]){13}, 1, 0.25f);
    data_lab_run(text, NULL, NULL);
    const gint64 *a = flow_item_i64(got(0), FLOW_F_NOISE_KEY);
    g_assert_cmpint(a[0], !=, a[2]);
    g_assert_cmpint(a[0], !=, a[1]);
    g_assert_cmpint(a[3], ==, *flow_item_i64(got(1), FLOW_F_NOISE_KEY));
    g_assert_cmpint(a[3], !=, *flow_item_i64(got(2), FLOW_F_NOISE_KEY));
    g_assert_cmpint(flow_item_i32(got(0), FLOW_F_TIMESTEP)[3], ==, *flow_item_i32(got(1), FLOW_F_TIMESTEP));
    g_assert_cmpfloat(*flow_item_f32(got(1), FLOW_F_WEIGHT), ==, 0.25f); /* no weighting unless asked */
    g_assert_cmpint(*flow_item_i32(got(1), FLOW_F_PREDICTION), ==, 0);
    g_assert_null(flow_item_get(got(1), FLOW_F_NOISE_OFFSET));
    g_assert_null(flow_item_get(got(1), FLOW_F_ALPHA_BAR));
}

/* Uniform over the range, both ends included. */
static void test_timesteps(void)
{
    g_autofree char *text = graph_text("", "timestep_min=100\ntimestep_max=109");
    guint count[10] = {0};
    prepare(1000);
    data_lab_run(text, NULL, NULL);
    for (guint i = 0; i < lab_got->len; i++)
        for (guint j = 0; j < 3; j++) {
            gint32 t = flow_item_i32(got(i), FLOW_F_TIMESTEP)[j];
            g_assert_cmpint(t, >=, 100);
            g_assert_cmpint(t, <=, 109);
            count[t - 100]++;
        }
    for (guint i = 0; i < 10; i++) { /* 300 +- 5 standard deviations of 16.4 */
        g_assert_cmpuint(count[i], >, 218);
        g_assert_cmpuint(count[i], <, 382);
    }
}

static void test_min_snr(void)
{
    double alpha_bar[1000];
    schedule_alpha_bar(0.00085, 0.012, alpha_bar);
    for (int v = 0; v < 2; v++) {
        g_autofree char *text = graph_text("", v ? "min_snr_gamma=5\nprediction=v" : "min_snr_gamma=5");
        guint below = 0;
        prepare(50);
        data_lab_run(text, NULL, NULL);
        for (guint i = 0; i < lab_got->len; i++)
            for (guint j = 0; j < 3; j++) {
                gint32 t = flow_item_i32(got(i), FLOW_F_TIMESTEP)[j];
                double snr = alpha_bar[t] / (1 - alpha_bar[t]);
                double want = MIN(snr, 5) / (v ? snr + 1 : snr) / 3;
                /* f32 product of a f32 weight: two roundings */
                g_assert_cmpfloat(fabs(flow_item_f32(got(i), FLOW_F_WEIGHT)[j] - want), <, 2.4e-7 * want);
                below += snr > 5;
            }
        g_assert_cmpuint(below, >, 5);
        g_assert_cmpint(*flow_item_i32(got(0), FLOW_F_PREDICTION), ==, v);
    }
}

static void test_zero_terminal(void)
{
    double alpha_bar[1000];
    g_autofree char *text =
        graph_text("", "zero_terminal_snr=yes\nprediction=v\nnoise_offset=0.05\ntimestep_min=990");
    schedule_alpha_bar(0.00085, 0.012, alpha_bar);
    schedule_zero_terminal(alpha_bar);
    prepare(40);
    data_lab_run(text, NULL, NULL);
    gboolean last = FALSE;
    for (guint i = 0; i < lab_got->len; i++)
        for (guint j = 0; j < 3; j++) {
            gint32 t = flow_item_i32(got(i), FLOW_F_TIMESTEP)[j];
            g_assert_cmpfloat(flow_item_f32(got(i), FLOW_F_ALPHA_BAR)[j], ==, (float)alpha_bar[t]);
            g_assert_cmpfloat(flow_item_f32(got(i), FLOW_F_NOISE_OFFSET)[j], ==, 0.05f);
            last |= t == 999;
        }
    g_assert_true(last);
    g_assert_cmpfloat(alpha_bar[999], <, 1e-12);
}

/* Batches of held-back pictures look like the others, but keep their weight. What a replay brings stays. */
static void test_passed_on(void)
{
    g_autofree char *text = graph_text("", "min_snr_gamma=1");
    data_lab_clean();
    lab_gives = "micro sample weight role timestep noise_key";
    FlowItem *held = batch(-1, (gint64[]){3}, 1, 1);
    flow_item_set_i32(held, FLOW_F_ROLE, (gint32[]){1}, 1);
    held->cursor.epoch = -1;
    FlowItem *replayed = batch(0, (gint64[]){3, 4}, 2, 0.5f);
    flow_item_set_i32(replayed, FLOW_F_TIMESTEP, (gint32[]){5, 999}, 2);
    flow_item_set_i64(replayed, FLOW_F_NOISE_KEY, (gint64[]){77, 78}, 2);
    data_lab_run(text, NULL, NULL);
    g_assert_cmpfloat(*flow_item_f32(got(0), FLOW_F_WEIGHT), ==, 1);
    g_assert_nonnull(flow_item_get(got(0), FLOW_F_TIMESTEP));
    g_assert_nonnull(flow_item_get(got(0), FLOW_F_NOISE_KEY));
    g_assert_cmpint(flow_item_i32(got(1), FLOW_F_TIMESTEP)[1], ==, 999);
    g_assert_cmpint(flow_item_i64(got(1), FLOW_F_NOISE_KEY)[0], ==, 77);
    g_assert_cmpfloat(flow_item_f32(got(1), FLOW_F_WEIGHT)[0], <, 0.5f); /* high SNR at step 5 */
    g_assert_cmpfloat(flow_item_f32(got(1), FLOW_F_WEIGHT)[1], ==, 0.5f);
}

static void test_base(void)
{
    prepare(1);
    g_autofree char *text = graph_text("", "base=tests/fixtures/tiny-sd");
    data_lab_run(text, NULL, NULL);
    g_assert_cmpint(*flow_item_i32(got(0), FLOW_F_PREDICTION), ==, 0);
    g_autofree char *missing = graph_text("", "base=tests/fixtures/no-such-model");
    data_lab_refused(missing, "no-such-model");
}

static void test_mistakes(void)
{
    prepare(1);
    g_autofree char *range = graph_text("", "timestep_min=10\ntimestep_max=9");
    data_lab_refused(range, "timestep_min = 10 is above timestep_max = 9");
    g_autofree char *terminal = graph_text("", "zero_terminal_snr=yes");
    data_lab_refused(terminal, "needs prediction = v");
    g_autofree char *text = graph_text("", "");
    lab_gives = "micro sample weight timestep";
    flow_item_set_i32(g_ptr_array_index(lab_items, 0), FLOW_F_TIMESTEP, (gint32[]){0, 1000, 3}, 3);
    data_lab_refused(text, "outside 0..999");
    flow_item_set_i32(g_ptr_array_index(lab_items, 0), FLOW_F_TIMESTEP, (gint32[]){0}, 1);
    data_lab_refused(text, "not 3 numbers each");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    g_test_add_func("/diffuse/deterministic", test_deterministic);
    g_test_add_func("/diffuse/keys", test_keys);
    g_test_add_func("/diffuse/timesteps", test_timesteps);
    g_test_add_func("/diffuse/min-snr", test_min_snr);
    g_test_add_func("/diffuse/zero-terminal", test_zero_terminal);
    g_test_add_func("/diffuse/passed-on", test_passed_on);
    g_test_add_func("/diffuse/base", test_base);
    g_test_add_func("/diffuse/mistakes", test_mistakes);
    int rc = g_test_run();
    data_lab_clean();
    return rc;
}
