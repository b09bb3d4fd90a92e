/* Both ends of a training step: noising before the first adapter, and the loss. */
#include "core/net/graph_private.h"

static gboolean draw_operand(Net *net, const char *what, const NetVal *v, NetType type, const gint64 dim[4])
{
    if (!v)
        return TRUE;
    gboolean right = net_need_type(net, what, v, type);
    for (guint i = 0; i < 4; i++)
        if (v->dim[i] != dim[i]) {
            net_fail(net,
                     "%s is %s, the latent %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                     "x%" G_GINT64_FORMAT,
                     what, net_shape_text(v), dim[0], dim[1], dim[2], dim[3]);
            return FALSE;
        }
    return right;
}

void net_draw(Net *net, const NetDraw *draw, NetVal **x_t, NetVal **target)
{
    const NetVal *shape = draw->latent ? draw->latent : draw->mean;
    g_return_if_fail(shape && draw->alpha_bar);
    const gint64 *dim = shape->dim, per[4] = {dim[0], 1, 1, 1};
    *x_t = net_temp(net, net->compute, dim[0], dim[1], dim[2], dim[3]);
    *target = net_temp(net, NET_F32, dim[0], dim[1], dim[2], dim[3]);
    if (!draw->latent && (!draw->mean || !draw->logvar || !draw->key)) {
        net_fail(net, "draw: without a latent there have to be mean, logvar and key");
        return;
    }
    if (!draw->noise && !draw->key) {
        net_fail(net, "draw: without noise there has to be a key");
        return;
    }
    if (dim[3] > 64) {
        net_fail(net, "draw: a latent has at most 64 channels, not %" G_GINT64_FORMAT, dim[3]);
        return;
    }
    gboolean fits = draw_operand(net, "mean", draw->mean, NET_F32, dim) &
                    draw_operand(net, "logvar", draw->logvar, NET_F32, dim) &
                    draw_operand(net, "latent", draw->latent, NET_F32, dim) &
                    draw_operand(net, "noise", draw->noise, NET_F32, dim) &
                    draw_operand(net, "key", draw->key, NET_I64, per) &
                    draw_operand(net, "offset", draw->offset, NET_F32, per) &
                    draw_operand(net, "alpha_bar", draw->alpha_bar, NET_F32, per);
    if (!fits)
        return;
    NetVal *in[] = {draw->mean, draw->logvar, draw->latent,   draw->noise,
                    draw->key,  draw->offset, draw->alpha_bar};
    NetOp *op = net_op(net, NET_OP_DRAW, 7, in, 2, (NetVal *[]){*x_t, *target});
    op->u.draw.scaling = draw->scaling;
    op->u.draw.v = draw->v;
}

NetVal *net_mse(Net *net, NetVal *pred, NetVal *target, NetVal *weight, NetVal *scale)
{
    NetVal *loss = net_temp(net, NET_F32, 1, 1, 1, 1);
    if (!net_same_shape(pred, target))
        net_fail(net, "mse: the prediction is %s, the target %s", net_shape_text(pred),
                 net_shape_text(target));
    else if (weight->dim[0] != pred->dim[0] || net_rows(weight) * weight->dim[3] != pred->dim[0])
        net_fail(net, "mse: %s weights for %s", net_shape_text(weight), net_shape_text(pred));
    else if (net_rows(scale) * scale->dim[3] != 1)
        net_fail(net, "mse: the scale has to be one number, not %s", net_shape_text(scale));
    else if (net_need_type(net, "mse", target, NET_F32) && net_need_type(net, "mse", weight, NET_F32) &&
             net_need_type(net, "mse", scale, NET_F32))
        net_op(net, NET_OP_MSE, 4, (NetVal *[]){pred, target, weight, scale}, 1, &loss);
    return loss;
}

void net_mse_adjoint(Net *net, NetOp *op)
{
    NetVal *dpred = net_temp_like(op->in[0]);
    net_op(net, NET_OP_MSE_BACKWARD, 4, op->in, 1, &dpred);
    net_push(net, op->in[0], dpred);
}
