/* Graph files merged: includes first, then the file itself, then the command line; variables last.
 *
 *      presets/low.ini      [cache] ram = 8GiB        read first
 *      common.ini           [cache] policy = static   included too
 *      my.ini               [cache] ram = 4GiB        replaces, keeping the place in the order
 *      --set cache.ram=1GiB                           replaces last
 *
 * A later file may reopen a section and replace keys; the same file may not repeat either, since that
 * is a slip of the editor and not a decision. Each file is read once, at its first place in the
 * depth-first order. Every value keeps the file and line that decided it. */
#include "core/flow/ini_private.h"
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 8 };

typedef struct {
    FlowIni *ini;
    FlowMessages *messages;
    FlowIniVars *vars;
    GHashTable *sections, *values; /* "name", "name.key" -> FlowIniSection, FlowIniValue */
    GHashTable *known;             /* real paths read */
    GPtrArray *stack;              /* real paths being read */
    guint errors;                  /* that were there before */
} Merge;

/* -- the result ----------------------------------------------------------------------- */

static void value_free(gpointer p)
{
    FlowIniValue *value = p;
    g_free(value->key);
    g_free(value->value);
    g_free(value->raw);
    g_free(value->base);
    g_free(value);
}

static void section_free(gpointer p)
{
    FlowIniSection *section = p;
    g_free(section->name);
    g_ptr_array_unref(section->values);
    g_free(section);
}

void flow_ini_free(FlowIni *ini)
{
    if (!ini)
        return;
    g_free(ini->path);
    g_ptr_array_unref(ini->sections);
    g_ptr_array_unref(ini->files);
    g_free(ini);
}

FlowIniSection *flow_ini_section(const FlowIni *ini, const char *name)
{
    for (guint i = 0; i < ini->sections->len; i++) {
        FlowIniSection *section = g_ptr_array_index(ini->sections, i);
        if (g_str_equal(section->name, name))
            return section;
    }
    return NULL;
}

FlowIniValue *flow_ini_value(const FlowIniSection *section, const char *key)
{
    for (guint i = 0; i < section->values->len; i++) {
        FlowIniValue *value = g_ptr_array_index(section->values, i);
        if (g_str_equal(value->key, key))
            return value;
    }
    return NULL;
}

/* A '$' of the expanded text must not be read as a variable again. */
static void append_escaped(GString *out, const char *value)
{
    for (; *value; value++)
        g_string_append(out, *value == '$' ? "$$" : (char[]){*value, 0});
}

static void append_section(GString *out, const FlowIniSection *section, gboolean origins)
{
    g_string_append_printf(out, "%s[%s]\n", out->len ? "\n" : "", section->name);
    for (guint j = 0; j < section->values->len; j++) {
        const FlowIniValue *value = g_ptr_array_index(section->values, j);
        if (origins && value->where.line > 0)
            g_string_append_printf(out, "; %s:%d\n", value->where.file, value->where.line);
        else if (origins)
            g_string_append_printf(out, "; %s\n", value->where.file);
        g_string_append_printf(out, "%s =%s", value->key, *value->value ? " " : "");
        append_escaped(out, value->value);
        g_string_append_c(out, '\n');
    }
}

char *flow_ini_text(const FlowIni *ini, gboolean origins)
{
    GString *out = g_string_new(NULL);
    const FlowIniSection *graph = flow_ini_section(ini, "graph");
    if (graph)
        append_section(out, graph, origins);
    for (guint i = 0; i < ini->sections->len; i++)
        if (g_ptr_array_index(ini->sections, i) != graph)
            append_section(out, g_ptr_array_index(ini->sections, i), origins);
    return g_string_free(out, FALSE);
}

/* -- merging --------------------------------------------------------------------------- */

