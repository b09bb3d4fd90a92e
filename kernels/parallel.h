/* The one way to run a data loop on several threads.
 *
 * OpenMP (the team that oneDNN uses) in normal builds, plain threads under ThreadSanitizer.
 * Chunks depend on n and grain only, never on the thread count, so a result that is combined
 * in chunk order does not change with the number of threads. */
#ifndef KERNELS_PARALLEL_H
#define KERNELS_PARALLEL_H
#include <glib.h>

G_BEGIN_DECLS

/* Handles [begin, end); `chunk` counts from 0. [any thread of the team] */
typedef void (*NetRangeFn)(gsize begin, gsize end, gsize chunk, gpointer data);

/* Calls fn for every chunk of `grain` (>= 1) indices of [0, n) and returns when all are done.
 * Nested calls run on the calling thread. */
void net_parallel_for(gsize n, gsize grain, NetRangeFn fn, gpointer data);
/* Threads that net_parallel_for uses; 1..n. Set once before the first use (0 = all cores). */
guint net_threads(void);
void net_set_threads(guint n);
/* Inside a chunk: which thread of the team runs it, 0 .. net_threads() - 1; for per-thread scratch only
 * (which thread gets which chunk is left to chance). 0 outside. */
guint net_thread_index(void);

G_END_DECLS
#endif
