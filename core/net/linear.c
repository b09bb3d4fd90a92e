/* Linear layers with LoRA, as plain matrix products.
 *
 *   T = x A'      y = x W' + bias + scale T B'      backward: dT = scale dY B,  dx = dY W + dT A,
 *                                                   dB += scale dY' T,  dA += dT' x
 *
 * The product with W comes last and takes the small one as its accumulator: the sum is rounded once, and the
 * correction is not lost below the rounding of y. Nothing of x is kept unless there is an adapter.
 * One operation a product rather than one for the whole layer, so that fusing an addition, recomputing and
 * placing T are the same for all of them. */
#include "core/net/graph_private.h"

/* c has the rows of a and n channels. b holds (k, n), or (n, k) when tb. */
static NetVal *matmul(Net *net, NetVal *a, NetVal *b, gboolean tb, float scale, NetVal *bias, NetVal *acc)
{
    gint64 n = b->dim[tb ? 2 : 3], k = b->dim[tb ? 3 : 2];
    NetVal *c = net_temp(net, net->compute, a->dim[0], a->dim[1], a->dim[2], n);
    NetOp *op = net_op(net, NET_OP_MATMUL, 4, (NetVal *[]){a, b, bias, acc}, 1, &c);
    op->u.matmul.m = net_rows(a);
    op->u.matmul.n = n;
    op->u.matmul.k = k;
    op->u.matmul.tb = tb;
    op->u.matmul.scale = scale;
    return c;
}

/* gradient (m, n) += scale a' b over all rows. */
static void outer(Net *net, NetVal *gradient, NetVal *a, NetVal *b, float scale)
{
    NetOp *op = net_op(net, NET_OP_OUTER, 2, (NetVal *[]){a, b}, 1, &gradient);
    op->u.matmul.m = a->dim[3];
    op->u.matmul.n = b->dim[3];
    op->u.matmul.k = net_rows(a);
    op->u.matmul.ta = TRUE;
    op->u.matmul.scale = scale;
}

void net_matmul_adjoint(Net *net, NetOp *op)
{
    NetVal *a = op->in[0], *b = op->in[1], *dc = op->out[0]->gradient;
    net_push(net, op->in[3], dc);
    if (net_wanted(a))
        net_push(net, a, matmul(net, dc, b, !op->u.matmul.tb, op->u.matmul.scale, NULL, NULL));
    if (b->role != NET_ADAPTER)
        return;
    NetVal *gradient = net_adapter_val(net, NET_GRAD, b->offset, b->dim, b->ld);
    if (op->u.matmul.tb)
        outer(net, gradient, dc, net_recall(net, a), op->u.matmul.scale);
    else
        outer(net, gradient, net_recall(net, a), dc, op->u.matmul.scale);
}

double net_matmul_flops(const NetOp *op)
{
    return 2.0 * (double)op->u.matmul.m * (double)op->u.matmul.n * (double)op->u.matmul.k;
}

static gboolean linear_fits(Net *net, const NetVal *a, const NetVal *b, const NetWeight *w,
                            const NetWeight *bias, const NetAdapter *adapter)
{
    gint64 in = a->dim[3] + (b ? b->dim[3] : 0);
    guint errors = net->errors->len + net->more_errors;
    if (!w) {
        if (errors == 0)
            net_fail(net, "a linear layer with %" G_GINT64_FORMAT " inputs has no weight", in);
        return FALSE;
    }
    gint64 width = w->shape[1] * w->shape[2] * w->shape[3];
    if (w->ndim < 2 || width != in || (w->ndim == 4 && (w->shape[1] != 1 || w->shape[2] != 1)))
        net_fail(net,
                 "weight '%s' is %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT ", its input has %" G_GINT64_FORMAT
                 " channels",
                 w->name, w->shape[0], width, in);
    if (w->type != net->compute)
        net_fail(net, "weight '%s' is %s, the net computes in %s", w->name, net_type_name(w->type),
                 net_type_name(net->compute));
    net_need_type(net, w->name, a, net->compute);
    if (b && net_need_type(net, w->name, b, net->compute) && net_rows(a) != net_rows(b))
        net_fail(net, "'%s': inputs of %s and %s cannot stand side by side", w->name, net_shape_text(a),
                 net_shape_text(b));
    if (bias && (bias->type != NET_F32 || bias->nbytes != sizeof(float) * (gsize)w->shape[0]))
        net_fail(net, "bias '%s' has to be f32 with %" G_GINT64_FORMAT " elements", bias->name, w->shape[0]);
    if (adapter && (adapter->in != in || adapter->out != w->shape[0] || adapter->kh * adapter->kw != 1))
        net_fail(net,
                 "adapter '%s' is %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT
                 ", its weight is %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT,
                 adapter->name, adapter->in, adapter->out, in, w->shape[0]);
    return net->errors->len + net->more_errors == errors;
}

NetVal *net_lora_up(Net *net, NetVal *t, const NetAdapter *adapter)
{
    gint64 r = adapter->rank_pad;
    net_name(t, "%s/T", adapter->name);
    NetVal *up = net_adapter_val(net, NET_ADAPTER, adapter->b, (gint64[4]){1, 1, adapter->out, r}, r);
    return matmul(net, t, up, TRUE, adapter->scale, NULL, NULL);
}

/* scale B (A [a b]). */
static NetVal *linear_lora(Net *net, NetVal *a, NetVal *b, const NetAdapter *adapter)
{
    gint64 in = adapter->in, r = adapter->rank_pad;
    NetVal *t = NULL;
    for (NetVal *x = a; x; x = x == a ? b : NULL) {
        gsize begin = x == a ? 0 : (gsize)a->dim[3];
        NetVal *down =
            net_adapter_val(net, NET_ADAPTER, adapter->a + begin, (gint64[4]){1, 1, r, x->dim[3]}, in);
        t = matmul(net, x, down, TRUE, 1, NULL, t);
    }
    return net_lora_up(net, t, adapter);
}

NetVal *net_linear_cat(Net *net, NetVal *a, NetVal *b, const NetWeight *w, const NetWeight *bias,
                       NetAdapter *adapter)
{
    if (!linear_fits(net, a, b, w, bias, adapter))
        return net_temp(net, net->compute, a->dim[0], a->dim[1], a->dim[2],
                        w         ? w->shape[0]
                        : adapter ? adapter->out
                                  : a->dim[3]);
    NetVal *bias_val = net_weight_val(net, bias, 0, 0);
    NetVal *y = adapter ? linear_lora(net, a, b, adapter) : NULL;
    y = matmul(net, a, net_weight_val(net, w, 0, a->dim[3]), TRUE, 1, b ? NULL : bias_val, y);
    if (b)
        y = matmul(net, b, net_weight_val(net, w, a->dim[3], b->dim[3]), TRUE, 1, bias_val, y);
    return y;
}

NetVal *net_linear(Net *net, NetVal *x, const NetWeight *w, const NetWeight *bias, NetAdapter *adapter)
{
    return net_linear_cat(net, x, NULL, w, bias, adapter);
}

void net_linears(Net *net, NetVal *x, guint n, const NetWeight *const *w, const NetWeight *const *bias,
                 NetAdapter *const *adapter, NetVal **out)
{
    for (guint i = 0; i < n; i++)
        out[i] = net_linear(net, x, w[i], bias ? bias[i] : NULL, adapter ? adapter[i] : NULL);
}
