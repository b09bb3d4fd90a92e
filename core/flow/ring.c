/* Bounded FIFO of pointers with ordered commit.
 *
 *      head              ready              tail
 *       |--- committed ---|--- reserved -----|--- free ---|
 *
 * head and tail run freely; a slot is index & mask. reserve() hands out the next ticket and is where
 * back pressure blocks; commit() fills that ticket's slot, in any order, with a chain of items (what a
 * worker made of one input). pop() sees the committed prefix only, so consumers see ticket order
 * whatever order the workers finished in. An empty chain is a hole; whoever makes it the oldest slot
 * steps over it, so that a hole wakes no consumer.
 *
 * Limits: `capacity` tickets, exactly, and `max_bytes`. The size of an item is not known when its
 * ticket is reserved, so what is reserved counts as the largest item seen so far: for items of about one
 * size the limit holds exactly, and it never lies by more than what was under way. An empty ring
 * always admits one, else an item above the limit could not pass at all.
 *
 * A mutex and two condition variables: at our item sizes the cost is far below the work on an item,
 * and ends, cancelling and byte limits stay provable, which they are not in lock-free queues. Pop
 * signals again if more is ready: a commit may have woken one consumer for two items. Waiting
 * producers are all woken, because the one that fits need not be the one that was signalled.
 *
 * All fields below `lock` are protected by it; `drop` is never called with the lock held. What a cut
 * leaves in the ring is dropped by the consumer (or at the end), because peek() may have lent it. */
#include "core/flow/ring.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

typedef struct {
    gpointer one; /* chain of one item */
    gpointer *many;
    gsize n, taken, nbytes;
    gboolean ready;
} Slot;

struct FlowRing {
    char *name;
    GDestroyNotify drop;

    pthread_mutex_t lock;
    pthread_cond_t not_full, not_empty;
    guint32 capacity, mask, producers, wait_full, wait_empty;
    gboolean consumer_gone, cut, aborted;
    guint64 head, tail;
    gsize max_bytes, bytes, largest; /* bytes: of what is committed */
    guint32 pending;                 /* reserved, not yet committed */
    FlowRingStats stats;
    Slot *slot;
};

static _Thread_local FlowWait *self;

void flow_ring_self(FlowWait *wait)
{
    self = wait;
}

static guint64 now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (guint64)t.tv_sec * 1000000000u + (guint64)t.tv_nsec;
}

static guint32 slots_for(guint32 capacity)
{
    guint32 n = 1;
    while (n < capacity)
        n *= 2;
    return n;
}

FlowRing *flow_ring_new(const char *name, guint32 capacity, gsize max_bytes, guint32 producers,
                        GDestroyNotify drop)
{
    g_assert(capacity >= 1 && capacity <= G_MAXINT32 && producers >= 1);
    FlowRing *r = g_new0(FlowRing, 1);
    r->name = g_strdup(name);
    r->drop = drop;
    r->capacity = capacity;
    r->mask = slots_for(capacity) - 1;
    r->max_bytes = max_bytes;
    r->producers = producers;
    r->slot = g_new0(Slot, (gsize)r->mask + 1);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->not_full, NULL);
    pthread_cond_init(&r->not_empty, NULL);
    return r;
}

/* -- slots. All with the lock held ---------------------------------------------- */

static Slot *slot_at(FlowRing *r, guint64 index)
{
    return &r->slot[index & r->mask];
}

static gboolean head_ready(FlowRing *r)
{
    return r->head != r->tail && slot_at(r, r->head)->ready;
}

static gpointer *chain(Slot *s)
{
    return s->many ? s->many : &s->one;
}

static void fill(Slot *s, gpointer *items, gsize n, gsize nbytes)
{
    g_assert(!s->ready);
    memset(s, 0, sizeof *s);
    if (n == 1)
        s->one = items[0];
    else if (n > 1)
        s->many = g_memdup2(items, n * sizeof *items);
    s->n = n;
    s->nbytes = nbytes;
    s->ready = TRUE;
}

static void free_head(FlowRing *r)
{
    Slot *s = slot_at(r, r->head);
    g_free(s->many);
    r->bytes -= s->nbytes;
    memset(s, 0, sizeof *s);
    r->head++;
}

/* Leaves a slot with an item at the head, or one that is not committed. */
static void skip_holes(FlowRing *r)
{
    guint64 before = r->head;
    while (head_ready(r) && slot_at(r, r->head)->n == 0)
        free_head(r);
    if (r->head != before && r->wait_full)
        pthread_cond_broadcast(&r->not_full);
}

static gpointer take(FlowRing *r)
{
    Slot *s = slot_at(r, r->head);
    gpointer item = chain(s)[s->taken++];
    r->stats.popped++;
    if (s->taken == s->n) {
        free_head(r);
        if (r->wait_full)
            pthread_cond_broadcast(&r->not_full);
        skip_holes(r);
    }
    return item;
}

