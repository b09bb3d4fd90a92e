/* The cache pair in a graph: what is encoded, what is found, and that nobody can tell the difference.
 *
 * @label short
 * @timeout 60
 */
#include "tests/data_lab.h"
#include <glib/gstdio.h>
#include <math.h>

static char *folder; /* of this test, removed at the end */

/* Lookup, two encoders, store; `lookup` and `picture` add lines to the nodes. */
static char *graph_text(const char *graph, const char *lookup, const char *picture)
{
    return g_strdup_printf(
        "[graph]\n%s\n[a]\nstage=t_items\n[lookup]\nstage=fp16_cache\nin=a\n%s\n"
        "[picture]\nstage=t_picture\nin=lookup\n%s\n[text]\nstage=t_text\nin=picture\n"
        "[store]\nstage=fp16_cache_store\nin=text\ncache=lookup\n[z]\nstage=t_got\nin=store\n",
        graph, lookup, picture);
}

static void remove_folder(const char *path)
{
    g_autofree char *command = g_strdup_printf("rm -rf '%s'", path);
    g_assert_true(g_spawn_command_line_sync(command, NULL, NULL, NULL, NULL));
}

/* `n` pictures: prefill if asked, then `epochs` of all of them, each `repeats` times in a row. */
static void prepare(gint64 n, gint64 epochs, gint64 repeats, gboolean prefill)
{
    data_lab_clean();
    lab_gives = LAB_REFERENCE;
    for (gint64 i = 0; prefill && i < n; i++)
        lab_reference(i, -1, i, n);
    if (prefill)
        lab_mark(FLOW_MARK_PREFILL_DONE, -1);
    for (gint64 e = 0; e < epochs; e++) {
        for (gint64 i = 0; i < n * repeats; i++)
            lab_reference(i / repeats, e, i, n * repeats);
        lab_mark(FLOW_MARK_EPOCH, e);
    }
}

/* Everything that came out, as one hash: fields with types and bytes, cursors, marks. */
static guint64 digest(void)
{
    guint64 h = 7;
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        h = flow_random_key(h, NULL,
                            (gint64[]){item->kind, item->cursor.epoch, item->cursor.position, item->n}, 4);
        for (guint f = 0; f < FLOW_FIELD_MAX; f++) {
            const FlowValue *v = flow_item_get(item, (FlowField)f);
            g_autofree char *sum = v ? g_compute_checksum_for_data(G_CHECKSUM_MD5, v->data, v->nbytes) : NULL;
            if (v)
                h = flow_random_key(h, sum, (gint64[]){f, v->type, v->ndim}, 3);
        }
    }
    return h;
}

/* Each sample has the rounded values that its encoders make, in order, and no trace of the cache. */
static void check_got(gint64 salt, guint samples)
{
    guint n = 0;
    gint64 last = -1;
    int keys = flow_field_find("cache_keys");
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK)
            continue;
        const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN),
                        *context = flow_item_get(item, FLOW_F_CONTEXT);
        const FlowValue *logvar = flow_item_get(item, FLOW_F_LATENT_LOGVAR);
        g_assert_true(mean->type == NET_F16 && logvar->type == NET_F16 && context->type == NET_F16);
        for (gsize j = 0; j < flow_value_count(mean); j++) {
            g_assert_cmpint(((guint16 *)mean->data)[j], ==, net_f32_to_f16(lab_latent(item, salt, j, 0)));
            g_assert_cmpint(((guint16 *)logvar->data)[j], ==, net_f32_to_f16(lab_latent(item, salt, j, 1)));
        }
        for (gsize j = 0; j < flow_value_count(context); j++)
            g_assert_cmpint(((guint16 *)context->data)[j], ==,
                            net_f32_to_f16(lab_state(flow_item_string(item, FLOW_F_CAPTION), j)));
        g_assert_cmpuint(item->filled, ==, 0);
        g_assert_false(item->pending);
        g_assert_null(flow_item_get(item, (FlowField)keys));
        gint64 at = item->cursor.epoch * 10000 + item->cursor.position;
        g_assert_cmpint(at, >, last);
        last = at;
        n++;
    }
    g_assert_cmpuint(n, ==, samples);
}

