/* Parameter tables: text to the C value at an offset of the node's state, and back.
 *
 * One row describes a parameter wholly (type, place, default as a user would write it, range, doc),
 * so the same parser serves defaults, graph files and the command line, and `inspect` prints what a
 * user may type. A value that does not fit is refused with the value, the range and the unit; it is
 * never clamped.
 *
 * An empty text means "not given" and is stored as NULL; it is allowed where the default is empty.
 * So a text parameter with a default that says something is never NULL in a stage. */
#include "core/flow/param.h"
#include <math.h>
#include <string.h>

#define AT(T, param, state) (*(T *)((char *)(state) + (param)->offset))
#define GET(T, param, state) (*(T const *)((const char *)(state) + (param)->offset))

guint flow_param_count(const FlowParam *params)
{
    guint n = 0;
    while (params && params[n].name)
        n++;
    return n;
}

const char *flow_param_type_name(FlowParamType type)
{
    static const char *const names[] = {"yes/no", "integer", "number", "size", "text",
                                        "path",   "choice",  "list",   "node"};
    return (guint)type < G_N_ELEMENTS(names) ? names[type] : "unknown";
}

static gboolean fault(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean fault(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error)
        *error = g_error_new_valist(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, format, args);
    va_end(args);
    return FALSE;
}

/* -- text of numbers ------------------------------------------------------------ */

/* Shortest text that reads back as the same number. */
static char *float_text(double x)
{
    char buffer[G_ASCII_DTOSTR_BUF_SIZE];
    static const char *const formats[] = {"%.6g", "%.15g", "%.16g", "%.17g"};
    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        g_ascii_formatd(buffer, sizeof buffer, formats[i], x);
        if (g_ascii_strtod(buffer, NULL) == x)
            break;
    }
    return g_strdup(buffer);
}

/* "8GiB", "1000": the largest binary unit that divides it. */
static char *size_text(guint64 bytes)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    guint i = 0;
    for (; bytes > 0 && i < 4 && bytes % 1024 == 0; i++)
        bytes /= 1024;
    return g_strdup_printf("%" G_GUINT64_FORMAT "%s", bytes, units[i]);
}

static char *limit_text(const FlowParam *param, double x)
{
    if (param->type == FLOW_P_SIZE && x >= 0 && x < 18446744073709551616.0)
        return size_text((guint64)x);
    if (x == floor(x) && fabs(x) < (param->type == FLOW_P_INT ? 1e16 : 1e7))
        return g_strdup_printf("%.0f", x);
    return float_text(x);
}

/* A limit that no value can pass is not worth telling. */
static gboolean endless(const FlowParam *param, double x)
{
    return fabs(x) >= (param->type == FLOW_P_FLOAT ? 1e300 : 9.2e18);
}

char *flow_param_range(const FlowParam *param)
{
    if (param->type != FLOW_P_INT && param->type != FLOW_P_FLOAT && param->type != FLOW_P_SIZE)
        return NULL;
    g_autofree char *min = limit_text(param, param->min), *max = limit_text(param, param->max);
    if (endless(param, param->min) && endless(param, param->max))
        return NULL;
    if (endless(param, param->max))
        return g_strdup_printf("%s..", min);
    if (endless(param, param->min))
        return g_strdup_printf("..%s", max);
    return g_strdup_printf("%s..%s", min, max);
}

/* -- parsing ---------------------------------------------------------------------- */

/* Adds "NAME = " in front of what a number parser said. */
static gboolean named(const FlowParam *param, gboolean ok, GError **error)
{
    if (!ok)
        g_prefix_error(error, "%s = ", param->name);
    return ok;
}

static gboolean in_range(const FlowParam *param, const char *text, double x, GError **error)
{
    if (x >= param->min && x <= param->max)
        return TRUE;
    g_autofree char *range = flow_param_range(param);
    gboolean unit = param->unit && *param->unit && param->type != FLOW_P_SIZE;
    return fault(error, "%s = %s%s%s is outside %s", param->name, text, unit ? " " : "",
                 unit ? param->unit : "", range);
}

static gboolean set_int(const FlowParam *param, gpointer state, const char *text, GError **error)
{
    gint64 value;
    if (!named(param, flow_parse_int(text, &value, error), error) ||
        !in_range(param, text, (double)value, error))
        return FALSE;
    AT(gint64, param, state) = value;
    return TRUE;
}

