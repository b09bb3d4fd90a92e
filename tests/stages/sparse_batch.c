/* sparse_batch: every sample once, anchors, gains against an independent count, configurations, order.
 *
 * @label short
 */
#include "core/image/geometry.h"
#include "tests/data_lab.h"
#include <math.h>

#define REFERENCES "path caption file_id sample role source_size geometry complexity scores"

static char *graph_text(const char *graph, const char *params)
{
    return g_strdup_printf("[graph]\n%s\n[a]\nstage=t_items\n[s]\nstage=sparse_batch\nin=a\nstep=16\n%s\n"
                           "[z]\nstage=t_got\nin=s\n",
                           graph, params);
}

/* Picture `sample` with numbers that follow from it. */
static FlowItem *scored(gint64 sample, gint64 epoch, gint64 position, gint64 size)
{
    FlowItem *item = lab_reference(sample, epoch, position, size);
    guint64 key = flow_random_key(5, "scored", &sample, 1);
    float u[8];
    for (guint i = 0; i < 8; i++)
        u[i] = (float)flow_random_uniform(key, i);
    const gint32 h = 60 + (gint32)(u[6] * 100), w = 60 + (gint32)(u[7] * 100);
    ImageGeometry g;
    image_geometry_fit((ImageSize){h, w}, (ImageSize){64, sample % 3 ? 64 : 48}, 0.25, 0.75, &g);
    flow_item_set_i32(item, FLOW_F_SOURCE_SIZE, (gint32[]){h, w}, 2);
    flow_item_set_i32(item, FLOW_F_GEOMETRY, (const gint32 *)&g, 7);
    flow_item_set_f32(item, FLOW_F_COMPLEXITY, &u[0], 1);
    flow_item_set_f32(item, FLOW_F_SCORES, u + 1, 5);
    return item;
}

static void prepare(gint64 n, gint64 epochs, gint64 repeats, gboolean marks)
{
    data_lab_clean();
    lab_gives = REFERENCES;
    for (gint64 e = 0; e < epochs; e++) {
        for (gint64 i = 0; i < n * repeats; i++)
            scored(i % n, e, i, n * repeats);
        if (marks)
            lab_mark(FLOW_MARK_EPOCH, e);
    }
}

static gint64 sample_of(const FlowItem *item)
{
    return *flow_item_i64(item, FLOW_F_SAMPLE);
}

static double complexity_of(const FlowItem *item)
{
    return *flow_item_f32(item, FLOW_F_COMPLEXITY);
}

static gboolean is_low(const FlowItem *item)
{
    return *flow_item_i32(item, FLOW_F_PRECISION) == 2;
}

/* Samples of one epoch in order. */
static GPtrArray *epoch_of(gint64 epoch)
{
    GPtrArray *items = g_ptr_array_new();
    for (guint i = 0; i < lab_got->len; i++) {
        FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind != FLOW_MARK && item->cursor.epoch == epoch)
            g_ptr_array_add(items, item);
    }
    return items;
}

static char *order_text(void)
{
    GString *s = g_string_new(NULL);
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK)
            g_string_append_printf(s, "<%d> ", item->mark);
        else
            g_string_append_printf(s, "%d%s@%d ", (int)sample_of(item), is_low(item) ? "l" : "",
                                   (int)item->cursor.position);
    }
    return g_string_free(s, FALSE);
}

/* Every sample exactly `repeats` times an epoch, positions counted anew, nothing else changed. */
static void test_once_an_epoch(void)
{
    enum { N = 23, REPEATS = 3 };
    for (int marks = 0; marks < 2; marks++) {
        g_autofree char *text = graph_text("", "batch=4\nwindow=7");
        prepare(N, 3, REPEATS, marks);
        data_lab_run(text, NULL, NULL);
        for (gint64 e = 0; e < 3; e++) {
            g_autoptr(GPtrArray) items = epoch_of(e);
            guint seen[N] = {0};
            g_assert_cmpuint(items->len, ==, N * REPEATS);
            for (guint i = 0; i < items->len; i++) {
                const FlowItem *item = g_ptr_array_index(items, i);
                seen[sample_of(item)]++;
                g_assert_cmpint(item->cursor.position, ==, i);
                g_assert_cmpint(item->cursor.size, ==, N * REPEATS);
            }
            for (guint i = 0; i < N; i++)
                g_assert_cmpuint(seen[i], ==, REPEATS);
        }
        const FlowItem *last = g_ptr_array_index(lab_got, lab_got->len - 1);
        g_assert_true((last->kind == FLOW_MARK) == marks);
    }
}

/* -- the choice, counted again --------------------------------------------------------- */

enum { F = 6 };

static void feature_of(const FlowItem *item, double *f)
{
    const float *s = flow_item_f32(item, FLOW_F_SCORES);
    const gint32 *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    const double v[F] = {s[0], s[1], log((double)size[1] / size[0]), s[2], s[3], s[4]};
    memcpy(f, v, sizeof v);
}

