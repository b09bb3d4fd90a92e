/* What a backend gives: for each kind of operation how it is run and what that needs. */
#ifndef NET_BACKEND_PRIVATE_H
#define NET_BACKEND_PRIVATE_H
#include "core/net/graph_private.h"

G_BEGIN_DECLS

/* One call at run time; in and out as in the operation, NULL where left out. */
typedef struct {
    const NetOp *op;
    gpointer state;
    gpointer scratch; /* 64-byte aligned */
    gconstpointer in[NET_MAX_IN];
    gpointer out[NET_MAX_OUT];
    GError **error; /* set by a kernel that finds its data wrong */
} NetCall;

/* What is fixed for one operation of one plan. */
typedef struct {
    void (*run)(const NetCall *call); /* another way than the row's; NULL: the row's */
    gpointer state;
    void (*free_state)(gpointer);
    gsize scratch; /* bytes, during the call only */
    gsize library; /* estimate of what the library keeps for this operation alone */
    gsize packed;  /* bytes of a weight in the library's layout, kept with the weight */
} NetKernel;

/* A row: how a kind of operation is run, and one of two ways to say what that needs. */
typedef struct {
    void (*run)(const NetCall *call);
    gsize (*scratch)(const NetOp *op);                                       /* NULL: none */
    gboolean (*prepare)(const NetOp *op, NetKernel *kernel, GError **error); /* NULL: nothing to prepare */
} NetBackendRow;

/* The CPU: oneDNN for products and convolutions, kernels/ for the rest. */
extern const NetBackendRow net_cpu[NET_OP_COUNT];

/* Products (cpu_matmul.c) and convolutions (cpu_conv.c). */
void net_cpu_matmul(const NetCall *call);
gboolean net_cpu_matmul_prepare(const NetOp *op, NetKernel *kernel, GError **error);
void net_cpu_outer(const NetCall *call);
gboolean net_cpu_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error);
void net_cpu_conv(const NetCall *call);
gboolean net_cpu_conv_prepare(const NetOp *op, NetKernel *kernel, GError **error);
void net_cpu_conv_backward(const NetCall *call);
gboolean net_cpu_conv_backward_prepare(const NetOp *op, NetKernel *kernel, GError **error);
void net_cpu_conv_outer(const NetCall *call);
gboolean net_cpu_conv_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error);

G_END_DECLS
#endif
