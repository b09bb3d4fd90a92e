/* The public kernel functions: how they divide their work, what they may alias, what they mean.
 *
 * The rows are checked by check.c; here every function runs over shapes that need several chunks, against
 * formulas written out in double, with 1, 2 and 5 threads giving the same bytes. At the end the program runs
 * itself under every FLOW_CPU level.
 * @label short
 * @timeout 60
 */
#include "kernels/attention.h"
#include "kernels/channels.h"
#include "kernels/draw.h"
#include "kernels/elementwise.h"
#include "kernels/embed.h"
#include "kernels/geglu.h"
#include "kernels/group_norm.h"
#include "kernels/haar.h"
#include "kernels/kernel.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/optimizer.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"
#include <math.h>
#include <string.h>

static const NetType both[] = {NET_F32, NET_BF16};
static const guint teams[] = {1, 2, 5};

/* n normal numbers, rounded to `type`; freed with g_free. */
static void *numbers(NetType type, guint64 stream, gsize n)
{
    g_autofree float *x = g_new(float, n + 1);
    philox_normal(5, stream, 0, x, n);
    void *y = g_malloc0(net_type_bytes(type, n) + 16);
    net_convert(y, type, x, NET_F32, n);
    return y;
}

static float at(NetType type, const void *x, gsize i)
{
    return type == NET_F32 ? ((const float *)x)[i] : net_bf16_to_f32(((const guint16 *)x)[i]);
}

static void close_to(NetType type, const void *x, gsize i, double expected)
{
    double limit = type == NET_F32 ? 4e-6 : 8e-3;
    g_assert_cmpfloat(fabs(at(type, x, i) - expected), <=, limit * (1 + fabs(expected)));
}

/* -- element by element -- */

static void test_each(void)
{
    enum { N = 50001 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        g_autofree void *a = numbers(t, 1, N), *b = numbers(t, 2, N), *y = numbers(t, 3, N), *first = NULL;
        for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
            net_set_threads(teams[i]);
            kernel_add(t, y, a, b, N);
            for (gsize e = 0; e < N; e += 77)
                close_to(t, y, e, (double)at(t, a, e) + at(t, b, e));
            kernel_gelu(t, y, y, N);
            kernel_scale(t, y, y, 3, N);
            first = first ? first : g_memdup2(y, net_type_bytes(t, N));
            g_assert_cmpmem(first, net_type_bytes(t, N), y, net_type_bytes(t, N));
        }
        double x = (double)at(t, a, N - 1) + at(t, b, N - 1);
        close_to(t, y, N - 1, 3 * x * 0.5 * (1 + erf(x / sqrt(2))));
        kernel_fill(t, y, -2, N);
        g_assert_cmpfloat(at(t, y, N - 1), ==, -2);
        g_autofree float *sum = numbers(NET_F32, 4, N), *before = g_memdup2(sum, N * sizeof *sum);
        kernel_axpy(sum, 0.5f, t, a, N);
        close_to(NET_F32, sum, N - 1, before[N - 1] + 0.5 * at(t, a, N - 1));
        kernel_silu(t, y, a, N);
        close_to(t, y, 7, at(t, a, 7) / (1 + exp(-at(t, a, 7))));
        kernel_quick_gelu(t, y, a, N);
        close_to(t, y, 7, at(t, a, 7) / (1 + exp(-1.702 * at(t, a, 7))));
    }
}

static void test_cast(void)
{
    enum { N = 200000 };
    g_autofree float *x = numbers(NET_F32, 1, N), *back = g_new(float, N);
    g_autofree guint16 *half = g_new(guint16, N);
    x[3] = x[70000] = 1e5f;
    x[4] = INFINITY;
    for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
        net_set_threads(teams[i]);
        g_assert_cmpuint(kernel_cast(half, NET_F16, x, NET_F32, N), ==, 2);
        g_assert_cmpuint(kernel_cast(back, NET_F32, half, NET_F16, N), ==, 0);
        g_assert_cmphex(half[N - 1], ==, net_f32_to_f16(x[N - 1]));
        g_assert_true(isinf(back[4]) && isinf(back[70000]));
    }
}

static void test_rows(void)
{
    enum { NS = 3, HW = 41, C = 150, N = NS * HW * C };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        g_autofree void *x = numbers(t, 1, N), *e = numbers(t, 2, NS * C), *y = numbers(t, 3, N);
        g_autofree float *bias = numbers(NET_F32, 4, C), *sum = g_new(float, NS *C), *first = NULL;
        for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
            net_set_threads(teams[i]);
            kernel_add_channel(t, y, x, e, NS, HW, C);
            for (gsize j = 0; j < N; j++)
                close_to(t, y, j, (double)at(t, x, j) + at(t, e, j / (HW * C) * C + j % C));
            kernel_add_bias(t, y, x, bias, NS * HW, C);
            for (gsize j = 0; j < N; j++)
                close_to(t, y, j, (double)at(t, x, j) + bias[j % C]);
            kernel_sum_rows(sum, t, x, NS, HW, C);
            first = first ? first : g_memdup2(sum, NS * C * sizeof *sum);
            g_assert_cmpmem(first, NS * C * sizeof *sum, sum, NS * C * sizeof *sum);
        }
        for (gsize j = 0; j < NS * C; j++) {
            double s = 0;
            for (gsize r = 0; r < HW; r++)
                s += at(t, x, (j / C * HW + r) * C + j % C);
            close_to(NET_F32, sum, j, s);
        }
    }
}

