/* AutoencoderKL (spec/sd.md 3): pictures to moments of latents and back.
 *
 * Differences to the U-Net that are easy to miss: every group norm has eps 1e-6, downsampling pads right
 * and bottom only, and the attention has one head as wide as the level. */
#include "core/model/model.h"
#include "core/model/scope.h"

static const float VAE_EPS = 1e-6f;

static NetVal *resnet(const VaeConfig *c, Scope s, NetVal *x)
{
    NetVal *y = scope_group_norm(s, "norm1", x, NULL, c->groups, VAE_EPS, TRUE);
    y = scope_conv(s, "conv1", y, SCOPE_CONV3);
    y = scope_group_norm(s, "norm2", y, NULL, c->groups, VAE_EPS, TRUE);
    y = scope_conv(s, "conv2", y, SCOPE_CONV3);
    if (net_dim(x, 3) != net_dim(y, 3))
        x = scope_linear(s, "conv_shortcut", x, SCOPE_BIAS);
    return scope_name(s, net_add(s.net, x, y));
}

static NetVal *attention(const VaeConfig *c, Scope s, NetVal *x)
{
    static const char *const qkv[] = {"to_q", "to_k", "to_v", NULL};
    NetVal *y = scope_group_norm(s, "group_norm", x, NULL, c->groups, VAE_EPS, FALSE), *v[3];
    scope_linears(s, qkv, y, SCOPE_BIAS, v);
    y = net_attention(s.net, v[0], v[1], v[2], 1, FALSE);
    return net_add(s.net, x, scope_linear(s, "to_out.0", y, SCOPE_BIAS));
}

static NetVal *mid_block(const VaeConfig *c, Scope s, NetVal *h)
{
    h = resnet(c, scope_in(s, "resnets.0"), h);
    h = attention(c, scope_in(s, "attentions.0"), h);
    return scope_name(s, resnet(c, scope_in(s, "resnets.1"), h));
}

NetVal *vae_encode_build(Net *net, const VaeConfig *c, const NetWeights *weights, NetVal *image)
{
    Scope root = scope_root(net, weights), s = scope_in(root, "encoder");
    NetVal *h = scope_conv(s, "conv_in", scope_compute(net, image), SCOPE_CONV3);
    for (guint i = 0; i < c->levels; i++) {
        Scope block = scope_in(s, "down_blocks.%u", i);
        for (gint64 j = 0; j < c->layers; j++)
            h = resnet(c, scope_in(block, "resnets.%d", (int)j), h);
        if (i + 1 < c->levels)
            h = scope_conv(block, "downsamplers.0.conv", h, (NetConv){2, 0, 0, 1, 1});
        scope_name(block, h);
    }
    h = mid_block(c, scope_in(s, "mid_block"), h);
    h = scope_group_norm(s, "conv_norm_out", h, NULL, c->groups, VAE_EPS, TRUE);
    h = scope_conv(s, "conv_out", h, SCOPE_CONV3);
    return net_name(scope_linear(root, "quant_conv", h, SCOPE_BIAS), "moments");
}

NetVal *vae_decode_build(Net *net, const VaeConfig *c, const NetWeights *weights, NetVal *z)
{
    Scope root = scope_root(net, weights), s = scope_in(root, "decoder");
    NetVal *h = scope_linear(root, "post_quant_conv", scope_compute(net, z), SCOPE_BIAS);
    h = mid_block(c, scope_in(s, "mid_block"), scope_conv(s, "conv_in", h, SCOPE_CONV3));
    for (guint i = 0; i < c->levels; i++) {
        Scope block = scope_in(s, "up_blocks.%u", i);
        for (gint64 j = 0; j <= c->layers; j++)
            h = resnet(c, scope_in(block, "resnets.%d", (int)j), h);
        if (i + 1 < c->levels)
            h = scope_conv(block, "upsamplers.0.conv", net_upsample(net, h), SCOPE_CONV3);
        scope_name(block, h);
    }
    h = scope_group_norm(s, "conv_norm_out", h, NULL, c->groups, VAE_EPS, TRUE);
    return net_name(scope_conv(s, "conv_out", h, SCOPE_CONV3), "decoded");
}
