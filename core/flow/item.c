/* Items and values: reference counting, sharing, and the few shortcuts that stages use.
 *
 * A tensor made here is one allocation: a header of FLOW__HEADER bytes, then the data, so an item
 * costs one malloc a field and the data is aligned to a cache line:
 *
 *      | FlowValue, padded to FLOW__HEADER | data ... |
 *
 * Wrapped memory has the header alone. Where the data starts tells the two apart, which is what
 * flow_value_writable() needs: memory that somebody else allocated may be mapped read-only.
 *
 * An item keeps its fields in a small array in order of setting, with a bit set beside it; items
 * have a dozen fields, so a scan is faster than a hash table and the item is a single block. */
#include "core/flow/item.h"
#include <stdlib.h>
#include <string.h>

enum { FLOW__ALIGN = 64, FLOW__HEADER = (sizeof(FlowValue) + FLOW__ALIGN - 1) / FLOW__ALIGN * FLOW__ALIGN };

static _Atomic(gint64) live;

/* -- values -------------------------------------------------------------------- */

static gsize tensor_bytes(NetType type, guint ndim, const gint64 *shape)
{
    gsize n = 1;
    g_assert(ndim <= FLOW_MAX_DIMS);
    for (guint i = 0; i < ndim; i++) {
        g_assert(shape[i] >= 0);
        if (shape[i] > 0 && n > (gsize)G_MAXINT64 / 16 / (gsize)shape[i])
            g_error("a tensor of %" G_GSIZE_FORMAT " x %" G_GINT64_FORMAT " elements cannot exist", n,
                    shape[i]);
        n *= (gsize)shape[i];
    }
    return net_type_bytes(type, n);
}

static FlowValue *value_init(FlowValue *value, NetType type, guint ndim, const gint64 *shape, gsize nbytes)
{
    memset(value, 0, sizeof *value);
    atomic_init(&value->refs, 1);
    value->type = type;
    value->ndim = ndim;
    for (guint i = 0; i < ndim; i++)
        value->shape[i] = shape[i];
    value->nbytes = nbytes;
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return value;
}

/* Room for `nbytes` of data behind the header. */
static FlowValue *value_alloc(NetType type, guint ndim, const gint64 *shape, gsize nbytes)
{
    gsize size = FLOW__HEADER + (nbytes + FLOW__ALIGN - 1) / FLOW__ALIGN * FLOW__ALIGN;
    FlowValue *value = aligned_alloc(FLOW__ALIGN, size);
    if (!value)
        g_error("out of memory: %" G_GSIZE_FORMAT " bytes for a tensor", nbytes);
    value_init(value, type, ndim, shape, nbytes);
    value->data = (char *)value + FLOW__HEADER;
    return value;
}

FlowValue *flow_value_new(NetType type, guint ndim, const gint64 *shape)
{
    return value_alloc(type, ndim, shape, tensor_bytes(type, ndim, shape));
}

FlowValue *flow_value_wrap(NetType type, guint ndim, const gint64 *shape, void *data, GDestroyNotify free_fn,
                           gpointer free_data)
{
    FlowValue *value = malloc(sizeof *value);
    if (!value)
        g_error("out of memory: %" G_GSIZE_FORMAT " bytes", sizeof *value);
    value_init(value, type, ndim, shape, tensor_bytes(type, ndim, shape));
    value->data = data;
    value->free = free_fn;
    value->free_data = free_data;
    return value;
}

FlowValue *flow_value_string(const char *text)
{
    gint64 n = (gint64)strlen(text);
    FlowValue *value = value_alloc(NET_U8, 1, &n, (gsize)n + 1);
    memcpy(value->data, text, (gsize)n + 1);
    value->nbytes = (gsize)n;
    return value;
}

