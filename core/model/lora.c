/* Adapters of a model: which modules can have one, which do, and what they start from.
 *
 * The modules come from the list of tensors that checks files (parts.h), so an adapter sits where the network
 * has a matrix and nowhere else. A target list is read from left to right and the last word that fits a
 * module decides, so "linear !*.attn2.*" is all linears but those of cross-attention. */
#include "core/flow/ini.h"
#include "core/flow/random.h"
#include "core/model/parts.h"
#include <fnmatch.h>
#include <math.h>
#include <string.h>

/* -- modules ----------------------------------------------------------------------------------- */

static void module_free(gpointer data)
{
    ModelModule *module = data;
    g_free(module->path);
    g_free(module);
}

/* Matrices inside the blocks; the convolutions at both ends and the time embedding are left alone, as every
 * other trainer does. */
static gboolean adaptable(const ModelTensor *t)
{
    return t->ndim > 1 && strstr(t->name, "_block") != NULL;
}

GPtrArray *model_modules(const UnetConfig *config)
{
    g_autoptr(GPtrArray) tensors = parts_unet(config);
    GPtrArray *modules = g_ptr_array_new_with_free_func(module_free);
    for (guint i = 0; i < tensors->len; i++) {
        const ModelTensor *t = tensors->pdata[i];
        if (!adaptable(t))
            continue;
        ModelModule *module = g_new(ModelModule, 1);
        *module = (ModelModule){
            .path = g_strndup(t->name, strlen(t->name) - strlen(".weight")),
            .in = t->shape[1],
            .out = t->shape[0],
            .kh = t->shape[2],
            .kw = t->shape[3],
            .conv = t->ndim == 4,
        };
        g_ptr_array_add(modules, module);
    }
    return modules;
}

/* -- targets ------------------------------------------------------------------------------------- */

static gboolean is_attention(const char *path)
{
    return strstr(path, ".attn1.") || strstr(path, ".attn2.");
}

static gboolean is_linear(const char *path)
{
    return strstr(path, ".attentions.") != NULL; /* all matrices of the transformers, 1x1 convolutions too */
}

/* One word of the list, without '!': a preset, a pattern for the whole path, or the end of a path. */
static gboolean fits(const char *word, const char *path)
{
    if (!strcmp(word, "attention"))
        return is_attention(path);
    if (!strcmp(word, "linear"))
        return is_linear(path);
    if (!strcmp(word, "all"))
        return TRUE;
    if (strpbrk(word, "*?["))
        return !fnmatch(word, path, 0);
    gsize n = strlen(path), w = strlen(word);
    return w <= n && !strcmp(path + n - w, word) && (w == n || path[n - w - 1] == '.');
}

static gboolean targeted(char **targets, const char *path)
{
    gboolean in = FALSE;
    for (; *targets; targets++) {
        gboolean out = **targets == '!';
        if (fits(*targets + out, path))
            in = !out;
    }
    return in;
}

/* Known word nearest to a wrong one: a preset, a path, or its last names. Returns new, may be NULL. */
static char *nearest(const GPtrArray *modules, const char *word)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    static const char *const presets[] = {"attention", "linear", "all"};
    for (guint i = 0; i < G_N_ELEMENTS(presets); i++)
        g_ptr_array_add(names, (gpointer)presets[i]);
    for (guint i = 0; i < modules->len; i++)
        for (char *p = ((ModelModule *)modules->pdata[i])->path; p; p = strchr(p, '.'))
            g_ptr_array_add(names, *p == '.' ? ++p : p);
    g_ptr_array_add(names, NULL);
    return g_strdup(flow_nearest(word, (const char *const *)names->pdata));
}

