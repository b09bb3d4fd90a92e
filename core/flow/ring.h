/* Bounded ring between two nodes: ordered commit, limits in items and bytes, exact waits.
 * ring.c has the locking rules. Items are any pointers; the ring owns what is in it. */
#ifndef FLOW_RING_H
#define FLOW_RING_H
#include "core/flow/status.h"

G_BEGIN_DECLS

typedef struct FlowRing FlowRing;

/* What a worker waits for; read by the watchdog. One per worker thread, set with flow_ring_self(). */
typedef enum { FLOW_WAIT_NONE, FLOW_WAIT_FULL, FLOW_WAIT_EMPTY, FLOW_WAIT_EXITED } FlowWaitKind;
typedef struct {
    _Atomic(int) kind;
    _Atomic(FlowRing *) ring;
    _Atomic(gsize) nbytes;          /* of the item that waits for space, 0 = not known */
    _Atomic(guint64) busy_since_ns; /* inside process() since, 0 = not */
    _Atomic(guint64) wait_full_ns, wait_empty_ns;
} FlowWait;
void flow_ring_self(FlowWait *wait);

typedef struct {
    guint64 pushed, popped, wait_full_ns, wait_empty_ns; /* items; time summed over waiting threads */
    guint64 bytes;
    guint32 fill, high, capacity; /* tickets */
} FlowRingStats;

/* `capacity` >= 1 tickets, exactly; `max_bytes` 0 = no limit. An item larger than max_bytes passes when
 * the ring is empty. `drop` frees what is left at the end; `producers` >= 1. */
FlowRing *flow_ring_new(const char *name, guint32 capacity, gsize max_bytes, guint32 producers,
                        GDestroyNotify drop);
void flow_ring_free(FlowRing *ring);
const char *flow_ring_name(const FlowRing *ring);

/* Next ticket; the only place where back pressure blocks. FLOW_EOS: the consumer is gone. */
FlowStatus flow_ring_reserve(FlowRing *ring, guint64 *ticket);
/* Fills a ticket with a chain of n items (0 = a hole), in any order among tickets. Takes the items. Every
 * reserved ticket must be committed, also after the other side has gone. The byte limit is waited for at
 * reserve, where what is under way counts as the largest item so far. */
void flow_ring_commit(FlowRing *ring, guint64 ticket, gpointer *items, gsize n, gsize nbytes);
/* reserve + commit of one item; takes it, also on failure. */
FlowStatus flow_ring_push(FlowRing *ring, gpointer item, gsize nbytes);
/* Waits for one item in ticket order. FLOW_EOS when every producer is done and it is empty. */
FlowStatus flow_ring_pop(FlowRing *ring, gpointer *item);
/* Like pop, but never waits: FLOW_OK with *item = NULL when nothing is ready. */
FlowStatus flow_ring_try_pop(FlowRing *ring, gpointer *item);
/* The items that are ready, oldest first, at most `max`: borrowed, valid until the next pop; for rings that
 * one thread pops from. */
gsize flow_ring_peek(FlowRing *ring, gpointer *items, gsize max);

void flow_ring_producer_done(FlowRing *ring); /* once per producer */
void flow_ring_consumer_done(FlowRing *ring); /* producers get FLOW_EOS from now on; drops what is in it */
void flow_ring_abort(FlowRing *ring);         /* both sides get FLOW_CANCELLED */
/* Ctrl-C: the consumer gets FLOW_EOS at its next pop, which drops what is in the ring; producers get
 * FLOW_EOS. */
void flow_ring_cut(FlowRing *ring);
/* Raises the capacity, and the byte limit in proportion (artificial deadlock, graph key on_stall = grow). */
void flow_ring_grow(FlowRing *ring, guint32 capacity);
/* Would an item of `nbytes` (0 = not known) have to wait? For the watchdog. */
gboolean flow_ring_full(FlowRing *ring, gsize nbytes);
void flow_ring_stats(FlowRing *ring, FlowRingStats *stats);

G_END_DECLS
#endif
