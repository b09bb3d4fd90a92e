/* Models: what a base is, its weights, and the functions that build its networks on the engine. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "core/model/safetensors.h"
#include "core/model/tokenizer.h"
#include "core/net/net.h"

G_BEGIN_DECLS

typedef enum { MODEL_SD1, MODEL_SD2, MODEL_SDXL } ModelKind;
enum { MODEL_LEVELS = 8 };

typedef struct {
    gint64 in_channels, out_channels, layers, context, groups;
    guint levels;
    gint64 width[MODEL_LEVELS], heads[MODEL_LEVELS], depth[MODEL_LEVELS];
    gboolean down_attention[MODEL_LEVELS], up_attention[MODEL_LEVELS];
    float eps;
    gint64 sample_size;
    gboolean linear_projection; /* proj_in and proj_out are linears (SD2, SDXL), not 1x1 convolutions */
    gboolean text_time;
    gint64 time_dim, class_dim; /* SDXL: addition_time_embed_dim, projection_class_embeddings_input_dim */
} UnetConfig;

typedef struct {
    gint64 in_channels, latent, layers, groups;
    guint levels;
    gint64 width[MODEL_LEVELS];
    float scaling;
} VaeConfig;

typedef struct {
    gint64 width, mlp, heads, layers, vocabulary, positions, projection; /* projection 0 = none */
    gboolean quick_gelu;
    float eps;
} TextConfig;

/* What a base model is: read from headers and config.json only, no weights. */
typedef struct {
    char *path;
    char *folder;    /* of configurations and tokenizers: path, or the one beside a single file */
    gboolean single; /* one file in the original layout */
    ModelKind kind;
    UnetConfig unet;
    VaeConfig vae;
    guint texts; /* 1, SDXL 2 */
    TextConfig text[2];
    gboolean v_prediction;
    double alpha_bar[1000];                                   /* of the scheduler configuration */
    char *unet_file, *vae_file, *text_file[2], *tokenizer[2]; /* absolute */
} Model;

/* Opens a diffusers folder, or a checkpoint in one file in the original layout, X.safetensors with the folder
 * X beside it for configurations and tokenizers (no weights needed there). Compares the headers of the files
 * with the configuration; every value that we do not support and every tensor that is missing, unexpected or
 * of another shape is named. */
Model *model_open(const char *path, GError **error);
void model_free(Model *model);               /* NULL is fine */
const char *model_kind_name(ModelKind kind); /* "SD1.x", ... */
/* Image pixels per latent pixel and side. */
gint64 model_vae_factor(const Model *model);
/* 512, 768, 1024, or sample_size x factor of a small model. */
gint64 model_resolution(const Model *model);
/* Latent sides must be multiples of this. */
gint64 model_latent_step(const Model *model);
/* Parts are called "unet", "vae", "vae.encoder", "vae.decoder", "text" (all encoders), "text.0", "text.1".
 *
 * XXH3 (hex, new) that changes when a part does: configuration, header and a sample of every tensor. */
char *model_part_hash(const Model *model, const char *part, GError **error);
/* Bytes that a part takes once loaded as `type`. 0 = error. */
gsize model_part_bytes(const Model *model, const char *part, NetType type, GError **error);
/* Tensors of a part without memory (net_weights_new_dry), to build and plan nets from before anything is
 * loaded. Returns new. */
NetWeights *model_outline(const Model *model, const char *part, NetType type, GError **error);

/* Loads a part: matrices and kernels as `type`, vectors as f32; tensor by tensor, never two copies.
 * Missing and unexpected tensors are reported by name, all of them. */
NetWeights *model_load_unet(const Model *model, NetType type, GError **error);
NetWeights *model_load_vae(const Model *model, NetType type, gboolean encoder, gboolean decoder,
                           GError **error);
NetWeights *model_load_text(const Model *model, guint which, NetType type, GError **error);

/* -- networks. All append to the net and return borrowed values -------------------- */

