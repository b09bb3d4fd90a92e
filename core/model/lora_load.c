/* Reads a LoRA file of any of the usual layouts into adapters.
 *
 * A tensor's name is a module's name and an ending that tells what it is. Modules go by several names (with
 * '.' or
 * '_', by diffusers' or by original paths), endings too; both are tables here. Every tensor has to find its
 * place and every adapter its pair: a file that fits only in part would train on from something else than it
 * says, so what does not fit is listed and nothing is read. */
#include "core/model/json_file.h"
#include "core/model/names.h"
#include <math.h>
#include <string.h>

enum { LISTED = 20 };
typedef enum { ROLE_A, ROLE_B, ROLE_ALPHA, ROLE_COUNT } Role;

static const struct {
    const char *ending;
    Role role;
} endings[] = {
    {".lora_down.weight", ROLE_A},      {".lora_up.weight", ROLE_B},        {".lora_A.weight", ROLE_A},
    {".lora_B.weight", ROLE_B},         {".lora.down.weight", ROLE_A},      {".lora.up.weight", ROLE_B},
    {".lora_A.default.weight", ROLE_A}, {".lora_B.default.weight", ROLE_B}, {".alpha", ROLE_ALPHA},
};

/* Other kinds of adapters, by what is in their tensors' names. */
static const struct {
    const char *part, *kind;
} foreign[] = {
    {"hada_w", "LoHa"},     {"lokr_w", "LoKr"},
    {"dora_scale", "DoRA"}, {"lora_magnitude_vector", "DoRA"},
    {"oft_", "OFT"},        {".lora_mid.", "LoCon (with a Tucker core)"},
    {".on_input", "IA3"},
};

typedef struct {
    const char *path;
    SafeFile *file;
    GHashTable *adapters; /* every name of a module -> NetAdapter */
    GHashTable *found;    /* NetAdapter -> const SafeTensor *[ROLE_COUNT] */
    json_t *config;       /* PEFT's configuration, or NULL */
} Reader;

static gboolean fail(const Reader *r, GError **error, int code, const char *format, ...) G_GNUC_PRINTF(4, 5);
static gboolean fail(const Reader *r, GError **error, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, MODEL_ERROR, code, "%s: %s", r->path, text);
    return FALSE;
}

/* -- names -------------------------------------------------------------------------------------------- */

static void add_names(Reader *r, NetAdapter *a, const char *path)
{
    g_hash_table_insert(r->adapters, names_kohya(path), a);
    g_hash_table_insert(r->adapters, g_strconcat("unet.", path, NULL), a);
    g_hash_table_insert(r->adapters, g_strconcat("base_model.model.", path, NULL), a);
    g_hash_table_insert(r->adapters, g_strconcat("base_model.model.unet.", path, NULL), a);
    g_hash_table_insert(r->adapters, g_strdup(path), a);
}

static void name_modules(Reader *r, const NetAdapters *adapters, const Model *model)
{
    r->adapters = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    r->found = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    for (guint i = 0; i < adapters->list->len; i++) {
        NetAdapter *a = adapters->list->pdata[i];
        g_autofree char *original = names_original_unet(&model->unet, a->name);
        add_names(r, a, a->name);
        add_names(r, a, original);
        g_hash_table_insert(r->found, a, g_new0(const SafeTensor *, ROLE_COUNT));
    }
}

static gboolean match(Reader *r, const SafeTensor *t, GString *unknown, guint *n, GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(foreign); i++)
        if (strstr(t->name, foreign[i].part))
            return fail(r, error, MODEL_ERROR_UNSUPPORTED,
                        "tensor '%.120s' is of a %s adapter; only LoRA can be read", t->name,
                        foreign[i].kind);
    for (guint i = 0; i < G_N_ELEMENTS(endings); i++) {
        if (!g_str_has_suffix(t->name, endings[i].ending))
            continue;
        g_autofree char *module = g_strndup(t->name, strlen(t->name) - strlen(endings[i].ending));
        NetAdapter *a = g_hash_table_lookup(r->adapters, module);
        if (!a)
            break;
        const SafeTensor **slot = (const SafeTensor **)g_hash_table_lookup(r->found, a) + endings[i].role;
        if (*slot)
            return fail(r, error, MODEL_ERROR_FORMAT, "module %s is in the file twice: '%.120s' and '%.120s'",
                        a->name, (*slot)->name, t->name);
        *slot = t;
        return TRUE;
    }
    if ((*n)++ < LISTED)
        g_string_append_printf(unknown, "%s%.120s", unknown->len ? ", " : "", t->name);
    return TRUE;
}