static double gain_of(const double *f, const double (*batch)[F], guint in_batch, const double *deviation,
                      double fidelity, double cost)
{
    double nearest = INFINITY;
    for (guint b = 0; b < in_batch; b++) {
        double sum = 0;
        for (int i = 0; i < F; i++)
            sum += pow((f[i] - batch[b][i]) / deviation[i], 2);
        nearest = MIN(nearest, sqrt(sum));
    }
    return nearest * fidelity / pow(cost, 0.25);
}

static void deviations(const GPtrArray *items, double *deviation)
{
    double mean[F] = {0}, square[F] = {0}, f[F];
    for (guint i = 0; i < items->len; i++) {
        feature_of(g_ptr_array_index(items, i), f);
        for (int j = 0; j < F; j++)
            mean[j] += f[j] / items->len;
    }
    for (guint i = 0; i < items->len; i++) {
        feature_of(g_ptr_array_index(items, i), f);
        for (int j = 0; j < F; j++)
            square[j] += pow(f[j] - mean[j], 2) / items->len;
    }
    for (int j = 0; j < F; j++)
        deviation[j] = sqrt(square[j]);
}

/* Pixels of the smaller configuration relative to 64 x 64 or 64 x 48, step 16. */
static double low_cost_of(const FlowItem *item)
{
    return sample_of(item) % 3 ? 0.25 : 32.0 * 32 / (64 * 48);
}

/* With a window over everything and no jitter: anchors in order of complexity, and no unused pair of sample
 * and configuration would have gained more than the chosen one. */
static void test_gain(void)
{
    enum { N = 37, BATCH = 5 };
    double deviation[F], batch[BATCH][F];
    guint lows = 0;
    g_autofree char *text = graph_text("", "batch=5\nwindow=1000\njitter=0\nmin_complexity=0.6");
    prepare(N, 1, 1, TRUE);
    data_lab_run(text, NULL, NULL);
    g_autoptr(GPtrArray) items = epoch_of(0);
    deviations(items, deviation);
    for (guint i = 0; i < N; i++) {
        const FlowItem *item = g_ptr_array_index(items, i);
        guint in_batch = i % BATCH;
        double f[F];
        feature_of(item, f);
        double chosen =
            in_batch ? gain_of(f, batch, in_batch, deviation, is_low(item) ? 1 - complexity_of(item) : 1,
                               is_low(item) ? low_cost_of(item) : 1)
                     : 0;
        lows += is_low(item);
        g_assert_true(in_batch || !is_low(item));
        g_assert_true(!is_low(item) || complexity_of(item) < 0.6);
        for (guint j = i; j < N; j++) { /* whoever was still free then */
            const FlowItem *other = g_ptr_array_index(items, j);
            double g[F], c = complexity_of(other);
            feature_of(other, g);
            if (!in_batch) {
                g_assert_cmpfloat(c, <=, complexity_of(item));
                continue;
            }
            g_assert_cmpfloat(gain_of(g, batch, in_batch, deviation, 1, 1), <=, chosen * (1 + 1e-9));
            if (c < 0.6)
                g_assert_cmpfloat(gain_of(g, batch, in_batch, deviation, 1 - c, low_cost_of(other)), <=,
                                  chosen * (1 + 1e-9));
        }
        memcpy(batch[in_batch], f, sizeof f);
    }
    g_assert_cmpuint(lows, >, 3); /* both configurations occurred */
    g_assert_cmpuint(lows, <, N - 8);
}

/* -- configurations -------------------------------------------------------------------- */

static void check_geometry(const FlowItem *item)
{
    const gint32 *g = flow_item_i32(item, FLOW_F_GEOMETRY), *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    ImageSize target = {64, sample_of(item) % 3 ? 64 : 48};
    ImageGeometry want;
    if (is_low(item))
        target = image_geometry_scaled(target, 0.5, 16);
    image_geometry_fit((ImageSize){size[0], size[1]}, target, 0.25, 0.75, &want);
    const gint32 *w = (const gint32 *)&want;
    g_assert_true(g[0] == w[0] && g[1] == w[1] && g[2] == w[2] && g[3] == w[3]);
    g_assert_cmpint(ABS(g[4] - w[4]), <=, 1); /* the place of the crop is a rounded share */
    g_assert_cmpint(ABS(g[5] - w[5]), <=, 1);
}

