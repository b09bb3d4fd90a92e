/* Convolutions on the CPU, through oneDNN. */
#include "core/net/cpu_private.h"
#include "core/net/dnnl_private.h"
#include "kernels/parallel.h"
#include <string.h>

static void conv_spec(const NetOp *op, const NetVal *x, const NetVal *y, const NetVal *w, NetDnnlSpec *spec)
{
    const NetConv *conv = &op->u.conv;
    spec->weights = x->type;
    spec->src = spec->dst = x->type;
    spec->scale = 1;
    spec->batch = x->dim[0];
    spec->h = x->dim[1];
    spec->w = x->dim[2];
    spec->ci = x->dim[3];
    spec->co = w->dim[0];
    spec->kh = w->dim[1];
    spec->kw = w->dim[2];
    spec->oh = y->dim[1];
    spec->ow = y->dim[2];
    spec->stride = conv->stride;
    spec->top = conv->top;
    spec->left = conv->left;
    /* what the stride leaves over at the far side is no padding to the library */
    spec->bottom = (y->dim[1] - 1) * conv->stride + w->dim[1] - x->dim[1] - conv->top;
    spec->right = (y->dim[2] - 1) * conv->stride + w->dim[2] - x->dim[2] - conv->left;
}

/* A frozen weight is packed once; an adapter's changes every step and is packed into scratch each time. */
static gconstpointer conv_weight(const NetCall *call, gpointer *scratch)
{
    const NetVal *w = call->op->in[1];
    if (w->role == NET_WEIGHT)
        return net_dnnl_packed(call->state, w->weight, call->error);
    gsize bytes = net_dnnl_packed_bytes(call->state);
    if (!bytes)
        return call->in[1];
    gpointer packed = *scratch;
    *scratch = (guint8 *)packed + net_cpu_aligned(bytes);
    return net_dnnl_pack(call->state, call->in[1], packed, call->error) ? packed : NULL;
}

void net_cpu_conv(const NetCall *call)
{
    gpointer scratch = call->scratch;
    gconstpointer weights = conv_weight(call, &scratch);
    NetDnnlArgs args = {.src = call->in[0],
                        .weights = weights,
                        .bias = call->in[2],
                        .add = call->in[3],
                        .dst = call->out[0],
                        .scratch = scratch};
    if (weights)
        net_dnnl_run(call->state, &args, call->error);
}

static gboolean prepare_conv(const NetOp *op, const NetDnnlSpec *spec, NetKernel *kernel, GError **error)
{
    if (!net_cpu_prepare(spec, kernel, error))
        return FALSE;
    gsize packed = net_dnnl_packed_bytes(kernel->state);
    if (op->in[1]->role == NET_WEIGHT)
        kernel->packed = packed;
    else
        kernel->scratch += net_cpu_aligned(packed);
    return TRUE;
}

gboolean net_cpu_conv_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {.kind = NET_DNNL_CONV};
    conv_spec(op, op->in[0], op->out[0], op->in[1], &spec);
    spec.bias = op->in[2] != NULL;
    spec.add = net_cpu_add_kind(op->in[3], op->out[0]);
    return prepare_conv(op, &spec, kernel, error);
}

void net_cpu_conv_backward(const NetCall *call)
{
    gpointer scratch = call->scratch;
    gconstpointer weights = conv_weight(call, &scratch);
    NetDnnlArgs args = {.src = call->in[0], .weights = weights, .dst = call->out[0], .scratch = scratch};
    if (weights)
        net_dnnl_run(call->state, &args, call->error);
}

gboolean net_cpu_conv_backward_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {.kind = NET_DNNL_CONV_BACKWARD};
    conv_spec(op, op->out[0], op->in[0], op->in[1], &spec);
    return prepare_conv(op, &spec, kernel, error);
}

/* The gradient of a convolution's A, one kernel position after the other: the pixels of x that this position
 * meets, gathered into rows like those of dy, and a product over the rows. The library's own routine sums in
 * an order that depends on the threads, and is no faster for so few channels. */
typedef struct {
    const NetOp *op;
    const guint8 *x;
    guint8 *rows;
    gint64 ky, kx;
} Gather;

static void gather(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Gather *g = data;
    const NetVal *dy = g->op->in[0], *x = g->op->in[1];
    const NetConv *conv = &g->op->u.conv;
    gsize pixel = net_type_bytes(x->type, (gsize)x->dim[3]);
    for (gsize line = begin; line < end; line++) {
        gint64 n = (gint64)line / dy->dim[1], oy = (gint64)line % dy->dim[1];
        gint64 y = oy * conv->stride + g->ky - conv->top;
        guint8 *to = g->rows + line * (gsize)dy->dim[2] * pixel;
        for (gint64 ox = 0; ox < dy->dim[2]; ox++, to += pixel) {
            gint64 c = ox * conv->stride + g->kx - conv->left;
            if (y < 0 || y >= x->dim[1] || c < 0 || c >= x->dim[2])
                memset(to, 0, pixel);
            else
                memcpy(to, g->x + (gsize)((n * x->dim[1] + y) * x->dim[2] + c) * pixel, pixel);
        }
    }
}

void net_cpu_conv_outer(const NetCall *call)
{
    const NetVal *dy = call->op->in[0], *x = call->op->in[1], *w = call->op->out[0];
    NetVal taken = *x; /* x seen through one kernel position */
    taken.dim[1] = dy->dim[1];
    taken.dim[2] = dy->dim[2];
    gsize bytes = net_type_bytes(x->type, (gsize)(net_rows(dy) * x->dim[3]));
    Gather g = {call->op, call->in[1], call->scratch, 0, 0};
    gpointer scratch = (guint8 *)call->scratch + net_cpu_aligned(bytes);
    for (gint64 i = 0; i < w->dim[1] * w->dim[2] && !*call->error; i++) {
        g.ky = i / w->dim[2];
        g.kx = i % w->dim[2];
        net_parallel_for((gsize)(dy->dim[0] * dy->dim[1]), 1, gather, &g);
        net_cpu_outer_run(call->state, dy, call->in[0], &taken, g.rows, (float *)call->out[0] + i * w->dim[3],
                          scratch, call->error);
    }
}

gboolean net_cpu_conv_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    const NetVal *dy = op->in[0], *x = op->in[1], *w = op->out[0];
    NetDnnlSpec spec = {.kind = NET_DNNL_MATMUL,
                        .src = dy->type,
                        .weights = x->type,
                        .dst = NET_F32,
                        .ta = TRUE,
                        .scale = 1,
                        .m = w->dim[0],
                        .n = w->dim[3],
                        .k = net_rows(dy)};
    if (!net_cpu_outer_make(&spec, w->dim[1] * w->dim[2] * w->dim[3], kernel, error))
        return FALSE;
    kernel->scratch += net_cpu_aligned(net_type_bytes(x->type, (gsize)(net_rows(dy) * x->dim[3])));
    return TRUE;
}
