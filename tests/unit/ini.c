/* Graph files: the texts of all errors (tests/graphs/ini/NAME.ini against NAME.expected, and the merged
 * result against NAME.resolved), encodings, limits, merging, the command line, variables.
 *
 * LORAFLOW_UPDATE=1 writes the expected files anew; look at the difference before it is committed.
 *
 * @label short
 */
#include "core/flow/ini.h"
#include <glib/gstdio.h>
#include <string.h>

#define FOLDER "tests/graphs/ini"

static void compare(const char *file, const char *text)
{
    g_autofree char *expected = NULL;
    if (g_getenv("LORAFLOW_UPDATE")) {
        g_assert_true(g_file_set_contents(file, text, -1, NULL));
        return;
    }
    if (!g_file_get_contents(file, &expected, NULL, NULL))
        g_error("%s is missing", file);
    if (strcmp(expected, text))
        g_error("%s differs; this is what came:\n%s", file, text);
}

static void golden(const char *name)
{
    g_autofree char *path = g_strdup_printf(FOLDER "/%s.ini", name);
    g_autofree char *expected = g_strdup_printf(FOLDER "/%s.expected", name);
    g_autofree char *resolved = g_strdup_printf(FOLDER "/%s.resolved", name);
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read(path, NULL, NULL, messages);
    g_autofree char *text = flow_messages_text(messages);
    compare(expected, text);
    if (messages->errors == 0) {
        g_autofree char *all = flow_ini_text(ini, TRUE);
        g_autofree char *here = g_get_current_dir();
        g_auto(GStrv) parts = g_strsplit(all, here, -1); /* expected files name no machine */
        g_autofree char *portable = g_strjoinv("CWD", parts);
        compare(resolved, portable);
    }
    flow_ini_free(ini);
    flow_messages_free(messages);
}

/* F-03 (values), F-04 and F-06 (names), F-08 (duplicate), F-09 and F-10 (sections) */
static void test_golden(void)
{
    g_autoptr(GDir) folder = g_dir_open(FOLDER, 0, NULL);
    g_assert_nonnull(folder);
    g_setenv("LORAFLOW_TEST_HOME", "/home/someone", TRUE);
    g_unsetenv("LORAFLOW_TEST_UNSET");
    guint n = 0;
    for (const char *name; (name = g_dir_read_name(folder));) {
        if (!g_str_has_suffix(name, ".ini"))
            continue;
        g_autofree char *stem = g_strndup(name, strlen(name) - 4);
        golden(stem);
        n++;
    }
    g_assert_cmpuint(n, >=, 15);
}

/* -- texts from memory ------------------------------------------------------------ */

static FlowIni *last;

/* Reads a text, keeps the result in `last`, returns the messages (borrowed until the next call). */
static const char *read_len(const char *text, gsize len, char *const *sets, char *const *vars)
{
    static char *said;
    FlowMessages *messages = flow_messages_new();
    flow_ini_free(last);
    last = flow_ini_read_text("t.ini", "/base", text, len, sets, vars, messages);
    g_free(said);
    said = flow_messages_text(messages);
    flow_messages_free(messages);
    return said;
}

static const char *read_text(const char *text)
{
    return read_len(text, strlen(text), NULL, NULL);
}

static const char *value(const char *section, const char *key)
{
    FlowIniSection *s = flow_ini_section(last, section);
    FlowIniValue *v = s ? flow_ini_value(s, key) : NULL;
    return v ? v->value : NULL;
}

