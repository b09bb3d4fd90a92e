/* collate: groups, micro-batches of one shape, true means, what travels along.
 *
 * @label short
 */
#include "tests/data_lab.h"
#include <math.h>

#define ENCODED LAB_REFERENCE " latent_mean latent_logvar context"

static char *graph_text(const char *graph, const char *params)
{
    return g_strdup_printf(
        "[graph]\n%s\n[a]\nstage=t_items\n[c]\nstage=collate\nin=a\n%s\n[z]\nstage=t_got\nin=c\n", graph,
        params);
}

/* An encoded sample of h x w latents; its numbers say which it is. */
static FlowItem *encoded(gint64 sample, gint64 epoch, gint64 position, gint64 size, gint64 h, gint64 w)
{
    FlowItem *item = lab_reference(sample, epoch, position, size);
    FlowValue *mean = flow_value_new(NET_F32, 3, (gint64[]){h, w, 2}),
              *logvar = flow_value_new(NET_F32, 3, mean->shape);
    FlowValue *context = flow_value_new(NET_F32, 2, (gint64[]){3, 5});
    for (gsize i = 0; i < flow_value_count(mean); i++) {
        ((float *)mean->data)[i] = (float)(sample * 1000 + (gint64)i);
        ((float *)logvar->data)[i] = -(float)i;
    }
    for (gsize i = 0; i < flow_value_count(context); i++)
        ((float *)context->data)[i] = (float)(sample * 100 + (gint64)i);
    flow_item_set(item, FLOW_F_LATENT_MEAN, mean);
    flow_item_set(item, FLOW_F_LATENT_LOGVAR, logvar);
    flow_item_set(item, FLOW_F_CONTEXT, context);
    return item;
}

/* `epochs` of n square samples. */
static void prepare(gint64 n, gint64 epochs)
{
    data_lab_clean();
    lab_gives = ENCODED;
    for (gint64 e = 0; e < epochs; e++) {
        for (gint64 i = 0; i < n; i++)
            encoded(i, e, i, n, 2, 2)->cursor.epochs = epochs;
        lab_mark(FLOW_MARK_EPOCH, e);
    }
}

static const gint64 *micro_of(const FlowItem *item)
{
    return flow_item_i64(item, FLOW_F_MICRO);
}

/* "group:micro/micros[samples]w ..." of everything that came out. */
static char *got_text(void)
{
    GString *s = g_string_new(NULL);
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK) {
            g_string_append(s, "| ");
            continue;
        }
        const gint64 *m = micro_of(item), *sample = flow_item_i64(item, FLOW_F_SAMPLE);
        g_string_append_printf(s, "%d:%d/%d[", (int)m[0], (int)m[1], (int)m[2]);
        for (gsize j = 0; j < flow_value_count(flow_item_get(item, FLOW_F_SAMPLE)); j++)
            g_string_append_printf(s, "%s%d", j ? " " : "", (int)sample[j]);
        g_string_append_printf(s, "]1/%g ", round(1 / *flow_item_f32(item, FLOW_F_WEIGHT) * 1000) / 1000);
    }
    return g_string_free(s, FALSE);
}

static void expect(const char *params, const char *want)
{
    g_autofree char *text = graph_text("", params);
    data_lab_run(text, NULL, NULL);
    g_autofree char *found = got_text();
    g_assert_cmpstr(found, ==, want);
}

/* Weights of each group sum to one, micro-batches are counted right, all of it adds up over the run. */
static void check_groups(gint64 groups_in_all)
{
    double sum = 0;
    gint64 samples = 0, next = 0, group = -1;
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK)
            continue;
        const gint64 *m = micro_of(item);
        if (m[1] == 0) {
            g_assert_cmpint(m[0], >, group);
            group = m[0], sum = 0, samples = 0, next = 0;
        }
        g_assert_cmpint(m[0], ==, group);
        g_assert_cmpint(m[1], ==, next++);
        g_assert_cmpint(m[4], ==, groups_in_all);
        g_assert_cmpint(m[5], ==, item->cursor.epoch);
        gsize n = flow_value_count(flow_item_get(item, FLOW_F_WEIGHT));
        for (gsize j = 0; j < n; j++)
            sum += (double)flow_item_f32(item, FLOW_F_WEIGHT)[j];
        samples += (gint64)n;
        if (next < m[2])
            continue;
        g_assert_cmpint(samples, ==, m[3]);
        g_assert_cmpfloat(fabs(sum - 1), <, 1e-6); /* n roundings of 1/n to f32 */
    }
}

