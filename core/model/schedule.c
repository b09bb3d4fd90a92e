/* The noise schedule of Stable Diffusion and what is computed from it (spec/sd.md 5). */
#include "core/model/model.h"
#include <math.h>

enum { STEPS = 1000 };

/* In single precision and in the order of torch.linspace: from the start in the first half, from the end in
 * the second, each rounded once. Only the product is accumulated in double, as torch.cumprod does. The result
 * is that of torch, bit for bit. */
void schedule_alpha_bar(double beta_start, double beta_end, double out[1000])
{
    const float first = (float)sqrt(beta_start), last = (float)sqrt(beta_end);
    const float step = (last - first) / (float)(STEPS - 1);
    double product = 1;
    for (int t = 0; t < STEPS; t++) {
        float root = t < STEPS / 2 ? fmaf(step, (float)t, first) : fmaf(-step, (float)(STEPS - 1 - t), last);
        product *= (double)(1.0f - root * root);
        out[t] = (double)(float)product;
    }
}

void schedule_zero_terminal(double alpha_bar[1000])
{
    const double first = sqrt(alpha_bar[0]), last = sqrt(alpha_bar[STEPS - 1]);
    for (int t = 0; t < STEPS; t++) {
        double s = (sqrt(alpha_bar[t]) - last) * first / (first - last);
        alpha_bar[t] = s * s;
    }
}

double schedule_snr(const double alpha_bar[1000], gint t)
{
    return alpha_bar[t] / (1 - alpha_bar[t]);
}

double schedule_min_snr(const double alpha_bar[1000], gint t, double gamma, gboolean v)
{
    double snr = schedule_snr(alpha_bar, t);
    if (gamma <= 0)
        return 1;
    if (v)
        return MIN(snr, gamma) / (snr + 1);
    return snr <= gamma ? 1 : gamma / snr; /* also where snr is 0 and the quotient would be 0 / 0 */
}
