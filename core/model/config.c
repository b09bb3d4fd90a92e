/* Reads the JSON files of a diffusers folder.
 *
 * A network is written once for the values that Stable Diffusion 1.x, 2.x and XL have; a checkpoint that asks
 * for anything else would train something wrong without a word. So every key is either read, or compared with
 * a table of what it may be, or reported; all problems of a file come in one message. A key that is absent
 * has the default of diffusers' class. */
#include "core/model/config.h"
#include "core/model/json_file.h"
#include <math.h>
#include <string.h>

typedef struct {
    json_t *root;
    const char *path;
    GString *problems;
    GHashTable *seen; /* keys that were read */
} Config;

/* A key and the list of values it may have, as JSON. */
typedef struct {
    const char *key, *allowed;
} Fixed;

/* -- reading ------------------------------------------------------------------------------------ */

static void problem(Config *c, const char *key, const char *format, ...) G_GNUC_PRINTF(3, 4);
static void problem(Config *c, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    char *value = json_dumps(json_object_get(c->root, key), JSON_ENCODE_ANY | JSON_COMPACT);
    g_string_append_printf(c->problems, "%s%s = %.80s: %s", c->problems->len ? "; " : "", key,
                           value ? value : "(absent)", text);
    free(value);
}

static json_t *get(Config *c, const char *key)
{
    json_t *value = json_object_get(c->root, key);
    g_hash_table_add(c->seen, (gpointer)key);
    return json_is_null(value) ? NULL : value;
}

static gint64 get_int(Config *c, const char *key, gint64 standard, gint64 least, gint64 most)
{
    json_t *value = get(c, key);
    if (!value)
        return standard;
    if (json_is_integer(value) && json_integer_value(value) >= least && json_integer_value(value) <= most)
        return json_integer_value(value);
    problem(c, key, "expected a whole number from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, least, most);
    return standard;
}

static double get_real(Config *c, const char *key, double standard, double above, double most)
{
    json_t *value = get(c, key);
    if (!value)
        return standard;
    double x = json_number_value(value);
    if (json_is_number(value) && x > above && x <= most)
        return x;
    problem(c, key, "expected a number above %g, at most %g", above, most);
    return standard;
}

static gboolean get_bool(Config *c, const char *key, gboolean standard)
{
    json_t *value = get(c, key);
    if (value && !json_is_boolean(value))
        problem(c, key, "expected true or false");
    return value ? json_is_true(value) : standard;
}

/* One number for all levels or a list of n. */
static void get_ints(Config *c, const char *key, gint64 *out, guint n, gint64 standard, gint64 most)
{
    json_t *value = get(c, key);
    gboolean list = json_is_array(value);
    for (guint i = 0; i < n; i++)
        out[i] = standard;
    if (!value)
        return;
    for (guint i = 0; i < n; i++) {
        json_t *one = list ? json_array_get(value, i) : value;
        out[i] = json_is_integer(one) ? json_integer_value(one) : 0;
        if (out[i] < 1 || out[i] > most || (list && json_array_size(value) != n)) {
            problem(c, key, "expected one whole number from 1 to %" G_GINT64_FORMAT " or a list of %u", most,
                    n);
            for (guint k = 0; k < n; k++)
                out[k] = standard;
            return;
        }
    }
}

/* Widths of the levels; returns their number. */
static guint get_widths(Config *c, gint64 *width, const gint64 *standard, guint n)
{
    json_t *value = get(c, "block_out_channels");
    gsize levels = value ? json_array_size(value) : n;
    if (levels < 1 || levels > MODEL_LEVELS) {
        problem(c, "block_out_channels", "expected a list of 1 to %d widths", MODEL_LEVELS);
        return 0;
    }
    for (gsize i = 0; i < levels; i++) {
        json_t *one = json_array_get(value, i);
        width[i] = !value ? standard[i] : json_is_integer(one) ? json_integer_value(one) : 0;
        if (width[i] < 1 || width[i] > 16384) {
            problem(c, "block_out_channels", "expected whole numbers from 1 to 16384");
            return 0;
        }
    }
    return (guint)levels;
}

/* Block types, one a level: `plain`, or `with` (may be NULL), which sets a flag. */
static void get_types(Config *c, const char *key, guint levels, const char *plain, const char *with,
                      gboolean *flag)
{
    json_t *value = get(c, key);
    if (json_array_size(value) != levels) {
        problem(c, key, "expected a list of %u block types", levels);
        return;
    }
    for (guint i = 0; i < levels; i++) {
        const char *type = json_string_value(json_array_get(value, i));
        gboolean is_with = with && !g_strcmp0(type, with);
        if (flag)
            flag[i] = is_with;
        if (!is_with && g_strcmp0(type, plain)) {
            problem(c, key, "block type %s is not supported, only %s%s%s", type ? type : "(no text)", plain,
                    with ? " and " : "", with ? with : "");
            return;
        }
    }
}

static void check_fixed(Config *c, const Fixed *table)
{
    for (; table->key; table++) {
        json_t *value = json_object_get(c->root, table->key), *allowed, *one;
        size_t i;
        gboolean ok = !value;
        g_hash_table_add(c->seen, (gpointer)table->key);
        allowed = json_loads(table->allowed, 0, NULL);
        json_array_foreach(allowed, i, one) ok = ok || json_equal(one, value);
        if (!ok)
            problem(c, table->key, "not supported, only %.*s", (int)strlen(table->allowed) - 2,
                    table->allowed + 1);
        json_decref(allowed);
    }
}

/* What is neither read nor in a table is asked for and would be ignored. */
static void check_unknown(Config *c)
{
    const char *key;
    json_t *value;
    json_object_foreach(c->root, key, value)
    {
        if (*key != '_' && !g_hash_table_contains(c->seen, key) && !json_is_null(value) &&
            !json_is_false(value))
            problem(c, key, "unknown key");
    }
}

static gboolean begin(Config *c, const char *path, GError **error)
{
    *c = (Config){json_file_read(path, error), path, NULL, NULL};
    if (!c->root)
        return FALSE;
    c->problems = g_string_new(NULL);
    c->seen = g_hash_table_new(g_str_hash, g_str_equal);
    return TRUE;
}

static gboolean end(Config *c, GError **error)
{
    gboolean ok = !c->problems->len;
    if (!ok)
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_UNSUPPORTED, "%s: %s", c->path, c->problems->str);
    g_string_free(c->problems, TRUE);
    g_hash_table_unref(c->seen);
    json_decref(c->root);
    return ok;
}

