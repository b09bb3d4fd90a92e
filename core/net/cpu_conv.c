/* Convolutions on the CPU, in one of two ways.
 *
 * Most use oneDNN's convolution, which wants the weights in a layout of its own, another one for each
 * direction, kept beside the plain ones or made at each use. Small maps with many channels, which the library
 * serves badly (its blocks are one row of the map) and which have nearly all the weights, are columns
 * (cpu_columns.c) times the plain weights: no copy of them in any direction. */
#include "core/net/cpu_private.h"
#include "core/net/dnnl_private.h"
#include "kernels/kernel.h"

/* Columns are for maps up to this width with weights from this size: below, the weights are small change and
 * gathering weighs more than the products. On AVX-512 that is as fast and saves 1.7 GiB for SD1.5 at 512 x
 * 512; AMX multiplies so fast that arranging the weights for each product is felt. */
enum { COLUMNS_WIDTH = 16, COLUMNS_WEIGHT = 4 << 20 };

static gboolean by_columns(const NetVal *map, const NetVal *w)
{
    gboolean wanted = w->net->packing == NET_PACK_NEVER ||
                      (w->net->packing == NET_PACK_AUTO && !(flow_cpu() & FLOW_CPU_AMX));
    return wanted && map->dim[2] <= COLUMNS_WIDTH && w->bytes >= COLUMNS_WEIGHT;
}

/* An adapter's weight changes with every step. */
static gboolean is_kept(const NetVal *w)
{
    return w->role == NET_WEIGHT && w->net->packing != NET_PACK_NEVER;
}

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

static gconstpointer conv_weight(const NetCall *call, gpointer *scratch)
{
    const NetVal *w = call->op->in[1];
    if (is_kept(w))
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
    if (is_kept(op->in[1]))
        kernel->packed = packed;
    else
        kernel->scratch += net_cpu_aligned(packed);
    return TRUE;
}

gboolean net_cpu_conv_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    if (by_columns(op->out[0], op->in[1]))
        return net_cpu_columns_forward_prepare(op, kernel, error);
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
    if (by_columns(op->in[0], op->in[1]))
        return net_cpu_columns_backward_prepare(op, kernel, error);
    NetDnnlSpec spec = {.kind = NET_DNNL_CONV_BACKWARD};
    conv_spec(op, op->out[0], op->in[0], op->in[1], &spec);
    return prepare_conv(op, &spec, kernel, error);
}
