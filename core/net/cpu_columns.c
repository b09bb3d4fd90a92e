/* Convolutions as matrix products: the pixels that a result pixel meets, gathered into one row ("columns"),
 * times the plain weights (co, kh kw ci).
 *
 *   forward    y    = columns(x) W'
 *   backward   dx   = what columns() spreads, summed back: spread(dy W)
 *   outer      dA  += dy' columns(x)
 *
 * Columns take kh kw times the memory of x, so samples (or rows) are taken in blocks of a few megabytes. */
#include "core/net/cpu_private.h"
#include "kernels/parallel.h"
#include <string.h>

enum { BLOCK_BYTES = 8 << 20, SPREAD_CHANNELS = 256 };

/* The geometry of a convolution with x before, y after and w as its weights. */
typedef struct {
    NetConv conv;
    gint64 h, w, ci, kh, kw, oh, ow, co;
    gint64 samples;
    NetType type;
    gsize pixel; /* bytes of a pixel of x */
    gint64 row;  /* elements of a row of columns */
} Geometry;

static Geometry geometry(const NetOp *op, const NetVal *x, const NetVal *y, const NetVal *w)
{
    return (Geometry){.conv = op->u.conv,
                      .h = x->dim[1],
                      .w = x->dim[2],
                      .ci = x->dim[3],
                      .kh = w->dim[1],
                      .kw = w->dim[2],
                      .oh = y->dim[1],
                      .ow = y->dim[2],
                      .co = w->dim[0],
                      .samples = x->dim[0],
                      .type = x->type,
                      .pixel = net_type_bytes(x->type, (gsize)x->dim[3]),
                      .row = w->dim[1] * w->dim[2] * x->dim[3]};
}

/* Products come in blocks of equal size and one for what is left. */
typedef struct {
    Geometry g;
    NetDnnl *block, *rest; /* NULL: none of that size */
    gint64 samples;        /* in a block */
    gsize columns;         /* bytes of scratch for columns */
} Blocks;

static void blocks_free(gpointer data)
{
    Blocks *blocks = data;
    net_dnnl_unref(blocks->block);
    net_dnnl_unref(blocks->rest);
    g_free(blocks);
}

/* spec: everything but m (the rows of a block). `element`: bytes of an element of columns. */
static gboolean blocks_make(const Geometry *g, NetDnnlSpec *spec, gsize element, NetKernel *kernel,
                            GError **error)
{
    Blocks *blocks = g_new0(Blocks, 1);
    gint64 rows = g->oh * g->ow;
    kernel->state = blocks;
    kernel->free_state = blocks_free;
    blocks->g = *g;
    blocks->samples = CLAMP(BLOCK_BYTES / (rows * g->row * (gint64)element), 1, g->samples);
    blocks->columns = net_cpu_aligned((gsize)(blocks->samples * rows * g->row) * element);
    spec->m = blocks->samples * rows;
    if (!(blocks->block = net_cpu_take(spec, kernel, error)))
        return FALSE;
    spec->m = g->samples % blocks->samples * rows;
    if (spec->m && !(blocks->rest = net_cpu_take(spec, kernel, error)))
        return FALSE;
    kernel->scratch += blocks->columns;
    return TRUE;
}

static NetDnnl *block_of(const Blocks *blocks, gint64 samples)
{
    return samples == blocks->samples ? blocks->block : blocks->rest;
}

/* -- gathering ------------------------------------------------------------------------ */

typedef struct {
    const Geometry *g;
    const guint8 *x;
    guint8 *columns;
    gint64 first; /* row of y that the first row of columns is for */
} Gather;

/* One kernel row: the pixels are neighbours in x, those outside are zero. */
static void gather_line(const Geometry *g, guint8 *to, const guint8 *sample, gint64 y, gint64 x)
{
    gint64 left = CLAMP(-x, 0, g->kw), right = CLAMP(x + g->kw - g->w, 0, g->kw - left);
    if (y < 0 || y >= g->h) {
        left = g->kw;
        right = 0;
    }
    gsize n = (gsize)(g->kw - left - right) * g->pixel;
    memset(to, 0, (gsize)left * g->pixel);
    if (n)
        memcpy(to + (gsize)left * g->pixel, sample + (gsize)(y * g->w + x + left) * g->pixel, n);
    memset(to + (gsize)left * g->pixel + n, 0, (gsize)right * g->pixel);
}

