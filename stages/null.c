/* null: takes items and drops them. The end of a graph that is only to be measured or tested. */
#include "core/flow/stage.h"

static FlowStatus null_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in G_GNUC_UNUSED,
                               GError **error G_GNUC_UNUSED)
{
    return FLOW_OK; /* the host drops what is left in `in` */
}

static const FlowPort ins[] = {
    {.name = "in", .doc = "Anything.", .flags = FLOW_PORT_ANY | FLOW_PORT_MANY},
    FLOW_END,
};

FLOW_STAGE(.name = "null", .summary = "Drop every item.", .flags = FLOW_PARALLEL, .version = 1, .inputs = ins,
           .process = null_process);
