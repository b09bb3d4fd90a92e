/* Mixed precision transforms a sample by `levels` of an orthonormal Haar transform and stores the
 * low-low corner in one type and the rest in the other, each row by row:
 *
 *      +----+--------+
 *      | LL |        |      low, then high:  LL rows | what is right of LL and below it, row by row
 *      +----+  high  |
 *      |             |
 *      +-------------+
 *
 * Orthonormal, so the error of the result is the error of the rounded band, no more. Whoever reads it,
 * h2d on the CPU or a kernel on a device, needs the class, the levels and the shape, nothing of the
 * schedule. */
#include "core/cache/pack.h"
#include "core/flow/status.h"
#include "kernels/haar.h"
#include <string.h>

void cache_pack_clear(CachePackScratch *s)
{
    g_free(s->bands);
    g_free(s->spare);
    *s = (CachePackScratch){0};
}

static void scratch_fit(CachePackScratch *s, gsize n)
{
    if (s->n >= n)
        return;
    cache_pack_clear(s);
    s->bands = g_new(float, n);
    s->spare = g_new(float, n);
    s->n = n;
}

static gsize low_count(gint64 h, gint64 w, gint64 c, gint32 levels)
{
    return (gsize)((h >> levels) * (w >> levels) * c);
}

gsize cache_pack_bytes(gint64 h, gint64 w, gint64 c, CachePrecision precision, gint32 levels,
                       CacheMixed mixed)
{
    gsize n = (gsize)(h * w * c), low = low_count(h, w, c, levels);
    switch (precision) {
    case CACHE_MIXED:
        return 4 * n - 2 * (mixed == CACHE_LOW_HALF ? low : n - low);
    case CACHE_HALF:
        return 2 * n;
    default:
        return 4 * n;
    }
}

/* -- bands ------------------------------------------------------------------------ */

/* Visits the runs of a band that are contiguous in memory: `low` the corner, else the rest. */
typedef void (*RunFn)(gsize begin, gsize n, gpointer data);
static void band_runs(const CachePackHead *head, gint32 levels, gboolean low, RunFn fn, gpointer data)
{
    gsize c = (gsize)head->channels, row = (gsize)head->width * c;
    gsize lh = (gsize)head->height >> levels, lw = ((gsize)head->width >> levels) * c;
    for (gsize y = 0; y < (gsize)head->height; y++) {
        gsize cut = y < lh ? lw : 0;
        if (low && cut > 0)
            fn(y * row, cut, data);
        if (!low && row > cut)
            fn(y * row + cut, row - cut, data);
    }
}

typedef struct {
    float *bands;
    char *bytes; /* moves on */
    NetType type;
    gsize overflows;
} Band;

static void run_pack(gsize begin, gsize n, gpointer data)
{
    Band *b = data;
    b->overflows += net_convert(b->bytes, b->type, b->bands + begin, NET_F32, n);
    b->bytes += net_type_bytes(b->type, n);
}

static void run_unpack(gsize begin, gsize n, gpointer data)
{
    Band *b = data;
    net_convert(b->bands + begin, NET_F32, b->bytes, b->type, n);
    b->bytes += net_type_bytes(b->type, n);
}

static void each_band(const CachePackHead *head, gint32 levels, RunFn fn, Band *band)
{
    for (int low = 1; low >= 0; low--) {
        gboolean half = (head->mixed == CACHE_LOW_HALF) == low;
        band->type = half ? NET_F16 : NET_F32;
        band_runs(head, levels, low, fn, band);
    }
}

/* -- samples ---------------------------------------------------------------------- */

static gsize sample_count(const CachePackHead *head)
{
    return (gsize)head->height * (gsize)head->width * (gsize)head->channels;
}

static gsize sample_bytes(const CachePackHead *head, const gint32 *packed)
{
    return cache_pack_bytes(head->height, head->width, head->channels, (CachePrecision)packed[0], packed[1],
                            (CacheMixed)head->mixed);
}

static gsize pack_sample(const CachePackHead *head, const gint32 *packed, const float *x, char *bytes,
                         CachePackScratch *s)
{
    gsize n = sample_count(head);
    if (packed[0] != CACHE_MIXED)
        return net_convert(bytes, packed[0] == CACHE_HALF ? NET_F16 : NET_F32, x, NET_F32, n);
    Band band = {.bands = s->bands, .bytes = bytes};
    memcpy(s->bands, x, n * sizeof *x);
    kernel_haar(s->bands, s->spare, (gsize)head->height, (gsize)head->width, (gsize)head->channels,
                (guint)packed[1]);
    each_band(head, packed[1], run_pack, &band);
    return band.overflows;
}

