/* GroupNorm over channels-last tensors, one or two sources.
 *
 * A sample's pixels are cut into chunks of rows; the number of chunks depends on the shape only.
 *   1. every chunk sums each channel (f32 within runs of RUN rows, double over runs), about a value near the
 *      group's mean, and folds its channels into (mean, M2) of each group;
 *   2. the chunks' (mean, M2) are merged in chunk order, in double;
 *   3. every chunk is written with a factor and a shift per channel.
 * Backward has the same shape with the two sums of the gradient in place of (mean, M2). Channels are walked
 * as one vector whatever groups they belong to, so a group may straddle the two sources. */
#include "kernels/group_norm.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include <math.h>

enum { RUN = 32, CHUNK = 32768 };

typedef struct Job {
    const KernelGroupNorm *p;
    gsize c, width;     /* channels of both sources; of a group */
    gsize rows, chunks; /* rows in a chunk; chunks of a sample */
    gconstpointer x[2], dy, add[2];
    gpointer y, dx[2];
    const float *mean, *rstd; /* (n, groups) */
    /* scratch */
    double *partial; /* (n, chunks, groups, 2) */
    float *channel;  /* (n, 4, c): m, s, p, q of KernelGroupNormRow */
    double *total;   /* per thread (2, c) */
    float *run;      /* per thread (3, c): m, sum, product */
    KernelGroupNormFn sums, write;
    void (*chunk)(const struct Job *j, gsize index);
} Job;

static void plan(Job *j, const KernelGroupNorm *p)
{
    j->p = p;
    j->c = p->ca + p->cb;
    g_assert(p->groups && j->c % p->groups == 0 && p->hw);
    j->width = j->c / p->groups;
    j->rows = CLAMP(CHUNK / j->c, 1, p->hw);
    j->chunks = (p->hw + j->rows - 1) / j->rows;
}

/* Lays the arrays out behind `base`; returns the bytes. */
static gsize lay_out(Job *j, char *base)
{
    gsize n = j->p->n, threads = net_threads();
    gsize partial = n * j->chunks * j->p->groups * 2 * sizeof(double),
          total = threads * 2 * j->c * sizeof(double);
    gsize channel = n * 4 * j->c * sizeof(float), run = threads * 3 * j->c * sizeof(float);
    if (base) {
        j->partial = (double *)base;
        j->total = (double *)(base + partial);
        j->channel = (float *)(base + partial + total);
        j->run = (float *)(base + partial + total + channel);
    }
    return partial + total + channel + run;
}

gsize kernel_group_norm_scratch(const KernelGroupNorm *p)
{
    Job j = {0};
    plan(&j, p);
    return lay_out(&j, NULL);
}

static void run_range(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *j = data;
    for (gsize i = begin; i < end; i++)
        j->chunk(j, i);
}

/* Calls fn for every chunk of every sample; small ones go to a thread together. */
static void run(Job *j, void (*fn)(const Job *j, gsize index))
{
    j->chunk = fn;
    net_parallel_for(j->p->n * j->chunks, MAX(1, CHUNK / (j->rows * j->c)), run_range, j);
}

/* The part of source `s` in rows first .. first + rows - 1 of sample n. */
static KernelGroupNormRow part_of(const Job *j, gsize n, gsize first, gsize rows, int s)
{
    NetType t = j->p->type;
    gsize c = s ? j->p->cb : j->p->ca, from = s ? j->p->ca : 0, row = n * j->p->hw + first;
    const float *channel = j->channel + n * 4 * j->c + from;
    KernelGroupNormRow part = {.rows = rows, .c = c, .x_stride = c, .y_stride = j->c};
    part.x = simd_at_const(t, j->x[s], row * c);
    part.add = j->add[s] ? simd_at_const(t, j->add[s], row * c) : NULL;
    part.dx = j->dx[s] ? simd_at(t, j->dx[s], row * c) : NULL;
    part.dy = j->dy ? simd_at_const(t, j->dy, row * j->c + from) : NULL;
    part.y = j->y ? simd_at(t, j->y, row * j->c + from) : NULL;
    part.m = channel;
    part.s = channel + j->c;
    part.p = channel + 2 * j->c;
    part.q = channel + 3 * j->c;
    part.b = j->p->beta + from;
    return part;
}

