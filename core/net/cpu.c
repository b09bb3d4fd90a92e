/* The CPU backend: one row for each kind of operation. What is not a product is a call of a kernel. */
#include "core/net/backend_private.h"
#include "kernels/attention.h"
#include "kernels/channels.h"
#include "kernels/draw.h"
#include "kernels/elementwise.h"
#include "kernels/embed.h"
#include "kernels/geglu.h"
#include "kernels/group_norm.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include <math.h>

static gsize rows(const NetVal *v)
{
    return (gsize)net_rows(v);
}

static gsize channels(const NetVal *v)
{
    return (gsize)v->dim[3];
}

static gsize elements(const NetVal *v)
{
    return rows(v) * channels(v);
}

static gsize pixels(const NetVal *v)
{
    return (gsize)(v->dim[1] * v->dim[2]);
}

/* -- norms -------------------------------------------------------------------------- */

/* `at` is the position of the first source among the inputs; gamma and beta follow the second. */
static KernelGroupNorm group_norm(const NetOp *op, guint at, gconstpointer const *in)
{
    const NetVal *a = op->in[at], *b = op->in[at + 1];
    return (KernelGroupNorm){.type = a->type,
                             .n = (gsize)a->dim[0],
                             .hw = pixels(a),
                             .ca = channels(a),
                             .cb = b ? channels(b) : 0,
                             .groups = (gsize)op->u.norm.groups,
                             .eps = op->u.norm.eps,
                             .silu = op->u.norm.silu,
                             .gamma = in ? in[at + 2] : NULL,
                             .beta = in ? in[at + 3] : NULL};
}

static void run_group_norm(const NetCall *c)
{
    KernelGroupNorm p = group_norm(c->op, 0, c->in);
    kernel_group_norm(&p, c->out[0], c->in[0], c->in[1], c->out[1], c->out[2], c->scratch);
}

static void run_group_norm_again(const NetCall *c)
{
    KernelGroupNorm p = group_norm(c->op, 0, c->in);
    kernel_group_norm_again(&p, c->out[0], c->in[0], c->in[1], c->in[4], c->in[5], c->scratch);
}

static void run_group_norm_backward(const NetCall *c)
{
    KernelGroupNorm p = group_norm(c->op, 1, c->in);
    kernel_group_norm_backward(&p, c->out[0], c->out[1], c->in[7], c->in[8], c->in[0], c->in[1], c->in[2],
                               c->in[5], c->in[6], c->scratch);
}

static gsize group_norm_scratch(const NetOp *op)
{
    KernelGroupNorm p = group_norm(op, 0, NULL);
    return kernel_group_norm_scratch(&p);
}

static gsize group_norm_backward_scratch(const NetOp *op)
{
    KernelGroupNorm p = group_norm(op, 1, NULL);
    return kernel_group_norm_scratch(&p);
}

static void run_layer_norm(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    kernel_layer_norm(x->type, c->out[0], c->in[0], c->in[1], c->in[2], rows(x), channels(x),
                      c->op->u.norm.eps, c->out[1], c->out[2]);
}

static void run_layer_norm_again(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    kernel_layer_norm_again(x->type, c->out[0], c->in[0], c->in[1], c->in[2], rows(x), channels(x), c->in[3],
                            c->in[4]);
}

static void run_layer_norm_backward(const NetCall *c)
{
    const NetVal *x = c->op->in[1];
    kernel_layer_norm_backward(x->type, c->out[0], c->in[5], c->in[0], c->in[1], c->in[2], rows(x),
                               channels(x), c->in[3], c->in[4]);
}

/* -- attention ---------------------------------------------------------------------- */

static KernelAttention attention(const NetOp *op, guint at)
{
    const NetVal *q = op->in[at], *k = op->in[at + 1];
    gsize c = channels(q), dim = c / (gsize)op->u.attention.heads;
    return (KernelAttention){.type = q->type,
                             .n = (gsize)q->dim[0],
                             .tq = pixels(q),
                             .tk = pixels(k),
                             .heads = (gsize)op->u.attention.heads,
                             .dim = dim,
                             .q_stride = c,
                             .k_stride = c,
                             .v_stride = c,
                             .o_stride = c,
                             .dq_stride = c,
                             .dk_stride = c,
                             .dv_stride = c,
                             .do_stride = c,
                             .scale = (float)(1 / sqrt((double)dim)),
                             .causal = op->u.attention.causal};
}

static void run_attention(const NetCall *c)
{
    KernelAttention p = attention(c->op, 0);
    kernel_attention(&p, c->out[0], c->in[0], c->in[1], c->in[2], c->out[1], c->scratch);
}