/* Gives every tensor its module. */
static gboolean match_all(Reader *r, const NetAdapters *adapters, GError **error)
{
    guint n, unknown = 0, missing = 0;
    const SafeTensor *t = safe_tensors(r->file, &n);
    g_autoptr(GString) strange = g_string_new(NULL), lacking = g_string_new(NULL);
    for (guint i = 0; i < n; i++)
        if (!match(r, &t[i], strange, &unknown, error))
            return FALSE;
    if (unknown == n)
        return fail(r, error, MODEL_ERROR_FORMAT,
                    "contains no LoRA tensors of these modules: 0 of %u matched%s%s", n,
                    n ? ", they are called: " : "", strange->str);
    for (guint i = 0; i < adapters->list->len; i++) {
        NetAdapter *a = adapters->list->pdata[i];
        const SafeTensor **slot = g_hash_table_lookup(r->found, a);
        if ((!slot[ROLE_A] || !slot[ROLE_B]) && missing++ < LISTED)
            g_string_append_printf(lacking, "%s%s%s", lacking->len ? ", " : "", a->name,
                                   slot[ROLE_A]   ? " (B only is missing)"
                                   : slot[ROLE_B] ? " (A only is missing)"
                                                  : "");
    }
    if (!unknown && !missing)
        return TRUE;
    g_autofree char *more =
        unknown > LISTED ? g_strdup_printf(" and %u more", unknown - LISTED) : g_strdup("");
    g_autofree char *rest =
        missing > LISTED ? g_strdup_printf(" and %u more", missing - LISTED) : g_strdup("");
    return fail(
        r, error, MODEL_ERROR_SHAPE,
        "does not fit the adapters: %u of %u tensors have no module here: %s%s; %u of %u modules are not in "
        "the file: %s%s; choose the targets that the file was trained with",
        unknown, n, unknown ? strange->str : "(none)", more, missing, adapters->list->len,
        missing ? lacking->str : "(none)", rest);
}

/* -- shapes and scales ------------------------------------------------------------------------------------
 */

static gboolean check_shape(const Reader *r, const NetAdapter *a, const SafeTensor *t, const gint64 want[4],
                            GError **error)
{
    gboolean same = t->ndim >= 2;
    for (guint i = 0; i < G_N_ELEMENTS(t->shape); i++)
        same = same && (i < t->ndim ? t->shape[i] : 1) == (i < 4 ? want[i] : 1);
    if (same)
        return TRUE;
    return fail(
        r, error, MODEL_ERROR_SHAPE,
        "'%.120s' is [%d,%d,%d,%d], expected [%d,%d,%d,%d] for rank %d of module %s; ranks have to be equal",
        t->name, (int)t->shape[0], (int)t->shape[1], (int)(t->ndim > 2 ? t->shape[2] : 1),
        (int)(t->ndim > 3 ? t->shape[3] : 1), (int)want[0], (int)want[1], (int)want[2], (int)want[3],
        (int)a->rank, a->name);
}

