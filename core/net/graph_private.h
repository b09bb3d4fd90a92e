/* What values and operations are, for the files of core/net only.
 *
 * An operation is a kind, its operands and a few numbers. What a kind means is said in two tables: its row
 * in op.c (gradient, what it may overwrite, cost) and its row in a backend (cpu.c: how it is run). */
#ifndef NET_GRAPH_PRIVATE_H
#define NET_GRAPH_PRIVATE_H
#include "core/net/net.h"

G_BEGIN_DECLS

typedef struct NetOp NetOp;

struct NetVal {
    Net *net;
    guint id;
    NetType type;
    NetRole role;
    gint64 dim[4];
    gint64 ld;        /* elements from row to row; more than dim[3] for a column range of a weight */
    gsize bytes;      /* packed */
    char *name;       /* NULL: named after the producer */
    NetOp *producer;  /* NULL: input, weight, adapter, or placeholder after an error */
    gboolean output;  /* kept until the run ends */
    gboolean wanted;  /* a gradient of it is needed */
    NetVal *gradient; /* what has arrived so far */
    NetVal *again;    /* made once more for backward */

    const NetWeight *weight; /* WEIGHT */
    gsize offset;            /* first element in the weight, or in the adapters' flat buffers */

    /* of the plan */
    gint first, last; /* operations that write it first and read it last; -1: before all */
    guint uses;
    NetVal *storage; /* whose memory it uses; itself unless in place */
    gsize place;     /* offset in the arena */
};

enum { NET_MAX_IN = 9, NET_MAX_OUT = 3 };

#define NET_OPS(X)                                                                                           \
    X(MATMUL)                                                                                                \
    X(OUTER)                                                                                                 \
    X(CONV)                                                                                                  \
    X(CONV_BACKWARD)                                                                                         \
    X(CONV_OUTER)                                                                                            \
    X(UPSAMPLE)                                                                                              \
    X(UPSAMPLE_BACKWARD)                                                                                     \
    X(GROUP_NORM)                                                                                            \
    X(GROUP_NORM_AGAIN)                                                                                      \
    X(GROUP_NORM_BACKWARD)                                                                                   \
    X(LAYER_NORM)                                                                                            \
    X(LAYER_NORM_AGAIN)                                                                                      \
    X(LAYER_NORM_BACKWARD)                                                                                   \
    X(ATTENTION)                                                                                             \
    X(ATTENTION_BACKWARD)                                                                                    \
    X(GEGLU)                                                                                                 \
    X(GEGLU_BACKWARD)                                                                                        \
    X(SILU)                                                                                                  \
    X(SILU_BACKWARD)                                                                                         \
    X(GELU)                                                                                                  \
    X(GELU_BACKWARD)                                                                                         \
    X(QUICK_GELU)                                                                                            \
    X(QUICK_GELU_BACKWARD)                                                                                   \
    X(ADD)                                                                                                   \
    X(ADD_CHANNEL)                                                                                           \
    X(SUM_ROWS)                                                                                              \
    X(SCALE)                                                                                                 \
    X(CAST)                                                                                                  \
    X(CONCAT)                                                                                                \
    X(SPLIT)                                                                                                 \
    X(EMBED)                                                                                                 \
    X(SINUSOID)                                                                                              \
    X(PICK_ROW)                                                                                              \
    X(DRAW)                                                                                                  \
    X(MSE)                                                                                                   \
    X(MSE_BACKWARD)

typedef enum {
#define X(name) NET_OP_##name,
    NET_OPS(X)
#undef X
        NET_OP_COUNT
} NetOpKind;

struct NetOp {
    NetOpKind kind;
    guint index;
    gboolean backward; /* appended by net_differentiate */
    gboolean active;   /* lies between an adapter and the loss */
    guint n_in, n_out;
    NetVal *in[NET_MAX_IN], *out[NET_MAX_OUT]; /* NULL: operand left out */
    union {
        struct {
            gint64 m, n, k;  /* c (m, n) = scale a (m, k) b (k, n) */
            gboolean ta, tb; /* stored the other way round */
            float scale;
        } matmul;
        NetConv conv;
        struct {
            gint64 groups;
            float eps;
            gboolean silu;
        } norm;
        struct {
            gint64 heads;
            gboolean causal;
        } attention;
        struct {
            float scaling;
            gboolean v;
        } draw;
        float factor;
    } u;
};

