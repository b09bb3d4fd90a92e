/* image_folder: the source of a training graph: references to the pictures of a folder.
 *
 * An item is a name, a caption and a size; nothing is decoded here. core/image/list.h says what counts as a
 * picture and what as its caption; core/image/caption.h what is made of the text.
 *
 *   prefill  every distinct item once, largest first, epoch -1; then the mark prefill_done
 *   (without prefill: the held-back pictures only)
 *   epoch e  every picture as often as it repeats, in an order drawn from (seed, node, e); then the mark
 * epoch
 *
 * Held-back pictures have the role 1, are never trained on, and come in the first part only.
 *
 * What varies from use to use is drawn from (seed, node, epoch, picture, use): whether the caption is
 * dropped, and which of `caption_variants` orders its tags have. There are only so many orders because each
 * is an entry of the cache; the first is the caption as it is written. */
#include "core/flow/graph.h"
#include "core/image/caption.h"
#include "core/image/picture.h"
#include "stages/image_folder/pictures.h"
#include <string.h>

enum { PREFILL_AUTO, PREFILL_YES, PREFILL_NO };

typedef struct {
    char *path, *validation, **caption_ext, *separator;
    int missing, prefill;
    gint64 epochs, repeats, caption_variants, keep_tags, max_pixels;
    gboolean shuffle, shuffle_tags;
    double caption_dropout;
    /* made by the first who asks: plan, load, or the first process */
    Pictures *pictures;
    GBytes *fingerprint;
    /* of the worker */
    guint next_bad;
    gboolean begun;
    GArray *first; /* First: the items before epoch 0 */
    gint64 epoch, position;
    gint64 *order; /* of this epoch; NULL = not drawn yet */
} Folder;

/* An item of the prefill. */
typedef struct {
    gint64 sample;  /* held-back pictures follow the trained ones */
    gint64 variant; /* -1 = the dropped caption */
} First;

/* -- what is in use ----------------------------------------------------------------------- */

static gboolean prefills(FlowNode *node)
{
    const Folder *f = flow_node_state(node);
    FlowGraph *graph = flow_node_graph(node);

    if (f->prefill != PREFILL_AUTO)
        return f->prefill == PREFILL_YES;
    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        FlowNode *other = flow_graph_node(graph, i);
        if (g_str_equal(flow_node_stage(other)->name, "fp16_cache_store") && flow_node_leads_to(node, other))
            return TRUE;
    }
    return FALSE;
}

static gboolean captions_vary(const Folder *f)
{
    return f->caption_dropout > 0 || f->shuffle_tags;
}

static gboolean folder_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    if (captions_vary(flow_node_state(node)))
        flow_node_gives(node, "out", "path file_id caption caption_full source_size role sample");
    return TRUE;
}

static gboolean folder_open(FlowNode *node, GError **error)
{
    Folder *f = flow_node_state(node);

    f->begun = FALSE;
    f->next_bad = 0;
    if (f->shuffle_tags && f->caption_variants == 0 && prefills(node)) {
        g_set_error_literal(
            error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
            "caption_variants = 0 (a new order in every use) cannot be prefilled; set a number, or "
            "prefill = no");
        return FALSE;
    }
    if (f->shuffle_tags && !*f->separator) {
        g_set_error_literal(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                            "separator is empty, but shuffle_tags has to find the tags");
        return FALSE;
    }
    return TRUE;
}

static void folder_close(FlowNode *node)
{
    Folder *f = flow_node_state(node);
    g_clear_pointer(&f->pictures, pictures_free);
    g_clear_pointer(&f->fingerprint, g_bytes_unref);
    g_clear_pointer(&f->first, g_array_unref);
    g_clear_pointer(&f->order, g_free);
}

/* The list, made once. `ctx` (may be NULL) lets a stop interrupt it. */
static gboolean list_cancelled(gpointer ctx)
{
    return flow_ctx_cancelled(ctx) || flow_ctx_stopping(ctx);
}

