/* How a field is made, as a hash for cache keys.
 *
 *   F(field) = H(recipe of the node that gives it, F of each field which that node needs)
 *
 * followed against the links until the lookup, where fields enter by value. A recipe is the stage, its
 * version, the parameters that change the result, and what recipe() says (a hash of weights). Node names
 * and everything that does not change a result (workers, rings, NORESULT parameters) stay out, so a
 * renamed node still hits. Each field has its own hash: a changed caption keeps the picture's entries.
 *
 * The hash is taken over a text, one per field, which names the hashes of what went in: it can be
 * printed and compared when two runs do not agree. */
#include "core/flow/graph_private.h"
#include <string.h>
#include <xxhash.h>

typedef struct {
    FlowNode *from;
    gboolean hashing; /* else only the visited nodes are wanted */
    FlowFieldSet by_value;
    GHashTable *done;   /* "node/field" -> hash */
    GPtrArray *visited; /* FlowNode *: gave something on the way */
    GError *error;
} Trace;

static void hash_text(const GString *text, char out[33])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text->str, text->len));
    for (guint i = 0; i < 16; i++)
        g_snprintf(out + 2 * i, 3, "%02x", canonical.digest[i]);
}

/* -- one node ----------------------------------------------------------------------- */

/* The text that recipe() adds, asked for once: it may hash gigabytes of weights. NULL with error. */
static const char *own_recipe(FlowNode *node, GError **error)
{
    if (!node->recipe) {
        node->recipe = node->stage->recipe ? node->stage->recipe(node, error) : g_strdup("");
        if (!node->recipe && error && !*error)
            g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                        "recipe() failed without saying why");
        if (!node->recipe)
            g_prefix_error(error, "[%s] ", node->name);
    }
    return node->recipe;
}

/* A node that is named in a parameter counts by its stage and its recipe() only: its parameters are mostly
 * about other things (a learning rate does not change an encoder that it shares). */
static gboolean append_node_param(GString *text, FlowNode *node, const FlowParam *param, GError **error)
{
    FlowNode *other = *(FlowNode **)((char *)node->state + param->offset);
    const char *recipe = other ? own_recipe(other, error) : "";
    if (!recipe)
        return FALSE;
    g_string_append_printf(text, "%s=%s %s\n", param->name, other ? other->stage->name : "", recipe);
    return TRUE;
}

static gboolean append_node(GString *text, FlowNode *node, GError **error)
{
    g_string_append_printf(text, "stage=%s version=%u\n", node->stage->name, node->stage->version);
    for (guint i = 0; i < flow_param_count(node->stage->params); i++) {
        const FlowParam *param = &node->stage->params[i];
        if (param->flags & FLOW_P_NORESULT)
            continue;
        if (param->type == FLOW_P_NODE) {
            if (!append_node_param(text, node, param, error))
                return FALSE;
            continue;
        }
        g_autofree char *value = flow_param_text(param, node->state);
        g_string_append_printf(text, "%s=%s\n", param->name, value);
    }
    const char *recipe = own_recipe(node, error);
    if (recipe)
        g_string_append_printf(text, "recipe=%s\n", recipe);
    return recipe != NULL;
}

/* -- following a field -------------------------------------------------------------- */

static void trace_input(Trace *trace, FlowPortState *in, FlowField field, GString *text);

static void trace_needs(Trace *trace, FlowNode *node, GString *text)
{
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *in = &node->in[i];
        FlowFieldSet needs = (in->required | in->optional) & in->fields;
        for (guint f = 0; !flow__port_feedback(in) && f < FLOW_FIELD_MAX; f++)
            if (needs & FLOW_FIELD_BIT(f)) {
                g_string_append_printf(text, "%s %s:", in->port->name, flow_field_info((FlowField)f)->name);
                trace_input(trace, in, (FlowField)f, text);
                g_string_append_c(text, '\n');
            }
    }
}

/* Adds the hash of a field that `out` gives. */
static void trace_giver(Trace *trace, FlowPortState *out, FlowField field, GString *text)
{
    FlowNode *node = out->node;
    g_autofree char *key = g_strdup_printf("%u/%u/%u", node->index, out->index, field);
    const char *known = g_hash_table_lookup(trace->done, key);
    if (known) {
        g_string_append_printf(text, " %s", known);
        return;
    }
    if (node->n_in == 0 && !trace->error)
        g_set_error(&trace->error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "'%s' comes from [%s], which the lookup [%s] does not see", flow_field_info(field)->name,
                    node->name, trace->from->name);
    g_ptr_array_add(trace->visited, node);
    g_autoptr(GString) own = g_string_new(NULL);
    g_string_append_printf(own, "field=%s output=%s\n", flow_field_info(field)->name, out->port->name);
    if (trace->hashing && !trace->error)
        append_node(own, node, &trace->error);
    trace_needs(trace, node, own);
    char hash[33];
    hash_text(own, hash);
    g_hash_table_insert(trace->done, g_steal_pointer(&key), g_strdup(hash));
    g_string_append_printf(text, " %s", hash);
}

static void trace_input(Trace *trace, FlowPortState *in, FlowField field, GString *text)
{
    FlowFieldSet bit = FLOW_FIELD_BIT(field);
    for (guint l = 0; l < in->links->len; l++) {
        FlowLink *link = g_ptr_array_index(in->links, l);
        FlowNode *node = link->edge.from;
        if (!(link->edge.fields & bit))
            continue;
        if (node == trace->from) {
            trace->by_value |= bit;
            g_string_append(text, " value");
        } else if ((link->out->required | link->out->optional) & bit) {
            trace_giver(trace, link->out, field, text);
        } else {
            for (guint i = 0; i < node->n_in; i++)
                if (!flow__port_feedback(&node->in[i]))
                    trace_input(trace, &node->in[i], field, text);
        }
    }
}