/* -- groups ------------------------------------------------------------------------- */

static void test_tail(void)
{
    prepare(10, 3); /* 4 + 4 + 2 in every epoch */
    /* B-16 */
    expect("batch=4", "0:0/1[0 1 2 3]1/4 1:0/1[4 5 6 7]1/4 2:0/1[8 9]1/2 | "
                      "3:0/1[0 1 2 3]1/4 4:0/1[4 5 6 7]1/4 5:0/1[8 9]1/2 | "
                      "6:0/1[0 1 2 3]1/4 7:0/1[4 5 6 7]1/4 8:0/1[8 9]1/2 | ");
    check_groups(9);
    expect("batch=4\ndrop_last=yes",
           "0:0/1[0 1 2 3]1/4 1:0/1[4 5 6 7]1/4 | 2:0/1[0 1 2 3]1/4 3:0/1[4 5 6 7]1/4 | "
           "4:0/1[0 1 2 3]1/4 5:0/1[4 5 6 7]1/4 | ");
    check_groups(6);
}

/* The tail of an accumulated epoch is a true mean, too: halves, not quarters. */
static void test_accumulation_tail(void)
{
    prepare(10, 1);
    /* H-10 */
    expect("batch=1\naccumulate=4", "0:0/4[0]1/4 0:1/4[1]1/4 0:2/4[2]1/4 0:3/4[3]1/4 1:0/4[4]1/4 1:1/4[5]1/4 "
                                    "1:2/4[6]1/4 1:3/4[7]1/4 2:0/2[8]1/2 2:1/2[9]1/2 | ");
    check_groups(3);
    prepare(12, 2);
    expect("batch=2\naccumulate=2",
           "0:0/2[0 1]1/4 0:1/2[2 3]1/4 1:0/2[4 5]1/4 1:1/2[6 7]1/4 2:0/2[8 9]1/4 "
           "2:1/2[10 11]1/4 | 3:0/2[0 1]1/4 3:1/2[2 3]1/4 4:0/2[4 5]1/4 4:1/2[6 7]1/4 "
           "5:0/2[8 9]1/4 5:1/2[10 11]1/4 | ");
    check_groups(6);
}

static void test_larger_than_epoch(void)
{
    prepare(3, 2);
    /* B-15 */
    expect("batch=8", "0:0/1[0 1 2]1/3 | 1:0/1[0 1 2]1/3 | ");
    check_groups(2);
    g_autofree char *text = graph_text("", "batch=8\ndrop_last=yes");
    data_lab_refused(
        text,
        "an epoch of 3 samples is below batch x accumulate = 8: set drop_last = no, or batch at most 3");
}

/* Without end, and from a source that does not know its length. */
static void test_unknown_length(void)
{
    prepare(4, 1);
    for (guint i = 0; i < 4; i++)
        ((FlowItem *)g_ptr_array_index(lab_items, i))->cursor.epochs = 0;
    expect("batch=2", "0:0/1[0 1]1/2 1:0/1[2 3]1/2 | ");
    check_groups(0);
    for (guint i = 0; i < 4; i++)
        ((FlowItem *)g_ptr_array_index(lab_items, i))->cursor.size = 0;
    expect("batch=3", "0:0/1[0 1 2]1/3 1:0/1[3]1/1 | ");
    check_groups(0);
}

