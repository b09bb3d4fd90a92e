/* Reading recordings. Everything in a line is checked when the recording is opened, with the number of the
 * line in the message; files are read when their item is asked for.
 *
 * @link libpng jansson
 */
#include "stages/replay/recording.h"
#include "core/flow/status.h"
#include "core/model/safetensors.h"
#include "stages/recording.h"
#include <jansson.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    FlowField field;
    char *text;               /* a text in the line */
    char *file;               /* a file of the folder */
    const SafeTensor *tensor; /* of the one safetensors file */
} Entry;

typedef struct {
    FlowKind kind;
    FlowMark mark;
    FlowCursor cursor;
    GArray *entries; /* Entry */
} Line;

struct Recording {
    char *path;
    SafeFile *tensors; /* NULL: a folder */
    GPtrArray *lines;  /* Line * */
};

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

static void entry_clear(gpointer p)
{
    g_free(((Entry *)p)->text);
    g_free(((Entry *)p)->file);
}

static void line_free(gpointer p)
{
    g_array_unref(((Line *)p)->entries);
    g_free(p);
}

static Line *line_new(FlowKind kind)
{
    Line *line = g_new0(Line, 1);
    line->kind = kind;
    line->entries = g_array_new(FALSE, TRUE, sizeof(Entry));
    g_array_set_clear_func(line->entries, entry_clear);
    return line;
}

static gboolean find_field(const char *name, FlowField *field, GError **error)
{
    int found = flow_field_find(name);
    const char *nearest = found < 0 ? flow_field_nearest(name) : NULL;
    if (found < 0)
        return fault(error, "there is no field '%s'%s%s%s", name, nearest ? "; did you mean '" : "",
                     nearest ? nearest : "", nearest ? "'?" : "");
    *field = (FlowField)found;
    return TRUE;
}

/* -- items.jsonl ---------------------------------------------------------------------- */

static char *text_from_hex(const char *hex)
{
    gsize n = strlen(hex);
    if (n % 2 || strspn(hex, "0123456789abcdefABCDEF") != n)
        return NULL;
    char *text = g_malloc0(n / 2 + 1);
    for (gsize i = 0; i < n / 2; i++)
        text[i] = (char)(g_ascii_xdigit_value(hex[2 * i]) * 16 + g_ascii_xdigit_value(hex[2 * i + 1]));
    return text;
}

static gboolean read_field(Line *line, const char *name, json_t *value, GError **error)
{
    Entry entry = {0};
    if (!find_field(name, &entry.field, error))
        return FALSE;
    gboolean text = (flow_field_info(entry.field)->flags & FLOW_FIELD_STRING) != 0;
    const char *file = json_string_value(json_object_get(value, "file"));
    const char *hex = json_string_value(json_object_get(value, "bytes"));
    if (text && (json_is_string(value) || hex))
        entry.text = hex ? text_from_hex(hex) : g_strdup(json_string_value(value));
    else if (!text && file)
        entry.file = g_strdup(file);
    if (!entry.text && !entry.file)
        return fault(error, "the field '%s' must be %s", name, text ? "a text" : "{\"file\": NAME}");
    if (entry.file && (strchr(file, '/') || !*file || g_str_equal(file, ".") || g_str_equal(file, ".."))) {
        entry_clear(&entry);
        return fault(error, "the file '%s' of '%s' is not in the folder of the recording", file, name);
    }
    g_array_append_val(line->entries, entry);
    return TRUE;
}

static int choice(const char *const *names, guint n, json_t *value)
{
    const char *text = json_string_value(value);
    for (guint i = 0; text && i < n; i++)
        if (g_str_equal(names[i], text))
            return (int)i;
    return -1;
}

static gboolean read_cursor(FlowCursor *cursor, json_t *json, GError **error)
{
    const struct {
        const char *name;
        gint64 *to;
    } numbers[] = {{"epoch", &cursor->epoch},
                   {"position", &cursor->position},
                   {"size", &cursor->size},
                   {"epochs", &cursor->epochs}};
    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++) {
        json_t *value = json_object_get(json, numbers[i].name);
        if (value && !json_is_integer(value))
            return fault(error, "'%s' is not an integer", numbers[i].name);
        *numbers[i].to = json_integer_value(value);
    }
    return TRUE;
}

