/* Variables: ${name}, ${name:-default}, ${env:NAME}, ${env:NAME:-default}, ${file:dir}; $$ is $.
 *
 * Expanded after all files are merged, so a variable may be redefined by a later file or the command line.
 * Each variable is expanded once and remembered: a file in which every variable names the next one many
 * times costs no more than its length, and the limit on the length of a value bounds the result.
 * A fault is told where the ${...} is written, once. */
#include "core/flow/ini_private.h"
#include <string.h>

enum { LENGTH_LIMIT = 65536, DEPTH_LIMIT = 8 };

typedef struct {
    char *name, *raw, *base, *value; /* value NULL = not expanded yet */
    FlowWhere where;
    guint depth; /* 1 = names no other variable */
    gboolean open, used;
} Var;

struct FlowIniVars {
    GHashTable *table; /* name -> Var */
    GPtrArray *order;
    FlowMessages *messages;
};

typedef struct {
    FlowIniVars *vars;
    const char *base;
    FlowWhere where;
    gboolean early, failed;
    guint level, reach; /* variables above this text; the deepest below it */
} Expansion;

static void var_free(gpointer p)
{
    Var *var = p;
    g_free(var->name);
    g_free(var->raw);
    g_free(var->base);
    g_free(var->value);
    g_free(var);
}

FlowIniVars *flow__ini_vars_new(FlowMessages *messages)
{
    FlowIniVars *vars = g_new0(FlowIniVars, 1);
    vars->table = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, NULL);
    vars->order = g_ptr_array_new_with_free_func(var_free);
    vars->messages = messages;
    return vars;
}

void flow__ini_vars_free(FlowIniVars *vars)
{
    if (!vars)
        return;
    g_hash_table_unref(vars->table);
    g_ptr_array_unref(vars->order);
    g_free(vars);
}

void flow__ini_vars_set(FlowIniVars *vars, const char *name, const char *value, const char *base,
                        FlowWhere where)
{
    Var *var = g_hash_table_lookup(vars->table, name);
    if (!var) {
        var = g_new0(Var, 1);
        var->name = g_strdup(name);
        g_hash_table_insert(vars->table, var->name, var);
        g_ptr_array_add(vars->order, var);
    }
    g_free(var->raw);
    g_free(var->base);
    var->raw = g_strdup(value);
    var->base = g_strdup(base);
    var->where = where;
}

static void refuse(Expansion *e, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void refuse(Expansion *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    if (!e->failed)
        flow_error(e->vars->messages, e->where, "%s", text);
    e->failed = TRUE;
}

static const char *nearest(FlowIniVars *vars, const char *name)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = 0; i < vars->order->len; i++)
        g_ptr_array_add(names, ((Var *)g_ptr_array_index(vars->order, i))->name);
    g_ptr_array_add(names, NULL);
    return flow_nearest(name, (const char *const *)names->pdata);
}

static void expand_into(Expansion *e, GString *out, const char *raw, gsize len, guint nested);

/* The variable's value, expanded where it was defined; NULL if that failed or is under way. */
static const char *var_value(Expansion *e, Var *var)
{
    var->used = TRUE;
    if (var->open) {
        refuse(e, "variable '%s' is defined by itself", var->name);
        return NULL;
    }
    if (!var->value) {
        Expansion inner = {.vars = e->vars, .base = var->base, .where = var->where, .level = e->level + 1};
        GString *out = g_string_new(NULL);
        var->open = TRUE;
        if (inner.level <= DEPTH_LIMIT)
            expand_into(&inner, out, var->raw, strlen(var->raw), 0);
        var->open = FALSE;
        var->value = g_string_free(out, FALSE);
        var->depth = 1 + inner.reach;
        e->failed |= inner.failed;
    }
    e->reach = MAX(e->reach, var->depth);
    if (e->level + var->depth > DEPTH_LIMIT)
        refuse(e, "variables are nested deeper than %d at '%s'", DEPTH_LIMIT, var->name);
    return var->value;
}

/* Where ":-" splits name and default at the outer level; NULL if there is none. */
static const char *find_default(const char *name, gsize len)
{
    for (gsize i = 0; i + 1 < len; i++) {
        if (name[i] == '$')
            return NULL;
        if (name[i] == ':' && name[i + 1] == '-')
            return name + i;
    }
    return NULL;
}

