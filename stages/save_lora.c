/* Writes the adapters as a LoRA file: at the end, and every N updates under a name with the step.
 *
 *   path = out/style.safetensors   ->   out/style.safetensors at the end
 *                                       out/style-step00000250.safetensors on the way
 *
 * A file is complete or absent (temporary name, rename), and parameters that are not finite are never
 * written over a good one. */
#include "core/flow/graph.h"
#include "core/flow/param.h"
#include "core/flow/stage.h"
#include "core/model/trainer.h"
#include "kernels/optimizer.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *path;
    gint64 every;
    int format, dtype;
} SaveLora;

static const FlowParam params[] = {
    FLOW_PATH(SaveLora, path, NULL, "File to write, usually NAME.safetensors.", | FLOW_P_NORESULT),
    FLOW_INT(SaveLora, every, "0", 0, 1e9, "updates",
             "Also writes NAME-stepNNNNNNNN.safetensors after every so many updates; 0 = at the end only.",
             | FLOW_P_NORESULT),
    FLOW_ENUM(SaveLora, format, "kohya", "kohya|diffusers", "Naming of the tensors.", | FLOW_P_NORESULT),
    FLOW_ENUM(SaveLora, dtype, "f16", "f32|f16|bf16", "Precision of the file.", | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_STEP,
     .doc = "Items with settled parameters.",
     .needs = "step flags model lr? loss?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_STEP, .doc = "The same items.", .flags = FLOW_PORT_OPTIONAL},
    FLOW_END,
};

static gboolean save_lora_open(FlowNode *node, GError **error)
{
    SaveLora *s = flow_node_state(node);
    if (!g_file_test(s->path, G_FILE_TEST_IS_DIR))
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "path = %s is a folder, not a file",
                s->path);
    return FALSE;
}

/* -- metadata ------------------------------------------------------------------------- */

/* Which parameter of which stage other programs look for under which key. */
static const struct {
    const char *key, *stage, *param;
} known[] = {
    {"ss_learning_rate", "adamw", "lr"},
    {"ss_unet_lr", "adamw", "lr"},
    {"ss_lr_scheduler", "adamw", "schedule"},
    {"ss_lr_warmup_steps", "adamw", "warmup"},
    {"ss_batch_size_per_device", "collate", "batch"},
    {"ss_gradient_accumulation_steps", "collate", "accumulate"},
    {"ss_max_grad_norm", "scaler", "clip"},
    {"ss_min_snr_gamma", "diffuse", "min_snr_gamma"},
    {"ss_noise_offset", "diffuse", "noise_offset"},
    {"ss_zero_terminal_snr", "diffuse", "zero_terminal_snr"},
    {"ss_resolution", "bucket", "resolution"},
};

static char *param_text(FlowNode *node, const char *stage, const char *name)
{
    FlowNode *other = flow_node_find(node, stage);
    const FlowParam *param = other ? flow_node_stage(other)->params : NULL;
    for (; param && param->name; param++)
        if (strcmp(param->name, name) == 0)
            return flow_param_text(param, flow_node_state(other));
    return NULL;
}

static void put(GHashTable *table, const char *key, char *value)
{
    if (value)
        g_hash_table_insert(table, g_strdup(key), value);
}

static GHashTable *metadata(FlowNode *node, const SaveLora *s, const FlowItem *item)
{
    const gint64 *at = flow_item_i64(item, FLOW_F_STEP);
    GHashTable *table = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    g_autofree char *name = g_path_get_basename(s->path);
    if (g_str_has_suffix(name, ".safetensors"))
        name[strlen(name) - strlen(".safetensors")] = 0;
    put(table, "ss_output_name", g_strdup(name));
    put(table, "ss_steps", g_strdup_printf("%" G_GINT64_FORMAT, at[0]));
    put(table, "ss_max_train_steps", g_strdup_printf("%" G_GINT64_FORMAT, at[1] ? at[1] : at[0]));
    put(table, "ss_epoch", g_strdup_printf("%" G_GINT64_FORMAT, at[3] + 1));
    put(table, "ss_seed", g_strdup_printf("%" G_GUINT64_FORMAT, flow_node_seed(node)));
    put(table, "ss_optimizer", g_strdup("adamw"));
    for (gsize i = 0; i < G_N_ELEMENTS(known); i++)
        put(table, known[i].key, param_text(node, known[i].stage, known[i].param));
    return table;
}

