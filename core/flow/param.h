/* Parameter tables: one parser for defaults, graph files and the command line. */
#ifndef FLOW_PARAM_H
#define FLOW_PARAM_H
#include "core/flow/ini.h"
#include "core/flow/stage.h"

G_BEGIN_DECLS

/* Parses `text` for `param` into `state` + offset (frees what was there). `base` makes paths absolute; NODE
 * stores NULL here (the graph sets it). FALSE with a text such as "width = 9000 px is outside 16..4096". */
gboolean flow_param_set(const FlowParam *param, gpointer state, const char *text, const char *base,
                        GError **error);
/* Sets every parameter to its default; required ones stay zero. */
void flow_param_defaults(const FlowParam *params, gpointer state);
/* Frees texts and lists. */
void flow_param_clear(const FlowParam *params, gpointer state);
/* The value in canonical graph file syntax (for recipes and `inspect`); "" for a node. Returns new. */
char *flow_param_text(const FlowParam *param, gconstpointer state);
/* "16..4096", "0.." or NULL for types and tables without limits. Returns new. */
char *flow_param_range(const FlowParam *param);
/* Number of parameters of a table (may be NULL). */
guint flow_param_count(const FlowParam *params);
const char *flow_param_type_name(FlowParamType type); /* "yes/no", "integer", ... */
/* Checks a table for the rules of the ABI (names, defaults, ranges, docs). FALSE with the first fault. */
gboolean flow_param_table_valid(const FlowParam *params, GError **error);

/* Shared number grammar: "8GiB" = 8 * 2^30, "8GB" = 8e9, "1.5GiB", integers also "4k", "2M"; "010" is ten;
 * "8G" as a size, blanks before a unit, hex, underscores, nan, inf, trailing text are refused. */
gboolean flow_parse_int(const char *text, gint64 *out, GError **error);
gboolean flow_parse_float(const char *text, double *out, GError **error);
gboolean flow_parse_size(const char *text, guint64 *out, GError **error);
gboolean flow_parse_bool(const char *text, gboolean *out, GError **error);
gboolean flow_parse_duration(const char *text, double *seconds, GError **error);

G_END_DECLS
#endif
