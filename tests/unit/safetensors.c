/* Reader and writer of safetensors: verdicts on hand-made files, round trips, files that change underneath.
 *
 * @label unit short
 */
#include "core/model/safetensors.h"
#include <fcntl.h>
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOOD "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
static const guint8 ONE_TWO[8] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
static char *folder;

static char *path_of(const char *name)
{
    return g_build_filename(folder, name, NULL);
}

static void store(const char *path, const void *data, gsize n)
{
    g_assert_true(g_file_set_contents(path, data, (gssize)n, NULL));
}

/* A file from a header, its claimed length, and data. */
static char *make(const char *head, gsize head_bytes, guint64 claimed, const void *data, gsize n)
{
    char *path = path_of("made.safetensors");
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    g_byte_array_append(bytes, (const guint8 *)&claimed, 8);
    g_byte_array_append(bytes, (const guint8 *)head, (guint)head_bytes);
    if (n)
        g_byte_array_append(bytes, data, (guint)n);
    store(path, bytes->data, bytes->len);
    return path;
}

static SafeFile *open_made(const char *head, const void *data, gsize n, GError **error)
{
    g_autofree char *path = make(head, strlen(head), strlen(head), data, n);
    return safe_open(path, error);
}

static void expect_refused(SafeFile *file, GError *error, const char *text)
{
    g_assert_null(file);
    g_assert_nonnull(error);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
    g_error_free(error);
}

static void refuse(const char *head, const void *data, gsize n, const char *text)
{
    GError *error = NULL;
    SafeFile *file = open_made(head, data, n, &error);
    expect_refused(file, error, text);
}

static void accept(const char *head, const void *data, gsize n, guint tensors)
{
    g_autoptr(GError) error = NULL;
    SafeFile *file = open_made(head, data, n, &error);
    guint found;
    g_assert_no_error(error);
    safe_tensors(file, &found);
    g_assert_cmpuint(found, ==, tensors);
    safe_close(file);
}

/* Header of 54 bytes: data at offset 62, not aligned. */
static void test_read(void)
{
    SafeFile *file = open_made(GOOD, ONE_TWO, 8, NULL);
    float x[2];
    guint16 h[2];
    const SafeTensor *w = safe_find(file, "w");
    /* E-10 */
    g_assert_cmpuint(w->offset, ==, 62);
    g_assert_cmpint(w->count, ==, 2);
    g_assert_true(safe_read(file, w, x, NET_F32, NULL));
    g_assert_true(x[0] == 1 && x[1] == 2);
    g_assert_true(safe_read(file, w, h, NET_F16, NULL));
    g_assert_true(h[0] == 0x3c00 && h[1] == 0x4000);
    g_assert_true(safe_read(file, w, h, NET_BF16, NULL));
    g_assert_true(h[0] == 0x3f80 && h[1] == 0x4000);
    g_assert_cmpmem(safe_data(file, w), 8, ONE_TWO, 8);
    g_assert_null(safe_find(file, "v"));
    safe_close(file);
}

