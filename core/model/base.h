/* The base model that a graph is about. */
#ifndef MODEL_BASE_H
#define MODEL_BASE_H
#include "core/flow/stage.h"

G_BEGIN_DECLS

/* The path that every node with a parameter `base` names. NULL if there is none, or, with error, if they name
 * several. Borrowed from the graph. [graph] */
const char *model_base_of_graph(FlowNode *node, GError **error);

G_END_DECLS
#endif