/* -- moving -- */

static void test_channels(void)
{
    enum { ROWS = 700, CA = 30, CB = 45 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        gsize size = net_type_bytes(t, 1);
        g_autofree char *a = numbers(t, 1, ROWS * CA), *b = numbers(t, 2, ROWS * CB);
        g_autofree char *y = g_malloc(ROWS * (CA + CB) * size), *a2 = g_malloc0(ROWS * CA * size);
        g_autofree char *b2 = g_malloc0(ROWS * CB * size);
        kernel_concat(t, y, a, CA, b, CB, ROWS);
        for (gsize r = 0; r < ROWS; r++) {
            g_assert_cmpmem(y + r * (CA + CB) * size, CA * size, a + r * CA * size, CA * size);
            g_assert_cmpmem(y + (r * (CA + CB) + CA) * size, CB * size, b + r * CB * size, CB * size);
        }
        kernel_split(t, a2, CA, b2, CB, y, ROWS);
        g_assert_cmpmem(a2, ROWS * CA * size, a, ROWS * CA * size);
        g_assert_cmpmem(b2, ROWS * CB * size, b, ROWS * CB * size);
        memset(a2, 0, ROWS * CA * size);
        memset(b2, 0, ROWS * CB * size);
        kernel_split(t, NULL, CA, b2, CB, y, ROWS);
        g_assert_cmpmem(b2, ROWS * CB * size, b, ROWS * CB * size);
        kernel_split(t, a2, CA, NULL, CB, y, ROWS);
        g_assert_cmpmem(a2, ROWS * CA * size, a, ROWS * CA * size);
    }
}

static void test_upsample(void)
{
    enum { NS = 2, H = 5, W = 7, C = 33 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        g_autofree void *x = numbers(t, 1, NS * H * W * C),
                        *y = g_malloc(net_type_bytes(t, 4 * NS * H * W * C));
        g_autofree void *dy = numbers(t, 2, 4 * NS * H * W * C),
                        *dx = g_malloc(net_type_bytes(t, NS * H * W * C));
        kernel_upsample(t, y, x, NS, H, W, C);
        kernel_upsample_backward(t, dx, dy, NS, H, W, C);
        for (gsize i = 0; i < NS * H * W * C; i++) {
            gsize c = i % C, px = i / C % W, line = i / C / W; /* line counts over the samples too */
            double sum = 0;
            for (gsize q = 0; q < 4; q++) {
                gsize to = ((2 * line + q / 2) * 2 * W + 2 * px + q % 2) * C + c;
                g_assert_cmpfloat(at(t, y, to), ==, at(t, x, i));
                sum += at(t, dy, to);
            }
            close_to(t, dx, i, sum);
        }
    }
}

static void test_layout(void)
{
    enum { N = 3, C = 37, HW = 70 };
    for (gsize size = 1; size <= 4; size *= 2) {
        g_autofree guint8 *x = numbers(NET_F32, 1, N * C * HW), *y = g_malloc0(N * C * HW * size);
        g_autofree guint8 *back = g_malloc0(N * C * HW * size);
        kernel_to_channels_last(y, x, size, N, C, HW);
        for (gsize n = 0; n < N; n++)
            for (gsize c = 0; c < C; c++)
                for (gsize p = 0; p < HW; p++)
                    g_assert_cmpmem(y + ((n * HW + p) * C + c) * size, size,
                                    x + ((n * C + c) * HW + p) * size, size);
        kernel_to_channels_first(back, y, size, N, C, HW);
        g_assert_cmpmem(back, N * C * HW * size, x, N * C * HW * size);
    }
}

/* -- norms -- */

static void test_layer_norm(void)
{
    enum { ROWS = 90, C = 333 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        gsize nbytes = net_type_bytes(t, ROWS * C);
        g_autofree void *x = numbers(t, 1, ROWS * C), *y = g_malloc(nbytes), *again = g_memdup2(x, nbytes);
        g_autofree float *gamma = numbers(NET_F32, 2, C), *beta = numbers(NET_F32, 3, C);
        float mean[ROWS], rstd[ROWS];
        kernel_layer_norm(t, y, x, gamma, beta, ROWS, C, 1e-5f, mean, rstd);
        for (gsize r = 0; r < ROWS; r++) {
            double m = 0, v = 0;
            for (gsize i = 0; i < C; i++)
                m += at(t, x, r * C + i) / (double)C;
            for (gsize i = 0; i < C; i++)
                v += (at(t, x, r * C + i) - m) * (at(t, x, r * C + i) - m) / (double)C;
            g_assert_cmpfloat(fabs(mean[r] - m), <, 1e-6);
            for (gsize i = 0; i < C; i++)
                close_to(t, y, r * C + i, (at(t, x, r * C + i) - m) / sqrt(v + 1e-5) * gamma[i] + beta[i]);
        }
        kernel_layer_norm_again(t, again, again, gamma, beta, ROWS, C, mean, rstd);
        g_assert_cmpmem(again, nbytes, y, nbytes);
        kernel_layer_norm(t, x, x, gamma, beta, ROWS, C, 1e-5f, NULL, NULL);
        g_assert_cmpmem(x, nbytes, y, nbytes);
    }
}

