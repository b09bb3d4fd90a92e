/* net_parallel_for on OpenMP, or on a pool of plain threads where NET_OPENMP is not defined.
 *
 * Both hand out one chunk at a time from a counter, so uneven chunks balance; which thread gets which
 * chunk never matters, because a chunk's work depends on its number only. */
#include "kernels/parallel.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef NET_OPENMP
#include <omp.h>
#endif

static _Atomic guint threads; /* 0 = not chosen yet */
static _Thread_local gboolean inside;
static _Thread_local guint index_;

typedef struct {
    NetRangeFn fn;
    gpointer data;
    gsize n, grain, chunks;
    atomic_size_t next;
} Job;

static guint threads_default(void)
{
#ifdef NET_OPENMP
    return (guint)MAX(omp_get_max_threads(), 1);
#else
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return (guint)CLAMP(n, 1, 1024);
#endif
}

guint net_threads(void)
{
    guint n = atomic_load_explicit(&threads, memory_order_relaxed);
    if (n)
        return n;
    guint none = 0;
    atomic_compare_exchange_strong(&threads, &none, threads_default());
    return atomic_load(&threads);
}

void net_set_threads(guint n)
{
    atomic_store(&threads, n ? n : threads_default());
}

guint net_thread_index(void)
{
    return index_;
}

static void run_chunk(const Job *job, gsize chunk)
{
    gsize begin = chunk * job->grain;
    job->fn(begin, MIN(job->n, begin + job->grain), chunk, job->data);
}

static void run_share(Job *job, guint thread)
{
    inside = TRUE;
    index_ = thread;
    for (gsize i; (i = atomic_fetch_add(&job->next, 1)) < job->chunks;)
        run_chunk(job, i);
    inside = FALSE;
    index_ = 0;
}

#ifdef NET_OPENMP
static void run_team(Job *job, guint team)
{
#pragma omp parallel num_threads((int)team)
    run_share(job, (guint)omp_get_thread_num());
}
#else
/* One job at a time; `turn` counts jobs so that a worker takes part in each at most once. A worker that
 * wakes late finds its seats taken and sleeps on. */
static struct {
    pthread_mutex_t owner; /* held by the thread whose job runs */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    Job *job;
    guint seats, busy, started;
} pool = {PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          NULL,
          0,
          0,
          0};

static void *pool_worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.seats)
            pthread_cond_wait(&pool.work, &pool.lock);
        guint seat = pool.seats--;
        Job *job = pool.job;
        pthread_mutex_unlock(&pool.lock);
        run_share(job, seat);
        pthread_mutex_lock(&pool.lock);
        if (!--pool.busy)
            pthread_cond_signal(&pool.done);
    }
    return NULL;
}

/* Fewer threads than asked for is not an error: the caller works too. [pool.lock held] */
static void pool_start(guint n)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (pool.started < n && !pthread_create(&thread, &attr, pool_worker, NULL))
        pool.started++;
    pthread_attr_destroy(&attr);
}

static void run_team(Job *job, guint team)
{
    /* Several callers at once: one has the pool, the others work alone. */
    if (pthread_mutex_trylock(&pool.owner)) {
        run_share(job, 0);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    pool_start(team - 1);
    pool.job = job;
    pool.seats = pool.busy = MIN(pool.started, team - 1);
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    run_share(job, 0);
    pthread_mutex_lock(&pool.lock);
    /* Seats nobody has taken yet are withdrawn: there is nothing left to do. */
    pool.busy -= pool.seats;
    pool.seats = 0;
    while (pool.busy)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.owner);
}
#endif

void net_parallel_for(gsize n, gsize grain, NetRangeFn fn, gpointer data)
{
    g_assert(grain > 0);
    Job job = {.fn = fn, .data = data, .n = n, .grain = grain, .chunks = n / grain + (n % grain != 0)};
    guint team = (guint)MIN((gsize)net_threads(), job.chunks);
    if (inside || team < 2) {
        for (gsize i = 0; i < job.chunks; i++)
            run_chunk(&job, i);
        return;
    }
    run_team(&job, team);
}
