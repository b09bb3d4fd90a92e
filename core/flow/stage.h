/* Stage ABI: all that a file in stages/ needs from the runtime.
 *
 * A stage is one shared object that exports one constant, `flow_stage`, made by FLOW_STAGE(). The
 * host calls nothing in the object until the description has been checked, so `loraflow inspect`
 * lists a stage without running it.
 *
 * Rules
 *  - Node state is read-only from the moment open() returns; workers share it. What changes lives in
 *    worker scratch, or in state of a FLOW_STATEFUL stage (which has one worker), or behind a lock.
 *  - process() handles exactly the items it was given. Inputs are borrowed: the host drops what is
 *    left in `in`, also after errors; flow_take(&in[i]) keeps one. Outputs are given away.
 *  - The result depends on items, parameters and flow_ctx_key() only, never on threads or timing.
 *  - Errors: return FLOW_ERROR (stop the run) or FLOW_SKIP (this item is bad; counts against
 *    `on_error`) with *error set: lower case, no period, the value and the limit in the text. The host
 *    adds file, line, node and item.
 *
 * Thread marks
 *   [graph]   one thread, before the workers start or after they have joined
 *   [worker]  a worker thread; FLOW_PARALLEL stages have several at once
 *   [any]     any thread, at any time */
#ifndef FLOW_STAGE_H
#define FLOW_STAGE_H
#include "core/flow/item.h"
#include "core/flow/random.h"
#include "core/flow/status.h"
#include <gmodule.h>
#include <stddef.h>

G_BEGIN_DECLS

#define FLOW_ABI 1 /* bump when a field moves or changes meaning; append freely */

typedef struct FlowNode FlowNode;   /* one stage instance in a graph */
typedef struct FlowCtx FlowCtx;     /* one worker's view of its node */
typedef struct FlowGraph FlowGraph; /* core/flow/graph.h */
typedef struct FlowPlan FlowPlan;   /* core/flow/plan.h */

/* -- parameters ---------------------------------------------------------------- */

typedef enum {
    FLOW_P_BOOL,   /* yes no true false on off 1 0 */
    FLOW_P_INT,    /* 12, 4k, 2M */
    FLOW_P_FLOAT,  /* 1e-4 */
    FLOW_P_SIZE,   /* bytes: 512, 64KiB, 8GiB, 1MB */
    FLOW_P_STRING, /* the rest of the line */
    FLOW_P_PATH,   /* relative to the file that contains it; kept absolute */
    FLOW_P_ENUM,   /* one of the choices, value = position */
    FLOW_P_LIST,   /* comma-separated texts; NULL-terminated array */
    FLOW_P_NODE,   /* name of another node, which is opened first */
} FlowParamType;

enum {
    FLOW_P_NORESULT = 1, /* does not change what comes out (method, log file): not in cache keys, and a
                            checkpoint may be resumed with another value (also lengths such as `steps`) */
    FLOW_P_FIXED = 2, /* a checkpoint made with another value cannot be resumed (rank); others are warned */
};

typedef struct {
    const char *name; /* [a-z][a-z0-9_]*, the key in the graph file */
    FlowParamType type;
    gsize offset;        /* where the parsed value goes in the node state */
    const char *def;     /* default in graph file syntax; NULL = required */
    double min, max;     /* inclusive; ignored for text types */
    const char *unit;    /* "px", "s", "bytes", "" */
    const char *choices; /* "a|b|c" for FLOW_P_ENUM */
    const char *doc;     /* one sentence, ends with a period */
    guint32 flags;
} FlowParam;

/* The _Generic makes a field of the wrong C type a compile error. Text and lists are owned by the host. */
#define FLOW__AT(S, f, T) (offsetof(S, f) + 0 * sizeof(_Generic(((S *)0)->f, T : 1)))
#define FLOW_BOOL(S, f, def, doc, ...)                                                                       \
    {                                                                                                        \
#f, FLOW_P_BOOL, FLOW__AT(S, f, gboolean), def, 0, 1, "", NULL, doc, 0 __VA_ARGS__                   \
    }
#define FLOW_INT(S, f, def, min, max, unit, doc, ...)                                                        \
    {                                                                                                        \
#f, FLOW_P_INT, FLOW__AT(S, f, gint64), def, min, max, unit, NULL, doc, 0 __VA_ARGS__                \
    }
