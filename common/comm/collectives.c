// collectives.c - comm.h's calls between ranks: each fills in a Call for the backend's comm_run.
#include "comm/backend.h"

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    comm_run(comm, stream, (Call){ CALL_ALL_REDUCE, type, values, count });
}

void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root)
{
    comm_run(comm, stream, (Call){ CALL_BROADCAST, type, values, count, root });
}

void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type)
{
    size_t bytes = count * comm_width(type);
    char *place = (char *)all + (size_t)comm->rank * bytes;
    if (mine != place)
        copy_on_device(stream, place, mine, bytes);
    comm_run(comm, stream, (Call){ CALL_ALL_GATHER, type, all, count });
}

void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to)
{
    comm_run(comm, stream, (Call){ CALL_SEND, type, (void *)values, count, to });
}

void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from)
{
    comm_run(comm, stream, (Call){ CALL_RECEIVE, type, values, count, from });
}

void comm_barrier(Comm *comm)
{
    Stream *stream = device_stream(comm->device);
    comm_run(comm, stream, (Call){ CALL_BARRIER, COMM_F32, comm->one, 1 });
    stream_sync(stream);
}
