/* Values, operations and what building them shares: errors, names, inputs, outputs. */
#include "core/net/graph_private.h"
#include <stdarg.h>

enum { NET_ERRORS_SHOWN = 20 };
static const gint64 net_most_elements = (gint64)1 << 40;

static void val_free(gpointer data)
{
    NetVal *v = data;
    g_free(v->name);
    g_free(v);
}

Net *net_new(NetType compute, NetAdapters *adapters)
{
    Net *net = g_new0(Net, 1);
    net->compute = compute;
    net->adapters = adapters;
    net->loss = -1;
    net->values = g_ptr_array_new_with_free_func(val_free);
    net->ops = g_ptr_array_new_with_free_func(g_free);
    net->errors = g_ptr_array_new_with_free_func(g_free);
    net->inputs = g_ptr_array_new();
    net->outputs = g_ptr_array_new();
    net->output_names = g_ptr_array_new_with_free_func(g_free);
    if (compute != NET_F32 && compute != NET_BF16)
        net_fail(net, "cannot compute in %s; use f32 or bf16", net_type_name(compute));
    if (adapters && adapters->compute != compute)
        net_fail(net, "the adapters are for %s, the net computes in %s", net_type_name(adapters->compute),
                 net_type_name(compute));
    return net;
}

void net_free(Net *net)
{
    if (!net)
        return;
    g_ptr_array_unref(net->output_names);
    g_ptr_array_unref(net->outputs);
    g_ptr_array_unref(net->inputs);
    g_ptr_array_unref(net->errors);
    g_ptr_array_unref(net->ops);
    g_ptr_array_unref(net->values);
    g_free(net);
}

NetType net_compute_type(const Net *net)
{
    return net->compute;
}

NetAdapters *net_adapters_of(const Net *net)
{
    return net->adapters;
}

void net_set_packing(Net *net, NetPacking packing)
{
    net->packing = packing;
}

gint64 net_dim(const NetVal *v, guint dim)
{
    return v->dim[dim];
}

gint64 net_rows(const NetVal *v)
{
    return v->dim[0] * v->dim[1] * v->dim[2];
}

NetType net_val_type(const NetVal *v)
{
    return v->type;
}

NetVal *net_name(NetVal *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_free(v->name);
    v->name = g_strdup_vprintf(format, args);
    va_end(args);
    return v;
}

NetVal *net_find(Net *net, const char *name)
{
    for (guint i = net->values->len; i-- > 0;) {
        NetVal *v = net->values->pdata[i];
        if (v->name && g_str_equal(v->name, name))
            return v;
    }
    return NULL;
}

void net_fail(Net *net, const char *format, ...)
{
    if (net->errors->len == NET_ERRORS_SHOWN) {
        net->more_errors++;
        return;
    }
    va_list args;
    va_start(args, format);
    g_ptr_array_add(net->errors, g_strdup_vprintf(format, args));
    va_end(args);
}

gboolean net_finish_errors(Net *net, GError **error)
{
    if (net->errors->len == 0)
        return TRUE;
    g_autoptr(GString) text = g_string_new(net->errors->pdata[0]);
    for (guint i = 1; i < net->errors->len; i++)
        g_string_append_printf(text, "\n%s", (const char *)net->errors->pdata[i]);
    if (net->more_errors)
        g_string_append_printf(text, "\nand %u more", net->more_errors);
    g_set_error_literal(error, NET_ERROR, NET_ERROR_SHAPE, text->str);
    return FALSE;
}

static NetVal *val_new(Net *net, NetRole role, NetType type, const gint64 dim[4])
{
    NetVal *v = g_new0(NetVal, 1);
    v->net = net;
    v->id = net->values->len;
    v->role = role;
    v->type = type;
    gint64 n = 1;
    gboolean fits = TRUE;
    for (guint i = 0; i < 4; i++) {
        fits = fits && dim[i] >= 1 && dim[i] <= net_most_elements / n;
        v->dim[i] = fits ? dim[i] : 1;
        n *= v->dim[i];
    }
    if (!fits)
        net_fail(net,
                 "a value of %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                 " elements is not possible (sides from 1, at most 2^40 elements)",
                 dim[0], dim[1], dim[2], dim[3]);
    v->ld = v->dim[3];
    v->bytes = net_type_bytes(type, (gsize)n);
    v->first = v->last = -1;
    v->storage = v;
    g_ptr_array_add(net->values, v);
    return v;
}