#define FLOW_FLOAT(S, f, def, min, max, unit, doc, ...)                                                      \
    {                                                                                                        \
#f, FLOW_P_FLOAT, FLOW__AT(S, f, double), def, min, max, unit, NULL, doc, 0 __VA_ARGS__              \
    }
#define FLOW_SIZE(S, f, def, min, max, doc, ...)                                                             \
    {                                                                                                        \
#f, FLOW_P_SIZE, FLOW__AT(S, f, guint64), def, min, max, "bytes", NULL, doc, 0 __VA_ARGS__           \
    }
#define FLOW_STRING(S, f, def, doc, ...)                                                                     \
    {                                                                                                        \
#f, FLOW_P_STRING, FLOW__AT(S, f, char *), def, 0, 0, "", NULL, doc, 0 __VA_ARGS__                   \
    }
#define FLOW_PATH(S, f, def, doc, ...)                                                                       \
    {                                                                                                        \
#f, FLOW_P_PATH, FLOW__AT(S, f, char *), def, 0, 0, "", NULL, doc, 0 __VA_ARGS__                     \
    }
#define FLOW_ENUM(S, f, def, choices, doc, ...)                                                              \
    {                                                                                                        \
#f, FLOW_P_ENUM, FLOW__AT(S, f, int), def, 0, 0, "", choices, doc, 0 __VA_ARGS__                     \
    }
#define FLOW_LIST(S, f, def, doc, ...)                                                                       \
    {                                                                                                        \
#f, FLOW_P_LIST, FLOW__AT(S, f, char **), def, 0, 0, "", NULL, doc, 0 __VA_ARGS__                    \
    }
#define FLOW_NODE(S, f, def, doc, ...)                                                                       \
    {                                                                                                        \
#f, FLOW_P_NODE, FLOW__AT(S, f, FlowNode *), def, 0, 0, "", NULL, doc, 0 __VA_ARGS__                 \
    }
/* an optional text, path, list or node: default "" reads as NULL. Extra flags go last: FLOW_INT(..., doc, |
 * FLOW_P_NORESULT) */
#define FLOW_END                                                                                             \
    {                                                                                                        \
        0                                                                                                    \
    }

/* -- ports --------------------------------------------------------------------- */

typedef struct {
    const char *name; /* unique within the stage */
    FlowKind kind;    /* what passes: FLOW_SAMPLE, FLOW_BATCH, FLOW_STEP */
    const char *doc;
    const char *needs; /* input: fields it reads, "image caption?"; '?' = used if there */
    const char *gives; /* output: fields it sets; "pooled?" = given if the input has it */
    const char *drops; /* output: fields it takes away */
    guint32 flags;
} FlowPort;

enum {
    FLOW_PORT_OPTIONAL = 1, /* may be left unlinked */
    FLOW_PORT_MANY = 2,     /* input: accepts several links, merged in order of arrival */
    FLOW_PORT_FEEDBACK =
        4,              /* input: closes a loop; read with flow_pop() only; no part in the end of inputs */
    FLOW_PORT_NEW = 8,  /* output: starts from nothing; other outputs pass on the input's fields */
    FLOW_PORT_ANY = 16, /* kind is not checked; an output passes the kind of the first input */
};

/* -- the stage ----------------------------------------------------------------- */

enum {
    FLOW_PARALLEL = 1,   /* process() may run on several workers at once */
    FLOW_STATEFUL = 2,   /* output depends on earlier items: one worker */
    FLOW_REORDERS = 4,   /* gives items another order or number and sets cursor.position anew */
    FLOW_MARKS = 8,      /* process() also gets mark items and must emit them itself */
    FLOW_PREFILL = 16,   /* last node that wants prefill items: the host drops them after it */
    FLOW_PENDING = 32,   /* process() also gets items that are pending or fully filled (caches) */
    FLOW_NEEDS_OUT = 64, /* at least one output must be linked */
};

