/* What a graph is made of, for the files of core/flow that build, check and run it.
 *
 *   FlowGraph -> FlowNode (one section) -> FlowPortState (one row of the port table)
 *                                              |  edges
 *                                          FlowLink (one `in`), which is a FlowEdge and what the host does
 *                                                   to items that pass it
 *   FlowCtx    one worker thread of a node
 *
 * One ring belongs to each linked input port: a port that merges several links has one ring with
 * several producers.
 *
 * Locks, in the order in which they may be taken: node->dispatch, ring locks and graph->lock,
 * node->lock, ctx->lock. Only node->dispatch is held across waits (pop and reserve under one lock make
 * the order of outputs the order of inputs) and across a mark() call (which needs the other workers idle). */
#ifndef FLOW_GRAPH_PRIVATE_H
#define FLOW_GRAPH_PRIVATE_H
#include "core/flow/graph.h"
#include "core/flow/param.h"
#include <pthread.h>
#include <semaphore.h>

typedef struct FlowLink FlowLink;

typedef struct {
    const FlowPort *port;
    FlowNode *node;
    guint index;
    char *needs, *gives, *drops;     /* replaced by describe(), else NULL */
    FlowFieldSet required, optional; /* input: needs; output: gives and gives-if-there */
    FlowFieldSet dropped;            /* output */
    FlowFieldSet fields;             /* arriving (input) or leaving (output), by check */
    FlowKind kind;                   /* ports of any kind: what really passes */
    gboolean kind_known;
    GPtrArray *links; /* FlowLink * */
    guint32 capacity; /* input: of its ring */
    guint64 max_bytes;
    FlowWhere where; /* input: of its `in` */
    gboolean given;  /* input: an `in` is written, right or wrong */
    FlowRing *ring;  /* input, while running */
} FlowPortState;

struct FlowLink {
    FlowEdge edge; /* first: a FlowEdge * is a FlowLink * */
    FlowPortState *out, *in;
    FlowWhere where;
    FlowFieldSet strip;     /* fields taken off what passes */
    gboolean drop_prefill;  /* no node behind it wants prefill items */
    gboolean drop_replayed; /* no node behind it orders items: those before the cursor end here */
    gboolean in_loop;       /* leads to a feedback edge, or is one */
    _Atomic(gboolean) closed;
};

typedef enum { FLOW_ON_ERROR_STOP, FLOW_ON_ERROR_SKIP } FlowOnError;

struct FlowNode {
    FlowGraph *graph;
    char *name;
    FlowWhere where;
    FlowIniSection *section;
    const FlowStage *stage; /* NULL: unknown, already reported */
    gpointer state;
    guint n_in, n_out, index; /* index in topological order */
    FlowPortState *in, *out;
    guint workers;
    gboolean any_order, disabled;
    gboolean broken; /* a parameter or link is wrong: do not call describe() */
    gboolean links_broken;
    FlowOnError on_error;
    guint64 max_skips; /* G_MAXUINT64 = any number */
    GPtrArray *refs;   /* FlowNode * that its parameters name */
    GPtrArray *faults; /* texts from flow_node_needs() and so on */
    char *recipe;      /* cached */
    gboolean opened;
    gint64 hold;
    gboolean behind_feedback, looped, before_loop; /* where it stands to the training loop */
    gboolean in_step; /* join: its inputs come from one node, so cursors must agree */

    /* caches */
    guint between;        /* a lookup and its store: number of the pair, from 1 */
    FlowFieldSet results; /* stored fields that depend on what this node gives */
    FlowFieldSet lost;    /* store: fields that only exist when nothing was found */

    /* running */
    FlowCtx *ctx; /* array of `workers` */
    guint n_ctx;
    pthread_mutex_t dispatch;
    _Atomic(int) holder; /* worker that has `dispatch`, -1 = none */
    _Atomic(gboolean) ended;
    _Atomic(gboolean) end_asked; /* source: stop making items */
    guint n_links;               /* outgoing */
    _Atomic(guint) open_links;
    _Atomic(guint64) n_in_items, n_out_items, n_skipped;
    guint64 made; /* source: items that count against the limit */
    guint64 seq;

    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t idle;
    guint running, inflight; /* workers; items between dispatch and commit */
    gboolean no_flush;
    GHashTable *counters; /* name -> double * */
};

