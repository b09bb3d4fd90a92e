/* Every stage on the path through every lifecycle: nothing has to be written for a new one.
 *
 *   description   parameters at default, least and most are taken, beyond is refused with its line
 *   lifecycle     opened and closed twice; no item, one item, many; torn down in the middle; a consumer that
 *                 ends early; errors name the node; outputs are of the declared kind with the declared
 * fields; nothing is left workers       the same output for 1, 2 and 8 workers of a parallel stage
 *
 * Items come from `generate`, by what the ports need. The table names what else a stage wants, and says why
 * where one cannot run alone (those of the training loop are run by tests/stages/loop.c).
 *
 * @label short
 * @timeout 120
 */
#include "core/flow/param.h"
#include "tests/stages/harness.h"
#include "tests/stages/item_text.h"
#include <math.h>

enum { ITEMS = 12 };

static char *scratch; /* folder for what stages write: $SCRATCH in the table */

typedef struct {
    const char *stage;
    const char *keys;  /* of its section */
    const char *feed;  /* nodes whose last, [feed], gives the items; NULL = generate */
    const char *alone; /* why it cannot run alone; NULL = it can */
} Needs;

static const char *const pictures = "[feed]\nstage = image_folder\npath = demo/pictures\nepochs = 1\n";
static const char *const scored = "[src]\nstage = image_folder\npath = demo/pictures\nepochs = 1\n"
                                  "[sized]\nstage = bucket\nin = src\nresolution = 64\n"
                                  "[feed]\nstage = score\nin = sized\n";

static const Needs table[] = {
    {"image_folder", "path = demo/pictures\nepochs = 1\n", NULL, NULL},
    {"generate", "items = 12\n", NULL, NULL},
    {"replay", "path = $SCRATCH/recording\n", NULL, NULL},
    {"dump", "path = $SCRATCH/dump\n", NULL, NULL},
    {"limit", "items = 5\n", NULL, NULL},
    {"delay", "ms = 1\n", NULL, NULL},
    {"bucket", "resolution = 64\n", pictures, NULL},
    {"score", "",
     "[src]\nstage = image_folder\npath = demo/pictures\nepochs = 1\n"
     "[feed]\nstage = bucket\nin = src\nresolution = 64\n",
     NULL},
    {"disk_reader", "", pictures, NULL},
    {"sparse_batch", "batch = 4\n", scored, NULL},
    {"collate", "batch = 2\n",
     "[feed]\nstage = generate\nitems = 12\nsize = 32\ncontext = 16\n"
     "fields = context, latent_mean, latent_logvar, sample\n",
     NULL},
    {"monitor", "log = $SCRATCH/log.jsonl\n", NULL, NULL},
    {"vae_encode", "base = demo/base\n", NULL, "encodes with a model: tests/stages/encode.c"},
    {"text_encode", "base = demo/base\n", NULL, "encodes with a model: tests/stages/encode.c"},
    {"fp16_cache", NULL, NULL, "works with its store"},
    {"fp16_cache_store", NULL, NULL, "works with its lookup"},
    {"lora_step", NULL, NULL, "the training loop"},
    {"scaler", NULL, NULL, "the training loop"},
    {"adamw", NULL, NULL, "the training loop"},
    {"validate", NULL, NULL, "the training loop"},
    {"save_lora", NULL, NULL, "the training loop"},
    {"checkpoint", NULL, NULL, "the training loop"},
};

static const Needs *needs_of(const char *stage)
{
    for (guint i = 0; i < G_N_ELEMENTS(table); i++)
        if (g_str_equal(table[i].stage, stage))
            return &table[i];
    return NULL;
}

static char *keys_of(const FlowStage *stage, const char *more)
{
    const Needs *needs = needs_of(stage->name);
    g_auto(GStrv) parts = g_strsplit(needs && needs->keys ? needs->keys : "", "$SCRATCH", -1);
    g_autofree char *keys = g_strjoinv(scratch, parts);
    return g_strconcat(keys, more, NULL);
}

/* -- descriptions --------------------------------------------------------------------- */

static char *number_text(const FlowParam *param, double x)
{
    char buffer[G_ASCII_DTOSTR_BUF_SIZE];
    if (param->type == FLOW_P_FLOAT)
        return g_strdup(g_ascii_dtostr(buffer, sizeof buffer, x));
    return g_strdup_printf("%.0f", x);
}