struct Net {
    NetType compute;
    NetPacking packing;
    NetAdapters *adapters;
    GPtrArray *values; /* NetVal * */
    GPtrArray *ops;    /* NetOp *, in the order of execution */
    GPtrArray *errors; /* char * */
    guint more_errors;
    GPtrArray *inputs;          /* NetVal *, by name */
    GPtrArray *outputs;         /* NetVal *, each with ... */
    GPtrArray *output_names;    /* ... its name */
    gboolean backward;          /* what is appended now belongs to backward */
    gint loss;                  /* index of the last forward operation, -1 */
    guint gradients_of_weights; /* stays 0 */
};

/* A temporary of this shape, written by the next operation. */
NetVal *net_temp(Net *net, NetType type, gint64 n, gint64 h, gint64 w, gint64 c);
NetVal *net_temp_like(NetVal *v);
/* A frozen tensor as an operand; columns [begin, begin + count) of its rows when count > 0. */
NetVal *net_weight_val(Net *net, const NetWeight *weight, gint64 begin, gint64 count);
/* Elements of the adapters' flat buffers as an operand: of the compute copy (ADAPTER) or the gradient (GRAD).
 */
NetVal *net_adapter_val(Net *net, NetRole role, gsize offset, const gint64 dim[4], gint64 ld);
/* Appends; operands may be NULL. Sets out[i]->producer. */
NetOp *net_op(Net *net, NetOpKind kind, guint n_in, NetVal *const *in, guint n_out, NetVal *const *out);
const char *net_op_name(NetOpKind kind);
/* "3x64x64x320"; valid for the next three calls in this thread. */
const char *net_shape_text(const NetVal *v);
gboolean net_same_shape(const NetVal *a, const NetVal *b);
/* Notes an error unless v has this type. */
gboolean net_need_type(Net *net, const char *what, const NetVal *v, NetType type);

/* -- gradients (differentiate.c), for the adjoints ---------------------------------- */

/* Adds g to what has arrived at v; nothing if no gradient of v is wanted or g is NULL. */
void net_push(Net *net, NetVal *v, NetVal *g);
gboolean net_wanted(const NetVal *v);
/* v for use in backward: v itself, or made once more where that is cheap and keeps nothing more. */
NetVal *net_recall(Net *net, NetVal *v);

typedef struct {
    const char *name;
    /* Appends the gradients of the inputs from that of the first output. NULL: has none. */
    void (*adjoint)(Net *net, NetOp *op);
    /* Appends the same computation once more; NULL: too dear, keep the output instead. */
    NetVal *(*again)(Net *net, const NetOp *op);
    double (*flops)(const NetOp *op); /* NULL: bound by memory */
    /* Bit i: input i may give its memory to output o when nothing reads it later. */
    guint16 in_place[NET_MAX_OUT];
    /* 1 + the input that is added to output o, 0: none; a later addition may be moved in there. */
    guint8 accumulate[NET_MAX_OUT];
    gboolean must_share; /* that input has to give its memory */
} NetOpRow;
extern const NetOpRow net_op_rows[NET_OP_COUNT];

/* scale B t. */
NetVal *net_lora_up(Net *net, NetVal *t, const NetAdapter *adapter);

void net_matmul_adjoint(Net *net, NetOp *op);
void net_conv_adjoint(Net *net, NetOp *op);
void net_upsample_adjoint(Net *net, NetOp *op);
void net_group_norm_adjoint(Net *net, NetOp *op);
void net_layer_norm_adjoint(Net *net, NetOp *op);
void net_attention_adjoint(Net *net, NetOp *op);
void net_geglu_adjoint(Net *net, NetOp *op);
void net_silu_adjoint(Net *net, NetOp *op);
void net_gelu_adjoint(Net *net, NetOp *op);
void net_quick_gelu_adjoint(Net *net, NetOp *op);
void net_add_adjoint(Net *net, NetOp *op);
void net_add_channel_adjoint(Net *net, NetOp *op);
void net_scale_adjoint(Net *net, NetOp *op);
void net_cast_adjoint(Net *net, NetOp *op);
void net_concat_adjoint(Net *net, NetOp *op);
void net_mse_adjoint(Net *net, NetOp *op);

NetVal *net_upsample_again(Net *net, const NetOp *op);
NetVal *net_group_norm_again(Net *net, const NetOp *op);
NetVal *net_layer_norm_again(Net *net, const NetOp *op);
NetVal *net_geglu_again(Net *net, const NetOp *op);
NetVal *net_unary_again(Net *net, const NetOp *op);

double net_matmul_flops(const NetOp *op);
double net_conv_flops(const NetOp *op);
double net_attention_flops(const NetOp *op);

G_END_DECLS
#endif
