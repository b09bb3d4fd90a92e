/* From a net to a plan: passes, kernels, places, instructions.
 *
 * Kernels are chosen before places, because what a kernel wants as scratch takes its place in the arena like
 * any value, for one operation. */
#include "core/net/plan_private.h"
#include <stdio.h>
#include <string.h>

static NetOperand operand_of(const Net *net, const NetVal *v)
{
    NetOperand at = {0};
    if (!v)
        return at;
    switch (v->role) {
    case NET_INPUT:
        at.at = NET_AT_INPUT;
        while (net->inputs->pdata[at.index] != v)
            at.index++;
        break;
    case NET_WEIGHT:
        at.at = NET_AT_WEIGHT;
        at.weight = v->weight;
        at.offset = net_type_bytes(v->type, v->offset);
        break;
    case NET_ADAPTER:
    case NET_GRAD:
        at.at = v->role == NET_GRAD ? NET_AT_GRADIENT : NET_AT_COPY;
        at.offset = net_type_bytes(v->type, v->offset);
        break;
    default:
        at.at = NET_AT_ARENA;
        at.offset = v->storage->place;
    }
    return at;
}

static gboolean plan_kernels(NetPlan *plan, GError **error)
{
    for (guint i = 0; i < plan->net->ops->len; i++) {
        const NetOp *op = plan->net->ops->pdata[i];
        const NetBackendRow *row = &net_cpu[op->kind];
        NetKernel *kernel = &plan->instr[i].kernel;
        kernel->scratch = row->scratch ? row->scratch(op) : 0;
        if (row->prepare && !row->prepare(op, kernel, error))
            return FALSE;
        plan->instr[i].run = kernel->run ? kernel->run : row->run;
        plan->info.scratch = MAX(plan->info.scratch, kernel->scratch);
        plan->info.primitives += kernel->library;
        plan->info.packed += kernel->packed;
        if (net_op_rows[op->kind].flops)
            plan->info.flops += net_op_rows[op->kind].flops(op);
    }
    return TRUE;
}

static void plan_places(NetPlan *plan)
{
    Net *net = plan->net;
    plan->piece = g_new0(NetPiece, (gsize)net->values->len + net->ops->len);
    plan->piece_val = g_new0(NetVal *, (gsize)net->values->len + net->ops->len);
    for (guint i = 0; i < net->ops->len; i++) {
        const NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_out; j++) {
            NetVal *v = op->out[j];
            if (!v || v->role != NET_TEMP)
                continue;
            plan->info.values++;
            if (v->storage != v)
                continue;
            plan->piece_val[plan->pieces] = v;
            plan->piece[plan->pieces++] = (NetPiece){v->bytes, v->first, v->last, 0};
            if (v->first <= net->loss && v->last > net->loss)
                plan->info.saved += v->bytes;
        }
        if (plan->instr[i].kernel.scratch)
            plan->piece[plan->pieces++] = (NetPiece){plan->instr[i].kernel.scratch, (gint)i, (gint)i, 0};
    }
    plan->info.bound = net_place_bound(plan->piece, plan->pieces);
    plan->info.arena = net_place(plan->piece, plan->pieces);
    for (guint i = 0, p = 0; i < net->ops->len; i++) {
        const NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_out; j++)
            if (op->out[j] && op->out[j]->role == NET_TEMP && op->out[j]->storage == op->out[j])
                op->out[j]->place = plan->piece[p++].place;
        if (plan->instr[i].kernel.scratch)
            plan->instr[i].scratch = plan->piece[p++].place;
    }
}

/* An operand without producer in the middle of a net: its builder failed, or an operation was dropped. */
static gboolean plan_complete(const Net *net, GError **error)
{
    for (guint i = 0; i < net->outputs->len; i++) {
        const NetVal *v = net->outputs->pdata[i];
        if (v->role != NET_TEMP || !v->producer) {
            g_set_error(error, NET_ERROR, NET_ERROR_FAILED, "output '%s' is not made by any operation",
                        (const char *)net->output_names->pdata[i]);
            return FALSE;
        }
    }
    return TRUE;
}

