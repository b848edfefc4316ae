#include "progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static Progress own;                    // `lock` guards all members but `beats`
static ProgressFile *oldest;            // the list of all threads' waits
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void progress_beat(void) { __atomic_fetch_add(&own.beats, 1, __ATOMIC_RELAXED); }

void progress_step(int64_t epoch, int64_t step)
{
    pthread_mutex_lock(&lock);
    own.epoch = epoch;
    own.step = step;
    pthread_mutex_unlock(&lock);
    progress_beat();
}

void progress_call(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    vsnprintf(own.call, sizeof own.call, format, args);
    own.calls++;
    pthread_mutex_unlock(&lock);
    va_end(args);
    progress_beat();
}

void progress_done(void)
{
    pthread_mutex_lock(&lock);
    own.done = 1;
    pthread_mutex_unlock(&lock);
    progress_beat();
}

void progress_file_begin(ProgressFile *file)
{
    ProgressFile **at = &oldest;
    pthread_mutex_lock(&lock);
    while (*at)
        at = &(*at)->newer;
    *at = file;
    pthread_mutex_unlock(&lock);
    progress_beat();
}

void progress_file_end(ProgressFile *file)
{
    ProgressFile **at = &oldest;
    pthread_mutex_lock(&lock);
    while (*at != file)
        at = &(*at)->newer;
    *at = file->newer;
    pthread_mutex_unlock(&lock);
    progress_beat();
}

void progress_read(Progress *to)
{
    bool writes = false;
    pthread_mutex_lock(&lock);
    for (const ProgressFile *f = oldest; f; f = f->newer)
        writes = writes || f->writes;
    if (writes)
        progress_beat();
    *to = (Progress){ __atomic_load_n(&own.beats, __ATOMIC_RELAXED), own.epoch, own.step, own.calls,
                      own.done };
    snprintf(to->call, sizeof to->call, "%s", own.call);
    if (oldest)
        snprintf(to->file, sizeof to->file, "%s %s", oldest->doing, oldest->what);
    pthread_mutex_unlock(&lock);
}

const char *progress_describe(const Progress *p, char text[PROGRESS_LINE])
{
    char where[80] = "before the end of its first step";
    if (p->done)
        snprintf(where, sizeof where, "done");
    else if (p->step > 0)
        snprintf(where, sizeof where, "after step %lld of epoch %lld", (long long)p->step,
                 (long long)p->epoch);
    snprintf(text, PROGRESS_LINE, "%s%s%.*s; %lld calls%s%.*s", where, p->file[0] ? ", " : "",
             PROGRESS_TEXT - 1, p->file, (long long)p->calls, p->calls ? ", the last: " : "",
             PROGRESS_TEXT - 1, p->call);
    return text;
}
