/* The live line of a run: on a terminal drawn over four times a second, else a plain line now and then. */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H
#include "core/flow/graph.h"

typedef struct {
    FlowRunProgress last; /* valid after the run; busiest is cleared */
    gboolean tty;
    double next_plain; /* seconds into the run */
} CliLive;

void cli_live_init(CliLive *live);
/* FlowRunOptions.progress; data is the CliLive. [watchdog thread] */
void cli_live_update(const FlowRunProgress *progress, gpointer live);
/* Takes the line away. */
void cli_live_end(CliLive *live);
/* Resident bytes of this process, now and at most. */
guint64 cli_rss(void);
guint64 cli_peak_rss(void);

#endif
