/* Shared by the files of the CPU backend. */
#ifndef NET_CPU_PRIVATE_H
#define NET_CPU_PRIVATE_H
#include "core/net/backend_private.h"
#include "core/net/dnnl_private.h"

G_BEGIN_DECLS

static inline gsize net_cpu_aligned(gsize n)
{
    return (n + 63) / 64 * 64;
}

/* NetDnnlAdd: does `add` lie where `out` will be? */
guint32 net_cpu_add_kind(const NetVal *add, const NetVal *out);
/* A primitive for a kernel, whose demands grow by those of the primitive. */
NetDnnl *net_cpu_take(const NetDnnlSpec *spec, NetKernel *kernel, GError **error);
/* A kernel that is one primitive. */
gboolean net_cpu_prepare(const NetDnnlSpec *spec, NetKernel *kernel, GError **error);

/* Sums over rows, for the gradients of adapters. The library divides a long sum between threads, so that the
 * result depends on their number; it does not up to this many rows, so they are taken in blocks. */
enum { NET_CPU_OUTER_ROWS = 1024 };
typedef struct NetCpuOuter NetCpuOuter;
/* spec: m, n, k = rows, types; the result's rows lie `ld` apart. */
gboolean net_cpu_outer_make(NetDnnlSpec *spec, gint64 ld, NetKernel *kernel, GError **error);
/* out (m, n) += scale a' b; a (rows, m) and b (rows, n) of `type`, rows as made or a whole block of them. */
gboolean net_cpu_outer_run(const NetCpuOuter *outer, gint64 rows, NetType type, gconstpointer a,
                           gconstpointer b, float *out, gpointer scratch, GError **error);

/* Convolutions as products with gathered columns (cpu_columns.c). */
gboolean net_cpu_columns_forward_prepare(const NetOp *op, NetKernel *kernel, GError **error);
gboolean net_cpu_columns_backward_prepare(const NetOp *op, NetKernel *kernel, GError **error);

G_END_DECLS
#endif