static void test_dtypes(void)
{
    static const struct {
        const char *dtype;
        guint bytes;
        guint8 data[8];
        gboolean readable;
    } cases[] = {
        {"F32", 4, {0, 0, 0x80, 0x3f}, TRUE},
        {"F16", 2, {0, 0x3c}, TRUE},
        {"BF16", 2, {0x80, 0x3f}, TRUE},
        {"F64", 8, {0}, FALSE},
        {"I8", 1, {1}, FALSE},
        {"F8_E4M3", 1, {0x38}, FALSE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *head =
            g_strdup_printf("{\"w\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[0,%u]}}",
                            cases[i].dtype, cases[i].bytes);
        g_autoptr(GError) error = NULL;
        SafeFile *file = open_made(head, cases[i].data, cases[i].bytes, NULL);
        float x = 0;
        g_assert_nonnull(file);
        g_assert_cmpint(safe_read(file, safe_find(file, "w"), &x, NET_F32, &error), ==, cases[i].readable);
        if (cases[i].readable)
            g_assert_true(x == 1);
        else
            g_assert_nonnull(strstr(error->message, "of tensor w not supported"));
        safe_close(file);
    }
    /* E-04 */
    refuse("{\"w\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", ONE_TWO, 4,
           "dtype f32 of tensor w not supported");
    refuse("{\"w\":{\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,16]}}", NULL, 0,
           "dtype F128 of tensor w not supported");
    refuse("{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", ONE_TWO, 2, "whole byte");
}

static void test_lengths(void)
{
    static const struct {
        guint64 claimed;
        const char *text;
    } cases[] = {
        {100000001, "header length 100000001 (limit 100000000)"},
        {4096, "not a complete safetensors file (header says 4104 bytes, file has 70)"},
        {G_MAXUINT64, "header length 18446744073709551615"},
        {0, "not a safetensors header"},
        {53, "not a safetensors header"},
        {55, "not a safetensors header"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        GError *error = NULL;
        g_autofree char *path = make(GOOD, strlen(GOOD), cases[i].claimed, ONE_TWO, 8);
        /* E-05 */
        SafeFile *file = safe_open(path, &error);
        expect_refused(file, error, cases[i].text);
    }
}

static void test_other_files(void)
{
    static const struct {
        const char *data;
        guint n;
        const char *text;
    } cases[] = {
        {"\1\0\0", 3, "3 bytes, the shortest has 10"},
        {"", 0, "the file is empty"},
        {"<!DOCTYPE html><html>", 21, "HTML page"},
        {"\n <html>\n", 9, "HTML page"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", 57, "Git LFS pointer"},
        {"PK\3\4\24\0\0\0\0\0\0\0\0\0\0\0", 16, "pickled zip"},
        {"\x80\2}q\0X\0\0\0\0", 10, "pickled checkpoint"},
        {"{\"metadata\":{\"total_size\":1}}", 29, "JSON file"},
        {"GGUF\3\0\0\0\0\0\0\0", 12, "GGUF"},
    };
    g_autofree char *path = path_of("other.safetensors");
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        GError *error = NULL;
        /* E-05 */
        store(path, cases[i].data, cases[i].n);
        SafeFile *file = safe_open(path, &error);
        expect_refused(file, error, cases[i].text);
    }
    GError *error = NULL;
    SafeFile *file = safe_open(folder, &error);
    expect_refused(file, error, "a folder, not a file");
    g_autofree char *none = path_of("none.safetensors");
    error = NULL;
    file = safe_open(none, &error);
    g_assert_error(error, MODEL_ERROR, MODEL_ERROR_MISSING);
    expect_refused(file, error, "No such file");
    g_autofree char *fifo = path_of("pipe.safetensors");
    g_assert_cmpint(mkfifo(fifo, 0600), ==, 0);
    error = NULL;
    file = safe_open(fifo, &error);
    expect_refused(file, error, "not a file");
}

static void test_metadata(void)
{
#define META(m) "{\"__metadata__\":" m ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
    /* E-06 */
    accept(META("{}"), ONE_TWO, 8, 1);
    accept(META("null"), ONE_TWO, 8, 1);
    accept("{\"__metadata__\":{\"k\":\"v\"}}", NULL, 0, 0);
    accept("{}", NULL, 0, 0);
    refuse(META("{\"step\":10}"), ONE_TWO, 8, "__metadata__ value of step is not a string");
    refuse(META("[]"), ONE_TWO, 8, "not an object of strings");
    SafeFile *file = open_made(META("{\"k\":\"v\"}"), ONE_TWO, 8, NULL);
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "k"), ==, "v");
    safe_close(file);
}

