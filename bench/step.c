/* Seconds of a training step beside the machine's own rate of matrix products in the same run.
 *
 *   step tiny [STEPS]     tests/fixtures/tiny-sd, batch 2, 16 x 16 latents
 *   step sd15 [STEPS]     Stable Diffusion 1.5 at 512 x 512, batch 1, rank 16, random weights
 *   step sd15 N --ops     and the seconds of every kind of operation
 *
 * A step is forward, backward and AdamW of the attention adapters; the first one, which makes primitives and
 * packs weights, is reported apart. */
#include "core/model/model.h"
#include "core/model/parts.h"
#include "kernels/optimizer.h"
#include "kernels/parallel.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    UnetConfig unet;
    gint64 n, side, tokens, rank;
} Case;

static const Case tiny = {.unet = {.in_channels = 4,
                                   .out_channels = 4,
                                   .layers = 2,
                                   .context = 32,
                                   .groups = 32,
                                   .levels = 2,
                                   .width = {32, 64},
                                   .heads = {8, 8},
                                   .depth = {1, 1},
                                   .down_attention = {0, 1},
                                   .up_attention = {1, 0},
                                   .eps = 1e-5f},
                          .n = 2,
                          .side = 16,
                          .tokens = 77,
                          .rank = 4};
static const Case sd15 = {.unet = {.in_channels = 4,
                                   .out_channels = 4,
                                   .layers = 2,
                                   .context = 768,
                                   .groups = 32,
                                   .levels = 4,
                                   .width = {320, 640, 1280, 1280},
                                   .heads = {8, 8, 8, 8},
                                   .depth = {1, 1, 1, 1},
                                   .down_attention = {1, 1, 1, 0},
                                   .up_attention = {0, 1, 1, 1},
                                   .eps = 1e-5f},
                          .n = 1,
                          .side = 64,
                          .tokens = 77,
                          .rank = 16};

static double now(void)
{
    return 1e-6 * (double)g_get_monotonic_time();
}

static void check(GError *error)
{
    if (!error)
        return;
    fprintf(stderr, "step: %s\n", error->message);
    exit(1);
}

/* Small numbers that keep activations near 1: uniform with variance 1 / fan_in; norms 1, biases 0. */
static void fill(NetWeight *w, gint64 fan_in)
{
    gsize n = (gsize)(w->shape[0] * w->shape[1] * w->shape[2] * w->shape[3]);
    guint32 x = 12345;
    float bound = fan_in ? 1.7f / sqrtf((float)fan_in) : 0, row[256];
    for (gsize i = 0; i < n; i += G_N_ELEMENTS(row)) {
        gsize k = MIN(G_N_ELEMENTS(row), n - i);
        for (gsize j = 0; j < k; j++) {
            x = x * 1664525u + 1013904223u;
            row[j] =
                fan_in ? bound * ((float)(x >> 8) / 8388608.0f - 1) : g_str_has_suffix(w->name, ".weight");
        }
        net_convert((char *)w->data + net_type_bytes(w->type, i), w->type, row, NET_F32, k);
    }
}

static NetWeights *random_weights(const UnetConfig *unet, NetType type)
{
    g_autoptr(GPtrArray) parts = parts_unet(unet);
    NetWeights *weights = net_weights_new();
    for (guint i = 0; i < parts->len; i++) {
        const ModelTensor *t = parts->pdata[i];
        const gint64 turned[4] = {t->shape[0], t->shape[2], t->shape[3], t->shape[1]};
        fill(net_weights_add(weights, t->name, t->ndim == 1 ? NET_F32 : type, t->ndim,
                             t->ndim == 4 ? turned : t->shape),
             t->ndim == 1 ? 0 : t->shape[1] * t->shape[2] * t->shape[3]);
    }
    return weights;
}