static void try_number(const FlowParam *param, gpointer state, double x, gboolean fits)
{
    g_autofree char *text = number_text(param, x);
    g_autoptr(GError) error = NULL;
    gboolean taken = flow_param_set(param, state, text, "/", &error);
    if (taken != fits)
        g_error("%s = %s is %s", param->name, text, taken ? "taken" : error->message);
}

/* The least and the most fit, one more does not. */
static void check_range(const FlowParam *param, gpointer state)
{
    gboolean integer = param->type != FLOW_P_FLOAT;
    if (param->type != FLOW_P_INT && param->type != FLOW_P_SIZE && param->type != FLOW_P_FLOAT)
        return;
    double step = integer ? 1 : 1e-3;
    try_number(param, state, param->min, TRUE);
    if (param->max < 9e15) {
        try_number(param, state, param->max, TRUE);
        try_number(param, state, param->max + MAX(step, fabs(param->max) * 1e-6), FALSE);
    }
    if (param->min > -9e15 && (param->type != FLOW_P_SIZE || param->min > 0))
        try_number(param, state, param->min - MAX(step, fabs(param->min) * 1e-6), FALSE);
}

/* A value beyond the range in a graph file: the message has file and line. */
static void check_message(const FlowStage *stage, const FlowParam *param)
{
    if (param->type != FLOW_P_INT || param->max > 9e15)
        return;
    g_autofree char *text =
        g_strdup_printf("[it]\nstage = %s\n%s = %.0f\n", stage->name, param->name, param->max + 1);
    g_autofree char *expected = g_strdup_printf("c.ini:3: error: [it] %s = ", param->name);
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read_text("c.ini", ".", text, strlen(text), NULL, NULL, messages);
    flow_graph_free(flow_graph_load(ini, messages));
    g_autofree char *said = flow_messages_text(messages);
    flow_messages_free(messages);
    if (!strstr(said, expected))
        g_error("'%s' does not say '%s'", said, expected);
}

static void test_description(gconstpointer name)
{
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = flow_plugin_find(name, &error);
    g_assert_no_error(error);
    const FlowStage *stage = plugin->stage;
    g_autofree gpointer state = g_malloc0(stage->state_size + 1);
    for (const FlowParam *param = stage->params; param && param->name; param++) {
        check_range(param, state);
        check_message(stage, param);
        if (param->def)
            g_assert_true(flow_param_set(param, state, param->def, "/", NULL));
    }
    flow_param_clear(stage->params, state);
    g_assert_true(g_str_has_suffix(stage->summary, "."));
    for (const FlowPort *port = stage->inputs; port && port->name; port++)
        g_assert_true(g_str_has_suffix(port->doc, "."));
    for (const FlowPort *port = stage->outputs; port && port->name; port++)
        g_assert_true(g_str_has_suffix(port->doc, "."));
}

/* -- feeding ------------------------------------------------------------------------ */

static GPtrArray *no_items(void)
{
    return g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
}

/* `generate` for a port: what it needs. */
static char *generate_text(const FlowPort *port)
{
    static const char *const kinds[] = {"sample", "batch", "step"};
    FlowFieldSet required = 0;
    flow_field_parse(port->needs, &required, NULL);
    g_autoptr(GString) fields = g_string_new(NULL);
    for (guint f = 0; f < FLOW_FIELD_MAX; f++)
        if (required & FLOW_FIELD_BIT(f))
            g_string_append_printf(fields, "%s%s", fields->len ? ", " : "",
                                   flow_field_info((FlowField)f)->name);
    return g_strdup_printf("[feed]\nstage = generate\nitems = %d\nwidth = 64\nheight = 48\nsize = "
                           "32\ncontext = 16\nkind = %s\n%s%s\n",
                           ITEMS, kinds[port->kind], fields->len ? "fields = " : "", fields->str);
}

