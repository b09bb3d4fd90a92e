/* Which items a cache takes in at all. */
#ifndef CACHE_ADMIT_H
#define CACHE_ADMIT_H
#include "core/cache/key.h"

G_BEGIN_DECLS

typedef enum { CACHE_ADMIT_ALL, CACHE_ADMIT_COMPLEX, CACHE_ADMIT_FREQUENT } CacheAdmitKind;

typedef struct {
    CacheAdmitKind kind;
    double threshold, chance; /* complex: above the threshold always, else with this chance */
    guint64 times;            /* frequent: from this request on */
} CacheAdmit;

/* "all", "complex", "complex:0.7:0.3", "frequent:2". FALSE with the faulty part and what is allowed. */
gboolean cache_admit_parse(const char *text, CacheAdmit *admit, GError **error);
/* `key` names the item: the draw is the same in every epoch, so an item does not get in by luck of one
 * epoch after the other. `asked` counts the requests for it so far, this one included. */
gboolean cache_admit(const CacheAdmit *admit, CacheKey key, double complexity, guint64 asked);

G_END_DECLS
#endif
