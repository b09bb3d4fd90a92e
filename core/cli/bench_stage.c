/* bench stage: what one stage costs, measured in the runtime that it will work in.
 *
 * The number of items grows until a run is long enough to be trusted; then a few runs are made. The cost of
 * an item is the time that the stage's workers were busy, so a slow source or a full ring does not count;
 * items and bytes a second are of the whole small graph. */
#include "core/cli/bench.h"
#include "core/cli/live.h"
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_ITEMS = 16 };
static const double long_enough_s = 0.3;

typedef struct {
    guint workers;
    double items, bytes, seconds, ns_per_item, allocations;
    guint64 peak_rss;
} Sample;

typedef struct {
    guint workers;
    double items_per_s, bytes_per_s, ns[3], allocations; /* least, median, most */
    guint64 peak_rss;
} Result;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Forgets the highest memory so far, so that each setting has its own. */
static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file)
        return;
    fputs("5", file);
    fclose(file);
}

static void add_bytes(const char *name, double value, gpointer bytes)
{
    if (g_str_equal(name, "bytes"))
        *(double *)bytes += value;
}

static double node_bytes(FlowGraph *graph, const char *name)
{
    double bytes = 0;
    FlowNode *node = flow_graph_node_named(graph, name);
    if (node)
        flow_node_counters(node, add_bytes, &bytes);
    return bytes;
}

static FlowGraph *load(const char *text)
{
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read_text("bench", NULL, text, strlen(text), NULL, NULL, messages);
    FlowGraph *graph = flow_graph_load(ini, messages);
    if (messages->errors == 0)
        flow_graph_check(graph, messages);
    if (messages->errors > 0) {
        cli_messages_print(messages);
        fprintf(stderr, "the graph was:\n%s", text);
        g_clear_pointer(&graph, flow_graph_free);
    }
    flow_messages_free(messages);
    return graph;
}

static void measure(FlowGraph *graph, double seconds, Sample *sample)
{
    FlowNodeStats stats;
    flow_node_stats(flow_graph_node_named(graph, "stage"), &stats);
    guint64 items = MAX(stats.in, stats.out);
    sample->items = (double)items;
    sample->seconds = seconds;
    sample->ns_per_item = items ? stats.busy_s * 1e9 / (double)items : 0;
    sample->bytes = MAX(node_bytes(graph, "input"), node_bytes(graph, "sink"));
    sample->allocations =
        bench_allocations() < 0 || !items ? -1 : (double)bench_allocations() / (double)items;
    sample->peak_rss = cli_peak_rss();
}

/* One run. FALSE with *rc set after telling what went wrong. */
static gboolean run_once(const BenchCase *c, Sample *sample, int *rc)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = bench_graph_text(c, &error);
    FlowGraph *graph = text ? load(text) : NULL;
    const FlowRunOptions options = {.limit = (guint64)c->items};
    FlowRunStatus status = FLOW_RUN_FAILED;
    *rc = CLI_USAGE;
    if (graph && flow_graph_open(graph, &error)) {
        reset_peak();
        bench_count_allocations(TRUE);
        double start = now_s();
        status = flow_graph_run(graph, &options, &error);
        double seconds = now_s() - start;
        bench_count_allocations(FALSE);
        measure(graph, seconds, sample);
        *rc = status == FLOW_RUN_STALLED ? CLI_STALLED : CLI_FAILED;
    }
    flow_graph_free(graph);
    if (error)
        cli_fail(*rc, "%s", error->message);
    return graph && status == FLOW_RUN_DONE;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Runs until long enough, then as often as asked. */
static gboolean run_case(BenchCase *c, const BenchOptions *o, Result *result, int *rc)
{
    Sample s = {0}, best = {0};
    g_autofree double *ns = g_new(double, (gsize)o->repeats);
    c->items = o->items > 0 ? o->items : FIRST_ITEMS;
    while (o->items == 0) {
        if (!run_once(c, &s, rc))
            return FALSE;
        /* a source that ended early has no more to give */
        if (s.seconds >= long_enough_s || s.items < (double)c->items)
            break;
        c->items *= s.seconds < long_enough_s / 8 ? 8 : 2;
    }
    for (gint64 i = 0; i < o->repeats; i++) {
        if (!run_once(c, &s, rc))
            return FALSE;
        ns[i] = s.ns_per_item;
        if (i == 0 || s.seconds < best.seconds)
            best = s;
    }
    qsort(ns, (gsize)o->repeats, sizeof *ns, by_value);
    *result = (Result){c->workers,
                       best.items / best.seconds,
                       best.bytes / best.seconds,
                       {ns[0], ns[o->repeats / 2], ns[o->repeats - 1]},
                       best.allocations,
                       s.peak_rss};
    return TRUE;
}

/* -- printing -------------------------------------------------------------------------- */

