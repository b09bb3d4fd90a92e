/* All text encoders of a model as one: a caption becomes tokens, tokens become what the U-Net reads. SD has
 * one encoder; SDXL two, whose states lie side by side, and a pooled vector from the second. */
#ifndef MODEL_TEXTS_H
#define MODEL_TEXTS_H
#include "core/flow/plan.h"
#include "core/model/encoder.h"

G_BEGIN_DECLS

enum { TEXTS_MOST = 2 };

typedef struct {
    gint32 ids[TEXTS_MOST][TOKENIZER_LENGTH]; /* zero for an encoder that the model does not have */
} TextTokens;

typedef struct Texts Texts;

/* Borrows the model. At most `most` captions are encoded together. */
Texts *texts_new(const Model *model, NetType compute, guint most, GError **error);
void texts_free(Texts *texts);   /* NULL is fine */
void texts_unload(Texts *texts); /* frees the weights; texts_run would load them again */
gboolean texts_has_pooled(const Texts *texts);
/* Returns the number of tokens of the caption; what is beyond TOKENIZER_LENGTH - 2 is cut. [any] */
gint texts_tokens(const Texts *texts, const char *caption, TextTokens *tokens);
/* context[i] (77, width), pooled[i] (projection; NULL without one): new values. `stop` as in encoder_run. */
gboolean texts_run(Texts *texts, guint n, const TextTokens *const *tokens, FlowValue **context,
                   FlowValue **pooled, gboolean (*stop)(gpointer), gpointer stop_data, GError **error);
/* Bytes of context and pooled of one caption. */
gsize texts_result_bytes(const Texts *texts);
/* Adds what the encoders hold in phases 0 .. end - 1. */
gboolean texts_plan(const Texts *texts, FlowNode *node, FlowPlan *plan, FlowPhase end, GError **error);

G_END_DECLS
#endif
