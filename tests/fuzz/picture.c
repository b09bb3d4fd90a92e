/* Any bytes as a picture: probed, then decoded in the ways the stages ask for. What a header promises beyond
 * 256 K pixels is refused, so memory stays small.
 * @label short
 * @timeout 60
 */
#include "core/image/picture.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static guint8 *allocate(gpointer data, gint32 height, gint32 width)
{
    guint8 **pixels = data;
    g_free(*pixels);
    return *pixels = g_malloc0((gsize)height * (gsize)width * 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    guint8 *pixels = NULL;
    for (int way = 0; way < 2; way++) {
        ImageSource source = {data, -1, size};
        ImageRequest request = {.max_pixels = 1 << 18,
                                .truncated = way == 0,
                                .fit_height = way * 9,
                                .fit_width = way * 9,
                                .allocate = allocate,
                                .data = &pixels};
        ImagePicture picture;
        ImageInfo info;
        g_autoptr(GError) unknown = NULL, error = NULL;
        gboolean known = image_probe(&source, "x", request.max_pixels, &info, &unknown);
        FlowStatus status = image_decode(&source, "x", &request, &picture, &error);
        g_assert_true(known == (unknown == NULL));
        g_assert_true((status == FLOW_OK) == (error == NULL));
        g_assert_true(status != FLOW_OK || known);
        g_assert_true(status != FLOW_OK ||
                      (info.height == picture.info.height && info.width == picture.info.width));
        g_free(picture.warning);
    }
    g_free(pixels);
    return 0;
}
