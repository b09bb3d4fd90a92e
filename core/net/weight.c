/* The store of frozen tensors: names, shapes, aligned memory.
 *
 * Each tensor has memory of its own rather than a slice of one large block, so that a loader can fill one
 * tensor at a time and a later one can be dropped or streamed without moving the others. A dry store has
 * shapes only: plans are made from it before anything is loaded. */
#include "core/net/weight.h"
#include "core/net/dnnl_private.h"
#include <string.h>
#include <xxhash.h>

enum { WEIGHT_ALIGN = 64 };

struct NetWeights {
    GPtrArray *list; /* NetWeight *, in the order of addition */
    GHashTable *by_name;
    gsize bytes;
    gboolean dry;
};

static void weight_free(gpointer data)
{
    NetWeight *weight = data;
    net_dnnl_packed_free(weight->packed);
    g_aligned_free((gpointer)weight->data);
    g_free((gpointer)weight->name);
    g_free(weight);
}

NetWeights *net_weights_new(void)
{
    NetWeights *weights = g_new0(NetWeights, 1);
    weights->list = g_ptr_array_new_with_free_func(weight_free);
    weights->by_name = g_hash_table_new(g_str_hash, g_str_equal);
    return weights;
}

NetWeights *net_weights_new_dry(void)
{
    NetWeights *weights = net_weights_new();
    weights->dry = TRUE;
    return weights;
}

void net_weights_free(NetWeights *weights)
{
    if (!weights)
        return;
    g_hash_table_unref(weights->by_name);
    g_ptr_array_unref(weights->list);
    g_free(weights);
}

NetWeight *net_weights_add(NetWeights *weights, const char *name, NetType type, guint ndim,
                           const gint64 *shape)
{
    g_return_val_if_fail(ndim >= 1 && ndim <= 4, NULL);
    g_return_val_if_fail(!g_hash_table_contains(weights->by_name, name), NULL);
    gint64 n = 1;
    for (guint i = 0; i < ndim; i++) {
        g_return_val_if_fail(shape[i] >= 1 && shape[i] <= ((gint64)1 << 40) / n, NULL);
        n *= shape[i];
    }
    NetWeight *weight = g_new0(NetWeight, 1);
    weight->name = g_strdup(name);
    weight->type = type;
    weight->ndim = ndim;
    for (guint i = 0; i < 4; i++)
        weight->shape[i] = i < ndim ? shape[i] : 1;
    weight->nbytes = net_type_bytes(type, (gsize)n);
    if (!weights->dry)
        weight->data = g_aligned_alloc(1, (weight->nbytes + WEIGHT_ALIGN - 1) / WEIGHT_ALIGN * WEIGHT_ALIGN,
                                       WEIGHT_ALIGN);
    weights->bytes += weight->nbytes;
    g_ptr_array_add(weights->list, weight);
    g_hash_table_insert(weights->by_name, (gpointer)weight->name, weight);
    return weight;
}

const NetWeight *net_weights_find(const NetWeights *weights, const char *name)
{
    return g_hash_table_lookup(weights->by_name, name);
}

gsize net_weights_bytes(const NetWeights *weights)
{
    return weights->bytes;
}

static gint by_name(gconstpointer a, gconstpointer b)
{
    return strcmp((*(const NetWeight *const *)a)->name, (*(const NetWeight *const *)b)->name);
}

guint64 net_weights_hash(const NetWeights *weights)
{
    g_autoptr(GPtrArray) sorted = g_ptr_array_new();
    for (guint i = 0; i < weights->list->len; i++)
        g_ptr_array_add(sorted, weights->list->pdata[i]);
    g_ptr_array_sort(sorted, by_name);
    XXH64_hash_t all = 0;
    for (guint i = 0; i < sorted->len; i++) {
        const NetWeight *weight = sorted->pdata[i];
        all = XXH3_64bits_withSeed(weight->name, strlen(weight->name) + 1, all);
        if (weight->data)
            all = XXH3_64bits_withSeed(weight->data, weight->nbytes, all);
    }
    return all;
}
