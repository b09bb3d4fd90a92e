/* oneDNN 2.6: primitives by shape.
 *
 * A primitive takes milliseconds to make (it compiles code), so every shape is made once and shared by all
 * operations and plans that have it. Memory objects belong to the primitive and get their addresses at each
 * run, which is safe because only the compute thread runs them. Scratch is the caller's: it is planned.
 * Matrix weights are used as stored, in either orientation; convolutions get the layout they ask for. */
#include "core/net/dnnl_private.h"
#include "core/net/net.h"
#include <dnnl.h>
#include <pthread.h>
#include <string.h>
#include <xxhash.h>

struct NetDnnl {
    NetDnnlSpec spec;
    guint refs;
    dnnl_primitive_t run, pack; /* pack: plain weights to the layout that run wants */
    dnnl_memory_t src, weights, bias, dst, add, scratch, pack_plain, pack_packed;
    dnnl_memory_desc_t weights_desc;
    gsize scratch_bytes, packed_bytes;
};

/* One layout of a weight, or a column range of it (count > 0); a weight has a list of them. */
typedef struct Packed Packed;
struct Packed {
    dnnl_memory_desc_t desc;
    gint64 begin, count;
    gpointer data;
    Packed *next;
};

static pthread_mutex_t dnnl_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t dnnl_once = PTHREAD_ONCE_INIT;
static GHashTable *dnnl_cache; /* NetDnnlSpec * -> NetDnnl *, under the lock */
static dnnl_engine_t dnnl_cpu_engine;
static dnnl_stream_t dnnl_cpu_stream;
static dnnl_status_t dnnl_start_status;

static guint spec_hash(gconstpointer spec)
{
    return (guint)XXH3_64bits(spec, sizeof(NetDnnlSpec));
}

static gboolean spec_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(NetDnnlSpec)) == 0;
}

static void dnnl_start(void)
{
    dnnl_cache = g_hash_table_new(spec_hash, spec_equal);
    dnnl_set_primitive_cache_capacity(0); /* this cache is enough, and it lets go of what no plan has */
    dnnl_start_status = dnnl_engine_create(&dnnl_cpu_engine, dnnl_cpu, 0);
    if (dnnl_start_status == dnnl_success)
        dnnl_start_status = dnnl_stream_create(&dnnl_cpu_stream, dnnl_cpu_engine, dnnl_stream_default_flags);
}

static dnnl_data_type_t type_of(guint32 type)
{
    return type == NET_BF16 ? dnnl_bf16 : type == NET_F16 ? dnnl_f16 : dnnl_f32;
}

static const char *kind_name(guint32 kind)
{
    static const char *const name[] = {"matmul", "convolution", "backward convolution"};
    return name[kind];
}

static void set_error(GError **error, const NetDnnlSpec *s, const char *what)
{
    if (s->kind == NET_DNNL_MATMUL)
        g_set_error(error, NET_ERROR, NET_ERROR_FAILED,
                    "oneDNN: %s for matmul of %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                    " in %s",
                    what, s->m, s->n, s->k, net_type_name((NetType)s->src));
    else
        g_set_error(error, NET_ERROR, NET_ERROR_FAILED,
                    "oneDNN: %s for %s of %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                    "x%" G_GINT64_FORMAT " to %" G_GINT64_FORMAT " channels, kernel %" G_GINT64_FORMAT
                    "x%" G_GINT64_FORMAT ", in %s",
                    what, kind_name(s->kind), s->batch, s->h, s->w, s->ci, s->co, s->kh, s->kw,
                    net_type_name((NetType)s->src));
}

/* -- descriptors ------------------------------------------------------------------ */

/* Packed; `transposed` is how it is stored. */
static dnnl_memory_desc_t matrix(gint64 rows, gint64 columns, guint32 type, gboolean transposed)
{
    dnnl_memory_desc_t d;
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};
    dnnl_memory_desc_init_by_strides(&d, 2, dims, type_of(type), strides);
    return d;
}

static dnnl_memory_desc_t tensor(gint64 n, gint64 c, gint64 h, gint64 w, guint32 type, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t d;
    dnnl_dims_t dims = {n, c, h, w};
    dnnl_memory_desc_init_by_tag(&d, 4, dims, type_of(type), tag);
    return d;
}

