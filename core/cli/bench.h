/* What the kinds of benchmark share. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H
#include "core/cli/cli.h"

typedef struct {
    const FlowPlugin *plugin;
    char **params;     /* "key=value" of the stage, "node.key=value" of another node of the made graph */
    const char *input; /* recorded items, or a folder of pictures; NULL = made items */
    guint workers;
    gint64 items;
} BenchCase;

/* The text of a graph in which the node "stage" is the stage in question (bench_input.c). NULL with error.
 * Returns new. */
char *bench_graph_text(const BenchCase *c, GError **error);

int bench_stage(const char *name, char **params, const char *input, const char *workers, gint64 items,
                gboolean json);
int bench_ring(gboolean json);

/* Allocations of the whole process since the last call with TRUE; -1 where they are not counted (sanitizers).
 */
void bench_count_allocations(gboolean on);
gint64 bench_allocations(void);

#endif