/* Runs the nodes and keeps what [feed] gives. */
static GPtrArray *feed_for(const FlowStage *stage, const FlowPort *port)
{
    const Needs *needs = needs_of(stage->name);
    g_autofree char *nodes = needs && needs->feed ? g_strdup(needs->feed) : generate_text(port);
    Harness h = {.queues = g_ptr_array_new()};
    harness_setup();
    g_autofree char *text =
        g_strdup_printf("%s[out]\nstage = harness_out\nqueue = %u\nin = feed\n", nodes, harness_queues->len);
    harness_add_queue(&h, "out");
    FlowMessages *messages = flow_messages_new();
    g_autoptr(GError) error = NULL;
    g_autofree char *base = g_get_current_dir();
    FlowIni *ini = flow_ini_read_text("feed.ini", base, text, strlen(text), NULL, NULL, messages);
    FlowGraph *graph = flow_graph_load(ini, messages);
    flow_graph_check(graph, messages);
    g_autofree char *said = flow_messages_text(messages);
    if (messages->errors)
        g_error("%s", said);
    flow_messages_free(messages);
    flow_graph_open(graph, &error);
    g_assert_no_error(error);
    flow_graph_run(graph, NULL, &error);
    g_assert_no_error(error);
    flow_graph_free(graph);
    HarnessQueue *queue = g_ptr_array_index(h.queues, 0);
    GPtrArray *items = no_items();
    for (FlowItem *item; (item = g_queue_pop_head(&queue->items));)
        if (item->kind != FLOW_MARK && items->len < ITEMS && item->cursor.epoch >= 0)
            g_ptr_array_add(items, item);
        else
            flow_item_unref(item);
    harness_free_queue(queue);
    g_ptr_array_unref(h.queues);
    g_assert_cmpuint(items->len, ==, ITEMS);
    return items;
}

typedef struct {
    const FlowStage *stage;
    guint n_ports;
    GPtrArray *feeds[8]; /* items of each flowing input */
} Case;

static const FlowPort *flowing_port(const FlowStage *stage, guint n)
{
    for (const FlowPort *port = stage->inputs; port && port->name; port++)
        if (!(port->flags & FLOW_PORT_FEEDBACK) && n-- == 0)
            return port;
    return NULL;
}

static void prepare(Case *c, const FlowStage *stage)
{
    c->stage = stage;
    for (c->n_ports = 0; flowing_port(stage, c->n_ports); c->n_ports++)
        c->feeds[c->n_ports] = feed_for(stage, flowing_port(stage, c->n_ports));
}

static void push(Harness *h, const Case *c, guint n)
{
    for (guint p = 0; p < c->n_ports; p++)
        for (guint i = 0; i < n; i++)
            harness_push(h, flowing_port(c->stage, p)->name,
                         flow_item_ref(g_ptr_array_index(c->feeds[p], i)));
}

/* -- lifecycles --------------------------------------------------------------------- */

static Harness *start(const Case *c, const char *more)
{
    g_autofree char *keys = keys_of(c->stage, more), *said = NULL;
    Harness *h = harness_try(c->stage->name, keys, &said);
    if (!h)
        g_error("%s", said);
    return h;
}

static void check_output(const FlowPort *port, const FlowItem *item)
{
    FlowFieldSet gives = 0;
    if (item->kind == FLOW_MARK)
        return;
    flow_field_parse(port->gives, &gives, NULL);
    if (!(port->flags & FLOW_PORT_ANY))
        g_assert_cmpint(item->kind, ==, port->kind);
    for (guint f = 0; f < FLOW_FIELD_MAX; f++)
        if (gives & ~item->has & FLOW_FIELD_BIT(f))
            g_error("'%s' was declared and is not given", flow_field_info((FlowField)f)->name);
}

/* Everything that came out, as text. Returns new. */
static char *collect(Harness *h, const FlowStage *stage)
{
    GString *text = g_string_new(NULL);
    for (const FlowPort *port = stage->outputs; port && port->name; port++)
        for (FlowItem *item; (item = harness_pull(h, port->name));) {
            g_autofree char *one = item_text(item);
            check_output(port, item);
            g_string_append_printf(text, "%s: %s\n", port->name, one);
            flow_item_unref(item);
        }
    return g_string_free(text, FALSE);
}

/* A run may fail (a stage may want at least one item), but says where and why. */
static void assert_ended_well(FlowRunStatus status, const char *said)
{
    if (status == FLOW_RUN_FAILED && !g_str_has_prefix(said, "harness.ini:"))
        g_error("no place in: %s", said);
    if (said && strstr(said, "without saying why"))
        g_error("%s", said);
    if (said && strstr(said, "without a message"))
        g_error("%s", said);
    g_assert_cmpint(status, !=, FLOW_RUN_STALLED);
}

static char *run_items(const Case *c, const char *more, guint n)
{
    Harness *h = start(c, more);
    g_autofree char *said = NULL;
    harness_start(h);
    push(h, c, n);
    harness_end(h);
    char *out = collect(h, c->stage);
    FlowRunStatus status = harness_finish(h, &said);
    assert_ended_well(status, said);
    if (n > 1 && status != FLOW_RUN_DONE)
        g_error("%s", said);
    return out;
}