static void test_entries(void)
{
#define AB(a, b)                                                                                             \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" a                                            \
    "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" b "}}"
#define W(shape, offsets) "{\"w\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    /* E-07 */
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
           "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
           ONE_TWO, 8, "duplicate tensor name w");
    refuse("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", ONE_TWO, 4,
           "duplicate key dtype");
    /* E-08 */
    refuse(AB("[0,4]", "[0,4]"), ONE_TWO, 4, "they overlap");
    refuse(AB("[0,4]", "[8,12]"), ONE_TWO, 8, "tensor b begins at 8 but a ends at 4: there is a hole");
    accept(AB("[4,8]", "[0,4]"), ONE_TWO, 8, 2);
    refuse(GOOD, "\0\0\0\0\0\0\0\0\xff\xff", 10, "2 bytes after the last tensor");
    refuse(GOOD, ONE_TWO, 4, "header says 70 bytes, file has 66");
    refuse(W("[1000,1000]", "[0,8]"), ONE_TWO, 8, "tensor w needs 4000000 bytes");
    refuse(W("[2]", "[8,0]"), ONE_TWO, 8, "data_offsets are 8 to 0");
    refuse(W("[2]", "[4,12]"), ONE_TWO, 8, "hole");
    refuse(W("[2]", "[0,8.0]"), ONE_TWO, 8, "'data_offsets'");
    refuse(W("[2]", "[0]"), ONE_TWO, 8, "'data_offsets'");
    refuse(W("[2.0]", "[0,8]"), ONE_TWO, 8, "not a whole number");
    refuse(W("[-2]", "[0,8]"), ONE_TWO, 8, "not a whole number");
    refuse(W("3", "[0,8]"), ONE_TWO, 8, "'shape'");
    refuse(W("[1,1,1,1,1,1,1,1,2]", "[0,8]"), ONE_TWO, 8, "more than 8");
    refuse(W("[4294967296,4294967296]", "[0,0]"), NULL, 0, "overflows");
    refuse(W("[2305843009213693952,2]", "[0,0]"), NULL, 0, "overflows");
    refuse("{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", ONE_TWO, 8, "no 'dtype'");
    refuse("{\"w\":3}", ONE_TWO, 8, "no 'dtype'");
    /* E-11 */
    accept("{\"z\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]},"
           "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
           ONE_TWO, 8, 2);
    accept(W("[]", "[0,4]"), ONE_TWO, 4, 1);
    refuse(W("[1]", "[0,0]"), NULL, 0, "tensor w needs 4 bytes");
    accept("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"extra\":[1.5]}}", ONE_TWO, 8, 1);
}

static void test_json(void)
{
#define NAMED(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
    static const struct {
        const char *head, *name;
    } good[] = {
        {NAMED("\\u0077"), "w"}, {NAMED("\\ud83d\\ude42"), "🙂"},
        {NAMED("日本"), "日本"}, {NAMED("a\\\"b\\\\"), "a\"b\\"},
        {GOOD "   \n", "w"},     {"  " GOOD, "w"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(good); i++) {
        SafeFile *file = open_made(good[i].head, ONE_TWO, 8, NULL);
        g_assert_nonnull(file);
        /* E-18 */
        g_assert_nonnull(safe_find(file, good[i].name));
        safe_close(file);
    }
    /* E-18 */
    refuse(NAMED("\377"), ONE_TWO, 8, "not a safetensors header");
    refuse(NAMED("\\ud83d"), ONE_TWO, 8, "not a safetensors header");
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},}", ONE_TWO, 8, "header");
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[NaN],\"data_offsets\":[0,8]}}", ONE_TWO, 8, "header");
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", ONE_TWO, 8,
           "header");
    refuse("[]", NULL, 0, "no JSON object");
    g_autofree char *nul = g_strconcat(GOOD, "....", NULL);
    memset(nul + strlen(GOOD), 0, 4);
    g_autofree char *path = make(nul, strlen(GOOD) + 4, strlen(GOOD) + 4, ONE_TWO, 8);
    GError *error = NULL;
    SafeFile *file = safe_open(path, &error);
    expect_refused(file, error, "not a safetensors header");
    g_autofree char *name = g_strnfill(65536, 'n');
    g_autofree char *head =
        g_strdup_printf("{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    file = open_made(head, ONE_TWO, 8, NULL);
    g_assert_nonnull(safe_find(file, name));
    safe_close(file);
    refuse(head, ONE_TWO, 4, "not a complete"); /* and the name stays out of the message */
}

/* Every prefix of a good file is refused. */
static void test_cut(void)
{
    g_autofree char *path = make(GOOD, strlen(GOOD), strlen(GOOD), ONE_TWO, 8);
    g_autofree char *bytes = NULL;
    gsize n;
    g_assert_true(g_file_get_contents(path, &bytes, &n, NULL));
    for (gsize i = 0; i < n; i++) {
        g_autoptr(GError) error = NULL;
        store(path, bytes, i);
        g_assert_null(safe_open(path, &error));
        g_assert_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT);
    }
}

