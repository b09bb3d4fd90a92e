/* Files of weights and folders of models: what they are, from headers alone (and the alphas of a LoRA).
 *
 * A LoRA is told by the endings of its tensor names; what comes before the ending is the module. */
#include "core/cli/inspect.h"
#include "core/model/model.h"
#include <string.h>

typedef struct {
    const char *down, *format;
} Ending;

/* Of the tensor whose first dimension is the rank. */
static const Ending endings[] = {
    {".lora_down.weight", "kohya"},
    {".lora_A.weight", "diffusers"},
    {".lora_A.default.weight", "peft"},
    {".lora.down.weight", "diffusers (old)"},
};

typedef struct {
    const char *format; /* "kohya", ..., "safetensors" where it is no LoRA */
    guint modules;
    gint64 rank_min, rank_max;
    gboolean has_alpha;
    float alpha_min, alpha_max;
    guint64 nbytes;
} Summary;

static void rank_of(Summary *s, const SafeTensor *tensor)
{
    for (guint i = 0; i < G_N_ELEMENTS(endings); i++) {
        if (!g_str_has_suffix(tensor->name, endings[i].down) || tensor->ndim < 2)
            continue;
        gint64 rank = tensor->shape[0];
        s->rank_min = s->modules ? MIN(s->rank_min, rank) : rank;
        s->rank_max = MAX(s->rank_max, rank);
        s->format = s->modules && !g_str_equal(s->format, endings[i].format) ? "mixed" : endings[i].format;
        s->modules++;
    }
}

static gboolean alpha_of(Summary *s, SafeFile *file, const SafeTensor *tensor, GError **error)
{
    float alpha;
    if (!g_str_has_suffix(tensor->name, ".alpha") || tensor->count != 1 || tensor->type < 0)
        return TRUE;
    if (!safe_read(file, tensor, &alpha, NET_F32, error))
        return FALSE;
    s->alpha_min = s->has_alpha ? MIN(s->alpha_min, alpha) : alpha;
    s->alpha_max = s->has_alpha ? MAX(s->alpha_max, alpha) : alpha;
    s->has_alpha = TRUE;
    return TRUE;
}

/* PEFT writes its configuration into the metadata instead. */
static void alpha_of_metadata(Summary *s, SafeFile *file)
{
    const char *text = g_hash_table_lookup(safe_metadata(file), "lora_adapter_metadata");
    json_t *root = text ? json_loads(text, 0, NULL) : NULL;
    json_t *alpha = json_object_get(root, "unet.lora_alpha");
    if (!s->has_alpha && json_is_number(alpha)) {
        s->has_alpha = TRUE;
        s->alpha_min = s->alpha_max = (float)json_number_value(alpha);
    }
    json_decref(root);
}

static gboolean summarise(SafeFile *file, Summary *s, GError **error)
{
    guint n;
    const SafeTensor *tensors = safe_tensors(file, &n);
    *s = (Summary){.format = "safetensors"};
    for (guint i = 0; i < n; i++) {
        s->nbytes += tensors[i].nbytes;
        rank_of(s, &tensors[i]);
        if (!alpha_of(s, file, &tensors[i], error))
            return FALSE;
    }
    alpha_of_metadata(s, file);
    return TRUE;
}

/* One line of at most 200 bytes; --json has all of it. */
static char *shortened(const char *text)
{
    enum { SHOWN = 200 };
    GString *line = g_string_new(NULL);
    for (; *text && line->len < SHOWN; text++) {
        gboolean blank = g_ascii_isspace(*text) || (guchar)*text < 32;
        if (!blank)
            g_string_append_c(line, *text);
        else if (line->len && line->str[line->len - 1] != ' ')
            g_string_append_c(line, ' ');
    }
    if (*text)
        g_string_append(line, " ...");
    char *valid = g_utf8_make_valid(line->str, -1);
    g_string_free(line, TRUE);
    return valid;
}

static char *shape_text(const SafeTensor *tensor)
{
    GString *text = g_string_new("[");
    for (guint i = 0; i < tensor->ndim; i++)
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT, i ? ", " : "", tensor->shape[i]);
    g_string_append_c(text, ']');
    return g_string_free(text, FALSE);
}

static GList *sorted_keys(GHashTable *table)
{
    return table ? g_list_sort(g_hash_table_get_keys(table), (GCompareFunc)strcmp) : NULL;
}

/* -- safetensors: JSON ----------------------------------------------------------------- */

static json_t *tensor_json(const SafeTensor *tensor)
{
    json_t *shape = json_array();
    for (guint i = 0; i < tensor->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:o, s:o, s:o, s:o}", "name", cli_json_text(tensor->name), "dtype",
                     cli_json_text(tensor->dtype), "shape", shape, "bytes",
                     json_integer((json_int_t)tensor->nbytes));
}

/* One number, or [least, most] where modules differ. */
static json_t *range_json(double min, double max)
{
    return min == max ? cli_json_number(min)
                      : json_pack("[o, o]", cli_json_number(min), cli_json_number(max));
}

