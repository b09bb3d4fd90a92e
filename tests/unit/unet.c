/* U-Nets of SD 1.5 and SDXL shape against diffusers: output, every recorded intermediate value, and the
 * output with LoRA files of attention and of all linears; f32 at the gate of the fixtures, bf16 within its
 * own rounding; missing weights are named.
 *
 * @label unit short
 * @link jansson
 */
#include "tests/golden.h"

enum { N = 2, SIDE = 16, OUT = N * SIDE * SIDE * 4 };
static const double GATE = 5e-6;      /* fixtures/README: fp32 of the libraries is off by 1.1e-6 */
static const double BF16_GATE = 3e-2; /* 8 bits of mantissa; one rounding is 2e-3, they add up like a walk */

typedef struct {
    Model *model;
    SafeFile *golden;
    NetWeights *weights;
    NetType compute;
    float *x, *context, *pooled, *time_ids, t[N];
} Case;

static Case case_open(const char *name, NetType compute)
{
    g_autoptr(GError) error = NULL;
    Case c = {.model = golden_model(name), .golden = golden_open(name, "forward"), .compute = compute};
    c.weights = model_load_unet(c.model, compute, &error);
    g_assert_no_error(error);
    c.x = golden_image(c.golden, "unet/sample");
    c.context = golden_f32(c.golden, "unet/context");
    g_autofree gint64 *t = golden_i64(c.golden, "unet/timesteps");
    for (guint i = 0; i < N; i++)
        c.t[i] = (float)t[i];
    if (c.model->unet.text_time) {
        c.pooled = golden_f32(c.golden, "unet/text_embeds");
        c.time_ids = golden_f32(c.golden, "unet/time_ids");
    }
    return c;
}

static void case_close(Case *c)
{
    g_free(c->x);
    g_free(c->context);
    g_free(c->pooled);
    g_free(c->time_ids);
    net_weights_free(c->weights);
    safe_close(c->golden);
    model_free(c->model);
}

static NetVal *build(const Case *c, Net *net)
{
    const UnetConfig *u = &c->model->unet;
    NetVal *x = net_input(net, "x", NET_F32, N, SIDE, SIDE, 4), *t = net_input(net, "t", NET_F32, N, 1, 1, 1);
    NetVal *context = net_input(net, "context", NET_F32, N, 1, 77, u->context), *pooled = NULL, *ids = NULL;
    if (u->text_time) {
        pooled = net_input(net, "pooled", NET_F32, N, 1, 1, 32);
        ids = net_input(net, "time_ids", NET_F32, N, 1, 1, 6);
    }
    return unet_build(net, u, c->weights, x, t, context, pooled, ids);
}

static void run(const Case *c, Net *net, const NetBinding *outputs)
{
    const NetBinding in[] = {{"x", c->x},
                             {"t", c->t},
                             {"context", c->context},
                             {c->pooled ? "pooled" : NULL, c->pooled},
                             {"time_ids", c->time_ids},
                             {0}};
    golden_run(net, in, outputs);
}

/* -- output and intermediate values --------------------------------------------------- */

static void check_debug(const Case *c, const char *name, const float *got, gsize per, double gate)
{
    const SafeTensor *t = golden_tensor(c->golden, name);
    g_assert_cmpuint(per, ==, (gsize)t->count);
    g_autofree float *want = t->ndim == 4 ? golden_image(c->golden, name) : golden_f32(c->golden, name);
    if (strcmp(name, "debug/conv_norm_out") == 0) /* recorded before its silu, which we fuse */
        for (gsize i = 0; i < per; i++)
            want[i] = (float)(want[i] / (1 + exp(-(double)want[i])));
    golden_near(name, got, want, per, gate);
}