/* -- U-Net -------------------------------------------------------------------------------------------- */

static const Fixed unet_fixed[] = {
    {"act_fn", "[\"silu\"]"},
    {"addition_embed_type_num_heads", "[64]"},
    {"attention_type", "[\"default\"]"},
    {"center_input_sample", "[false]"},
    {"class_embed_type", "[null]"},
    {"class_embeddings_concat", "[false]"},
    {"conv_in_kernel", "[3]"},
    {"conv_out_kernel", "[3]"},
    {"cross_attention_norm", "[null]"},
    {"downsample_padding", "[1]"},
    {"dropout", "[0, 0.0]"},
    {"dual_cross_attention", "[false]"},
    {"encoder_hid_dim", "[null]"},
    {"encoder_hid_dim_type", "[null]"},
    {"flip_sin_to_cos", "[true]"},
    {"freq_shift", "[0]"},
    {"in_channels", "[4]"},
    {"mid_block_only_cross_attention", "[null, false]"},
    {"mid_block_scale_factor", "[1, 1.0]"},
    {"mid_block_type", "[\"UNetMidBlock2DCrossAttn\"]"},
    {"num_attention_heads", "[null]"},
    {"num_class_embeds", "[null]"},
    {"only_cross_attention", "[false]"},
    {"out_channels", "[4]"},
    {"resnet_out_scale_factor", "[1, 1.0]"},
    {"resnet_skip_time_act", "[false]"},
    {"resnet_time_scale_shift", "[\"default\"]"},
    {"reverse_transformer_layers_per_block", "[null]"},
    {"time_cond_proj_dim", "[null]"},
    {"time_embedding_act_fn", "[null]"},
    {"time_embedding_dim", "[null]"},
    {"time_embedding_type", "[\"positional\"]"},
    {"timestep_post_act", "[null]"},
    {"upcast_attention", "[null, false, true]"}, /* scores and softmax are f32 here in any case */
    {NULL, NULL},
};

