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
/* A kernel that is one primitive. */
gboolean net_cpu_prepare(const NetDnnlSpec *spec, NetKernel *kernel, GError **error);

/* Sums over rows, for the gradients of adapters. */
typedef struct NetCpuOuter NetCpuOuter;
/* spec: m, n, k = rows, types; the result's rows lie `ld` apart. */
gboolean net_cpu_outer_make(NetDnnlSpec *spec, gint64 ld, NetKernel *kernel, GError **error);
/* out (m, n) += scale a' b. */
gboolean net_cpu_outer_run(const NetCpuOuter *outer, const NetVal *a, gconstpointer at_a, const NetVal *b,
                           gconstpointer at_b, float *out, gpointer scratch, GError **error);

G_END_DECLS
#endif
