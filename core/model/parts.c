/* Which tensors a part of a model consists of (spec/sd.md 2.2, 2.4, 2.5).
 *
 * The lists are what files are checked against, what memory is planned from and where adapters may sit, so
 * names and shapes are written down once. They follow the forward pass; the network builders in unet.c, vae.c
 * and text.c look the same tensors up by name. */
#include "core/model/parts.h"

static void tensor_free(gpointer data)
{
    ModelTensor *tensor = data;
    g_free(tensor->name);
    g_free(tensor);
}

static GPtrArray *list_new(void)
{
    return g_ptr_array_new_with_free_func(tensor_free);
}

static void add(GPtrArray *list, const char *path, const char *name, guint ndim, gint64 a, gint64 b, gint64 k)
{
    ModelTensor *tensor = g_new(ModelTensor, 1);
    *tensor = (ModelTensor){g_strdup_printf("%s%s", path, name), ndim, {a, b, k, k}};
    g_ptr_array_add(list, tensor);
}

/* One module: its weight and, where it has one, its bias. */
static void linear(GPtrArray *list, const char *path, const char *name, gint64 in, gint64 out, gboolean bias)
{
    g_autofree char *module = g_strconcat(path, name, NULL);
    add(list, module, ".weight", 2, out, in, 1);
    if (bias)
        add(list, module, ".bias", 1, out, 1, 1);
}

static void conv(GPtrArray *list, const char *path, const char *name, gint64 in, gint64 out, gint64 k)
{
    g_autofree char *module = g_strconcat(path, name, NULL);
    add(list, module, ".weight", 4, out, in, k);
    add(list, module, ".bias", 1, out, 1, 1);
}

static void norm(GPtrArray *list, const char *path, const char *name, gint64 n)
{
    g_autofree char *module = g_strconcat(path, name, NULL);
    add(list, module, ".weight", 1, n, 1, 1);
    add(list, module, ".bias", 1, n, 1, 1);
}

/* -- U-Net ------------------------------------------------------------------------------------- */

/* time 0: a resnet of the VAE, without a time embedding. */
static void resnet(GPtrArray *list, const char *path, gint64 in, gint64 out, gint64 time)
{
    norm(list, path, "norm1", in);
    conv(list, path, "conv1", in, out, 3);
    if (time)
        linear(list, path, "time_emb_proj", time, out, TRUE);
    norm(list, path, "norm2", out);
    conv(list, path, "conv2", out, out, 3);
    if (in != out)
        conv(list, path, "conv_shortcut", in, out, 1);
}

static void attention(GPtrArray *list, const char *path, const char *name, gint64 width, gint64 context)
{
    g_autofree char *module = g_strconcat(path, name, ".", NULL);
    linear(list, module, "to_q", width, width, FALSE);
    linear(list, module, "to_k", context, width, FALSE);
    linear(list, module, "to_v", context, width, FALSE);
    linear(list, module, "to_out.0", width, width, TRUE);
}

/* In and out of a transformer: a 1x1 convolution in SD1.x, a linear later. */
static void project(GPtrArray *list, const UnetConfig *c, const char *path, const char *name, gint64 width)
{
    if (c->linear_projection)
        linear(list, path, name, width, width, TRUE);
    else
        conv(list, path, name, width, width, 1);
}

static void transformer(GPtrArray *list, const UnetConfig *c, const char *path, guint level)
{
    const gint64 width = c->width[level];
    norm(list, path, "norm", width);
    project(list, c, path, "proj_in", width);
    for (gint64 i = 0; i < c->depth[level]; i++) {
        g_autofree char *block = g_strdup_printf("%stransformer_blocks.%d.", path, (int)i);
        norm(list, block, "norm1", width);
        attention(list, block, "attn1", width, width);
        norm(list, block, "norm2", width);
        attention(list, block, "attn2", width, c->context);
        norm(list, block, "norm3", width);
        linear(list, block, "ff.net.0.proj", width, 8 * width, TRUE);
        linear(list, block, "ff.net.2", 4 * width, width, TRUE);
    }
    project(list, c, path, "proj_out", width);
}

/* A resnet, and its transformer where the block has attention. */
static void layer(GPtrArray *list, const UnetConfig *c, const char *block, gint64 j, gint64 in, guint level,
                  gboolean attends)
{
    g_autofree char *r = g_strdup_printf("%s.resnets.%d.", block, (int)j);
    g_autofree char *a = g_strdup_printf("%s.attentions.%d.", block, (int)j);
    resnet(list, r, in, c->width[level], 4 * c->width[0]);
    if (attends)
        transformer(list, c, a, level);
}

static void down(GPtrArray *list, const UnetConfig *c, GArray *skips)
{
    gint64 h = c->width[0];
    for (guint i = 0; i < c->levels; i++) {
        g_autofree char *block = g_strdup_printf("down_blocks.%u", i);
        for (gint64 j = 0; j < c->layers; j++) {
            layer(list, c, block, j, h, i, c->down_attention[i]);
            h = c->width[i];
            g_array_append_val(skips, h);
        }
        if (i + 1 < c->levels) {
            conv(list, block, ".downsamplers.0.conv", h, h, 3);
            g_array_append_val(skips, h);
        }
    }
}

static void up(GPtrArray *list, const UnetConfig *c, GArray *skips)
{
    gint64 h = c->width[c->levels - 1];
    for (guint i = 0; i < c->levels; i++) {
        guint level = c->levels - 1 - i;
        g_autofree char *block = g_strdup_printf("up_blocks.%u", i);
        for (gint64 j = 0; j <= c->layers; j++) {
            gint64 skip = g_array_index(skips, gint64, skips->len - 1);
            g_array_set_size(skips, skips->len - 1);
            layer(list, c, block, j, h + skip, level, c->up_attention[i]);
            h = c->width[level];
        }
        if (i + 1 < c->levels)
            conv(list, block, ".upsamplers.0.conv", h, h, 3);
    }
}

