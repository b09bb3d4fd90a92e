/* When a value lives, and whose memory it uses.
 *
 * A value lives from the operation that writes it to the last that reads it (an output to the end). An
 * output may take the memory of an input that dies there, if the operation says so (op.c) and the sizes are
 * equal; then both are one storage, which lives as long as its members together. */
#include "core/net/passes_private.h"

static gboolean in_arena(const NetVal *v)
{
    return v && v->role == NET_TEMP;
}

static void live_intervals(Net *net)
{
    gint n = (gint)net->ops->len;
    for (guint i = 0; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_out; j++)
            if (op->out[j]) {
                op->out[j]->first = (gint)i;
                op->out[j]->last = op->out[j]->output ? n : (gint)i;
            }
        for (guint j = 0; j < op->n_in; j++)
            if (op->in[j]) {
                op->in[j]->last = MAX(op->in[j]->last, (gint)i);
                op->in[j]->uses++;
            }
    }
}

static gboolean can_share(const NetOp *op, guint o, guint i)
{
    NetVal *in = op->in[i], *out = op->out[o];
    if (!in_arena(in) || !in_arena(out) || in->bytes != out->bytes)
        return FALSE;
    for (guint j = 0; j < op->n_in; j++)
        if (j != i && op->in[j] && op->in[j]->storage == in->storage)
            return FALSE;
    for (guint j = 0; j < o; j++)
        if (op->out[j] && op->out[j]->storage == in->storage)
            return FALSE;
    return in->storage->last == (gint)op->index;
}

static void share(const NetOp *op, guint o)
{
    const NetOpRow *row = &net_op_rows[op->kind];
    guint first = row->accumulate[o] ? row->accumulate[o] - 1u : 0;
    for (guint k = 0; k <= op->n_in; k++) {
        guint i = k == 0 ? first : k - 1;
        if (!(row->in_place[o] >> i & 1) || !can_share(op, o, i))
            continue;
        NetVal *storage = op->in[i]->storage; /* never itself a guest */
        op->out[o]->storage = storage;
        storage->last = MAX(storage->last, op->out[o]->last);
        return;
    }
}

void net_live(Net *net)
{
    live_intervals(net);
    for (guint i = 0; i < net->ops->len; i++) {
        NetOp *op = net->ops->pdata[i];
        for (guint o = 0; o < op->n_out; o++)
            if (op->out[o])
                share(op, o);
    }
}
