/* Opening base models: what is read, lists of tensors against published key lists, everything that is
 * refused.
 *
 * @label unit short
 */
#include "core/model/model.h"
#include "core/model/config.h"
#include "core/model/source.h"
#include <glib/gstdio.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

static char *folder; /* a copy of a model, of links, that tests may change */

static Model *open_good(const char *path)
{
    g_autoptr(GError) error = NULL;
    Model *m = model_open(path, &error);
    g_assert_no_error(error);
    return m;
}

/* -- the copy ---------------------------------------------------------------------------------- */

static void remove_all(const char *path)
{
    g_autoptr(GDir) dir = g_file_test(path, G_FILE_TEST_IS_SYMLINK) ? NULL : g_dir_open(path, 0, NULL);
    for (const char *name; dir && (name = g_dir_read_name(dir));) {
        g_autofree char *sub = g_build_filename(path, name, NULL);
        remove_all(sub);
    }
    g_remove(path);
}

static void link_all(const char *from, const char *to)
{
    g_autoptr(GDir) dir = g_dir_open(from, 0, NULL);
    g_mkdir_with_parents(to, 0700);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *a = g_build_filename(from, name, NULL), *b = g_build_filename(to, name, NULL);
        g_autofree char *target = g_canonicalize_filename(a, NULL);
        if (g_file_test(a, G_FILE_TEST_IS_DIR))
            link_all(a, b);
        else
            g_assert_cmpint(symlink(target, b), ==, 0);
    }
}

static void fresh(const char *model)
{
    remove_all(folder);
    link_all(model, folder);
}

static char *path_of(const char *name)
{
    return g_build_filename(folder, name, NULL);
}

static void put(const char *name, const void *data, gssize n)
{
    g_autofree char *path = path_of(name);
    g_unlink(path);
    g_assert_true(g_file_set_contents(path, data, n, NULL));
}

static void drop(const char *name)
{
    g_autofree char *path = path_of(name);
    remove_all(path);
}

/* Sets a key of a JSON file; value NULL removes it. */
static void set(const char *name, const char *key, const char *value)
{
    g_autofree char *path = path_of(name);
    json_t *root = json_load_file(path, 0, NULL);
    if (value)
        json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(root, key);
    char *text = json_dumps(root, 0);
    put(name, text, -1);
    free(text);
    json_decref(root);
}

static void refuse(const char *text)
{
    g_autoptr(GError) error = NULL;
    Model *m = model_open(folder, &error);
    g_assert_null(m);
    g_assert_nonnull(error);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
}

/* -- what is read -------------------------------------------------------------------------------- */

static void test_tiny_sd(void)
{
    Model *m = open_good("tests/fixtures/tiny-sd");
    g_assert_cmpint(m->kind, ==, MODEL_SD1);
    g_assert_cmpuint(m->unet.levels, ==, 2);
    g_assert_cmpint(m->unet.width[1], ==, 64);
    g_assert_cmpint(m->unet.heads[0], ==, 8);
    g_assert_false(m->unet.down_attention[0]);
    g_assert_true(m->unet.down_attention[1] && m->unet.up_attention[0] && !m->unet.up_attention[1]);
    g_assert_false(m->unet.linear_projection || m->unet.text_time || m->v_prediction);
    g_assert_cmpint(m->unet.context, ==, 32);
    g_assert_true(m->unet.eps == 1e-5f && m->vae.scaling == 0.18215f);
    g_assert_cmpint(m->text[0].layers, ==, 4);
    g_assert_true(m->text[0].quick_gelu && !m->text[0].projection);
    g_assert_cmpint(model_vae_factor(m), ==, 2);
    g_assert_cmpint(model_latent_step(m), ==, 2);
    g_assert_cmpint(model_resolution(m), ==, 64);
    g_assert_true(g_path_is_absolute(m->unet_file) && g_path_is_absolute(m->tokenizer[0]));
    g_assert_true(m->alpha_bar[999] == 0.00466009508818388);
    model_free(m);
}