static void test_cut_while_open(void)
{
    g_autoptr(GError) error = NULL;
    float x[2];
    g_autofree char *path = make(GOOD, strlen(GOOD), strlen(GOOD), ONE_TWO, 8);
    SafeFile *file = safe_open(path, NULL);
    g_assert_cmpint(truncate(path, 64), ==, 0);
    g_assert_false(safe_read(file, safe_find(file, "w"), x, NET_F32, &error));
    /* E-14 */
    g_assert_nonnull(strstr(error->message, "the file was cut short"));
    g_assert_nonnull(strstr(error->message, "tensor w"));
    safe_close(file);
}

/* Reads a file of the reference writer and writes the same bytes. */
static void rewrite(const char *source)
{
    g_autofree char *target = path_of("rewritten.safetensors");
    g_autoptr(GError) error = NULL;
    SafeFile *file = safe_open(source, &error);
    g_assert_no_error(error);
    guint n;
    const SafeTensor *tensors = safe_tensors(file, &n);
    g_autofree SafeEntry *entries = g_new0(SafeEntry, n);
    for (guint i = 0; i < n; i++) { /* backwards: the order must come from the writer */
        const SafeTensor *t = &tensors[n - 1 - i];
        entries[i] =
            (SafeEntry){t->name, (NetType)t->type, t->ndim, {0}, safe_data(file, t), (NetType)t->type};
        memcpy(entries[i].shape, t->shape, sizeof t->shape);
    }
    safe_write(target, entries, n, safe_metadata(file), NULL, &error);
    g_assert_no_error(error);
    safe_close(file);
    g_autofree char *a = NULL, *b = NULL;
    gsize na, nb;
    g_assert_true(g_file_get_contents(source, &a, &na, NULL));
    g_assert_true(g_file_get_contents(target, &b, &nb, NULL));
    g_assert_cmpmem(a, na, b, nb);
}

static void test_rewrite(void)
{
    g_autoptr(GDir) dir = g_dir_open("tests/fixtures/lora", 0, NULL);
    guint count = 0;
    for (const char *name; (name = g_dir_read_name(dir)); count++) {
        g_autofree char *path = g_build_filename("tests/fixtures/lora", name, NULL);
        rewrite(path);
    }
    g_assert_cmpuint(count, ==, 10);
    rewrite("tests/fixtures/golden/tiny-sd.forward.safetensors"); /* I64, F32 and U8 in one file */
    rewrite("tests/fixtures/tiny-sd/text_encoder/model.safetensors");
}

static SafeEntry entry(const char *name, NetType type, const float *data, gint64 n)
{
    return (SafeEntry){.name = name, .type = type, .ndim = 1, .shape = {n}, .data = data, .source = NET_F32};
}

/* The worked example of the specification, bit for bit. */
static void test_write_example(void)
{
    static const float data[2] = {1, 2};
    g_autofree char *path = path_of("example.safetensors"), *bytes = NULL;
    SafeEntry a = entry("a", NET_F32, data, 2);
    gsize n;
    g_assert_true(safe_write(path, &a, 1, NULL, NULL, NULL));
    g_assert_true(g_file_get_contents(path, &bytes, &n, NULL));
    g_assert_cmpmem(bytes, n,
                    "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  "
                    "\0\0\x80\x3f\0\0\0\x40",
                    72);
}

