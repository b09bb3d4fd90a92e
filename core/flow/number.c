/* The number grammar of graph files and of the command line: integers, numbers, sizes, durations,
 * switches.
 *
 * strtoll and strtod are too generous for files that people edit: they take blanks, octal, hex, nan,
 * the locale's decimal sign, and stop quietly at the first strange letter. Here the whole text has to
 * be of the documented form, nothing is clamped, and the message says what is allowed. Units of
 * sizes are the standard ones, 1kB = 1000 and 1KiB = 1024; a bare 8G could be either and is refused. */
#include "core/flow/param.h"
#include <errno.h>
#include <string.h>

static const char digits[] = "0123456789";

static gboolean refuse(GError **error, const char *text, const char *why)
{
    gboolean comment = strstr(text, " ;") || strstr(text, " #");
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "'%.100s' %s%s", text, why,
                comment ? " (comments go on their own line)" : "");
    return FALSE;
}

gboolean flow_parse_int(const char *text, gint64 *out, GError **error)
{
    static const char form[] = "is not an integer (write 12, -3, 4k, 2M or 1G)";
    gboolean negative = *text == '-';
    const char *p = text + (*text == '-' || *text == '+');
    gsize n = strspn(p, digits);
    gint64 value = 0, scale = 1;
    gboolean over = FALSE;
    if (n == 0)
        return refuse(error, text, form);
    for (gsize i = 0; i < n; i++)
        over |= __builtin_mul_overflow(value, 10, &value) ||
                __builtin_add_overflow(value, negative ? '0' - p[i] : p[i] - '0', &value);
    p += n;
    if (*p) {
        scale = *p == 'k' ? 1000 : *p == 'M' ? 1000000 : *p == 'G' ? 1000000000 : 0;
        p++;
    }
    if (*p || scale == 0)
        return refuse(error, text, form);
    over |= __builtin_mul_overflow(value, scale, &value);
    if (over)
        return refuse(error, text, "is too large for an integer (64 bits)");
    *out = value;
    return TRUE;
}

/* [digits][.digits], at least one digit; returns its length or 0. */
static gsize decimal_length(const char *p)
{
    gsize whole = strspn(p, digits), part = 0;
    gsize n = whole;
    if (p[n] == '.') {
        part = strspn(p + n + 1, digits);
        n += 1 + part;
    }
    return whole + part > 0 ? n : 0;
}

gboolean flow_parse_float(const char *text, double *out, GError **error)
{
    static const char form[] = "is not a number (write 0.5 or 1e-4)";
    const char *p = text + (*text == '-' || *text == '+');
    gsize n = decimal_length(p);
    if (n == 0)
        return refuse(error, text, form);
    p += n;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        n = strspn(p, digits);
        if (n == 0)
            return refuse(error, text, form);
        p += n;
    }
    if (*p)
        return refuse(error, text, form);
    double value = g_ascii_strtod(text, NULL);
    if (value > G_MAXDOUBLE || value < -G_MAXDOUBLE)
        return refuse(error, text, "is too large for a number");
    *out = value;
    return TRUE;
}

static guint64 size_unit(const char *unit)
{
    static const struct {
        const char *name;
        guint64 bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", 1ull << 10},
        {"MiB", 1ull << 20},
        {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(units); i++)
        if (g_str_equal(unit, units[i].name))
            return units[i].bytes;
    return 0;
}

gboolean flow_parse_size(const char *text, guint64 *out, GError **error)
{
    static const char form[] = "is not a size in bytes (write 512, 64KiB, 8GiB or 1.5GB)";
    gsize n = decimal_length(text);
    if (n == 0)
        return refuse(error, text, form);
    const char *unit = text + n;
    guint64 scale = size_unit(unit);
    if (scale == 0 && strlen(unit) == 1 && strchr("kKmMgGtT", *unit))
        return refuse(error, text, "is ambiguous: write GB (10^9) or GiB (2^30), likewise kB, KiB, MB, MiB");
    gboolean fraction = memchr(text, '.', n) != NULL;
    if (scale == 0 || (fraction && scale == 1))
        return refuse(error, text, form);
    /* digit by digit, so that 0.1GB is exactly 100000000; what is left below a byte is dropped */
    guint64 value = 0, part = 0, step = 1;
    gboolean over = FALSE, after = FALSE;
    for (const char *p = text; p < unit; p++) {
        if (*p == '.') {
            after = TRUE;
        } else if (!after) {
            over |= __builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, (guint64)(*p - '0'), &value);
        } else if (step < 1000000) {
            part = part * 10 + (guint64)(*p - '0');
            step *= 10;
        } else if (*p != '0') {
            return refuse(error, text, "has more than six digits after the point");
        }
    }
    over |= __builtin_mul_overflow(value, scale, &value);
    over |= __builtin_add_overflow(value, part * scale / step, &value);
    if (over)
        return refuse(error, text, "is too large for a size (64 bits)");
    *out = value;
    return TRUE;
}

gboolean flow_parse_bool(const char *text, gboolean *out, GError **error)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (guint i = 0; i < G_N_ELEMENTS(words); i++)
        if (g_ascii_strcasecmp(text, words[i]) == 0) {
            *out = i % 2 == 1;
            return TRUE;
        }
    return refuse(error, text, "is not a switch (write yes or no; true, false, on, off, 1, 0 are the same)");
}

gboolean flow_parse_duration(const char *text, double *seconds, GError **error)
{
    static const char form[] = "is not a duration (write 250ms, 10s, 5min or 2h)";
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}};
    gsize n = decimal_length(text);
    if (n == 0)
        return refuse(error, text, form);
    for (gsize i = 0; i < G_N_ELEMENTS(units); i++) {
        if (!g_str_equal(text + n, units[i].name))
            continue;
        g_autofree char *number = g_strndup(text, n);
        double value;
        if (!flow_parse_float(number, &value, error))
            return FALSE;
        *seconds = value * units[i].seconds;
        return TRUE;
    }
    return refuse(error, text, form);
}
