/* score: how complex each picture is, 0 simple to 1 complex, from what is in it and how much is said of it.
 *
 *   c = image_weight x entropy of the luma histogram + text_weight x length of the caption, over the sum of
 * weights
 *
 * The picture is looked at once, at most 256 px large (a JPEG is decoded smaller to begin with); later uses
 * take what is remembered. Length is tokens / 75 by the model's tokenizer, or words / 40 without a model. It
 * is that of the full caption, so a caption that a use drops or shuffles does not change the score.
 *
 * normalise = rank: c becomes the share of the training pictures that are simpler (photographs crowd near
 * 0.9, where thresholds would hardly ever apply). For that the whole set must have been seen: the first round
 * of items (the prefill, or the first epoch) is held back until the mark behind it. Workers score them side
 * by side meanwhile; the held items leave in the order they came in. */
#include "core/image/score.h"
#include "core/flow/graph.h"
#include "core/image/caption.h"
#include "core/image/file.h"
#include "core/image/picture.h"
#include "core/image/resize.h"
#include "core/model/base.h"
#include "core/model/model.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { NONE, RANK };
enum { TOKENS = 75, WORDS = 40, HOLD = 1 << 30 };

typedef struct {
    gboolean known, trained;
    float complexity; /* not normalised */
    float scores[5];  /* the field "scores" */
} Known;

typedef struct {
    double image_weight, text_weight;
    int normalise;
    char *base;
    guint64 max_bytes;
    gint64 max_pixels;
    Tokenizer *tokenizer; /* NULL = count words */
    gboolean ready;       /* no more holding; written while the other workers are idle */
    float *sorted;        /* complexities of the training pictures, once ready */
    gsize n_sorted;
    /* under lock */
    pthread_mutex_t lock;
    GArray *known; /* Known by sample */
    GPtrArray *held;
} Score;

typedef struct {
    guint8 *bytes, *pixels;
    gsize bytes_size, pixels_size;
    guint8 small[IMAGE_SCORE_SIDE * IMAGE_SCORE_SIDE * 3];
    ImageResizer *resizer;
    FlowCtx *ctx; /* of the call */
} Worker;

/* -- one picture ------------------------------------------------------------------------ */

static guint8 *reserve(guint8 **buffer, gsize *size, gsize n)
{
    if (n > *size) {
        g_free(*buffer);
        *buffer = g_try_malloc(n);
        *size = *buffer ? n : 0;
    }
    return *buffer;
}

static guint8 *allocate(gpointer data, gint32 height, gint32 width)
{
    Worker *w = data;
    return reserve(&w->pixels, &w->pixels_size, (gsize)height * (gsize)width * 3);
}

static gboolean cancelled(gpointer data)
{
    FlowCtx *ctx = ((Worker *)data)->ctx;
    return flow_ctx_cancelled(ctx) || flow_ctx_stopping(ctx);
}

/* The size at most 256 px long that the picture is looked at in. */
static ImageSize look_size(ImageSize size)
{
    gint32 longest = MAX(size.height, size.width);
    if (longest <= IMAGE_SCORE_SIDE)
        return size;
    return (ImageSize){MAX((gint32)((gint64)size.height * IMAGE_SCORE_SIDE / longest), 1),
                       MAX((gint32)((gint64)size.width * IMAGE_SCORE_SIDE / longest), 1)};
}

static gboolean read_file(const Score *s, Worker *w, const FlowItem *item, gsize *n, GError **error)
{
    const char *path = flow_item_string(item, FLOW_F_PATH);
    struct stat st;
    int fd = image_file_open_listed(path, flow_item_i64(item, FLOW_F_FILE_ID), s->max_bytes, &st, error);
    if (fd < 0)
        return FALSE;
    *n = (gsize)st.st_size;
    gboolean ok = reserve(&w->bytes, &w->bytes_size, MAX(*n, 1)) != NULL;
    if (!ok)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "no memory for a file of %" G_GSIZE_FORMAT " bytes", *n);
    ok = ok && image_file_read(fd, path, w->bytes, *n, error);
    close(fd);
    return ok;
}

