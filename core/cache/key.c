/* Keys are hashes, not texts: a key of fixed size is cheap to store beside each entry, to send to
 * another process and to draw random numbers from. With 128 bits, two values in a cache of a
 * billion entries collide with a chance of 1e-21. */
#include "core/cache/key.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

struct CacheHasher {
    XXH3_state_t *state;
};

CacheHasher *cache_hasher_new(void)
{
    CacheHasher *h = g_new0(CacheHasher, 1);
    h->state = XXH3_createState();
    if (!h->state)
        g_error("out of memory for a hash state");
    cache_hasher_reset(h);
    return h;
}

void cache_hasher_free(CacheHasher *h)
{
    if (!h)
        return;
    XXH3_freeState(h->state);
    g_free(h);
}

void cache_hasher_reset(CacheHasher *h)
{
    XXH3_128bits_reset(h->state);
}

void cache_hasher_add(CacheHasher *h, gconstpointer data, gsize nbytes)
{
    guint64 length = nbytes;
    XXH3_128bits_update(h->state, &length, sizeof length);
    if (nbytes > 0)
        XXH3_128bits_update(h->state, data, nbytes);
}

CacheKey cache_hasher_key(const CacheHasher *h)
{
    XXH128_hash_t d = XXH3_128bits_digest(h->state);
    return (CacheKey){d.high64, d.low64};
}

gboolean cache_hash_file(const char *path, CacheKey *out, GError **error)
{
    enum { CHUNK = 256 * 1024 };
    g_autofree char *buffer = g_malloc(CHUNK);
    CacheHasher *h = NULL;
    gboolean ok = FALSE;
    /* not blocking: a pipe with a picture's name must not stop the run */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        goto fail;
    h = cache_hasher_new();
    for (;;) {
        gssize got = read(fd, buffer, CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            goto fail;
        if (got == 0)
            break;
        XXH3_128bits_update(h->state, buffer, (gsize)got);
    }
    *out = cache_hasher_key(h);
    ok = TRUE;
fail:
    if (!ok)
        g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(errno), "cannot read '%s' to hash it: %s",
                    path, g_strerror(errno));
    if (fd >= 0)
        close(fd);
    cache_hasher_free(h);
    return ok;
}

guint cache_key_ghash(gconstpointer key)
{
    return (guint)((const CacheKey *)key)->lo;
}

gboolean cache_key_gequal(gconstpointer a, gconstpointer b)
{
    return cache_key_equal(*(const CacheKey *)a, *(const CacheKey *)b);
}