static void spoil(guint i)
{
    flow_item_set_i32(g_ptr_array_index(lab_items, i), FLOW_F_LATENT_LOGVAR, (gint32[]){1}, 1);
}

/* A bad sample leaves its group smaller, and every other group as it was. */
static void test_lost_samples(void)
{
    prepare(9, 1);
    spoil(1);
    for (guint i = 6; i < 9; i++) /* a whole group */
        spoil(i);
    expect("batch=3\non_error=skip:9", "0:0/1[0 2]1/2 1:0/1[3 4 5]1/3 | ");
    check_groups(3);
    prepare(6, 1); /* the last of a group: it is sent when the next one begins */
    spoil(2);
    expect("batch=3\non_error=skip:9", "0:0/1[0 1]1/2 1:0/1[3 4 5]1/3 | ");
    const FlowItem *first = g_ptr_array_index(lab_got, 0);
    g_assert_cmpint(first->cursor.position, ==, 2); /* where the epoch stands after the group, lost or not */
}

/* A run that goes on in the middle of an epoch numbers its groups like one that came from the beginning. */
static void test_resumed(void)
{
    g_autofree char *text = graph_text("", "batch=2\naccumulate=2");
    prepare(11, 2);
    data_lab_run(text, NULL, NULL);
    g_autofree char *whole = got_text();
    g_ptr_array_remove_range(lab_items, 0, 8);
    data_lab_run(text, NULL, NULL);
    g_autofree char *rest = got_text();
    g_assert_true(g_str_has_suffix(whole, rest));
    g_assert_true(g_str_has_prefix(rest, "2:0/2[8 9]1/3 2:1/2[10]1/3 |"));
}

/* -- shapes ------------------------------------------------------------------------- */

/* The portrait is used, on its own; nothing is padded. */
static void test_shapes(void)
{
    data_lab_clean();
    lab_gives = ENCODED;
    for (gint64 i = 0; i < 10; i++)
        encoded(i, 0, i, 10, i == 5 ? 3 : 2, 2)->cursor.epochs = 1;
    /* B-17 */
    expect("batch=4", "0:0/1[0 1 2 3]1/4 1:0/2[4 6 7]1/4 1:1/2[5]1/4 2:0/1[8 9]1/2 ");
    expect("batch=2\naccumulate=5",
           "0:0/6[0 1]1/10 0:1/6[2 3]1/10 0:2/6[4 6]1/10 0:3/6[5]1/10 0:4/6[7 8]1/10 "
           "0:5/6[9]1/10 ");
    check_groups(1);
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN);
        const gint64 *sample = flow_item_i64(item, FLOW_F_SAMPLE);
        g_assert_cmpuint(mean->ndim, ==, 4);
        g_assert_cmpint(mean->shape[1], ==, *sample == 5 ? 3 : 2);
        gsize one = flow_value_count(mean) / (gsize)mean->shape[0];
        for (gint64 j = 0; j < mean->shape[0]; j++) { /* rows belong to their samples */
            g_assert_cmpfloat(((float *)mean->data)[(gsize)j * one + 3], ==, (float)(sample[j] * 1000 + 3));
            g_assert_cmpfloat(flow_item_f32(item, FLOW_F_CONTEXT)[j * 15 + 7], ==,
                              (float)(sample[j] * 100 + 7));
        }
    }
}

