/* Error domain of stages. */
#include "core/flow/status.h"

G_DEFINE_QUARK(flow - stage - error - quark, flow_stage_error)