NetPlan *net_plan_build(Net *net, GError **error)
{
    NetPlan *plan = g_new0(NetPlan, 1);
    plan->net = net;
    if (!net_finish_errors(net, error) || !plan_complete(net, error))
        goto fail;
    net_fuse(net);
    net_drop_unused(net);
    net_live(net);
    plan->info.ops = net->ops->len;
    plan->info.gradients_of_weights = net->gradients_of_weights;
    plan->instr = g_new0(NetInstr, MAX(net->ops->len, 1));
    plan->bound = g_new0(gpointer, MAX(net->inputs->len, 1));
    if (!plan_kernels(plan, error))
        goto fail;
    plan_places(plan);
    plan->loaded = TRUE;
    for (guint i = 0; i < net->ops->len; i++) {
        const NetOp *op = net->ops->pdata[i];
        for (guint j = 0; j < op->n_in; j++) {
            plan->instr[i].in[j] = operand_of(net, op->in[j]);
            if (op->in[j] && op->in[j]->weight && !op->in[j]->weight->data)
                plan->loaded = FALSE;
        }
        for (guint j = 0; j < op->n_out; j++)
            plan->instr[i].out[j] = operand_of(net, op->out[j]);
    }
    return plan;
fail:
    net_plan_free(plan);
    return NULL;
}

void net_plan_free(NetPlan *plan)
{
    if (!plan)
        return;
    for (guint i = 0; plan->instr && i < plan->net->ops->len; i++)
        if (plan->instr[i].kernel.free_state)
            plan->instr[i].kernel.free_state(plan->instr[i].kernel.state);
    g_free(plan->instr);
    g_free(plan->piece);
    g_free(plan->piece_val);
    g_free(plan->bound);
    net_free(plan->net);
    g_free(plan);
}

const NetPlanInfo *net_plan_info(const NetPlan *plan)
{
    return &plan->info;
}

static void print_name(GString *text, const NetVal *v)
{
    if (v->name)
        g_string_append(text, v->name);
    else if (v->weight)
        g_string_append(text, v->weight->name);
    else if (v->role == NET_ADAPTER || v->role == NET_GRAD)
        g_string_append_printf(text, "%s+%" G_GSIZE_FORMAT, v->role == NET_GRAD ? "gradient" : "adapter",
                               v->offset);
    else
        g_string_append_printf(text, "%s.%u", v->producer ? net_op_name(v->producer->kind) : "value", v->id);
}

char *net_plan_value_name(const NetVal *v)
{
    GString *text = g_string_new(NULL);
    print_name(text, v);
    return g_string_free(text, FALSE);
}

char *net_plan_intervals(const NetPlan *plan)
{
    GString *text = g_string_new(NULL);
    g_string_append_printf(text, "# arena %" G_GSIZE_FORMAT " bound %" G_GSIZE_FORMAT " operations %u\n",
                           plan->info.arena, plan->info.bound, plan->info.ops);
    g_string_append(text, "# value first last offset bytes name\n");
    for (guint i = 0; i < plan->pieces; i++) {
        const NetPiece *p = &plan->piece[i];
        g_string_append_printf(text, "%u %d %d %" G_GSIZE_FORMAT " %" G_GSIZE_FORMAT " ", i, p->first,
                               p->last, p->place, p->bytes);
        if (plan->piece_val[i])
            print_name(text, plan->piece_val[i]);
        else
            g_string_append_printf(text, "scratch of %s",
                                   net_op_name(((NetOp *)plan->net->ops->pdata[p->first])->kind));
        g_string_append_c(text, '\n');
    }
    return g_string_free(text, FALSE);
}

gboolean net_plan_dump(const NetPlan *plan, const char *path, GError **error)
{
    g_autofree char *text = net_plan_intervals(plan);
    return g_file_set_contents(path, text, -1, error);
}

char *net_plan_ops(const NetPlan *plan)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < plan->net->ops->len; i++) {
        const NetOp *op = plan->net->ops->pdata[i];
        g_string_append_printf(text, "%5u %s%-20s", i, op->backward ? "b " : "f ", net_op_name(op->kind));
        for (guint j = 0; j < op->n_out; j++)
            if (op->out[j]) {
                g_string_append_c(text, ' ');
                print_name(text, op->out[j]);
                g_string_append_printf(text, "[%s %s]", net_type_name(op->out[j]->type),
                                       net_shape_text(op->out[j]));
                if (op->out[j]->storage != op->out[j])
                    g_string_append(text, "=");
            }
        g_string_append(text, " <-");
        for (guint j = 0; j < op->n_in; j++)
            if (op->in[j]) {
                g_string_append_c(text, ' ');
                print_name(text, op->in[j]);
            }
        g_string_append_c(text, '\n');
    }
    return g_string_free(text, FALSE);
}
