/* Matrix products on the CPU, through oneDNN. */
#include "core/net/cpu_private.h"
#include "core/net/dnnl_private.h"
#include <string.h>

guint32 net_cpu_add_kind(const NetVal *add, const NetVal *out)
{
    if (!add)
        return NET_DNNL_NO_ADD;
    return add->storage == out->storage ? NET_DNNL_ADD_SHARED : NET_DNNL_ADD_APART;
}

static void matmul_spec(const NetOp *op, NetDnnlSpec *spec)
{
    spec->kind = NET_DNNL_MATMUL;
    spec->src = op->in[0]->type;
    spec->weights = op->in[1]->type;
    spec->dst = op->out[0]->type;
    spec->ta = op->u.matmul.ta;
    spec->tb = op->u.matmul.tb;
    spec->scale = op->u.matmul.scale;
    spec->m = op->u.matmul.m;
    spec->n = op->u.matmul.n;
    spec->k = op->u.matmul.k;
}

/* The fast routines want packed operands. A column range of a weight is copied once and kept with it; one of
 * an adapter, whose numbers change with every step, goes through scratch. */
static gboolean is_kept(const NetVal *b)
{
    return b->role == NET_WEIGHT && b->net->packing != NET_PACK_NEVER;
}

static gboolean is_range(const NetVal *b)
{
    return b->ld != b->dim[3];
}

static gconstpointer packed_range(const NetCall *call, gpointer *scratch)
{
    const NetVal *b = call->op->in[1];
    if (is_kept(b))
        return net_dnnl_columns(b->weight, (gint64)b->offset, b->dim[3]);
    guint8 *to = *scratch;
    gsize row = net_type_bytes(b->type, (gsize)b->dim[3]), step = net_type_bytes(b->type, (gsize)b->ld);
    for (gint64 i = 0; i < b->dim[2]; i++)
        memcpy(to + (gsize)i * row, (const guint8 *)call->in[1] + (gsize)i * step, row);
    *scratch = to + net_cpu_aligned(b->bytes);
    return to;
}

void net_cpu_matmul(const NetCall *call)
{
    gpointer scratch = call->scratch;
    NetDnnlArgs args = {.src = call->in[0],
                        .weights = is_range(call->op->in[1]) ? packed_range(call, &scratch) : call->in[1],
                        .bias = call->in[2],
                        .add = call->in[3],
                        .dst = call->out[0]};
    args.scratch = scratch;
    net_dnnl_run(call->state, &args, call->error);
}

NetDnnl *net_cpu_take(const NetDnnlSpec *spec, NetKernel *kernel, GError **error)
{
    NetDnnl *dnnl = net_dnnl_get(spec, error);
    if (dnnl) {
        kernel->scratch = MAX(kernel->scratch, net_dnnl_scratch(dnnl));
        kernel->library += net_dnnl_library_bytes(dnnl);
    }
    return dnnl;
}

gboolean net_cpu_prepare(const NetDnnlSpec *spec, NetKernel *kernel, GError **error)
{
    kernel->state = net_cpu_take(spec, kernel, error);
    kernel->free_state = net_dnnl_unref;
    return kernel->state != NULL;
}

gboolean net_cpu_matmul_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    const NetVal *b = op->in[1];
    NetDnnlSpec spec = {0};
    matmul_spec(op, &spec);
    spec.bias = op->in[2] != NULL;
    spec.add = net_cpu_add_kind(op->in[3], op->out[0]);
    if (!net_cpu_prepare(&spec, kernel, error))
        return FALSE;
    if (is_range(b) && is_kept(b))
        kernel->packed = b->bytes;
    else if (is_range(b))
        kernel->scratch += net_cpu_aligned(b->bytes);
    return TRUE;
}

/* -- gradients of adapters ---------------------------------------------------------------- */

struct NetCpuOuter {
    NetDnnl *block, *rest; /* NULL: none of that size */
    gint64 m, n, ld;       /* of the result */
    gsize sum;             /* bytes of scratch for a packed result where the gradient is a column range */
};

static void outer_free(gpointer data)
{
    NetCpuOuter *outer = data;
    net_dnnl_unref(outer->block);
    net_dnnl_unref(outer->rest);
    g_free(outer);
}

gboolean net_cpu_outer_run(const NetCpuOuter *outer, gint64 rows, NetType type, gconstpointer a,
                           gconstpointer b, float *out, gpointer scratch, GError **error)
{
    float *sum = outer->sum ? scratch : out;
    NetDnnlArgs args = {.src = a, .weights = b, .dst = sum, .scratch = (guint8 *)scratch + outer->sum};
    if (outer->sum)
        memset(sum, 0, outer->sum);
    for (; rows >= NET_CPU_OUTER_ROWS; rows -= NET_CPU_OUTER_ROWS) {
        if (!net_dnnl_run(outer->block, &args, error))
            return FALSE;
        args.src = (const guint8 *)args.src + net_type_bytes(type, (gsize)(NET_CPU_OUTER_ROWS * outer->m));
        args.weights =
            (const guint8 *)args.weights + net_type_bytes(type, (gsize)(NET_CPU_OUTER_ROWS * outer->n));
    }
    if (rows > 0 && !net_dnnl_run(outer->rest, &args, error))
        return FALSE;
    for (gint64 i = 0; outer->sum && i < outer->m; i++)
        for (gint64 j = 0; j < outer->n; j++)
            out[i * outer->ld + j] += sum[i * outer->n + j];
    return TRUE;
}

gboolean net_cpu_outer_make(NetDnnlSpec *spec, gint64 ld, NetKernel *kernel, GError **error)
{
    NetCpuOuter *outer = g_new0(NetCpuOuter, 1);
    gint64 rows = spec->k;
    kernel->state = outer;
    kernel->free_state = outer_free;
    outer->m = spec->m;
    outer->n = spec->n;
    outer->ld = ld;
    outer->sum = ld == spec->n ? 0 : net_cpu_aligned(sizeof(float) * (gsize)(spec->m * spec->n));
    spec->add = NET_DNNL_ADD_SHARED;
    spec->k = NET_CPU_OUTER_ROWS;
    if (rows >= NET_CPU_OUTER_ROWS && !(outer->block = net_cpu_take(spec, kernel, error)))
        return FALSE;
    spec->k = rows % NET_CPU_OUTER_ROWS;
    if (spec->k && !(outer->rest = net_cpu_take(spec, kernel, error)))
        return FALSE;
    kernel->scratch += outer->sum;
    return TRUE;
}

void net_cpu_outer(const NetCall *call)
{
    const NetVal *a = call->op->in[0];
    net_cpu_outer_run(call->state, net_rows(a), a->type, call->in[0], call->in[1], call->out[0],
                      call->scratch, call->error);
}

gboolean net_cpu_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    NetDnnlSpec spec = {0};
    matmul_spec(op, &spec);
    return net_cpu_outer_make(&spec, op->out[0]->ld, kernel, error);
}
