/* limit: lets the first items pass and then ends, which ends what is before it too.
 *
 * Prefill items, held-back pictures and marks are not counted, so a limited training run still fills its
 * caches as the whole one would. */
#include "core/flow/stage.h"

typedef struct {
    gint64 items;
    gint64 passed;
} Limit;

static FlowStatus limit_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    Limit *limit = flow_ctx_state(ctx);
    if (in[0]->cursor.epoch < 0)
        return flow_emit(ctx, 0, flow_take(&in[0]));
    if (limit->passed >= limit->items)
        return FLOW_EOS;
    FlowStatus status = flow_emit(ctx, 0, flow_take(&in[0]));
    return status == FLOW_OK && ++limit->passed >= limit->items ? FLOW_EOS : status;
}

static const FlowParam params[] = {
    FLOW_INT(Limit, items, NULL, 0, 9e15, "items", "Number of items that pass."),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "The first of them.", .flags = FLOW_PORT_ANY},
                                FLOW_END};

FLOW_STAGE(.name = "limit", .summary = "Pass the first items, then end.", .flags = FLOW_STATEFUL,
           .version = 1, .state_size = sizeof(Limit), .params = params, .inputs = ins, .outputs = outs,
           .process = limit_process);