static gboolean list(FlowNode *node, FlowCtx *ctx, GError **error)
{
    Folder *f = flow_node_state(node);
    PictureRules rules = {.path = f->path,
                          .validation = f->validation && *f->validation ? f->validation : NULL,
                          .caption_ext = f->caption_ext,
                          .max_pixels = f->max_pixels,
                          .repeats = f->repeats,
                          .missing = (Missing)f->missing,
                          .cancelled = ctx ? list_cancelled : NULL,
                          .data = ctx};

    if (f->pictures)
        return TRUE;
    f->pictures = pictures_new(node, &rules, error);
    if (!f->pictures)
        return FALSE;
    f->fingerprint = pictures_fingerprint(f->pictures);
    flow_node_gauge(node, "pictures", f->pictures->train->len);
    flow_node_gauge(node, "validation", f->pictures->held->len);
    return TRUE;
}

static const ImageEntry *entry_of(const Folder *f, gint64 sample)
{
    guint n = f->pictures->train->len;
    return (guint)sample < n ? f->pictures->train->pdata[sample]
                             : f->pictures->held->pdata[(guint)sample - n];
}

/* -- captions ------------------------------------------------------------------------------- */

/* Order `variant` of a picture's tags; 0 is as it is written. Returns new. */
static char *caption_variant(FlowCtx *ctx, gint64 sample, gint64 variant)
{
    const Folder *f = flow_ctx_state(ctx);
    const ImageEntry *e = entry_of(f, sample);
    gint64 v[2] = {sample, variant};

    if (variant == 0)
        return g_strdup(e->caption);
    return image_caption_shuffle(e->caption, f->separator, (guint)f->keep_tags,
                                 flow_random_key(flow_ctx_key(ctx, NULL), "tags", v, 2));
}

/* The caption of one use. Returns new. */
static char *caption_of_use(FlowCtx *ctx, gint64 sample)
{
    const Folder *f = flow_ctx_state(ctx);
    gint64 v[2] = {f->epoch, f->order[f->position]}; /* the use: a repeated picture draws for each */
    guint64 key = flow_random_key(flow_ctx_key(ctx, NULL), "caption", v, 2);

    if (f->caption_dropout > 0 && flow_random_uniform(key, 0) < f->caption_dropout)
        return g_strdup("");
    if (!f->shuffle_tags)
        return caption_variant(ctx, sample, 0);
    guint64 orders = f->caption_variants ? (guint64)f->caption_variants : G_MAXINT64;
    return caption_variant(ctx, sample, (gint64)flow_random_below(key, 1, orders));
}

/* -- items ---------------------------------------------------------------------------------- */

/* Takes `caption`. */
static FlowItem *new_item(const Folder *f, gint64 sample, char *caption, FlowCursor cursor)
{
    const ImageEntry *e = entry_of(f, sample);
    gint32 size[2] = {e->size.height, e->size.width}, role = (guint)sample >= f->pictures->train->len;
    FlowItem *item = flow_item_new(FLOW_SAMPLE);

    item->cursor = cursor;
    flow_item_set(item, FLOW_F_PATH, flow_value_string(e->path));
    flow_item_set_i64(item, FLOW_F_FILE_ID, e->id, IMAGE_ID);
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string(caption));
    if (captions_vary(f))
        flow_item_set(item, FLOW_F_CAPTION_FULL, flow_value_string(e->caption));
    flow_item_set_i32(item, FLOW_F_SOURCE_SIZE, size, 2);
    flow_item_set_i32(item, FLOW_F_ROLE, &role, 1);
    flow_item_set_i64(item, FLOW_F_SAMPLE, &sample, 1);
    g_free(caption);
    return item;
}

static int largest_first(gconstpointer a, gconstpointer b, gpointer data)
{
    const First *p = a, *q = b;
    const ImageEntry *e = entry_of(data, p->sample), *g = entry_of(data, q->sample);
    gint64 area_e = (gint64)e->size.height * e->size.width, area_g = (gint64)g->size.height * g->size.width;

    if (area_e != area_g)
        return area_e > area_g ? -1 : 1;
    if (p->sample != q->sample)
        return p->sample < q->sample ? -1 : 1;
    return (p->variant > q->variant) - (p->variant < q->variant);
}

