/* CLIP text encoder (spec/sd.md 4.2): causal pre-norm transformer over 77 tokens.
 *
 * `skip` says which state the U-Net is given: the final-normed last layer (SD1, SD2) or the raw output of
 * the last layer but one (SDXL). The last layer is built only where someone needs it. */
#include "core/model/model.h"
#include "core/model/scope.h"

static NetVal *activation(const TextConfig *c, Net *net, NetVal *x)
{
    return c->quick_gelu ? net_quick_gelu(net, x) : net_gelu(net, x);
}

static NetVal *layer(const TextConfig *c, Scope s, NetVal *x)
{
    static const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL};
    NetVal *v[3], *y = scope_layer_norm(s, "layer_norm1", x, c->eps);
    scope_linears(s, qkv, y, SCOPE_BIAS, v);
    y = net_attention(s.net, v[0], v[1], v[2], c->heads, TRUE);
    x = net_add(s.net, x, scope_linear(s, "self_attn.out_proj", y, SCOPE_BIAS));
    y = scope_layer_norm(s, "layer_norm2", x, c->eps);
    y = activation(c, s.net, scope_linear(s, "mlp.fc1", y, SCOPE_BIAS));
    return scope_name(s, net_add(s.net, x, scope_linear(s, "mlp.fc2", y, SCOPE_BIAS)));
}

NetVal *text_build(Net *net, const TextConfig *c, const NetWeights *weights, NetVal *ids, NetVal *eos,
                   guint skip, NetVal **pooled)
{
    Scope root = scope_root(net, weights), s = scope_in(root, "text_model");
    NetVal *x = net_embed(net, ids, scope_weight(s, "embeddings.token_embedding.weight"),
                          scope_weight(s, "embeddings.position_embedding.weight"));
    NetVal *states = NULL;
    for (gint64 i = 0; i < c->layers; i++) {
        if (i + skip == c->layers)
            states = x;
        if (states && !pooled)
            return states;
        x = layer(c, scope_in(s, "encoder.layers.%d", (int)i), x);
    }
    NetVal *last = scope_layer_norm(s, "final_layer_norm", x, c->eps);
    if (pooled) /* a norm works on rows, so the EOS row can be taken before or after it */
        *pooled = scope_linear(root, "text_projection", net_pick_row(net, last, eos), 0);
    return states ? states : last;
}
