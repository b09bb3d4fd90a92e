/* graph: Graphviz text of a graph, for `| dot -Tsvg`. */
#include "core/cli/cli.h"

int cli_graph(int argc, char **argv)
{
    g_auto(GStrv) sets = NULL, vars = NULL;
    const GOptionEntry entries[] = {
        {"set", 0, 0, G_OPTION_ARG_STRING_ARRAY, &sets, "Replace a value of the graph.", "NODE.KEY=VALUE"},
        {"var", 0, 0, G_OPTION_ARG_STRING_ARRAY, &vars, "Define a variable.", "NAME=VALUE"},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc != 2)
        return cli_usage("graph", argc < 2 ? "no graph is named" : "one graph at a time");
    FlowGraph *graph = cli_graph_load(argv[1], sets, vars);
    if (!graph)
        return CLI_USAGE;
    g_autofree char *dot = flow_graph_dot(graph);
    fputs(dot, stdout);
    flow_graph_free(graph);
    return CLI_OK;
}
