/* Which tensors a part of a model consists of, from its configuration alone. */
#ifndef MODEL_PARTS_H
#define MODEL_PARTS_H
#include "core/model/model.h"

G_BEGIN_DECLS

/* A tensor as a diffusers folder holds it. */
typedef struct {
    char *name;      /* "conv_in.weight" */
    guint ndim;      /* 1: bias or norm; 2: matrix [out, in]; 4: convolution [out, in, kh, kw] */
    gint64 shape[4]; /* unused ones are 1 */
} ModelTensor;

/* In order of the forward pass; elements ModelTensor *. Returns new. */
GPtrArray *parts_unet(const UnetConfig *config);
GPtrArray *parts_vae(const VaeConfig *config, gboolean encoder, gboolean decoder);
GPtrArray *parts_text(const TextConfig *config);

G_END_DECLS
#endif
