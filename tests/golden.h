/* Reading tests/fixtures/golden: arrays by name, channels-last copies, relative errors. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H
#include "core/model/model.h"
#include "kernels/channels.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

G_GNUC_UNUSED static SafeFile *golden_open(const char *model, const char *what)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_strdup_printf("tests/fixtures/golden/%s.%s.safetensors", model, what);
    SafeFile *file = safe_open(path, &error);
    g_assert_no_error(error);
    return file;
}

G_GNUC_UNUSED static const SafeTensor *golden_tensor(SafeFile *file, const char *name)
{
    const SafeTensor *t = safe_find(file, name);
    if (!t)
        g_error("%s has no %s", safe_path(file), name);
    return t;
}

/* Returns new. */
G_GNUC_UNUSED static float *golden_f32(SafeFile *file, const char *name)
{
    g_autoptr(GError) error = NULL;
    const SafeTensor *t = golden_tensor(file, name);
    float *data = g_new(float, t->count);
    safe_read(file, t, data, NET_F32, &error);
    g_assert_no_error(error);
    return data;
}

/* The same, a (n, c, h, w) array as (n, h, w, c). */
G_GNUC_UNUSED static float *golden_image(SafeFile *file, const char *name)
{
    const SafeTensor *t = golden_tensor(file, name);
    g_assert_cmpuint(t->ndim, ==, 4);
    g_autofree float *data = golden_f32(file, name);
    float *turned = g_new(float, t->count);
    kernel_to_channels_last(turned, data, sizeof(float), (gsize)t->shape[0], (gsize)t->shape[1],
                            (gsize)(t->shape[2] * t->shape[3]));
    return turned;
}

G_GNUC_UNUSED static gint64 *golden_i64(SafeFile *file, const char *name)
{
    const SafeTensor *t = golden_tensor(file, name);
    g_assert_cmpuint(t->nbytes, ==, (guint64)t->count * sizeof(gint64));
    return g_memdup2(safe_data(file, t), t->nbytes);
}

/* |a - b| / |b|, both as vectors. */
G_GNUC_UNUSED static double golden_error(const float *a, const float *b, gsize n)
{
    double diff = 0, norm = 0;
    for (gsize i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(diff / norm);
}

G_GNUC_UNUSED static void golden_near(const char *what, const float *a, const float *b, gsize n, double gate)
{
    double error = golden_error(a, b, n);
    g_test_message("%s: %.3g (gate %.3g)", what, error, gate);
    if (!(error <= gate))
        g_error("%s: relative error %.3g, gate %.3g", what, error, gate);
}

G_GNUC_UNUSED static Model *golden_model(const char *name)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = g_build_filename("tests/fixtures", name, NULL);
    Model *model = model_open(path, &error);
    g_assert_no_error(error);
    return model;
}

/* Plans the net, runs it once, frees everything. */
G_GNUC_UNUSED static void golden_run(Net *net, const NetBinding *inputs, const NetBinding *outputs)
{
    g_autoptr(GError) error = NULL;
    net_finish_errors(net, &error);
    g_assert_no_error(error);
    NetPlan *plan = net_plan_build(net, &error);
    g_assert_no_error(error);
    NetArena *arena = net_arena_new();
    net_arena_fit(arena, plan);
    NetRunArgs args = {.inputs = inputs, .outputs = outputs, .check_finite = TRUE};
    net_run(plan, arena, &args, &error);
    g_assert_no_error(error);
    net_arena_free(arena);
    net_plan_free(plan);
}

#endif
