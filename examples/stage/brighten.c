/* brighten: makes pictures brighter or darker, each a little differently.
 *
 * Shows what a stage is made of: a state that is filled from the parameter table, ports that say which
 * fields pass, and one function that handles one item. It may run on any number of workers at once,
 * because it keeps nothing from one item to the next. */
#include "core/flow/stage.h"

typedef struct {
    gint64 amount;
    double spread;
} Brighten;

static gboolean brighten_open(FlowNode *node, GError **error)
{
    const Brighten *b = flow_node_state(node);
    if (b->amount != 0 || b->spread != 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "amount and spread are both 0: this would change nothing");
    return FALSE;
}

static FlowStatus brighten_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Brighten *b = flow_ctx_state(ctx);
    /* the same draw for the same picture and epoch, whichever worker makes it */
    double draw = 2 * flow_random_uniform(flow_ctx_key(ctx, in[0]), 0) - 1;
    int add = (int)((double)b->amount + b->spread * draw);

    flow_item_writable(&in[0]); /* another branch of the graph may hold this item, too */
    FlowValue *image = flow_value_writable(in[0], FLOW_F_IMAGE);
    if (image->type != NET_U8 || image->ndim != 3) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "the image is %s with %u dimensions, not 8-bit RGB", net_type_name(image->type),
                    image->ndim);
        return FLOW_SKIP; /* this item is bad; what that means is up to `on_error` */
    }
    guint8 *pixel = image->data;
    for (gsize i = 0; i < image->nbytes; i++)
        pixel[i] = (guint8)CLAMP(pixel[i] + add, 0, 255);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowParam params[] = {
    FLOW_INT(Brighten, amount, "20", -255, 255, "", "Added to every colour of every pixel."),
    FLOW_FLOAT(Brighten, spread, "0", 0, 255, "",
               "Most that is added or taken off in addition, drawn per picture."),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Pictures.", .needs = "image"}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "Brighter pictures.", .gives = "image"}, FLOW_END};

FLOW_STAGE(.name = "brighten", .summary = "Make pictures brighter.", .flags = FLOW_PARALLEL, .version = 1,
           .state_size = sizeof(Brighten), .params = params, .inputs = ins, .outputs = outs,
           .open = brighten_open, .process = brighten_process);
