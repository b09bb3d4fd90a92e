/* Deadlocks are found within a second and named; slow graphs are left alone.
 *
 * @label short
 * @timeout 60
 */
#include "tests/graph_lab.h"
#include <unistd.h>

/* tee -> gate -> zip, tee -> zip: the gate wants 8 items, the other ring holds 4. */
static char *diamond(const char *graph_keys, const char *ring, const char *declare, const char *workers)
{
    return g_strdup_printf("[graph]\n%s\n[a]\nstage=t_count\nitems=40\n[w]\nstage=t_work\nin=a\nworkers=%s\n"
                           "[g]\nstage=gate\nitems=8\ndeclare=%s\nin=w\nring=4\n"
                           "[z]\nstage=t_zip\nin.a=g\nin.b=w\n%s\n[s]\nstage=t_sink\nin=z\n",
                           graph_keys, workers, declare, ring);
}

static void test_deadlock(void)
{
    const char *const workers[] = {"1", "4"};
    for (guint w = 0; w < 2; w++) {
        g_autofree char *text = diamond("", "ring.b=4", "no", workers[w]), *said = NULL;
        gint64 start = g_get_monotonic_time();
        g_assert_cmpint(lab_run(text, NULL, &said), ==, FLOW_RUN_STALLED);
        g_assert_cmpint(g_get_monotonic_time() - start, <,
                        1000000 * (g_getenv("LORAFLOW_SANITIZE")[0] ? 4 : 1));
        g_assert_nonnull(strstr(said, "deadlock:"));
        g_assert_nonnull(strstr(said, "[w] waits for space on w.out -> z.b (4 of 4)"));
        /* a parallel worker holds its ticket there while it waits for the other one */
        g_assert_nonnull(strstr(said, w ? "[g] waits for items on w.out -> g.in (1 of 4)"
                                        : "[g] waits for items on w.out -> g.in (0 of 4)"));
        g_assert_nonnull(strstr(said, "[z] waits for items on g.out -> z.a (0 of 16)"));
        g_assert_nonnull(strstr(said, "; set ring.b = 8 in [z], lab.ini:20"));
        /* those that only suffer from it are not part of the cycle */
        g_assert_null(strstr(said, "[s] waits"));
        g_assert_null(strstr(said, "[a] waits"));
    }
}

/* The state of the rings is left as a picture where that is asked for. */
static void test_dot(void)
{
    g_autofree char *text = diamond("name=wedged", "ring.b=4", "no", "1"), *said = NULL, *dot = NULL;
    g_autofree char *folder = g_dir_make_tmp("loraflow-dot-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(folder, "wedged-stall.dot", NULL);
    g_setenv("FLOW_DUMP_DOT_DIR", folder, TRUE);
    g_assert_cmpint(lab_run(text, NULL, &said), ==, FLOW_RUN_STALLED);
    g_unsetenv("FLOW_DUMP_DOT_DIR");
    g_assert_true(g_file_get_contents(path, &dot, NULL, NULL));
    g_assert_nonnull(strstr(dot, "\"w\" -> \"z\" [label=\"> b 4/4\" color=red"));
    g_assert_cmpint(unlink(path), ==, 0);
    g_assert_cmpint(rmdir(folder), ==, 0);
}

static void test_wide_enough(void)
{
    g_autofree char *text = diamond("", "ring.b=16", "no", "2");
    g_assert_cmpint(lab_run(text, NULL, NULL), ==, FLOW_RUN_DONE);
    g_assert_true(g_str_has_suffix(lab_seen->str, "<end>"));
}

/* on_stall = grow: the run ends well, with a word about the key. */
static void test_grow(void)
{
    g_autofree char *text = diamond("on_stall=grow", "ring.b=2", "no", "2");
    g_assert_cmpint(lab_run(text, NULL, NULL), ==, FLOW_RUN_DONE);
    g_assert_nonnull(strstr(lab_seen->str, "39=118118 <epoch> <end>"));
}

/* Limits in bytes deadlock too, and the advice names that key. */
static void test_bytes(void)
{
    g_autofree char *text = diamond("", "bytes.b=60", "no", "1"), *said = NULL;
    g_assert_cmpint(lab_run(text, NULL, &said), ==, FLOW_RUN_STALLED);
    g_assert_nonnull(strstr(said, "bytes)"));
    g_assert_nonnull(strstr(said, "; raise bytes.b in [z], lab.ini:20"));
}

/* A part of the graph is dead while another part works. */
static void test_local(void)
{
    g_autofree char *text = diamond("", "ring.b=4", "no", "1"), *said = NULL;
    g_autofree char *both = g_strconcat(
        text, "[x]\nstage=t_count\nepochs=0\n[y]\nstage=t_work\nms=1\nin=x\n[n]\nstage=null\nin=y\n", NULL);
    g_assert_cmpint(lab_run(both, NULL, &said), ==, FLOW_RUN_STALLED);
    g_assert_nonnull(strstr(said, "[w] waits for space"));
    g_assert_null(strstr(said, "[y]"));
}

/* Waiting for a slow node is no deadlock; after `stall` there is one warning that names it. */
static void test_slow(void)
{
    if (g_test_subprocess()) {
        FlowRunOptions options = {.stall = 0.5};
        lab_run("[a]\nstage=t_count\nitems=2\n[b]\nstage=t_work\nin=a\nms=1600\n[s]\nstage=t_sink\nin=b\n",
                &options, NULL);
        g_assert_cmpstr(lab_seen->str, ==, "0=1 1=4 <epoch> <end>");
        return;
    }
    g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
    g_test_trap_assert_passed();
    g_test_trap_assert_stderr(
        "*lab.ini:4: warning: ?b? nothing has moved for ?.? s; it has been at item-0 for ?.? s*");
    g_test_trap_assert_stderr_unmatched("*deadlock*");
}

/* Many short waits, few cores: nothing is taken for a deadlock. */
static void test_no_false_alarm(void)
{
    g_setenv("FLOW_STALL", "20", TRUE);
    g_autofree char *text = diamond("ring=1", "ring.b=9", "yes", "4");
    g_assert_cmpint(lab_run(text, NULL, NULL), ==, FLOW_RUN_DONE);
    g_unsetenv("FLOW_STALL");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_setenv("LORAFLOW_SANITIZE", "", FALSE);
    lab_add_stages();
    g_test_add_func("/stall/deadlock", test_deadlock);
    g_test_add_func("/stall/dot", test_dot);
    g_test_add_func("/stall/wide_enough", test_wide_enough);
    g_test_add_func("/stall/grow", test_grow);
    g_test_add_func("/stall/bytes", test_bytes);
    g_test_add_func("/stall/local", test_local);
    g_test_add_func("/stall/slow", test_slow);
    g_test_add_func("/stall/no_false_alarm", test_no_false_alarm);
    return g_test_run();
}
