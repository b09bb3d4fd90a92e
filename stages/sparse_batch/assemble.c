/* A batch starts with the most complex sample that is left, its anchor, in full. Then, until it is full, the
 * pair of sample and configuration with the largest gain among `window` candidates:
 *
 *      gain = novelty x fidelity / cost^(1/4)
 *
 *   novelty   smallest distance to the members of the batch, each feature standardised over the epoch
 *   fidelity  1 in full, 1 - complexity when smaller
 *   cost      pixels relative to full
 *
 * Candidates come up in a random order, not in that of complexity: then a batch would be of one kind. A
 * candidate keeps its novelty and looks only at the members that have joined since, so a choice costs
 * O(window) and an epoch O(n x window), plus two sorts.
 *
 * @link m
 */
#include "stages/sparse_batch/assemble.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    AssembleSample *sample;
    guint seen; /* members of the batch that novelty knows */
    double novelty;
} Candidate;

typedef struct {
    const AssembleRules *rules;
    AssembleSample *samples;
    guint n;
    const gint64 *shuffled;
    guint next; /* place in it */
    Candidate *window;
    guint in_window;
    AssembleSample **batch;
    guint in_batch;
} Epoch;

gboolean assemble_may_be_low(const AssembleRules *rules, double complexity, double cost)
{
    return complexity < rules->min_complexity && cost < 1;
}

/* To mean 0 and deviation 1; a feature that is the same for all says nothing and becomes 0. */
static void standardise(AssembleSample *samples, guint n)
{
    for (int f = 0; f < ASSEMBLE_FEATURES; f++) {
        double mean = 0, square = 0;
        for (guint i = 0; i < n; i++)
            mean += samples[i].feature[f] / n;
        for (guint i = 0; i < n; i++)
            square += (samples[i].feature[f] - mean) * (samples[i].feature[f] - mean) / n;
        double scale = square > 1e-12 ? 1 / sqrt(square) : 0;
        for (guint i = 0; i < n; i++)
            samples[i].feature[f] = (samples[i].feature[f] - mean) * scale;
    }
}

static int by_anchor(const void *a, const void *b)
{
    const AssembleSample *m = *(AssembleSample *const *)a, *n = *(AssembleSample *const *)b;
    if (m->anchor != n->anchor)
        return m->anchor > n->anchor ? -1 : 1;
    return m->place < n->place ? -1 : 1;
}

static double distance(const AssembleSample *a, const AssembleSample *b)
{
    double sum = 0;
    for (int f = 0; f < ASSEMBLE_FEATURES; f++)
        sum += (a->feature[f] - b->feature[f]) * (a->feature[f] - b->feature[f]);
    return sqrt(sum);
}

static void join(Epoch *e, AssembleSample *sample, gboolean low)
{
    sample->used = TRUE;
    sample->low = low;
    e->batch[e->in_batch++] = sample;
}

/* Drops what has been used since and takes in the next candidates. */
static void refill(Epoch *e)
{
    guint kept = 0;
    for (guint i = 0; i < e->in_window; i++)
        if (!e->window[i].sample->used)
            e->window[kept++] = e->window[i];
    for (; kept < e->rules->window && e->next < e->n; e->next++) {
        AssembleSample *sample = &e->samples[e->shuffled[e->next]];
        if (!sample->used)
            e->window[kept++] = (Candidate){sample, 0, INFINITY};
    }
    e->in_window = kept;
}

/* The pair of candidate and configuration with the largest gain joins. */
static void choose(Epoch *e)
{
    double best = -1;
    AssembleSample *chosen = NULL;
    gboolean low = FALSE;
    for (guint i = 0; i < e->in_window; i++) {
        Candidate *c = &e->window[i];
        for (; c->seen < e->in_batch; c->seen++)
            c->novelty = MIN(c->novelty, distance(c->sample, e->batch[c->seen]));
        if (c->novelty > best)
            best = c->novelty, chosen = c->sample, low = FALSE;
        if (!assemble_may_be_low(e->rules, c->sample->complexity, c->sample->cost))
            continue;
        double gain = c->novelty * (1 - c->sample->complexity) / pow(c->sample->cost, 0.25);
        if (gain > best)
            best = gain, chosen = c->sample, low = TRUE;
    }
    join(e, chosen, low);
}

static void fill_batch(Epoch *e, AssembleSample *anchor)
{
    e->in_batch = 0;
    join(e, anchor, FALSE);
    for (guint i = 0; i < e->in_window; i++) {
        e->window[i].seen = 0;
        e->window[i].novelty = INFINITY;
    }
    while (e->in_batch < e->rules->batch) {
        refill(e);
        if (e->in_window == 0)
            return;
        choose(e);
    }
}

void assemble_epoch(const AssembleRules *rules, AssembleSample *samples, guint n, const gint64 *shuffled,
                    guint *order)
{
    guint done = 0;
    g_autofree AssembleSample **anchors = g_new(AssembleSample *, n);
    Epoch e = {
        .rules = rules,
        .samples = samples,
        .n = n,
        .shuffled = shuffled,
        .window = g_new(Candidate, MIN(rules->window, n)),
        .batch = g_new(AssembleSample *, MIN(rules->batch, n)),
    };
    standardise(samples, n);
    for (guint i = 0; i < n; i++) {
        samples[shuffled[i]].place = i;
        samples[i].used = FALSE;
        anchors[i] = &samples[i];
    }
    qsort(anchors, n, sizeof *anchors, by_anchor);
    for (guint i = 0; i < n; i++) {
        if (anchors[i]->used)
            continue;
        fill_batch(&e, anchors[i]);
        for (guint j = 0; j < e.in_batch; j++)
            order[done++] = (guint)(e.batch[j] - samples);
    }
    g_free(e.window);
    g_free(e.batch);
}
