/* The set of LoRA modules and its three flat buffers.
 *
 * One layout for masters, gradients and compute copy (and for the optimizer's moments): clip, finite check,
 * update and a later all-reduce are then single passes over one array. */
#include "core/net/net.h"
#include "kernels/elementwise.h"
#include <string.h>

enum { ADAPTER_RANK_STEP = 8, ADAPTER_ALIGN = 16 /* elements */ };

static void adapter_free(gpointer data)
{
    NetAdapter *adapter = data;
    g_free(adapter->name);
    g_free(adapter);
}

NetAdapters *net_adapters_new(NetType compute)
{
    NetAdapters *adapters = g_new0(NetAdapters, 1);
    adapters->list = g_ptr_array_new_with_free_func(adapter_free);
    adapters->by_name = g_hash_table_new(g_str_hash, g_str_equal);
    adapters->compute = compute;
    return adapters;
}

void net_adapters_free(NetAdapters *adapters)
{
    if (!adapters)
        return;
    if (adapters->copy != adapters->master)
        g_aligned_free(adapters->copy);
    g_aligned_free(adapters->master);
    g_aligned_free(adapters->gradient);
    g_hash_table_unref(adapters->by_name);
    g_ptr_array_unref(adapters->list);
    g_free(adapters);
}

static gsize adapter_align(gsize n)
{
    return (n + ADAPTER_ALIGN - 1) / ADAPTER_ALIGN * ADAPTER_ALIGN;
}

NetAdapter *net_adapters_add(NetAdapters *adapters, const char *name, gint64 in, gint64 out, gint64 kh,
                             gint64 kw, gint64 rank, float alpha)
{
    g_return_val_if_fail(!adapters->master, NULL);
    g_return_val_if_fail(rank >= 1 && in >= 1 && out >= 1 && kh >= 1 && kw >= 1, NULL);
    g_return_val_if_fail(!g_hash_table_contains(adapters->by_name, name), NULL);
    NetAdapter *adapter = g_new0(NetAdapter, 1);
    adapter->name = g_strdup(name);
    adapter->in = in;
    adapter->out = out;
    adapter->kh = kh;
    adapter->kw = kw;
    adapter->rank = rank;
    adapter->rank_pad = (rank + ADAPTER_RANK_STEP - 1) / ADAPTER_RANK_STEP * ADAPTER_RANK_STEP;
    adapter->alpha = alpha;
    adapter->scale = alpha / (float)rank;
    adapter->a = adapters->n;
    adapter->b = adapter->a + adapter_align((gsize)(adapter->rank_pad * in * kh * kw));
    adapters->n = adapter->b + adapter_align((gsize)(adapter->rank_pad * out));
    g_ptr_array_add(adapters->list, adapter);
    g_hash_table_insert(adapters->by_name, adapter->name, adapter);
    return adapter;
}

NetAdapter *net_adapters_find(const NetAdapters *adapters, const char *name)
{
    return g_hash_table_lookup(adapters->by_name, name);
}

static gpointer adapter_buffer(gsize bytes)
{
    bytes = MAX((bytes + 63) / 64 * 64, 64);
    gpointer data = g_aligned_alloc(1, bytes, 64);
    memset(data, 0, bytes);
    return data;
}

void net_adapters_allocate(NetAdapters *adapters)
{
    g_return_if_fail(!adapters->master);
    adapters->master = adapter_buffer(adapters->n * sizeof(float));
    adapters->gradient = adapter_buffer(adapters->n * sizeof(float));
    adapters->copy = adapters->compute == NET_F32
                         ? (gpointer)adapters->master
                         : adapter_buffer(net_type_bytes(adapters->compute, adapters->n));
}

static void adapter_refresh(gpointer data)
{
    NetAdapters *adapters = data;
    kernel_cast(adapters->copy, adapters->compute, adapters->master, NET_F32, adapters->n);
}

void net_adapters_refresh(NetAdapters *adapters)
{
    if (adapters->copy != adapters->master)
        net_on_compute_thread(adapter_refresh, adapters);
}
