/* precision_encode and h2d together: classes, bytes that travel, and the values at the other end.
 *
 * @label short
 */
#include "core/cache/pack.h"
#include "tests/data_lab.h"
#include <math.h>

enum { H = 8, W = 12, C = 4, ONE = H * W * C };

static char *graph_text(const char *graph, const char *params, gboolean h2d)
{
    return g_strdup_printf("[graph]\n%s\n[a]\nstage=t_batches\n[p]\nstage=precision_encode\nin=a\n%s\n%s"
                           "[z]\nstage=t_got\nin=%s\n",
                           graph, params, h2d ? "[h]\nstage=h2d\nin=p\ndepth=64\n" : "", h2d ? "h" : "p");
}

/* Group `group` of samples with these complexities. */
static FlowItem *batch(gint64 group, const float *complexity, gint64 n, float scale)
{
    FlowItem *item = flow_item_new(FLOW_BATCH);
    item->cursor.position = group;
    flow_item_set_i64(item, FLOW_F_MICRO, (gint64[]){group, 0, 1, n, 0, 0}, 6);
    for (int which = 0; which < 2; which++) {
        FlowValue *v = flow_value_new(NET_F32, 4, (gint64[]){n, H, W, C});
        flow_random_normal((guint64)group * 2 + (guint64)which, 0, v->data, flow_value_count(v));
        for (gsize i = 0; i < flow_value_count(v); i++)
            ((float *)v->data)[i] *= scale;
        flow_item_set(item, which ? FLOW_F_LATENT_LOGVAR : FLOW_F_LATENT_MEAN, v);
    }
    flow_item_set_f32(item, FLOW_F_COMPLEXITY, complexity, n);
    g_ptr_array_add(lab_items, item);
    return item;
}

static void prepare(void)
{
    data_lab_clean();
    lab_gives = "micro latent_mean latent_logvar complexity precision role";
}

static const FlowItem *got(guint i)
{
    return g_ptr_array_index(lab_got, i);
}

static void same_floats(const FlowItem *a, const FlowItem *b, FlowField field)
{
    const FlowValue *v = flow_item_get(a, field), *w = flow_item_get(b, field);
    g_assert_true(v->type == NET_F32 && v->ndim == 4);
    g_assert_cmpmem(v->data, v->nbytes, w->data, w->nbytes);
}

/* The classes of the default schedule arrive, with half values rounded and full ones untouched. */
static void test_classes(void)
{
    const float complexity[] = {0.1f, 0.25f, 0.5f, 0.9f};
    const gint64 group[] = {0, 999, 1000, 4999, 5000};
    const gint32 want[5][4] = {{2, 2, 0, 0}, {2, 2, 0, 0}, {2, 1, 1, 0}, {2, 1, 1, 0}, {0, 0, 0, 0}};
    prepare();
    for (guint g = 0; g < 5; g++)
        batch(group[g], complexity, 4, 1);
    g_autofree char *text = graph_text("", "", TRUE);
    data_lab_run(text, NULL, NULL);
    g_assert_cmpuint(lab_got->len, ==, 5);
    for (guint g = 0; g < 5; g++) {
        const gint32 *packed = flow_item_i32(got(g), FLOW_F_PACKED);
        const float *before = flow_item_f32(g_ptr_array_index(lab_items, g), FLOW_F_LATENT_MEAN);
        const float *after = flow_item_f32(got(g), FLOW_F_LATENT_MEAN);
        for (guint s = 0; s < 4; s++) {
            g_assert_cmpint(packed[2 * s], ==, want[g][s]);
            g_assert_cmpint(packed[2 * s + 1], ==, want[g][s] == CACHE_MIXED);
            double error = 0, norm = 0;
            for (guint i = s * ONE; i < (s + 1) * ONE; i++) {
                if (want[g][s] == CACHE_FULL)
                    g_assert_cmpfloat(after[i], ==, before[i]);
                if (want[g][s] == CACHE_HALF)
                    g_assert_cmpfloat(after[i], ==, net_f16_to_f32(net_f32_to_f16(before[i])));
                error += pow((double)after[i] - (double)before[i], 2);
                norm += pow((double)before[i], 2);
            }
            if (want[g][s] == CACHE_MIXED) { /* a quarter of the coefficients with errors of up to 2^-11 */
                g_assert_cmpfloat(error, >, 0);
                g_assert_cmpfloat(sqrt(error / norm), <, 0x1p-11);
            }
        }
    }
}

/* With and without an h2d node: the same values, bit for bit; the fields say who unpacks. */
static void test_with_and_without_h2d(void)
{
    prepare();
    for (gint64 g = 0; g < 6; g++)
        batch(g * 700, (float[]){0.1f, 0.35f, 0.9f}, 3, 1);
    g_autofree char *with = graph_text("", "mixed=high:half\nband=2", TRUE);
    g_autofree char *without = graph_text("ring=1", "mixed=high:half\nband=2", FALSE);
    data_lab_run(with, NULL, NULL);
    g_autoptr(GPtrArray) first = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    for (guint i = 0; i < lab_got->len; i++)
        g_ptr_array_add(first, flow_item_ref((FlowItem *)got(i)));
    data_lab_run(without, NULL, NULL);
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(first, i);
        same_floats(got(i), item, FLOW_F_LATENT_MEAN);
        same_floats(got(i), item, FLOW_F_LATENT_LOGVAR);
        g_assert_null(flow_item_get(item, (FlowField)flow_field_find("packed_mean")));
    }
    /* in between they are packed: a step right behind could not use them, and check says so */
    data_lab_refused(
        "[a]\nstage=t_batches\n[p]\nstage=precision_encode\nin=a\n[q]\nstage=precision_encode\nin=p\n"
        "[h]\nstage=h2d\nin=q\n[z]\nstage=t_got\nin=h\n",
        "[q] needs 'latent_mean', which [p] drops");
}

