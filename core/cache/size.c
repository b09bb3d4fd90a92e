/* Sizes of caches: bytes, or a share of the memory that this process may use. The machine's memory is
 * not the answer inside a container, where the control group's limit is what ends the process. */
#include "core/cache/cache.h"
#include "core/flow/param.h"
#include <string.h>
#include <unistd.h>

/* Smallest memory.max from this process's control group up to the root; `limit` if there is none. */
static guint64 size_group_limit(guint64 limit)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/cgroup", &text, NULL, NULL))
        return limit;
    const char *path = strstr(text, "0::/");
    if (!path)
        return limit;
    path += strlen("0::");
    g_autofree char *group = g_strndup(path, strcspn(path, "\n"));
    for (;;) {
        g_autofree char *file = g_build_filename("/sys/fs/cgroup", group, "memory.max", NULL);
        g_autofree char *value = NULL;
        guint64 bytes;
        if (g_file_get_contents(file, &value, NULL, NULL) && g_ascii_isdigit(value[0]) &&
            (bytes = g_ascii_strtoull(value, NULL, 10)) > 0)
            limit = MIN(limit, bytes);
        char *slash = strrchr(group, '/');
        if (!slash || slash == group)
            return limit;
        *slash = '\0';
    }
}

static guint64 size_usable_memory(void)
{
    guint64 pages = (guint64)MAX(sysconf(_SC_PHYS_PAGES), 0), page = (guint64)MAX(sysconf(_SC_PAGESIZE), 0);
    return size_group_limit(pages * page);
}

gboolean cache_parse_size(const char *text, guint64 *bytes, GError **error)
{
    gsize length = strlen(text);
    if (length == 0 || text[length - 1] != '%')
        return flow_parse_size(text, bytes, error);
    g_autofree char *number = g_strstrip(g_strndup(text, length - 1));
    double share;
    if (!flow_parse_float(number, &share, error))
        return FALSE;
    if (share < 0 || share > 100) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "'%s' is outside 0%%..100%%", text);
        return FALSE;
    }
    *bytes = (guint64)((double)size_usable_memory() * share / 100);
    return TRUE;
}
