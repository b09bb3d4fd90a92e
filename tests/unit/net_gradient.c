/* Gradients of every operation against finite differences, in f32, at odd shapes.
 * @label short
 *
 * Each case is a small training net whose adapters lie below (and often inside) the operation; the derivative
 * of the loss along random directions in the space of all adapter numbers has to equal gradient . direction.
 * A 4-point difference with step h has an error of order h^4; what remains is the rounding of the loss,
 * about 1e-7 / h, so a relative tolerance of 2e-4 is 10 times the noise and far below any wrong term. */
#include "net_lab.h"

static NetVal *first(Net *net, Lab *lab, NetVal *x, gint64 out)
{
    gint64 in = net_dim(x, 3);
    return net_linear(net, x, lab_matrix(lab, "first", out, in), lab_vector(lab, "first.bias", out),
                      lab_adapter(lab, "first", in, out, 1, 3));
}

static NetVal *body_linear(Net *net, Lab *lab, NetVal *x)
{
    return first(net, lab, x, 7);
}

static NetVal *body_linears(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = net_layer_norm(net, first(net, lab, x, 13), lab_vector(lab, "gamma", 13),
                               lab_vector(lab, "beta", 13), 1e-5f);
    const NetWeight *w[3] = {lab_matrix(lab, "q", 9, 13), lab_matrix(lab, "k", 9, 13),
                             lab_matrix(lab, "v", 9, 13)};
    NetAdapter *a[3] = {lab_adapter(lab, "q", 13, 9, 1, 5), NULL, lab_adapter(lab, "v", 13, 9, 1, 9)};
    NetVal *out[3];
    net_linears(net, h, 3, w, NULL, a, out);
    return net_add(net, out[0], net_add(net, out[1], out[2]));
}

static NetVal *body_cat(Net *net, Lab *lab, NetVal *x)
{
    NetVal *a = first(net, lab, x, 6);
    NetVal *b = net_linear(net, a, lab_matrix(lab, "b", 11, 6), NULL, NULL);
    return net_linear_cat(net, a, b, lab_matrix(lab, "cat", 5, 17), lab_vector(lab, "cat.bias", 5),
                          lab_adapter(lab, "cat", 17, 5, 1, 2));
}

static NetVal *body_conv(Net *net, Lab *lab, NetVal *x)
{
    NetConv same = {1, 1, 1, 1, 1}, down = {2, 0, 0, 1, 1};
    NetVal *h = first(net, lab, x, 5);
    h = net_conv(net, h, lab_weight(lab, "c1", 6, 3, 3, 5), lab_vector(lab, "c1.bias", 6), same, NULL);
    h = net_upsample(net, h);
    h = net_conv(net, h, lab_weight(lab, "c2", 7, 3, 3, 6), NULL, down, NULL);
    return net_conv(net, h, lab_weight(lab, "c3", 4, 1, 1, 7), lab_vector(lab, "c3.bias", 4),
                    (NetConv){1, 0, 0, 0, 0}, lab_adapter(lab, "c3", 7, 4, 1, 4));
}

/* Weights of more than 4 MiB on a small map: products with gathered columns. */
static NetVal *body_columns(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = first(net, lab, x, 340);
    h = net_conv(net, h, lab_weight(lab, "c1", 350, 3, 3, 340), lab_vector(lab, "c1.bias", 350),
                 (NetConv){1, 1, 1, 1, 1}, NULL);
    h = net_conv(net, net_silu(net, h), lab_weight(lab, "c2", 340, 3, 3, 350), NULL, (NetConv){2, 0, 1, 1, 0},
                 lab_adapter(lab, "c2", 350, 340, 3, 2));
    return net_linear(net, h, lab_matrix(lab, "after", 6, 340), NULL, NULL);
}

