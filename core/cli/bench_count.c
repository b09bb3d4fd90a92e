/* Counts allocations by standing in front of the C library's allocator: names that a program defines win
 * over those of the libraries it loads. While nothing is measured the cost is one load. The sanitizers
 * bring allocators of their own, so there nothing is counted. */
#include "core/cli/bench.h"
#include <errno.h>
#include <stdatomic.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BENCH_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define BENCH_SANITIZED
#endif

#ifdef BENCH_SANITIZED

void bench_count_allocations(gboolean on G_GNUC_UNUSED) {}

gint64 bench_allocations(void)
{
    return -1;
}

#else

static _Atomic(gboolean) counting;
static _Atomic(gint64) count;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t alignment, size_t n);
void *memalign(size_t alignment, size_t n);
int posix_memalign(void **p, size_t alignment, size_t n);

static void tick(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
}

void *malloc(size_t n)
{
    tick();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    tick();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    tick();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    tick();
    return __libc_memalign(alignment, n);
}

void *memalign(size_t alignment, size_t n)
{
    tick();
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    tick();
    if (alignment % sizeof(void *) || (alignment & (alignment - 1)) || alignment == 0)
        return EINVAL;
    void *memory = __libc_memalign(alignment, n);
    if (!memory)
        return ENOMEM;
    *p = memory;
    return 0;
}

void bench_count_allocations(gboolean on)
{
    if (on)
        atomic_store(&count, 0);
    atomic_store(&counting, on);
}

gint64 bench_allocations(void)
{
    return atomic_load(&count);
}

#endif
