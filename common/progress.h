// progress.h - a record of this process's progress, which rank 0 gets every second (store.h).
//
// One rule ends a run that is stuck (store.h): no rank has beaten for --timeout seconds. A rank
// beats at least at each step, batch, collective and file. One rank that hangs, or is stopped, or
// waits for its disk, makes all others wait for it in a collective, so all stop beating.
//
// While a rank writes a file or to the terminal, its store's thread beats for it: neither a slow
// disk nor Ctrl-S in the terminal ends a run.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { PROGRESS_TEXT = 112, PROGRESS_LINE = 400 };

typedef struct Progress {
    int64_t beats;
    int64_t epoch, step;        // the last finished step, from 1; 0: none yet
    int64_t calls;              // number of calls that have begun (progress_call)
    int64_t done;               // 1: this process is about to exit
    char call[PROGRESS_TEXT];   // the last call: "all_reduce of 62080 (gradients), in backward"
    char file[PROGRESS_TEXT];   // what a thread may be waiting for: "reading train/1.jpg", or ""
} Progress;

// All functions here are safe in any thread.
void progress_beat(void);
void progress_step(int64_t epoch, int64_t step);
// Call it when a collective begins, or another call that all ranks make equally often.
void progress_call(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_done(void);

// From here to the end of the block this thread uses a file, a library, or the like, for which it
// may have to wait. Both texts must stay valid. If several threads wait, the record has the oldest
// wait, which may be why the others wait.
#define PROGRESS_DOING(doing, what) PROGRESS_FILE_(doing, what, false)
// Like PROGRESS_DOING, for a thread that writes to a file or to the terminal.
#define PROGRESS_WRITING(what) PROGRESS_FILE_("writing", what, true)
#define PROGRESS_FILE_(...)                                                                \
    __attribute__((cleanup(progress_file_end))) ProgressFile file_ = { NULL, __VA_ARGS__ }; \
    progress_file_begin(&file_)
typedef struct ProgressFile {
    struct ProgressFile *newer;
    const char *doing, *what;
    bool writes;
} ProgressFile;
void progress_file_begin(ProgressFile *file);
void progress_file_end(ProgressFile *file);

// Copies this process's record. If a thread is writing, calls progress_beat first.
void progress_read(Progress *to);
// Such as "after step 12 of epoch 1, reading train/1.jpg; 212 calls, the last: all_reduce of 5".
const char *progress_describe(const Progress *p, char text[PROGRESS_LINE]);
