/* Admission is decided before replacement: a cache smaller than the data set keeps what is dear to
 * make (complex pictures) or what comes back, instead of turning over everything. */
#include "core/cache/admit.h"
#include "core/flow/param.h"

static gboolean admit_share(const char *text, double *out, const char *what, GError **error)
{
    if (!flow_parse_float(text, out, error)) {
        g_prefix_error(error, "%s: ", what);
        return FALSE;
    }
    if (*out < 0 || *out > 1) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "%s = %g is outside 0..1", what, *out);
        return FALSE;
    }
    return TRUE;
}

static gboolean admit_complex(char **part, guint parts, CacheAdmit *admit, GError **error)
{
    *admit = (CacheAdmit){.kind = CACHE_ADMIT_COMPLEX, .threshold = 0.7, .chance = 0.3};
    return (parts < 2 || admit_share(part[1], &admit->threshold, "threshold of 'complex'", error)) &&
           (parts < 3 || admit_share(part[2], &admit->chance, "chance of 'complex'", error));
}

static gboolean admit_frequent(char **part, guint parts, CacheAdmit *admit, GError **error)
{
    gint64 times = 2;
    if (parts > 1 && !flow_parse_int(part[1], &times, error)) {
        g_prefix_error(error, "count of 'frequent': ");
        return FALSE;
    }
    if (times < 1) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "count of 'frequent' = %" G_GINT64_FORMAT " is below 1", times);
        return FALSE;
    }
    *admit = (CacheAdmit){.kind = CACHE_ADMIT_FREQUENT, .times = (guint64)times};
    return TRUE;
}

gboolean cache_admit_parse(const char *text, CacheAdmit *admit, GError **error)
{
    g_auto(GStrv) part = g_strsplit(text, ":", 0);
    guint parts = g_strv_length(part);
    if (parts == 1 && g_str_equal(part[0], "all")) {
        *admit = (CacheAdmit){.kind = CACHE_ADMIT_ALL};
        return TRUE;
    }
    if (parts >= 1 && parts <= 3 && g_str_equal(part[0], "complex"))
        return admit_complex(part, parts, admit, error);
    if (parts >= 1 && parts <= 2 && g_str_equal(part[0], "frequent"))
        return admit_frequent(part, parts, admit, error);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "admit = '%s' is none of: all, complex:THRESHOLD:CHANCE, frequent:COUNT", text);
    return FALSE;
}

gboolean cache_admit(const CacheAdmit *admit, CacheKey key, double complexity, guint64 asked)
{
    switch (admit->kind) {
    case CACHE_ADMIT_ALL:
        return TRUE;
    case CACHE_ADMIT_COMPLEX:
        /* the key is a hash already: 53 of its bits are a uniform number */
        return complexity > admit->threshold || (double)(key.hi >> 11) * 0x1p-53 < admit->chance;
    case CACHE_ADMIT_FREQUENT:
        return asked >= admit->times;
    }
    return FALSE;
}
