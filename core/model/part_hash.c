/* A number that changes when a part of a model does.
 *
 * Caches are keyed by it. Hashing gigabytes at every start would cost more than most of what is cached, so it
 * takes the configuration, all names, types, shapes and places, and three stretches of every tensor: training
 * a model changes all of its numbers, and a tensor cannot be replaced without touching them. */
#include "core/model/source.h"
#include <string.h>
#include <xxhash.h>

enum { STRETCH = 256 };

static gboolean hash_tensor(XXH3_state_t *state, const SafeFile *file, const SafeTensor *t, GError **error)
{
    guint8 buffer[3 * STRETCH];
    gsize n = MIN(t->nbytes, STRETCH);
    const guint64 places[3] = {0, (t->nbytes - n) / 2, t->nbytes - n};
    XXH3_64bits_update(state, t->name, strlen(t->name) + 1);
    XXH3_64bits_update(state, t->dtype, strlen(t->dtype) + 1);
    XXH3_64bits_update(state, &t->ndim, sizeof t->ndim);
    XXH3_64bits_update(state, t->shape, sizeof t->shape);
    for (guint i = 0; i < G_N_ELEMENTS(places); i++)
        if (!safe_read_bytes(file, t, places[i], buffer + i * n, n, error))
            return FALSE;
    XXH3_64bits_update(state, buffer, 3 * n);
    return TRUE;
}

static gboolean hash_part(XXH3_state_t *state, const Model *model, PartKind kind, GError **error)
{
    g_autoptr(ModelPart) part = model_part_find(model, kind, error);
    static const char *const component[PART_COUNT] = {"unet", "vae", "text_encoder", "text_encoder_2"};
    g_autofree char *config = g_build_filename(model->folder, component[kind], "config.json", NULL),
                    *text = NULL;
    gsize n;
    if (!part || !g_file_get_contents(config, &text, &n, error))
        return FALSE;
    XXH3_64bits_update(state, text, n);
    for (guint i = 0; i < part->n; i++)
        if (!hash_tensor(state, part->sources[i].file, part->sources[i].found, error))
            return FALSE;
    return TRUE;
}

char *model_part_hash(const Model *model, const char *part, GError **error)
{
    PartKind first, last;
    if (!model_part_kinds(model, part, &first, &last, error))
        return NULL;
    XXH3_state_t *state = XXH3_createState();
    XXH3_64bits_reset(state);
    gboolean ok = TRUE;
    for (PartKind kind = first; kind <= last && ok; kind++)
        ok = hash_part(state, model, kind, error);
    guint64 hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return ok ? g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash) : NULL;
}
