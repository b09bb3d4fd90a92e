/* One plausible value for each field: right type, right shape, the range that the field has in a real run. */
#include "stages/generate/values.h"
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENS = 77, WORDS = 9 };

static const FlowField known[] = {
    FLOW_F_PATH,       FLOW_F_FILE_ID,       FLOW_F_CAPTION,  FLOW_F_CAPTION_FULL, FLOW_F_SOURCE_SIZE,
    FLOW_F_ROLE,       FLOW_F_SAMPLE,        FLOW_F_GEOMETRY, FLOW_F_COMPLEXITY,   FLOW_F_SCORES,
    FLOW_F_PRECISION,  FLOW_F_BYTES,         FLOW_F_IMAGE,    FLOW_F_PIXELS,       FLOW_F_LATENT_MEAN,
    FLOW_F_CONTEXT,    FLOW_F_LATENT_LOGVAR, FLOW_F_POOLED,   FLOW_F_TIME_IDS,     FLOW_F_NOISE,
    FLOW_F_LATENT,     FLOW_F_MICRO,         FLOW_F_TIMESTEP, FLOW_F_NOISE_KEY,    FLOW_F_WEIGHT,
    FLOW_F_PREDICTION, FLOW_F_NOISE_OFFSET,  FLOW_F_PACKED,   FLOW_F_STEP,         FLOW_F_FLAGS,
    FLOW_F_LOSS,       FLOW_F_SAMPLES,       FLOW_F_SCALE,    FLOW_F_GRAD_NORM,    FLOW_F_LR,
    FLOW_F_VALIDATION,
};

gboolean generate_knows(FlowField field)
{
    for (guint i = 0; i < G_N_ELEMENTS(known); i++)
        if (known[i] == field)
            return TRUE;
    return FALSE;
}

/* -- pictures ------------------------------------------------------------------------ */

/* Cover the square target: the short side becomes `size`, the rest is cropped. */
static void geometry(const GenerateShape *s, gint32 v[7])
{
    gint64 least = MIN(s->width, s->height);
    v[0] = v[1] = (gint32)s->size;
    v[2] = (gint32)MAX(s->size, s->height * s->size / least);
    v[3] = (gint32)MAX(s->size, s->width * s->size / least);
    v[4] = (v[2] - v[0]) / 2;
    v[5] = (v[3] - v[1]) / 2;
    v[6] = 0;
}

static FlowValue *rgb(gint64 width, gint64 height, guint64 key)
{
    gint64 shape[3] = {height, width, 3};
    guint8 *data = generate_picture(width, height, key);
    return flow_value_wrap(NET_U8, 3, shape, data, g_free, data);
}

static FlowValue *file_bytes(const GenerateShape *s, guint64 key)
{
    g_autofree guint8 *picture = generate_picture(s->width, s->height, key);
    g_autoptr(GBytes) file = generate_jpeg(picture, s->width, s->height);
    gint64 n = (gint64)g_bytes_get_size(file);
    FlowValue *value = flow_value_new(NET_U8, 1, &n);
    memcpy(value->data, g_bytes_get_data(file, NULL), (gsize)n);
    return value;
}

/* The picture as a file of the folder, made when first asked for. */
static char *picture_file(const GenerateShape *s, guint i, guint64 key, const char *folder, GError **error)
{
    g_autofree char *name = g_strdup_printf("%02u.jpg", i);
    g_autofree char *path = g_build_filename(folder, name, NULL);
    if (!g_file_test(path, G_FILE_TEST_EXISTS)) {
        FlowValue *file = file_bytes(s, key);
        gboolean ok = g_file_set_contents(path, file->data, (gssize)file->nbytes, error);
        flow_value_unref(file);
        if (!ok)
            return NULL;
    }
    return g_steal_pointer(&path);
}

static FlowValue *file_value(const GenerateShape *s, FlowField field, guint i, guint64 key,
                             const char *folder, GError **error)
{
    g_autofree char *path = picture_file(s, i, key, folder, error);
    struct stat st;
    gint64 n = 5;
    if (!path)
        return NULL;
    if (field == FLOW_F_PATH)
        return flow_value_string(path);
    if (stat(path, &st) != 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot look at %s", path);
        return NULL;
    }
    FlowValue *value = flow_value_new(NET_I64, 1, &n);
    gint64 *id = value->data;
    id[0] = (gint64)st.st_dev;
    id[1] = (gint64)st.st_ino;
    id[2] = st.st_size;
    id[3] = st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    id[4] = st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
    return value;
}

static FlowValue *caption(guint64 key)
{
    static const char *const words[] = {"photo", "of",          "a",        "red",  "cat",   "on",
                                        "the",   "table",       "with",     "soft", "light", "in",
                                        "style", "watercolour", "portrait", "old",  "house", "sea"};
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < WORDS; i++)
        g_string_append_printf(text, "%s%s", i ? " " : "",
                               words[flow_random_below(key, i, G_N_ELEMENTS(words))]);
    FlowValue *value = flow_value_string(text->str);
    g_string_free(text, TRUE);
    return value;
}

/* -- tensors --------------------------------------------------------------------------- */

/* A batch has a leading dimension. */
static FlowValue *tensor(const GenerateShape *s, NetType type, guint ndim, const gint64 *shape)
{
    gint64 all[FLOW_MAX_DIMS] = {s->batch};
    guint lead = s->kind == FLOW_BATCH;
    for (guint i = 0; i < ndim; i++)
        all[i + lead] = shape[i];
    return flow_value_new(type, ndim + lead, all);
}

