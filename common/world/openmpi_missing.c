// openmpi_missing.c - replaces openmpi.c if CMake finds no Open MPI.
#include "check.h"
#include "openmpi.h"

void openmpi_begin(World *world)
{
    FAIL("install libopenmpi-dev and openmpi-bin, and build again; or start the ranks with launch",
         "mpirun has started this program, which was built without Open MPI");
}

void openmpi_broadcast(void *values, size_t bytes) {}

void openmpi_end(void) {}
