/* VAE against diffusers: moments of a square and an oblong picture, decoding; f32 at the gate of the
 * fixtures, bf16 within its own rounding.
 *
 * @label unit short
 * @link jansson
 */
#include "tests/golden.h"

static const double GATE = 5e-6;      /* fixtures/README: fp32 of the libraries is off by 6.8e-7 */
static const double BF16_GATE = 3e-2; /* 8 bits of mantissa, a dozen convolutions */

static void check_encode(const Model *model, SafeFile *golden, guint image, NetType compute, double gate)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("vae/image%u", image);
    g_autofree char *mean_name = g_strdup_printf("%s_mean", name),
                    *var_name = g_strdup_printf("%s_logvar", name);
    const SafeTensor *t = golden_tensor(golden, name);
    const guint8 *bytes = safe_data(golden, t);
    gint64 h = t->shape[0], w = t->shape[1], n = h / 2 * (w / 2);
    g_autofree float *pixels = g_new(float, t->count), *moments = g_new(float, n * 8);
    for (gint64 i = 0; i < t->count; i++)
        pixels[i] = (float)bytes[i] / 255.0f * 2.0f - 1.0f;
    NetWeights *weights = model_load_vae(model, compute, TRUE, FALSE, &error);
    g_assert_no_error(error);
    Net *net = net_new(compute, NULL);
    NetVal *x = net_input(net, "image", NET_F32, 1, h, w, 3);
    net_output(net, "moments", vae_encode_build(net, &model->vae, weights, x));
    golden_run(net, (NetBinding[]){{"image", pixels}, {0}}, (NetBinding[]){{"moments", moments}, {0}});
    net_weights_free(weights);

    g_autofree float *mean = golden_image(golden, mean_name), *logvar = golden_image(golden, var_name);
    g_autofree float *want = g_new(float, n * 8);
    for (gint64 i = 0; i < n; i++) {
        memcpy(want + i * 8, mean + i * 4, 4 * sizeof(float));
        memcpy(want + i * 8 + 4, logvar + i * 4, 4 * sizeof(float));
        for (guint c = 4; c < 8; c++)
            moments[i * 8 + c] = CLAMP(moments[i * 8 + c], -30.0f, 20.0f);
    }
    golden_near(name, moments, want, (gsize)n * 8, gate);
}

static void check_decode(const Model *model, SafeFile *golden, NetType compute, double gate)
{
    g_autoptr(GError) error = NULL;
    NetWeights *weights = model_load_vae(model, compute, FALSE, TRUE, &error);
    g_assert_no_error(error);
    g_autofree float *z = golden_image(golden, "vae/z"), *want = golden_image(golden, "vae/decoded");
    g_autofree float *got = g_new(float, 32 * 40 * 3);
    Net *net = net_new(compute, NULL);
    NetVal *x = net_input(net, "z", NET_F32, 1, 16, 20, 4);
    net_output(net, "image", vae_decode_build(net, &model->vae, weights, x));
    golden_run(net, (NetBinding[]){{"z", z}, {0}}, (NetBinding[]){{"image", got}, {0}});
    net_weights_free(weights);
    golden_near("decoded", got, want, 32 * 40 * 3, gate);
}

static void check(NetType compute, double gate)
{
    static const char *const models[] = {"tiny-sd", "tiny-sdxl"};
    for (guint i = 0; i < 2; i++) {
        Model *model = golden_model(models[i]);
        SafeFile *golden = golden_open(models[i], "forward");
        check_encode(model, golden, 0, compute, gate);
        check_encode(model, golden, 1, compute, gate);
        check_decode(model, golden, compute, gate);
        safe_close(golden);
        model_free(model);
    }
}

static void test_f32(void)
{
    check(NET_F32, GATE);
}

static void test_bf16(void)
{
    check(NET_BF16, BF16_GATE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/vae/f32", test_f32);
    g_test_add_func("/vae/bf16", test_bf16);
    return g_test_run();
}