static void test_tiny_sdxl(void)
{
    Model *m = open_good("tests/fixtures/tiny-sdxl");
    g_assert_cmpint(m->kind, ==, MODEL_SDXL);
    g_assert_cmpuint(m->texts, ==, 2);
    g_assert_cmpint(m->unet.depth[1], ==, 2);
    g_assert_cmpint(m->unet.heads[1], ==, 4);
    g_assert_true(m->unet.linear_projection && m->unet.text_time);
    g_assert_cmpint(m->unet.time_dim, ==, 8);
    g_assert_cmpint(m->unet.class_dim, ==, 80);
    g_assert_cmpint(m->text[1].projection, ==, 32);
    g_assert_false(m->text[1].quick_gelu);
    g_assert_true(g_str_has_suffix(m->unet_file, "diffusion_pytorch_model.fp16.safetensors"));
    model_free(m);
}

static void test_demo(void)
{
    Model *m = open_good("demo/base");
    g_assert_cmpint(model_vae_factor(m), ==, 4);
    g_assert_cmpint(model_resolution(m), ==, 64);
    g_assert_cmpint(m->text[0].vocabulary, ==, 2014);
    model_free(m);
}

/* -- lists of tensors -------------------------------------------------------------------------------- */

/* Every line "name shape" of a published list is in ours and the other way round. */
static void compare_keys(const char *file, GPtrArray *tensors)
{
    g_autofree char *text = NULL, *path = g_build_filename("tests/fixtures/keys", file, NULL);
    g_autoptr(GHashTable) keys = g_hash_table_new(g_str_hash, g_str_equal);
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 1; lines[i] && *lines[i]; i++) {
        char *shape = strchr(lines[i], '\t');
        *shape++ = 0;
        *strchr(shape, '\t') = 0;
        g_hash_table_insert(keys, lines[i], shape);
    }
    for (guint i = 0; i < tensors->len; i++) {
        const ModelTensor *t = tensors->pdata[i];
        g_autofree char *shape = t->ndim == 1 ? g_strdup_printf("%d", (int)t->shape[0])
                                 : t->ndim == 2
                                     ? g_strdup_printf("%dx%d", (int)t->shape[0], (int)t->shape[1])
                                     : g_strdup_printf("%dx%dx%dx%d", (int)t->shape[0], (int)t->shape[1],
                                                       (int)t->shape[2], (int)t->shape[3]);
        const char *want = g_hash_table_lookup(keys, t->name);
        if (!want || strcmp(want, shape))
            g_error("%s: %s is %s, published %s", file, t->name, shape, want);
    }
    g_assert_cmpuint(tensors->len, ==, g_hash_table_size(keys));
    g_ptr_array_unref(tensors);
}

static const char *const sd15 =
    "{\"act_fn\":\"silu\",\"attention_head_dim\":8,\"block_out_channels\":[320,640,1280,1280],"
    "\"center_input_sample\":false,\"cross_attention_dim\":768,\"down_block_types\":["
    "\"CrossAttnDownBlock2D\","
    "\"CrossAttnDownBlock2D\",\"CrossAttnDownBlock2D\",\"DownBlock2D\"],\"downsample_padding\":1,"
    "\"flip_sin_to_cos\":true,\"freq_shift\":0,\"in_channels\":4,\"layers_per_block\":2,"
    "\"mid_block_scale_factor\":1,\"norm_eps\":1e-05,\"norm_num_groups\":32,\"out_channels\":4,"
    "\"sample_size\":64,\"up_block_types\":[\"UpBlock2D\",\"CrossAttnUpBlock2D\",\"CrossAttnUpBlock2D\","
    "\"CrossAttnUpBlock2D\"]}";
