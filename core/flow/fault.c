/* Faults and delays on purpose, for tests.
 *
 *   FLOW_FAULT=emit:3   the third flow_emit() of the run fails (also process:N, thread:N, write:N)
 *   FLOW_STALL=5        workers sleep for 0 to 5 ms before they process, at random
 *
 * Read when a run begins; without them the cost is one test of a flag. */
#include "core/flow/graph_private.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char kind[16];
static _Atomic(gint64) countdown;
static _Atomic(gboolean) armed;
static _Atomic(int) stall_ms;

void flow__fault_arm(void)
{
    const char *fault = g_getenv("FLOW_FAULT"), *stall = g_getenv("FLOW_STALL");
    const char *colon = fault ? strchr(fault, ':') : NULL;
    armed = FALSE;
    if (colon && (gsize)(colon - fault) < sizeof kind) {
        g_strlcpy(kind, fault, (gsize)(colon - fault) + 1);
        countdown = g_ascii_strtoll(colon + 1, NULL, 10);
        armed = countdown > 0;
    }
    stall_ms = stall ? CLAMP(atoi(stall), 0, 10000) : 0;
}

gboolean flow__fault(const char *what)
{
    return armed && strcmp(what, kind) == 0 && atomic_fetch_sub(&countdown, 1) == 1;
}

void flow__stall(FlowCtx *ctx)
{
    int most = stall_ms;
    if (!most)
        return;
    ctx->chance = ctx->chance * 1664525u + 1013904223u;
    guint64 ns = (guint64)(ctx->chance >> 8) % ((guint64)most * 1000000u);
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)}, NULL);
}
