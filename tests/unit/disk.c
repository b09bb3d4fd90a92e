/* Disk tier: sharing, growth, damage, a full disk, processes that are killed.
 * @label short
 */
#include "core/cache/disk.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 64 * 1024 };

typedef struct {
    char *folder, *file;
} Place;

static void place_set_up(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    p->folder = g_dir_make_tmp("loraflow-disk-XXXXXX", NULL);
    p->file = g_build_filename(p->folder, "loraflow.mdb", NULL);
}

static void place_tear_down(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    g_autofree char *command = g_strdup_printf("rm -r '%s'", p->folder);
    g_assert_true(g_spawn_command_line_sync(command, NULL, NULL, NULL, NULL));
    g_free(p->folder);
    g_free(p->file);
}

static CacheKey key_of(guint n)
{
    return (CacheKey){n * 0x9e3779b97f4a7c15u, n};
}

/* The n-th value: its size and its bytes follow from n. */
static FlowValue *value_of(guint n)
{
    gint64 size = 1000 + n * 337 % 9000;
    FlowValue *value = flow_value_new(NET_F16, 1, &size);
    for (gint64 i = 0; i < size; i++)
        ((guint16 *)value->data)[i] = (guint16)(n * 31 + i * 7);
    return value;
}

static void put(CacheDisk *disk, guint n)
{
    g_autoptr(FlowValue) value = value_of(n);
    cache_disk_put(disk, key_of(n), value);
}

/* Absent, or right to the last byte. */
static gboolean has(CacheDisk *disk, guint n)
{
    g_autoptr(FlowValue) got = cache_disk_get(disk, key_of(n));
    g_autoptr(FlowValue) want = value_of(n);
    if (!got)
        return FALSE;
    g_assert_cmpint(got->type, ==, NET_F16);
    g_assert_cmpint(got->shape[0], ==, want->shape[0]);
    g_assert_cmpmem(got->data, got->nbytes, want->data, want->nbytes);
    return TRUE;
}

static CacheDisk *open_disk(const char *folder)
{
    g_autoptr(GError) error = NULL;
    CacheDisk *disk = cache_disk_open(folder, BATCH, &error);
    g_assert_no_error(error);
    return disk;
}

static CacheDiskStats stats_of(CacheDisk *disk)
{
    CacheDiskStats stats;
    cache_disk_stats(disk, &stats);
    return stats;
}

static void no_message(CacheDisk *disk)
{
    g_autofree char *text = cache_disk_message(disk);
    g_assert_cmpstr(text, ==, NULL);
}

static void one_message(CacheDisk *disk, const char *says)
{
    g_autofree char *text = cache_disk_message(disk);
    g_assert_nonnull(text);
    if (!strstr(text, says))
        g_error("'%s' does not say '%s'", text, says);
    no_message(disk);
}

static void test_round_trip(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    CacheDisk *disk = open_disk(p->folder);
    g_assert_false(has(disk, 1));
    put(disk, 1);
    g_assert_true(has(disk, 1)); /* while it waits to be written */
    cache_disk_sync(disk);
    g_assert_true(has(disk, 1));
    put(disk, 1);
    cache_disk_sync(disk);
    g_assert_cmpuint(stats_of(disk).writes, ==, 1); /* it is there already */
    CacheKey keys[] = {key_of(1), key_of(2)};
    cache_disk_read_ahead(disk, keys, 2);
    cache_disk_close(disk);

    disk = open_disk(p->folder);
    g_assert_true(has(disk, 1));
    g_assert_false(has(disk, 2));
    g_assert_cmpuint(stats_of(disk).reads, ==, 1);
    no_message(disk);
    cache_disk_close(disk);
}

/* Beyond the first map of 16 MiB, with a second opener of the same folder. */
static void test_grows(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    enum { N = 2500 };
    CacheDisk *disk = open_disk(p->folder);
    CacheDisk *again = open_disk(p->folder);
    g_assert_true(disk == again);
    for (guint n = 0; n < N; n++)
        put(disk, n);
    cache_disk_close(again);
    struct stat st;
    g_assert_cmpint(stat(p->file, &st), ==, 0);
    g_assert_cmpint(st.st_size, >, 16 << 20);
    for (guint n = 0; n < N; n++)
        g_assert_true(has(disk, n));
    g_assert_cmpuint(stats_of(disk).writes, ==, N);
    no_message(disk);
    cache_disk_close(disk);
    disk = open_disk(p->folder);
    g_assert_true(has(disk, 0) && has(disk, N - 1));
    cache_disk_close(disk);
}

