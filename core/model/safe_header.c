/* Reads and checks the header of a safetensors file.
 *
 * Nothing is believed before it is checked: lengths against the size of the file (so a wrong length never
 * becomes an allocation), JSON by jansson with duplicates refused, then every entry, then all entries in
 * order of their offsets: no hole, no overlap, the last one ends where the file ends. What passes here can be
 * read without further checks. What is not safetensors at all is recognised by its first bytes, since a web
 * page in place of a checkpoint is the most common broken file. */
#include "core/model/json_file.h"
#include "core/model/safe_file.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_LIMIT = 100 * 1000 * 1000, DIM_LIMIT = 8 };

static const struct {
    const char *name;
    guint bits;
    int type;
} dtypes[] = {
    {"BOOL", 8, -1},      {"F4", 4, -1},          {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},
    {"U8", 8, NET_U8},    {"I8", 8, NET_I8},      {"F8_E5M2", 8, -1},     {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},   {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"I16", 16, -1},
    {"U16", 16, -1},      {"F16", 16, NET_F16},   {"BF16", 16, NET_BF16}, {"I32", 32, NET_I32},
    {"U32", 32, -1},      {"F32", 32, NET_F32},   {"C64", 64, -1},        {"F64", 64, -1},
    {"I64", 64, NET_I64}, {"U64", 64, -1},
};

/* A name for a message: printable, and short enough to be read. */
char *safe__shown(const char *name)
{
    if (strlen(name) <= 120)
        return g_strescape(name, NULL);
    g_autofree char *start = g_strndup(name, 100);
    g_autofree char *text = g_strescape(start, NULL);
    return g_strconcat(text, "...", NULL);
}

gboolean safe__fail(GError **error, const char *path, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, MODEL_ERROR, code, "%s: %s", path, text);
    return FALSE;
}

gboolean safe__read_at(int fd, void *dst, gsize n, guint64 offset)
{
    for (gsize done = 0; done < n;) {
        gssize got = pread(fd, (char *)dst + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got ? errno : 0;
            return FALSE;
        }
        done += (gsize)got;
    }
    return TRUE;
}

/* -- what a file is that is not safetensors ----------------------------------------- */

static const char *other_kind(const guint8 *start, gsize n)
{
    static const struct {
        const char *magic;
        guint length;
        const char *what;
    } kinds[] = {
        {"version https://git-lfs", 23, "a Git LFS pointer, not the file itself; fetch it with git lfs pull"},
        {"PK\3\4", 4, "a PyTorch checkpoint (pickled zip); convert it to safetensors first"},
        {"\x80\2", 2, "a pickled checkpoint; convert it to safetensors first"},
        {"\x80\4", 2, "a pickled checkpoint; convert it to safetensors first"},
        {"GGUF", 4, "a GGUF file; only safetensors can be read"},
        {"{", 1, "a JSON file; an index of shards is not a weight file"},
    };
    g_autofree char *text = g_ascii_strdown((const char *)start, (gssize)n);
    const char *p = text;
    while (g_ascii_isspace(*p))
        p++;
    if (g_str_has_prefix(p, "<!doctype") || g_str_has_prefix(p, "<html"))
        return "an HTML page; the download gave a web page instead of the file";
    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (n >= kinds[i].length && !memcmp(start, kinds[i].magic, kinds[i].length))
            return kinds[i].what;
    return NULL;
}

/* Reads the length of the header. */
static gboolean read_length(SafeFile *file, guint64 *length, GError **error)
{
    guint8 start[64] = {0};
    gsize n = MIN(file->size, sizeof start - 1);
    if (!file->size)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "the file is empty");
    if (!safe__read_at(file->fd, start, n, 0))
        return safe__fail(error, file->path, MODEL_ERROR_IO, "cannot read: %s", g_strerror(errno));
    const char *other = other_kind(start, n);
    memcpy(length, start, 8);
    if (file->size >= 8 && *length <= HEADER_LIMIT && *length <= file->size - 8 && start[8] == '{')
        return TRUE;
    if (other)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "this is %s", other);
    if (file->size < 8)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "not a safetensors file: %" G_GUINT64_FORMAT " bytes, the shortest has 10",
                          file->size);
    if (*length > HEADER_LIMIT)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "not a safetensors file: header length %" G_GUINT64_FORMAT " (limit %d)", *length,
                          HEADER_LIMIT);
    if (*length > file->size - 8)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "not a complete safetensors file (header says %" G_GUINT64_FORMAT
                          " bytes, file has %" G_GUINT64_FORMAT ")",
                          *length + 8, file->size);
    return TRUE; /* blanks before the brace are for the parser to judge */
}