/* -- writing --------------------------------------------------------------------------- */

static char *step_path(const char *path, gint64 step)
{
    gsize stem = strlen(path) - (g_str_has_suffix(path, ".safetensors") ? strlen(".safetensors") : 0);
    return g_strdup_printf("%.*s-step%08" G_GINT64_FORMAT ".safetensors", (int)stem, path, step);
}

static gboolean make_folder(const char *path, GError **error)
{
    g_autofree char *folder = g_path_get_dirname(path);
    if (g_mkdir_with_parents(folder, 0777) == 0)
        return TRUE;
    int code = errno;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot make the folder %s: %s", folder,
                g_strerror(code));
    return FALSE;
}

static gboolean write_file(FlowNode *node, const SaveLora *s, const Trainer *t, const FlowItem *item,
                           const char *path, GError **error)
{
    static const NetType types[] = {NET_F32, NET_F16, NET_BF16};
    gsize first, bad = kernel_count_nonfinite(NET_F32, t->adapters->master, t->adapters->n, &first);
    if (bad) {
        g_autofree char *where = trainer_element(t, first);
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "%zu parameters are not finite (first in %s): %s is not written", bad, where, path);
        return FALSE;
    }
    g_autoptr(GHashTable) table = metadata(node, s, item);
    SafeStats stats = {0};
    if (!make_folder(path, error) ||
        !lora_save(t->adapters, t->model, path, (LoraFormat)s->format, types[s->dtype], table, &stats, error))
        return FALSE;
    if (stats.overflowed)
        flow_node_warn(node, "%" G_GUINT64_FORMAT " values are too large for %s and became infinite in %s",
                       stats.overflowed, net_type_name(types[s->dtype]), path);
    if (stats.flushed)
        flow_node_info(node,
                       "%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                       " values (%.2g %%) are too small for %s and "
                       "became zero in %s",
                       stats.flushed, stats.nonzero, 100.0 * (double)stats.flushed / (double)stats.nonzero,
                       net_type_name(types[s->dtype]), path);
    flow_node_gauge(node, "flushed", (double)stats.flushed);
    flow_node_count(node, "files", 1);
    return TRUE;
}

static FlowStatus save_lora_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const SaveLora *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    Trainer *t = trainer_of(in[0], error);
    if (!t)
        return FLOW_ERROR;
    gint32 flags = flow_item_i32(in[0], FLOW_F_FLAGS)[0];
    g_autofree char *on_the_way = NULL;
    if ((flags & FLOW_STEP_UPDATED) && s->every && t->updates % s->every == 0)
        on_the_way = step_path(s->path, t->updates);
    gboolean end = (flags & (FLOW_STEP_LAST | FLOW_STEP_FAILED)) && t->updates > 0;
    if (on_the_way && !write_file(node, s, t, in[0], on_the_way, error))
        return FLOW_ERROR;
    if (end && !write_file(node, s, t, in[0], s->path, error))
        return FLOW_ERROR;
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

/* A folder that cannot be written is found before the first step, not after the last. */
static gboolean save_lora_start(FlowCtx *ctx, GError **error)
{
    const SaveLora *s = flow_ctx_state(ctx);
    g_autofree char *folder = g_path_get_dirname(s->path);
    if (!make_folder(s->path, error))
        return FALSE;
    if (g_access(folder, W_OK | X_OK) == 0)
        return TRUE;
    int code = errno;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "the folder %s cannot be written to: %s",
                folder, g_strerror(code));
    return FALSE;
}

FLOW_STAGE(.name = "save_lora", .summary = "Writes the adapters as a LoRA file (kohya or diffusers naming).",
           .flags = FLOW_STATEFUL, .version = 1, .state_size = sizeof(SaveLora), .params = params,
           .inputs = inputs, .outputs = outputs, .open = save_lora_open, .worker_start = save_lora_start,
           .process = save_lora_process);
