/* The pictures of one image_folder node. Private to the stage. */
#ifndef IMAGE_FOLDER_PICTURES_H
#define IMAGE_FOLDER_PICTURES_H
#include "core/flow/plan.h"
#include "core/image/list.h"

typedef enum { MISSING_ERROR, MISSING_EMPTY, MISSING_FOLDER, MISSING_SKIP } Missing;

typedef struct {
    const char *path, *validation; /* validation: folder, or a share as the last part of a path ("/x/5%") */
    char **caption_ext;
    gint64 max_pixels;
    gint64 repeats;
    Missing missing;
    gboolean (*cancelled)(gpointer data);
    gpointer data;
} PictureRules;

typedef struct {
    ImageList *found, *found_held; /* own the entries */
    GPtrArray *train, *held;       /* ImageEntry, borrowed, sorted by name; captions are never NULL */
    GPtrArray *bad;                /* ImageBad, borrowed */
    gint64 *uses;                  /* index into train of every use in an epoch, in the unshuffled order */
    gint64 n_uses;
} Pictures;

/* Walks the folders, says in one line what was found, and sorts out what is used. NULL with error, or without
 * if cancelled. */
Pictures *pictures_new(FlowNode *node, const PictureRules *rules, GError **error);
void pictures_free(Pictures *pictures); /* NULL is fine */

/* Adds sizes and counts to the plan; returns the bytes that the list holds. */
gsize pictures_plan(const Pictures *pictures, FlowPlan *plan);

/* One line for every picture: what a resumed run must find again. Returns new. */
GBytes *pictures_fingerprint(const Pictures *pictures);
/* FALSE with what was added, removed and changed since `before`. */
gboolean pictures_match(const Pictures *pictures, GBytes *before, GError **error);

#endif
