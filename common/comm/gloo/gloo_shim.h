// gloo_shim.h - the part of Gloo, which is C++, that our C code calls.
//
// Every function returns NULL, or an error text that is valid until this thread's next call.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
#include "comm/backend.h"

typedef struct GlooLink GlooLink;
typedef const char *GlooError;

// Listens at this address of this machine, on a port of the system's choice.
GlooError gloo_listen(GlooLink **link, const char *address);
// Connects to every other rank. The ranks exchange addresses in the store, under `prefix`.
GlooError gloo_connect(GlooLink *link, const World *world, const char *prefix);
void gloo_close(GlooLink *link);

// Return when this rank's part is done. Calls that run at once differ in their tags; all ranks pass
// the same tag. Sends and receives need none: they are in order between their two ranks.
GlooError gloo_call(GlooLink *link, uint32_t tag, const Call *call);
GlooError gloo_barrier(GlooLink *link, uint32_t tag, double seconds);   // 0: no limit

#ifdef __cplusplus
}
#endif
