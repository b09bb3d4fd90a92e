/* The graph that a stage is measured in: something that feeds it, the stage, something that drops the rest.
 *
 *      sample and batch stages   input -> stage -> sink          input: generate, or replay of a recording
 *      with --input FOLDER       pictures -> shape -> read -> decode -> fit -> stage, as far as it needs
 *      sources                   stage -> sink
 *      stages of the loop        input -> step -> scale -> adam -> stage -> (feedback)
 *
 * What generate makes is read off the ports: the fields that they need. Stages of the loop hand a model
 * on, which nobody can make up, so they are measured in a real loop, and need its `base`. */
#include "core/cli/bench.h"
#include "core/model/model.h"
#include <string.h>

typedef struct {
    const char *name, *stage;
    const FlowPlugin *plugin;
    GPtrArray *keys, *values;
} Node;

typedef struct {
    const BenchCase *c;
    GPtrArray *nodes; /* Node * */
    Node *stage;
} Graph;

/* -- nodes --------------------------------------------------------------------------- */

static void node_free(gpointer p)
{
    Node *node = p;
    g_ptr_array_unref(node->keys);
    g_ptr_array_unref(node->values);
    g_free(node);
}

static Node *node_add(Graph *g, const char *name, const char *stage)
{
    Node *node = g_new0(Node, 1);
    node->name = name;
    node->stage = stage;
    node->plugin = flow_plugin_find(stage, NULL);
    node->keys = g_ptr_array_new_with_free_func(g_free);
    node->values = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(g->nodes, node);
    return node;
}

static void node_set(Node *node, const char *key, const char *value)
{
    guint i;
    if (g_ptr_array_find_with_equal_func(node->keys, key, g_str_equal, &i)) {
        g_free(node->values->pdata[i]);
        node->values->pdata[i] = g_strdup(value);
        return;
    }
    g_ptr_array_add(node->keys, g_strdup(key));
    g_ptr_array_add(node->values, g_strdup(value));
}

static void node_set_int(Node *node, const char *key, gint64 value)
{
    g_autofree char *text = g_strdup_printf("%" G_GINT64_FORMAT, value);
    node_set(node, key, text);
}

static Node *node_named(const Graph *g, const char *name, gsize len)
{
    for (guint i = 0; i < g->nodes->len; i++) {
        Node *node = g_ptr_array_index(g->nodes, i);
        if (strlen(node->name) == len && memcmp(node->name, name, len) == 0)
            return node;
    }
    return NULL;
}

static gboolean has_param(const FlowPlugin *plugin, const char *name, gsize len)
{
    for (const FlowParam *p = plugin ? plugin->stage->params : NULL; p && p->name; p++)
        if (strlen(p->name) == len && memcmp(p->name, name, len) == 0)
            return TRUE;
    return FALSE;
}

/* -- what the input brings ------------------------------------------------------------ */

/* Optional fields that a stage usually gets; the others change what it does. */
static gboolean usual(const char *field)
{
    static const char *const fields[] = {"path",   "file_id",   "caption", "source_size", "role",
                                         "sample", "geometry",  "scores",  "complexity",  "loss",
                                         "lr",     "grad_norm", "scale",   "samples",     NULL};
    return g_strv_contains(fields, field);
}

/* Encoded fields stand together: who needs the context gets the latents. */
static gboolean encoded(const FlowPort *port, const char *field)
{
    FlowFieldSet needs = 0;
    flow_field_parse(port->needs, &needs, NULL);
    return needs & FLOW_FIELD_BIT(FLOW_F_CONTEXT) &&
           (g_str_equal(field, "latent_mean") || g_str_equal(field, "latent_logvar"));
}

/* "a b? c?" to "a, b": what is needed and what is usual. */
static char *fields_for(const FlowPort *port)
{
    if (!port->needs || !*port->needs)
        return g_strdup(port->kind == FLOW_STEP    ? "step, flags, loss"
                        : port->kind == FLOW_BATCH ? "latent_mean, context, micro"
                                                   : "image, caption, sample");
    g_auto(GStrv) words = g_strsplit(port->needs, " ", -1);
    GString *list = g_string_new(NULL);
    for (char **word = words; *word; word++) {
        gboolean optional = g_str_has_suffix(*word, "?");
        if (optional)
            (*word)[strlen(*word) - 1] = 0;
        if (**word && (!optional || usual(*word) || encoded(port, *word)))
            g_string_append_printf(list, "%s%s", list->len ? ", " : "", *word);
    }
    /* what passes through unread is the load */
    static const char *const load[] = {"latent_mean", "latent_logvar", "context"};
    for (guint i = 0; port->kind == FLOW_BATCH && i < G_N_ELEMENTS(load); i++)
        if (!strstr(list->str, load[i]))
            g_string_append_printf(list, "%s%s", list->len ? ", " : "", load[i]);
    return g_string_free(list, FALSE);
}

