/* The JSON files of a diffusers folder. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H
#include "core/model/model.h"

G_BEGIN_DECLS

/* Each reads one file completely and names all values that are not supported. */
gboolean config_unet(const char *path, UnetConfig *out, GError **error);
gboolean config_vae(const char *path, VaeConfig *out, GError **error);
gboolean config_text(const char *path, TextConfig *out, GError **error);
gboolean config_scheduler(const char *path, double alpha_bar[1000], gboolean *v_prediction, GError **error);

G_END_DECLS
#endif