static NetVal *body_conv_lora(Net *net, Lab *lab, NetVal *x)
{
    NetConv same = {1, 1, 1, 1, 1}, down = {2, 1, 1, 1, 1};
    NetVal *h = net_conv(net, x, lab_weight(lab, "c1", 6, 3, 3, net_dim(x, 3)), lab_vector(lab, "c1.bias", 6),
                         same, lab_adapter(lab, "c1", net_dim(x, 3), 6, 3, 3));
    h = net_group_norm(net, h, NULL, lab_vector(lab, "n.gamma", 6), lab_vector(lab, "n.beta", 6), 3, 1e-5f,
                       TRUE);
    return net_conv(net, h, lab_weight(lab, "c2", 5, 3, 3, 6), NULL, down,
                    lab_adapter(lab, "c2", 6, 5, 3, 2));
}

static NetVal *body_group_norm(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = first(net, lab, x, 8);
    return net_group_norm(net, h, NULL, lab_vector(lab, "gamma", 8), lab_vector(lab, "beta", 8), 4, 1e-5f,
                          FALSE);
}

/* Two sources with a group across the border, SiLU, both sources used again: gradients meet. */
static NetVal *body_group_norm_two(Net *net, Lab *lab, NetVal *x)
{
    NetVal *a = first(net, lab, x, 10);
    NetVal *b = net_linear(net, a, lab_matrix(lab, "b", 5, 10), NULL, NULL);
    NetVal *y =
        net_group_norm(net, a, b, lab_vector(lab, "gamma", 15), lab_vector(lab, "beta", 15), 5, 1e-6f, TRUE);
    NetVal *z = net_linear_cat(net, a, b, lab_matrix(lab, "z", 15, 15), NULL, NULL);
    return net_add(net, y, z);
}

/* The second source lies below every adapter: one gradient only. */
static NetVal *body_group_norm_frozen(Net *net, Lab *lab, NetVal *x)
{
    NetVal *b = net_linear(net, x, lab_matrix(lab, "frozen", 6, net_dim(x, 3)), NULL, NULL);
    NetVal *a = first(net, lab, x, 6);
    return net_group_norm(net, a, b, lab_vector(lab, "gamma", 12), lab_vector(lab, "beta", 12), 3, 1e-5f,
                          TRUE);
}

static NetVal *body_layer_norm(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = first(net, lab, x, 19);
    NetVal *y = net_layer_norm(net, h, lab_vector(lab, "gamma", 19), lab_vector(lab, "beta", 19), 1e-5f);
    return net_add(net, h, net_linear(net, y, lab_matrix(lab, "after", 19, 19), NULL, NULL));
}

static NetVal *attention(Net *net, Lab *lab, NetVal *x, gint64 heads, gboolean causal)
{
    gint64 c = 6 * heads;
    NetVal *h = first(net, lab, x, c), *v[3];
    const NetWeight *w[3] = {lab_matrix(lab, "q", c, c), lab_matrix(lab, "k", c, c),
                             lab_matrix(lab, "v", c, c)};
    net_linears(net, h, 3, w, NULL, NULL, v);
    NetVal *o = net_attention(net, v[0], v[1], v[2], heads, causal);
    return net_add(net, h,
                   net_linear(net, o, lab_matrix(lab, "o", c, c), lab_vector(lab, "o.bias", c),
                              lab_adapter(lab, "o", c, c, 1, 4)));
}

static NetVal *body_self(Net *net, Lab *lab, NetVal *x)
{
    return attention(net, lab, x, 3, FALSE);
}

static NetVal *body_causal(Net *net, Lab *lab, NetVal *x)
{
    return attention(net, lab, x, 2, TRUE);
}

/* Keys and values from frozen numbers: no gradient of either, or (adapter) only of the values. */
static NetVal *cross(Net *net, Lab *lab, NetVal *x, NetAdapter *adapter)
{
    NetVal *q = first(net, lab, x, 8);
    NetVal *k = net_linear(net, x, lab_matrix(lab, "k", 8, net_dim(x, 3)), NULL, NULL);
    NetVal *v = net_linear(net, x, lab_matrix(lab, "v", 8, net_dim(x, 3)), NULL, adapter);
    return net_add(net, q, net_attention(net, q, k, v, 2, FALSE));
}

