/* What the verbs share: options, graphs, printing. */
#ifndef CLI_CLI_H
#define CLI_CLI_H
#include "core/flow/graph.h"
#include "core/flow/param.h"
#include <jansson.h>
#include <stdio.h>

/* Exit codes of every verb. An interrupted run exits with 128 + the signal. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_STALLED = 3 };

typedef struct {
    const char *name;
    int (*fn)(int argc, char **argv); /* argv[0] is the verb */
    const char *summary;
    const char *usage; /* what follows the verb */
} CliVerb;

int cli_run(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_graph(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_bench(int argc, char **argv);

/* The table of main.c, ends with a NULL name. */
extern const CliVerb cli_verbs[];
const CliVerb *cli_verb_find(const char *name);

/* -- options --------------------------------------------------------------------- */

/* Parses the options of a verb; what is left are the arguments, argv[0] the verb. FALSE: return *rc (help was
 * printed, or the usage is wrong and was told). */
gboolean cli_options(const GOptionEntry *entries, int *argc, char ***argv, int *rc);
/* Tells what is wrong with the usage; returns CLI_USAGE. */
int cli_usage(const char *verb, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* "loraflow: error: ..." on stderr; returns rc. */
int cli_fail(int rc, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* -- graphs ---------------------------------------------------------------------- */

/* Reads, links and checks. NULL after printing the messages if there are errors; warnings are printed. */
FlowGraph *cli_graph_load(const char *path, char **sets, char **vars);
/* The same, with the messages to the caller and never NULL. */
FlowGraph *cli_graph_read(const char *path, char **sets, char **vars, FlowMessages *messages);
void cli_messages_print(const FlowMessages *messages);
/* Exit code for an error of open, plan or run: contradicting parameters are a fault of the graph. */
int cli_error_code(const GError *error);

/* -- printing ---------------------------------------------------------------------- */

/* Prints JSON to stdout and frees it. */
void cli_json_print(json_t *json);
/* Texts that need not be UTF-8 (file names), numbers that need not be finite. Return new. */
json_t *cli_json_text(const char *text);
json_t *cli_json_number(double x);
/* "1.5 GiB", "12 B"; "0:01:05". Return new. */
char *cli_bytes(double bytes);
char *cli_duration(double seconds);

/* A table: columns are as wide as their widest cell; rows are printed as they were added. Cells are copied.
 */
typedef struct CliTable CliTable;
CliTable *cli_table_new(guint columns);
/* `alignment` has 'l' or 'r' for each column. */
void cli_table_align(CliTable *table, const char *alignment);
/* NULL-terminated cells, at most the number of columns. */
void cli_table_row(CliTable *table, ...) G_GNUC_NULL_TERMINATED;
/* Prints (unless `out` is NULL) and frees. */
void cli_table_print(CliTable *table, FILE *out);

/* Table and JSON of a plan (plan.c, run --dry). */
json_t *cli_plan_json(FlowGraph *graph, const FlowPlan *plan);
void cli_plan_print(FlowGraph *graph, const FlowPlan *plan);

#endif
