/* Any bytes as a TIFF structure.
 * @label short
 */
#include "core/image/exif.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int orientation = image_exif_orientation(data, size);
    g_assert_true(orientation >= 1 && orientation <= 8);
    return 0;
}
