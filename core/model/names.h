/* Names in the original (single-file) layout and in kohya's LoRA files. */
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H
#include "core/model/model.h"

G_BEGIN_DECLS

/* "down_blocks.1.attentions.0.proj_in" -> "input_blocks.4.1.proj_in". Also for names of tensors. Returns new.
 */
char *names_original_unet(const UnetConfig *config, const char *path);
/* "encoder.down_blocks.0.resnets.1.conv1.weight" -> "encoder.down.0.block.1.conv1.weight". Returns new. */
char *names_original_vae(const VaeConfig *config, const char *name);

/* Where a tensor of a text encoder is among OpenCLIP's. */
typedef struct {
    char *name;
    guint third;         /* 0, 1, 2: q, k, v are thirds of one tensor */
    gboolean fused;      /* it is such a third */
    gboolean transposed; /* stored as [in, out] */
} OpenClipName;

/* name.name is new. */
OpenClipName names_openclip(const char *name);
/* "lora_unet_" and the path with '_' for '.'. Returns new. */
char *names_kohya(const char *path);

G_END_DECLS
#endif
