/* inspect: what a name is decides what is told about it: a folder is a model, a .so a plugin, another file
 * safetensors, and the rest is the name of a stage. */
#include "core/cli/inspect.h"
#include <string.h>

static int inspect_plugin(const char *name, gboolean is_file, gboolean json)
{
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = is_file ? flow_plugin_load(name, &error) : flow_plugin_find(name, &error);
    if (!plugin)
        return cli_fail(CLI_USAGE, "%s", error->message);
    return cli_inspect_stage(plugin, json);
}

static int inspect_one(const char *name, gboolean json)
{
    if (g_str_has_suffix(name, ".so"))
        return inspect_plugin(name, TRUE, json);
    if (g_file_test(name, G_FILE_TEST_IS_DIR))
        return cli_inspect_model(name, json);
    if (g_file_test(name, G_FILE_TEST_EXISTS))
        return cli_inspect_safetensors(name, json);
    if (strchr(name, '/') || strchr(name, '.'))
        return cli_fail(CLI_USAGE, "%s: there is no such file or folder", name);
    return inspect_plugin(name, FALSE, json);
}

int cli_inspect(int argc, char **argv)
{
    gboolean json = FALSE, markdown = FALSE;
    const GOptionEntry entries[] = {
        {"markdown", 0, 0, G_OPTION_ARG_NONE, &markdown, "Print all stages as docs/stages.md.", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "Print JSON.", NULL},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc > 2)
        return cli_usage("inspect", "one thing at a time");
    if (markdown)
        return argc > 1 || json ? cli_usage("inspect", "--markdown is about all stages")
                                : cli_inspect_markdown();
    return argc < 2 ? cli_inspect_list(json) : inspect_one(argv[1], json);
}
