/* oneDNN behind a small face: matrix products and convolutions as shapes, one cached primitive a shape.
 * Only dnnl.c includes the library, so that another version is a change of one file. */
#ifndef NET_DNNL_PRIVATE_H
#define NET_DNNL_PRIVATE_H
#include "core/net/weight.h"

G_BEGIN_DECLS

typedef enum {
    NET_DNNL_MATMUL,        /* dst (m, n) = scale src (m, k) weights (k, n) + bias, + add */
    NET_DNNL_CONV,          /* dst = conv(src, weights) + bias, + add */
    NET_DNNL_CONV_BACKWARD, /* dst (like src of CONV) = gradient of its source; src = gradient of its result
                             */
} NetDnnlKind;

typedef enum { NET_DNNL_NO_ADD, NET_DNNL_ADD_SHARED /* add is dst */, NET_DNNL_ADD_APART } NetDnnlAdd;

/* All of it is the key of the cache: clear it before filling it in. */
typedef struct {
    guint32 kind, add;
    guint32 src, weights, dst; /* NetType */
    guint32 bias, ta, tb;      /* has a f32 bias; src, weights stored transposed */
    float scale;
    guint32 unused;
    gint64 m, n, k;                                     /* MATMUL; operands are packed */
    gint64 batch, h, w, ci, co, kh, kw, oh, ow, stride; /* CONV*, all as in the forward pass */
    gint64 top, left, bottom, right;
} NetDnnlSpec;

typedef struct {
    gconstpointer src, weights, bias, add; /* weights packed for CONV and CONV_BACKWARD */
    gpointer dst, scratch;
} NetDnnlArgs;

typedef struct NetDnnl NetDnnl;

/* The primitive for a shape, made once. Reference implementations are refused: they are hundreds of times
 * slower and would do so silently. Returns a reference. [any] */
NetDnnl *net_dnnl_get(const NetDnnlSpec *spec, GError **error);
void net_dnnl_unref(gpointer dnnl);
gsize net_dnnl_scratch(const NetDnnl *dnnl);
/* About what the library holds for it if nobody else has it, else 0. */
gsize net_dnnl_library_bytes(const NetDnnl *dnnl);
/* Bytes of the weights in the layout the primitive wants; 0: as they are. */
gsize net_dnnl_packed_bytes(const NetDnnl *dnnl);
/* [compute] */
gboolean net_dnnl_run(NetDnnl *dnnl, const NetDnnlArgs *args, GError **error);
/* Plain (co, kh, kw, ci) weights into the layout of the primitive. [compute] */
gboolean net_dnnl_pack(NetDnnl *dnnl, gconstpointer plain, gpointer packed, GError **error);
/* The weight in that layout: made at the first call, kept with the weight, shared by primitives that agree.
 * [compute] */
gconstpointer net_dnnl_packed(NetDnnl *dnnl, const NetWeight *weight, GError **error);
/* Columns [begin, begin + count) of a matrix as a packed matrix: made at the first call, kept with the
 * weight. [compute] */
gconstpointer net_dnnl_columns(const NetWeight *weight, gint64 begin, gint64 count);
/* Frees NetWeight->packed; NULL is fine. */
void net_dnnl_packed_free(gpointer packed);

G_END_DECLS
#endif