static gboolean read_json(Line *line, json_t *json, GError **error)
{
    json_t *mark = json_object_get(json, "mark"), *fields = json_object_get(json, "fields"), *value;
    int kind = choice(recording_kinds, G_N_ELEMENTS(recording_kinds), json_object_get(json, "kind"));
    int which = choice(recording_marks, G_N_ELEMENTS(recording_marks), mark);
    const char *name;
    if (!read_cursor(&line->cursor, json, error))
        return FALSE;
    if (mark) {
        line->kind = FLOW_MARK;
        line->mark = (FlowMark)which;
        return which >= 0 || fault(error, "the mark is not one of epoch, prefill_done");
    }
    if (kind < 0 || !json_is_object(fields))
        return fault(error, "an item has a 'kind' (sample, batch, step) and 'fields'");
    if (json_object_size(fields) > FLOW_FIELD_MAX / 2)
        return fault(error, "more than %d fields", FLOW_FIELD_MAX / 2);
    line->kind = (FlowKind)kind;
    json_object_foreach(fields, name, value) if (!read_field(line, name, value, error)) return FALSE;
    return TRUE;
}

static gboolean read_lines(Recording *recording, GError **error)
{
    g_autofree char *path = g_build_filename(recording->path, RECORDING_ITEMS, NULL), *text = NULL;
    gsize n;
    if (!g_file_get_contents(path, &text, &n, error))
        return FALSE;
    guint number = 0;
    for (char *at = text, *end; at < text + n; at = end + 1) {
        g_autoptr(GError) why = NULL;
        json_error_t wrong;
        number++;
        end = memchr(at, '\n', (gsize)(text + n - at));
        if (!end)
            return fault(error, "%s:%u: the last line is cut short", path, number);
        json_t *json = json_loadb(at, (gsize)(end - at), JSON_REJECT_DUPLICATES, &wrong);
        if (!json_is_object(json)) {
            json_decref(json);
            return fault(error, "%s:%u: not a JSON object: %s", path, number,
                         json ? "another value" : wrong.text);
        }
        Line *line = line_new(FLOW_SAMPLE);
        g_ptr_array_add(recording->lines, line);
        gboolean ok = read_json(line, json, &why);
        json_decref(json);
        if (!ok)
            return fault(error, "%s:%u: %s", path, number, why->message);
    }
    return TRUE;
}

/* -- one safetensors file --------------------------------------------------------------- */

static int by_index(gconstpointer a, gconstpointer b)
{
    gint64 x = (*(Line *const *)a)->cursor.position, y = (*(Line *const *)b)->cursor.position;
    return (x > y) - (x < y);
}

static gboolean read_tensors(Recording *recording, FlowKind kind, GError **error)
{
    guint n;
    const SafeTensor *tensors = safe_tensors(recording->tensors, &n);
    g_autoptr(GHashTable) lines = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (guint i = 0; i < n; i++) {
        const char *name = tensors[i].name, *slash = strchr(name, '/');
        gsize digits = strspn(name, "0123456789");
        g_autoptr(GError) why = NULL;
        Entry entry = {.tensor = &tensors[i]};
        if (!slash || digits == 0 || digits > 15 || name + digits != slash)
            return fault(error, "%s: the tensor '%s' is not named INDEX/FIELD", recording->path, name);
        if (!find_field(slash + 1, &entry.field, &why))
            return fault(error, "%s: tensor '%s': %s", recording->path, name, why->message);
        g_autofree char *index = g_strdup_printf("%" G_GINT64_FORMAT, g_ascii_strtoll(name, NULL, 10));
        Line *line = g_hash_table_lookup(lines, index);
        if (!line) {
            line = line_new(kind);
            line->cursor.position = g_ascii_strtoll(index, NULL, 10);
            g_ptr_array_add(recording->lines, line);
            g_hash_table_insert(lines, g_steal_pointer(&index), line);
        }
        if (line->entries->len >= FLOW_FIELD_MAX / 2)
            return fault(error, "%s: item %.*s has more than %d fields", recording->path, (int)digits, name,
                         FLOW_FIELD_MAX / 2);
        g_array_append_val(line->entries, entry);
    }
    g_ptr_array_sort(recording->lines, by_index);
    for (guint i = 0; i < recording->lines->len; i++)
        ((Line *)g_ptr_array_index(recording->lines, i))->cursor.size = recording->lines->len;
    return TRUE;
}

/* -- the whole -------------------------------------------------------------------------- */

