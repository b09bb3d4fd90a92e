/* Checkpoints of a graph: what a run needs to go on bit for bit, and whether a graph fits one.
 *
 * A checkpoint holds the cursor, the graph as text, the state of every node that has one, and what of the
 * machine shows in the last bits. On resume the graph may differ from the one in the file. What differs is
 * told, in three degrees:
 *
 *   harmless  workers, rings, names of files, parameters that change no result (FLOW_P_NORESULT), lengths
 *   warned    anything else outside the loop, learning rates, seed, threads, instruction set
 *   refused   another set of stages in the loop, parameters that shape the state (FLOW_P_FIXED)
 *
 * and what load() of a stage does not accept. A damaged newest file falls back to the older ones. */
#include "core/flow/checkpoint.h"
#include "core/flow/graph_private.h"
#include "kernels/kernel.h"
#include "kernels/parallel.h"
#include <stdio.h>
#include <string.h>

/* -- writing ------------------------------------------------------------------------ */

static char *machine_text(void)
{
    return g_strdup_printf("loraflow %s\nthreads %u\ncpu 0x%x\n", LORAFLOW_VERSION, net_threads(),
                           flow_cpu());
}

/* "name stage loop" a line. */
static char *nodes_text(const FlowGraph *graph)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < graph->nodes->len; i++) {
        const FlowNode *node = g_ptr_array_index(graph->nodes, i);
        g_string_append_printf(text, "%s %s %s\n", node->name, node->stage->name,
                               node->looped ? "loop" : "-");
    }
    return g_string_free(text, FALSE);
}

static gboolean add_text(FlowCheckpointWriter *writer, const char *name, char *text, GError **error)
{
    gboolean ok = flow_checkpoint_writer_add(writer, name, text, strlen(text), error);
    g_free(text);
    return ok;
}

static gboolean add_cursor(FlowCheckpointWriter *writer, const FlowCursor *next, gint64 step, GError **error)
{
    gint64 v[5] = {next->epoch, next->position, next->size, next->epochs, step};
    for (guint i = 0; i < G_N_ELEMENTS(v); i++)
        v[i] = GINT64_TO_LE(v[i]);
    return flow_checkpoint_writer_add(writer, "cursor", v, sizeof v, error);
}

/* One state at a time: the optimizer's may be large. */
static gboolean add_state(FlowCheckpointWriter *writer, FlowNode *node, GError **error)
{
    g_autoptr(GBytes) state = node->stage->save(node, error);
    if (!state) {
        if (error && !*error)
            g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "save() failed without saying why");
        g_prefix_error(error, "state of [%s]: ", node->name);
        return FALSE;
    }
    gsize n;
    gconstpointer data = g_bytes_get_data(state, &n);
    g_autofree char *name = g_strconcat("state/", node->name, NULL);
    return flow_checkpoint_writer_add(writer, name, data, n, error);
}

gboolean flow_checkpoint_write(FlowGraph *graph, const char *path, const FlowCursor *next, gint64 step,
                               guint keep, GError **error)
{
    FlowCheckpointWriter *writer = flow_checkpoint_writer_new(path, error);
    if (!writer)
        return FALSE;
    gboolean ok = add_cursor(writer, next, step, error) &&
                  add_text(writer, "graph", flow_graph_text(graph), error) &&
                  add_text(writer, "nodes", nodes_text(graph), error) &&
                  add_text(writer, "machine", machine_text(), error);
    for (guint i = 0; ok && i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        ok = !node->stage->save || add_state(writer, node, error);
    }
    if (ok)
        return flow_checkpoint_writer_close(writer, keep, error);
    flow_checkpoint_writer_drop(writer);
    return FALSE;
}

/* -- finding a file that is whole ----------------------------------------------------- */

