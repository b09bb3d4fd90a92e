/* A key is content and recipe: for each stored field, how it is made (stages, versions, parameters, hash of
 * the weights; asked from the host by the store) and the values of the fields that it depends on and that are
 * known at the lookup: identity of the file, geometry, caption. Change a parameter, a file or a model and
 * just those entries miss; change back and they hit.
 *
 * A file is known by device, inode, size and times: a picture that is changed in place is another one, one
 * that is renamed too (its time of change moves), and nothing is read. By content, a copied or touched file
 * is the same one; its bytes are read once for each state that the file is found in. */
#include "stages/fp16_cache/keys.h"
#include <string.h>

typedef struct {
    gint64 id[5]; /* first: the hash table's key */
    CacheKey content;
} FileHash;

struct Keys {
    gboolean content, full;
    CacheHasher *hasher;
    GHashTable *hashes; /* FileHash */
};

static guint file_hash_ghash(gconstpointer id)
{
    const gint64 *v = id;
    return (guint)(v[1] ^ v[4]);
}

static gboolean file_hash_gequal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(gint64[5])) == 0;
}

Keys *keys_new(gboolean content, gboolean full)
{
    Keys *k = g_new0(Keys, 1);
    k->content = content;
    k->full = full;
    k->hasher = cache_hasher_new();
    k->hashes = g_hash_table_new_full(file_hash_ghash, file_hash_gequal, NULL, g_free);
    return k;
}

void keys_free(Keys *k)
{
    cache_hasher_free(k->hasher);
    g_hash_table_unref(k->hashes);
    g_free(k);
}

/* The hash of a picture's bytes, read once for each state of its file. */
static const CacheKey *content_key(Keys *k, const FlowItem *item, const FlowValue *id, GError **error)
{
    FileHash *known = g_hash_table_lookup(k->hashes, id->data);
    if (known)
        return &known->content;
    const char *path = flow_item_string(item, FLOW_F_PATH);
    CacheKey key;
    if (!path) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "verify = hash needs the field 'path', which this item does not have");
        return NULL;
    }
    if (!cache_hash_file(path, &key, error))
        return NULL;
    known = g_new(FileHash, 1);
    memcpy(known->id, id->data, sizeof known->id);
    known->content = key;
    g_hash_table_insert(k->hashes, known->id, known);
    return &known->content;
}

static gboolean add_value(Keys *k, const FlowItem *item, FlowField field, GError **error)
{
    const FlowValue *v = flow_item_get(item, field);
    const char *name = flow_field_info(field)->name;
    cache_hasher_add(k->hasher, name, strlen(name));
    if (!v) { /* a key of its own: absent is not the same as empty */
        cache_hasher_add(k->hasher, "absent", 6);
        return TRUE;
    }
    if (field == FLOW_F_FILE_ID && k->content && v->nbytes == sizeof(gint64[5])) {
        const CacheKey *content = content_key(k, item, v, error);
        if (content)
            cache_hasher_add(k->hasher, content, sizeof *content);
        return content != NULL;
    }
    guint32 type = v->type;
    cache_hasher_add(k->hasher, &type, sizeof type);
    cache_hasher_add(k->hasher, v->shape, v->ndim * sizeof *v->shape);
    cache_hasher_add(k->hasher, v->data, v->nbytes);
    return TRUE;
}

static gboolean field_key(Keys *k, const FlowItem *item, const CacheField *stored, CacheKey *key,
                          GError **error)
{
    const char *name = flow_field_info(stored->field)->name;
    cache_hasher_reset(k->hasher);
    cache_hasher_add(k->hasher, name, strlen(name));
    cache_hasher_add(k->hasher, stored->recipe, sizeof stored->recipe);
    cache_hasher_add(k->hasher, k->full ? "full" : "half", 4);
    for (guint f = 0; f < FLOW_FIELD_MAX; f++)
        if ((stored->by_value & FLOW_FIELD_BIT(f)) && !add_value(k, item, (FlowField)f, error))
            return FALSE;
    *key = cache_hasher_key(k->hasher);
    return TRUE;
}

gboolean keys_of_item(Keys *k, const Cache *cache, const FlowItem *item, CacheKey *out, GError **error)
{
    guint n;
    const CacheField *fields = cache_fields(cache, &n);
    for (guint i = 0; i < n; i++)
        if (!field_key(k, item, &fields[i], &out[i], error))
            return FALSE;
    return TRUE;
}
