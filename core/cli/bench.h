/* What the kinds of benchmark share. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H
#include "core/cli/cli.h"

typedef struct {
    const FlowPlugin *plugin;
    char **params;      /* "key=value" of the stage, "node.key=value" of another node of the made graph */
    const char *input;  /* recorded items, or a folder of pictures; NULL = made items */
    const char *folder; /* for what the stage writes */
    guint workers;
    gint64 items;
} BenchCase;

/* The text of a graph in which the node "stage" is the stage in question (bench_input.c). NULL with error.
 * Returns new. */
char *bench_graph_text(const BenchCase *c, GError **error);

typedef struct {
    const char *input, *workers; /* --input, --workers "1,2,8"; NULL = not given */
    gint64 items, repeats;       /* items 0 = as many as it takes */
    gboolean json;
} BenchOptions;
int bench_stage(const char *name, char **params, const BenchOptions *options);
int bench_ring(gboolean json);
/* Rows whose operation matches the glob; NULL = all. */
int bench_kernel(const char *glob, gboolean json);

/* Allocations of the whole process since the last call with TRUE; -1 where they are not counted (sanitizers).
 */
void bench_count_allocations(gboolean on);
gint64 bench_allocations(void);

#endif