static FlowIniSection *section_at(Merge *m, const char *name, FlowWhere where)
{
    FlowIniSection *section = g_hash_table_lookup(m->sections, name);
    if (section)
        return section;
    section = g_new0(FlowIniSection, 1);
    section->name = g_strdup(name);
    section->where = where;
    section->values = g_ptr_array_new_with_free_func(value_free);
    g_ptr_array_add(m->ini->sections, section);
    g_hash_table_insert(m->sections, section->name, section);
    return section;
}

static void put(Merge *m, const char *name, const char *key, const char *raw, const char *base,
                FlowWhere where)
{
    if (g_str_equal(name, "vars")) {
        flow__ini_vars_set(m->vars, key, raw, base, where);
        return;
    }
    g_autofree char *full = g_strconcat(name, ".", key, NULL);
    FlowIniValue *value = g_hash_table_lookup(m->values, full);
    if (!value) {
        value = g_new0(FlowIniValue, 1);
        value->key = g_strdup(key);
        g_ptr_array_add(section_at(m, name, where)->values, value);
        g_hash_table_insert(m->values, g_steal_pointer(&full), value);
    }
    g_free(value->raw);
    g_free(value->base);
    value->raw = g_strdup(raw);
    value->base = g_strdup(base);
    value->where = where;
}

/* Refuses what the file repeats. FALSE if this line repeats something. */
static gboolean new_in_file(Merge *m, GHashTable *seen, const FlowIniLine *line, FlowWhere where)
{
    g_autofree char *id = g_strconcat(line->section, ".", line->key ? line->key : "", NULL);
    int first = GPOINTER_TO_INT(g_hash_table_lookup(seen, id));
    if (!first) {
        g_hash_table_insert(seen, g_steal_pointer(&id), GINT_TO_POINTER(line->line));
        return TRUE;
    }
    if (line->key)
        flow_error(m->messages, where, "[%s] sets '%s' twice, first in line %d", line->section, line->key,
                   first);
    else
        flow_error(m->messages, where, "section [%s] is opened twice, first in line %d", line->section,
                   first);
    return FALSE;
}

static void merge_lines(Merge *m, const FlowIniFile *file)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (guint i = 0; i < file->lines->len; i++) {
        const FlowIniLine *line = g_ptr_array_index(file->lines, i);
        FlowWhere where = {file->shown, line->line};
        gboolean vars = g_str_equal(line->section, "vars");
        if (!new_in_file(m, seen, line, where))
            continue;
        if (!line->key && !vars)
            section_at(m, line->section, where);
        else if (line->key && vars && strchr(line->key, '.'))
            flow_error(m->messages, where, "variable '%s' must not have a '.' in its name", line->key);
        else if (line->key && !(g_str_equal(line->section, "graph") && g_str_equal(line->key, "include")))
            put(m, line->section, line->key, line->value, file->base, where);
    }
}

/* -- includes --------------------------------------------------------------------------- */

static void read_file(Merge *m, const char *shown, const char *path, FlowWhere from);

/* graphs/my.ini and common/x.ini make graphs/common/x.ini */
static char *shown_beside(const char *shown, const char *name)
{
    g_autofree char *folder = g_path_get_dirname(shown);
    if (g_path_is_absolute(name) || g_str_equal(folder, "."))
        return g_strdup(name);
    return g_build_filename(folder, name, NULL);
}

static void include_one(Merge *m, const FlowIniFile *file, const char *name, FlowWhere where)
{
    if (!*name) {
        flow_error(m->messages, where, "include has an empty element");
        return;
    }
    g_autofree char *path =
        g_path_is_absolute(name) ? g_strdup(name) : g_build_filename(file->base, name, NULL);
    g_autofree char *shown = shown_beside(file->shown, name);
    read_file(m, shown, path, where);
}

