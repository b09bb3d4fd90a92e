/* The end of a run: a table of nodes for people, one object for programs. */
#include "core/cli/report.h"
#include <math.h>

static const char *status_name(FlowRunStatus status)
{
    return status == FLOW_RUN_DONE ? "done" : status == FLOW_RUN_STOPPED ? "stopped" : "failed";
}

/* -- JSON ---------------------------------------------------------------------------- */

static void counter_json(const char *name, double value, gpointer node)
{
    json_object_set_new(node, name, cli_json_number(value));
}

static json_t *node_json(FlowNode *node)
{
    FlowNodeStats s;
    flow_node_stats(node, &s);
    json_t *object = json_object();
    flow_node_counters(node, counter_json, object);
    json_object_set_new(object, "stage", json_string(flow_node_stage(node)->name));
    json_object_set_new(object, "in", json_integer((json_int_t)s.in));
    json_object_set_new(object, "out", json_integer((json_int_t)s.out));
    json_object_set_new(object, "skipped", json_integer((json_int_t)s.skipped));
    json_object_set_new(object, "busy_s", cli_json_number(s.busy_s));
    json_object_set_new(object, "wait_in_s", cli_json_number(s.wait_in_s));
    json_object_set_new(object, "wait_out_s", cli_json_number(s.wait_out_s));
    return object;
}

json_t *cli_report_json(FlowGraph *graph, const CliOutcome *outcome)
{
    json_t *nodes = json_object(), *all = json_object();
    for (guint i = 0; graph && i < flow_graph_nodes(graph); i++) {
        FlowNode *node = flow_graph_node(graph, i);
        json_object_set_new(nodes, flow_node_name(node), node_json(node));
    }
    json_object_set_new(all, "status", json_string(status_name(outcome->status)));
    json_object_set_new(all, "steps", json_integer((json_int_t)outcome->last->step));
    json_object_set_new(all, "loss",
                        outcome->last->step > 0 ? cli_json_number(outcome->last->loss) : json_null());
    json_object_set_new(all, "seconds", cli_json_number(outcome->last->seconds));
    json_object_set_new(all, "peak_rss", json_integer((json_int_t)cli_peak_rss()));
    json_object_set_new(all, "device_peak", json_integer((json_int_t)outcome->device_peak));
    json_object_set_new(all, "error", cli_json_text(outcome->error ? outcome->error->message : NULL));
    json_object_set_new(all, "nodes", nodes);
    return all;
}

/* -- the table ------------------------------------------------------------------------- */

static void counter_text(const char *name, double value, gpointer text)
{
    if (value == floor(value) && fabs(value) < 1e15)
        g_string_append_printf(text, "%s%s %.0f", ((GString *)text)->len ? ", " : "", name, value);
    else
        g_string_append_printf(text, "%s%s %.4g", ((GString *)text)->len ? ", " : "", name, value);
}

static void node_row(CliTable *table, FlowNode *node)
{
    FlowNodeStats s;
    flow_node_stats(node, &s);
    g_autofree char *in = g_strdup_printf("%" G_GUINT64_FORMAT, s.in);
    g_autofree char *out = g_strdup_printf("%" G_GUINT64_FORMAT, s.out);
    g_autofree char *skipped = g_strdup_printf("%" G_GUINT64_FORMAT, s.skipped);
    g_autofree char *busy = g_strdup_printf("%.2f", s.busy_s);
    g_autofree char *wait_in = g_strdup_printf("%.2f", s.wait_in_s);
    g_autofree char *wait_out = g_strdup_printf("%.2f", s.wait_out_s);
    g_autoptr(GString) counters = g_string_new(NULL);
    flow_node_counters(node, counter_text, counters);
    cli_table_row(table, flow_node_name(node), flow_node_stage(node)->name, in, out, skipped, busy, wait_in,
                  wait_out, counters->str, NULL);
}

void cli_report_print(FlowGraph *graph, const CliOutcome *outcome)
{
    CliTable *table = cli_table_new(9);
    cli_table_align(table, "llrrrrrrl");
    cli_table_row(table, "NODE", "STAGE", "IN", "OUT", "SKIP", "BUSY s", "WAIT IN", "WAIT OUT", "COUNTERS",
                  NULL);
    for (guint i = 0; i < flow_graph_nodes(graph); i++)
        node_row(table, flow_graph_node(graph, i));
    cli_table_print(table, stderr);
    g_autofree char *time = cli_duration(outcome->last->seconds), *peak = cli_bytes((double)cli_peak_rss());
    fprintf(stderr, "%s", status_name(outcome->status));
    if (outcome->last->step > 0)
        fprintf(stderr, ": %" G_GINT64_FORMAT " steps", outcome->last->step);
    if (outcome->last->step > 0 && isfinite(outcome->last->loss))
        fprintf(stderr, ", loss %.4f", outcome->last->loss);
    fprintf(stderr, " in %s, peak memory %s\n", time, peak);
}