GPtrArray *parts_unet(const UnetConfig *c)
{
    GPtrArray *list = list_new();
    g_autoptr(GArray) skips = g_array_new(FALSE, FALSE, sizeof(gint64)); /* channels */
    const gint64 first = c->width[0], last = c->width[c->levels - 1], time = 4 * first;
    linear(list, "time_embedding.", "linear_1", first, time, TRUE);
    linear(list, "time_embedding.", "linear_2", time, time, TRUE);
    if (c->text_time) {
        linear(list, "add_embedding.", "linear_1", c->class_dim, time, TRUE);
        linear(list, "add_embedding.", "linear_2", time, time, TRUE);
    }
    conv(list, "", "conv_in", c->in_channels, first, 3);
    g_array_append_val(skips, first);
    down(list, c, skips);
    resnet(list, "mid_block.resnets.0.", last, last, time);
    transformer(list, c, "mid_block.attentions.0.", c->levels - 1);
    resnet(list, "mid_block.resnets.1.", last, last, time);
    up(list, c, skips);
    norm(list, "", "conv_norm_out", first);
    conv(list, "", "conv_out", first, c->out_channels, 3);
    return list;
}

/* -- VAE ------------------------------------------------------------------------------------------ */

static void vae_mid(GPtrArray *list, const char *side, gint64 width)
{
    g_autofree char *first = g_strconcat(side, "mid_block.resnets.0.", NULL);
    g_autofree char *attend = g_strconcat(side, "mid_block.attentions.0.", NULL);
    g_autofree char *second = g_strconcat(side, "mid_block.resnets.1.", NULL);
    resnet(list, first, width, width, 0);
    norm(list, attend, "group_norm", width);
    linear(list, attend, "to_q", width, width, TRUE);
    linear(list, attend, "to_k", width, width, TRUE);
    linear(list, attend, "to_v", width, width, TRUE);
    linear(list, attend, "to_out.0", width, width, TRUE);
    resnet(list, second, width, width, 0);
}

/* `n` resnets of a level; returns the channels after them. */
static gint64 vae_block(GPtrArray *list, const char *block, gint64 n, gint64 in, gint64 out)
{
    for (gint64 j = 0; j < n; j++) {
        g_autofree char *path = g_strdup_printf("%s.resnets.%d.", block, (int)j);
        resnet(list, path, in, out, 0);
        in = out;
    }
    return in;
}

static void vae_encoder(GPtrArray *list, const VaeConfig *c)
{
    gint64 h = c->width[0];
    conv(list, "encoder.", "conv_in", c->in_channels, h, 3);
    for (guint i = 0; i < c->levels; i++) {
        g_autofree char *block = g_strdup_printf("encoder.down_blocks.%u", i);
        h = vae_block(list, block, c->layers, h, c->width[i]);
        if (i + 1 < c->levels)
            conv(list, block, ".downsamplers.0.conv", h, h, 3);
    }
    vae_mid(list, "encoder.", h);
    norm(list, "encoder.", "conv_norm_out", h);
    conv(list, "encoder.", "conv_out", h, 2 * c->latent, 3);
    conv(list, "", "quant_conv", 2 * c->latent, 2 * c->latent, 1);
}

static void vae_decoder(GPtrArray *list, const VaeConfig *c)
{
    gint64 h = c->width[c->levels - 1];
    conv(list, "", "post_quant_conv", c->latent, c->latent, 1);
    conv(list, "decoder.", "conv_in", c->latent, h, 3);
    vae_mid(list, "decoder.", h);
    for (guint i = 0; i < c->levels; i++) {
        g_autofree char *block = g_strdup_printf("decoder.up_blocks.%u", i);
        h = vae_block(list, block, c->layers + 1, h, c->width[c->levels - 1 - i]);
        if (i + 1 < c->levels)
            conv(list, block, ".upsamplers.0.conv", h, h, 3);
    }
    norm(list, "decoder.", "conv_norm_out", h);
    conv(list, "decoder.", "conv_out", h, c->in_channels, 3);
}

GPtrArray *parts_vae(const VaeConfig *config, gboolean encoder, gboolean decoder)
{
    GPtrArray *list = list_new();
    if (encoder)
        vae_encoder(list, config);
    if (decoder)
        vae_decoder(list, config);
    return list;
}

/* -- text encoder ----------------------------------------------------------------------------------- */

GPtrArray *parts_text(const TextConfig *c)
{
    GPtrArray *list = list_new();
    add(list, "text_model.embeddings.", "token_embedding.weight", 2, c->vocabulary, c->width, 1);
    add(list, "text_model.embeddings.", "position_embedding.weight", 2, c->positions, c->width, 1);
    for (gint64 i = 0; i < c->layers; i++) {
        g_autofree char *path = g_strdup_printf("text_model.encoder.layers.%d.", (int)i);
        norm(list, path, "layer_norm1", c->width);
        linear(list, path, "self_attn.q_proj", c->width, c->width, TRUE);
        linear(list, path, "self_attn.k_proj", c->width, c->width, TRUE);
        linear(list, path, "self_attn.v_proj", c->width, c->width, TRUE);
        linear(list, path, "self_attn.out_proj", c->width, c->width, TRUE);
        norm(list, path, "layer_norm2", c->width);
        linear(list, path, "mlp.fc1", c->width, c->mlp, TRUE);
        linear(list, path, "mlp.fc2", c->mlp, c->width, TRUE);
    }
    norm(list, "text_model.", "final_layer_norm", c->width);
    if (c->projection)
        linear(list, "", "text_projection", c->width, c->projection, FALSE);
    return list;
}
