/* Writes adapters as a LoRA file, in kohya's layout or in diffusers' (spec/formats.md 4c).
 *
 * In memory A has rows up to a multiple of 8 and a convolution's columns in the order [kh][kw][in]; in files
 * there are `rank` rows in the order [in][kh][kw]. Whatever has the file's order already is written from
 * where it is. */
#include "core/model/lora_meta.h"
#include "core/model/names.h"
#include <string.h>

/* Tensors of a file and what they own. */
typedef struct {
    GArray *entries;   /* SafeEntry */
    GPtrArray *memory; /* names and copies */
    NetType type;
} Out;

static gpointer keep(Out *out, gpointer memory)
{
    g_ptr_array_add(out->memory, memory);
    return memory;
}

static void add(Out *out, char *name, guint ndim, const gint64 *shape, const float *data)
{
    SafeEntry e = {.name = keep(out, name), .type = out->type, .ndim = ndim, .data = data, .source = NET_F32};
    for (guint i = 0; i < ndim; i++)
        e.shape[i] = shape[i];
    g_array_append_val(out->entries, e);
}

/* [rank][in][kh][kw] */
static const float *down(Out *out, const NetAdapter *a, const float *master)
{
    const float *x = master + a->a;
    const gint64 k = a->kh * a->kw;
    if (k == 1)
        return x;
    float *y = keep(out, g_new(float, (gsize)(a->rank * a->in * k)));
    for (gint64 r = 0; r < a->rank; r++)
        for (gint64 p = 0; p < k; p++)
            for (gint64 i = 0; i < a->in; i++)
                y[(r * a->in + i) * k + p] = x[(r * k + p) * a->in + i];
    return y;
}

/* [out][rank] */
static const float *up(Out *out, const NetAdapter *a, const float *master)
{
    const float *x = master + a->b;
    if (a->rank == a->rank_pad)
        return x;
    float *y = keep(out, g_new(float, (gsize)(a->out * a->rank)));
    for (gint64 o = 0; o < a->out; o++)
        memcpy(y + o * a->rank, x + o * a->rank_pad, (gsize)a->rank * sizeof *y);
    return y;
}

static void add_pair(Out *out, const NetAdapter *a, const float *master, char *a_name, char *b_name)
{
    const guint ndim = a->conv_shape ? 4 : 2;
    const gint64 a_shape[4] = {a->rank, a->in, a->kh, a->kw}, b_shape[4] = {a->out, a->rank, 1, 1};
    add(out, a_name, ndim, a_shape, down(out, a, master));
    add(out, b_name, ndim, b_shape, up(out, a, master));
}

static void add_kohya(Out *out, const NetAdapter *a, const Model *model, const float *master)
{
    /* SDXL files have the names of the original checkpoint, the others those of diffusers: so do all readers.
     */
    g_autofree char *path =
        model->kind == MODEL_SDXL ? names_original_unet(&model->unet, a->name) : g_strdup(a->name);
    g_autofree char *name = names_kohya(path);
    float *alpha = keep(out, g_new(float, 1));
    *alpha = a->alpha;
    add_pair(out, a, master, g_strconcat(name, ".lora_down.weight", NULL),
             g_strconcat(name, ".lora_up.weight", NULL));
    add(out, g_strconcat(name, ".alpha", NULL), 0, NULL, alpha);
    if (out->type ==
        NET_BF16) /* 8 bits would bend the scale, and some readers cannot take a number from bf16 */
        g_array_index(out->entries, SafeEntry, out->entries->len - 1).type = NET_F32;
}

static void add_diffusers(Out *out, const NetAdapter *a, const float *master)
{
    add_pair(out, a, master, g_strdup_printf("unet.%s.lora_A.weight", a->name),
             g_strdup_printf("unet.%s.lora_B.weight", a->name));
}

gboolean lora_save(const NetAdapters *adapters, const Model *model, const char *path, LoraFormat format,
                   NetType type, GHashTable *metadata, SafeStats *stats, GError **error)
{
    if (!adapters->list->len) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "%s: no adapters to save", path);
        return FALSE;
    }
    Out out = {g_array_new(FALSE, FALSE, sizeof(SafeEntry)), g_ptr_array_new_with_free_func(g_free), type};
    for (guint i = 0; i < adapters->list->len; i++) {
        if (format == LORA_KOHYA)
            add_kohya(&out, adapters->list->pdata[i], model, adapters->master);
        else
            add_diffusers(&out, adapters->list->pdata[i], adapters->master);
    }
    const SafeEntry *entries = (const SafeEntry *)out.entries->data;
    g_autoptr(GHashTable) all = format == LORA_KOHYA ? lora_meta_kohya(adapters, model, metadata)
                                                     : lora_meta_diffusers(adapters, metadata);
    gboolean ok = (format != LORA_KOHYA || lora_meta_hashes(all, entries, out.entries->len, error)) &&
                  safe_write(path, entries, out.entries->len, all, stats, error);
    g_array_unref(out.entries);
    g_ptr_array_unref(out.memory);
    return ok;
}