Recording *recording_open(const char *path, FlowKind kind, GError **error)
{
    Recording *recording = g_new0(Recording, 1);
    recording->path = g_strdup(path);
    recording->lines = g_ptr_array_new_with_free_func(line_free);
    gboolean ok;
    if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        ok = read_lines(recording, error);
    } else {
        recording->tensors = safe_open(path, error);
        ok = recording->tensors && read_tensors(recording, kind, error);
    }
    if (ok && !recording->lines->len)
        ok = fault(error, "%s holds no items", path);
    if (!ok)
        g_clear_pointer(&recording, recording_free);
    return recording;
}

void recording_free(Recording *recording)
{
    if (!recording)
        return;
    g_ptr_array_unref(recording->lines);
    safe_close(recording->tensors);
    g_free(recording->path);
    g_free(recording);
}

guint recording_items(const Recording *recording)
{
    return recording->lines->len;
}

FlowFieldSet recording_fields(const Recording *recording)
{
    FlowFieldSet all = ~(FlowFieldSet)0;
    gboolean any = FALSE;
    for (guint i = 0; i < recording->lines->len; i++) {
        const Line *line = g_ptr_array_index(recording->lines, i);
        FlowFieldSet has = 0;
        for (guint k = 0; k < line->entries->len; k++)
            has |= FLOW_FIELD_BIT(g_array_index(line->entries, Entry, k).field);
        if (line->kind != FLOW_MARK) {
            all &= has;
            any = TRUE;
        }
    }
    return any ? all : 0;
}

/* -- values ----------------------------------------------------------------------------- */

static FlowValue *read_picture(const char *path, GError **error)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_file(&image, path)) {
        fault(error, "cannot read %s: %s", path, image.message);
        return NULL;
    }
    image.format = PNG_FORMAT_RGB;
    FlowValue *value = flow_value_new(NET_U8, 3, (gint64[]){image.height, image.width, 3});
    if (!png_image_finish_read(&image, NULL, value->data, 0, NULL)) {
        fault(error, "cannot read %s: %s", path, image.message);
        g_clear_pointer(&value, flow_value_unref);
    }
    return value;
}

static FlowValue *read_tensor(const SafeFile *file, const SafeTensor *tensor, FlowField field, GError **error)
{
    if (tensor->type < 0 || tensor->ndim > FLOW_MAX_DIMS) {
        fault(error, "%s: the tensor '%s' (%s, %u dimensions) cannot be an item's field", safe_path(file),
              tensor->name, tensor->dtype, tensor->ndim);
        return NULL;
    }
    FlowValue *value = flow_value_new((NetType)tensor->type, tensor->ndim, tensor->shape);
    if (!safe_read_bytes(file, tensor, 0, value->data, value->nbytes, error)) {
        flow_value_unref(value);
        return NULL;
    }
    if (!(flow_field_info(field)->flags & FLOW_FIELD_STRING))
        return value;
    g_autofree char *text = g_strndup(value->data, value->nbytes);
    flow_value_unref(value);
    return flow_value_string(text);
}

static FlowValue *read_file(const Recording *recording, const Entry *entry, GError **error)
{
    g_autofree char *path = g_build_filename(recording->path, entry->file, NULL);
    if (g_str_has_suffix(path, ".png"))
        return read_picture(path, error);
    SafeFile *file = safe_open(path, error);
    if (!file)
        return NULL;
    const char *name = flow_field_info(entry->field)->name;
    const SafeTensor *tensor = safe_find(file, name);
    FlowValue *value = NULL;
    if (tensor)
        value = read_tensor(file, tensor, entry->field, error);
    else
        fault(error, "%s has no tensor '%s'", path, name);
    safe_close(file);
    return value;
}

FlowItem *recording_item(Recording *recording, guint i, GError **error)
{
    const Line *line = g_ptr_array_index(recording->lines, i);
    if (line->kind == FLOW_MARK)
        return flow_item_new_mark(line->mark, &line->cursor);
    FlowItem *item = flow_item_new(line->kind);
    item->cursor = line->cursor;
    for (guint k = 0; k < line->entries->len; k++) {
        const Entry *entry = &g_array_index(line->entries, Entry, k);
        FlowValue *value = entry->text ? flow_value_string(entry->text)
                           : entry->file
                               ? read_file(recording, entry, error)
                               : read_tensor(recording->tensors, entry->tensor, entry->field, error);
        if (!value) {
            flow_item_unref(item);
            return NULL;
        }
        flow_item_set(item, entry->field, value);
    }
    return item;
}
