/* Writes everything a run needs to go on bit for bit (`loraflow run --resume PATH`).
 *
 * Stands last before the feedback edge: what it writes is settled, and nobody changes anything while it
 * does. A file is written every N updates, at the end, and when the run is interrupted. */
#include "core/flow/graph.h"
#include "core/flow/stage.h"

typedef struct {
    char *path;
    gint64 every, keep;
} Checkpoint;

static const FlowParam params[] = {
    FLOW_PATH(Checkpoint, path, NULL, "File to write.", | FLOW_P_NORESULT),
    FLOW_INT(Checkpoint, every, "100", 0, 1e9, "updates",
             "Writes after every so many updates; 0 = at the end only.", | FLOW_P_NORESULT),
    FLOW_INT(Checkpoint, keep, "1", 0, 1000, "files", "Older checkpoints that stay as PATH.1, PATH.2, ...",
             | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Items with settled parameters.", .needs = "step flags"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_STEP, .doc = "The same items, for the feedback edge."},
    FLOW_END,
};

static gboolean checkpoint_describe(FlowNode *node, GError **error)
{
    FlowGraph *graph = flow_node_graph(node);
    for (guint i = 0; i < flow_graph_edges(graph); i++) {
        const FlowEdge *edge = flow_graph_edge(graph, i);
        if (edge->from == node && edge->feedback)
            return TRUE;
    }
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "checkpoint must stand last in the loop: set in.params of the lora_step node to '%s'",
                flow_node_name(node));
    return FALSE;
}

static gboolean checkpoint_open(FlowNode *node, GError **error)
{
    Checkpoint *s = flow_node_state(node);
    if (!g_file_test(s->path, G_FILE_TEST_IS_DIR))
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "path = %s is a folder, not a file",
                s->path);
    return FALSE;
}

/* Where a resumed run goes on: behind the group that this item closed. */
static FlowCursor next(FlowCursor cursor)
{
    cursor.position++;
    if (cursor.size > 0 && cursor.position >= cursor.size) {
        cursor.epoch++;
        cursor.position = 0;
    }
    return cursor;
}

static FlowStatus checkpoint_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Checkpoint *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    gint32 flags = flow_item_i32(in[0], FLOW_F_FLAGS)[0];
    gint64 updates = flow_item_i64(in[0], FLOW_F_STEP)[0];
    gboolean due = (flags & FLOW_STEP_UPDATED) && s->every && updates % s->every == 0;
    if (due || ((flags & FLOW_STEP_LAST) && updates > 0)) {
        FlowCursor cursor = next(in[0]->cursor);
        if (!flow_checkpoint_write(flow_node_graph(node), s->path, &cursor, updates, (guint)s->keep, error))
            return FLOW_ERROR;
        flow_node_count(node, "files", 1);
        if (flags & FLOW_STEP_STOP)
            flow_node_info(node,
                           "stopped after %" G_GINT64_FORMAT " updates; go on with: loraflow run --resume %s",
                           updates, s->path);
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

FLOW_STAGE(.name = "checkpoint", .summary = "Writes the state of the run, so that it can be resumed.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Checkpoint),
           .params = params, .inputs = inputs, .outputs = outputs, .open = checkpoint_open,
           .process = checkpoint_process, .describe = checkpoint_describe);