/* What may be asked for later goes out once while caches are filled, and training asks for nothing else. */
static void test_prefill(void)
{
    enum { N = 20 };
    g_autofree char *text = graph_text("", "batch=4");
    g_autoptr(GHashTable) ready = g_hash_table_new(NULL, NULL);
    data_lab_clean();
    lab_gives = REFERENCES;
    for (gint64 i = 0; i < N; i++)
        scored(i, -1, i, N);
    flow_item_set_i32(g_ptr_array_index(lab_items, 3), FLOW_F_ROLE, (gint32[]){1}, 1);
    flow_item_set_f32(g_ptr_array_index(lab_items, 3), FLOW_F_COMPLEXITY, (float[]){0.01f}, 1);
    lab_mark(FLOW_MARK_PREFILL_DONE, -1);
    for (gint64 e = 0; e < 4; e++)
        for (gint64 i = 0; i < N; i++)
            if (i != 3)
                scored(i, e, i, N - 1);
    /* prefill items reach only nodes that want them, so what goes out is seen by what a cache has to encode
     */
    const char *cached =
        "[a]\nstage=t_items\n[s]\nstage=sparse_batch\nin=a\nstep=16\nbatch=4\n[l]\nstage=fp16_cache\nin=s\n"
        "[p]\nstage=t_picture\nin=l\n[k]\nstage=fp16_cache_store\nin=p\ncache=l\n[z]\nstage=t_got\nin=k\n";
    double v[2];
    data_lab_run(cached, (const char *const[]){"l.misses", "l.hits", NULL}, v);
    guint simple = 0;
    for (gint64 i = 0; i < N; i++)
        simple += i != 3 && complexity_of(g_ptr_array_index(lab_items, (guint)i)) < 0.4;
    g_assert_cmpuint(simple, >, 2);
    g_assert_cmpfloat(v[0], ==, N + simple);
    g_assert_cmpfloat(v[1], ==, 4 * (N - 1));
    g_assert_cmpint(lab_pictures, ==, N + simple);
    guint held = 0, lows = 0;
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK)
            continue;
        check_geometry(item);
        lows += is_low(item);
        held += item->cursor.epoch < 0;
        g_assert_true(!is_low(item) || complexity_of(item) < 0.4);
    }
    g_assert_cmpuint(held, ==, 1);
    g_assert_cmpuint(lows, >, 0);
}

/* -- order ----------------------------------------------------------------------------- */

static void test_deterministic(void)
{
    g_autofree char *expected = NULL;
    const char *graphs[] = {"ring=1", "ring=64", "ring=7"};
    prepare(40, 3, 2, TRUE);
    g_setenv("FLOW_STALL", "1", TRUE);
    for (guint i = 0; i < 3; i++) {
        g_autofree char *text = graph_text(graphs[i], "batch=6\nwindow=9");
        data_lab_run(text, NULL, NULL);
        g_autofree char *found = order_text();
        if (!expected)
            expected = g_steal_pointer(&found);
        else
            g_assert_cmpstr(found, ==, expected);
    }
    g_unsetenv("FLOW_STALL");
    g_autofree char *other = graph_text("seed=2", "batch=6\nwindow=9");
    data_lab_run(other, NULL, NULL);
    g_autofree char *found = order_text();
    g_assert_cmpstr(found, !=, expected);
}

/* No two epochs have the same anchors in the same order. */
static void test_epochs_differ(void)
{
    g_autofree char *text = graph_text("", "batch=4\njitter=0.2");
    prepare(40, 2, 1, TRUE);
    data_lab_run(text, NULL, NULL);
    g_autoptr(GPtrArray) a = epoch_of(0), b = epoch_of(1);
    guint same = 0;
    for (guint i = 0; i < 40; i += 4)
        same += sample_of(g_ptr_array_index(a, i)) == sample_of(g_ptr_array_index(b, i));
    g_assert_cmpuint(same, <, 8);
}

/* A feature that is the same for all, one sample, samples that are all alike. */
static void test_degenerate(void)
{
    g_autofree char *text = graph_text("", "batch=4");
    for (gint64 n = 1; n <= 9; n += 4) {
        data_lab_clean();
        lab_gives = REFERENCES;
        for (gint64 i = 0; i < n; i++)
            lab_reference(0, 0, i, n);
        data_lab_run(text, NULL, NULL);
        g_assert_cmpuint(lab_got->len, ==, n);
    }
    data_lab_clean();
    data_lab_run(text, NULL, NULL);
    g_assert_cmpuint(lab_got->len, ==, 0);
}

static void test_bad_items(void)
{
    g_autofree char *text = graph_text("", "batch=2\non_error=skip:2");
    prepare(4, 1, 1, TRUE);
    flow_item_set_f32(g_ptr_array_index(lab_items, 1), FLOW_F_COMPLEXITY, (float[]){NAN}, 1);
    flow_item_set_f32(g_ptr_array_index(lab_items, 2), FLOW_F_SCORES, (float[]){0, 0}, 2);
    data_lab_run(text, NULL, NULL);
    g_autoptr(GPtrArray) items = epoch_of(0);
    g_assert_cmpuint(items->len, ==, 2);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    g_test_add_func("/sparse/once-an-epoch", test_once_an_epoch);
    g_test_add_func("/sparse/gain", test_gain);
    g_test_add_func("/sparse/prefill", test_prefill);
    g_test_add_func("/sparse/deterministic", test_deterministic);
    g_test_add_func("/sparse/epochs-differ", test_epochs_differ);
    g_test_add_func("/sparse/degenerate", test_degenerate);
    g_test_add_func("/sparse/bad-items", test_bad_items);
    int rc = g_test_run();
    data_lab_clean();
    return rc;
}
