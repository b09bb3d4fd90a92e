/* Stages, from their tables alone: nothing in a plugin is called. The text of docs/stages.md comes from here
 * too, so it cannot say anything else than the program. */
#include "core/cli/inspect.h"
#include <string.h>

static const char *kind_name(const FlowPort *port)
{
    static const char *const names[] = {"sample", "batch", "step", "mark"};
    return port->flags & FLOW_PORT_ANY ? "any" : names[port->kind];
}

static const struct {
    guint32 flag;
    const char *name;
} port_flags[] = {{FLOW_PORT_OPTIONAL, "optional"},
                  {FLOW_PORT_MANY, "many"},
                  {FLOW_PORT_FEEDBACK, "feedback"},
                  {FLOW_PORT_NEW, "new"}},
  stage_flags[] = {{FLOW_PARALLEL, "parallel"},  {FLOW_STATEFUL, "stateful"}, {FLOW_REORDERS, "reorders"},
                   {FLOW_MARKS, "marks"},        {FLOW_PREFILL, "prefill"},   {FLOW_PENDING, "pending"},
                   {FLOW_NEEDS_OUT, "needs_out"}};

static const char *text_or(const char *text, const char *otherwise)
{
    return text && *text ? text : otherwise;
}

/* "16..4096 px", "linear|cubic", "" */
static char *allowed(const FlowParam *param)
{
    g_autofree char *range = flow_param_range(param);
    if (param->choices)
        return g_strdup(param->choices);
    const char *unit = param->type == FLOW_P_SIZE ? "" : text_or(param->unit, "");
    return g_strdup_printf("%s%s%s", range ? range : "", range && *unit ? " " : "", unit);
}

static const char *default_text(const FlowParam *param)
{
    return !param->def ? "required" : *param->def ? param->def : "-";
}

/* -- text ------------------------------------------------------------------------------ */

static void print_ports(const char *title, const FlowPort *ports)
{
    if (!ports || !ports->name)
        return;
    printf("\n%s\n", title);
    for (; ports->name; ports++) {
        printf("  %s (%s", ports->name, kind_name(ports));
        for (guint i = 0; i < G_N_ELEMENTS(port_flags); i++)
            if (ports->flags & port_flags[i].flag)
                printf(", %s", port_flags[i].name);
        printf(")  %s\n", text_or(ports->doc, ""));
        if (ports->needs && *ports->needs)
            printf("    needs %s\n", ports->needs);
        if (ports->gives && *ports->gives)
            printf("    gives %s\n", ports->gives);
        if (ports->drops && *ports->drops)
            printf("    drops %s\n", ports->drops);
    }
}

static void print_params(const FlowParam *params)
{
    if (flow_param_count(params) == 0)
        return;
    printf("\nparameters\n");
    CliTable *table = cli_table_new(5);
    for (; params->name; params++) {
        g_autofree char *limits = allowed(params), *name = g_strconcat("  ", params->name, NULL);
        cli_table_row(table, name, flow_param_type_name(params->type), default_text(params), limits,
                      params->doc, NULL);
    }
    cli_table_print(table, stdout);
}

static void print_stage(const FlowPlugin *plugin)
{
    const FlowStage *stage = plugin->stage;
    printf("%s: %s\n", stage->name, stage->summary);
    if (stage->details)
        printf("\n%s\n", stage->details);
    print_ports("inputs", stage->inputs);
    print_ports("outputs", stage->outputs);
    print_params(stage->params);
    printf("\nversion %u, ABI %u", stage->version, stage->abi);
    for (guint i = 0; i < G_N_ELEMENTS(stage_flags); i++)
        if (stage->flags & stage_flags[i].flag)
            printf(", %s", stage_flags[i].name);
    printf("\n%s\n", plugin->file);
}

/* -- JSON ------------------------------------------------------------------------------ */

static json_t *param_json(const FlowParam *param)
{
    json_t *object = json_object();
    gboolean ranged = param->type == FLOW_P_INT || param->type == FLOW_P_FLOAT || param->type == FLOW_P_SIZE;
    json_object_set_new(object, "name", json_string(param->name));
    json_object_set_new(object, "type", json_string(flow_param_type_name(param->type)));
    json_object_set_new(object, "default", cli_json_text(param->def));
    json_object_set_new(object, "required", json_boolean(!param->def));
    json_object_set_new(object, "min", ranged ? cli_json_number(param->min) : json_null());
    json_object_set_new(object, "max", ranged ? cli_json_number(param->max) : json_null());
    json_object_set_new(object, "unit", cli_json_text(text_or(param->unit, "")));
    if (param->choices) {
        json_t *choices = json_array();
        g_auto(GStrv) names = g_strsplit(param->choices, "|", -1);
        for (char **name = names; *name; name++)
            json_array_append_new(choices, cli_json_text(*name));
        json_object_set_new(object, "choices", choices);
    }
    json_object_set_new(object, "doc", cli_json_text(param->doc));
    return object;
}

static json_t *ports_json(const FlowPort *ports)
{
    json_t *array = json_array();
    for (; ports && ports->name; ports++) {
        json_t *flags = json_array();
        for (guint i = 0; i < G_N_ELEMENTS(port_flags); i++)
            if (ports->flags & port_flags[i].flag)
                json_array_append_new(flags, json_string(port_flags[i].name));
        json_array_append_new(array, json_pack("{s:s, s:s, s:o, s:s, s:s, s:s, s:o}", "name", ports->name,
                                               "kind", kind_name(ports), "doc",
                                               cli_json_text(text_or(ports->doc, "")), "needs",
                                               text_or(ports->needs, ""), "gives", text_or(ports->gives, ""),
                                               "drops", text_or(ports->drops, ""), "flags", flags));
    }
    return array;
}