/* scale, then the addition: a sum into dst, or a second source that lies elsewhere. */
static dnnl_primitive_attr_t attributes(const NetDnnlSpec *s, const dnnl_memory_desc_t *dst)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnnl_primitive_attr_create(&attr);
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_post_ops_create(&ops);
    if (s->scale != 1)
        dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_linear, s->scale, 0);
    if (s->add == NET_DNNL_ADD_SHARED)
        dnnl_post_ops_append_sum(ops, 1);
    if (s->add == NET_DNNL_ADD_APART)
        dnnl_post_ops_append_binary(ops, dnnl_binary_add, dst);
    dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return attr;
}

typedef struct {
    dnnl_memory_desc_t src, weights, bias, dst;
} Descs;

static dnnl_primitive_desc_t describe_matmul(const NetDnnlSpec *s, Descs *d, dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_matmul_desc_init(&desc, &d->src, &d->weights, s->bias ? &d->bias : NULL, &d->dst) ==
        dnnl_success)
        dnnl_primitive_desc_create(&pd, &desc, attr, dnnl_cpu_engine, NULL);
    return pd;
}

/* Both directions are described by the forward shapes; backward wants a forward hint. */
static dnnl_primitive_desc_t describe_conv(const NetDnnlSpec *s, Descs *d, dnnl_primitive_attr_t attr)
{
    dnnl_dims_t stride = {s->stride, s->stride}, before = {s->top, s->left}, after = {s->bottom, s->right};
    gboolean back = s->kind == NET_DNNL_CONV_BACKWARD;
    const dnnl_memory_desc_t any = tensor(s->co, s->ci, s->kh, s->kw, s->weights, dnnl_format_tag_any);
    const dnnl_memory_desc_t *x = back ? &d->dst : &d->src, *y = back ? &d->src : &d->dst;
    dnnl_convolution_desc_t desc, forward;
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    if (dnnl_convolution_forward_desc_init(&forward, dnnl_forward, dnnl_convolution_direct, x, &any,
                                           s->bias ? &d->bias : NULL, y, stride, before,
                                           after) != dnnl_success)
        return NULL;
    if (!back) {
        dnnl_primitive_desc_create(&pd, &forward, attr, dnnl_cpu_engine, NULL);
        return pd;
    }
    if (dnnl_primitive_desc_create(&hint, &forward, NULL, dnnl_cpu_engine, NULL) != dnnl_success)
        return NULL;
    if (dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, x, &any, y, stride, before,
                                                 after) == dnnl_success)
        dnnl_primitive_desc_create(&pd, &desc, attr, dnnl_cpu_engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return pd;
}

static dnnl_primitive_desc_t describe(const NetDnnlSpec *s, Descs *d)
{
    if (s->kind == NET_DNNL_MATMUL) {
        d->src = matrix(s->m, s->k, s->src, s->ta != 0);
        d->weights = matrix(s->k, s->n, s->weights, s->tb != 0);
        d->bias = matrix(1, s->n, NET_F32, FALSE);
        d->dst = matrix(s->m, s->n, s->dst, FALSE);
    } else {
        dnnl_dims_t channels = {s->co};
        dnnl_memory_desc_t x = tensor(s->batch, s->ci, s->h, s->w, s->src, dnnl_nhwc);
        dnnl_memory_desc_t y = tensor(s->batch, s->co, s->oh, s->ow, s->src, dnnl_nhwc);
        d->src = s->kind == NET_DNNL_CONV ? x : y;
        d->dst = s->kind == NET_DNNL_CONV ? y : x;
        dnnl_memory_desc_init_by_tag(&d->bias, 1, channels, dnnl_f32, dnnl_a);
    }
    dnnl_primitive_attr_t attr = attributes(s, &d->dst);
    dnnl_primitive_desc_t pd =
        s->kind == NET_DNNL_MATMUL ? describe_matmul(s, d, attr) : describe_conv(s, d, attr);
    dnnl_primitive_attr_destroy(attr);
    return pd;
}

/* -- primitives --------------------------------------------------------------------- */

static void memory(dnnl_memory_t *out, const dnnl_memory_desc_t *desc)
{
    dnnl_memory_create(out, desc, dnnl_cpu_engine, DNNL_MEMORY_NONE);
}

