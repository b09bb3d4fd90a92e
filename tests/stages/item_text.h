/* Everything that an item is, as text: two items are the same if their texts are. */
#ifndef TESTS_STAGES_ITEM_TEXT_H
#define TESTS_STAGES_ITEM_TEXT_H
#include "core/flow/item.h"
#include "core/flow/random.h"

static int item_text_by_field(gconstpointer a, gconstpointer b)
{
    return *(const int *)a - *(const int *)b;
}

static inline void item_text_value(GString *text, const FlowFieldInfo *info, const FlowValue *value)
{
    if (value->object_type) {
        g_string_append_printf(text, " %s=<%s>", info->name, value->object_type);
        return;
    }
    if (info->flags & FLOW_FIELD_STRING) {
        g_string_append_printf(text, " %s='%s'", info->name, (const char *)value->data);
        return;
    }
    g_autofree char *sum = g_compute_checksum_for_data(G_CHECKSUM_SHA1, value->data, value->nbytes);
    g_string_append_printf(text, " %s=%s[", info->name, net_type_name(value->type));
    for (guint i = 0; i < value->ndim; i++)
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT, i ? "," : "", value->shape[i]);
    g_string_append_printf(text, "]%.12s", sum);
}

/* Returns new. */
static inline char *item_text(const FlowItem *item)
{
    static const char *const kinds[] = {"sample", "batch", "step", "mark"};
    GString *text = g_string_new(kinds[item->kind]);
    int order[FLOW_FIELD_MAX];
    if (item->kind == FLOW_MARK)
        g_string_append_printf(text, "%d", item->mark);
    g_string_append_printf(text, " %d/%d/%d/%d", (int)item->cursor.epoch, (int)item->cursor.position,
                           (int)item->cursor.size, (int)item->cursor.epochs);
    for (guint i = 0; i < item->n; i++)
        order[i] = (int)item->entry[i].field;
    qsort(order, item->n, sizeof *order, item_text_by_field);
    for (guint i = 0; i < item->n; i++)
        item_text_value(text, flow_field_info((FlowField)order[i]), flow_item_get(item, (FlowField)order[i]));
    return g_string_free(text, FALSE);
}

#endif
