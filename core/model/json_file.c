/* JSON objects from files: configurations, vocabularies, indices.
 *
 * The largest of them in use is a vocabulary of a megabyte, so a limit keeps a weight file that has the name
 * of a configuration, or a device, out of memory. */
#include "core/model/json_file.h"
#include "core/model/safetensors.h"
#include <glib/gstdio.h>
#include <sys/stat.h>

enum { LIMIT = 64 << 20 };

char *json_file_problem(const json_error_t *problem)
{
    return g_utf8_make_valid(problem->text, -1);
}

json_t *json_file_read(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    json_error_t problem;
    GStatBuf st;
    gsize n;
    if (!g_stat(path, &st) && (!S_ISREG(st.st_mode) || st.st_size > LIMIT)) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "%s: %s", path,
                    S_ISREG(st.st_mode) ? "more than 64 MiB: not a JSON file of a model" : "not a file");
        return NULL;
    }
    if (!g_file_get_contents(path, &text, &n, error))
        return NULL;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &problem);
    if (json_is_object(root))
        return root;
    g_autofree char *what = root ? g_strdup("no JSON object") : json_file_problem(&problem);
    g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT, "%s:%d: %s", path, root ? 1 : problem.line, what);
    json_decref(root);
    return NULL;
}
