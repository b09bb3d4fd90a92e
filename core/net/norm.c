/* GroupNorm (over one value or the channels of two, with SiLU) and LayerNorm.
 *
 * Backward needs the input and the statistics. The output is made once more from them where a consumer has
 * an adapter: one pass over memory instead of keeping it through the whole step. */
#include "core/net/graph_private.h"

/* gamma and beta: f32, one number a channel. */
static gboolean norm_fits(Net *net, const char *what, gint64 channels, const NetWeight *gamma,
                          const NetWeight *beta)
{
    guint errors = net->errors->len + net->more_errors;
    const NetWeight *both[2] = {gamma, beta};
    for (guint i = 0; i < 2; i++) {
        if (!both[i] && errors == 0)
            net_fail(net, "a %s over %" G_GINT64_FORMAT " channels has no %s", what, channels,
                     i ? "bias" : "weight");
        if (both[i] && (both[i]->type != NET_F32 || both[i]->nbytes != sizeof(float) * (gsize)channels))
            net_fail(net, "'%s' has to be f32 with %" G_GINT64_FORMAT " elements", both[i]->name, channels);
    }
    return gamma && beta && net->errors->len + net->more_errors == errors;
}

NetVal *net_group_norm(Net *net, NetVal *a, NetVal *b, const NetWeight *gamma, const NetWeight *beta,
                       gint64 groups, float eps, gboolean silu)
{
    gint64 channels = a->dim[3] + (b ? b->dim[3] : 0);
    NetVal *y = net_temp(net, net->compute, a->dim[0], a->dim[1], a->dim[2], channels);
    gboolean fits = norm_fits(net, "group norm", channels, gamma, beta);
    if (groups < 1 || channels % groups) {
        net_fail(net, "group norm: %" G_GINT64_FORMAT " channels cannot form %" G_GINT64_FORMAT " groups",
                 channels, groups);
        fits = FALSE;
    }
    if (b && (b->dim[0] != a->dim[0] || net_rows(a) != net_rows(b))) {
        net_fail(net, "group norm: inputs of %s and %s cannot stand side by side", net_shape_text(a),
                 net_shape_text(b));
        fits = FALSE;
    }
    if (!net_need_type(net, "group norm", a, net->compute) ||
        (b && !net_need_type(net, "group norm", b, net->compute)) || !fits)
        return y;
    NetVal *mean = net_temp(net, NET_F32, a->dim[0], 1, 1, groups), *rstd = net_temp_like(mean);
    NetVal *in[] = {a, b, net_weight_val(net, gamma, 0, 0), net_weight_val(net, beta, 0, 0)};
    NetOp *op = net_op(net, NET_OP_GROUP_NORM, 4, in, 3, (NetVal *[]){y, mean, rstd});
    op->u.norm.groups = groups;
    op->u.norm.eps = eps;
    op->u.norm.silu = silu;
    return y;
}

NetVal *net_group_norm_again(Net *net, const NetOp *op)
{
    NetVal *y = net_temp_like(op->out[0]);
    NetVal *in[] = {op->in[0], op->in[1], op->in[2], op->in[3], op->out[1], op->out[2]};
    net_op(net, NET_OP_GROUP_NORM_AGAIN, 6, in, 1, &y)->u = op->u;
    return y;
}

void net_group_norm_adjoint(Net *net, NetOp *op)
{
    NetVal *a = op->in[0], *b = op->in[1];
    NetVal *out[2] = {net_wanted(a) ? net_temp_like(a) : NULL, b && net_wanted(b) ? net_temp_like(b) : NULL};
    NetVal *in[] = {op->out[0]->gradient, a, b, op->in[2], op->in[3], op->out[1], op->out[2], NULL, NULL};
    net_op(net, NET_OP_GROUP_NORM_BACKWARD, 9, in, 2, out)->u = op->u;
    net_push(net, a, out[0]);
    net_push(net, b, out[1]);
}

NetVal *net_layer_norm(Net *net, NetVal *x, const NetWeight *gamma, const NetWeight *beta, float eps)
{
    NetVal *y = net_temp_like(x);
    gboolean fits = norm_fits(net, "layer norm", x->dim[3], gamma, beta);
    if (!net_need_type(net, "layer norm", x, net->compute) || !fits)
        return y;
    NetVal *mean = net_temp(net, NET_F32, x->dim[0], x->dim[1], x->dim[2], 1), *rstd = net_temp_like(mean);
    NetVal *in[] = {x, net_weight_val(net, gamma, 0, 0), net_weight_val(net, beta, 0, 0)};
    net_op(net, NET_OP_LAYER_NORM, 3, in, 3, (NetVal *[]){y, mean, rstd})->u.norm.eps = eps;
    return y;
}

NetVal *net_layer_norm_again(Net *net, const NetOp *op)
{
    NetVal *y = net_temp_like(op->out[0]);
    NetVal *in[] = {op->in[0], op->in[1], op->in[2], op->out[1], op->out[2]};
    net_op(net, NET_OP_LAYER_NORM_AGAIN, 5, in, 1, &y)->u = op->u;
    return y;
}

void net_layer_norm_adjoint(Net *net, NetOp *op)
{
    NetVal *x = op->in[0], *dx = net_temp_like(x);
    NetVal *in[] = {op->out[0]->gradient, x, op->in[1], op->out[1], op->out[2], NULL};
    net_op(net, NET_OP_LAYER_NORM_BACKWARD, 6, in, 1, &dx)->u = op->u;
    net_push(net, x, dx);
}
