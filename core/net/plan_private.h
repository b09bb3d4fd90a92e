/* A plan: the operations of a net with addresses and kernels. */
#ifndef NET_PLAN_PRIVATE_H
#define NET_PLAN_PRIVATE_H
#include "core/net/backend_private.h"
#include "core/net/passes_private.h"

G_BEGIN_DECLS

/* Where an operand is. ARENA: at offset; INPUT: bound memory of input `index`; COPY, GRADIENT: offset in the
 * adapters' buffers; WEIGHT: offset in a tensor. Offsets in bytes. */
typedef enum {
    NET_AT_NOWHERE,
    NET_AT_ARENA,
    NET_AT_INPUT,
    NET_AT_COPY,
    NET_AT_GRADIENT,
    NET_AT_WEIGHT
} NetAt;

typedef struct {
    guint8 at;
    guint32 index;
    gsize offset;
    const NetWeight *weight;
} NetOperand;

typedef struct {
    void (*run)(const NetCall *call);
    NetKernel kernel;
    NetOperand in[NET_MAX_IN], out[NET_MAX_OUT];
    gsize scratch; /* offset */
    double seconds;
    guint64 calls;
} NetInstr;

struct NetPlan {
    Net *net;
    NetPlanInfo info;
    NetInstr *instr; /* one for each net->ops */
    NetPiece *piece; /* for the dump; of storages, then scratch */
    NetVal **piece_val;
    guint pieces;
    gpointer *bound; /* input addresses of the run in progress */
    gboolean loaded; /* every weight has data */
};

/* The name given, else producer and number. Returns new. */
char *net_plan_value_name(const NetVal *v);

G_END_DECLS
#endif
