/* Every row of the kernel table against the plain C row of its operation.
 *
 *   check              all rows, all sizes, alignments and patterns
 *   check --seed N     other random numbers
 *   check OP           those whose name contains OP
 *
 * A row passes when its outputs have a normalised mean square error within its own limit, over all sizes of
 * a pattern together, are inf and NaN where the reference is, and nothing outside them is written.
 * @label short
 * @timeout 60
 */
#include "kernels/calls_private.h"
#include "kernels/kernel.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 64, PATTERNS = 5, SPECIALS = 4, MAX_IN = 8, MAX_OUT = 4 };
static guint64 seed = 1;
/* Sanitizers make a row ten times slower: then the dear shapes run with one pattern; and under the thread
 * sanitizer all do, because a row has one thread. */
static gboolean instrumented, thread_sanitizer;

/* -- tensors between guard bytes -- */

typedef struct {
    guint8 *base, *data;
    gsize nbytes;
} Buffer;

static Buffer buffer_new(const Tensor *t, gsize offset)
{
    Buffer b = {.nbytes = net_type_bytes(t->type, t->n)};
    b.base = g_aligned_alloc(1, b.nbytes + 2 * GUARD + 64, 64);
    memset(b.base, 0xA5, b.nbytes + 2 * GUARD + 64);
    b.data = b.base + GUARD + net_type_bytes(t->type, offset);
    return b;
}

static gboolean buffer_guarded(const Buffer *b)
{
    for (guint i = 1; i <= GUARD / 2; i++)
        if (b->data[-(gssize)i] != 0xA5 || b->data[b->nbytes + i - 1] != 0xA5)
            return FALSE;
    return TRUE;
}

static float value(guint pattern, Values values, float u, gsize i)
{
    static const float special[] = {INFINITY, -INFINITY, NAN};
    float x = u;
    if (pattern == 1)
        x = values == SMALL ? 3 * u : 40 * u * fabsf(u);
    else if (pattern == 2)
        x = values == SMALL ? u : 1e4f * u;
    else if (pattern == 3)
        x = i % 3 ? u * 1e-39f : u * 3;
    else if (pattern == SPECIALS && values == ANY && fabsf(u) < 0.1f)
        x = special[i % 3];
    return values == POSITIVE ? fabsf(x) + 0.01f : x;
}

static void buffer_fill(Buffer *b, const Tensor *t, guint pattern, guint64 stream)
{
    g_autofree float *x = g_new(float, t->n + 1);
    philox_uniform(seed, stream, 0, x, t->n);
    for (gsize i = 0; i < t->n; i++)
        x[i] = value(pattern, t->values, 2 * x[i] - 1, i);
    net_convert(b->data, t->type, x, NET_F32, t->n);
}

/* -- judging -- */

typedef struct {
    double error[MAX_OUT], power[MAX_OUT];
    const char *fault;
} Verdict;

