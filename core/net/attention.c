/* Attention: softmax(q k' / sqrt(d)) v. Backward needs q, k, v, the output and one number a query and head
 * (log of the sum of exponentials); the scores are never stored. */
#include "core/net/graph_private.h"

NetVal *net_attention(Net *net, NetVal *q, NetVal *k, NetVal *v, gint64 heads, gboolean causal)
{
    NetVal *o = net_temp_like(q);
    gint64 c = q->dim[3], tq = q->dim[1] * q->dim[2], tk = k->dim[1] * k->dim[2];
    if (heads < 1 || c % heads || c / heads > 512) {
        net_fail(net,
                 "attention: %" G_GINT64_FORMAT " channels cannot form %" G_GINT64_FORMAT
                 " heads of at most 512",
                 c, heads);
        return o;
    }
    if (k->dim[0] != q->dim[0] || k->dim[3] != c || !net_same_shape(k, v) || (causal && tq != tk)) {
        net_fail(net, "attention: q is %s, k is %s, v is %s", net_shape_text(q), net_shape_text(k),
                 net_shape_text(v));
        return o;
    }
    if (!net_need_type(net, "attention", q, net->compute) ||
        !net_need_type(net, "attention", k, net->compute) ||
        !net_need_type(net, "attention", v, net->compute))
        return o;
    NetVal *lse = net_temp(net, NET_F32, q->dim[0], 1, heads, tq);
    NetOp *op = net_op(net, NET_OP_ATTENTION, 3, (NetVal *[]){q, k, v}, 2, (NetVal *[]){o, lse});
    op->u.attention.heads = heads;
    op->u.attention.causal = causal;
    return o;
}

void net_attention_adjoint(Net *net, NetOp *op)
{
    NetVal *out[3];
    for (guint i = 0; i < 3; i++)
        out[i] = net_wanted(op->in[i]) ? net_temp_like(op->in[i]) : NULL;
    NetVal *in[] = {op->out[0]->gradient, op->in[0], op->in[1], op->in[2], op->out[0], op->out[1]};
    net_op(net, NET_OP_ATTENTION_BACKWARD, 6, in, 3, out)->u = op->u;
    for (guint i = 0; i < 3; i++)
        net_push(net, op->in[i], out[i]);
}

double net_attention_flops(const NetOp *op)
{
    gboolean back = op->kind == NET_OP_ATTENTION_BACKWARD;
    const NetVal *q = op->in[back ? 1 : 0], *k = op->in[back ? 2 : 1];
    double one = 2.0 * (double)net_rows(q) * (double)(k->dim[1] * k->dim[2]) * (double)q->dim[3];
    return one * (back ? 5 : 2) * (op->u.attention.causal ? 0.5 : 1);
}
