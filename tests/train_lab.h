/* A training loop of toy stages for tests, beside tests/graph_lab.h.
 *
 *   t_step     opening round, then a round for each item, then a closing round; waits for each to come back
 *   t_adam     sums the values in the loop, order counts; can die at a step
 *   t_monitor  stands outside the loop */
#ifndef TESTS_TRAIN_LAB_H
#define TESTS_TRAIN_LAB_H
#include "tests/graph_lab.h"

/* -- a step that waits for its parameters, and an optimizer -------------------------- */

typedef struct {
    gint64 delay_ms, width, steps; /* steps: of the parameters that came back last */
    gboolean opened;
} TStep;

static FlowItem *step_item(gint64 step, gint32 flags, const FlowItem *batch)
{
    FlowItem *item = flow_item_new(FLOW_STEP);
    gint64 v[4] = {step, 0, 0, 0};
    if (batch) {
        item->cursor = batch->cursor;
        flow_item_set(item, FLOW_F_NOISE_KEY, flow_value_ref(flow_item_get(batch, FLOW_F_NOISE_KEY)));
    }
    flow_item_set_i64(item, FLOW_F_STEP, v, 4);
    flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
    flow_item_set(item, FLOW_F_MODEL, flow_value_object("lora.model", NULL, NULL));
    return item;
}

/* Emits and waits until it has gone round. */
static FlowStatus go_round(FlowCtx *ctx, FlowItem *item, gint64 *settled, GError **error)
{
    g_autoptr(FlowItem) back = NULL;
    FlowStatus status = flow_emit(ctx, 0, item);
    if (status == FLOW_OK)
        status = flow_pop(ctx, 1, &back, error);
    if (status == FLOW_OK)
        *settled = *flow_item_i64(back, FLOW_F_STEP);
    return status;
}

static FlowStatus open_round(FlowCtx *ctx, TStep *state, GError **error)
{
    if (state->opened)
        return FLOW_OK;
    state->opened = TRUE;
    return go_round(ctx, step_item(state->steps, FLOW_STEP_OPENING, NULL), &state->steps, error);
}

static FlowStatus t_step_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TStep *state = flow_ctx_state(ctx);
    g_assert_null(in[1]);
    FlowStatus status = open_round(ctx, state, error);
    if (state->delay_ms)
        nanosleep(&(struct timespec){0, state->delay_ms * 1000000}, NULL);
    return status == FLOW_OK ? go_round(ctx, step_item(state->steps, 0, in[0]), &state->steps, error)
                             : status;
}

static FlowStatus t_step_flush(FlowCtx *ctx, GError **error)
{
    TStep *state = flow_ctx_state(ctx);
    FlowStatus status = open_round(ctx, state, error);
    gint32 flags = FLOW_STEP_LAST | (flow_ctx_stopping(ctx) ? FLOW_STEP_STOP : 0);
    return status == FLOW_OK ? go_round(ctx, step_item(state->steps, flags, NULL), &state->steps, error)
                             : status;
}

static GBytes *t_step_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    return g_bytes_new(&((TStep *)flow_node_state(node))->width, sizeof(gint64));
}

static gboolean t_step_load(FlowNode *node, GBytes *bytes, GError **error)
{
    if (g_bytes_get_size(bytes) != sizeof(gint64)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "state of %zu bytes",
                    g_bytes_get_size(bytes));
        return FALSE;
    }
    return memcmp(&((TStep *)flow_node_state(node))->width, g_bytes_get_data(bytes, NULL), sizeof(gint64)) ==
           0;
}

static const FlowParam t_step_params[] = {
    FLOW_INT(TStep, delay_ms, "0", 0, 999, "ms", "Time of a step.", | FLOW_P_NORESULT),
    FLOW_INT(TStep, width, "4", 1, 64, "", "Shapes the state.", | FLOW_P_FIXED),
    FLOW_END,
};
static const FlowPort t_step_in[] = {
    {.name = "batch", .doc = "Samples.", .needs = "noise_key"},
    {.name = "params", .kind = FLOW_STEP, .doc = "Settled.", .needs = "step", .flags = FLOW_PORT_FEEDBACK},
    FLOW_END};
static const FlowPort t_step_out[] = {{.name = "out",
                                       .kind = FLOW_STEP,
                                       .doc = "Steps.",
                                       .gives = "step flags model noise_key?",
                                       .flags = FLOW_PORT_NEW},
                                      FLOW_END};
