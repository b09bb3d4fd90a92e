/* Tables, positions, rows: what turns numbers into vectors. None has a gradient, since tables are frozen. */
#include "core/net/graph_private.h"

NetVal *net_embed(Net *net, NetVal *ids, const NetWeight *table, const NetWeight *positions)
{
    gint64 t = ids->dim[2];
    NetVal *y = net_temp(net, net->compute, ids->dim[0], 1, t, table ? table->shape[1] : 1);
    if (!table) {
        if (!net->errors->len)
            net_fail(net, "an embedding has no table");
        return y;
    }
    if (!net_need_type(net, table->name, ids, NET_I32))
        return y;
    if (ids->dim[1] != 1 || ids->dim[3] != 1)
        net_fail(net, "'%s': ids are %s, should be Nx1xTx1", table->name, net_shape_text(ids));
    else if (positions && (positions->shape[1] != table->shape[1] || positions->shape[0] < t))
        net_fail(net,
                 "'%s' is %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT ", needed are %" G_GINT64_FORMAT
                 " rows of %" G_GINT64_FORMAT,
                 positions->name, positions->shape[0], positions->shape[1], t, table->shape[1]);
    else
        net_op(net, NET_OP_EMBED, 3,
               (NetVal *[]){ids, net_weight_val(net, table, 0, 0), net_weight_val(net, positions, 0, 0)}, 1,
               &y);
    return y;
}

NetVal *net_sinusoid(Net *net, NetVal *t, gint64 dim)
{
    NetVal *y = net_temp(net, net->compute, t->dim[0], 1, 1, t->dim[3] * MAX(dim, 1));
    if (dim < 2 || t->dim[1] != 1 || t->dim[2] != 1)
        net_fail(net, "sinusoid: %s in %" G_GINT64_FORMAT " dimensions is not possible", net_shape_text(t),
                 dim);
    else if (net_need_type(net, "sinusoid", t, NET_F32))
        net_op(net, NET_OP_SINUSOID, 1, &t, 1, &y);
    return y;
}

NetVal *net_pick_row(Net *net, NetVal *x, NetVal *index)
{
    NetVal *y = net_temp(net, x->type, x->dim[0], 1, 1, x->dim[3]);
    if (index->dim[0] != x->dim[0] || net_rows(index) * index->dim[3] != x->dim[0])
        net_fail(net, "pick_row: %s indices for %s", net_shape_text(index), net_shape_text(x));
    else if (net_need_type(net, "pick_row", index, NET_I32) &&
             net_need_type(net, "pick_row", x, net->compute))
        net_op(net, NET_OP_PICK_ROW, 2, (NetVal *[]){x, index}, 1, &y);
    return y;
}
