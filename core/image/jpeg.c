/* JPEG through libjpeg-turbo.
 *
 * libjpeg leaves by longjmp. So everything that must survive a jump lives in one Job on the heap of the
 * caller; the functions with setjmp have no locals that change, and one exit frees the Job. The same source
 * manager serves a whole file in memory and the header of an open file, so probe and decode cannot disagree.
 *
 * libjpeg treats damage as warnings and fills up with grey. What those warnings mean here:
 *
 *   harmless  bytes before a marker, odd scan parameters, no end marker, trailing bytes: one warning
 *   damage    data ended before the picture did (JWRN_HIT_MARKER), bad codes, lost restart markers, the file
 *             ended while rows or scans were due: an error, or a warning with `truncated`
 *
 * A missing end marker and a cut file are the same warning (JWRN_JPEG_EOF); they differ in what came after:
 * a Huffman decoder that runs dry says so, an arithmetic one reads zeros for ever (so the row where the
 * file ended is looked at), and a progressive file without its last scans has coefficients that are not
 * exact (so coef_bits is looked at).
 *
 * jpeg_save_markers is not used: it keeps every APP1, however many. */
#include "core/image/codec.h"
#include "core/image/exif.h"
#include "core/image/orient.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum {
    WINDOW = 16384,        /* bytes read at a time from a file */
    HEADER_MAX = 64 << 20, /* a header is not searched for further than this */
    SEGMENT_MAX = 65535,   /* of a marker */
    ROWS = 16,             /* scan lines a call */
};

typedef struct {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr input;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    const char *name;
    const ImageSource *source;
    guint64 offset; /* of the next window */
    const ImageRequest *request;
    ImagePicture *picture;
    gboolean opened, cancelled;
    gboolean ended;       /* the file ended before its end marker */
    gboolean ended_early; /* ... and rows of an arithmetic-coded picture were due */
    gboolean damaged;
    gboolean has_exif;
    int orientation;
    guint8 *turned;                /* pixels before orientation, when that is not 1 */
    char error[JMSG_LENGTH_MAX];   /* what libjpeg left with */
    char warning[JMSG_LENGTH_MAX]; /* its first warning */
    guint8 window[WINDOW];
    guint8 segment[SEGMENT_MAX];
} Job;

/* -- what libjpeg calls ------------------------------------------------------------ */

static Job *job_of(j_common_ptr c)
{
    return (Job *)c->client_data;
}

static G_NORETURN void leave(Job *job, const char *text)
{
    g_strlcpy(job->error, text, sizeof job->error);
    longjmp(job->leave, 1);
}

static G_NORETURN void on_error(j_common_ptr c)
{
    Job *job = job_of(c);
    c->err->format_message(c, job->error);
    longjmp(job->leave, 1);
}

static void on_message(j_common_ptr c, int level)
{
    Job *job = job_of(c);
    if (level >= 0)
        return;
    switch (c->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_NOT_SEQUENTIAL:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
        break;
    default: /* all others are about picture data; the code for arithmetic coding is not in the header */
        job->damaged = TRUE;
        break;
    }
    if (!job->warning[0])
        c->err->format_message(c, job->warning);
}

static void input_start(j_decompress_ptr c G_GNUC_UNUSED) {}

static boolean input_fill(j_decompress_ptr c)
{
    static const JOCTET end[2] = {0xff, JPEG_EOI};
    Job *job = job_of((j_common_ptr)c);
    gsize n = 0;

    if (!job->source->data) {
        if (job->offset > HEADER_MAX)
            leave(job, "no picture header in the first 64 MiB");
        n = image_source_read(job->source, job->offset, job->window, WINDOW);
        job->offset += n;
    }
    job->input.next_input_byte = n ? job->window : end;
    job->input.bytes_in_buffer = n ? n : sizeof end;
    if (n == 0) {
        job->ended = TRUE;
        if (c->arith_code && c->input_iMCU_row + 1 < c->total_iMCU_rows)
            job->ended_early = TRUE;
    }
    return TRUE;
}

static void input_skip(j_decompress_ptr c, long n)
{
    Job *job = job_of((j_common_ptr)c);
    gsize here = MIN((gsize)MAX(n, 0), job->input.bytes_in_buffer);

    job->input.next_input_byte += here;
    job->input.bytes_in_buffer -= here;
    if (n > (long)here && !job->ended)
        job->offset +=
            (guint64)n - here; /* in memory there is nothing behind the window: the next fill ends */
}

