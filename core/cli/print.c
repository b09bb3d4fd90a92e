/* Tables, JSON, and numbers as people read them. */
#include "core/cli/cli.h"
#include <math.h>
#include <string.h>

void cli_json_print(json_t *json)
{
    /* stdout may be full: main() looks at the stream's error flag */
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(json);
}

json_t *cli_json_text(const char *text)
{
    if (!text)
        return json_null();
    g_autofree char *valid = g_utf8_make_valid(text, -1);
    return json_string(valid);
}

json_t *cli_json_number(double x)
{
    if (!isfinite(x))
        return json_null();
    return fabs(x) < 9007199254740992.0 && x == floor(x) ? json_integer((json_int_t)x) : json_real(x);
}

char *cli_bytes(double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    guint i = 0;
    while (i + 1 < G_N_ELEMENTS(units) && bytes >= 1024) {
        bytes /= 1024;
        i++;
    }
    return g_strdup_printf(i == 0 || bytes >= 100 ? "%.0f %s"
                           : bytes >= 10          ? "%.1f %s"
                                                  : "%.2f %s",
                           bytes, units[i]);
}

char *cli_duration(double seconds)
{
    gint64 s = seconds < 0 || seconds > 1e9 ? 0 : (gint64)llround(seconds);
    if (s >= 3600)
        return g_strdup_printf("%d:%02d:%02d", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    return g_strdup_printf("%d:%02d", (int)(s / 60), (int)(s % 60));
}

struct CliTable {
    guint columns;
    char *alignment;
    gsize *width;
    GPtrArray *rows; /* GStrv, shorter than `columns` where cells are missing */
};

CliTable *cli_table_new(guint columns)
{
    CliTable *table = g_new0(CliTable, 1);
    table->columns = columns;
    table->alignment = g_strnfill(columns, 'l');
    table->width = g_new0(gsize, columns);
    table->rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
    return table;
}

void cli_table_align(CliTable *table, const char *alignment)
{
    for (guint i = 0; i < table->columns && alignment[i]; i++)
        table->alignment[i] = alignment[i];
}

void cli_table_row(CliTable *table, ...)
{
    char **row = g_new0(char *, table->columns + 1);
    va_list args;
    va_start(args, table);
    const char *cell;
    for (guint i = 0; i < table->columns && (cell = va_arg(args, const char *)); i++) {
        row[i] = g_utf8_make_valid(cell, -1);
        table->width[i] = MAX(table->width[i], (gsize)g_utf8_strlen(row[i], -1));
    }
    va_end(args);
    g_ptr_array_add(table->rows, row);
}

static void append_row(const CliTable *table, char **row, GString *line)
{
    for (guint i = 0; i < table->columns && row[i]; i++) {
        gsize pad = table->width[i] - (gsize)g_utf8_strlen(row[i], -1);
        if (i > 0)
            g_string_append(line, "  ");
        if (table->alignment[i] == 'r')
            g_string_append_printf(line, "%*s%s", (int)pad, "", row[i]);
        else
            g_string_append_printf(line, "%s%*s", row[i], (int)pad, "");
    }
    while (line->len > 0 && line->str[line->len - 1] == ' ')
        g_string_truncate(line, line->len - 1);
}

void cli_table_print(CliTable *table, FILE *out)
{
    for (guint r = 0; out && r < table->rows->len; r++) {
        g_autoptr(GString) line = g_string_new(NULL);
        append_row(table, g_ptr_array_index(table->rows, r), line);
        fprintf(out, "%s\n", line->str);
    }
    g_ptr_array_unref(table->rows);
    g_free(table->alignment);
    g_free(table->width);
    g_free(table);
}
