/* list.h has the rules.
 *
 * The walk keeps a queue of folders instead of recursing, so neither depth nor open files are limited by it:
 * one folder is open at a time. Names of a folder are sorted before they are used, so which of two links to
 * one folder is followed does not depend on the disk. Only names that look like captions or unrelated data
 * are not opened; all others are asked for their first bytes. */
#include "core/image/list.h"

#include "core/flow/status.h"
#include "core/image/caption.h"
#include "core/image/picture.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS_MAX = 1000 };

/* What is known about a folder in the queue. */
typedef struct {
    char *path;     /* to open it */
    gsize root;     /* length of the data set's path and its slash */
    char *label;    /* NAME of N_NAME above, or NULL */
    gint64 repeats; /* N of N_NAME above, or 1 */
    gboolean top;
} Folder;

typedef struct {
    ImageList *list;
    const ImageListRules *rules;
    GQueue queue;        /* Folder */
    GHashTable *entered; /* "dev:inode" */
    GPtrArray *names;    /* of the folder at hand, sorted */
    GHashTable *by_name; /* the same with the extension in lower case -> name */
} Walk;

static void entry_free(gpointer data)
{
    ImageEntry *e = data;
    g_free(e->path);
    g_free(e->caption);
    g_free(e->folder);
    g_free(e);
}

static void bad_free(gpointer data)
{
    ImageBad *b = data;
    g_free(b->path);
    g_error_free(b->error);
    g_free(b);
}

static void folder_free(gpointer data)
{
    Folder *f = data;
    g_free(f->path);
    g_free(f->label);
    g_free(f);
}

void image_list_free(ImageList *list)
{
    if (!list)
        return;
    g_ptr_array_unref(list->entries);
    g_ptr_array_unref(list->bad);
    g_ptr_array_unref(list->warnings);
    g_hash_table_unref(list->others);
    g_free(list);
}

static void warn(Walk *w, const char *format, const char *path)
{
    g_autofree char *name = image_printable(path);
    g_ptr_array_add(w->list->warnings, g_strdup_printf(format, name));
}

/* -- names --------------------------------------------------------------------------- */

static gboolean has_extension(const char *name, const char *const *list)
{
    const char *dot = strrchr(name, '.');
    for (; dot && *list; list++)
        if (g_ascii_strcasecmp(dot + 1, *list) == 0)
            return TRUE;
    return FALSE;
}

/* "cat.TXT" -> "cat.txt": the stem counts as it is written. */
static char *lower_extension(const char *name)
{
    char *copy = g_strdup(name), *dot = strrchr(copy, '.');
    for (; dot && *dot; dot++)
        *dot = g_ascii_tolower(*dot);
    return copy;
}

static gboolean is_hidden(const char *name)
{
    return name[0] == '.' || strcmp(name, "__MACOSX") == 0;
}

static gboolean claims_to_be_a_picture(const char *name)
{
    static const char *const list[] = {"jpg", "jpeg", "jpe", "jfif", "png", NULL};
    return has_extension(name, list);
}

static gboolean is_other_data(Walk *w, const char *name)
{
    static const char *const list[] = {"txt",  "caption", "json",        "jsonl", "csv",
                                       "toml", "yaml",    "yml",         "npz",   "npy",
                                       "zip",  "tar",     "safetensors", "mp4",   NULL};
    if (has_extension(name, list))
        return TRUE;
    for (char **e = w->rules->caption_ext; e && *e; e++) {
        const char *const one[] = {**e == '.' ? *e + 1 : *e, NULL};
        if (has_extension(name, one))
            return TRUE;
    }
    return FALSE;
}

static gboolean is_other_picture(const char *name)
{
    static const char *const list[] = {"webp", "gif", "bmp", "tif", "tiff", "heic", "heif",
                                       "avif", "jxl", "jp2", "j2k", "psd",  "svg",  "ico",
                                       "tga",  "ppm", "dng", "cr2", "nef",  "arw",  NULL};
    return has_extension(name, list);
}

/* The number and the name of "10_cat". FALSE for other names. */
static gboolean repeat_folder(Walk *w, const char *name, const char *path, gint64 *repeats,
                              const char **label)
{
    char *end;
    if (!g_ascii_isdigit(*name))
        return FALSE;
    errno = 0;
    gint64 n = g_ascii_strtoll(name, &end, 10);
    if (*end != '_')
        return FALSE;
    if (errno || n > REPEATS_MAX) {
        warn(w, "%s: the number is above 1000 and taken as a part of the name, not as repeats", path);
        return FALSE;
    }
    *repeats = n;
    *label = end + 1;
    return TRUE;
}