static NetPlan *build(const Case *c, const NetWeights *weights, NetAdapters *adapters)
{
    GError *error = NULL;
    Net *net = net_new(adapters->compute, adapters);
    NetVal *x, *target, *key = net_input(net, "key", NET_I64, c->n, 1, 1, 1);
    NetDraw draw = {.mean = net_input(net, "mean", NET_F32, c->n, c->side, c->side, 4),
                    .logvar = net_input(net, "logvar", NET_F32, c->n, c->side, c->side, 4),
                    .key = key,
                    .alpha_bar = net_input(net, "alpha_bar", NET_F32, c->n, 1, 1, 1),
                    .scaling = 0.18215f};
    net_draw(net, &draw, &x, &target);
    NetVal *context = net_input(net, "context", NET_F32, c->n, 1, c->tokens, c->unet.context);
    NetVal *t = net_input(net, "t", NET_F32, c->n, 1, 1, 1),
           *weight = net_input(net, "weight", NET_F32, c->n, 1, 1, 1);
    NetVal *pred = unet_build(net, &c->unet, weights, x, t, context, NULL, NULL);
    NetVal *loss = net_mse(net, pred, target, weight, net_input(net, "scale", NET_F32, 1, 1, 1, 1));
    net_output(net, "loss", loss);
    net_finish_errors(net, &error);
    check(error);
    net_differentiate(net, loss, &error);
    check(error);
    NetPlan *plan = net_plan_build(net, &error);
    check(error);
    return plan;
}

/* Best GFLOP/s of a product of the size that dominates SD1.5: (4096 x 1280) (1280 x 1280). */
static double matrix_rate(NetType type)
{
    GError *error = NULL;
    gint64 m = 4096, k = 1280, shape[] = {k, k};
    NetWeights *weights = net_weights_new();
    NetWeight *w = net_weights_add(weights, "w.weight", type, 2, shape);
    fill(w, k);
    Net *net = net_new(type, NULL);
    NetVal *x = net_input(net, "x", type, 1, 1, m, k);
    NetVal *y = net_linear(net, x, w, NULL, NULL);
    net_output(net, "y", net_linear(net, y, w, NULL, NULL));
    NetPlan *plan = net_plan_build(net, &error);
    check(error);
    NetArena *arena = net_arena_new();
    net_arena_fit(arena, plan);
    g_autofree void *data = g_malloc0(net_type_bytes(type, (gsize)(m * k)));
    const NetBinding in[] = {{"x", data}, {0}};
    NetRunArgs args = {.inputs = in};
    double best = 1e9;
    for (guint i = 0; i < 8; i++) {
        double start = now();
        net_run(plan, arena, &args, &error);
        check(error);
        best = i ? MIN(best, now() - start) : best;
    }
    net_arena_free(arena);
    net_plan_free(plan);
    net_weights_free(weights);
    return 4e-9 * (double)(m * k * k) / best;
}

static gint64 peak_rss(void)
{
    g_autofree char *text = NULL;
    const char *at =
        g_file_get_contents("/proc/self/status", &text, NULL, NULL) ? strstr(text, "VmHWM:") : NULL;
    return at ? g_ascii_strtoll(at + 6, NULL, 10) * 1024 : 0;
}

typedef struct {
    NetAdapters *adapters;
    float *m, *v;
    guint64 step;
} Update;

static void update(gpointer data)
{
    Update *u = data;
    KernelAdamw p = {.lr = 1e-4,
                     .beta1 = 0.9,
                     .beta2 = 0.999,
                     .eps = 1e-8,
                     .weight_decay = 0.01,
                     .step = ++u->step,
                     .factor = 1};
    kernel_adamw(&p, u->adapters->master, u->m, u->v, u->adapters->gradient, u->adapters->n);
    net_adapters_refresh(u->adapters);
    memset(u->adapters->gradient, 0, u->adapters->n * sizeof(float));
}

static gpointer zeros(gsize bytes)
{
    return g_malloc0(bytes);
}

