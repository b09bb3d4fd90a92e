/* bucket: chooses each picture's target size by its aspect ratio, and fixes scale, crop and mirroring.
 *
 * The rule is in core/image/geometry.h. Random crops and mirroring are draws keyed by (seed, node, epoch,
 * sample, position), so they do not depend on workers and repeat after a resume. A prefill item goes on once
 * as it is and once mirrored where mirroring may be asked for later, so that the cache has both.
 *
 * resolution = 0 takes the model's own from the one `base` that the nodes of the graph name. */
#include "core/flow/graph.h"
#include "core/image/geometry.h"
#include "core/model/base.h"
#include "core/model/model.h"

enum { CENTRE, RANDOM };

typedef struct {
    gint64 resolution, min, max, step;
    gboolean upscale;
    int crop;
    double flip, max_aspect;
    ImageBuckets buckets; /* made in open */
} Bucket;

/* Takes the resolution from the model and checks that it can work with the step. */
static gboolean ask_model(FlowNode *node, Bucket *bucket, GError **error)
{
    g_autoptr(GError) several = NULL;
    const char *base = model_base_of_graph(node, &several);

    if (!base && bucket->resolution)
        return TRUE;
    if (!base) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "resolution = 0 is the model's own, but %s; set resolution",
                    several ? several->message : "no node has a base");
        return FALSE;
    }
    Model *model = model_open(base, error);
    if (!model)
        return FALSE;
    gint64 multiple = model_vae_factor(model) * model_latent_step(model);
    if (!bucket->resolution)
        bucket->resolution = model_resolution(model);
    model_free(model);
    if (bucket->step % multiple == 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "step = %" G_GINT64_FORMAT " px is not a multiple of %" G_GINT64_FORMAT ", which %s needs",
                bucket->step, multiple, base);
    return FALSE;
}

/* A cache of encoded pictures cannot serve crops that are drawn anew in each use. */
static gboolean crop_suits_cache(FlowNode *node, const Bucket *bucket, GError **error)
{
    FlowGraph *graph = flow_node_graph(node);

    for (guint i = 0; bucket->crop == RANDOM && i < flow_graph_nodes(graph); i++) {
        FlowNode *other = flow_graph_node(graph, i);
        if (!g_str_equal(flow_node_stage(other)->name, "fp16_cache_store") ||
            !flow_node_leads_to(node, other))
            continue;
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "crop = random makes every use another picture, which the cache [%s] cannot hold; use "
                    "crop = centre, or take the cache out",
                    flow_node_name(other));
        return FALSE;
    }
    return TRUE;
}

static gboolean bucket_open(FlowNode *node, GError **error)
{
    Bucket *bucket = flow_node_state(node);

    if (!ask_model(node, bucket, error) || !crop_suits_cache(node, bucket, error))
        return FALSE;
    bucket->buckets = (ImageBuckets){.resolution = bucket->resolution,
                                     .min = bucket->min,
                                     .max = bucket->max,
                                     .step = bucket->step,
                                     .upscale = bucket->upscale,
                                     .max_aspect = bucket->max_aspect};
    if (!image_geometry_open(&bucket->buckets, error))
        return FALSE;
    if (bucket->upscale && bucket->max > 0 && bucket->buckets.max < 2 * bucket->resolution)
        flow_node_warn(node,
                       "max = %" G_GINT64_FORMAT
                       " px is less than twice the resolution: long pictures get less "
                       "than its area",
                       bucket->max);
    return TRUE;
}

static void bucket_close(FlowNode *node)
{
    image_geometry_close(&((Bucket *)flow_node_state(node))->buckets);
}

static FlowStatus emit(FlowCtx *ctx, FlowItem *item, ImageGeometry geometry, gint32 flip)
{
    geometry.flip = flip;
    flow_item_set_i32(item, FLOW_F_GEOMETRY, (const gint32 *)&geometry, sizeof geometry / sizeof(gint32));
    return flow_emit(ctx, 0, item);
}

