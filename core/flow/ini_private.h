/* Between ini.c (merging), ini_scan.c (one file) and ini_expand.c (variables). Not installed. */
#ifndef FLOW_INI_PRIVATE_H
#define FLOW_INI_PRIVATE_H
#include "core/flow/ini.h"

G_BEGIN_DECLS

/* One header (key NULL) or one assignment, as written, in order. */
typedef struct {
    char *section, *key, *value;
    int line;
} FlowIniLine;

typedef struct {
    const char *shown; /* name in messages, interned */
    char *base;        /* absolute folder */
    GPtrArray *lines;  /* FlowIniLine * */
} FlowIniFile;

/* Reads a whole file, at most 16 MiB. The error has the reason alone. */
gboolean flow__ini_load(const char *path, char **text, gsize *len, GError **error);
/* Splits a text into lines of the grammar; what is not of the grammar goes to `messages`. Returns new. */
FlowIniFile *flow__ini_scan(const char *shown, const char *base, const char *text, gsize len,
                            FlowMessages *messages);
void flow__ini_file_free(FlowIniFile *file);
/* [a-z][a-z0-9_]*, 1..31 characters. */
gboolean flow__ini_good_name(const char *name, gsize len);

typedef struct FlowIniVars FlowIniVars;
FlowIniVars *flow__ini_vars_new(FlowMessages *messages);
void flow__ini_vars_free(FlowIniVars *vars);
/* Defines or redefines. */
void flow__ini_vars_set(FlowIniVars *vars, const char *name, const char *value, const char *base,
                        FlowWhere where);
/* Expands ${...} in `raw`, written at `where` in a file of folder `base`. Faults go to the messages; the
 * result is never NULL. With `early` only ${env:...} and ${file:dir} are known. Returns new. */
char *flow__ini_expand(FlowIniVars *vars, const char *raw, const char *base, FlowWhere where, gboolean early);
/* Warns of variables that nothing used. */
void flow__ini_vars_unused(FlowIniVars *vars);

G_END_DECLS
#endif
