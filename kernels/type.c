/* Names and sizes of element types. */
#include "kernels/type.h"

static const struct {
    const char *name;
    guint bits;
} types[NET_TYPE_COUNT] = {
    [NET_F32] = {"f32", 32}, [NET_BF16] = {"bf16", 16}, [NET_F16] = {"f16", 16}, [NET_I8] = {"i8", 8},
    [NET_U8] = {"u8", 8},    [NET_I32] = {"i32", 32},   [NET_I64] = {"i64", 64}, [NET_NF4] = {"nf4", 4},
};

const char *net_type_name(NetType type)
{
    return (guint)type < NET_TYPE_COUNT ? types[type].name : "unknown";
}

gsize net_type_bytes(NetType type, gsize n)
{
    g_assert((guint)type < NET_TYPE_COUNT);
    return type == NET_NF4 ? n / 2 + n % 2 : n * (types[type].bits / 8);
}
