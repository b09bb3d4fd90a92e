/* Where the time of a plan goes: one line for each kind of operation and shape. */
#include "core/net/plan_private.h"
#include <string.h>

typedef struct {
    char *what;
    double seconds, flops;
    guint64 calls;
} Line;

static void line_free(gpointer data)
{
    Line *line = data;
    g_free(line->what);
    g_free(line);
}

static gint by_seconds(gconstpointer a, gconstpointer b)
{
    double x = (*(const Line *const *)a)->seconds, y = (*(const Line *const *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

static char *describe(const NetOp *op)
{
    const NetVal *v = op->in[0] ? op->in[0] : op->out[0];
    const NetVal *w = op->n_in > 1 && op->in[1] ? op->in[1] : op->out[0] ? op->out[0] : v;
    if (op->kind == NET_OP_MATMUL || op->kind == NET_OP_OUTER)
        return g_strdup_printf("%s %" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT "%s%s%s",
                               net_op_name(op->kind), op->u.matmul.m, op->u.matmul.n, op->u.matmul.k,
                               op->u.matmul.ta ? " a'" : "", op->u.matmul.tb ? " b'" : "",
                               op->n_in > 3 && op->in[3] ? " +" : "");
    return g_strdup_printf("%s %s, %s", net_op_name(op->kind), net_shape_text(v), net_shape_text(w));
}

char *net_plan_profile(const NetPlan *plan)
{
    g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(line_free);
    g_autoptr(GHashTable) by_text = g_hash_table_new(g_str_hash, g_str_equal);
    double total = 0;
    for (guint i = 0; i < plan->net->ops->len; i++) {
        const NetOp *op = plan->net->ops->pdata[i];
        const NetInstr *instr = &plan->instr[i];
        g_autofree char *what = describe(op);
        Line *line = g_hash_table_lookup(by_text, what);
        if (!line) {
            line = g_new0(Line, 1);
            line->what = g_steal_pointer(&what);
            g_ptr_array_add(lines, line);
            g_hash_table_insert(by_text, line->what, line);
        }
        line->seconds += instr->seconds;
        line->calls += instr->calls;
        if (net_op_rows[op->kind].flops)
            line->flops += (double)instr->calls * net_op_rows[op->kind].flops(op);
        total += instr->seconds;
    }
    g_ptr_array_sort(lines, by_seconds);
    GString *text = g_string_new("    calls          ms       %   GFLOP/s  operation\n");
    for (guint i = 0; i < lines->len; i++) {
        const Line *line = lines->pdata[i];
        g_string_append_printf(text, "%9" G_GUINT64_FORMAT " %11.3f %7.2f ", line->calls, 1e3 * line->seconds,
                               total > 0 ? 100 * line->seconds / total : 0);
        if (line->flops > 0 && line->seconds > 0)
            g_string_append_printf(text, "%9.1f  %s\n", 1e-9 * line->flops / line->seconds, line->what);
        else
            g_string_append_printf(text, "%9s  %s\n", "", line->what);
    }
    g_string_append_printf(text, "%9s %11.3f\n", "", 1e3 * total);
    return g_string_free(text, FALSE);
}