static json_t *stage_json(const FlowPlugin *plugin)
{
    const FlowStage *stage = plugin->stage;
    json_t *params = json_array(), *flags = json_array(), *object = json_object();
    for (const FlowParam *param = stage->params; param && param->name; param++)
        json_array_append_new(params, param_json(param));
    for (guint i = 0; i < G_N_ELEMENTS(stage_flags); i++)
        if (stage->flags & stage_flags[i].flag)
            json_array_append_new(flags, json_string(stage_flags[i].name));
    json_object_set_new(object, "name", json_string(stage->name));
    json_object_set_new(object, "summary", cli_json_text(stage->summary));
    json_object_set_new(object, "details", cli_json_text(stage->details));
    json_object_set_new(object, "version", json_integer(stage->version));
    json_object_set_new(object, "abi", json_integer(stage->abi));
    json_object_set_new(object, "file", cli_json_text(plugin->file));
    json_object_set_new(object, "flags", flags);
    json_object_set_new(object, "inputs", ports_json(stage->inputs));
    json_object_set_new(object, "outputs", ports_json(stage->outputs));
    json_object_set_new(object, "params", params);
    return object;
}

int cli_inspect_stage(const FlowPlugin *plugin, gboolean json)
{
    if (json)
        cli_json_print(stage_json(plugin));
    else
        print_stage(plugin);
    return CLI_OK;
}

/* -- all stages -------------------------------------------------------------------------- */

/* NULL after telling what is wrong with it: one broken plugin does not hide the others. */
static const FlowPlugin *find_or_tell(const char *name, int *rc)
{
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = flow_plugin_find(name, &error);
    if (!plugin)
        *rc = cli_fail(CLI_FAILED, "%s", error->message);
    return plugin;
}

int cli_inspect_list(gboolean json)
{
    int rc = CLI_OK;
    g_auto(GStrv) names = flow_plugin_list();
    json_t *array = json_array();
    CliTable *table = cli_table_new(2);
    for (char **name = names; *name; name++) {
        const FlowPlugin *plugin = find_or_tell(*name, &rc);
        if (!plugin)
            continue;
        cli_table_row(table, plugin->stage->name, plugin->stage->summary, NULL);
        json_array_append_new(array, stage_json(plugin));
    }
    if (!*names)
        rc = cli_fail(CLI_FAILED, "no stages were found (FLOW_STAGES names folders to look in)");
    if (json)
        cli_json_print(json_pack("{s:o}", "stages", array));
    else
        json_decref(array);
    cli_table_print(table, json ? NULL : stdout);
    return rc;
}

/* -- docs/stages.md ------------------------------------------------------------------------ */

/* '|' ends a cell of a table. */
static void print_cell(const char *text)
{
    putchar(' ');
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
    fputs(" |", stdout);
}

static void markdown_ports(const char *title, const FlowPort *ports)
{
    for (; ports && ports->name; ports++) {
        printf("- %s `%s` (%s", title, ports->name, kind_name(ports));
        for (guint i = 0; i < G_N_ELEMENTS(port_flags); i++)
            if (ports->flags & port_flags[i].flag)
                printf(", %s", port_flags[i].name);
        printf("): %s", text_or(ports->doc, ""));
        if (ports->needs && *ports->needs)
            printf(" Needs `%s`.", ports->needs);
        if (ports->gives && *ports->gives)
            printf(" Gives `%s`.", ports->gives);
        if (ports->drops && *ports->drops)
            printf(" Drops `%s`.", ports->drops);
        putchar('\n');
    }
}

static void markdown_params(const FlowParam *params)
{
    if (flow_param_count(params) == 0)
        return;
    puts("\n| parameter | type | default | allowed | meaning |\n|---|---|---|---|---|");
    for (; params->name; params++) {
        g_autofree char *limits = allowed(params);
        printf("| `%s` |", params->name);
        print_cell(flow_param_type_name(params->type));
        print_cell(default_text(params));
        print_cell(limits);
        print_cell(params->doc);
        putchar('\n');
    }
}

int cli_inspect_markdown(void)
{
    int rc = CLI_OK;
    g_auto(GStrv) names = flow_plugin_list();
    puts("# Stages\n\nMade by `loraflow inspect --markdown`. A port is `name` (what passes); `field?` is "
         "used or given "
         "if it is there.\nEvery node also knows the keys of [graphs.md](graphs.md).");
    for (char **name = names; *name; name++) {
        const FlowPlugin *plugin = find_or_tell(*name, &rc);
        if (!plugin)
            continue;
        const FlowStage *stage = plugin->stage;
        printf("\n## %s\n\n%s\n", stage->name, stage->summary);
        if (stage->details)
            printf("\n%s\n", stage->details);
        putchar('\n');
        markdown_ports("in", stage->inputs);
        markdown_ports("out", stage->outputs);
        if (stage->flags & FLOW_PARALLEL)
            puts("- may have several `workers`");
        markdown_params(stage->params);
    }
    return rc;
}