static void test_write_rounding(void)
{
    static const float data[] = {1.00048828125f, 1.00390625f, 70000, -1e30f, 1e-9f, 0, INFINITY, -NAN};
    g_autofree char *path = path_of("rounded.safetensors");
    const guint n = G_N_ELEMENTS(data);
    SafeEntry e[] = {entry("h", NET_F16, data, n), entry("b", NET_BF16, data, n)};
    SafeStats stats = {7, 7, 7};
    guint16 h[8], b[8];
    g_assert_true(safe_write(path, e, 2, NULL, &stats, NULL));
    SafeFile *file = safe_open(path, NULL);
    g_assert_true(safe_read(file, safe_find(file, "h"), h, NET_F16, NULL));
    g_assert_true(safe_read(file, safe_find(file, "b"), b, NET_BF16, NULL));
    safe_close(file);
    /* E-19 */
    g_assert_cmphex(h[0], ==, 0x3c00);
    g_assert_cmphex(b[1], ==, 0x3f80);
    g_assert_cmphex(h[2], ==, 0x7bff); /* 65504 and not infinity */
    g_assert_cmphex(h[3], ==, 0xfbff);
    g_assert_cmphex(h[4], ==, 0);
    g_assert_cmphex(h[6], ==, 0x7c00); /* what was infinite stays so */
    g_assert_cmphex(h[7] & 0x7c00, ==, 0x7c00);
    g_assert_cmpuint(stats.overflowed, ==, 2);
    g_assert_cmpuint(stats.flushed, ==, 1);
    g_assert_cmpuint(stats.nonzero, ==, 14);
}

static void test_write_refused(void)
{
    static const float data[2] = {1, 2};
    g_autofree char *path = path_of("refused.safetensors"), *temporary = path_of("refused.safetensors.tmp");
    SafeEntry twice[] = {entry("a", NET_F32, data, 2), entry("a", NET_F16, data, 2)};
    SafeEntry reserved = entry("__metadata__", NET_F32, data, 2), bad = entry("\377", NET_F32, data, 2);
    SafeEntry type = entry("t", NET_NF4, data, 2), ints = entry("i", NET_I32, data, 2);
    const SafeEntry *all[] = {twice, &reserved, &bad, &type, &ints};
    for (guint i = 0; i < G_N_ELEMENTS(all); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(safe_write(path, all[i], i ? 1 : 2, NULL, NULL, &error));
        g_assert_nonnull(error);
        g_assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
        g_assert_false(g_file_test(temporary, G_FILE_TEST_EXISTS));
    }
    g_autoptr(GError) error = NULL;
    g_assert_false(safe_write("no/such/folder/x.safetensors", twice, 1, NULL, NULL, &error));
    g_assert_error(error, MODEL_ERROR, MODEL_ERROR_IO);
    g_clear_error(&error);
    g_assert_false(safe_write(folder, twice, 1, NULL, NULL, &error));
    g_assert_nonnull(strstr(error->message, "is not a file"));
    g_clear_error(&error);
    /* A file that is being written by somebody else is left alone. */
    int fd = open(temporary, O_CREAT | O_WRONLY, 0600);
    g_assert_cmpint(flock(fd, LOCK_EX), ==, 0);
    g_assert_false(safe_write(path, twice, 1, NULL, NULL, &error));
    g_assert_nonnull(strstr(error->message, "another program"));
    close(fd);
    g_assert_true(safe_write(path, twice, 1, NULL, NULL, NULL)); /* a left-over is no obstacle */
    g_assert_false(g_file_test(temporary, G_FILE_TEST_EXISTS));
}

/* Saving over the file that is open for reading (resume and output at one path). */
static void test_write_over_input(void)
{
    g_autofree char *path = make(GOOD, strlen(GOOD), strlen(GOOD), ONE_TWO, 8);
    SafeFile *file = safe_open(path, NULL);
    const SafeTensor *w = safe_find(file, "w");
    static const float other[3] = {5, 6, 7};
    SafeEntry e = entry("v", NET_F32, other, 3);
    float x[2];
    g_assert_true(safe_write(path, &e, 1, NULL, NULL, NULL));
    /* E-14 */
    g_assert_true(safe_read(file, w, x, NET_F32, NULL));
    g_assert_true(x[0] == 1 && x[1] == 2);
    safe_close(file);
    file = safe_open(path, NULL);
    g_assert_nonnull(safe_find(file, "v"));
    safe_close(file);
}