static int sources(const Job *j)
{
    return j->p->cb ? 2 : 1;
}

/* A value near each group's mean, from the chunk's first row, for every channel. */
static void choose_shift(const Job *j, gsize n, gsize first, float *m)
{
    for (int s = 0; s < sources(j); s++) {
        KernelGroupNormRow part = part_of(j, n, first, 1, s);
        for (gsize i = 0; i < part.c; i++)
            m[(s ? j->p->ca : 0) + i] = simd_load(j->p->type, part.x, i);
    }
    for (gsize g = 0; g < j->p->groups; g++) {
        double sum = 0;
        for (gsize i = 0; i < j->width; i++)
            sum += m[g * j->width + i];
        float mean = (float)(sum / (double)j->width);
        for (gsize i = 0; i < j->width; i++)
            m[g * j->width + i] = isfinite(mean) ? mean : 0;
    }
}

/* Both sums of each channel over a chunk, in double. m: NULL takes the channel vectors' own. */
static void sum_chunk(const Job *j, gsize n, gsize first, gsize rows, const float *m, double *total)
{
    float *sum = j->run + (net_thread_index() * 3 + 1) * j->c, *product = sum + j->c;
    memset(total, 0, 2 * j->c * sizeof *total);
    for (gsize r = 0; r < rows; r += RUN) {
        memset(sum, 0, 2 * j->c * sizeof *sum);
        for (int s = 0; s < sources(j); s++) {
            gsize from = s ? j->p->ca : 0;
            KernelGroupNormRow part = part_of(j, n, first + r, MIN((gsize)RUN, rows - r), s);
            part.m = m ? m + from : part.m;
            part.sum = sum + from;
            part.product = product + from;
            j->sums(&part);
        }
        for (gsize i = 0; i < 2 * j->c; i++)
            total[i] += sum[i];
    }
}

static void moments_chunk(const Job *j, gsize index)
{
    gsize n = index / j->chunks, first = index % j->chunks * j->rows, rows = MIN(j->rows, j->p->hw - first);
    float *m = j->run + net_thread_index() * 3 * j->c;
    double *total = j->total + net_thread_index() * 2 * j->c, count = (double)(rows * j->width);
    choose_shift(j, n, first, m);
    sum_chunk(j, n, first, rows, m, total);
    double *out = j->partial + index * j->p->groups * 2;
    for (gsize g = 0; g < j->p->groups; g++) {
        double sum = 0, square = 0;
        for (gsize i = g * j->width; i < (g + 1) * j->width; i++) {
            sum += total[i];
            square += total[j->c + i];
        }
        out[2 * g] = m[g * j->width] + sum / count;
        out[2 * g + 1] = square - sum * sum / count;
    }
}

/* Chan's rule, chunk after chunk. */
static void merge_moments(const Job *j, float *mean, float *rstd)
{
    for (gsize n = 0; n < j->p->n; n++)
        for (gsize g = 0; g < j->p->groups; g++) {
            double count = 0, mu = 0, m2 = 0;
            for (gsize k = 0; k < j->chunks; k++) {
                const double *in = j->partial + ((n * j->chunks + k) * j->p->groups + g) * 2;
                double more = (double)(MIN(j->rows, j->p->hw - k * j->rows) * j->width);
                double delta = in[0] - mu;
                count += more;
                mu += delta * more / count;
                m2 += in[1] + delta * delta * more * (count - more) / count;
            }
            mean[n * j->p->groups + g] = (float)mu;
            rstd[n * j->p->groups + g] = (float)(1 / sqrt(MAX(m2, 0) / count + j->p->eps));
        }
}

/* m and s of every channel from the (rounded) statistics. */
static void channel_vectors(const Job *j)
{
    for (gsize n = 0; n < j->p->n; n++)
        for (gsize i = 0; i < j->c; i++) {
            gsize g = n * j->p->groups + i / j->width;
            float *channel = j->channel + n * 4 * j->c + i;
            channel[0] = j->mean[g];
            channel[j->c] = j->rstd[g] * j->p->gamma[i];
        }
}

