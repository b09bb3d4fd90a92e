/* Splits element-wise operations over the threads. */
#include "kernels/each.h"
#include "kernels/parallel.h"

/* Small enough that a chunk of all operands stays in L2, large enough to hide the hand-out. */
enum { GRAIN = 32768 };

typedef struct {
    KernelEachFn fn;
    const KernelEach *e;
} Job;

static void each_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *job = data;
    job->fn(job->e, begin, end);
}

void kernel_each(KernelEachFn fn, const KernelEach *e, gsize n)
{
    Job job = {fn, e};
    net_parallel_for(n, GRAIN, each_chunk, &job);
}
