#include "check.h"
#include "comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// In a child, which device_count may end with a message. Then this process ends with its status.
static int count_devices(void)
{
    int ends[2], count = 0, status = 0;
    CHECK(pipe2(ends, O_CLOEXEC) == 0, "raise ulimit -n", "pipe2: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "raise ulimit -u", "counting GPUs failed: fork: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        count = device_count();
        _exit(write(ends[1], &count, sizeof count) != sizeof count);
    }
    close(ends[1]);
    bool counted = read(ends[0], &count, sizeof count) == sizeof count;
    close(ends[0]);
    waitpid(child, &status, 0);
    if (!counted && WIFEXITED(status))
        exit(WEXITSTATUS(status));
    CHECK(counted, "does nvidia-smi work?", "counting GPUs failed: signal %d", WTERMSIG(status));
    return count;
}

int comm_gpus(void)
{
    if (strcmp(device_backend, "cpu") == 0)
        return 0;
    int gpus = count_devices();
    CHECK(gpus > 0, "nvidia-smi shows the GPUs, and CUDA_VISIBLE_DEVICES may hide them; to train "
          "on the CPU: ./ddp run STEP --backend cpu", "this process finds no GPU");
    return gpus;
}
