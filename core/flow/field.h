/* The fields that items carry: name, type, shape, meaning. Declared once, here.
 *
 * A plugin may add its own with flow_field_register() in a FLOW_FIELDS table; everything else
 * refers to a field by its number (FLOW_F_*) or by its name.
 *
 *   X(NAME, "name", type, "shape", flags, "meaning")
 *
 * Batches carry the same names with a leading batch dimension B. */
#ifndef FLOW_FIELD_H
#define FLOW_FIELD_H
#include "kernels/type.h"

G_BEGIN_DECLS

enum {
    FLOW_FIELD_STRING = 1, /* UTF-8 text (file names: bytes), no tensor */
    FLOW_FIELD_OBJECT = 2, /* a typed, reference-counted object of a stage */
    FLOW_FIELD_LOOP = 4,   /* lives in the training loop only: stripped where an edge leaves it */
    FLOW_FIELD_NOKEY = 8,  /* does not enter cache keys (identity is in file_id) */
    FLOW_FIELD_HALF = 16,  /* the cache keeps it in half precision */
};

#define FLOW_FIELDS(X)                                                                                       \
    X(PATH, "path", NET_U8, "", FLOW_FIELD_STRING | FLOW_FIELD_NOKEY, "file name of the picture")            \
    X(FILE_ID, "file_id", NET_I64, "5", 0, "device, inode, size, mtime ns, ctime ns")                        \
    X(CAPTION, "caption", NET_U8, "", FLOW_FIELD_STRING, "caption as it is trained in this use")             \
    X(CAPTION_FULL, "caption_full", NET_U8, "", FLOW_FIELD_STRING | FLOW_FIELD_NOKEY,                        \
      "caption of the picture where a dropout or a shuffle may make `caption` differ")                       \
    X(SOURCE_SIZE, "source_size", NET_I32, "2", 0,                                                           \
      "height, width of the picture after EXIF orientation, px")                                             \
    X(ROLE, "role", NET_I32, "1", FLOW_FIELD_NOKEY, "0 train, 1 validate")                                   \
    X(SAMPLE, "sample", NET_I64, "1", FLOW_FIELD_NOKEY,                                                      \
      "number of the picture in the sorted list (keys random draws)")                                        \
    X(GEOMETRY, "geometry", NET_I32, "7", 0, "target h, w; resized h, w; crop top, left; flip (0, 1)")       \
    X(COMPLEXITY, "complexity", NET_F32, "1", FLOW_FIELD_NOKEY, "0 simple .. 1 complex")                     \
    X(SCORES, "scores", NET_F32, "5", FLOW_FIELD_NOKEY,                                                      \
      "image entropy 0..1, text length 0..1, mean L, a, b (CIELAB / 100)")                                   \
    X(PRECISION, "precision", NET_I32, "1", FLOW_FIELD_NOKEY, "ceiling: 0 full, 1 mixed, 2 half")            \
    X(BYTES, "bytes", NET_U8, "n", 0, "contents of the file")                                                \
    X(IMAGE, "image", NET_U8, "h w 3", 0, "decoded RGB, EXIF orientation applied")                           \
    X(PIXELS, "pixels", NET_U8, "h w 3", 0, "RGB at the target size, cropped and flipped")                   \
    X(LATENT_MEAN, "latent_mean", NET_F32, "h w c", FLOW_FIELD_HALF, "posterior mean, not scaled")           \
    X(LATENT_LOGVAR, "latent_logvar", NET_F32, "h w c", FLOW_FIELD_HALF, "posterior log variance, clamped")  \
    X(CONTEXT, "context", NET_F32, "t c", FLOW_FIELD_HALF, "text encoder states")                            \
    X(POOLED, "pooled", NET_F32, "c", FLOW_FIELD_HALF, "pooled text vector (SDXL)")                          \
    X(TIME_IDS, "time_ids", NET_F32, "6", 0, "original h, w; crop top, left; target h, w (SDXL)")            \
    X(NOISE, "noise", NET_F32, "h w c", 0, "noise to use instead of the drawn one")                          \
    X(LATENT, "latent", NET_F32, "h w c", 0,                                                                 \
      "scaled latent to use instead of a draw from mean and log variance")                                   \
    X(MICRO, "micro", NET_I64, "6", 0,                                                                       \
      "group number, micro-batch in group, micro-batches in group, samples in group, groups in all (0 = no " \
      "end), epoch")                                                                                         \
    X(TIMESTEP, "timestep", NET_I32, "B", 0, "diffusion timestep of each sample")                            \
    X(NOISE_KEY, "noise_key", NET_I64, "B", 0, "keys the draws of latent and noise of each sample")          \
    X(WEIGHT, "weight", NET_F32, "B", 0, "loss weight of each sample (min-SNR, ...)")                        \
    X(NOISE_OFFSET, "noise_offset", NET_F32, "B", 0, "noise offset of each sample")                          \
    X(ALPHA_BAR, "alpha_bar", NET_F32, "B", 0,                                                               \
      "cumulative alpha of each sample's timestep, where it is not the model's own schedule")                \
    X(PREDICTION, "prediction", NET_I32, "1", 0, "0 epsilon, 1 v")                                           \
    X(PACKED, "packed", NET_I32, "B 2", 0,                                                                   \
      "per sample: precision used (0 full, 1 mixed, 2 half), Haar levels")                                   \
    X(STEP, "step", NET_I64, "4", 0, "updates done, updates in all (0 = unknown), group, epoch")             \
    X(FLAGS, "flags", NET_I32, "1", 0, "FLOW_STEP_* bits")                                                   \
    X(LOSS, "loss", NET_F32, "1", 0, "mean loss of the group")                                               \
    X(SAMPLES, "samples", NET_I64, "1", 0, "samples in the group")                                           \
    X(SCALE, "scale", NET_F32, "1", 0, "loss scale in force")                                                \
    X(GRAD_NORM, "grad_norm", NET_F32, "1", 0, "norm over all adapter gradients, unscaled, before clipping") \
    X(LR, "lr", NET_F32, "1", 0, "learning rate of the update")                                              \
    X(VALIDATION, "validation", NET_F32, "1", 0, "loss on held-back pictures")                               \
    X(HISTORY, "history", NET_U8, "", FLOW_FIELD_STRING,                                                     \
      "JSON lines of the latest steps, for who was behind when a resumed run was killed")                    \
    X(MODEL, "model", NET_U8, "", FLOW_FIELD_OBJECT | FLOW_FIELD_LOOP,                                       \
      "lora.model: adapters, gradients, U-Net")

