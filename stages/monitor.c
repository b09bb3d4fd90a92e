/* Log of a run: one JSON object a step, and a summary of time and memory after each epoch.
 *
 * Stands outside the loop. Every line is flushed, so a killed run loses nothing; a resumed run first cuts the
 * log back to where its checkpoint stands and then goes on, so that the log is that of one undisturbed run.
 *
 * @link m
 */
#include "core/flow/stage.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
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
     .needs = "step flags loss? lr? grad_norm? scale? samples? validation?"},
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

/* Is this line of a group that is done? The last line of a killed run may be cut anywhere. */
static gboolean belongs(const char *line, gint64 group)
{
    const char *at = strstr(line, "\"group\": ");
    gsize n = strlen(line);
    return at && n > 0 && line[n - 1] == '}' &&
           g_ascii_strtoll(at + strlen("\"group\": "), NULL, 10) <= group;
}

static gboolean cut_back(const char *path, gint64 group, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GString) kept = g_string_new(NULL);
    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return TRUE;
    if (!g_file_get_contents(path, &text, NULL, error))
        return FALSE;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 0; lines[i]; i++)
        if (belongs(lines[i], group))
            g_string_append_printf(kept, "%s\n", lines[i]);
    return g_file_set_contents(path, kept->str, (gssize)kept->len, error);
}

/* The opening item tells whether this is a resumed run, and where it stands. */
static gboolean open_log(Monitor *s, gboolean resumed, gint64 group, GError **error)
{
    if (!s->log || !*s->log || s->file)
        return TRUE;
    g_autofree char *folder = g_path_get_dirname(s->log);
    if (g_mkdir_with_parents(folder, 0777) != 0)
        return file_error(error, "make the folder", folder);
    if (resumed && !cut_back(s->log, group, error))
        return FALSE;
    if (!(s->file = g_fopen(s->log, resumed ? "ae" : "we")))
        return file_error(error, "write", s->log);
    return TRUE;
}

static void put(GString *line, const char *name, const float *value)
{
    if (!value)
        return;
    if (isfinite(*value))
        g_string_append_printf(line, ", \"%s\": %.9g", name, (double)*value);
    else
        g_string_append_printf(line, ", \"%s\": null", name);
}

static gboolean write_line(Monitor *s, const FlowItem *item, gint32 flags, GError **error)
{
    const gint64 *at = flow_item_i64(item, FLOW_F_STEP), *samples = flow_item_i64(item, FLOW_F_SAMPLES);
    g_autoptr(GString) line = g_string_new(NULL);
    g_string_printf(line,
                    "{\"step\": %" G_GINT64_FORMAT ", \"group\": %" G_GINT64_FORMAT
                    ", \"epoch\": %" G_GINT64_FORMAT,
                    at[0], at[2], at[3]);
    put(line, "loss", flow_item_f32(item, FLOW_F_LOSS));
    put(line, "lr", flow_item_f32(item, FLOW_F_LR));
    put(line, "grad_norm", flow_item_f32(item, FLOW_F_GRAD_NORM));
    put(line, "scale", flow_item_f32(item, FLOW_F_SCALE));
    put(line, "validation", flow_item_f32(item, FLOW_F_VALIDATION));
    if (samples)
        g_string_append_printf(line, ", \"samples\": %" G_GINT64_FORMAT, *samples);
    g_string_append(line, flags & FLOW_STEP_SKIPPED ? ", \"skipped\": true}\n" : "}\n");
    if (fputs(line->str, s->file) < 0 || fflush(s->file) != 0)
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
    gint64 group = flow_item_i64(in[0], FLOW_F_STEP)[2];
    if (!open_log(s, (flags & FLOW_STEP_RESUMED) != 0, group, error))
        return FLOW_ERROR;
    if (s->started_us == 0)
        reset(s);
    if (flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST))
        return FLOW_OK;
    count(s, in[0]);
    return !s->file || write_line(s, in[0], flags, error) ? FLOW_OK : FLOW_ERROR;
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