static void measure(const Case *c, NetType type, guint steps, gboolean ops)
{
    GError *error = NULL;
    Model model = {.kind = MODEL_SD1, .unet = c->unet};
    char *targets[] = {"attention", NULL};
    double start = now();
    NetWeights *weights = random_weights(&c->unet, type);
    NetAdapters *adapters = lora_new(&model, targets, c->rank, (double)c->rank, type, &error);
    check(error);
    lora_init(adapters, LORA_KAIMING, 1);
    net_adapters_refresh(adapters);
    Update u = {adapters, zeros(adapters->n * 4), zeros(adapters->n * 4), 0};
    NetPlan *plan = build(c, weights, adapters);
    NetArena *arena = net_arena_new();
    net_arena_fit(arena, plan);
    double built = now() - start;
    gsize latent = (gsize)(c->n * c->side * c->side * 4) * 4,
          text = (gsize)(c->n * c->tokens * c->unet.context) * 4;
    float ab[8], t[8], w[8], scale = 1, loss;
    gint64 key[8];
    for (gint64 i = 0; i < c->n; i++)
        ab[i] = 0.5f, t[i] = 300, w[i] = 1 / (float)c->n, key[i] = i;
    const NetBinding in[] = {{"mean", zeros(latent)},
                             {"logvar", zeros(latent)},
                             {"context", zeros(text)},
                             {"key", key},
                             {"alpha_bar", ab},
                             {"t", t},
                             {"weight", w},
                             {"scale", &scale},
                             {0}};
    const NetBinding out[] = {{"loss", &loss}, {0}};
    NetRunArgs args = {.inputs = in, .outputs = out};
    double first = 0, best = 1e9, sum = 0;
    for (guint i = 0; i <= steps; i++) {
        args.profile = ops && i > 0;
        start = now();
        net_run(plan, arena, &args, &error);
        check(error);
        net_on_compute_thread(update, &u);
        double s = now() - start;
        first = i ? first : s;
        best = i ? MIN(best, s) : best;
        sum += i ? s : 0;
    }
    const NetPlanInfo *info = net_plan_info(plan);
    double rate = 1e-9 * info->flops / best, roof = matrix_rate(type), mib = 1024 * 1024;
    printf("%s, %u threads: step %.1f ms (mean %.1f, first %.1f, built in %.1f s), %.1f GFLOP: %.0f GFLOP/s, "
           "%.0f %% of "
           "the matrix rate %.0f\n",
           net_type_name(type), net_threads(), 1e3 * best, 1e3 * sum / steps, 1e3 * first, built,
           1e-9 * info->flops, rate, 100 * rate / roof, roof);
    printf("  arena %.1f MiB (bound %.1f), saved %.1f, packed %.1f, weights %.1f, peak RSS %.1f MiB, loss "
           "%.4f\n",
           (double)info->arena / mib, (double)info->bound / mib, (double)info->saved / mib,
           (double)info->packed / mib, (double)net_weights_bytes(weights) / mib, (double)peak_rss() / mib,
           (double)loss);
    if (ops) {
        g_autofree char *table = net_plan_profile(plan);
        fputs(table, stdout);
    }
    for (guint i = 0; i < 3; i++)
        g_free((gpointer)in[i].data);
    g_free(u.m);
    g_free(u.v);
    net_arena_free(arena);
    net_plan_free(plan);
    net_adapters_free(adapters);
    net_weights_free(weights);
}

int main(int argc, char **argv)
{
    gboolean large = argc > 1 && strcmp(argv[1], "sd15") == 0;
    guint steps = argc > 2 ? (guint)MAX(atoi(argv[2]), 1) : large ? 3 : 50;
    gboolean ops = argc > 3 && strcmp(argv[3], "--ops") == 0;
    if (argc < 2 || (!large && strcmp(argv[1], "tiny") != 0)) {
        fprintf(stderr, "usage: step tiny|sd15 [STEPS] [--ops]\n");
        return 2;
    }
    if (!large)
        measure(&tiny, NET_F32, steps, ops);
    measure(large ? &sd15 : &tiny, net_best_compute(), steps, ops);
    return 0;
}
