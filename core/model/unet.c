/* UNet2DConditionModel of Stable Diffusion 1.x, 2.x and XL: one function, driven by the configuration.
 *
 * The order of operations, the place of every norm and its epsilon follow spec/sd.md 1. Skip connections
 * are never concatenated: norm1 and the shortcut of an up resnet read their two sources side by side.
 * Images and token matrices are the same memory here (channels last), so a 1x1 projection stored as a
 * convolution and one stored as a linear are the same call. */
#include "core/model/model.h"
#include "core/model/scope.h"

enum { MOST_SKIPS = 64 };
static const float LAYER_NORM_EPS = 1e-5f;
static const float TRANSFORMER_EPS = 1e-6f; /* of its group norm; the resnets have the model's (1e-5) */

typedef struct {
    Net *net;
    const UnetConfig *config;
    NetVal *emb; /* silu of the time embedding, once for all resnets */
    NetVal *context;
    NetVal *skip[MOST_SKIPS];
    guint skips;
} Unet;

/* h and skip (may be NULL) are the two halves of the input's channels. */
static NetVal *resnet(Unet *u, Scope s, NetVal *h, NetVal *skip)
{
    const UnetConfig *c = u->config;
    NetVal *y = scope_group_norm(s, "norm1", h, skip, c->groups, c->eps, TRUE);
    y = scope_conv(s, "conv1", y, SCOPE_CONV3);
    y = net_add_channel(u->net, y, scope_linear(s, "time_emb_proj", u->emb, SCOPE_BIAS));
    y = scope_group_norm(s, "norm2", y, NULL, c->groups, c->eps, TRUE);
    y = scope_conv(s, "conv2", y, SCOPE_CONV3);
    NetVal *shortcut = h;
    if (skip || net_dim(h, 3) != net_dim(y, 3))
        shortcut = scope_linear_cat(s, "conv_shortcut", h, skip, SCOPE_BIAS);
    return scope_name(s, net_add(u->net, shortcut, y));
}

static NetVal *self_attention(Unet *u, Scope s, NetVal *x, gint64 heads)
{
    static const char *const qkv[] = {"to_q", "to_k", "to_v", NULL};
    NetVal *v[3];
    scope_linears(s, qkv, x, 0, v);
    return scope_linear(s, "to_out.0", net_attention(u->net, v[0], v[1], v[2], heads, FALSE), SCOPE_BIAS);
}

static NetVal *cross_attention(Unet *u, Scope s, NetVal *x, gint64 heads)
{
    static const char *const kv[] = {"to_k", "to_v", NULL};
    NetVal *q = scope_linear(s, "to_q", x, 0), *v[2];
    scope_linears(s, kv, u->context, 0, v);
    return scope_linear(s, "to_out.0", net_attention(u->net, q, v[0], v[1], heads, FALSE), SCOPE_BIAS);
}

static NetVal *feed_forward(Unet *u, Scope s, NetVal *x)
{
    NetVal *y = net_geglu(u->net, scope_linear(s, "net.0.proj", x, SCOPE_BIAS));
    return scope_linear(s, "net.2", y, SCOPE_BIAS);
}

static NetVal *transformer_block(Unet *u, Scope s, NetVal *x, gint64 heads)
{
    NetVal *y = scope_layer_norm(s, "norm1", x, LAYER_NORM_EPS);
    x = net_add(u->net, x, self_attention(u, scope_in(s, "attn1"), y, heads));
    y = scope_layer_norm(s, "norm2", x, LAYER_NORM_EPS);
    x = net_add(u->net, x, cross_attention(u, scope_in(s, "attn2"), y, heads));
    y = scope_layer_norm(s, "norm3", x, LAYER_NORM_EPS);
    return net_add(u->net, x, feed_forward(u, scope_in(s, "ff"), y));
}

static NetVal *transformer(Unet *u, Scope s, NetVal *x, guint level)
{
    const UnetConfig *c = u->config;
    NetVal *y = scope_group_norm(s, "norm", x, NULL, c->groups, TRANSFORMER_EPS, FALSE);
    y = scope_linear(s, "proj_in", y, SCOPE_BIAS);
    for (gint64 i = 0; i < c->depth[level]; i++)
        y = transformer_block(u, scope_in(s, "transformer_blocks.%d", (int)i), y, c->heads[level]);
    y = scope_linear(s, "proj_out", y, SCOPE_BIAS);
    return scope_name(s, net_add(u->net, y, x));
}