static void check_forward(const char *name, NetType compute, double gate)
{
    Case c = case_open(name, compute);
    Net *net = net_new(compute, NULL);
    net_output(net, "out", build(&c, net));
    g_autofree float *out = g_new(float, OUT), *want = golden_image(c.golden, "unet/out");
    guint n_tensors, n = 0;
    const SafeTensor *tensors = safe_tensors(c.golden, &n_tensors);
    g_autofree NetBinding *outputs = g_new0(NetBinding, n_tensors + 2);
    g_autofree gsize *per = g_new0(gsize, n_tensors + 2);
    for (guint i = 0; i < n_tensors; i++) {
        if (!g_str_has_prefix(tensors[i].name, "debug/"))
            continue;
        NetVal *v = net_find(net, tensors[i].name + strlen("debug/"));
        if (!v)
            g_error("no value is named %s", tensors[i].name);
        net_output(net, tensors[i].name, v);
        per[n] = (gsize)(net_rows(v) * net_dim(v, 3)) / N;
        outputs[n] = (NetBinding){tensors[i].name, g_new(float, per[n] * N)};
        n++;
    }
    g_assert_cmpuint(n, >=, 14);
    outputs[n] = (NetBinding){"out", out};
    run(&c, net, outputs);
    golden_near(name, out, want, OUT, gate);
    for (guint i = 0; i < n; i++) {
        check_debug(&c, outputs[i].name, outputs[i].data, per[i], gate);
        g_free((gpointer)outputs[i].data);
    }
    case_close(&c);
}

/* -- with adapters ---------------------------------------------------------------------- */

static void check_lora(const char *name, const char *set, const char *layout, NetType compute, double gate)
{
    g_autoptr(GError) error = NULL;
    Case c = case_open(name, compute);
    g_autofree char *file = g_strdup_printf("tests/fixtures/lora/%s.%s.%s.safetensors", name, set, layout);
    g_autofree char *golden = g_strdup_printf("lora/%s/out", set);
    char *targets[] = {strcmp(set, "attn") == 0 ? "attention" : "linear", NULL};
    NetAdapters *adapters = lora_new(c.model, targets, 4, 2, compute, &error);
    g_assert_no_error(error);
    lora_load(adapters, c.model, file, &error);
    g_assert_no_error(error);
    net_adapters_refresh(adapters);
    Net *net = net_new(compute, adapters);
    net_output(net, "out", build(&c, net));
    g_autofree float *out = g_new(float, OUT), *want = golden_image(c.golden, golden);
    run(&c, net, (NetBinding[]){{"out", out}, {0}});
    golden_near(file, out, want, OUT, gate);
    net_adapters_free(adapters);
    case_close(&c);
}

static void test_forward(void)
{
    check_forward("tiny-sd", NET_F32, GATE);
    check_forward("tiny-sdxl", NET_F32, GATE);
}

static void test_lora(void)
{
    check_lora("tiny-sd", "attn", "kohya", NET_F32, GATE);
    check_lora("tiny-sd", "all", "diffusers", NET_F32, GATE);
    check_lora("tiny-sdxl", "attn", "diffusers", NET_F32, GATE);
    check_lora("tiny-sdxl", "all", "kohya", NET_F32, GATE);
}

static void test_bf16(void)
{
    check_forward("tiny-sd", NET_BF16, BF16_GATE);
    check_forward("tiny-sdxl", NET_BF16, BF16_GATE);
    check_lora("tiny-sd", "all", "kohya", NET_BF16, BF16_GATE);
}

/* -- errors --------------------------------------------------------------------------------- */

static void test_missing(void)
{
    g_autoptr(GError) error = NULL;
    Case c = case_open("tiny-sd", NET_F32);
    NetWeights *empty = net_weights_new();
    net_weights_free(c.weights);
    c.weights = empty;
    Net *net = net_new(NET_F32, NULL);
    build(&c, net);
    g_assert_false(net_finish_errors(net, &error));
    g_assert_nonnull(strstr(error->message, "time_embedding.linear_1.weight"));
    net_free(net);
    case_close(&c);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/unet/forward", test_forward);
    g_test_add_func("/unet/lora", test_lora);
    g_test_add_func("/unet/bf16", test_bf16);
    g_test_add_func("/unet/missing", test_missing);
    return g_test_run();
}