static const char *const counters[] = {
    "lookup.hits",      "lookup.misses",     "store.stored",       "lookup.bytes_peak",
    "lookup.evictions", "lookup.disk_reads", "lookup.disk_writes", NULL};
enum { HITS, MISSES, STORED, PEAK, EVICTIONS, READS, WRITES, COUNTERS };

/* -- filling and finding ------------------------------------------------------------ */

static void test_prefill_then_hits(void)
{
    double v[COUNTERS];
    g_autofree char *text = graph_text("", "", "workers=3");
    prepare(6, 3, 1, TRUE);
    data_lab_run(text, counters, v);
    check_got(0, 18); /* items that only fill the cache end at the store */
    g_assert_cmpint(lab_pictures, ==, 6);
    g_assert_cmpint(lab_texts, ==, 6);
    g_assert_cmpfloat(v[MISSES], ==, 6);
    g_assert_cmpfloat(v[HITS], ==, 18);
    g_assert_cmpfloat(v[STORED], ==, 18);
}

static void test_held_back_pass(void)
{
    g_autofree char *text = graph_text("", "", "");
    prepare(2, 1, 1, TRUE);
    flow_item_set_i32(g_ptr_array_index(lab_items, 1), FLOW_F_ROLE, (gint32[]){1}, 1);
    data_lab_run(text, NULL, NULL);
    const FlowItem *first = g_ptr_array_index(lab_got, 0), *mark = g_ptr_array_index(lab_got, 1);
    g_assert_cmpint(first->cursor.epoch, ==, -1);
    g_assert_cmpint(*flow_item_i64(first, FLOW_F_SAMPLE), ==, 1);
    g_assert_nonnull(flow_item_get(first, FLOW_F_LATENT_MEAN));
    g_assert_cmpint(mark->kind, ==, FLOW_MARK);
}

/* Cold, warm and holding nothing; any ring, any number of workers, slow or fast: the same bytes. */
static void test_same_bytes(void)
{
    const char *lookups[] = {"",
                             "ram=0",
                             "ram=2000",
                             "ram=2000\npolicy=lru",
                             "ram=3000\npolicy=lru_k",
                             "ram=4000\npolicy=foresight",
                             "admit=complex:0.7:0.3",
                             "admit=frequent:2",
                             "ram=0\ndisk=%s",
                             "ram=0\ndisk=%s",
                             "disk=%s",
                             "ram=4000\npolicy=foresight\ndisk=%s"};
    const char *graphs[] = {"ring=1", "ring=64"};
    guint64 expected = 0;
    remove_folder(folder);
    prepare(7, 3, 2, TRUE);
    for (guint g = 0; g < G_N_ELEMENTS(graphs); g++)
        for (guint l = 0; l < G_N_ELEMENTS(lookups); l++) {
            double v[COUNTERS];
            g_auto(GStrv) around = g_strsplit(lookups[l], "%s", 2);
            g_autofree char *lookup = g_strjoinv(folder, around);
            g_autofree char *text = graph_text(graphs[g], lookup, l % 2 ? "workers=4" : "ms=1");
            data_lab_run(text, counters, v);
            check_got(0, 42);
            guint64 found = digest();
            if (!expected)
                expected = found;
            if (found != expected)
                g_error("'%s' '%s' gives other bytes", graphs[g], lookups[l]);
            g_assert_cmpfloat(v[HITS] + v[MISSES], ==, 49);
            if (strstr(lookups[l], "ram="))
                g_assert_cmpfloat(v[PEAK], <=, 4000);
        }
}

/* -- what a key is made of ------------------------------------------------------------ */

