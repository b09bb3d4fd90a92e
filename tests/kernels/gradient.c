/* Every backward kernel against finite differences of its forward kernel, in f32.
 *
 * L = sum of dy y; its derivative for an input element comes from four points (error of order h^4), and must
 * agree with dx: mean of |a - b| / (|a| + |b| + 1) below 1e-4, no element worse than 1e-2. The rounding of
 * forward alone makes 1e-5. No kernel has a kink.
 * @label short
 */
#include "kernels/attention.h"
#include "kernels/channels.h"
#include "kernels/elementwise.h"
#include "kernels/geglu.h"
#include "kernels/group_norm.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/philox.h"
#include <math.h>

typedef void (*Forward)(gpointer data, float *y);

static float *numbers(guint64 stream, gsize n)
{
    float *x = g_new(float, n);
    philox_normal(77, stream, 0, x, n);
    return x;
}

static double loss_of(Forward forward, gpointer data, const float *dy, float *y, gsize n)
{
    double loss = 0;
    forward(data, y);
    for (gsize i = 0; i < n; i++)
        loss += (double)dy[i] * y[i];
    return loss;
}

/* x is one of the inputs that `forward` reads; dx what backward says. */
static void check(Forward forward, gpointer data, float *x, gsize nx, const float *dy, gsize ny,
                  const float *dx)
{
    const double h = 0.03125;
    g_autofree float *y = g_new(float, ny);
    double total = 0;
    for (gsize i = 0; i < nx; i++) {
        float at = x[i];
        double f[4];
        static const double step[4] = {-2, -1, 1, 2};
        for (guint k = 0; k < 4; k++) {
            x[i] = (float)(at + step[k] * h);
            f[k] = loss_of(forward, data, dy, y, ny);
        }
        x[i] = at;
        double slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
        double error = fabs(slope - dx[i]) / (fabs(slope) + fabs(dx[i]) + 1);
        g_assert_cmpfloat(error, <, 1e-2);
        total += error;
    }
    g_assert_cmpfloat(total / (double)nx, <, 1e-4);
}

/* -- activations -- */

typedef void (*UnaryFn)(NetType, gpointer, gconstpointer, gsize);
typedef void (*UnaryBackwardFn)(NetType, gpointer, gconstpointer, gconstpointer, gsize);
typedef struct {
    UnaryFn fn;
    float *x;
    gsize rows, c;
} Plain;

static void unary_forward(gpointer data, float *y)
{
    Plain *p = data;
    p->fn(NET_F32, y, p->x, p->c);
}

static void test_activations(void)
{
    static const UnaryFn fn[] = {kernel_silu, kernel_gelu, kernel_quick_gelu};
    static const UnaryBackwardFn back[] = {kernel_silu_backward, kernel_gelu_backward,
                                           kernel_quick_gelu_backward};
    enum { N = 133 };
    for (guint i = 0; i < 3; i++) {
        g_autofree float *x = numbers(1, N), *dy = numbers(2, N), *dx = g_new(float, N);
        for (gsize k = 0; k < N; k++)
            x[k] *= 3;
        Plain p = {fn[i], x, 1, N};
        back[i](NET_F32, dx, dy, x, N);
        check(unary_forward, &p, x, N, dy, N, dx);
        back[i](NET_F32, dy, dy, x, N); /* in place gives the same */
        g_assert_cmpmem(dy, N * sizeof *dy, dx, N * sizeof *dx);
    }
}

static void geglu_forward(gpointer data, float *y)
{
    Plain *p = data;
    kernel_geglu(NET_F32, y, p->x, p->rows, p->c);
}

static void test_geglu(void)
{
    enum { ROWS = 3, C = 37 };
    g_autofree float *u = numbers(3, 2 * ROWS * C), *dy = numbers(4, ROWS * C),
                     *du = g_new(float, 2 * ROWS * C);
    Plain p = {NULL, u, ROWS, C};
    kernel_geglu_backward(NET_F32, du, dy, u, ROWS, C);
    check(geglu_forward, &p, u, 2 * ROWS * C, dy, ROWS * C, du);
    kernel_geglu_backward(NET_F32, u, dy, u, ROWS, C);
    g_assert_cmpmem(u, 2 * ROWS * C * sizeof *u, du, 2 * ROWS * C * sizeof *du);
}

static void upsample_forward(gpointer data, float *y)
{
    kernel_upsample(NET_F32, y, ((Plain *)data)->x, 2, 3, 2, 5);
}

static void test_upsample(void)
{
    enum { N = 2 * 3 * 2 * 5 };
    g_autofree float *x = numbers(5, N), *dy = numbers(6, 4 * N), *dx = g_new(float, N);
    Plain p = {NULL, x, 0, 0};
    kernel_upsample_backward(NET_F32, dx, dy, 2, 3, 2, 5);
    check(upsample_forward, &p, x, N, dy, 4 * N, dx);
}

/* add_channel: the gradient of e is the sum over the rows. */
typedef struct {
    float *x, *e;
} AddChannel;