static void open_and_close(const Case *c)
{
    for (guint i = 0; i < 2; i++)
        harness_free(start(c, ""));
}

static void torn_down(const Case *c)
{
    Harness *h = start(c, "");
    g_autofree char *said = NULL;
    gint64 begin = g_get_monotonic_time();
    harness_start(h);
    push(h, c, ITEMS);
    flow_graph_stop(h->graph);
    flow_graph_stop(h->graph);
    FlowRunStatus status = harness_finish(h, &said);
    assert_ended_well(status, said);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 5000000);
}

static void consumer_ends(const Case *c)
{
    Harness *h = start(c, "");
    g_autofree char *said = NULL;
    for (const FlowPort *port = c->stage->outputs; port && port->name; port++)
        harness_accept(h, port->name, 1);
    harness_start(h);
    push(h, c, ITEMS);
    harness_end(h);
    FlowRunStatus status = harness_finish(h, &said);
    if (status != FLOW_RUN_DONE)
        g_error("%s", said);
}

static void workers_agree(const Case *c, const char *expected)
{
    const char *const keys[] = {"workers = 2\n", "workers = 8\n"};
    for (guint i = 0; i < G_N_ELEMENTS(keys) && (c->stage->flags & FLOW_PARALLEL); i++) {
        g_setenv("FLOW_STALL", "2", TRUE);
        g_autofree char *out = run_items(c, keys[i], ITEMS);
        g_unsetenv("FLOW_STALL");
        g_assert_cmpstr(out, ==, expected);
    }
}

static guint complete; /* stages that went through everything */

static void test_lifecycle(gconstpointer name)
{
    const FlowPlugin *plugin = flow_plugin_find(name, NULL);
    const Needs *needs = needs_of(name);
    Case c = {0};
    if (needs && needs->alone) {
        g_test_message("%s: %s", (const char *)name, needs->alone);
        return;
    }
    gint64 before = flow_item_live();
    prepare(&c, plugin->stage);
    open_and_close(&c);
    g_autofree char *none = run_items(&c, "", 0), *one = run_items(&c, "", 1);
    g_autofree char *many = run_items(&c, "", ITEMS),
                    *again = run_items(&c, c.n_ports ? "ring = 1\n" : "", ITEMS);
    g_assert_cmpstr(many, ==, again);
    torn_down(&c);
    consumer_ends(&c);
    workers_agree(&c, many);
    for (guint p = 0; p < c.n_ports; p++)
        g_ptr_array_unref(c.feeds[p]);
    g_assert_cmpint(flow_item_live(), ==, before);
    complete++;
}

/* What `replay` plays. */
static void make_recording(void)
{
    g_autofree char *path = g_build_filename(scratch, "recording", NULL),
                    *keys = g_strdup_printf("path = %s\n", path);
    Harness *h = harness("dump", keys);
    for (gint64 i = 0; i < ITEMS; i++) {
        FlowItem *item = flow_item_new(FLOW_SAMPLE);
        item->cursor.position = i;
        flow_item_set_i64(item, FLOW_F_SAMPLE, &i, 1);
        harness_push(h, "in", item);
    }
    harness_end(h);
    g_assert_cmpint(harness_finish(h, NULL), ==, FLOW_RUN_DONE);
}

int main(int argc, char **argv)
{
    gboolean all = argc == 1;
    g_test_init(&argc, &argv, NULL);
    scratch = g_dir_make_tmp("loraflow-conformance-XXXXXX", NULL);
    make_recording();
    g_auto(GStrv) names = flow_plugin_list();
    for (char **name = names; *name; name++) {
        if (g_str_has_prefix(*name, "harness_"))
            continue;
        g_autofree char *one = g_strdup_printf("/conformance/%s/description", *name);
        g_autofree char *two = g_strdup_printf("/conformance/%s/lifecycle", *name);
        g_test_add_data_func(one, *name, test_description);
        g_test_add_data_func(two, *name, test_lifecycle);
    }
    int status = g_test_run();
    if (all && status == 0)
        g_assert_cmpuint(complete, >=, 12); /* else the table excuses too many */
    const char *rm[] = {"rm", "-rf", scratch, NULL};
    g_spawn_sync(NULL, (char **)rm, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL);
    g_free(scratch);
    return status;
}
