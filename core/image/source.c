/* pread in a loop, or memcpy. A mapping of the file would be shorter, but a file that is cut while
 * it is mapped kills the process. */
#include "core/image/source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

gsize image_source_read(const ImageSource *source, guint64 offset, void *buffer, gsize n)
{
    gsize got = 0;

    if (offset >= source->size)
        return 0;
    n = MIN(n, source->size - offset);
    if (source->data) {
        memcpy(buffer, source->data + offset, n);
        return n;
    }
    while (got < n) {
        ssize_t r = pread(source->fd, (guint8 *)buffer + got, n - got, (off_t)(offset + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            break;
        got += (gsize)r;
    }
    return got;
}
