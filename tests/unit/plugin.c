/* Stages are loaded from files with every check that a description allows, before anything in them runs.
 *
 * The files are made here with the C compiler; what only concerns the description is tested with stages
 * that are compiled in.
 *
 * @label short
 * @timeout 120
 */
#include "tests/graph_lab.h"
#include <glib/gstdio.h>
#include <unistd.h>

static char *folder;

static char *in_folder(const char *sub, const char *name)
{
    g_autofree char *dir = g_build_filename(folder, sub, NULL);
    g_assert_cmpint(g_mkdir_with_parents(dir, 0700), ==, 0);
    return g_build_filename(dir, name, NULL);
}

/* Compiles C text to FOLDER/SUB/NAME. Returns the path. */
static char *build(const char *sub, const char *name, const char *source)
{
    g_autofree char *c = in_folder("src", "plugin.c");
    char *so = in_folder(sub, name);
    g_autoptr(GError) error = NULL;
    g_assert_true(g_file_set_contents(c, source, -1, &error));
    g_autofree char *command =
        g_strdup_printf("cc -shared -fPIC -w -I'%s' $(pkg-config --cflags glib-2.0 gmodule-2.0) '%s' -o '%s'",
                        g_getenv("LORAFLOW_SOURCE"), c, so);
    const char *argv[] = {"sh", "-c", command, NULL};
    int status = -1;
    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL,
                               &status, &error));
    g_assert_true(g_spawn_check_wait_status(status, &error));
    return so;
}

static char *stage_source(const char *name, const char *more)
{
    return g_strdup_printf(
        "#include \"core/flow/stage.h\"\n"
        "static FlowStatus process(FlowCtx *c, FlowItem **i, GError **e) { return FLOW_OK; }\n"
        "static const FlowPort in[] = {{.name = \"in\", .doc = \"In.\"}, FLOW_END};\n"
        "FLOW_STAGE(.name = \"%s\", .summary = \"Test.\", .inputs = in, .process = process%s);\n",
        name, more);
}

static void assert_refused(const char *path, const char *why)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(flow_plugin_load(path, &error));
    g_assert_nonnull(error);
    if (!strstr(error->message, why) || !strstr(error->message, path))
        g_error("'%s' does not say '%s' and %s", error->message, why, path);
}

