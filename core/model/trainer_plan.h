/* The memory plan of a training loop. */
#ifndef MODEL_TRAINER_PLAN_H
#define MODEL_TRAINER_PLAN_H
#include "core/flow/plan.h"
#include "core/model/trainer.h"

G_BEGIN_DECLS

/* Adds what the trainer will hold to the plan of `node`, and the facts of a step. [graph] */
gboolean trainer_plan_report(const Trainer *trainer, FlowNode *node, FlowPlan *plan, GError **error);

G_END_DECLS
#endif
