/* Lines of the log: a validation that a stop has cut is put into the last line by the resumed run, once.
 *
 * @label short
 */
#include "core/flow/step.h"
#include <string.h>

static FlowItem *step(gboolean measured)
{
    FlowItem *item = flow_item_new(FLOW_STEP);
    /* STEP is updates done, in all, group, epoch */
    flow_item_set_i64(item, FLOW_F_STEP, (gint64[]){6, 20, 5, 0}, 4);
    flow_item_set_f32(item, FLOW_F_LOSS, (float[]){0.5f}, 1);
    flow_item_set_i64(item, FLOW_F_SAMPLES, (gint64[]){4}, 1);
    if (measured)
        flow_item_set_f32(item, FLOW_F_VALIDATION, (float[]){0.25f}, 1);
    return item;
}

static void test_complete(void)
{
    g_autoptr(FlowItem) cut = step(FALSE), whole = step(TRUE);
    g_autofree char *without = flow_step_line(cut), *with = flow_step_line(whole);
    g_autoptr(GString) text = g_string_new("{\"step\": 5, \"group\": 4, \"samples\": 4}\n");
    g_autofree char *before = g_strdup(text->str);
    g_string_append_printf(text, "%s\n", without);
    flow_step_line_complete(text, cut); /* nothing was measured: nothing changes */
    g_assert_null(strstr(text->str, "validation"));
    flow_step_line_complete(text, whole);
    g_autofree char *want = g_strdup_printf("%s%s\n", before, with);
    g_assert_cmpstr(text->str, ==, want);
    flow_step_line_complete(text, whole);
    g_assert_cmpstr(text->str, ==, want);
    g_assert_cmpint(flow_step_line_group(with), ==, 5);
    g_string_truncate(text, 0);
    flow_step_line_complete(text, whole);
    g_assert_cmpuint(text->len, ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/step-line/complete", test_complete);
    return g_test_run();
}