/* Half precision from the cache, a field that only some have, fields that are numbers. */
static void test_fields(void)
{
    prepare(3, 1);
    for (guint i = 0; i < 3; i++) {
        FlowItem *item = g_ptr_array_index(lab_items, i);
        const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN);
        FlowValue *half = flow_value_new(NET_F16, 3, mean->shape);
        net_convert(half->data, NET_F16, mean->data, NET_F32, flow_value_count(mean));
        flow_item_set(item, FLOW_F_LATENT_MEAN, half);
        flow_item_set_i32(item, FLOW_F_PRECISION, (gint32[]){(gint32)i}, 1);
        flow_item_set_f32(item, FLOW_F_COMPLEXITY, (float[]){0.25f * (float)i}, 1);
    }
    flow_item_set_f32(g_ptr_array_index(lab_items, 2), FLOW_F_POOLED, (float[]){1, 2, 3}, 3);
    lab_gives = ENCODED " precision";
    expect("batch=3", "0:0/2[0 1]1/3 0:1/2[2]1/3 | ");
    const FlowItem *a = g_ptr_array_index(lab_got, 0), *b = g_ptr_array_index(lab_got, 1);
    g_assert_cmpint(flow_item_get(a, FLOW_F_LATENT_MEAN)->type, ==, NET_F32);
    g_assert_cmpfloat(flow_item_f32(a, FLOW_F_LATENT_MEAN)[8 + 5], ==, 1005);
    g_assert_cmpuint(flow_item_get(a, FLOW_F_PRECISION)->ndim, ==, 1);
    g_assert_cmpint(flow_item_i32(a, FLOW_F_PRECISION)[1], ==, 1);
    g_assert_cmpfloat(flow_item_f32(a, FLOW_F_COMPLEXITY)[1], ==, 0.25f);
    g_assert_null(flow_item_get(a, FLOW_F_POOLED));
    g_assert_cmpint(flow_item_get(b, FLOW_F_POOLED)->shape[1], ==, 3);
    g_assert_null(flow_item_get(a, FLOW_F_PATH)); /* references end here */
}

/* Latents that are to be noised as they are, without their picture: no reference, no size. */
static void test_given(void)
{
    data_lab_clean();
    lab_gives = "latent context";
    for (gint64 i = 0; i < 2; i++) {
        FlowItem *item = flow_item_new(FLOW_SAMPLE);
        item->cursor = (FlowCursor){.position = i, .size = 2, .epochs = 1};
        flow_item_set(item, FLOW_F_LATENT, flow_value_new(NET_F32, 3, (gint64[]){4, 8, 1}));
        flow_item_set(item, FLOW_F_CONTEXT, flow_value_new(NET_F32, 2, (gint64[]){1, 1}));
        memset(flow_item_get(item, FLOW_F_LATENT)->data, 0, 128);
        memset(flow_item_get(item, FLOW_F_CONTEXT)->data, 0, 4);
        g_ptr_array_add(lab_items, item);
    }
    expect("batch=2\nlatents=given", "0:0/1[0 1]1/2 ");
    const FlowItem *item = g_ptr_array_index(lab_got, 0);
    g_assert_cmpint(flow_item_get(item, FLOW_F_LATENT)->shape[2], ==, 8);
    g_assert_cmpfloat(flow_item_f32(item, FLOW_F_TIME_IDS)[0], ==, 32); /* eight pixels for a latent one */
    g_assert_cmpfloat(flow_item_f32(item, FLOW_F_TIME_IDS)[5], ==, 64);
}

/* Original size, crop, target; of a picture that is neither square nor uncropped. */
static void test_time_ids(void)
{
    prepare(1, 1);
    flow_item_set_i32(g_ptr_array_index(lab_items, 0), FLOW_F_SOURCE_SIZE, (gint32[]){600, 900}, 2);
    flow_item_set_i32(g_ptr_array_index(lab_items, 0), FLOW_F_GEOMETRY,
                      (gint32[]){512, 640, 512, 768, 0, 64, 1}, 7);
    expect("", "0:0/1[0]1/1 | ");
    /* H-09 */
    const float want[] = {600, 900, 0, 64, 512, 640};
    const FlowValue *ids = flow_item_get(g_ptr_array_index(lab_got, 0), FLOW_F_TIME_IDS);
    g_assert_cmpmem(ids->data, ids->nbytes, want, sizeof want);
    flow_item_set_f32(g_ptr_array_index(lab_items, 0), FLOW_F_TIME_IDS, (float[]){1, 2, 3, 4, 5, 6}, 6);
    lab_gives = ENCODED " time_ids"; /* what is there stays */
    expect("", "0:0/1[0]1/1 | ");
    g_assert_cmpfloat(flow_item_f32(g_ptr_array_index(lab_got, 0), FLOW_F_TIME_IDS)[4], ==, 5);
}

