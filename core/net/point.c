/* Elementwise operations, and those that move channels. */
#include "core/net/graph_private.h"

static NetVal *unary(Net *net, NetOpKind kind, NetVal *x)
{
    NetVal *y = net_temp_like(x);
    if (net_need_type(net, net_op_name(kind), x, net->compute))
        net_op(net, kind, 1, &x, 1, &y);
    return y;
}

NetVal *net_silu(Net *net, NetVal *x)
{
    return unary(net, NET_OP_SILU, x);
}

NetVal *net_gelu(Net *net, NetVal *x)
{
    return unary(net, NET_OP_GELU, x);
}

NetVal *net_quick_gelu(Net *net, NetVal *x)
{
    return unary(net, NET_OP_QUICK_GELU, x);
}

NetVal *net_unary_again(Net *net, const NetOp *op)
{
    return unary(net, op->kind, net_recall(net, op->in[0]));
}

static void unary_adjoint(Net *net, NetOp *op, NetOpKind kind)
{
    NetVal *dx = net_temp_like(op->in[0]);
    net_op(net, kind, 2, (NetVal *[]){op->out[0]->gradient, net_recall(net, op->in[0])}, 1, &dx);
    net_push(net, op->in[0], dx);
}

void net_silu_adjoint(Net *net, NetOp *op)
{
    unary_adjoint(net, op, NET_OP_SILU_BACKWARD);
}

void net_gelu_adjoint(Net *net, NetOp *op)
{
    unary_adjoint(net, op, NET_OP_GELU_BACKWARD);
}

void net_quick_gelu_adjoint(Net *net, NetOp *op)
{
    unary_adjoint(net, op, NET_OP_QUICK_GELU_BACKWARD);
}

NetVal *net_geglu(Net *net, NetVal *u)
{
    NetVal *y = net_temp(net, u->type, u->dim[0], u->dim[1], u->dim[2], MAX(u->dim[3] / 2, 1));
    if (u->dim[3] % 2)
        net_fail(net, "geglu: %s cannot be halved", net_shape_text(u));
    else if (net_need_type(net, "geglu", u, net->compute))
        net_op(net, NET_OP_GEGLU, 1, &u, 1, &y);
    return y;
}

NetVal *net_geglu_again(Net *net, const NetOp *op)
{
    return net_geglu(net, net_recall(net, op->in[0]));
}

void net_geglu_adjoint(Net *net, NetOp *op)
{
    unary_adjoint(net, op, NET_OP_GEGLU_BACKWARD);
}

NetVal *net_add(Net *net, NetVal *a, NetVal *b)
{
    NetVal *y = net_temp_like(a);
    if (!net_same_shape(a, b) || a->type != b->type || (a->type != NET_F32 && a->type != NET_BF16))
        net_fail(net, "add: %s %s and %s %s do not go together", net_type_name(a->type), net_shape_text(a),
                 net_type_name(b->type), net_shape_text(b));
    else
        net_op(net, NET_OP_ADD, 2, (NetVal *[]){a, b}, 1, &y);
    return y;
}

void net_add_adjoint(Net *net, NetOp *op)
{
    net_push(net, op->in[0], op->out[0]->gradient);
    net_push(net, op->in[1], op->out[0]->gradient);
}

NetVal *net_add_channel(Net *net, NetVal *x, NetVal *e)
{
    NetVal *y = net_temp_like(x);
    if (e->dim[0] != x->dim[0] || e->dim[1] != 1 || e->dim[2] != 1 || e->dim[3] != x->dim[3])
        net_fail(net, "add_channel: %s does not go over %s", net_shape_text(e), net_shape_text(x));
    else if (net_need_type(net, "add_channel", x, net->compute) &&
             net_need_type(net, "add_channel", e, net->compute))
        net_op(net, NET_OP_ADD_CHANNEL, 2, (NetVal *[]){x, e}, 1, &y);
    return y;
}

void net_add_channel_adjoint(Net *net, NetOp *op)
{
    NetVal *e = op->in[1], *dy = op->out[0]->gradient;
    net_push(net, op->in[0], dy);
    if (!net_wanted(e))
        return;
    NetVal *sum = net_temp(net, NET_F32, e->dim[0], 1, 1, e->dim[3]);
    net_op(net, NET_OP_SUM_ROWS, 1, &dy, 1, &sum);
    net_push(net, e, net_cast(net, sum, e->type));
}

NetVal *net_scale(Net *net, NetVal *x, float factor)
{
    NetVal *y = net_temp_like(x);
    if (x->type != NET_F32 && x->type != NET_BF16)
        net_fail(net, "scale: %s cannot be scaled", net_type_name(x->type));
    else
        net_op(net, NET_OP_SCALE, 1, &x, 1, &y)->u.factor = factor;
    return y;
}

void net_scale_adjoint(Net *net, NetOp *op)
{
    net_push(net, op->in[0], net_scale(net, op->out[0]->gradient, op->u.factor));
}

static gboolean is_float(NetType type)
{
    return type == NET_F32 || type == NET_BF16 || type == NET_F16;
}

NetVal *net_cast(Net *net, NetVal *x, NetType type)
{
    if (x->type == type)
        return x;
    NetVal *y = net_temp(net, type, x->dim[0], x->dim[1], x->dim[2], x->dim[3]);
    if (!is_float(x->type) || !is_float(type))
        net_fail(net, "cast: %s does not become %s", net_type_name(x->type), net_type_name(type));
    else
        net_op(net, NET_OP_CAST, 1, &x, 1, &y);
    return y;
}

void net_cast_adjoint(Net *net, NetOp *op)
{
    net_push(net, op->in[0], net_cast(net, op->out[0]->gradient, op->in[0]->type));
}

NetVal *net_concat(Net *net, NetVal *a, NetVal *b)
{
    NetVal *y = net_temp(net, a->type, a->dim[0], a->dim[1], a->dim[2], a->dim[3] + b->dim[3]);
    if (net_rows(a) != net_rows(b) || a->type != b->type)
        net_fail(net, "concat: %s and %s cannot stand side by side", net_shape_text(a), net_shape_text(b));
    else
        net_op(net, NET_OP_CONCAT, 2, (NetVal *[]){a, b}, 1, &y);
    return y;
}

void net_concat_adjoint(Net *net, NetOp *op)
{
    NetVal *a = op->in[0], *b = op->in[1];
    NetVal *out[2] = {net_wanted(a) ? net_temp_like(a) : NULL, net_wanted(b) ? net_temp_like(b) : NULL};
    net_op(net, NET_OP_SPLIT, 1, &op->out[0]->gradient, 2, out);
    net_push(net, a, out[0]);
    net_push(net, b, out[1]);
}
