/* Matrix products and convolutions on the CPU, through oneDNN. */
#include "core/net/backend_private.h"
#include "core/net/dnnl_private.h"

enum { SCRATCH_ALIGN = 64 };

static gsize aligned(gsize n)
{
    return (n + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static guint32 add_kind(const NetVal *add, const NetVal *out)
{
    if (!add)
        return NET_DNNL_NO_ADD;
    return add->storage == out->storage ? NET_DNNL_ADD_SHARED : NET_DNNL_ADD_APART;
}

/* -- matrix products ---------------------------------------------------------------- */

void net_cpu_matmul(const NetCall *call)
{
    NetDnnlArgs args = {.src = call->in[0],
                        .weights = call->in[1],
                        .bias = call->in[2],
                        .add = call->in[3],
                        .dst = call->out[0],
                        .scratch = call->scratch};
    net_dnnl_run(call->state, &args, call->error);
}

static gboolean prepare(const NetDnnlSpec *spec, NetKernel *kernel, GError **error)
{
    NetDnnl *dnnl = net_dnnl_get(spec, error);
    if (!dnnl)
        return FALSE;
    kernel->state = dnnl;
    kernel->free_state = net_dnnl_unref;
    kernel->scratch = net_dnnl_scratch(dnnl);
    return TRUE;
}

static void matmul_spec(const NetOp *op, NetDnnlSpec *spec)
{
    spec->kind = NET_DNNL_MATMUL;
    spec->src = op->in[0]->type;
    spec->weights = op->in[1]->type;
    spec->dst = op->out[0]->type;
    spec->ta = op->u.matmul.ta;
    spec->tb = op->u.matmul.tb;
    spec->scale = op->u.matmul.scale;
    spec->m = op->u.matmul.m;
    spec->n = op->u.matmul.n;
    spec->k = op->u.matmul.k;
    spec->lda = op->in[0]->ld;
    spec->ldb = op->in[1]->ld;
    spec->ldc = op->out[0]->ld;
}

gboolean net_cpu_matmul_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {0};
    matmul_spec(op, &spec);
    spec.bias = op->in[2] != NULL;
    spec.add = add_kind(op->in[3], op->out[0]);
    return prepare(&spec, kernel, error);
}

void net_cpu_outer(const NetCall *call)
{
    NetDnnlArgs args = {
        .src = call->in[0], .weights = call->in[1], .dst = call->out[0], .scratch = call->scratch};
    net_dnnl_run(call->state, &args, call->error);
}

gboolean net_cpu_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {0};
    matmul_spec(op, &spec);
    spec.add = NET_DNNL_ADD_SHARED;
    return prepare(&spec, kernel, error);
}

/* -- convolutions --------------------------------------------------------------------- */

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
    *scratch = (guint8 *)packed + aligned(bytes);
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
    if (!prepare(spec, kernel, error))
        return FALSE;
    gsize packed = net_dnnl_packed_bytes(kernel->state);
    if (op->in[1]->role == NET_WEIGHT)
        kernel->packed = packed;
    else
        kernel->scratch += aligned(packed);
    return TRUE;
}

gboolean net_cpu_conv_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {.kind = NET_DNNL_CONV};
    conv_spec(op, op->in[0], op->out[0], op->in[1], &spec);
    spec.bias = op->in[2] != NULL;
    spec.add = add_kind(op->in[3], op->out[0]);
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

void net_cpu_conv_outer(const NetCall *call)
{
    gpointer packed = call->scratch;
    NetDnnlArgs args = {.src = call->in[1],
                        .weights = call->in[0],
                        .dst = packed,
                        .scratch = (guint8 *)packed + aligned(net_dnnl_packed_bytes(call->state))};
    if (net_dnnl_run(call->state, &args, call->error))
        net_dnnl_unpack_add(call->state, packed, call->out[0], call->error);
}

gboolean net_cpu_conv_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {.kind = NET_DNNL_CONV_OUTER};
    conv_spec(op, op->in[1], op->in[0], op->out[0], &spec);
    if (!prepare(&spec, kernel, error))
        return FALSE;
    kernel->scratch += aligned(net_dnnl_packed_bytes(kernel->state));
    return TRUE;
}