/* Moves what is committed into `out`; tickets that are still under way stay reserved. */
static void purge(FlowRing *r, GPtrArray *out)
{
    for (guint64 i = r->head; i != r->tail; i++) {
        Slot *s = slot_at(r, i);
        if (!s->ready)
            continue;
        for (; s->taken < s->n; s->taken++)
            g_ptr_array_add(out, chain(s)[s->taken]);
        g_clear_pointer(&s->many, g_free);
        r->bytes -= s->nbytes;
        s->nbytes = s->n = 0;
    }
    skip_holes(r);
}

static void drop_all(FlowRing *r, GPtrArray *items)
{
    for (guint i = 0; r->drop && i < items->len; i++)
        r->drop(g_ptr_array_index(items, i));
    g_ptr_array_unref(items);
}

/* -- waiting -------------------------------------------------------------------- */

static void wait_on(FlowRing *r, pthread_cond_t *cond, FlowWaitKind kind)
{
    guint32 *waiting = kind == FLOW_WAIT_FULL ? &r->wait_full : &r->wait_empty;
    guint64 begin = now_ns();
    if (self) {
        atomic_store(&self->ring, r);
        atomic_store(&self->kind, kind);
    }
    ++*waiting;
    pthread_cond_wait(cond, &r->lock);
    --*waiting;
    guint64 waited = now_ns() - begin;
    if (self) {
        atomic_store(&self->kind, FLOW_WAIT_NONE);
        atomic_fetch_add(kind == FLOW_WAIT_FULL ? &self->wait_full_ns : &self->wait_empty_ns, waited);
    }
    *(kind == FLOW_WAIT_FULL ? &r->stats.wait_full_ns : &r->stats.wait_empty_ns) += waited;
}

/* `nbytes` of the item to come; 0 = not known yet. */
static gboolean is_full(const FlowRing *r, gsize nbytes)
{
    guint64 used = r->tail - r->head;
    if (used == 0)
        return FALSE;
    if (used >= r->capacity)
        return TRUE;
    if (r->max_bytes == 0)
        return FALSE;
    return r->bytes + r->pending * r->largest + (nbytes ? nbytes : r->largest) > r->max_bytes;
}

static FlowStatus reserve_locked(FlowRing *r, gsize nbytes, guint64 *ticket)
{
    if (self)
        atomic_store(&self->nbytes, nbytes);
    while (is_full(r, nbytes) && !r->aborted && !r->consumer_gone && !r->cut)
        wait_on(r, &r->not_full, FLOW_WAIT_FULL);
    if (r->aborted)
        return FLOW_CANCELLED;
    if (r->consumer_gone || r->cut)
        return FLOW_EOS;
    *ticket = r->tail++;
    r->pending++;
    r->stats.high = MAX(r->stats.high, (guint32)(r->tail - r->head));
    return FLOW_OK;
}

/* FALSE if nobody will take the items: the caller drops them. */
static gboolean commit_locked(FlowRing *r, guint64 ticket, gpointer *items, gsize n, gsize nbytes)
{
    g_assert(ticket - r->head < r->tail - r->head);
    gboolean wanted = !r->aborted && !r->consumer_gone && !r->cut;
    if (!wanted)
        n = nbytes = 0;
    fill(slot_at(r, ticket), items, n, nbytes);
    r->pending--;
    r->bytes += nbytes;
    r->largest = MAX(r->largest, nbytes);
    r->stats.pushed += n;
    if (ticket == r->head)
        skip_holes(r);
    if (r->wait_empty && head_ready(r))
        pthread_cond_signal(&r->not_empty);
    /* it may be smaller than what it was counted as */
    if (r->wait_full && r->max_bytes && nbytes < r->largest)
        pthread_cond_broadcast(&r->not_full);
    return wanted;
}

/* -- producers ------------------------------------------------------------------ */

FlowStatus flow_ring_reserve(FlowRing *r, guint64 *ticket)
{
    pthread_mutex_lock(&r->lock);
    FlowStatus status = reserve_locked(r, 0, ticket);
    pthread_mutex_unlock(&r->lock);
    return status;
}

void flow_ring_commit(FlowRing *r, guint64 ticket, gpointer *items, gsize n, gsize nbytes)
{
    pthread_mutex_lock(&r->lock);
    gboolean wanted = commit_locked(r, ticket, items, n, nbytes);
    pthread_mutex_unlock(&r->lock);
    for (gsize i = 0; !wanted && r->drop && i < n; i++)
        r->drop(items[i]);
}

FlowStatus flow_ring_push(FlowRing *r, gpointer item, gsize nbytes)
{
    guint64 ticket;
    pthread_mutex_lock(&r->lock);
    FlowStatus status = reserve_locked(r, nbytes, &ticket);
    if (status == FLOW_OK)
        commit_locked(r, ticket, &item, 1, nbytes);
    pthread_mutex_unlock(&r->lock);
    if (status != FLOW_OK && r->drop)
        r->drop(item);
    return status;
}

