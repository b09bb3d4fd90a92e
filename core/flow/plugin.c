/* Finding and loading stages.
 *
 * A stage is NAME.so in one of the stage folders. A file is opened when its stage is asked for, so a
 * broken one does not disturb the others, and its description is checked before anything in it is
 * called. Files are opened at once and locally: a missing symbol is an error here and not a crash later,
 * and no plugin sees another one's names. They are never closed: types, thread-local data and exit
 * handlers of third-party libraries make that a source of crashes.
 *
 * The same file found through two folders is one file; two files with one stage name are refused,
 * because which of them runs would depend on the order of folders. */
#include "core/flow/graph_private.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Descriptions may end here: what follows was added to the ABI as optional. */
enum { LEAST_SIZE = offsetof(FlowStage, describe) };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GPtrArray *added;   /* char *: flow_plugins_add_folder() */
static GPtrArray *folders; /* char *: all of them, in order; built on first use */
static GPtrArray *plugins; /* FlowPlugin * */

static gboolean fault(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean fault(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error)
        *error = g_error_new_valist(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, format, args);
    va_end(args);
    return FALSE;
}

static char *resolved(const char *path)
{
    char *real = realpath(path, NULL), *copy = g_strdup(real ? real : path);
    free(real);
    return copy;
}

/* -- folders ---------------------------------------------------------------------- */

static void add_once(const char *folder)
{
    g_autofree char *path = resolved(folder);
    for (guint i = 0; i < folders->len; i++)
        if (g_str_equal(g_ptr_array_index(folders, i), path))
            return;
    g_ptr_array_add(folders, g_steal_pointer(&path));
}

/* lib/loraflow/stages beside an installed library, stages beside the one in a build tree. */
static void add_beside_library(void)
{
    Dl_info info;
    if (!dladdr((void *)flow_plugin_find, &info) || !info.dli_fname)
        return;
    g_autofree char *file = resolved(info.dli_fname), *dir = g_path_get_dirname(file);
    static const char *const tails[] = {"loraflow/stages", "stages"};
    for (guint i = 0; i < G_N_ELEMENTS(tails); i++) {
        g_autofree char *folder = g_build_filename(dir, tails[i], NULL);
        if (g_file_test(folder, G_FILE_TEST_IS_DIR))
            add_once(folder);
    }
}

static void collect_folders(void)
{
    if (folders)
        return;
    folders = g_ptr_array_new_with_free_func(g_free);
    const char *env = g_getenv("FLOW_STAGES");
    g_auto(GStrv) parts = g_strsplit(env ? env : "", ":", -1);
    for (char **part = parts; *part; part++)
        if (**part)
            add_once(*part);
    for (guint i = 0; added && i < added->len; i++)
        add_once(g_ptr_array_index(added, i));
    add_beside_library();
}

void flow_plugins_add_folder(const char *folder)
{
    pthread_mutex_lock(&lock);
    if (!added)
        added = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(added, g_strdup(folder));
    g_clear_pointer(&folders, g_ptr_array_unref);
    pthread_mutex_unlock(&lock);
}

static int by_text(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static char **list_locked(void)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    GPtrArray *names = g_ptr_array_new();
    collect_folders();
    for (guint i = 0; plugins && i < plugins->len; i++) {
        const FlowPlugin *plugin = g_ptr_array_index(plugins, i);
        if (!plugin->file)
            g_ptr_array_add(names, g_strdup(plugin->stage->name));
    }
    for (guint i = 0; i < folders->len; i++) {
        GDir *dir = g_dir_open(g_ptr_array_index(folders, i), 0, NULL);
        for (const char *file; dir && (file = g_dir_read_name(dir));) {
            if (!g_str_has_suffix(file, ".so"))
                continue;
            char *name = g_strndup(file, strlen(file) - 3);
            if (flow__name_valid(name) && !g_hash_table_contains(seen, name)) {
                g_hash_table_add(seen, name);
                g_ptr_array_add(names, name);
            } else {
                g_free(name);
            }
        }
        g_clear_pointer(&dir, g_dir_close);
    }
    g_ptr_array_sort(names, by_text);
    g_ptr_array_add(names, NULL);
    return (char **)g_ptr_array_free(names, FALSE);
}

char **flow_plugin_list(void)
{
    pthread_mutex_lock(&lock);
    char **names = list_locked();
    pthread_mutex_unlock(&lock);
    return names;
}

/* -- loading ---------------------------------------------------------------------- */

/* The description, widened with zeros to what this host knows. NULL with error. */
static const FlowStage *read_stage(GModule *module, GError **error)
{
    gpointer symbol = NULL;
    if (!g_module_symbol(module, "flow_stage", &symbol) || !symbol) {
        fault(error, "not a stage: it has no symbol 'flow_stage' (FLOW_STAGE() makes it)");
        return NULL;
    }
    const FlowStage *found = symbol;
    if (found->abi != FLOW_ABI) {
        fault(error, "built for stage ABI %u, this host has %d: build it again", found->abi, FLOW_ABI);
        return NULL;
    }
    if (found->size < LEAST_SIZE || found->size > sizeof *found) {
        fault(error,
              "its description has %u bytes, this host knows %d to %zu: build it again against this loraflow",
              found->size, LEAST_SIZE, sizeof *found);
        return NULL;
    }
    FlowStage *stage = g_new0(FlowStage, 1);
    memcpy(stage, found, found->size);
    return stage;
}

