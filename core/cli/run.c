/* run: check, open, plan, run, report.
 *
 * The first Ctrl-C (or SIGTERM, or the terminal going away) asks the graph for a clean end: the current
 * step is finished, a checkpoint written. The second tears the run down, and a third leaves at once. The
 * handler calls only what may be called from one: flow_graph_stop() and _exit(). */
#include "core/cli/cli.h"
#include "core/cli/live.h"
#include "core/cli/report.h"
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *resume, *stall;
    gint64 limit;
    gboolean json, dry, check_finite;
} RunOptions;

static _Atomic(FlowGraph *) running; /* NULL until flow_graph_run() */
static _Atomic(int) signals, first_signal;

static void on_signal(int number)
{
    int saved = errno, none = 0;
    int count = atomic_fetch_add(&signals, 1) + 1;
    atomic_compare_exchange_strong(&first_signal, &none, number);
    FlowGraph *graph = atomic_load(&running);
    if (count > 2 || (count > 1 && !graph))
        _exit(128 + number);
    if (graph)
        flow_graph_stop(graph);
    errno = saved;
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++) {
        sigaction(numbers[i], NULL, &old);
        if (numbers[i] != SIGHUP || old.sa_handler != SIG_IGN) /* nohup */
            sigaction(numbers[i], &action, NULL);
    }
    /* a reader of our messages that goes away must not kill hours of training */
    signal(SIGPIPE, SIG_IGN);
}

static FlowPlan *prepare(FlowGraph *graph, GError **error)
{
    if (!flow_graph_open(graph, error))
        return NULL;
    return flow_graph_plan(graph, FALSE, error);
}

static FlowRunStatus execute(FlowGraph *graph, const FlowRunOptions *options, GError **error)
{
    atomic_store(&running, graph);
    if (atomic_load(&signals) > 0) /* it came while the graph was opened */
        flow_graph_stop(graph);
    FlowRunStatus status = flow_graph_run(graph, options, error);
    atomic_store(&running, NULL);
    return status;
}

static int exit_code(FlowRunStatus status, const GError *error)
{
    int number = atomic_load(&first_signal);
    if (status == FLOW_RUN_DONE)
        return CLI_OK;
    if (number && (status == FLOW_RUN_STOPPED || atomic_load(&signals) > 1))
        return 128 + number;
    if (status == FLOW_RUN_STOPPED)
        return CLI_OK;
    return status == FLOW_RUN_STALLED ? CLI_STALLED : error ? cli_error_code(error) : CLI_FAILED;
}

/* Everything up to the run failed; `--json` gets its object all the same. */
static int not_started(FlowGraph *graph, const RunOptions *o, const GError *error)
{
    const FlowRunProgress none = {0};
    CliOutcome outcome = {FLOW_RUN_FAILED, &none, error, 0};
    fprintf(stderr, "error: %s\n", error->message);
    if (o->json)
        cli_json_print(cli_report_json(graph, &outcome));
    return cli_error_code(error);
}

/* The graph has faults: the first one goes into the object. */
static int refused(const FlowMessages *messages, const RunOptions *o)
{
    const FlowRunProgress none = {0};
    if (!o->json)
        return CLI_USAGE;
    g_autofree char *text = flow_messages_text(messages);
    const char *first = strstr(text, "error: ");
    while (first && first > text && first[-1] != '\n')
        first--;
    GError error = {.message = g_strndup(first, strcspn(first, "\n"))};
    CliOutcome outcome = {FLOW_RUN_FAILED, &none, &error, 0};
    cli_json_print(cli_report_json(NULL, &outcome));
    g_free(error.message);
    return CLI_USAGE;
}