static FlowStatus look(FlowCtx *ctx, const FlowItem *item, ImageScore *score, GError **error)
{
    const Score *s = flow_ctx_state(ctx);
    Worker *w = flow_ctx_worker(ctx);
    const gint32 *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    ImageSize to = look_size((ImageSize){size[0], size[1]});
    g_autofree char *name = image_printable(flow_item_string(item, FLOW_F_PATH));
    ImageRequest request = {.max_pixels = (guint64)s->max_pixels,
                            .background = {255, 255, 255},
                            .truncated = TRUE, /* decode_image decides about damage */
                            .fit_height = to.height,
                            .fit_width = to.width,
                            .allocate = allocate,
                            .cancelled = cancelled,
                            .data = w};
    ImagePicture picture;
    gsize n;

    w->ctx = ctx;
    if (!read_file(s, w, item, &n, error))
        return FLOW_SKIP;
    FlowStatus status = image_decode(&(ImageSource){w->bytes, -1, n}, name, &request, &picture, error);
    g_free(picture.warning);
    if (status != FLOW_OK)
        return status;
    to = look_size((ImageSize){picture.height, picture.width});
    ImageGeometry g = {to.height, to.width, to.height, to.width, 0, 0, 0};
    image_resize(w->resizer, picture.pixels, (ImageSize){picture.height, picture.width}, IMAGE_AREA, &g,
                 w->small);
    image_score(w->small, to.height, to.width, score);
    return FLOW_OK;
}

static float text_length(const Score *s, const FlowItem *item)
{
    const char *caption = flow_item_string(item, FLOW_F_CAPTION_FULL);
    gint32 ids[TOKENIZER_LENGTH];

    if (!caption)
        caption = flow_item_string(item, FLOW_F_CAPTION);
    float length = s->tokenizer ? (float)tokenizer_encode(s->tokenizer, caption, ids) / TOKENS
                                : (float)image_caption_words(caption) / WORDS;
    return MIN(length, 1);
}

static FlowStatus learn(FlowCtx *ctx, const FlowItem *item, Known *known, GError **error)
{
    const Score *s = flow_ctx_state(ctx);
    const gint32 *role = flow_item_i32(item, FLOW_F_ROLE);
    ImageScore score = {0};
    FlowStatus status = look(ctx, item, &score, error);

    if (status != FLOW_OK)
        return status;
    float text = text_length(s, item);
    *known = (Known){.known = TRUE,
                     .trained = !role || !*role,
                     .complexity = (float)((s->image_weight * score.entropy + s->text_weight * text) /
                                           (s->image_weight + s->text_weight)),
                     .scores = {score.entropy, text, score.lab[0], score.lab[1], score.lab[2]}};
    return FLOW_OK;
}

/* What is known of the item's picture, learnt now if need be. */
static FlowStatus know(FlowCtx *ctx, const FlowItem *item, Known *known, GError **error)
{
    Score *s = flow_ctx_state(ctx);
    gint64 sample = *flow_item_i64(item, FLOW_F_SAMPLE);

    pthread_mutex_lock(&s->lock);
    *known = (guint64)sample < s->known->len ? g_array_index(s->known, Known, sample) : (Known){0};
    pthread_mutex_unlock(&s->lock);
    if (known->known)
        return FLOW_OK;
    FlowStatus status = learn(ctx, item, known, error);
    if (status != FLOW_OK)
        return status;
    pthread_mutex_lock(&s->lock);
    if ((guint64)sample >= s->known->len)
        g_array_set_size(s->known, (guint)sample + 1);
    g_array_index(s->known, Known, sample) = *known;
    pthread_mutex_unlock(&s->lock);
    return FLOW_OK;
}

/* -- rank ---------------------------------------------------------------------------------- */

static int by_value(gconstpointer a, gconstpointer b)
{
    float p = *(const float *)a, q = *(const float *)b;
    return (p > q) - (p < q);
}

