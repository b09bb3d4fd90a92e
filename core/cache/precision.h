/* Dynamic precision: which class a sample's latents travel in, by optimizer step and complexity. */
#ifndef CACHE_PRECISION_H
#define CACHE_PRECISION_H
#include <glib.h>

G_BEGIN_DECLS

/* The numbers of the fields "precision" and "packed". */
typedef enum { CACHE_FULL, CACHE_MIXED, CACHE_HALF, CACHE_CLASSES } CachePrecision;
const char *cache_precision_name(CachePrecision precision);

enum { CACHE_PHASES = 16, CACHE_RULES = 8 };

typedef struct {
    double below; /* complexity; the last rule of a phase has none (infinity) */
    CachePrecision precision;
} CacheRule;

typedef struct {
    gint64 until; /* first step that is not in it any more; G_MAXINT64 for the last */
    guint n;
    CacheRule rule[CACHE_RULES];
} CachePhase;

typedef struct {
    guint n;
    CachePhase phase[CACHE_PHASES];
} CacheSchedule;

/* "1000: 0.3 half, full; 5000: 0.2 half, 0.6 mixed, full; full": before step 1000, complexity below 0.3 goes
 * in half, the rest in full precision; and so on. FALSE with the part that is wrong. [any] */
gboolean cache_schedule_parse(const char *text, CacheSchedule *schedule, GError **error);
/* `ceiling` is the highest precision that the sample may have. [any] */
CachePrecision cache_schedule_choose(const CacheSchedule *schedule, gint64 step, double complexity,
                                     CachePrecision ceiling);

G_END_DECLS
#endif