static void disk_run(const char *picture, gint64 salt, gint64 pictures, gint64 texts)
{
    g_autofree char *lookup = g_strdup_printf("disk=%s", folder);
    g_autofree char *text = graph_text("", lookup, picture);
    data_lab_run(text, NULL, NULL);
    check_got(salt, 5);
    g_assert_cmpint(lab_pictures, ==, pictures);
    g_assert_cmpint(lab_texts, ==, texts);
}

/* Change a parameter, a caption, a file or a geometry and just that misses; change back and it hits. */
static void test_keys(void)
{
    remove_folder(folder);
    prepare(5, 1, 1, TRUE);
    disk_run("", 0, 5, 5);
    disk_run("", 0, 0, 0);
    disk_run("salt=1", 1, 5, 0); /* how latents are made is nothing to the text */
    disk_run("salt=1\nworkers=2\nms=1", 1, 0, 0);
    disk_run("", 0, 0, 0);
    for (guint i = 0; i < lab_items->len; i += 6) /* both uses of sample 0 */
        flow_item_set(g_ptr_array_index(lab_items, i), FLOW_F_CAPTION, flow_value_string("edited"));
    disk_run("", 0, 0, 1);
    for (guint i = 1; i < lab_items->len; i += 6) /* sample 1: another time of change */
        flow_item_set_i64(g_ptr_array_index(lab_items, i), FLOW_F_FILE_ID, (gint64[]){1, 101, 5000, 9, 9}, 5);
    disk_run("", 0, 1, 0);
    for (guint i = 2; i < lab_items->len; i += 6)
        flow_item_set_i32(g_ptr_array_index(lab_items, i), FLOW_F_GEOMETRY,
                          (gint32[]){64, 32, 64, 64, 0, 0, 0}, 7);
    disk_run("", 0, 1, 0);
    for (guint i = 2; i < lab_items->len; i += 6)
        flow_item_set_i32(g_ptr_array_index(lab_items, i), FLOW_F_GEOMETRY,
                          (gint32[]){64, 64, 64, 64, 0, 0, 0}, 7);
    disk_run("", 0, 0, 0);
    for (guint i = 3; i < lab_items->len; i += 6) /* another name is another path only */
        flow_item_set(g_ptr_array_index(lab_items, i), FLOW_F_PATH, flow_value_string("renamed.jpg"));
    disk_run("", 0, 0, 0);
}

/* By content: a file that is touched or copied hits, one that is changed misses. */
static void test_verify_hash(void)
{
    g_autofree char *pictures = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    g_autofree char *file = g_build_filename(pictures, "0.png", NULL);
    g_autofree char *lookup = g_strdup_printf("verify=hash\ndisk=%s", folder);
    g_autofree char *text = graph_text("", lookup, "");
    const char *contents[] = {"picture", "picture", "Picture"};
    const gint64 encoded[] = {1, 0, 1};
    remove_folder(folder);
    prepare(1, 2, 1, FALSE);
    for (guint i = 0; i < 3; i++) {
        g_assert_true(g_file_set_contents(file, contents[i], -1, NULL));
        for (guint j = 0; j < lab_items->len; j += 2) {
            flow_item_set(g_ptr_array_index(lab_items, j), FLOW_F_PATH, flow_value_string(file));
            flow_item_set_i64(g_ptr_array_index(lab_items, j), FLOW_F_FILE_ID, (gint64[]){1, 2, 7, i, i}, 5);
        }
        data_lab_run(text, NULL, NULL);
        g_assert_cmpint(lab_pictures, ==, encoded[i]);
    }
    g_unlink(file);
    data_lab_refused(text, "0.png");
    g_rmdir(pictures);
}

/* -- the same thing twice ------------------------------------------------------------- */

