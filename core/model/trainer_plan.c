/* What a training loop will hold, from headers: weights, adapters, arena of the largest step, held-back
 * pictures. */
#include "core/model/trainer_plan.h"

/* The largest step over all sizes that flow. */
static gboolean largest_step(const Trainer *t, FlowPlan *plan, NetPlanInfo *most, GError **error)
{
    gint64 factor = model_vae_factor(t->model), n = MAX(plan->batch, 1);
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *size = &g_array_index(plan->sizes, FlowPlanSize, i);
        NetPlanInfo info;
        TrainerTexts texts;
        if (!trainer_plan(t, n, size->height / factor, size->width / factor, TOKENIZER_LENGTH, TRUE, &info,
                          &texts, error))
            return FALSE;
        if (info.arena > most->arena) {
            *most = info;
            flow_plan_text(plan, "ops", texts.ops);
            flow_plan_text(plan, "intervals", texts.intervals);
        }
        g_free(texts.ops);
        g_free(texts.intervals);
    }
    return TRUE;
}

/* Latents and text of the held-back pictures, all taken as of the largest size. */
static gsize held_bytes(const Trainer *t, const FlowPlan *plan)
{
    gint64 pixels = 0, factor = model_vae_factor(t->model);
    const UnetConfig *u = &t->model->unet;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *size = &g_array_index(plan->sizes, FlowPlanSize, i);
        pixels = MAX(pixels, size->height / factor * (size->width / factor));
    }
    gint64 one = 2 * pixels * u->in_channels + TOKENIZER_LENGTH * u->context + u->class_dim;
    return (gsize)(plan->validation * one) * sizeof(float);
}

gboolean trainer_plan_report(const Trainer *t, FlowNode *node, FlowPlan *plan, GError **error)
{
    NetPlanInfo info = {0};
    gsize weights = model_part_bytes(t->model, "unet", t->compute, error),
          adapters = trainer_adapter_bytes(t);
    if (weights == 0 || !largest_step(t, plan, &info, error))
        return FALSE;
    weights += info.packed;
    for (FlowPhase phase = FLOW_PHASE_TRAIN; phase < FLOW_PHASE_COUNT; phase++) {
        flow_plan_add(plan, node, phase, FLOW_HOST, "weights", weights);
        flow_plan_add(plan, node, phase, FLOW_HOST, "arena", info.arena);
        flow_plan_add(plan, node, phase, FLOW_HOST, "primitives", info.primitives);
    }
    flow_plan_add_always(plan, node, FLOW_HOST, "adapters", adapters);
    flow_plan_add_always(plan, node, FLOW_HOST, "held back", held_bytes(t, plan));
    /* masters as they are copied into a checkpoint; the optimizer's turn comes after them */
    flow_plan_add(plan, node, FLOW_PHASE_SAVE, FLOW_HOST, "checkpoint", 2 * t->adapters->n * sizeof(float));
    flow_plan_fact(plan, "weights", (double)weights);
    flow_plan_fact(plan, "adapters", (double)adapters);
    flow_plan_fact(plan, "activations", (double)info.saved);
    flow_plan_fact(plan, "arena", (double)info.arena);
    flow_plan_fact(plan, "bound", (double)info.bound);
    flow_plan_fact(plan, "recompute", 0);
    flow_plan_fact(plan, "flops", info.flops);
    return TRUE;
}
