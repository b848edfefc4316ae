// nccl.h - a part of NCCL, for programs with one GPU in each process. Like cuda_runtime_api.h, written from the
// documentation.
#pragma once
#include "cuda_runtime.h"

typedef enum {
    ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage
} ncclResult_t;
typedef enum {
    ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt = 2, ncclUint32 = 3, ncclInt64 = 4,
    ncclUint64 = 5, ncclFloat16 = 6, ncclHalf = 6, ncclFloat32 = 7, ncclFloat = 7, ncclFloat64 = 8, ncclDouble = 8,
    ncclBfloat16 = 9
} ncclDataType_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

const char *ncclGetErrorString(ncclResult_t result);
// Rank 0 makes the id and passes it on. Then all ranks make the communicator; each rank needs a GPU of its own.
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);      // all ranks call it, after their streams' work is done
// Whether NCCL's own threads noticed an error. Without a GPU an error ends the run, so there never is one.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
// Ends the communicator without waiting for other ranks. Its calls stop waiting, and have no result.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);

// All ranks make the same calls in the same order. A call enqueues its work on the stream. Calls of a
// communicator run one after the other, even on different streams; a group is one call. A call may work in place: from
// == to or, if one array is longer, the other is this rank's part of it.
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);    // to: (ranks, count)
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);   // from: (ranks, count)

// A send keeps its stream waiting until the other rank receives, and a receive until the other rank sends. The
// outermost ncclGroupEnd enqueues the calls of a group. The group's sends and receives do not wait for each other,
// except for two sends to the same rank, or two receives from the same rank.
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
