/* Frozen weights and trainable adapters, as the engine sees them. */
#ifndef NET_WEIGHT_H
#define NET_WEIGHT_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* One frozen tensor in the storage type. Linear [out, in]; convolution [out, kh, kw, in] (channels last;
 * files hold [out, in, kh, kw], the loader turns them once); norms and biases [n], always f32;
 * embeddings [rows, width]. A 1x1 convolution is a linear. */
typedef struct {
    const char *name; /* diffusers key, owned by the store */
    NetType type;
    guint ndim;
    gint64 shape[4];
    gsize nbytes;
    const void *data; /* 64-byte aligned; owned by the store */
    guint64 hash;     /* XXH3 of the data, 0 until asked for */
    gpointer packed;  /* backend's private copy or primitive cache; freed by the backend */
} NetWeight;

/* A set of named weights; owns their memory. */
typedef struct NetWeights NetWeights;
NetWeights *net_weights_new(void);
/* Shapes only, every data NULL: nets and plans can be made from it, not run. */
NetWeights *net_weights_new_dry(void);
void net_weights_free(NetWeights *weights); /* NULL is fine */
/* Room for a new tensor of 1..4 dims; data is writable until the first use. Name is copied; must be new. */
NetWeight *net_weights_add(NetWeights *weights, const char *name, NetType type, guint ndim,
                           const gint64 *shape);
/* NULL if absent. */
const NetWeight *net_weights_find(const NetWeights *weights, const char *name);
gsize net_weights_bytes(const NetWeights *weights);
/* One number over all names and bytes, in name order: frozen means unchanged. */
guint64 net_weights_hash(const NetWeights *weights);

/* One LoRA module: y += scale * B (A x). In the flat buffers A is [rank_pad, in...], B is [out, rank_pad],
 * row-major; rows of A (columns of B) beyond `rank` are zero, get zero gradients, and are not saved. */
typedef struct {
    char *name;     /* module path as in diffusers, without ".weight" */
    gint64 in, out; /* in counts channels; a convolution's A has in * kh * kw columns, order [kh][kw][in] */
    gint64 kh, kw;  /* 1, 1 for linears */
    gint64 rank, rank_pad;
    float alpha, scale;  /* scale = alpha / rank */
    gboolean conv_shape; /* the base weight is stored as a convolution (1x1 too): files say [r, in, 1, 1] */
    gsize a, b;          /* offsets of A and B in the flat buffers, in elements */
} NetAdapter;

/* The adapters of a model with three flat buffers of one layout: f32 masters, f32 gradients, and the
 * compute copy (equal to the masters when compute is f32; refreshed by net_adapters_refresh). */
typedef struct {
    GPtrArray *list; /* NetAdapter *, in the order of the model */
    GHashTable *by_name;
    gsize n; /* elements of each buffer */
    NetType compute;
    float *master, *gradient;
    void *copy; /* compute type; == master for f32 */
} NetAdapters;

NetAdapters *net_adapters_new(NetType compute);
void net_adapters_free(NetAdapters *adapters);
/* Before net_adapters_allocate, after which nets may use it (nets can be built and planned before). kh, kw:
 * kernel size; 1, 1 for linears. Offsets are fixed here. Name must be new. Returns borrowed. */
NetAdapter *net_adapters_add(NetAdapters *adapters, const char *name, gint64 in, gint64 out, gint64 kh,
                             gint64 kw, gint64 rank, float alpha);
/* NULL if the module is not targeted. */
NetAdapter *net_adapters_find(const NetAdapters *adapters, const char *name);
/* Makes the buffers, zeroed: modules in order of addition, A then B; offsets are multiples of 16 elements. */
void net_adapters_allocate(NetAdapters *adapters);
/* Masters changed: make the compute copy anew. [any] */
void net_adapters_refresh(NetAdapters *adapters);

G_END_DECLS
#endif
