/* U-Nets whose weights and inputs follow from a rule (spec: a hash of name and index), against numbers of
 * diffusers in double precision: output, losses of both predictions with and without min-SNR weights, and,
 * with B not zero, the gradient of every A and B.
 *
 * @label unit short
 * @link jansson
 */
#include "core/model/parts.h"
#include "tests/golden.h"

enum { N = 2, SIDE = 16, RANK = 4, OUT = N * SIDE * SIDE * 4 };
static const double GATE = 1e-5;     /* forward: fp32 noise is about 1e-6 */
static const double GRADIENT = 2e-5; /* of one tensor: 3e-6 to 6e-6 */

/* -- the rule ------------------------------------------------------------------------ */

static guint32 mix(guint32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352d;
    x ^= x >> 15;
    x *= 0x846ca68b;
    return x ^ x >> 16;
}

static double symmetric(const char *name, gsize i)
{
    guint32 h = 0x811c9dc5;
    for (const char *c = name; *c; c++)
        h = (h ^ (guint8)*c) * 0x01000193;
    return 2 * (mix(h + (guint32)i * 0x9E3779B9u) / 4294967296.0) - 1;
}

/* n values of a tensor whose dims but the first multiply to fan_in (0: one dimension). */
static float *rule(const char *name, gsize n, gint64 fan_in)
{
    float *v = g_new(float, n);
    double scale = fan_in ? sqrt(3.0 / (double)fan_in) : 0.1,
           middle = !fan_in && g_str_has_suffix(name, "weight");
    for (gsize i = 0; i < n; i++)
        v[i] = (float)(middle + scale * symmetric(name, i));
    return v;
}

static float *input(const char *name, gsize n)
{
    float *v = g_new(float, n);
    for (gsize i = 0; i < n; i++)
        v[i] = (float)(sqrt(3.0) * symmetric(name, i));
    return v;
}

static float *input_image(const char *name)
{
    g_autofree float *v = input(name, OUT);
    float *turned = g_new(float, OUT);
    kernel_to_channels_last(turned, v, sizeof(float), N, 4, SIDE * SIDE);
    return turned;
}

static NetWeights *weights_of(const UnetConfig *unet)
{
    g_autoptr(GPtrArray) parts = parts_unet(unet);
    NetWeights *weights = net_weights_new();
    for (guint i = 0; i < parts->len; i++) {
        const ModelTensor *t = parts->pdata[i];
        const gint64 turned[4] = {t->shape[0], t->shape[2], t->shape[3], t->shape[1]};
        gsize out = (gsize)t->shape[0], in = (gsize)t->shape[1], k = (gsize)(t->shape[2] * t->shape[3]);
        NetWeight *w = net_weights_add(weights, t->name, NET_F32, t->ndim, t->ndim == 4 ? turned : t->shape);
        g_autofree float *v = rule(t->name, out * in * k, t->ndim > 1 ? (gint64)(in * k) : 0);
        kernel_to_channels_last((gpointer)w->data, v, sizeof(float), out, in, k);
    }
    return weights;
}

/* A by the rule, B by half of it. */
static void set_adapters(NetAdapters *all)
{
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        g_autofree char *name_a = g_strconcat(a->name, ".lora_A.weight", NULL);
        g_autofree char *name_b = g_strconcat(a->name, ".lora_B.weight", NULL);
        g_autofree float *va = rule(name_a, (gsize)(RANK * a->in), a->in),
                         *vb = rule(name_b, (gsize)(a->out * RANK), RANK);
        memcpy(all->master + a->a, va, (gsize)(RANK * a->in) * sizeof(float));
        for (gint64 o = 0; o < a->out; o++)
            for (gint64 r = 0; r < RANK; r++)
                all->master[a->b + (gsize)(o * a->rank_pad + r)] = 0.5f * vb[o * RANK + r];
    }
    net_adapters_refresh(all);
}

/* -- comparing -------------------------------------------------------------------------- */

static double number(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    g_assert_true(json_is_number(v));
    return json_number_value(v);
}