static NetVal *body_cross(Net *net, Lab *lab, NetVal *x)
{
    return cross(net, lab, x, NULL);
}

static NetVal *body_cross_v(Net *net, Lab *lab, NetVal *x)
{
    return cross(net, lab, x, lab_adapter(lab, "v", net_dim(x, 3), 8, 1, 3));
}

static NetVal *body_geglu(Net *net, Lab *lab, NetVal *x)
{
    NetVal *y = net_geglu(net, first(net, lab, x, 22));
    return net_linear(net, y, lab_matrix(lab, "after", 5, 11), NULL, lab_adapter(lab, "after", 11, 5, 1, 2));
}

static NetVal *body_silu(Net *net, Lab *lab, NetVal *x)
{
    NetVal *y = net_silu(net, first(net, lab, x, 9));
    return net_linear(net, y, lab_matrix(lab, "after", 5, 9), NULL, lab_adapter(lab, "after", 9, 5, 1, 2));
}

static NetVal *body_gelu(Net *net, Lab *lab, NetVal *x)
{
    return net_gelu(net, first(net, lab, x, 9));
}

static NetVal *body_quick_gelu(Net *net, Lab *lab, NetVal *x)
{
    return net_quick_gelu(net, first(net, lab, x, 9));
}

/* The time term of a resnet: its gradient is a sum over pixels. */
static NetVal *body_add_channel(Net *net, Lab *lab, NetVal *x)
{
    static const gint64 c = 7;
    NetVal *row = net_input(net, "row", NET_I32, net_dim(x, 0), 1, 1, 1);
    NetVal *e = net_linear(net, net_pick_row(net, x, row), lab_matrix(lab, "e", c, net_dim(x, 3)), NULL,
                           lab_adapter(lab, "e", net_dim(x, 3), c, 1, 3));
    return net_silu(net, net_add_channel(net, first(net, lab, x, c), e));
}

static NetVal *body_concat_scale(Net *net, Lab *lab, NetVal *x)
{
    NetVal *a = first(net, lab, x, 7);
    NetVal *b = net_linear(net, x, lab_matrix(lab, "frozen", 3, net_dim(x, 3)), NULL, NULL);
    NetVal *y = net_concat(net, net_scale(net, a, 0.5f), net_concat(net, b, a));
    return net_cast(net, net_silu(net, y), NET_F32);
}

/* One value read by many: every way its gradients can meet. */
static NetVal *body_meet(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = first(net, lab, x, 12);
    NetVal *a = net_layer_norm(net, h, lab_vector(lab, "gamma", 12), lab_vector(lab, "beta", 12), 1e-5f);
    NetVal *b = net_group_norm(net, h, NULL, lab_vector(lab, "gamma", 12), lab_vector(lab, "beta", 12), 3,
                               1e-5f, TRUE);
    NetVal *c = net_conv(net, h, lab_weight(lab, "c", 12, 3, 3, 12), NULL, (NetConv){1, 1, 1, 1, 1}, NULL);
    NetVal *d = net_add(net, h, h);
    return net_add(net, net_add(net, a, b), net_add(net, net_add(net, c, d), net_silu(net, h)));
}

static double dot(const float *a, const double *b, gsize n)
{
    double s = 0;
    for (gsize i = 0; i < n; i++)
        s += (double)a[i] * b[i];
    return s;
}

