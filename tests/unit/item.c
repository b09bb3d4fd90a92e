/* Items and values: counts, sharing, copy on write, from several threads too.
 * @label short
 */
#include "core/flow/item.h"
#include <pthread.h>
#include <string.h>

static void test_values(void)
{
    gint64 live = flow_item_live();
    gint64 shape[3] = {3, 5, 7};
    FlowValue *value = flow_value_new(NET_F32, 3, shape);
    g_assert_cmpuint(flow_value_count(value), ==, 105);
    g_assert_cmpuint(value->nbytes, ==, 420);
    g_assert_cmpuint((guintptr)value->data % 64, ==, 0);
    memset(value->data, 1, value->nbytes);
    FlowValue *scalar = flow_value_new(NET_I64, 0, NULL);
    g_assert_cmpuint(flow_value_count(scalar), ==, 1);
    gint64 none = 0;
    FlowValue *empty = flow_value_new(NET_F16, 1, &none);
    g_assert_cmpuint(empty->nbytes, ==, 0);
    g_assert_cmpint(flow_item_live(), ==, live + 3);
    flow_value_unref(flow_value_ref(value));
    flow_value_unref(value);
    flow_value_unref(scalar);
    flow_value_unref(empty);
    flow_value_unref(NULL);
    g_assert_cmpint(flow_item_live(), ==, live);
}

static void count_free(gpointer data)
{
    ++*(int *)data;
}

static void test_wrap(void)
{
    int freed = 0;
    float data[4] = {1, 2, 3, 4};
    gint64 n = 4;
    FlowValue *value = flow_value_wrap(NET_F32, 1, &n, data, count_free, &freed);
    FlowValue *other = flow_value_ref(value);
    flow_value_unref(value);
    g_assert_cmpint(freed, ==, 0);
    flow_value_unref(other);
    g_assert_cmpint(freed, ==, 1);
    FlowValue *object = flow_value_object("test.thing", &freed, count_free);
    g_assert_cmpstr(object->object_type, ==, "test.thing");
    g_assert_true(object->data == &freed);
    flow_value_unref(object);
    g_assert_cmpint(freed, ==, 2);
}

static void test_fields(void)
{
    g_autoptr(FlowItem) item = flow_item_new(FLOW_SAMPLE);
    gint64 live = flow_item_live();
    g_assert_null(flow_item_get(item, FLOW_F_IMAGE));
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string("a cat"));
    flow_item_set(item, FLOW_F_PATH, flow_value_string("/data/cat/1.png"));
    gint32 size[2] = {480, 640};
    flow_item_set_i32(item, FLOW_F_SOURCE_SIZE, size, 2);
    g_assert_cmpstr(flow_item_string(item, FLOW_F_CAPTION), ==, "a cat");
    g_assert_cmpint(flow_item_i32(item, FLOW_F_SOURCE_SIZE)[1], ==, 640);
    g_assert_null(flow_item_f32(item, FLOW_F_SOURCE_SIZE));
    g_assert_null(flow_item_string(item, FLOW_F_SOURCE_SIZE));
    g_assert_cmpuint(flow_item_nbytes(item), ==, 5 + 15 + 8);
    g_assert_cmpuint(item->has, ==,
                     FLOW_FIELD_BIT(FLOW_F_CAPTION) | FLOW_FIELD_BIT(FLOW_F_PATH) |
                         FLOW_FIELD_BIT(FLOW_F_SOURCE_SIZE));
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string("two cats"));
    g_assert_cmpstr(flow_item_string(item, FLOW_F_CAPTION), ==, "two cats");
    g_assert_cmpuint(item->n, ==, 3);
    g_autofree char *label = flow_item_label(item);
    g_assert_cmpstr(label, ==, "cat/1.png");
    flow_item_drop(item, FLOW_F_CAPTION);
    flow_item_drop(item, FLOW_F_CAPTION);
    g_assert_null(flow_item_get(item, FLOW_F_CAPTION));
    flow_item_keep(item, FLOW_FIELD_BIT(FLOW_F_SOURCE_SIZE));
    g_assert_cmpuint(item->n, ==, 1);
    g_assert_cmpint(flow_item_i32(item, FLOW_F_SOURCE_SIZE)[0], ==, 480);
    g_assert_cmpint(flow_item_live(), ==, live + 1);
}