static void input_end(j_decompress_ptr c G_GNUC_UNUSED) {}

static int next_byte(j_decompress_ptr c)
{
    if (c->src->bytes_in_buffer == 0)
        c->src->fill_input_buffer(c);
    c->src->bytes_in_buffer--;
    return *c->src->next_input_byte++;
}

/* APP1: the first that is EXIF gives the orientation; XMP and the rest are passed over. */
static boolean on_app1(j_decompress_ptr c)
{
    Job *job = job_of((j_common_ptr)c);
    int n = next_byte(c) << 8;
    n = (n | next_byte(c)) - 2;

    if (job->has_exif || n < 6) {
        if (n > 0)
            c->src->skip_input_data(c, n);
        return TRUE;
    }
    for (int i = 0; i < n; i++)
        job->segment[i] = (guint8)next_byte(c);
    if (!job->ended && memcmp(job->segment, "Exif\0", 6) == 0) {
        job->has_exif = TRUE;
        job->orientation = image_exif_orientation(job->segment + 6, (gsize)n - 6);
    }
    return TRUE;
}

static void on_progress(j_common_ptr c)
{
    Job *job = job_of(c);
    if (((j_decompress_ptr)c)->input_scan_number > IMAGE_MAX_SCANS) {
        snprintf(job->error, sizeof job->error, "more than %d scans", IMAGE_MAX_SCANS);
        longjmp(job->leave, 1);
    }
    if (job->request && job->request->cancelled && job->request->cancelled(job->request->data)) {
        job->cancelled = TRUE;
        leave(job, "cancelled");
    }
}

/* -- opening and closing -------------------------------------------------------------- */

static Job *job_new(const ImageSource *source, const char *name)
{
    Job *job = g_new0(Job, 1);

    job->name = name;
    job->source = source;
    job->orientation = 1;
    job->c.err = jpeg_std_error(&job->errors);
    job->errors.error_exit = on_error;
    job->errors.emit_message = on_message;
    job->c.client_data = job;
    job->input = (struct jpeg_source_mgr){
        .next_input_byte = source->data,
        .bytes_in_buffer = source->data ? (gsize)source->size : 0,
        .init_source = input_start,
        .fill_input_buffer = input_fill,
        .skip_input_data = input_skip,
        .resync_to_restart = jpeg_resync_to_restart,
        .term_source = input_end,
    };
    job->progress.progress_monitor = on_progress;
    return job;
}

static void job_free(Job *job)
{
    if (job->opened)
        jpeg_destroy_decompress(&job->c);
    g_free(job->turned);
    g_free(job);
}

static void read_header(Job *job)
{
    jpeg_create_decompress(&job->c);
    job->opened = TRUE;
    job->c.client_data = job;
    job->c.src = &job->input;
    job->c.progress = &job->progress;
    jpeg_set_marker_processor(&job->c, JPEG_APP0 + 1, on_app1);
    jpeg_read_header(&job->c, TRUE);
}

static gboolean bad(const Job *job, GError **error, const char *text)
{
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s: %s", job->name, text);
    return FALSE;
}

static gboolean probe(Job *job)
{
    if (setjmp(job->leave))
        return FALSE;
    read_header(job);
    return TRUE;
}

gboolean image_jpeg_probe(const ImageSource *source, const char *name, ImageInfo *info, GError **error)
{
    Job *job = job_new(source, name);
    gboolean ok = probe(job);

    if (!ok)
        bad(job, error, job->ended ? "the file ends before the picture begins" : job->error);
    info->height = (gint32)job->c.image_height;
    info->width = (gint32)job->c.image_width;
    info->orientation = job->orientation;
    job_free(job);
    return ok;
}

/* -- pixels ------------------------------------------------------------------------------ */

/* The largest reduction by 2, 4 or 8 that stays at or above the size the picture is wanted at. Those are the
 * ones with fast inverse transforms; they average as well as a filter would. */
static guint reduction(const Job *job)
{
    gboolean swaps = image_orient_swaps(job->orientation);
    guint h = (guint)(swaps ? job->request->fit_width : job->request->fit_height);
    guint w = (guint)(swaps ? job->request->fit_height : job->request->fit_width);
    guint d = 8;

    if (h == 0 || w == 0)
        return 1;
    while (d > 1 && (job->c.image_height / d < h || job->c.image_width / d < w))
        d /= 2;
    return d;
}

