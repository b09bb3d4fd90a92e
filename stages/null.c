/* null: takes items and drops them. The end of a graph that is only to be measured or tested. */
#include "core/flow/stage.h"

typedef struct {
    gsize nbytes; /* told once at the end: a count for each item would be most of the work */
} Worker;

static FlowStatus null_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    Worker *w = flow_ctx_worker(ctx);
    w->nbytes += flow_item_nbytes(in[0]);
    return FLOW_OK; /* the host drops what is left in `in` */
}

static void null_worker_stop(FlowCtx *ctx)
{
    const Worker *w = flow_ctx_worker(ctx);
    flow_node_count(flow_ctx_node(ctx), "bytes", (double)w->nbytes);
}

static const FlowPort ins[] = {
    {.name = "in", .doc = "Anything.", .flags = FLOW_PORT_ANY | FLOW_PORT_MANY},
    FLOW_END,
};

FLOW_STAGE(.name = "null", .summary = "Drop every item.", .flags = FLOW_PARALLEL, .version = 1,
           .worker_size = sizeof(Worker), .inputs = ins, .process = null_process,
           .worker_stop = null_worker_stop);
