/* Loads the weights of a part.
 *
 * Tensors are read in the order in which they lie in the files, each straight into its place: vectors become
 * f32, matrices and kernels the asked-for type. Convolutions are turned from [out, in, kh, kw] to channels
 * last, a few output channels at a time, so a part is never in memory twice, not even one tensor of it. */
#include "core/model/source.h"
#include <string.h>

enum { TURN_BYTES = 1 << 20 };

/* Whether an element of a VAE belongs to the half that is asked for. */
static gboolean in_half(const char *name, gboolean encoder, gboolean decoder)
{
    gboolean encodes = g_str_has_prefix(name, "encoder.") || g_str_has_prefix(name, "quant_conv.");
    return encodes ? encoder : decoder;
}

static NetWeight *add(NetWeights *weights, const ModelTensor *t, NetType type)
{
    const gint64 turned[4] = {t->shape[0], t->shape[2], t->shape[3], t->shape[1]};
    return net_weights_add(weights, t->name, t->ndim == 1 ? NET_F32 : type, t->ndim,
                           t->ndim == 4 ? turned : t->shape);
}

/* [n][in][k] to [n][k][in] of elements of 2 or 4 bytes. */
static void turn(void *dst, const void *src, gint64 n, gint64 in, gint64 k, gsize size)
{
    for (gint64 o = 0; o < n; o++)
        for (gint64 p = 0; p < k; p++)
            for (gint64 i = 0; i < in; i++) {
                gint64 to = (o * k + p) * in + i, from = (o * in + i) * k + p;
                if (size == 2)
                    ((guint16 *)dst)[to] = ((const guint16 *)src)[from];
                else
                    ((guint32 *)dst)[to] = ((const guint32 *)src)[from];
            }
}

static gboolean read_kernel(const ModelSource *s, NetWeight *w, GError **error)
{
    const gint64 out = s->tensor->shape[0], in = s->tensor->shape[1],
                 k = s->tensor->shape[2] * s->tensor->shape[3];
    const gsize size = net_type_bytes(w->type, 1), row = (gsize)(in * k) * size;
    const gint64 step = MAX(1, (gint64)(TURN_BYTES / row));
    g_autofree void *buffer = g_malloc((gsize)MIN(step, out) * row);
    for (gint64 o = 0; o < out; o += step) {
        gint64 n = MIN(step, out - o);
        if (!safe_read_range(s->file, s->found, o * in * k, n * in * k, buffer, w->type, error))
            return FALSE;
        turn((char *)w->data + (gsize)o * row, buffer, n, in, k, size);
    }
    return TRUE;
}

/* [in, out] in the file; small enough to be read whole. */
static gboolean read_transposed(const ModelSource *s, NetWeight *w, GError **error)
{
    const gint64 out = w->shape[0], in = w->shape[1];
    g_autofree void *buffer = g_malloc(w->nbytes);
    if (!safe_read(s->file, s->found, buffer, w->type, error))
        return FALSE;
    turn((void *)w->data, buffer, 1, in, out, net_type_bytes(w->type, 1));
    return TRUE;
}

static gboolean read_weight(const ModelSource *s, NetWeight *w, GError **error)
{
    const gint64 *shape = s->tensor->shape;
    if (s->transposed)
        return read_transposed(s, w, error);
    if (s->tensor->ndim == 4 && shape[2] > 1)
        return read_kernel(s, w, error);
    return safe_read_range(s->file, s->found, s->first, shape[0] * shape[1] * shape[2] * shape[3],
                           (void *)w->data, w->type, error);
}

static NetWeights *load(const Model *model, PartKind kind, NetType type, gboolean encoder, gboolean decoder,
                        GError **error)
{
    g_autoptr(ModelPart) part = model_part_find(model, kind, error);
    NetWeights *weights = part ? net_weights_new() : NULL;
    for (guint i = 0; weights && i < part->n; i++) {
        const ModelSource *s = &part->sources[i];
        if (kind == PART_VAE && !in_half(s->tensor->name, encoder, decoder))
            continue;
        NetWeight *w = add(weights, s->tensor, type);
        if (!read_weight(s, w, error)) {
            net_weights_free(weights);
            return NULL;
        }
    }
    return weights;
}

NetWeights *model_load_unet(const Model *model, NetType type, GError **error)
{
    return load(model, PART_UNET, type, TRUE, TRUE, error);
}

NetWeights *model_load_vae(const Model *model, NetType type, gboolean encoder, gboolean decoder,
                           GError **error)
{
    return load(model, PART_VAE, type, encoder, decoder, error);
}

NetWeights *model_load_text(const Model *model, guint which, NetType type, GError **error)
{
    g_return_val_if_fail(which < model->texts, NULL);
    return load(model, PART_TEXT + which, type, TRUE, TRUE, error);
}

/* -- without loading --------------------------------------------------------------------------------- */

NetWeights *model_outline(const Model *model, const char *part, NetType type, GError **error)
{
    PartKind first, last;
    if (!model_part_kinds(model, part, &first, &last, error))
        return NULL;
    if (first != last) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: part '%s' is %d networks; ask for one of them", model->path, part, last - first + 1);
        return NULL;
    }
    g_autoptr(GPtrArray) tensors = model_part_tensors(model, first);
    NetWeights *weights = net_weights_new_dry();
    for (guint i = 0; i < tensors->len; i++) {
        const ModelTensor *t = tensors->pdata[i];
        if (in_half(t->name, strcmp(part, "vae.decoder") != 0, strcmp(part, "vae.encoder") != 0))
            add(weights, t, type);
    }
    return weights;
}

gsize model_part_bytes(const Model *model, const char *part, NetType type, GError **error)
{
    PartKind first, last;
    gsize bytes = 0;
    if (!model_part_kinds(model, part, &first, &last, error))
        return 0;
    for (PartKind kind = first; kind <= last; kind++) {
        g_autoptr(GPtrArray) tensors = model_part_tensors(model, kind);
        for (guint i = 0; i < tensors->len; i++) {
            const ModelTensor *t = tensors->pdata[i];
            gsize n = (gsize)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
            if (in_half(t->name, strcmp(part, "vae.decoder") != 0, strcmp(part, "vae.encoder") != 0))
                bytes += net_type_bytes(t->ndim == 1 ? NET_F32 : type, n);
        }
    }
    return bytes;
}
