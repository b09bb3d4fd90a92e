/* Log of a run: one JSON object a step, and a summary of time and memory after each epoch.
 *
 * Stands outside the loop. Every line is flushed, so a killed run loses nothing; a resumed run first cuts the
 * log back to where its checkpoint stands and then goes on, so that the log is that of one undisturbed run.
 */
#include "core/flow/stage.h"
#include "core/flow/step.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *log;

    FILE *file;
    /* of the epoch under way */
    gint64 steps, started_us;
    double loss, rss_sum, rss_peak;
} Monitor;

static const FlowParam params[] = {
    FLOW_PATH(Monitor, log, "", "File of JSON lines, one object a step; empty = none.", | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_STEP,
     .doc = "Step items, from anywhere behind the optimizer.",
     .needs = "step flags loss? lr? grad_norm? scale? samples? validation? history?"},
    FLOW_END,
};

/* -- the file ----------------------------------------------------------------------------- */

static gboolean file_error(GError **error, const char *what, const char *path)
{
    int code = errno;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot %s %s: %s", what, path,
                g_strerror(code));
    return FALSE;
}

/* Appends the lines of groups in (after, until]; returns the last group that was taken. */
static gint64 take_lines(GString *kept, const char *text, gint64 after, gint64 until)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 0; lines[i]; i++) {
        gint64 group = *lines[i] ? flow_step_line_group(lines[i]) : -1;
        if (group > after && group <= until) {
            g_string_append_printf(kept, "%s\n", lines[i]);
            after = group;
        }
    }
    return after;
}

/* The log as it was when the checkpoint was written: later lines go, lines that were not written in time
 * come from the checkpoint. */
static gboolean cut_back(const char *path, const FlowItem *opening, GError **error)
{
    gint64 group = flow_item_i64(opening, FLOW_F_STEP)[2];
    const char *history = flow_item_string(opening, FLOW_F_HISTORY);
    g_autofree char *text = NULL;
    g_autoptr(GString) kept = g_string_new(NULL);
    if (g_file_test(path, G_FILE_TEST_EXISTS) && !g_file_get_contents(path, &text, NULL, error))
        return FALSE;
    gint64 last = take_lines(kept, text ? text : "", -1, group);
    if (take_lines(kept, history ? history : "", last, group) == group)
        flow_step_line_complete(kept, opening);
    return g_file_set_contents(path, kept->str, (gssize)kept->len, error);
}

/* The opening item tells whether this is a resumed run, and where it stands. */
static gboolean open_log(Monitor *s, const FlowItem *item, GError **error)
{
    gboolean resumed = (flow_item_i32(item, FLOW_F_FLAGS)[0] & FLOW_STEP_RESUMED) != 0;
    if (!s->log || !*s->log || s->file)
        return TRUE;
    g_autofree char *folder = g_path_get_dirname(s->log);
    if (g_mkdir_with_parents(folder, 0777) != 0)
        return file_error(error, "make the folder", folder);
    if (resumed && !cut_back(s->log, item, error))
        return FALSE;
    if (!(s->file = g_fopen(s->log, resumed ? "ae" : "we")))
        return file_error(error, "write", s->log);
    return TRUE;
}

static gboolean write_line(Monitor *s, const FlowItem *item, GError **error)
{
    g_autofree char *line = flow_step_line(item);
    if (fprintf(s->file, "%s\n", line) < 0 || fflush(s->file) != 0)
        return file_error(error, "write", s->log);
    return TRUE;
}

/* -- the summary ----------------------------------------------------------------------------- */

static double rss(void)
{
    g_autofree char *text = NULL;
    long pages = 0;
    if (g_file_get_contents("/proc/self/statm", &text, NULL, NULL))
        (void)sscanf(text, "%*d %ld", &pages);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void count(Monitor *s, const FlowItem *item)
{
    const float *loss = flow_item_f32(item, FLOW_F_LOSS);
    double now = rss();
    s->steps++;
    s->loss += loss ? (double)*loss : 0;
    s->rss_sum += now;
    s->rss_peak = MAX(s->rss_peak, now);
}

static void reset(Monitor *s)
{
    s->steps = 0;
    s->loss = s->rss_sum = s->rss_peak = 0;
    s->started_us = g_get_monotonic_time();
}

static FlowStatus monitor_mark(FlowCtx *ctx, FlowMark mark, GError **error G_GNUC_UNUSED)
{
    Monitor *s = flow_ctx_state(ctx);
    if (mark == FLOW_MARK_EPOCH && s->steps > 0) {
        double n = (double)s->steps, mib = 1024 * 1024;
        flow_node_info(flow_ctx_node(ctx),
                       "epoch: %" G_GINT64_FORMAT
                       " steps, loss %.5f, %.1f s, memory %.0f MiB (peak %.0f MiB)",
                       s->steps, s->loss / n, (double)(g_get_monotonic_time() - s->started_us) / 1e6,
                       s->rss_sum / n / mib, s->rss_peak / mib);
        reset(s);
    }
    return FLOW_OK;
}

static FlowStatus monitor_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Monitor *s = flow_ctx_state(ctx);
    gint32 flags = flow_item_i32(in[0], FLOW_F_FLAGS)[0];
    if (!open_log(s, in[0], error))
        return FLOW_ERROR;
    if (s->started_us == 0)
        reset(s);
    if (flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST))
        return FLOW_OK;
    count(s, in[0]);
    return !s->file || write_line(s, in[0], error) ? FLOW_OK : FLOW_ERROR;
}

static void monitor_close(FlowNode *node)
{
    Monitor *s = flow_node_state(node);
    if (s->file)
        fclose(s->file);
}

FLOW_STAGE(.name = "monitor",
           .summary = "Writes a log line a step; sums up time and memory after each epoch.",
           .flags = FLOW_STATEFUL, .version = 1, .state_size = sizeof(Monitor), .params = params,
           .inputs = inputs, .process = monitor_process, .mark = monitor_mark, .close = monitor_close);
