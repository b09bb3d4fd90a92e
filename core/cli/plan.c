/* plan: what a graph will hold, per node and phase, before anything runs.
 *
 * Nodes are opened, which reads no model; then each reports its memory from the headers of models and
 * pictures. `--resolved` prints the merged graph instead and opens nothing. */
#include "core/cli/cli.h"
#include <string.h>

static const FlowPlace places[] = {FLOW_HOST, FLOW_DEVICE};
static const char *const place_names[] = {"host", "device"};

/* -- sums ---------------------------------------------------------------------------- */

/* Of one node (NULL: of the rings) in one phase. */
static gsize node_sum(const FlowPlan *plan, FlowPhase phase, FlowPlace place, const FlowNode *node,
                      const char *what)
{
    gsize sum = 0;
    for (guint i = 0; i < flow_plan_entries(plan); i++) {
        const FlowPlanEntry *entry = flow_plan_entry(plan, i);
        if (entry->phase == phase && entry->place == place && entry->node == node &&
            (!what || g_str_equal(entry->what, what)))
            sum += entry->bytes;
    }
    return sum;
}

static gsize node_peak(const FlowPlan *plan, FlowPlace place, const FlowNode *node)
{
    gsize peak = 0;
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        peak = MAX(peak, node_sum(plan, phase, place, node, NULL));
    return peak;
}

/* Largest sum of what the nodes call `what`. */
static gsize what_peak(const FlowPlan *plan, const char *what)
{
    gsize peak = 0;
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        peak = MAX(peak, flow_plan_sum(plan, phase, FLOW_HOST, NULL, what) +
                             flow_plan_sum(plan, phase, FLOW_DEVICE, NULL, what));
    return peak;
}

/* -- JSON ---------------------------------------------------------------------------- */

static json_t *json_bytes(gsize bytes)
{
    return json_integer((json_int_t)bytes);
}

static json_t *place_json(const FlowPlan *plan, FlowPlace place)
{
    json_t *phases = json_object();
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        json_object_set_new(phases, flow_phase_name(phase),
                            json_bytes(flow_plan_sum(plan, phase, place, NULL, NULL)));
    return json_pack("{s:o, s:o}", "peak", json_bytes(flow_plan_peak(plan, place)), "phases", phases);
}

/* A fact that a node stated, else what the nodes hold under that name. */
static json_t *step_json(const FlowPlan *plan)
{
    static const char *const names[] = {"weights", "adapters", "optimizer", "activations",
                                        "arena",   "bound",    "recompute", "flops"};
    json_t *step = json_object();
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        double value;
        gboolean stated = flow_plan_get_fact(plan, names[i], &value);
        json_object_set_new(step, names[i],
                            stated ? cli_json_number(value) : json_bytes(what_peak(plan, names[i])));
    }
    return step;
}

static json_t *nodes_json(FlowGraph *graph, const FlowPlan *plan)
{
    json_t *nodes = json_object();
    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        FlowNode *node = flow_graph_node(graph, i);
        json_object_set_new(nodes, flow_node_name(node),
                            json_pack("{s:o, s:o}", "host", json_bytes(node_peak(plan, FLOW_HOST, node)),
                                      "device", json_bytes(node_peak(plan, FLOW_DEVICE, node))));
    }
    return nodes;
}

json_t *cli_plan_json(FlowGraph *graph, const FlowPlan *plan)
{
    json_t *notes = json_array();
    for (char *const *note = flow_plan_notes(plan); note && *note; note++)
        json_array_append_new(notes, cli_json_text(*note));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "device", place_json(plan, FLOW_DEVICE), "host",
                     place_json(plan, FLOW_HOST), "step", step_json(plan), "nodes", nodes_json(graph, plan),
                     "rings", json_bytes(node_peak(plan, FLOW_HOST, NULL)), "notes", notes);
}

/* -- the table ------------------------------------------------------------------------ */

static gboolean has_bytes(const FlowPlan *plan, FlowPlace place, const FlowNode *node, const char *what)
{
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        if (node_sum(plan, phase, place, node, what) > 0)
            return TRUE;
    return FALSE;
}

static void table_row(CliTable *table, const char *name, const char *stage, const char *where,
                      const gsize bytes[FLOW_PHASE_COUNT])
{
    char *cell[FLOW_PHASE_COUNT];
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        cell[phase] = bytes[phase] ? cli_bytes((double)bytes[phase]) : g_strdup("-");
    cli_table_row(table, name, stage, where, cell[0], cell[1], cell[2], cell[3], NULL);
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        g_free(cell[phase]);
}

static void row_of(CliTable *table, const FlowPlan *plan, FlowPlace place, const FlowNode *node,
                   const char *name, const char *stage, const char *what)
{
    gsize bytes[FLOW_PHASE_COUNT];
    for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        bytes[phase] = node_sum(plan, phase, place, node, what);
    table_row(table, name, stage, place_names[place], bytes);
}

/* One line, and one for each kind of memory where there are several. */
static void node_rows(CliTable *table, const FlowPlan *plan, FlowPlace place, const FlowNode *node)
{
    g_autoptr(GPtrArray) whats = g_ptr_array_new();
    for (guint i = 0; i < flow_plan_entries(plan); i++) {
        const FlowPlanEntry *entry = flow_plan_entry(plan, i);
        if (entry->node == node && entry->place == place && entry->bytes > 0 &&
            !g_ptr_array_find_with_equal_func(whats, entry->what, g_str_equal, NULL))
            g_ptr_array_add(whats, (gpointer)entry->what);
    }
    row_of(table, plan, place, node, node ? flow_node_name(node) : "(rings)",
           node ? flow_node_stage(node)->name : "", NULL);
    for (guint i = 0; node && whats->len > 1 && i < whats->len; i++) {
        g_autofree char *name = g_strconcat("  ", g_ptr_array_index(whats, i), NULL);
        row_of(table, plan, place, node, name, "", g_ptr_array_index(whats, i));
    }
}

