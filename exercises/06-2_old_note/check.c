// Writes a line to the file attempts.RANK before each attempt to connect to rank 0.
#include "tcp.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

WRAPPED(tcp_connect);
int __wrap_tcp_connect(const TcpPlace *place, double seconds, Error *err)
{
    char name[40];
    snprintf(name, sizeof name, "attempts.%s", getenv("RANK"));
    FILE *out = fopen(name, "a");
    if (out) {
        fputs("one\n", out);
        fclose(out);
    }
    return __real_tcp_connect(place, seconds, err);
}