static void check(const char *name, LabBody body, gint64 n, gint64 h, gint64 w, gint64 c)
{
    Lab lab = lab_new(NET_F32);
    LabRun run = lab_train(&lab, body, n, h, w, c);
    static const gint32 rows[] = {1, 3, 0, 2};
    run.rows = body == body_add_channel ? rows : NULL;
    NetAdapters *adapters = lab.adapters;
    gsize count = adapters->n;
    g_autofree float *start = g_memdup2(adapters->master, count * sizeof(float));
    g_autofree float *gradient = g_new(float, count);
    g_autofree double *direction = g_new(double, count);
    lab_step(&run);
    memcpy(gradient, adapters->gradient, count * sizeof(float));
    double worst = 0;
    for (guint k = 0; k < adapters->list->len + 2; k++) { /* each module alone, then all together twice */
        const NetAdapter *only = k < adapters->list->len ? adapters->list->pdata[k] : NULL;
        double slope = 0, length = 0;
        for (gsize i = 0; i < count; i++) {
            gboolean in = start[i] != 0 &&
                          (!only || (i >= only->a && i < only->b + (gsize)(only->out * only->rank_pad)));
            direction[i] = in ? lab_number("direction", i + 7919 * (k + 1)) : 0;
            length += direction[i] * direction[i];
        }
        const double step = 0.02 / sqrt(length / 20), at[4] = {-2, -1, 1, 2}, factor[4] = {1, -8, 8, -1};
        for (guint p = 0; p < 4; p++) {
            for (gsize i = 0; i < count; i++)
                adapters->master[i] = (float)(start[i] + at[p] * step * direction[i]);
            slope += factor[p] * lab_step(&run) / (12 * step);
        }
        memcpy(adapters->master, start, count * sizeof(float));
        double expected = dot(gradient, direction, count);
        double norm = 0;
        for (gsize i = 0; i < count; i++)
            norm += direction[i] ? (double)gradient[i] * gradient[i] : 0;
        double error = fabs(slope - expected) / sqrt(norm * length);
        worst = MAX(worst, error);
        LAB_CHECK(norm > 0, "%s: no gradient", name);
        LAB_CHECK(error < 2e-4,
                  "%s, direction %u: gradient says %.9g, the loss changes by %.9g (off by %.2g)", name, k,
                  expected, slope, error);
    }
    for (guint k = 0; k < adapters->list->len; k++) { /* nothing beyond the rank */
        const NetAdapter *a = adapters->list->pdata[k];
        for (gint64 i = a->rank * a->in * a->kh * a->kw; i < a->rank_pad * a->in * a->kh * a->kw; i++)
            LAB_CHECK(gradient[a->a + (gsize)i] == 0, "%s: gradient in the padding of A", name);
        for (gint64 i = 0; i < a->out * a->rank_pad; i++)
            LAB_CHECK(i % a->rank_pad < a->rank || gradient[a->b + (gsize)i] == 0,
                      "%s: gradient in the padding of B", name);
    }
    /* H-03 */
    LAB_CHECK(net_plan_info(run.plan)->gradients_of_weights == 0, "%s: gradient of a frozen weight", name);
    printf("%-20s %.1e\n", name, worst);
    lab_end(&run);
    lab_free(&lab);
}

int main(void)
{
    check("linear", body_linear, 2, 1, 17, 11);
    check("linears", body_linears, 2, 1, 17, 11);
    check("cat", body_cat, 2, 3, 5, 7);
    check("conv", body_conv, 2, 5, 7, 3);
    check("conv lora", body_conv_lora, 2, 5, 7, 3);
    check("conv columns", body_columns, 2, 5, 4, 3);
    check("group_norm", body_group_norm, 2, 3, 5, 7);
    check("group_norm two", body_group_norm_two, 2, 3, 5, 7);
    check("group_norm frozen", body_group_norm_frozen, 2, 3, 5, 7);
    check("layer_norm", body_layer_norm, 2, 1, 17, 11);
    check("self attention", body_self, 2, 3, 7, 5);
    check("causal attention", body_causal, 2, 1, 13, 5);
    check("cross attention", body_cross, 2, 3, 7, 5);
    check("cross attention, v", body_cross_v, 2, 3, 7, 5);
    check("add_channel", body_add_channel, 2, 3, 5, 7);
    check("geglu", body_geglu, 2, 1, 17, 11);
    check("silu", body_silu, 2, 1, 17, 11);
    check("gelu", body_gelu, 2, 1, 17, 11);
    check("quick_gelu", body_quick_gelu, 2, 1, 17, 11);
    check("concat, scale", body_concat_scale, 2, 3, 5, 7);
    check("meet", body_meet, 2, 5, 7, 3);
    return 0;
}