/* The newest whole one of PATH, PATH.1, ... */
static FlowCheckpointFile *open_newest(const char *path, char **found, GError **error)
{
    g_autoptr(GString) faults = g_string_new(NULL);
    for (guint i = 0;; i++) {
        g_autofree char *name = i ? g_strdup_printf("%s.%u", path, i) : g_strdup(path);
        g_autoptr(GError) why = NULL;
        if (!g_file_test(name, G_FILE_TEST_EXISTS)) {
            if (i == 0)
                continue; /* killed between two renames on a file system without links */
            break;
        }
        FlowCheckpointFile *file = flow_checkpoint_file_open(name, &why);
        if (file) {
            if (i)
                g_printerr("warning: %s%s; going on from the older %s\n", faults->len ? faults->str : path,
                           faults->len ? "" : " does not exist", name);
            *found = g_steal_pointer(&name);
            return file;
        }
        g_string_append_printf(faults, "%s%s is %s", faults->len ? ", " : "", name, why->message);
    }
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                faults->len ? "cannot resume: %s" : "cannot resume: there is no checkpoint %s",
                faults->len ? faults->str : path);
    return NULL;
}

static char *part_text(FlowCheckpointFile *file, const char *name)
{
    g_autoptr(GBytes) bytes = flow_checkpoint_file_part(file, name);
    gsize n = 0;
    const char *text = bytes ? g_bytes_get_data(bytes, &n) : "";
    return g_strndup(text, n);
}

char *flow_checkpoint_graph(const char *path, GError **error)
{
    g_autofree char *found = NULL;
    FlowCheckpointFile *file = open_newest(path, &found, error);
    char *text = file ? part_text(file, "graph") : NULL;
    flow_checkpoint_file_free(file);
    return text;
}

/* -- differences ---------------------------------------------------------------------- */

typedef struct {
    FlowGraph *graph;
    FlowIni *now, *then;
    GHashTable *looped; /* names of nodes that were in the loop */
    GHashTable *stages; /* name -> stage, then */
    GString *refused;
} Compare;

typedef enum { HARMLESS, WARNED, REFUSED } Degree;

