/* Which samples make a batch, and how. Numbers only: no items, no host. Private to the stage. */
#ifndef SPARSE_BATCH_ASSEMBLE_H
#define SPARSE_BATCH_ASSEMBLE_H
#include <glib.h>

enum { ASSEMBLE_FEATURES = 6 }; /* image entropy, text length, log aspect, mean L, a, b */

typedef struct {
    double anchor;     /* complexity with jitter: who starts a batch */
    double complexity; /* 0..1 */
    double cost;       /* pixels of the smaller configuration relative to full; 1 = there is none */
    double feature[ASSEMBLE_FEATURES];
    guint place; /* in the order of candidates; ties go by it */
    gboolean used;
    gboolean low; /* result: goes smaller */
} AssembleSample;

typedef struct {
    guint batch, window;   /* >= 1 */
    double min_complexity; /* samples below it may go smaller */
} AssembleRules;

/* Is the smaller configuration open to it? */
gboolean assemble_may_be_low(const AssembleRules *rules, double complexity, double cost);
/* `order` gets the indices of all n samples, batch after batch, each led by its anchor, and `low` of each
 * sample is set. `shuffled` is a permutation of 0..n-1: the order in which candidates come up. Changes the
 * features. */
void assemble_epoch(const AssembleRules *rules, AssembleSample *samples, guint n, const gint64 *shuffled,
                    guint *order);

#endif
