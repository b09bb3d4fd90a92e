/* Graph files: no input crashes, hangs or leaks, and what is taken reads back as the same graph.
 *
 * @label short
 */
#include "core/flow/ini.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FlowIni *read_text(const char *text, gsize len, guint *errors)
{
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read_text("fuzz.ini", "/nonexistent", text, len, NULL, NULL, messages);
    g_autofree char *said = flow_messages_text(messages);
    g_assert_true(said && g_utf8_validate(said, -1, NULL));
    *errors = messages->errors;
    flow_messages_free(messages);
    return ini;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    guint errors, again;
    FlowIni *ini = read_text((const char *)data, size, &errors);
    g_autofree char *text = flow_ini_text(ini, TRUE);
    if (errors == 0) {
        FlowIni *second = read_text(text, strlen(text), &again);
        g_autofree char *plain = flow_ini_text(ini, FALSE), *plain2 = flow_ini_text(second, FALSE);
        g_assert_cmpuint(again, ==, 0);
        g_assert_cmpstr(plain, ==, plain2);
        flow_ini_free(second);
    }
    flow_ini_free(ini);
    return 0;
}
