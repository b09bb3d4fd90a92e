/* loraflow: verb first. Each verb has its own file, options and help; this one finds it and sees to it that
 * a result which could not be written is not taken for success. */
#include "core/cli/cli.h"
#include <errno.h>
#include <malloc.h>
#include <string.h>

static int help(int argc, char **argv);
static int version(int argc, char **argv);

const CliVerb cli_verbs[] = {
    {"run", cli_run, "Run a graph.",
     "[GRAPH] [--set NODE.KEY=VALUE] [--var NAME=VALUE] [--resume CHECKPOINT] [--dry] [--json]"},
    {"check", cli_check, "Find every fault of graphs without running anything.", "GRAPH... [--json]"},
    {"plan", cli_plan, "Say what memory a graph will hold, per node and phase.",
     "GRAPH [--resolved] [--no-data] [--ops] [--dump FILE] [--json]"},
    {"graph", cli_graph, "Draw a graph (Graphviz dot).", "GRAPH"},
    {"inspect", cli_inspect, "Describe stages, plugins, checkpoints and models.",
     "[STAGE | FILE.so | FILE.safetensors | MODEL] [--markdown] [--json]"},
    {"bench", cli_bench, "Measure a stage, the rings or the kernels alone.",
     "stage NAME [PARAMETER=VALUE...] [--items N] [--workers A,B] [--input PATH] | ring | kernel [GLOB]"},
    {"help", help, "Explain a verb.", "[VERB]"},
    {"version", version, "Print the version.", ""},
    {0},
};

const CliVerb *cli_verb_find(const char *name)
{
    for (const CliVerb *verb = cli_verbs; verb->name; verb++)
        if (g_str_equal(verb->name, name))
            return verb;
    return NULL;
}

static void print_verbs(FILE *out)
{
    fputs("usage: loraflow VERB ...\n\n", out);
    for (const CliVerb *verb = cli_verbs; verb->name; verb++)
        fprintf(out, "  %-9s %s\n", verb->name, verb->summary);
    fputs("\n'loraflow help VERB' tells its options. Results go to stdout, messages to stderr.\n"
          "exit codes: 0 done, 1 failed, 2 bad usage or graph, 3 stalled, 130 interrupted, 143 terminated\n",
          out);
}

static int unknown_verb(const char *name)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (const CliVerb *verb = cli_verbs; verb->name; verb++)
        g_ptr_array_add(names, (gpointer)verb->name);
    g_ptr_array_add(names, NULL);
    const char *meant = flow_nearest(name, (const char *const *)names->pdata);
    return cli_fail(CLI_USAGE, "there is no verb '%s'%s%s%s ('loraflow help' lists them)", name,
                    meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        print_verbs(stdout);
        return CLI_OK;
    }
    const CliVerb *verb = cli_verb_find(argv[1]);
    if (!verb)
        return unknown_verb(argv[1]);
    if (verb->fn == help || verb->fn == version) {
        printf("usage: loraflow %s %s\n\n%s\n", verb->name, verb->usage, verb->summary);
        return CLI_OK;
    }
    return verb->fn(2, (char *[]){argv[1], (char *)"--help", NULL});
}

static int version(int argc G_GNUC_UNUSED, char **argv G_GNUC_UNUSED)
{
    puts("loraflow " LORAFLOW_VERSION);
    return CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_verbs(stderr);
        return CLI_USAGE;
    }
    if (g_str_equal(argv[1], "--help") || g_str_equal(argv[1], "-h"))
        return help(1, argv);
    if (g_str_equal(argv[1], "--version"))
        return version(1, argv);
    const CliVerb *verb = cli_verb_find(argv[1]);
    return verb ? verb->fn(argc - 1, argv + 1) : unknown_verb(argv[1]);
}

/* A picture, a tensor of a batch: what is large goes back to the system as soon as it is freed. The C library
 * would raise its limit for that with the first such block, and then keep freed ones by the hundred MB
 * between the small pieces of every thread, beside all that a plan counted. */
static void give_back_large_blocks(void)
{
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

int main(int argc, char **argv)
{
    give_back_large_blocks();
    int rc = dispatch(argc, argv);
    gboolean bad = ferror(stdout) != 0;
    if (fflush(stdout) != 0 || bad) {
        int code = cli_fail(CLI_FAILED, "the result could not be written to stdout: %s", g_strerror(errno));
        return rc == CLI_OK ? code : rc;
    }
    return rc;
}