static void undefined(Expansion *e, const char *name)
{
    const char *meant = nearest(e->vars, name);
    if (e->early)
        refuse(e, "'${%s}' cannot be used in an include, only ${env:NAME} and ${file:dir}", name);
    else if (!flow__ini_good_name(name, strlen(name)))
        refuse(e,
               "'${%.80s}' is not a variable (write ${name}, ${name:-default}, ${env:NAME} or ${file:dir})",
               name);
    else if (meant)
        refuse(e, "variable '%s' is not defined; did you mean '%s'?", name, meant);
    else
        refuse(e, "variable '%s' is not defined (in [vars], or as --var %s=...)", name, name);
}

/* `inside` is what stands between the braces. */
static void reference(Expansion *e, GString *out, const char *inside, gsize len, guint nested)
{
    const char *otherwise = find_default(inside, len);
    gsize name_len = otherwise ? (gsize)(otherwise - inside) : len;
    g_autofree char *name = g_strndup(inside, name_len);
    const char *value = NULL;
    gboolean known = FALSE;
    if (g_str_has_prefix(name, "env:")) {
        value = g_getenv(name + 4);
        known = value != NULL;
        if (!known && !otherwise)
            refuse(e, "environment variable '%s' is not set", name + 4);
    } else if (g_str_equal(name, "file:dir")) {
        value = e->base;
        known = TRUE;
    } else {
        Var *var = e->early ? NULL : g_hash_table_lookup(e->vars->table, name);
        known = var != NULL;
        if (var)
            value = var_value(e, var);
        else if (!otherwise)
            undefined(e, name);
    }
    if (otherwise && (!known || (value && !*value)))
        expand_into(e, out, otherwise + 2, len - name_len - 2, nested + 1);
    else if (value)
        g_string_append(out, value);
}

/* The '}' that closes a "${" whose inside starts at `p`; NULL if there is none. */
static const char *closing(const char *p, const char *end)
{
    guint open = 1;
    for (; p < end; p++) {
        if (*p == '$' && p + 1 < end && p[1] == '$')
            p++;
        else if (*p == '$' && p + 1 < end && p[1] == '{')
            open++, p++;
        else if (*p == '}' && --open == 0)
            return p;
    }
    return NULL;
}

static void expand_into(Expansion *e, GString *out, const char *raw, gsize len, guint nested)
{
    const char *end = raw + len;
    if (nested > DEPTH_LIMIT) {
        refuse(e, "defaults are nested deeper than %d", DEPTH_LIMIT);
        return;
    }
    for (const char *p = raw; p < end && !e->failed; p++) {
        if (*p != '$' || p + 1 == end || (p[1] != '$' && p[1] != '{')) {
            g_string_append_c(out, *p);
        } else if (p[1] == '$') {
            g_string_append_c(out, *p++);
        } else {
            const char *close = closing(p + 2, end);
            if (!close) {
                refuse(e, "'${' without '}' in '%.80s'", raw);
                return;
            }
            reference(e, out, p + 2, (gsize)(close - p - 2), nested);
            p = close;
        }
        if (out->len > LENGTH_LIMIT)
            refuse(e, "the value is longer than %d bytes once its variables are in", LENGTH_LIMIT);
    }
}

char *flow__ini_expand(FlowIniVars *vars, const char *raw, const char *base, FlowWhere where, gboolean early)
{
    Expansion e = {.vars = vars, .base = base, .where = where, .early = early};
    GString *out = g_string_new(NULL);
    expand_into(&e, out, raw, strlen(raw), 0);
    for (gsize i = 0; i < out->len && !e.failed; i++)
        if ((guchar)out->str[i] < 32 && out->str[i] != '\t')
            refuse(&e, "a variable brings a control character (0x%02x) into the value", out->str[i]);
    if (!e.failed && !g_utf8_validate(out->str, (gssize)out->len, NULL))
        refuse(&e, "a variable brings bytes that are not UTF-8 into the value");
    return g_strstrip(g_string_free(out, FALSE));
}

void flow__ini_vars_unused(FlowIniVars *vars)
{
    for (guint i = 0; i < vars->order->len; i++) {
        const Var *var = g_ptr_array_index(vars->order, i);
        if (!var->used)
            flow_warning(vars->messages, var->where, "variable '%s' is not used", var->name);
    }
}
