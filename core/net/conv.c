/* Convolutions with LoRA, and nearest upsampling. A 1x1 convolution is a linear layer.
 *
 * LoRA of a convolution: A is a convolution of the same geometry to `rank` channels, B is 1x1. */
#include "core/net/graph_private.h"

static gint64 conv_side(gint64 in, gint64 before, gint64 after, gint64 kernel, gint64 stride)
{
    return in + before + after < kernel ? 0 : (in + before + after - kernel) / stride + 1;
}

static NetVal *conv_op(Net *net, NetVal *x, NetVal *w, NetVal *bias, NetVal *acc, NetConv conv)
{
    NetVal *y = net_temp(net, net->compute, x->dim[0],
                         conv_side(x->dim[1], conv.top, conv.bottom, w->dim[1], conv.stride),
                         conv_side(x->dim[2], conv.left, conv.right, w->dim[2], conv.stride), w->dim[0]);
    net_op(net, NET_OP_CONV, 4, (NetVal *[]){x, w, bias, acc}, 1, &y)->u.conv = conv;
    return y;
}

void net_conv_adjoint(Net *net, NetOp *op)
{
    NetVal *x = op->in[0], *w = op->in[1], *dy = op->out[0]->gradient;
    net_push(net, op->in[3], dy);
    if (net_wanted(x)) {
        NetVal *dx = net_temp_like(x);
        net_op(net, NET_OP_CONV_BACKWARD, 2, (NetVal *[]){dy, w}, 1, &dx)->u.conv = op->u.conv;
        net_push(net, x, dx);
    }
    if (w->role != NET_ADAPTER)
        return;
    NetVal *gradient = net_adapter_val(net, NET_GRAD, w->offset, w->dim, w->ld);
    net_op(net, NET_OP_CONV_OUTER, 2, (NetVal *[]){dy, net_recall(net, x)}, 1, &gradient)->u.conv =
        op->u.conv;
}

/* y and dy are the larger or smaller side alike: what counts is one product for each of w and each pixel. */
double net_conv_flops(const NetOp *op)
{
    const NetVal *y = op->kind == NET_OP_CONV ? op->out[0] : op->in[0];
    const NetVal *w = op->kind == NET_OP_CONV_OUTER ? op->out[0] : op->in[1];
    return 2.0 * (double)net_rows(y) * (double)net_rows(w) * (double)w->dim[3];
}

static gboolean conv_fits(Net *net, const NetVal *x, const NetWeight *w, const NetWeight *bias, NetConv conv,
                          const NetAdapter *adapter)
{
    guint errors = net->errors->len + net->more_errors;
    if (!w) {
        if (errors == 0)
            net_fail(net, "a convolution of %s has no weight", net_shape_text(x));
        return FALSE;
    }
    if (w->ndim != 4 || w->shape[3] != x->dim[3])
        net_fail(net,
                 "weight '%s' is %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                 "x%" G_GINT64_FORMAT " (out, height, width, in), its input has %" G_GINT64_FORMAT
                 " channels",
                 w->name, w->shape[0], w->shape[1], w->shape[2], w->shape[3], x->dim[3]);
    if (w->type != net->compute)
        net_fail(net, "weight '%s' is %s, the net computes in %s", w->name, net_type_name(w->type),
                 net_type_name(net->compute));
    net_need_type(net, w->name, x, net->compute);
    if (conv.stride < 1 || conv.top < 0 || conv.left < 0 || conv.bottom < 0 || conv.right < 0)
        net_fail(net, "'%s': stride from 1, padding from 0", w->name);
    else if (conv_side(x->dim[1], conv.top, conv.bottom, w->shape[1], conv.stride) < 1 ||
             conv_side(x->dim[2], conv.left, conv.right, w->shape[2], conv.stride) < 1)
        net_fail(net, "'%s': an input of %s is smaller than the kernel", w->name, net_shape_text(x));
    if (bias && (bias->type != NET_F32 || bias->nbytes != sizeof(float) * (gsize)w->shape[0]))
        net_fail(net, "bias '%s' has to be f32 with %" G_GINT64_FORMAT " elements", bias->name, w->shape[0]);
    if (adapter && (adapter->in != w->shape[3] || adapter->out != w->shape[0] || adapter->kh != w->shape[1] ||
                    adapter->kw != w->shape[2]))
        net_fail(net, "adapter '%s' has another shape than weight '%s'", adapter->name, w->name);
    return net->errors->len + net->more_errors == errors;
}

NetVal *net_conv(Net *net, NetVal *x, const NetWeight *w, const NetWeight *bias, NetConv conv,
                 NetAdapter *adapter)
{
    gboolean padded = conv.top || conv.left || conv.bottom || conv.right;
    if (w && w->ndim == 4 && w->shape[1] == 1 && w->shape[2] == 1 && conv.stride == 1 && !padded)
        return net_linear(net, x, w, bias, adapter);
    if (!conv_fits(net, x, w, bias, conv, adapter))
        return net_temp(net, net->compute, x->dim[0], MAX(x->dim[1] / MAX(conv.stride, 1), 1),
                        MAX(x->dim[2] / MAX(conv.stride, 1), 1), w ? w->shape[0] : x->dim[3]);
    NetVal *y = NULL;
    if (adapter) {
        NetVal *down = net_adapter_val(net, NET_ADAPTER, adapter->a,
                                       (gint64[4]){adapter->rank_pad, adapter->kh, adapter->kw, adapter->in},
                                       adapter->in);
        y = net_lora_up(net, conv_op(net, x, down, NULL, NULL, conv), adapter);
    }
    return conv_op(net, x, net_weight_val(net, w, 0, 0), net_weight_val(net, bias, 0, 0), y, conv);
}

NetVal *net_upsample(Net *net, NetVal *x)
{
    net_need_type(net, "upsample", x, net->compute);
    NetVal *y = net_temp(net, x->type, x->dim[0], 2 * x->dim[1], 2 * x->dim[2], x->dim[3]);
    net_op(net, NET_OP_UPSAMPLE, 1, &x, 1, &y);
    return y;
}

NetVal *net_upsample_again(Net *net, const NetOp *op)
{
    return net_upsample(net, net_recall(net, op->in[0]));
}

void net_upsample_adjoint(Net *net, NetOp *op)
{
    NetVal *dx = net_temp_like(op->in[0]);
    net_op(net, NET_OP_UPSAMPLE_BACKWARD, 1, &op->out[0]->gradient, 1, &dx);
    net_push(net, op->in[0], dx);
}
