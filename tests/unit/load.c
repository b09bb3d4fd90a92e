/* Loading weights: every number in its place, types, halves of the VAE, old names, sizes without loading.
 *
 * @label unit short
 */
#include "core/model/model.h"
#include "core/model/source.h"
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

static Model *open_good(const char *path)
{
    g_autoptr(GError) error = NULL;
    Model *m = model_open(path, &error);
    g_assert_no_error(error);
    return m;
}

static float at(const void *data, NetType type, gsize i)
{
    const guint16 *half = data;
    return type == NET_F32   ? ((const float *)data)[i]
           : type == NET_F16 ? net_f16_to_f32(half[i])
                             : net_bf16_to_f32(half[i]);
}

/* Compares a loaded weight with the file: [out, kh, kw, in] with [out, in, kh, kw]. */
static void compare(const NetWeight *w, const ModelSource *s)
{
    const gint64 *shape = s->tensor->shape;
    g_autofree float *x = g_new(float, s->found->count);
    g_assert_true(safe_read(s->file, s->found, x, NET_F32, NULL));
    g_assert_cmpint(w->shape[0], ==, shape[0]);
    if (s->tensor->ndim == 4)
        g_assert_true(w->shape[1] == shape[2] && w->shape[2] == shape[3] && w->shape[3] == shape[1]);
    gint64 in = shape[1], k = shape[2] * shape[3];
    for (gint64 o = 0; o < shape[0]; o++)
        for (gint64 i = 0; i < in; i++)
            for (gint64 p = 0; p < k; p++) {
                float want = x[(o * in + i) * k + p];
                if (w->type == NET_BF16)
                    want = net_bf16_to_f32(net_f32_to_bf16(want));
                g_assert_true(at(w->data, w->type, (gsize)((o * k + p) * in + i)) == want);
            }
}

static void compare_all(const Model *m, PartKind kind, const char *part, NetWeights *weights, NetType type)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ModelPart) files = model_part_find(m, kind, &error);
    g_assert_no_error(error);
    NetWeights *outline = model_outline(m, part, type, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < files->n; i++) {
        const NetWeight *w = net_weights_find(weights, files->sources[i].tensor->name);
        const NetWeight *dry = net_weights_find(outline, files->sources[i].tensor->name);
        g_assert_nonnull(w);
        g_assert_cmpint(w->type, ==, files->sources[i].tensor->ndim == 1 ? NET_F32 : type);
        g_assert_true(dry && dry->type == w->type && dry->ndim == w->ndim && !dry->data);
        g_assert_cmpmem(dry->shape, sizeof dry->shape, w->shape, sizeof w->shape);
        compare(w, &files->sources[i]);
    }
    g_assert_cmpuint(net_weights_bytes(weights), ==, model_part_bytes(m, part, type, NULL));
    g_assert_cmpuint(net_weights_bytes(weights), ==, net_weights_bytes(outline));
    net_weights_free(outline);
    net_weights_free(weights);
}

static void test_all(void)
{
    static const char *const models[] = {"tests/fixtures/tiny-sd", "tests/fixtures/tiny-sdxl", "demo/base"};
    static const NetType types[] = {NET_F32, NET_BF16, NET_F16};
    for (guint i = 0; i < G_N_ELEMENTS(models) * G_N_ELEMENTS(types); i++) {
        Model *m = open_good(models[i / 3]);
        NetType type = types[i % 3];
        compare_all(m, PART_UNET, "unet", model_load_unet(m, type, NULL), type);
        compare_all(m, PART_VAE, "vae", model_load_vae(m, type, TRUE, TRUE, NULL), type);
        for (guint k = 0; k < m->texts; k++)
            compare_all(m, PART_TEXT + k, k ? "text.1" : "text.0", model_load_text(m, k, type, NULL), type);
        g_assert_cmpuint(model_part_bytes(m, "text", type, NULL), ==,
                         model_part_bytes(m, "text.0", type, NULL) +
                             (m->texts > 1 ? model_part_bytes(m, "text.1", type, NULL) : 0));
        model_free(m);
    }
}

