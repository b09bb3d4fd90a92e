/* A U-Net in miniature for tests of the engine: two levels with skips, resnets with a time term, transformers
 * with self- and cross-attention and GEGLU; adapters on the attention and, if asked, everywhere. */
#ifndef TESTS_NET_UNET_H
#define TESTS_NET_UNET_H
#include "net_lab.h"

typedef struct {
    Net *net;
    Lab *lab;
    NetVal *emb, *context;
    gint64 groups, heads;
    gboolean all; /* adapters on linears and convolutions too */
    guint n;      /* numbers the modules */
} Unet;

static inline const char *unet_key(const char *prefix, const char *part)
{
    static char text[8][64];
    static guint turn;
    char *out = text[turn++ % 8];
    g_snprintf(out, sizeof text[0], "%s.%s", prefix, part);
    return out;
}

static inline NetVal *unet_linear(Unet *u, NetVal *x, const char *key, gint64 out, gboolean adapted)
{
    gint64 in = net_dim(x, 3);
    return net_linear(u->net, x, lab_matrix(u->lab, key, out, in),
                      lab_vector(u->lab, unet_key(key, "bias"), out),
                      adapted ? lab_adapter(u->lab, key, in, out, 1, 4) : NULL);
}

static inline NetVal *unet_conv(Unet *u, NetVal *x, const char *key, gint64 out, gint64 stride,
                                gboolean adapted)
{
    gint64 in = net_dim(x, 3);
    return net_conv(u->net, x, lab_weight(u->lab, key, out, 3, 3, in),
                    lab_vector(u->lab, unet_key(key, "bias"), out), (NetConv){stride, 1, 1, 1, 1},
                    adapted ? lab_adapter(u->lab, key, in, out, 3, 4) : NULL);
}

static inline NetVal *unet_group_norm(Unet *u, NetVal *a, NetVal *b, const char *key, gboolean silu)
{
    gint64 c = net_dim(a, 3) + (b ? net_dim(b, 3) : 0);
    return net_group_norm(u->net, a, b, lab_vector(u->lab, unet_key(key, "gamma"), c),
                          lab_vector(u->lab, unet_key(key, "beta"), c), u->groups, 1e-5f, silu);
}

static inline NetVal *unet_resnet(Unet *u, NetVal *x, NetVal *skip, gint64 out)
{
    g_autofree char *p = g_strdup_printf("r%u", u->n++);
    gint64 in = net_dim(x, 3) + (skip ? net_dim(skip, 3) : 0);
    NetVal *h = unet_group_norm(u, x, skip, unet_key(p, "norm1"), TRUE);
    h = unet_conv(u, h, unet_key(p, "conv1"), out, 1, u->all);
    h = net_add_channel(u->net, h,
                        unet_linear(u, net_silu(u->net, u->emb), unet_key(p, "time"), out, u->all));
    h = unet_group_norm(u, h, NULL, unet_key(p, "norm2"), TRUE);
    h = unet_conv(u, h, unet_key(p, "conv2"), out, 1, u->all);
    if (in == out && !skip)
        return net_add(u->net, x, h);
    return net_add(u->net,
                   net_linear_cat(u->net, x, skip, lab_matrix(u->lab, unet_key(p, "short"), out, in),
                                  lab_vector(u->lab, unet_key(p, "short.bias"), out), NULL),
                   h);
}

static inline NetVal *unet_attention(Unet *u, NetVal *x, NetVal *context, const char *p)
{
    gint64 c = net_dim(x, 3);
    NetVal *q = unet_linear(u, x, unet_key(p, "q"), c, TRUE);
    NetVal *k = unet_linear(u, context, unet_key(p, "k"), c, TRUE);
    NetVal *v = unet_linear(u, context, unet_key(p, "v"), c, TRUE);
    return unet_linear(u, net_attention(u->net, q, k, v, u->heads, FALSE), unet_key(p, "o"), c, TRUE);
}

static inline NetVal *unet_layer_norm(Unet *u, NetVal *x, const char *key)
{
    gint64 c = net_dim(x, 3);
    return net_layer_norm(u->net, x, lab_vector(u->lab, unet_key(key, "gamma"), c),
                          lab_vector(u->lab, unet_key(key, "beta"), c), 1e-5f);
}

static inline NetVal *unet_transformer(Unet *u, NetVal *x)
{
    g_autofree char *p = g_strdup_printf("t%u", u->n++);
    gint64 c = net_dim(x, 3);
    NetVal *h =
        unet_linear(u, unet_group_norm(u, x, NULL, unet_key(p, "norm"), FALSE), unet_key(p, "in"), c, u->all);
    NetVal *y = unet_layer_norm(u, h, unet_key(p, "norm1"));
    h = net_add(u->net, h, unet_attention(u, y, y, unet_key(p, "self")));
    y = unet_layer_norm(u, h, unet_key(p, "norm2"));
    h = net_add(u->net, h, unet_attention(u, y, u->context, unet_key(p, "cross")));
    y = unet_linear(u, unet_layer_norm(u, h, unet_key(p, "norm3")), unet_key(p, "ff1"), 8 * c, u->all);
    h = net_add(u->net, h, unet_linear(u, net_geglu(u->net, y), unet_key(p, "ff2"), c, u->all));
    return net_add(u->net, x, unet_linear(u, h, unet_key(p, "out"), c, u->all));
}

/* x (n, h, w, 4), even sides; width is divisible by groups and heads. Time and context are made from x. */
static inline NetVal *unet(Net *net, Lab *lab, NetVal *x, gint64 width, gboolean all)
{
    Unet u = {.net = net, .lab = lab, .groups = 4, .heads = 2, .all = all};
    NetVal *skip[8];
    guint n = 0;
    u.context = unet_linear(&u, x, "context", width + 8, FALSE);
    u.emb = unet_linear(&u, net_pick_row(net, x, net_input(net, "row", NET_I32, net_dim(x, 0), 1, 1, 1)),
                        "emb", 2 * width, FALSE);
    NetVal *h = skip[n++] = unet_conv(&u, x, "conv_in", width, 1, FALSE);
    h = skip[n++] = unet_transformer(&u, unet_resnet(&u, h, NULL, width));
    h = skip[n++] = unet_conv(&u, h, "down", width, 2, all);
    h = skip[n++] = unet_transformer(&u, unet_resnet(&u, h, NULL, 2 * width));
    h = unet_resnet(&u, unet_transformer(&u, unet_resnet(&u, h, NULL, 2 * width)), NULL, 2 * width);
    h = unet_transformer(&u, unet_resnet(&u, h, skip[--n], 2 * width));
    h = unet_transformer(&u, unet_resnet(&u, h, skip[--n], 2 * width));
    h = unet_conv(&u, net_upsample(net, h), "up", 2 * width, 1, all);
    h = unet_transformer(&u, unet_resnet(&u, h, skip[--n], width));
    h = unet_transformer(&u, unet_resnet(&u, h, skip[--n], width));
    return unet_conv(&u, unet_group_norm(&u, h, NULL, "norm_out", TRUE), "conv_out", 4, 1, FALSE);
}

#endif