static void set_output(Job *job)
{
    switch (job->c.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
        job->c.out_color_space = JCS_RGB;
        break;
    case JCS_CMYK:
    case JCS_YCCK:
        job->c.out_color_space = JCS_CMYK;
        break;
    default:
        snprintf(job->error, sizeof job->error, "%d colour components, not 1, 3 or 4", job->c.num_components);
        longjmp(job->leave, 1);
    }
    job->c.scale_num = 1;
    job->c.scale_denom = reduction(job);
}

static void cmyk_to_rgb(const guint8 *cmyk, guint8 *rgb, gsize n, gboolean inverted)
{
    guint8 flip = inverted ? 0 : 255;
    for (gsize i = 0; i < n; i++, cmyk += 4, rgb += 3) {
        guint k = cmyk[3] ^ flip;
        for (int j = 0; j < 3; j++)
            rgb[j] = (guint8)(((guint)(cmyk[j] ^ flip) * k + 127) / 255);
    }
}

static void read_rows(Job *job, guint8 *out)
{
    struct jpeg_decompress_struct *c = &job->c;
    gsize stride = (gsize)c->output_width * 3;
    gboolean cmyk = c->out_color_space == JCS_CMYK;
    JSAMPARRAY ink = NULL;
    JSAMPROW rows[ROWS];

    if (cmyk)
        ink = c->mem->alloc_sarray((j_common_ptr)c, JPOOL_IMAGE, c->output_width * 4, 1);
    while (c->output_scanline < c->output_height) {
        guint8 *at = out + c->output_scanline * stride;
        if (cmyk) {
            jpeg_read_scanlines(c, ink, 1);
            cmyk_to_rgb(ink[0], at, c->output_width, c->saw_Adobe_marker);
            continue;
        }
        guint n = MIN(c->output_height - c->output_scanline, (guint)ROWS);
        for (guint i = 0; i < n; i++)
            rows[i] = at + i * stride;
        jpeg_read_scanlines(c, rows, n);
    }
}

/* What warnings do not say: whole scans that are missing. */
static gboolean incomplete(const Job *job)
{
    const struct jpeg_decompress_struct *c = &job->c;

    if (job->ended_early)
        return TRUE;
    for (int i = 0; i < c->num_components; i++) {
        if (!c->comp_info[i].quant_table)
            return TRUE; /* no scan had this component */
        if (job->ended && c->progressive_mode)
            for (int k = 0; k < DCTSIZE2; k++)
                if (c->coef_bits[i][k] != 0)
                    return TRUE;
    }
    return FALSE;
}

static gboolean decode(Job *job)
{
    ImagePicture *p = job->picture;

    if (setjmp(job->leave))
        return FALSE;
    read_header(job);
    set_output(job);
    jpeg_calc_output_dimensions(&job->c);
    gboolean swaps = image_orient_swaps(job->orientation);
    p->height = (gint32)(swaps ? job->c.output_width : job->c.output_height);
    p->width = (gint32)(swaps ? job->c.output_height : job->c.output_width);
    p->pixels = job->request->allocate(job->request->data, p->height, p->width);
    if (p->pixels && job->orientation != 1)
        job->turned = g_try_malloc((gsize)p->height * (gsize)p->width * 3);
    if (!p->pixels || (job->orientation != 1 && !job->turned))
        leave(job, "no memory for the pixels");
    jpeg_start_decompress(&job->c);
    read_rows(job, job->turned ? job->turned : p->pixels);
    return TRUE;
}

FlowStatus image_jpeg_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                             ImagePicture *picture, GError **error)
{
    Job *job = job_new(source, name);
    FlowStatus status = FLOW_SKIP;

    job->request = request;
    job->picture = picture;
    if (!decode(job)) {
        if (job->cancelled)
            status = FLOW_CANCELLED;
        else
            bad(job, error, job->ended ? "the file is cut short" : job->error);
        goto done;
    }
    if (job->damaged || incomplete(job)) {
        const char *what = job->ended ? "the file is cut short" : job->warning;
        if (!request->truncated) {
            g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                        "%s: %s; truncated = allow would use what is there", name, what);
            goto done;
        }
        picture->warning = g_strdup_printf("%s: %s; what is missing is grey", name, what);
    } else if (job->warning[0] && !job->ended) {
        picture->warning = g_strdup_printf("%s: %s", name, job->warning);
    }
    if (job->turned)
        image_orient(job->turned, (gint32)job->c.output_height, (gint32)job->c.output_width, job->orientation,
                     picture->pixels);
    status = FLOW_OK;
done:
    job_free(job);
    return status;
}