static void differs(Compare *compare, FlowNode *node, Degree degree, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
static void differs(Compare *compare, FlowNode *node, Degree degree, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    if (degree == REFUSED)
        g_string_append_printf(compare->refused, "%s%s%s%s%s", compare->refused->len ? "; " : "",
                               node ? "[" : "", node ? node->name : "", node ? "] " : "", text);
    else if (!node)
        g_printerr("%sresume: %s\n", degree == WARNED ? "warning: " : "", text);
    else if (degree == WARNED)
        flow_node_warn(node, "resume: %s", text);
    else
        flow_node_info(node, "resume: %s", text);
}

static const char *value_of(const FlowIniSection *section, const char *key)
{
    const FlowIniValue *value = section ? flow_ini_value(section, key) : NULL;
    return value ? value->value : NULL;
}

/* The value in the one spelling, its default where it was not written. Returns new. */
static char *canonical(const FlowParam *param, const char *text)
{
    union {
        gint64 i;
        double d;
        gpointer p;
    } scratch = {0};
    FlowParam moved[2] = {*param, {0}};
    moved[0].offset = 0;
    text = text ? text : param->def ? param->def : "";
    if (param->type == FLOW_P_NODE || !flow_param_set(moved, &scratch, text, "/", NULL))
        return g_strdup(text);
    char *spelled = flow_param_text(moved, &scratch);
    flow_param_clear(moved, &scratch);
    return spelled;
}

static void compare_params(Compare *compare, FlowNode *node, const FlowIniSection *then)
{
    const FlowIniSection *now = flow_ini_section(compare->now, node->name);
    for (const FlowParam *param = node->stage->params; param && param->name; param++) {
        g_autofree char *a = canonical(param, value_of(then, param->name));
        g_autofree char *b = canonical(param, value_of(now, param->name));
        Degree degree = (param->flags & FLOW_P_FIXED)      ? REFUSED
                        : (param->flags & FLOW_P_NORESULT) ? HARMLESS
                                                           : WARNED;
        if (!g_str_equal(a, b))
            differs(compare, node, degree, "%s = %s, the checkpoint was made with %s", param->name, b, a);
    }
}

static gboolean is_param(const FlowStage *stage, const char *key)
{
    for (const FlowParam *param = stage->params; param && param->name; param++)
        if (g_str_equal(param->name, key))
            return TRUE;
    return FALSE;
}

/* Keys that every node has, and those of [graph]: from `a`, what is other or absent in `b`. */
static void compare_keys(Compare *compare, FlowNode *node, const FlowIniSection *a, const FlowIniSection *b,
                         gboolean a_is_now)
{
    for (guint i = 0; a && i < a->values->len; i++) {
        const FlowIniValue *value = g_ptr_array_index(a->values, i);
        const char *other = value_of(b, value->key);
        if (node && (is_param(node->stage, value->key) || g_str_equal(value->key, "stage")))
            continue;
        if (other && (!a_is_now || g_str_equal(other, value->value)))
            continue; /* the same, or told when the other side was walked */
        gboolean matters = node ? g_str_has_prefix(value->key, "in.")
                                : g_str_equal(value->key, "seed") || g_str_equal(value->key, "device");
        differs(compare, node, matters ? WARNED : HARMLESS, "%s = %s, the checkpoint was made with %s",
                value->key, a_is_now ? value->value : "(not set)",
                a_is_now ? (other ? other : "(not set)") : value->value);
    }
}

static void compare_node(Compare *compare, FlowNode *node)
{
    const char *stage = g_hash_table_lookup(compare->stages, node->name);
    gboolean looped = node->looped || g_hash_table_contains(compare->looped, node->name);
    const FlowIniSection *now = flow_ini_section(compare->now, node->name);
    const FlowIniSection *then = flow_ini_section(compare->then, node->name);
    if (!stage) {
        differs(compare, node, looped ? REFUSED : WARNED, "this node is not in the checkpoint");
    } else if (!g_str_equal(stage, node->stage->name)) {
        differs(compare, node, looped ? REFUSED : WARNED, "stage = %s, the checkpoint was made with %s",
                node->stage->name, stage);
    } else {
        compare_params(compare, node, then);
        compare_keys(compare, node, now, then, TRUE);
        compare_keys(compare, node, then, now, FALSE);
    }
}

static void compare_machine(Compare *compare, const char *then)
{
    g_autofree char *now = machine_text();
    g_auto(GStrv) a = g_strsplit(then, "\n", -1), b = g_strsplit(now, "\n", -1);
    for (guint i = 0; a[i] && b[i]; i++)
        if (!g_str_equal(a[i], b[i]))
            differs(compare, NULL, WARNED, "%s, the checkpoint was made with %s: the last bits may differ",
                    b[i], a[i]);
}

static void read_nodes(Compare *compare, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line; line++) {
        g_auto(GStrv) words = g_strsplit(*line, " ", 3);
        if (g_strv_length(words) != 3)
            continue;
        g_hash_table_insert(compare->stages, g_strdup(words[0]), g_strdup(words[1]));
        if (g_str_equal(words[2], "loop"))
            g_hash_table_add(compare->looped, g_strdup(words[0]));
    }
}

static int by_text(gconstpointer a, gconstpointer b)
{
    return strcmp(a, b);
}

static void compare_gone(Compare *compare)
{
    GList *names = g_list_sort(g_hash_table_get_keys(compare->stages), by_text);
    for (GList *name = names; name; name = name->next)
        if (!flow_graph_node_named(compare->graph, name->data))
            differs(compare, NULL, g_hash_table_contains(compare->looped, name->data) ? REFUSED : WARNED,
                    "the checkpoint has a node [%s] (%s), this graph has not", (char *)name->data,
                    (char *)g_hash_table_lookup(compare->stages, name->data));
    g_list_free(names);
}

