/* The tensors of one part of a model, in one safetensors file or in several shards. */
#ifndef MODEL_SAFE_SET_H
#define MODEL_SAFE_SET_H
#include "core/model/safetensors.h"

G_BEGIN_DECLS

typedef struct SafeSet SafeSet;

/* X.safetensors, or X.safetensors.index.json with its shards beside it. */
SafeSet *safe_set_open(const char *path, GError **error);
void safe_set_close(SafeSet *set); /* NULL is fine */
guint safe_set_count(const SafeSet *set);
SafeFile *safe_set_file(const SafeSet *set, guint i);
/* The tensor and the file it is in, or NULL. */
const SafeTensor *safe_set_find(const SafeSet *set, const char *name, SafeFile **file);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(SafeSet, safe_set_close)

G_END_DECLS
#endif