static void unpack_sample(const CachePackHead *head, const gint32 *packed, const char *bytes, float *x,
                          CachePackScratch *s)
{
    if (packed[0] != CACHE_MIXED) {
        net_convert(x, NET_F32, bytes, packed[0] == CACHE_HALF ? NET_F16 : NET_F32, sample_count(head));
        return;
    }
    Band band = {.bands = x, .bytes = (char *)bytes};
    each_band(head, packed[1], run_unpack, &band);
    kernel_haar_inverse(x, s->spare, (gsize)head->height, (gsize)head->width, (gsize)head->channels,
                        (guint)packed[1]);
}

FlowValue *cache_pack(const FlowValue *latents, const gint32 *packed, CacheMixed mixed, CachePackScratch *s,
                      gsize *overflows)
{
    CachePackHead head = {(gint32)latents->shape[1], (gint32)latents->shape[2], (gint32)latents->shape[3],
                          mixed};
    gint64 batch = latents->shape[0], total = sizeof head;
    gsize lost = 0;
    g_assert(latents->type == NET_F32 && latents->ndim == 4);
    scratch_fit(s, sample_count(&head));
    for (gint64 i = 0; i < batch; i++)
        total += (gint64)sample_bytes(&head, packed + 2 * i);
    FlowValue *value = flow_value_new(NET_U8, 1, &total);
    char *bytes = value->data;
    memcpy(bytes, &head, sizeof head);
    bytes += sizeof head;
    for (gint64 i = 0; i < batch; i++) {
        const float *x = (const float *)latents->data + (gsize)i * sample_count(&head);
        lost += pack_sample(&head, packed + 2 * i, x, bytes, s);
        bytes += sample_bytes(&head, packed + 2 * i);
    }
    if (overflows)
        *overflows += lost;
    return value;
}

/* What came from a file or a foreign stage is not believed. */
static gboolean head_valid(const CachePackHead *head, const gint32 *packed, gint64 batch)
{
    const gint32 most = 1 << 16;
    if (head->height < 1 || head->width < 1 || head->channels < 1 || head->height > most ||
        head->width > most || head->channels > most || (head->mixed & ~1))
        return FALSE;
    for (gint64 i = 0; i < batch; i++) {
        const gint32 *p = packed + 2 * i;
        if (p[0] < 0 || p[0] >= CACHE_CLASSES || p[1] < 0 || p[1] > 16 ||
            (guint)p[1] > kernel_haar_levels((gsize)head->height, (gsize)head->width, (guint)p[1]))
            return FALSE;
    }
    return TRUE;
}

gboolean cache_pack_shape(const FlowValue *value, const gint32 *packed, gint64 batch, gint64 shape[4],
                          GError **error)
{
    CachePackHead head;
    gboolean good = value->nbytes >= sizeof head;
    gsize total = sizeof head;
    if (good) {
        memcpy(&head, value->data, sizeof head);
        good = head_valid(&head, packed, batch);
    }
    for (gint64 i = 0; good && i < batch; i++)
        good = !__builtin_add_overflow(total, sample_bytes(&head, packed + 2 * i), &total) &&
               total <= value->nbytes;
    if (!good || total != value->nbytes) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "packed latents of %zu bytes do not fit the field 'packed' of %" G_GINT64_FORMAT
                    " samples",
                    value->nbytes, batch);
        return FALSE;
    }
    const gint64 dims[4] = {batch, head.height, head.width, head.channels};
    memcpy(shape, dims, sizeof dims);
    return TRUE;
}

void cache_unpack(const FlowValue *value, const gint32 *packed, gint64 batch, float *out, CachePackScratch *s)
{
    CachePackHead head;
    memcpy(&head, value->data, sizeof head);
    const char *bytes = (const char *)value->data + sizeof head;
    scratch_fit(s, sample_count(&head));
    for (gint64 i = 0; i < batch; i++) {
        unpack_sample(&head, packed + 2 * i, bytes, out, s);
        bytes += sample_bytes(&head, packed + 2 * i);
        out += sample_count(&head);
    }
}