static const char *const sdxl =
    "{\"act_fn\":\"silu\",\"addition_embed_type\":\"text_time\",\"addition_embed_type_num_heads\":64,"
    "\"addition_time_embed_dim\":256,\"attention_head_dim\":[5,10,20],\"block_out_channels\":[320,640,1280],"
    "\"cross_attention_dim\":2048,\"down_block_types\":[\"DownBlock2D\",\"CrossAttnDownBlock2D\","
    "\"CrossAttnDownBlock2D\"],\"layers_per_block\":2,\"projection_class_embeddings_input_dim\":2816,"
    "\"sample_size\":128,\"transformer_layers_per_block\":[1,2,10],\"up_block_types\":["
    "\"CrossAttnUpBlock2D\","
    "\"CrossAttnUpBlock2D\",\"UpBlock2D\"],\"upcast_attention\":null,\"use_linear_projection\":true}";

static UnetConfig unet_of(const char *json, const char *key, const char *value)
{
    UnetConfig c;
    g_autoptr(GError) error = NULL;
    g_autofree char *path = path_of("published.json");
    fresh("tests/fixtures/tiny-sd");
    put("published.json", json, -1);
    if (key)
        set("published.json", key, value);
    config_unet(path, &c, &error);
    g_assert_no_error(error);
    return c;
}

static void test_keys(void)
{
    UnetConfig c = unet_of(sd15, NULL, NULL);
    compare_keys("unet_sd15.tsv", parts_unet(&c));
    c = unet_of(sdxl, NULL, NULL);
    compare_keys("unet_sdxl.tsv", parts_unet(&c));
    c = unet_of(sd15, "use_linear_projection", "true");
    c.context = 1024;
    compare_keys("unet_sd21.tsv", parts_unet(&c));
    const VaeConfig vae = {
        .in_channels = 3, .latent = 4, .layers = 2, .groups = 32, .levels = 4, .width = {128, 256, 512, 512}};
    compare_keys("vae.tsv", parts_vae(&vae, TRUE, TRUE));
    const TextConfig l = {768, 3072, 12, 12, 49408, 77, 0, TRUE, 1e-5f};
    compare_keys("clip_l.tsv", parts_text(&l));
    const TextConfig bigg = {1280, 5120, 20, 32, 49408, 77, 1280, FALSE, 1e-5f};
    compare_keys("openclip_bigg.tsv", parts_text(&bigg));
    const TextConfig h = {1024, 4096, 16, 23, 49408, 77, 0, FALSE, 1e-5f};
    compare_keys("openclip_h_sd21.tsv", parts_text(&h));
}

/* -- what is refused ------------------------------------------------------------------------------------ */