typedef struct FlowStage {
    guint32 abi, size;   /* filled in by FLOW_STAGE */
    const char *name;    /* must equal the file's base name */
    const char *summary; /* one line for `loraflow inspect` */
    const char *details; /* a paragraph, may be NULL */
    guint32 flags;
    guint32 version;         /* of the result; part of cache keys; bump when the arithmetic changes */
    gsize state_size;        /* per node, zeroed, then filled from params */
    gsize worker_size;       /* per worker scratch, zeroed */
    const FlowParam *params; /* ends with FLOW_END; may be NULL */
    const FlowPort *inputs;  /* NULL = source */
    const FlowPort *outputs; /* NULL = sink */

    /* Check parameters against each other. No model is loaded, no output is written. [graph] */
    gboolean (*open)(FlowNode *node, GError **error);
    /* Set up one worker's scratch. [worker] */
    gboolean (*worker_start)(FlowCtx *ctx, GError **error);
    /* in[i] = item of input i in the table (NULL for feedback and unlinked inputs); a source makes its next
     * item (`in` is NULL). FLOW_EOS ends the node: no further call, no flush; only a stage that is not
     * FLOW_PARALLEL may say it by itself. [worker] */
    FlowStatus (*process)(FlowCtx *ctx, FlowItem **in, GError **error);
    /* All inputs ended, or were cut by a stop (flow_ctx_stopping(): what is emitted upstream of the loop
     * arrives nowhere then). Emit what is held back. Once per node, never for a source. [worker] */
    FlowStatus (*flush)(FlowCtx *ctx, GError **error);
    /* A mark passes (the host forwards it afterwards). Not for FLOW_MARKS. [worker, others idle] */
    FlowStatus (*mark)(FlowCtx *ctx, FlowMark mark, GError **error);
    void (*worker_stop)(FlowCtx *ctx); /* always after worker_start, failed too. [worker] */
    void (*close)(FlowNode *node);     /* after any open(), failed too. [graph] */

    /* Fields that depend on parameters: change the copies of the ports in place with
     * flow_node_needs(), flow_node_gives(), flow_node_drops(). Pure; called by check. [graph] */
    gboolean (*describe)(FlowNode *node, GError **error);
    /* Report memory and pass the picture of the data on (core/flow/plan.h). Reads headers only. [graph] */
    gboolean (*plan)(FlowNode *node, FlowPlan *plan, GError **error);
    /* The object `type` ("lora.model", "cache") for nodes that name this one; NULL if it has none. [graph] */
    gpointer (*share)(FlowNode *node, const char *type);
    /* Text that enters cache keys beside the parameters (hash of weights). Returns new. [graph] */
    char *(*recipe)(FlowNode *node, GError **error);
    /* Checkpoint: state of a node as bytes; called while the loop is settled. A node outside the loop (a
     * source: fingerprint of its list) runs meanwhile: only what is fixed since open(). save returns new;
     * load refuses what does not fit. */
    GBytes *(*save)(FlowNode *node, GError **error);
    gboolean (*load)(FlowNode *node, GBytes *state, GError **error); /* after open, before workers. [graph] */
    /* Items that may be held before the first comes out: for the deadlock check of joins. NULL = 0. [graph]
     */
    gint64 (*hold)(FlowNode *node);
} FlowStage;

#define FLOW_STAGE(...)                                                                                      \
    G_MODULE_EXPORT extern const FlowStage flow_stage;                                                       \
    const FlowStage flow_stage = {.abi = FLOW_ABI, .size = sizeof(FlowStage), __VA_ARGS__}

/* A plugin's own fields: FLOW_STAGE_FIELDS({"depth", "h w", "distance map", NET_F32, 0}); optional. */
#define FLOW_STAGE_FIELDS(...)                                                                               \
    G_MODULE_EXPORT extern const FlowFieldInfo flow_stage_fields[];                                          \
    const FlowFieldInfo flow_stage_fields[] = {__VA_ARGS__, FLOW_END}

/* -- calls into the host: nodes ------------------------------------------------ */

gpointer flow_node_state(FlowNode *node);               /* [any] */
const char *flow_node_name(const FlowNode *node);       /* [any] */
const FlowStage *flow_node_stage(const FlowNode *node); /* [any] */
FlowGraph *flow_node_graph(FlowNode *node);             /* [any] */
guint64 flow_node_seed(const FlowNode *node);           /* graph seed. [any] */
guint flow_node_workers(const FlowNode *node);          /* [any] */
/* Was the parameter written in the graph (and not its default)? [graph] */
gboolean flow_node_is_set(FlowNode *node, const char *param);
/* Object shared by another node; error if it has none of that type. [graph], after open of `other` */
gpointer flow_node_shared(FlowNode *other, const char *type, GError **error);
/* The only node of the graph with this stage, or NULL (none or several). [graph] */
FlowNode *flow_node_find(FlowNode *node, const char *stage);
/* A parameter of another node, by its type (gint64 *, double *, char **, ...); NULL if it has none of that
 * name. [graph] */
