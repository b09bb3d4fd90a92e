/* The rules that a stage description must keep, judged from its constants alone.
 *
 * A stage that passes can be documented, its parameters parsed and its ports linked without running
 * its code; the host relies on every rule here. One message a fault, the first one wins: whoever
 * writes a stage corrects them one by one. */
#include "core/flow/graph_private.h"
#include <string.h>

static gboolean fault(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean fault(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error)
        *error = g_error_new_valist(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, format, args);
    va_end(args);
    return FALSE;
}

gboolean flow__name_valid(const char *name)
{
    enum { LONGEST = 31 };
    gsize n = 0;
    if (!name || !g_ascii_islower(name[0]))
        return FALSE;
    for (; name[n]; n++)
        if (!g_ascii_islower(name[n]) && !g_ascii_isdigit(name[n]) && name[n] != '_')
            return FALSE;
    return n <= LONGEST;
}

static gsize value_size(FlowParamType type)
{
    switch (type) {
    case FLOW_P_BOOL:
        return sizeof(gboolean);
    case FLOW_P_INT:
    case FLOW_P_SIZE:
    case FLOW_P_FLOAT:
        return 8;
    case FLOW_P_ENUM:
        return sizeof(int);
    default:
        return sizeof(gpointer);
    }
}

static gboolean params_valid(const FlowStage *stage, GError **error)
{
    if (!flow_param_table_valid(stage->params, error))
        return FALSE;
    for (guint i = 0; i < flow_param_count(stage->params); i++) {
        const FlowParam *param = &stage->params[i];
        if (param->offset + value_size(param->type) > stage->state_size)
            return fault(error, "the parameter '%s' lies outside the node state of %zu bytes (state_size)",
                         param->name, stage->state_size);
    }
    return TRUE;
}

/* A list of fields that belongs to the other side, or that names an unknown field. */
static gboolean list_valid(const FlowPort *port, const char *what, const char *list, gboolean allowed,
                           GError **error)
{
    if (!list)
        return TRUE;
    if (!allowed)
        return fault(error, "the port '%s' cannot have '%s': inputs need fields, outputs give and drop them",
                     port->name, what);
    FlowFieldSet required, optional;
    const char *unknown = flow_field_parse(list, &required, &optional);
    if (!unknown)
        return TRUE;
    const char *nearest = flow_field_nearest(unknown);
    return fault(error, "the port '%s' %s the unknown field '%s'%s%s%s", port->name, what, unknown,
                 nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static gboolean port_valid(const FlowPort *port, const FlowPort *table, gboolean input, GError **error)
{
    guint32 known =
        FLOW_PORT_OPTIONAL | FLOW_PORT_ANY | (input ? FLOW_PORT_MANY | FLOW_PORT_FEEDBACK : FLOW_PORT_NEW);
    if (!flow__name_valid(port->name))
        return fault(error, "the port name '%s' is not [a-z][a-z0-9_]* of at most 31 letters", port->name);
    for (const FlowPort *other = table; other < port; other++)
        if (g_str_equal(other->name, port->name))
            return fault(error, "two ports are called '%s'", port->name);
    if (!port->doc || !*port->doc)
        return fault(error, "the port '%s' has no doc", port->name);
    if (port->kind < FLOW_SAMPLE || port->kind > FLOW_STEP)
        return fault(error, "the port '%s' is of no kind that flows (sample, batch, step)", port->name);
    if (port->flags & ~known)
        return fault(error, "the port '%s' has flags that %s cannot have", port->name,
                     input ? "an input" : "an output");
    if ((port->flags & FLOW_PORT_MANY) && (port->flags & FLOW_PORT_FEEDBACK))
        return fault(error, "the port '%s' cannot merge links and close a loop", port->name);
    return list_valid(port, "needs", port->needs, input, error) &&
           list_valid(port, "gives", port->gives, !input, error) &&
           list_valid(port, "drops", port->drops, !input, error);
}

static gboolean ports_valid(const FlowStage *stage, GError **error)
{
    guint flowing = 0, feedback = 0;
    for (const FlowPort *port = stage->inputs; port && port->name; port++) {
        if (!port_valid(port, stage->inputs, TRUE, error))
            return FALSE;
        *((port->flags & FLOW_PORT_FEEDBACK) ? &feedback : &flowing) += 1;
    }
    for (const FlowPort *port = stage->outputs; port && port->name; port++)
        if (!port_valid(port, stage->outputs, FALSE, error))
            return FALSE;
    if (!flowing && !feedback && !(stage->outputs && stage->outputs->name))
        return fault(error, "it has neither inputs nor outputs");
    if ((stage->flags & FLOW_PARALLEL) && (!flowing || feedback))
        return fault(error, "a source and a stage with a feedback input cannot be FLOW_PARALLEL");
    if ((stage->flags & FLOW_MARKS) && flowing != 1)
        return fault(error, "a FLOW_MARKS stage has one input beside feedback, this one has %u", flowing);
    return TRUE;
}

gboolean flow__stage_valid(const FlowStage *stage, const char *base_name, GError **error)
{
    guint32 known = FLOW_PARALLEL | FLOW_STATEFUL | FLOW_REORDERS | FLOW_MARKS | FLOW_PREFILL | FLOW_PENDING |
                    FLOW_NEEDS_OUT;
    if (!flow__name_valid(stage->name))
        return fault(error, "the name '%s' is not [a-z][a-z0-9_]* of at most 31 letters",
                     stage->name ? stage->name : "");
    if (!g_str_equal(stage->name, base_name))
        return fault(error, "it calls itself '%s': the file must be called %s.so", stage->name, stage->name);
    if (!stage->summary || !*stage->summary)
        return fault(error, "it has no summary");
    if (!stage->process)
        return fault(error, "it has no process()");
    if (stage->flags & ~known)
        return fault(error, "it has flags that this host does not know (0x%x)", stage->flags & ~known);
    if ((stage->flags & FLOW_PARALLEL) && (stage->flags & FLOW_STATEFUL))
        return fault(error, "it is both FLOW_PARALLEL and FLOW_STATEFUL");
    return params_valid(stage, error) && ports_valid(stage, error);
}