static void test_good_file(void)
{
    g_autofree char *source = stage_source("good", ", .flags = FLOW_PARALLEL");
    g_autofree char *path = build("good", "good.so", source);
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = flow_plugin_load(path, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(plugin->stage->name, ==, "good");
    g_assert_cmpstr(plugin->file, ==, path);
    g_assert_true(flow_plugin_load(path, NULL) == plugin);
}

static void test_broken_files(void)
{
    g_autofree char *text = in_folder("broken", "text.so");
    g_file_set_contents(text, "not a library\n", -1, NULL);
    /* F-14 */
    assert_refused(text, "it is not a shared object");
    g_autofree char *missing = in_folder("broken", "missing.so");
    assert_refused(missing, "No such file or directory");
    g_autofree char *undefined =
        build("broken", "undefined.so", "void nosuch(void); void x(void) { nosuch(); }");
    assert_refused(undefined, "undefined symbol: nosuch");
    g_autofree char *entry = build("broken", "entry.so", "int x;");
    assert_refused(entry, "no symbol 'flow_stage'");

    char *bytes;
    gsize len;
    g_assert_true(g_file_get_contents(entry, &bytes, &len, NULL));
    g_autofree char *half = in_folder("broken", "half.so"), *narrow = in_folder("broken", "narrow.so");
    g_file_set_contents(half, bytes, (gssize)(len / 8), NULL);
    assert_refused(half, "the file is cut short");
    bytes[4] = 1; /* says that it is a 32-bit file */
    g_file_set_contents(narrow, bytes, (gssize)len, NULL);
    assert_refused(narrow, "ELFCLASS32");
    g_free(bytes);
}

/* Another ABI or size is refused before anything in the file is called. */
static void test_versions(void)
{
    const char *source =
        "#include \"core/flow/stage.h\"\n"
        "static FlowStatus process(FlowCtx *c, FlowItem **i, GError **e) { __builtin_trap(); }\n"
        "static const FlowPort in[] = {{.name = \"in\", .doc = \"In.\"}, FLOW_END};\n"
        "G_MODULE_EXPORT const struct { FlowStage s; char more[64]; } flow_stage = {{.abi = %s,"
        ".size = %s, .name = \"%s\", .summary = \"Test.\", .inputs = in, .process = process}};\n";
    static const char *const cases[][4] = {
        {"abi_new", "FLOW_ABI + 1", "sizeof(FlowStage)", "built for stage ABI 2, this host has 1"},
        {"abi_old", "0", "sizeof(FlowStage)", "built for stage ABI 0, this host has 1"},
        {"small", "FLOW_ABI", "64", "its description has 64 bytes"},
        {"large", "FLOW_ABI", "sizeof(FlowStage) + 8", "this host knows"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *c = g_strdup_printf(source, cases[i][1], cases[i][2], cases[i][0]);
        g_autofree char *name = g_strconcat(cases[i][0], ".so", NULL), *path = build("versions", name, c);
        /* F-15 */
        assert_refused(path, cases[i][3]);
    }
    /* one from before the optional functions were added: they read as absent */
    g_autofree char *c = g_strdup_printf(source, "FLOW_ABI", "offsetof(FlowStage, describe)", "older");
    g_autofree char *path = build("versions", "older.so", c);
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = flow_plugin_load(path, &error);
    g_assert_no_error(error);
    g_assert_null(plugin->stage->describe);
    g_assert_null(plugin->stage->hold);
}

static void test_names(void)
{
    g_autofree char *source = stage_source("other", ""), *path = build("names", "name.so", source);
    assert_refused(path, "it calls itself 'other': the file must be called other.so");
}

static void test_duplicates(void)
{
    g_autofree char *source = stage_source("twin", "");
    g_autofree char *one = build("one", "twin.so", source), *two = build("two", "twin.so", source);
    g_autofree char *link = in_folder("three", "twin.so"), *good = in_folder("good", "");
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_path_get_dirname(one), *dir_two = g_path_get_dirname(two),
                    *dir_three = g_path_get_dirname(link);
    flow_plugins_add_folder(dir);
    flow_plugins_add_folder(good);
    g_assert_nonnull(flow_plugin_find("twin", &error));
    g_assert_no_error(error);
    /* the same file by another name of its folder is the same file */
    g_assert_cmpint(symlink(one, link), ==, 0);
    flow_plugins_add_folder(dir_three);
    g_assert_nonnull(flow_plugin_find("twin", &error));
    g_assert_no_error(error);
    flow_plugins_add_folder(dir_two);
    g_assert_null(flow_plugin_find("twin", &error));
    /* F-16 */
    g_assert_nonnull(strstr(error->message, "exists twice"));
    g_assert_nonnull(strstr(error->message, one));
    g_assert_nonnull(strstr(error->message, two));
    /* the others are not disturbed, also not by a broken file beside them */
    g_clear_error(&error);
    g_assert_nonnull(flow_plugin_find("good", &error));
    g_auto(GStrv) names = flow_plugin_list();
    g_assert_true(g_strv_contains((const char *const *)names, "good"));
    g_assert_true(g_strv_contains((const char *const *)names, "t_count"));
}

static void test_not_found(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(flow_plugin_find("godo", &error));
    g_assert_cmpstr(error->message, ==, "no stage 'godo'; did you mean 'good'?");
    g_clear_error(&error);
    g_assert_null(flow_plugin_find("../good/good", &error));
    g_assert_nonnull(strstr(error->message, "no stage '../good/good'"));
}

/* What a plugin exports does not replace what the program or another plugin uses. */
static void test_own_names(void)
{
    const char *source =
        "#include \"core/flow/stage.h\"\n"
        "__attribute__((visibility(\"default\"))) int ini_parse_stream(void) { __builtin_trap(); }\n"
        "__attribute__((visibility(\"default\"))) FlowItem *flow_item_new(FlowKind k) { __builtin_trap(); }\n"
        "__attribute__((visibility(\"default\"))) int helper(void) { return %d; }\n"
        "static FlowStatus process(FlowCtx *c, FlowItem **i, GError **e) { return FLOW_OK; }\n"
        "static char *recipe(FlowNode *n, GError **e) { return g_strdup_printf(\"%%d\", helper()); }\n"
        "static const FlowPort in[] = {{.name = \"in\", .doc = \"In.\"}, FLOW_END};\n"
        "FLOW_STAGE(.name = \"own%d\", .summary = \"Test.\", .inputs = in, .process = process,"
        ".recipe = recipe);\n";
    for (int i = 1; i <= 2; i++) {
        g_autofree char *c = g_strdup_printf(source, i, i), *name = g_strdup_printf("own%d.so", i);
        g_autofree char *path = build("own", name, c), *expected = g_strdup_printf("%d", i);
        const FlowPlugin *plugin = flow_plugin_load(path, NULL);
        g_assert_nonnull(plugin);
        g_autofree char *said = plugin->stage->recipe(NULL, NULL);
        /* F-16 */
        g_assert_cmpstr(said, ==, expected);
    }
    lab_run("[a]\nstage=t_count\nitems=2\n[s]\nstage=t_sink\nin=a\n", NULL, NULL);
    g_assert_cmpstr(lab_seen->str, ==, "0=0 1=1 <epoch> <end>");
}

static void test_fields(void)
{
    const char *source =
        "#include \"core/flow/stage.h\"\n"
        "static FlowStatus process(FlowCtx *c, FlowItem **i, GError **e) { return FLOW_OK; }\n"
        "static const FlowPort in[] = {{.name = \"in\", .doc = \"In.\", .needs = \"own_field\"}, FLOW_END};\n"
        "FLOW_STAGE_FIELDS({\"%s\", \"%s\", \"mine\", NET_F32, 0});\n"
        "FLOW_STAGE(.name = \"%s\", .summary = \"Test.\", .inputs = in, .process = process);\n";
    g_autofree char *c = g_strdup_printf(source, "own_field", "h w", "fields");
    g_autofree char *path = build("fields", "fields.so", c);
    g_autoptr(GError) error = NULL;
    g_assert_nonnull(flow_plugin_load(path, &error));
    g_assert_no_error(error);
    g_assert_cmpint(flow_field_find("own_field"), >=, FLOW_F_BUILTIN);
    g_autofree char *clash = g_strdup_printf(source, "image", "h w", "clash");
    g_autofree char *clash_path = build("fields", "clash.so", clash);
    assert_refused(clash_path, "field 'image' is declared as");
}

/* -- descriptions --------------------------------------------------------------------- */

typedef struct {
    gint64 n;
} TState;

static void refused(const FlowStage *stage, const char *why)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(flow_plugin_add(stage, &error));
    if (!strstr(error->message, why))
        g_error("'%s' does not say '%s'", error->message, why);
}

static void test_descriptions(void)
{
    static const FlowParam outside[] = {{"n", FLOW_P_INT, 4096, "1", 0, 9, "", NULL, "N.", 0}, FLOW_END};
    static const FlowParam reserved[] = {{"workers", FLOW_P_INT, 0, "1", 0, 9, "", NULL, "N.", 0}, FLOW_END};
    static const FlowParam default_out[] = {{"n", FLOW_P_INT, 0, "10", 0, 9, "", NULL, "N.", 0}, FLOW_END};
    static const FlowPort twice[] = {{.name = "a", .doc = "A."}, {.name = "a", .doc = "A."}, FLOW_END};
    static const FlowPort no_doc[] = {{.name = "a"}, FLOW_END};
    static const FlowPort bad_name[] = {{.name = "A", .doc = "A."}, FLOW_END};
    static const FlowPort bad_field[] = {{.name = "a", .doc = "A.", .needs = "imag"}, FLOW_END};
    static const FlowPort gives_in[] = {{.name = "a", .doc = "A.", .gives = "image"}, FLOW_END};
    static const FlowPort many_out[] = {{.name = "a", .doc = "A.", .flags = FLOW_PORT_MANY}, FLOW_END};
    static const FlowPort feedback[] = {
        {.name = "in", .doc = "A."}, {.name = "a", .doc = "A.", .flags = FLOW_PORT_FEEDBACK}, FLOW_END};
    static const FlowStage base = {.abi = FLOW_ABI,
                                   .size = sizeof(FlowStage),
                                   .name = "t_like",
                                   .summary = "S.",
                                   .inputs = t_work_in,
                                   .process = t_work_process,
                                   .state_size = sizeof(TState)};
#define REFUSED(why, change)                                                                                 \
    do {                                                                                                     \
        FlowStage s = base;                                                                                  \
        change;                                                                                              \
        refused(&s, why);                                                                                    \
    } while (0)
    REFUSED("the name 'Like' is not", s.name = "Like");
    REFUSED("of at most 31 letters", s.name = "a234567890123456789012345678901234567890");
    REFUSED("no summary", s.summary = "");
    REFUSED("no process()", s.process = NULL);
    REFUSED("both FLOW_PARALLEL and FLOW_STATEFUL", s.flags = FLOW_PARALLEL | FLOW_STATEFUL);
    REFUSED("flags that this host does not know", s.flags = 1u << 30);
    REFUSED("neither inputs nor outputs", s.inputs = NULL);
    REFUSED("cannot be FLOW_PARALLEL", s.inputs = NULL; s.outputs = t_work_out; s.flags = FLOW_PARALLEL);
    REFUSED("cannot be FLOW_PARALLEL", s.inputs = feedback; s.flags = FLOW_PARALLEL);
    REFUSED("has one input beside feedback, this one has 2", s.inputs = t_zip_in; s.flags = FLOW_MARKS);
    REFUSED("outside the node state", s.params = outside);
    REFUSED("'workers'", s.params = reserved);
    REFUSED("is outside 0..9", s.params = default_out);
    REFUSED("two ports are called 'a'", s.inputs = twice);
    REFUSED("the port 'a' has no doc", s.inputs = no_doc);
    REFUSED("the port name 'A'", s.inputs = bad_name);
    REFUSED("the unknown field 'imag'; did you mean 'image'?", s.inputs = bad_field);
    REFUSED("cannot have 'gives'", s.inputs = gives_in);
    REFUSED("flags that an output cannot have", s.outputs = many_out);
}

static void remove_folder(void)
{
    const char *argv[] = {"rm", "-rf", folder, NULL};
    g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    g_autofree char *made = g_dir_make_tmp("loraflow-plugin-XXXXXX", NULL);
    folder = realpath(made, NULL);
    g_test_add_func("/plugin/good_file", test_good_file);
    g_test_add_func("/plugin/broken_files", test_broken_files);
    g_test_add_func("/plugin/versions", test_versions);
    g_test_add_func("/plugin/names", test_names);
    g_test_add_func("/plugin/duplicates", test_duplicates);
    g_test_add_func("/plugin/not_found", test_not_found);
    g_test_add_func("/plugin/own_names", test_own_names);
    g_test_add_func("/plugin/fields", test_fields);
    g_test_add_func("/plugin/descriptions", test_descriptions);
    int status = g_test_run();
    remove_folder();
    free(folder);
    return status;
}