static void add_channel_forward(gpointer data, float *y)
{
    AddChannel *a = data;
    kernel_add_channel(NET_F32, y, a->x, a->e, 2, 9, 70);
}

static void test_add_channel(void)
{
    g_autofree float *x = numbers(7, 2 * 9 * 70), *e = numbers(8, 2 * 70), *dy = numbers(9, 2 * 9 * 70);
    g_autofree float *de = g_new(float, 2 * 70);
    AddChannel a = {x, e};
    kernel_sum_rows(de, NET_F32, dy, 2, 9, 70);
    check(add_channel_forward, &a, e, 2 * 70, dy, 2 * 9 * 70, de);
}

/* -- norms -- */

typedef struct {
    float *x, *gamma, *beta, *mean, *rstd;
    gsize rows, c;
} LayerNorm;

static void layer_norm_forward(gpointer data, float *y)
{
    LayerNorm *p = data;
    kernel_layer_norm(NET_F32, y, p->x, p->gamma, p->beta, p->rows, p->c, 1e-5f, p->mean, p->rstd);
}

static void test_layer_norm(void)
{
    enum { ROWS = 4, C = 45, N = ROWS * C };
    g_autofree float *x = numbers(10, N), *gamma = numbers(11, C), *beta = numbers(12, C),
                     *dy = numbers(13, N);
    g_autofree float *add = numbers(14, N), *dx = g_new(float, N), *sum = g_new(float, N),
                     *y = g_new(float, N);
    float mean[ROWS], rstd[ROWS], kept_mean[ROWS], kept_rstd[ROWS];
    for (gsize i = 0; i < C; i++)
        x[i] += 5;
    LayerNorm p = {x, gamma, beta, mean, rstd, ROWS, C};
    layer_norm_forward(&p, y);
    memcpy(kept_mean, mean, sizeof mean);
    memcpy(kept_rstd, rstd, sizeof rstd);
    kernel_layer_norm_backward(NET_F32, dx, NULL, dy, x, gamma, ROWS, C, kept_mean, kept_rstd);
    check(layer_norm_forward, &p, x, N, dy, N, dx);
    kernel_layer_norm_backward(NET_F32, sum, add, dy, x, gamma, ROWS, C, kept_mean, kept_rstd);
    for (gsize i = 0; i < N; i++)
        g_assert_cmpfloat(fabsf(sum[i] - (dx[i] + add[i])), <, 1e-6f * (1 + fabsf(sum[i])));
}

typedef struct {
    KernelGroupNorm p;
    float *a, *b, *mean, *rstd;
    gpointer scratch;
} GroupNorm;

static void group_norm_forward(gpointer data, float *y)
{
    GroupNorm *g = data;
    kernel_group_norm(&g->p, y, g->a, g->b, g->mean, g->rstd, g->scratch);
}

static void check_group_norm(gsize ca, gsize cb, gsize groups, gboolean silu)
{
    enum { N = 2, HW = 7 };
    gsize c = ca + cb, na = N * HW * ca, nb = N * HW * cb, n = na + nb;
    g_autofree float *a = numbers(20, na), *b = cb ? numbers(21, nb) : NULL, *gamma = numbers(22, c);
    g_autofree float *beta = numbers(23, c), *dy = numbers(24, n), *y = g_new(float, n);
    g_autofree float *da = g_new(float, na), *db = g_new(float, nb + 1), *other = g_new(float, n);
    float mean[64], rstd[64], kept_mean[64], kept_rstd[64];
    GroupNorm g = {.p = {NET_F32, N, HW, ca, cb, groups, 1e-5f, silu, gamma, beta}, .a = a, .b = b};
    for (gsize i = 0; i < na; i++)
        a[i] = a[i] * 2 + 3;
    g.mean = mean;
    g.rstd = rstd;
    g.scratch = g_aligned_alloc(1, kernel_group_norm_scratch(&g.p), 64);
    group_norm_forward(&g, y);
    memcpy(kept_mean, mean, sizeof mean);
    memcpy(kept_rstd, rstd, sizeof rstd);
    kernel_group_norm_backward(&g.p, da, cb ? db : NULL, NULL, NULL, dy, a, b, kept_mean, kept_rstd,
                               g.scratch);
    check(group_norm_forward, &g, a, na, dy, n, da);
    if (cb)
        check(group_norm_forward, &g, b, nb, dy, n, db);
    /* One output alone, and with a gradient that is there already. */
    memset(other, 0, n * sizeof *other);
    kernel_group_norm_backward(&g.p, other, NULL, NULL, NULL, dy, a, b, kept_mean, kept_rstd, g.scratch);
    g_assert_cmpmem(other, na * sizeof *other, da, na * sizeof *da);
    kernel_group_norm_backward(&g.p, other, NULL, other, NULL, dy, a, b, kept_mean, kept_rstd, g.scratch);
    for (gsize i = 0; i < na; i++)
        g_assert_cmpfloat(other[i], ==, da[i] + da[i]);
    if (cb) {
        kernel_group_norm_backward(&g.p, NULL, other, NULL, db, dy, a, b, kept_mean, kept_rstd, g.scratch);
        for (gsize i = 0; i < nb; i++)
            g_assert_cmpfloat(other[i], ==, db[i] + db[i]);
    }
    g_aligned_free(g.scratch);
}

