/* From folders on disk to the lists that are trained on and held back.
 *
 * A share of the pictures is held back by drawing a number from each picture's name and taking the smallest:
 * pictures that are added later hardly change who is held back. */
#include "stages/image_folder/pictures.h"

#include "core/flow/random.h"
#include "core/image/picture.h"
#include <string.h>

enum {
    NAMED = 5,        /* names in a message */
    SHOWN = 60,       /* characters of a caption in the summary */
    ALLOCATIONS = 64, /* bytes that the allocator adds for the parts of an entry */
};

/* "5%" as the last part of the path: 0.05. Negative if it is a folder. (Paths arrive absolute.) */
static double share_of(const char *validation)
{
    const char *slash = strrchr(validation, '/'), *text = slash ? slash + 1 : validation;
    char *end;
    double v = g_ascii_strtod(text, &end);
    return end != text && g_str_equal(end, "%") ? v / 100 : -1;
}

/* "a.png, b.png and 7 more" */
static char *some_names(GPtrArray *entries)
{
    GString *out = g_string_new(NULL);
    for (guint i = 0; i < MIN(entries->len, (guint)NAMED); i++) {
        g_autofree char *name = image_printable(((ImageEntry *)entries->pdata[i])->name);
        g_string_append_printf(out, "%s%s", i ? ", " : "", name);
    }
    if (entries->len > NAMED)
        g_string_append_printf(out, " and %u more", entries->len - NAMED);
    return g_string_free(out, FALSE);
}

/* -- captions that are missing ---------------------------------------------------------- */

static gboolean missing_is_an_error(const ImageList *list, const PictureRules *rules, GPtrArray *without,
                                    GError **error)
{
    g_autofree char *extensions = g_strjoinv(", ", rules->caption_ext), *names = some_names(without);
    g_set_error(
        error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
        "%u of %u pictures have no caption (%s): %s; write them, or set missing = empty, folder or skip",
        without->len, list->entries->len, extensions, names);
    return FALSE;
}

/* Fills `out` with the entries that are used, all with captions. */
static gboolean take_entries(const ImageList *list, const PictureRules *rules, GPtrArray *out, GError **error)
{
    g_autoptr(GPtrArray) without = g_ptr_array_new();

    for (guint i = 0; i < list->entries->len; i++) {
        ImageEntry *e = list->entries->pdata[i];
        if (!e->caption) {
            g_ptr_array_add(without, e);
            if (rules->missing == MISSING_SKIP)
                continue;
            e->caption = g_strdup(rules->missing == MISSING_FOLDER && e->folder ? e->folder : "");
        }
        g_ptr_array_add(out, e);
    }
    return without->len == 0 || rules->missing != MISSING_ERROR ||
           missing_is_an_error(list, rules, without, error);
}

/* -- holding back ----------------------------------------------------------------------- */

typedef struct {
    guint64 draw;
    ImageEntry *entry;
} Drawn;

static int by_draw(gconstpointer a, gconstpointer b)
{
    const Drawn *p = a, *q = b;
    return p->draw != q->draw ? (p->draw > q->draw) - (p->draw < q->draw)
                              : strcmp(p->entry->name, q->entry->name);
}

static int by_name(gconstpointer a, gconstpointer b)
{
    return strcmp((*(const ImageEntry *const *)a)->name, (*(const ImageEntry *const *)b)->name);
}

static gboolean hold_back_share(FlowNode *node, Pictures *p, double share, GError **error)
{
    guint n = p->train->len, k = MAX((guint)(share * n + 0.5), 1);

    if (share <= 0 || share > 0.5) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "validation = %g%% is outside 0..50%% of the pictures", share * 100);
        return FALSE;
    }
    if (n < 2)
        return TRUE;
    g_autofree Drawn *drawn = g_new(Drawn, n);
    for (guint i = 0; i < n; i++) {
        ImageEntry *e = p->train->pdata[i];
        drawn[i] = (Drawn){flow_random_key(flow_node_seed(node), e->name, NULL, 0), e};
    }
    qsort(drawn, n, sizeof *drawn, by_draw);
    g_ptr_array_set_size(p->train, 0);
    for (guint i = 0; i < n; i++)
        g_ptr_array_add(i < k ? p->held : p->train, drawn[i].entry);
    g_ptr_array_sort(p->held, by_name);
    g_ptr_array_sort(p->train, by_name);
    return TRUE;
}

/* -- what is said ------------------------------------------------------------------------- */

static void say_warnings(FlowNode *node, const ImageList *list)
{
    for (guint i = 0; i < list->warnings->len && i < 2 * NAMED; i++)
        flow_node_warn(node, "%s", (char *)list->warnings->pdata[i]);
    if (list->warnings->len > 2 * NAMED)
        flow_node_warn(node, "%u more files or folders are passed over", list->warnings->len - 2 * NAMED);
}

static void append_example(GString *out, const ImageEntry *e, gboolean first)
{
    glong length = g_utf8_strlen(e->caption, -1);
    g_autofree char *start = g_utf8_substring(e->caption, 0, MIN(length, SHOWN));
    g_string_append_printf(out, "%s\"%s%s\"", first ? "; captions such as " : ", ", start,
                           length > SHOWN ? "..." : "");
}

