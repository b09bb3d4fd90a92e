/* Mean squared error. Sums are double, in element order within a sample and over the samples: the tensors
 * are latents, so one thread is enough and the order is plain. */
#include "kernels/loss.h"
#include "kernels/simd.h"

float kernel_mse(NetType type, gconstpointer pred, const float *target, const float *weight, gsize n,
                 gsize per, float *each)
{
    double loss = 0;
    for (gsize s = 0; s < n; s++) {
        double sum = 0;
        for (gsize i = s * per; i < (s + 1) * per; i++) {
            double d = (double)simd_load(type, pred, i) - target[i];
            sum += d * d;
        }
        sum /= (double)per;
        loss += weight[s] * sum;
        if (each)
            each[s] = (float)sum;
    }
    return (float)loss;
}

void kernel_mse_backward(NetType type, gpointer dpred, gconstpointer pred, const float *target,
                         const float *weight, float scale, gsize n, gsize per)
{
    for (gsize s = 0; s < n; s++) {
        float factor = (float)((double)scale * 2 * weight[s] / (double)per);
        for (gsize i = s * per; i < (s + 1) * per; i++)
            simd_store(type, dpred, i, factor * (simd_load(type, pred, i) - target[i]));
    }
}
