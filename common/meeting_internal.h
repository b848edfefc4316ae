// meeting_internal.h - what the two sides of a meeting tell each other: meeting.c asks and sends
// its signs of life, meeting_server.c, a thread of rank 0, answers.
//
//   rank                                       server
//   JOIN who it is                  -->
//                                   <--        WELCOME; NO, with words; LATER: to be asked again
//                                   <--        GO, when all are there
//   PULSE, from time to time        -->
//                                   <--        WELL
//   PUT key value                   -->
//   GET key                         -->
//                                   <--        HERE value, once somebody has put it
//   LEAVE, when all is done         -->
//                                   <--        BYE, also when rank 0 itself leaves
//                                   <--        END, with words: at any time
//
// Numbers travel as they lie in memory: the machines of a run are of one kind.
#pragma once
#include "alive.h"
#include "meeting.h"
#include "store.h"

enum { MEETING_NAME = 64, MEETING_SLICE = 250 };    // bytes; ms: the longest without a look

typedef enum MeetingWhat {
    MEETING_JOIN = 1, MEETING_PULSE, MEETING_LEAVE, MEETING_PUT, MEETING_GET,
    MEETING_WELCOME, MEETING_NO, MEETING_LATER, MEETING_GO, MEETING_WELL, MEETING_HERE, MEETING_END,
    MEETING_BYE,
} MeetingWhat;

typedef struct MeetingPerson {
    int32_t rank, size, first, pid;
    int64_t generation;
    char host[MEETING_NAME];
    char name[MEETING_NAME];            // of the run, as the user may have called it
} MeetingPerson;

// An Alive as it was at one moment.
typedef struct MeetingSigns {
    uint64_t beats, begun, ended;
    int64_t epoch, step, count;
    int32_t waiting, outside, joined, done;
    char operation[ALIVE_NAME], communicator[ALIVE_NAME];
} MeetingSigns;

typedef struct MeetingMessage {
    uint32_t what, unused;
    union {
        MeetingPerson person;           // JOIN, WELCOME: rank 0
        MeetingSigns signs;             // PULSE, LEAVE
        char run[MEETING_NAME];         // GO
        Error words;                    // NO, LATER, END
        struct {
            char key[STORE_KEY_BYTES];
            char value[STORE_VALUE_BYTES];  // as many bytes of it as the message is long
        } store;                        // PUT, GET, HERE
    };
} MeetingMessage;

// How long a message of this kind is, at least: without its value.
size_t meeting_bytes(MeetingWhat what);
// Takes a message that came, if it is one; all its texts have an end then.
bool meeting_take(MeetingMessage *to, const void *message, size_t bytes);
// The time since *looked, if it is so long that this process must have been stopped; else 0. Sets
// it to now.
double meeting_absence(double *looked);

// Ends the process with status 1 without a word.
_Noreturn void meeting_leave_silently(void);

// The server's side. Takes over the listening socket; its thread runs until it is freed.
typedef struct MeetingServer MeetingServer;
MeetingServer *meeting_server_new(const MeetingConfig *config, int listening);
void meeting_server_free(MeetingServer *server);    // waits up to 2 s for the others to leave