/* Number of sorted values below v (or, with `equal`, not above it). */
static gsize count_below(const Score *s, float v, gboolean equal)
{
    gsize low = 0, high = s->n_sorted;
    while (low < high) {
        gsize middle = (low + high) / 2;
        if (s->sorted[middle] < v || (equal && s->sorted[middle] == v))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Share of the training pictures below v; equal ones count half, so 0.3 parts off the simplest 30 %. */
static float rank_of(const Score *s, float v)
{
    if (s->n_sorted == 0)
        return v;
    return (float)((double)(count_below(s, v, FALSE) + count_below(s, v, TRUE)) / 2 / (double)s->n_sorted);
}

static void sort_known(Score *s)
{
    s->sorted = g_new(float, s->known->len + 1);
    for (guint i = 0; i < s->known->len; i++) {
        const Known *k = &g_array_index(s->known, Known, i);
        if (k->known && k->trained)
            s->sorted[s->n_sorted++] = k->complexity;
    }
    qsort(s->sorted, s->n_sorted, sizeof *s->sorted, by_value);
}

static FlowStatus pass_on(FlowCtx *ctx, FlowItem *item, const Known *known)
{
    const Score *s = flow_ctx_state(ctx);
    float complexity = s->normalise == RANK ? rank_of(s, known->complexity) : known->complexity;

    flow_item_writable(&item);
    flow_item_set_f32(item, FLOW_F_COMPLEXITY, &complexity, 1);
    flow_item_set_f32(item, FLOW_F_SCORES, known->scores, G_N_ELEMENTS(known->scores));
    return flow_emit(ctx, 0, item);
}

/* The order in which items came in: their number, and for several with one number (mirrored twins) the
 * geometry. */
static int by_arrival(gconstpointer a, gconstpointer b)
{
    const FlowItem *p = *(FlowItem *const *)a, *q = *(FlowItem *const *)b;
    const gint32 *g = flow_item_i32(p, FLOW_F_GEOMETRY), *h = flow_item_i32(q, FLOW_F_GEOMETRY);

    if (p->seq != q->seq)
        return p->seq < q->seq ? -1 : 1;
    for (int i = 0; g && h && i < 7; i++)
        if (g[i] != h[i])
            return g[i] < h[i] ? -1 : 1;
    return 0;
}

/* The set is complete: ranks are known from here on. */
static FlowStatus release(FlowCtx *ctx)
{
    Score *s = flow_ctx_state(ctx);
    FlowStatus status = FLOW_OK;

    s->ready = TRUE;
    sort_known(s);
    g_ptr_array_sort(s->held, by_arrival);
    for (guint i = 0; i < s->held->len && status == FLOW_OK; i++) {
        FlowItem *item = g_steal_pointer(&s->held->pdata[i]);
        Known known = g_array_index(s->known, Known, *flow_item_i64(item, FLOW_F_SAMPLE));
        status = pass_on(ctx, item, &known);
    }
    g_ptr_array_set_size(s->held, 0);
    return status;
}

/* -- the stage ------------------------------------------------------------------------------ */

static FlowStatus score_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Score *s = flow_ctx_state(ctx);
    Known known;
    FlowStatus status = know(ctx, in[0], &known, error);

    if (status != FLOW_OK)
        return status;
    if (s->ready || s->normalise == NONE)
        return pass_on(ctx, flow_take(&in[0]), &known);
    pthread_mutex_lock(&s->lock);
    g_ptr_array_add(s->held, flow_take(&in[0]));
    pthread_mutex_unlock(&s->lock);
    return FLOW_OK;
}

static FlowStatus score_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    const Score *s = flow_ctx_state(ctx);
    return s->ready || s->normalise == NONE ? FLOW_OK : release(ctx);
}

static FlowStatus score_flush(FlowCtx *ctx, GError **error)
{
    return score_mark(ctx, FLOW_MARK_EPOCH, error);
}

/* The tokenizer of the base model, if one is named here or by another node. */
static gboolean open_tokenizer(FlowNode *node, Score *s, GError **error)
{
    const char *base = s->base && *s->base ? s->base : model_base_of_graph(node, NULL);
    Model *model = base ? model_open(base, error) : NULL;

    if (model)
        s->tokenizer = tokenizer_open(model->tokenizer[0], error);
    model_free(model);
    return !base || s->tokenizer;
}

