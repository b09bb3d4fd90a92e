/* The compute thread: one job at a time whoever calls, nested calls at once, always the same thread.
 * @label short
 */
#include "core/net/net.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLERS = 6, CALLS = 400 };
static int running; /* plain on purpose: the sanitizer would see two jobs at once */
static guint64 total;
static pthread_t worker;

#define CHECK(c)                                                                                             \
    do {                                                                                                     \
        if (!(c)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static void inner(gpointer data)
{
    CHECK(pthread_equal(pthread_self(), worker));
    *(guint64 *)data += 1;
}

static void job(gpointer data)
{
    CHECK(running++ == 0);
    CHECK(pthread_equal(pthread_self(), worker));
    guint64 before = total;
    net_on_compute_thread(inner, &total);
    CHECK(total == before + 1);
    *(guint64 *)data += 1;
    running--;
}

static void *caller(void *unused)
{
    (void)unused;
    guint64 mine = 0;
    for (guint i = 0; i < CALLS; i++) {
        net_on_compute_thread(job, &mine);
        CHECK(mine == i + 1); /* it is done when the call returns */
    }
    return NULL;
}

static void remember(gpointer unused)
{
    (void)unused;
    worker = pthread_self();
}

int main(void)
{
    net_on_compute_thread(remember, NULL);
    CHECK(!pthread_equal(worker, pthread_self()));
    pthread_t thread[CALLERS];
    for (guint i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&thread[i], NULL, caller, NULL) == 0);
    for (guint i = 0; i < CALLERS; i++)
        pthread_join(thread[i], NULL);
    CHECK(total == CALLERS * CALLS);
    return 0;
}
