/* Names of U-Net modules in the original layout (spec/sd.md 2.3).
 *
 * There all blocks of one side are numbered through: a level takes layers + 1 places, one a resnet and one
 * for the sampler at its end; what is in a place is numbered again, resnet 0, transformer 1. */
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

char *names_kohya(const char *path)
{
    char *name = g_strconcat("lora_unet_", path, NULL);
    return g_strdelimit(name, ".", '_');
}