typedef enum {
#define FLOW__ENUM(NAME, name, type, shape, flags, doc) FLOW_F_##NAME,
    FLOW_FIELDS(FLOW__ENUM)
#undef FLOW__ENUM
        FLOW_F_BUILTIN,
    FLOW_FIELD_MAX = 64 /* built-in and plugins' fields together: a set is one 64-bit mask */
} FlowField;

typedef guint64 FlowFieldSet;
#define FLOW_FIELD_BIT(f) ((FlowFieldSet)1 << (f))

/* bits of the field "flags" of a step item */
enum {
    FLOW_STEP_UPDATED = 1,  /* the optimizer changed the parameters */
    FLOW_STEP_OPENING = 2,  /* first round: no gradients, settled start values */
    FLOW_STEP_LAST = 4,     /* closing round: everyone saves */
    FLOW_STEP_STOP = 8,     /* closing round of an interrupted run */
    FLOW_STEP_ENDING = 16,  /* no update is wanted after this one */
    FLOW_STEP_SKIPPED = 32, /* gradients were not finite */
    FLOW_STEP_RESUMED = 64, /* opening round of a resumed run */
    FLOW_STEP_FAILED = 128, /* training cannot go on: savers keep what is good, then lora_step ends the run */
};

typedef struct {
    const char *name, *shape, *doc;
    NetType type;
    guint flags;
} FlowFieldInfo;

/* NULL where f is not in use. [any] */
const FlowFieldInfo *flow_field_info(FlowField f);
/* -1 if unknown. [any] */
int flow_field_find(const char *name);
/* The known name nearest to `name`, or NULL. [any] */
const char *flow_field_nearest(const char *name);
/* Adds a plugin's field; the same declaration again is fine, another one under that name is refused.
 * Returns -1 with error. [graph] */
int flow_field_register(const FlowFieldInfo *info, GError **error);
/* Parses "image caption? pooled?" into two sets; a '?' puts the field into `optional`.
 * Returns the first unknown name (static until the next call on this thread) or NULL. [any] */
const char *flow_field_parse(const char *list, FlowFieldSet *required, FlowFieldSet *optional);

G_END_DECLS
#endif