static void add_variants(FlowCtx *ctx, GArray *first, gint64 sample)
{
    const Folder *f = flow_ctx_state(ctx);
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    gint64 n = f->shuffle_tags ? f->caption_variants : 1;

    for (gint64 v = 0; v < n; v++)
        if (g_hash_table_add(seen, caption_variant(ctx, sample, v)))
            g_array_append_val(first, ((First){sample, v}));
}

/* What comes before epoch 0. */
static GArray *plan_first(FlowCtx *ctx)
{
    Folder *f = flow_ctx_state(ctx);
    gint64 train = f->pictures->train->len, held = f->pictures->held->len;
    GArray *first = g_array_new(FALSE, FALSE, sizeof(First));

    if (prefills(flow_ctx_node(ctx))) {
        for (gint64 i = 0; i < train; i++)
            add_variants(ctx, first, i);
        if (f->caption_dropout > 0 && train > 0) /* the empty caption is the same for all */
            g_array_append_val(first, ((First){0, -1}));
    }
    for (gint64 i = 0; i < held; i++)
        g_array_append_val(first, ((First){train + i, 0}));
    g_array_sort_with_data(first, largest_first, f);
    return first;
}

static FlowStatus emit_first(FlowCtx *ctx)
{
    Folder *f = flow_ctx_state(ctx);
    const First *first = &g_array_index(f->first, First, f->position);
    FlowCursor cursor = {-1, f->position++, f->first->len, f->epochs};
    char *caption = first->variant < 0 ? g_strdup("") : caption_variant(ctx, first->sample, first->variant);
    return flow_emit(ctx, 0, new_item(f, first->sample, caption, cursor));
}

static FlowStatus end_first(FlowCtx *ctx)
{
    Folder *f = flow_ctx_state(ctx);
    FlowCursor cursor = {-1, f->position, f->first->len, f->epochs};

    f->epoch = flow_graph_start(flow_node_graph(flow_ctx_node(ctx))).epoch;
    f->position = 0;
    if (!prefills(flow_ctx_node(ctx)))
        return FLOW_OK;
    return flow_emit(ctx, 0, flow_item_new_mark(FLOW_MARK_PREFILL_DONE, &cursor));
}

static void draw_order(FlowCtx *ctx)
{
    Folder *f = flow_ctx_state(ctx);
    gint64 n = f->pictures->n_uses;

    f->order = g_new(gint64, n);
    if (f->shuffle)
        flow_random_shuffle(flow_random_key(flow_ctx_key(ctx, NULL), "order", &f->epoch, 1), f->order,
                            (gsize)n);
    else
        for (gint64 i = 0; i < n; i++)
            f->order[i] = i;
}

static FlowStatus emit_next(FlowCtx *ctx)
{
    Folder *f = flow_ctx_state(ctx);
    gint64 n = f->pictures->n_uses;
    FlowCursor cursor = {f->epoch, f->position, n, f->epochs};

    if (f->epochs && f->epoch >= f->epochs)
        return FLOW_EOS;
    if (!f->order)
        draw_order(ctx);
    if (f->position < n) {
        gint64 sample = f->pictures->uses[f->order[f->position]];
        char *caption = caption_of_use(ctx, sample);
        f->position++;
        return flow_emit(ctx, 0, new_item(f, sample, caption, cursor));
    }
    g_clear_pointer(&f->order, g_free);
    f->epoch++;
    f->position = 0;
    return flow_emit(ctx, 0, flow_item_new_mark(FLOW_MARK_EPOCH, &cursor));
}

/* -- the stage -------------------------------------------------------------------------------- */

static gboolean has_pictures(const Folder *f, GError **error)
{
    g_autofree char *name = image_printable(f->path);

    if (f->pictures->train->len > 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "no JPEG or PNG pictures in %s%s", name,
                f->pictures->bad->len ? " that can be used" : "");
    return FALSE;
}

static FlowStatus begin(FlowCtx *ctx, GError **error)
{
    Folder *f = flow_ctx_state(ctx);

    if (!has_pictures(f, error))
        return FLOW_ERROR;
    f->first = plan_first(ctx);
    f->epoch = -1;
    f->position = 0;
    f->begun = TRUE;
    return FLOW_OK;
}