FlowValue *flow_value_object(const char *object_type, gpointer object, GDestroyNotify free_fn)
{
    gint64 none = 0;
    FlowValue *value = flow_value_wrap(NET_U8, 1, &none, object, free_fn, object);
    value->object_type = object_type;
    return value;
}

FlowValue *flow_value_ref(FlowValue *value)
{
    atomic_fetch_add_explicit(&value->refs, 1, memory_order_relaxed);
    return value;
}

void flow_value_unref(FlowValue *value)
{
    if (!value || atomic_fetch_sub_explicit(&value->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (value->free)
        value->free(value->free_data);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(value);
}

gsize flow_value_count(const FlowValue *value)
{
    gsize n = 1;
    for (guint i = 0; i < value->ndim; i++)
        n *= (gsize)value->shape[i];
    return n;
}

/* -- items --------------------------------------------------------------------- */

FlowItem *flow_item_new(FlowKind kind)
{
    FlowItem *item = calloc(1, sizeof *item);
    if (!item)
        g_error("out of memory: %" G_GSIZE_FORMAT " bytes for an item", sizeof *item);
    atomic_init(&item->refs, 1);
    item->kind = kind;
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return item;
}

FlowItem *flow_item_new_mark(FlowMark mark, const FlowCursor *cursor)
{
    FlowItem *item = flow_item_new(FLOW_MARK);
    item->mark = mark;
    if (cursor)
        item->cursor = *cursor;
    return item;
}

FlowItem *flow_item_ref(FlowItem *item)
{
    atomic_fetch_add_explicit(&item->refs, 1, memory_order_relaxed);
    return item;
}

void flow_item_unref(FlowItem *item)
{
    if (!item || atomic_fetch_sub_explicit(&item->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (guint i = 0; i < item->n; i++)
        flow_value_unref(item->entry[i].value);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(item);
}

static gboolean exclusive(const FlowItem *item)
{
    return atomic_load_explicit(&item->refs, memory_order_acquire) == 1;
}

FlowItem *flow_item_writable(FlowItem **item)
{
    FlowItem *old = *item;
    if (exclusive(old))
        return old;
    FlowItem *copy = flow_item_new(old->kind);
    copy->mark = old->mark;
    copy->cursor = old->cursor;
    copy->seq = old->seq;
    copy->filled = old->filled;
    copy->pending = old->pending;
    copy->has = old->has;
    copy->n = old->n;
    for (guint i = 0; i < old->n; i++) {
        copy->entry[i].field = old->entry[i].field;
        copy->entry[i].value = flow_value_ref(old->entry[i].value);
    }
    flow_item_unref(old);
    return *item = copy;
}

gsize flow_item_nbytes(const FlowItem *item)
{
    gsize n = 0;
    for (guint i = 0; i < item->n; i++)
        n += item->entry[i].value->nbytes;
    return n;
}

/* The last two components of a path tell pictures apart and still fit a line. */
static char *short_path(const char *path)
{
    const char *p = strrchr(path, '/');
    while (p && p > path && p[-1] != '/')
        p--;
    return g_strdup(p ? p : path);
}

char *flow_item_label(const FlowItem *item)
{
    static const char *const kinds[] = {"sample", "batch", "step", "mark"};
    const char *path = flow_item_string(item, FLOW_F_PATH);
    if (path && item->kind == FLOW_SAMPLE)
        return short_path(path);
    if (item->kind == FLOW_MARK)
        return g_strdup(item->mark == FLOW_MARK_EPOCH ? "end of epoch" : "end of prefill");
    const gint64 *step = flow_item_i64(item, FLOW_F_STEP);
    gint64 number = item->kind == FLOW_STEP && step ? step[0] : item->cursor.position;
    return g_strdup_printf("%s %" G_GINT64_FORMAT, kinds[item->kind], number);
}

static int find(const FlowItem *item, FlowField field)
{
    if (!(item->has & FLOW_FIELD_BIT(field)))
        return -1;
    for (guint i = 0; i < item->n; i++)
        if (item->entry[i].field == field)
            return (int)i;
    g_assert_not_reached();
}

FlowValue *flow_item_get(const FlowItem *item, FlowField field)
{
    int i = find(item, field);
    return i < 0 ? NULL : item->entry[i].value;
}

void flow_item_set(FlowItem *item, FlowField field, FlowValue *value)
{
    g_assert(value && (guint)field < FLOW_FIELD_MAX);
    g_assert(exclusive(item));
    int i = find(item, field);
    if (i >= 0) {
        flow_value_unref(item->entry[i].value);
        item->entry[i].value = value;
        return;
    }
    g_assert(item->n < G_N_ELEMENTS(item->entry));
    item->entry[item->n].field = field;
    item->entry[item->n++].value = value;
    item->has |= FLOW_FIELD_BIT(field);
}

void flow_item_drop(FlowItem *item, FlowField field)
{
    int i = find(item, field);
    if (i < 0)
        return;
    g_assert(exclusive(item));
    flow_value_unref(item->entry[i].value);
    item->entry[i] = item->entry[--item->n];
    item->has &= ~FLOW_FIELD_BIT(field);
}

void flow_item_keep(FlowItem *item, FlowFieldSet keep)
{
    for (guint i = item->n; i-- > 0;)
        if (!(keep & FLOW_FIELD_BIT(item->entry[i].field)))
            flow_item_drop(item, item->entry[i].field);
}

FlowValue *flow_value_writable(FlowItem *item, FlowField field)
{
    FlowValue *old = flow_item_get(item, field);
    if (!old)
        return NULL;
    g_assert(!old->object_type && old->place == FLOW_HOST);
    gboolean own = old->data == (char *)old + FLOW__HEADER;
    if (own && atomic_load_explicit(&old->refs, memory_order_acquire) == 1)
        return old;
    /* one byte more keeps the terminator of strings */
    FlowValue *copy = value_alloc(old->type, old->ndim, old->shape, old->nbytes + 1);
    copy->nbytes = old->nbytes;
    memcpy(copy->data, old->data, old->nbytes);
    ((char *)copy->data)[old->nbytes] = 0;
    flow_item_set(item, field, copy);
    return copy;
}

/* -- shortcuts ----------------------------------------------------------------- */

const char *flow_item_string(const FlowItem *item, FlowField field)
{
    const FlowFieldInfo *info = flow_field_info(field);
    const FlowValue *value = flow_item_get(item, field);
    return value && info && info->flags & FLOW_FIELD_STRING ? value->data : NULL;
}

static const void *small(const FlowItem *item, FlowField field, NetType type)
{
    const FlowValue *value = flow_item_get(item, field);
    return value && value->type == type && value->place == FLOW_HOST ? value->data : NULL;
}

const gint32 *flow_item_i32(const FlowItem *item, FlowField field)
{
    return small(item, field, NET_I32);
}

const gint64 *flow_item_i64(const FlowItem *item, FlowField field)
{
    return small(item, field, NET_I64);
}

const float *flow_item_f32(const FlowItem *item, FlowField field)
{
    return small(item, field, NET_F32);
}

static void set_small(FlowItem *item, FlowField field, NetType type, const void *v, gint64 n)
{
    FlowValue *value = flow_value_new(type, 1, &n);
    memcpy(value->data, v, value->nbytes);
    flow_item_set(item, field, value);
}

void flow_item_set_i32(FlowItem *item, FlowField field, const gint32 *v, gint64 n)
{
    set_small(item, field, NET_I32, v, n);
}

void flow_item_set_i64(FlowItem *item, FlowField field, const gint64 *v, gint64 n)
{
    set_small(item, field, NET_I64, v, n);
}

void flow_item_set_f32(FlowItem *item, FlowField field, const float *v, gint64 n)
{
    set_small(item, field, NET_F32, v, n);
}

gint64 flow_item_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}