/* x (N,H,W,4) compute type, t f32 (N,1,1,1), context (N,1,T,C), for SDXL pooled (N,1,1,P) and time_ids f32
 * (N,1,1,6). Values are named by module as in the fixtures' debug/NAME. */
NetVal *unet_build(Net *net, const UnetConfig *config, const NetWeights *weights, NetVal *x, NetVal *t,
                   NetVal *context, NetVal *pooled, NetVal *time_ids);
/* image (N,H,W,3) in [-1,1] -> moments (N,H/f,W/f,8): mean, then log variance, not clamped, not scaled. */
NetVal *vae_encode_build(Net *net, const VaeConfig *config, const NetWeights *weights, NetVal *image);
/* z (N,H,W,4), already divided by the scaling factor -> image (N,Hf,Wf,3), not clamped. */
NetVal *vae_decode_build(Net *net, const VaeConfig *config, const NetWeights *weights, NetVal *z);
/* ids i32 (N,1,77,1) -> states. `skip` 0: final layer norm of the last layer (SD1, SD2); 1: output of the
 * last layer but one without norm (SDXL). pooled (may be NULL) with `eos` i32 (N,1,1,1): projection of the
 * final-normed EOS row. */
NetVal *text_build(Net *net, const TextConfig *config, const NetWeights *weights, NetVal *ids, NetVal *eos,
                   guint skip, NetVal **pooled);

/* -- adapters ------------------------------------------------------------------------ */

typedef struct {
    char *path; /* "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q" */
    gint64 in, out, kh, kw;
    gboolean conv; /* stored as a convolution */
} ModelModule;

/* Every module of the U-Net that can be adapted, in order of the forward pass. Returns new, elements
 * ModelModule *. */
GPtrArray *model_modules(const UnetConfig *config);
/* Adapters, allocated and zero, for `targets`: "attention", "linear" (every matrix of the transformers),
 * "all" (linear and what resnets and samplers have), ends of paths ("attn2.to_k"), or globs over whole paths;
 * '!' in front excludes, and the last word that fits a module decides. Error if a word matches nothing (with
 * the nearest name) or a rank is above min(in, out) of a module. */
NetAdapters *lora_new(const Model *model, char **targets, gint64 rank, double alpha, NetType compute,
                      GError **error);
typedef enum { LORA_KAIMING, LORA_GAUSSIAN, LORA_SCALED } LoraInit;
/* Masters: A by `init`, keyed by (seed, module name), B zero. net_adapters_refresh() is the caller's. */
void lora_init(NetAdapters *adapters, LoraInit init, guint64 seed);
typedef enum { LORA_KOHYA, LORA_DIFFUSERS } LoraFormat;
/* Writes the adapters; `metadata` (may be NULL) is added to what the format needs. */
gboolean lora_save(const NetAdapters *adapters, const Model *model, const char *path, LoraFormat format,
                   NetType type, GHashTable *metadata, SafeStats *stats, GError **error);
/* Reads a LoRA of either format into the masters of adapters of the same modules and ranks; where the file's
 * scale is another than theirs, B takes the difference. Error with a list of what does not fit, on either
 * side; then nothing has been read. net_adapters_refresh() is the caller's. */
gboolean lora_load(NetAdapters *adapters, const Model *model, const char *path, GError **error);

/* -- schedule (spec/sd.md 5) ----------------------------------------------------------- */

/* Cumulative products of the scaled_linear schedule, f32 arithmetic as diffusers. */
void schedule_alpha_bar(double beta_start, double beta_end, double out[1000]);
void schedule_zero_terminal(double alpha_bar[1000]);
double schedule_snr(const double alpha_bar[1000], gint t);
/* min(snr, gamma) / snr, or / (snr + 1) for v. gamma <= 0 gives 1. */
double schedule_min_snr(const double alpha_bar[1000], gint t, double gamma, gboolean v);

G_END_DECLS
#endif
