/* Pictures: what a file is, how large it is, and its pixels as RGB.
 *
 * Contents decide, never the name. Rules that a user can rely on:
 *  - size and pixels are those of the picture as it is seen: EXIF orientation (JPEG, and PNG where the eXIf
 *    chunk stands before the picture data) is applied;
 *  - JPEG: grey, YCbCr, RGB, CMYK and YCCK; baseline, progressive, arithmetic, restart markers. CMYK with an
 *    Adobe marker is stored inverted, without one it is plain ink (R = 255 - C times 255 - K, over 255);
 *  - PNG: every depth and colour type; 16 bit is rounded to 8; alpha, also from tRNS, is blended over
 *    `background`; a palette index without a colour is black; of an animation, the default image;
 *  - colour profiles and gamma are ignored: stored values are taken as sRGB;
 *  - what is harmless is accepted with one warning a picture: a missing end marker, trailing bytes, odd
 *    markers, damaged metadata. Missing or damaged picture data is an error unless `truncated` is set. */
#ifndef IMAGE_PICTURE_H
#define IMAGE_PICTURE_H
#include "core/flow/status.h"
#include "core/image/source.h"

G_BEGIN_DECLS

enum {
    IMAGE_HEAD = 64,       /* bytes that image_format() needs at most */
    IMAGE_MAX_SCANS = 500, /* a progressive JPEG with more is refused: each costs a pass over the picture */
};
#define IMAGE_MAX_PIXELS G_GUINT64_CONSTANT(128000000)

typedef enum { IMAGE_OTHER, IMAGE_JPEG, IMAGE_PNG } ImageFormat;

typedef struct {
    ImageFormat format;
    gint32 height, width; /* as it is seen, px */
    int orientation;      /* 1..8 of the stored pixels */
} ImageInfo;

typedef struct {
    guint64 max_pixels;           /* refused from the header, before memory is asked for */
    guint8 background[3];         /* under transparent pixels */
    gboolean truncated;           /* use what there is of a picture that is cut or damaged */
    gint32 fit_height, fit_width; /* a JPEG may come out 2, 4 or 8 times smaller, not below this; 0 = full */
    /* memory for the pixels (height, width, 3), asked for once the size is known; NULL ends with an error */
    guint8 *(*allocate)(gpointer data, gint32 height, gint32 width);
    gboolean (*cancelled)(gpointer data); /* polled between rows; may be NULL */
    gpointer data;                        /* for both */
} ImageRequest;

typedef struct {
    ImageInfo info;       /* of the file */
    gint32 height, width; /* of the pixels: info's, or smaller by the fit */
    guint8 *pixels;       /* what allocate() gave */
    char *warning;        /* new, names the file; NULL if there is nothing to say */
} ImagePicture;

/* What the first bytes of a file say; *name is "JPEG", "WebP", "HTML", ... or NULL if unknown. [any] */
ImageFormat image_format(const guint8 *head, gsize n, const char **name);
/* Size and orientation from the header. `name` is for messages ("NAME is WebP, not JPEG or PNG"). [any] */
gboolean image_probe(const ImageSource *source, const char *name, guint64 max_pixels, ImageInfo *info,
                     GError **error);
/* FLOW_OK; FLOW_SKIP with error: this picture is bad; FLOW_CANCELLED. On failure the caller still owns what
 * allocate() gave, and picture->pixels says what that was. [any] */
FlowStatus image_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                        ImagePicture *picture, GError **error);
/* "white", "black", "grey", "#rrggbb" or "r,g,b". [any] */
gboolean image_parse_colour(const char *text, guint8 rgb[3], GError **error);
/* The file name for messages: valid UTF-8, control characters escaped. Returns new. [any] */
char *image_printable(const char *name);

G_END_DECLS
#endif