/* Repeats that are in flight together are made once. */
static void test_repeats(void)
{
    for (int disk = 0; disk < 2; disk++) {
        double v[COUNTERS];
        g_autofree char *lookup =
            g_strdup_printf("ram=%s\n%s%s", disk ? "0" : "1MiB", disk ? "disk=" : "", disk ? folder : "");
        g_autofree char *text = graph_text("ring=64", lookup, "ms=5\nworkers=2");
        remove_folder(folder);
        prepare(3, 1, 5, FALSE);
        data_lab_run(text, counters, v);
        check_got(0, 15);
        g_assert_cmpint(lab_pictures, ==, 3);
        g_assert_cmpint(lab_texts, ==, 3);
        g_assert_cmpfloat(v[STORED], ==, 9);
        g_assert_cmpfloat(v[WRITES], ==, disk ? 9 : 0);
        g_assert_cmpfloat(v[MISSES], ==, 3);
    }
}

/* If the first use fails, all uses of the picture do, and no other picture, though all have one caption. */
static void test_failed_first(void)
{
    for (int slow = 0; slow < 2; slow++) {
        g_autofree char *text =
            graph_text("ring=64", "", slow ? "bad=1\non_error=skip:99\nms=3" : "bad=1\non_error=skip:99");
        g_autofree char *skipping = g_strdup_printf("%s", text);
        char *store = strstr(skipping, "cache=lookup");
        g_autofree char *whole =
            g_strdup_printf("%.*scache=lookup\non_error=skip:99%s", (int)(store - skipping), skipping,
                            store + strlen("cache=lookup"));
        prepare(4, 2, 3, FALSE);
        for (guint i = 0; i < lab_items->len; i++) {
            FlowItem *item = g_ptr_array_index(lab_items, i);
            if (item->kind != FLOW_MARK)
                flow_item_set(item, FLOW_F_CAPTION, flow_value_string("a style"));
        }
        data_lab_run(whole, NULL, NULL);
        check_got(0, 18);
        for (guint i = 0; i < lab_got->len; i++) {
            const FlowItem *item = g_ptr_array_index(lab_got, i);
            g_assert_true(item->kind == FLOW_MARK || *flow_item_i64(item, FLOW_F_SAMPLE) != 1);
        }
    }
}

/* -- limits --------------------------------------------------------------------------- */

static double epoch_hits(const char *policy, const char *ring, gint64 epochs)
{
    enum { N = 40 };
    double v[COUNTERS];
    g_autofree char *lookup = g_strdup_printf("ram=40000\npolicy=%s\nring=%s", policy, ring);
    g_autofree char *text = graph_text("ring=1", lookup, "");
    data_lab_clean();
    for (gint64 e = 0; e < epochs; e++) {
        gint64 order[N];
        flow_random_shuffle((guint64)e, order, N);
        for (gint64 i = 0; i < N; i++)
            lab_reference(order[i], e, i, N);
        lab_mark(FLOW_MARK_EPOCH, e);
    }
    data_lab_run(text, counters, v);
    g_assert_cmpfloat(v[PEAK], <=, 40000);
    return v[HITS] / (double)(N * (epochs - 1));
}

/* About half of the set fits: static keeps what it has; knowing an epoch ahead is not worse, LRU is. */
static void test_policies(void)
{
    double fixed = epoch_hits("static", "4", 6), lru = epoch_hits("lru", "4", 6);
    double foresight = epoch_hits("foresight", "100", 6);
    g_test_message("static %.2f lru %.2f foresight %.2f", fixed, lru, foresight);
    g_assert_cmpfloat(fixed, >, 0.3);
    g_assert_cmpfloat(lru, <, fixed - 0.1);
    g_assert_cmpfloat(foresight, >, fixed - 0.12); /* its knowledge takes an eighth of the room */
}

static void test_overflow(void)
{
    double v[1];
    g_autofree char *text = graph_text("", "", "scale=1e6");
    prepare(2, 2, 1, FALSE);
    data_lab_run(text, (const char *const[]){"store.overflows", NULL}, v);
    g_assert_cmpfloat(v[0], >, 0);
    for (guint i = 0; i < lab_got->len; i++) {
        const FlowItem *item = g_ptr_array_index(lab_got, i);
        if (item->kind == FLOW_MARK)
            continue;
        const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN);
        g_assert_cmpint(mean->type, ==, NET_F32);
        g_assert_cmpfloat(((float *)mean->data)[3], ==, lab_latent(item, 0, 3, 0) * 1e6f);
        g_assert_cmpint(flow_item_get(item, FLOW_F_CONTEXT)->type, ==, NET_F16);
    }
}

