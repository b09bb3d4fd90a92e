/* Plans of a trainer, one a shape: private to core/model/trainer*.c. */
#ifndef MODEL_TRAINER_RUN_H
#define MODEL_TRAINER_RUN_H
#include "core/model/trainer.h"

TrainerPlans *trainer_plans_new(void);
void trainer_plans_free(TrainerPlans *plans);

#endif