static int run_graph(FlowGraph *graph, const RunOptions *o, double stall)
{
    CliLive live;
    g_autoptr(GError) error = NULL;
    FlowPlan *plan = prepare(graph, &error);
    if (!plan)
        return not_started(graph, o, error);
    guint64 device = flow_plan_peak(plan, FLOW_DEVICE);
    if (o->dry) {
        if (o->json)
            cli_json_print(cli_plan_json(graph, plan));
        else
            cli_plan_print(graph, plan);
        flow_plan_free(plan);
        return CLI_OK;
    }
    flow_plan_free(plan);
    cli_live_init(&live);
    const FlowRunOptions options = {.stall = stall,
                                    .limit = (guint64)o->limit,
                                    .resume = o->resume,
                                    .progress = cli_live_update,
                                    .progress_data = &live};
    FlowRunStatus status = execute(graph, &options, &error);
    cli_live_end(&live);
    CliOutcome outcome = {status, &live.last, error, device};
    cli_report_print(graph, &outcome);
    if (error)
        fprintf(stderr, "error: %s\n", error->message);
    if (o->json)
        cli_json_print(cli_report_json(graph, &outcome));
    return exit_code(status, error);
}

/* The options that GOption cannot check. FALSE after telling the fault. */
static gboolean options_valid(const RunOptions *o, double *stall)
{
    g_autoptr(GError) error = NULL;
    *stall = 0;
    if (o->limit < 0) {
        cli_usage("run", "--limit %" G_GINT64_FORMAT " is negative", o->limit);
        return FALSE;
    }
    if (o->stall && !flow_parse_duration(o->stall, stall, &error)) {
        cli_usage("run", "--stall %s", error->message);
        return FALSE;
    }
    return TRUE;
}

/* `run --resume CHECKPOINT` alone: the graph that the checkpoint was made with. */
static FlowGraph *graph_of(const char *checkpoint, char **sets, char **vars, FlowMessages *messages)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = flow_checkpoint_graph(checkpoint, &error);
    g_autofree char *name = g_strdup_printf("%s (its graph)", checkpoint);
    if (!text)
        flow_error(messages, (FlowWhere){checkpoint, 0}, "%s", error->message);
    FlowIni *ini =
        flow_ini_read_text(name, "/", text ? text : "", text ? strlen(text) : 0, sets, vars, messages);
    FlowGraph *graph = flow_graph_load(ini, messages);
    if (messages->errors == 0)
        flow_graph_check(graph, messages);
    return graph;
}

int cli_run(int argc, char **argv)
{
    g_auto(GStrv) sets = NULL, vars = NULL;
    g_autofree char *resume = NULL, *stall_text = NULL;
    RunOptions o = {0};
    const GOptionEntry entries[] = {
        {"set", 0, 0, G_OPTION_ARG_STRING_ARRAY, &sets, "Replace a value of the graph.", "NODE.KEY=VALUE"},
        {"var", 0, 0, G_OPTION_ARG_STRING_ARRAY, &vars, "Define a variable.", "NAME=VALUE"},
        {"resume", 0, 0, G_OPTION_ARG_FILENAME, &resume, "Go on from a checkpoint.", "CHECKPOINT"},
        {"limit", 0, 0, G_OPTION_ARG_INT64, &o.limit, "End after so many items of each source.", "N"},
        {"stall", 0, 0, G_OPTION_ARG_STRING, &stall_text, "Warn after so long without progress.", "DURATION"},
        {"dry", 0, 0, G_OPTION_ARG_NONE, &o.dry, "Open and plan, print the plan, run nothing.", NULL},
        {"check-finite", 0, 0, G_OPTION_ARG_NONE, &o.check_finite,
         "Look for inf and nan after every operation, and name the first.", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &o.json, "Print the outcome as JSON.", NULL},
        {0},
    };
    int rc;
    double stall;
    if (!cli_options(entries, &argc, &argv, &rc))
        return rc;
    if (argc != 2 && !(argc == 1 && resume))
        return cli_usage("run", argc < 2 ? "no graph is named" : "one graph at a time");
    o.resume = resume;
    o.stall = stall_text;
    if (!options_valid(&o, &stall))
        return CLI_USAGE;
    if (o.check_finite)
        g_setenv("FLOW_CHECK_FINITE", "1", TRUE);
    catch_signals();
    FlowMessages *messages = flow_messages_new();
    FlowGraph *graph =
        argc == 2 ? cli_graph_read(argv[1], sets, vars, messages) : graph_of(resume, sets, vars, messages);
    cli_messages_print(messages);
    rc = messages->errors > 0 ? refused(messages, &o) : run_graph(graph, &o, stall);
    flow_messages_free(messages);
    flow_graph_free(graph);
    return rc;
}
