/* The memory plan: sums by node, phase and place, rings by items and bytes, the limit of a graph.
 *
 * @label short
 */
#include "tests/graph_lab.h"

typedef struct {
    guint64 item, weights, arena;
} TPlan;

static gboolean t_plan_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    const TPlan *state = flow_node_state(node);
    if (state->arena == 13) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "arena = 13 brings bad luck");
        return FALSE;
    }
    flow_node_gauge(node, "arrives", (double)plan->item_bytes);
    if (state->item)
        plan->item_bytes = state->item;
    flow_plan_add_always(plan, node, FLOW_HOST, "weights", state->weights);
    flow_plan_add(plan, node, FLOW_PHASE_TRAIN, FLOW_DEVICE, "arena", state->arena / 2);
    flow_plan_add(plan, node, FLOW_PHASE_TRAIN, FLOW_DEVICE, "arena", state->arena - state->arena / 2);
    flow_plan_fact(plan, "bound", (double)state->arena);
    flow_plan_note(plan, "%s has spoken", flow_node_name(node));
    return TRUE;
}

static const FlowParam params[] = {FLOW_SIZE(TPlan, item, "0", 0, 1e12, "Bytes of an item."),
                                   FLOW_SIZE(TPlan, weights, "0", 0, 1e12, "Weights."),
                                   FLOW_SIZE(TPlan, arena, "0", 0, 1e12, "Arena."), FLOW_END};
static const FlowStage t_plan = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_plan",
                                 .summary = "Plan.",
                                 .state_size = sizeof(TPlan),
                                 .params = params,
                                 .inputs = t_work_in,
                                 .outputs = t_work_out,
                                 .process = t_work_process,
                                 .plan = t_plan_plan};

static const char *const text = "[graph]\n%s\n[count]\nstage=t_count\n"
                                "[a]\nstage=t_plan\nin=count\nitem=1000\nweights=5000\narena=%d\n"
                                "[b]\nstage=t_plan\nin=a\nring=4\nitem=100\n"
                                "[c]\nstage=t_plan\nin=a\nring=4\nbytes=2500\narena=7\n"
                                "[d]\nstage=t_plan\nin=a\nbytes=10\n"
                                "[z]\nstage=t_zip\nin.a=b\nin.b=c\nring=2\n[e]\nstage=null\nin=z, d\n";

static void test_sums(void)
{
    g_autofree char *ini = g_strdup_printf(text, "", 300);
    FlowGraph *graph = lab_open(ini);
    FlowNode *a = flow_graph_node_named(graph, "a");
    g_autoptr(GError) error = NULL;
    FlowPlan *plan = flow_graph_plan(graph, FALSE, &error);
    g_assert_no_error(error);
    /* b: 4 x 1000, c: the limit, d: always one item, z: 2 x 100 and 2 x 1000, e: 16 x 1000 */
    gsize rings = 4000 + 2500 + 1000 + 200 + 2000 + 16000;
    g_assert_cmpuint(flow_plan_sum(plan, FLOW_PHASE_SAVE, FLOW_HOST, NULL, "rings"), ==, rings);
    g_assert_cmpuint(flow_plan_sum(plan, FLOW_PHASE_TRAIN, FLOW_DEVICE, a, "arena"), ==, 300);
    g_assert_cmpuint(flow_plan_sum(plan, FLOW_PHASE_TRAIN, FLOW_DEVICE, NULL, NULL), ==, 307);
    g_assert_cmpuint(flow_plan_sum(plan, FLOW_PHASE_SAVE, FLOW_DEVICE, NULL, NULL), ==, 0);
    g_assert_cmpuint(flow_plan_peak(plan, FLOW_HOST), ==, rings + 5000);
    g_assert_cmpuint(flow_plan_peak(plan, FLOW_DEVICE), ==, 307);
    g_assert_cmpfloat(flow_node_counter(flow_graph_node_named(graph, "b"), "arrives"), ==, 1000);
    double bound = 0;
    g_assert_true(flow_plan_get_fact(plan, "bound", &bound));
    g_assert_false(flow_plan_get_fact(plan, "other", &bound));
    g_assert_cmpstr(flow_plan_notes(plan)[0], ==, "a has spoken");
    g_assert_cmpuint(g_strv_length((char **)flow_plan_notes(plan)), ==, 4);
    flow_plan_free(plan);
    flow_graph_free(graph);
}

static void test_limit(void)
{
    g_autofree char *little = g_strdup_printf(text, "memory=30000", 300);
    g_autofree char *enough = g_strdup_printf(text, "memory=31007", 300);
    g_autofree char *device = g_strdup_printf(text, "device=cuda\nmemory=307", 300);
    g_autofree char *fails = g_strdup_printf(text, "", 13);
    const struct {
        const char *ini, *why;
    } cases[] = {
        {little, "lab.ini:2: memory = 30000 is too little: the phase 'train' needs 30.3 KiB, 1007 bytes "
                 "more; the largest "
                 "parts are rings 25.1 KiB, [a] weights 4.9 KiB, [a] arena 300 bytes, [c] arena 7 bytes"},
        {enough, NULL},
        {device, NULL},
        {fails, "lab.ini:5: [a] arena = 13 brings bad luck"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        FlowGraph *graph = lab_open(cases[i].ini);
        g_autoptr(GError) error = NULL;
        FlowPlan *plan = flow_graph_plan(graph, FALSE, &error);
        g_autofree char *said = error ? g_strdup(error->message) : NULL;
        for (char *p = said; p && *p; p++) /* g_format_size() uses no-break spaces */
            if (*p == '\xc2' && p[1] == '\xa0') {
                *p = ' ';
                memmove(p + 1, p + 2, strlen(p + 1));
            }
        g_assert_cmpstr(said, ==, cases[i].why);
        flow_plan_free(plan);
        flow_graph_free(graph);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    flow_plugin_add(&t_plan, NULL);
    g_test_add_func("/plan/sums", test_sums);
    g_test_add_func("/plan/limit", test_limit);
    return g_test_run();
}
