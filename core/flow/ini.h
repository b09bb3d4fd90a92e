/* Graph files: INI with the grammar of docs/graphs.md, merged over includes, variables expanded, every
 * value with the file and line it came from. Knows nothing of stages. */
#ifndef FLOW_INI_H
#define FLOW_INI_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct {
    const char
        *file; /* as shown in messages; interned (lives on); "--set" and "--var" for the command line */
    int line;  /* 0 = none */
} FlowWhere;

typedef struct {
    char *key;   /* "path", "in.batch" */
    char *value; /* expanded, trimmed */
    char *raw;   /* as written */
    FlowWhere where;
    char *base;    /* folder of the file that contains it: paths are relative to it */
    gboolean used; /* set by whoever takes it: what is left over is an error */
} FlowIniValue;

typedef struct {
    char *name;
    FlowWhere where;   /* of the section header that opened it first */
    GPtrArray *values; /* FlowIniValue *, in order of first appearance */
} FlowIniSection;

/* Errors and warnings with their places; printed together, at most 20 errors. */
typedef struct {
    FlowWhere where;
    gboolean warning, note; /* a note belongs to the message before it */
    char *text;
} FlowMessage;
typedef struct {
    GPtrArray *list; /* FlowMessage * */
    guint errors, warnings;
} FlowMessages;
FlowMessages *flow_messages_new(void);
void flow_messages_free(FlowMessages *messages);
void flow_error(FlowMessages *messages, FlowWhere where, const char *format, ...) G_GNUC_PRINTF(3, 4);
void flow_warning(FlowMessages *messages, FlowWhere where, const char *format, ...) G_GNUC_PRINTF(3, 4);
void flow_note(FlowMessages *messages, FlowWhere where, const char *format, ...) G_GNUC_PRINTF(3, 4);
/* "graphs/a.ini:3: error: text\n" for each. Returns new. */
char *flow_messages_text(const FlowMessages *messages);

typedef struct {
    char *path;
    GPtrArray *sections; /* FlowIniSection *, in order of first appearance, without [vars] */
    GPtrArray *files;    /* every file read, in order */
} FlowIni;

/* Reads and merges. `sets` are "node.key=value", `vars` are "k=v" (NULL-terminated, may be NULL). Problems go
 * to `messages`; the result is never NULL and holds what could be read. [graph] */
FlowIni *flow_ini_read(const char *path, char *const *sets, char *const *vars, FlowMessages *messages);
/* The same from memory (tests, resume from a checkpoint's resolved text); `name` is shown in messages, `base`
 * is the folder that paths and includes are relative to. */
FlowIni *flow_ini_read_text(const char *name, const char *base, const char *text, gsize len,
                            char *const *sets, char *const *vars, FlowMessages *messages);
void flow_ini_free(FlowIni *ini);
FlowIniSection *flow_ini_section(const FlowIni *ini, const char *name);       /* or NULL */
FlowIniValue *flow_ini_value(const FlowIniSection *section, const char *key); /* or NULL */
/* The merged graph as one file, each value with its origin in a comment line when `origins`. Absolute paths
 * stay as they are resolved. Returns new. */
char *flow_ini_text(const FlowIni *ini, gboolean origins);
/* Of `names` (NULL-terminated) the one nearest to `word`, near enough to be meant; NULL if none is. */
const char *flow_nearest(const char *word, const char *const *names);

G_END_DECLS
#endif