/* Against the formula in double, over a tensor of many chunks whose mean is far from 0. */
static void check_group_norm(NetType t, gsize ca, gsize cb, gsize hw, gsize groups, gboolean silu)
{
    enum { N = 2 };
    gsize c = ca + cb, size = net_type_bytes(t, 1), n = N * hw * c, width = c / groups;
    g_autofree char *x = numbers(t, 1, n), *a = g_malloc(N * hw * ca * size),
                    *b = g_malloc(N * hw * cb * size + 1);
    g_autofree char *y = g_malloc(n * size), *first = NULL;
    g_autofree float *gamma = numbers(NET_F32, 2, c), *beta = numbers(NET_F32, 3, c),
                     *mean = g_new(float, N *groups);
    g_autofree float *rstd = g_new(float, N *groups);
    g_autofree float *shift = g_new(float, n);
    for (gsize i = 0; i < n; i++)
        shift[i] = at(t, x, i) * 2 + 20 + (float)(i % c);
    net_convert(x, t, shift, NET_F32, n);
    kernel_split(t, a, ca, cb ? b : NULL, cb, x, N * hw);
    KernelGroupNorm p = {t, N, hw, ca, cb, groups, 1e-5f, silu, gamma, beta};
    for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
        net_set_threads(teams[i]);
        gpointer scratch = g_aligned_alloc(1, kernel_group_norm_scratch(&p), 64);
        kernel_group_norm(&p, y, a, cb ? b : NULL, mean, rstd, scratch);
        first = first ? first : g_memdup2(y, n * size);
        g_assert_cmpmem(first, n * size, y, n * size);
        memset(y, 0, n * size);
        kernel_group_norm_again(&p, y, a, cb ? b : NULL, mean, rstd, scratch);
        g_assert_cmpmem(first, n * size, y, n * size);
        g_aligned_free(scratch);
    }
    for (gsize s = 0; s < N * groups; s++) {
        double m = 0, v = 0, count = (double)(hw * width);
        gsize base = s / groups * hw * c + s % groups * width;
        for (gsize i = 0; i < hw * width; i++)
            m += at(t, x, base + i / width * c + i % width) / count;
        for (gsize i = 0; i < hw * width; i++)
            v += pow(at(t, x, base + i / width * c + i % width) - m, 2) / count;
        g_assert_cmpfloat(fabs(mean[s] - m) / fabs(m), <, 1e-6);
        g_assert_cmpfloat(fabs(rstd[s] * sqrt(v + 1e-5) - 1), <, 1e-6);
        for (gsize i = 0; i < hw * width; i += 5) {
            gsize e = base + i / width * c + i % width;
            double z = (at(t, x, e) - m) / sqrt(v + 1e-5) * gamma[e % c] + beta[e % c];
            close_to(t, y, e, silu ? z / (1 + exp(-z)) : z);
        }
    }
}

static void test_group_norm(void)
{
    for (guint k = 0; k < 2; k++) {
        check_group_norm(both[k], 64, 0, 1100, 32, FALSE);
        check_group_norm(both[k], 40, 24, 900, 4, TRUE); /* a group straddles the border */
        check_group_norm(both[k], 32, 0, 1, 32, TRUE);
    }
}

/* In place, forward and backward, as the header allows. */
static void test_group_norm_alias(void)
{
    enum { N = 2, HW = 600, CA = 48, CB = 32, C = CA + CB };
    g_autofree float *a = numbers(NET_F32, 1, N * HW * CA), *b = numbers(NET_F32, 2, N * HW * CB);
    g_autofree float *dy = numbers(NET_F32, 3, N * HW * C), *gamma = numbers(NET_F32, 4, C),
                     *beta = numbers(NET_F32, 5, C);
    g_autofree float *y = g_new(float, N *HW *C), *da = g_new(float, N *HW *CA),
                     *db = g_new(float, N *HW *CB);
    float mean[32], rstd[32];
    KernelGroupNorm one = {NET_F32, N, HW, CA, 0, 16, 1e-5f, TRUE, gamma, beta}, two = one;
    two.cb = CB;
    gpointer scratch = g_aligned_alloc(1, kernel_group_norm_scratch(&two), 64);
    kernel_group_norm(&two, y, a, b, mean, rstd, scratch);
    kernel_group_norm_backward(&two, da, db, NULL, NULL, dy, a, b, mean, rstd, scratch);
    g_autofree float *a2 = g_memdup2(a, N * HW * CA * 4), *b2 = g_memdup2(b, N * HW * CB * 4);
    kernel_group_norm_backward(&two, a2, b2, NULL, NULL, dy, a2, b2, mean, rstd, scratch);
    g_assert_cmpmem(a2, N * HW * CA * 4, da, N * HW * CA * 4);
    g_assert_cmpmem(b2, N * HW * CB * 4, db, N * HW * CB * 4);
    kernel_group_norm(&one, y, a, NULL, mean, rstd, scratch);
    kernel_group_norm_backward(&one, da, NULL, NULL, NULL, dy, a, NULL, mean, rstd, scratch);
    kernel_group_norm_backward(&one, dy, NULL, NULL, NULL, dy, a, NULL, mean, rstd, scratch);
    g_assert_cmpmem(dy, N * HW * CA * 4, da, N * HW * CA * 4);
    kernel_group_norm(&one, a, a, NULL, mean, rstd, scratch);
    g_assert_cmpmem(a, N * HW * CA * 4, y, N * HW * CA * 4);
    g_aligned_free(scratch);
}

