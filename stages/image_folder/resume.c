/* The fingerprint of the pictures, and what it differs by.
 *
 * A run is a function of its list of pictures: their order, number and captions decide which is used when. So
 * a checkpoint keeps one line for each, and another list is refused by naming the difference. */
#include "stages/image_folder/pictures.h"

#include "core/flow/random.h"
#include "core/image/picture.h"
#include <string.h>

#define TITLE "loraflow pictures 1\n"
enum { NAMED = 5 };

/* bytes, mtime, repeats, hash of the caption, role and name; the name last, because it may hold blanks. */
static void append_lines(GString *out, const GPtrArray *entries, char role)
{
    for (guint i = 0; i < entries->len; i++) {
        const ImageEntry *e = entries->pdata[i];
        g_autofree char *name = image_printable(e->name);
        g_string_append_printf(out, "%" G_GINT64_FORMAT " %" G_GINT64_FORMAT " %" G_GINT64_FORMAT " ",
                               e->id[2], e->id[3], e->repeats);
        g_string_append_printf(out, "%016" G_GINT64_MODIFIER "x %c:%s\n",
                               flow_random_key(0, e->caption, NULL, 0), role, name);
    }
}

GBytes *pictures_fingerprint(const Pictures *p)
{
    GString *out = g_string_new(TITLE);
    append_lines(out, p->train, 't');
    append_lines(out, p->held, 'v');
    return g_string_free_to_bytes(out);
}

/* "t:cat/1.png", the rest after the fourth blank. */
static const char *name_in(const char *line)
{
    for (int blanks = 0; blanks < 4 && line; blanks++) {
        line = strchr(line, ' ');
        line = line ? line + 1 : NULL;
    }
    return line && line[0] && line[1] == ':' ? line : NULL;
}

/* name -> line */
static GHashTable *by_name(char **lines)
{
    GHashTable *table = g_hash_table_new(g_str_hash, g_str_equal);
    for (; *lines; lines++)
        if (name_in(*lines))
            g_hash_table_insert(table, (gpointer)name_in(*lines), *lines);
    return table;
}

typedef struct {
    guint n;
    GString *names;
} Group;

static void group_add(Group *group, const char *name)
{
    if (group->n++ < NAMED)
        g_string_append_printf(group->names, "%s%s", group->names->len ? ", " : "", name + 2);
}

static void append_group(GString *out, const Group *group, const char *word)
{
    if (group->n)
        g_string_append_printf(out, "%s%u %s (%s%s)", out->len ? "; " : "", group->n, word, group->names->str,
                               group->n > NAMED ? ", ..." : "");
    g_string_free(group->names, TRUE);
}

static char *difference(char **before, char **now)
{
    g_autoptr(GHashTable) old = by_name(before), current = by_name(now);
    Group added = {0, g_string_new(NULL)}, removed = {0, g_string_new(NULL)},
          changed = {0, g_string_new(NULL)};
    GString *out = g_string_new(NULL);

    for (char **line = now; *line; line++) {
        const char *name = name_in(*line), *then = name ? g_hash_table_lookup(old, name) : NULL;
        if (name && !then)
            group_add(&added, name);
        else if (name && !g_str_equal(then, *line))
            group_add(&changed, name);
    }
    for (char **line = before; *line; line++)
        if (name_in(*line) && !g_hash_table_contains(current, name_in(*line)))
            group_add(&removed, name_in(*line));
    append_group(out, &added, "new");
    append_group(out, &removed, "gone");
    append_group(out, &changed, "changed (file, caption or repeats)");
    return g_string_free(out, FALSE);
}

gboolean pictures_match(const Pictures *p, GBytes *before, GError **error)
{
    g_autoptr(GBytes) now = pictures_fingerprint(p);
    gsize n;
    const char *text = g_bytes_get_data(before, &n);

    if (g_bytes_equal(now, before))
        return TRUE;
    g_autofree char *then = g_strndup(text ? text : "", n);
    if (!g_str_has_prefix(then, TITLE)) {
        g_set_error_literal(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                            "the checkpoint's list of pictures cannot be read");
        return FALSE;
    }
    g_auto(GStrv) old_lines = g_strsplit(then, "\n", -1);
    g_autofree char *current = g_strndup(g_bytes_get_data(now, NULL), g_bytes_get_size(now));
    g_auto(GStrv) new_lines = g_strsplit(current, "\n", -1);
    g_autofree char *what = difference(old_lines + 1, new_lines + 1);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "the pictures are not those the checkpoint was made with: %s", what);
    return FALSE;
}