/* -- header ---------------------------------------------------------------------------- */

/* jansson names the place of a duplicate by its end only; its text holds no long names. */
static gboolean fail_duplicate(GError **error, const char *path, const char *header, gsize end)
{
    guint depth = 0;
    gsize start = 0;
    for (gsize i = 0; i < end; i++) {
        if (header[i] == '"') {
            start = ++i;
            while (i < end && header[i] != '"')
                i += header[i] == '\\' ? 2 : 1;
        } else {
            depth += header[i] == '{';
            depth -= header[i] == '}';
        }
    }
    g_autofree char *name = g_strndup(header + start, end > start ? end - start - 1 : 0);
    g_autofree char *text = safe__shown(name);
    return safe__fail(error, path, MODEL_ERROR_FORMAT, "duplicate %s %s", depth == 1 ? "tensor name" : "key",
                      text);
}

static gboolean read_metadata(SafeFile *file, json_t *map, GError **error)
{
    const char *key;
    json_t *value;
    if (json_is_null(map))
        return TRUE;
    if (!json_is_object(map))
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "__metadata__ is not an object of strings");
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value)) {
            g_autofree char *text = safe__shown(key);
            return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                              "__metadata__ value of %s is not a string", text);
        }
        g_hash_table_insert(file->metadata, g_strdup(key), g_strdup(json_string_value(value)));
    }
    return TRUE;
}

/* Not negative, and whole: jansson has refused what does not fit 63 bits. */
static gboolean whole(json_t *value, guint64 *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return FALSE;
    *out = (guint64)json_integer_value(value);
    return TRUE;
}

static gboolean read_shape(SafeTensor *t, json_t *shape, guint bits, const char **why)
{
    guint64 count = 1, total = 0, dim;
    if (!json_is_array(shape)) {
        *why = "has no list 'shape'";
        return FALSE;
    }
    if (json_array_size(shape) > DIM_LIMIT) {
        *why = "has more than 8 dimensions";
        return FALSE;
    }
    t->ndim = (guint)json_array_size(shape);
    for (guint i = 0; i < t->ndim; i++) {
        if (!whole(json_array_get(shape, i), &dim)) {
            *why = "has a size in 'shape' that is not a whole number";
            return FALSE;
        }
        t->shape[i] = (gint64)dim;
        if (!g_uint64_checked_mul(&count, count, dim)) {
            *why = "is too large: its number of elements overflows";
            return FALSE;
        }
    }
    if (!g_uint64_checked_mul(&total, count, bits) || count > G_MAXINT64) {
        *why = "is too large: its size overflows";
        return FALSE;
    }
    if (total % 8) {
        *why = "does not end at a whole byte";
        return FALSE;
    }
    t->count = (gint64)count;
    t->nbytes = total / 8;
    return TRUE;
}

