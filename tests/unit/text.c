/* Text encoders against transformers: states of four captions, pooled vector, both SDXL encoders; f32 at the
 * gate of the fixtures, bf16 within its own rounding.
 *
 * @label unit short
 * @link jansson
 */
#include "tests/golden.h"

enum { N = 4, T = TOKENIZER_LENGTH };
static const double GATE = 5e-6;      /* fixtures/README: fp32 of the libraries is off by 3.8e-7 */
static const double BF16_GATE = 2e-2; /* 8 bits of mantissa over 4 or 5 layers */

static gint32 *ids_of(SafeFile *golden, const char *name, gint32 *eos)
{
    g_autofree gint64 *wide = golden_i64(golden, name);
    gint32 *ids = g_new(gint32, N * T);
    for (guint i = 0; i < N * T; i++)
        ids[i] = (gint32)wide[i];
    for (guint n = 0; n < N; n++)
        for (eos[n] = 0; ids[n * T + (guint)eos[n]] != 1013; eos[n]++)
            ;
    return ids;
}

/* Runs encoder `which`; pooled may be NULL. */
static float *encode(const Model *model, guint which, NetType compute, guint skip, gint32 *ids, gint32 *eos,
                     float *pooled)
{
    g_autoptr(GError) error = NULL;
    NetWeights *weights = model_load_text(model, which, compute, &error);
    g_assert_no_error(error);
    Net *net = net_new(compute, NULL);
    NetVal *i = net_input(net, "ids", NET_I32, N, 1, T, 1), *e = net_input(net, "eos", NET_I32, N, 1, 1, 1),
           *p = NULL;
    net_output(net, "states", text_build(net, &model->text[which], weights, i, e, skip, pooled ? &p : NULL));
    if (pooled)
        net_output(net, "pooled", p);
    float *states = g_new(float, N *T * model->text[which].width);
    const NetBinding in[] = {{"ids", ids}, {"eos", eos}, {0}};
    const NetBinding out[] = {{"states", states}, {pooled ? "pooled" : NULL, pooled}, {0}};
    golden_run(net, in, out);
    net_weights_free(weights);
    return states;
}

static void check_sd(NetType compute, double gate)
{
    Model *model = golden_model("tiny-sd");
    SafeFile *golden = golden_open("tiny-sd", "forward");
    gint32 eos[N];
    g_autofree gint32 *ids = ids_of(golden, "te/ids", eos);
    g_autofree float *want = golden_f32(golden, "te/context");
    g_autofree float *got = encode(model, 0, compute, 0, ids, eos, NULL);
    golden_near("context", got, want, N * T * 32, gate);
    safe_close(golden);
    model_free(model);
}

static void check_sdxl(NetType compute, double gate)
{
    Model *model = golden_model("tiny-sdxl");
    SafeFile *golden = golden_open("tiny-sdxl", "forward");
    for (guint which = 0; which < 2; which++) {
        gint32 eos[N];
        float pooled[N * 32];
        g_autofree gint32 *ids = ids_of(golden, which ? "te/ids_2" : "te/ids_1", eos);
        g_autofree float *want = golden_f32(golden, which ? "te/hidden_2" : "te/hidden_1");
        g_autofree float *got = encode(model, which, compute, 1, ids, eos, which ? pooled : NULL);
        golden_near(which ? "hidden_2" : "hidden_1", got, want, N * T * 32, gate);
        if (which == 1) {
            g_autofree float *vector = golden_f32(golden, "te/pooled");
            golden_near("pooled", pooled, vector, N * 32, gate);
        }
    }
    safe_close(golden);
    model_free(model);
}

static void test_f32(void)
{
    check_sd(NET_F32, GATE);
    check_sdxl(NET_F32, GATE);
}

static void test_bf16(void)
{
    check_sd(NET_BF16, BF16_GATE);
    check_sdxl(NET_BF16, BF16_GATE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/text/f32", test_f32);
    g_test_add_func("/text/bf16", test_bf16);
    return g_test_run();
}
