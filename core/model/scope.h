/* Where a network builder stands: a net, a set of weights and a module path.
 *
 * scope_linear(s, "attn1.to_q", x, 0) finds weight, bias and adapter of the module by its path, so a network
 * reads like its specification. What is missing is noted with its full name in the net and reported together.
 */
#ifndef MODEL_SCOPE_H
#define MODEL_SCOPE_H
#include "core/net/net.h"

G_BEGIN_DECLS

typedef struct {
    Net *net;
    const NetWeights *weights;
    char path[160]; /* "" at the root */
} Scope;

enum { SCOPE_BIAS = 1 };

Scope scope_root(Net *net, const NetWeights *weights);
/* The module `format` below `s`. */
Scope scope_in(Scope s, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* PATH.NAME; notes an error and returns NULL if it is missing. */
const NetWeight *scope_weight(Scope s, const char *name);
/* Names the value after the scope, for dumps and printing. Returns v. */
NetVal *scope_name(Scope s, NetVal *v);

/* v (may be NULL) in the net's compute type. */
NetVal *scope_compute(Net *net, NetVal *v);

/* `module` is a path below s. Linears and convolutions take the adapter of that path where there is one. */
NetVal *scope_linear(Scope s, const char *module, NetVal *x, guint flags);
/* Linear over the channels of a and b. */
NetVal *scope_linear_cat(Scope s, const char *module, NetVal *a, NetVal *b, guint flags);
/* Several linears of one input; modules is NULL-terminated. */
void scope_linears(Scope s, const char *const *modules, NetVal *x, guint flags, NetVal **out);
NetVal *scope_conv(Scope s, const char *module, NetVal *x, NetConv conv);
/* b may be NULL. */
NetVal *scope_group_norm(Scope s, const char *module, NetVal *a, NetVal *b, gint64 groups, float eps,
                         gboolean silu);
NetVal *scope_layer_norm(Scope s, const char *module, NetVal *x, float eps);

/* 3x3, padding 1. */
#define SCOPE_CONV3 ((NetConv){1, 1, 1, 1, 1})

G_END_DECLS
#endif