static void merge_file(Merge *m, const FlowIniFile *file)
{
    for (guint i = 0; i < file->lines->len; i++) {
        const FlowIniLine *line = g_ptr_array_index(file->lines, i);
        if (!line->key || !g_str_equal(line->section, "graph") || !g_str_equal(line->key, "include"))
            continue;
        FlowWhere where = {file->shown, line->line};
        guint errors = m->messages->errors;
        g_autofree char *list = flow__ini_expand(m->vars, line->value, file->base, where, TRUE);
        g_auto(GStrv) names = g_strsplit(m->messages->errors == errors ? list : "", ",", -1);
        for (guint j = 0; names[j]; j++)
            include_one(m, file, g_strstrip(names[j]), where);
        break; /* a second one is refused below */
    }
    merge_lines(m, file);
}

/* FALSE with a message if `real` must not be read now. */
static gboolean may_read(Merge *m, const char *shown, const char *real, FlowWhere from)
{
    for (guint i = 0; i < m->stack->len; i++)
        if (g_str_equal(g_ptr_array_index(m->stack, i), real)) {
            flow_error(m->messages, from, "'%s' includes itself%s", shown,
                       i + 1 < m->stack->len ? " through other files" : "");
            return FALSE;
        }
    if (m->stack->len > DEPTH_LIMIT) {
        flow_error(m->messages, from, "includes are nested deeper than %d at '%s'", DEPTH_LIMIT, shown);
        return FALSE;
    }
    return g_hash_table_add(m->known, g_strdup(real));
}

/* `from` is the line that includes it; file NULL for the graph file itself. */
static void read_file(Merge *m, const char *shown, const char *path, FlowWhere from)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    char *resolved = realpath(path, NULL);
    g_autofree char *real = g_strdup(resolved ? resolved : path);
    gsize len;
    free(resolved);
    if (!may_read(m, shown, real, from))
        return;
    g_ptr_array_add(m->ini->files, g_strdup(shown));
    if (!flow__ini_load(path, &text, &len, &error)) {
        flow_error(m->messages, from, "cannot read '%s': %s", shown, error->message);
        return;
    }
    g_autofree char *full = g_canonicalize_filename(path, NULL);
    g_autofree char *base = g_path_get_dirname(full);
    FlowIniFile *file = flow__ini_scan(shown, base, text, len, m->messages);
    g_ptr_array_add(m->stack, real);
    merge_file(m, file);
    g_ptr_array_set_size(m->stack, (int)m->stack->len - 1);
    flow__ini_file_free(file);
}

/* -- the command line ------------------------------------------------------------------- */

static const char *nearest_section(const FlowIni *ini, const char *name)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    for (guint i = 0; i < ini->sections->len; i++)
        g_ptr_array_add(names, ((FlowIniSection *)g_ptr_array_index(ini->sections, i))->name);
    g_ptr_array_add(names, NULL);
    return flow_nearest(name, (const char *const *)names->pdata);
}

static gboolean good_key(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot ? flow__ini_good_name(key, (gsize)(dot - key)) && flow__ini_good_name(dot + 1, strlen(dot + 1))
               : flow__ini_good_name(key, strlen(key));
}

