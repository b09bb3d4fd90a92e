/* For tests of the stages that work on pictures: a folder to fill, a graph to run over it, and what came out.
 *
 *   t_catch   sink: keeps every item and notes marks
 *   t_items   source: emits the items of lab_items, then ends */
#ifndef TESTS_PICTURE_LAB_H
#define TESTS_PICTURE_LAB_H
#include "graph_lab.h"
#include "pictures.h"
#include <glib/gstdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- a folder ------------------------------------------------------------------------- */

static char *lab_dir;

static inline void lab_dir_make(void)
{
    lab_dir = g_dir_make_tmp("pictures-XXXXXX", NULL);
    g_assert_nonnull(lab_dir);
}

static inline void lab_dir_remove(void)
{
    char *argv[] = {"rm", "-rf", lab_dir, NULL};
    g_assert_true(g_spawn_sync(NULL, argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL));
    g_clear_pointer(&lab_dir, g_free);
}

static inline void lab_file(const char *name, const void *bytes, gsize n)
{
    g_autofree char *path = g_build_filename(lab_dir, name, NULL), *parent = g_path_get_dirname(path);
    g_assert_cmpint(g_mkdir_with_parents(parent, 0777), ==, 0);
    FILE *f = fopen(path, "w");
    g_assert_nonnull(f);
    g_assert_cmpuint(fwrite(bytes, 1, n, f), ==, n);
    fclose(f);
}

static inline void lab_text(const char *name, const char *text)
{
    lab_file(name, text, strlen(text));
}

/* Takes the bytes. */
static inline void lab_bytes(const char *name, GByteArray *bytes)
{
    lab_file(name, bytes->data, bytes->len);
    g_byte_array_unref(bytes);
}

/* NAME.png of one colour, and NAME.txt if there is a caption. */
static inline void lab_picture(const char *name, guint h, guint w, const char *hex, const char *caption)
{
    g_autofree char *png = g_strconcat(name, ".png", NULL), *txt = g_strconcat(name, ".txt", NULL);
    lab_bytes(png, make_png(w, h, 8, 2, hex, FALSE, NULL));
    if (caption)
        lab_text(txt, caption);
}

/* -- t_catch ---------------------------------------------------------------------------- */

static GPtrArray *lab_caught; /* FlowItem, marks too */

static FlowStatus t_catch_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_ptr_array_add(lab_caught, flow_take(&in[0]));
    return FLOW_OK;
}

static FlowStatus t_catch_mark(FlowCtx *ctx G_GNUC_UNUSED, FlowMark mark, GError **error G_GNUC_UNUSED)
{
    g_ptr_array_add(lab_caught, flow_item_new_mark(mark, &(FlowCursor){0}));
    return FLOW_OK;
}

static const FlowPort t_catch_in[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowStage t_catch = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_catch",
                                  .summary = "Keep.",
                                  .version = 1,
                                  .flags = FLOW_STATEFUL | FLOW_PREFILL,
                                  .inputs = t_catch_in,
                                  .process = t_catch_process,
                                  .mark = t_catch_mark};

/* -- t_items ------------------------------------------------------------------------------ */

static GPtrArray *lab_items; /* FlowItem to emit */
static const char *lab_gives = "path file_id caption source_size role sample";

typedef struct {
    gint64 next;
} TItems;

static gboolean t_items_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    flow_node_gives(node, "out", lab_gives);
    return TRUE;
}

static FlowStatus t_items_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    TItems *items = flow_ctx_state(ctx);
    if ((guint64)items->next == lab_items->len)
        return FLOW_EOS;
    return flow_emit(ctx, 0, flow_item_ref(lab_items->pdata[items->next++]));
}

static const FlowPort t_items_out[] = {
    {.name = "out", .doc = "Items.", .gives = "path", .flags = FLOW_PORT_NEW}, FLOW_END};
