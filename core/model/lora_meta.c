/* Metadata of LoRA files (spec/formats.md 4d).
 *
 * A1111 sorts files by ss_base_model_version, kohya's tools read ss_network_*, catalogues read modelspec.*.
 * Nothing here depends on when or where the file is written: two runs with the same seed give the same bytes.
 * A date is written where SOURCE_DATE_EPOCH gives one. */
#include "core/model/lora_meta.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void put(GHashTable *map, const char *key, const char *format, ...) G_GNUC_PRINTF(3, 4);
static void put(GHashTable *map, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_hash_table_insert(map, g_strdup(key), g_strdup_vprintf(format, args));
    va_end(args);
}

static GHashTable *map_new(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
}

static void merge(GHashTable *map, GHashTable *more)
{
    GHashTableIter iter;
    gpointer key, value;
    if (!more)
        return;
    g_hash_table_iter_init(&iter, more);
    while (g_hash_table_iter_next(&iter, &key, &value))
        put(map, key, "%s", (const char *)value);
}

/* As Python writes a float: the shortest text that reads back, with a point. */
static char *number(float x)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];
    for (int digits = 1; digits <= 9; digits++) {
        g_autofree char *format = g_strdup_printf("%%.%dg", digits);
        g_ascii_formatd(text, sizeof text, format, (double)x);
        if ((float)g_ascii_strtod(text, NULL) == x)
            break;
    }
    return g_strconcat(text, strpbrk(text, ".e") ? "" : ".0", NULL);
}

/* Rank and alpha where all modules (with kernels of 1x1, or larger) agree. */
typedef struct {
    gint64 rank;
    float alpha;
    gboolean any, mixed;
} Common;

static Common common(const NetAdapters *adapters, gboolean kernels)
{
    Common c = {0};
    for (guint i = 0; i < adapters->list->len; i++) {
        const NetAdapter *a = adapters->list->pdata[i];
        if ((a->kh * a->kw > 1) != kernels)
            continue;
        c.mixed |= c.any && (c.rank != a->rank || c.alpha != a->alpha);
        c.any = TRUE;
        c.rank = a->rank;
        c.alpha = a->alpha;
    }
    return c;
}

/* -- kohya ------------------------------------------------------------------------------------------- */

static void put_network(GHashTable *map, const NetAdapters *adapters)
{
    Common plain = common(adapters, FALSE), kernels = common(adapters, TRUE);
    const Common *c = plain.any ? &plain : &kernels;
    g_autofree char *alpha = number(c->alpha), *conv = number(kernels.alpha);
    put(map, "ss_network_module", "networks.lora");
    if (c->mixed) { /* what kohya's own tools write then; readers take ranks from shapes */
        put(map, "ss_network_dim", "Dynamic");
        put(map, "ss_network_alpha", "Dynamic");
    } else {
        put(map, "ss_network_dim", "%" G_GINT64_FORMAT, c->rank);
        put(map, "ss_network_alpha", "%s", alpha);
    }
    if (kernels.any && !kernels.mixed)
        put(map, "ss_network_args", "{\"conv_alpha\": \"%s\", \"conv_dim\": \"%" G_GINT64_FORMAT "\"}", conv,
            kernels.rank);
}