static void append_counts(GString *out, const Pictures *p)
{
    guint missing = p->found->missing + (p->found_held ? p->found_held->missing : 0);
    guint empty = p->found->empty + (p->found_held ? p->found_held->empty : 0);
    gpointer format, n;

    if (p->held->len)
        g_string_append_printf(out, ", %u held back", p->held->len);
    if (p->n_uses != p->train->len)
        g_string_append_printf(out, ", %" G_GINT64_FORMAT " uses an epoch", p->n_uses);
    if (missing)
        g_string_append_printf(out, ", %u without a caption", missing);
    if (empty)
        g_string_append_printf(out, ", %u with an empty caption", empty);
    if (p->bad->len)
        g_string_append_printf(out, ", %u that cannot be used", p->bad->len);
    g_autoptr(GList) names = g_list_sort(g_hash_table_get_keys(p->found->others), (GCompareFunc)strcmp);
    for (GList *l = names; l; l = l->next)
        if (g_hash_table_lookup_extended(p->found->others, l->data, &format, &n))
            g_string_append_printf(out, ", %u %s passed over", GPOINTER_TO_UINT(n), (char *)format);
    if (p->found->hidden)
        g_string_append_printf(out, ", %u hidden", p->found->hidden);
}

static void say_summary(FlowNode *node, const Pictures *p, const char *path)
{
    g_autofree char *name = image_printable(path);
    GString *out = g_string_new(NULL);

    g_string_append_printf(out, "%u pictures in %s", p->train->len, name);
    append_counts(out, p);
    for (guint i = 0; i < 2 && i < p->train->len; i++)
        append_example(out, p->train->pdata[i * (p->train->len - 1)], i == 0);
    flow_node_info(node, "%s", out->str);
    g_string_free(out, TRUE);
}

/* -- all of it ------------------------------------------------------------------------------ */

/* Uses of an epoch: the whole list, then those that are used twice, and so on, so that repeats of one
 * picture are far apart even without shuffling. */
static void count_uses(Pictures *p, gint64 repeats)
{
    gint64 most = 0;

    for (guint i = 0; i < p->train->len; i++) {
        gint64 n = ((ImageEntry *)p->train->pdata[i])->repeats * repeats;
        p->n_uses += n;
        most = MAX(most, n);
    }
    p->uses = g_new(gint64, MAX(p->n_uses, 1));
    gint64 k = 0;
    for (gint64 r = 0; r < most; r++)
        for (guint i = 0; i < p->train->len; i++)
            if (((ImageEntry *)p->train->pdata[i])->repeats * repeats > r)
                p->uses[k++] = i;
}

static gboolean find(Pictures *p, const PictureRules *rules, gboolean held_folder, GError **error)
{
    ImageListRules list = {.caption_ext = rules->caption_ext,
                           .max_pixels = (guint64)rules->max_pixels,
                           .except = held_folder ? rules->validation : NULL,
                           .cancelled = rules->cancelled,
                           .data = rules->data};

    if (held_folder && g_str_equal(rules->path, rules->validation)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "validation = %s is the folder that is trained on", rules->validation);
        return FALSE;
    }
    p->found = image_list_new(rules->path, &list, error);
    if (p->found && held_folder) {
        list.except = rules->path;
        p->found_held = image_list_new(rules->validation, &list, error);
    }
    return p->found && (!held_folder || p->found_held);
}

static gboolean choose(FlowNode *node, Pictures *p, const PictureRules *rules, double share, GError **error)
{
    const ImageList *lists[] = {p->found, p->found_held};

    for (int i = 0; i < 2 && lists[i]; i++) {
        if (!take_entries(lists[i], rules, i ? p->held : p->train, error))
            return FALSE;
        for (guint k = 0; k < lists[i]->bad->len; k++)
            g_ptr_array_add(p->bad, lists[i]->bad->pdata[k]);
        say_warnings(node, lists[i]);
    }
    if (share >= 0 && !hold_back_share(node, p, share, error))
        return FALSE;
    count_uses(p, rules->repeats);
    return TRUE;
}

gsize pictures_plan(const Pictures *p, FlowPlan *plan)
{
    const GPtrArray *lists[] = {p->train, p->held};
    g_autoptr(GHashTable) index = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    gsize held = (gsize)p->n_uses * 2 * sizeof(gint64);

    for (int k = 0; k < 2; k++)
        for (guint i = 0; i < lists[k]->len; i++) {
            const ImageEntry *e = lists[k]->pdata[i];
            gint64 key = (gint64)e->size.height << 32 | e->size.width;
            gpointer at;
            if (!g_hash_table_lookup_extended(index, &key, NULL, &at)) {
                at = GUINT_TO_POINTER(plan->sizes->len);
                g_hash_table_insert(index, g_memdup2(&key, sizeof key), at);
                g_array_append_val(plan->sizes, ((FlowPlanSize){e->size.height, e->size.width, 0}));
            }
            g_array_index(plan->sizes, FlowPlanSize, GPOINTER_TO_UINT(at)).count++;
            plan->source_pixels = MAX(plan->source_pixels, (gint64)e->size.height * e->size.width);
            plan->source_bytes = MAX(plan->source_bytes, e->id[2]);
            held += sizeof *e + strlen(e->path) + strlen(e->caption) + ALLOCATIONS;
        }
    plan->samples = p->train->len;
    plan->validation = p->held->len;
    return held;
}

Pictures *pictures_new(FlowNode *node, const PictureRules *rules, GError **error)
{
    Pictures *p = g_new0(Pictures, 1);
    double share = rules->validation ? share_of(rules->validation) : -1;

    p->train = g_ptr_array_new();
    p->held = g_ptr_array_new();
    p->bad = g_ptr_array_new();
    if (!find(p, rules, rules->validation && share < 0, error) || !choose(node, p, rules, share, error)) {
        pictures_free(p);
        return NULL;
    }
    say_summary(node, p, rules->path);
    return p;
}

void pictures_free(Pictures *p)
{
    if (!p)
        return;
    g_ptr_array_unref(p->train);
    g_ptr_array_unref(p->held);
    g_ptr_array_unref(p->bad);
    image_list_free(p->found);
    image_list_free(p->found_held);
    g_free(p->uses);
    g_free(p);
}
