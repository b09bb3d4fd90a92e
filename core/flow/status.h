/* Outcome of everything that moves items. */
#ifndef FLOW_STATUS_H
#define FLOW_STATUS_H
#include <glib.h>

G_BEGIN_DECLS

typedef enum {
    FLOW_OK,
    FLOW_EOS,       /* the other side is finished; nothing more will move */
    FLOW_SKIP,      /* this item is bad: drop it, count it */
    FLOW_CANCELLED, /* the run is being torn down */
    FLOW_ERROR,     /* with a GError */
} FlowStatus;

#define FLOW_STAGE_ERROR flow_stage_error_quark()
GQuark flow_stage_error_quark(void);
enum {
    FLOW_STAGE_ERROR_FAILED, /* the operation failed */
    FLOW_STAGE_ERROR_PARAM,  /* parameters contradict each other or the data */
    FLOW_STAGE_ERROR_ITEM,   /* this item is bad; the next may be fine */
    FLOW_STAGE_ERROR_DEVICE,
};

G_END_DECLS
#endif