/* FALSE with all that is refused. */
static gboolean compare_all(FlowGraph *graph, FlowCheckpointFile *file, const char *path, GError **error)
{
    g_autofree char *then = part_text(file, "graph"), *now = flow_graph_text(graph);
    g_autofree char *nodes = part_text(file, "nodes"), *machine = part_text(file, "machine");
    FlowMessages *messages = flow_messages_new();
    Compare compare = {.graph = graph,
                       .now = flow_ini_read_text(path, "/", now, strlen(now), NULL, NULL, messages),
                       .then = flow_ini_read_text(path, "/", then, strlen(then), NULL, NULL, messages),
                       .looped = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL),
                       .stages = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free),
                       .refused = g_string_new(NULL)};
    read_nodes(&compare, nodes);
    const FlowIniSection *graph_now = flow_ini_section(compare.now, "graph");
    const FlowIniSection *graph_then = flow_ini_section(compare.then, "graph");
    compare_keys(&compare, NULL, graph_now, graph_then, TRUE);
    compare_keys(&compare, NULL, graph_then, graph_now, FALSE);
    for (guint i = 0; i < graph->nodes->len; i++)
        compare_node(&compare, g_ptr_array_index(graph->nodes, i));
    compare_gone(&compare);
    compare_machine(&compare, machine);
    gboolean ok = compare.refused->len == 0;
    if (!ok)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "%s cannot be resumed with this graph: %s", path, compare.refused->str);
    g_string_free(compare.refused, TRUE);
    g_hash_table_unref(compare.looped);
    g_hash_table_unref(compare.stages);
    flow_ini_free(compare.now);
    flow_ini_free(compare.then);
    flow_messages_free(messages);
    return ok;
}

/* -- reading ------------------------------------------------------------------------ */

static gboolean load_state(FlowNode *node, FlowCheckpointFile *file, const char *path, GError **error)
{
    g_autofree char *name = g_strconcat("state/", node->name, NULL);
    g_autoptr(GBytes) state = flow_checkpoint_file_part(file, name);
    if (!node->stage->load || (!state && !node->looped))
        return TRUE;
    GError *why = NULL;
    if (!state)
        why = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "%s has no state of this node", path);
    else if (node->stage->load(node, state, &why))
        return TRUE;
    else if (!why)
        why = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "load() failed without saying why");
    g_prefix_error(&why, "%s:%d: [%s] ", node->where.file, node->where.line, node->name);
    g_propagate_error(error, why);
    return FALSE;
}

static gboolean read_cursor(FlowGraph *graph, FlowCheckpointFile *file, const char *path, GError **error)
{
    g_autoptr(GBytes) bytes = flow_checkpoint_file_part(file, "cursor");
    gint64 v[5];
    if (!bytes || g_bytes_get_size(bytes) != sizeof v) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "%s has no cursor", path);
        return FALSE;
    }
    memcpy(v, g_bytes_get_data(bytes, NULL), sizeof v);
    for (guint i = 0; i < G_N_ELEMENTS(v); i++)
        v[i] = GINT64_FROM_LE(v[i]);
    graph->start = (FlowCursor){.epoch = v[0], .position = v[1], .size = v[2], .epochs = v[3]};
    graph->resumed = TRUE;
    graph->step = v[4];
    return TRUE;
}

gboolean flow_checkpoint_read(FlowGraph *graph, const char *path, GError **error)
{
    g_autofree char *found = NULL;
    FlowCheckpointFile *file = open_newest(path, &found, error);
    if (!file)
        return FALSE;
    gboolean ok = compare_all(graph, file, found, error) && read_cursor(graph, file, found, error);
    for (guint i = 0; ok && i < graph->nodes->len; i++)
        ok = load_state(g_ptr_array_index(graph->nodes, i), file, found, error);
    flow_checkpoint_file_free(file);
    return ok;
}
