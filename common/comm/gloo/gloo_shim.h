// gloo_shim.h - the part of Gloo, which is C++, that our C code calls.
//
// Every call returns NULL, or an error text that is valid until this thread's next call.
// A call returns when this rank's part is done. Calls that run at once differ in their tags;
// all ranks pass the same tag.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
#include "comm.h"

typedef struct GlooLink GlooLink;
typedef const char *GlooError;
// to[i] = a[i] with b[i]; to may be a or b.
typedef void GlooReduce(void *to, const void *a, const void *b, size_t count);

// Listens at this address of this machine, on a port of the system's choice.
GlooError gloo_listen(GlooLink **link, const char *address);
// Connects to every other rank. The ranks exchange addresses in the store, under `prefix`.
GlooError gloo_connect(GlooLink *link, int rank, int size, Store *store, const char *prefix);
void gloo_close(GlooLink *link);

// count values of `width` bytes each: 1, 2, 4 or 8.
GlooError gloo_all_reduce(GlooLink *link, uint32_t tag, void *values, size_t count, size_t width,
                          GlooReduce *reduce);
GlooError gloo_reduce(GlooLink *link, uint32_t tag, void *values, size_t count, size_t width,
                      GlooReduce *reduce, int root);
GlooError gloo_broadcast(GlooLink *link, uint32_t tag, void *values, size_t bytes, int root);
// bytes: of one rank's part.
GlooError gloo_all_gather(GlooLink *link, uint32_t tag, const void *mine, void *all, size_t bytes);
GlooError gloo_gather(GlooLink *link, uint32_t tag, const void *mine, void *all, size_t bytes,
                      int root);
// Between two ranks, in the order of the calls.
GlooError gloo_send(GlooLink *link, const void *values, size_t bytes, int to);
GlooError gloo_receive(GlooLink *link, void *values, size_t bytes, int from);
GlooError gloo_barrier(GlooLink *link, uint32_t tag, double seconds);  // 0: any

#ifdef __cplusplus
}
#endif
