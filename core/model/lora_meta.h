/* Metadata of LoRA files. */
#ifndef MODEL_LORA_META_H
#define MODEL_LORA_META_H
#include "core/model/model.h"

G_BEGIN_DECLS

/* What readers of kohya's format look for; `more` (may be NULL) is added and wins. Returns new. */
GHashTable *lora_meta_kohya(const NetAdapters *adapters, const Model *model, GHashTable *more);
/* Adds the hashes that A1111 shows, of the file that holds `entries` and the ss_* part of `metadata`. */
gboolean lora_meta_hashes(GHashTable *metadata, const SafeEntry *entries, guint n, GError **error);
/* format and lora_adapter_metadata (PEFT's configuration) of diffusers' files, and `more`. Returns new. */
GHashTable *lora_meta_diffusers(const NetAdapters *adapters, GHashTable *more);

G_END_DECLS
#endif