static void test_geglu(void)
{
    enum { ROWS = 37, C = 520 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        g_autofree void *u = numbers(t, 1, 2 * ROWS * C), *y = g_malloc(net_type_bytes(t, ROWS * C));
        net_set_threads(5);
        kernel_geglu(t, y, u, ROWS, C);
        for (gsize i = 0; i < ROWS * C; i++) {
            double a = at(t, u, i / C * 2 * C + i % C), g = at(t, u, (i / C * 2 + 1) * C + i % C);
            close_to(t, y, i, a * g * 0.5 * (1 + erf(g / sqrt(2))));
        }
    }
}

/* -- attention -- */

typedef struct {
    NetType type;
    gsize n, tq, tk, heads, dim;
    gboolean causal;
} Shape;

/* o and lse of one query in double. */
static void attend(const KernelAttention *p, const void *q, const void *k, const void *v, gsize n, gsize h,
                   gsize i, double *o, double *lse)
{
    g_autofree double *s = g_new(double, p->tk);
    gsize keys = p->causal ? i + 1 : p->tk;
    double most = -INFINITY, sum = 0;
    for (gsize j = 0; j < keys; j++) {
        s[j] = 0;
        for (gsize d = 0; d < p->dim; d++)
            s[j] += (double)at(p->type, q, (n * p->tq + i) * p->q_stride + h * p->dim + d) *
                    at(p->type, k, (n * p->tk + j) * p->k_stride + h * p->dim + d) * p->scale;
        most = MAX(most, s[j]);
    }
    memset(o, 0, p->dim * sizeof *o);
    for (gsize j = 0; j < keys; j++) {
        double e = exp(s[j] - most);
        sum += e;
        for (gsize d = 0; d < p->dim; d++)
            o[d] += e * at(p->type, v, (n * p->tk + j) * p->v_stride + h * p->dim + d);
    }
    for (gsize d = 0; d < p->dim; d++)
        o[d] /= sum;
    *lse = most + log(sum);
}

/* A fused q k v buffer (self-attention) or a fused k v buffer; the gradients in buffers of the same shape.
 * Five threads take the two passes, one thread the single pass: the bits must agree. */
static void check_attention(Shape s)
{
    NetType t = s.type;
    gboolean self = s.tq == s.tk;
    gsize c = s.heads * s.dim, size = net_type_bytes(t, 1), wide = self ? 3 * c : 2 * c;
    gsize nq = s.n * s.tq * (self ? wide : c), nk = s.n * s.tk * wide;
    KernelAttention p = {.type = t,
                         .n = s.n,
                         .tq = s.tq,
                         .tk = s.tk,
                         .heads = s.heads,
                         .dim = s.dim,
                         .q_stride = self ? wide : c,
                         .k_stride = wide,
                         .v_stride = wide,
                         .o_stride = c,
                         .dq_stride = self ? wide : c,
                         .dk_stride = wide,
                         .dv_stride = wide,
                         .do_stride = c,
                         .scale = 1 / sqrtf((float)s.dim),
                         .causal = s.causal};
    g_autofree char *kv = numbers(t, 1, nk), *other = numbers(t, 2, nq), *o = g_malloc(s.n * s.tq * c * size);
    g_autofree char *g = numbers(t, 3, s.n * s.tq * c), *dkv = g_malloc0(nk * size),
                    *dother = g_malloc0(nq * size);
    g_autofree float *lse = g_new(float, s.n *s.heads *s.tq);
    g_autofree char *first_o = NULL, *first_dkv = NULL, *first_dq = NULL;
    char *q = self ? kv : other, *k = self ? kv + c * size : kv, *v = k + c * size;
    char *dq = self ? dkv : dother, *dk = self ? dkv + c * size : dkv, *dv = dk + c * size;
    for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
        net_set_threads(teams[i]);
        gsize room = MAX(kernel_attention_scratch(&p), kernel_attention_backward_scratch(&p));
        char *scratch = g_aligned_alloc(1, room + 64, 64);
        memset(scratch, 0xff, room + 64); /* NaN: nothing may be read before it is written */
        kernel_attention(&p, o, q, k, v, lse, scratch);
        memset(scratch, 0xff, room);
        kernel_attention_backward(&p, dq, dk, dv, g, q, k, v, o, lse, scratch);
        for (guint e = 0; e < 64; e++)
            g_assert_cmphex((guint8)scratch[room + e], ==, 0xff);
        g_aligned_free(scratch);
        first_o = first_o ? first_o : g_memdup2(o, s.n * s.tq * c * size);
        first_dkv = first_dkv ? first_dkv : g_memdup2(dkv, nk * size);
        first_dq = first_dq ? first_dq : g_memdup2(dother, nq * size);
        g_assert_cmpmem(first_o, s.n * s.tq * c * size, o, s.n * s.tq * c * size);
        g_assert_cmpmem(first_dkv, nk * size, dkv, nk * size);
        g_assert_cmpmem(first_dq, nq * size, dother, nq * size);
    }
    g_autofree double *expected = g_new(double, s.dim);
    for (gsize row = 0; row < s.n * s.tq; row += 1 + s.tq / 9)
        for (gsize h = 0; h < s.heads; h++) {
            double l;
            attend(&p, q, k, v, row / s.tq, h, row % s.tq, expected, &l);
            g_assert_cmpfloat(fabs(lse[(row / s.tq * s.heads + h) * s.tq + row % s.tq] - l), <, 1e-5);
            for (gsize d = 0; d < s.dim; d++)
                close_to(t, o, row * c + h * s.dim + d, expected[d]);
        }
}