static gboolean set_float(const FlowParam *param, gpointer state, const char *text, GError **error)
{
    double value;
    if (!named(param, flow_parse_float(text, &value, error), error) || !in_range(param, text, value, error))
        return FALSE;
    AT(double, param, state) = value;
    return TRUE;
}

static gboolean set_size(const FlowParam *param, gpointer state, const char *text, GError **error)
{
    guint64 value;
    if (!named(param, flow_parse_size(text, &value, error), error) ||
        !in_range(param, text, (double)value, error))
        return FALSE;
    AT(guint64, param, state) = value;
    return TRUE;
}

static gboolean set_enum(const FlowParam *param, gpointer state, const char *text, GError **error)
{
    g_auto(GStrv) choices = g_strsplit(param->choices, "|", -1);
    for (int i = 0; choices[i]; i++)
        if (g_str_equal(choices[i], text)) {
            AT(int, param, state) = i;
            return TRUE;
        }
    const char *meant = flow_nearest(text, (const char *const *)choices);
    g_autofree char *list = g_strjoinv(", ", choices);
    return fault(error, "%s = '%s' is not one of %s%s%s%s", param->name, text, list,
                 meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

static void store_text(const FlowParam *param, gpointer state, char *text)
{
    g_free(AT(char *, param, state));
    AT(char *, param, state) = text;
}

static char *absolute(const char *path, const char *base)
{
    if (path[0] == '~' && (path[1] == '/' || path[1] == 0))
        return g_build_filename(g_get_home_dir(), path + 1, NULL);
    if (g_path_is_absolute(path))
        return g_strdup(path);
    g_autofree char *cwd = base ? NULL : g_get_current_dir();
    return g_build_filename(base ? base : cwd, path, NULL);
}

static gboolean set_list(const FlowParam *param, gpointer state, const char *text, GError **error)
{
    g_auto(GStrv) list = g_strsplit(text, ",", -1);
    for (guint i = 0; list[i]; i++)
        if (!*g_strstrip(list[i]))
            return fault(error, "%s = '%s' has an empty element (number %u)", param->name, text, i + 1);
    g_strfreev(AT(char **, param, state));
    AT(char **, param, state) = g_steal_pointer(&list);
    return TRUE;
}

static gboolean is_text(FlowParamType type)
{
    return type == FLOW_P_STRING || type == FLOW_P_PATH || type == FLOW_P_LIST || type == FLOW_P_NODE;
}

static void clear_one(const FlowParam *param, gpointer state)
{
    if (param->type == FLOW_P_STRING || param->type == FLOW_P_PATH)
        store_text(param, state, NULL);
    else if (param->type == FLOW_P_LIST)
        g_clear_pointer(&AT(char **, param, state), g_strfreev);
    else if (param->type == FLOW_P_NODE)
        AT(FlowNode *, param, state) = NULL;
}

gboolean flow_param_set(const FlowParam *param, gpointer state, const char *text, const char *base,
                        GError **error)
{
    if (is_text(param->type) && !*text) {
        if (!param->def || *param->def)
            return fault(error, "%s must not be empty", param->name);
        clear_one(param, state);
        return TRUE;
    }
    switch (param->type) {
    case FLOW_P_BOOL:
        return named(param, flow_parse_bool(text, &AT(gboolean, param, state), error), error);
    case FLOW_P_INT:
        return set_int(param, state, text, error);
    case FLOW_P_FLOAT:
        return set_float(param, state, text, error);
    case FLOW_P_SIZE:
        return set_size(param, state, text, error);
    case FLOW_P_STRING:
        store_text(param, state, g_strdup(text));
        return TRUE;
    case FLOW_P_PATH:
        store_text(param, state, absolute(text, base));
        return TRUE;
    case FLOW_P_ENUM:
        return set_enum(param, state, text, error);
    case FLOW_P_LIST:
        return set_list(param, state, text, error);
    case FLOW_P_NODE:
        AT(FlowNode *, param, state) = NULL;
        return TRUE;
    }
    return fault(error, "%s has the unknown type %d", param->name, (int)param->type);
}

void flow_param_defaults(const FlowParam *params, gpointer state)
{
    for (; params && params->name; params++) {
        g_autoptr(GError) error = NULL;
        if (params->def && !flow_param_set(params, state, params->def, NULL, &error))
            g_error("default of a parameter: %s", error->message); /* flow_param_table_valid() refuses it */
    }
}

void flow_param_clear(const FlowParam *params, gpointer state)
{
    for (; params && params->name; params++)
        clear_one(params, state);
}

char *flow_param_text(const FlowParam *param, gconstpointer state)
{
    switch (param->type) {
    case FLOW_P_BOOL:
        return g_strdup(GET(gboolean, param, state) ? "yes" : "no");
    case FLOW_P_INT:
        return g_strdup_printf("%" G_GINT64_FORMAT, GET(gint64, param, state));
    case FLOW_P_FLOAT:
        return float_text(GET(double, param, state));
    case FLOW_P_SIZE:
        return size_text(GET(guint64, param, state));
    case FLOW_P_STRING:
    case FLOW_P_PATH: {
        const char *text = GET(char *, param, state);
        return g_strdup(text ? text : "");
    }
    case FLOW_P_ENUM: {
        g_auto(GStrv) choices = g_strsplit(param->choices, "|", -1);
        int i = GET(int, param, state);
        return g_strdup(i >= 0 && i < (int)g_strv_length(choices) ? choices[i] : "");
    }
    case FLOW_P_LIST: {
        char **list = GET(char **, param, state);
        return list ? g_strjoinv(", ", list) : g_strdup("");
    }
    case FLOW_P_NODE:
        break;
    }
    return g_strdup("");
}

/* -- checking a table --------------------------------------------------------------- */

static gboolean good_name(const char *name)
{
    gsize n = strlen(name);
    return n > 0 && n <= 31 && g_ascii_islower(name[0]) &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static gboolean choices_valid(const FlowParam *param, GError **error)
{
    if (param->type != FLOW_P_ENUM)
        return !param->choices ||
               fault(error, "parameter '%s' has choices, but is not a choice", param->name);
    g_auto(GStrv) choices = g_strsplit(param->choices ? param->choices : "", "|", -1);
    if (!choices[0])
        return fault(error, "parameter '%s' has no choices", param->name);
    for (guint i = 0; choices[i]; i++) {
        if (!*choices[i])
            return fault(error, "parameter '%s' has an empty choice in '%s'", param->name, param->choices);
        for (guint j = 0; j < i; j++)
            if (g_str_equal(choices[i], choices[j]))
                return fault(error, "parameter '%s' has the choice '%s' twice", param->name, choices[i]);
    }
    return TRUE;
}

/* The default is parsed into scratch of its own: the table's offsets belong to a state that does not exist.
 */
static gboolean default_valid(const FlowParam *param, GError **error)
{
    union {
        gint64 i;
        double d;
        gpointer p;
    } scratch = {0};
    FlowParam moved = *param;
    moved.offset = 0;
    if (!param->def)
        return TRUE;
    if (param->type == FLOW_P_NODE && *param->def)
        return fault(error, "parameter '%s' names the node '%s' by default", param->name, param->def);
    gboolean ok = flow_param_set(&moved, &scratch, param->def, "/", error);
    if (!ok)
        g_prefix_error(error, "default: ");
    clear_one(&moved, &scratch);
    return ok;
}

static gboolean row_valid(const FlowParam *param, GError **error)
{
    static const char *const reserved[] = {"stage", "in",       "ring",    "bytes", "workers",
                                           "order", "on_error", "enabled", NULL};
    if (!good_name(param->name))
        return fault(error, "parameter '%s': a name is [a-z][a-z0-9_]*, at most 31 characters", param->name);
    if (g_strv_contains(reserved, param->name))
        return fault(error, "parameter '%s': this key is the runtime's own", param->name);
    if ((guint)param->type > FLOW_P_NODE)
        return fault(error, "parameter '%s' has the unknown type %d", param->name, (int)param->type);
    if (!param->doc || !g_str_has_suffix(param->doc, "."))
        return fault(error, "parameter '%s' needs a doc sentence that ends with a period", param->name);
    gboolean ranged = param->type == FLOW_P_INT || param->type == FLOW_P_FLOAT || param->type == FLOW_P_SIZE;
    if (ranged && !(param->min < param->max))
        return fault(error, "parameter '%s' has the range %g..%g, which holds nothing to choose", param->name,
                     param->min, param->max);
    return choices_valid(param, error) && default_valid(param, error);
}

gboolean flow_param_table_valid(const FlowParam *params, GError **error)
{
    guint n = flow_param_count(params);
    for (guint i = 0; i < n; i++) {
        if (!row_valid(&params[i], error))
            return FALSE;
        for (guint j = 0; j < i; j++)
            if (g_str_equal(params[i].name, params[j].name))
                return fault(error, "parameter '%s' is in the table twice", params[i].name);
    }
    return TRUE;
}
