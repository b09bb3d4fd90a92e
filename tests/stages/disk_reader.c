/* disk_reader: bytes as they are on disk, and files that changed, vanished, grew or are no files.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/file.h"
#include "picture_lab.h"
#include <fcntl.h>

#define GRAPH                                                                                                \
    "[items]\nstage = t_items\n[read]\nstage = disk_reader\nin = items\nmethod = %s\nmax_bytes = 4000000\n"  \
    "workers = 3\non_error = %s\n[catch]\nstage = t_catch\nin = read\n"

/* A reference to a file, as it is listed now. */
static void refer(const char *name)
{
    g_autofree char *path = g_build_filename(lab_dir, name, NULL);
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    struct stat st;
    gint64 id[IMAGE_ID] = {0};
    if (stat(path, &st) == 0)
        image_file_id(&st, id);
    flow_item_set(item, FLOW_F_PATH, flow_value_string(path));
    flow_item_set_i64(item, FLOW_F_FILE_ID, id, IMAGE_ID);
    g_ptr_array_add(lab_items, item);
}

static const guint sizes[] = {1, 4095, 1 << 20, (1 << 20) + 1, 3500000, 0};

static void start(void)
{
    lab_gives = "path file_id";
    g_ptr_array_set_size(lab_items, 0);
    lab_dir_make();
    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        g_autofree guint8 *bytes = g_malloc(sizes[i] + 1);
        g_autofree char *name = g_strdup_printf("%u.png", i);
        for (guint k = 0; k < sizes[i]; k++)
            bytes[k] = (guint8)(k * 31 + (k >> 8) * 7 + i);
        lab_file(name, bytes, sizes[i]);
        refer(name);
    }
}

static gboolean ring_there(void)
{
    g_autofree char *said = lab_graph(GRAPH, "uring", "stop");
    if (said && (strstr(said, "gives no io_uring") || strstr(said, "built without liburing")))
        return FALSE;
    g_assert_cmpstr(said, ==, NULL);
    return TRUE;
}

static void check_bytes(void)
{
    g_assert_cmpuint(lab_count(), ==, G_N_ELEMENTS(sizes));
    for (guint i = 0; i < lab_count(); i++) {
        const FlowValue *bytes = flow_item_get(lab_item_at(i), FLOW_F_BYTES);
        const guint8 *p = bytes->data;
        g_assert_cmpuint(bytes->nbytes, ==, sizes[i]);
        for (guint k = 0; k < sizes[i]; k++)
            if (p[k] != (guint8)(k * 31 + (k >> 8) * 7 + i))
                g_error("file %u differs at byte %u", i, k);
    }
}

static void test_read(void)
{
    start();
    LAB_RUN(GRAPH, "auto", "stop");
    check_bytes();
    LAB_RUN(GRAPH, "pread", "stop");
    check_bytes();
    if (ring_there())
        check_bytes();
    else
        g_test_message("no io_uring here");
    lab_dir_remove();
}

static void test_bad_files(void)
{
    start();
    lab_text("changed.png", "before");
    refer("changed.png");
    lab_text("changed.png", "after it was listed");
    lab_text("replaced.png", "same size");
    refer("replaced.png");
    g_autofree char *replaced = g_build_filename(lab_dir, "replaced.png", NULL);
    g_unlink(replaced);
    lab_text("replaced.png", "SAME SIZE");
    refer("never.png");
    lab_text("now_a_pipe.png", "x");
    refer("now_a_pipe.png");
    g_autofree char *pipe = g_build_filename(lab_dir, "now_a_pipe.png", NULL);
    g_unlink(pipe);
    g_assert_cmpint(mkfifo(pipe, 0600), ==, 0);
    g_autofree guint8 *big = g_malloc0(4000001);
    lab_file("big.png", big, 4000001);
    refer("big.png");
    LAB_RUN(GRAPH, "pread", "skip:5");
    check_bytes(); /* the good ones, in order, once each */
    static const char *const said[] = {
        "changed.png has changed since the pictures were listed",
        "replaced.png has changed since the pictures were listed", "never.png cannot be opened: No such file",
        "now_a_pipe.png is not a regular file", "big.png has 4000001 bytes, more than max_bytes = 4000000"};
    for (guint i = 0; i < G_N_ELEMENTS(said);
         i++) { /* each behind good ones; which of several is first is open */
        FlowItem *bad = g_ptr_array_steal_index(lab_items, G_N_ELEMENTS(sizes));
        g_autoptr(GPtrArray) others = g_ptr_array_new();
        while (lab_items->len > G_N_ELEMENTS(sizes))
            g_ptr_array_add(others, g_ptr_array_steal_index(lab_items, G_N_ELEMENTS(sizes)));
        g_ptr_array_add(lab_items, bad);
        LAB_FAIL(said[i], GRAPH, "pread", "stop");
        g_ptr_array_set_size(lab_items, G_N_ELEMENTS(sizes));
        for (guint k = 0; k < others->len; k++)
            g_ptr_array_add(lab_items, others->pdata[k]);
    }
    lab_dir_remove();
}

static void test_no_open_files_left(void)
{
    start();
    for (int round = 0; round < 3; round++)
        LAB_RUN(GRAPH, "auto", "stop");
    guint open_files = 0;
    GDir *dir = g_dir_open("/proc/self/fd", 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *path = g_strconcat("/proc/self/fd/", name, NULL), *to = g_file_read_link(path, NULL);
        open_files += to && g_str_has_prefix(to, lab_dir);
    }
    g_dir_close(dir);
    g_assert_cmpuint(open_files, ==, 0);
    lab_dir_remove();
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/disk_reader/read", test_read);
    g_test_add_func("/disk_reader/bad_files", test_bad_files);
    g_test_add_func("/disk_reader/no_open_files_left", test_no_open_files_left);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
