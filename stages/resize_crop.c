/* resize_crop: the picture at its target size: resized without aliasing, cropped, mirrored.
 *
 * Geometry comes from `bucket`; only what the crop shows is computed.
 *
 * @link m
 */
#include "core/flow/plan.h"
#include "core/image/resize.h"
#include <math.h>
#include <string.h>

typedef struct {
    int filter;
} Resize;

typedef struct {
    ImageResizer *resizer;
} Worker;

static gboolean resize_worker_start(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    ((Worker *)flow_ctx_worker(ctx))->resizer = image_resizer_new();
    return TRUE;
}

static void resize_worker_stop(FlowCtx *ctx)
{
    image_resizer_free(((Worker *)flow_ctx_worker(ctx))->resizer);
}

static gboolean geometry_valid(const ImageGeometry *g)
{
    return g->target_height > 0 && g->target_width > 0 && g->top >= 0 && g->left >= 0 &&
           (gint64)g->top + g->target_height <= g->resized_height &&
           (gint64)g->left + g->target_width <= g->resized_width;
}

static FlowStatus resize_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Resize *resize = flow_ctx_state(ctx);
    const Worker *worker = flow_ctx_worker(ctx);
    const FlowValue *image = flow_item_get(in[0], FLOW_F_IMAGE);
    ImageGeometry g;

    memcpy(&g, flow_item_i32(in[0], FLOW_F_GEOMETRY), sizeof g);
    if (!geometry_valid(&g)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "geometry: a target of %dx%d at (%d, %d) is not inside %dx%d", g.target_width,
                    g.target_height, g.left, g.top, g.resized_width, g.resized_height);
        return FLOW_SKIP;
    }
    gint64 shape[3] = {g.target_height, g.target_width, 3};
    FlowValue *pixels = flow_value_new(NET_U8, 3, shape);
    image_resize(worker->resizer, image->data, (ImageSize){(gint32)image->shape[0], (gint32)image->shape[1]},
                 (ImageFilter)resize->filter, &g, pixels->data);
    FlowItem *item = flow_item_writable(&in[0]);
    flow_item_set(item, FLOW_F_PIXELS, pixels);
    flow_item_drop(item, FLOW_F_IMAGE);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static gboolean resize_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    gsize largest = 0;
    enum { LONG = 16 }; /* rows of pictures that are longer than this to one are rare */
    gint32 side = (gint32)sqrt((double)plan->source_pixels * LONG);

    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(plan->sizes, FlowPlanSize, i);
        largest = MAX(largest, (gsize)s->height * (gsize)s->width * 3);
    }
    flow_plan_add_always(plan, node, FLOW_HOST, "scratch",
                         flow_node_workers(node) * image_resizer_bytes((ImageSize){side, side}));
    plan->item_bytes = largest;
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_ENUM(Resize, filter, "auto", "auto|area|bicubic|lanczos",
              "How pixels are averaged; auto is area where both sides shrink, else lanczos."),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Decoded pictures.", .needs = "image geometry"},
                               FLOW_END};
static const FlowPort outs[] = {
    {.name = "out", .doc = "Pictures at their target size.", .gives = "pixels", .drops = "image"}, FLOW_END};

FLOW_STAGE(.name = "resize_crop", .summary = "Resize, crop and mirror to the geometry that bucket chose.",
           .flags = FLOW_PARALLEL, .version = 1, .state_size = sizeof(Resize), .worker_size = sizeof(Worker),
           .params = params, .inputs = ins, .outputs = outs, .worker_start = resize_worker_start,
           .worker_stop = resize_worker_stop, .process = resize_process, .plan = resize_plan);