static void input_for(Graph *g, Node *reader, const char *key, const FlowPort *port)
{
    static const char *const kinds[] = {"sample", "batch", "step"};
    Node *input;
    if (g->c->input) {
        input = node_add(g, "input", "replay");
        node_set(input, "path", g->c->input);
    } else {
        g_autofree char *fields = fields_for(port);
        input = node_add(g, "input", "generate");
        node_set(input, "fields", fields);
        node_set(input, "kind", kinds[port->flags & FLOW_PORT_ANY ? FLOW_SAMPLE : port->kind]);
        node_set_int(input, "items", g->c->items);
    }
    node_set(reader, key, "input");
}

/* -- a folder of pictures --------------------------------------------------------------- */

static FlowFieldSet gives(const FlowPlugin *plugin)
{
    FlowFieldSet all = 0, required, optional;
    for (const FlowPort *p = plugin ? plugin->stage->outputs : NULL; p && p->name; p++) {
        flow_field_parse(p->gives, &required, &optional);
        all |= required | optional;
    }
    return all;
}

static void pictures_for(Graph *g, const FlowPort *port)
{
    static const char *const chain[][2] = {{"pictures", "image_folder"},
                                           {"shape", "bucket"},
                                           {"read", "disk_reader"},
                                           {"decode", "decode_image"},
                                           {"fit", "resize_crop"}};
    FlowFieldSet have = 0, needs = 0;
    const char *last = NULL;
    flow_field_parse(port->needs, &needs, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(chain); i++) {
        if (g_str_equal(chain[i][1], g->stage->stage) || (i > 0 && (needs & ~have) == 0))
            break;
        Node *node = node_add(g, chain[i][0], chain[i][1]);
        if (last)
            node_set(node, "in", last);
        if (i == 0)
            node_set(node, "path", g->c->input);
        if (g_str_equal(chain[i][1], "bucket"))
            node_set(node, "resolution", "512");
        have |= gives(node->plugin);
        last = node->name;
    }
    node_set(g->stage, "in", last);
}

static gboolean is_recording(const char *path)
{
    g_autofree char *items = g_build_filename(path, "items.jsonl", NULL);
    return !g_file_test(path, G_FILE_TEST_IS_DIR) || g_file_test(items, G_FILE_TEST_EXISTS);
}

/* -- shapes of graphs -------------------------------------------------------------------- */

static gboolean feeds_back(const FlowPort *ports)
{
    for (; ports && ports->name; ports++)
        if (ports->flags & FLOW_PORT_FEEDBACK)
            return TRUE;
    return FALSE;
}

static gboolean in_loop(const FlowStage *stage)
{
    return feeds_back(stage->inputs) ||
           (stage->inputs && stage->inputs->name && stage->outputs && stage->outputs->name &&
            stage->inputs->kind == FLOW_STEP && !(stage->inputs->flags & FLOW_PORT_ANY));
}

/* Which node of the loop the stage itself stands for; NULL: it comes after the optimizer. */
static const char *role_of(const FlowPlugin *plugin)
{
    if (feeds_back(plugin->stage->inputs))
        return "step";
    if (g_str_equal(plugin->stage->name, "scaler"))
        return "scale";
    return has_param(plugin, "lr", 2) && has_param(plugin, "steps", 5) ? "adam" : NULL;
}

static void loop(Graph *g)
{
    static const char *const roles[][2] = {{"step", "lora_step"}, {"scale", "scaler"}, {"adam", "adamw"}};
    const char *mine = role_of(g->c->plugin), *last = NULL;
    Node *step = NULL, *node = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(roles); i++) {
        gboolean self = mine && g_str_equal(mine, roles[i][0]);
        node = node_add(g, self ? "stage" : roles[i][0], self ? g->c->plugin->stage->name : roles[i][1]);
        if (self)
            g->stage = node;
        if (i == 0)
            step = node;
        else
            node_set(node, "in", last);
        last = node->name;
    }
    node_set_int(node, "steps", g->c->items);
    if (!mine) {
        g->stage = node = node_add(g, "stage", g->c->plugin->stage->name);
        node_set(node, "in", last);
        if (has_param(node->plugin, "of", 2))
            node_set(node, "of", "step");
    }
    const FlowPort *ports = step->plugin ? step->plugin->stage->inputs : NULL;
    for (; ports && ports->name; ports++) {
        g_autofree char *key = g_strconcat("in.", ports->name, NULL);
        if (ports->flags & FLOW_PORT_FEEDBACK)
            node_set(step, key, node->name);
        else if (!(ports->flags & FLOW_PORT_OPTIONAL))
            input_for(g, step, key, ports);
    }
}

/* The store of a cache cannot stand without its lookup and a node between that makes what is stored. */
static void before_store(Graph *g)
{
    const FlowPort port = {.kind = FLOW_SAMPLE,
                           .needs = "path file_id caption geometry source_size pixels complexity"};
    Node *lookup = node_add(g, "lookup", "fp16_cache");
    input_for(g, lookup, "in", &port);
    Node *encode = node_add(g, "encode", "vae_encode"), *text = node_add(g, "text", "text_encode");
    node_set(encode, "in", "lookup");
    node_set(text, "in", "encode");
    node_set(g->stage, "in", "text");
    node_set(g->stage, "cache", "lookup");
}

