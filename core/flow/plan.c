/* The memory plan: every node says what it will hold, the host adds the rings, the sum is held against
 * [graph] memory.
 *
 * plan() is called in topological order and gets the data as the node's inputs leave it: the bytes of an
 * item are kept per node, because two branches carry different items. A ring can hold its capacity in
 * items, or its limit in bytes, and always one item. */
#include "core/flow/graph_private.h"
#include <string.h>

typedef struct {
    FlowPlan plan; /* first: a FlowPlan * is a Plan * */
    GArray *entries;
    GPtrArray *notes;  /* char *, ends with NULL */
    GHashTable *facts; /* name -> double * */
    GHashTable *texts; /* name -> char * */
} Plan;

const char *flow_phase_name(FlowPhase phase)
{
    static const char *const names[] = {"prefill", "train", "validate", "save"};
    return (guint)phase < FLOW_PHASE_COUNT ? names[phase] : "?";
}

/* -- what stages call --------------------------------------------------------------- */

void flow_plan_add(FlowPlan *plan, FlowNode *node, FlowPhase phase, FlowPlace place, const char *what,
                   gsize bytes)
{
    GArray *entries = ((Plan *)plan)->entries;
    FlowPlanEntry entry = {g_intern_string(what), phase, place, node, bytes};
    for (guint i = 0; i < entries->len; i++) {
        FlowPlanEntry *known = &g_array_index(entries, FlowPlanEntry, i);
        if (known->node == node && known->phase == phase && known->place == place &&
            known->what == entry.what) {
            known->bytes += bytes;
            return;
        }
    }
    if (bytes)
        g_array_append_val(entries, entry);
}

void flow_plan_add_always(FlowPlan *plan, FlowNode *node, FlowPlace place, const char *what, gsize bytes)
{
    for (guint phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        flow_plan_add(plan, node, (FlowPhase)phase, place, what, bytes);
}

void flow_plan_fact(FlowPlan *plan, const char *name, double value)
{
    double *copy = g_new(double, 1);
    *copy = value;
    g_hash_table_insert(((Plan *)plan)->facts, g_strdup(name), copy);
}

void flow_plan_text(FlowPlan *plan, const char *name, const char *text)
{
    g_hash_table_insert(((Plan *)plan)->texts, g_strdup(name), g_strdup(text));
}

void flow_plan_note(FlowPlan *plan, const char *format, ...)
{
    GPtrArray *notes = ((Plan *)plan)->notes;
    va_list args;
    va_start(args, format);
    g_ptr_array_insert(notes, (gint)notes->len - 1, g_strdup_vprintf(format, args));
    va_end(args);
}

/* -- reading ------------------------------------------------------------------------ */

guint flow_plan_entries(const FlowPlan *plan)
{
    return ((const Plan *)plan)->entries->len;
}

const FlowPlanEntry *flow_plan_entry(const FlowPlan *plan, guint i)
{
    return &g_array_index(((const Plan *)plan)->entries, FlowPlanEntry, i);
}

gsize flow_plan_sum(const FlowPlan *plan, FlowPhase phase, FlowPlace place, FlowNode *node, const char *what)
{
    gsize sum = 0;
    for (guint i = 0; i < flow_plan_entries(plan); i++) {
        const FlowPlanEntry *entry = flow_plan_entry(plan, i);
        if (entry->phase == phase && entry->place == place && (!node || entry->node == node) &&
            (!what || g_str_equal(entry->what, what)))
            sum += entry->bytes;
    }
    return sum;
}

gsize flow_plan_peak(const FlowPlan *plan, FlowPlace place)
{
    gsize peak = 0;
    for (guint phase = 0; phase < FLOW_PHASE_COUNT; phase++)
        peak = MAX(peak, flow_plan_sum(plan, (FlowPhase)phase, place, NULL, NULL));
    return peak;
}

char *const *flow_plan_notes(const FlowPlan *plan)
{
    return (char *const *)((const Plan *)plan)->notes->pdata;
}

gboolean flow_plan_get_fact(const FlowPlan *plan, const char *name, double *value)
{
    const double *found = g_hash_table_lookup(((const Plan *)plan)->facts, name);
    if (found)
        *value = *found;
    return found != NULL;
}

const char *flow_plan_get_text(const FlowPlan *plan, const char *name)
{
    return g_hash_table_lookup(((const Plan *)plan)->texts, name);
}

void flow_plan_free(FlowPlan *plan)
{
    Plan *own = (Plan *)plan;
    if (!plan)
        return;
    g_array_unref(plan->sizes);
    g_array_unref(own->entries);
    g_ptr_array_unref(own->notes);
    g_hash_table_unref(own->facts);
    g_hash_table_unref(own->texts);
    g_free(own);
}

/* -- making ------------------------------------------------------------------------- */

static FlowPlan *plan_new(gboolean no_data)
{
    Plan *own = g_new0(Plan, 1);
    own->plan.no_data = no_data;
    own->plan.sizes = g_array_new(FALSE, TRUE, sizeof(FlowPlanSize));
    own->plan.batch = own->plan.accumulate = 1;
    own->entries = g_array_new(FALSE, TRUE, sizeof(FlowPlanEntry));
    own->notes = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(own->notes, NULL);
    own->facts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    own->texts = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    return &own->plan;
}

static void add_ring(FlowPlan *plan, FlowPortState *in, gsize item_bytes)
{
    gsize bytes = in->capacity > G_MAXSIZE / MAX(item_bytes, 1) ? G_MAXSIZE : in->capacity * item_bytes;
    if (in->max_bytes)
        bytes = MAX(MIN(bytes, in->max_bytes), item_bytes);
    flow_plan_add_always(plan, NULL, FLOW_HOST, "rings", bytes);
}

/* Item size on the way into a node: the largest of its links; its rings are added. */
static gsize enter(FlowPlan *plan, FlowNode *node, const gsize *leaving)
{
    gsize largest = 0;
    for (guint i = 0; i < node->n_in; i++) {
        gsize item = 0;
        for (guint l = 0; l < node->in[i].links->len; l++) {
            const FlowEdge *edge = g_ptr_array_index(node->in[i].links, l);
            item = MAX(item, edge->feedback ? 0 : leaving[edge->from->index]);
        }
        add_ring(plan, &node->in[i], item);
        largest = MAX(largest, item);
    }
    return largest;
}

static gboolean plan_node(FlowPlan *plan, FlowNode *node, GError **error)
{
    GError *why = NULL;
    if (!node->stage->plan || node->stage->plan(node, plan, &why))
        return TRUE;
    if (!why)
        why = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "plan() failed without saying why");
    g_prefix_error(&why, "%s:%d: [%s] ", node->where.file, node->where.line, node->name);
    g_propagate_error(error, why);
    return FALSE;
}

