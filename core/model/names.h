/* Names of the U-Net's modules in the original (single-file) layout and in kohya's LoRA files. */
#ifndef MODEL_NAMES_H
#define MODEL_NAMES_H
#include "core/model/model.h"

G_BEGIN_DECLS

/* "down_blocks.1.attentions.0.proj_in" -> "input_blocks.4.1.proj_in". Also for names of tensors. Returns new.
 */
char *names_original_unet(const UnetConfig *config, const char *path);
/* "lora_unet_" and the path with '_' for '.'. Returns new. */
char *names_kohya(const char *path);

G_END_DECLS
#endif