G_STATIC_ASSERT(FLOW_PHASE_COUNT == 4); /* the columns of the table */

void cli_plan_print(FlowGraph *graph, const FlowPlan *plan)
{
    CliTable *table = cli_table_new(3 + FLOW_PHASE_COUNT);
    cli_table_align(table, "lllrrrr");
    cli_table_row(table, "NODE", "STAGE", "WHERE", flow_phase_name(0), flow_phase_name(1), flow_phase_name(2),
                  flow_phase_name(3), NULL);
    for (guint p = 0; p < G_N_ELEMENTS(places); p++) {
        gboolean any = FALSE;
        for (guint i = 0; i <= flow_graph_nodes(graph); i++) {
            FlowNode *node = i < flow_graph_nodes(graph) ? flow_graph_node(graph, i) : NULL;
            if (!has_bytes(plan, places[p], node, NULL))
                continue;
            node_rows(table, plan, places[p], node);
            any = TRUE;
        }
        gsize sums[FLOW_PHASE_COUNT];
        for (FlowPhase phase = 0; phase < FLOW_PHASE_COUNT; phase++)
            sums[phase] = flow_plan_sum(plan, phase, places[p], NULL, NULL);
        if (any)
            table_row(table, "together", "", place_names[p], sums);
    }
    cli_table_print(table, stdout);
    for (guint p = 0; p < G_N_ELEMENTS(places); p++) {
        g_autofree char *peak = cli_bytes((double)flow_plan_peak(plan, places[p]));
        if (p == 0 || flow_plan_peak(plan, places[p]) > 0)
            printf("%speak on the %s: %s\n", p == 0 ? "\n" : "", place_names[p], peak);
    }
    double arena, bound;
    if (flow_plan_get_fact(plan, "arena", &arena) && flow_plan_get_fact(plan, "bound", &bound) && bound > 0) {
        g_autofree char *a = cli_bytes(arena), *b = cli_bytes(bound);
        printf("arena of a step: %s, %.2f %% above its lower bound %s\n", a, 100 * (arena / bound - 1), b);
    }
    for (char *const *note = flow_plan_notes(plan); note && *note; note++)
        printf("%s\n", *note);
}

/* -- the operations of the engine ------------------------------------------------------ */

/* What a node stated about its step; NULL with error. */
static const char *text_of(const FlowPlan *plan, const char *name, GError **error)
{
    const char *text = flow_plan_get_text(plan, name);
    if (!text)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "no node of this graph has operations to show");
    return text;
}

static gboolean dump(const FlowPlan *plan, const char *path, GError **error)
{
    const char *text = text_of(plan, "intervals", error);
    return text && g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT, 0666, error);
}

static gboolean print_ops(const FlowPlan *plan, GError **error)
{
    const char *text = text_of(plan, "ops", error);
    if (text)
        fputs(text, stdout);
    return text != NULL;
}

typedef struct {
    gboolean json, resolved, no_data, ops;
    char *dump;
} PlanOptions;

static gboolean plan_graph(FlowGraph *graph, const PlanOptions *options, GError **error)
{
    if (!flow_graph_open(graph, error))
        return FALSE;
    FlowPlan *plan = flow_graph_plan(graph, options->no_data, error);
    if (!plan)
        return FALSE;
    gboolean ok = !options->dump || dump(plan, options->dump, error);
    if (ok && options->ops)
        ok = print_ops(plan, error);
    else if (ok && options->json)
        cli_json_print(cli_plan_json(graph, plan));
    else if (ok)
        cli_plan_print(graph, plan);
    flow_plan_free(plan);
    return ok;
}

int cli_plan(int argc, char **argv)
{
    g_auto(GStrv) sets = NULL, vars = NULL;
    PlanOptions options = {0};
    const GOptionEntry entries[] = {
        {"set", 0, 0, G_OPTION_ARG_STRING_ARRAY, &sets, "Replace a value of the graph.", "NODE.KEY=VALUE"},
        {"var", 0, 0, G_OPTION_ARG_STRING_ARRAY, &vars, "Define a variable.", "NAME=VALUE"},
        {"resolved", 0, 0, G_OPTION_ARG_NONE, &options.resolved,
         "Print the merged graph, every value with the line it comes from.", NULL},
        {"no-data", 0, 0, G_OPTION_ARG_NONE, &options.no_data,
         "Look at no picture: assume every bucket and the longest text.", NULL},
        {"ops", 0, 0, G_OPTION_ARG_NONE, &options.ops, "Print the operations of a training step.", NULL},
        {"dump", 0, 0, G_OPTION_ARG_FILENAME, &options.dump, "Write live intervals and offsets of the arena.",
         "FILE"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &options.json, "Print the plan as JSON.", NULL},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc != 2)
        return cli_usage("plan", argc < 2 ? "no graph is named" : "one graph at a time");
    FlowGraph *graph = cli_graph_load(argv[1], sets, vars);
    g_autoptr(GError) error = NULL;
    if (!graph) {
        rc = CLI_USAGE;
    } else if (options.resolved) {
        g_autofree char *text = flow_ini_text(flow_graph_ini(graph), TRUE);
        fputs(text, stdout);
    } else if (!plan_graph(graph, &options, &error)) {
        fprintf(stderr, "error: %s\n", error->message);
        rc = cli_error_code(error);
    }
    flow_graph_free(graph);
    g_free(options.dump);
    return rc;
}
