/* Names in the original layout (spec/sd.md 2.3, 2.4, 2.6).
 *
 * In its U-Net all blocks of one side are numbered through: a level takes layers + 1 places, one a resnet and
 * one for the sampler at its end; what is in a place is numbered again, resnet 0, transformer 1. */
#include "core/model/names.h"
#include <stdio.h>
#include <string.h>

static const char *const resnet_parts[][2] = {
    {"norm1", "in_layers.0"},  {"conv1", "in_layers.2"},  {"time_emb_proj", "emb_layers.1"},
    {"norm2", "out_layers.0"}, {"conv2", "out_layers.3"}, {"conv_shortcut", "skip_connection"},
};

static const char *const others[][2] = {
    {"conv_in", "input_blocks.0.0"},
    {"time_embedding.linear_1", "time_embed.0"},
    {"time_embedding.linear_2", "time_embed.2"},
    {"add_embedding.linear_1", "label_emb.0.0"},
    {"add_embedding.linear_2", "label_emb.0.2"},
    {"conv_norm_out", "out.0"},
    {"conv_out", "out.2"},
    {"mid_block.attentions.0", "middle_block.1"},
};

/* What follows `name` in path, which is "" or begins with a dot; NULL if path is another name. */
static const char *after(const char *path, const char *name)
{
    gsize n = strlen(name);
    return !strncmp(path, name, n) && (!path[n] || path[n] == '.') ? path + n : NULL;
}

/* `rest`, ".conv1.weight", behind a block's name. */
static char *resnet(const char *block, const char *rest)
{
    for (guint i = 0; i < G_N_ELEMENTS(resnet_parts); i++) {
        const char *tail = *rest == '.' ? after(rest + 1, resnet_parts[i][0]) : NULL;
        if (tail)
            return g_strdup_printf("%s.%s%s", block, resnet_parts[i][1], tail);
    }
    return g_strconcat(block, rest, NULL);
}

static char *side(const UnetConfig *c, const char *path, gboolean up, int level, const char *kind, int j,
                  const char *rest)
{
    const int places = (int)c->layers + 1;
    g_autofree char *block =
        g_strdup_printf("%s_blocks.%d", up ? "output" : "input", places * level + j + !up);
    g_autofree char *first = g_strconcat(block, ".0", NULL);
    if (!strcmp(kind, "resnets"))
        return resnet(first, rest);
    if (!strcmp(kind, "attentions"))
        return g_strconcat(block, ".1", rest, NULL);
    const char *tail = *rest == '.' ? after(rest + 1, "conv") : NULL;
    if (tail && !strcmp(kind, "downsamplers"))
        return g_strdup_printf("input_blocks.%d.0.op%s", places * (level + 1), tail);
    if (tail && !strcmp(kind, "upsamplers"))
        return g_strdup_printf("output_blocks.%d.%d.conv%s", places * (level + 1) - 1,
                               c->up_attention[level] ? 2 : 1, tail);
    return g_strdup(path);
}

char *names_original_unet(const UnetConfig *config, const char *path)
{
    const char *tail;
    char way[8], kind[16];
    int level, j, n = 0;
    if (sscanf(path, "%7[a-z]_blocks.%d.%15[a-z].%d%n", way, &level, kind, &j, &n) == 4 && level >= 0 &&
        level < (int)config->levels && (!strcmp(way, "up") || !strcmp(way, "down")))
        return side(config, path, *way == 'u', level, kind, j, path + n);
    for (guint i = 0; i < G_N_ELEMENTS(others); i++)
        if ((tail = after(path, others[i][0])))
            return g_strconcat(others[i][1], tail, NULL);
    if ((tail = after(path, "mid_block.resnets.0")))
        return resnet("middle_block.0", tail);
    if ((tail = after(path, "mid_block.resnets.1")))
        return resnet("middle_block.2", tail);
    return g_strdup(path);
}

/* -- VAE ------------------------------------------------------------------------------------------ */

static const char *const vae_parts[][2] = {
    {"conv_norm_out", "norm_out"},
    {"mid_block.resnets.0", "mid.block_1"},
    {"mid_block.resnets.1", "mid.block_2"},
    {"mid_block.attentions.0.group_norm", "mid.attn_1.norm"},
    {"mid_block.attentions.0.to_q", "mid.attn_1.q"},
    {"mid_block.attentions.0.to_k", "mid.attn_1.k"},
    {"mid_block.attentions.0.to_v", "mid.attn_1.v"},
    {"mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"},
};