/* From plain weights to the layout of the primitive; nothing if they are the same. */
static gboolean make_pack(NetDnnl *p)
{
    const NetDnnlSpec *s = &p->spec;
    dnnl_memory_desc_t plain = tensor(s->co, s->ci, s->kh, s->kw, s->weights, dnnl_acdb);
    if (dnnl_memory_desc_equal(&plain, &p->weights_desc))
        return TRUE;
    p->packed_bytes = dnnl_memory_desc_get_size(&p->weights_desc);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_reorder_primitive_desc_create(&pd, &plain, dnnl_cpu_engine, &p->weights_desc, dnnl_cpu_engine, NULL);
    if (!pd)
        return FALSE;
    dnnl_status_t status = dnnl_primitive_create(&p->pack, pd);
    dnnl_primitive_desc_destroy(pd);
    memory(&p->pack_plain, &plain);
    memory(&p->pack_packed, &p->weights_desc);
    return status == dnnl_success;
}

static void dnnl_free(NetDnnl *p)
{
    dnnl_memory_t all[] = {p->src, p->weights, p->bias,       p->dst,
                           p->add, p->scratch, p->pack_plain, p->pack_packed};
    for (guint i = 0; i < G_N_ELEMENTS(all); i++)
        if (all[i])
            dnnl_memory_destroy(all[i]);
    if (p->run)
        dnnl_primitive_destroy(p->run);
    if (p->pack)
        dnnl_primitive_destroy(p->pack);
    g_free(p);
}

static NetDnnl *dnnl_make(const NetDnnlSpec *spec, GError **error)
{
    Descs d;
    dnnl_primitive_desc_t pd = describe(spec, &d);
    if (!pd) {
        set_error(error, spec, "no implementation");
        return NULL;
    }
    NetDnnl *p = g_new0(NetDnnl, 1);
    p->spec = *spec;
    const char *name = NULL;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    gboolean reference = name && strstr(name, "ref");
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->weights_desc = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    p->scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    gboolean made = !reference && dnnl_primitive_create(&p->run, pd) == dnnl_success;
    if (made) {
        memory(&p->src, &d.src);
        memory(&p->weights, &p->weights_desc);
        memory(&p->bias, &d.bias);
        memory(&p->dst, &d.dst);
        memory(&p->add, &d.dst);
        if (p->scratch_bytes)
            memory(&p->scratch, scratch);
        made = spec->kind == NET_DNNL_MATMUL || make_pack(p);
    }
    dnnl_primitive_desc_destroy(pd);
    if (made)
        return p;
    set_error(error, spec, reference ? "only the reference implementation" : "no primitive");
    dnnl_free(p);
    return NULL;
}

typedef struct {
    const NetDnnlSpec *spec;
    NetDnnl *found;
    GError *error;
} Request;

static void get_here(gpointer data)
{
    Request *request = data;
    pthread_once(&dnnl_once, dnnl_start);
    if (dnnl_start_status != dnnl_success) {
        g_set_error(&request->error, NET_ERROR, NET_ERROR_FAILED, "oneDNN does not start (status %d)",
                    (int)dnnl_start_status);
        return;
    }
    pthread_mutex_lock(&dnnl_lock);
    NetDnnl *p = g_hash_table_lookup(dnnl_cache, request->spec);
    if (!p) {
        p = dnnl_make(request->spec, &request->error);
        if (p)
            g_hash_table_insert(dnnl_cache, &p->spec, p);
    }
    if (p)
        p->refs++;
    pthread_mutex_unlock(&dnnl_lock);
    request->found = p;
}

/* A primitive divides its work by the threads of the team of whoever makes it, so that is who will run it. */
NetDnnl *net_dnnl_get(const NetDnnlSpec *spec, GError **error)
{
    Request request = {.spec = spec};
    net_on_compute_thread(get_here, &request);
    if (request.error)
        g_propagate_error(error, request.error);
    return request.found;
}

void net_dnnl_unref(gpointer dnnl)
{
    NetDnnl *p = dnnl;
    if (!p)
        return;
    pthread_mutex_lock(&dnnl_lock);
    if (--p->refs == 0) {
        g_hash_table_remove(dnnl_cache, &p->spec);
        dnnl_free(p);
    }
    pthread_mutex_unlock(&dnnl_lock);
}

gsize net_dnnl_scratch(const NetDnnl *p)
{
    return p->scratch_bytes;
}

/* Code and tables of a matmul or convolution: 100 to 140 KB of resident memory, measured over many shapes. */
enum { PRIMITIVE_BYTES = 120 << 10 };

gsize net_dnnl_library_bytes(const NetDnnl *p)
{
    return p->refs == 1 ? PRIMITIVE_BYTES : 0;
}

