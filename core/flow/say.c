/* Messages of several threads and the live line share one terminal: a lock keeps lines whole, and the
 * live line is erased before a message and drawn again after it, so that neither is torn. */
#include "core/flow/say.h"
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *live;

void flow_say(const char *text)
{
    pthread_mutex_lock(&lock);
    g_autofree char *all = live ? g_strconcat("\r\033[K", text, live, NULL) : g_strdup(text);
    fputs(all, stderr);
    fflush(stderr);
    pthread_mutex_unlock(&lock);
}

void flow_say_live(const char *text)
{
    pthread_mutex_lock(&lock);
    if (text || live)
        fprintf(stderr, "\r\033[K%s", text ? text : "");
    fflush(stderr);
    g_free(live);
    live = g_strdup(text);
    pthread_mutex_unlock(&lock);
}