static void unet_blocks(Config *c, UnetConfig *u)
{
    static const gint64 standard[] = {320, 640, 1280, 1280};
    enum { MOST_SKIPS = 64 }; /* of the network builder */
    u->layers = get_int(c, "layers_per_block", 2, 1, 16);
    u->groups = get_int(c, "norm_num_groups", 32, 1, 1024);
    u->levels = get_widths(c, u->width, standard, G_N_ELEMENTS(standard));
    if (!u->levels)
        return;
    if (u->levels * (u->layers + 1) > MOST_SKIPS)
        problem(c, "layers_per_block", "%u levels can have at most %u layers", u->levels,
                MOST_SKIPS / u->levels - 1);
    get_ints(c, "attention_head_dim", u->heads, u->levels, 8, 1024);
    get_ints(c, "transformer_layers_per_block", u->depth, u->levels, 1, 64);
    get_types(c, "down_block_types", u->levels, "DownBlock2D", "CrossAttnDownBlock2D", u->down_attention);
    get_types(c, "up_block_types", u->levels, "UpBlock2D", "CrossAttnUpBlock2D", u->up_attention);
    for (guint i = 0; i < u->levels; i++) {
        if (u->width[i] % u->groups)
            problem(c, "norm_num_groups", "does not divide the width %" G_GINT64_FORMAT, u->width[i]);
        if (u->width[i] % u->heads[i])
            problem(c, "attention_head_dim",
                    "%" G_GINT64_FORMAT " heads do not divide the width %" G_GINT64_FORMAT, u->heads[i],
                    u->width[i]);
    }
}

gboolean config_unet(const char *path, UnetConfig *out, GError **error)
{
    Config c;
    if (!begin(&c, path, error))
        return FALSE;
    *out = (UnetConfig){.in_channels = 4, .out_channels = 4};
    unet_blocks(&c, out);
    get_ints(&c, "cross_attention_dim", &out->context, 1, 1280, 65536);
    out->eps = (float)get_real(&c, "norm_eps", 1e-5, 0, 1);
    out->sample_size = get_int(&c, "sample_size", 0, 1, 4096);
    out->linear_projection = get_bool(&c, "use_linear_projection", FALSE);
    const char *added = json_string_value(get(&c, "addition_embed_type"));
    out->text_time = added && !strcmp(added, "text_time");
    if (json_object_get(c.root, "addition_embed_type") && get(&c, "addition_embed_type") && !out->text_time)
        problem(&c, "addition_embed_type", "not supported, only null or \"text_time\"");
    out->time_dim = get_int(&c, "addition_time_embed_dim", 0, 2, 65536);
    out->class_dim = get_int(&c, "projection_class_embeddings_input_dim", 0, 1, 65536);
    if (out->text_time && (!out->time_dim || out->class_dim <= 6 * out->time_dim))
        problem(&c, "projection_class_embeddings_input_dim",
                "has to be 6 times addition_time_embed_dim and the width of the pooled text");
    if (out->width[0] % 2 || out->time_dim % 2)
        problem(&c, out->width[0] % 2 ? "block_out_channels" : "addition_time_embed_dim",
                "a sinusoid needs an even width");
    check_fixed(&c, unet_fixed);
    check_unknown(&c);
    return end(&c, error);
}

/* -- VAE ------------------------------------------------------------------------------------------------ */

static const Fixed vae_fixed[] = {
    {"act_fn", "[\"silu\"]"},
    {"force_upcast", "[null, false, true]"}, /* norms and softmax are f32 here in any case */
    {"in_channels", "[3]"},
    {"latents_mean", "[null]"},
    {"latents_std", "[null]"},
    {"mid_block_add_attention", "[true]"},
    {"norm_type", "[\"group\"]"},
    {"out_channels", "[3]"},
    {"shift_factor", "[null, 0, 0.0]"},
    {"use_post_quant_conv", "[true]"},
    {"use_quant_conv", "[true]"},
    {NULL, NULL},
};

gboolean config_vae(const char *path, VaeConfig *out, GError **error)
{
    static const gint64 standard[] = {64};
    Config c;
    if (!begin(&c, path, error))
        return FALSE;
    *out = (VaeConfig){.in_channels = 3};
    out->latent = get_int(&c, "latent_channels", 4, 1, 64);
    out->layers = get_int(&c, "layers_per_block", 1, 1, 16);
    out->groups = get_int(&c, "norm_num_groups", 32, 1, 1024);
    out->scaling = (float)get_real(&c, "scaling_factor", 0.18215, 0, 1000);
    get_int(&c, "sample_size", 0, 1, 65536);
    out->levels = get_widths(&c, out->width, standard, 1);
    for (guint i = 0; i < out->levels; i++)
        if (out->width[i] % out->groups)
            problem(&c, "norm_num_groups", "does not divide the width %" G_GINT64_FORMAT, out->width[i]);
    get_types(&c, "down_block_types", out->levels, "DownEncoderBlock2D", NULL, NULL);
    get_types(&c, "up_block_types", out->levels, "UpDecoderBlock2D", NULL, NULL);
    check_fixed(&c, vae_fixed);
    check_unknown(&c);
    return end(&c, error);
}