static void test_encodings(void)
{
    /* F-09 */
    g_assert_cmpstr(read_text("\xef\xbb\xbf[a]\nx = 1\n"), ==, "");
    g_assert_cmpstr(value("a", "x"), ==, "1");
    g_assert_cmpstr(read_text("[a]\r\nx = 1\r\ny = 2\r\n"), ==, "");
    g_assert_cmpstr(value("a", "x"), ==, "1");
    g_assert_cmpstr(read_text("[a]\nx = 1"), ==, "");
    g_assert_cmpstr(value("a", "x"), ==, "1");
    g_assert_cmpstr(read_text("[a]\rx = 1\ry = 2\r"), ==,
                    "t.ini:1: error: lines end with CR alone; save the file with LF (Unix) line ends\n");
    g_assert_cmpstr(read_text("[a]\nx = 1\ry = 2\n"), ==,
                    "t.ini:2: error: there is a control character (0x0d) in the line\n");
    g_assert_cmpstr(read_text("[a]\nx = \033[31m\n"), ==,
                    "t.ini:2: error: there is a control character (0x1b) in the line\n");
    static const char utf16le[] = "\xff\xfe[\0a\0]\0\n\0", utf16be[] = "\xfe\xff\0[\0a\0]\0\n";
    g_assert_cmpstr(read_len(utf16le, sizeof utf16le - 1, NULL, NULL), ==,
                    "t.ini:1: error: the file is UTF-16; save it as UTF-8\n");
    g_assert_cmpstr(read_len(utf16be, sizeof utf16be - 1, NULL, NULL), ==,
                    "t.ini:1: error: the file is UTF-16; save it as UTF-8\n");
    static const char nul[] = "[a]\nx = 1\ny = a\0b\n";
    g_assert_cmpstr(read_len(nul, sizeof nul - 1, NULL, NULL), ==,
                    "t.ini:3: error: there is a NUL byte: not a text file, or UTF-16; save it as UTF-8\n");
    g_assert_cmpstr(read_text("[a]\nx = \xe9t\xe9\n"), ==,
                    "t.ini:2: error: there are bytes that are not UTF-8; save the file as UTF-8\n");
}

/* F-05: nothing is ever cut; what is too long is refused. */
static void test_lengths(void)
{
    for (gsize n = 190; n <= 260; n += 10) {
        g_autofree char *filler = g_strnfill(n, 'v');
        g_autofree char *text = g_strdup_printf("[a]\nx = %s/batch=9\n# %s tail=5\ny = 1\n", filler, filler);
        g_assert_cmpstr(read_text(text), ==, "");
        g_assert_cmpuint(strlen(value("a", "x")), ==, n + 8);
        g_assert_cmpuint(flow_ini_section(last, "a")->values->len, ==, 2);
    }
    g_autofree char *long_value = g_strnfill(65536 - 4, 'v');
    g_autofree char *fits = g_strconcat("[a]\nx = ", long_value, "\ny = 1\n", NULL);
    g_assert_cmpstr(read_text(fits), ==, "");
    g_assert_cmpuint(strlen(value("a", "x")), ==, 65532);
    g_autofree char *over = g_strconcat("[a]\nx = v", long_value, "\ny = 1\n", NULL);
    g_assert_cmpstr(read_text(over), ==,
                    "t.ini:2: error: the line is 65537 bytes long, the limit is 65536\n");
    g_assert_null(value("a", "x"));
    g_assert_cmpstr(value("a", "y"), ==, "1");
}

static void test_many(void)
{
    GString *text = g_string_new(NULL);
    for (int i = 0; i < 20000; i++)
        g_string_append_printf(text, "[n%d]\nstage = s\nin = n%d\n", i, i - 1);
    g_assert_cmpstr(read_text(text->str), ==, "");
    g_assert_cmpuint(last->sections->len, ==, 20000);
    g_string_free(text, TRUE);
}

