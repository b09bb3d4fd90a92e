/* What is told at the end of a run. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H
#include "core/cli/cli.h"
#include "core/cli/live.h"

typedef struct {
    FlowRunStatus status;
    const FlowRunProgress *last;
    const GError *error; /* NULL = none */
    guint64 device_peak; /* bytes, by plan */
} CliOutcome;

/* The object of `run --json`; graph NULL = refused. */
json_t *cli_report_json(FlowGraph *graph, const CliOutcome *outcome);
/* A line for each node with its counters, and the outcome, on stderr. */
void cli_report_print(FlowGraph *graph, const CliOutcome *outcome);

#endif
