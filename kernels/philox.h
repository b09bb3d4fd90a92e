/* Philox 4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC'11).
 *
 * A number is a pure function of (key, stream, index), so it is the same whichever thread, vector width or
 * machine makes it: the arithmetic behind the normal numbers is spelled out here and uses no libm. */
#ifndef KERNELS_PHILOX_H
#define KERNELS_PHILOX_H
#include <glib.h>

G_BEGIN_DECLS

/* Four 32-bit words. counter is the low, stream the high half of the 128-bit counter. [any] */
void philox_block(guint64 key, guint64 stream, guint64 counter, guint32 out[4]);
/* Standard normal numbers first .. first + n - 1 of a stream: number i is made of words i % 4 of block
 * i / 4 (Box-Muller on the pairs 0, 1 and 2, 3). Runs on the calling thread. [any] */
void philox_normal(guint64 key, guint64 stream, guint64 first, float *out, gsize n);
/* Uniform numbers in [0, 1), 24 bits; number i is word i % 4 of block i / 4. [any] */
void philox_uniform(guint64 key, guint64 stream, guint64 first, float *out, gsize n);

G_END_DECLS
#endif
