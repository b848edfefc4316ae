#include "check.h"
#include "comm.h"
#include "machine.h"

#include <string.h>

int comm_gpus(void)
{
    if (strcmp(device_backend, "cpu") == 0)
        return 0;
    int gpus = machine_gpus_listed();
    CHECK(gpus > 0, "check nvidia-smi -L and CUDA_VISIBLE_DEVICES, or give the number of ranks "
          "(-n N); to train on the CPU: ./ddp run STEP --backend cpu",
          "this process finds no GPU");
    return gpus;
}
