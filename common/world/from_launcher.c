#include "from_launcher.h"
#include "tcp.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

int from_launcher_token(const char *file, unsigned char token[CHANNEL_KEY], Error *err)
{
    const char *text = getenv("DDP_TOKEN");
    bool good = file ? channel_key_from_file(file, token, err)
                     : !text || channel_key_from_text(text, token);
    if (!file && !good)
        error_set(err, "launch sets it; there is --token-file FILE as well",
                  "DDP_TOKEN: not 64 hexadecimal digits");
    int status = !good ? -1 : file || text;
    unsetenv("DDP_TOKEN");
    return status;
}

int from_launcher_socket(const char *address, int port)
{
    TcpAddress own = "";
    const char *text = getenv("DDP_LISTEN");
    int socket = text ? atoi(text) : -1;
    if (socket <= STDERR_FILENO || fcntl(socket, F_SETFD, FD_CLOEXEC) != 0)
        return -1;
    unsetenv("DDP_LISTEN");
    tcp_own_address(socket, own);
    if (tcp_port(socket) == port && strcmp(own, address) == 0 && tcp_listen_on(socket))
        return socket;
    close(socket);                      // another address than the one that we came to
    return -1;
}

void from_launcher_end(void)
{
    static const char *const signs[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "TORCHELASTIC_RUN_ID",
                                         "DDP_GENERATION", "SLURM_STEP_ID" };
    pid_t parent = getppid();
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i]))
            prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)            // it was faster
        _exit(EXIT_FAILED);
}
