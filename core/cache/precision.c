/* A schedule is a list of phases, a phase a list of rules, the first rule that fits decides. Steps are
 * planned steps (the number of the accumulation group), so a step that is skipped for an overflow shifts
 * nothing and a resumed run decides as before. */
#include "core/cache/precision.h"
#include "core/flow/param.h"
#include <math.h>

static const char *const names[CACHE_CLASSES] = {"full", "mixed", "half"};

const char *cache_precision_name(CachePrecision precision)
{
    return (guint)precision < CACHE_CLASSES ? names[precision] : "unknown";
}

static gboolean schedule_fault(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean schedule_fault(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "schedule: %s", text);
    return FALSE;
}

static gboolean parse_class(const char *text, CachePrecision *out, GError **error)
{
    for (int i = 0; i < CACHE_CLASSES; i++)
        if (g_str_equal(text, names[i])) {
            *out = (CachePrecision)i;
            return TRUE;
        }
    return schedule_fault(error, "'%s' is none of full, mixed, half", text);
}

/* "0.3 half", or "full" (only and always the last of a phase). */
static gboolean parse_rule(char *text, gboolean last, CacheRule *rule, GError **error)
{
    g_strstrip(text);
    char *blank = text;
    while (*blank && !g_ascii_isspace(*blank))
        blank++;
    rule->below = INFINITY;
    if (!*blank)
        return last ? parse_class(text, &rule->precision, error)
                    : schedule_fault(error, "'%s' needs a complexity before it, as in '0.3 half'", text);
    if (last)
        return schedule_fault(error, "'%s' cannot be last: what is above it needs a precision too", text);
    *blank++ = '\0';
    if (!flow_parse_float(text, &rule->below, NULL) || rule->below < 0 || rule->below > 1)
        return schedule_fault(error, "the complexity '%s' is not a number in 0..1", text);
    return parse_class(g_strstrip(blank), &rule->precision, error);
}

/* "1000: RULE, RULE, CLASS"; the last phase of a schedule has no step in front. */
static gboolean parse_phase(char *text, gboolean last, CachePhase *phase, GError **error)
{
    char *rules = strchr(text, ':');
    phase->until = G_MAXINT64;
    if (rules && last)
        return schedule_fault(error, "'%s' needs a last part without a step behind it", g_strstrip(text));
    if (!rules && !last)
        return schedule_fault(error, "'%s' needs a step before it, as in '1000: full'", g_strstrip(text));
    if (rules) {
        *rules++ = '\0';
        if (!flow_parse_int(g_strstrip(text), &phase->until, NULL) || phase->until < 1)
            return schedule_fault(error, "the step '%s' is not a number from 1", text);
    } else {
        rules = text;
    }
    g_auto(GStrv) part = g_strsplit(rules, ",", -1);
    phase->n = g_strv_length(part);
    if (phase->n > CACHE_RULES)
        return schedule_fault(error, "%u rules in one part, at most %d are allowed", phase->n, CACHE_RULES);
    if (phase->n == 0)
        return schedule_fault(error, "an empty part");
    for (guint i = 0; i < phase->n; i++) {
        if (!parse_rule(part[i], i + 1 == phase->n, &phase->rule[i], error))
            return FALSE;
        if (i > 0 && phase->rule[i].below <= phase->rule[i - 1].below)
            return schedule_fault(error, "complexities must rise, %g follows %g", phase->rule[i].below,
                                  phase->rule[i - 1].below);
    }
    return TRUE;
}

gboolean cache_schedule_parse(const char *text, CacheSchedule *schedule, GError **error)
{
    g_auto(GStrv) part = g_strsplit(text, ";", -1);
    schedule->n = g_strv_length(part);
    if (schedule->n == 0)
        return schedule_fault(error, "it is empty");
    if (schedule->n > CACHE_PHASES)
        return schedule_fault(error, "%u parts, at most %d are allowed", schedule->n, CACHE_PHASES);
    for (guint i = 0; i < schedule->n; i++) {
        if (!parse_phase(part[i], i + 1 == schedule->n, &schedule->phase[i], error))
            return FALSE;
        if (i > 0 && schedule->phase[i].until <= schedule->phase[i - 1].until)
            return schedule_fault(error, "steps must rise, %" G_GINT64_FORMAT " follows %" G_GINT64_FORMAT,
                                  schedule->phase[i].until, schedule->phase[i - 1].until);
    }
    return TRUE;
}

CachePrecision cache_schedule_choose(const CacheSchedule *schedule, gint64 step, double complexity,
                                     CachePrecision ceiling)
{
    const CachePhase *phase = schedule->phase;
    while (step >= phase->until)
        phase++;
    const CacheRule *rule = phase->rule;
    while (!(complexity < rule->below) && rule < phase->rule + phase->n - 1)
        rule++;
    return MAX(rule->precision, ceiling);
}
