/* The stores of frozen tensors and of adapters.
 * @label short
 */
#include "net_lab.h"
#include <stdint.h>
#include <stdlib.h>

static void test_weights(void)
{
    NetWeights *weights = net_weights_new();
    NetWeight *b = net_weights_add(weights, "b", NET_F32, 1, (gint64[]){3});
    NetWeight *a = net_weights_add(weights, "a", NET_BF16, 4, (gint64[]){2, 3, 3, 5});
    LAB_CHECK((uintptr_t)a->data % 64 == 0 && (uintptr_t)b->data % 64 == 0, "not aligned");
    LAB_CHECK(a->nbytes == 180 && b->nbytes == 12 && net_weights_bytes(weights) == 192, "sizes");
    LAB_CHECK(b->shape[1] == 1 && b->shape[3] == 1, "dims beyond ndim are 1");
    LAB_CHECK(net_weights_find(weights, "a") == a && !net_weights_find(weights, "c"), "find");
    memset((gpointer)a->data, 1, a->nbytes);
    memset((gpointer)b->data, 2, b->nbytes);
    guint64 hash = net_weights_hash(weights);
    ((guint8 *)a->data)[179] ^= 4;
    LAB_CHECK(net_weights_hash(weights) != hash, "a changed bit is not seen");
    ((guint8 *)a->data)[179] ^= 4;
    LAB_CHECK(net_weights_hash(weights) == hash, "the hash is not a function of the bytes");
    NetWeights *other = net_weights_new(); /* the same in another order */
    memset((gpointer)net_weights_add(other, "a", NET_BF16, 4, (gint64[]){2, 3, 3, 5})->data, 1, 180);
    memset((gpointer)net_weights_add(other, "b", NET_F32, 1, (gint64[]){3})->data, 2, 12);
    LAB_CHECK(net_weights_hash(other) == hash, "the order of loading changes the hash");
    NetWeights *dry = net_weights_new_dry();
    LAB_CHECK(!net_weights_add(dry, "huge", NET_F32, 2, (gint64[]){1 << 20, 1 << 18})->data, "dry");
    LAB_CHECK(net_weights_bytes(dry) == (gsize)1 << 40, "bytes of a dry store");
    net_weights_free(dry);
    net_weights_free(other);
    net_weights_free(weights);
    net_weights_free(NULL);
}

static void test_adapters(NetType compute)
{
    NetAdapters *adapters = net_adapters_new(compute);
    NetAdapter *p = net_adapters_add(adapters, "p", 5, 7, 1, 1, 3, 1.5f);
    NetAdapter *q = net_adapters_add(adapters, "q", 4, 6, 3, 3, 8, 16);
    LAB_CHECK(p->rank_pad == 8 && q->rank_pad == 8, "ranks are padded to 8");
    LAB_CHECK(p->scale == 0.5f && q->scale == 2, "scale is alpha / rank");
    LAB_CHECK(p->a == 0 && p->b == 48 && q->a == 112 && q->b == 112 + 288 && adapters->n == 448, "layout");
    LAB_CHECK(net_adapters_find(adapters, "q") == q && !net_adapters_find(adapters, "r"), "find");
    net_adapters_allocate(adapters);
    for (gsize i = 0; i < adapters->n; i++)
        LAB_CHECK(adapters->master[i] == 0 && adapters->gradient[i] == 0, "buffers start at zero");
    for (gsize i = 0; i < adapters->n; i++)
        adapters->master[i] = lab_number("m", i);
    net_adapters_refresh(adapters);
    for (gsize i = 0; i < adapters->n; i++) {
        float copy = compute == NET_F32 ? ((float *)adapters->copy)[i]
                                        : net_bf16_to_f32(((guint16 *)adapters->copy)[i]);
        float want =
            compute == NET_F32 ? adapters->master[i] : net_bf16_to_f32(net_f32_to_bf16(adapters->master[i]));
        LAB_CHECK(copy == want, "copy %" G_GSIZE_FORMAT " is %g, not %g", i, (double)copy, (double)want);
    }
    net_adapters_free(adapters);
}

int main(void)
{
    test_weights();
    test_adapters(NET_F32);
    test_adapters(NET_BF16);
    net_adapters_free(NULL);
    return 0;
}