static void gather_rows(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Gather *job = data;
    const Geometry *g = job->g;
    for (gsize i = begin; i < end; i++) {
        gint64 row = job->first + (gint64)i, n = row / (g->oh * g->ow);
        gint64 oy = row / g->ow % g->oh, ox = row % g->ow;
        const guint8 *sample = job->x + (gsize)(n * g->h * g->w) * g->pixel;
        guint8 *to = job->columns + i * (gsize)(g->kh * g->kw) * g->pixel;
        for (gint64 ky = 0; ky < g->kh; ky++, to += (gsize)g->kw * g->pixel)
            gather_line(g, to, sample, oy * g->conv.stride + ky - g->conv.top,
                        ox * g->conv.stride - g->conv.left);
    }
}

static void gather(const Geometry *g, gconstpointer x, gint64 first, gint64 rows, gpointer columns)
{
    Gather job = {g, x, columns, first};
    net_parallel_for((gsize)rows, 8, gather_rows, &job);
}

/* -- forward --------------------------------------------------------------------------- */

static void columns_forward(const NetCall *call)
{
    const Blocks *blocks = call->state;
    const Geometry *g = &blocks->g;
    gint64 rows = g->oh * g->ow;
    for (gint64 n = 0; n < g->samples && !*call->error; n += blocks->samples) {
        gint64 samples = MIN(blocks->samples, g->samples - n);
        gather(g, call->in[0], n * rows, samples * rows, call->scratch);
        guint8 *y = (guint8 *)call->out[0] + net_type_bytes(g->type, (gsize)(n * rows * g->co));
        NetDnnlArgs args = {.src = call->scratch,
                            .weights = call->in[1],
                            .bias = call->in[2],
                            .add = y,
                            .dst = y,
                            .scratch = (guint8 *)call->scratch + blocks->columns};
        net_dnnl_run(block_of(blocks, samples), &args, call->error);
    }
}

gboolean net_cpu_columns_forward_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    Geometry g = geometry(op, op->in[0], op->out[0], op->in[1]);
    kernel->run = columns_forward;
    NetDnnlSpec spec = {.kind = NET_DNNL_MATMUL,
                        .src = g.type,
                        .weights = g.type,
                        .dst = g.type,
                        .bias = op->in[2] != NULL,
                        .add = net_cpu_add_kind(op->in[3], op->out[0]),
                        .tb = TRUE,
                        .scale = 1,
                        .n = g.co,
                        .k = g.row};
    return blocks_make(&g, &spec, net_type_bytes(g.type, 1), kernel, error);
}

/* -- backward --------------------------------------------------------------------------- */

typedef struct {
    const Geometry *g;
    const float *columns;
    guint8 *dx;
} Spread;

/* The sum for channels [c, c + n) of one pixel, over kernel positions in order. */
static void spread_sum(const Spread *job, gint64 sample, gint64 y, gint64 x, gint64 c, gint64 n, float *sum)
{
    const Geometry *g = job->g;
    for (gint64 i = 0; i < n; i++)
        sum[i] = 0;
    for (gint64 ky = 0; ky < g->kh; ky++) {
        gint64 ty = y + g->conv.top - ky, oy = ty / g->conv.stride;
        if (ty < 0 || ty % g->conv.stride || oy >= g->oh)
            continue;
        for (gint64 kx = 0; kx < g->kw; kx++) {
            gint64 tx = x + g->conv.left - kx, ox = tx / g->conv.stride;
            if (tx < 0 || tx % g->conv.stride || ox >= g->ow)
                continue;
            const float *from =
                job->columns + ((sample * g->oh + oy) * g->ow + ox) * g->row + (ky * g->kw + kx) * g->ci + c;
            for (gint64 i = 0; i < n; i++)
                sum[i] += from[i];
        }
    }
}