/* Norm, and the first and last elements measured by it. */
static void check_array(const char *what, const float *x, gsize n, json_t *want, double gate)
{
    double norm = number(want, "l2"), sum = 0, diff = 0;
    json_t *first = json_object_get(want, "first8"), *last = json_object_get(want, "last4");
    g_assert_cmpuint(n, ==, (gsize)number(want, "n"));
    for (gsize i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (gsize i = 0; i < 8; i++)
        diff = MAX(diff, fabs(x[i] - json_number_value(json_array_get(first, i))));
    for (gsize i = 0; i < 4; i++)
        diff = MAX(diff, fabs(x[n - 4 + i] - json_number_value(json_array_get(last, i))));
    double error = MAX(fabs(sqrt(sum) / norm - 1), diff / norm);
    if (!(error <= gate))
        g_error("%s: error %.3g, gate %.3g", what, error, gate);
}

static void check_gradients(const NetAdapters *all, json_t *want)
{
    for (guint i = 0; i < all->list->len; i++) {
        const NetAdapter *a = all->list->pdata[i];
        json_t *module = json_object_get(want, a->name);
        g_autofree float *b = g_new(float, a->out *RANK);
        for (gint64 o = 0; o < a->out; o++)
            memcpy(b + o * RANK, all->gradient + a->b + (gsize)(o * a->rank_pad), RANK * sizeof(float));
        check_array(a->name, all->gradient + a->a, (gsize)(RANK * a->in), json_object_get(module, "A"),
                    GRADIENT);
        check_array(a->name, b, (gsize)(a->out * RANK), json_object_get(module, "B"), GRADIENT);
    }
}

static void near(const char *what, double ours, double theirs, double gate)
{
    if (!(fabs(ours / theirs - 1) <= gate))
        g_error("%s: %.9g, not %.9g", what, ours, theirs);
}

/* -- runs --------------------------------------------------------------------------------- */

typedef struct {
    UnetConfig unet;
    NetWeights *weights;
    NetAdapters *adapters;
    float *context, *pooled, *latent, *noise, ids[N * 6], t[N];
    double alpha_bar[1000];
} Case;

static void case_open(Case *c, gboolean sdxl)
{
    static const float ids[N * 6] = {128, 128, 0, 0, 128, 128, 256, 192, 16, 8, 128, 128};
    g_autoptr(GError) error = NULL;
    char *targets[] = {"attention", NULL};
    *c = (Case){.unet = {.in_channels = 4,
                         .out_channels = 4,
                         .layers = 2,
                         .context = sdxl ? 64 : 32,
                         .groups = 32,
                         .levels = 2,
                         .width = {32, 64},
                         .heads = {sdxl ? 2 : 8, sdxl ? 4 : 8},
                         .depth = {1, sdxl ? 2 : 1},
                         .down_attention = {0, 1},
                         .up_attention = {1, 0},
                         .eps = 1e-5f,
                         .linear_projection = sdxl,
                         .text_time = sdxl,
                         .time_dim = sdxl ? 8 : 0,
                         .class_dim = sdxl ? 80 : 0},
                .t = {7, 500}};
    Model model = {.kind = sdxl ? MODEL_SDXL : MODEL_SD1, .unet = c->unet};
    c->weights = weights_of(&c->unet);
    c->adapters = lora_new(&model, targets, RANK, 2, NET_F32, &error);
    g_assert_no_error(error);
    set_adapters(c->adapters);
    c->context = input("input:context", (gsize)(N * 77 * c->unet.context));
    c->pooled = input("input:text_embeds", N * 32);
    c->latent = input_image("input:latents");
    c->noise = input_image("input:noise");
    memcpy(c->ids, ids, sizeof ids);
    schedule_alpha_bar(0.00085, 0.012, c->alpha_bar);
}

static void case_close(Case *c)
{
    g_free(c->context);
    g_free(c->pooled);
    g_free(c->latent);
    g_free(c->noise);
    net_adapters_free(c->adapters);
    net_weights_free(c->weights);
}

static NetVal *build(const Case *c, Net *net, NetVal *x)
{
    NetVal *t = net_input(net, "t", NET_F32, N, 1, 1, 1), *pooled = NULL, *ids = NULL;
    NetVal *context = net_input(net, "context", NET_F32, N, 1, 77, c->unet.context);
    if (c->unet.text_time) {
        pooled = net_input(net, "pooled", NET_F32, N, 1, 1, 32);
        ids = net_input(net, "ids", NET_F32, N, 1, 1, 6);
    }
    return unet_build(net, &c->unet, c->weights, x, t, context, pooled, ids);
}

/* One training step: loss, prediction, gradients. */
static float train(const Case *c, gboolean v, double gamma, float *pred)
{
    g_autoptr(GError) error = NULL;
    Net *net = net_new(NET_F32, c->adapters);
    NetVal *x, *target;
    NetDraw draw = {.latent = net_input(net, "latent", NET_F32, N, SIDE, SIDE, 4),
                    .noise = net_input(net, "noise", NET_F32, N, SIDE, SIDE, 4),
                    .alpha_bar = net_input(net, "alpha_bar", NET_F32, N, 1, 1, 1),
                    .scaling = 1,
                    .v = v};
    net_draw(net, &draw, &x, &target);
    NetVal *y = build(c, net, x), *weight = net_input(net, "weight", NET_F32, N, 1, 1, 1);
    NetVal *loss = net_mse(net, y, target, weight, net_input(net, "scale", NET_F32, 1, 1, 1, 1));
    net_output(net, "loss", loss);
    net_output(net, "pred", y);
    net_differentiate(net, loss, &error);
    g_assert_no_error(error);
    float ab[N], w[N], scale = 1, result;
    for (guint i = 0; i < N; i++) {
        ab[i] = (float)c->alpha_bar[(guint)c->t[i]];
        w[i] = (float)(schedule_min_snr(c->alpha_bar, (gint)c->t[i], gamma, v) / N);
    }
    memset(c->adapters->gradient, 0, c->adapters->n * sizeof(float));
    golden_run(net,
               (NetBinding[]){{"latent", c->latent},
                              {"noise", c->noise},
                              {"alpha_bar", ab},
                              {"t", c->t},
                              {"context", c->context},
                              {"weight", w},
                              {"scale", &scale},
                              {c->unet.text_time ? "pooled" : NULL, c->pooled},
                              {"ids", c->ids},
                              {0}},
               (NetBinding[]){{"loss", &result}, {"pred", pred}, {0}});
    return result;
}

static double norm_of(const NetAdapters *all)
{
    double sum = 0;
    for (gsize i = 0; i < all->n; i++)
        sum += (double)all->gradient[i] * all->gradient[i];
    return sqrt(sum);
}

/* Channels first, as the numbers are recorded. */
static void check_image(const char *what, const float *x, json_t *want)
{
    g_autofree float *turned = g_new(float, OUT);
    kernel_to_channels_first(turned, x, sizeof(float), N, 4, SIDE * SIDE);
    check_array(what, turned, OUT, want, GATE);
}

static void check_forward(Case *c, json_t *want)
{
    g_autofree float *x = input_image("input:sample"), *out = g_new(float, OUT);
    Net *net = net_new(NET_F32, NULL);
    net_output(net, "out", build(c, net, net_input(net, "x", NET_F32, N, SIDE, SIDE, 4)));
    golden_run(net,
               (NetBinding[]){{"x", x},
                              {"t", c->t},
                              {"context", c->context},
                              {c->unet.text_time ? "pooled" : NULL, c->pooled},
                              {"ids", c->ids},
                              {0}},
               (NetBinding[]){{"out", out}, {0}});
    check_image("output", out, json_object_get(want, "out"));
}

static void check(gboolean sdxl)
{
    json_t *root = json_load_file("tests/fixtures/reference.json", 0, NULL);
    json_t *want = json_object_get(root, sdxl ? "train_lora_sdxl" : "train_lora_sd");
    json_t *eps = json_object_get(want, "eps"), *v = json_object_get(want, "v");
    g_autofree float *pred = g_new(float, OUT);
    Case c;
    case_open(&c, sdxl);
    g_assert_cmpuint(c.adapters->list->len, ==, (guint)number(want, "n_lora"));
    check_forward(&c, json_object_get(root, sdxl ? "unet_lora_sdxl" : "unet_lora_sd"));

    near("min-SNR loss", train(&c, FALSE, 5, pred), number(eps, "loss_minsnr5"), 2e-6);
    near("v loss, min-SNR", train(&c, TRUE, 5, pred), number(v, "loss_minsnr5"), 2e-6);
    near("v loss", train(&c, TRUE, 0, pred), number(v, "loss"), 2e-6);
    near("v gradient norm", norm_of(c.adapters), number(v, "grad_l2_all"), 1e-5);
    near("loss", train(&c, FALSE, 0, pred), number(eps, "loss"), 2e-6);
    near("gradient norm", norm_of(c.adapters), number(eps, "grad_l2_all"), 1e-5);
    check_image("prediction", pred, json_object_get(want, "pred"));
    check_gradients(c.adapters, json_object_get(want, "grad"));
    case_close(&c);
    json_decref(root);
}

static void test_sd(void)
{
    check(FALSE);
}

static void test_sdxl(void)
{
    check(TRUE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/reference/sd", test_sd);
    g_test_add_func("/reference/sdxl", test_sdxl);
    return g_test_run();
}
