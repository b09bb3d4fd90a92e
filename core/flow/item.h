/* What flows: a reference-counted record of named fields.
 *
 * An item owns references to values; a value is immutable once it is in an item that others can
 * see, so tee is free and nothing is copied. A stage that wants to set or drop fields needs an item
 * of its own: flow_item_writable() gives it (itself when unshared, else a shallow copy).
 * flow_value_writable() does the same for the data of one field.
 *
 * Reference counts are C11 atomics: ThreadSanitizer must see them. */
#ifndef FLOW_ITEM_H
#define FLOW_ITEM_H
#include "core/flow/field.h"
#include <stdatomic.h>

G_BEGIN_DECLS

typedef struct FlowItem FlowItem;
typedef struct FlowValue FlowValue;

typedef enum { FLOW_SAMPLE, FLOW_BATCH, FLOW_STEP, FLOW_MARK } FlowKind;
typedef enum { FLOW_HOST, FLOW_DEVICE } FlowPlace;
typedef enum { FLOW_MARK_EPOCH, FLOW_MARK_PREFILL_DONE } FlowMark;

/* Where an item stands in the run. Pure function of seed and list of pictures. */
typedef struct {
    gint64 epoch;    /* from 0; -1 = prefill: the item fills caches and is never trained on */
    gint64 position; /* place in the epoch, from 0; the last reordering stage decides */
    gint64 size;     /* items in an epoch */
    gint64 epochs;   /* epochs in the run, 0 = without end */
} FlowCursor;

#define FLOW_MAX_DIMS 5

struct FlowValue { /* treat as read-only */
    _Atomic(int) refs;
    NetType type;
    FlowPlace place;
    guint ndim;
    gint64 shape[FLOW_MAX_DIMS]; /* slowest first */
    gsize nbytes;
    void *data;              /* tensor data, or a NUL-terminated string, or the object */
    const char *object_type; /* "lora.model" for objects, else NULL; static string */
    GDestroyNotify free;
    gpointer free_data;
};

struct FlowItem { /* fields through the functions below; the rest may be read directly */
    _Atomic(int) refs;
    FlowKind kind;
    FlowMark mark; /* for FLOW_MARK */
    FlowCursor cursor;
    guint64 seq;         /* number among the items of its source, set by the host */
    FlowFieldSet filled; /* set by a cache lookup: stored fields that are already there */
    gboolean pending;    /* set by a cache lookup: the same key is in flight, the store fills it */
    FlowFieldSet has;
    guint n; /* entries in use */
    struct {
        FlowField field;
        FlowValue *value;
    } entry[FLOW_FIELD_MAX / 2];
};

/* -- values. All of these are [any] ------------------------------------------- */

/* New tensor, 64-byte aligned, not cleared. Never fails (aborts like g_malloc). */
FlowValue *flow_value_new(NetType type, guint ndim, const gint64 *shape);
/* Wraps memory; `free(free_data)` is called with the last reference (NULL = borrowed memory). */
FlowValue *flow_value_wrap(NetType type, guint ndim, const gint64 *shape, void *data, GDestroyNotify free,
                           gpointer free_data);
/* Copies the text; nbytes and shape are its length, a NUL follows the data. */
FlowValue *flow_value_string(const char *text);
FlowValue *flow_value_object(const char *object_type, gpointer object, GDestroyNotify free);
FlowValue *flow_value_ref(FlowValue *value);
void flow_value_unref(FlowValue *value);        /* NULL is fine */
gsize flow_value_count(const FlowValue *value); /* elements */

/* -- items. All of these are [any] -------------------------------------------- */

FlowItem *flow_item_new(FlowKind kind);
FlowItem *flow_item_new_mark(FlowMark mark, const FlowCursor *cursor);
FlowItem *flow_item_ref(FlowItem *item);
void flow_item_unref(FlowItem *item); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(FlowItem, flow_item_unref)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(FlowValue, flow_value_unref)
/* Makes *item exclusively ours: itself when unshared, else a copy that shares the values. Returns *item. */
FlowItem *flow_item_writable(FlowItem **item);
/* Bytes of the values, for the limits of rings. */
gsize flow_item_nbytes(const FlowItem *item);
/* "cat/1.png" or "batch 12": for messages. Returns new. */
char *flow_item_label(const FlowItem *item);

/* Borrowed; NULL if absent. */
FlowValue *flow_item_get(const FlowItem *item, FlowField field);
/* Takes `value`, replacing what was there. The item must be exclusively ours. */
void flow_item_set(FlowItem *item, FlowField field, FlowValue *value);
void flow_item_drop(FlowItem *item, FlowField field);
/* Drops every field that is not in `keep`. */
void flow_item_keep(FlowItem *item, FlowFieldSet keep);

/* The field's value with data that nobody else sees: itself when unshared and made by flow_value_new() or
 * flow_value_string(), else a copy that replaces it. NULL if absent. The item must be exclusively ours. */
FlowValue *flow_value_writable(FlowItem *item, FlowField field);

/* Shortcuts for strings and small tensors; the getters return NULL if the field is absent, of another type
 * or not on the host. */
const char *flow_item_string(const FlowItem *item, FlowField field);
const gint32 *flow_item_i32(const FlowItem *item, FlowField field);
const gint64 *flow_item_i64(const FlowItem *item, FlowField field);
const float *flow_item_f32(const FlowItem *item, FlowField field);
void flow_item_set_i32(FlowItem *item, FlowField field, const gint32 *v, gint64 n);
void flow_item_set_i64(FlowItem *item, FlowField field, const gint64 *v, gint64 n);
void flow_item_set_f32(FlowItem *item, FlowField field, const float *v, gint64 n);

/* Live items and values, for leak checks in tests. */
gint64 flow_item_live(void);

G_END_DECLS
#endif