static void test_full_precision(void)
{
    g_autofree char *lookup = g_strdup_printf("precision=full\ndisk=%s", folder);
    g_autofree char *full = graph_text("", lookup, "");
    g_autofree char *half_lookup = g_strdup_printf("disk=%s", folder);
    g_autofree char *half = graph_text("", half_lookup, "");
    remove_folder(folder);
    prepare(2, 2, 1, FALSE);
    for (int round = 0; round < 2; round++) {
        data_lab_run(full, NULL, NULL);
        g_assert_cmpint(lab_pictures, ==, round ? 0 : 2);
        const FlowItem *item = g_ptr_array_index(lab_got, 0);
        g_assert_cmpfloat(((float *)flow_item_get(item, FLOW_F_LATENT_MEAN)->data)[3], ==,
                          lab_latent(item, 0, 3, 0));
        data_lab_run(half, NULL, NULL); /* an entry of the other kind does not match */
        g_assert_cmpint(lab_pictures, ==, round ? 0 : 2);
        check_got(0, 4);
    }
}

/* -- mistakes ------------------------------------------------------------------------- */

static void test_mistakes(void)
{
    const struct {
        const char *lookup, *says;
    } bad[] = {
        {"ram=much", "ram = much"},
        {"ram=120%", "outside 0%..100%"},
        {"admit=some", "none of: all, complex"},
        {"disk=/dev/null/folder", "Not a directory"},
        {"disk=/dev/null", "is a file"},
        {"policy=fifo", "static, lru, lru_k, foresight"},
    };
    prepare(1, 1, 1, FALSE);
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autofree char *text = graph_text("", bad[i].lookup, "");
        data_lab_refused(text, bad[i].says);
    }
    data_lab_refused("[a]\nstage=t_items\n[l]\nstage=fp16_cache\nin=a\n"
                     "[s]\nstage=fp16_cache_store\nin=l\ncache=l\n[z]\nstage=t_got\nin=s\n",
                     "nothing to cache");
    data_lab_refused("[a]\nstage=t_items\n[t]\nstage=t_text\nin=a\n"
                     "[s]\nstage=fp16_cache_store\nin=t\ncache=t\n[z]\nstage=t_got\nin=s\n",
                     "needs 'cache_keys', which no node before it gives; fp16_cache gives it");
}

/* Nothing that names the picture reaches the key: two pictures would share an entry. */
static void test_nameless(void)
{
    g_autofree char *text = graph_text("", "", "");
    prepare(1, 1, 1, FALSE);
    lab_gives = "path caption sample geometry";
    data_lab_refused(text, "file_id");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    data_lab_init();
    folder = g_strdup_printf("%s/loraflow-cache-%d", g_get_tmp_dir(), (int)getpid());
    g_test_add_func("/cache/prefill-then-hits", test_prefill_then_hits);
    g_test_add_func("/cache/held-back", test_held_back_pass);
    g_test_add_func("/cache/same-bytes", test_same_bytes);
    g_test_add_func("/cache/keys", test_keys);
    g_test_add_func("/cache/verify-hash", test_verify_hash);
    g_test_add_func("/cache/repeats", test_repeats);
    g_test_add_func("/cache/failed-first", test_failed_first);
    g_test_add_func("/cache/policies", test_policies);
    g_test_add_func("/cache/overflow", test_overflow);
    g_test_add_func("/cache/full-precision", test_full_precision);
    g_test_add_func("/cache/mistakes", test_mistakes);
    g_test_add_func("/cache/nameless", test_nameless);
    int rc = g_test_run();
    data_lab_clean();
    remove_folder(folder);
    return rc;
}