/* What is counted is what travels. */
static void test_bytes(void)
{
    const char *const counters[] = {"h.bytes",      "h.transfers",  "p.bytes_full",  "p.bytes_mixed",
                                    "p.bytes_half", "p.error_half", "p.error_mixed", NULL};
    double full[7], half[7], mixed[7];
    prepare();
    for (gint64 g = 0; g < 3; g++)
        batch(g, (float[]){0.5f, 0.5f}, 2, 1);
    g_autofree char *f = graph_text("", "schedule=full", TRUE), *h = graph_text("", "schedule=half", TRUE);
    g_autofree char *m = graph_text("", "schedule=mixed\nmixed=low:half", TRUE);
    data_lab_run(f, counters, full);
    data_lab_run(h, counters, half);
    data_lab_run(m, counters, mixed);
    const double latents = 3 * 2 * 2 * ONE * 4; /* groups x samples x mean and log variance */
    g_assert_cmpfloat(full[1], ==, 3);
    g_assert_cmpfloat(full[2], ==, latents);
    g_assert_cmpfloat(half[4], ==, latents / 2);
    g_assert_cmpfloat(mixed[3], ==, latents * 0.875);
    g_assert_cmpfloat(full[0] - half[0], ==, latents / 2);
    g_assert_cmpfloat(full[0] - mixed[0], ==, latents / 8);
    g_assert_cmpfloat(half[5], >, mixed[6]);
    g_assert_cmpfloat(mixed[6], >, 0);
    g_assert_cmpfloat(half[5], <, 0x1p-11); /* normal numbers: rms of a rounding to 11 bits */
}

static void test_ceiling(void)
{
    prepare();
    FlowItem *item = batch(9000, (float[]){1, 1, 1}, 3, 1);
    flow_item_set_i32(item, FLOW_F_PRECISION, (gint32[]){0, 1, 2}, 3);
    FlowItem *held = batch(0, (float[]){0}, 1, 1);
    flow_item_set_i32(held, FLOW_F_ROLE, (gint32[]){1}, 1);
    g_autofree char *text = graph_text("", "", TRUE);
    data_lab_run(text, NULL, NULL);
    for (gint32 s = 0; s < 3; s++)
        g_assert_cmpint(flow_item_i32(got(0), FLOW_F_PACKED)[2 * s], ==, s);
    g_assert_cmpint(flow_item_i32(got(1), FLOW_F_PACKED)[0], ==, CACHE_FULL); /* measured as it is */
    same_floats(got(1), held, FLOW_F_LATENT_MEAN);
}

/* What does not fit half precision stays whole; latents that do not divide have fewer levels. */
static void test_limits(void)
{
    prepare();
    batch(0, (float[]){0}, 1, 1e6f);
    g_autofree char *text = graph_text("", "", TRUE);
    double v[1];
    data_lab_run(text, (const char *const[]){"p.overflows", NULL}, v);
    same_floats(got(0), g_ptr_array_index(lab_items, 0), FLOW_F_LATENT_MEAN);
    g_assert_cmpfloat(v[0], ==, 1);

    prepare();
    batch(0, (float[]){0}, 1, 1); /* 8 x 12 divides twice */
    g_autofree char *deep = graph_text("", "schedule=mixed\nband=5", TRUE);
    data_lab_run(deep, NULL, NULL);
    g_assert_cmpint(flow_item_i32(got(0), FLOW_F_PACKED)[1], ==, 2);
}

static void test_mistakes(void)
{
    prepare();
    FlowItem *item = batch(0, (float[]){0, 0}, 2, 1);
    g_autofree char *schedule = graph_text("", "schedule=0.3 half, 0.2 full", TRUE);
    data_lab_refused(schedule, "[p] schedule: ");
    g_autofree char *text = graph_text("", "", TRUE);
    flow_item_set_i32(item, FLOW_F_PRECISION, (gint32[]){0, 3}, 2);
    data_lab_refused(text, "outside 0..2");
    flow_item_drop(item, FLOW_F_PRECISION);
    flow_item_set_f32(item, FLOW_F_COMPLEXITY, (float[]){0}, 1);
    data_lab_refused(text, "not one number a sample");
    flow_item_set(item, FLOW_F_LATENT_MEAN, flow_value_new(NET_F32, 4, (gint64[]){2, H, W, 1}));
    data_lab_refused(text, "two f32 tensors of one shape");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    g_test_add_func("/precision/classes", test_classes);
    g_test_add_func("/precision/with-and-without-h2d", test_with_and_without_h2d);
    g_test_add_func("/precision/bytes", test_bytes);
    g_test_add_func("/precision/ceiling", test_ceiling);
    g_test_add_func("/precision/limits", test_limits);
    g_test_add_func("/precision/mistakes", test_mistakes);
    int rc = g_test_run();
    data_lab_clean();
    return rc;
}
