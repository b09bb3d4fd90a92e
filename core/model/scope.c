/* Modules by path: see scope.h. */
#include "core/model/scope.h"
#include <stdio.h>

Scope scope_root(Net *net, const NetWeights *weights)
{
    return (Scope){net, weights, ""};
}

Scope scope_in(Scope s, const char *format, ...)
{
    gsize used = strlen(s.path);
    if (used > 0)
        s.path[used++] = '.';
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s.path + used, sizeof s.path - used, format, args);
    va_end(args);
    g_assert(n >= 0 && used + (gsize)n < sizeof s.path); /* our own names, far shorter */
    return s;
}

const NetWeight *scope_weight(Scope s, const char *name)
{
    const char *path = (s = scope_in(s, "%s", name)).path;
    const NetWeight *weight = net_weights_find(s.weights, path);
    if (!weight)
        net_fail(s.net, "weight '%s' is missing", path);
    return weight;
}

NetVal *scope_name(Scope s, NetVal *v)
{
    return net_name(v, "%s", s.path);
}

NetVal *scope_compute(Net *net, NetVal *v)
{
    return v && net_val_type(v) != net_compute_type(net) ? net_cast(net, v, net_compute_type(net)) : v;
}

/* Weight, bias and adapter of one module. */
typedef struct {
    const NetWeight *weight, *bias;
    NetAdapter *adapter;
} Module;

static Module module(Scope s, const char *name, guint flags)
{
    Scope m = scope_in(s, "%s", name);
    NetAdapters *adapters = net_adapters_of(s.net);
    return (Module){
        .weight = scope_weight(m, "weight"),
        .bias = flags & SCOPE_BIAS ? scope_weight(m, "bias") : NULL,
        .adapter = adapters ? net_adapters_find(adapters, m.path) : NULL,
    };
}

NetVal *scope_linear(Scope s, const char *name, NetVal *x, guint flags)
{
    Module m = module(s, name, flags);
    return net_linear(s.net, x, m.weight, m.bias, m.adapter);
}

NetVal *scope_linear_cat(Scope s, const char *name, NetVal *a, NetVal *b, guint flags)
{
    Module m = module(s, name, flags);
    return net_linear_cat(s.net, a, b, m.weight, m.bias, m.adapter);
}

void scope_linears(Scope s, const char *const *names, NetVal *x, guint flags, NetVal **out)
{
    enum { MOST = 4 };
    const NetWeight *weight[MOST], *bias[MOST];
    NetAdapter *adapter[MOST];
    guint n = 0;
    for (; names[n]; n++) {
        g_assert(n < MOST);
        Module m = module(s, names[n], flags);
        weight[n] = m.weight;
        bias[n] = m.bias;
        adapter[n] = m.adapter;
    }
    net_linears(s.net, x, n, weight, bias, adapter, out);
}

NetVal *scope_conv(Scope s, const char *name, NetVal *x, NetConv conv)
{
    Module m = module(s, name, SCOPE_BIAS);
    return net_conv(s.net, x, m.weight, m.bias, conv, m.adapter);
}

NetVal *scope_group_norm(Scope s, const char *name, NetVal *a, NetVal *b, gint64 groups, float eps,
                         gboolean silu)
{
    Module m = module(s, name, SCOPE_BIAS);
    return net_group_norm(s.net, a, b, m.weight, m.bias, groups, eps, silu);
}

NetVal *scope_layer_norm(Scope s, const char *name, NetVal *x, float eps)
{
    Module m = module(s, name, SCOPE_BIAS);
    return net_layer_norm(s.net, x, m.weight, m.bias, eps);
}
