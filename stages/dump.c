/* dump: writes what passes an edge to files, and lets it pass. `replay` emits it again.
 *
 * The line of an item is written, with one call, when its files are there: whatever stops the run, what
 * stands in items.jsonl is whole. A folder with other things in it is not written to.
 *
 * @link libpng jansson
 */
#include "core/flow/stage.h"
#include "core/model/safetensors.h"
#include "stages/recording.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <jansson.h>
#include <png.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *path, **fields;
    gint64 items;
} Dump;

typedef struct {
    int fd;
    gint64 written;
} Worker;

static gboolean dump_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    const Dump *dump = flow_node_state(node);
    if (dump->fields) {
        g_autofree char *needs = g_strjoinv(" ", dump->fields);
        flow_node_needs(node, "in", needs);
    }
    return TRUE;
}

/* An earlier recording may be written over; anything else may not. */
static gboolean dump_open(FlowNode *node, GError **error)
{
    const Dump *dump = flow_node_state(node);
    g_autofree char *items = g_build_filename(dump->path, RECORDING_ITEMS, NULL);
    if (!g_file_test(dump->path, G_FILE_TEST_EXISTS) || g_file_test(items, G_FILE_TEST_EXISTS))
        return TRUE;
    g_autoptr(GDir) dir = g_dir_open(dump->path, 0, error);
    if (!dir)
        return FALSE;
    if (!g_dir_read_name(dir))
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "path = %s is a folder with other files in it: name an empty one, or one that does not exist",
                dump->path);
    return FALSE;
}

/* -- fields ------------------------------------------------------------------------- */

static gboolean write_picture(const char *path, const FlowValue *value, GError **error)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)value->shape[1],
                       .height = (png_uint_32)value->shape[0],
                       .format = PNG_FORMAT_RGB};
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(image);
    g_autofree void *bytes = g_malloc(n);
    if (!png_image_write_to_memory(&image, bytes, &n, 0, value->data, 0, NULL)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot make %s: %s", path,
                    image.message);
        return FALSE;
    }
    return g_file_set_contents(path, bytes, (gssize)n, error);
}

static gboolean write_tensor(const char *path, const char *name, const FlowValue *value, GError **error)
{
    SafeEntry entry = {
        .name = name, .type = value->type, .source = value->type, .ndim = value->ndim, .data = value->data};
    memcpy(entry.shape, value->shape, value->ndim * sizeof *value->shape);
    return safe_write(path, &entry, 1, NULL, NULL, error);
}

static json_t *text_json(const FlowValue *value)
{
    const char *text = value->data;
    json_t *plain = json_string(text);
    if (plain)
        return plain;
    g_autoptr(GString) hex = g_string_new(NULL);
    for (; *text; text++)
        g_string_append_printf(hex, "%02x", (guint8)*text);
    return json_pack("{s:s}", "bytes", hex->str);
}

/* NULL with error, or NULL without one: an object, which only its stage could write. */
static json_t *field_json(const Dump *dump, gint64 index, const FlowFieldInfo *info, const FlowValue *value,
                          GError **error)
{
    if (value->object_type)
        return NULL;
    if (info->flags & FLOW_FIELD_STRING)
        return text_json(value);
    if (value->place != FLOW_HOST) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "'%s' is in device memory: dump it before the copy", info->name);
        return NULL;
    }
    gboolean picture = recording_is_picture(value->type, value->ndim, value->shape);
    g_autofree char *file =
        g_strdup_printf("%06" G_GINT64_FORMAT ".%s.%s", index, info->name, picture ? "png" : "safetensors");
    g_autofree char *path = g_build_filename(dump->path, file, NULL);
    gboolean ok = picture ? write_picture(path, value, error) : write_tensor(path, info->name, value, error);
    return ok ? json_pack("{s:s}", "file", file) : NULL;
}

static json_t *fields_json(const Dump *dump, gint64 index, const FlowItem *item, GError **error)
{
    json_t *fields = json_object();
    for (guint i = 0; i < item->n; i++) {
        const FlowFieldInfo *info = flow_field_info(item->entry[i].field);
        g_autoptr(GError) why = NULL;
        if (dump->fields && !g_strv_contains((const char *const *)dump->fields, info->name))
            continue;
        json_t *field = field_json(dump, index, info, item->entry[i].value, &why);
        if (why) {
            g_propagate_error(error, g_steal_pointer(&why));
            json_decref(fields);
            return NULL;
        }
        if (field)
            json_object_set_new(fields, info->name, field);
    }
    return fields;
}