static void test_files(void)
{
    static const struct {
        const char *path, *text;
    } cases[] = {
        {"tests/nothing.ini",
         "tests/nothing.ini: error: cannot read 'tests/nothing.ini': No such file or directory\n"},
        {"tests", "tests: error: cannot read 'tests': it is a folder\n"},
        {"/dev/zero",
         "/dev/zero: error: cannot read '/dev/zero': it is larger than 16 MiB, which no graph file is\n"},
        {"/dev/null", "/dev/null: error: there are no nodes; a graph is sections such as [scan] with a line "
                      "'stage = ...'\n"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        FlowMessages *messages = flow_messages_new();
        FlowIni *ini = flow_ini_read(cases[i].path, NULL, NULL, messages);
        g_autofree char *text = flow_messages_text(messages);
        g_assert_cmpstr(text, ==, cases[i].text);
        flow_ini_free(ini);
        flow_messages_free(messages);
    }
}

/* -- merging ----------------------------------------------------------------------- */

static void test_provenance(void)
{
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read(FOLDER "/override.ini",
                                 (char *[]){"last.size=7", "scan.new.key = a = b ", NULL}, NULL, messages);
    g_assert_cmpuint(messages->errors, ==, 0);
    FlowIniSection *scan = flow_ini_section(ini, "scan");
    g_assert_cmpstr(scan->where.file, ==, FOLDER "/inc/base.ini");
    g_assert_cmpint(scan->where.line, ==, 3);
    FlowIniValue *v = flow_ini_value(scan, "path");
    g_assert_cmpstr(v->value, ==, "mine");
    g_assert_cmpstr(v->where.file, ==, FOLDER "/override.ini");
    g_assert_cmpint(v->where.line, ==, 5);
    g_assert_true(g_str_has_suffix(v->base, FOLDER));
    v = flow_ini_value(scan, "dir");
    g_assert_true(g_path_is_absolute(v->value));
    g_assert_true(g_str_has_suffix(v->value, FOLDER "/inc"));
    g_assert_cmpstr(v->raw, ==, "${file:dir}");
    v = flow_ini_value(scan, "new.key");
    g_assert_cmpstr(v->value, ==, "a = b");
    v = flow_ini_value(flow_ini_section(ini, "last"), "size");
    g_assert_cmpstr(v->value, ==, "7");
    g_assert_cmpstr(v->where.file, ==, "--set");
    g_assert_cmpuint(ini->files->len, ==, 3);
    g_assert_cmpstr(g_ptr_array_index(ini->files, 2), ==, FOLDER "/inc/more.ini");
    flow_ini_free(ini);
    flow_messages_free(messages);
}

static void test_command_line(void)
{
    static const char text[] = "[vars]\nn = 1\n[scan]\nstage = s\nx = ${n}\n";
    gsize len = sizeof text - 1;
    g_assert_cmpstr(read_len(text, len, NULL, (char *[]){"n=2", NULL}), ==, "");
    g_assert_cmpstr(value("scan", "x"), ==, "2");
    g_assert_cmpstr(read_len(text, len, (char *[]){"scan.x=${n}${n}", NULL}, (char *[]){"n=a=b", NULL}), ==,
                    "");
    g_assert_cmpstr(value("scan", "x"), ==, "a=ba=b");
    g_assert_cmpstr(read_len(text, len, (char *[]){"scan.in.images=a.b", "graph.seed=4", NULL}, NULL), ==,
                    "");
    g_assert_cmpstr(value("scan", "in.images"), ==, "a.b");
    g_assert_cmpstr(value("graph", "seed"), ==, "4");
    g_assert_cmpstr(read_len(text, len, NULL, (char *[]){"m=2", NULL}), ==,
                    "--var: warning: variable 'm' is not used\n");
    static const struct {
        const char *set, *text;
    } bad[] = {
        {"scna.x=1", "--set: error: 'scna.x=1': there is no node 'scna'; did you mean 'scan'?\n"},
        {"zzz.x=1", "--set: error: 'zzz.x=1': there is no node 'zzz'\n"},
        {"scan=1", "--set: error: 'scan=1' is not of the form node.key=value\n"},
        {"scan.x", "--set: error: 'scan.x' is not of the form node.key=value\n"},
        {"x=scan.x", "--set: error: 'x=scan.x' is not of the form node.key=value\n"},
        {"scan.X=1", "--set: error: 'scan.X=1': 'X' is not a key\n"},
        {"vars.n=1", "--set: error: 'vars.n=1': variables are set with --var n=...\n"},
        {"graph.include=x", "--set: error: 'graph.include=x': an include cannot be set here\n"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        g_assert_cmpstr(read_len(text, len, (char *[]){(char *)bad[i].set, NULL}, NULL), ==, bad[i].text);
    g_assert_cmpstr(read_len(text, len, NULL, (char *[]){"n", NULL}), ==,
                    "--var: error: 'n' is not of the form name=value\n");
    g_assert_cmpstr(read_len(text, len, NULL, (char *[]){"N=1", NULL}), ==,
                    "--var: error: 'N=1' is not of the form name=value\n");
}

/* The merged text reads back as the same graph. */
static void test_text(void)
{
    read_text("[graph]\nname = g\n[vars]\nv = ;x\n[a]\nstage = s\nd = $$ $$$$ $${v} ${v} #5\ne =\nin.p = "
              "b.q\n[b]\n");
    g_autofree char *once = flow_ini_text(last, FALSE);
    g_assert_cmpstr(value("a", "d"), ==, "$ $$ ${v} ;x #5");
    g_assert_cmpstr(read_text(once), ==, "");
    g_assert_cmpstr(value("a", "d"), ==, "$ $$ ${v} ;x #5");
    g_autofree char *twice = flow_ini_text(last, FALSE);
    g_assert_cmpstr(once, ==, twice);
    g_autofree char *origins = flow_ini_text(last, TRUE);
    g_assert_nonnull(strstr(origins, "; t.ini:5\nstage = s\n"));
    g_assert_cmpstr(read_text(origins), ==, "");
    g_autofree char *thrice = flow_ini_text(last, FALSE);
    g_assert_cmpstr(once, ==, thrice);
}

/* Every variable names the one before a hundred times: refused at once, not after minutes. */
static void test_growth(void)
{
    for (int empty = 0; empty < 2; empty++) {
        GString *text = g_string_new(NULL);
        g_string_append_printf(text, "[vars]\nv0 = %s\n", empty ? "" : "x");
        for (int i = 1; i < 8; i++) {
            g_string_append_printf(text, "v%d = ", i);
            for (int j = 0; j < 100; j++)
                g_string_append_printf(text, "${v%d}", i - 1);
            g_string_append_c(text, '\n');
        }
        g_string_append(text, "[a]\nx = ${v7}\n");
        const char *said = read_text(text->str);
        if (empty)
            g_assert_cmpstr(said, ==, "");
        else
            g_assert_cmpstr(
                said, ==, "t.ini:5: error: the value is longer than 65536 bytes once its variables are in\n");
        g_string_free(text, TRUE);
    }
    /* a long chain does not eat the stack */
    GString *text = g_string_new("[vars]\nv0 = x\n");
    for (int i = 1; i < 50000; i++)
        g_string_append_printf(text, "v%d = ${v%d}\n", i, i - 1);
    g_string_append(text, "[a]\nx = ${v49999}\n");
    g_assert_nonnull(strstr(read_text(text->str), "error: variables are nested deeper than 8"));
    g_string_free(text, TRUE);
}

static void test_environment(void)
{
    g_setenv("LORAFLOW_TEST_ODD", "a\nb", TRUE);
    g_assert_cmpstr(read_text("[a]\nx = ${env:LORAFLOW_TEST_ODD}\n"), ==,
                    "t.ini:2: error: a variable brings a control character (0x0a) into the value\n");
    g_setenv("LORAFLOW_TEST_ODD", "\xff", TRUE);
    g_assert_cmpstr(read_text("[a]\nx = ${env:LORAFLOW_TEST_ODD}\n"), ==,
                    "t.ini:2: error: a variable brings bytes that are not UTF-8 into the value\n");
    g_setenv("LORAFLOW_TEST_ODD", "  ${x} $$ ", TRUE);
    g_assert_cmpstr(read_text("[a]\nx = ${env:LORAFLOW_TEST_ODD}\n"), ==, "");
    g_assert_cmpstr(value("a", "x"), ==, "${x} $$");
    g_setenv("LORAFLOW_TEST_ODD", "", TRUE);
    g_assert_cmpstr(read_text("[a]\nx = ${env:LORAFLOW_TEST_ODD}.\ny = ${env:LORAFLOW_TEST_ODD:-d}\n"), ==,
                    "");
    g_assert_cmpstr(value("a", "x"), ==, ".");
    g_assert_cmpstr(value("a", "y"), ==, "d");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ini/golden", test_golden);
    g_test_add_func("/ini/encodings", test_encodings);
    g_test_add_func("/ini/lengths", test_lengths);
    g_test_add_func("/ini/many", test_many);
    g_test_add_func("/ini/files", test_files);
    g_test_add_func("/ini/provenance", test_provenance);
    g_test_add_func("/ini/command-line", test_command_line);
    g_test_add_func("/ini/text", test_text);
    g_test_add_func("/ini/growth", test_growth);
    g_test_add_func("/ini/environment", test_environment);
    int rc = g_test_run();
    flow_ini_free(last);
    return rc;
}
