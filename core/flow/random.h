/* Counter-based random numbers (Philox 4x32-10; Salmon, Moraes, Dror, Shaw, SC'11).
 *
 * A draw is a pure function of a 64-bit key and a 64-bit counter, so it is the same whichever
 * thread makes it, in whatever order. Keys are made from (seed, what for, epoch, sample, ...). */
#ifndef FLOW_RANDOM_H
#define FLOW_RANDOM_H
#include <glib.h>

G_BEGIN_DECLS

/* Mixes n numbers and a text into a key. `what` may be NULL. */
guint64 flow_random_key(guint64 seed, const char *what, const gint64 *v, gsize n);
/* Four 32-bit words for a counter. */
void flow_random_block(guint64 key, guint64 counter, guint32 out[4]);
/* Uniform in [0, 1), 53 bits. */
double flow_random_uniform(guint64 key, guint64 counter);
/* Uniform integer in [0, n), n >= 1, without bias worth mentioning (64-bit multiply). */
guint64 flow_random_below(guint64 key, guint64 counter, guint64 n);
/* Standard normal numbers first..first+n-1 of the key's sequence (Box-Muller on pairs). f32. */
void flow_random_normal(guint64 key, guint64 first, float *out, gsize n);
/* Permutation of 0..n-1. */
void flow_random_shuffle(guint64 key, gint64 *out, gsize n);

G_END_DECLS
#endif
