/* A hash table with chains and a list in order of use. Every byte is counted before it is taken:
 * the table of chains is made once, in a size that follows from the limit (a table that grows would
 * for a moment be there twice), and room for an entry is made before the entry goes in.
 *
 * Age is counted in accesses, not in seconds, so that a run and its repetition evict alike.
 *
 * LRU takes the end of the list. The other two look at every entry: the score of LRU-K changes with
 * time and the next use with every item that passes, so a heap would have to be rebuilt as often
 * as it is read. An eviction is followed by reading or encoding a picture, which costs far more than a walk
 * over some ten thousand entries. */
#include "core/cache/ram.h"
#include "core/cache/future.h"

typedef struct Slot Slot;
struct Slot {
    CacheKey key;
    FlowValue *value;
    Slot *chain;
    Slot *newer, *older;
    guint64 last, uses;
    guint64 next; /* foresight: time of the next use */
    gsize cost;
};

struct CacheRam {
    CachePolicy policy;
    gsize limit, bytes, peak;
    gsize ahead; /* of the bytes: for `future` */
    Slot **table;
    gsize mask; /* chains - 1; a power of two */
    Slot *newest, *oldest;
    guint64 now; /* accesses so far */
    guint64 entries, evictions, rejected;
    CacheFuture *future; /* NULL unless the policy looks ahead */
};

enum {
    LOOK_AHEAD_SHARE = 8,    /* knowing what comes may take 1/8 of the limit, the rest is for what has come */
    CHAIN_BYTES = 16 * 1024, /* one chain for so many bytes of the limit */
    HEADERS = sizeof(Slot) + 16 + 2 * 64, /* malloc's own, and what FlowValue puts in front and pads */
};

gsize cache_ram_cost(gsize nbytes)
{
    return nbytes + sizeof(FlowValue) + HEADERS;
}

CacheRam *cache_ram_new(gsize limit, CachePolicy policy)
{
    CacheRam *ram = g_new0(CacheRam, 1);
    gsize chains = 16;
    while (chains < limit / CHAIN_BYTES && chains < 1 << 20)
        chains *= 2;
    ram->policy = policy;
    ram->limit = limit;
    if (limit / 2 >= chains * sizeof(Slot *)) {
        ram->table = g_new0(Slot *, chains);
        ram->mask = chains - 1;
        ram->bytes = ram->peak = chains * sizeof(Slot *);
    }
    if (policy == CACHE_FORESIGHT && ram->table) {
        /* set aside from the start: room that had to be made for each look would cost an entry each */
        ram->future = cache_future_new();
        ram->ahead = limit / LOOK_AHEAD_SHARE;
        ram->bytes = ram->peak = ram->bytes + ram->ahead;
    }
    return ram;
}

static Slot **ram_chain(const CacheRam *ram, CacheKey key)
{
    return &ram->table[key.lo & ram->mask];
}

static Slot *ram_find(const CacheRam *ram, CacheKey key)
{
    if (!ram->table)
        return NULL;
    Slot *slot = *ram_chain(ram, key);
    while (slot && !cache_key_equal(slot->key, key))
        slot = slot->chain;
    return slot;
}

static void ram_unlink(CacheRam *ram, Slot *slot)
{
    *(slot->newer ? &slot->newer->older : &ram->newest) = slot->older;
    *(slot->older ? &slot->older->newer : &ram->oldest) = slot->newer;
}

static void ram_link_newest(CacheRam *ram, Slot *slot)
{
    slot->newer = NULL;
    slot->older = ram->newest;
    *(ram->newest ? &ram->newest->newer : &ram->oldest) = slot;
    ram->newest = slot;
}

static void ram_remove(CacheRam *ram, Slot *slot)
{
    Slot **link = ram_chain(ram, slot->key);
    while (*link != slot)
        link = &(*link)->chain;
    *link = slot->chain;
    ram_unlink(ram, slot);
    ram->bytes -= slot->cost;
    ram->entries--;
    flow_value_unref(slot->value);
    g_free(slot);
}

void cache_ram_free(CacheRam *ram)
{
    if (!ram)
        return;
    while (ram->newest)
        ram_remove(ram, ram->newest);
    cache_future_free(ram->future);
    g_free(ram->table);
    g_free(ram);
}

FlowValue *cache_ram_get(CacheRam *ram, CacheKey key)
{
    Slot *slot = ram_find(ram, key);
    ram->now++;
    if (!slot)
        return NULL;
    slot->last = ram->now;
    slot->uses++;
    ram_unlink(ram, slot);
    ram_link_newest(ram, slot);
    return flow_value_ref(slot->value);
}