/* -- one picture ----------------------------------------------------------------------- */

static void add_bad(Walk *w, const char *path, GError *error)
{
    ImageBad *bad = g_new0(ImageBad, 1);
    bad->path = g_strdup(path);
    bad->error = error;
    g_ptr_array_add(w->list->bad, bad);
}

static gboolean find_caption(Walk *w, const Folder *f, const char *name, char **caption, GError **error)
{
    const char *dot = strrchr(name, '.');
    g_autofree char *stem = dot ? g_strndup(name, (gsize)(dot - name)) : g_strdup(name);

    for (char **e = w->rules->caption_ext; e && *e; e++) {
        g_autofree char *plain = g_strconcat(stem, **e == '.' ? "" : ".", *e, NULL);
        g_autofree char *key = lower_extension(plain);
        const char *found = g_hash_table_lookup(w->by_name, key);
        if (!found)
            continue;
        g_autofree char *path = g_strconcat(f->path, "/", found, NULL);
        *caption = image_caption_read(path, error);
        return *caption != NULL;
    }
    return TRUE;
}

static void add_picture(Walk *w, const Folder *f, const char *name, char *path, const struct stat *st,
                        const ImageInfo *info)
{
    GError *error = NULL;
    char *caption = NULL;

    if (!find_caption(w, f, name, &caption, &error)) {
        add_bad(w, path, error);
        g_free(path);
        return;
    }
    ImageEntry *e = g_new0(ImageEntry, 1);
    e->path = path;
    e->name = path + f->root;
    e->caption = caption;
    e->folder = g_strdup(f->label);
    e->repeats = f->repeats;
    e->size = (ImageSize){info->height, info->width};
    image_file_id(st, e->id);
    w->list->missing += caption == NULL;
    w->list->empty += caption && !*caption;
    g_ptr_array_add(w->list->entries, e);
}

static void count_other(Walk *w, const char *format)
{
    gpointer n = g_hash_table_lookup(w->list->others, format);
    g_hash_table_insert(w->list->others, (gpointer)format, GUINT_TO_POINTER(GPOINTER_TO_UINT(n) + 1));
}

static void visit_file(Walk *w, const Folder *f, const char *name)
{
    gboolean claims = claims_to_be_a_picture(name);
    g_autofree char *path = g_strconcat(f->path, "/", name, NULL);
    g_autofree char *printable = image_printable(path);
    guint8 head[IMAGE_HEAD];
    const char *format;
    struct stat st;
    ImageInfo info;
    GError *error = NULL;

    int fd = image_file_open(path, &st, &error);
    if (fd < 0) {
        if (claims)
            add_bad(w, path, error);
        else
            g_error_free(error);
        return;
    }
    ImageSource source = {NULL, fd, (guint64)st.st_size};
    ImageFormat kind = image_format(head, image_source_read(&source, 0, head, sizeof head), &format);
    if (kind == IMAGE_OTHER && !claims) {
        if (is_other_picture(name))
            count_other(w, format ? format : "unknown");
    } else if (image_probe(&source, printable, w->rules->max_pixels, &info, &error)) {
        add_picture(w, f, name, g_steal_pointer(&path), &st, &info);
    } else {
        add_bad(w, path, error);
    }
    close(fd);
}

/* -- the walk --------------------------------------------------------------------------- */

static char *folder_key(const struct stat *st)
{
    return g_strdup_printf("%" G_GUINT64_FORMAT ":%" G_GUINT64_FORMAT, (guint64)st->st_dev,
                           (guint64)st->st_ino);
}

static void push_folder(Walk *w, const Folder *parent, const char *name)
{
    g_autofree char *path = g_strconcat(parent->path, "/", name, NULL);
    gint64 repeats = parent->repeats;
    const char *label = parent->label;

    if (parent->top && repeat_folder(w, name, path, &repeats, &label) && repeats < 1) {
        warn(w, "%s: left out, its pictures are to be repeated 0 times", path);
        return;
    }
    Folder *f = g_new0(Folder, 1);
    f->path = g_steal_pointer(&path);
    f->root = parent->root;
    f->label = g_strdup(label);
    f->repeats = repeats;
    g_queue_push_tail(&w->queue, f);
}

