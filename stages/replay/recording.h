/* A recording in memory: lines parsed and checked, files named; one item is made at a time. */
#ifndef STAGES_REPLAY_RECORDING_H
#define STAGES_REPLAY_RECORDING_H
#include "core/flow/item.h"

typedef struct Recording Recording;

/* A folder that `dump` wrote, or a safetensors file with tensors INDEX/FIELD, whose items are of `kind`. */
Recording *recording_open(const char *path, FlowKind kind, GError **error);
void recording_free(Recording *recording);
guint recording_items(const Recording *recording); /* with marks */
/* Fields that every item has. */
FlowFieldSet recording_fields(const Recording *recording);
/* Reads item or mark i. NULL with error. */
FlowItem *recording_item(Recording *recording, guint i, GError **error);

#endif
