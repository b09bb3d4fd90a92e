/* Finds the tensors of a part in its files.
 *
 * Names differ between writers: VAEs of old folders call the matrices of their attention query, key, value
 * and proj_attn, and text encoders come with and without the prefix "text_model.". Every wanted tensor is
 * looked for under each of its names; then whatever in the files was not wanted is reported, apart from a few
 * tensors that every loader skips. A tensor that silently stays behind is how an adapter gets trained on a
 * broken model. */
#include "core/model/source.h"
#include "core/model/names.h"
#include <string.h>

enum { LISTED = 100 }; /* names in a message */

/* -- names ----------------------------------------------------------------------------------------- */

/* The other name of a wanted tensor, or NULL. Returns new. */
static char *other_name(PartKind kind, const char *name)
{
    static const char *const old[][2] = {
        {"to_q", "query"}, {"to_k", "key"}, {"to_v", "value"}, {"to_out.0", "proj_attn"}};
    if (kind == PART_TEXT || kind == PART_TEXT2)
        return g_str_has_prefix(name, "text_model.") ? g_strdup(name + strlen("text_model.")) : NULL;
    const char *end = kind == PART_VAE ? strstr(name, ".attentions.0.to_") : NULL;
    if (!end)
        return NULL;
    end += strlen(".attentions.0.");
    for (guint i = 0; i < G_N_ELEMENTS(old); i++)
        if (g_str_has_prefix(end, old[i][0]) && end[strlen(old[i][0])] == '.')
            return g_strdup_printf("%.*s%s%s", (int)(end - name), name, old[i][1], end + strlen(old[i][0]));
    return NULL;
}

/* What comes before the names of a part in a single file. */
static const char *single_prefix(const Model *model, PartKind kind)
{
    static const char *const sdxl[] = {"conditioner.embedders.0.transformer.",
                                       "conditioner.embedders.1.model."};
    if (kind == PART_UNET)
        return "model.diffusion_model.";
    if (kind == PART_VAE)
        return "first_stage_model.";
    if (model->kind == MODEL_SDXL)
        return sdxl[kind - PART_TEXT];
    return model->kind == MODEL_SD2 ? "cond_stage_model.model." : "cond_stage_model.transformer.";
}

static gboolean is_openclip(const Model *model, PartKind kind)
{
    return model->kind == MODEL_SD2 || kind == PART_TEXT2;
}

/* Tensors that no network needs: index vectors, the image side of CLIP, losses of the VAE's training, and in
 * SD2.x the last layer of the text encoder, whose input is what the U-Net gets. */
static gboolean ignored(const Model *model, PartKind kind, const char *name)
{
    static const char *const text[] = {"position_ids", "logit_scale", "text_projection.weight",
                                       "text_projection", "attn_mask"};
    if (kind == PART_UNET)
        return FALSE;
    if (kind == PART_VAE)
        return g_str_has_prefix(name, "first_stage_model.loss.");
    for (guint i = 0; i < G_N_ELEMENTS(text); i++)
        if (g_str_has_suffix(name, text[i]))
            return TRUE;
    g_autofree char *last =
        g_strdup_printf("cond_stage_model.model.transformer.resblocks.%d.", (int)model->text[0].layers);
    return model->single && model->kind == MODEL_SD2 && g_str_has_prefix(name, last);
}

GPtrArray *model_part_tensors(const Model *model, PartKind kind)
{
    switch (kind) {
    case PART_UNET:
        return parts_unet(&model->unet);
    case PART_VAE:
        return parts_vae(&model->vae, TRUE, TRUE);
    default:
        return parts_text(&model->text[kind - PART_TEXT]);
    }
}

const char *model_part_file(const Model *model, PartKind kind)
{
    return kind == PART_UNET  ? model->unet_file
           : kind == PART_VAE ? model->vae_file
                              : model->text_file[kind - PART_TEXT];
}

gboolean model_part_kinds(const Model *model, const char *part, PartKind *first, PartKind *last,
                          GError **error)
{
    static const struct {
        const char *name;
        PartKind first, last;
    } names[] = {
        {"unet", PART_UNET, PART_UNET},      {"vae", PART_VAE, PART_VAE},
        {"vae.encoder", PART_VAE, PART_VAE}, {"vae.decoder", PART_VAE, PART_VAE},
        {"text.0", PART_TEXT, PART_TEXT},    {"text.1", PART_TEXT2, PART_TEXT2},
        {"text", PART_TEXT, PART_TEXT2},
    };
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        if (strcmp(names[i].name, part))
            continue;
        *first = names[i].first;
        *last = MIN(names[i].last, PART_TEXT + model->texts - 1);
        if (*last >= *first)
            return TRUE;
    }
    g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "%s has no part '%s'", model->path, part);
    return FALSE;
}

/* -- checks ------------------------------------------------------------------------------------------ */

/* A list of names under a heading, empty until the first. */
typedef struct {
    const char *heading;
    GString *text;
    guint n;
} List;

static void list_add(List *list, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void list_add(List *list, const char *format, ...)
{
    va_list args;
    if (list->n++ >= LISTED)
        return;
    va_start(args, format);
    g_string_append(list->text, list->n > 1 ? ", " : "");
    g_string_append_vprintf(list->text, format, args);
    va_end(args);
}

static void list_end(List *list, GString *message)
{
    if (list->n)
        g_string_append_printf(message, "%s%u %s: %s", message->len ? "; " : "", list->n, list->heading,
                               list->text->str);
    if (list->n > LISTED)
        g_string_append_printf(message, " and %u more", list->n - LISTED);
    g_string_free(list->text, TRUE);
}

static char *shape_text(guint ndim, const gint64 *shape)
{
    GString *text = g_string_new("[");
    for (guint i = 0; i < ndim; i++)
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT, i ? "," : "", shape[i]);
    g_string_append_c(text, ']');
    return g_string_free(text, FALSE);
}