static void test_config(void)
{
    static const struct {
        const char *file, *key, *value, *text;
    } cases[] = {
        {"unet/config.json", "act_fn", "\"gelu\"", "act_fn = \"gelu\": not supported, only \"silu\""},
        {"unet/config.json", "in_channels", "9", "in_channels = 9"},
        {"unet/config.json", "class_embed_type", "\"timestep\"", "class_embed_type"},
        {"unet/config.json", "time_cond_proj_dim", "256", "time_cond_proj_dim"},
        {"unet/config.json", "novelty", "3", "novelty = 3: unknown key"},
        {"unet/config.json", "layers_per_block", "0", "layers_per_block = 0: expected a whole number"},
        {"unet/config.json", "layers_per_block", "\"2\"", "layers_per_block"},
        {"unet/config.json", "layers_per_block", "1e3", "layers_per_block"},
        {"unet/config.json", "block_out_channels", "[]", "block_out_channels = []"},
        {"unet/config.json", "block_out_channels", "[32,-64]", "block_out_channels"},
        {"unet/config.json", "block_out_channels", "[32,64,64,64,64,64,64,64,64]", "1 to 8 widths"},
        {"unet/config.json", "attention_head_dim", "[8]", "a list of 2"},
        {"unet/config.json", "attention_head_dim", "5", "5 heads do not divide the width 32"},
        {"unet/config.json", "norm_num_groups", "24", "does not divide the width 32"},
        {"unet/config.json", "down_block_types", "[\"DownBlock2D\",\"AttnDownBlock2D\"]",
         "AttnDownBlock2D is not"},
        {"unet/config.json", "down_block_types", "[\"DownBlock2D\"]", "a list of 2 block types"},
        {"unet/config.json", "addition_embed_type", "\"image\"", "addition_embed_type"},
        {"unet/config.json", "addition_embed_type", "\"text_time\"", "projection_class_embeddings_input_dim"},
        {"unet/config.json", "cross_attention_dim", "48",
         "the text encoders give 32 numbers a token, the U-Net takes 48"},
        {"vae/config.json", "shift_factor", "0.1", "shift_factor"},
        {"vae/config.json", "latent_channels", "16", "16 latent channels"},
        {"vae/config.json", "scaling_factor", "0", "scaling_factor"},
        {"vae/config.json", "up_block_types", "[\"UpDecoderBlock2D\",\"AttnUpDecoderBlock2D\"]",
         "AttnUpDecoderBlock2D"},
        {"text_encoder/config.json", "hidden_act", "\"relu\"", "hidden_act"},
        {"text_encoder/config.json", "architectures", "[\"T5EncoderModel\"]", "architectures"},
        {"text_encoder/config.json", "max_position_embeddings", "248", "max_position_embeddings"},
        {"scheduler/scheduler_config.json", "beta_schedule", "\"linear\"", "beta_schedule"},
        {"scheduler/scheduler_config.json", "beta_schedule", NULL, "beta_schedule = (absent)"},
        {"scheduler/scheduler_config.json", "prediction_type", "\"sample\"", "prediction_type"},
        {"scheduler/scheduler_config.json", "rescale_betas_zero_snr", "true",
         "needs prediction_type v_prediction"},
        {"scheduler/scheduler_config.json", "num_train_timesteps", "4000", "num_train_timesteps"},
        {"scheduler/scheduler_config.json", "beta_end", "1e-5", "beta_start < beta_end"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        fresh("tests/fixtures/tiny-sd");
        set(cases[i].file, cases[i].key, cases[i].value);
        refuse(cases[i].text);
    }
    fresh("tests/fixtures/tiny-sd"); /* all problems of a file at once */
    set("unet/config.json", "act_fn", "\"gelu\"");
    set("unet/config.json", "dropout", "0.1");
    refuse("act_fn");
    refuse("dropout");
    put("unet/config.json", "{\"a\":", -1);
    refuse("unet/config.json:1: ");
}

/* A token that the encoder has no row for. */
static void test_vocabulary(void)
{
    fresh("tests/fixtures/tiny-sd");
    set("tokenizer/vocab.json", "one more", "1014");
    refuse("the tokenizer has 1015 tokens, the text encoder 1014");
    fresh("tests/fixtures/tiny-sd");
    drop("tokenizer/merges.txt");
    refuse("no merges.txt");
}

static void test_v_prediction(void)
{
    fresh("tests/fixtures/tiny-sd");
    set("scheduler/scheduler_config.json", "prediction_type", "\"v_prediction\"");
    set("scheduler/scheduler_config.json", "rescale_betas_zero_snr", "true");
    Model *m = open_good(folder);
    g_assert_true(m->v_prediction);
    g_assert_true(m->alpha_bar[999] == 0);
    model_free(m);
}

static void test_files(void)
{
    static const char *const needed[] = {"unet", "vae", "text_encoder", "tokenizer", "scheduler"};
    for (guint i = 0; i < G_N_ELEMENTS(needed); i++) {
        fresh("tests/fixtures/tiny-sd");
        drop(needed[i]);
        refuse(needed[i]);
        refuse("not a complete diffusers model");
    }
    fresh("tests/fixtures/tiny-sd");
    drop("unet/diffusion_pytorch_model.safetensors");
    refuse("no diffusion_pytorch_model.safetensors, nor its fp16 variant (the folder has: config.json)");
    put("unet/diffusion_pytorch_model.bin", "PK", 2);
    refuse("pickled");
    put("unet/diffusion_pytorch_model.safetensors", "<!DOCTYPE html>", -1);
    refuse("HTML page");
    drop("model_index.json");
    refuse("no model_index.json");
    remove_all(folder);
    refuse("no such file or folder");
}

static SafeEntry *entries_of(SafeFile *file, guint *n)
{
    const SafeTensor *t = safe_tensors(file, n);
    SafeEntry *e = g_new0(SafeEntry, *n + 1);
    for (guint i = 0; i < *n; i++) {
        e[i] = (SafeEntry){.name = t[i].name,
                           .type = (NetType)t[i].type,
                           .ndim = t[i].ndim,
                           .data = safe_data(file, &t[i]),
                           .source = (NetType)t[i].type};
        memcpy(e[i].shape, t[i].shape, sizeof e[i].shape);
    }
    return e;
}

static const char *const unet_file = "tests/fixtures/tiny-sd/unet/diffusion_pytorch_model.safetensors";

/* The U-Net's file with `n` of its entries, over the copy's. */
static void write_unet(const char *name, const SafeEntry *e, guint n)
{
    g_autofree char *path = path_of(name);
    g_unlink(path);
    g_assert_true(safe_write(path, e, n, NULL, NULL, NULL));
}

static void test_tensors(void)
{
    guint n;
    SafeFile *file = safe_open(unet_file, NULL);
    g_autofree SafeEntry *e = entries_of(file, &n);
    const char *name = "unet/diffusion_pytorch_model.safetensors";
    fresh("tests/fixtures/tiny-sd");
    write_unet(name, e + 2, n - 2);
    refuse("2 missing: ");
    refuse(e[0].name);
    refuse(e[1].name);
    SafeEntry last = e[n - 1];
    e[n] = last;
    e[n].name = "novelty.weight";
    write_unet(name, e, n + 1);
    refuse("1 unexpected: novelty.weight");
    e[n - 1].name = "other.weight";
    write_unet(name, e, n);
    refuse("1 missing: ");
    refuse("1 unexpected: other.weight");
    e[n - 1] = last;
    e[n - 1].shape[0] /= 2;
    write_unet(name, e, n);
    refuse("1 of another shape than config.json says");
    e[n - 1] = last;
    e[n - 1].type = e[n - 1].source = NET_I64;
    g_autofree gint64 *zeros = g_new0(gint64, 1 << 20);
    e[n - 1].data = zeros;
    write_unet(name, e, n);
    refuse("1 of a type that cannot be read");
    refuse("I64");
    safe_close(file);
}

static void put_index(const char *map)
{
    g_autofree char *text = g_strdup_printf("{\"metadata\":{\"total_size\":1},\"weight_map\":{%s}}", map);
    put("unet/diffusion_pytorch_model.safetensors.index.json", text, -1);
}

static void test_shards(void)
{
    guint n;
    SafeFile *file = safe_open(unet_file, NULL);
    g_autofree SafeEntry *e = entries_of(file, &n);
    const char *one = "unet/diffusion_pytorch_model-00001-of-00002.safetensors";
    const char *two = "unet/diffusion_pytorch_model-00002-of-00002.safetensors";
    g_autoptr(GString) map = g_string_new(NULL);
    for (guint i = 0; i < n; i++)
        g_string_append_printf(map, "%s\"%s\":\"%s\"", i ? "," : "", e[i].name, (i < 100 ? one : two) + 5);
    fresh("tests/fixtures/tiny-sd");
    drop("unet/diffusion_pytorch_model.safetensors");
    write_unet(one, e, 100);
    write_unet(two, e + 100, n - 100);
    put_index(map->str);
    model_free(open_good(folder));

    write_unet(two, e + 99, n - 99);
    /* E-15 */
    refuse("is in two shards");
    write_unet(two, e + 101, n - 101);
    refuse(e[100].name);
    refuse("is not in diffusion_pytorch_model-00002-of-00002.safetensors");
    g_autofree char *path = path_of(two);
    write_unet(two, e + 100, n - 100);
    g_assert_cmpint(truncate(path, 20000), ==, 0);
    refuse("shard 2 of 2");
    refuse("not a complete safetensors file");
    drop(two);
    refuse("No such file");
    put_index("\"a\":\"../x.safetensors\"");
    refuse("not the name of a file in the same folder");
    put_index("");
    refuse("not an index of shards");
    drop("unet/diffusion_pytorch_model.safetensors.index.json");
    write_unet("unet/diffusion_pytorch_model.safetensors", e, 100); /* a single shard, given alone */
    refuse("missing: ");
    safe_close(file);
}

static void test_old_vae_names(void)
{
    g_autofree char *text = NULL;
    gsize n;
    fresh("tests/fixtures/tiny-sd");
    g_assert_true(
        g_file_get_contents("tests/fixtures/extra/tiny-sd.vae-legacy.safetensors", &text, &n, NULL));
    put("vae/diffusion_pytorch_model.safetensors", text, (gssize)n);
    model_free(open_good(folder));
}

/* -- hashes ------------------------------------------------------------------------------------------------
 */

static char *hash_of(const char *path, const char *part)
{
    g_autoptr(GError) error = NULL;
    Model *m = open_good(path);
    char *hash = model_part_hash(m, part, &error);
    g_assert_no_error(error);
    model_free(m);
    return hash;
}

static void test_hash(void)
{
    g_autofree char *unet = hash_of("tests/fixtures/tiny-sd", "unet"),
                    *text = hash_of("tests/fixtures/tiny-sd", "text");
    fresh("tests/fixtures/tiny-sd"); /* the same at another place */
    g_autofree char *again = hash_of(folder, "unet");
    g_assert_cmpstr(unet, ==, again);
    g_assert_cmpstr(unet, !=, text);

    guint n;
    SafeFile *file = safe_open(unet_file, NULL);
    g_autofree SafeEntry *e = entries_of(file, &n);
    guint16 *other = g_memdup2(e[7].data, safe_find(file, e[7].name)->nbytes);
    other[0] ^= 1; /* one bit of one tensor */
    e[7].data = other;
    write_unet("unet/diffusion_pytorch_model.safetensors", e, n);
    safe_close(file);
    g_free(other);
    g_autofree char *changed = hash_of(folder, "unet"), *same = hash_of(folder, "text");
    g_assert_cmpstr(unet, !=, changed);
    g_assert_cmpstr(text, ==, same);
    set("text_encoder/config.json", "hidden_act", "\"gelu\"");
    g_autofree char *configured = hash_of(folder, "text");
    g_assert_cmpstr(text, !=, configured);

    g_autoptr(GError) error = NULL;
    Model *m = open_good(folder);
    g_assert_null(model_part_hash(m, "clip", &error));
    g_assert_nonnull(strstr(error->message, "no part 'clip'"));
    g_clear_error(&error);
    g_assert_null(model_part_hash(m, "text.1", &error)); /* SD1 has one encoder */
    model_free(m);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    g_test_add_func("/model/tiny-sd", test_tiny_sd);
    g_test_add_func("/model/tiny-sdxl", test_tiny_sdxl);
    g_test_add_func("/model/demo", test_demo);
    g_test_add_func("/model/keys", test_keys);
    g_test_add_func("/model/config", test_config);
    g_test_add_func("/model/vocabulary", test_vocabulary);
    g_test_add_func("/model/v-prediction", test_v_prediction);
    g_test_add_func("/model/files", test_files);
    g_test_add_func("/model/tensors", test_tensors);
    g_test_add_func("/model/shards", test_shards);
    g_test_add_func("/model/old-vae-names", test_old_vae_names);
    g_test_add_func("/model/hash", test_hash);
    int status = g_test_run();
    remove_all(folder);
    g_free(folder);
    return status;
}
