/* Numbers and parameters: no text crashes a parser, and what is taken and printed reads back as the same.
 *
 * @label short
 */
#include "core/flow/param.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    gboolean flip;
    gint64 count;
    double rate;
    guint64 ram;
    char *name, *path;
    int mode;
    char **tags;
    FlowNode *of;
} State;

static const FlowParam params[] = {
    FLOW_BOOL(State, flip, "no", "Flips."),
    FLOW_INT(State, count, "0", -9.3e18, 9.3e18, "", "Count."),
    FLOW_FLOAT(State, rate, "0", -G_MAXDOUBLE, G_MAXDOUBLE, "", "Rate."),
    FLOW_SIZE(State, ram, "0", 0, 1.9e19, "Memory."),
    FLOW_STRING(State, name, "", "Name."),
    FLOW_PATH(State, path, "", "Path."),
    FLOW_ENUM(State, mode, "linear", "linear|cubic|none", "Mode."),
    FLOW_LIST(State, tags, "", "Tags."),
    FLOW_NODE(State, of, "", "Other."),
    FLOW_END,
};

static void one(const FlowParam *param, const char *text)
{
    State a = {0}, b = {0};
    g_autoptr(GError) error = NULL;
    flow_param_defaults(params, &a);
    flow_param_defaults(params, &b);
    if (flow_param_set(param, &a, text, "/", &error)) {
        g_autofree char *printed = flow_param_text(param, &a);
        if (!flow_param_set(param, &b, printed, "/", &error))
            g_error("%s", error->message);
        g_autofree char *again = flow_param_text(param, &b);
        g_assert_cmpstr(printed, ==, again);
    } else {
        g_assert_nonnull(error);
    }
    flow_param_clear(params, &a);
    flow_param_clear(params, &b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const words[] = {"batch", "width", "", "resize_crop", NULL};
    g_autofree char *text = g_strndup((const char *)data, size);
    double seconds;
    for (const FlowParam *param = params; param->name; param++)
        one(param, text);
    if (flow_parse_duration(text, &seconds, NULL))
        g_assert_true(seconds >= 0);
    flow_nearest(text, words);
    return 0;
}
