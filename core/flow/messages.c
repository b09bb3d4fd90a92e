/* Errors, warnings and notes with their places: collected, so that a user sees every fault of a
 * graph file at once. Printed in the form that editors and compilers agree on, which makes a click
 * on the line work. */
#include "core/flow/ini.h"

enum { SHOWN = 20 };

static void message_free(gpointer p)
{
    FlowMessage *message = p;
    g_free(message->text);
    g_free(message);
}

FlowMessages *flow_messages_new(void)
{
    FlowMessages *messages = g_new0(FlowMessages, 1);
    messages->list = g_ptr_array_new_with_free_func(message_free);
    return messages;
}

void flow_messages_free(FlowMessages *messages)
{
    if (!messages)
        return;
    g_ptr_array_unref(messages->list);
    g_free(messages);
}

static FlowMessage *add(FlowMessages *messages, FlowWhere where, const char *format, va_list args)
{
    FlowMessage *message = g_new0(FlowMessage, 1);
    message->where = where;
    message->text = g_strdup_vprintf(format, args);
    g_ptr_array_add(messages->list, message);
    return message;
}

void flow_error(FlowMessages *messages, FlowWhere where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(messages, where, format, args);
    va_end(args);
    messages->errors++;
}

void flow_warning(FlowMessages *messages, FlowWhere where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(messages, where, format, args)->warning = TRUE;
    va_end(args);
    messages->warnings++;
}

void flow_note(FlowMessages *messages, FlowWhere where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(messages, where, format, args)->note = TRUE;
    va_end(args);
}

static void append(GString *out, const FlowMessage *message)
{
    if (message->where.file && message->where.line > 0)
        g_string_append_printf(out, "%s:%d: ", message->where.file, message->where.line);
    else if (message->where.file)
        g_string_append_printf(out, "%s: ", message->where.file);
    g_string_append(out, message->note ? "note: " : message->warning ? "warning: " : "error: ");
    g_string_append(out, message->text);
    g_string_append_c(out, '\n');
}

char *flow_messages_text(const FlowMessages *messages)
{
    GString *out = g_string_new(NULL);
    guint errors = 0;
    gboolean shown = TRUE;
    for (guint i = 0; i < messages->list->len; i++) {
        const FlowMessage *message = g_ptr_array_index(messages->list, i);
        if (!message->note)
            shown = message->warning || ++errors <= SHOWN;
        if (shown)
            append(out, message);
    }
    if (errors > SHOWN)
        g_string_append_printf(out, "error: too many errors: %u more are not shown\n", errors - SHOWN);
    return g_string_free(out, FALSE);
}