static void spread_pixels(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Spread *job = data;
    const Geometry *g = job->g;
    float sum[SPREAD_CHANNELS];
    for (gsize i = begin; i < end; i++) {
        gint64 sample = (gint64)i / (g->h * g->w), y = (gint64)i / g->w % g->h, x = (gint64)i % g->w;
        for (gint64 c = 0; c < g->ci; c += SPREAD_CHANNELS) {
            gint64 n = MIN(SPREAD_CHANNELS, g->ci - c);
            spread_sum(job, sample, y, x, c, n, sum);
            net_convert(job->dx + i * g->pixel + net_type_bytes(g->type, (gsize)c), g->type, sum, NET_F32,
                        (gsize)n);
        }
    }
}

static void columns_backward(const NetCall *call)
{
    const Blocks *blocks = call->state;
    const Geometry *g = &blocks->g;
    for (gint64 n = 0; n < g->samples && !*call->error; n += blocks->samples) {
        gint64 samples = MIN(blocks->samples, g->samples - n);
        gsize before = net_type_bytes(g->type, (gsize)(n * g->oh * g->ow * g->co));
        NetDnnlArgs args = {.src = (const guint8 *)call->in[0] + before,
                            .weights = call->in[1],
                            .dst = call->scratch,
                            .scratch = (guint8 *)call->scratch + blocks->columns};
        if (!net_dnnl_run(block_of(blocks, samples), &args, call->error))
            return;
        Spread job = {g, call->scratch, (guint8 *)call->out[0] + (gsize)(n * g->h * g->w) * g->pixel};
        net_parallel_for((gsize)(samples * g->h * g->w), 4, spread_pixels, &job);
    }
}

/* The columns are f32: each pixel is rounded once, after its sum. */
gboolean net_cpu_columns_backward_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    Geometry g = geometry(op, op->out[0], op->in[0], op->in[1]);
    kernel->run = columns_backward;
    NetDnnlSpec spec = {.kind = NET_DNNL_MATMUL,
                        .src = g.type,
                        .weights = g.type,
                        .dst = NET_F32,
                        .scale = 1,
                        .n = g.row,
                        .k = g.co};
    return blocks_make(&g, &spec, sizeof(float), kernel, error);
}

/* -- the gradient of an adapter's A ------------------------------------------------------- */

void net_cpu_conv_outer(const NetCall *call)
{
    const NetVal *dy = call->op->in[0], *x = call->op->in[1], *w = call->op->out[0];
    Geometry g = geometry(call->op, x, dy, w);
    gsize columns = net_cpu_aligned(net_type_bytes(g.type, (gsize)(NET_CPU_OUTER_ROWS * g.row)));
    gint64 rows = net_rows(dy);
    for (gint64 first = 0; first < rows && !*call->error; first += NET_CPU_OUTER_ROWS) {
        gint64 n = MIN(NET_CPU_OUTER_ROWS, rows - first);
        gather(&g, call->in[1], first, n, call->scratch);
        net_cpu_outer_run(call->state, n, g.type,
                          (const guint8 *)call->in[0] + net_type_bytes(g.type, (gsize)(first * g.co)),
                          call->scratch, call->out[0], (guint8 *)call->scratch + columns, call->error);
    }
}

gboolean net_cpu_conv_outer_prepare(const NetOp *op, NetKernel *kernel, GError **error)
{
    Geometry g = geometry(op, op->in[1], op->in[0], op->out[0]);
    NetDnnlSpec spec = {.kind = NET_DNNL_MATMUL,
                        .src = g.type,
                        .weights = g.type,
                        .dst = NET_F32,
                        .ta = TRUE,
                        .scale = 1,
                        .m = g.co,
                        .n = g.row,
                        .k = net_rows(op->in[0])};
    if (!net_cpu_outer_make(&spec, g.row, kernel, error))
        return FALSE;
    kernel->scratch += net_cpu_aligned(net_type_bytes(g.type, (gsize)(NET_CPU_OUTER_ROWS * g.row)));
    return TRUE;
}
