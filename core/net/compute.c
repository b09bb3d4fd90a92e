/* The one thread that runs plans.
 *
 * oneDNN and OpenMP give every calling thread a team of its own; two callers would double the threads and
 * their stacks, and share the cores by chance. So whoever has work for the engine hands it over here and
 * waits: a queue of jobs that live on the callers' stacks, first come, first served. */
#include "core/net/net.h"
#include "kernels/kernel.h"
#include "kernels/parallel.h"
#include <pthread.h>
#include <signal.h>
#ifdef NET_OPENMP
#include <omp.h>
#endif

typedef struct Job Job;
struct Job {
    void (*fn)(gpointer);
    gpointer data;
    gboolean done;
    Job *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t come, done;
    Job *first, **last;
    gboolean failed;
} compute = {.lock = PTHREAD_MUTEX_INITIALIZER,
             .come = PTHREAD_COND_INITIALIZER,
             .done = PTHREAD_COND_INITIALIZER,
             .last = &compute.first};
static pthread_once_t compute_once = PTHREAD_ONCE_INIT;
static _Thread_local gboolean compute_here;

static void *compute_main(void *unused)
{
    (void)unused;
    compute_here = TRUE;
#ifdef NET_OPENMP
    omp_set_num_threads((int)net_threads());
#endif
    pthread_mutex_lock(&compute.lock);
    for (;;) {
        while (!compute.first)
            pthread_cond_wait(&compute.come, &compute.lock);
        Job *job = compute.first;
        compute.first = job->next;
        if (!compute.first)
            compute.last = &compute.first;
        pthread_mutex_unlock(&compute.lock);
        job->fn(job->data);
        pthread_mutex_lock(&compute.lock);
        job->done = TRUE;
        pthread_cond_broadcast(&compute.done);
    }
    return NULL;
}

/* The thread lives as long as the process. Signals are left to the others: a stop must reach the thread that
 * waits for it, not interrupt a step. */
static void compute_start(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    compute.failed = pthread_create(&thread, &attr, compute_main, NULL) != 0;
    if (!compute.failed)
        pthread_setname_np(thread, "compute");
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void net_on_compute_thread(void (*fn)(gpointer), gpointer data)
{
    pthread_once(&compute_once, compute_start);
    if (compute_here) {
        fn(data);
        return;
    }
    if (compute.failed) { /* no thread to be had: the callers take turns */
        pthread_mutex_lock(&compute.lock);
        compute_here = TRUE;
        fn(data);
        compute_here = FALSE;
        pthread_mutex_unlock(&compute.lock);
        return;
    }
    Job job = {.fn = fn, .data = data};
    pthread_mutex_lock(&compute.lock);
    *compute.last = &job;
    compute.last = &job.next;
    pthread_cond_signal(&compute.come);
    while (!job.done)
        pthread_cond_wait(&compute.done, &compute.lock);
    pthread_mutex_unlock(&compute.lock);
}

NetType net_best_compute(void)
{
    return flow_cpu() & (FLOW_CPU_AVX512_BF16 | FLOW_CPU_AMX) ? NET_BF16 : NET_F32;
}
