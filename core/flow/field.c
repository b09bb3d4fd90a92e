/* The registry of fields: the built-in table, then what plugins add.
 *
 * Fields are numbers below 64, so a set of fields is one word and following the fields along the
 * paths of a graph is a few bit operations. Plugins are loaded on one thread before anything runs;
 * an entry is complete before the count that makes it visible is raised, so readers need no lock.
 * Registered entries live as long as the program, as the plugins themselves do. */
#include "core/flow/field.h"
#include "core/flow/ini.h"
#include "core/flow/status.h"
#include <stdatomic.h>
#include <string.h>

static const FlowFieldInfo builtin[] = {
#define INFO(NAME, name, type, shape, flags, doc) {name, shape, doc, type, flags},
    FLOW_FIELDS(INFO)
#undef INFO
};
G_STATIC_ASSERT(G_N_ELEMENTS(builtin) == FLOW_F_BUILTIN);
G_STATIC_ASSERT(FLOW_F_BUILTIN <= FLOW_FIELD_MAX);

enum { ADDED_MAX = FLOW_FIELD_MAX - FLOW_F_BUILTIN };
static FlowFieldInfo added[ADDED_MAX];
static _Atomic(guint) n_added;

const FlowFieldInfo *flow_field_info(FlowField f)
{
    guint i = (guint)f;
    if (i < FLOW_F_BUILTIN)
        return &builtin[i];
    i -= FLOW_F_BUILTIN;
    return i < atomic_load_explicit(&n_added, memory_order_acquire) ? &added[i] : NULL;
}

static int find(const char *name, gsize len)
{
    const FlowFieldInfo *info;
    for (guint i = 0; (info = flow_field_info((FlowField)i)); i++)
        if (strlen(info->name) == len && memcmp(info->name, name, len) == 0)
            return (int)i;
    return -1;
}

int flow_field_find(const char *name)
{
    return find(name, strlen(name));
}

const char *flow_field_nearest(const char *name)
{
    const char *names[FLOW_FIELD_MAX + 1];
    const FlowFieldInfo *info;
    guint n = 0;
    for (; n < FLOW_FIELD_MAX && (info = flow_field_info((FlowField)n)); n++)
        names[n] = info->name;
    names[n] = NULL;
    return flow_nearest(name, names);
}

static gboolean good_name(const char *name)
{
    gsize n = name ? strlen(name) : 0;
    return n > 0 && n <= 31 && g_ascii_islower(name[0]) &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static gboolean declaration_valid(const FlowFieldInfo *info, GError **error)
{
    const char *fault = NULL;
    if (!good_name(info->name))
        fault = "its name must be [a-z][a-z0-9_]*, at most 31 characters";
    else if (!info->shape || !info->doc || !*info->doc)
        fault = "it needs a shape (\"\" for a scalar or text) and a meaning";
    else if ((guint)info->type >= NET_TYPE_COUNT)
        fault = "its element type is unknown";
    if (!fault)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "field '%s' cannot be declared: %s",
                info->name ? info->name : "(null)", fault);
    return FALSE;
}

int flow_field_register(const FlowFieldInfo *info, GError **error)
{
    if (!declaration_valid(info, error))
        return -1;
    int known = flow_field_find(info->name);
    if (known >= 0) {
        const FlowFieldInfo *old = flow_field_info((FlowField)known);
        if (old->type == info->type && old->flags == info->flags && g_str_equal(old->shape, info->shape))
            return known;
        g_set_error(
            error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
            "field '%s' is declared as %s '%s' (flags %u), but is already known as %s '%s' (flags %u)",
            info->name, net_type_name(info->type), info->shape, info->flags, net_type_name(old->type),
            old->shape, old->flags);
        return -1;
    }
    guint n = atomic_load_explicit(&n_added, memory_order_relaxed);
    if (n == ADDED_MAX) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "field '%s' is one too many: plugins may declare %d fields together", info->name,
                    ADDED_MAX);
        return -1;
    }
    added[n] = *info;
    added[n].name = g_strdup(info->name);
    added[n].shape = g_strdup(info->shape);
    added[n].doc = g_strdup(info->doc);
    atomic_store_explicit(&n_added, n + 1, memory_order_release);
    return (int)(FLOW_F_BUILTIN + n);
}

const char *flow_field_parse(const char *list, FlowFieldSet *required, FlowFieldSet *optional)
{
    static _Thread_local char unknown[64];
    FlowFieldSet need = 0, may = 0;
    const char *bad = NULL;
    const char *p = list ? list : "";
    for (p += strspn(p, " \t\n"); *p && !bad; p += strspn(p, " \t\n")) {
        gsize len = strcspn(p, " \t\n");
        gboolean question = p[len - 1] == '?';
        int field = find(p, len - (question ? 1 : 0));
        if (field < 0) {
            g_snprintf(unknown, sizeof unknown, "%.*s", (int)MIN(len - (question ? 1 : 0), 60), p);
            bad = unknown;
        } else if (question) {
            may |= FLOW_FIELD_BIT(field);
        } else {
            need |= FLOW_FIELD_BIT(field);
        }
        p += len;
    }
    if (required)
        *required = need;
    if (optional)
        *optional = may;
    return bad;
}