static void test_attention(void)
{
    for (guint k = 0; k < 2; k++) {
        check_attention((Shape){both[k], 1, 200, 200, 2, 40, FALSE});
        check_attention((Shape){both[k], 2, 101, 77, 1, 24, FALSE});
        check_attention((Shape){both[k], 1, 197, 197, 3, 16, TRUE});
        check_attention((Shape){both[k], 1, 30, 201, 1, 21, FALSE});
        check_attention((Shape){both[k], 2, 1, 1, 2, 8, TRUE});
    }
}

/* Scores up to 900: no overflow, and every query sees its own key alone. */
static void test_attention_extreme(void)
{
    enum { T = 250, D = 16 };
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        KernelAttention p = {.type = t,
                             .n = 1,
                             .tq = T,
                             .tk = T,
                             .heads = 1,
                             .dim = D,
                             .q_stride = D,
                             .k_stride = D,
                             .v_stride = D,
                             .o_stride = D,
                             .dq_stride = D,
                             .dk_stride = D,
                             .dv_stride = D,
                             .do_stride = D,
                             .scale = 1};
        g_autofree float *x = numbers(NET_F32, 1, T * D);
        float lse[T];
        g_autofree void *q = numbers(t, 1, T * D), *v = numbers(t, 2, T * D), *o = numbers(t, 3, T * D);
        g_autofree void *g = numbers(t, 3, T * D), *dq = numbers(t, 3, T * D), *dk = numbers(t, 3, T * D);
        g_autofree void *dv = numbers(t, 3, T * D);
        for (gsize i = 0; i < T; i++) { /* rows of length 30 */
            double norm = 0;
            for (gsize d = 0; d < D; d++)
                norm += x[i * D + d] * x[i * D + d];
            for (gsize d = 0; d < D; d++)
                x[i * D + d] *= (float)(30 / sqrt(norm));
        }
        net_convert(q, t, x, NET_F32, T * D);
        gpointer scratch = g_aligned_alloc(1, kernel_attention_backward_scratch(&p), 64);
        kernel_attention(&p, o, q, q, v, lse, scratch);
        kernel_attention_backward(&p, dq, dk, dv, g, q, q, v, o, lse, scratch);
        g_aligned_free(scratch);
        for (gsize i = 0; i < T * D; i++) {
            close_to(t, o, i, at(t, v, i)); /* 900 is far above every other score */
            /* f32 holds lse = 900 to 3e-5, and P is made of it: the price of scores that large. */
            if (t == NET_F32)
                g_assert_cmpfloat(fabs(at(t, dv, i) / at(t, g, i) - 1), <, 1e-4);
            else
                close_to(t, dv, i, at(t, g, i));
            g_assert_true(isfinite(at(t, dq, i)) && isfinite(at(t, dk, i)));
        }
    }
}

/* -- tables, noise, loss -- */

static void test_embed(void)
{
    enum { NS = 2, T = 5, C = 1100, ROWS = 9 };
    static const gint32 ids[NS * T] = {0, 8, 3, 3, 1, 7, 0, 2, 8, 8}, index[NS] = {4, 0};
    g_autofree guint16 *table = numbers(NET_F16, 1, ROWS * C);
    g_autofree float *positions = numbers(NET_F32, 2, T * C), *y = g_new(float, NS *T *C);
    float picked[NS * C];
    kernel_embed(NET_F32, y, ids, NET_F16, table, NET_F32, positions, NS, T, C);
    for (gsize i = 0; i < NS * T * C; i++)
        g_assert_cmpfloat(y[i], ==,
                          net_f16_to_f32(table[(gsize)ids[i / C] * C + i % C]) + positions[i % (T * C)]);
    kernel_pick_row(NET_F32, picked, y, index, NS, T, C);
    g_assert_cmpmem(picked, C * 4, y + 4 * C, C * 4);
    g_assert_cmpmem(picked + C, C * 4, y + T * C, C * 4);
    kernel_embed(NET_F32, y, ids, NET_F16, table, NET_F32, NULL, NS, T, C);
    g_assert_cmpfloat(y[T * C], ==, net_f16_to_f32(table[7 * C]));
}

