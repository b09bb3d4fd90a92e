/* PNG through libpng.
 *
 * The header and the chunks before the picture data are walked here: 33 bytes tell the size (and refuse a
 * bomb) without libpng, and eXIf is found without its caches. libpng itself is told to pass over every
 * ancillary chunk but tRNS, so that no text is inflated, no profile is parsed (nor complained about) and
 * gamma has no say.
 *
 * As in jpeg.c, libpng leaves by longjmp, and what must survive lives in a Job. Rows go straight to the
 * caller's memory where they can: RGB of an upright picture, interlaced or not. Pictures with alpha pass
 * through one row, or, interlaced, through a whole RGBA picture, because a pass needs the one before. */
#include "core/image/codec.h"
#include "core/image/exif.h"
#include "core/image/orient.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

enum {
    SIGNATURE = 8,
    CHUNK_HEAD = 8, /* length and type */
    CHUNK_TAIL = 4, /* CRC */
    CHUNKS_MAX = 4096,
    EXIF_MAX = 65536,
    POLL = 64, /* rows between looks at `cancelled` */
};

static guint32 get32(const guint8 *p)
{
    return (guint32)p[0] << 24 | (guint32)p[1] << 16 | (guint32)p[2] << 8 | p[3];
}

static gboolean bad(const char *name, GError **error, const char *text)
{
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s: %s", name, text);
    return FALSE;
}

static int read_exif(const ImageSource *source, guint64 at, guint32 n)
{
    g_autofree guint8 *exif = g_malloc(n);
    return image_exif_orientation(exif, image_source_read(source, at, exif, n));
}

gboolean image_png_probe(const ImageSource *source, const char *name, ImageInfo *info, GError **error)
{
    guint8 head[CHUNK_HEAD + 8];
    guint64 at = SIGNATURE;
    gboolean has_exif = FALSE;

    if (image_source_read(source, at, head, sizeof head) < sizeof head || memcmp(head + 4, "IHDR", 4) != 0 ||
        get32(head) != 13)
        return bad(name, error, "the file ends in its header or the header is damaged");
    guint32 width = get32(head + 8), height = get32(head + 12);
    if (width == 0 || height == 0 || width > PNG_UINT_31_MAX || height > PNG_UINT_31_MAX) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "%s: the header says %ux%u pixels, outside 1..%d", name, width, height, G_MAXINT32);
        return FALSE;
    }
    info->width = (gint32)width;
    info->height = (gint32)height;
    for (int chunk = 0; chunk < CHUNKS_MAX; chunk++) {
        if (image_source_read(source, at, head, CHUNK_HEAD) < CHUNK_HEAD)
            return bad(name, error, "the file ends before the picture begins");
        guint32 n = get32(head);
        if (memcmp(head + 4, "IDAT", 4) == 0)
            return TRUE;
        if (n > PNG_UINT_31_MAX)
            return bad(name, error, "a chunk has a damaged length");
        if (memcmp(head + 4, "eXIf", 4) == 0 && n > 0 && n <= EXIF_MAX && !has_exif) {
            info->orientation = read_exif(source, at + CHUNK_HEAD, n);
            has_exif = TRUE;
        }
        at += CHUNK_HEAD + (guint64)n + CHUNK_TAIL;
    }
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s: more than %d chunks before the picture",
                name, CHUNKS_MAX);
    return FALSE;
}

/* -- pixels ------------------------------------------------------------------------------ */

typedef struct {
    png_structp png;
    png_infop info;
    jmp_buf leave;
    const char *name;
    const ImageSource *source;
    guint64 offset;
    const ImageRequest *request;
    ImagePicture *picture;
    gboolean cancelled;
    gboolean ended;     /* the file ended too soon */
    gboolean complete;  /* every pixel has been read */
    gboolean blend_all; /* `rgba` is a whole picture */
    int orientation;
    png_uint_32 height, width; /* as stored */
    png_uint_32 rows;          /* whole rows so far */
    guint8 *turned;            /* pixels before orientation, when that is not 1 */
    guint8 *rgba;              /* one row or an interlaced picture, when there is alpha */
    char error[128], warning[128];
} Job;

static G_NORETURN void leave(Job *job, const char *text)
{
    g_strlcpy(job->error, text, sizeof job->error);
    longjmp(job->leave, 1);
}

static G_NORETURN void on_error(png_structp png, png_const_charp text)
{
    leave(png_get_error_ptr(png), text);
}

static void on_warning(png_structp png, png_const_charp text)
{
    Job *job = png_get_error_ptr(png);
    if (!job->warning[0])
        g_strlcpy(job->warning, text, sizeof job->warning);
}

static void on_read(png_structp png, png_bytep out, size_t n)
{
    Job *job = png_get_io_ptr(png);
    if (image_source_read(job->source, job->offset, out, n) < n) {
        job->ended = TRUE;
        leave(job, "the file is cut short");
    }
    job->offset += n;
}

static void poll_cancelled(Job *job, png_uint_32 row)
{
    if (row % POLL == 0 && job->request->cancelled && job->request->cancelled(job->request->data)) {
        job->cancelled = TRUE;
        leave(job, "cancelled");
    }
}