static void write_chunk(const Job *j, gsize index)
{
    gsize n = index / j->chunks, first = index % j->chunks * j->rows, rows = MIN(j->rows, j->p->hw - first);
    for (int s = 0; s < sources(j); s++) {
        KernelGroupNormRow part = part_of(j, n, first, rows, s);
        if (part.y || part.dx)
            j->write(&part);
    }
}

static void apply(Job *j)
{
    NetType t = j->p->type;
    channel_vectors(j);
    j->write = j->p->silu ? SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_apply_silu")
                          : SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_apply");
    run(j, write_chunk);
}

void kernel_group_norm(const KernelGroupNorm *p, gpointer y, gconstpointer a, gconstpointer b, float *mean,
                       float *rstd, gpointer scratch)
{
    Job j = {.x = {a, b}, .mean = mean, .rstd = rstd};
    plan(&j, p);
    lay_out(&j, scratch);
    j.sums = SIMD_FIND_TYPE(KernelGroupNormFn, p->type, "group_norm_sums");
    run(&j, moments_chunk);
    merge_moments(&j, mean, rstd);
    j.y = y;
    apply(&j);
}

void kernel_group_norm_again(const KernelGroupNorm *p, gpointer y, gconstpointer a, gconstpointer b,
                             const float *mean, const float *rstd, gpointer scratch)
{
    Job j = {.x = {a, b}, .y = y, .mean = mean, .rstd = rstd};
    plan(&j, p);
    lay_out(&j, scratch);
    apply(&j);
}

/* With g = dz gamma: sums of g and of g (x - mean) over the chunk's part of each group. */
static void gradient_chunk(const Job *j, gsize index)
{
    gsize n = index / j->chunks, first = index % j->chunks * j->rows, rows = MIN(j->rows, j->p->hw - first);
    double *total = j->total + net_thread_index() * 2 * j->c;
    sum_chunk(j, n, first, rows, NULL, total);
    double *out = j->partial + index * j->p->groups * 2;
    for (gsize g = 0; g < j->p->groups; g++) {
        double sum = 0, product = 0;
        for (gsize i = g * j->width; i < (g + 1) * j->width; i++) {
            sum += total[i] * j->p->gamma[i];
            product += total[j->c + i] * j->p->gamma[i];
        }
        out[2 * g] = sum;
        out[2 * g + 1] = product;
    }
}

/* dx = r (g - mean(g) - xhat mean(g xhat)) = s dz + p + (x - m) q: p = -r mean(g), q = -r^3 mean(g (x - m)).
 */
static void merge_gradients(const Job *j)
{
    double count = (double)(j->p->hw * j->width);
    for (gsize n = 0; n < j->p->n; n++)
        for (gsize g = 0; g < j->p->groups; g++) {
            double sum = 0, product = 0, r = j->rstd[n * j->p->groups + g];
            for (gsize k = 0; k < j->chunks; k++) {
                const double *in = j->partial + ((n * j->chunks + k) * j->p->groups + g) * 2;
                sum += in[0];
                product += in[1];
            }
            float *channel = j->channel + (n * 4 + 2) * j->c;
            for (gsize i = g * j->width; i < (g + 1) * j->width; i++) {
                channel[i] = (float)(-r * sum / count);
                channel[j->c + i] = (float)(-r * r * r * product / count);
            }
        }
}

void kernel_group_norm_backward(const KernelGroupNorm *p, gpointer da, gpointer db, gconstpointer add_a,
                                gconstpointer add_b, gconstpointer dy, gconstpointer a, gconstpointer b,
                                const float *mean, const float *rstd, gpointer scratch)
{
    Job j = {.x = {a, b}, .dy = dy, .add = {add_a, add_b}, .dx = {da, db}, .mean = mean, .rstd = rstd};
    NetType t = p->type;
    plan(&j, p);
    lay_out(&j, scratch);
    channel_vectors(&j);
    j.sums = p->silu ? SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_grad_sums_silu")
                     : SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_grad_sums");
    j.write = p->silu ? SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_grad_silu")
                      : SIMD_FIND_TYPE(KernelGroupNormFn, t, "group_norm_grad");
    run(&j, gradient_chunk);
    merge_gradients(&j);
    run(&j, write_chunk);
}