static void visit_name(Walk *w, const Folder *f, int dir, const char *name)
{
    struct stat st;

    if (is_hidden(name)) {
        w->list->hidden++;
        return;
    }
    if (fstatat(dir, name, &st, 0) < 0) {
        g_autofree char *path = g_strconcat(f->path, "/", name, NULL);
        warn(w,
             errno == ENOENT || errno == ELOOP ? "%s: a link to nowhere, passed over" : "%s: cannot be read",
             path);
    } else if (S_ISDIR(st.st_mode)) {
        push_folder(w, f, name);
    } else if (S_ISREG(st.st_mode) ? !is_other_data(w, name) : claims_to_be_a_picture(name)) {
        visit_file(w, f, name);
    }
}

static int by_bytes(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Reads the names of an open folder into w->names and w->by_name. Takes fd. */
static gboolean read_names(Walk *w, int fd)
{
    DIR *dir = fdopendir(fd);

    if (!dir) {
        close(fd);
        return FALSE;
    }
    g_ptr_array_set_size(w->names, 0);
    g_hash_table_remove_all(w->by_name);
    errno = 0;
    for (struct dirent *d; (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            g_ptr_array_add(w->names, g_strdup(d->d_name));
    int kept = errno;
    closedir(dir);
    errno = kept;
    g_ptr_array_sort(w->names, by_bytes);
    for (guint i = w->names->len; i > 0; i--) { /* the first of equal ones wins */
        char *name = g_ptr_array_index(w->names, i - 1);
        g_hash_table_replace(w->by_name, lower_extension(name), name);
    }
    return kept == 0;
}

static gboolean visit_folder(Walk *w, const Folder *f, GError **error)
{
    struct stat st;
    int fd = image_file_open_raw(f->path, O_DIRECTORY);
    g_autofree char *name = image_printable(f->path);

    if (fd < 0 || fstat(fd, &st) < 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "folder %s cannot be read: %s", name,
                    g_strerror(errno));
        if (fd >= 0)
            close(fd);
        return FALSE;
    }
    if (!g_hash_table_add(w->entered, folder_key(&st))) {
        close(fd);
        return TRUE;
    }
    int dir = dup(fd);
    if (dir < 0 || !read_names(w, fd)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "folder %s cannot be read: %s", name,
                    g_strerror(errno));
        if (dir >= 0)
            close(dir);
        return FALSE;
    }
    for (guint i = 0; i < w->names->len; i++)
        visit_name(w, f, dir, g_ptr_array_index(w->names, i));
    close(dir);
    return TRUE;
}

static gboolean walk(Walk *w, GError **error)
{
    for (Folder *f; (f = g_queue_pop_head(&w->queue));) {
        gboolean stop = w->rules->cancelled && w->rules->cancelled(w->rules->data);
        gboolean ok = !stop && visit_folder(w, f, error);
        folder_free(f);
        if (!ok)
            return FALSE;
    }
    return TRUE;
}

static int by_name(gconstpointer a, gconstpointer b)
{
    return strcmp((*(const ImageEntry *const *)a)->name, (*(const ImageEntry *const *)b)->name);
}

static int bad_by_path(gconstpointer a, gconstpointer b)
{
    return strcmp((*(const ImageBad *const *)a)->path, (*(const ImageBad *const *)b)->path);
}

static char *without_slash(const char *folder)
{
    gsize n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    return g_strndup(folder, n);
}

ImageList *image_list_new(const char *folder, const ImageListRules *rules, GError **error)
{
    ImageList *list = g_new0(ImageList, 1);
    Walk w = {.list = list, .rules = rules, .queue = G_QUEUE_INIT};
    struct stat st;

    list->entries = g_ptr_array_new_with_free_func(entry_free);
    list->bad = g_ptr_array_new_with_free_func(bad_free);
    list->warnings = g_ptr_array_new_with_free_func(g_free);
    list->others = g_hash_table_new(g_str_hash, g_str_equal);
    w.entered = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    w.names = g_ptr_array_new_with_free_func(g_free);
    w.by_name = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    if (rules->except && stat(rules->except, &st) == 0)
        g_hash_table_add(w.entered, folder_key(&st));
    Folder *root = g_new0(Folder, 1);
    root->path = without_slash(folder);
    root->root = strlen(root->path) + 1;
    root->repeats = 1;
    root->top = TRUE;
    g_queue_push_tail(&w.queue, root);

    gboolean ok = walk(&w, error);
    g_ptr_array_sort(list->entries, by_name);
    g_ptr_array_sort(list->bad, bad_by_path);
    g_queue_clear_full(&w.queue, folder_free);
    g_hash_table_unref(w.entered);
    g_hash_table_unref(w.by_name);
    g_ptr_array_unref(w.names);
    if (!ok)
        g_clear_pointer(&list, image_list_free);
    return list;
}