static json_t *result_json(const Result *r)
{
    json_t *ns = json_pack("{s:o, s:o, s:o}", "min", cli_json_number(r->ns[0]), "median",
                           cli_json_number(r->ns[1]), "max", cli_json_number(r->ns[2]));
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I}", "workers", (json_int_t)r->workers, "items_per_s",
                     cli_json_number(r->items_per_s), "bytes_per_s", cli_json_number(r->bytes_per_s),
                     "ns_per_item", ns, "allocations_per_item",
                     r->allocations < 0 ? json_null() : cli_json_number(r->allocations), "peak_rss",
                     (json_int_t)r->peak_rss);
}

/* The first setting, and all of them where there are several. */
static void print_json(const char *name, const Result *results, guint n)
{
    json_t *all = result_json(&results[0]);
    json_object_set_new(all, "stage", json_string(name));
    if (n > 1) {
        json_t *sweep = json_array();
        for (guint i = 0; i < n; i++)
            json_array_append_new(sweep, result_json(&results[i]));
        json_object_set_new(all, "sweep", sweep);
    }
    cli_json_print(all);
}

static void print_table(const Result *results, guint n)
{
    CliTable *table = cli_table_new(8);
    cli_table_align(table, "rrrrrrrr");
    cli_table_row(table, "WORKERS", "ITEMS/s", "BYTES/s", "ns/ITEM min", "median", "max", "ALLOCATIONS",
                  "PEAK RSS", NULL);
    for (guint i = 0; i < n; i++) {
        const Result *r = &results[i];
        g_autofree char *workers = g_strdup_printf("%u", r->workers),
                        *items = g_strdup_printf("%.1f", r->items_per_s);
        g_autofree char *bytes = cli_bytes(r->bytes_per_s), *peak = cli_bytes((double)r->peak_rss);
        g_autofree char *min = g_strdup_printf("%.0f", r->ns[0]), *median = g_strdup_printf("%.0f", r->ns[1]);
        g_autofree char *max = g_strdup_printf("%.0f", r->ns[2]);
        g_autofree char *count = r->allocations < 0 ? g_strdup("-") : g_strdup_printf("%.1f", r->allocations);
        cli_table_row(table, workers, items, bytes, min, median, max, count, peak, NULL);
    }
    cli_table_print(table, stdout);
}

/* "1,2,8"; FALSE after telling the fault. */
static gboolean parse_workers(const char *text, GArray *out)
{
    g_auto(GStrv) parts = g_strsplit(text ? text : "1", ",", -1);
    for (char **part = parts; *part; part++) {
        gint64 n;
        g_autoptr(GError) error = NULL;
        if (!flow_parse_int(g_strstrip(*part), &n, &error) || n < 1 || n > 256) {
            cli_usage("bench", "--workers %s: %s", text, error ? error->message : "1 to 256 are possible");
            return FALSE;
        }
        g_array_append_val(out, (guint){(guint)n});
    }
    return TRUE;
}

/* What a stage wrote: files, folders, folders of files. */
static void remove_all(const char *path)
{
    g_autoptr(GDir) folder = g_dir_open(path, 0, NULL);
    for (const char *name; folder && (name = g_dir_read_name(folder));) {
        g_autofree char *inner = g_build_filename(path, name, NULL);
        if (g_file_test(inner, G_FILE_TEST_IS_DIR) && !g_file_test(inner, G_FILE_TEST_IS_SYMLINK))
            remove_all(inner);
        else
            g_unlink(inner);
    }
    g_rmdir(path);
}

static int run_cases(BenchCase *c, const BenchOptions *o, GArray *workers, Result *results)
{
    int rc = CLI_OK;
    for (guint i = 0; i < workers->len; i++) {
        c->workers = g_array_index(workers, guint, i);
        if (!run_case(c, o, &results[i], &rc))
            return rc;
    }
    return CLI_OK;
}

int bench_stage(const char *name, char **params, const BenchOptions *options)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) counts = g_array_new(FALSE, FALSE, sizeof(guint));
    const FlowPlugin *plugin = flow_plugin_find(name, &error);
    if (!plugin)
        return cli_fail(CLI_USAGE, "%s", error->message);
    if (!parse_workers(options->workers, counts))
        return CLI_USAGE;
    g_autofree char *folder = g_dir_make_tmp("loraflow-bench-XXXXXX", &error);
    if (!folder)
        return cli_fail(CLI_FAILED, "%s", error->message);
    g_autofree Result *results = g_new0(Result, counts->len);
    BenchCase c = {.plugin = plugin, .params = params, .input = options->input, .folder = folder};
    int rc = run_cases(&c, options, counts, results);
    remove_all(folder);
    if (rc != CLI_OK)
        return rc;
    if (options->json)
        print_json(name, results, counts->len);
    else
        print_table(results, counts->len);
    return CLI_OK;
}
