/* delay: makes every item take time, to see what a slow node does to a graph.
 *
 * The time is the same for all items, or drawn per item (so runs repeat), and the wait ends at once when
 * the run is torn down. */
#include "core/flow/stage.h"
#include <time.h>

typedef struct {
    double ms;
    gboolean random;
} Delay;

static void sleep_ms(double ms)
{
    time_t s = (time_t)(ms / 1000);
    nanosleep(&(struct timespec){s, (long)((ms - (double)s * 1000) * 1e6)}, NULL);
}

static FlowStatus delay_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    enum { SLICE_MS = 20 };
    const Delay *delay = flow_ctx_state(ctx);
    double left = delay->ms;
    if (delay->random)
        left *= flow_random_uniform(flow_ctx_key(ctx, in[0]), 0);
    for (; left > 0; left -= SLICE_MS) {
        if (flow_ctx_cancelled(ctx))
            return FLOW_CANCELLED;
        sleep_ms(MIN(left, SLICE_MS));
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowParam params[] = {
    FLOW_FLOAT(Delay, ms, "10", 0, 3.6e6, "ms", "Time for one item.", | FLOW_P_NORESULT),
    FLOW_BOOL(Delay, random, "no", "Draw the time of each item between 0 and ms.", | FLOW_P_NORESULT),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "The same, later.", .flags = FLOW_PORT_ANY}, FLOW_END};

FLOW_STAGE(.name = "delay", .summary = "Let each item take time.", .flags = FLOW_PARALLEL, .version = 1,
           .state_size = sizeof(Delay), .params = params, .inputs = ins, .outputs = outs,
           .process = delay_process);
