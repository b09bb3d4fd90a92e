/* decode_image: file contents to RGB pixels as they are to be seen.
 *
 * core/image/picture.h has the rules (formats, orientation, alpha, ink, damage). Where the geometry is known,
 * a JPEG comes out 2, 4 or 8 times smaller if that is still at least the size it is resized to: the inverse
 * transform does the first part of the resizing, at a fraction of the time and memory. */
#include "core/flow/plan.h"
#include "core/image/picture.h"

typedef struct {
    char *background;
    gint64 max_pixels;
    int truncated;
    gboolean reduce;
    guint8 colour[3];
} Decode;

typedef struct {
    FlowCtx *ctx;
    FlowValue *image;
} Call;

static gboolean decode_open(FlowNode *node, GError **error)
{
    Decode *decode = flow_node_state(node);
    if (image_parse_colour(decode->background, decode->colour, error))
        return TRUE;
    g_prefix_error(error, "background: ");
    return FALSE;
}

static guint8 *allocate(gpointer data, gint32 height, gint32 width)
{
    Call *call = data;
    gint64 shape[3] = {height, width, 3};
    call->image = flow_value_new(NET_U8, 3, shape);
    return call->image->data;
}

/* One picture can take many seconds: a stop does not wait for it. */
static gboolean cancelled(gpointer data)
{
    FlowCtx *ctx = ((Call *)data)->ctx;
    return flow_ctx_cancelled(ctx) || flow_ctx_stopping(ctx);
}

/* The geometry was made for the size that was listed. */
static gboolean same_size(const FlowItem *item, const char *name, const ImageInfo *info, GError **error)
{
    const gint32 *listed = flow_item_i32(item, FLOW_F_SOURCE_SIZE);

    if (!listed || (listed[0] == info->height && listed[1] == info->width))
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s is %dx%d pixels, but was listed as %dx%d",
                name, info->width, info->height, listed[1], listed[0]);
    return FALSE;
}

static FlowStatus decode_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Decode *decode = flow_ctx_state(ctx);
    const FlowValue *bytes = flow_item_get(in[0], FLOW_F_BYTES);
    const gint32 *geometry = decode->reduce ? flow_item_i32(in[0], FLOW_F_GEOMETRY) : NULL;
    const char *path = flow_item_string(in[0], FLOW_F_PATH);
    g_autofree char *name = image_printable(path ? path : "the picture");
    Call call = {ctx, NULL};
    ImageRequest request = {
        .max_pixels = (guint64)decode->max_pixels,
        .background = {decode->colour[0], decode->colour[1], decode->colour[2]},
        .truncated = decode->truncated,
        .fit_height = geometry ? geometry[2] : 0,
        .fit_width = geometry ? geometry[3] : 0,
        .allocate = allocate,
        .cancelled = cancelled,
        .data = &call,
    };
    ImagePicture picture;
    ImageSource source = {bytes->data, -1, bytes->nbytes};

    FlowStatus status = image_decode(&source, name, &request, &picture, error);
    if (picture.warning)
        flow_node_warn(flow_ctx_node(ctx), "%s", picture.warning);
    g_free(picture.warning);
    if (status == FLOW_OK && !same_size(in[0], name, &picture.info, error))
        status = FLOW_SKIP;
    if (status != FLOW_OK) {
        flow_value_unref(call.image);
        return status;
    }
    FlowItem *item = flow_item_writable(&in[0]);
    flow_item_set(item, FLOW_F_IMAGE, call.image);
    flow_item_drop(item, FLOW_F_BYTES);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

/* A picture that has to be turned is held twice while it is. */
static gboolean decode_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    const Decode *decode = flow_node_state(node);
    gsize pixels = (gsize)MIN(plan->source_pixels, decode->max_pixels) * 3;

    flow_plan_add_always(plan, node, FLOW_HOST, "scratch", flow_node_workers(node) * pixels);
    plan->item_bytes = pixels;
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_STRING(Decode, background, "white",
                "Colour under transparent pixels: white, black, grey, #rrggbb or r,g,b."),
    FLOW_INT(Decode, max_pixels, "128M", 1, 4e9, "px", "Pictures with more pixels are bad items."),
    FLOW_ENUM(Decode, truncated, "error", "error|allow",
              "Pictures that are cut short or damaged: bad items, or used as far as they go."),
    FLOW_BOOL(Decode, reduce, "yes", "Decode a JPEG smaller where it is resized to half or less anyway."),
    FLOW_END,
};
static const FlowPort ins[] = {
    {.name = "in", .doc = "Contents of files.", .needs = "bytes path? source_size? geometry?"}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "Pictures.", .gives = "image", .drops = "bytes"},
                                FLOW_END};

FLOW_STAGE(.name = "decode_image", .summary = "Decode JPEG and PNG to RGB.", .flags = FLOW_PARALLEL,
           .version = 1, .state_size = sizeof(Decode), .params = params, .inputs = ins, .outputs = outs,
           .open = decode_open, .process = decode_process, .plan = decode_plan);
