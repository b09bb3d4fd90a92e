/* A small laboratory for tests of the engine: random weights and adapters, a training net around a body,
 * loss and gradient of a run. Numbers come from a 32-bit hash of name and index, so a failure repeats. */
#ifndef TESTS_NET_LAB_H
#define TESTS_NET_LAB_H
#include "core/net/net.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAB_CHECK(condition, ...)                                                                            \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static inline guint32 lab_mix(guint32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Uniform in [-1, 1). */
static inline float lab_number(const char *name, gsize i)
{
    return (float)(2 * (double)lab_mix(g_str_hash(name) + (guint32)i * 0x9e3779b9u) / 4294967296.0 - 1);
}

static inline void lab_fill(float *x, gsize n, const char *name, float size)
{
    for (gsize i = 0; i < n; i++)
        x[i] = size * lab_number(name, i);
}

typedef struct {
    NetType type;
    NetWeights *weights;
    NetAdapters *adapters;
    NetPacking packing;
} Lab;

static inline Lab lab_new(NetType type)
{
    return (Lab){type, net_weights_new(), net_adapters_new(type), NET_PACK_AUTO};
}

static inline void lab_free(Lab *lab)
{
    net_weights_free(lab->weights);
    net_adapters_free(lab->adapters);
}

/* A weight of the lab's type, or f32 for vectors; made at the first call. */
static inline const NetWeight *lab_weight(Lab *lab, const char *name, gint64 a, gint64 kh, gint64 kw,
                                          gint64 b)
{
    const NetWeight *old = net_weights_find(lab->weights, name);
    if (old)
        return old;
    gboolean vector = b == 0;
    NetWeight *w = net_weights_add(lab->weights, name, vector ? NET_F32 : lab->type, vector ? 1 : 4,
                                   (gint64[4]){a, kh, kw, b});
    gsize n = (gsize)(vector ? a : a * kh * kw * b);
    g_autofree float *x = g_new(float, n);
    lab_fill(x, n, name, vector ? 0.5f : (float)sqrt(3.0 / (double)(kh * kw * b)));
    if (vector && g_str_has_suffix(name, "gamma"))
        for (gsize i = 0; i < n; i++)
            x[i] += 1;
    net_convert((gpointer)w->data, w->type, x, NET_F32, n);
    return w;
}

static inline const NetWeight *lab_matrix(Lab *lab, const char *name, gint64 out, gint64 in)
{
    return lab_weight(lab, name, out, 1, 1, in);
}

static inline const NetWeight *lab_vector(Lab *lab, const char *name, gint64 n)
{
    return lab_weight(lab, name, n, 1, 1, 0);
}

/* Made while the buffers do not exist yet; found by name afterwards. */
static inline NetAdapter *lab_adapter(Lab *lab, const char *name, gint64 in, gint64 out, gint64 k,
                                      gint64 rank)
{
    NetAdapter *adapter = net_adapters_find(lab->adapters, name);
    return adapter ? adapter : net_adapters_add(lab->adapters, name, in, out, k, k, rank, 0.5f * (float)rank);
}

/* Random A and B inside the rank, zero beyond. */
static inline void lab_init_adapters(Lab *lab)
{
    net_adapters_allocate(lab->adapters);
    for (guint i = 0; i < lab->adapters->list->len; i++) {
        const NetAdapter *a = lab->adapters->list->pdata[i];
        gint64 columns = a->in * a->kh * a->kw;
        for (gint64 r = 0; r < a->rank; r++) {
            for (gint64 c = 0; c < columns; c++)
                lab->adapters->master[a->a + (gsize)(r * columns + c)] =
                    lab_number(a->name, (gsize)(r * columns + c)) * (float)sqrt(3.0 / (double)columns);
            for (gint64 o = 0; o < a->out; o++)
                lab->adapters->master[a->b + (gsize)(o * a->rank_pad + r)] =
                    0.7f * lab_number(a->name, 1000000 + (gsize)(o * a->rank + r));
        }
    }
    net_adapters_refresh(lab->adapters);
}

