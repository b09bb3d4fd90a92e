/* One file or several shards, read as one.
 *
 * An index lists for every tensor the shard that holds it. Everything it says is checked when it is opened:
 * shards lie beside it, are there and complete, hold what they are said to hold, and no tensor is in two of
 * them. */
#include "core/model/safe_set.h"
#include "core/model/json_file.h"
#include <string.h>

struct SafeSet {
    GPtrArray *files;  /* SafeFile * */
    GHashTable *owner; /* tensor name -> SafeFile * */
};

static SafeSet *set_new(void)
{
    SafeSet *set = g_new0(SafeSet, 1);
    set->files = g_ptr_array_new_with_free_func((GDestroyNotify)safe_close);
    set->owner = g_hash_table_new(g_str_hash, g_str_equal);
    return set;
}

void safe_set_close(SafeSet *set)
{
    if (!set)
        return;
    g_hash_table_unref(set->owner);
    g_ptr_array_unref(set->files);
    g_free(set);
}

/* Takes the file. */
static gboolean add(SafeSet *set, SafeFile *file, GError **error)
{
    guint n;
    const SafeTensor *tensors = safe_tensors(file, &n);
    g_ptr_array_add(set->files, file);
    for (guint i = 0; i < n; i++) {
        SafeFile *other = g_hash_table_lookup(set->owner, tensors[i].name);
        if (other) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "tensor '%.100s' is in two shards: %s and %s",
                        tensors[i].name, safe_path(other), safe_path(file));
            return FALSE;
        }
        g_hash_table_insert(set->owner, tensors[i].name, file);
    }
    return TRUE;
}

static gint by_name(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The shards that the map names, each once, in order of their names. */
static GPtrArray *shard_names(const char *path, json_t *map, GError **error)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    GPtrArray *names = g_ptr_array_new();
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *shard = json_string_value(value);
        if (!shard || !*shard || strchr(shard, '/') || strchr(shard, '\\')) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT,
                        "%s: the shard of tensor '%.100s' is not the name of a file in the same folder", path,
                        tensor);
            g_ptr_array_unref(names);
            return NULL;
        }
        if (g_hash_table_add(seen, (gpointer)shard))
            g_ptr_array_add(names, (gpointer)shard);
    }
    g_ptr_array_sort(names, by_name);
    return names;
}

static gboolean open_shards(SafeSet *set, const char *path, json_t *map, GError **error)
{
    g_autofree char *folder = g_path_get_dirname(path);
    g_autoptr(GPtrArray) names = shard_names(path, map, error);
    const char *tensor;
    json_t *value;
    if (!names)
        return FALSE;
    for (guint i = 0; i < names->len; i++) {
        g_autofree char *shard = g_build_filename(folder, names->pdata[i], NULL);
        SafeFile *file = safe_open(shard, error);
        if (!file) {
            g_prefix_error(error, "shard %u of %u of %s: ", i + 1, names->len, path);
            return FALSE;
        }
        if (!add(set, file, error))
            return FALSE;
    }
    json_object_foreach(map, tensor, value)
    {
        SafeFile *file = g_hash_table_lookup(set->owner, tensor);
        g_autofree char *found = file ? g_path_get_basename(safe_path(file)) : NULL;
        if (g_strcmp0(found, json_string_value(value))) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "%s: tensor '%.100s' is not in %s", path,
                        tensor, json_string_value(value));
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean open_index(SafeSet *set, const char *path, GError **error)
{
    json_t *root = json_file_read(path, error), *map = json_object_get(root, "weight_map");
    gboolean ok = FALSE;
    if (json_is_object(map) && json_object_size(map))
        ok = open_shards(set, path, map, error);
    else if (root)
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "%s: no 'weight_map': not an index of shards",
                    path);
    json_decref(root);
    return ok;
}

SafeSet *safe_set_open(const char *path, GError **error)
{
    SafeSet *set = set_new();
    SafeFile *file = NULL;
    gboolean index = g_str_has_suffix(path, ".json");
    if (index ? open_index(set, path, error) : (file = safe_open(path, error)) && add(set, file, error))
        return set;
    safe_set_close(set);
    return NULL;
}

guint safe_set_count(const SafeSet *set)
{
    return set->files->len;
}

SafeFile *safe_set_file(const SafeSet *set, guint i)
{
    return set->files->pdata[i];
}

const SafeTensor *safe_set_find(const SafeSet *set, const char *name, SafeFile **file)
{
    *file = g_hash_table_lookup(set->owner, name);
    return *file ? safe_find(*file, name) : NULL;
}
