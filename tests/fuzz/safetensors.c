/* Any bytes as a safetensors file: refused with a message, or every tensor lies inside the file, back to
 * back, and can be read, and a file written from them holds the same.
 *
 * @label short
 */
#include "core/model/safetensors.h"
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int memory_file(char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    g_snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void read_all(SafeFile *file, gsize size)
{
    guint n;
    const SafeTensor *t = safe_tensors(file, &n);
    guint64 end = 0;
    for (guint i = 0; i < n; i++) {
        g_assert_true(!i || t[i].offset == end);
        end = t[i].offset + t[i].nbytes;
        g_assert_cmpuint(end, <=, size);
        g_assert_true(safe_find(file, t[i].name) == &t[i]);
        if (t[i].type != NET_F32 && t[i].type != NET_F16 && t[i].type != NET_BF16)
            continue;
        g_autofree float *x = g_new(float, (gsize)t[i].count + 1);
        g_assert_true(safe_read(file, &t[i], x, NET_F32, NULL));
    }
    g_assert_true(!n || end == size);
}

/* The hash of the data part of a file written from the same tensors. */
static void write_again(SafeFile *file)
{
    guint n;
    const SafeTensor *t = safe_tensors(file, &n);
    g_autofree SafeEntry *e = g_new0(SafeEntry, n + 1);
    g_autofree char *data = NULL, *legacy = NULL;
    for (guint i = 0; i < n; i++) {
        if (t[i].type < 0)
            return;
        e[i] = (SafeEntry){.name = t[i].name,
                           .type = (NetType)t[i].type,
                           .ndim = t[i].ndim,
                           .data = safe_data(file, &t[i]),
                           .source = (NetType)t[i].type};
        memcpy(e[i].shape, t[i].shape, sizeof e[i].shape);
    }
    g_assert_true(safe_hashes(e, n, safe_metadata(file), &data, &legacy, NULL));
    g_assert_cmpuint(strlen(data), ==, 64);
}

static void judge(const void *head, gsize head_size, const void *rest, gsize rest_size)
{
    char path[64];
    g_autoptr(GError) error = NULL;
    int fd = memory_file(path);
    g_assert_true(write(fd, head, head_size) == (gssize)head_size &&
                  write(fd, rest, rest_size) == (gssize)rest_size);
    SafeFile *file = safe_open(path, &error);
    g_assert_true((file == NULL) == (error != NULL));
    if (file) {
        read_all(file, head_size + rest_size);
        write_again(file);
        safe_close(file);
    } else {
        g_assert_true(g_utf8_validate(error->message, -1, NULL));
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    judge(data, size, "", 0);
    if (size > 8) { /* again with the length that makes everything up to the last brace the header */
        guint64 length = 0;
        for (gsize i = 8; i < size; i++)
            if (data[i] == '}')
                length = i + 1 - 8;
        judge(&length, 8, data + 8, size - 8);
    }
    return 0;
}
