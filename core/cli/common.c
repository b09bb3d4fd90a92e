/* Options, graphs and messages, the same way for every verb. */
#include "core/cli/cli.h"
#include <string.h>

int cli_fail(int rc, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    fprintf(stderr, "loraflow: error: %s\n", text);
    return rc;
}

int cli_usage(const char *verb, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    fprintf(stderr, "loraflow %s: error: %s\nusage: loraflow %s %s\n", verb, text, verb,
            cli_verb_find(verb)->usage);
    return CLI_USAGE;
}

/* GOption's own --help leaves through exit(), past the check that stdout took the text. */
gboolean cli_options(const GOptionEntry *entries, int *argc, char ***argv, int *rc)
{
    const CliVerb *verb = cli_verb_find(**argv);
    gboolean wants_help = FALSE;
    const GOptionEntry own[] = {
        {"help", 'h', 0, G_OPTION_ARG_NONE, &wants_help, "Print this help.", NULL},
        {0},
    };
    g_autoptr(GError) error = NULL;
    GOptionContext *context = g_option_context_new(NULL);
    g_option_context_set_help_enabled(context, FALSE);
    if (entries)
        g_option_context_add_main_entries(context, entries, NULL);
    g_option_context_add_main_entries(context, own, NULL);
    gboolean ok = g_option_context_parse(context, argc, argv, &error);
    *rc = CLI_OK;
    if (!ok) {
        *rc = cli_usage(verb->name, "%s", error->message);
    } else if (wants_help) {
        g_autofree char *all = g_option_context_get_help(context, TRUE, NULL);
        const char *options = strstr(all, "\n\n"); /* after GLib's own usage line */
        printf("usage: loraflow %s %s\n\n%s\n%s", verb->name, verb->usage, verb->summary,
               options ? options + 1 : "");
    }
    g_option_context_free(context);
    if (ok && !wants_help && *argc > 1 && g_str_equal((*argv)[1], "--")) {
        (*argv)[1] = (*argv)[0];
        ++*argv;
        --*argc;
    }
    return ok && !wants_help;
}

void cli_messages_print(const FlowMessages *messages)
{
    g_autofree char *text = flow_messages_text(messages);
    fputs(text, stderr);
}

FlowGraph *cli_graph_read(const char *path, char **sets, char **vars, FlowMessages *messages)
{
    FlowGraph *graph = flow_graph_load(flow_ini_read(path, sets, vars, messages), messages);
    /* fields cannot be followed through a graph with holes */
    if (messages->errors == 0)
        flow_graph_check(graph, messages);
    return graph;
}

FlowGraph *cli_graph_load(const char *path, char **sets, char **vars)
{
    FlowMessages *messages = flow_messages_new();
    FlowGraph *graph = cli_graph_read(path, sets, vars, messages);
    cli_messages_print(messages);
    if (messages->errors > 0)
        g_clear_pointer(&graph, flow_graph_free);
    flow_messages_free(messages);
    return graph;
}

int cli_error_code(const GError *error)
{
    return g_error_matches(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM) ? CLI_USAGE : CLI_FAILED;
}