static void test_bad_folders(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    struct {
        const char *path, *says;
    } bad[] = {
        {g_build_filename(p->folder, "file", NULL), "is a file, not a folder"},
        {g_build_filename(p->folder, "file", "below", NULL), "Not a directory"},
        {g_build_filename(p->folder, "locked", NULL), "Permission denied"},
        {g_build_filename(p->folder, "locked", "below", NULL), "Permission denied"},
    };
    g_assert_true(g_file_set_contents(bad[0].path, "x", 1, NULL));
    g_assert_cmpint(g_mkdir(bad[2].path, 0555), ==, 0);
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        if (!strcmp(bad[i].says, "Permission denied") && geteuid() == 0)
            continue; /* nothing is denied to root; the read-only case has a test of its own below */
        /* C-14 */
        g_assert_false(cache_disk_check(bad[i].path, &error));
        if (!strstr(error->message, bad[i].says) || !strstr(error->message, p->folder))
            g_error("'%s' does not say '%s' and the path", error->message, bad[i].says);
        g_assert_null(cache_disk_open(bad[i].path, BATCH, NULL));
    }
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        g_free((char *)bad[i].path);
    g_autofree char *fresh = g_build_filename(p->folder, "new", "fresh", NULL);
    g_assert_true(cache_disk_check(fresh, NULL));
    g_assert_false(g_file_test(fresh, G_FILE_TEST_EXISTS)); /* a check writes nothing */
    cache_disk_close(open_disk(fresh));
}

/* Runs fn in a child process; gives its exit status. */
static int in_child(int (*fn)(const Place *), const Place *p)
{
    pid_t pid = fork();
    g_assert_cmpint(pid, >=, 0);
    if (pid == 0)
        _exit(fn(p));
    int status = 0;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int child_denied(const Place *p)
{
    if (setgid(65534) != 0 || setuid(65534) != 0)
        return 77;
    g_autoptr(GError) error = NULL;
    return cache_disk_check(p->folder, &error) || !strstr(error->message, "Permission denied");
}

/* C-14 */
static void test_read_only(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    if (geteuid() != 0) {
        g_test_skip("needs root to become somebody else");
        return;
    }
    g_assert_cmpint(g_chmod(p->folder, 0555), ==, 0);
    int rc = in_child(child_denied, p);
    if (rc == 77)
        g_test_skip("cannot change the user here");
    else
        g_assert_cmpint(rc, ==, 0);
    g_assert_cmpint(g_chmod(p->folder, 0755), ==, 0);
}

/* -- damage ----------------------------------------------------------------------- */

static void fill(const Place *p, guint n)
{
    CacheDisk *disk = open_disk(p->folder);
    for (guint i = 0; i < n; i++)
        put(disk, i);
    cache_disk_close(disk);
}

/* One byte within the data of values 3 and 5: those two are misses, with one message, and can be rebuilt. */
/* C-07 */
static void test_flipped_byte(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    fill(p, 8);
    g_autofree char *bytes = NULL;
    gsize n = 0;
    g_assert_true(g_file_get_contents(p->file, &bytes, &n, NULL));
    for (guint i = 3; i <= 5; i += 2) {
        g_autoptr(FlowValue) value = value_of(i);
        char *at = memmem(bytes, n, (char *)value->data + 500, 64);
        g_assert_nonnull(at);
        at[20] ^= 4;
    }
    /* in place, as a bad disk would */
    int fd = open(p->file, O_WRONLY);
    g_assert_cmpint(pwrite(fd, bytes, n, 0), ==, n);
    close(fd);

    CacheDisk *disk = open_disk(p->folder);
    for (int round = 0; round < 2; round++) {
        for (guint i = 0; i < 8; i++)
            g_assert_true(has(disk, i) == (round == 1 || (i != 3 && i != 5)));
        if (round == 0) {
            one_message(disk, "checksum");
            g_assert_cmpuint(stats_of(disk).damaged, ==, 2);
            put(disk, 3);
            put(disk, 5);
            cache_disk_sync(disk);
        }
    }
    no_message(disk);
    cache_disk_close(disk);
}

/* Cut to nothing, to a few bytes, within the first pages, in the middle: never a crash, always rebuilt. */
static void test_truncated(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    const gint64 sizes[] = {0, 10, 4096, 8192, 20000, 50000};
    for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++) {
        fill(p, 8);
        g_assert_cmpint(truncate(p->file, sizes[i]), ==, 0);
        CacheDisk *disk = open_disk(p->folder);
        g_autofree char *text = cache_disk_message(disk);
        if (sizes[i] == 0)
            g_assert_null(text); /* an empty file is a new cache */
        else
            g_assert_nonnull(strstr(text, "is damaged"));
        for (guint n = 0; n < 8; n++) {
            g_assert_false(has(disk, n));
            put(disk, n);
        }
        cache_disk_close(disk);
        disk = open_disk(p->folder);
        for (guint n = 0; n < 8; n++)
            g_assert_true(has(disk, n));
        no_message(disk);
        cache_disk_close(disk);
    }
}