/* Held-back samples go in batches of one shape, in order, before training and apart from it. */
static void test_held_back(void)
{
    prepare(7, 1);
    for (guint i = 0; i < 5; i++) {
        FlowItem *item = g_ptr_array_index(lab_items, i);
        flow_item_set_i32(item, FLOW_F_ROLE, (gint32[]){1}, 1);
        item->cursor.epoch = -1;
    }
    flow_item_set_f32(g_ptr_array_index(lab_items, 1), FLOW_F_POOLED, (float[]){1, 2}, 2); /* another shape */
    expect("batch=2", "-1:0/1[0]1/1 -1:0/1[1]1/1 -1:0/1[2 3]1/1 -1:0/1[4]1/1 2:0/1[5]1/1 3:0/1[6]1/1 | ");
    for (guint i = 0; i < 6; i++) {
        const gint32 *role = flow_item_i32(g_ptr_array_index(lab_got, i), FLOW_F_ROLE);
        g_assert_true(i < 4 ? *role == 1 : !role);
    }
}

static void test_same_for_rings(void)
{
    g_autofree char *expected = NULL;
    prepare(23, 3);
    g_setenv("FLOW_STALL", "1", TRUE);
    for (guint i = 0; i < 3; i++) {
        g_autofree char *text =
            graph_text(((const char *[]){"ring=1", "ring=5", "ring=64"})[i], "batch=2\naccumulate=3");
        data_lab_run(text, NULL, NULL);
        g_autofree char *found = got_text();
        if (!expected)
            expected = g_steal_pointer(&found);
        else
            g_assert_cmpstr(found, ==, expected);
    }
    g_unsetenv("FLOW_STALL");
}

/* -- mistakes ----------------------------------------------------------------------- */

static void test_mistakes(void)
{
    g_autofree char *huge = graph_text("", "batch=65536\naccumulate=65536");
    prepare(2, 1);
    data_lab_refused(huge, "above 1048576");
    data_lab_refused(
        "[a]\nstage=t_items\n[s]\nstage=sparse_batch\nin=a\nbatch=4\n[c]\nstage=collate\nin=s\nbatch=2\n"
        "[z]\nstage=t_got\nin=c\n",
        "lab.ini:7: error: [c] batch = 2, but [s] assembles batches of 4: the two must be the same");
    g_autofree char *text = graph_text("", "batch=2");
    lab_gives = LAB_REFERENCE " latent_mean context";
    data_lab_refused(text, "[c] needs 'latent_logvar', which no node before it gives; ");
    g_autofree char *given = graph_text("", "latents=given");
    data_lab_refused(given, "[c] needs 'latent'");
    prepare(2, 1);
    flow_item_set_i32(g_ptr_array_index(lab_items, 0), FLOW_F_CONTEXT, (gint32[]){1}, 1);
    data_lab_refused(text, "'context' is i32");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    g_test_add_func("/collate/tail", test_tail);
    g_test_add_func("/collate/accumulation-tail", test_accumulation_tail);
    g_test_add_func("/collate/larger-than-epoch", test_larger_than_epoch);
    g_test_add_func("/collate/unknown-length", test_unknown_length);
    g_test_add_func("/collate/lost-samples", test_lost_samples);
    g_test_add_func("/collate/resumed", test_resumed);
    g_test_add_func("/collate/shapes", test_shapes);
    g_test_add_func("/collate/fields", test_fields);
    g_test_add_func("/collate/given", test_given);
    g_test_add_func("/collate/time-ids", test_time_ids);
    g_test_add_func("/collate/held-back", test_held_back);
    g_test_add_func("/collate/rings", test_same_for_rings);
    g_test_add_func("/collate/mistakes", test_mistakes);
    int rc = g_test_run();
    data_lab_clean();
    return rc;
}
