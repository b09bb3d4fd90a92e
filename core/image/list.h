/* The pictures of a folder: found by content, with captions, in an order that does not depend on the disk.
 *
 * Rules that a user can rely on:
 *  - folders are walked to any depth; links are followed, but no folder is entered twice; hidden files and
 *    folders (a leading dot) and __MACOSX are passed over;
 *  - a direct sub-folder called N_NAME repeats its pictures N times in an epoch (N up to 1000, so that
 *    2024_holiday stays a name; 0 leaves the folder out);
 *  - a file is a picture if its content is JPEG or PNG, whatever its name. A file that calls itself .jpg or
 * .png and is not is a bad picture. Files of other picture formats are counted and passed over;
 *  - the caption of cat.jpg is cat.EXT for the first extension of the list that there is, in any case (.TXT);
 *  - order is by the bytes of the path below the folder. Nothing is ever written. */
#ifndef IMAGE_LIST_H
#define IMAGE_LIST_H
#include "core/image/file.h"
#include "core/image/geometry.h"

G_BEGIN_DECLS

typedef struct {
    char *path;       /* to open it */
    const char *name; /* below the folder; the tail of path */
    char *caption;    /* NULL = there is none */
    char *folder;     /* NAME of N_NAME, or NULL */
    gint64 repeats;   /* N of N_NAME, or 1 */
    gint64 id[IMAGE_ID];
    ImageSize size; /* as it is seen */
} ImageEntry;

typedef struct {
    char *path;
    GError *error;
} ImageBad;

typedef struct {
    GPtrArray *entries;   /* ImageEntry, sorted by name */
    GPtrArray *bad;       /* ImageBad: pictures that cannot be used, sorted by path */
    GPtrArray *warnings;  /* char: links to nowhere, folders left out */
    GHashTable *others;   /* format name -> count (GUINT_TO_POINTER) of pictures passed over */
    guint hidden;         /* files passed over for their name */
    guint missing, empty; /* captions */
} ImageList;

typedef struct {
    char **caption_ext;                   /* "txt" or ".txt", first found wins */
    guint64 max_pixels;                   /* IMAGE_MAX_PIXELS */
    const char *except;                   /* a folder that is not entered, or NULL */
    gboolean (*cancelled)(gpointer data); /* may be NULL */
    gpointer data;
} ImageListRules;

/* NULL with error if a folder cannot be read, or without error if cancelled. [any] */
ImageList *image_list_new(const char *folder, const ImageListRules *rules, GError **error);
void image_list_free(ImageList *list); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ImageList, image_list_free)

G_END_DECLS
#endif
