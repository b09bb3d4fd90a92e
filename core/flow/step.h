/* Step items as text: one line of JSON, for logs and for what a checkpoint remembers of them. */
#ifndef FLOW_STEP_H
#define FLOW_STEP_H
#include "core/flow/item.h"

G_BEGIN_DECLS

/* {"step": 7, "group": 8, "epoch": 0, "loss": ..., ...} without a line end. Numbers that are not finite are
 * null. Returns new. [any] */
char *flow_step_line(const FlowItem *item);
/* The group of a complete line; -1 for anything else (the last line of a killed run is cut anywhere). [any]
 */
gint64 flow_step_line_group(const char *line);
/* Appends to `line` (complete, at the end of the text) the validation loss of `item` where the line has none:
 * a stop may come between an update and its validation, which the resumed run makes up for. [any] */
void flow_step_line_complete(GString *text, const FlowItem *item);

G_END_DECLS
#endif