/* Equal but for dimensions of 1 at the end: a 1x1 convolution is the same matrix. */
static gboolean same_shape(const ModelTensor *t, const ModelSource *s, gint64 parts)
{
    for (guint i = 0; i < G_N_ELEMENTS(s->found->shape); i++) {
        guint k = s->transposed && i < 2 ? 1 - i : i;
        gint64 a = k < MIN(t->ndim, G_N_ELEMENTS(t->shape)) ? t->shape[k] : 1,
               b = i < s->found->ndim ? s->found->shape[i] : 1;
        if (a * (i ? 1 : parts) != b)
            return FALSE;
    }
    return s->found->ndim >= 1;
}

/* In a folder: under its own name or another one. Returns the number of tensors that `found` holds. */
static gint64 find_in_folder(const SafeSet *set, PartKind kind, ModelSource *s)
{
    s->found = safe_set_find(set, s->tensor->name, &s->file);
    g_autofree char *other = s->found ? NULL : other_name(kind, s->tensor->name);
    if (other)
        s->found = safe_set_find(set, other, &s->file);
    return 1;
}

static gint64 find_in_single(const Model *model, const SafeSet *set, PartKind kind, ModelSource *s)
{
    const char *name = s->tensor->name, *prefix = single_prefix(model, kind);
    OpenClipName place = {0};
    if (kind == PART_UNET)
        place.name = names_original_unet(&model->unet, name);
    else if (kind == PART_VAE)
        place.name = names_original_vae(&model->vae, name);
    else if (is_openclip(model, kind))
        place = names_openclip(name);
    else
        place.name = g_strdup(name);
    g_autofree char *full = g_strconcat(prefix, place.name, NULL);
    g_free(place.name);
    s->found = safe_set_find(set, full, &s->file);
    s->transposed = place.transposed;
    if (s->found && place.fused)
        s->first = s->found->count / 3 * place.third;
    return place.fused ? 3 : 1;
}

/* What is in the files and was not asked for. */
static void list_unexpected(const Model *model, const ModelPart *part, PartKind kind, GHashTable *used,
                            List *list)
{
    const char *prefix = model->single ? single_prefix(model, kind) : "";
    for (guint i = 0; i < safe_set_count(part->set); i++) {
        guint n;
        const SafeTensor *t = safe_tensors(safe_set_file(part->set, i), &n);
        for (guint k = 0; k < n; k++)
            if (!g_hash_table_contains(used, &t[k]) && g_str_has_prefix(t[k].name, prefix) &&
                !ignored(model, kind, t[k].name))
                list_add(list, "%.120s", t[k].name);
    }
}

static gint by_place(gconstpointer a, gconstpointer b)
{
    const ModelSource *x = a, *y = b;
    if (x->file != y->file)
        return strcmp(safe_path(x->file), safe_path(y->file));
    if (x->found != y->found)
        return x->found->offset < y->found->offset ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static gboolean match(const Model *model, ModelPart *part, PartKind kind, const char *path, GError **error)
{
    List missing = {"missing", g_string_new(NULL), 0}, unexpected = {"unexpected", g_string_new(NULL), 0};
    List shapes = {"of another shape than config.json says", g_string_new(NULL), 0};
    List types = {"of a type that cannot be read", g_string_new(NULL), 0};
    g_autoptr(GHashTable) used = g_hash_table_new(NULL, NULL);
    part->sources = g_new0(ModelSource, part->tensors->len);
    for (guint i = 0; i < part->tensors->len; i++) {
        const ModelTensor *t = part->tensors->pdata[i];
        ModelSource *s = &part->sources[part->n];
        s->tensor = t;
        gint64 parts =
            model->single ? find_in_single(model, part->set, kind, s) : find_in_folder(part->set, kind, s);
        if (!s->found) {
            list_add(&missing, "%s", t->name);
            continue;
        }
        part->n++;
        g_hash_table_add(used, (gpointer)s->found);
        if (!same_shape(t, s, parts)) {
            g_autofree char *a = shape_text(s->found->ndim, s->found->shape);
            g_autofree char *b = shape_text(t->ndim, t->shape);
            list_add(&shapes, "%s %s, expected %s", t->name, a, b);
        }
        if (s->found->type != NET_F32 && s->found->type != NET_F16 && s->found->type != NET_BF16)
            list_add(&types, "%s %s", t->name, s->found->dtype);
    }
    list_unexpected(model, part, kind, used, &unexpected);
    g_autoptr(GString) message = g_string_new(NULL);
    list_end(&missing, message);
    list_end(&unexpected, message);
    list_end(&shapes, message);
    list_end(&types, message);
    if (message->len)
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE, "%s: tensors do not fit the configuration: %s",
                    path, message->str);
    else
        qsort(part->sources, part->n, sizeof *part->sources, by_place);
    return !message->len;
}

ModelPart *model_part_find(const Model *model, PartKind kind, GError **error)
{
    const char *path = model_part_file(model, kind);
    ModelPart *part = g_new0(ModelPart, 1);
    part->tensors = model_part_tensors(model, kind);
    part->set = safe_set_open(path, error);
    if (part->set && match(model, part, kind, path, error))
        return part;
    model_part_free(part);
    return NULL;
}

void model_part_free(ModelPart *part)
{
    if (!part)
        return;
    safe_set_close(part->set);
    g_ptr_array_unref(part->tensors);
    g_free(part->sources);
    g_free(part);
}