typedef enum { FLOW_HOLD_NONE, FLOW_HOLD_LOCK, FLOW_HOLD_IDLE } FlowHold;

struct FlowCtx {
    FlowNode *node;
    guint index;
    gpointer scratch;
    pthread_t thread;
    gboolean thread_made;
    gboolean direct;   /* emit at once; otherwise collect in `chain` until the call returns */
    FlowItem **in;     /* n_in slots */
    GPtrArray **chain; /* n_out, NULL when always direct */
    guint64 *ticket;   /* one per outgoing link, in the order of ports and links */
    gboolean *has_ticket;
    GPtrArray *scratch_items;
    FlowWait wait;
    _Atomic(int) hold; /* FlowHold: waits for siblings rather than a ring */
    _Atomic(guint64) busy_ns;
    guint32 chance;    /* FLOW_STALL */
    gboolean injected; /* FLOW_FAULT made an emit fail */

    pthread_mutex_t lock; /* protects what the worker has in hand, for messages */
    gboolean at_work;
    FlowKind kind;
    FlowMark mark;
    FlowCursor cursor;
    FlowValue *path;
};

typedef struct {
    FlowNode *lookup, *store;
    FlowFieldSet fields;
} FlowCachePair;

struct FlowGraph {
    FlowIni *ini;
    char *name;
    const char *device;
    guint64 seed, memory, max_bytes;
    guint32 ring;
    double stall;
    gboolean grow;
    GPtrArray *nodes;      /* FlowNode *, in topological order once linked; owned */
    GPtrArray *removed;    /* disabled nodes; owned */
    GPtrArray *links;      /* FlowLink *; owned */
    GPtrArray *open_order; /* FlowNode * */
    GHashTable *by_name;
    GArray *caches; /* FlowCachePair */
    gboolean cyclic, checked, opened, has_loop;

    FlowCursor start;
    gboolean resumed;
    guint64 limit;

    _Atomic(int) stop; /* requests: 1 = clean end, 2 = tear down */
    _Atomic(gboolean) stopping, cancelled;
    sem_t wake; /* posted by stop and by the last worker */
    _Atomic(guint) alive;

    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t gate;
    int gate_state; /* 0 closed, 1 open, -1 do not start */
    GError *error;
    gboolean stalled, ran;
    gint64 step, total;
    double loss;
    guint64 losses;
};

/* A name of the grammar: [a-z][a-z0-9_]*, at most 31 letters. */
gboolean flow__name_valid(const char *name);
/* Keys of a node that are not parameters. NULL-terminated. */
extern const char *const flow__node_keys[];

/* section.c */
FlowNode *flow__node_new(FlowGraph *graph, FlowIniSection *section, FlowMessages *messages);
void flow__node_free(gpointer node);
/* Parameters that name nodes become pointers once all nodes exist. */
void flow__node_resolve(FlowNode *node, FlowMessages *messages);
/* Each opens what it names first: such names must not go round in a circle. */
void flow__node_check_refs(FlowNode *node, FlowMessages *messages);
FlowIniValue *flow__take(FlowIniSection *section, const char *key);
gboolean flow__take_int(const FlowIniValue *value, const char *section, gint64 min, gint64 max, gint64 *out,
                        FlowMessages *messages);
void flow__take_ring(const FlowIniValue *value, const char *section, guint32 *out, FlowMessages *messages);
void flow__take_size(const FlowIniValue *value, const char *section, guint64 *out, FlowMessages *messages);
gboolean flow__take_choice(const FlowIniValue *value, const char *section, const char *const *choices,
                           guint *out, FlowMessages *messages);
/* `text`, and "did you mean" where `nearest` is not NULL. */
void flow__unknown(FlowMessages *messages, FlowWhere where, const char *text, const char *nearest);

/* open.c */
void flow__graph_close(FlowGraph *graph);

/* plugin.c, plugin_check.c, plugin_file.c */
gboolean flow__plugin_file_whole(const char *path, GError **error);
gboolean flow__stage_valid(const FlowStage *stage, const char *base_name, GError **error);
/* Names of all stages on the path whose outputs give the field, sorted, NULL-terminated. Returns new. */
char **flow__plugins_giving(FlowField field);