static void test_labels(void)
{
    FlowCursor cursor = {2, 12, 100, 3};
    g_autoptr(FlowItem) batch = flow_item_new(FLOW_BATCH);
    batch->cursor = cursor;
    g_autofree char *b = flow_item_label(batch);
    g_assert_cmpstr(b, ==, "batch 12");
    g_autoptr(FlowItem) step = flow_item_new(FLOW_STEP);
    gint64 v[4] = {7, 100, 7, 0};
    flow_item_set_i64(step, FLOW_F_STEP, v, 4);
    g_autofree char *s = flow_item_label(step);
    g_assert_cmpstr(s, ==, "step 7");
    g_autoptr(FlowItem) mark = flow_item_new_mark(FLOW_MARK_PREFILL_DONE, &cursor);
    g_assert_cmpint(mark->cursor.epoch, ==, 2);
    g_autofree char *m = flow_item_label(mark);
    g_assert_cmpstr(m, ==, "end of prefill");
}

static void test_copy_on_write(void)
{
    gint64 live = flow_item_live();
    FlowItem *one = flow_item_new(FLOW_SAMPLE);
    one->seq = 9;
    one->pending = TRUE;
    float x[3] = {1, 2, 3};
    flow_item_set_f32(one, FLOW_F_SCORES, x, 3);
    flow_item_set(one, FLOW_F_CAPTION, flow_value_string("hat"));
    g_assert_true(flow_item_writable(&one) == one);

    FlowItem *two = flow_item_ref(one);
    FlowItem *kept = two;
    flow_item_writable(&two);
    g_assert_true(two != kept);
    g_assert_cmpuint(two->seq, ==, 9);
    g_assert_true(two->pending);
    g_assert_true(flow_item_get(one, FLOW_F_SCORES) == flow_item_get(two, FLOW_F_SCORES));

    FlowValue *mine = flow_value_writable(two, FLOW_F_SCORES);
    ((float *)mine->data)[0] = 5;
    g_assert_cmpfloat(flow_item_f32(one, FLOW_F_SCORES)[0], ==, 1);
    g_assert_cmpfloat(flow_item_f32(two, FLOW_F_SCORES)[0], ==, 5);
    g_assert_true(flow_value_writable(two, FLOW_F_SCORES) == mine);
    flow_value_writable(two, FLOW_F_CAPTION);
    g_assert_cmpstr(flow_item_string(two, FLOW_F_CAPTION), ==, "hat");
    g_assert_null(flow_value_writable(two, FLOW_F_IMAGE));

    /* memory of others is never written to */
    gint64 n = 3;
    flow_item_set(two, FLOW_F_SCORES, flow_value_wrap(NET_F32, 1, &n, x, NULL, NULL));
    ((float *)flow_value_writable(two, FLOW_F_SCORES)->data)[0] = 7;
    g_assert_cmpfloat(x[0], ==, 1);
    flow_item_unref(one);
    flow_item_unref(two);
    flow_item_unref(NULL);
    g_assert_cmpint(flow_item_live(), ==, live);
}

static void *share(void *data)
{
    FlowItem *item = data;
    for (int i = 0; i < 2000; i++) {
        FlowItem *mine = flow_item_ref(item);
        flow_item_writable(&mine);
        gint32 role = i;
        flow_item_set_i32(mine, FLOW_F_ROLE, &role, 1);
        ((float *)flow_value_writable(mine, FLOW_F_SCORES)->data)[0] = (float)i;
        flow_item_unref(mine);
    }
    flow_item_unref(item);
    return NULL;
}

static void test_threads(void)
{
    gint64 live = flow_item_live();
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    float x[2] = {1, 2};
    flow_item_set_f32(item, FLOW_F_SCORES, x, 2);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        g_assert_cmpint(pthread_create(&thread[i], NULL, share, flow_item_ref(item)), ==, 0);
    flow_item_unref(item);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    g_assert_cmpint(flow_item_live(), ==, live);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/item/values", test_values);
    g_test_add_func("/item/wrap", test_wrap);
    g_test_add_func("/item/fields", test_fields);
    g_test_add_func("/item/labels", test_labels);
    g_test_add_func("/item/copy-on-write", test_copy_on_write);
    g_test_add_func("/item/threads", test_threads);
    return g_test_run();
}