/* A number of PEFT's configuration, which may differ for single modules. */
static double peft_number(const Reader *r, const NetAdapter *a, const char *key, const char *pattern,
                          double otherwise)
{
    const char *module;
    json_t *value = json_object_get(r->config, key), *one;
    json_object_foreach(json_object_get(r->config, pattern), module, one)
    {
        gsize n = strlen(a->name), m = strlen(module);
        if (m <= n && !strcmp(a->name + n - m, module) && (m == n || a->name[n - m - 1] == '.'))
            value = one;
    }
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* What the file multiplies B A by: alpha / rank; a missing alpha is the rank. */
static gboolean file_scale(const Reader *r, const NetAdapter *a, const SafeTensor *alpha, double *scale,
                           guint *without, GError **error)
{
    const double rank = (double)a->rank;
    float x = 0;
    if (alpha) {
        if (alpha->count != 1)
            return fail(r, error, MODEL_ERROR_SHAPE, "'%.120s' has %d elements, expected 1", alpha->name,
                        (int)MIN(alpha->count, G_MAXINT));
        if (!safe_read(r->file, alpha, &x, NET_F32, error))
            return FALSE;
        *scale = x ? x / rank : 1; /* kohya takes 0 for the rank */
    } else if (r->config) {
        double base = peft_number(r, a, "unet.r", "unet.rank_pattern", rank);
        *scale = peft_number(r, a, "unet.lora_alpha", "unet.alpha_pattern", base) /
                 (json_is_true(json_object_get(r->config, "unet.use_rslora")) ? sqrt(base) : base);
    } else {
        *scale = 1;
        ++*without;
    }
    if (*scale > 0 && isfinite(*scale))
        return TRUE;
    return fail(r, error, MODEL_ERROR_FORMAT, "module %s: alpha / rank is %g, expected a number above 0",
                a->name, *scale);
}

/* -- reading ------------------------------------------------------------------------------------------------
 */

static gboolean read_floats(const Reader *r, const SafeTensor *t, float *x, GError **error)
{
    if (!safe_read(r->file, t, x, NET_F32, error))
        return FALSE;
    for (gint64 i = 0; i < t->count; i++)
        if (!isfinite(x[i]))
            return fail(r, error, MODEL_ERROR_FORMAT, "'%.120s' has a value that is not finite", t->name);
    return TRUE;
}

/* Into one pair of matrices. The scale of the file becomes ours: what B A adds to the base stays the same. */
static gboolean read_pair(const Reader *r, const NetAdapter *a, float *master, double factor, GError **error)
{
    const SafeTensor *const *slot = g_hash_table_lookup(r->found, a);
    const gint64 k = a->kh * a->kw;
    g_autofree float *x = g_new(float, (gsize)(MAX(a->in * k, a->out) * a->rank));
    float *to = master + a->a;
    if (!read_floats(r, slot[ROLE_A], x, error))
        return FALSE;
    for (gint64 i = 0; i < a->rank; i++)
        for (gint64 p = 0; p < k; p++)
            for (gint64 c = 0; c < a->in; c++)
                to[(i * k + p) * a->in + c] = x[(i * a->in + c) * k + p];
    if (!read_floats(r, slot[ROLE_B], x, error))
        return FALSE;
    to = master + a->b;
    for (gint64 o = 0; o < a->out; o++)
        for (gint64 i = 0; i < a->rank; i++)
            to[o * a->rank_pad + i] = (float)(factor * (double)x[o * a->rank + i]);
    return TRUE;
}

static gboolean check_all(const Reader *r, const NetAdapters *adapters, double *factor, GError **error)
{
    guint without = 0;
    for (guint i = 0; i < adapters->list->len; i++) {
        const NetAdapter *a = adapters->list->pdata[i];
        const SafeTensor *const *slot = g_hash_table_lookup(r->found, a);
        double scale = 1;
        if (!check_shape(r, a, slot[ROLE_A], (gint64[4]){a->rank, a->in, a->kh, a->kw}, error) ||
            !check_shape(r, a, slot[ROLE_B], (gint64[4]){a->out, a->rank, 1, 1}, error) ||
            !file_scale(r, a, slot[ROLE_ALPHA], &scale, &without, error))
            return FALSE;
        factor[i] = (float)scale == a->scale ? 1 : scale / (double)a->scale;
    }
    if (without)
        g_message("%s: no alpha for %u of %u modules: the rank is taken for it (scale 1)", r->path, without,
                  adapters->list->len);
    return TRUE;
}

/* PEFT's configuration in the header. */
static gboolean read_config(Reader *r, GError **error)
{
    const char *text = g_hash_table_lookup(safe_metadata(r->file), "lora_adapter_metadata");
    json_error_t problem;
    if (!text)
        return TRUE;
    r->config = json_loads(text, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(r->config)) {
        g_autofree char *what = r->config ? g_strdup("another value") : json_file_problem(&problem);
        return fail(r, error, MODEL_ERROR_FORMAT, "lora_adapter_metadata is not a JSON object: %s", what);
    }
    if (json_is_true(json_object_get(r->config, "unet.use_dora")))
        return fail(r, error, MODEL_ERROR_UNSUPPORTED, "a DoRA adapter (use_dora); only LoRA can be read");
    return TRUE;
}

gboolean lora_load(NetAdapters *adapters, const Model *model, const char *path, GError **error)
{
    Reader r = {.path = path, .file = safe_open(path, error)};
    if (!r.file)
        return FALSE;
    name_modules(&r, adapters, model);
    g_autofree double *factor = g_new(double, adapters->list->len);
    gboolean ok =
        read_config(&r, error) && match_all(&r, adapters, error) && check_all(&r, adapters, factor, error);
    if (ok)
        memset(adapters->master, 0, adapters->n * sizeof(float));
    for (guint i = 0; ok && i < adapters->list->len; i++)
        ok = read_pair(&r, adapters->list->pdata[i], adapters->master, factor[i], error);
    json_decref(r.config);
    g_hash_table_unref(r.adapters);
    g_hash_table_unref(r.found);
    safe_close(r.file);
    return ok;
}