/* link.c: edges from the `in` keys, bypass of disabled nodes, cycles, topological order. */
void flow__graph_link(FlowGraph *graph, FlowMessages *messages);
FlowPortState *flow__port_find(FlowPortState *ports, guint n, const char *name);

/* node.c */
void flow__node_describe(FlowNode *node, FlowMessages *messages);
FlowWhere flow__node_key_where(const FlowNode *node, const char *key);
gboolean flow__port_feedback(const FlowPortState *port);

/* recipe.c */
/* If the node is a store: which nodes before it an item may skip, and what is lost by that. Called in
 * topological order, after the fields that arrive at it are known. */
void flow__cache_follow(FlowNode *node, FlowMessages *messages);
/* Does this item skip the node, because a cache has what it would make? */
gboolean flow__cache_skips(const FlowNode *node, const FlowItem *item);

/* deadlock.c */
void flow__deadlock_check(FlowGraph *graph, FlowMessages *messages);

/* route.c: what the host does to items on each link. */
void flow__routes_prepare(FlowGraph *graph);
/* Takes `item`; NULL when it ends here. */
FlowItem *flow__route(FlowLink *link, FlowItem *item);

/* emit.c */
/* The calling thread is this worker from now on. */
void flow__ctx_enter(const FlowCtx *ctx);
/* Sends now on every open link of the port; takes the item. FLOW_EOS: nobody is left to receive anything. */
FlowStatus flow__send(FlowNode *node, guint port, FlowItem *item);
/* Takes a ticket on every open link. FLOW_EOS: nobody is left to receive. */
FlowStatus flow__reserve(FlowCtx *ctx);
/* Fills the tickets with what was emitted since. */
void flow__commit(FlowCtx *ctx);
/* Everything that a finished node owes its neighbours. */
void flow__finish_links(FlowNode *node);

/* inputs.c: with node->dispatch held, one item for each linked input into ctx->in. Marks are passed on. */
FlowStatus flow__take_inputs(FlowCtx *ctx);
void flow__drop_inputs(FlowCtx *ctx);
gboolean flow__flows(const FlowPortState *in); /* linked, and no feedback */

/* call.c: one call into the stage, timed, with its outcome judged: FLOW_OK go on, FLOW_EOS the node ends,
 * FLOW_CANCELLED the run ends. */
FlowStatus flow__call_process(FlowCtx *ctx);
FlowStatus flow__call_mark(FlowCtx *ctx, FlowItem *mark);
FlowStatus flow__call_flush(FlowCtx *ctx);
/* What the worker has in hand, for messages; NULL if nothing. Returns new. [any] */
char *flow__ctx_label(FlowCtx *ctx);
guint64 flow__now_ns(void);

/* worker.c */
void *flow__worker_main(void *ctx);

/* run.c */
/* Takes `error`; puts file, line, node and item around it. The first one is kept; everything is torn down. */
void flow__fail(FlowCtx *ctx, GError *error);
void flow__cancel(FlowGraph *graph);

/* watch.c */
typedef struct FlowWatch FlowWatch;
FlowWatch *flow__watch_new(FlowGraph *graph, const FlowRunOptions *options);
void flow__watch_sample(FlowWatch *watch);
void flow__watch_free(FlowWatch *watch);

/* stall.c: the workers that wait for one another; NULL if there are none. Returns new, sorted. */
GPtrArray *flow__dead_workers(FlowGraph *graph);
/* "[tee] waits for space on tee.out -> zip.b (4 of 4); ..." Returns new. */
char *flow__dead_text(GPtrArray *dead);
/* The fullest-by-count ring that could be larger; NULL if none is full. */
FlowPortState *flow__dead_ring(GPtrArray *dead);

/* dot.c: into $FLOW_DUMP_DOT_DIR/NAME-WHY.dot, if that is set. */
void flow__dump_dot(const FlowGraph *graph, const char *why);

/* fault.c: FLOW_FAULT=emit:3 and FLOW_STALL=5, for tests. */
void flow__fault_arm(void);
gboolean flow__fault(const char *what);
void flow__stall(FlowCtx *ctx);

#endif