NetVal *net_temp(Net *net, NetType type, gint64 n, gint64 h, gint64 w, gint64 c)
{
    return val_new(net, NET_TEMP, type, (gint64[4]){n, h, w, c});
}

NetVal *net_temp_like(NetVal *v)
{
    return val_new(v->net, NET_TEMP, v->type, v->dim);
}

NetVal *net_weight_val(Net *net, const NetWeight *weight, gint64 begin, gint64 count)
{
    if (!weight)
        return NULL;
    NetVal *v;
    if (count > 0) {
        v = val_new(net, NET_WEIGHT, weight->type, (gint64[4]){1, 1, weight->shape[0], count});
        v->ld = weight->shape[1] * weight->shape[2] * weight->shape[3];
        v->offset = (gsize)begin;
    } else {
        v = val_new(net, NET_WEIGHT, weight->type, weight->shape);
    }
    v->weight = weight;
    return v;
}

NetVal *net_adapter_val(Net *net, NetRole role, gsize offset, const gint64 dim[4], gint64 ld)
{
    NetVal *v = val_new(net, role, role == NET_GRAD ? NET_F32 : net->compute, dim);
    v->offset = offset;
    v->ld = ld;
    return v;
}

NetOp *net_op(Net *net, NetOpKind kind, guint n_in, NetVal *const *in, guint n_out, NetVal *const *out)
{
    NetOp *op = g_new0(NetOp, 1);
    op->kind = kind;
    op->index = net->ops->len;
    op->backward = net->backward;
    op->n_in = n_in;
    op->n_out = n_out;
    for (guint i = 0; i < n_in; i++)
        op->in[i] = in[i];
    for (guint i = 0; i < n_out; i++) {
        op->out[i] = out[i];
        if (out[i])
            out[i]->producer = op;
    }
    g_ptr_array_add(net->ops, op);
    return op;
}

const char *net_op_name(NetOpKind kind)
{
    return net_op_rows[kind].name;
}

const char *net_shape_text(const NetVal *v)
{
    static _Thread_local char text[4][96];
    static _Thread_local guint turn;
    char *out = text[turn++ % 4];
    g_snprintf(out, sizeof text[0],
               "%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT, v->dim[0],
               v->dim[1], v->dim[2], v->dim[3]);
    return out;
}

gboolean net_same_shape(const NetVal *a, const NetVal *b)
{
    for (guint i = 0; i < 4; i++)
        if (a->dim[i] != b->dim[i])
            return FALSE;
    return TRUE;
}

gboolean net_need_type(Net *net, const char *what, const NetVal *v, NetType type)
{
    if (v->type == type)
        return TRUE;
    net_fail(net, "%s wants %s, got %s", what, net_type_name(type), net_type_name(v->type));
    return FALSE;
}

NetVal *net_input(Net *net, const char *name, NetType type, gint64 n, gint64 h, gint64 w, gint64 c)
{
    NetVal *v = val_new(net, NET_INPUT, type, (gint64[4]){n, h, w, c});
    v->name = g_strdup(name);
    for (guint i = 0; i < net->inputs->len; i++)
        if (g_str_equal(((NetVal *)net->inputs->pdata[i])->name, name))
            net_fail(net, "two inputs are called '%s'", name);
    g_ptr_array_add(net->inputs, v);
    return v;
}

void net_output(Net *net, const char *name, NetVal *v)
{
    for (guint i = 0; i < net->output_names->len; i++)
        if (g_str_equal(net->output_names->pdata[i], name))
            net_fail(net, "two outputs are called '%s'", name);
    if (v->type != NET_F32 && v->type != NET_BF16)
        net_fail(net, "output '%s' is %s; outputs are f32 or bf16", name, net_type_name(v->type));
    v->output = TRUE;
    g_ptr_array_add(net->outputs, v);
    g_ptr_array_add(net->output_names, g_strdup(name));
}