/* What has no default: a source reads the input, the others write to a folder that is thrown away. */
static void required_params(Graph *g)
{
    const FlowStage *stage = g->c->plugin->stage;
    gboolean source = !stage->inputs || !stage->inputs->name;
    g_autofree char *out = g_build_filename(g->c->folder, stage->name, NULL);
    for (const FlowParam *p = stage->params; p && p->name; p++) {
        if (p->def)
            continue;
        if (p->type == FLOW_P_INT)
            node_set_int(g->stage, p->name, g->c->items);
        else if (p->type == FLOW_P_PATH && g_str_equal(p->name, "path") && (!source || g->c->input))
            node_set(g->stage, "path", source ? g->c->input : out);
    }
    if (has_param(g->c->plugin, "resolution", 10))
        node_set(g->stage, "resolution", "512");
}

static void chain(Graph *g)
{
    g->stage = node_add(g, "stage", g->c->plugin->stage->name);
    if (has_param(g->stage->plugin, "cache", 5) && g_str_has_suffix(g->stage->stage, "_store")) {
        before_store(g);
        return;
    }
    for (const FlowPort *p = g->c->plugin->stage->inputs; p && p->name; p++) {
        g_autofree char *key = g_strconcat("in.", p->name, NULL);
        if (p->flags & FLOW_PORT_OPTIONAL)
            continue;
        if (g->c->input && !is_recording(g->c->input))
            pictures_for(g, p);
        else if (!node_named(g, "input", 5))
            input_for(g, g->stage, key, p);
        else
            node_set(g->stage, key, "input");
    }
}

/* Every output is dropped somewhere; those of a loop go back. */
static void sink(Graph *g)
{
    GString *list = g_string_new(NULL);
    for (const FlowPort *p = g->c->plugin->stage->outputs; p && p->name; p++)
        g_string_append_printf(list, "%sstage.%s", list->len ? ", " : "", p->name);
    if (list->len)
        node_set(node_add(g, "sink", "null"), "in", list->str);
    g_string_free(list, TRUE);
}

/* -- parameters ---------------------------------------------------------------------------- */

/* Made items have the sizes that the model works with. */
static gboolean fit_model(Graph *g, const char *base, GError **error)
{
    Node *input = node_named(g, "input", 5);
    if (!input || !g_str_equal(input->stage, "generate"))
        return TRUE;
    Model *model = model_open(base, error);
    if (!model)
        return FALSE;
    node_set_int(input, "size", model_resolution(model));
    node_set_int(input, "factor", model_vae_factor(model));
    node_set_int(input, "context", model->unet.context);
    model_free(model);
    return TRUE;
}

/* "key=value" belongs to the stage, or to the first node that knows the key; "node.key=value" to that node.
 */
static gboolean set_param(Graph *g, const char *param, GError **error)
{
    const char *equals = strchr(param, '='), *dot = strchr(param, '.');
    gsize len = equals ? (gsize)(equals - param) : 0;
    Node *node = g->stage;
    gboolean found = FALSE;
    if (len == 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "'%s' is not of the form parameter=value", param);
        return FALSE;
    }
    if (dot && dot < equals && node_named(g, param, (gsize)(dot - param))) {
        node = node_named(g, param, (gsize)(dot - param));
        len -= (gsize)(dot + 1 - param);
        param = dot + 1;
        found = TRUE;
    }
    g_autofree char *key = g_strndup(param, len);
    if (g_str_equal(key, "base") && !fit_model(g, equals + 1, error))
        return FALSE;
    for (guint i = 0; !found && i < g->nodes->len; i++) {
        Node *other = g_ptr_array_index(g->nodes, i);
        /* several encoders of one graph work with one model */
        if (has_param(other->plugin, key, len) && !has_param(g->stage->plugin, key, len))
            node_set(other, key, equals + 1);
    }
    if (found || has_param(node->plugin, key, len) || !g_str_equal(key, "base"))
        node_set(node, key, equals + 1);
    return TRUE;
}

static char *print(const Graph *g)
{
    GString *text = g_string_new("[graph]\nname = bench\nseed = 1\n");
    for (guint i = 0; i < g->nodes->len; i++) {
        const Node *node = g_ptr_array_index(g->nodes, i);
        g_string_append_printf(text, "\n[%s]\nstage = %s\n", node->name, node->stage);
        for (guint k = 0; k < node->keys->len; k++)
            g_string_append_printf(text, "%s = %s\n", (char *)node->keys->pdata[k],
                                   (char *)node->values->pdata[k]);
    }
    return g_string_free(text, FALSE);
}

char *bench_graph_text(const BenchCase *c, GError **error)
{
    Graph g = {.c = c, .nodes = g_ptr_array_new_with_free_func(node_free)};
    gboolean ok = TRUE;
    if (in_loop(c->plugin->stage)) {
        loop(&g);
    } else {
        chain(&g);
        sink(&g);
    }
    required_params(&g);
    if (c->workers > 0)
        node_set_int(g.stage, "workers", c->workers);
    for (char **param = c->params; param && *param && ok; param++)
        ok = set_param(&g, *param, error);
    char *text = ok ? print(&g) : NULL;
    g_ptr_array_unref(g.nodes);
    return text;
}