static inline gconstpointer flow_node_param(FlowNode *other, const char *param)
{
    for (const FlowParam *p = flow_node_stage(other)->params; p && p->name; p++)
        if (g_str_equal(p->name, param))
            return (const char *)flow_node_state(other) + p->offset;
    return NULL;
}
/* Is there a path of edges from `a` to `b`? Feedback edges do not count. [graph] */
gboolean flow_node_leads_to(FlowNode *a, FlowNode *b);
/* For describe(): replace what a port needs, gives, drops. `port` is its name. Copies the list. [graph] */
void flow_node_needs(FlowNode *node, const char *port, const char *list);
void flow_node_gives(FlowNode *node, const char *port, const char *list);
void flow_node_drops(FlowNode *node, const char *port, const char *list);
/* Fields that arrive at an input port according to check. [graph], after check */
FlowFieldSet flow_node_arriving(FlowNode *node, const char *port);
/* How the field is made between `from` (exclusive; a cache lookup) and `to` (exclusive; its store):
 * a 128-bit recipe hash over stages, versions, parameters, recipe() texts and, in *by_value, the fields
 * present at `from` whose values it depends on. FALSE if no node between gives the field. [graph] */
gboolean flow_node_recipe(FlowNode *from, FlowNode *to, FlowField field, guint8 hash[16],
                          FlowFieldSet *by_value, GError **error);
/* From describe() of a store: between `lookup` and `store` an item skips every node all of whose stored
 * results are in item->filled, and all of them when it is pending (FLOW_PENDING nodes excepted). What the
 * skipped nodes give beside `fields` is dropped by the host behind the store, so that a hit and a miss look
 * alike. */
void flow_node_stores(FlowNode *lookup, FlowNode *store, FlowFieldSet fields);
/* A message with file, line and node in front, on stderr. [any] */
void flow_node_warn(FlowNode *node, const char *format, ...) G_GNUC_PRINTF(2, 3);
void flow_node_info(FlowNode *node, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* A named number in `run --json` nodes.NAME and in the summary. [any] */
void flow_node_count(FlowNode *node, const char *counter, double add);
void flow_node_gauge(FlowNode *node, const char *counter, double value);
double flow_node_counter(FlowNode *node, const char *counter);

/* -- calls into the host: workers ---------------------------------------------- */

FlowNode *flow_ctx_node(FlowCtx *ctx);
gpointer flow_ctx_state(FlowCtx *ctx);
gpointer flow_ctx_worker(FlowCtx *ctx);    /* worker scratch */
gboolean flow_ctx_cancelled(FlowCtx *ctx); /* poll in long loops; then return FLOW_CANCELLED */
gboolean flow_ctx_stopping(FlowCtx *ctx);  /* the run was asked to end (Ctrl-C) */
/* Key for random draws about this item: graph seed, node name, epoch, sample; never thread or worker.
 * `item` may be NULL for draws about the node. */
guint64 flow_ctx_key(FlowCtx *ctx, const FlowItem *item);
/* Send on an output port (number in the table); takes the reference, also on failure. In a node with one
 * worker the item is on its way when this returns, so that a loop may wait for it to come back (flow_pop). */
FlowStatus flow_emit(FlowCtx *ctx, guint port, FlowItem *item);
/* Waits for the next item of a FLOW_PORT_FEEDBACK input (number in the table). Gives a reference. */
FlowStatus flow_pop(FlowCtx *ctx, guint port, FlowItem **item, GError **error);
/* Items waiting on input 0, oldest first, borrowed until process returns. For look-ahead (foresight). */
gsize flow_peek(FlowCtx *ctx, FlowItem **items, gsize max);
/* Waits for something that is no ring: calls ready(data), which itself waits a few milliseconds for it, until
 * it gives TRUE. The time counts as waiting. FLOW_CANCELLED when the run is torn down. [worker] */
FlowStatus flow_ctx_wait(FlowCtx *ctx, gboolean (*ready)(gpointer data), gpointer data);
/* Keep an input past process(): moves it out of `in`. */
#define flow_take(slot) ((FlowItem *)g_steal_pointer(slot))
/* Where a resumed run goes on; epoch 0, position 0 for a fresh one. Sources start at cursor.epoch. [any] */
FlowCursor flow_graph_start(FlowGraph *graph);
/* Is this a resumed run? [any] */
gboolean flow_graph_resumed(FlowGraph *graph);
/* What the live line shows; `total` 0 = unknown. [worker] */
void flow_progress(FlowCtx *ctx, gint64 step, gint64 total, double loss);

G_END_DECLS
#endif