void flow_ring_producer_done(FlowRing *r)
{
    pthread_mutex_lock(&r->lock);
    g_assert(r->producers > 0);
    if (--r->producers == 0)
        pthread_cond_broadcast(&r->not_empty);
    pthread_mutex_unlock(&r->lock);
}

/* -- the consumer --------------------------------------------------------------- */

static FlowStatus pop(FlowRing *r, gpointer *item, gboolean wait)
{
    FlowStatus status = FLOW_OK;
    GPtrArray *left = NULL;
    *item = NULL;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        if (r->aborted) {
            status = FLOW_CANCELLED;
        } else if (r->cut || r->consumer_gone) {
            purge(r, left = g_ptr_array_new());
            status = FLOW_EOS;
        } else if (head_ready(r)) {
            *item = take(r);
            /* one commit may have woken only us while more items were ready */
            if (r->wait_empty && head_ready(r))
                pthread_cond_signal(&r->not_empty);
        } else if (r->head == r->tail && r->producers == 0) {
            status = FLOW_EOS;
        } else if (wait) {
            wait_on(r, &r->not_empty, FLOW_WAIT_EMPTY);
            continue;
        }
        break;
    }
    pthread_mutex_unlock(&r->lock);
    if (left)
        drop_all(r, left);
    return status;
}

FlowStatus flow_ring_pop(FlowRing *r, gpointer *item)
{
    return pop(r, item, TRUE);
}

FlowStatus flow_ring_try_pop(FlowRing *r, gpointer *item)
{
    return pop(r, item, FALSE);
}

gsize flow_ring_peek(FlowRing *r, gpointer *items, gsize max)
{
    gsize n = 0;
    pthread_mutex_lock(&r->lock);
    gboolean lends = !r->aborted && !r->cut && !r->consumer_gone;
    for (guint64 i = r->head; lends && i != r->tail && slot_at(r, i)->ready; i++) {
        Slot *s = slot_at(r, i);
        for (gsize k = s->taken; k < s->n && n < max; k++)
            items[n++] = chain(s)[k];
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

void flow_ring_consumer_done(FlowRing *r)
{
    GPtrArray *left = g_ptr_array_new();
    pthread_mutex_lock(&r->lock);
    r->consumer_gone = TRUE;
    purge(r, left);
    pthread_cond_broadcast(&r->not_full);
    pthread_cond_broadcast(&r->not_empty);
    pthread_mutex_unlock(&r->lock);
    drop_all(r, left);
}

/* -- both sides ------------------------------------------------------------------ */

static void wake_all(FlowRing *r, gboolean *flag)
{
    pthread_mutex_lock(&r->lock);
    *flag = TRUE;
    pthread_cond_broadcast(&r->not_full);
    pthread_cond_broadcast(&r->not_empty);
    pthread_mutex_unlock(&r->lock);
}

void flow_ring_abort(FlowRing *r)
{
    wake_all(r, &r->aborted);
}

void flow_ring_cut(FlowRing *r)
{
    wake_all(r, &r->cut);
}

/* Slots move to where the wider mask puts them; tickets are absolute and stay valid. */
void flow_ring_grow(FlowRing *r, guint32 capacity)
{
    pthread_mutex_lock(&r->lock);
    if (capacity > r->capacity) {
        guint32 mask = slots_for(capacity) - 1;
        Slot *slot = g_new0(Slot, (gsize)mask + 1);
        for (guint64 i = r->head; i != r->tail; i++)
            slot[i & mask] = *slot_at(r, i);
        g_free(r->slot);
        r->slot = slot;
        r->mask = mask;
        r->max_bytes = (gsize)((double)r->max_bytes / r->capacity * capacity);
        r->capacity = capacity;
        pthread_cond_broadcast(&r->not_full);
    }
    pthread_mutex_unlock(&r->lock);
}

gboolean flow_ring_full(FlowRing *r, gsize nbytes)
{
    pthread_mutex_lock(&r->lock);
    gboolean full = is_full(r, nbytes) && !r->aborted && !r->consumer_gone && !r->cut;
    pthread_mutex_unlock(&r->lock);
    return full;
}

void flow_ring_stats(FlowRing *r, FlowRingStats *stats)
{
    pthread_mutex_lock(&r->lock);
    *stats = r->stats;
    stats->bytes = r->bytes;
    stats->fill = (guint32)(r->tail - r->head);
    stats->capacity = r->capacity;
    pthread_mutex_unlock(&r->lock);
}

const char *flow_ring_name(const FlowRing *r)
{
    return r->name;
}

void flow_ring_free(FlowRing *r)
{
    if (!r)
        return;
    GPtrArray *left = g_ptr_array_new();
    purge(r, left);
    drop_all(r, left);
    pthread_cond_destroy(&r->not_full);
    pthread_cond_destroy(&r->not_empty);
    pthread_mutex_destroy(&r->lock);
    g_free(r->slot);
    g_free(r->name);
    g_free(r);
}