/* A plan with its inputs: "x" and "target" f32, "weight" per sample, "scale". */
typedef struct {
    Lab *lab;
    NetPlan *plan;
    NetArena *arena;
    float *x, *target, *weight, scale, loss;
    const gint32 *rows;
    gsize nx, ny;
} LabRun;

typedef NetVal *(*LabBody)(Net *net, Lab *lab, NetVal *x);

/* x (n,h,w,c) -> body -> mse; the body's adapters are made on a first, thrown away, build. */
static inline LabRun lab_train(Lab *lab, LabBody body, gint64 n, gint64 h, gint64 w, gint64 c)
{
    LabRun run = {.lab = lab, .scale = 1};
    for (guint pass = lab->adapters->master ? 1 : 0; pass < 2; pass++) {
        Net *net = net_new(lab->type, lab->adapters);
        net_set_packing(net, lab->packing);
        NetVal *x = net_cast(net, net_input(net, "x", NET_F32, n, h, w, c), lab->type);
        NetVal *y = body(net, lab, x);
        if (pass == 0) {
            GError *error = NULL;
            LAB_CHECK(net_finish_errors(net, &error), "%s", error->message);
            net_free(net);
            lab_init_adapters(lab);
            continue;
        }
        NetVal *target =
            net_input(net, "target", NET_F32, net_dim(y, 0), net_dim(y, 1), net_dim(y, 2), net_dim(y, 3));
        NetVal *loss = net_mse(net, y, target, net_input(net, "weight", NET_F32, n, 1, 1, 1),
                               net_input(net, "scale", NET_F32, 1, 1, 1, 1));
        net_output(net, "loss", loss);
        run.nx = (gsize)(n * h * w * c);
        run.ny = (gsize)(net_rows(y) * net_dim(y, 3));
        GError *error = NULL;
        LAB_CHECK(net_differentiate(net, loss, &error), "%s", error->message);
        run.plan = net_plan_build(net, &error);
        LAB_CHECK(run.plan, "%s", error->message);
    }
    run.arena = net_arena_new();
    net_arena_fit(run.arena, run.plan);
    run.x = g_new(float, run.nx);
    run.target = g_new(float, run.ny);
    run.weight = g_new(float, (gsize)n);
    lab_fill(run.x, run.nx, "x", 1.7f);
    lab_fill(run.target, run.ny, "target", 1);
    for (gint64 i = 0; i < n; i++)
        run.weight[i] = (1.0f + 0.25f * (float)i) / (float)n;
    return run;
}

/* Clears the gradient, runs, returns the loss. */
static inline float lab_step(LabRun *run)
{
    NetBinding inputs[6] = {
        {"x", run->x}, {"target", run->target}, {"weight", run->weight}, {"scale", &run->scale}};
    if (run->rows) /* bodies that read it have an input "row" */
        inputs[4] = (NetBinding){"row", run->rows};
    NetBinding outputs[] = {{"loss", &run->loss}, {NULL, NULL}};
    NetRunArgs args = {.inputs = inputs, .outputs = outputs, .check_finite = TRUE};
    GError *error = NULL;
    memset(run->lab->adapters->gradient, 0, run->lab->adapters->n * sizeof(float));
    LAB_CHECK(net_run(run->plan, run->arena, &args, &error), "%s", error->message);
    return run->loss;
}

static inline void lab_end(LabRun *run)
{
    net_plan_free(run->plan);
    net_arena_free(run->arena);
    g_free(run->x);
    g_free(run->target);
    g_free(run->weight);
}

/* |a - b| / |b| over vectors, in double. */
static inline double lab_distance(const float *a, const float *b, gsize n)
{
    double d = 0, s = 0;
    for (gsize i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}

#endif