static gboolean register_fields(GModule *module, GError **error)
{
    gpointer symbol = NULL;
    if (!g_module_symbol(module, "flow_stage_fields", &symbol))
        return TRUE;
    for (const FlowFieldInfo *info = symbol; info->name; info++)
        if (flow_field_register(info, error) < 0)
            return FALSE;
    return TRUE;
}

static FlowPlugin *keep(const FlowStage *stage, char *file)
{
    FlowPlugin *plugin = g_new0(FlowPlugin, 1);
    *plugin = (FlowPlugin){stage, file};
    if (!plugins)
        plugins = g_ptr_array_new();
    g_ptr_array_add(plugins, plugin);
    return plugin;
}

static FlowPlugin *load_locked(const char *file, GError **error)
{
    g_autofree char *path = resolved(file);
    for (guint i = 0; plugins && i < plugins->len; i++) {
        FlowPlugin *plugin = g_ptr_array_index(plugins, i);
        if (plugin->file && g_str_equal(plugin->file, path))
            return plugin;
    }
    g_autoptr(GError) why = NULL;
    GModule *module = NULL;
    if (flow__plugin_file_whole(path, &why))
        module = g_module_open_full(path, G_MODULE_BIND_LOCAL, &why);
    if (!module) {
        fault(error, "cannot load the stage %s: %s", path, why->message);
        return NULL;
    }
    g_autofree char *base = g_path_get_basename(path);
    if (g_str_has_suffix(base, ".so"))
        base[strlen(base) - 3] = '\0';
    const FlowStage *stage = read_stage(module, &why);
    if (!stage || !register_fields(module, &why) || !flow__stage_valid(stage, base, &why)) {
        fault(error, "cannot use the stage %s: %s", path, why->message);
        g_free((gpointer)stage);
        g_module_close(module);
        return NULL;
    }
    g_module_make_resident(module);
    return keep(stage, g_steal_pointer(&path));
}

const FlowPlugin *flow_plugin_load(const char *file, GError **error)
{
    pthread_mutex_lock(&lock);
    const FlowPlugin *plugin = load_locked(file, error);
    pthread_mutex_unlock(&lock);
    return plugin;
}

gboolean flow_plugin_add(const FlowStage *stage, GError **error)
{
    if (!flow__stage_valid(stage, stage->name ? stage->name : "", error))
        return FALSE;
    pthread_mutex_lock(&lock);
    keep(stage, NULL);
    pthread_mutex_unlock(&lock);
    return TRUE;
}

static const FlowPlugin *find_built_in(const char *name)
{
    for (guint i = 0; plugins && i < plugins->len; i++) {
        const FlowPlugin *plugin = g_ptr_array_index(plugins, i);
        if (!plugin->file && g_str_equal(plugin->stage->name, name))
            return plugin;
    }
    return NULL;
}

static const FlowPlugin *not_found(const char *name, GError **error)
{
    g_auto(GStrv) names = list_locked();
    const char *nearest = flow_nearest(name, (const char *const *)names);
    if (nearest) {
        fault(error, "no stage '%s'; did you mean '%s'?", name, nearest);
        return NULL;
    }
    g_ptr_array_add(folders, NULL);
    g_autofree char *where = g_strjoinv(":", (char **)folders->pdata);
    g_ptr_array_remove_index(folders, folders->len - 1);
    fault(error, "no stage '%s' in %s (loraflow inspect lists what there is)", name,
          *where ? where : "any folder: FLOW_STAGES names none and there is none beside the library");
    return NULL;
}

static const FlowPlugin *find_locked(const char *name, GError **error)
{
    g_autofree char *first = NULL;
    const FlowPlugin *built_in = find_built_in(name);
    if (built_in)
        return built_in;
    collect_folders();
    for (guint i = 0; flow__name_valid(name) && i < folders->len; i++) {
        g_autofree char *base = g_strconcat(name, ".so", NULL);
        g_autofree char *file = g_build_filename(g_ptr_array_index(folders, i), base, NULL);
        if (!g_file_test(file, G_FILE_TEST_EXISTS))
            continue;
        g_autofree char *path = resolved(file);
        if (first && !g_str_equal(first, path)) {
            fault(error, "the stage '%s' exists twice: %s and %s; remove one", name, first, path);
            return NULL;
        }
        if (!first)
            first = g_steal_pointer(&path);
    }
    return first ? load_locked(first, error) : not_found(name, error);
}

const FlowPlugin *flow_plugin_find(const char *name, GError **error)
{
    pthread_mutex_lock(&lock);
    const FlowPlugin *plugin = find_locked(name, error);
    pthread_mutex_unlock(&lock);
    return plugin;
}

static gboolean gives(const FlowStage *stage, FlowField field)
{
    for (const FlowPort *port = stage->outputs; port && port->name; port++) {
        FlowFieldSet required = 0, optional = 0;
        flow_field_parse(port->gives, &required, &optional);
        if (required & FLOW_FIELD_BIT(field))
            return TRUE;
    }
    return FALSE;
}

char **flow__plugins_giving(FlowField field)
{
    g_auto(GStrv) names = flow_plugin_list();
    GPtrArray *found = g_ptr_array_new();
    for (char **name = names; *name; name++) {
        const FlowPlugin *plugin = flow_plugin_find(*name, NULL);
        if (plugin && gives(plugin->stage, field))
            g_ptr_array_add(found, g_strdup(*name));
    }
    g_ptr_array_add(found, NULL);
    return (char **)g_ptr_array_free(found, FALSE);
}