static gboolean score_open(FlowNode *node, GError **error)
{
    Score *s = flow_node_state(node);

    pthread_mutex_init(&s->lock, NULL);
    s->known = g_array_new(FALSE, TRUE, sizeof(Known));
    s->held = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    s->ready = FALSE;
    s->n_sorted = 0;
    if (s->image_weight + s->text_weight <= 0) {
        g_set_error_literal(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                            "image_weight and text_weight are both 0: nothing is left to score by");
        return FALSE;
    }
    return open_tokenizer(node, s, error);
}

static void score_close(FlowNode *node)
{
    Score *s = flow_node_state(node);
    g_clear_pointer(&s->known, g_array_unref);
    g_clear_pointer(&s->held, g_ptr_array_unref);
    g_clear_pointer(&s->tokenizer, tokenizer_free);
    g_clear_pointer(&s->sorted, g_free);
    pthread_mutex_destroy(&s->lock);
}

static gboolean score_worker_start(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    ((Worker *)flow_ctx_worker(ctx))->resizer = image_resizer_new();
    return TRUE;
}

static void score_worker_stop(FlowCtx *ctx)
{
    Worker *w = flow_ctx_worker(ctx);
    image_resizer_free(w->resizer);
    g_free(w->bytes);
    g_free(w->pixels);
}

static gint64 score_hold(FlowNode *node)
{
    return ((const Score *)flow_node_state(node))->normalise == RANK ? HOLD : 0;
}

static gboolean score_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    const Score *s = flow_node_state(node);
    gsize scratch = (gsize)plan->source_bytes + (gsize)plan->source_pixels * 3 + sizeof(Worker);
    gsize pictures = (gsize)(plan->samples + plan->validation);

    flow_plan_add_always(plan, node, FLOW_HOST, "scratch", flow_node_workers(node) * scratch);
    flow_plan_add_always(plan, node, FLOW_HOST, "scores", pictures * (sizeof(Known) + sizeof(float)));
    if (s->normalise == RANK)
        flow_plan_add(plan, node, FLOW_PHASE_PREFILL, FLOW_HOST, "held items", pictures * plan->item_bytes);
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_FLOAT(Score, image_weight, "0.7", 0, 1, "", "Weight of what is in the picture."),
    FLOW_FLOAT(Score, text_weight, "0.3", 0, 1, "", "Weight of the length of the caption."),
    FLOW_ENUM(Score, normalise, "rank", "none|rank",
              "The score as it is, or the share of the training pictures that are simpler."),
    FLOW_PATH(Score, base, "",
              "Model whose tokenizer measures captions; empty: that of the graph, or words."),
    FLOW_SIZE(Score, max_bytes, "256MiB", 1, 1e12, "Files above this are bad items.", | FLOW_P_NORESULT),
    FLOW_INT(Score, max_pixels, "128M", 1, 4e9, "px", "Pictures with more pixels are bad items.",
             | FLOW_P_NORESULT),
    FLOW_END,
};
static const FlowPort ins[] = {
    {.name = "in",
     .doc = "References to pictures.",
     .needs = "path caption caption_full? source_size sample file_id? role? geometry?"},
    FLOW_END};
static const FlowPort outs[] = {{.name = "out", .doc = "With scores.", .gives = "complexity scores"},
                                FLOW_END};

FLOW_STAGE(.name = "score", .summary = "Score each picture's complexity from its contents and its caption.",
           .flags = FLOW_PARALLEL | FLOW_REORDERS, .version = 1, .state_size = sizeof(Score),
           .worker_size = sizeof(Worker), .params = params, .inputs = ins, .outputs = outs,
           .open = score_open, .worker_start = score_worker_start, .process = score_process,
           .flush = score_flush, .mark = score_mark, .worker_stop = score_worker_stop, .close = score_close,
           .plan = score_plan, .hold = score_hold);
