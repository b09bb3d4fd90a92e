/* From an item to a micro-batch: every tensor is checked here once, so nothing later reads past an end. */
#include "core/model/trainer.h"

static gboolean fail(GError **error, FlowField field, const char *format, ...) G_GNUC_PRINTF(3, 4);
static gboolean fail(GError **error, FlowField field, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, TRAINER_ERROR, TRAINER_ERROR_BATCH, "'%s' %s", flow_field_info(field)->name, text);
    return FALSE;
}

static char *shape_text(guint ndim, const gint64 *shape)
{
    GString *s = g_string_new("[");
    for (guint i = 0; i < ndim; i++)
        g_string_append_printf(s, "%s%" G_GINT64_FORMAT, i ? ", " : "", shape[i]);
    return g_string_free(g_string_append_c(s, ']'), FALSE);
}

/* A float tensor of exactly this shape; NULL stays NULL unless required. */
static gboolean tensor(const FlowItem *item, FlowField field, gboolean required, guint ndim,
                       const gint64 *shape, const FlowValue **out, GError **error)
{
    const FlowValue *v = *out = flow_item_get(item, field);
    if (!v)
        return required ? fail(error, field, "is missing in the batch") : TRUE;
    if (v->type != NET_F32 && v->type != NET_BF16 && v->type != NET_F16)
        return fail(error, field, "is %s, not a float type", net_type_name(v->type));
    gboolean same = v->ndim == ndim;
    for (guint i = 0; same && i < ndim; i++)
        same = v->shape[i] == shape[i];
    if (same)
        return TRUE;
    g_autofree char *found = shape_text(v->ndim, v->shape), *wanted = shape_text(ndim, shape);
    return fail(error, field, "has shape %s, not %s", found, wanted);
}

/* n numbers of the field's declared type. */
static gboolean numbers(const FlowItem *item, FlowField field, gboolean required, gint64 n,
                        gconstpointer *out, GError **error)
{
    const FlowValue *v = flow_item_get(item, field);
    *out = v ? v->data : NULL;
    if (!v)
        return required ? fail(error, field, "is missing in the batch") : TRUE;
    if (v->type != flow_field_info(field)->type)
        return fail(error, field, "is %s, not %s", net_type_name(v->type),
                    net_type_name(flow_field_info(field)->type));
    if (flow_value_count(v) != (gsize)n)
        return fail(error, field, "has %zu numbers for %" G_GINT64_FORMAT " samples", flow_value_count(v), n);
    return TRUE;
}

/* Sizes of the batch, from its latents and its text. */
static gboolean sizes(const Trainer *t, const FlowItem *item, FlowField latent, TrainerBatch *b,
                      GError **error)
{
    const FlowValue *v = flow_item_get(item, latent), *text = flow_item_get(item, FLOW_F_CONTEXT);
    if (!v)
        return fail(error, latent, "is missing in the batch");
    if (!text)
        return fail(error, FLOW_F_CONTEXT, "is missing in the batch");
    if (v->ndim != 4 || v->shape[0] < 1 || v->shape[3] != t->model->unet.in_channels) {
        g_autofree char *found = shape_text(v->ndim, v->shape);
        return fail(error, latent, "has shape %s, not [n, h, w, %" G_GINT64_FORMAT "]", found,
                    t->model->unet.in_channels);
    }
    b->n = v->shape[0], b->height = v->shape[1], b->width = v->shape[2];
    gint64 step = model_latent_step(t->model);
    if (b->height < step || b->width < step || b->height % step || b->width % step)
        return fail(error, latent,
                    "is %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT
                    " latent pixels; both must be multiples of %" G_GINT64_FORMAT " (%" G_GINT64_FORMAT
                    " px in the picture: set step in bucket)",
                    b->height, b->width, step, step * model_vae_factor(t->model));
    if (text->ndim != 3 || text->shape[1] < 1) {
        g_autofree char *found = shape_text(text->ndim, text->shape);
        return fail(error, FLOW_F_CONTEXT, "has shape %s, not [n, tokens, width]", found);
    }
    b->tokens = text->shape[1];
    return TRUE;
}

static gboolean timesteps_valid(const TrainerBatch *b, GError **error)
{
    for (gint64 i = 0; b->timestep && i < b->n; i++)
        if (b->timestep[i] < 0 || b->timestep[i] > 999)
            return fail(error, FLOW_F_TIMESTEP, "is %d, outside 0..999", b->timestep[i]);
    return TRUE;
}

gboolean trainer_batch_read(const Trainer *t, const FlowItem *item, gboolean given, TrainerBatch *b,
                            GError **error)
{
    const UnetConfig *u = &t->model->unet;
    *b = (TrainerBatch){.samples = 1, .v = t->model->v_prediction};
    if (!sizes(t, item, given ? FLOW_F_LATENT : FLOW_F_LATENT_MEAN, b, error))
        return FALSE;
    const gint64 image[] = {b->n, b->height, b->width, u->in_channels};
    const gint64 text[] = {b->n, b->tokens, u->context};
    const gint64 pooled[] = {b->n, u->class_dim - 6 * u->time_dim}, ids[] = {b->n, 6};
    gconstpointer key, timestep, weight, offset, alpha_bar;
    if (given ? !tensor(item, FLOW_F_LATENT, TRUE, 4, image, &b->latent, error)
              : !tensor(item, FLOW_F_LATENT_MEAN, TRUE, 4, image, &b->mean, error) ||
                    !tensor(item, FLOW_F_LATENT_LOGVAR, TRUE, 4, image, &b->logvar, error))
        return FALSE;
    if (!tensor(item, FLOW_F_NOISE, FALSE, 4, image, &b->noise, error) ||
        !tensor(item, FLOW_F_CONTEXT, TRUE, 3, text, &b->context, error))
        return FALSE;
    if (u->text_time && (!tensor(item, FLOW_F_POOLED, TRUE, 2, pooled, &b->pooled, error) ||
                         !tensor(item, FLOW_F_TIME_IDS, TRUE, 2, ids, &b->time_ids, error)))
        return FALSE;
    if (!numbers(item, FLOW_F_NOISE_KEY, FALSE, b->n, &key, error) ||
        !numbers(item, FLOW_F_TIMESTEP, FALSE, b->n, &timestep, error) ||
        !numbers(item, FLOW_F_WEIGHT, FALSE, b->n, &weight, error) ||
        !numbers(item, FLOW_F_NOISE_OFFSET, FALSE, b->n, &offset, error) ||
        !numbers(item, FLOW_F_ALPHA_BAR, FALSE, b->n, &alpha_bar, error))
        return FALSE;
    b->key = key, b->timestep = timestep, b->weight = weight, b->offset = offset, b->alpha_bar = alpha_bar;
    const gint32 *prediction = flow_item_i32(item, FLOW_F_PREDICTION);
    if (prediction)
        b->v = *prediction == 1;
    return timesteps_valid(b, error);
}
