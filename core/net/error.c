/* Error domain of the engine. */
#include "core/net/net.h"

G_DEFINE_QUARK(net - error - quark, net_error)
