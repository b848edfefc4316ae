// Put into the learner's program: where HOLD is set, it waits before its first epoch until the file
// second.ended is there, at most 20 s.
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void __real_loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first);
void __wrap_loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first);
void __wrap_loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first)
{
    FILE *out = getenv("HOLD") ? fopen("first.began", "w") : NULL;
    if (out)
        fclose(out);
    for (int i = 0; out && i < 400 && access("second.ended", F_OK) != 0; i++)
        usleep(50000);
    __real_loader_start(loader, ids, count, epoch, first);
}