static gboolean read_entry(SafeFile *file, SafeTensor *t, const char *key, json_t *entry, GError **error)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *offsets = json_object_get(entry, "data_offsets");
    guint64 begin, end;
    const char *why = NULL;
    g_autofree char *name = safe__shown(key);
    t->name = g_strdup(key);
    if (!json_is_object(entry) || !dtype)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "tensor %s has no 'dtype'", name);
    guint d = 0;
    while (d < G_N_ELEMENTS(dtypes) && strcmp(dtypes[d].name, dtype))
        d++;
    if (d == G_N_ELEMENTS(dtypes)) {
        g_autofree char *text = safe__shown(dtype);
        return safe__fail(error, file->path, MODEL_ERROR_UNSUPPORTED, "dtype %s of tensor %s not supported",
                          text, name);
    }
    t->dtype = g_strdup(dtype);
    t->type = dtypes[d].type;
    if (!read_shape(t, json_object_get(entry, "shape"), dtypes[d].bits, &why))
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "tensor %s %s", name, why);
    if (json_array_size(offsets) != 2 || !whole(json_array_get(offsets, 0), &begin) ||
        !whole(json_array_get(offsets, 1), &end))
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "tensor %s has no pair of whole numbers 'data_offsets'", name);
    if (end < begin || end - begin != t->nbytes)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "tensor %s needs %" G_GUINT64_FORMAT
                          " bytes, its data_offsets are %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT,
                          name, t->nbytes, begin, end);
    t->offset = begin;
    return TRUE;
}

static int by_offset(const void *a, const void *b)
{
    const SafeTensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->nbytes != y->nbytes)
        return x->nbytes < y->nbytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Orders the tensors, refuses holes, overlap and a wrong end, and makes offsets count from the file's start.
 */
static gboolean place(SafeFile *file, guint64 data, GError **error)
{
    guint64 end = 0;
    if (file->n)
        qsort(file->tensors, file->n, sizeof *file->tensors, by_offset);
    for (guint i = 0; i < file->n; i++) {
        SafeTensor *t = &file->tensors[i];
        if (t->offset != end) {
            g_autofree char *name = safe__shown(t->name);
            g_autofree char *before = safe__shown(i ? file->tensors[i - 1].name : "the header");
            return safe__fail(
                error, file->path, MODEL_ERROR_FORMAT,
                "tensor %s begins at %" G_GUINT64_FORMAT " but %s ends at %" G_GUINT64_FORMAT ": %s", name,
                t->offset, before, end, t->offset < end ? "they overlap" : "there is a hole");
        }
        end += t->nbytes; /* cannot overflow: it equals an offset that fits 63 bits */
        t->offset += data;
        g_hash_table_insert(file->index, t->name, t);
    }
    if (end > file->size - data)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "not a complete safetensors file (header says %" G_GUINT64_FORMAT
                          " bytes, file has %" G_GUINT64_FORMAT ")",
                          data + end, file->size);
    if (end < file->size - data)
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT,
                          "%" G_GUINT64_FORMAT " bytes after the last tensor (header says %" G_GUINT64_FORMAT
                          " bytes, file has %" G_GUINT64_FORMAT ")",
                          file->size - data - end, data + end, file->size);
    return TRUE;
}

gboolean safe__read_header(SafeFile *file, GError **error)
{
    guint64 length = 0;
    json_error_t problem;
    gboolean ok = FALSE;
    if (!read_length(file, &length, error))
        return FALSE;
    g_autofree char *header = g_try_malloc(length + 1);
    if (!header || !safe__read_at(file->fd, header, length, 8))
        return safe__fail(error, file->path, MODEL_ERROR_IO,
                          "cannot read the header of %" G_GUINT64_FORMAT " bytes", length);
    json_t *root = json_loadb(header, length, JSON_REJECT_DUPLICATES, &problem);
    if (!root && json_error_code(&problem) == json_error_duplicate_key)
        return fail_duplicate(error, file->path, header, (gsize)problem.position);
    if (!root) {
        g_autofree char *what = json_file_problem(&problem);
        return safe__fail(error, file->path, MODEL_ERROR_FORMAT, "not a safetensors header: %s at byte %d",
                          what, 8 + problem.position);
    }
    if (!json_is_object(root)) {
        safe__fail(error, file->path, MODEL_ERROR_FORMAT, "not a safetensors header: no JSON object");
        goto out;
    }
    file->tensors = g_new0(SafeTensor, json_object_size(root));
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, "__metadata__")) {
            if (!read_metadata(file, value, error))
                goto out;
        } else if (!read_entry(file, &file->tensors[file->n++], key, value, error)) {
            goto out;
        }
    }
    ok = place(file, 8 + length, error);
out:
    json_decref(root);
    return ok;
}
