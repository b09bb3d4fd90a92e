/* Philox 4x32-10 and the numbers made of its words.
 *
 * Only IEEE additions, multiplications, divisions and square roots, in one order and without contraction:
 * logarithm, sine and cosine are polynomials of our own, because libm's differ from machine to machine in
 * the last bit and a draw must not. A step draws some ten thousand numbers, so speed is no reason for more
 * than this one scalar version. */
#include "kernels/philox.h"
#include <math.h>
#include <string.h>

void philox_block(guint64 key, guint64 stream, guint64 counter, guint32 out[4])
{
    guint32 c0 = (guint32)counter, c1 = (guint32)(counter >> 32);
    guint32 c2 = (guint32)stream, c3 = (guint32)(stream >> 32);
    guint32 k0 = (guint32)key, k1 = (guint32)(key >> 32);
    for (int round = 0; round < 10; round++) {
        guint64 p0 = (guint64)c0 * 0xD2511F53u, p1 = (guint64)c2 * 0xCD9E8D57u;
        guint32 n0 = (guint32)(p1 >> 32) ^ c1 ^ k0, n2 = (guint32)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (guint32)p1;
        c2 = n2;
        c3 = (guint32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* ln x for x in (0, 1]: x = 2^e m with m in [0.7, 1.42], ln m = 2 atanh((m - 1) / (m + 1)) by its series. */
static float log_unit(float x)
{
    guint32 bits;
    memcpy(&bits, &x, sizeof bits);
    gint32 e = (gint32)(bits - 0x3f3504f3u) >> 23; /* 0x3f3504f3 = sqrt(1/2) */
    bits -= (guint32)e << 23;
    float m;
    memcpy(&m, &bits, sizeof m);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = ((z * 0.22222222f + 0.28571429f) * z + 0.4f) * z + 0.66666667f;
    return (float)e * 0.693145752f + ((float)e * 1.42860677e-6f + (2.0f * s + s * (z * p)));
}

/* cos and sin of 2 pi w / 2^32. The nearest quarter turn is split off exactly, in integers. */
static void turn(guint32 w, float *cosine, float *sine)
{
    guint32 quarter = (w + 0x20000000u) >> 30;
    gint32 rest = (gint32)(w - (quarter << 30));
    float a = (float)rest * 1.46291808e-9f, z = a * a; /* |a| <= pi / 4 */
    float s = a + a * (z * (((z * 2.7557319e-6f - 1.9841270e-4f) * z + 8.3333333e-3f) * z - 0.16666667f));
    float c = 1.0f - z * (0.5f - z * (0.041666667f - z * (1.3888889e-3f - z * 2.4801587e-5f)));
    float x = quarter & 1 ? s : c, y = quarter & 1 ? c : s;
    *cosine = (quarter + 1) & 2 ? -x : x;
    *sine = quarter & 2 ? -y : y;
}

static void normal_block(guint64 key, guint64 stream, guint64 block, float out[4])
{
    guint32 w[4];
    philox_block(key, stream, block, w);
    for (int pair = 0; pair < 4; pair += 2) {
        float u = (float)w[pair] * 0x1p-32f + 0x1p-33f; /* (0, 1] */
        float r = sqrtf(-2.0f * log_unit(u)), x, y;
        turn(w[pair + 1], &x, &y);
        out[pair] = r * x;
        out[pair + 1] = r * y;
    }
}

static void uniform_block(guint64 key, guint64 stream, guint64 block, float out[4])
{
    guint32 w[4];
    philox_block(key, stream, block, w);
    for (int i = 0; i < 4; i++)
        out[i] = (float)(w[i] >> 8) * 0x1p-24f;
}

static void fill(void (*block)(guint64, guint64, guint64, float *), guint64 key, guint64 stream,
                 guint64 first, float *out, gsize n)
{
    float four[4];
    for (gsize i = 0; i < n;) {
        guint64 at = first + i;
        gsize skip = at % 4, take = MIN(4 - skip, n - i);
        block(key, stream, at / 4, four);
        memcpy(out + i, four + skip, take * sizeof *out);
        i += take;
    }
}

void philox_normal(guint64 key, guint64 stream, guint64 first, float *out, gsize n)
{
    fill(normal_block, key, stream, first, out, n);
}

void philox_uniform(guint64 key, guint64 stream, guint64 first, float *out, gsize n)
{
    fill(uniform_block, key, stream, first, out, n);
}
