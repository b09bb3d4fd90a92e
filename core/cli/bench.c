/* bench: one thing alone, so that its cost is known.
 *
 *   bench stage decode_image workers=...     a stage in a small graph of its own
 *   bench decode_image in=photos/            the same; `in=` is --input
 *   bench ring                               the rings between nodes */
#include "core/cli/bench.h"

static int stage(int argc, char **argv, const char *input, const char *workers, gint64 items, gboolean json)
{
    g_autoptr(GPtrArray) params = g_ptr_array_new();
    if (argc < 1)
        return cli_usage("bench", "no stage is named");
    for (int i = 1; i < argc; i++) {
        if (g_str_has_prefix(argv[i], "in="))
            input = argv[i] + 3;
        else
            g_ptr_array_add(params, argv[i]);
    }
    g_ptr_array_add(params, NULL);
    return bench_stage(argv[0], (char **)params->pdata, input, workers, items, json);
}

int cli_bench(int argc, char **argv)
{
    g_autofree char *input = NULL, *workers = NULL;
    gint64 items = 0;
    gboolean json = FALSE;
    const GOptionEntry entries[] = {
        {"items", 0, 0, G_OPTION_ARG_INT64, &items, "Items of a run; as many as it takes if left out.", "N"},
        {"workers", 0, 0, G_OPTION_ARG_STRING, &workers, "Measure with so many threads, one after the other.",
         "A,B,..."},
        {"input", 0, 0, G_OPTION_ARG_FILENAME, &input,
         "What a dump node recorded, or a folder of pictures; made items if left out.", "PATH"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "Print JSON.", NULL},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc < 2)
        return cli_usage("bench", "say what: stage NAME, or ring");
    if (items < 0)
        return cli_usage("bench", "--items %" G_GINT64_FORMAT " is negative", items);
    if (g_str_equal(argv[1], "stage"))
        return stage(argc - 2, argv + 2, input, workers, items, json);
    if (g_str_equal(argv[1], "ring"))
        return argc > 2 ? cli_usage("bench", "ring takes no arguments") : bench_ring(json);
    return stage(argc - 1, argv + 1, input, workers, items, json);
}