gsize net_dnnl_packed_bytes(const NetDnnl *p)
{
    return p->packed_bytes;
}

/* -- running ------------------------------------------------------------------------- */

typedef struct {
    dnnl_exec_arg_t arg[7];
    int n;
} ExecArgs;

static void bind(ExecArgs *args, int id, dnnl_memory_t memory, gconstpointer data)
{
    if (!memory || !data)
        return;
    dnnl_memory_set_data_handle(memory, (gpointer)data);
    args->arg[args->n++] = (dnnl_exec_arg_t){id, memory};
}

static gboolean execute(NetDnnl *p, dnnl_primitive_t primitive, const ExecArgs *args, GError **error)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, dnnl_cpu_stream, args->n, args->arg);
    if (status == dnnl_success)
        return TRUE;
    set_error(error, &p->spec, "failed run");
    return FALSE;
}

gboolean net_dnnl_run(NetDnnl *p, const NetDnnlArgs *a, GError **error)
{
    ExecArgs args = {.n = 0};
    gboolean back = p->spec.kind == NET_DNNL_CONV_BACKWARD;
    bind(&args, back ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, p->src, a->src);
    bind(&args, DNNL_ARG_WEIGHTS, p->weights, a->weights);
    bind(&args, back ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST, p->dst, a->dst);
    bind(&args, DNNL_ARG_BIAS, p->bias, p->spec.bias ? a->bias : NULL);
    if (p->spec.add == NET_DNNL_ADD_APART) {
        int at = p->spec.scale != 1 ? 1 : 0;
        bind(&args, DNNL_ARG_ATTR_MULTIPLE_POST_OP(at) | DNNL_ARG_SRC_1, p->add, a->add);
    }
    bind(&args, DNNL_ARG_SCRATCHPAD, p->scratch, a->scratch);
    return execute(p, p->run, &args, error);
}

gboolean net_dnnl_pack(NetDnnl *p, gconstpointer plain, gpointer packed, GError **error)
{
    ExecArgs args = {.n = 0};
    bind(&args, DNNL_ARG_FROM, p->pack_plain, plain);
    bind(&args, DNNL_ARG_TO, p->pack_packed, packed);
    return execute(p, p->pack, &args, error);
}

static Packed *packed_new(gsize bytes)
{
    Packed *made = g_new0(Packed, 1);
    made->data = g_aligned_alloc(1, (bytes + 63) / 64 * 64, 64);
    return made;
}

/* The list is a cache: it is no part of what makes a weight constant. */
static gconstpointer packed_keep(Packed *made, const NetWeight *weight)
{
    made->next = weight->packed;
    ((NetWeight *)weight)->packed = made;
    return made->data;
}

gconstpointer net_dnnl_packed(NetDnnl *p, const NetWeight *weight, GError **error)
{
    if (!p->packed_bytes)
        return weight->data;
    for (Packed *at = weight->packed; at; at = at->next)
        if (!at->count && dnnl_memory_desc_equal(&at->desc, &p->weights_desc))
            return at->data;
    Packed *made = packed_new(p->packed_bytes);
    made->desc = p->weights_desc;
    if (net_dnnl_pack(p, weight->data, made->data, error))
        return packed_keep(made, weight);
    net_dnnl_packed_free(made);
    return NULL;
}

gconstpointer net_dnnl_columns(const NetWeight *weight, gint64 begin, gint64 count)
{
    for (Packed *at = weight->packed; at; at = at->next)
        if (at->begin == begin && at->count == count)
            return at->data;
    gint64 width = weight->shape[1] * weight->shape[2] * weight->shape[3];
    gsize row = net_type_bytes(weight->type, (gsize)count), step = net_type_bytes(weight->type, (gsize)width);
    Packed *made = packed_new((gsize)weight->shape[0] * row);
    made->begin = begin;
    made->count = count;
    const guint8 *from = (const guint8 *)weight->data + net_type_bytes(weight->type, (gsize)begin);
    for (gint64 i = 0; i < weight->shape[0]; i++)
        memcpy((guint8 *)made->data + (gsize)i * row, from + (gsize)i * step, row);
    return packed_keep(made, weight);
}

void net_dnnl_packed_free(gpointer packed)
{
    for (Packed *at = packed, *next; at; at = next) {
        next = at->next;
        g_aligned_free(at->data);
        g_free(at);
    }
}
