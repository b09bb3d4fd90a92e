/* A network that turns inputs into outputs now and then: weights that come with the first use and go when
 * told, one plan a shape, an arena of its own. VAE and text encoders are this; what differs is two functions.
 */
#ifndef MODEL_ENCODER_H
#define MODEL_ENCODER_H
#include "core/model/model.h"

G_BEGIN_DECLS

enum { ENCODER_DIMS = 3 }; /* numbers that make a shape; what they mean is the kind's business */

typedef struct {
    const char *part; /* of model_outline, model_part_bytes */
    NetWeights *(*load)(const Model *model, NetType type, GError **error);
    /* Adds inputs, network and outputs for a shape. */
    void (*build)(const Model *model, Net *net, const NetWeights *weights, const gint64 *shape);
} EncoderKind;

typedef struct Encoder Encoder;

/* Borrows kind and model. */
Encoder *encoder_new(const EncoderKind *kind, const Model *model, NetType compute);
void encoder_free(Encoder *encoder); /* NULL is fine */
gboolean encoder_loaded(const Encoder *encoder);
/* Frees weights, plans and arena; encoder_run would load them again. */
void encoder_unload(Encoder *encoder);
/* Loads at the first use. `stop` may end it early (NET_ERROR_STOPPED); may be NULL. */
gboolean encoder_run(Encoder *encoder, const gint64 *shape, const NetBinding *inputs,
                     const NetBinding *outputs, gboolean (*stop)(gpointer), gpointer stop_data,
                     GError **error);
/* From headers. */
gboolean encoder_plan(const Encoder *encoder, const gint64 *shape, NetPlanInfo *info, GError **error);

/* The parameter compute = auto|f32|bf16 of several stages. */
NetType model_compute_choice(int choice);
/* `run --check-finite` (FLOW_CHECK_FINITE): look at every value as it is made. */
gboolean model_check_finite(void);

G_END_DECLS
#endif
