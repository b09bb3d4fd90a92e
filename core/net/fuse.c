/* Passes over the finished list of operations: additions move into the operation that makes one of the
 * operands, and what nobody reads is dropped.
 *
 * y = f(x); z = y + r becomes z = f(x) + r where f can add in its own epilogue: residuals in the forward
 * pass, meeting gradients in the backward pass. The other operand has to exist before f. Where f can add
 * only in place (convolutions), it must also be dead after f, otherwise a copy would cost what it saves. */
#include "core/net/passes_private.h"

typedef struct {
    gint last, before; /* last two operations that read it (-1: none) */
    guint n;
} Uses;

static Uses *uses_of(const Net *net)
{
    Uses *uses = g_new(Uses, net->values->len);
    for (guint i = 0; i < net->values->len; i++)
        uses[i] = (Uses){-1, -1, 0};
    for (guint i = 0; i < net->ops->len; i++) {
        const NetOp *op = net->ops->pdata[i];
        for (guint j = 0; op && j < op->n_in; j++) {
            if (!op->in[j])
                continue;
            Uses *u = &uses[op->in[j]->id];
            u->n++;
            if (u->last != (gint)i) {
                u->before = u->last;
                u->last = (gint)i;
            }
        }
    }
    return uses;
}

/* May `sum` = y + r be made by y's producer? */
static gboolean can_take(const NetOp *sum, const NetVal *y, const NetVal *r, guint o, const Uses *uses)
{
    const NetOp *op = y->producer;
    const NetOpRow *row = &net_op_rows[op->kind];
    if (y == r || y->output || uses[y->id].n != 1 || !row->accumulate[o] || op->in[row->accumulate[o] - 1])
        return FALSE;
    if (r->producer && r->producer->index >= op->index)
        return FALSE;
    for (guint i = 0; i < op->n_in; i++) /* in place it would overwrite what it reads */
        if (op->in[i] == r)
            return FALSE;
    if (!row->must_share)
        return TRUE;
    gint other = uses[r->id].last == (gint)sum->index ? uses[r->id].before : uses[r->id].last;
    return r->role == NET_TEMP && !r->output && other < (gint)op->index;
}

static gboolean fuse_one(Net *net, NetOp *sum, Uses *uses)
{
    for (guint side = 2; side-- > 0;) {
        NetVal *y = sum->in[side], *r = sum->in[1 - side];
        NetOp *op = y->producer;
        for (guint o = 0; op && o < op->n_out; o++) {
            if (op->out[o] != y || !can_take(sum, y, r, o, uses))
                continue;
            op->in[net_op_rows[op->kind].accumulate[o] - 1] = r;
            op->out[o] = sum->out[0];
            op->out[o]->producer = op;
            Uses *u = &uses[r->id];
            if (u->last == (gint)sum->index)
                u->last = MAX(u->before, (gint)op->index);
            net->ops->pdata[sum->index] = NULL;
            return TRUE;
        }
    }
    return FALSE;
}

static void compact(Net *net)
{
    guint n = 0;
    gint loss = -1;
    for (guint i = 0; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        if (!op)
            continue;
        op->index = n;
        if ((gint)i <= net->loss)
            loss = (gint)n;
        net->ops->pdata[n++] = op;
    }
    for (guint i = n; i < net->ops->len; i++)
        net->ops->pdata[i] = NULL;
    net->loss = net->loss < 0 ? -1 : loss;
    g_ptr_array_set_size(net->ops, (gint)n);
}

void net_fuse(Net *net)
{
    g_autofree Uses *uses = uses_of(net);
    for (guint i = 0; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        if (op->kind == NET_OP_ADD && fuse_one(net, op, uses))
            g_free(op);
    }
    compact(net);
}

void net_drop_unused(Net *net)
{
    g_autofree gboolean *read = g_new0(gboolean, net->values->len);
    for (guint i = net->ops->len; i-- > 0;) {
        NetOp *op = net->ops->pdata[i];
        gboolean needed = FALSE;
        for (guint j = 0; j < op->n_out; j++)
            needed = needed || (op->out[j] &&
                                (read[op->out[j]->id] || op->out[j]->output || op->out[j]->role == NET_GRAD));
        for (guint j = 0; needed && j < op->n_in; j++)
            if (op->in[j])
                read[op->in[j]->id] = TRUE;
        if (!needed) {
            net->ops->pdata[i] = NULL;
            g_free(op);
        }
    }
    compact(net);
}
