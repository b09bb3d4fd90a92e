/* How each operation of the kernel table is called: the tensors it reads and writes, its arguments. For the
 * checker (tests/kernels/check.c) and `loraflow bench kernel`. */
#ifndef KERNELS_CALLS_PRIVATE_H
#define KERNELS_CALLS_PRIVATE_H
#include "kernels/rows.h"
#include <math.h>
#include <string.h>

enum { BENCH = 1 << 22 }; /* the size that stands for a large tensor */

typedef enum { ANY, SMALL, POSITIVE } Values; /* SMALL: a few units whatever the pattern */
typedef struct {
    NetType type;
    gsize n;
    Values values;
    gboolean start; /* an output that is read too: begins with values */
} Tensor;

typedef struct {
    NetType type; /* of the row */
    gsize rows, c;
    Tensor in[8], out[4]; /* n = 0 ends */
    double flops;         /* 0: bound by memory, bytes are counted */
    gboolean causal;      /* attention */
    gsize tq, tk;
} Plan;

typedef struct {
    const char *op; /* without _f32, _bf16 */
    void (*plan)(Plan *plan, gsize size);
    void (*call)(FlowKernelFn fn, const Plan *plan, void **in, void **out);
    gboolean specials; /* inf and nan come out where they go in */
} Op;

static void shape(Plan *p, gsize size)
{
    p->c = MIN(size, 640);
    p->rows = size == BENCH ? size / p->c : 1 + size % 5;
    if (size == 4097 || size == 1280) {
        p->c = size;
        p->rows = 3;
    }
}

/* -- element by element -- */

static void each_plan(Plan *p, gsize size, guint inputs, gboolean start)
{
    for (guint i = 0; i < inputs; i++)
        p->in[i] = (Tensor){p->type, size, ANY, FALSE};
    p->out[0] = (Tensor){start ? NET_F32 : p->type, size, ANY, start};
}
static void plan_none(Plan *p, gsize size)
{
    each_plan(p, size, 0, FALSE);
}
static void plan_unary(Plan *p, gsize size)
{
    each_plan(p, size, 1, FALSE);
}
static void plan_binary(Plan *p, gsize size)
{
    each_plan(p, size, 2, FALSE);
}
static void plan_axpy(Plan *p, gsize size)
{
    each_plan(p, size, 1, TRUE);
}
static void call_each(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelEach e = {.y = out[0], .a = in[0], .b = in[1], .factor = -1.7f};
    ((KernelEachFn)fn)(&e, 0, p->out[0].n);
}

/* -- conversions: `type` is the 16-bit side -- */

static void plan_narrow(Plan *p, gsize size)
{
    p->in[0] = (Tensor){NET_F32, size, ANY, FALSE};
    p->out[0] = (Tensor){p->type, size, ANY, FALSE};
    p->out[1] = (Tensor){NET_F32, 1, ANY, FALSE};
}
static void plan_widen(Plan *p, gsize size)
{
    p->in[0] = (Tensor){p->type, size, ANY, FALSE};
    p->out[0] = (Tensor){NET_F32, size, ANY, FALSE};
    p->out[1] = (Tensor){NET_F32, 1, ANY, FALSE};
}
static void call_convert(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    *(float *)out[1] = (float)((KernelConvertFn)fn)(out[0], in[0], p->in[0].n);
}

/* -- vectors and rows -- */

