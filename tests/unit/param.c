/* The number grammar and parameter tables: what is taken, what is refused and in which words.
 * @label short
 */
#include "core/flow/param.h"
#include <math.h>
#include <string.h>

#define CHECK_REFUSED(parse, T, text, part)                                                                  \
    do {                                                                                                     \
        g_autoptr(GError) e = NULL;                                                                          \
        T out = (T)77;                                                                                       \
        if (parse(text, &out, &e))                                                                           \
            g_error(#parse "(\"%s\") was taken as %g", text, (double)out);                                   \
        g_assert_cmpfloat((double)out, ==, 77);                                                              \
        if (!strstr(e->message, part))                                                                       \
            g_error("'%s' does not say '%s'", e->message, part);                                             \
    } while (0)

#define CHECK_TAKEN(parse, T, text, value)                                                                   \
    do {                                                                                                     \
        g_autoptr(GError) e = NULL;                                                                          \
        T out = (T)77;                                                                                       \
        if (!parse(text, &out, &e))                                                                          \
            g_error("%s", e->message);                                                                       \
        g_assert_true(out == (T)(value));                                                                    \
    } while (0)

static void test_int(void)
{
    CHECK_TAKEN(flow_parse_int, gint64, "0", 0);
    /* F-11 */
    CHECK_TAKEN(flow_parse_int, gint64, "010", 10);
    CHECK_TAKEN(flow_parse_int, gint64, "-1", -1);
    CHECK_TAKEN(flow_parse_int, gint64, "+7", 7);
    CHECK_TAKEN(flow_parse_int, gint64, "4k", 4000);
    CHECK_TAKEN(flow_parse_int, gint64, "2M", 2000000);
    CHECK_TAKEN(flow_parse_int, gint64, "-3G", -3000000000);
    CHECK_TAKEN(flow_parse_int, gint64, "9223372036854775807", G_MAXINT64);
    CHECK_TAKEN(flow_parse_int, gint64, "-9223372036854775808", G_MININT64);
    static const char *const bad[] = {"",   "-",   "x",   "0x10", "1e3", "1_000", "4K",  "4kk",   " 4",
                                      "4 ", "4 k", "1.5", "nan",  "inf", "k",     "--1", "1,000", "4g"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        CHECK_REFUSED(flow_parse_int, gint64, bad[i], "is not an integer");
    CHECK_REFUSED(flow_parse_int, gint64, "9223372036854775808", "too large");
    CHECK_REFUSED(flow_parse_int, gint64, "-9223372036854775809", "too large");
    CHECK_REFUSED(flow_parse_int, gint64, "99999999999999999999", "too large");
    CHECK_REFUSED(flow_parse_int, gint64, "9999999999999999k", "too large");
    CHECK_REFUSED(flow_parse_int, gint64, "8 ; two per gpu", "comments go on their own line");
    CHECK_REFUSED(flow_parse_int, gint64, "8 # two", "comments go on their own line");
}

static void test_float(void)
{
    CHECK_TAKEN(flow_parse_float, double, "1e-4", 1e-4);
    CHECK_TAKEN(flow_parse_float, double, "-.5", -0.5);
    CHECK_TAKEN(flow_parse_float, double, "5.", 5);
    CHECK_TAKEN(flow_parse_float, double, "010", 10);
    CHECK_TAKEN(flow_parse_float, double, "+2.5E+3", 2500);
    static const char *const bad[] = {"",   ".",   "nan", "inf", "-inf", "0x10", "1_000", "1,5",
                                      "1e", "1e+", " 1",  "1 ",  "5%",   "1f",   "1e3.5"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        CHECK_REFUSED(flow_parse_float, double, bad[i], "is not a number");
    CHECK_REFUSED(flow_parse_float, double, "1e400", "too large");
    CHECK_REFUSED(flow_parse_float, double, "-1e400", "too large");
}

static void test_size(void)
{
    CHECK_TAKEN(flow_parse_size, guint64, "0", 0);
    CHECK_TAKEN(flow_parse_size, guint64, "512", 512);
    CHECK_TAKEN(flow_parse_size, guint64, "010", 10);
    CHECK_TAKEN(flow_parse_size, guint64, "64KiB", 65536);
    /* F-11 */
    CHECK_TAKEN(flow_parse_size, guint64, "8GB", 8000000000);
    CHECK_TAKEN(flow_parse_size, guint64, "8GiB", 8589934592);
    CHECK_TAKEN(flow_parse_size, guint64, "8.5GB", 8500000000);
    CHECK_TAKEN(flow_parse_size, guint64, "1.5GiB", 1610612736);
    CHECK_TAKEN(flow_parse_size, guint64, "0.1GB", 100000000);
    CHECK_TAKEN(flow_parse_size, guint64, "1MB", 1000000);
    CHECK_TAKEN(flow_parse_size, guint64, "3kB", 3000);
    CHECK_TAKEN(flow_parse_size, guint64, "12B", 12);
    CHECK_TAKEN(flow_parse_size, guint64, "18446744073709551615", G_MAXUINT64);
    CHECK_TAKEN(flow_parse_size, guint64, "0.9999990000TiB", 1099510528264);
    static const char *const bad[] = {"",    "-1",  "+1",  "8 GB", "8 GiB", "GB",   "0x10", "1e3", "1_000",
                                      "nan", "inf", "8gb", "8GIB", "1.5",   "1.5B", ".",    "8GBs"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        CHECK_REFUSED(flow_parse_size, guint64, bad[i], "is not a size");
    CHECK_REFUSED(flow_parse_size, guint64, "8G", "ambiguous");
    CHECK_REFUSED(flow_parse_size, guint64, "8g", "ambiguous");
    CHECK_REFUSED(flow_parse_size, guint64, "64k", "ambiguous");
    CHECK_REFUSED(flow_parse_size, guint64, "99999999999999999999", "too large");
    CHECK_REFUSED(flow_parse_size, guint64, "18446744073709551616", "too large");
    CHECK_REFUSED(flow_parse_size, guint64, "99999999TiB", "too large");
    CHECK_REFUSED(flow_parse_size, guint64, "0.0000001TB", "six digits");
}

static void test_bool_duration(void)
{
    static const char *const yes[] = {"yes", "true", "on", "1", "TRUE", "Yes"};
    static const char *const no[] = {"no", "false", "off", "0", "False"};
    static const char *const bad[] = {"", "2", "y", "n", "enabled", "yes ", "01", "ye"};
    for (gsize i = 0; i < G_N_ELEMENTS(yes); i++)
        CHECK_TAKEN(flow_parse_bool, gboolean, yes[i], TRUE);
    for (gsize i = 0; i < G_N_ELEMENTS(no); i++)
        CHECK_TAKEN(flow_parse_bool, gboolean, no[i], FALSE);
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
        CHECK_REFUSED(flow_parse_bool, gboolean, bad[i], "write yes or no");
    CHECK_TAKEN(flow_parse_duration, double, "10", 10);
    CHECK_TAKEN(flow_parse_duration, double, "250ms", 0.25);
    CHECK_TAKEN(flow_parse_duration, double, "1.5min", 90);
    CHECK_TAKEN(flow_parse_duration, double, "2h", 7200);
    CHECK_REFUSED(flow_parse_duration, double, "2 h", "is not a duration");
    CHECK_REFUSED(flow_parse_duration, double, "-2s", "is not a duration");
    CHECK_REFUSED(flow_parse_duration, double, "5m", "is not a duration");
    CHECK_REFUSED(flow_parse_duration, double, "", "is not a duration");
}

typedef struct {
    gboolean flip;
    gint64 width, count;
    double rate;
    guint64 ram;
    char *name, *note, *path;
    int mode;
    char **tags;
    FlowNode *of;
} State;

static const FlowParam params[] = {
    FLOW_BOOL(State, flip, "no", "Flips."),
    FLOW_INT(State, width, "512", 16, 4096, "px", "Width."),
    FLOW_INT(State, count, "0", 0, G_MAXINT64, "", "Count."),
    FLOW_FLOAT(State, rate, "1e-4", 0, 1, "", "Rate."),
    FLOW_SIZE(State, ram, "1GiB", 0, 1e18, "Memory."),
    FLOW_STRING(State, name, NULL, "Name."),
    FLOW_STRING(State, note, "", "Note."),
    FLOW_PATH(State, path, "", "Path.", | FLOW_P_NORESULT),
    FLOW_ENUM(State, mode, "linear", "linear|cubic|none", "Mode."),
    FLOW_LIST(State, tags, "a, b", "Tags."),
    FLOW_NODE(State, of, "", "Other."),
    FLOW_END,
};

static const FlowParam *row(const char *name)
{
    for (const FlowParam *p = params; p->name; p++)
        if (g_str_equal(p->name, name))
            return p;
    g_assert_not_reached();
}

static void set(State *state, const char *name, const char *text)
{
    g_autoptr(GError) error = NULL;
    if (!flow_param_set(row(name), state, text, "/base", &error))
        g_error("%s", error->message);
}

static void refused(State *state, const char *name, const char *text, const char *message)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *before = flow_param_text(row(name), state);
    g_assert_false(flow_param_set(row(name), state, text, "/base", &error));
    g_assert_cmpstr(error->message, ==, message);
    g_autofree char *after = flow_param_text(row(name), state);
    g_assert_cmpstr(before, ==, after);
}

static void reads_back(State *state, const char *name, const char *text)
{
    g_autofree char *now = flow_param_text(row(name), state);
    g_assert_cmpstr(now, ==, text);
}

static void test_table(void)
{
    State s = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(flow_param_table_valid(params, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(flow_param_count(params), ==, 11);
    g_assert_cmpuint(flow_param_count(NULL), ==, 0);
    g_assert_cmpuint(row("path")->flags, ==, FLOW_P_NORESULT);
    flow_param_defaults(params, &s);
    g_assert_cmpint(s.width, ==, 512);
    g_assert_null(s.name);
    g_assert_null(s.path);
    g_assert_cmpstr(s.tags[1], ==, "b");
    reads_back(&s, "flip", "no");
    reads_back(&s, "rate", "0.0001");
    reads_back(&s, "ram", "1GiB");
    reads_back(&s, "mode", "linear");
    reads_back(&s, "tags", "a, b");
    set(&s, "width", "16");
    set(&s, "width", "4k");
    set(&s, "rate", "0.1");
    reads_back(&s, "rate", "0.1");
    set(&s, "rate", "0.12345678901234566");
    reads_back(&s, "rate", "0.12345678901234566");
    set(&s, "ram", "1000");
    reads_back(&s, "ram", "1000");
    set(&s, "name", "a = b ; c");
    reads_back(&s, "name", "a = b ; c");
    set(&s, "path", "x/../y");
    reads_back(&s, "path", "/base/x/../y");
    set(&s, "path", "/abs");
    reads_back(&s, "path", "/abs");
    set(&s, "path", "~/here");
    g_assert_true(g_str_has_prefix(s.path, g_get_home_dir()));
    set(&s, "path", "");
    g_assert_null(s.path);
    set(&s, "mode", "none");
    g_assert_cmpint(s.mode, ==, 2);
    set(&s, "tags", "one");
    g_assert_cmpuint(g_strv_length(s.tags), ==, 1);
    set(&s, "of", "step");
    g_assert_null(s.of);
    flow_param_clear(params, &s);
    g_assert_null(s.name);
    g_assert_null(s.tags);
}

static void test_refusals(void)
{
    State s = {0};
    flow_param_defaults(params, &s);
    set(&s, "name", "x");
    refused(&s, "width", "9000", "width = 9000 px is outside 16..4096");
    refused(&s, "width", "-1", "width = -1 px is outside 16..4096");
    refused(&s, "count", "-1", "count = -1 is outside 0..");
    refused(&s, "rate", "1.5", "rate = 1.5 is outside 0..1");
    refused(&s, "width", "8 ; two per gpu",
            "width = '8 ; two per gpu' is not an integer (write 12, -3, 4k, 2M or 1G) (comments go on their "
            "own line)");
    refused(&s, "flip", "2",
            "flip = '2' is not a switch (write yes or no; true, false, on, off, 1, 0 are the same)");
    refused(&s, "mode", "cubik", "mode = 'cubik' is not one of linear, cubic, none; did you mean 'cubic'?");
    refused(&s, "mode", "", "mode = '' is not one of linear, cubic, none");
    refused(&s, "name", "", "name must not be empty");
    refused(&s, "tags", "", "tags must not be empty");
    refused(&s, "tags", "a,,b", "tags = 'a,,b' has an empty element (number 2)");
    refused(&s, "tags", "a,", "tags = 'a,' has an empty element (number 2)");
    flow_param_clear(params, &s);
}

static void bad_table(const FlowParam *table, const char *part)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(flow_param_table_valid(table, &error));
    if (!strstr(error->message, part))
        g_error("'%s' does not say '%s'", error->message, part);
}

static void test_bad_tables(void)
{
    typedef struct {
        gint64 n, workers, Width;
        char *s;
        int m;
    } T;
    bad_table((FlowParam[]){FLOW_INT(T, n, "1", 0, 9, "", "N"), FLOW_END}, "ends with a period");
    bad_table((FlowParam[]){FLOW_INT(T, n, "10", 0, 9, "", "N."), FLOW_END},
              "default: n = 10 is outside 0..9");
    bad_table((FlowParam[]){FLOW_INT(T, n, "x", 0, 9, "", "N."), FLOW_END}, "default: n = 'x' is not");
    bad_table((FlowParam[]){FLOW_INT(T, n, "1", 9, 0, "", "N."), FLOW_END}, "range");
    bad_table((FlowParam[]){FLOW_INT(T, Width, "1", 0, 9, "", "N."), FLOW_END}, "[a-z]");
    bad_table((FlowParam[]){FLOW_INT(T, workers, "1", 0, 9, "", "N."), FLOW_END}, "runtime's own");
    bad_table((FlowParam[]){FLOW_ENUM(T, m, "a", "a|a", "M."), FLOW_END}, "twice");
    bad_table((FlowParam[]){FLOW_ENUM(T, m, "c", "a|b", "M."), FLOW_END}, "not one of a, b");
    bad_table((FlowParam[]){FLOW_ENUM(T, m, "a", "", "M."), FLOW_END}, "no choices");
    bad_table(
        (FlowParam[]){FLOW_INT(T, n, "1", 0, 9, "", "N."), FLOW_INT(T, n, "1", 0, 9, "", "N."), FLOW_END},
        "in the table twice");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/param/int", test_int);
    g_test_add_func("/param/float", test_float);
    g_test_add_func("/param/size", test_size);
    g_test_add_func("/param/bool-duration", test_bool_duration);
    g_test_add_func("/param/table", test_table);
    g_test_add_func("/param/refusals", test_refusals);
    g_test_add_func("/param/bad-tables", test_bad_tables);
    return g_test_run();
}
