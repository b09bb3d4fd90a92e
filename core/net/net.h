/* The training engine: a static graph of operations, built once for a shape, then only executed.
 *
 *   build (model code appends operations) -> net_differentiate -> net_plan_build -> net_run
 *
 * Values are single-assignment. Every value is (N, H, W, C), row-major, channels last; a token matrix is
 * (N, 1, T, C), a vector (1, 1, 1, C): an image and its tokens are the same memory, so nothing moves data
 * between a convolution and a transformer block. `rows` below means N * H * W.
 *
 * Activations have the compute type (f32 or bf16); statistics, losses and adapter gradients are f32.
 * Errors while building (a missing weight, shapes that do not fit) are collected: builders return a
 * placeholder of the right shape so that building goes on, and net_finish_errors() reports all at once. */
#ifndef NET_NET_H
#define NET_NET_H
#include "core/net/weight.h"

G_BEGIN_DECLS

typedef struct Net Net;
typedef struct NetVal NetVal;

typedef enum { NET_INPUT, NET_WEIGHT, NET_ADAPTER, NET_TEMP, NET_GRAD, NET_STATE } NetRole;

#define NET_ERROR net_error_quark()
GQuark net_error_quark(void);
enum { NET_ERROR_FAILED, NET_ERROR_SHAPE, NET_ERROR_MISSING, NET_ERROR_STOPPED, NET_ERROR_NOT_FINITE };

Net *net_new(NetType compute, NetAdapters *adapters); /* adapters: borrowed, NULL = none */
void net_free(Net *net);
NetType net_compute_type(const Net *net);
NetAdapters *net_adapters_of(const Net *net);