static const FlowStage t_items = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_items",
                                  .summary = "Emit.",
                                  .version = 1,
                                  .flags = FLOW_STATEFUL,
                                  .state_size = sizeof(TItems),
                                  .outputs = t_items_out,
                                  .describe = t_items_describe,
                                  .process = t_items_process};

/* -- running -------------------------------------------------------------------------------- */

static inline void picture_lab_init(int *argc, char ***argv)
{
    g_test_init(argc, argv, NULL);
    lab_add_stages();
    g_assert_true(flow_plugin_add(&t_catch, NULL));
    g_assert_true(flow_plugin_add(&t_items, NULL));
    lab_caught = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    lab_items = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
}

static inline void picture_lab_done(void)
{
    g_ptr_array_unref(lab_caught);
    g_ptr_array_unref(lab_items);
}

/* Runs the graph text, in which %s stands for the folder; what reached t_catch is in lab_caught. Returns the
 * error's text or NULL. */
static inline char *lab_graph(const char *format, ...) G_GNUC_PRINTF(1, 2);
static inline char *lab_graph(const char *format, ...)
{
    va_list args;
    char *said = NULL;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_ptr_array_set_size(lab_caught, 0);
    FlowGraph *graph = lab_open(text);
    g_autoptr(GError) error = NULL;
    FlowRunOptions options = {0};
    FlowRunStatus status = flow_graph_run(graph, &options, &error);
    flow_graph_free(graph);
    g_assert_true((status == FLOW_RUN_DONE) == (error == NULL));
    if (error)
        said = g_strdup(error->message);
    return said;
}

/* The graph must run; no error. */
#define LAB_RUN(...)                                                                                         \
    do {                                                                                                     \
        g_autofree char *lab__said = lab_graph(__VA_ARGS__);                                                 \
        g_assert_cmpstr(lab__said, ==, NULL);                                                                \
    } while (0)
/* The graph must fail with a text that contains `text_`. */
#define LAB_FAIL(text_, ...)                                                                                 \
    do {                                                                                                     \
        g_autofree char *lab__said = lab_graph(__VA_ARGS__);                                                 \
        if (!lab__said || !strstr(lab__said, text_))                                                         \
            g_error("'%s' lacks '%s'", lab__said ? lab__said : "(no error)", text_);                         \
    } while (0)

/* The caught item number i that is no mark. */
static inline FlowItem *lab_item_at(guint i)
{
    for (guint k = 0; k < lab_caught->len; k++) {
        FlowItem *item = lab_caught->pdata[k];
        if (item->kind != FLOW_MARK && i-- == 0)
            return item;
    }
    g_error("too few items came out");
}

static inline guint lab_count(void)
{
    guint n = 0;
    for (guint k = 0; k < lab_caught->len; k++)
        n += ((FlowItem *)lab_caught->pdata[k])->kind != FLOW_MARK;
    return n;
}

/* "a b | p:c <prefill_done>": names without folder and extension; p: before those of epoch -1, v: held back.
 */
static inline char *lab_story(void)
{
    GString *out = g_string_new(NULL);
    for (guint k = 0; k < lab_caught->len; k++) {
        const FlowItem *item = lab_caught->pdata[k];
        if (item->kind == FLOW_MARK) {
            g_string_append(out, item->mark == FLOW_MARK_EPOCH ? "| " : "<prefill_done> ");
            continue;
        }
        g_autofree char *base = g_path_get_basename(flow_item_string(item, FLOW_F_PATH));
        const gint32 *role = flow_item_i32(item, FLOW_F_ROLE);
        *strrchr(base, '.') = '\0';
        g_string_append_printf(out, "%s%s%s ", item->cursor.epoch < 0 ? "p:" : "", role && *role ? "v:" : "",
                               base);
    }
    g_strchomp(out->str);
    return g_string_free(out, FALSE);
}

#define LAB_STORY(want)                                                                                      \
    do {                                                                                                     \
        g_autofree char *lab__story = lab_story();                                                           \
        g_assert_cmpstr(lab__story, ==, want);                                                               \
    } while (0)

#endif
