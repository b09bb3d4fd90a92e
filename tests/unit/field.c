/* The registry of fields, lists of fields, and suggestions.
 * @label short
 */
#include "core/flow/field.h"
#include "core/flow/ini.h"
#include <string.h>

static void test_builtin(void)
{
    for (int i = 0; i < FLOW_F_BUILTIN; i++) {
        const FlowFieldInfo *info = flow_field_info((FlowField)i);
        g_assert_nonnull(info);
        g_assert_cmpint(flow_field_find(info->name), ==, i);
        g_assert_cmpint((int)strlen(info->doc), >, 0);
    }
    g_assert_cmpint(flow_field_find("latent_mean"), ==, FLOW_F_LATENT_MEAN);
    g_assert_cmpint(flow_field_find("latent_mea"), ==, -1);
    g_assert_null(flow_field_info((FlowField)-1));
    g_assert_cmpstr(flow_field_nearest("imgae"), ==, "image");
    g_assert_null(flow_field_nearest("qqqqqqqq"));
}

static void test_parse(void)
{
    FlowFieldSet need = 0, may = 0;
    g_assert_null(flow_field_parse("image  caption? pooled?", &need, &may));
    g_assert_cmpuint(need, ==, FLOW_FIELD_BIT(FLOW_F_IMAGE));
    g_assert_cmpuint(may, ==, FLOW_FIELD_BIT(FLOW_F_CAPTION) | FLOW_FIELD_BIT(FLOW_F_POOLED));
    g_assert_null(flow_field_parse(NULL, &need, &may));
    g_assert_cmpuint(need | may, ==, 0);
    g_assert_null(flow_field_parse("  ", &need, NULL));
    g_assert_cmpstr(flow_field_parse("image captoin? x", &need, &may), ==, "captoin");
    g_assert_cmpstr(flow_field_parse("?", &need, &may), ==, "");
    g_autofree char *huge = g_strnfill(5000, 'x');
    g_assert_cmpuint(strlen(flow_field_parse(huge, &need, &may)), ==, 60);
}

static void refused(const FlowFieldInfo *info, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(flow_field_register(info, &error), ==, -1);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
}

static void test_register(void)
{
    const FlowFieldInfo depth = {"depth", "h w", "distance map", NET_F32, 0};
    g_autoptr(GError) error = NULL;
    int field = flow_field_register(&depth, &error);
    g_assert_no_error(error);
    g_assert_cmpint(field, ==, FLOW_F_BUILTIN);
    g_assert_cmpint(flow_field_register(&depth, &error), ==, field);
    g_assert_cmpstr(flow_field_info((FlowField)field)->doc, ==, "distance map");
    g_assert_cmpint(flow_field_find("depth"), ==, field);

    refused(&(FlowFieldInfo){"depth", "h w 3", "distance map", NET_F32, 0}, "already known as f32 'h w'");
    refused(&(FlowFieldInfo){"image", "h w", "grey", NET_U8, 0}, "already known");
    refused(&(FlowFieldInfo){"Depth", "h w", "x", NET_F32, 0}, "[a-z]");
    refused(&(FlowFieldInfo){"depth2", "h w", "", NET_F32, 0}, "meaning");
    refused(&(FlowFieldInfo){"depth2", "h w", "x", (NetType)99, 0}, "type");
    for (int i = FLOW_F_BUILTIN + 1; i < FLOW_FIELD_MAX; i++) {
        g_autofree char *name = g_strdup_printf("extra%d", i);
        FlowFieldInfo info = {name, "n", "x", NET_F32, 0};
        g_assert_cmpint(flow_field_register(&info, &error), ==, i);
    }
    refused(&(FlowFieldInfo){"last", "n", "x", NET_F32, 0}, "one too many");
}

static void test_nearest(void)
{
    static const char *const names[] = {"batch", "width", "resize_crop", "min_snr_gamma",
                                        "lr",    "every", NULL};
    static const struct {
        const char *word, *meant;
    } cases[] = {{"widht", "width"},
                 {"batchsize", "batch"},
                 {"resize", "resize_crop"},
                 {"min-snr-gamma", "min_snr_gamma"},
                 {"Width", "width"},
                 {"lf", "lr"},
                 {"evry", "every"},
                 {"eevry", "every"},
                 {"quite_else", NULL},
                 {"", NULL},
                 {"x", NULL},
                 {"wi", NULL},
                 {"gamma_snr_min", NULL}};
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpstr(flow_nearest(cases[i].word, names), ==, cases[i].meant);
    g_autofree char *huge = g_strnfill(100000, 'w');
    g_assert_null(flow_nearest(huge, names));
}

static void test_messages(void)
{
    FlowMessages *messages = flow_messages_new();
    FlowWhere line = {"a.ini", 3}, file = {"a.ini", 0}, none = {NULL, 0};
    flow_error(messages, line, "no %s", "stage");
    flow_note(messages, file, "here");
    flow_warning(messages, none, "odd");
    g_autofree char *text = flow_messages_text(messages);
    g_assert_cmpstr(text, ==, "a.ini:3: error: no stage\na.ini: note: here\nwarning: odd\n");
    g_assert_cmpuint(messages->errors, ==, 1);
    g_assert_cmpuint(messages->warnings, ==, 1);
    for (int i = 0; i < 30; i++) {
        flow_error(messages, line, "number %d", i);
        flow_note(messages, line, "beside %d", i);
    }
    g_autofree char *many = flow_messages_text(messages);
    g_assert_nonnull(strstr(many, "number 18\n"));
    g_assert_null(strstr(many, "number 19\n"));
    g_assert_null(strstr(many, "beside 19\n"));
    g_assert_true(g_str_has_suffix(many, "error: too many errors: 11 more are not shown\n"));
    flow_messages_free(messages);
    flow_messages_free(NULL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/field/builtin", test_builtin);
    g_test_add_func("/field/parse", test_parse);
    g_test_add_func("/field/register", test_register);
    g_test_add_func("/field/nearest", test_nearest);
    g_test_add_func("/field/messages", test_messages);
    return g_test_run();
}