/* The levels of the decoder are numbered from the picture up, here as on the way down. */
static char *vae_level(const VaeConfig *c, const char *side, const char *path)
{
    char way[8], kind[16];
    int level, j, n = 0;
    if (sscanf(path, "%7[a-z]_blocks.%d.%15[a-z].%d%n", way, &level, kind, &j, &n) != 4)
        return g_strconcat(side, path, NULL);
    const gboolean up = *way == 'u';
    const int at = up ? (int)c->levels - 1 - level : level;
    const char *tail = path + n;
    if (strcmp(kind, "resnets")) /* a sampler: "...samplers.0.conv" */
        return g_strdup_printf("%s%s.%d.%ssample%s", side, way, at, way, tail);
    const char *shortcut = after(tail, ".conv_shortcut");
    return g_strdup_printf("%s%s.%d.block.%d%s%s", side, way, at, j, shortcut ? ".nin_shortcut" : "",
                           shortcut ? shortcut : tail);
}

char *names_original_vae(const VaeConfig *config, const char *name)
{
    const char *dot = strchr(name, '.');
    if (!g_str_has_prefix(name, "encoder.") && !g_str_has_prefix(name, "decoder."))
        return g_strdup(name);
    g_autofree char *side = g_strndup(name, (gsize)(dot + 1 - name));
    for (guint i = 0; i < G_N_ELEMENTS(vae_parts); i++) {
        const char *tail = after(dot + 1, vae_parts[i][0]);
        if (tail)
            return g_strconcat(side, vae_parts[i][1], tail, NULL);
    }
    return vae_level(config, side, dot + 1);
}

/* -- OpenCLIP --------------------------------------------------------------------------------------- */

static const char *const openclip_layer[][2] = {
    {"self_attn.out_proj", "attn.out_proj"},
    {"layer_norm1", "ln_1"},
    {"layer_norm2", "ln_2"},
    {"mlp.fc1", "mlp.c_fc"},
    {"mlp.fc2", "mlp.c_proj"},
};

static const char *const openclip_other[][2] = {
    {"text_model.embeddings.token_embedding.weight", "token_embedding.weight"},
    {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
    {"text_model.final_layer_norm.weight", "ln_final.weight"},
    {"text_model.final_layer_norm.bias", "ln_final.bias"},
};

OpenClipName names_openclip(const char *name)
{
    int layer, n = 0;
    char which[2];
    if (!strcmp(name, "text_projection.weight"))
        return (OpenClipName){.name = g_strdup("text_projection"), .transposed = TRUE};
    for (guint i = 0; i < G_N_ELEMENTS(openclip_other); i++)
        if (!strcmp(name, openclip_other[i][0]))
            return (OpenClipName){.name = g_strdup(openclip_other[i][1])};
    if (sscanf(name, "text_model.encoder.layers.%d.%n", &layer, &n) != 1 || !n)
        return (OpenClipName){.name = g_strdup(name)};
    const char *rest = name + n;
    n = 0;
    if (sscanf(rest, "self_attn.%1[qkv]_proj.%n", which, &n) == 1 && n)
        return (OpenClipName){
            .name = g_strdup_printf("transformer.resblocks.%d.attn.in_proj_%s", layer, rest + n),
            .third = *which == 'q'   ? 0
                     : *which == 'k' ? 1
                                     : 2,
            .fused = TRUE,
        };
    for (guint i = 0; i < G_N_ELEMENTS(openclip_layer); i++) {
        const char *tail = after(rest, openclip_layer[i][0]);
        if (tail)
            return (OpenClipName){
                .name = g_strdup_printf("transformer.resblocks.%d.%s%s", layer, openclip_layer[i][1], tail)};
    }
    return (OpenClipName){.name = g_strdup(name)};
}

/* -- kohya -------------------------------------------------------------------------------------------- */

char *names_kohya(const char *path)
{
    char *name = g_strconcat("lora_unet_", path, NULL);
    return g_strdelimit(name, ".", '_');
}
