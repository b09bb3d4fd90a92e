/* Reverse mode over the graph, for adapters only.
 *
 * First the operations are marked that lie on a way from an adapter to the loss; only their adjoints are
 * appended, in reverse order. So nothing below the first adapter has a gradient or keeps anything, and a
 * frozen weight has none by construction. Gradients that meet are added by an ordinary addition, which the
 * fusing pass then moves into the operation that made the second one. */
#include "core/net/graph_private.h"

gboolean net_wanted(const NetVal *v)
{
    return v && v->wanted;
}

void net_push(Net *net, NetVal *v, NetVal *g)
{
    if (!g || !net_wanted(v))
        return;
    v->gradient = v->gradient ? net_add(net, v->gradient, g) : g;
}

/* Worth while if what it is made from is kept in any case, for the gradient of the same operation. */
NetVal *net_recall(Net *net, NetVal *v)
{
    NetOp *op = v->producer;
    if (!op || op->backward || !net_op_rows[op->kind].again)
        return v;
    for (guint i = 0; i < op->n_in && !v->again; i++)
        if (op->in[i] && op->in[i]->role == NET_TEMP && !op->in[i]->wanted)
            return v;
    if (!v->again) {
        v->again = net_op_rows[op->kind].again(net, op);
        if (v->name)
            net_name(v->again, "%s/again", v->name);
    }
    return v->again;
}

static void mark_from_adapters(Net *net)
{
    for (guint i = 0; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_in; j++)
            if (op->in[j] && (op->in[j]->role == NET_ADAPTER || op->in[j]->wanted))
                op->active = TRUE;
        if (op->active)
            op->out[0]->wanted = TRUE;
    }
}

/* Takes the marks off everything that the loss does not depend on. */
static void mark_from_loss(Net *net, const NetOp *last)
{
    g_autofree gboolean *reached = g_new0(gboolean, net->values->len);
    for (guint i = net->ops->len; i-- > 0;) {
        NetOp *op = net->ops->pdata[i];
        gboolean on = op == last;
        for (guint j = 0; j < op->n_out; j++)
            on = on || (op->out[j] && reached[op->out[j]->id]);
        if (!on)
            op->active = op->out[0]->wanted = FALSE;
        for (guint j = 0; on && j < op->n_in; j++)
            if (op->in[j])
                reached[op->in[j]->id] = TRUE;
    }
}

gboolean net_differentiate(Net *net, NetVal *loss, GError **error)
{
    if (!net_finish_errors(net, error))
        return FALSE;
    NetOp *last = loss->producer;
    if (!last || last->kind != NET_OP_MSE || net->loss >= 0) {
        g_set_error_literal(error, NET_ERROR, NET_ERROR_FAILED,
                            "a net is differentiated once, from the value that net_mse gave");
        return FALSE;
    }
    mark_from_adapters(net);
    mark_from_loss(net, last);
    if (!last->active) {
        g_set_error_literal(error, NET_ERROR, NET_ERROR_FAILED,
                            "no adapter lies on the way to the loss: nothing to train");
        return FALSE;
    }
    net->loss = (gint)net->ops->len - 1;
    net->backward = TRUE;
    for (guint i = last->index + 1; i-- > 0;) {
        NetOp *op = net->ops->pdata[i];
        if (!op->active || (op != last && !op->out[0]->gradient))
            continue;
        if (!net_op_rows[op->kind].adjoint)
            net_fail(net, "operation '%s' has no gradient, but an adapter lies below it",
                     net_op_name(op->kind));
        else
            net_op_rows[op->kind].adjoint(net, op);
    }
    for (guint i = (guint)net->loss + 1; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_out; j++)
            if (op->out[j] && op->out[j]->role == NET_WEIGHT)
                net->gradients_of_weights++;
    }
    return net_finish_errors(net, error);
}