static void test_halves(void)
{
    Model *m = open_good("tests/fixtures/tiny-sd");
    NetWeights *encoder = model_load_vae(m, NET_F32, TRUE, FALSE, NULL);
    NetWeights *decoder = model_load_vae(m, NET_F32, FALSE, TRUE, NULL);
    g_assert_nonnull(net_weights_find(encoder, "quant_conv.weight"));
    g_assert_null(net_weights_find(encoder, "post_quant_conv.weight"));
    g_assert_null(net_weights_find(encoder, "decoder.conv_in.weight"));
    g_assert_nonnull(net_weights_find(decoder, "post_quant_conv.weight"));
    g_assert_null(net_weights_find(decoder, "encoder.conv_in.weight"));
    g_assert_cmpuint(net_weights_bytes(encoder), ==, model_part_bytes(m, "vae.encoder", NET_F32, NULL));
    g_assert_cmpuint(net_weights_bytes(decoder), ==, model_part_bytes(m, "vae.decoder", NET_F32, NULL));
    net_weights_free(encoder);
    net_weights_free(decoder);

    g_autoptr(GError) error = NULL;
    Model *xl = open_good("tests/fixtures/tiny-sdxl");
    g_assert_null(model_outline(xl, "text", NET_F32, &error));
    g_assert_nonnull(strstr(error->message, "2 networks"));
    g_clear_error(&error);
    g_assert_cmpuint(model_part_bytes(m, "text.1", NET_F32, &error), ==, 0);
    g_assert_error(error, MODEL_ERROR, MODEL_ERROR_MISSING);
    model_free(m);
    model_free(xl);
}

/* A copy of a file, to be used in place of the model's own. */
static char *copy_of(const char *from)
{
    g_autofree char *text = NULL;
    char *path = NULL;
    gsize n;
    g_assert_true(g_file_get_contents(from, &text, &n, NULL));
    close(g_file_open_tmp("loraflow-XXXXXX", &path, NULL));
    g_assert_true(g_file_set_contents(path, text, (gssize)n, NULL));
    return path;
}

static void replace(char **file, const char *by)
{
    g_free(*file);
    *file = g_strdup(by);
}

static void test_old_vae_names(void)
{
    Model *m = open_good("tests/fixtures/tiny-sd");
    NetWeights *ours = model_load_vae(m, NET_F32, TRUE, TRUE, NULL);
    replace(&m->vae_file, "tests/fixtures/extra/tiny-sd.vae-legacy.safetensors");
    NetWeights *old = model_load_vae(m, NET_F32, TRUE, TRUE, NULL);
    g_assert_cmphex(net_weights_hash(ours), ==, net_weights_hash(old));
    net_weights_free(ours);
    net_weights_free(old);
    model_free(m);
}

/* The same weights in the original layout: other names, q, k and v in one tensor, a transposed projection. */
static void test_single(void)
{
    static const char *const models[] = {"tests/fixtures/tiny-sd", "tests/fixtures/tiny-sdxl"};
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autofree char *path = g_strconcat(models[i], ".safetensors", NULL);
        Model *folder = open_good(models[i]), *single = open_good(path);
        g_assert_cmpint(folder->kind, ==, single->kind);
        for (guint part = 0; part < 2 + folder->texts; part++) {
            const Model *m[2] = {folder, single};
            NetWeights *w[2];
            for (guint k = 0; k < 2; k++)
                w[k] = part == 0   ? model_load_unet(m[k], NET_F32, NULL)
                       : part == 1 ? model_load_vae(m[k], NET_F32, TRUE, TRUE, NULL)
                                   : model_load_text(m[k], part - 2, NET_F32, NULL);
            g_assert_true(w[0] && w[1]);
            g_assert_cmphex(net_weights_hash(w[0]), ==, net_weights_hash(w[1]));
            net_weights_free(w[0]);
            net_weights_free(w[1]);
        }
        g_autofree char *hash = model_part_hash(single, "text", NULL);
        g_assert_nonnull(hash);
        model_free(folder);
        model_free(single);
    }
    g_autoptr(GError) error = NULL;
    g_autofree char *lonely = copy_of("tests/fixtures/tiny-sd.safetensors");
    g_autofree char *name = g_strconcat(lonely, ".safetensors", NULL);
    g_assert_cmpint(g_rename(lonely, name), ==, 0);
    g_assert_null(model_open(name, &error)); /* no folder beside it */
    g_assert_nonnull(strstr(error->message, lonely));
    g_assert_nonnull(strstr(error->message, "configurations and tokenizers"));
    g_unlink(name);
}

/* A base that is replaced or cut short after it was opened. */
static void test_changed(void)
{
    g_autoptr(GError) error = NULL;
    Model *m = open_good("tests/fixtures/tiny-sd");
    g_autofree char *path = copy_of(m->unet_file);
    replace(&m->unet_file, path);
    g_assert_cmpint(truncate(path, 100000), ==, 0);
    g_assert_null(model_load_unet(m, NET_F32, &error));
    g_assert_nonnull(strstr(error->message, "not a complete safetensors file"));
    g_clear_error(&error);
    g_unlink(path);
    g_assert_null(model_load_unet(m, NET_F32, &error));
    g_assert_error(error, MODEL_ERROR, MODEL_ERROR_MISSING);
    model_free(m);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/load/all", test_all);
    g_test_add_func("/load/halves", test_halves);
    g_test_add_func("/load/old-vae-names", test_old_vae_names);
    g_test_add_func("/load/single", test_single);
    g_test_add_func("/load/changed", test_changed);
    return g_test_run();
}
