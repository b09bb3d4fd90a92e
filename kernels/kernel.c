/* The kernel table and the choice of a variant.
 *
 * The rows lie in a linker section; the linker defines its two ends because the section's name is a C
 * identifier. Where several rows of an operation fit the machine, the one with the greatest needs wins:
 * the order of rows in the section is up to compiler and linker, so it decides nothing. */
#include "kernels/kernel.h"
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const FlowKernel __start_flow_kernels[] __attribute__((visibility("hidden")));
extern const FlowKernel __stop_flow_kernels[] __attribute__((visibility("hidden")));

#if defined(__x86_64__)
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

static guint64 read_xcr0(void)
{
    guint32 low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | (guint64)high << 32;
}

/* Linux hands out the large tile state only on request, once a process. */
static gboolean amx_granted(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static guint cpu_detect(void)
{
    guint a, b, c, d, cpu = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    guint64 xcr0 = read_xcr0();
    gboolean fma = (c & bit_FMA) && (c & bit_F16C);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    guint leaves = a, wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    gboolean tile = (d & (1u << 24)) && (d & (1u << 22)); /* AMX-TILE, AMX-BF16 */
    if (!fma || !(b & bit_AVX2) || (xcr0 & XCR0_AVX) != XCR0_AVX)
        return 0;
    cpu |= FLOW_CPU_AVX2;
    if ((b & wide) != wide || (xcr0 & XCR0_AVX512) != XCR0_AVX512)
        return cpu;
    cpu |= FLOW_CPU_AVX512;
    if (leaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5))) /* AVX512-BF16 */
        return cpu;
    cpu |= FLOW_CPU_AVX512_BF16;
    if (tile && (xcr0 & XCR0_AMX) == XCR0_AMX && amx_granted())
        cpu |= FLOW_CPU_AMX;
    return cpu;
}
#else
static guint cpu_detect(void)
{
    return 0;
}
#endif

static guint cpu_allowed(const char *level)
{
    static const struct {
        const char *name;
        guint mask;
    } levels[] = {
        {"0", 0},
        {"avx2", FLOW_CPU_AVX2},
        {"avx512", FLOW_CPU_AVX2 | FLOW_CPU_AVX512},
        {"avx512_bf16", FLOW_CPU_AVX2 | FLOW_CPU_AVX512 | FLOW_CPU_AVX512_BF16},
        {"amx", FLOW_CPU_AVX2 | FLOW_CPU_AVX512 | FLOW_CPU_AVX512_BF16 | FLOW_CPU_AMX},
    };
    if (!level || !*level)
        return ~0u;
    for (guint i = 0; i < G_N_ELEMENTS(levels); i++)
        if (!strcmp(level, levels[i].name))
            return levels[i].mask;
    g_warning("FLOW_CPU=%s is ignored; known are 0, avx2, avx512, avx512_bf16, amx", level);
    return ~0u;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static guint cpu;

static void cpu_init(void)
{
    guint allowed = cpu_allowed(g_getenv("FLOW_CPU"));
    cpu = allowed ? cpu_detect() & allowed : 0;
}

guint flow_cpu(void)
{
    pthread_once(&once, cpu_init);
    return cpu;
}

const FlowKernel *flow_kernels(guint *n)
{
    *n = (guint)(__stop_flow_kernels - __start_flow_kernels);
    return __start_flow_kernels;
}

FlowKernelFn flow_kernel_find(const char *op)
{
    guint n, have = flow_cpu();
    const FlowKernel *rows = flow_kernels(&n), *best = NULL;
    for (guint i = 0; i < n; i++)
        if (!(rows[i].needs & ~have) && (!best || rows[i].needs > best->needs) && !strcmp(rows[i].op, op))
            best = &rows[i];
    if (!best)
        g_error("no kernel for operation '%s'", op);
    return best->fn;
}
