/* Kernel table: each operation lives in one file, plain C reference first, then faster variants.
 *
 * FLOW_KERNEL() puts a row into a linker section, so a new variant is one line in the operation's
 * own file; dispatch takes the last row whose needs the machine has, and the checker
 * (tests/kernels/check.c) finds and judges every row by itself.
 *
 * FLOW_CPU=0 in the environment forces the references; FLOW_CPU=avx2 forbids more than AVX2. */
#ifndef KERNELS_KERNEL_H
#define KERNELS_KERNEL_H
#include <glib.h>

G_BEGIN_DECLS

typedef void (*FlowKernelFn)(void);

enum {
    FLOW_CPU_AVX2 = 1,        /* AVX2, FMA, F16C */
    FLOW_CPU_AVX512 = 2,      /* F, BW, DQ, VL */
    FLOW_CPU_AVX512_BF16 = 4, /* and the bf16 dot product */
    FLOW_CPU_AMX = 8,         /* AMX-TILE, AMX-BF16, tile state granted by the kernel */
};

typedef struct {
    const char *op, *variant; /* "layer_norm_f32", "c" | "avx2" | ... */
    guint needs;              /* FLOW_CPU_*; 0 marks the reference */
    FlowKernelFn fn;
    double max_nmse; /* allowed normalised mean square error against the reference */
} FlowKernel;

#if defined(__has_attribute) && __has_attribute(retain)
#define FLOW__RETAIN retain,
#else
#define FLOW__RETAIN
#endif
#define FLOW_KERNEL(op_, variant_, needs_, fn_, nmse_)                                                       \
    __attribute__((used, FLOW__RETAIN section("flow_kernels"),                                               \
                   aligned(sizeof(void *)))) static const FlowKernel flow_kernel_##op_##_##variant_ = {      \
        #op_, #variant_, needs_, (FlowKernelFn)(fn_), nmse_}

/* What this machine (and FLOW_CPU) allows. */
guint flow_cpu(void);
/* The best variant for this machine; never NULL for an op that exists. Look it up once, not per call. */
FlowKernelFn flow_kernel_find(const char *op);
/* All rows, for the checker, `loraflow bench kernel` and `loraflow kernels`. */
const FlowKernel *flow_kernels(guint *n);

G_END_DECLS
#endif