static void trace_begin(Trace *trace, FlowNode *from, gboolean hashing)
{
    *trace = (Trace){.from = from,
                     .hashing = hashing,
                     .done = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free),
                     .visited = g_ptr_array_new()};
}

static void trace_end(Trace *trace)
{
    g_hash_table_unref(trace->done);
    g_ptr_array_unref(trace->visited);
    g_clear_error(&trace->error);
}

static void trace_field(Trace *trace, FlowNode *to, FlowField field, GString *text)
{
    for (guint i = 0; i < to->n_in; i++)
        if (!flow__port_feedback(&to->in[i]))
            trace_input(trace, &to->in[i], field, text);
}

static FlowFieldSet keyless_fields(void)
{
    FlowFieldSet set = 0;
    const FlowFieldInfo *info;
    for (guint f = 0; f < FLOW_FIELD_MAX && (info = flow_field_info((FlowField)f)); f++)
        if (info->flags & FLOW_FIELD_NOKEY)
            set |= FLOW_FIELD_BIT(f);
    return set;
}

gboolean flow_node_recipe(FlowNode *from, FlowNode *to, FlowField field, guint8 hash[16],
                          FlowFieldSet *by_value, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    Trace trace;
    trace_begin(&trace, from, TRUE);
    trace_field(&trace, to, field, text);
    gboolean ok = trace.visited->len > 0 && !trace.error;
    if (ok) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(text->str, text->len));
        memcpy(hash, canonical.digest, 16);
        *by_value = trace.by_value & ~keyless_fields();
    } else if (trace.error) {
        g_propagate_error(error, g_steal_pointer(&trace.error));
    }
    trace_end(&trace);
    return ok;
}

/* -- skipping what a cache has ------------------------------------------------------ */

void flow_node_stores(FlowNode *lookup, FlowNode *store, FlowFieldSet fields)
{
    FlowCachePair pair = {lookup, store, fields};
    g_array_append_val(store->graph->caches, pair);
}

/* Notes for each node between the two which stored fields come from it. */
static void note_results(const FlowCachePair *pair, FlowMessages *messages)
{
    for (guint f = 0; f < FLOW_FIELD_MAX; f++) {
        if (!(pair->fields & FLOW_FIELD_BIT(f)))
            continue;
        g_autoptr(GString) text = g_string_new(NULL);
        Trace trace;
        trace_begin(&trace, pair->lookup, FALSE);
        trace_field(&trace, pair->store, (FlowField)f, text);
        for (guint i = 0; i < trace.visited->len; i++)
            ((FlowNode *)g_ptr_array_index(trace.visited, i))->results |= FLOW_FIELD_BIT(f);
        if (trace.error)
            flow_error(messages, pair->store->where, "[%s] %s", pair->store->name, trace.error->message);
        trace_end(&trace);
    }
}

/* What nodes that may be skipped give beside the stored fields; a node that needs such a field is skipped
 * too. */
static FlowFieldSet lost_fields(const FlowCachePair *pair, guint number)
{
    FlowGraph *graph = pair->store->graph;
    FlowFieldSet made = 0, known = 0;
    for (guint i = 0; i < pair->lookup->n_out; i++)
        known |= pair->lookup->out[i].fields;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        FlowFieldSet needs = 0, gives = 0;
        if (node->between != number || !node->stage)
            continue;
        for (guint p = 0; p < node->n_in; p++)
            needs |= node->in[p].required;
        for (guint p = 0; p < node->n_out; p++)
            gives |= node->out[p].required | node->out[p].optional;
        if (node->results || (needs & made))
            made |= gives;
    }
    return made & ~pair->fields & ~known;
}

static void follow_pair(const FlowCachePair *pair, guint number, FlowMessages *messages)
{
    FlowNode *lookup = pair->lookup, *store = pair->store;
    FlowGraph *graph = store->graph;
    if (!flow_node_leads_to(lookup, store)) {
        flow_error(messages, store->where, "[%s] the lookup [%s] is not before it", store->name,
                   lookup->name);
        return;
    }
    for (guint i = lookup->index + 1; i < store->index; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        if (!flow_node_leads_to(lookup, node) || !flow_node_leads_to(node, store))
            continue;
        if (node->between)
            flow_error(messages, node->where, "[%s] lies between two caches and their stores", node->name);
        node->between = number;
    }
    note_results(pair, messages);
    store->lost = lost_fields(pair, number);
}

void flow__cache_follow(FlowNode *node, FlowMessages *messages)
{
    for (guint i = 0; i < node->graph->caches->len; i++) {
        const FlowCachePair *pair = &g_array_index(node->graph->caches, FlowCachePair, i);
        if (pair->store != node)
            continue;
        follow_pair(pair, i + 1, messages);
        for (guint p = 0; p < node->n_out; p++)
            for (guint l = 0; l < node->out[p].links->len; l++)
                ((FlowLink *)g_ptr_array_index(node->out[p].links, l))->strip |= node->lost;
    }
}

gboolean flow__cache_skips(const FlowNode *node, const FlowItem *item)
{
    if (!node->between || (node->stage->flags & FLOW_PENDING) || item->kind == FLOW_MARK)
        return FALSE;
    if (node->results)
        return item->pending || !(node->results & ~item->filled);
    FlowFieldSet missing = 0;
    for (guint i = 0; i < node->n_in; i++)
        missing |= node->in[i].required & ~item->has;
    return missing && (item->pending || item->filled);
}