static void run_attention_backward(const NetCall *c)
{
    KernelAttention p = attention(c->op, 1);
    kernel_attention_backward(&p, c->out[0], c->out[1], c->out[2], c->in[0], c->in[1], c->in[2], c->in[3],
                              c->in[4], c->in[5], c->scratch);
}

static gsize attention_scratch(const NetOp *op)
{
    KernelAttention p = attention(op, 0);
    return kernel_attention_scratch(&p);
}

static gsize attention_backward_scratch(const NetOp *op)
{
    KernelAttention p = attention(op, 1);
    return kernel_attention_backward_scratch(&p);
}

/* -- elementwise ---------------------------------------------------------------------- */

#define UNARY(name)                                                                                          \
    static void run_##name(const NetCall *c)                                                                 \
    {                                                                                                        \
        kernel_##name(c->op->in[0]->type, c->out[0], c->in[0], elements(c->op->in[0]));                      \
    }                                                                                                        \
    static void run_##name##_backward(const NetCall *c)                                                      \
    {                                                                                                        \
        kernel_##name##_backward(c->op->in[0]->type, c->out[0], c->in[0], c->in[1], elements(c->op->in[0])); \
    }
UNARY(silu)
UNARY(gelu)
UNARY(quick_gelu)
#undef UNARY

static void run_geglu(const NetCall *c)
{
    const NetVal *y = c->op->out[0];
    kernel_geglu(y->type, c->out[0], c->in[0], rows(y), channels(y));
}

static void run_geglu_backward(const NetCall *c)
{
    const NetVal *dy = c->op->in[0];
    kernel_geglu_backward(dy->type, c->out[0], c->in[0], c->in[1], rows(dy), channels(dy));
}

static void run_add(const NetCall *c)
{
    kernel_add(c->op->in[0]->type, c->out[0], c->in[0], c->in[1], elements(c->op->in[0]));
}

static void run_add_channel(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    kernel_add_channel(x->type, c->out[0], c->in[0], c->in[1], (gsize)x->dim[0], pixels(x), channels(x));
}

static void run_sum_rows(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    kernel_sum_rows(c->out[0], x->type, c->in[0], (gsize)x->dim[0], pixels(x), channels(x));
}

static void run_scale(const NetCall *c)
{
    kernel_scale(c->op->in[0]->type, c->out[0], c->in[0], c->op->u.factor, elements(c->op->in[0]));
}

static void run_cast(const NetCall *c)
{
    kernel_cast(c->out[0], c->op->out[0]->type, c->in[0], c->op->in[0]->type, elements(c->op->in[0]));
}

/* -- channels, tables, ends -------------------------------------------------------------- */

static void run_concat(const NetCall *c)
{
    const NetVal *a = c->op->in[0], *b = c->op->in[1];
    kernel_concat(a->type, c->out[0], c->in[0], channels(a), c->in[1], channels(b), rows(a));
}

static void run_split(const NetCall *c)
{
    const NetVal *y = c->op->in[0], *a = c->op->out[0], *b = c->op->out[1];
    gsize ca = a ? channels(a) : channels(y) - channels(b);
    kernel_split(y->type, c->out[0], ca, c->out[1], channels(y) - ca, c->in[0], rows(y));
}

static void run_upsample(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    kernel_upsample(x->type, c->out[0], c->in[0], (gsize)x->dim[0], (gsize)x->dim[1], (gsize)x->dim[2],
                    channels(x));
}

static void run_upsample_backward(const NetCall *c)
{
    const NetVal *x = c->op->out[0];
    kernel_upsample_backward(x->type, c->out[0], c->in[0], (gsize)x->dim[0], (gsize)x->dim[1],
                             (gsize)x->dim[2], channels(x));
}

static gboolean indices_fit(const NetVal *v, const gint32 *index, gint64 limit, const char *what,
                            GError **error)
{
    for (gsize i = 0; i < elements(v); i++)
        if (index[i] < 0 || index[i] >= limit) {
            g_set_error(error, NET_ERROR, NET_ERROR_FAILED,
                        "%s %d at position %" G_GSIZE_FORMAT " is outside 0..%" G_GINT64_FORMAT, what,
                        index[i], i, limit - 1);
            return FALSE;
        }
    return TRUE;
}

static void run_embed(const NetCall *c)
{
    const NetVal *ids = c->op->in[0], *table = c->op->in[1], *positions = c->op->in[2];
    if (!indices_fit(ids, c->in[0], table->dim[0], "token id", c->error))
        return;
    kernel_embed(c->op->out[0]->type, c->out[0], c->in[0], table->type, c->in[1],
                 positions ? positions->type : NET_F32, c->in[2], (gsize)ids->dim[0], (gsize)ids->dim[2],
                 channels(c->op->out[0]));
}