static void plan_add_channel(Plan *p, gsize size)
{
    shape(p, size);
    p->in[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
    p->in[1] = (Tensor){p->type, p->c, ANY, FALSE};
    p->out[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
}
static void plan_add_bias(Plan *p, gsize size)
{
    plan_add_channel(p, size);
    p->in[1].type = NET_F32;
}
static void call_add(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    ((KernelAddVectorFn)fn)(out[0], in[0], in[1], p->rows, p->c);
}

static void plan_sum_rows(Plan *p, gsize size)
{
    p->c = MIN(size, KERNEL_SUM_BLOCK);
    p->rows = size == BENCH ? size / p->c : size % 100;
    p->in[0] = (Tensor){p->type, p->rows * (p->c + 3), ANY, FALSE};
    p->out[0] = (Tensor){NET_F32, p->c, ANY, FALSE};
}
static void call_sum_rows(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    ((KernelSumRowsFn)fn)(out[0], in[0], p->c + 3, p->rows, p->c);
}

static void plan_geglu(Plan *p, gsize size)
{
    shape(p, size);
    p->in[0] = (Tensor){p->type, 2 * p->rows * p->c, ANY, FALSE};
    p->out[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
}
static void call_geglu(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    ((KernelGegluFn)fn)(out[0], in[0], p->rows, p->c);
}

static void plan_geglu_backward(Plan *p, gsize size)
{
    shape(p, size);
    p->in[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
    p->in[1] = (Tensor){p->type, 2 * p->rows * p->c, ANY, FALSE};
    p->out[0] = (Tensor){p->type, 2 * p->rows * p->c, ANY, FALSE};
}
static void call_geglu_backward(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    ((KernelGegluBackwardFn)fn)(out[0], in[0], in[1], p->rows, p->c);
}

static void plan_fold(Plan *p, gsize size)
{
    shape(p, size);
    p->in[0] = (Tensor){p->type, 4 * p->rows * p->c, ANY, FALSE};
    p->out[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
}
static void call_fold(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    ((KernelFoldFn)fn)(out[0], in[0], p->rows, p->c);
}

/* -- optimizer -- */

static void plan_count(Plan *p, gsize size)
{
    p->in[0] = (Tensor){p->type, size, ANY, FALSE};
    p->out[0] = (Tensor){NET_F32, 1, ANY, FALSE};
}
static void call_count(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    *(float *)out[0] = (float)((KernelCountFn)fn)(in[0], p->in[0].n);
}
static void call_sum_squares(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    *(float *)out[0] = (float)((KernelSumSquaresFn)fn)(in[0], p->in[0].n);
}

static void plan_adamw(Plan *p, gsize size)
{
    p->in[0] = (Tensor){NET_F32, size, ANY, FALSE};
    p->out[0] = (Tensor){NET_F32, size, SMALL, TRUE};
    p->out[1] = (Tensor){NET_F32, size, ANY, TRUE};
    p->out[2] = (Tensor){NET_F32, size, POSITIVE, TRUE};
}
static void call_adamw(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAdamwRow u = {0.99999f, 0.9f, 0.1f, 0.999f, 0.001f, 2e-3f, 10.0f, 1e-8f, 0.25f};
    ((KernelAdamwFn)fn)(&u, out[0], out[1], out[2], in[0], p->in[0].n);
}

/* -- norms -- */

static void plan_layer_norm(Plan *p, gsize size)
{
    shape(p, size);
    p->in[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
    p->in[1] = (Tensor){NET_F32, p->c, SMALL, FALSE};
    p->in[2] = (Tensor){NET_F32, p->c, SMALL, FALSE};
    p->out[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
    p->out[1] = (Tensor){NET_F32, p->rows, ANY, FALSE};
    p->out[2] = (Tensor){NET_F32, p->rows, ANY, FALSE};
}
static void call_layer_norm(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelLayerNormRow row = {.y = out[0],
                              .x = in[0],
                              .gamma = in[1],
                              .beta = in[2],
                              .c = p->c,
                              .eps = 1e-5f,
                              .mean = out[1],
                              .rstd = out[2]};
    ((KernelLayerNormFn)fn)(&row, 0, p->rows);
}

static void plan_layer_norm_again(Plan *p, gsize size)
{
    plan_layer_norm(p, size);
    p->in[3] = (Tensor){NET_F32, p->rows, SMALL, FALSE};
    p->in[4] = (Tensor){NET_F32, p->rows, POSITIVE, FALSE};
    p->out[1].n = p->out[2].n = 0;
}
static void call_layer_norm_again(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelLayerNormRow row = {.y = out[0],
                              .x = in[0],
                              .gamma = in[1],
                              .beta = in[2],
                              .c = p->c,
                              .kept_mean = in[3],
                              .kept_rstd = in[4]};
    ((KernelLayerNormFn)fn)(&row, 0, p->rows);
}

static void plan_layer_norm_backward(Plan *p, gsize size)
{
    plan_layer_norm_again(p, size);
    p->in[5] = (Tensor){p->type, p->rows * p->c, SMALL, FALSE};
    p->in[6] = (Tensor){p->type, size % 2 ? p->rows * p->c : 0, SMALL, FALSE};
}
static void call_layer_norm_backward(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelLayerNormRow row = {.y = out[0],
                              .x = in[0],
                              .gamma = in[1],
                              .c = p->c,
                              .kept_mean = in[3],
                              .kept_rstd = in[4],
                              .dy = in[5],
                              .add = in[6]};
    ((KernelLayerNormFn)fn)(&row, 0, p->rows);
}

/* in: x, dy, m, s, b, p, q, add; a tensor of the row's width + 3 on the normalised side */
static void plan_group(Plan *p, gsize size, gboolean gradient)
{
    shape(p, size);
    gsize wide = p->rows * (p->c + 3);
    p->in[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
    p->in[1] = (Tensor){p->type, gradient ? wide : 1, SMALL, FALSE};
    for (guint i = 2; i < 7; i++)
        p->in[i] = (Tensor){NET_F32, p->c, SMALL, FALSE};
}
static void plan_group_sums(Plan *p, gsize size)
{
    plan_group(p, size, FALSE);
    p->out[0] = p->out[1] = (Tensor){NET_F32, p->c, SMALL, TRUE};
}
static void plan_group_apply(Plan *p, gsize size)
{
    plan_group(p, size, FALSE);
    p->out[0] = (Tensor){p->type, p->rows * (p->c + 3), ANY, TRUE};
}
static void plan_group_grad_sums(Plan *p, gsize size)
{
    plan_group(p, size, TRUE);
    p->out[0] = p->out[1] = (Tensor){NET_F32, p->c, SMALL, TRUE};
}
static void plan_group_grad(Plan *p, gsize size)
{
    plan_group(p, size, TRUE);
    p->in[7] = (Tensor){p->type, size % 2 ? p->rows * p->c : 0, SMALL, FALSE};
    p->out[0] = (Tensor){p->type, p->rows * p->c, ANY, FALSE};
}
static void call_group(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelGroupNormRow part = {.rows = p->rows, .c = p->c, .x_stride = p->c, .y_stride = p->c + 3};
    part.x = in[0];
    part.dy = in[1];
    part.m = in[2];
    part.s = in[3];
    part.b = in[4];
    part.p = in[5];
    part.q = in[6];
    part.add = in[7];
    part.y = part.dx = part.sum = out[0];
    part.product = out[1];
    ((KernelGroupNormFn)fn)(&part);
}

/* -- attention: a sample and two heads, of which the second is computed -- */

static const struct {
    gsize size, tq, tk, dim;
    gboolean causal;
} attention_shapes[] = {{1, 1, 1, 4, FALSE},         {2, 2, 3, 8, FALSE},          {7, 7, 77, 16, FALSE},
                        {8, 64, 64, 40, FALSE},      {9, 90, 90, 32, TRUE},        {15, 96, 200, 64, FALSE},
                        {31, 31, 300, 48, FALSE},    {320, 90, 130, 80, FALSE},    {1280, 20, 50, 160, FALSE},
                        {4097, 10, 140, 512, FALSE}, {BENCH, 768, 1024, 64, FALSE}};

static void plan_attention_any(Plan *p, gsize size, double products)
{
    guint i = 0;
    while (attention_shapes[i].size != size)
        i++;
    p->tq = attention_shapes[i].tq;
    p->tk = attention_shapes[i].tk;
    p->c = attention_shapes[i].dim;
    p->causal = attention_shapes[i].causal;
    p->flops = products * 2 * (double)(p->tq * p->tk * p->c);
    p->in[0] = (Tensor){p->type, p->tq * 2 * p->c, SMALL, FALSE};
    p->in[1] = (Tensor){p->type, p->tk * 2 * p->c, SMALL, FALSE};
    p->in[2] = (Tensor){p->type, p->tk * 2 * p->c, SMALL, FALSE};
}
static void plan_attention(Plan *p, gsize size)
{
    plan_attention_any(p, size, 2);
    p->out[0] = (Tensor){p->type, p->tq * 2 * p->c, ANY, TRUE};
    p->out[1] = (Tensor){NET_F32, 2 * p->tq, ANY, TRUE};
}
/* in: q, k, v, do, and as lse and delta random numbers large enough that P stays below 1 */
static void plan_attention_gradient(Plan *p, gsize size, double products)
{
    plan_attention_any(p, size, products);
    p->in[3] = (Tensor){p->type, p->tq * 2 * p->c, SMALL, FALSE};
    p->in[4] = (Tensor){NET_F32, 2 * p->tq, POSITIVE, FALSE};
    p->in[5] = (Tensor){NET_F32, 2 * p->tq, SMALL, FALSE};
}
static void plan_attention_delta(Plan *p, gsize size)
{
    plan_attention_gradient(p, size, 0);
    p->in[0].n = p->in[1].n = p->in[2].n = p->in[4].n = 0;
    p->in[5] = (Tensor){p->type, p->tq * 2 * p->c, ANY, FALSE};
    p->out[0] = (Tensor){NET_F32, 2 * p->tq, ANY, TRUE};
}
static void plan_attention_dq(Plan *p, gsize size)
{
    plan_attention_gradient(p, size, 3);
    p->out[0] = (Tensor){p->type, p->tq * 2 * p->c, ANY, TRUE};
}
static void plan_attention_dkv(Plan *p, gsize size)
{
    plan_attention_gradient(p, size, 4);
    p->out[0] = p->out[1] = (Tensor){p->type, p->tk * 2 * p->c, ANY, TRUE};
}
static void plan_attention_backward(Plan *p, gsize size)
{
    plan_attention_gradient(p, size, 5);
    p->out[0] = (Tensor){p->type, p->tq * 2 * p->c, ANY, TRUE};
    p->out[1] = p->out[2] = (Tensor){p->type, p->tk * 2 * p->c, ANY, TRUE};
}
static KernelAttention attention_of(const Plan *p)
{
    gsize s = 2 * p->c;
    return (KernelAttention){.type = p->type,
                             .n = 1,
                             .tq = p->tq,
                             .tk = p->tk,
                             .heads = 2,
                             .dim = p->c,
                             .q_stride = s,
                             .k_stride = s,
                             .v_stride = s,
                             .o_stride = s,
                             .dq_stride = s,
                             .dk_stride = s,
                             .dv_stride = s,
                             .do_stride = s,
                             .scale = 1.0f / sqrtf((float)p->c),
                             .causal = p->causal};
}
static void call_attention_range(FlowKernelFn fn, const Plan *p, KernelAttentionRow *row, gsize t)
{
    KernelAttention a = attention_of(p);
    void *scratch = g_aligned_alloc(1, kernel_attention_tile(&a), 64);
    row->p = &a;
    for (gsize i = 0; i < t; i += KERNEL_ATTENTION_ROWS)
        ((KernelAttentionFn)fn)(row, 0, 1, i, MIN(t, i + KERNEL_ATTENTION_ROWS), scratch);
    g_aligned_free(scratch);
}
static void call_attention(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAttentionRow row = {.q = in[0], .k = in[1], .v = in[2], .o = out[0], .lse_out = out[1]};
    call_attention_range(fn, p, &row, p->tq);
}
static KernelAttentionRow attention_gradient_row(void **in)
{
    return (KernelAttentionRow){
        .q = in[0], .k = in[1], .v = in[2], .do_ = in[3], .lse = in[4], .delta = in[5]};
}
static void call_attention_delta(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAttentionRow row = {.do_ = in[3], .o = in[5], .delta_out = out[0]};
    call_attention_range(fn, p, &row, p->tq);
}
static void call_attention_dq(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAttentionRow row = attention_gradient_row(in);
    row.dq = out[0];
    call_attention_range(fn, p, &row, p->tq);
}
static void call_attention_dkv(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAttentionRow row = attention_gradient_row(in);
    row.dk = out[0];
    row.dv = out[1];
    call_attention_range(fn, p, &row, p->tk);
}

static void call_attention_backward(FlowKernelFn fn, const Plan *p, void **in, void **out)
{
    KernelAttentionRow row = attention_gradient_row(in);
    KernelAttention a = attention_of(p);
    void *scratch = g_aligned_alloc(1, kernel_attention_backward_tile(&a), 64);
    row.p = &a;
    row.dq = out[0];
    row.dk = out[1];
    row.dv = out[2];
    ((KernelAttentionFn)fn)(&row, 0, 1, 0, p->tk, scratch);
    g_aligned_free(scratch);
}

static const Op check_ops[] = {
    {"silu", plan_unary, call_each, TRUE},
    {"gelu", plan_unary, call_each, TRUE},
    {"quick_gelu", plan_unary, call_each, TRUE},
    {"silu_backward", plan_binary, call_each, TRUE},
    {"gelu_backward", plan_binary, call_each, TRUE},
    {"quick_gelu_backward", plan_binary, call_each, TRUE},
    {"add", plan_binary, call_each, TRUE},
    {"scale", plan_unary, call_each, TRUE},
    {"fill", plan_none, call_each, FALSE},
    {"axpy", plan_axpy, call_each, TRUE},
    {"f32_to_f16", plan_narrow, call_convert, TRUE},
    {"f32_to_bf16", plan_narrow, call_convert, TRUE},
    {"f16_to_f32", plan_widen, call_convert, TRUE},
    {"bf16_to_f32", plan_widen, call_convert, TRUE},
    {"add_channel", plan_add_channel, call_add, TRUE},
    {"add_bias", plan_add_bias, call_add, TRUE},
    {"sum_rows", plan_sum_rows, call_sum_rows, TRUE},
    {"geglu", plan_geglu, call_geglu, TRUE},
    {"geglu_backward", plan_geglu_backward, call_geglu_backward, TRUE},
    {"upsample_backward", plan_fold, call_fold, TRUE},
    {"count_nonfinite", plan_count, call_count, TRUE},
    {"sum_squares", plan_count, call_sum_squares, TRUE},
    {"adamw", plan_adamw, call_adamw, FALSE},
    {"layer_norm", plan_layer_norm, call_layer_norm, FALSE},
    {"layer_norm_again", plan_layer_norm_again, call_layer_norm_again, TRUE},
    {"layer_norm_backward", plan_layer_norm_backward, call_layer_norm_backward, FALSE},
    {"group_norm_sums", plan_group_sums, call_group, FALSE},
    {"group_norm_apply", plan_group_apply, call_group, TRUE},
    {"group_norm_apply_silu", plan_group_apply, call_group, TRUE},
    {"group_norm_grad_sums", plan_group_grad_sums, call_group, FALSE},
    {"group_norm_grad_sums_silu", plan_group_grad_sums, call_group, FALSE},
    {"group_norm_grad", plan_group_grad, call_group, FALSE},
    {"group_norm_grad_silu", plan_group_grad, call_group, FALSE},
    {"attention", plan_attention, call_attention, FALSE},
    {"attention_delta", plan_attention_delta, call_attention_delta, FALSE},
    {"attention_dq", plan_attention_dq, call_attention_dq, FALSE},
    {"attention_dkv", plan_attention_dkv, call_attention_dkv, FALSE},
    {"attention_backward", plan_attention_backward, call_attention_backward, FALSE},
};

/* The operation of a row and its element type; NULL if it is not listed above. */
static const Op *op_of(const FlowKernel *row, NetType *type)
{
    for (guint i = 0; i < G_N_ELEMENTS(check_ops); i++) {
        gsize n = strlen(check_ops[i].op);
        if (strncmp(row->op, check_ops[i].op, n))
            continue;
        const char *rest = row->op + n;
        if (strstr(row->op, "_to_") && !*rest)
            *type = strstr(row->op, "bf16") ? NET_BF16 : NET_F16;
        else if (!strcmp(rest, "_f32"))
            *type = NET_F32;
        else if (!strcmp(rest, "_bf16"))
            *type = NET_BF16;
        else
            continue;
        return &check_ops[i];
    }
    return NULL;
}

#endif