/* Every word has to fit something: one that does not is a mistake, not a wish. */
static gboolean check_targets(const Model *model, const GPtrArray *modules, char **targets, GError **error)
{
    if (!targets || !*targets) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "no targets: expected attention, linear, all, or patterns of module paths");
        return FALSE;
    }
    for (; *targets; targets++) {
        const char *word = *targets + (**targets == '!');
        guint n = 0;
        for (guint i = 0; i < modules->len; i++)
            n += fits(word, ((ModelModule *)modules->pdata[i])->path);
        if (n)
            continue;
        g_autofree char *near = nearest(modules, word);
        g_set_error(
            error, MODEL_ERROR, MODEL_ERROR_MISSING,
            "target '%s' matches no module of %s%s%s; expected attention, linear, all, or patterns such as "
            "*.attn1.to_q",
            *targets, model->path, near ? "; the nearest name is " : "", near ? near : "");
        return FALSE;
    }
    return TRUE;
}

static gboolean check_rank(const ModelModule *module, gint64 rank, GError **error)
{
    gint64 limit = MIN(module->in, module->out);
    if (rank <= limit)
        return TRUE;
    g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                "rank %" G_GINT64_FORMAT " is above the limit %" G_GINT64_FORMAT
                " of module %s (%" G_GINT64_FORMAT " in, %" G_GINT64_FORMAT " out)",
                rank, limit, module->path, module->in, module->out);
    return FALSE;
}

NetAdapters *lora_new(const Model *model, char **targets, gint64 rank, double alpha, NetType compute,
                      GError **error)
{
    g_autoptr(GPtrArray) modules = model_modules(&model->unet);
    if (!check_targets(model, modules, targets, error))
        return NULL;
    if (rank < 1 || !(alpha > 0) || !isfinite((float)alpha)) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                    "rank %" G_GINT64_FORMAT ", alpha %g: the rank has to be 1 or more and alpha above 0",
                    rank, alpha);
        return NULL;
    }
    NetAdapters *adapters = net_adapters_new(compute);
    for (guint i = 0; i < modules->len; i++) {
        const ModelModule *m = modules->pdata[i];
        if (!targeted(targets, m->path))
            continue;
        if (!check_rank(m, rank, error))
            goto fail;
        net_adapters_add(adapters, m->path, m->in, m->out, m->kh, m->kw, rank, (float)alpha)->conv_shape =
            m->conv;
    }
    if (!adapters->list->len) {
        g_autofree char *all = g_strjoinv(" ", targets);
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "targets '%s' exclude every module they include",
                    all);
        goto fail;
    }
    net_adapters_allocate(adapters);
    return adapters;
fail:
    net_adapters_free(adapters);
    return NULL;
}

/* -- initial values ---------------------------------------------------------------------------------- */

/* Uniform in (-bound, bound): number i is word i % 4 of block i / 4. */
static void fill_uniform(guint64 key, float bound, float *out, gsize n)
{
    guint32 word[4];
    for (gsize i = 0; i < n; i++) {
        if (i % 4 == 0)
            flow_random_block(key, i / 4, word);
        out[i] = (float)(((double)word[i % 4] + 0.5) * 0x1p-31 - 1) * bound;
    }
}

static void fill_normal(guint64 key, float deviation, float *out, gsize n)
{
    flow_random_normal(key, 0, out, n);
    for (gsize i = 0; i < n; i++)
        out[i] *= deviation;
}

void lora_init(NetAdapters *adapters, LoraInit init, guint64 seed)
{
    memset(adapters->master, 0, adapters->n * sizeof(float));
    for (guint i = 0; i < adapters->list->len; i++) {
        const NetAdapter *a = adapters->list->pdata[i];
        const gsize columns = (gsize)(a->in * a->kh * a->kw), n = columns * (gsize)a->rank;
        const guint64 key = flow_random_key(seed, a->name, NULL, 0);
        float *out = adapters->master + a->a; /* the rows beyond the rank stay zero */
        switch (init) {
        case LORA_KAIMING:
            fill_uniform(key, 1 / sqrtf((float)columns), out, n);
            break;
        case LORA_GAUSSIAN:
            fill_normal(key, 1 / (float)a->rank, out, n);
            break;
        case LORA_SCALED:
            fill_normal(key, (adapters->compute == NET_F16 ? 0.02f : 0.01f) * sqrtf(2 / (float)a->rank), out,
                        n);
            break;
        }
    }
}
