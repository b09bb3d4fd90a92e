/* After its first run a plan allocates nothing of ours, and the libraries nothing above 4 KiB.
 *
 * The allocation functions of the C library are replaced by counting ones. An allocation belongs to the
 * innermost frame that is neither the allocator, GLib nor the C++ library. */
#include "net_unet.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    puts("the sanitizer replaces the allocator itself");
    return 77;
}
#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static _Atomic gboolean counting;
static _Atomic guint ours, theirs, large;
static _Thread_local gboolean inside;

static void count(size_t n)
{
    if (!counting || inside)
        return;
    inside = TRUE;
    void *frame[24];
    int frames = backtrace(frame, G_N_ELEMENTS(frame));
    const char *owner = "?", *self = NULL;
    for (int i = 0; i < frames; i++) {
        Dl_info info;
        if (!dladdr(frame[i], &info) || !info.dli_fname)
            continue;
        owner = info.dli_fname;
        if (!self) /* this function's own file comes first */
            self = owner;
        if (owner != self && !strstr(owner, "libc.so") && !strstr(owner, "libstdc++") &&
            !strstr(owner, "libglib"))
            break;
    }
    if (strstr(owner, "libloraflow"))
        ours++;
    else
        theirs++;
    if (n > 4096 && large++ < 5)
        fprintf(stderr, "%zu bytes by %s\n", n, owner);
    inside = FALSE;
}

void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    *p = memalign(align, n);
    return *p ? 0 : 12;
}

static const gint32 rows[] = {1, 3, 0, 2};

static NetVal *body(Net *net, Lab *lab, NetVal *x)
{
    return unet(net, lab, x, 16, TRUE);
}

static void check(NetType type)
{
    Lab lab = lab_new(type);
    LabRun run = lab_train(&lab, body, 2, 8, 8, 4);
    run.rows = rows;
    NetBinding inputs[] = {{"x", run.x},          {"target", run.target}, {"weight", run.weight},
                           {"scale", &run.scale}, {"row", rows},          {NULL, NULL}};
    NetBinding outputs[] = {{"loss", &run.loss}, {NULL, NULL}};
    NetRunArgs args = {.inputs = inputs, .outputs = outputs};
    LAB_CHECK(net_run(run.plan, run.arena, &args, NULL), "first run");
    ours = theirs = large = 0;
    counting = TRUE;
    for (guint i = 0; i < 3; i++)
        LAB_CHECK(net_run(run.plan, run.arena, &args, NULL), "later run");
    counting = FALSE;
    printf("%s: ours %u, libraries %u, above 4 KiB %u in 3 runs\n", net_type_name(type), (guint)ours,
           (guint)theirs, (guint)large);
    LAB_CHECK(ours == 0, "%u allocations of ours", (guint)ours);
    LAB_CHECK(large == 0, "%u allocations above 4 KiB", (guint)large);
    lab_end(&run);
    lab_free(&lab);
}

int main(void)
{
    void *frame[4];
    backtrace(frame, 4); /* loads what it needs */
    counting = TRUE;
    g_free(g_malloc(5000)); /* does the counter count? */
    counting = FALSE;
    LAB_CHECK(large == 1, "the counter does not see allocations");
    check(NET_F32);
    if (net_best_compute() == NET_BF16)
        check(NET_BF16);
    return 0;
}
#endif