static FlowStatus folder_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error)
{
    Folder *f = flow_ctx_state(ctx);
    g_autoptr(GError) failure = NULL;

    if (!list(flow_ctx_node(ctx), ctx, &failure)) {
        gboolean failed = failure != NULL;
        g_propagate_error(error, g_steal_pointer(&failure));
        return failed ? FLOW_ERROR : FLOW_CANCELLED;
    }
    if (f->next_bad < f->pictures->bad->len) {
        const ImageBad *bad = f->pictures->bad->pdata[f->next_bad++];
        g_propagate_error(error, g_error_copy(bad->error));
        return FLOW_SKIP;
    }
    if (!f->begun)
        return begin(ctx, error);
    if (f->epoch >= 0)
        return emit_next(ctx);
    return f->position < f->first->len ? emit_first(ctx) : end_first(ctx);
}

static gboolean folder_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    const Folder *f = flow_node_state(node);
    enum { ITEM = 2048, TYPICAL_PIXELS = 24000000, TYPICAL_BYTES = 8 << 20 };

    plan->item_bytes = ITEM;
    if (plan->no_data) {
        plan->source_pixels = MIN(TYPICAL_PIXELS, f->max_pixels);
        plan->source_bytes = TYPICAL_BYTES;
        return TRUE;
    }
    if (!list(node, NULL, error) || (f->pictures->bad->len == 0 && !has_pictures(f, error)))
        return FALSE; /* bad pictures are named when the run meets them */
    flow_plan_add_always(plan, node, FLOW_HOST, "list", pictures_plan(f->pictures, plan));
    return TRUE;
}

static GBytes *folder_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    return g_bytes_ref(((Folder *)flow_node_state(node))->fingerprint);
}

static gboolean folder_load(FlowNode *node, GBytes *state, GError **error)
{
    return list(node, NULL, error) &&
           pictures_match(((Folder *)flow_node_state(node))->pictures, state, error);
}

static const FlowParam params[] = {
    FLOW_PATH(Folder, path, NULL,
              "Folder of pictures, walked to any depth; N_NAME repeats what is in it N times."),
    FLOW_PATH(Folder, validation, "", "Held-back pictures: a folder, or a share such as 5%."),
    FLOW_LIST(Folder, caption_ext, ".txt, .caption",
              "Extensions of caption files, the first that exists is taken."),
    FLOW_ENUM(Folder, missing, "error", "error|empty|folder|skip",
              "Pictures without a caption: an error, an empty one, NAME of N_NAME, or left out."),
    FLOW_INT(Folder, epochs, "0", 0, 1e9, "",
             "Rounds over all pictures; 0 = until something else ends the run.", | FLOW_P_NORESULT),
    FLOW_INT(Folder, repeats, "1", 1, 1000, "", "Uses of every picture in an epoch."),
    FLOW_BOOL(Folder, shuffle, "yes", "Another order in every epoch, drawn from the seed."),
    FLOW_ENUM(Folder, prefill, "auto", "auto|yes|no",
              "Every picture once before the first epoch, to fill caches; auto: where a cache is filled."),
    FLOW_FLOAT(Folder, caption_dropout, "0", 0, 1, "", "Chance that a use has an empty caption."),
    FLOW_BOOL(Folder, shuffle_tags, "no", "Put the tags of a caption in another order in each use."),
    FLOW_INT(Folder, keep_tags, "0", 0, 1000, "", "Tags at the start that stay where they are."),
    FLOW_STRING(Folder, separator, ",", "What stands between tags."),
    FLOW_INT(Folder, caption_variants, "4", 0, 1000, "",
             "Orders of tags that a caption may have; 0 = a new one in each use."),
    FLOW_INT(Folder, max_pixels, "128M", 1, 4e9, "px", "Pictures with more pixels are bad items."),
    FLOW_END,
};
static const FlowPort outs[] = {{.name = "out",
                                 .doc = "References to pictures.",
                                 .gives = "path file_id caption source_size role sample",
                                 .flags = FLOW_PORT_NEW},
                                FLOW_END};

FLOW_STAGE(.name = "image_folder", .summary = "Source: the pictures of a folder, with captions.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Folder),
           .params = params, .outputs = outs, .describe = folder_describe, .open = folder_open,
           .process = folder_process, .close = folder_close, .plan = folder_plan, .save = folder_save,
           .load = folder_load);
