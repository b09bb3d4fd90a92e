/* A graph of nodes: built from an INI file, checked, planned, run.
 *
 *   flow_graph_load  parse, find plugins, set parameters, link ports   } all faults are collected in
 * messages, flow_graph_check fields along paths, cycles, deadlocks, lints       } nothing is opened
 *   flow_graph_open  open() of every node in order                      } one error
 *   flow_graph_plan  memory plan
 *   flow_graph_run   threads, until done, stopped, failed or stalled
 *
 * Nodes, edges and rings are in graph-private structures; the accessors serve the verbs. */
#ifndef FLOW_GRAPH_H
#define FLOW_GRAPH_H
#include "core/flow/ini.h"
#include "core/flow/plan.h"
#include "core/flow/ring.h"
#include "core/flow/stage.h"

G_BEGIN_DECLS

/* -- plugins -------------------------------------------------------------------- */

typedef struct {
    const FlowStage *stage;
    char *file; /* NULL: compiled into the program */
} FlowPlugin;

/* Folders searched, first wins on equal real paths; two different files with one stage name are refused:
 * FLOW_STAGES (colon separated), [graph] stages, the folder beside the program or library. */
void flow_plugins_add_folder(const char *folder);
/* Loads and checks a stage description (ABI, size, names, tables) without calling into it. NULL with error,
 * with the nearest stage name when there is none. */
const FlowPlugin *flow_plugin_find(const char *name, GError **error);
/* Names of all stages on the path, sorted, NULL-terminated. Returns new. */
char **flow_plugin_list(void);
/* Adds a stage that is compiled into the program (tests). Checked like any other. */
gboolean flow_plugin_add(const FlowStage *stage, GError **error);
/* Loads a .so by path, for `inspect FILE.so` and tests. */
const FlowPlugin *flow_plugin_load(const char *file, GError **error);

/* -- graphs --------------------------------------------------------------------- */

/* Takes `ini`. Never NULL; usable for running only if messages->errors stayed 0. */
FlowGraph *flow_graph_load(FlowIni *ini, FlowMessages *messages);
void flow_graph_check(FlowGraph *graph, FlowMessages *messages);
gboolean flow_graph_open(FlowGraph *graph, GError **error);
void flow_graph_free(FlowGraph *graph); /* closes what is open */

const char *flow_graph_name(const FlowGraph *graph);
guint64 flow_graph_seed(const FlowGraph *graph);
guint64 flow_graph_memory(const FlowGraph *graph); /* [graph] memory, 0 = not set */
const char *flow_graph_device(const FlowGraph *graph);
FlowIni *flow_graph_ini(FlowGraph *graph);
/* Nodes in topological order. */
guint flow_graph_nodes(const FlowGraph *graph);
FlowNode *flow_graph_node(const FlowGraph *graph, guint i);
FlowNode *flow_graph_node_named(const FlowGraph *graph, const char *name);

typedef struct {
    FlowNode *from, *to;
    const char *out_port, *in_port;
    FlowFieldSet fields; /* that travel on it, by check */
    gboolean feedback;
    guint32 capacity;
    guint64 max_bytes;
    FlowRing *ring; /* while running */
} FlowEdge;
guint flow_graph_edges(const FlowGraph *graph);
const FlowEdge *flow_graph_edge(const FlowGraph *graph, guint i);
/* The graph resolved, as one graph file that runs: what a checkpoint keeps. Returns new. */
char *flow_graph_text(const FlowGraph *graph);
/* Graphviz text; with fill levels when running. Returns new. */
char *flow_graph_dot(const FlowGraph *graph);

/* -- plan ----------------------------------------------------------------------- */

typedef struct {
    const char *what;
    FlowPhase phase;
    FlowPlace place;
    FlowNode *node; /* NULL for rings */
    gsize bytes;
} FlowPlanEntry;
/* After open. NULL with error (data missing, over [graph] memory). */
FlowPlan *flow_graph_plan(FlowGraph *graph, gboolean no_data, GError **error);
void flow_plan_free(FlowPlan *plan);
guint flow_plan_entries(const FlowPlan *plan);
const FlowPlanEntry *flow_plan_entry(const FlowPlan *plan, guint i);
/* Sum over nodes in one phase; what NULL = all, node NULL = all. */
gsize flow_plan_sum(const FlowPlan *plan, FlowPhase phase, FlowPlace place, FlowNode *node, const char *what);
/* NULL-terminated lines, borrowed. */
char *const *flow_plan_notes(const FlowPlan *plan);
gboolean flow_plan_get_fact(const FlowPlan *plan, const char *name, double *value);
/* Borrowed; NULL if no node stated it. */
const char *flow_plan_get_text(const FlowPlan *plan, const char *name);

/* -- run ------------------------------------------------------------------------ */

typedef enum { FLOW_RUN_DONE, FLOW_RUN_STOPPED, FLOW_RUN_FAILED, FLOW_RUN_STALLED } FlowRunStatus;

typedef struct {
    gint64 step, total;
    double loss; /* smoothed */
    double steps_per_s, seconds;
    const char *busiest; /* node that limits */
} FlowRunProgress;

typedef struct {
    double stall;       /* seconds without progress before a warning; 0 = [graph] stall */
    guint64 limit;      /* items per source, 0 = all (run --limit) */
    const char *resume; /* checkpoint path or NULL */
    /* called about 4 times a second and at the end, from the watchdog thread; NULL = quiet */
    void (*progress)(const FlowRunProgress *progress, gpointer data);
    gpointer progress_data;
} FlowRunOptions;

/* Runs until the end. FAILED and STALLED set error. The first flow_graph_stop() asks for a clean end,
 * the second tears down. */
FlowRunStatus flow_graph_run(FlowGraph *graph, const FlowRunOptions *options, GError **error);
/* Async-signal-safe. */
void flow_graph_stop(FlowGraph *graph);

typedef struct {
    guint64 in, out, skipped;
    double busy_s, wait_in_s, wait_out_s;
} FlowNodeStats;
void flow_node_stats(FlowNode *node, FlowNodeStats *stats);
/* Calls fn for each counter, sorted by name. */
void flow_node_counters(FlowNode *node, void (*fn)(const char *name, double value, gpointer data),
                        gpointer data);

/* -- resume (core/flow/resume.c; used by the checkpoint stage and run --resume) -- */

/* Cursor, resolved graph, node states and machine facts as one file with checksum; written atomically. The
 * states are asked from save() of every node that has it. Call only while the loop is settled. The `keep`
 * files before it stay as PATH.1 (the newest), PATH.2, ... */
gboolean flow_checkpoint_write(FlowGraph *graph, const char *path, const FlowCursor *next, gint64 step,
                               guint keep, GError **error);
/* Reads the newest valid checkpoint at `path` (falls back to the kept older ones, with a warning) and
 * prepares the graph: flow_graph_start() gives the cursor, load() gets the states. Between open and run.
 * Differences of graph, list of pictures, threads and machine are listed: harmless, warned or refused. */
gboolean flow_checkpoint_read(FlowGraph *graph, const char *path, GError **error);
/* The graph that a checkpoint was made with, as a graph file: to resume without another one. Returns new. */
char *flow_checkpoint_graph(const char *path, GError **error);

G_END_DECLS
#endif