/* Exact f32 order: the double formula is off by up to 5e-5 at t = 999 and must not be matched better than
 * that. */
static void test_sinusoid(void)
{
    float t[3] = {0, 999, 17}, y[3 * 320], odd[5];
    double worst = 0;
    kernel_sinusoid(NET_F32, y, t, 3, 320);
    g_assert_cmpfloat(y[0], ==, 1);
    g_assert_cmpfloat(y[160], ==, 0);
    for (gsize i = 0; i < 160; i++) {
        float e = (float)-log(10000.0) * (float)i;
        e = e / 160.0f;
        float a = 999.0f * expf(e);
        g_assert_cmpfloat(fabs(y[320 + i] - cos(a)), <, 1e-7);
        g_assert_cmpfloat(fabs(y[480 + i] - sin(a)), <, 1e-7);
        worst = MAX(worst, fabs(y[480 + i] - sin(999 * exp(-log(1e4) * (double)i / 160))));
    }
    g_assert_cmpfloat(worst, >, 1e-6);
    g_assert_cmpfloat(worst, <, 1e-4);
    kernel_sinusoid(NET_F32, odd, t + 2, 1, 5);
    g_assert_cmpfloat(odd[4], ==, 0);
}

static void test_draw(void)
{
    enum { NS = 3, HW = 700, C = 4, PER = HW * C, N = NS * PER };
    g_autofree float *mean = numbers(NET_F32, 1, N), *logvar = numbers(NET_F32, 2, N),
                     *noise = numbers(NET_F32, 3, N);
    g_autofree float *x = g_new(float, N), *target = g_new(float, N), *x2 = g_new(float, N),
                     *target2 = g_new(float, N);
    g_autofree float *n1 = g_new(float, PER), *n2 = g_new(float, PER);
    float n3[C];
    gint64 key[NS] = {11, -5, 11};
    float offset[NS] = {0, 0.1f, 0}, bar[NS] = {0.9f, 0.3f, 0.9f};
    KernelDraw p = {.n = NS,
                    .hw = HW,
                    .c = C,
                    .mean = mean,
                    .logvar = logvar,
                    .key = key,
                    .offset = offset,
                    .alpha_bar = bar,
                    .scaling = 0.18215f};
    memcpy(mean + 2 * PER, mean, PER * 4);
    memcpy(logvar + 2 * PER, logvar, PER * 4);
    logvar[7] = 1000; /* clamped to 20 */
    net_set_threads(5);
    kernel_draw(&p, NET_F32, x, target);
    /* The same key at another place in the batch: the same draw. */
    g_assert_cmpmem(x + 8, (PER - 8) * 4, x + 2 * PER + 8, (PER - 8) * 4);
    for (gsize s = 0; s < 2; s++) {
        philox_normal((guint64)key[s], KERNEL_DRAW_LATENT, 0, n1, PER);
        philox_normal((guint64)key[s], KERNEL_DRAW_NOISE, 0, n2, PER);
        philox_normal((guint64)key[s], KERNEL_DRAW_OFFSET, 0, n3, C);
        for (gsize i = 0; i < PER; i++) {
            double x0 = 0.18215 * (mean[s * PER + i] + exp(MIN(logvar[s * PER + i], 20) / 2) * n1[i]);
            double e = n2[i] + offset[s] * n3[i % C];
            close_to(NET_F32, target, s * PER + i, e);
            close_to(NET_F32, x, s * PER + i, sqrt(bar[s]) * x0 + sqrt(1 - bar[s]) * e);
        }
    }
    /* v prediction, noise and latent given: nothing is drawn. */
    KernelDraw given = {
        .n = NS, .hw = HW, .c = C, .latent = mean, .noise = noise, .alpha_bar = bar, .v = TRUE};
    kernel_draw(&given, NET_F32, x2, target2);
    for (gsize i = 0; i < N; i++) {
        double a = sqrt(bar[i / PER]), b = sqrt(1 - bar[i / PER]);
        close_to(NET_F32, x2, i, a * mean[i] + b * noise[i]);
        close_to(NET_F32, target2, i, a * noise[i] - b * mean[i]);
    }
    g_autofree guint16 *half = g_new(guint16, N);
    net_set_threads(1);
    kernel_draw(&p, NET_BF16, half, target2);
    g_assert_cmpmem(target, N * 4, target2, N * 4);
    g_assert_cmphex(half[N - 1], ==, net_f32_to_bf16(x[N - 1]));
    kernel_draw(&p, NET_BF16, NULL, target2);
}