static float element(const Buffer *b, NetType type, gsize i)
{
    guint16 h;
    float f;
    if (type == NET_F32) {
        memcpy(&f, b->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, b->data + 2 * i, 2);
    return type == NET_BF16 ? net_bf16_to_f32(h) : net_f16_to_f32(h);
}

static void compare(Verdict *v, guint output, const Tensor *t, const Buffer *expected, const Buffer *got)
{
    for (gsize i = 0; i < t->n; i++) {
        float a = element(expected, t->type, i), b = element(got, t->type, i);
        if (isnan(a) != isnan(b) || isinf(a) != isinf(b) || (isinf(a) && a != b))
            v->fault = "inf or nan differ";
        if (!isfinite(a) || !isfinite(b))
            continue;
        v->error[output] += ((double)a - b) * ((double)a - b);
        v->power[output] += (double)a * a;
    }
    if (!buffer_guarded(got) || !buffer_guarded(expected))
        v->fault = "wrote outside its output";
}

static double verdict_nmse(const Verdict *v)
{
    double worst = 0;
    for (guint i = 0; i < MAX_OUT; i++)
        if (v->error[i] > 0)
            worst = MAX(worst, v->error[i] / MAX(v->power[i], G_MINDOUBLE));
    return worst;
}

/* -- calling -- */

typedef struct {
    Plan plan;
    Buffer in[MAX_IN], out[MAX_OUT];
    void *in_data[MAX_IN], *out_data[MAX_OUT];
} Call;

static void call_prepare(Call *c, const Op *op, NetType type, gsize size, gsize offset, guint pattern)
{
    memset(c, 0, sizeof *c);
    c->plan.type = type;
    op->plan(&c->plan, size);
    for (guint i = 0; i < MAX_IN; i++) {
        if (!c->plan.in[i].n)
            continue;
        c->in[i] = buffer_new(&c->plan.in[i], offset + i % 2);
        buffer_fill(&c->in[i], &c->plan.in[i], pattern, 1 + i);
        c->in_data[i] = c->in[i].data;
    }
    for (guint i = 0; i < MAX_OUT; i++) {
        if (!c->plan.out[i].n)
            continue;
        c->out[i] = buffer_new(&c->plan.out[i], offset);
        if (c->plan.out[i].start)
            buffer_fill(&c->out[i], &c->plan.out[i], pattern, 100 + i);
        c->out_data[i] = c->out[i].data;
    }
}

static void call_clear(Call *c)
{
    for (guint i = 0; i < MAX_IN; i++)
        g_aligned_free(c->in[i].base);
    for (guint i = 0; i < MAX_OUT; i++)
        g_aligned_free(c->out[i].base);
}

/* The rows of one operation that this machine can run, reference first. */
typedef struct {
    const Op *op;
    NetType type;
    guint n;
    const FlowKernel *row[8];
    Verdict verdict[8]; /* of the pattern at hand */
    double worst[8];
    const char *fault[8];
} Group;

static void check_once(Group *g, gsize size, gsize offset, guint pattern)
{
    Call expected, got;
    call_prepare(&expected, g->op, g->type, size, offset, pattern);
    g->op->call(g->row[0]->fn, &expected.plan, expected.in_data, expected.out_data);
    for (guint k = 0; k < g->n; k++) {
        call_prepare(&got, g->op, g->type, size, offset, pattern);
        g->op->call(g->row[k]->fn, &got.plan, got.in_data, got.out_data);
        for (guint i = 0; i < MAX_OUT; i++)
            if (got.plan.out[i].n)
                compare(&g->verdict[k], i, &got.plan.out[i], &expected.out[i], &got.out[i]);
        call_clear(&got);
    }
    call_clear(&expected);
}

/* Every alignment for small sizes, one for those that take long. */
static void check_pattern(Group *g, guint pattern)
{
    static const gsize sizes[] = {1, 2, 7, 8, 9, 15, 31, 320, 1280, 4097};
    memset(g->verdict, 0, sizeof g->verdict);
    for (guint s = 0; s < G_N_ELEMENTS(sizes); s++) {
        Plan plan = {.type = g->type};
        g->op->plan(&plan, sizes[s]);
        gboolean one = sizes[s] >= 1000 || plan.flops > 1e5;
        if (instrumented && (plan.flops > 1e5 || thread_sanitizer) && pattern)
            continue;
        for (gsize offset = one ? s % 3 : 0; offset < (one ? s % 3 + 1 : 3); offset++)
            check_once(g, sizes[s], offset, pattern);
    }
    for (guint k = 0; k < g->n; k++) {
        g->worst[k] = MAX(g->worst[k], verdict_nmse(&g->verdict[k]));
        g->fault[k] = g->verdict[k].fault ? g->verdict[k].fault : g->fault[k];
    }
}

/* H-13 */
/* Returns the number of rows that failed. */
static guint check_group(Group *g)
{
    guint failed = 0;
    for (guint pattern = 0; pattern < PATTERNS; pattern++)
        if (pattern != SPECIALS || g->op->specials)
            check_pattern(g, pattern);
    for (guint k = 0; k < g->n; k++) {
        gboolean ok = !g->fault[k] && g->worst[k] <= g->row[k]->max_nmse;
        printf("%s %s.%s: nmse %.1e, limit %.0e%s%s\n", ok ? "ok  " : "FAIL", g->row[k]->op,
               g->row[k]->variant, g->worst[k], g->row[k]->max_nmse, g->fault[k] ? ", " : "",
               g->fault[k] ? g->fault[k] : "");
        failed += !ok;
    }
    return failed;
}

/* -- finding -- */

static const FlowKernel *reference_of(const char *op)
{
    guint n;
    const FlowKernel *rows = flow_kernels(&n), *found = NULL;
    for (guint i = 0; i < n; i++)
        if (!rows[i].needs && !strcmp(rows[i].op, op)) {
            g_assert_null(found); /* one reference an operation */
            found = &rows[i];
        }
    return found;
}

/* The group that `reference` heads; rows beyond the machine are named. */
static Group group_of(const FlowKernel *reference, guint *missing)
{
    guint n;
    const FlowKernel *rows = flow_kernels(&n);
    Group g = {.n = 1, .row = {reference}};
    g.op = op_of(reference, &g.type);
    for (guint i = 0; i < n; i++) {
        if (!rows[i].needs || strcmp(rows[i].op, reference->op))
            continue;
        if (rows[i].needs & ~flow_cpu()) {
            printf("not supported: %s.%s\n", rows[i].op, rows[i].variant);
            *missing += 1;
            continue;
        }
        g_assert_cmpuint(g.n, <, G_N_ELEMENTS(g.row));
        g.row[g.n++] = &rows[i];
    }
    return g;
}

int main(int argc, char **argv)
{
    guint n, failed = 0, missing = 0, ran = 0;
    const char *only = "";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = g_ascii_strtoull(argv[++i], NULL, 10);
        else
            only = argv[i];
    }
    const char *sanitizer = g_getenv("LORAFLOW_SANITIZE");
    instrumented = sanitizer && *sanitizer;
    thread_sanitizer = !g_strcmp0(sanitizer, "thread");
    printf("seed %" G_GUINT64_FORMAT "\n", seed);
    const FlowKernel *rows = flow_kernels(&n);
    g_assert_cmpuint(n, >, 0);
    for (guint i = 0; i < n; i++) {
        NetType type;
        if (!strstr(rows[i].op, only))
            continue;
        if (!op_of(&rows[i], &type) || !reference_of(rows[i].op)) {
            printf("FAIL %s.%s: no reference row, or not known to the checker\n", rows[i].op,
                   rows[i].variant);
            failed++;
        } else if (!rows[i].needs) {
            Group g = group_of(&rows[i], &missing);
            failed += check_group(&g);
            ran += g.n;
        }
    }
    printf("%u rows, %u failed, %u not supported by this machine\n", ran, failed, missing);
    return failed != 0;
}