/* Shape of a value: dim 0 N, 1 H, 2 W, 3 C. */
gint64 net_dim(const NetVal *v, guint dim);
gint64 net_rows(const NetVal *v);
NetType net_val_type(const NetVal *v);
/* Names a value for printing and for net_run's dumps ("mid_block.attentions.0"). Returns v. */
NetVal *net_name(NetVal *v, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* The value named last by this name, or NULL; to make an output of it. */
NetVal *net_find(Net *net, const char *name);
/* Notes an error ("weight 'x' is missing"); building goes on. */
void net_fail(Net *net, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* FALSE with all noted errors in one message (at most 20, then a count). */
gboolean net_finish_errors(Net *net, GError **error);

/* -- inputs and outputs --------------------------------------------------------- */

/* Bound by name at run time. */
NetVal *net_input(Net *net, const char *name, NetType type, gint64 n, gint64 h, gint64 w, gint64 c);
/* Marks a value to be kept until the run ends and found by name (f32 copy where the type differs). */
void net_output(Net *net, const char *name, NetVal *v);

/* -- operations ------------------------------------------------------------------ */

/* y = x W' + b (+ scale B(A x) when `adapter`). w is [out, in] or NULL (then a placeholder and an error). */
NetVal *net_linear(Net *net, NetVal *x, const NetWeight *w, const NetWeight *bias, NetAdapter *adapter);
/* Several linears of one input; out[i] for w[i]. The engine fuses what it can. */
void net_linears(Net *net, NetVal *x, guint n, const NetWeight *const *w, const NetWeight *const *bias,
                 NetAdapter *const *adapter, NetVal **out);
/* Linear over the channel concatenation of a and b (b may be NULL), never materialised. */
NetVal *net_linear_cat(Net *net, NetVal *a, NetVal *b, const NetWeight *w, const NetWeight *bias,
                       NetAdapter *adapter);
typedef struct {
    gint64 stride, top, left, bottom, right; /* padding in px */
} NetConv;
/* w is [out, kh, kw, in]. */
NetVal *net_conv(Net *net, NetVal *x, const NetWeight *w, const NetWeight *bias, NetConv conv,
                 NetAdapter *adapter);
/* Nearest x2. */
NetVal *net_upsample(Net *net, NetVal *x);
/* GroupNorm over the channel concatenation of a and b (b may be NULL), then SiLU if asked. */
NetVal *net_group_norm(Net *net, NetVal *a, NetVal *b, const NetWeight *gamma, const NetWeight *beta,
                       gint64 groups, float eps, gboolean silu);
NetVal *net_layer_norm(Net *net, NetVal *x, const NetWeight *gamma, const NetWeight *beta, float eps);
/* softmax(q k' / sqrt(C / heads)) v for each n; q (N,*,*,C), k and v (N,*,*,C). Never stores the scores. */
NetVal *net_attention(Net *net, NetVal *q, NetVal *k, NetVal *v, gint64 heads, gboolean causal);
NetVal *net_geglu(Net *net, NetVal *u); /* a = first half, g = second: a * gelu_erf(g) */
NetVal *net_silu(Net *net, NetVal *x);
NetVal *net_gelu(Net *net, NetVal *x);       /* exact, erf */
NetVal *net_quick_gelu(Net *net, NetVal *x); /* x sigmoid(1.702 x) */
NetVal *net_add(Net *net, NetVal *a, NetVal *b);
NetVal *net_add_channel(Net *net, NetVal *x, NetVal *e); /* e (N,1,1,C) added at every pixel */
/* ids i32 (N,1,T,1) -> (N,1,T,C); positions [>= T, C] are added. */
NetVal *net_embed(Net *net, NetVal *ids, const NetWeight *table, const NetWeight *positions);
/* t (N,1,1,K) f32 -> (N,1,1,K*dim): cosines first, f32 arithmetic in the order of spec/sd.md 1.2. */
NetVal *net_sinusoid(Net *net, NetVal *t, gint64 dim);
NetVal *net_concat(Net *net, NetVal *a, NetVal *b); /* channels; for small vectors */
/* Row `index` (i32 (N,1,1,1)) of each n: (N,1,T,C) -> (N,1,1,C). */
NetVal *net_pick_row(Net *net, NetVal *x, NetVal *index);
/* Scales by a constant, and converts to another type. */
NetVal *net_scale(Net *net, NetVal *x, float factor);
NetVal *net_cast(Net *net, NetVal *x, NetType type);

/* The noising of spec/sd.md 5, in f32, before the first adapter. Inputs by their names:
 *   mean, logvar (N,H,W,C) f32; or latent (already scaled) when `latent` is not NULL
 *   key i64 (N,1,1,1), offset f32 (N,1,1,1), alpha_bar f32 (N,1,1,1)
 *   noise (N,H,W,C) f32 replaces the drawn one when not NULL.
 * Gives x_t in the compute type and the target in f32 (v prediction when `v`). */
typedef struct {
    NetVal *mean, *logvar, *latent, *noise, *key, *offset, *alpha_bar;
    float scaling;
    gboolean v;
} NetDraw;
void net_draw(Net *net, const NetDraw *draw, NetVal **x_t, NetVal **target);
/* loss = sum_n weight[n] * mean_chw (pred - target)^2, f32; weight (N,1,1,1) f32 holds the loss weight over
 * the number of samples in the group. Its gradient is multiplied by `scale` (1,1,1,1) f32. */
NetVal *net_mse(Net *net, NetVal *pred, NetVal *target, NetVal *weight, NetVal *scale);

/* -- differentiate --------------------------------------------------------------- */

/* Appends the adjoint operations of `loss` with respect to every adapter, and nothing else: no gradient of a
 * frozen weight, nothing below the first adapter. Adapter gradients are added to adapters->gradient
 * (the caller clears it before a group). */
gboolean net_differentiate(Net *net, NetVal *loss, GError **error);

/* -- plan ------------------------------------------------------------------------ */

/* Convolution weights are kept once more in the library's layouts, one a direction (NET_PACK_KEEP: up to
 * twice their bytes), or put into that layout in scratch at each use, or used as they are (NET_PACK_NEVER:
 * nothing kept). NET_PACK_AUTO, the default: kept, but for small maps with large weights on processors where
 * plain weights are as fast, which there is nearly all. Before net_plan_build. */
typedef enum { NET_PACK_AUTO, NET_PACK_KEEP, NET_PACK_NEVER } NetPacking;
void net_set_packing(Net *net, NetPacking packing);

typedef struct NetPlan NetPlan;
typedef struct {
    gsize arena, bound; /* bytes; bound = largest sum of live bytes over the operations */
    gsize saved;        /* bytes kept from forward for backward */
    gsize scratch;      /* largest scratch of one operation, inside the arena */
    gsize primitives;   /* estimate of what the vendor library keeps */
    gsize packed; /* weights once more in the library's layout, kept with the weights after a first run */
    guint ops, values, gradients_of_weights; /* the last is 0 by construction; counted for the test */
    double flops;
} NetPlanInfo;

/* Takes the net, also on failure. Weights without data (net_weights_new_dry) and adapters without buffers
 * will do for looking at the plan. [any] */
NetPlan *net_plan_build(Net *net, GError **error);
void net_plan_free(NetPlan *plan);
const NetPlanInfo *net_plan_info(const NetPlan *plan);
/* Live intervals and offsets as text: "value first last offset bytes name", one a line. Returns new. */
char *net_plan_intervals(const NetPlan *plan);
gboolean net_plan_dump(const NetPlan *plan, const char *path, GError **error);
/* The operations, for `plan --ops`. Returns new. */
char *net_plan_ops(const NetPlan *plan);

/* -- run ------------------------------------------------------------------------- */

/* Memory of one arena; grown by net_arena_fit before the run, never inside. */
typedef struct NetArena NetArena;
NetArena *net_arena_new(void);
void net_arena_free(NetArena *arena);
void net_arena_fit(NetArena *arena, const NetPlan *plan);

typedef struct {
    const char *name;
    const void *data; /* inputs: packed, of the declared type; outputs: where to copy to (f32) */
} NetBinding;

typedef struct {
    const NetBinding *inputs;   /* ends with a NULL name */
    const NetBinding *outputs;  /* ends with a NULL name; data is written */
    gboolean (*stop)(gpointer); /* polled between instructions; NULL = never */
    gpointer stop_data;
    gboolean check_finite; /* after every operation; names the first value that is not */
    gboolean profile;      /* collects seconds per operation, see net_plan_profile */
} NetRunArgs;

/* Executes on the compute thread and waits. No allocation after a plan's first run. Every input that an
 * operation reads has to be bound; outputs that nobody wants may be left out. [any] */
gboolean net_run(NetPlan *plan, NetArena *arena, const NetRunArgs *args, GError **error);
/* Table of the operations' seconds and GFLOP/s since the plan was made. Returns new. */
char *net_plan_profile(const NetPlan *plan);

/* -- the compute thread ------------------------------------------------------------ */

/* Calls fn(data) on the one thread that runs plans and waits for it. Every net_run goes through here, so the
 * vendor library has one thread team and an arena is never shared by two runs. Nested calls run at once.
 * [any] */
void net_on_compute_thread(void (*fn)(gpointer), gpointer data);

/* bf16 where the hardware has it (AVX512-BF16 or AMX), else f32. */
NetType net_best_compute(void);

G_END_DECLS
#endif