static void put_modelspec(GHashTable *map, const Model *model)
{
    static const char *const architecture[] = {"stable-diffusion-v1", "stable-diffusion-v2",
                                               "stable-diffusion-xl-v1-base"};
    const gboolean xl = model->kind == MODEL_SDXL;
    const char *epoch = g_getenv("SOURCE_DATE_EPOCH");
    const gint64 side = model_resolution(model);
    guint64 seconds;
    put(map, "modelspec.sai_model_spec", "1.0.1");
    if (model->kind == MODEL_SD2)
        put(map, "modelspec.architecture", "%s-%s/lora", architecture[MODEL_SD2],
            model->v_prediction ? "768-v" : "512");
    else
        put(map, "modelspec.architecture", "%s/lora", architecture[model->kind]);
    put(map, "modelspec.implementation", "%s",
        xl ? "https://github.com/Stability-AI/generative-models" : "diffusers");
    put(map, "modelspec.title", "LoRA");
    put(map, "modelspec.resolution", "%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT, side, side);
    put(map, "modelspec.prediction_type", "%s", model->v_prediction ? "v" : "epsilon");
    if (epoch &&
        g_ascii_string_to_unsigned(epoch, 10, 0, G_MAXINT64 / G_TIME_SPAN_SECOND / 1000, &seconds, NULL)) {
        g_autoptr(GDateTime) date = g_date_time_new_from_unix_utc((gint64)seconds);
        g_autofree char *text = date ? g_date_time_format(date, "%Y-%m-%dT%H:%M:%S") : NULL;
        if (text)
            put(map, "modelspec.date", "%s", text);
    }
}

GHashTable *lora_meta_kohya(const NetAdapters *adapters, const Model *model, GHashTable *more)
{
    static const char *const version[] = {"sd_v1", "sd_v2", "sdxl_base_v1-0"};
    GHashTable *map = map_new();
    put_network(map, adapters);
    put(map, "ss_base_model_version", "%s%s", version[model->kind],
        model->kind != MODEL_SDXL && model->v_prediction ? "_v" : "");
    put(map, "ss_v2", "%s", model->kind == MODEL_SD2 ? "True" : "False");
    put_modelspec(map, model);
    merge(map, more);
    const char *name = g_hash_table_lookup(map, "ss_output_name");
    if (name && !(more && g_hash_table_contains(more, "modelspec.title")))
        put(map, "modelspec.title", "%s", name);
    return map;
}

gboolean lora_meta_hashes(GHashTable *metadata, const SafeEntry *entries, guint n, GError **error)
{
    g_autoptr(GHashTable) training = g_hash_table_new(g_str_hash, g_str_equal); /* the ss_* part */
    g_autofree char *data = NULL, *legacy = NULL;
    GHashTableIter iter;
    gpointer key, value;
    g_hash_table_iter_init(&iter, metadata);
    while (g_hash_table_iter_next(&iter, &key, &value))
        if (g_str_has_prefix(key, "ss_"))
            g_hash_table_insert(training, key, value);
    if (!safe_hashes(entries, n, training, &data, &legacy, error))
        return FALSE;
    put(metadata, "sshs_model_hash", "%s", data);
    put(metadata, "sshs_legacy_hash", "%s", legacy);
    return TRUE;
}

/* -- diffusers ----------------------------------------------------------------------------------------- */

static json_t *json_alpha(float alpha)
{
    if (alpha == (float)(json_int_t)alpha)
        return json_integer((json_int_t)alpha);
    g_autofree char *text = number(alpha);
    return json_real(g_ascii_strtod(text, NULL));
}

/* The values of PEFT's LoraConfig that differ from its defaults, and those that other readers look for.
 * Modules are listed by their whole paths, which is right for any choice of targets. */
GHashTable *lora_meta_diffusers(const NetAdapters *adapters, GHashTable *more)
{
    GHashTable *map = map_new();
    const NetAdapter *first = adapters->list->pdata[0];
    json_t *root = json_object(), *ranks = json_object(), *alphas = json_object(), *modules = json_array();
    for (guint i = 0; i < adapters->list->len; i++) {
        const NetAdapter *a = adapters->list->pdata[i];
        json_array_append_new(modules, json_string(a->name));
        if (a->rank != first->rank)
            json_object_set_new(ranks, a->name, json_integer(a->rank));
        if (a->alpha != first->alpha)
            json_object_set_new(alphas, a->name, json_alpha(a->alpha));
    }
    json_object_set_new(root, "unet.alpha_pattern", alphas);
    json_object_set_new(root, "unet.bias", json_string("none"));
    json_object_set_new(root, "unet.lora_alpha", json_alpha(first->alpha));
    json_object_set_new(root, "unet.peft_type", json_string("LORA"));
    json_object_set_new(root, "unet.r", json_integer(first->rank));
    json_object_set_new(root, "unet.rank_pattern", ranks);
    json_object_set_new(root, "unet.target_modules", modules);
    json_object_set_new(root, "unet.use_dora", json_false());
    json_object_set_new(root, "unet.use_rslora", json_false());
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    put(map, "format", "pt");
    put(map, "lora_adapter_metadata", "%s", text);
    free(text);
    json_decref(root);
    merge(map, more);
    return map;
}
