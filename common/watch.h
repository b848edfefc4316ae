// watch.h - decides from deaths and heartbeats which rank is lost.
#pragma once
#include "alive.h"
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

enum { WATCH_HOST = 64 };

typedef struct Watched {
    Alive *alive;           // its page; NULL: it is not watched here, or not yet
    pid_t pid;
    char host[WATCH_HOST];  // "": this process watches itself
    bool remote;            // its page comes over the network; else our child, or this process
    double last_message;    // s: when a message last came
    double delay;           // s: extra time in which its own supervisor may report what happened
    double ended;           // s: when it was reaped, or its connection closed; 0: it lives
    double stopped;         // s: when SIGSTOP or the like stopped it, or 0
    int status;             // of our own child, as waitpid gave it
    uint64_t beats;         // at the last look
    double last_beat;       // s: when they were last seen to change
    bool waits;             // for other ranks or its device, at the last look
    int outside;            // as the page's, at the last look
    bool printed;           // a line about its wait for something outside
} Watched;

typedef struct Watch {
    int size;
    Watched *ranks;         // (size)
    sigset_t passed;        // signals that were passed on: a rank may end with one of them
    double now;             // s: the time of the last look
} Watch;

// Puts into `text` the rank for which the others wait in this epoch's steps, with its times and
// theirs; or "" if they wait at most a tenth of a step, or if it is too early to tell.
void watch_slowest(const Watch *watch, char text[ALIVE_DOING]);
bool watch_lives(const Watch *watch);
// Returns the exit status for all if a rank has died, hangs, is stopped or waits too long, else 0.
// Reports this on stderr, unless the rank's exit status shows that a message was printed, or a
// signal passed on. Also prints a line about a rank that waits long for something outside. Call it
// a few times a second; now: s, of clock_now().
int watch_judge(Watch *watch, double now);
