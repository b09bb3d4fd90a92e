/* Where the tensors of a part are in its files, checked. */
#ifndef MODEL_SOURCE_H
#define MODEL_SOURCE_H
#include "core/model/parts.h"
#include "core/model/safe_set.h"

G_BEGIN_DECLS

typedef struct {
    const ModelTensor *tensor; /* what is wanted */
    SafeFile *file;
    const SafeTensor *found;
    gint64 first;        /* element of `found` where it begins: q, k, v may be thirds of one tensor */
    gboolean transposed; /* stored as [in, out] */
} ModelSource;

typedef struct {
    GPtrArray *tensors; /* ModelTensor *, what the sources point to */
    SafeSet *set;
    ModelSource *sources; /* in order of their place in the files, n of them */
    guint n;
} ModelPart;

typedef enum { PART_UNET, PART_VAE, PART_TEXT, PART_TEXT2, PART_COUNT } PartKind;

/* Opens the files of a part and finds every tensor of it; all that is missing, unexpected, of another shape
 * or of a type that we cannot read is named in one error. */
ModelPart *model_part_find(const Model *model, PartKind kind, GError **error);
void model_part_free(ModelPart *part); /* NULL is fine */
/* Which kinds a part's name ("vae.encoder", "text") means: first to last. */
gboolean model_part_kinds(const Model *model, const char *part, PartKind *first, PartKind *last,
                          GError **error);
/* What a part has to consist of: elements ModelTensor *. Returns new. */
GPtrArray *model_part_tensors(const Model *model, PartKind kind);
const char *model_part_file(const Model *model, PartKind kind);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelPart, model_part_free)

G_END_DECLS
#endif