static void test_write_text(void)
{
    static const float data[2] = {1, 2};
    g_autofree char *path = path_of("text.safetensors"), *bytes = NULL;
    g_autoptr(GHashTable) metadata = g_hash_table_new(g_str_hash, g_str_equal);
    const char *odd = "quote \" back \\ line\n tab\t bell\a 日本 🙂 /";
    g_hash_table_insert(metadata, (gpointer) "b", (gpointer)odd);
    g_hash_table_insert(metadata, (gpointer) "a", (gpointer) "10");
    SafeEntry e = entry("a \"name\"\n", NET_F32, data, 2);
    g_assert_true(safe_write(path, &e, 1, metadata, NULL, NULL));
    g_assert_true(g_file_get_contents(path, &bytes, NULL, NULL));
    /* E-06 */
    g_assert_true(g_str_has_prefix(bytes + 8, "{\"__metadata__\":{\"a\":\"10\",\"b\":\"quote \\\" back \\\\ "
                                              "line\\n tab\\t bell\\u0007 日本 🙂 /\"},"));
    /* E-10 */
    g_assert_cmpint(bytes[0] % 8, ==, 0);
    SafeFile *file = safe_open(path, NULL);
    g_assert_cmpstr(g_hash_table_lookup(safe_metadata(file), "b"), ==, odd);
    g_assert_nonnull(safe_find(file, "a \"name\"\n"));
    safe_close(file);
    g_hash_table_insert(metadata, (gpointer) "c", (gpointer) "\377");
    g_assert_false(safe_write(path, &e, 1, metadata, NULL, NULL));
}

/* Against SHA-256 of the bytes of a written file. */
static void test_hashes(void)
{
    const gsize n = 300000; /* 1.2 MB: reaches into the window of the short hash */
    g_autofree float *data = g_new(float, n);
    for (gsize i = 0; i < n; i++)
        data[i] = (float)i;
    g_autofree char *path = path_of("hash.safetensors"), *bytes = NULL, *sha = NULL, *legacy = NULL;
    gsize size;
    SafeEntry e = entry("w", NET_F32, data, (gint64)n);
    g_assert_true(safe_write(path, &e, 1, NULL, NULL, NULL));
    g_assert_true(safe_hashes(&e, 1, NULL, &sha, &legacy, NULL));
    g_assert_true(g_file_get_contents(path, &bytes, &size, NULL));
    guint64 head;
    memcpy(&head, bytes, 8);
    g_autofree char *all =
        g_compute_checksum_for_data(G_CHECKSUM_SHA256, (guchar *)bytes + 8 + head, size - 8 - head);
    g_autofree char *window =
        g_compute_checksum_for_data(G_CHECKSUM_SHA256, (guchar *)bytes + 0x100000, 0x10000);
    window[8] = 0;
    g_assert_cmpstr(sha, ==, all);
    g_assert_cmpstr(legacy, ==, window);
}

static void test_empty(void)
{
    g_autofree char *path = path_of("empty.safetensors");
    guint n;
    g_assert_true(safe_write(path, NULL, 0, NULL, NULL, NULL));
    SafeFile *file = safe_open(path, NULL);
    safe_tensors(file, &n);
    g_assert_cmpuint(n, ==, 0);
    safe_close(file);
}

static void remove_folder(void)
{
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *path = path_of(name);
        g_assert_false(g_str_has_suffix(name, ".tmp"));
        g_unlink(path);
    }
    g_rmdir(folder);
    g_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    g_test_add_func("/safetensors/read", test_read);
    g_test_add_func("/safetensors/dtypes", test_dtypes);
    g_test_add_func("/safetensors/lengths", test_lengths);
    g_test_add_func("/safetensors/other-files", test_other_files);
    g_test_add_func("/safetensors/metadata", test_metadata);
    g_test_add_func("/safetensors/entries", test_entries);
    g_test_add_func("/safetensors/json", test_json);
    g_test_add_func("/safetensors/cut", test_cut);
    g_test_add_func("/safetensors/cut-while-open", test_cut_while_open);
    g_test_add_func("/safetensors/rewrite", test_rewrite);
    g_test_add_func("/safetensors/write-example", test_write_example);
    g_test_add_func("/safetensors/write-rounding", test_write_rounding);
    g_test_add_func("/safetensors/write-refused", test_write_refused);
    g_test_add_func("/safetensors/write-over-input", test_write_over_input);
    g_test_add_func("/safetensors/write-text", test_write_text);
    g_test_add_func("/safetensors/hashes", test_hashes);
    g_test_add_func("/safetensors/empty", test_empty);
    int status = g_test_run();
    remove_folder();
    return status;
}