static json_t *file_json(SafeFile *file, const Summary *s)
{
    guint n;
    const SafeTensor *tensors = safe_tensors(file, &n);
    json_t *list = json_array(), *metadata = json_object(), *all = json_object();
    for (guint i = 0; i < n; i++)
        json_array_append_new(list, tensor_json(&tensors[i]));
    g_autoptr(GList) keys = sorted_keys(safe_metadata(file));
    for (GList *key = keys; key; key = key->next)
        json_object_set_new(metadata, key->data,
                            cli_json_text(g_hash_table_lookup(safe_metadata(file), key->data)));
    json_object_set_new(all, "file", cli_json_text(safe_path(file)));
    json_object_set_new(all, "format", json_string(s->format));
    json_object_set_new(all, "modules", json_integer(s->modules));
    json_object_set_new(all, "rank",
                        s->modules ? range_json((double)s->rank_min, (double)s->rank_max) : json_null());
    json_object_set_new(all, "alpha", s->has_alpha ? range_json(s->alpha_min, s->alpha_max) : json_null());
    json_object_set_new(all, "bytes", json_integer((json_int_t)s->nbytes));
    json_object_set_new(all, "metadata", metadata);
    json_object_set_new(all, "tensors", list);
    return all;
}

/* -- safetensors: text ----------------------------------------------------------------- */

static void print_range(const char *what, double min, double max)
{
    if (min == max)
        printf(", %s %g", what, min);
    else
        printf(", %s %g to %g", what, min, max);
}

static void print_file(SafeFile *file, const Summary *s)
{
    guint n;
    const SafeTensor *tensors = safe_tensors(file, &n);
    g_autofree char *bytes = cli_bytes((double)s->nbytes);
    if (s->modules > 0)
        printf("%s: LoRA in %s format, %u modules", safe_path(file), s->format, s->modules);
    else
        printf("%s: safetensors", safe_path(file));
    if (s->modules > 0)
        print_range("rank", (double)s->rank_min, (double)s->rank_max);
    if (s->has_alpha)
        print_range("alpha", s->alpha_min, s->alpha_max);
    printf(", %u tensors, %s\n", n, bytes);
    g_autoptr(GList) keys = sorted_keys(safe_metadata(file));
    if (keys)
        printf("\nmetadata\n");
    for (GList *key = keys; key; key = key->next) {
        g_autofree char *value = shortened(g_hash_table_lookup(safe_metadata(file), key->data));
        printf("  %s = %s\n", (char *)key->data, value);
    }
    if (n > 0)
        printf("\ntensors\n");
    CliTable *table = cli_table_new(4);
    cli_table_align(table, "lllr");
    for (guint i = 0; i < n; i++) {
        g_autofree char *name = g_strconcat("  ", tensors[i].name, NULL), *shape = shape_text(&tensors[i]);
        g_autofree char *size = cli_bytes((double)tensors[i].nbytes);
        cli_table_row(table, name, tensors[i].dtype, shape, size, NULL);
    }
    cli_table_print(table, stdout);
}

int cli_inspect_safetensors(const char *path, gboolean json)
{
    Summary s;
    g_autoptr(GError) error = NULL;
    SafeFile *file = safe_open(path, &error);
    if (file && summarise(file, &s, &error)) {
        if (json)
            cli_json_print(file_json(file, &s));
        else
            print_file(file, &s);
    }
    safe_close(file);
    return error ? cli_fail(CLI_FAILED, "%s", error->message) : CLI_OK;
}

/* -- models ------------------------------------------------------------------------------ */

static const char *const parts[] = {"unet", "vae", "text"};

/* Bytes of each part in f32. */
static gboolean part_sizes(const Model *model, gsize bytes[G_N_ELEMENTS(parts)], GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        if ((bytes[i] = model_part_bytes(model, parts[i], NET_F32, error)) == 0)
            return FALSE;
    return TRUE;
}

static json_t *model_json(const Model *model, const gsize bytes[G_N_ELEMENTS(parts)])
{
    json_t *sizes = json_object(), *widths = json_array();
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        json_object_set_new(sizes, parts[i], json_integer((json_int_t)bytes[i]));
    for (guint i = 0; i < model->unet.levels; i++)
        json_array_append_new(widths, json_integer((json_int_t)model->unet.width[i]));
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "path", cli_json_text(model->path), "kind",
                     model_kind_name(model->kind), "prediction", model->v_prediction ? "v" : "epsilon",
                     "resolution", (json_int_t)model_resolution(model), "vae_factor",
                     (json_int_t)model_vae_factor(model), "context", (json_int_t)model->unet.context,
                     "widths", widths, "bytes_f32", sizes);
}

static void print_model(const Model *model, const gsize bytes[G_N_ELEMENTS(parts)])
{
    printf("%s: %s, predicts %s, %" G_GINT64_FORMAT " px, VAE factor %" G_GINT64_FORMAT
           ", %u text encoder%s\n",
           model->path, model_kind_name(model->kind), model->v_prediction ? "v" : "epsilon",
           model_resolution(model), model_vae_factor(model), model->texts, model->texts == 1 ? "" : "s");
    printf("U-Net widths");
    for (guint i = 0; i < model->unet.levels; i++)
        printf(" %" G_GINT64_FORMAT, model->unet.width[i]);
    printf(", context %" G_GINT64_FORMAT "\n", model->unet.context);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autofree char *f32 = cli_bytes((double)bytes[i]);
        printf("  %-5s %s in f32\n", parts[i], f32);
    }
}

int cli_inspect_model(const char *path, gboolean json)
{
    gsize bytes[G_N_ELEMENTS(parts)];
    g_autoptr(GError) error = NULL;
    Model *model = model_open(path, &error);
    if (model && part_sizes(model, bytes, &error)) {
        if (json)
            cli_json_print(model_json(model, bytes));
        else
            print_model(model, bytes);
    }
    model_free(model);
    return error ? cli_fail(CLI_FAILED, "%s", error->message) : CLI_OK;
}
