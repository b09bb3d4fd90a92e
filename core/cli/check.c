/* check: every fault of graphs, with file and line; nothing is opened, no model is read. */
#include "core/cli/cli.h"

static json_t *place(const FlowMessage *message)
{
    json_t *object = json_object();
    json_object_set_new(object, "file", cli_json_text(message->where.file));
    json_object_set_new(object, "line",
                        message->where.line > 0 ? json_integer(message->where.line) : json_null());
    json_object_set_new(object, "message", cli_json_text(message->text));
    return object;
}

/* A note becomes an element of `notes` of the message it belongs to. */
static void collect(const FlowMessages *messages, json_t *errors, json_t *warnings)
{
    json_t *last = NULL;
    for (guint i = 0; i < messages->list->len; i++) {
        const FlowMessage *message = g_ptr_array_index(messages->list, i);
        json_t *object = place(message);
        if (message->note && last) {
            json_t *notes = json_object_get(last, "notes");
            if (!notes)
                json_object_set_new(last, "notes", notes = json_array());
            json_array_append_new(notes, object);
            continue;
        }
        json_array_append_new(message->warning ? warnings : errors, object);
        last = object;
    }
}

int cli_check(int argc, char **argv)
{
    g_auto(GStrv) sets = NULL, vars = NULL;
    gboolean json = FALSE;
    const GOptionEntry entries[] = {
        {"set", 0, 0, G_OPTION_ARG_STRING_ARRAY, &sets, "Replace a value of the graph.", "NODE.KEY=VALUE"},
        {"var", 0, 0, G_OPTION_ARG_STRING_ARRAY, &vars, "Define a variable.", "NAME=VALUE"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "Print errors and warnings as JSON.", NULL},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc < 2)
        return cli_usage("check", "no graph is named");
    json_t *errors = json_array(), *warnings = json_array();
    for (int i = 1; i < argc; i++) {
        FlowMessages *messages = flow_messages_new();
        FlowGraph *graph = cli_graph_read(argv[i], sets, vars, messages);
        if (json)
            collect(messages, errors, warnings);
        else
            cli_messages_print(messages);
        if (messages->errors > 0)
            rc = CLI_USAGE;
        else if (!json)
            printf("%s: ok, %u nodes, %u edges\n", argv[i], flow_graph_nodes(graph), flow_graph_edges(graph));
        flow_graph_free(graph);
        flow_messages_free(messages);
    }
    if (json)
        cli_json_print(json_pack("{s:o, s:o}", "errors", errors, "warnings", warnings));
    else {
        json_decref(errors);
        json_decref(warnings);
    }
    return rc;
}
