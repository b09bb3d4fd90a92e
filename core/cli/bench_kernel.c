/* bench kernel: the speed of every row of the kernel table that this machine can run, on one thread.
 *
 * Bytes a second stand beside what memory gives in the same minute (one stream in, one out, nothing to
 * compute), operations a second beside nothing: the best rate of a matrix product depends on its shape. The
 * thread's own time is taken, so other programs cost bandwidth and cache, but not turns. */
#include "core/cli/bench.h"
#include "core/flow/random.h"
#include "kernels/calls_private.h"
#include "kernels/kernel.h"
#include <math.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    Plan plan;
    gpointer in[G_N_ELEMENTS(((Plan *)0)->in)], out[G_N_ELEMENTS(((Plan *)0)->out)];
    double bytes; /* read and written in a call */
} Call;

static gpointer tensor_new(const Tensor *t, gboolean filled, guint64 key, double *bytes)
{
    gsize n = net_type_bytes(t->type, t->n);
    if (n == 0)
        return NULL;
    gpointer data = g_aligned_alloc0(1, n + 64, 64);
    *bytes += (double)n;
    if (!filled)
        return data;
    g_autofree float *x = g_new(float, t->n);
    flow_random_normal(key, 0, x, t->n);
    for (gsize i = 0; t->values == POSITIVE && i < t->n; i++)
        x[i] = fabsf(x[i]) + 0.01f;
    net_convert(data, t->type, x, NET_F32, t->n);
    return data;
}

static void call_prepare(Call *c, const Op *op, NetType type)
{
    *c = (Call){.plan = {.type = type}};
    op->plan(&c->plan, BENCH);
    for (guint i = 0; i < G_N_ELEMENTS(c->in); i++)
        c->in[i] = tensor_new(&c->plan.in[i], TRUE, i, &c->bytes);
    for (guint i = 0; i < G_N_ELEMENTS(c->out); i++) {
        const Tensor *t = &c->plan.out[i];
        c->out[i] = tensor_new(t, t->start, 100 + i, &c->bytes);
        if (t->start) /* read and written */
            c->bytes += (double)net_type_bytes(t->type, t->n);
    }
}

static void call_clear(Call *c)
{
    for (guint i = 0; i < G_N_ELEMENTS(c->in); i++)
        g_aligned_free(c->in[i]);
    for (guint i = 0; i < G_N_ELEMENTS(c->out); i++)
        g_aligned_free(c->out[i]);
}

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double best_seconds(const Op *op, FlowKernelFn fn, Call *c)
{
    double best = INFINITY;
    for (double spent = 0; spent < 0.1;) {
        double start = thread_seconds();
        op->call(fn, &c->plan, c->in, c->out);
        double seconds = MAX(1e-6, thread_seconds() - start);
        best = MIN(best, seconds);
        spent += seconds;
    }
    return best;
}

/* Bytes a second of y = a x. */
static double bandwidth(void)
{
    NetType type;
    Call c;
    const Op *op = op_of(&(FlowKernel){.op = "scale_f32"}, &type);
    call_prepare(&c, op, type);
    double rate = c.bytes / best_seconds(op, flow_kernel_find("scale_f32"), &c);
    call_clear(&c);
    return rate;
}

static void bench_row(const FlowKernel *row, double roof, CliTable *table, json_t *array)
{
    NetType type;
    Call c;
    const Op *op = op_of(row, &type);
    if (!op)
        return; /* the checker fails on such a row */
    call_prepare(&c, op, type);
    double seconds = best_seconds(op, row->fn, &c), flops = c.plan.flops / seconds, bytes = c.bytes / seconds;
    call_clear(&c);
    gboolean best = flow_kernel_find(row->op) == row->fn, counts = flops > 0;
    g_autofree char *rate =
        counts ? g_strdup_printf("%.1f GFLOP/s", flops * 1e-9) : g_strdup_printf("%.2f GB/s", bytes * 1e-9);
    g_autofree char *part = counts ? g_strdup("") : g_strdup_printf("%.0f %%", 100 * bytes / roof);
    cli_table_row(table, row->op, row->variant, best ? "*" : "", rate, part, NULL);
    json_t *object = json_pack("{s:s, s:s, s:b, s:o, s:f}", "op", row->op, "variant", row->variant, "used",
                               best, "needs", json_integer(row->needs), "seconds", seconds);
    json_object_set_new(object, "flops_per_s", counts ? cli_json_number(flops) : json_null());
    json_object_set_new(object, "bytes_per_s", cli_json_number(bytes));
    json_object_set_new(object, "of_bandwidth", counts ? json_null() : cli_json_number(bytes / roof));
    json_array_append_new(array, object);
}

/* By operation, the reference first. */
static int by_name(const void *a, const void *b)
{
    const FlowKernel *x = *(const FlowKernel *const *)a, *y = *(const FlowKernel *const *)b;
    int order = strcmp(x->op, y->op);
    return order ? order : x->needs < y->needs ? -1 : x->needs > y->needs;
}

static GPtrArray *rows_matching(const char *glob)
{
    guint n;
    const FlowKernel *rows = flow_kernels(&n);
    GPtrArray *found = g_ptr_array_new();
    for (guint i = 0; i < n; i++)
        if ((!glob || g_pattern_match_simple(glob, rows[i].op)) && !(rows[i].needs & ~flow_cpu()))
            g_ptr_array_add(found, (gpointer)&rows[i]);
    if (found->len)
        qsort(found->pdata, found->len, sizeof *found->pdata, by_name);
    return found;
}

int bench_kernel(const char *glob, gboolean json)
{
    g_autoptr(GPtrArray) rows = rows_matching(glob);
    if (rows->len == 0)
        return cli_fail(CLI_USAGE, "no kernel matches '%s'", glob ? glob : "*");
    double roof = bandwidth();
    json_t *array = json_array();
    CliTable *table = cli_table_new(5);
    cli_table_align(table, "lllrr");
    cli_table_row(table, "OPERATION", "VARIANT", "USED", "RATE", "OF MEMORY", NULL);
    for (guint i = 0; i < rows->len; i++)
        bench_row(g_ptr_array_index(rows, i), roof, table, array);
    cli_table_print(table, json ? NULL : stdout);
    if (json) {
        cli_json_print(json_pack("{s:f, s:o}", "bandwidth", roof, "kernels", array));
    } else {
        printf("memory: %.2f GB/s on one thread\n", roof * 1e-9);
        json_decref(array);
    }
    return CLI_OK;
}