/* -- the limit ---------------------------------------------------------------------- */

static int larger_first(gconstpointer a, gconstpointer b)
{
    const FlowPlanEntry *x = *(const FlowPlanEntry *const *)a, *y = *(const FlowPlanEntry *const *)b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* A graph on the GPU is limited in device memory, one on the CPU in all of it. */
static gsize used(const FlowGraph *graph, const FlowPlan *plan, FlowPhase phase)
{
    gsize device = flow_plan_sum(plan, phase, FLOW_DEVICE, NULL, NULL);
    return g_str_equal(graph->device, "cuda") ? device
                                              : device + flow_plan_sum(plan, phase, FLOW_HOST, NULL, NULL);
}

static gboolean within_memory(const FlowGraph *graph, const FlowPlan *plan, GError **error)
{
    enum { SHOWN = 6 };
    FlowPhase worst = FLOW_PHASE_PREFILL;
    for (guint phase = 1; phase < FLOW_PHASE_COUNT; phase++)
        if (used(graph, plan, (FlowPhase)phase) > used(graph, plan, worst))
            worst = (FlowPhase)phase;
    gsize need = used(graph, plan, worst);
    if (!graph->memory || need <= graph->memory)
        return TRUE;
    g_autoptr(GPtrArray) largest = g_ptr_array_new();
    for (guint i = 0; i < flow_plan_entries(plan); i++)
        if (flow_plan_entry(plan, i)->phase == worst)
            g_ptr_array_add(largest, (gpointer)flow_plan_entry(plan, i));
    g_ptr_array_sort(largest, larger_first);
    g_autoptr(GString) list = g_string_new(NULL);
    for (guint i = 0; i < largest->len && i < SHOWN; i++) {
        const FlowPlanEntry *entry = g_ptr_array_index(largest, i);
        g_autofree char *size = g_format_size_full(entry->bytes, G_FORMAT_SIZE_IEC_UNITS);
        g_string_append_printf(list, "%s %s%s%s%s %s", i ? "," : "", entry->node ? "[" : "",
                               entry->node ? entry->node->name : "", entry->node ? "] " : "", entry->what,
                               size);
    }
    const FlowIniSection *section = flow_ini_section(graph->ini, "graph");
    const FlowIniValue *value = section ? flow_ini_value(section, "memory") : NULL;
    g_autofree char *wanted = g_format_size_full(need, G_FORMAT_SIZE_IEC_UNITS);
    g_autofree char *missing = g_format_size_full(need - graph->memory, G_FORMAT_SIZE_IEC_UNITS);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "%s:%d: memory = %s is too little: the phase '%s' needs %s, %s more; the largest parts are%s",
                value ? value->where.file : graph->ini->path, value ? value->where.line : 0,
                value ? value->value : "?", flow_phase_name(worst), wanted, missing, list->str);
    return FALSE;
}

FlowPlan *flow_graph_plan(FlowGraph *graph, gboolean no_data, GError **error)
{
    FlowPlan *plan = plan_new(no_data);
    g_autofree gsize *leaving = g_new0(gsize, graph->nodes->len + 1);
    gboolean ok = TRUE;
    for (guint i = 0; ok && i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        plan->item_bytes = enter(plan, node, leaving);
        ok = plan_node(plan, node, error);
        leaving[i] = plan->item_bytes;
    }
    ok = ok && within_memory(graph, plan, error);
    if (!ok)
        g_clear_pointer(&plan, flow_plan_free);
    return plan;
}
