/* Writes everything a run needs to go on bit for bit (`loraflow run --resume PATH`).
 *
 * Stands last before the feedback edge: what it writes is settled, and nobody changes anything while it
 * does. A file is written every N updates, at the end, and when the run is interrupted.
 *
 * A log outside the loop may be some steps behind when the run is killed; so the lines of the latest steps
 * are kept in the checkpoint, and the opening item of a resumed run carries them to the log. */
#include "core/flow/graph.h"
#include "core/flow/stage.h"
#include "core/flow/step.h"
#include <string.h>

enum { REMEMBERED = 64 }; /* more than a ring holds */

typedef struct {
    char *path;
    gint64 every, keep;

    GQueue lines; /* char *, latest last */
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
    {.name = "in",
     .kind = FLOW_STEP,
     .doc = "Items with settled parameters.",
     .needs = "step flags loss? lr? grad_norm? scale? validation? samples?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_STEP, .doc = "The same items, for the feedback edge.", .gives = "history"},
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

static void remember(Checkpoint *s, char *line)
{
    g_queue_push_tail(&s->lines, line);
    if (s->lines.length > REMEMBERED)
        g_free(g_queue_pop_head(&s->lines));
}

static char *history(const Checkpoint *s)
{
    GString *text = g_string_new(NULL);
    for (const GList *l = s->lines.head; l; l = l->next)
        g_string_append_printf(text, "%s\n", (const char *)l->data);
    return g_string_free(text, FALSE);
}

static gboolean write_file(FlowNode *node, const Checkpoint *s, const FlowItem *item, gint32 flags,
                           GError **error)
{
    gint64 updates = flow_item_i64(item, FLOW_F_STEP)[0];
    FlowCursor cursor = next(item->cursor);
    if (!flow_checkpoint_write(flow_node_graph(node), s->path, &cursor, updates, (guint)s->keep, error))
        return FALSE;
    flow_node_count(node, "files", 1);
    if (flags & FLOW_STEP_STOP)
        flow_node_info(node,
                       "stopped after %" G_GINT64_FORMAT " updates; go on with: loraflow run --resume %s",
                       updates, s->path);
    return TRUE;
}

static FlowStatus checkpoint_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Checkpoint *s = flow_ctx_state(ctx);
    gint32 flags = flow_item_i32(in[0], FLOW_F_FLAGS)[0];
    gint64 updates = flow_item_i64(in[0], FLOW_F_STEP)[0];
    if (!(flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST)))
        remember(s, flow_step_line(in[0]));
    if (flags & FLOW_STEP_RESUMED) {
        g_autofree char *text = history(s);
        flow_item_set(flow_item_writable(&in[0]), FLOW_F_HISTORY, flow_value_string(text));
    }
    gboolean due = (flags & FLOW_STEP_UPDATED) && s->every && updates % s->every == 0;
    if (due || ((flags & FLOW_STEP_LAST) && updates > 0))
        if (!write_file(flow_ctx_node(ctx), s, in[0], flags, error))
            return FLOW_ERROR;
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static void checkpoint_close(FlowNode *node)
{
    Checkpoint *s = flow_node_state(node);
    g_queue_clear_full(&s->lines, g_free);
}

static GBytes *checkpoint_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    char *text = history(flow_node_state(node));
    return g_bytes_new_take(text, strlen(text));
}

static gboolean checkpoint_load(FlowNode *node, GBytes *state, GError **error G_GNUC_UNUSED)
{
    Checkpoint *s = flow_node_state(node);
    gsize n;
    const char *data = g_bytes_get_data(state, &n);
    g_autofree char *text = g_strndup(n ? data : "", n);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 0; lines[i]; i++)
        if (*lines[i])
            remember(s, g_strdup(lines[i]));
    return TRUE;
}

FLOW_STAGE(.name = "checkpoint", .summary = "Writes the state of the run, so that it can be resumed.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Checkpoint),
           .params = params, .inputs = inputs, .outputs = outputs, .open = checkpoint_open,
           .process = checkpoint_process, .close = checkpoint_close, .describe = checkpoint_describe,
           .save = checkpoint_save, .load = checkpoint_load);
