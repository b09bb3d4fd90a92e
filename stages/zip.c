/* zip: brings branches together again: one item of each input becomes one with the fields of all.
 *
 * The inputs come from one node (a tee), so the host knows that they carry the same item and refuses whatever
 * would put them out of step. Where two bring the same field, the first input's counts.
 */
#include "core/flow/stage.h"

/* Cheap: values are shared, never copied. */
static void merge(FlowItem *item, const FlowItem *other)
{
    for (guint i = 0; i < other->n; i++)
        if (!(item->has & FLOW_FIELD_BIT(other->entry[i].field)))
            flow_item_set(item, other->entry[i].field, flow_value_ref(other->entry[i].value));
    item->filled |= other->filled;
}

static FlowStatus zip_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    enum { INPUTS = 4 };
    flow_item_writable(&in[0]);
    for (guint i = 1; i < INPUTS; i++)
        if (in[i])
            merge(in[0], in[i]);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowPort ins[] = {
    {.name = "a", .doc = "Items of one branch.", .flags = FLOW_PORT_ANY},
    {.name = "b", .doc = "Items of another.", .flags = FLOW_PORT_ANY},
    {.name = "c", .doc = "Items of a third.", .flags = FLOW_PORT_ANY | FLOW_PORT_OPTIONAL},
    {.name = "d", .doc = "Items of a fourth.", .flags = FLOW_PORT_ANY | FLOW_PORT_OPTIONAL},
    FLOW_END,
};
static const FlowPort outs[] = {
    {.name = "out", .doc = "One item with the fields of all.", .flags = FLOW_PORT_ANY}, FLOW_END};

FLOW_STAGE(.name = "zip", .summary = "Join branches: one item with the fields of all.",
           .details = "Two encoders can so work on the same item at the same time: link both to one node, "
                      "and both to a "
                      "zip.",
           .flags = FLOW_PARALLEL, .version = 1, .inputs = ins, .outputs = outs, .process = zip_process);