static FlowStatus bucket_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Bucket *bucket = flow_ctx_state(ctx);
    const gint32 *size = flow_item_i32(in[0], FLOW_F_SOURCE_SIZE), *role = flow_item_i32(in[0], FLOW_F_ROLE);
    guint64 key = flow_random_key(flow_ctx_key(ctx, in[0]), "geometry", &in[0]->cursor.position, 1);
    gboolean held_back = role && *role, drawn = bucket->crop == RANDOM && !held_back;
    ImageSize source = {size[0], size[1]}, target, resized;
    ImageGeometry g;

    if (!image_geometry_pick(&bucket->buckets, source, &target, &resized, error))
        return FLOW_SKIP;
    image_geometry_crop(resized, target, drawn ? flow_random_uniform(key, 0) : 0.5,
                        drawn ? flow_random_uniform(key, 1) : 0.5, &g);
    if (in[0]->cursor.epoch < 0 && !held_back && bucket->flip > 0) {
        FlowStatus status = FLOW_OK;
        if (bucket->flip < 1) {
            FlowItem *upright = flow_item_ref(in[0]);
            status = emit(ctx, flow_item_writable(&upright), g, 0);
        }
        return status == FLOW_OK ? emit(ctx, (flow_item_writable(&in[0]), flow_take(&in[0])), g, 1) : status;
    }
    gint32 flip = !held_back && bucket->flip > 0 && flow_random_uniform(key, 2) < bucket->flip;
    flow_item_writable(&in[0]);
    return emit(ctx, flow_take(&in[0]), g, flip);
}

static int by_size(gconstpointer a, gconstpointer b)
{
    const FlowPlanSize *p = a, *q = b;
    return p->width != q->width ? p->width - q->width : p->height - q->height;
}

/* Sizes of the pictures become sizes of their targets, each once. */
static gboolean bucket_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    const Bucket *bucket = flow_node_state(node);
    GArray *sizes = g_array_new(FALSE, FALSE, sizeof(FlowPlanSize));

    for (guint i = 0; plan->no_data && i < bucket->buckets.n; i++) {
        ImageSize s = bucket->buckets.buckets[i];
        g_array_append_val(sizes, ((FlowPlanSize){s.height, s.width, 1}));
    }
    for (guint i = 0; !plan->no_data && i < plan->sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(plan->sizes, FlowPlanSize, i);
        ImageSize target, resized;
        if (image_geometry_pick(&bucket->buckets, (ImageSize){s->height, s->width}, &target, &resized, NULL))
            g_array_append_val(sizes, ((FlowPlanSize){target.height, target.width, s->count}));
    }
    g_array_sort(sizes, by_size);
    g_array_set_size(plan->sizes, 0);
    for (guint i = 0; i < sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(sizes, FlowPlanSize, i);
        FlowPlanSize *last =
            plan->sizes->len ? &g_array_index(plan->sizes, FlowPlanSize, plan->sizes->len - 1) : NULL;
        if (last && by_size(last, s) == 0)
            last->count += s->count;
        else
            g_array_append_vals(plan->sizes, s, 1);
    }
    g_array_unref(sizes);
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_INT(Bucket, resolution, "0", 0, 65536, "px",
             "Side of the square whose area the targets have; 0 = the model's own."),
    FLOW_INT(Bucket, min, "0", 0, 65536, "px",
             "Shortest side of a target; 0 = 256, or half the resolution if less."),
    FLOW_INT(Bucket, max, "0", 0, 65536, "px", "Longest side of a target; 0 = twice the resolution."),
    FLOW_INT(Bucket, step, "64", 1, 4096, "px", "Sides of targets are multiples of it."),
    FLOW_BOOL(Bucket, upscale, "yes",
              "Enlarge small pictures to fill their target; no: make the target smaller."),
    FLOW_ENUM(Bucket, crop, "centre", "centre|random", "Where the target is cut out of the resized picture."),
    FLOW_FLOAT(Bucket, flip, "0", 0, 1, "", "Chance that a picture is mirrored, drawn for each use."),
    FLOW_FLOAT(Bucket, max_aspect, "16", 1, 1000, "", "Pictures longer than this to one are bad items."),
    FLOW_END,
};
static const FlowPort ins[] = {
    {.name = "in", .doc = "References to pictures.", .needs = "source_size sample? role?"}, FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "With geometry.", .gives = "geometry"}, FLOW_END};

FLOW_STAGE(.name = "bucket", .summary = "Choose target size, scale and crop by aspect ratio.", .version = 1,
           .state_size = sizeof(Bucket), .params = params, .inputs = ins, .outputs = outs,
           .open = bucket_open, .process = bucket_process, .close = bucket_close, .plan = bucket_plan);