static void test_mse(void)
{
    enum { NS = 3, PER = 1000 };
    g_autofree float *pred = numbers(NET_F32, 1, NS * PER), *target = numbers(NET_F32, 2, NS * PER);
    float weight[NS] = {0.5f, 2, 0}, each[NS];
    float loss = kernel_mse(NET_F32, pred, target, weight, NS, PER, each);
    double expected = 0;
    for (gsize s = 0; s < NS; s++) {
        double m = 0;
        for (gsize i = s * PER; i < (s + 1) * PER; i++)
            m += pow((double)pred[i] - target[i], 2) / PER;
        close_to(NET_F32, each, s, m);
        expected += weight[s] * m;
    }
    g_assert_cmpfloat(fabs(loss - expected), <, 1e-6 * expected);
    kernel_mse_backward(NET_F32, pred, pred, target, weight, 8, NS, PER);
    g_assert_cmpfloat(pred[NS * PER - 1], ==, 0);
}

/* -- Haar -- */

static void test_haar(void)
{
    enum { H = 12, W = 20, C = 3, N = H * W * C };
    g_assert_cmpuint(kernel_haar_levels(12, 20, 9), ==, 2);
    g_assert_cmpuint(kernel_haar_levels(64, 64, 3), ==, 3);
    g_assert_cmpuint(kernel_haar_levels(7, 8, 1), ==, 0);
    g_autofree float *x = numbers(NET_F32, 1, N), *y = g_memdup2(x, N * 4), *scratch = g_new(float, N);
    for (guint levels = 0; levels <= 2; levels++) {
        double before = 0, after = 0;
        memcpy(y, x, N * 4);
        kernel_haar(y, scratch, H, W, C, levels);
        for (gsize i = 0; i < N; i++) {
            before += x[i] * x[i];
            after += y[i] * y[i];
        }
        g_assert_cmpfloat(fabs(after / before - 1), <, 1e-6);
        kernel_haar_inverse(y, scratch, H, W, C, levels);
        for (gsize i = 0; i < N; i++)
            close_to(NET_F32, y, i, x[i]);
    }
    /* A constant picture is its low-low corner: the constant times 2 a level. */
    for (gsize i = 0; i < N; i++)
        y[i] = 1;
    kernel_haar(y, scratch, H, W, C, 2);
    for (gsize i = 0; i < N; i++)
        g_assert_cmpfloat(y[i], ==, i / C / W < H / 4 && i / C % W < W / 4 ? 4 : 0);
    /* One level of a 2 x 2 square, and where its parts go. */
    float square[4] = {1, 2, 3, 5}, four[4];
    kernel_haar(square, four, 2, 2, 1, 1);
    g_assert_cmpfloat(square[0], ==, 5.5f);
    g_assert_cmpfloat(square[1], ==, -1.5f);
    g_assert_cmpfloat(square[2], ==, -2.5f);
    g_assert_cmpfloat(square[3], ==, 0.5f);
}

/* -- optimizer -- */

static void test_finite(void)
{
    enum { N = 100000 };
    gsize first;
    for (guint k = 0; k < 2; k++) {
        NetType t = both[k];
        g_autofree void *x = numbers(t, 1, N);
        for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
            net_set_threads(teams[i]);
            g_assert_cmpuint(kernel_count_nonfinite(t, x, N, &first), ==, 0);
            g_assert_cmpuint(first, ==, N);
            g_autofree char *bad = g_memdup2(x, net_type_bytes(t, N));
            float values[] = {NAN, INFINITY, -INFINITY};
            gsize places[] = {99999, 70001, 40003};
            for (guint j = 0; j < 3; j++)
                net_convert(bad + net_type_bytes(t, places[j]), t, &values[j], NET_F32, 1);
            g_assert_cmpuint(kernel_count_nonfinite(t, bad, N, &first), ==, 3);
            /* D-04 */
            g_assert_cmpuint(first, ==, 40003);
            g_assert_cmpuint(kernel_count_nonfinite(t, bad, 0, NULL), ==, 0);
        }
    }
}

static void test_sum_squares(void)
{
    gsize n = 9 * 1024 * 1024 + 5; /* more than one group of chunks */
    g_autofree float *x = g_new(float, n);
    double expected = 0, first = 0;
    for (gsize i = 0; i < n; i++) {
        x[i] = (float)(i % 1001) - 500;
        expected += (double)x[i] * x[i];
    }
    for (guint i = 0; i < G_N_ELEMENTS(teams); i++) {
        net_set_threads(teams[i]);
        double sum = kernel_sum_squares(x, n);
        g_assert_cmpfloat(sum, ==, expected); /* integers: exact */
        first = first ? first : sum;
        /* H-13 */
        g_assert_cmpfloat(sum, ==, first);
    }
}

static void test_adamw(void)
{
    enum { N = 40000 };
    g_autofree float *p = numbers(NET_F32, 1, N), *m = g_new0(float, N), *v = g_new0(float, N), *g = NULL;
    g_autofree double *dp = g_new(double, N), *dm = g_new0(double, N), *dv = g_new0(double, N);
    for (gsize i = 0; i < N; i++)
        dp[i] = p[i];
    for (guint64 step = 1; step <= 3; step++) {
        KernelAdamw a = {1e-3, 0.9, 0.999, 1e-8, 1e-2, step, 0.5};
        g_free(g);
        g = numbers(NET_F32, 10 + step, N);
        net_set_threads(teams[step - 1]);
        kernel_adamw(&a, p, m, v, g, N);
        for (gsize i = 0; i < N; i++) {
            double d = 0.5 * g[i];
            dp[i] *= 1 - 1e-3 * 1e-2;
            dm[i] = 0.9 * dm[i] + 0.1 * d;
            dv[i] = 0.999 * dv[i] + 0.001 * d * d;
            dp[i] -= 1e-3 * (dm[i] / (1 - pow(0.9, (double)step))) /
                     (sqrt(dv[i] / (1 - pow(0.999, (double)step))) + 1e-8);
            g_assert_cmpfloat(fabs(p[i] - dp[i]), <, 1e-7 + 3e-7 * fabs(dp[i]));
        }
    }
}

