#include "openmpi.h"

#include <mpi.h>
#include <stdlib.h>

void openmpi_begin(World *world)
{
    const char *directory = getenv("PMIX_SERVER_TMPDIR");
    MPI_Comm here;
    if (directory) {                // mpirun removes this directory, even after a kill
        setenv("OMPI_MCA_btl_vader_backing_directory", directory, 0);
        setenv("OMPI_MCA_btl_sm_backing_directory", directory, 0);
    } else {                        // no shared memory: a kill would leave its file in /dev/shm
        setenv("OMPI_MCA_btl", "^sm,vader", 0);
    }
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &world->local_rank);
    MPI_Comm_size(here, &world->local_size);
    MPI_Comm_free(&here);
}

void openmpi_broadcast(void *values, size_t bytes)
{
    MPI_Bcast(values, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

void openmpi_end(void)
{
    MPI_Finalize();
}
