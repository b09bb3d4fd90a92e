/* The noising of a training step. Some ten thousand elements, made of Philox numbers: one scalar version,
 * whose f32 operations stand in one fixed order. */
#include "kernels/draw.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"
#include "kernels/simd.h"
#include <math.h>

enum { RUN = 1024, CHANNELS = 64 };

typedef struct {
    const KernelDraw *p;
    NetType type;
    gpointer x_t;
    float *target;
    gsize runs; /* of one sample */
} Job;

/* x0 of elements first .. first + n - 1 of a sample. */
static void draw_latent(const KernelDraw *p, gsize sample, gsize first, gsize n, float *x0)
{
    gsize at = sample * p->hw * p->c + first;
    if (p->latent) {
        memcpy(x0, p->latent + at, n * sizeof *x0);
        return;
    }
    philox_normal((guint64)p->key[sample], KERNEL_DRAW_LATENT, first, x0, n);
    for (gsize i = 0; i < n; i++) {
        float logvar = CLAMP(p->logvar[at + i], -30.0f, 20.0f);
        x0[i] = p->scaling * (p->mean[at + i] + expf(0.5f * logvar) * x0[i]);
    }
}

static void draw_noise(const KernelDraw *p, gsize sample, gsize first, gsize n, float *e)
{
    if (p->noise) {
        memcpy(e, p->noise + sample * p->hw * p->c + first, n * sizeof *e);
        return;
    }
    guint64 key = (guint64)p->key[sample];
    philox_normal(key, KERNEL_DRAW_NOISE, first, e, n);
    if (!p->offset || p->offset[sample] == 0)
        return;
    float channel[CHANNELS];
    philox_normal(key, KERNEL_DRAW_OFFSET, 0, channel, p->c);
    for (gsize i = 0; i < n; i++)
        e[i] += p->offset[sample] * channel[(first + i) % p->c];
}

static void draw_run(const Job *job, gsize sample, gsize first, gsize n)
{
    const KernelDraw *p = job->p;
    float x0[RUN], e[RUN];
    draw_latent(p, sample, first, n, x0);
    draw_noise(p, sample, first, n, e);
    float a = sqrtf(p->alpha_bar[sample]), b = sqrtf(1.0f - p->alpha_bar[sample]);
    gsize at = sample * p->hw * p->c + first;
    for (gsize i = 0; i < n; i++) {
        if (job->x_t)
            simd_store(job->type, job->x_t, at + i, a * x0[i] + b * e[i]);
        job->target[at + i] = p->v ? a * e[i] - b * x0[i] : e[i];
    }
}

static void draw_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *job = data;
    gsize per = job->p->hw * job->p->c;
    for (gsize i = begin; i < end; i++) {
        gsize first = i % job->runs * RUN;
        draw_run(job, i / job->runs, first, MIN((gsize)RUN, per - first));
    }
}

void kernel_draw(const KernelDraw *p, NetType type, gpointer x_t, float *target)
{
    g_assert(p->c <= CHANNELS);
    Job job = {p, type, x_t, target, (p->hw * p->c + RUN - 1) / RUN};
    net_parallel_for(p->n * job.runs, 1, draw_chunk, &job);
}