gboolean cache_ram_has(const CacheRam *ram, CacheKey key)
{
    return ram_find(ram, key) != NULL;
}

/* -- eviction ------------------------------------------------------------------- */

static Slot *victim_lru_k(const CacheRam *ram)
{
    Slot *worst = NULL;
    double worst_score = -1;
    /* oldest first, so that of equal scores the one that was used longest ago goes */
    for (Slot *s = ram->oldest; s; s = s->newer) {
        double score = (double)(ram->now - s->last) / (double)(s->uses + 1);
        if (score > worst_score) {
            worst_score = score;
            worst = s;
        }
    }
    return worst;
}

static Slot *victim_foresight(const CacheRam *ram)
{
    Slot *last = NULL;
    for (Slot *s = ram->oldest; s; s = s->newer) {
        if (!last || s->next > last->next)
            last = s;
        if (last->next == CACHE_NEVER)
            break;
    }
    return last;
}

/* The entry to give up for something whose next use is at `next`; NULL if everything in the cache is worth
 * more. */
static Slot *ram_victim(const CacheRam *ram, guint64 next)
{
    switch (ram->policy) {
    case CACHE_STATIC:
        return NULL;
    case CACHE_LRU:
        return ram->oldest;
    case CACHE_LRU_K:
        return victim_lru_k(ram);
    case CACHE_FORESIGHT: {
        Slot *slot = victim_foresight(ram);
        /* of two things with no known use, the one that is there stays: the optimum for one pass an epoch */
        return slot && slot->next > next ? slot : NULL;
    }
    }
    return NULL;
}

static gboolean ram_make_room(CacheRam *ram, gsize nbytes, guint64 next)
{
    if (!ram->table || nbytes > ram->limit)
        return FALSE;
    while (ram->bytes > ram->limit - nbytes) {
        Slot *slot = ram_victim(ram, next);
        if (!slot)
            return FALSE;
        ram_remove(ram, slot);
        ram->evictions++;
    }
    return TRUE;
}

static void ram_take(CacheRam *ram, gsize nbytes)
{
    ram->bytes += nbytes;
    ram->peak = MAX(ram->peak, ram->bytes);
}

gboolean cache_ram_put(CacheRam *ram, CacheKey key, FlowValue *value)
{
    gsize cost = cache_ram_cost(value->nbytes);
    guint64 next = ram->future ? cache_future_next(ram->future, key) : 0;
    if (ram_find(ram, key))
        return TRUE;
    if (!ram_make_room(ram, cost, next)) {
        ram->rejected++;
        return FALSE;
    }
    Slot *slot = g_new0(Slot, 1);
    slot->key = key;
    slot->value = flow_value_ref(value);
    slot->last = ram->now;
    slot->next = next;
    slot->cost = cost;
    slot->chain = *ram_chain(ram, key);
    *ram_chain(ram, key) = slot;
    ram_link_newest(ram, slot);
    ram_take(ram, cost);
    ram->entries++;
    return TRUE;
}

gboolean cache_ram_charge(CacheRam *ram, gsize nbytes)
{
    if (!ram_make_room(ram, nbytes, 0))
        return FALSE;
    ram_take(ram, nbytes);
    return TRUE;
}

gboolean cache_ram_expect(CacheRam *ram, const CacheKey *keys, gsize n)
{
    if (!ram->future || cache_future_bytes(ram->future) + n * cache_future_cost() > ram->ahead)
        return FALSE;
    for (gsize i = 0; i < n; i++) {
        guint64 at = cache_future_expect(ram->future, keys[i]);
        Slot *slot = ram_find(ram, keys[i]);
        if (slot && slot->next == CACHE_NEVER)
            slot->next = at;
    }
    return TRUE;
}

void cache_ram_pass(CacheRam *ram, CacheKey key)
{
    if (!ram->future)
        return;
    cache_future_pass(ram->future, key);
    Slot *slot = ram_find(ram, key);
    if (slot)
        slot->next = cache_future_next(ram->future, key);
}

void cache_ram_stats(const CacheRam *ram, CacheRamStats *stats)
{
    *stats = (CacheRamStats){
        .limit = ram->limit,
        .bytes = ram->bytes,
        .peak = ram->peak,
        .entries = ram->entries,
        .evictions = ram->evictions,
        .rejected = ram->rejected,
    };
}
