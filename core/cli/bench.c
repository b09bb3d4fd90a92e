/* bench: one thing alone, so that its cost is known.
 *
 *   bench stage decode_image workers=...     a stage in a small graph of its own
 *   bench decode_image in=photos/            the same; `in=` is --input
 *   bench ring                               the rings between nodes
 *   bench kernel 'layer_norm*'               kernels, on one thread, beside the machine's memory */
#include "core/cli/bench.h"

static int stage(int argc, char **argv, BenchOptions *options)
{
    g_autoptr(GPtrArray) params = g_ptr_array_new();
    if (argc < 1)
        return cli_usage("bench", "no stage is named");
    for (int i = 1; i < argc; i++) {
        if (g_str_has_prefix(argv[i], "in="))
            options->input = argv[i] + 3;
        else
            g_ptr_array_add(params, argv[i]);
    }
    g_ptr_array_add(params, NULL);
    return bench_stage(argv[0], (char **)params->pdata, options);
}

static int dispatch(int argc, char **argv, BenchOptions *options)
{
    if (argc < 2)
        return cli_usage("bench", "say what: stage NAME, ring, or kernel");
    if (g_str_equal(argv[1], "stage"))
        return stage(argc - 2, argv + 2, options);
    if (g_str_equal(argv[1], "ring"))
        return argc > 2 ? cli_usage("bench", "ring takes no arguments") : bench_ring(options->json);
    if (g_str_equal(argv[1], "kernel"))
        return argc > 3 ? cli_usage("bench", "one pattern at a time")
                        : bench_kernel(argc > 2 ? argv[2] : NULL, options->json);
    return stage(argc - 1, argv + 1, options);
}

int cli_bench(int argc, char **argv)
{
    g_autofree char *input = NULL, *workers = NULL;
    BenchOptions options = {.repeats = 3};
    const GOptionEntry entries[] = {
        {"items", 0, 0, G_OPTION_ARG_INT64, &options.items,
         "Items of a run; as many as it takes if left out.", "N"},
        {"repeats", 0, 0, G_OPTION_ARG_INT64, &options.repeats, "Runs to take least, median and most of (3).",
         "N"},
        {"workers", 0, 0, G_OPTION_ARG_STRING, &workers, "Measure with so many threads, one after the other.",
         "A,B,..."},
        {"input", 0, 0, G_OPTION_ARG_FILENAME, &input,
         "What a dump node recorded, or a folder of pictures; made items if left out.", "PATH"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &options.json, "Print JSON.", NULL},
        {0},
    };
    int rc;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (options.items < 0 || options.repeats < 1 || options.repeats > 1000)
        return cli_usage("bench", "--items is at least 0, --repeats 1 to 1000");
    options.input = input;
    options.workers = workers;
    return dispatch(argc, argv, &options);
}
