/* Latents as they travel to the device: full, half, or split into frequency bands of different precision.
 *
 * A packed batch is one value of bytes: a CachePackHead, then the samples one behind the other, each in its
 * own class. The field "packed" says which (precision, levels of the Haar transform). */
#ifndef CACHE_PACK_H
#define CACHE_PACK_H
#include "core/cache/precision.h"
#include "core/flow/item.h"

G_BEGIN_DECLS

/* What precision_encode gives in place of the latents, and h2d turns back. */
#define CACHE_PACK_FIELDS                                                                                    \
    {"packed_mean", "n", "posterior means in the precision of `packed`", NET_U8, 0},                         \
    {                                                                                                        \
        "packed_logvar", "n", "posterior log variances in the precision of `packed`", NET_U8, 0              \
    }

/* Which band of a mixed sample is in half precision; the other one is f32. */
typedef enum { CACHE_LOW_HALF, CACHE_HIGH_HALF } CacheMixed;

typedef struct {
    gint32 height, width, channels, mixed;
} CachePackHead;

/* Working memory, grown when needed; zero it at the start, cache_pack_clear() at the end. */
typedef struct {
    float *bands, *spare;
    gsize n;
} CachePackScratch;
void cache_pack_clear(CachePackScratch *scratch);

/* Bytes of one sample of (h, w, c). */
gsize cache_pack_bytes(gint64 h, gint64 w, gint64 c, CachePrecision precision, gint32 levels,
                       CacheMixed mixed);
/* `latents` f32 (B, h, w, c); `packed` 2 B numbers. Returns a new value. Values beyond 65504 in half
 * precision become infinite: *overflows counts them (may be NULL). [any] */
FlowValue *cache_pack(const FlowValue *latents, const gint32 *packed, CacheMixed mixed,
                      CachePackScratch *scratch, gsize *overflows);
/* The shape (B, h, w, c) of what is packed. FALSE with error if the bytes do not fit `packed`. [any] */
gboolean cache_pack_shape(const FlowValue *bytes, const gint32 *packed, gint64 batch, gint64 shape[4],
                          GError **error);
/* Into `out` f32 (B, h, w, c); after cache_pack_shape(). [any] */
void cache_unpack(const FlowValue *bytes, const gint32 *packed, gint64 batch, float *out,
                  CachePackScratch *scratch);

G_END_DECLS
#endif
