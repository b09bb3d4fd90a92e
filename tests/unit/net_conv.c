/* The two ways of a convolution give the same loss and gradient, up to the order of summation.
 *
 * Weights of more than 4 MiB on maps up to 16 wide are products with gathered columns when nothing may be
 * packed, and the library's convolution otherwise. Three samples make blocks of two and one. */
#include "net_lab.h"
#include <stdlib.h>

static NetVal *body(Net *net, Lab *lab, NetVal *x)
{
    NetVal *h = net_linear(net, x, lab_matrix(lab, "first", 340, 3), lab_vector(lab, "first.bias", 340),
                           lab_adapter(lab, "first", 3, 340, 1, 3));
    h = net_conv(net, h, lab_weight(lab, "c1", 350, 3, 3, 340), lab_vector(lab, "c1.bias", 350),
                 (NetConv){1, 1, 1, 1, 1}, NULL);
    NetVal *y = net_conv(net, h, lab_weight(lab, "c2", 350, 3, 3, 350), NULL, (NetConv){1, 1, 1, 1, 1}, NULL);
    h = net_add(net, net_silu(net, h), y);
    h = net_conv(net, h, lab_weight(lab, "c3", 340, 3, 3, 350), NULL, (NetConv){2, 0, 1, 1, 0},
                 lab_adapter(lab, "c3", 350, 340, 3, 2));
    return net_linear(net, h, lab_matrix(lab, "after", 6, 340), NULL, NULL);
}

int main(void)
{
    float loss[2];
    float *gradient[2];
    gsize n = 0;
    for (guint i = 0; i < 2; i++) {
        Lab lab = lab_new(NET_F32);
        lab.packing = i ? NET_PACK_NEVER : NET_PACK_KEEP;
        LabRun run = lab_train(&lab, body, 3, 20, 15, 3);
        LAB_CHECK((net_plan_info(run.plan)->packed > 0) == (i == 0), "packed weights of way %u", i);
        loss[i] = lab_step(&run);
        n = lab.adapters->n;
        gradient[i] = g_memdup2(lab.adapters->gradient, n * sizeof(float));
        lab_end(&run);
        lab_free(&lab);
    }
    double off = lab_distance(gradient[1], gradient[0], n);
    printf("loss %.9g and %.9g, gradients differ by %.2g\n", (double)loss[0], (double)loss[1], off);
    LAB_CHECK(fabsf(loss[0] - loss[1]) < 2e-6f * loss[0], "another loss");
    LAB_CHECK(off > 0 && off < 5e-6, "another gradient");
    g_free(gradient[0]);
    g_free(gradient[1]);
    return 0;
}
