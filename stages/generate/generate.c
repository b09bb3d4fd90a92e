/* generate: source of made items, for benchmarks and for trying a node alone.
 *
 * A few variants of each field are made when the node is opened; an item takes references to one of them, so
 * the source costs next to nothing beside what it feeds. Only what counts items (`sample`, `micro`, `step`)
 * is made anew.
 *
 * @link libjpeg
 */
#include "core/flow/plan.h"
#include "stages/generate/values.h"
#include <glib/gstdio.h>

typedef struct {
    char **fields;
    int kind;
    gint64 items, variants, batch, width, height, size, factor, context, pooled;
    char *folder; /* of the files that `path` names; kept until nobody can read them any more */
    FlowFieldSet set;
    GPtrArray *values[FLOW_FIELD_MAX]; /* FlowValue *, one a variant */
    gint64 next, nbytes;
} Generate;

static gboolean has(char **list, const char *name)
{
    return g_strv_contains((const char *const *)list, name);
}

static gboolean generate_describe(FlowNode *node, GError **error)
{
    const Generate *g = flow_node_state(node);
    for (char **name = g->fields; *name; name++) {
        int field = flow_field_find(*name);
        if (field >= 0 && generate_knows((FlowField)field))
            continue;
        const char *meant = field < 0 ? flow_field_nearest(*name) : NULL;
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "fields: '%s' %s%s%s%s", *name,
                    field < 0 ? "is not a field" : "cannot be made", meant ? "; did you mean '" : "",
                    meant ? meant : "", meant ? "'?" : "");
        return FALSE;
    }
    g_autofree char *list = g_strjoinv(" ", g->fields);
    flow_node_gives(node, "out", list);
    return TRUE;
}

static GenerateShape shape_of(const Generate *g)
{
    return (GenerateShape){(FlowKind)g->kind, g->batch,  g->width,   g->height,
                           g->size,           g->factor, g->context, g->pooled};
}

static gboolean fill(FlowNode *node, FlowField field, GError **error)
{
    Generate *g = flow_node_state(node);
    const GenerateShape shape = shape_of(g);
    /* files of one variant are one picture, whichever field shows it */
    gboolean file = field == FLOW_F_PATH || field == FLOW_F_FILE_ID || field == FLOW_F_BYTES;
    g->set |= FLOW_FIELD_BIT(field);
    g->values[field] = g_ptr_array_new_with_free_func((GDestroyNotify)flow_value_unref);
    for (gint64 i = 0; i < g->variants; i++) {
        gint64 what[2] = {file ? FLOW_F_BYTES : field, i};
        guint64 key = flow_random_key(flow_node_seed(node), flow_node_name(node), what, 2);
        FlowValue *value = generate_value(&shape, field, (guint)i, key, g->folder, error);
        if (!value)
            return FALSE;
        g_ptr_array_add(g->values[field], value);
    }
    return TRUE;
}

static gboolean generate_open(FlowNode *node, GError **error)
{
    Generate *g = flow_node_state(node);
    if (g->size % g->factor != 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "size = %" G_GINT64_FORMAT " is not a multiple of factor = %" G_GINT64_FORMAT, g->size,
                    g->factor);
        return FALSE;
    }
    if ((has(g->fields, "path") || has(g->fields, "file_id")) &&
        !(g->folder = g_dir_make_tmp("loraflow-generate-XXXXXX", error)))
        return FALSE;
    for (char **name = g->fields; *name; name++)
        if (!g->values[flow_field_find(*name)] && !fill(node, (FlowField)flow_field_find(*name), error))
            return FALSE;
    return TRUE;
}

static void generate_close(FlowNode *node)
{
    Generate *g = flow_node_state(node);
    for (guint i = 0; i < FLOW_FIELD_MAX; i++)
        g_clear_pointer(&g->values[i], g_ptr_array_unref);
    g_autoptr(GDir) folder = g->folder ? g_dir_open(g->folder, 0, NULL) : NULL;
    for (const char *name; folder && (name = g_dir_read_name(folder));) {
        g_autofree char *path = g_build_filename(g->folder, name, NULL);
        g_unlink(path);
    }
    if (g->folder)
        g_rmdir(g->folder);
    g_clear_pointer(&g->folder, g_free);
}

/* Bytes of one variant, as it is made; the texts of files are small. */
static gsize variant_bytes(const Generate *g)
{
    enum { PATH = 64 };
    const GenerateShape shape = shape_of(g);
    gsize sum = 0;
    for (char **name = g->fields; *name; name++) {
        FlowField field = (FlowField)flow_field_find(*name);
        if (field == FLOW_F_PATH || field == FLOW_F_FILE_ID) {
            sum += PATH;
            continue;
        }
        g_autoptr(FlowValue) value = generate_value(&shape, field, 0, 0, NULL, NULL);
        sum += value->nbytes;
    }
    return sum;
}