static const FlowStage t_step = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_step",
                                 .summary = "Step.",
                                 .flags = FLOW_STATEFUL,
                                 .state_size = sizeof(TStep),
                                 .params = t_step_params,
                                 .inputs = t_step_in,
                                 .outputs = t_step_out,
                                 .process = t_step_process,
                                 .flush = t_step_flush,
                                 .save = t_step_save,
                                 .load = t_step_load};

static GString *rounds; /* what the optimizer saw */

typedef struct {
    gint64 die;
    double lr;
    struct {
        gint64 sum, step; /* sum: depends on every value and their order */
    } settled;
} TAdam;

static FlowStatus t_adam_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TAdam *adam = flow_ctx_state(ctx);
    gint64 step = adam->settled.step;
    gint32 flags = *flow_item_i32(in[0], FLOW_F_FLAGS);
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_MODEL));
    g_string_append_printf(rounds, "%d%s%s%s ", (int)step, flags & FLOW_STEP_OPENING ? "o" : "",
                           flags & FLOW_STEP_LAST ? "l" : "", flags & FLOW_STEP_STOP ? "s" : "");
    if (!flags && step == adam->die) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "died on purpose");
        return FLOW_ERROR;
    }
    flow_item_writable(&in[0]);
    if (!flags) {
        adam->settled.step++;
        adam->settled.sum = (adam->settled.sum * 31 + *flow_item_i64(in[0], FLOW_F_NOISE_KEY)) % 1000003;
        flow_node_gauge(flow_ctx_node(ctx), "sum", (double)adam->settled.sum);
        flow_progress(ctx, step + 1, 0, 1.0 / (double)(step + 1));
    }
    flow_item_set_i64(in[0], FLOW_F_STEP, (const gint64[]){adam->settled.step, 0, 0, 0}, 4);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static GBytes *t_adam_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    const TAdam *adam = flow_node_state(node);
    return g_bytes_new(&adam->settled, sizeof adam->settled);
}

static gboolean t_adam_load(FlowNode *node, GBytes *bytes, GError **error G_GNUC_UNUSED)
{
    TAdam *adam = flow_node_state(node);
    g_assert_cmpuint(g_bytes_get_size(bytes), ==, sizeof adam->settled);
    memcpy(&adam->settled, g_bytes_get_data(bytes, NULL), sizeof adam->settled);
    flow_node_gauge(node, "sum", (double)adam->settled.sum);
    return TRUE;
}

static const FlowParam t_adam_params[] = {
    FLOW_INT(TAdam, die, "-1", -1, 1e9, "", "Step at which to fail.", | FLOW_P_NORESULT),
    FLOW_FLOAT(TAdam, lr, "1e-4", 0, 1, "", "Rate."),
    FLOW_END,
};
static const FlowPort t_adam_in[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "step flags model"}, FLOW_END};
static const FlowPort t_adam_out[] = {{.name = "out", .kind = FLOW_STEP, .doc = "Steps.", .gives = "step"},
                                      FLOW_END};
static const FlowStage t_adam = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_adam",
                                 .summary = "Update.",
                                 .flags = FLOW_STATEFUL,
                                 .state_size = sizeof(TAdam),
                                 .params = t_adam_params,
                                 .save = t_adam_save,
                                 .load = t_adam_load,
                                 .inputs = t_adam_in,
                                 .outputs = t_adam_out,
                                 .process = t_adam_process};

/* Outside the loop: sees numbers, not the model. */
static FlowStatus t_monitor_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_assert_null(flow_item_get(in[0], FLOW_F_MODEL));
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_STEP));
    return FLOW_OK;
}

static const FlowPort t_monitor_in[] = {{.name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "step"},
                                        FLOW_END};
static const FlowStage t_monitor = {.abi = FLOW_ABI,
                                    .size = sizeof(FlowStage),
                                    .name = "t_monitor",
                                    .summary = "Watch.",
                                    .inputs = t_monitor_in,
                                    .process = t_monitor_process};

static inline void lab_add_loop(void)
{
    const FlowStage *stages[] = {&t_step, &t_adam, &t_monitor};
    rounds = g_string_new(NULL);
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(stages[i], &error);
        g_assert_no_error(error);
    }
}

#endif
