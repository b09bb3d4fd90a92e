/* Token embedding, row selection and the sinusoid of timesteps. Few elements, so plain loops. */
#include "kernels/embed.h"
#include "kernels/simd.h"
#include <math.h>

/* Adds (or writes) one row of any float type to f32. */
static void row_f32(float *y, NetType type, gconstpointer table, gsize row, gsize c, gboolean add)
{
    enum { RUN = 256 };
    float x[RUN];
    const char *from = (const char *)table + net_type_bytes(type, row * c);
    for (gsize i = 0; i < c; i += RUN) {
        gsize n = MIN((gsize)RUN, c - i);
        net_convert(x, NET_F32, from + net_type_bytes(type, i), type, n);
        for (gsize j = 0; j < n; j++)
            y[i + j] = add ? y[i + j] + x[j] : x[j];
    }
}

void kernel_embed(NetType type, gpointer y, const gint32 *ids, NetType table_type, gconstpointer table,
                  NetType positions_type, gconstpointer positions, gsize n, gsize t, gsize c)
{
    enum { RUN = 1024 };
    float sum[RUN];
    gsize table_size = net_type_bytes(table_type, 1), position_size = net_type_bytes(positions_type, 1);
    for (gsize row = 0; row < n * t; row++)
        for (gsize i = 0; i < c; i += RUN) {
            gsize run = MIN((gsize)RUN, c - i);
            const char *token = (const char *)table + ((gsize)ids[row] * c + i) * table_size;
            row_f32(sum, table_type, token, 0, run, FALSE);
            if (positions)
                row_f32(sum, positions_type, (const char *)positions + (row % t * c + i) * position_size, 0,
                        run, TRUE);
            net_convert(simd_at(type, y, row * c + i), type, sum, NET_F32, run);
        }
}

void kernel_pick_row(NetType type, gpointer y, gconstpointer x, const gint32 *index, gsize n, gsize t,
                     gsize c)
{
    for (gsize i = 0; i < n; i++)
        memcpy(simd_at(type, y, i * c), simd_at_const(type, x, (i * t + (gsize)index[i]) * c),
               net_type_bytes(type, c));
}

/* Computing in double instead changes values by up to 1e-4 at large arguments: the models were trained with
 * these roundings. */
void kernel_sinusoid(NetType type, gpointer y, const float *t, gsize n, gsize dim)
{
    gsize half = dim / 2;
    float ln = (float)-log(10000.0);
    for (gsize i = 0; i < n; i++) {
        for (gsize j = 0; j < half; j++) {
            float e = ln * (float)j;
            e = e / (float)half;
            float angle = t[i] * expf(e);
            simd_store(type, y, i * dim + j, cosf(angle));
            simd_store(type, y, i * dim + half + j, sinf(angle));
        }
        if (dim % 2)
            simd_store(type, y, i * dim + dim - 1, 0);
    }
}
