/* bf16 against f32 on a whole step of a small U-Net: the loss within 1 %, the gradient's direction within a
 * cosine of 0.99. A wrong rounding place or a missing f32 accumulation costs more than that. */
#include "net_unet.h"
#include <stdlib.h>

static const gint32 rows[] = {1, 3, 0, 2};

static NetVal *body(Net *net, Lab *lab, NetVal *x)
{
    return unet(net, lab, x, 32, TRUE);
}

static float step(NetType type, float **gradient, gsize *n)
{
    Lab lab = lab_new(type);
    LabRun run = lab_train(&lab, body, 2, 8, 8, 4);
    run.rows = rows;
    run.scale = 256;
    float loss = lab_step(&run);
    *n = lab.adapters->n;
    *gradient = g_memdup2(lab.adapters->gradient, *n * sizeof(float));
    lab_end(&run);
    lab_free(&lab);
    return loss;
}

int main(void)
{
    if (net_best_compute() != NET_BF16) {
        puts("no bf16 on this processor");
        return 77;
    }
    gsize n, m;
    g_autofree float *a = NULL, *b = NULL;
    float f32 = step(NET_F32, &a, &n), bf16 = step(NET_BF16, &b, &m);
    double ab = 0, aa = 0, bb = 0;
    LAB_CHECK(n == m, "the layout depends on the type");
    for (gsize i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    double cosine = ab / sqrt(aa * bb), length = sqrt(bb / aa);
    printf("loss %.6f and %.6f, cosine %.5f, length %.5f\n", (double)f32, (double)bf16, cosine, length);
    LAB_CHECK(fabsf(bf16 - f32) < 0.01f * f32, "loss %g in bf16, %g in f32", (double)bf16, (double)f32);
    LAB_CHECK(cosine > 0.99 && fabs(length - 1) < 0.02, "cosine %g, length %g", cosine, length);
    return 0;
}