static void push(Unet *u, NetVal *v)
{
    g_assert(u->skips < MOST_SKIPS); /* model_open limits levels and layers */
    u->skip[u->skips++] = v;
}

static NetVal *down_block(Unet *u, Scope s, NetVal *h, guint level)
{
    const UnetConfig *c = u->config;
    for (gint64 j = 0; j < c->layers; j++) {
        h = resnet(u, scope_in(s, "resnets.%d", (int)j), h, NULL);
        if (c->down_attention[level])
            h = transformer(u, scope_in(s, "attentions.%d", (int)j), h, level);
        push(u, h);
    }
    if (level + 1 < c->levels) {
        h = scope_conv(s, "downsamplers.0.conv", h, (NetConv){2, 1, 1, 1, 1});
        push(u, h);
    }
    return scope_name(s, h);
}

static NetVal *mid_block(Unet *u, Scope s, NetVal *h)
{
    h = resnet(u, scope_in(s, "resnets.0"), h, NULL);
    h = transformer(u, scope_in(s, "attentions.0"), h, u->config->levels - 1);
    return scope_name(s, resnet(u, scope_in(s, "resnets.1"), h, NULL));
}

/* `block` counts from the bottom up, `level` is the level of the way down that it mirrors. */
static NetVal *up_block(Unet *u, Scope s, NetVal *h, guint block)
{
    const UnetConfig *c = u->config;
    guint level = c->levels - 1 - block;
    for (gint64 j = 0; j <= c->layers; j++) {
        h = resnet(u, scope_in(s, "resnets.%d", (int)j), h, u->skip[--u->skips]);
        if (c->up_attention[block])
            h = transformer(u, scope_in(s, "attentions.%d", (int)j), h, level);
    }
    if (block + 1 < c->levels)
        h = scope_conv(s, "upsamplers.0.conv", net_upsample(u->net, h), SCOPE_CONV3);
    return scope_name(s, h);
}

static NetVal *embedding(Scope s, NetVal *x)
{
    NetVal *y = net_silu(s.net, scope_linear(s, "linear_1", x, SCOPE_BIAS));
    return scope_name(s, scope_linear(s, "linear_2", y, SCOPE_BIAS));
}

static NetVal *time_embedding(Scope s, const UnetConfig *c, NetVal *t, NetVal *pooled, NetVal *time_ids)
{
    NetVal *emb = embedding(scope_in(s, "time_embedding"), net_sinusoid(s.net, t, c->width[0]));
    if (!c->text_time)
        return emb;
    if (!pooled || !time_ids) {
        net_fail(s.net, "this U-Net needs the pooled text vector and the time ids");
        return emb;
    }
    NetVal *sizes = net_sinusoid(s.net, time_ids, c->time_dim);
    NetVal *added = embedding(scope_in(s, "add_embedding"), net_concat(s.net, pooled, sizes));
    return net_add(s.net, emb, added);
}

NetVal *unet_build(Net *net, const UnetConfig *config, const NetWeights *weights, NetVal *x, NetVal *t,
                   NetVal *context, NetVal *pooled, NetVal *time_ids)
{
    Scope s = scope_root(net, weights);
    Unet u = {.net = net, .config = config, .context = scope_compute(net, context)};
    u.emb = net_silu(net, time_embedding(s, config, t, scope_compute(net, pooled), time_ids));

    NetVal *h = net_name(scope_conv(s, "conv_in", scope_compute(net, x), SCOPE_CONV3), "conv_in");
    push(&u, h);
    for (guint i = 0; i < config->levels; i++)
        h = down_block(&u, scope_in(s, "down_blocks.%u", i), h, i);
    h = mid_block(&u, scope_in(s, "mid_block"), h);
    for (guint i = 0; i < config->levels; i++)
        h = up_block(&u, scope_in(s, "up_blocks.%u", i), h, i);
    h = scope_group_norm(s, "conv_norm_out", h, NULL, config->groups, config->eps, TRUE);
    net_name(h, "conv_norm_out");
    return net_name(scope_conv(s, "conv_out", h, SCOPE_CONV3), "out");
}