static gboolean generate_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    const Generate *g = flow_node_state(node);
    gboolean target = g->kind != FLOW_SAMPLE;
    FlowPlanSize size = {(gint32)(target ? g->size : g->height), (gint32)(target ? g->size : g->width),
                         g->variants};
    plan->item_bytes = variant_bytes(g);
    flow_plan_add_always(plan, node, FLOW_HOST, "values", (gsize)g->variants * plan->item_bytes);
    g_array_append_val(plan->sizes, size);
    plan->samples = g->variants;
    plan->batch = g->batch;
    plan->source_pixels = g->width * g->height;
    plan->source_bytes = g->width * g->height * 3;
    return TRUE;
}

static void number(FlowItem *item, gint64 n, gint64 batch)
{
    if (item->has & FLOW_FIELD_BIT(FLOW_F_SAMPLE))
        flow_item_set_i64(item, FLOW_F_SAMPLE, &n, 1);
    if (item->has & FLOW_FIELD_BIT(FLOW_F_MICRO))
        flow_item_set_i64(item, FLOW_F_MICRO, (gint64[]){n, 0, 1, batch, 0, 0}, 6);
    if (item->has & FLOW_FIELD_BIT(FLOW_F_STEP))
        flow_item_set_i64(item, FLOW_F_STEP, (gint64[]){n + 1, 0, n, 0}, 4);
}

static FlowStatus generate_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    Generate *g = flow_ctx_state(ctx);
    if (g->items > 0 && g->next >= g->items)
        return FLOW_EOS;
    FlowItem *item = flow_item_new((FlowKind)g->kind);
    item->cursor = (FlowCursor){0, g->next, g->items, 1};
    for (guint f = 0; f < FLOW_FIELD_MAX; f++)
        if (g->set & FLOW_FIELD_BIT(f))
            flow_item_set(item, (FlowField)f,
                          flow_value_ref(g_ptr_array_index(g->values[f], (guint)(g->next % g->variants))));
    number(item, g->next, g->batch);
    g->next++;
    g->nbytes += (gint64)flow_item_nbytes(item);
    return flow_emit(ctx, 0, item);
}

static void generate_worker_stop(FlowCtx *ctx)
{
    const Generate *g = flow_ctx_state(ctx);
    flow_node_count(flow_ctx_node(ctx), "bytes", (double)g->nbytes);
}

G_STATIC_ASSERT(FLOW_SAMPLE == 0 && FLOW_BATCH == 1 && FLOW_STEP == 2); /* the choices of `kind` */

static const FlowParam params[] = {
    FLOW_LIST(Generate, fields, "image, caption", "Fields of the items."),
    FLOW_ENUM(Generate, kind, "sample", "sample|batch|step", "Kind of the items."),
    FLOW_INT(Generate, items, "0", 0, 1e15, "items", "Number of items; 0 = without end."),
    FLOW_INT(Generate, variants, "4", 1, 1024, "", "Different values of each field; they take turns."),
    FLOW_INT(Generate, batch, "1", 1, 4096, "samples", "Samples in a batch."),
    FLOW_INT(Generate, width, "1024", 1, 16384, "px", "Width of the pictures."),
    FLOW_INT(Generate, height, "768", 1, 16384, "px", "Height of the pictures."),
    FLOW_INT(Generate, size, "512", 8, 4096, "px", "Sides of the target."),
    FLOW_INT(Generate, factor, "8", 1, 64, "px", "Sides of the target per latent pixel."),
    FLOW_INT(Generate, context, "768", 1, 8192, "", "Width of the text encoder's states."),
    FLOW_INT(Generate, pooled, "1280", 1, 8192, "", "Width of the pooled text vector."),
    FLOW_END,
};
static const FlowPort outs[] = {
    {.name = "out", .doc = "Made items.", .gives = "image caption", .flags = FLOW_PORT_NEW | FLOW_PORT_ANY},
    FLOW_END,
};

FLOW_STAGE(.name = "generate", .summary = "Make items with plausible fields.",
           .details = "For `loraflow bench stage`, and for trying a node without pictures or models.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Generate),
           .params = params, .outputs = outs, .open = generate_open, .process = generate_process,
           .worker_stop = generate_worker_stop, .close = generate_close, .describe = generate_describe,
           .plan = generate_plan);
