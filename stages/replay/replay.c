/* replay: source that emits what `dump` wrote, in the same order, with the same marks.
 *
 * With it any edge of a graph can be recorded once and played into the next stage again: to test a stage on
 * real items, to look for what went wrong, to measure a stage alone. A single safetensors file with tensors
 * named INDEX/FIELD does too, which is easy to make with other tools.
 *
 * What is repeated is kept in memory, so that a benchmark does not measure the reading.
 */
#include "core/flow/plan.h"
#include "stages/replay/recording.h"

typedef struct {
    char *path;
    int kind;
    gint64 repeat;
} Replay;

typedef struct {
    Recording *recording;
    GPtrArray *kept; /* FlowItem *, if repeated */
    guint next;
    gint64 rounds;
} Worker;

static Recording *open_recording(const Replay *replay, GError **error)
{
    return recording_open(replay->path, (FlowKind)replay->kind, error);
}

/* What a recording gives is known from its lines alone. */
static gboolean replay_describe(FlowNode *node, GError **error)
{
    Recording *recording = open_recording(flow_node_state(node), error);
    if (!recording)
        return FALSE;
    g_autoptr(GString) gives = g_string_new(NULL);
    FlowFieldSet fields = recording_fields(recording);
    for (guint f = 0; f < FLOW_FIELD_MAX; f++)
        if (fields & FLOW_FIELD_BIT(f))
            g_string_append_printf(gives, "%s ", flow_field_info((FlowField)f)->name);
    flow_node_gives(node, "out", gives->str);
    recording_free(recording);
    return TRUE;
}

static gboolean replay_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    const Replay *replay = flow_node_state(node);
    Recording *recording = open_recording(replay, error);
    gsize sum = 0;
    if (!recording)
        return FALSE;
    for (guint i = 0; i < recording_items(recording); i++) {
        g_autoptr(FlowItem) item = recording_item(recording, i, error);
        if (!item) {
            recording_free(recording);
            return FALSE;
        }
        plan->item_bytes = MAX(plan->item_bytes, flow_item_nbytes(item));
        sum += flow_item_nbytes(item);
    }
    if (replay->repeat != 1)
        flow_plan_add_always(plan, node, FLOW_HOST, "items", sum);
    recording_free(recording);
    return TRUE;
}

static gboolean replay_worker_start(FlowCtx *ctx, GError **error)
{
    Worker *worker = flow_ctx_worker(ctx);
    worker->kept = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    worker->recording = open_recording(flow_ctx_state(ctx), error);
    return worker->recording != NULL;
}

static FlowStatus replay_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error)
{
    const Replay *replay = flow_ctx_state(ctx);
    Worker *worker = flow_ctx_worker(ctx);
    if (worker->next == recording_items(worker->recording)) {
        worker->next = 0;
        worker->rounds++;
    }
    if (replay->repeat && worker->rounds >= replay->repeat)
        return FLOW_EOS;
    guint i = worker->next++;
    if (i < worker->kept->len)
        return flow_emit(ctx, 0, flow_item_ref(g_ptr_array_index(worker->kept, i)));
    FlowItem *item = recording_item(worker->recording, i, error);
    if (!item)
        return FLOW_ERROR;
    if (replay->repeat != 1)
        g_ptr_array_add(worker->kept, flow_item_ref(item));
    return flow_emit(ctx, 0, item);
}

static void replay_worker_stop(FlowCtx *ctx)
{
    Worker *worker = flow_ctx_worker(ctx);
    g_ptr_array_unref(worker->kept);
    recording_free(worker->recording);
}

G_STATIC_ASSERT(FLOW_SAMPLE == 0 && FLOW_BATCH == 1 && FLOW_STEP == 2); /* the choices of `kind` */

static const FlowParam params[] = {
    FLOW_PATH(Replay, path, NULL, "Folder that dump wrote, or a safetensors file with tensors INDEX/FIELD."),
    FLOW_ENUM(Replay, kind, "sample", "sample|batch|step", "Kind of the items of a safetensors file."),
    FLOW_INT(Replay, repeat, "1", 0, 9e15, "", "How often to play it; 0 = without end."),
    FLOW_END,
};
static const FlowPort outs[] = {
    {.name = "out", .doc = "The recorded items.", .flags = FLOW_PORT_NEW | FLOW_PORT_ANY}, FLOW_END};

FLOW_STAGE(.name = "replay", .summary = "Emit what dump wrote.", .flags = FLOW_NEEDS_OUT, .version = 1,
           .state_size = sizeof(Replay), .worker_size = sizeof(Worker), .params = params, .outputs = outs,
           .worker_start = replay_worker_start, .process = replay_process, .worker_stop = replay_worker_stop,
           .describe = replay_describe, .plan = replay_plan);