static void test_group_norm(void)
{
    for (guint silu = 0; silu < 2; silu++) {
        check_group_norm(24, 0, 4, silu);
        check_group_norm(20, 10, 3, silu); /* a group ends at the border */
        check_group_norm(11, 13, 4, silu); /* a group straddles it */
        check_group_norm(5, 0, 5, silu);
    }
}

/* -- attention -- */

typedef struct {
    KernelAttention p;
    float *q, *k, *v;
    gpointer scratch;
} Attention;

static void attention_forward(gpointer data, float *o)
{
    Attention *a = data;
    kernel_attention(&a->p, o, a->q, a->k, a->v, NULL, a->scratch);
}

static void check_attention(gsize n, gsize tq, gsize tk, gsize heads, gsize dim, gboolean causal)
{
    gsize c = heads * dim, nq = n * tq * c, nk = n * tk * c;
    g_autofree float *q = numbers(30, nq), *k = numbers(31, nk), *v = numbers(32, nk), *g = numbers(33, nq);
    g_autofree float *o = g_new(float, nq), *dq = g_new(float, nq), *dk = g_new(float, nk),
                     *dv = g_new(float, nk);
    g_autofree float *lse = g_new(float, n *heads *tq), *again = g_new(float, MAX(nq, nk));
    KernelAttention p = {.type = NET_F32,
                         .n = n,
                         .tq = tq,
                         .tk = tk,
                         .heads = heads,
                         .dim = dim,
                         .q_stride = c,
                         .k_stride = c,
                         .v_stride = c,
                         .o_stride = c,
                         .dq_stride = c,
                         .dk_stride = c,
                         .dv_stride = c,
                         .do_stride = c,
                         .scale = 1 / sqrtf((float)dim),
                         .causal = causal};
    Attention a = {p, q, k, v, g_aligned_alloc(1, kernel_attention_scratch(&p), 64)};
    gpointer scratch = g_aligned_alloc(1, kernel_attention_backward_scratch(&p), 64);
    kernel_attention(&p, o, q, k, v, lse, a.scratch);
    kernel_attention_backward(&p, dq, dk, dv, g, q, k, v, o, lse, scratch);
    check(attention_forward, &a, q, nq, g, nq, dq);
    check(attention_forward, &a, k, nk, g, nq, dk);
    check(attention_forward, &a, v, nk, g, nq, dv);
    /* Each alone gives the same as all together. */
    kernel_attention_backward(&p, again, NULL, NULL, g, q, k, v, o, lse, scratch);
    g_assert_cmpmem(again, nq * 4, dq, nq * 4);
    kernel_attention_backward(&p, NULL, again, NULL, g, q, k, v, o, lse, scratch);
    g_assert_cmpmem(again, nk * 4, dk, nk * 4);
    kernel_attention_backward(&p, NULL, NULL, again, g, q, k, v, o, lse, scratch);
    g_assert_cmpmem(again, nk * 4, dv, nk * 4);
    g_aligned_free(a.scratch);
    g_aligned_free(scratch);
}

static void test_attention(void)
{
    check_attention(2, 5, 5, 2, 8, FALSE);
    check_attention(1, 7, 11, 1, 40, FALSE);
    check_attention(1, 19, 19, 2, 8, TRUE);
    check_attention(1, 3, 18, 1, 17, FALSE);
    check_attention(1, 1, 1, 1, 1, FALSE);
}

/* -- loss -- */

typedef struct {
    float *pred, *target, *weight;
} Loss;

static void mse_forward(gpointer data, float *y)
{
    Loss *l = data;
    *y = kernel_mse(NET_F32, l->pred, l->target, l->weight, 2, 50, NULL);
}

static void test_mse(void)
{
    g_autofree float *pred = numbers(40, 100), *target = numbers(41, 100), *dpred = g_new(float, 100);
    float weight[2] = {30, 70}, scale = 4;
    Loss l = {pred, target, weight};
    kernel_mse_backward(NET_F32, dpred, pred, target, weight, scale, 2, 50);
    check(mse_forward, &l, pred, 100, &scale, 1, dpred);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/gradient/activations", test_activations);
    g_test_add_func("/gradient/geglu", test_geglu);
    g_test_add_func("/gradient/upsample", test_upsample);
    g_test_add_func("/gradient/add-channel", test_add_channel);
    g_test_add_func("/gradient/layer-norm", test_layer_norm);
    g_test_add_func("/gradient/group-norm", test_group_norm);
    g_test_add_func("/gradient/attention", test_attention);
    g_test_add_func("/gradient/mse", test_mse);
    return g_test_run();
}
