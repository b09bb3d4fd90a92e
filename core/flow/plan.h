/* The memory plan: what a run will hold, per node, phase and place, before it starts.
 *
 * plan() of every stage is called in topological order with one FlowPlan. A stage adds bytes, and
 * changes the picture of the data for those after it: which sizes flow, how many, in what batches.
 * The host adds the rings (capacity x item_bytes, at most their byte limit). */
#ifndef FLOW_PLAN_H
#define FLOW_PLAN_H
#include "core/flow/stage.h"

G_BEGIN_DECLS

typedef enum {
    FLOW_PHASE_PREFILL,
    FLOW_PHASE_TRAIN,
    FLOW_PHASE_VALIDATE,
    FLOW_PHASE_SAVE,
    FLOW_PHASE_COUNT
} FlowPhase;
const char *flow_phase_name(FlowPhase phase); /* "prefill", ... */

typedef struct {
    gint32 height, width; /* px: of the source at first, of the target after `bucket` */
    gint64 count;
} FlowPlanSize;

struct FlowPlan {
    gboolean no_data;  /* --no-data: assume every bucket and the longest text */
    GArray *sizes;     /* FlowPlanSize; each size once */
    gint64 samples;    /* training pictures (distinct) */
    gint64 validation; /* held-back pictures */
    gint64 batch, accumulate;
    gint64 longest_tokens;
    gboolean encoders_stay; /* a cache cannot hold the set: encoders live beside the U-Net */
    gsize item_bytes;       /* of one item as it leaves the node that ran last (largest) */
    gint64 source_pixels;   /* of the largest picture file */
    gint64 source_bytes;    /* of the largest picture file */
    gpointer reserved[6];
};

/* Bytes that `node` holds in `phase` at `place`; `what` is "arena", "weights", "adapters", "optimizer",
 * "activations", "cache", "scratch", ...: `plan` sums equal words per node. [graph] */
void flow_plan_add(FlowPlan *plan, FlowNode *node, FlowPhase phase, FlowPlace place, const char *what,
                   gsize bytes);
/* The same in every phase. */
void flow_plan_add_always(FlowPlan *plan, FlowNode *node, FlowPlace place, const char *what, gsize bytes);
/* Facts for plan --json "step": "bound", "arena", "recompute" ... */
void flow_plan_fact(FlowPlan *plan, const char *name, double value);
/* Longer texts about a step: "ops" (plan --ops), "intervals" (plan --dump). The last one stated stays. */
void flow_plan_text(FlowPlan *plan, const char *name, const char *text);
/* A line for people under the table. */
void flow_plan_note(FlowPlan *plan, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Peak sums over nodes and rings. */
gsize flow_plan_peak(const FlowPlan *plan, FlowPlace place);

G_END_DECLS
#endif
