/* gate: holds items back until there are enough of them, then lets them all go.
 *
 * It is what a stage looks like that must see several items before it can give one (a batch, a ranking):
 * with it the reaction of a graph to such a stage can be tried out. `hold` of the stage tells the deadlock
 * check; `declare = no` keeps that from it, to see the watchdog find the deadlock instead. */
#include "core/flow/stage.h"

typedef struct {
    gint64 items;
    gboolean declare;
    GPtrArray *held;
} Gate;

static gboolean gate_open(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    Gate *gate = flow_node_state(node);
    gate->held = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    return TRUE;
}

static FlowStatus release(FlowCtx *ctx, Gate *gate)
{
    FlowStatus status = FLOW_OK;
    g_autoptr(GPtrArray) going = g_steal_pointer(&gate->held);
    gate->held = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    for (guint i = 0; i < going->len && status == FLOW_OK; i++)
        status = flow_emit(ctx, 0, flow_item_ref(g_ptr_array_index(going, i)));
    return status;
}

static FlowStatus gate_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    Gate *gate = flow_ctx_state(ctx);
    g_ptr_array_add(gate->held, flow_take(&in[0]));
    return gate->held->len < (guint64)gate->items ? FLOW_OK : release(ctx, gate);
}

/* Nothing may pass a mark. */
static FlowStatus gate_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    return release(ctx, flow_ctx_state(ctx));
}

static FlowStatus gate_flush(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    return release(ctx, flow_ctx_state(ctx));
}

static gint64 gate_hold(FlowNode *node)
{
    const Gate *gate = flow_node_state(node);
    return gate->declare ? gate->items - 1 : 0;
}

static void gate_close(FlowNode *node)
{
    Gate *gate = flow_node_state(node);
    g_clear_pointer(&gate->held, g_ptr_array_unref);
}

static const FlowParam params[] = {
    FLOW_INT(Gate, items, "8", 1, 1e6, "items", "How many items go together."),
    FLOW_BOOL(Gate, declare, "yes", "Tell the deadlock check how many are held.", | FLOW_P_NORESULT),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "The same, together.", .flags = FLOW_PORT_ANY},
                                FLOW_END};

FLOW_STAGE(.name = "gate", .summary = "Hold items until there are enough.", .flags = FLOW_STATEFUL,
           .version = 1, .state_size = sizeof(Gate), .params = params, .inputs = ins, .outputs = outs,
           .open = gate_open, .process = gate_process, .flush = gate_flush, .mark = gate_mark,
           .close = gate_close, .hold = gate_hold);
