/* step 120/300 (40 %)  loss 0.1234  3.81 it/s  ETA 0:47  memory 812 MiB  limited by step
 *
 * Before the first step there is nothing to count, so the line says which node works. */
#include "core/cli/live.h"
#include "core/cli/cli.h"
#include "core/flow/say.h"
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double plain_seconds = 10;

/* Field `name` of /proc/self/status, which is in KiB. */
static guint64 status_bytes(const char *name)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/status", &text, NULL, NULL))
        return 0;
    const char *at = strstr(text, name);
    return at ? g_ascii_strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

guint64 cli_rss(void)
{
    return status_bytes("\nVmRSS:");
}

guint64 cli_peak_rss(void)
{
    return status_bytes("\nVmHWM:");
}

void cli_live_init(CliLive *live)
{
    memset(live, 0, sizeof *live);
    live->last.loss = NAN;
    const char *term = g_getenv("TERM");
    live->tty = isatty(STDERR_FILENO) && term && !g_str_equal(term, "dumb");
    live->next_plain = plain_seconds;
}

static char *line_text(const FlowRunProgress *p)
{
    GString *line = g_string_new(NULL);
    g_autofree char *memory = cli_bytes((double)cli_rss());
    if (p->total > 0)
        g_string_append_printf(line, "step %" G_GINT64_FORMAT "/%" G_GINT64_FORMAT " (%.0f %%)", p->step,
                               p->total, 100.0 * (double)p->step / (double)p->total);
    else if (p->step > 0)
        g_string_append_printf(line, "step %" G_GINT64_FORMAT, p->step);
    else {
        g_autofree char *time = cli_duration(p->seconds);
        g_string_append_printf(line, "%s", time);
    }
    if (p->step > 0 && isfinite(p->loss))
        g_string_append_printf(line, "  loss %.4f", p->loss);
    if (p->step > 0 && p->steps_per_s > 0)
        g_string_append_printf(line, p->steps_per_s < 0.1 ? "  %.1f s/it" : "  %.2f it/s",
                               p->steps_per_s < 0.1 ? 1 / p->steps_per_s : p->steps_per_s);
    if (p->total > p->step && p->step > 0 && p->steps_per_s > 0) {
        g_autofree char *eta = cli_duration((double)(p->total - p->step) / p->steps_per_s);
        g_string_append_printf(line, "  ETA %s", eta);
    }
    g_string_append_printf(line, "  memory %s", memory);
    if (p->busiest)
        g_string_append_printf(line, "  limited by %s", p->busiest);
    return g_string_free(line, FALSE);
}

/* A line that wraps cannot be drawn over. */
static void fit(char *line)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && strlen(line) >= size.ws_col)
        line[size.ws_col - 1] = 0;
}

void cli_live_update(const FlowRunProgress *progress, gpointer data)
{
    CliLive *live = data;
    live->last = *progress;
    live->last.busiest = NULL;
    if (!live->tty && progress->seconds < live->next_plain)
        return;
    g_autofree char *line = line_text(progress);
    if (live->tty) {
        fit(line);
        flow_say_live(line);
        return;
    }
    live->next_plain = progress->seconds + plain_seconds;
    g_autofree char *whole = g_strconcat(line, "\n", NULL);
    flow_say(whole);
}

void cli_live_end(CliLive *live)
{
    if (live->tty)
        flow_say_live(NULL);
}