/* -- lines -------------------------------------------------------------------------- */

static gboolean begin(const Dump *dump, Worker *worker, GError **error)
{
    if (worker->fd >= 0)
        return TRUE;
    g_autofree char *path = g_build_filename(dump->path, RECORDING_ITEMS, NULL);
    if (g_mkdir_with_parents(dump->path, 0755) ||
        (worker->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) < 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot write %s: %s", path,
                    g_strerror(errno));
        return FALSE;
    }
    return TRUE;
}

/* Takes `line`. */
static gboolean write_line(const Dump *dump, Worker *worker, json_t *line, const FlowCursor *cursor,
                           GError **error)
{
    json_object_set_new(line, "epoch", json_integer(cursor->epoch));
    json_object_set_new(line, "position", json_integer(cursor->position));
    json_object_set_new(line, "size", json_integer(cursor->size));
    json_object_set_new(line, "epochs", json_integer(cursor->epochs));
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_ENSURE_ASCII);
    g_autofree char *whole = g_strconcat(text, "\n", NULL);
    gsize n = strlen(whole);
    free(text);
    json_decref(line);
    ssize_t done = write(worker->fd, whole, n);
    if (done == (ssize_t)n)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "cannot write to %s/%s: %s", dump->path,
                RECORDING_ITEMS, g_strerror(done < 0 ? errno : ENOSPC));
    return FALSE;
}

static gboolean write_item(const Dump *dump, Worker *worker, const FlowItem *item, GError **error)
{
    json_t *fields = begin(dump, worker, error) ? fields_json(dump, worker->written, item, error) : NULL;
    if (!fields)
        return FALSE;
    json_t *line = json_pack("{s:I, s:s, s:o}", "index", (json_int_t)worker->written, "kind",
                             recording_kinds[item->kind], "fields", fields);
    if (!write_line(dump, worker, line, &item->cursor, error))
        return FALSE;
    worker->written++;
    return TRUE;
}

/* -- the stage ---------------------------------------------------------------------- */

static gboolean dump_worker_start(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    ((Worker *)flow_ctx_worker(ctx))->fd = -1;
    return TRUE;
}

static FlowStatus dump_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Dump *dump = flow_ctx_state(ctx);
    Worker *worker = flow_ctx_worker(ctx);
    FlowItem *item = in[0];
    if (item->kind == FLOW_MARK) {
        json_t *line = json_pack("{s:s}", "mark", recording_marks[item->mark]);
        if (!begin(dump, worker, error) || !write_line(dump, worker, line, &item->cursor, error))
            return FLOW_ERROR;
    } else if ((!dump->items || worker->written < dump->items) && !write_item(dump, worker, item, error)) {
        return FLOW_ERROR;
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static void dump_worker_stop(FlowCtx *ctx)
{
    Worker *worker = flow_ctx_worker(ctx);
    flow_node_count(flow_ctx_node(ctx), "written", (double)worker->written);
    if (worker->fd >= 0)
        close(worker->fd);
}

static const FlowParam params[] = {
    FLOW_PATH(Dump, path, NULL, "Folder to write to: empty, or with an earlier recording.",
              | FLOW_P_NORESULT),
    FLOW_LIST(Dump, fields, "", "Fields to write, all that arrive if empty.", | FLOW_P_NORESULT),
    FLOW_INT(Dump, items, "0", 0, 9e15, "items", "Write only the first ones; 0 = all.", | FLOW_P_NORESULT),
    FLOW_END,
};
static const FlowPort ins[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowPort outs[] = {
    {.name = "out", .doc = "The same items.", .flags = FLOW_PORT_ANY | FLOW_PORT_OPTIONAL}, FLOW_END};

FLOW_STAGE(
        .name = "dump", .summary = "Write what passes to files.",
        .details =
            "Texts and cursors go to items.jsonl, pictures to PNG, tensors to safetensors. `replay` plays it "
            "into any stage again.",
        .flags = FLOW_STATEFUL | FLOW_MARKS, .version = 1, .state_size = sizeof(Dump),
        .worker_size = sizeof(Worker), .params = params, .inputs = ins, .outputs = outs,
        .describe = dump_describe, .open = dump_open, .worker_start = dump_worker_start,
        .process = dump_process, .worker_stop = dump_worker_stop);
