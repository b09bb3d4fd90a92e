/* Waiting for something that is no ring, such as a slot of device memory.
 *
 * A stage that waited by itself would look busy: it would be blamed for the speed of the run, and a run
 * that is torn down would wait for it. */
#include "core/flow/graph_private.h"

FlowStatus flow_ctx_wait(FlowCtx *ctx, gboolean (*ready)(gpointer data), gpointer data)
{
    guint64 start = flow__now_ns();
    gboolean done = FALSE;
    ctx->wait.busy_since_ns = 0;
    while (!done && !flow_ctx_cancelled(ctx))
        done = ready(data);
    guint64 now = flow__now_ns();
    ctx->wait.wait_full_ns += now - start;
    ctx->wait.busy_since_ns = now;
    return done ? FLOW_OK : FLOW_CANCELLED;
}
