/* Running a plan: a loop over its instructions.
 *
 * Addresses are worked out as each instruction comes up, from the few bases of this run (arena, bound inputs,
 * adapter buffers), so a plan can run on any arena and costs nothing between runs. */
#include "core/net/plan_private.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include <string.h>
#include <sys/mman.h>

/* -- arena ---------------------------------------------------------------------- */

enum { ARENA_PAGE = 4096, ARENA_HUGE = 4 << 20 };

struct NetArena {
    guint8 *data;
    gsize bytes;
};

NetArena *net_arena_new(void)
{
    return g_new0(NetArena, 1);
}

static void arena_drop(NetArena *arena)
{
    if (arena->data)
        munmap(arena->data, arena->bytes);
    arena->data = NULL;
    arena->bytes = 0;
}

void net_arena_free(NetArena *arena)
{
    if (!arena)
        return;
    arena_drop(arena);
    g_free(arena);
}

/* The old memory goes first: the contents are worth nothing between runs. */
void net_arena_fit(NetArena *arena, const NetPlan *plan)
{
    gsize bytes = (plan->info.arena + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
    if (bytes <= arena->bytes)
        return;
    arena_drop(arena);
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        g_error("cannot map an arena of %" G_GSIZE_FORMAT " bytes", bytes);
    if (bytes >= ARENA_HUGE)
        madvise(data, bytes, MADV_HUGEPAGE);
    arena->data = data;
    arena->bytes = bytes;
}

/* -- run ------------------------------------------------------------------------ */

typedef struct {
    NetPlan *plan;
    NetArena *arena;
    const NetRunArgs *args;
    GError *error;
} Run;

static gboolean bind_inputs(NetPlan *plan, const NetBinding *inputs, GError **error)
{
    const Net *net = plan->net;
    memset(plan->bound, 0, MAX(net->inputs->len, 1) * sizeof *plan->bound);
    for (; inputs && inputs->name; inputs++) {
        guint i = 0;
        while (i < net->inputs->len && !g_str_equal(((NetVal *)net->inputs->pdata[i])->name, inputs->name))
            i++;
        if (i == net->inputs->len) {
            g_set_error(error, NET_ERROR, NET_ERROR_FAILED, "the net has no input '%s'", inputs->name);
            return FALSE;
        }
        plan->bound[i] = (gpointer)inputs->data;
    }
    for (guint i = 0; i < net->inputs->len; i++) {
        const NetVal *v = net->inputs->pdata[i];
        if (v->uses && !plan->bound[i]) {
            g_set_error(error, NET_ERROR, NET_ERROR_FAILED, "input '%s' (%s %s) is not bound", v->name,
                        net_type_name(v->type), net_shape_text(v));
            return FALSE;
        }
    }
    return TRUE;
}

static gpointer address(const Run *run, const NetOperand *at)
{
    const NetAdapters *adapters = run->plan->net->adapters;
    switch (at->at) {
    case NET_AT_ARENA:
        return run->arena->data + at->offset;
    case NET_AT_INPUT:
        return run->plan->bound[at->index];
    case NET_AT_COPY:
        return (guint8 *)adapters->copy + at->offset;
    case NET_AT_GRADIENT:
        return (guint8 *)adapters->gradient + at->offset;
    case NET_AT_WEIGHT:
        return (guint8 *)at->weight->data + at->offset;
    default:
        return NULL;
    }
}

static void run_one(Run *run, guint i)
{
    NetInstr *instr = &run->plan->instr[i];
    const NetOp *op = run->plan->net->ops->pdata[i];
    NetCall call = {.op = op, .state = instr->kernel.state, .error = &run->error};
    call.scratch = run->arena->data + instr->scratch;
    for (guint j = 0; j < op->n_in; j++)
        call.in[j] = address(run, &instr->in[j]);
    for (guint j = 0; j < op->n_out; j++)
        call.out[j] = address(run, &instr->out[j]);
    gint64 start = run->args->profile ? g_get_monotonic_time() : 0;
    instr->run(&call);
    if (run->args->profile) {
        instr->seconds += 1e-6 * (double)(g_get_monotonic_time() - start);
        instr->calls++;
    }
}

static gboolean check_finite(const Run *run, guint i, GError **error)
{
    const NetOp *op = run->plan->net->ops->pdata[i];
    for (guint j = 0; j < op->n_out; j++) {
        const NetVal *v = op->out[j];
        if (!v || (v->type != NET_F32 && v->type != NET_BF16))
            continue;
        gsize n = (gsize)(net_rows(v) * v->dim[3]), first = 0;
        if (v->ld != v->dim[3])
            continue; /* a column range of a gradient; the step checks gradients as a whole */
        gsize bad = kernel_count_nonfinite(v->type, address(run, &run->plan->instr[i].out[j]), n, &first);
        if (!bad)
            continue;
        g_autofree char *name = net_plan_value_name(v);
        g_set_error(error, NET_ERROR, NET_ERROR_NOT_FINITE,
                    "value '%s' (operation %u, %s, %s %s): %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                    " elements are not finite, the first at %" G_GSIZE_FORMAT,
                    name, i, net_op_name(op->kind), net_type_name(v->type), net_shape_text(v), bad, n, first);
        return FALSE;
    }
    return TRUE;
}

static gboolean copy_outputs(const Run *run, GError **error)
{
    const Net *net = run->plan->net;
    for (const NetBinding *out = run->args->outputs; out && out->name; out++) {
        guint i = 0;
        while (i < net->outputs->len && !g_str_equal(net->output_names->pdata[i], out->name))
            i++;
        if (i == net->outputs->len) {
            g_set_error(error, NET_ERROR, NET_ERROR_FAILED, "the net has no output '%s'", out->name);
            return FALSE;
        }
        const NetVal *v = net->outputs->pdata[i];
        kernel_cast((gpointer)out->data, NET_F32, run->arena->data + v->storage->place, v->type,
                    (gsize)(net_rows(v) * v->dim[3]));
    }
    return TRUE;
}

static gboolean run_ready(const Run *run, GError **error)
{
    const NetPlan *plan = run->plan;
    if (run->arena->bytes < plan->info.arena)
        g_set_error(error, NET_ERROR, NET_ERROR_FAILED,
                    "the arena holds %" G_GSIZE_FORMAT " bytes, the plan needs %" G_GSIZE_FORMAT,
                    run->arena->bytes, plan->info.arena);
    else if (!plan->loaded)
        g_set_error_literal(error, NET_ERROR, NET_ERROR_FAILED,
                            "the weights of this plan are not loaded: it can be looked at, not run");
    else if (plan->net->adapters && !plan->net->adapters->copy)
        g_set_error_literal(error, NET_ERROR, NET_ERROR_FAILED, "the adapters have no memory yet");
    else
        return TRUE;
    return FALSE;
}

static void run_here(gpointer data)
{
    Run *run = data;
    const NetRunArgs *args = run->args;
    if (!run_ready(run, &run->error) || !bind_inputs(run->plan, args->inputs, &run->error))
        return;
    for (guint i = 0; i < run->plan->net->ops->len; i++) {
        if (args->stop && args->stop(args->stop_data)) {
            g_set_error_literal(&run->error, NET_ERROR, NET_ERROR_STOPPED, "stopped");
            return;
        }
        run_one(run, i);
        if (run->error || (args->check_finite && !check_finite(run, i, &run->error)))
            return;
    }
    copy_outputs(run, &run->error);
}

gboolean net_run(NetPlan *plan, NetArena *arena, const NetRunArgs *args, GError **error)
{
    Run run = {plan, arena, args, NULL};
    net_on_compute_thread(run_here, &run);
    if (!run.error)
        return TRUE;
    g_propagate_error(error, run.error);
    return FALSE;
}
