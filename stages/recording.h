/* What `dump` writes and `replay` reads, in one folder:
 *
 *   items.jsonl                      one line an item or mark, in order
 *   000000.image.png                 the RGB picture of item 0
 *   000000.latent_mean.safetensors   any other tensor, under the name of its field
 *
 *   {"index": 0, "kind": "sample", "epoch": 0, "position": 3, "size": 8, "epochs": 1,
 *    "fields": {"caption": "a cat", "image": {"file": "000000.image.png"}}}
 *   {"mark": "epoch", "epoch": 0, "position": 8, "size": 8, "epochs": 1}
 *
 * Texts stand in the line; one that is not UTF-8 (a file name may be) as {"bytes": "hex"}. */
#ifndef STAGES_RECORDING_H
#define STAGES_RECORDING_H
#include "core/flow/item.h"

#define RECORDING_ITEMS "items.jsonl"

static const char *const recording_kinds[] = {"sample", "batch", "step"}; /* by FlowKind */
static const char *const recording_marks[] = {"epoch", "prefill_done"};   /* by FlowMark */
G_STATIC_ASSERT(FLOW_SAMPLE == 0 && FLOW_BATCH == 1 && FLOW_STEP == 2);
G_STATIC_ASSERT(FLOW_MARK_EPOCH == 0 && FLOW_MARK_PREFILL_DONE == 1);

/* Is it kept as a picture? */
static inline gboolean recording_is_picture(NetType type, guint ndim, const gint64 *shape)
{
    return type == NET_U8 && ndim == 3 && shape[2] == 3 && shape[0] > 0 && shape[1] > 0;
}

#endif
