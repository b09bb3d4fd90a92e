/* Element types that tensors and kernels share.
 *
 * One enumeration serves items, checkpoints and the engine, so that nothing is translated at
 * a border. NET_NF4 holds two elements a byte. */
#ifndef KERNELS_TYPE_H
#define KERNELS_TYPE_H
#include <glib.h>

G_BEGIN_DECLS

typedef enum {
    NET_F32,
    NET_BF16,
    NET_F16,
    NET_I8,
    NET_U8,
    NET_I32,
    NET_I64,
    NET_NF4,
    NET_TYPE_COUNT
} NetType;

/* "f32", "bf16", ... */
const char *net_type_name(NetType type);
/* Bytes of `n` elements (rounded up for NET_NF4). */
gsize net_type_bytes(NetType type, gsize n);

/* Single conversions, round to nearest even; NaN stays NaN, f16 overflow gives inf. */
guint16 net_f32_to_f16(float x);
float net_f16_to_f32(guint16 x);
guint16 net_f32_to_bf16(float x);
float net_bf16_to_f32(guint16 x);

/* Convert `n` elements between NET_F32, NET_BF16 and NET_F16, in any direction; src may be unaligned.
 * Returns the number of finite values that became infinite. Runs on the calling thread only. */
gsize net_convert(void *dst, NetType dst_type, const void *src, NetType src_type, gsize n);

G_END_DECLS
#endif