static FlowValue *normal(const GenerateShape *s, guint ndim, const gint64 *shape, guint64 key, float mean,
                         float scale)
{
    FlowValue *value = tensor(s, NET_F32, ndim, shape);
    float *x = value->data;
    gsize n = flow_value_count(value);
    flow_random_normal(key, 0, x, n);
    for (gsize i = 0; i < n; i++)
        x[i] = mean + scale * x[i];
    return value;
}

static FlowValue *floats(const GenerateShape *s, gint64 n, guint64 key, double min, double max)
{
    FlowValue *value = tensor(s, NET_F32, 1, &n);
    for (gsize i = 0; i < flow_value_count(value); i++)
        ((float *)value->data)[i] = (float)(min + (max - min) * flow_random_uniform(key, i));
    return value;
}

/* Whole numbers below `limit`; 1 gives zeros. */
static FlowValue *numbers(const GenerateShape *s, NetType type, guint ndim, const gint64 *shape, guint64 key,
                          guint64 limit)
{
    FlowValue *value = tensor(s, type, ndim, shape);
    for (gsize i = 0; i < flow_value_count(value); i++) {
        guint64 x = flow_random_below(key, i, limit);
        if (type == NET_I64)
            ((gint64 *)value->data)[i] = (gint64)x;
        else
            ((gint32 *)value->data)[i] = (gint32)x;
    }
    return value;
}

static FlowValue *ints(NetType type, const void *v, gint64 n)
{
    FlowValue *value = flow_value_new(type, 1, &n);
    memcpy(value->data, v, value->nbytes);
    return value;
}

static FlowValue *sample_value(const GenerateShape *s, FlowField field, guint i, guint64 key)
{
    const gint64 one = 1, side = s->size / s->factor, latent[3] = {side, side, 4},
                 text[2] = {TOKENS, s->context};
    gint32 g[7], size[2] = {(gint32)s->height, (gint32)s->width}, zero = 0;
    switch ((int)field) {
    case FLOW_F_SOURCE_SIZE:
        return ints(NET_I32, size, 2);
    case FLOW_F_GEOMETRY:
        geometry(s, g);
        return ints(NET_I32, g, 7);
    case FLOW_F_ROLE:
    case FLOW_F_PRECISION:
        return ints(NET_I32, &zero, 1);
    case FLOW_F_SAMPLE:
        return ints(NET_I64, &(gint64){i}, 1);
    case FLOW_F_COMPLEXITY:
        return floats(s, one, key, 0, 1);
    case FLOW_F_SCORES:
        return floats(s, 5, key, 0, 1);
    case FLOW_F_LATENT_MEAN:
    case FLOW_F_LATENT:
    case FLOW_F_NOISE:
        return normal(s, 3, latent, key, 0, 1);
    case FLOW_F_LATENT_LOGVAR:
        return normal(s, 3, latent, key, -12, 2);
    case FLOW_F_CONTEXT:
        return normal(s, 2, text, key, 0, 1);
    case FLOW_F_POOLED:
        return normal(s, 1, &s->pooled, key, 0, 1);
    case FLOW_F_TIME_IDS:
        return floats(s, 6, key, 0, 1024);
    }
    return NULL;
}

/* Fields that batches and steps bring; their shapes have the batch dimension written out. */
static FlowValue *batch_value(const GenerateShape *s, FlowField field, guint64 key)
{
    const gint64 batch = s->batch, pairs[2] = {batch, 2}, one = 1;
    const gint64 micro[6] = {0, 0, 1, batch, 0, 0}, step[4] = {0};
    const gint32 zero = 0, updated = FLOW_STEP_UPDATED;
    GenerateShape flat = *s;
    flat.kind = FLOW_SAMPLE;
    switch ((int)field) {
    case FLOW_F_MICRO:
        return ints(NET_I64, micro, 6);
    case FLOW_F_TIMESTEP:
        return numbers(&flat, NET_I32, 1, &batch, key, 1000);
    case FLOW_F_NOISE_KEY:
        return numbers(&flat, NET_I64, 1, &batch, key, G_MAXINT64);
    case FLOW_F_WEIGHT:
        return floats(&flat, batch, key, 1, 1);
    case FLOW_F_NOISE_OFFSET:
        return floats(&flat, batch, key, 0, 0);
    case FLOW_F_PREDICTION:
        return ints(NET_I32, &zero, 1);
    case FLOW_F_PACKED:
        return numbers(&flat, NET_I32, 2, pairs, key, 1);
    case FLOW_F_STEP:
        return ints(NET_I64, step, 4);
    case FLOW_F_FLAGS:
        return ints(NET_I32, &updated, 1);
    case FLOW_F_SAMPLES:
        return ints(NET_I64, &batch, 1);
    case FLOW_F_SCALE:
        return floats(&flat, one, key, 65536, 65536);
    case FLOW_F_LR:
        return floats(&flat, one, key, 1e-4, 1e-4);
    case FLOW_F_LOSS:
    case FLOW_F_GRAD_NORM:
    case FLOW_F_VALIDATION:
        return floats(&flat, one, key, 0.1, 0.2);
    }
    return NULL;
}

FlowValue *generate_value(const GenerateShape *s, FlowField field, guint i, guint64 key, const char *folder,
                          GError **error)
{
    FlowValue *value = NULL;
    if (field == FLOW_F_PATH || field == FLOW_F_FILE_ID)
        return file_value(s, field, i, key, folder, error);
    if (field == FLOW_F_CAPTION || field == FLOW_F_CAPTION_FULL)
        return caption(key);
    if (field == FLOW_F_BYTES)
        return file_bytes(s, key);
    if (field == FLOW_F_IMAGE)
        return rgb(s->width, s->height, key);
    if (field == FLOW_F_PIXELS)
        return rgb(s->size, s->size, key);
    if (!(value = sample_value(s, field, i, key)))
        value = batch_value(s, field, key);
    g_assert(value);
    return value;
}