/* Somebody cuts the file under us: messages, no bus error. */
static void test_truncated_while_open(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    fill(p, 8);
    CacheDisk *disk = open_disk(p->folder);
    g_assert_cmpint(truncate(p->file, 20000), ==, 0);
    for (guint n = 0; n < 8; n++)
        g_assert_false(has(disk, n));
    one_message(disk, "is damaged");
    put(disk, 9);
    cache_disk_sync(disk);
    one_message(disk, "cannot write");
    cache_disk_close(disk);
}

static void test_no_database(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    g_autofree char *junk = g_strnfill(100000, 'j');
    g_assert_true(g_file_set_contents(p->file, junk, 100000, NULL));
    CacheDisk *disk = open_disk(p->folder);
    one_message(disk, "is damaged");
    put(disk, 1);
    cache_disk_sync(disk);
    g_assert_true(has(disk, 1));
    cache_disk_close(disk);
}

/* -- full ------------------------------------------------------------------------- */

/* Writes beyond 1 MiB fail, as on a full disk. What was written before stays good. */
static int child_full(const Place *p)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 1;
    CacheDisk *disk = open_disk(p->folder);
    for (guint n = 0; n < 300; n++)
        put(disk, n);
    cache_disk_sync(disk);
    one_message(disk, "no space left");
    g_assert_true(stats_of(disk).full);
    guint found = 0;
    for (guint n = 0; n < 300; n++)
        found += has(disk, n);
    g_assert_cmpuint(found, >, 10);
    g_assert_cmpuint(found, <, 300);
    cache_disk_close(disk);
    return 0;
}

/* C-08 */
static void test_full(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    g_assert_cmpint(in_child(child_full, p), ==, 0);
    CacheDisk *disk = open_disk(p->folder); /* with space again it goes on */
    for (guint n = 0; n < 300; n++)
        if (!has(disk, n))
            put(disk, n);
    cache_disk_sync(disk);
    for (guint n = 0; n < 300; n++)
        g_assert_true(has(disk, n));
    no_message(disk);
    cache_disk_close(disk);
}

/* -- processes -------------------------------------------------------------------- */

static int child_fill(const Place *p)
{
    CacheDisk *disk = open_disk(p->folder);
    for (guint n = 0; n < 1500; n++)
        if (!has(disk, n))
            put(disk, n);
    cache_disk_sync(disk);
    for (guint n = 0; n < 1500; n++)
        if (!has(disk, n))
            return 1;
    gboolean good = stats_of(disk).damaged == 0 && !stats_of(disk).full;
    no_message(disk);
    cache_disk_close(disk);
    return good ? 0 : 2;
}

/* Four processes fill one empty cache at once, past the first map. */
/* C-12 */
static void test_four_processes(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    pid_t pid[4];
    for (int i = 0; i < 4; i++) {
        pid[i] = fork();
        g_assert_cmpint(pid[i], >=, 0);
        if (pid[i] == 0)
            _exit(child_fill(p));
    }
    for (int i = 0; i < 4; i++) {
        int status = 0;
        waitpid(pid[i], &status, 0);
        g_assert_true(WIFEXITED(status));
        g_assert_cmpint(WEXITSTATUS(status), ==, 0);
    }
    g_assert_cmpint(child_fill(p), ==, 0);
}

/* Killed while filling, at many moments: what is there is right, and the next process goes on. */
/* C-07 */
static void test_killed(Place *p, gconstpointer unused G_GNUC_UNUSED)
{
    GRand *rand = g_rand_new_with_seed(5);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        g_assert_cmpint(pid, >=, 0);
        if (pid == 0)
            _exit(child_fill(p));
        g_usleep((gulong)g_rand_int_range(rand, 200, 20000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    g_assert_cmpint(child_fill(p), ==, 0);
    g_rand_free(rand);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, fn) g_test_add(path, Place, NULL, place_set_up, fn, place_tear_down)
    ADD("/disk/round-trip", test_round_trip);
    ADD("/disk/grows", test_grows);
    ADD("/disk/bad-folders", test_bad_folders);
    ADD("/disk/read-only", test_read_only);
    ADD("/disk/flipped-byte", test_flipped_byte);
    ADD("/disk/truncated", test_truncated);
    ADD("/disk/truncated-while-open", test_truncated_while_open);
    ADD("/disk/no-database", test_no_database);
    ADD("/disk/full", test_full);
    ADD("/disk/four-processes", test_four_processes);
    ADD("/disk/killed", test_killed);
    return g_test_run();
}