static void set_one(Merge *m, const char *set, const char *base)
{
    FlowWhere where = {g_intern_string("--set"), 0};
    const char *equals = strchr(set, '='), *dot = strchr(set, '.');
    if (!equals || !dot || dot > equals) {
        flow_error(m->messages, where, "'%s' is not of the form node.key=value", set);
        return;
    }
    g_autofree char *name = g_strndup(set, (gsize)(dot - set));
    g_autofree char *key = g_strndup(dot + 1, (gsize)(equals - dot - 1));
    g_autofree char *value = g_strstrip(g_strdup(equals + 1));
    g_strstrip(name);
    g_strstrip(key);
    const char *meant = nearest_section(m->ini, name);
    if (g_str_equal(name, "vars"))
        flow_error(m->messages, where, "'%s': variables are set with --var %s=...", set, key);
    else if (!g_hash_table_contains(m->sections, name) && !g_str_equal(name, "graph"))
        flow_error(m->messages, where, "'%s': there is no node '%s'%s%s%s", set, name,
                   meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
    else if (!good_key(key))
        flow_error(m->messages, where, "'%s': '%s' is not a key", set, key);
    else if (g_str_equal(name, "graph") && g_str_equal(key, "include"))
        flow_error(m->messages, where, "'%s': an include cannot be set here", set);
    else
        put(m, name, key, value, base, where);
}

static void var_one(Merge *m, const char *var, const char *base)
{
    FlowWhere where = {g_intern_string("--var"), 0};
    const char *equals = strchr(var, '=');
    g_autofree char *name = g_strndup(var, equals ? (gsize)(equals - var) : 0);
    if (!equals || !flow__ini_good_name(g_strstrip(name), strlen(name))) {
        flow_error(m->messages, where, "'%s' is not of the form name=value", var);
        return;
    }
    g_autofree char *value = g_strstrip(g_strdup(equals + 1));
    flow__ini_vars_set(m->vars, name, value, base, where);
}

static void command_line(Merge *m, char *const *sets, char *const *vars)
{
    g_autofree char *base = g_get_current_dir();
    for (; sets && *sets; sets++)
        set_one(m, *sets, base);
    for (; vars && *vars; vars++)
        var_one(m, *vars, base);
}

/* -- entry points ------------------------------------------------------------------------ */

static void merge_init(Merge *m, const char *path, FlowMessages *messages)
{
    m->ini = g_new0(FlowIni, 1);
    m->ini->path = g_strdup(path);
    m->ini->sections = g_ptr_array_new_with_free_func(section_free);
    m->ini->files = g_ptr_array_new_with_free_func(g_free);
    m->messages = messages;
    m->errors = messages->errors;
    m->vars = flow__ini_vars_new(messages);
    m->sections = g_hash_table_new(g_str_hash, g_str_equal);
    m->values = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    m->known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    m->stack = g_ptr_array_new();
}

static FlowIni *merge_finish(Merge *m, char *const *sets, char *const *vars)
{
    gboolean nodes = FALSE;
    command_line(m, sets, vars);
    for (guint i = 0; i < m->ini->sections->len; i++) {
        FlowIniSection *section = g_ptr_array_index(m->ini->sections, i);
        nodes |= !g_str_equal(section->name, "graph");
        for (guint j = 0; j < section->values->len; j++) {
            FlowIniValue *value = g_ptr_array_index(section->values, j);
            value->value = flow__ini_expand(m->vars, value->raw, value->base, value->where, FALSE);
        }
    }
    /* in a file with faults a use may be what was not understood */
    gboolean good = m->messages->errors == m->errors;
    if (good)
        flow__ini_vars_unused(m->vars);
    if (good && !nodes)
        flow_error(m->messages, (FlowWhere){g_intern_string(m->ini->path), 0},
                   "there are no nodes; a graph is sections such as [scan] with a line 'stage = ...'");
    flow__ini_vars_free(m->vars);
    g_hash_table_unref(m->sections);
    g_hash_table_unref(m->values);
    g_hash_table_unref(m->known);
    g_ptr_array_unref(m->stack);
    return m->ini;
}

FlowIni *flow_ini_read(const char *path, char *const *sets, char *const *vars, FlowMessages *messages)
{
    Merge m;
    merge_init(&m, path, messages);
    read_file(&m, path, path, (FlowWhere){g_intern_string(path), 0});
    return merge_finish(&m, sets, vars);
}

FlowIni *flow_ini_read_text(const char *name, const char *base, const char *text, gsize len,
                            char *const *sets, char *const *vars, FlowMessages *messages)
{
    Merge m;
    g_autofree char *full = g_canonicalize_filename(base ? base : ".", NULL);
    merge_init(&m, name, messages);
    g_ptr_array_add(m.ini->files, g_strdup(name));
    FlowIniFile *file = flow__ini_scan(name, full, text, len, messages);
    merge_file(&m, file);
    flow__ini_file_free(file);
    return merge_finish(&m, sets, vars);
}