/* D-10: a gradient of zero leaves the weights as they are; below eps it moves them as little as it should. */
static void test_adamw_zero(void)
{
    enum { N = 1000 };
    g_autofree float *p = numbers(NET_F32, 1, N), *before = g_memdup2(p, N * sizeof(float));
    g_autofree float *m = g_new0(float, N), *v = g_new0(float, N), *g = g_new0(float, N);
    for (guint64 step = 1; step <= 20; step++) {
        KernelAdamw a = {1e-3, 0.9, 0.999, 1e-8, 0, step, 1};
        kernel_adamw(&a, p, m, v, g, N);
    }
    g_assert_cmpmem(p, N * sizeof(float), before, N * sizeof(float));
    for (gsize i = 0; i < N; i++) {
        g[i] = 1e-12f;
        p[i] = m[i] = v[i] = 0;
    }
    KernelAdamw a = {1, 0.9, 0.999, 1e-8, 0, 1, 1};
    kernel_adamw(&a, p, m, v, g, N);
    for (gsize i = 0; i < N; i++) /* 1e-12 / (1e-12 + 1e-8); without eps it would be 1 */
        g_assert_cmpfloat(fabs((double)p[i] / -0.9999e-4 - 1), <, 1e-4);
}

/* -- levels -- */

static void test_level(void)
{
    static const struct {
        const char *name;
        guint mask;
    } levels[] = {{"0", 0}, {"avx2", 1}, {"avx512", 3}, {"avx512_bf16", 7}};
    const char *name = g_getenv("FLOW_CPU");
    for (guint i = 0; name && i < G_N_ELEMENTS(levels); i++)
        if (!strcmp(name, levels[i].name))
            g_assert_cmphex(flow_cpu() & ~levels[i].mask, ==, 0);
    /* What is chosen has the greatest needs that the machine meets. */
    guint n;
    const FlowKernel *rows = flow_kernels(&n);
    for (guint i = 0; i < n; i++) {
        FlowKernelFn fn = flow_kernel_find(rows[i].op);
        for (guint j = 0; j < n; j++)
            if (rows[j].fn == fn && !(rows[i].needs & ~flow_cpu()))
                g_assert_cmpuint(rows[j].needs, >=, rows[i].needs);
    }
}

static int run_level(const char *program, const char *level)
{
    const char *argv[] = {program, NULL};
    g_auto(GStrv) env = g_environ_setenv(g_get_environ(), "FLOW_CPU", level, TRUE);
    g_autoptr(GError) error = NULL;
    int status;
    g_print("# FLOW_CPU=%s\n", level);
    if (!g_spawn_sync(NULL, (char **)argv, env, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, NULL, &status,
                      &error))
        g_error("cannot run %s: %s", program, error->message);
    return status;
}

int main(int argc, char **argv)
{
    g_autofree char *program = g_strdup(argv[0]);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ops/level", test_level);
    g_test_add_func("/ops/each", test_each);
    g_test_add_func("/ops/cast", test_cast);
    g_test_add_func("/ops/rows", test_rows);
    g_test_add_func("/ops/channels", test_channels);
    g_test_add_func("/ops/upsample", test_upsample);
    g_test_add_func("/ops/layout", test_layout);
    g_test_add_func("/ops/layer-norm", test_layer_norm);
    g_test_add_func("/ops/group-norm", test_group_norm);
    g_test_add_func("/ops/group-norm-alias", test_group_norm_alias);
    g_test_add_func("/ops/geglu", test_geglu);
    g_test_add_func("/ops/attention", test_attention);
    g_test_add_func("/ops/attention-extreme", test_attention_extreme);
    g_test_add_func("/ops/embed", test_embed);
    g_test_add_func("/ops/sinusoid", test_sinusoid);
    g_test_add_func("/ops/draw", test_draw);
    g_test_add_func("/ops/mse", test_mse);
    g_test_add_func("/ops/haar", test_haar);
    g_test_add_func("/ops/finite", test_finite);
    g_test_add_func("/ops/sum-squares", test_sum_squares);
    g_test_add_func("/ops/adamw", test_adamw);
    g_test_add_func("/ops/adamw_zero", test_adamw_zero);
    int failed = g_test_run();
    static const char *levels[] = {"0", "avx2", "avx512"};
    for (guint i = 0; !g_getenv("FLOW_CPU") && i < G_N_ELEMENTS(levels); i++)
        failed |= run_level(program, levels[i]);
    return failed != 0;
}
