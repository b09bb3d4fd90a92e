/* Opens a base model of Stable Diffusion 1.x, 2.x or XL: a diffusers folder, or a single file.
 *
 * What a network looks like is not guessed from a single file: the number of heads or groups leaves no trace
 * in the shapes of tensors. It is read from a folder of configurations beside it, where the tokenizer is as
 * well.
 *
 * Opening reads configurations and headers, a few hundred kilobytes, and compares them completely; whatever
 * is wrong with a model is said here, before pictures are read. Weights are loaded by load.c when a stage
 * needs them. */
#include "core/model/model.h"
#include "core/model/config.h"
#include "core/model/source.h"
#include <string.h>

/* -- files --------------------------------------------------------------------------------------------- */

/* What is in a folder instead, for a message. Returns new. */
static char *contents(const char *folder)
{
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    GString *text = g_string_new(NULL);
    const char *name = NULL;
    while (dir && (name = g_dir_read_name(dir)) && text->len < 200)
        g_string_append_printf(text, "%s%s", text->len ? ", " : "", name);
    if (name)
        g_string_append(text, ", ...");
    return g_string_free(text, FALSE);
}

/* The weight file of a component, whole or sharded, plain or of the fp16 variant. Returns new. */
static char *find_weights(const Model *m, const char *component, const char *stem, GError **error)
{
    if (m->single)
        return g_strdup(m->path);
    static const char *const endings[] = {".safetensors", ".safetensors.index.json", ".fp16.safetensors",
                                          ".safetensors.index.fp16.json"};
    g_autofree char *sub = g_build_filename(m->folder, component, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(endings); i++) {
        g_autofree char *name = g_strconcat(stem, endings[i], NULL);
        g_autofree char *path = g_build_filename(sub, name, NULL);
        if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
            return g_steal_pointer(&path);
    }
    g_autofree char *found = contents(sub);
    if (!g_file_test(sub, G_FILE_TEST_IS_DIR))
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: no such folder: not a complete diffusers model", sub);
    else
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: no %s.safetensors, nor its fp16 variant (the folder has: %s)%s", sub, stem,
                    *found ? found : "nothing",
                    strstr(found, ".bin") ? "; a .bin file is pickled: convert it to safetensors" : "");
    return NULL;
}

static char *find_file(const char *folder, const char *component, const char *name, GError **error)
{
    char *path = g_build_filename(folder, component, name, NULL);
    if (g_file_test(path, G_FILE_TEST_EXISTS))
        return path;
    g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "%s: no such file: not a complete diffusers model",
                path);
    g_free(path);
    return NULL;
}

static gboolean open_unet(Model *m, GError **error)
{
    g_autofree char *config = find_file(m->folder, "unet", "config.json", error);
    if (!config || !config_unet(config, &m->unet, error))
        return FALSE;
    m->unet_file = find_weights(m, "unet", "diffusion_pytorch_model", error);
    m->kind = m->unet.text_time                                      ? MODEL_SDXL
              : m->unet.context == 1024 || m->unet.linear_projection ? MODEL_SD2
                                                                     : MODEL_SD1;
    m->texts = m->kind == MODEL_SDXL ? 2 : 1;
    return m->unet_file != NULL;
}

static gboolean open_vae(Model *m, GError **error)
{
    g_autofree char *config = find_file(m->folder, "vae", "config.json", error);
    if (!config || !config_vae(config, &m->vae, error))
        return FALSE;
    m->vae_file = find_weights(m, "vae", "diffusion_pytorch_model", error);
    return m->vae_file != NULL;
}

/* An id beyond the encoder's table would read whatever lies there. */
static gboolean check_tokenizer(const Model *m, guint i, GError **error)
{
    if (!g_file_test(m->tokenizer[i], G_FILE_TEST_IS_DIR)) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: no such folder: not a complete diffusers model", m->tokenizer[i]);
        return FALSE;
    }
    Tokenizer *tokenizer = tokenizer_open(m->tokenizer[i], error);
    const gint size = tokenizer ? tokenizer_size(tokenizer) : 0;
    tokenizer_free(tokenizer);
    if (size > m->text[i].vocabulary)
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                    "%s: the tokenizer has %d tokens, the text encoder %" G_GINT64_FORMAT, m->tokenizer[i],
                    size, m->text[i].vocabulary);
    return size && size <= m->text[i].vocabulary;
}

static gboolean open_texts(Model *m, GError **error)
{
    static const char *const encoders[] = {"text_encoder", "text_encoder_2"}, *const tokenizers[] = {
                                                                                  "tokenizer", "tokenizer_2"};
    for (guint i = 0; i < m->texts; i++) {
        g_autofree char *config = find_file(m->folder, encoders[i], "config.json", error);
        if (!config || !config_text(config, &m->text[i], error))
            return FALSE;
        m->text_file[i] = find_weights(m, encoders[i], "model", error);
        if (!m->text_file[i])
            return FALSE;
        m->tokenizer[i] = g_build_filename(m->folder, tokenizers[i], NULL);
        if (!check_tokenizer(m, i, error))
            return FALSE;
    }
    return TRUE;
}

