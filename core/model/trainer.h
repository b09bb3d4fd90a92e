/* What the nodes of a training loop share: base model, adapters, gradients and the arena ("lora.model").
 *
 * lora_step owns one and lends it to scaler, optimizer, validate, savers. Only one item goes round the loop
 * at a time, so whoever holds it may read and change everything here without a lock; everything that computes
 * runs on the compute thread (net_on_compute_thread), in one arena, one plan a shape.
 *
 * Opening reads headers only; the U-Net's weights come with trainer_load(). */
#ifndef MODEL_TRAINER_H
#define MODEL_TRAINER_H
#include "core/flow/item.h"
#include "core/model/model.h"

G_BEGIN_DECLS

#define TRAINER_TYPE "lora.model"

#define TRAINER_ERROR trainer_error_quark()
GQuark trainer_error_quark(void);
enum { TRAINER_ERROR_BATCH, TRAINER_ERROR_STATE, TRAINER_ERROR_CHECK };

typedef struct {
    char **targets;
    gint64 rank;
    double alpha; /* 0 = rank */
    LoraInit init;
    const char *from; /* LoRA file to go on from, or NULL */
    NetType compute;
    guint64 seed;
} TrainerOptions;

typedef struct TrainerPlans TrainerPlans;

typedef struct {
    Model *model;
    NetAdapters *adapters;
    NetType compute;
    TrainerOptions options; /* its pointers stay with the caller */
    NetWeights *unet;       /* NULL before trainer_load */
    NetArena *arena;
    TrainerPlans *plans;
    GPtrArray *held; /* FlowItem *: batches of held-back pictures */
    gint64 updates;  /* changes of the parameters so far */
    double factor;   /* what the optimizer multiplies gradients by: unscale and clip; lora_step sets 1 */
    gboolean fresh;  /* B started at zero in this run */
    gboolean restored;
    gboolean check_finite;
    guint64 base_hash; /* of the loaded weights, 0 = not watched */
    char *failure;     /* why training cannot go on (FLOW_STEP_FAILED) */
} Trainer;

/* Checks base, targets and ranks; allocates the adapters; reads `from`. [graph] */
Trainer *trainer_new(const char *base, const TrainerOptions *options, GError **error);
void trainer_free(Trainer *trainer); /* NULL is fine */
/* The trainer that travels in a step item; NULL with error if there is none. */
Trainer *trainer_of(const FlowItem *item, GError **error);
/* Notes why training cannot go on; the first reason stays. Whoever calls it sets FLOW_STEP_FAILED. */
void trainer_fail(Trainer *trainer, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Loads the weights, draws A unless it was restored. */
gboolean trainer_load(Trainer *trainer, gboolean watch_base, GError **error);
/* Masters and counters for a checkpoint, and back; another set of modules or ranks is refused. */
GBytes *trainer_save_state(Trainer *trainer);
gboolean trainer_load_state(Trainer *trainer, GBytes *state, GError **error);

/* One micro-batch. Values are borrowed from an item; arrays have n entries. */
typedef struct {
    gint64 n, height, width, tokens; /* of latents and text */
    const FlowValue *mean, *logvar;  /* of the posterior; or */
    const FlowValue *latent;         /* the scaled latent itself */
    const FlowValue *noise;          /* NULL: drawn from the key */
    const FlowValue *context, *pooled, *time_ids;
    const gint64 *key;
    const gint32 *timestep;
    const float *weight;    /* NULL: 1 */
    const float *offset;    /* NULL: none */
    const float *alpha_bar; /* NULL: of the model's schedule */
    double samples;         /* weights are divided by it */
    gboolean v;
} TrainerBatch;

/* Checks an item's tensors against the model and each other. `given`: use `latent` and not mean and logvar.
 */
gboolean trainer_batch_read(const Trainer *trainer, const FlowItem *item, gboolean given, TrainerBatch *batch,
                            GError **error);
/* Forward and backward: adds to the adapters' gradients, multiplied by `scale`; gives
 * sum of weight / samples * mean squared error. */
gboolean trainer_gradient(Trainer *trainer, const TrainerBatch *batch, float scale, float *loss,
                          GError **error);
/* Forward only. `stop` may end it early (NET_ERROR_STOPPED); may be NULL. */
gboolean trainer_loss(Trainer *trainer, const TrainerBatch *batch, gboolean (*stop)(gpointer),
                      gpointer stop_data, float *loss, GError **error);
void trainer_clear_gradient(Trainer *trainer);

/* The operations of a step, and the live intervals of its values, as text; the caller frees both. */
typedef struct {
    char *ops, *intervals;
} TrainerTexts;
/* What a step of this shape takes, from headers. `backward` FALSE: trainer_loss. */
gboolean trainer_plan(const Trainer *trainer, gint64 n, gint64 height, gint64 width, gint64 tokens,
                      gboolean backward, NetPlanInfo *info, TrainerTexts *texts, GError **error);
/* Bytes of masters, gradients and compute copies. */
gsize trainer_adapter_bytes(const Trainer *trainer);

/* -- a run watches itself ------------------------------------------------------------ */

/* First gradient of fresh adapters: exactly zero for A, not for B. */
gboolean trainer_check_first(const Trainer *trainer, GError **error);
/* Modules whose B is still zero; *first names one (borrowed), may be NULL. */
guint trainer_unmoved(const Trainer *trainer, const char **first);
/* The frozen weights are what was loaded; always TRUE when they are not watched. */
gboolean trainer_check_base(const Trainer *trainer, GError **error);
/* "MODULE.lora_B" of an element of the flat buffers. Returns new. */
char *trainer_element(const Trainer *trainer, gsize index);

G_END_DECLS
#endif
