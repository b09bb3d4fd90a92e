/* Keys and draws on Philox (kernels/philox.h).
 *
 * Key derivation and draws use different streams of the same generator, so a key can never coincide with
 * a number that was drawn from its parent. */
#include "core/flow/random.h"
#include "kernels/philox.h"
#include <string.h>

#define STREAM_DRAW G_GUINT64_CONSTANT(0)
#define STREAM_TEXT G_GUINT64_CONSTANT(0xffffffffffffff00)
#define STREAM_NUMBER G_GUINT64_CONSTANT(0xffffffffffffff01)
#define STREAM_END G_GUINT64_CONSTANT(0xffffffffffffff02)

/* The next key of a chain: everything so far is in `key`, `word` joins it. */
static guint64 absorb(guint64 key, guint64 stream, guint64 word)
{
    guint32 w[4];
    philox_block(key, stream, word, w);
    return w[0] | (guint64)w[1] << 32;
}

guint64 flow_random_key(guint64 seed, const char *what, const gint64 *v, gsize n)
{
    gsize length = what ? strlen(what) : 0;
    guint64 key = seed;
    for (gsize i = 0; i < length; i += 8) {
        guint64 word = 0; /* little end first, whatever the machine */
        for (gsize j = i; j < MIN(i + 8, length); j++)
            word |= (guint64)(guchar)what[j] << (8 * (j - i));
        key = absorb(key, STREAM_TEXT, word);
    }
    for (gsize i = 0; i < n; i++)
        key = absorb(key, STREAM_NUMBER, (guint64)v[i]);
    /* The lengths keep ("a", 1 number) and other splits of the same words apart. */
    return absorb(key, STREAM_END, length << 32 ^ n);
}

void flow_random_block(guint64 key, guint64 counter, guint32 out[4])
{
    philox_block(key, STREAM_DRAW, counter, out);
}

static guint64 draw64(guint64 key, guint64 counter)
{
    guint32 w[4];
    philox_block(key, STREAM_DRAW, counter, w);
    return w[0] | (guint64)w[1] << 32;
}

double flow_random_uniform(guint64 key, guint64 counter)
{
    return (double)(draw64(key, counter) >> 11) * 0x1p-53;
}

guint64 flow_random_below(guint64 key, guint64 counter, guint64 n)
{
    g_assert(n > 0);
    return (guint64)((unsigned __int128)draw64(key, counter) * n >> 64);
}

void flow_random_normal(guint64 key, guint64 first, float *out, gsize n)
{
    philox_normal(key, STREAM_DRAW, first, out, n);
}

void flow_random_shuffle(guint64 key, gint64 *out, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        gsize j = (gsize)flow_random_below(key, i, i + 1);
        out[i] = out[j];
        out[j] = (gint64)i;
    }
}