/* -- parts that have to fit each other ---------------------------------------------------------------------
 */

static gboolean check_parts(const Model *m, GError **error)
{
    gint64 context = 0;
    const gint64 pooled = m->unet.class_dim - 6 * m->unet.time_dim;
    for (guint i = 0; i < m->texts; i++)
        context += m->text[i].width;
    if (m->vae.latent != m->unet.in_channels) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                    "%s: the VAE has %" G_GINT64_FORMAT " latent channels, the U-Net takes %" G_GINT64_FORMAT,
                    m->path, m->vae.latent, m->unet.in_channels);
        return FALSE;
    }
    if (context != m->unet.context) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                    "%s: the text encoders give %" G_GINT64_FORMAT
                    " numbers a token, the U-Net takes %" G_GINT64_FORMAT,
                    m->path, context, m->unet.context);
        return FALSE;
    }
    if (m->unet.text_time && pooled != m->text[1].projection) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_SHAPE,
                    "%s: the pooled text has %" G_GINT64_FORMAT " numbers, the U-Net takes %" G_GINT64_FORMAT,
                    m->path, m->text[1].projection, pooled);
        return FALSE;
    }
    for (PartKind kind = PART_UNET; kind < PART_TEXT + m->texts; kind++) {
        g_autoptr(ModelPart) part = model_part_find(m, kind, error);
        if (!part)
            return FALSE;
    }
    return TRUE;
}

/* -- models
 * --------------------------------------------------------------------------------------------------- */

/* The folder of configurations: the path itself, or X for X.safetensors. Returns new. */
static char *config_folder(const char *path, gboolean single, GError **error)
{
    const gsize n = strlen(path) - (single ? strlen(".safetensors") : 0);
    g_autofree char *folder = g_strndup(path, n), *index = g_build_filename(folder, "model_index.json", NULL);
    if (g_file_test(index, G_FILE_TEST_EXISTS))
        return g_steal_pointer(&folder);
    g_autofree char *found = contents(folder);
    if (single)
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: a checkpoint in one file needs the folder %s beside it, with the configurations and "
                    "tokenizers (not the weights) of its model in diffusers' layout",
                    path, folder);
    else if (!g_file_test(path, G_FILE_TEST_IS_DIR))
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_UNSUPPORTED, "%s: %s", path,
                    g_file_test(path, G_FILE_TEST_EXISTS)
                        ? "expected a diffusers folder or a .safetensors file"
                        : "no such file or folder");
    else
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING,
                    "%s: no model_index.json: not a diffusers folder (it has: %s)", path,
                    *found ? found : "nothing");
    return NULL;
}

Model *model_open(const char *path, GError **error)
{
    Model *m = g_new0(Model, 1);
    m->path = g_canonicalize_filename(path, NULL);
    m->single = g_str_has_suffix(path, ".safetensors") && g_file_test(path, G_FILE_TEST_IS_REGULAR);
    m->folder = config_folder(m->path, m->single, error);
    if (!m->folder) {
        model_free(m);
        return NULL;
    }
    g_autofree char *scheduler = find_file(m->folder, "scheduler", "scheduler_config.json", error);
    if (scheduler && open_unet(m, error) && open_vae(m, error) && open_texts(m, error) &&
        config_scheduler(scheduler, m->alpha_bar, &m->v_prediction, error) && check_parts(m, error))
        return m;
    model_free(m);
    return NULL;
}

void model_free(Model *model)
{
    if (!model)
        return;
    for (guint i = 0; i < G_N_ELEMENTS(model->text_file); i++) {
        g_free(model->text_file[i]);
        g_free(model->tokenizer[i]);
    }
    g_free(model->unet_file);
    g_free(model->vae_file);
    g_free(model->path);
    g_free(model->folder);
    g_free(model);
}

const char *model_kind_name(ModelKind kind)
{
    static const char *const names[] = {"SD1.x", "SD2.x", "SDXL"};
    return names[kind];
}

gint64 model_vae_factor(const Model *model)
{
    return (gint64)1 << (model->vae.levels - 1);
}

gint64 model_resolution(const Model *model)
{
    static const gint64 usual[] = {512, 768, 1024};
    return model->unet.sample_size ? model->unet.sample_size * model_vae_factor(model) : usual[model->kind];
}

gint64 model_latent_step(const Model *model)
{
    return (gint64)1 << (model->unet.levels - 1);
}
