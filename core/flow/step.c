/* Step items as lines of JSON: see step.h. */
#include "core/flow/step.h"
#include <math.h>
#include <string.h>

static void put(GString *line, const FlowItem *item, FlowField field)
{
    const float *value = flow_item_f32(item, field);
    if (!value)
        return;
    if (isfinite(*value))
        g_string_append_printf(line, ", \"%s\": %.9g", flow_field_info(field)->name, (double)*value);
    else
        g_string_append_printf(line, ", \"%s\": null", flow_field_info(field)->name);
}

char *flow_step_line(const FlowItem *item)
{
    static const FlowField fields[] = {FLOW_F_LOSS, FLOW_F_LR, FLOW_F_GRAD_NORM, FLOW_F_SCALE,
                                       FLOW_F_VALIDATION};
    const gint64 *at = flow_item_i64(item, FLOW_F_STEP), *samples = flow_item_i64(item, FLOW_F_SAMPLES);
    const gint32 *flags = flow_item_i32(item, FLOW_F_FLAGS);
    GString *line = g_string_new(NULL);
    g_string_printf(line,
                    "{\"step\": %" G_GINT64_FORMAT ", \"group\": %" G_GINT64_FORMAT
                    ", \"epoch\": %" G_GINT64_FORMAT,
                    at[0], at[2], at[3]);
    for (gsize i = 0; i < G_N_ELEMENTS(fields); i++)
        put(line, item, fields[i]);
    if (samples)
        g_string_append_printf(line, ", \"samples\": %" G_GINT64_FORMAT, *samples);
    if (flags && (*flags & FLOW_STEP_SKIPPED))
        g_string_append(line, ", \"skipped\": true");
    return g_string_free(g_string_append_c(line, '}'), FALSE);
}

gint64 flow_step_line_group(const char *line)
{
    static const char key[] = "\"group\": ";
    const char *at = strstr(line, key);
    gsize n = strlen(line);
    if (!at || line[0] != '{' || line[n - 1] != '}')
        return -1;
    return g_ascii_strtoll(at + strlen(key), NULL, 10);
}

void flow_step_line_complete(GString *text, const FlowItem *item)
{
    g_autoptr(GString) value = g_string_new(NULL);
    gssize start = (gssize)text->len - 1; /* behind the line end */
    while (start > 0 && text->str[start - 1] != '\n')
        start--;
    put(value, item, FLOW_F_VALIDATION);
    if (start < 0 || value->len == 0 || strstr(text->str + start, "\"validation\""))
        return;
    const char *next = strstr(text->str + start, ", \"samples\"");
    if (next)
        g_string_insert(text, next - text->str, value->str);
}