/* Everything becomes 8-bit RGB or RGBA. Returns the channels. */
static guint set_transforms(Job *job)
{
    png_set_scale_16(job->png);
    png_set_expand(job->png); /* palette, 1..4 bit, tRNS */
    png_set_gray_to_rgb(job->png);
    png_set_interlace_handling(job->png);
    png_read_update_info(job->png, job->info);
    return png_get_channels(job->png, job->info);
}

static void blend(const guint8 *rgba, guint8 *rgb, gsize n, const guint8 background[3])
{
    for (gsize i = 0; i < n; i++, rgba += 4, rgb += 3) {
        guint a = rgba[3];
        for (int j = 0; j < 3; j++)
            rgb[j] = (guint8)((rgba[j] * a + background[j] * (255 - a) + 127) / 255);
    }
}

static void read_rows(Job *job, guint8 *out, guint channels)
{
    gboolean interlaced = png_get_interlace_type(job->png, job->info) != PNG_INTERLACE_NONE;
    gsize stride = (gsize)job->width * 3, wide = (gsize)job->width * 4;
    int passes = interlaced ? PNG_INTERLACE_ADAM7_PASSES : 1;

    if (channels == 4) {
        job->rgba = g_try_malloc0(interlaced ? wide * job->height : wide);
        if (!job->rgba)
            leave(job, "no memory for the pixels");
        job->blend_all = interlaced;
    }
    for (int pass = 0; pass < passes; pass++)
        for (png_uint_32 y = 0; y < job->height; y++) {
            poll_cancelled(job, y);
            if (channels == 3) {
                png_read_row(job->png, out + y * stride, NULL);
            } else if (interlaced) {
                png_read_row(job->png, job->rgba + y * wide, NULL);
            } else {
                png_read_row(job->png, job->rgba, NULL);
                blend(job->rgba, out + y * stride, job->width, job->request->background);
            }
            if (pass == passes - 1)
                job->rows = y + 1;
        }
    job->complete = TRUE;
}

static void fill(Job *job, guint8 *out)
{
    const guint8 *b = job->request->background;
    gsize n = (gsize)job->height * job->width;
    for (gsize i = 0; i < n; i++, out += 3)
        out[0] = b[0], out[1] = b[1], out[2] = b[2];
}

static gboolean decode(Job *job)
{
    ImagePicture *p = job->picture;

    if (setjmp(job->leave))
        return FALSE;
    job->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, job, on_error, on_warning);
    job->info = job->png ? png_create_info_struct(job->png) : NULL;
    if (!job->info)
        leave(job, "no memory for the decoder");
    png_set_read_fn(job->png, job, on_read);
    png_set_user_limits(job->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* max_pixels has been checked */
    png_set_keep_unknown_chunks(job->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    if (job->request->truncated) /* what libpng reads at a time is lost whole where the file ends */
        png_set_compression_buffer_size(job->png, 512);
    png_read_info(job->png, job->info);
    job->height = png_get_image_height(job->png, job->info);
    job->width = png_get_image_width(job->png, job->info);
    p->height = p->info.height;
    p->width = p->info.width;
    p->pixels = job->request->allocate(job->request->data, p->height, p->width);
    if (p->pixels && job->orientation != 1)
        job->turned = g_try_malloc((gsize)job->height * job->width * 3);
    if (!p->pixels || (job->orientation != 1 && !job->turned))
        leave(job, "no memory for the pixels");
    guint8 *out = job->turned ? job->turned : p->pixels;
    if (job->request->truncated)
        fill(job, out);
    read_rows(job, out, set_transforms(job));
    png_read_end(job->png, NULL);
    return TRUE;
}

/* The picture is all there: what came after it, or is odd about it. */
static char *remark(const Job *job)
{
    if (job->ended)
        return g_strdup_printf("%s: the file has no end marker", job->name);
    return job->warning[0] ? g_strdup_printf("%s: %s", job->name, job->warning) : NULL;
}

FlowStatus image_png_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                            ImagePicture *picture, GError **error)
{
    Job job = {.name = name,
               .source = source,
               .request = request,
               .picture = picture,
               .orientation = picture->info.orientation};
    FlowStatus status = FLOW_SKIP;
    gboolean ok = decode(&job) || (job.complete && job.ended);

    if (job.cancelled) {
        status = FLOW_CANCELLED;
    } else if (ok) {
        picture->warning = remark(&job);
        status = FLOW_OK;
    } else if (request->truncated && picture->pixels && (job.rows > 0 || job.complete)) {
        picture->warning = g_strdup_printf("%s: %s; what is missing is background", name, job.error);
        status = FLOW_OK;
    } else if (picture->pixels) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "%s: %s; truncated = allow would use what is there", name, job.error);
    } else {
        bad(name, error, job.error);
    }
    if (status == FLOW_OK && job.blend_all)
        blend(job.rgba, job.turned ? job.turned : picture->pixels, (gsize)job.height * job.width,
              request->background);
    if (status == FLOW_OK && job.turned)
        image_orient(job.turned, (gint32)job.height, (gint32)job.width, job.orientation, picture->pixels);
    png_destroy_read_struct(&job.png, &job.info, NULL);
    g_free(job.turned);
    g_free(job.rgba);
    return status;
}