static void run_pick_row(const NetCall *c)
{
    const NetVal *x = c->op->in[0];
    if (!indices_fit(c->op->in[1], c->in[1], x->dim[1] * x->dim[2], "row", c->error))
        return;
    kernel_pick_row(x->type, c->out[0], c->in[0], c->in[1], (gsize)x->dim[0], pixels(x), channels(x));
}

static void run_sinusoid(const NetCall *c)
{
    gsize n = elements(c->op->in[0]);
    kernel_sinusoid(c->op->out[0]->type, c->out[0], c->in[0], n, elements(c->op->out[0]) / n);
}

static void run_draw(const NetCall *c)
{
    const NetVal *x = c->op->out[0];
    KernelDraw p = {.n = (gsize)x->dim[0],
                    .hw = pixels(x),
                    .c = channels(x),
                    .mean = c->in[0],
                    .logvar = c->in[1],
                    .latent = c->in[2],
                    .noise = c->in[3],
                    .key = c->in[4],
                    .offset = c->in[5],
                    .alpha_bar = c->in[6],
                    .scaling = c->op->u.draw.scaling,
                    .v = c->op->u.draw.v};
    kernel_draw(&p, x->type, c->out[0], c->out[1]);
}

static void run_mse(const NetCall *c)
{
    const NetVal *pred = c->op->in[0];
    gsize n = (gsize)pred->dim[0];
    *(float *)c->out[0] = kernel_mse(pred->type, c->in[0], c->in[1], c->in[2], n, elements(pred) / n, NULL);
}

static void run_mse_backward(const NetCall *c)
{
    const NetVal *pred = c->op->in[0];
    gsize n = (gsize)pred->dim[0];
    kernel_mse_backward(pred->type, c->out[0], c->in[0], c->in[1], c->in[2], *(const float *)c->in[3], n,
                        elements(pred) / n);
}

/* -- the table ---------------------------------------------------------------------------- */

const NetBackendRow net_cpu[NET_OP_COUNT] = {
    [NET_OP_MATMUL] = {net_cpu_matmul, .prepare = net_cpu_matmul_prepare},
    [NET_OP_OUTER] = {net_cpu_outer, .prepare = net_cpu_outer_prepare},
    [NET_OP_CONV] = {net_cpu_conv, .prepare = net_cpu_conv_prepare},
    [NET_OP_CONV_BACKWARD] = {net_cpu_conv_backward, .prepare = net_cpu_conv_backward_prepare},
    [NET_OP_CONV_OUTER] = {net_cpu_conv_outer, .prepare = net_cpu_conv_outer_prepare},
    [NET_OP_UPSAMPLE] = {run_upsample},
    [NET_OP_UPSAMPLE_BACKWARD] = {run_upsample_backward},
    [NET_OP_GROUP_NORM] = {run_group_norm, .scratch = group_norm_scratch},
    [NET_OP_GROUP_NORM_AGAIN] = {run_group_norm_again, .scratch = group_norm_scratch},
    [NET_OP_GROUP_NORM_BACKWARD] = {run_group_norm_backward, .scratch = group_norm_backward_scratch},
    [NET_OP_LAYER_NORM] = {run_layer_norm},
    [NET_OP_LAYER_NORM_AGAIN] = {run_layer_norm_again},
    [NET_OP_LAYER_NORM_BACKWARD] = {run_layer_norm_backward},
    [NET_OP_ATTENTION] = {run_attention, .scratch = attention_scratch},
    [NET_OP_ATTENTION_BACKWARD] = {run_attention_backward, .scratch = attention_backward_scratch},
    [NET_OP_GEGLU] = {run_geglu},
    [NET_OP_GEGLU_BACKWARD] = {run_geglu_backward},
    [NET_OP_SILU] = {run_silu},
    [NET_OP_SILU_BACKWARD] = {run_silu_backward},
    [NET_OP_GELU] = {run_gelu},
    [NET_OP_GELU_BACKWARD] = {run_gelu_backward},
    [NET_OP_QUICK_GELU] = {run_quick_gelu},
    [NET_OP_QUICK_GELU_BACKWARD] = {run_quick_gelu_backward},
    [NET_OP_ADD] = {run_add},
    [NET_OP_ADD_CHANNEL] = {run_add_channel},
    [NET_OP_SUM_ROWS] = {run_sum_rows},
    [NET_OP_SCALE] = {run_scale},
    [NET_OP_CAST] = {run_cast},
    [NET_OP_CONCAT] = {run_concat},
    [NET_OP_SPLIT] = {run_split},
    [NET_OP_EMBED] = {run_embed},
    [NET_OP_SINUSOID] = {run_sinusoid},
    [NET_OP_PICK_ROW] = {run_pick_row},
    [NET_OP_DRAW] = {run_draw},
    [NET_OP_MSE] = {run_mse},
    [NET_OP_MSE_BACKWARD] = {run_mse_backward},
};