/* -- text encoder ------------------------------------------------------------------------------------------
 */

gboolean config_text(const char *path, TextConfig *out, GError **error)
{
    Config c;
    if (!begin(&c, path, error))
        return FALSE;
    *out = (TextConfig){
        .width = get_int(&c, "hidden_size", 512, 1, 16384),
        .mlp = get_int(&c, "intermediate_size", 2048, 1, 65536),
        .heads = get_int(&c, "num_attention_heads", 8, 1, 1024),
        .layers = get_int(&c, "num_hidden_layers", 12, 1, 256),
        .vocabulary = get_int(&c, "vocab_size", 49408, 1, 1 << 24),
        .positions = get_int(&c, "max_position_embeddings", 77, TOKENIZER_LENGTH, TOKENIZER_LENGTH),
        .eps = (float)get_real(&c, "layer_norm_eps", 1e-5, 0, 1),
    };
    const char *type = json_string_value(json_array_get(get(&c, "architectures"), 0));
    const char *model = json_string_value(get(&c, "model_type")),
               *act = json_string_value(get(&c, "hidden_act"));
    if (type && !strcmp(type, "CLIPTextModelWithProjection"))
        out->projection = get_int(&c, "projection_dim", 512, 1, 16384);
    else if (type && strcmp(type, "CLIPTextModel"))
        problem(&c, "architectures", "not supported, only CLIPTextModel and CLIPTextModelWithProjection");
    if (model && strcmp(model, "clip_text_model"))
        problem(&c, "model_type", "not supported, only \"clip_text_model\"");
    out->quick_gelu = !act || !strcmp(act, "quick_gelu");
    if (act && !out->quick_gelu && strcmp(act, "gelu"))
        problem(&c, "hidden_act", "not supported, only \"quick_gelu\" and \"gelu\"");
    if (out->width % out->heads)
        problem(&c, "num_attention_heads", "does not divide the width %" G_GINT64_FORMAT, out->width);
    return end(&c,
               error); /* transformers writes many keys that are none of the network's: no check_unknown */
}

/* -- scheduler ---------------------------------------------------------------------------------------------
 */

static const Fixed scheduler_fixed[] = {
    {"beta_schedule", "[\"scaled_linear\"]"},
    {"num_train_timesteps", "[1000]"},
    {"trained_betas", "[null, []]"},
    {NULL, NULL},
};

gboolean config_scheduler(const char *path, double alpha_bar[1000], gboolean *v_prediction, GError **error)
{
    Config c;
    if (!begin(&c, path, error))
        return FALSE;
    double first = get_real(&c, "beta_start", 0, 0, 1), last = get_real(&c, "beta_end", 0, 0, 1);
    const char *prediction = json_string_value(get(&c, "prediction_type"));
    gboolean zero = get_bool(&c, "rescale_betas_zero_snr", FALSE);
    *v_prediction = prediction && !strcmp(prediction, "v_prediction");
    if (prediction && !*v_prediction && strcmp(prediction, "epsilon"))
        problem(&c, "prediction_type", "not supported, only \"epsilon\" and \"v_prediction\"");
    if (zero && !*v_prediction)
        problem(&c, "rescale_betas_zero_snr",
                "needs prediction_type v_prediction: noise cannot be predicted at the "
                "last step, where the picture is gone");
    if (!first || last <= first || last >= 1)
        problem(&c, first ? "beta_end" : "beta_start", "expected 0 < beta_start < beta_end < 1");
    if (!json_object_get(c.root, "beta_schedule"))
        problem(&c, "beta_schedule", "not supported, only \"scaled_linear\"");
    check_fixed(&c, scheduler_fixed);
    if (!end(&c, error))
        return FALSE;
    schedule_alpha_bar(first, last, alpha_bar);
    if (zero)
        schedule_zero_terminal(alpha_bar);
    return TRUE;
}
