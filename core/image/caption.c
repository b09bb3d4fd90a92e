/* Reading, cleaning and shuffling captions; caption.h has the rules. */
#include "core/image/caption.h"

#include "core/flow/random.h"
#include "core/flow/status.h"
#include "core/image/file.h"
#include "core/image/picture.h"
#include <string.h>
#include <unistd.h>

static gboolean acceptable(const char *bytes, gsize n, const char *name, GError **error)
{
    const char *nul = memchr(bytes, 0, n), *end;

    if (n >= 2 && (memcmp(bytes, "\377\376", 2) == 0 || memcmp(bytes, "\376\377", 2) == 0)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "caption %s is UTF-16; save it as UTF-8",
                    name);
        return FALSE;
    }
    if (nul) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "caption %s has a NUL at byte %" G_GSIZE_FORMAT "; it is not text", name,
                    (gsize)(nul - bytes));
        return FALSE;
    }
    if (!g_utf8_validate(bytes, (gssize)n, &end)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "caption %s is not UTF-8: byte %" G_GSIZE_FORMAT " is 0x%02x", name, (gsize)(end - bytes),
                    (guint8)*end);
        return FALSE;
    }
    return TRUE;
}

char *image_caption_clean(const char *bytes, gsize n, const char *name, GError **error)
{
    gboolean pending = FALSE; /* a line has ended and the next has not begun */

    if (!acceptable(bytes, n, name, error))
        return NULL;
    if (n >= 3 && memcmp(bytes, "\357\273\277", 3) == 0)
        bytes += 3, n -= 3;
    GString *out = g_string_sized_new(n);
    for (gsize i = 0; i < n; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            while (out->len > 0 && out->str[out->len - 1] == ' ')
                g_string_truncate(out, out->len - 1);
            pending = out->len > 0;
            continue;
        }
        char c = (guint8)bytes[i] < ' ' || bytes[i] == 0x7f ? ' ' : bytes[i];
        if (c == ' ' && (pending || out->len == 0))
            continue;
        if (pending)
            g_string_append_c(out, ' ');
        pending = FALSE;
        g_string_append_c(out, c);
    }
    while (out->len > 0 && out->str[out->len - 1] == ' ')
        g_string_truncate(out, out->len - 1);
    return g_string_free(out, FALSE);
}

char *image_caption_read(const char *path, GError **error)
{
    struct stat st;
    g_autofree char *name = image_printable(path);
    int fd = image_file_open_listed(path, NULL, IMAGE_CAPTION_MAX, &st, error);

    if (fd < 0)
        return NULL;
    g_autofree char *bytes = g_malloc((gsize)st.st_size + 1);
    gboolean ok = image_file_read(fd, path, bytes, (gsize)st.st_size, error);
    close(fd);
    return ok ? image_caption_clean(bytes, (gsize)st.st_size, name, error) : NULL;
}

char *image_caption_shuffle(const char *caption, const char *separator, guint keep, guint64 key)
{
    const char *first = *separator ? strstr(caption, separator) : NULL;

    if (!first)
        return g_strdup(caption);
    g_auto(GStrv) tags = g_strsplit(caption, separator, -1);
    guint n = g_strv_length(tags);
    gboolean blank = first[strlen(separator)] == ' ';
    g_autofree gint64 *order = g_new(gint64, n);
    GString *out = g_string_new(NULL);

    keep = MIN(keep, n);
    flow_random_shuffle(key, order, n - keep);
    for (guint i = 0; i < n; i++) {
        if (i > 0)
            g_string_append_printf(out, blank ? "%s " : "%s", separator);
        g_string_append(out, g_strstrip(tags[i < keep ? i : keep + (guint)order[i - keep]]));
    }
    return g_string_free(out, FALSE);
}

guint image_caption_words(const char *caption)
{
    guint words = 0;
    gboolean inside = FALSE;

    for (const char *p = caption; *p; p = g_utf8_next_char(p)) {
        gboolean letter = g_unichar_isalnum(g_utf8_get_char(p));
        words += letter && !inside;
        inside = letter;
    }
    return words;
}
