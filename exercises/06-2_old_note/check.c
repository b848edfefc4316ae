// check.c - a rank prints that it looks for the note, and which port it has found there.
#include "rendezvous_file.h"

#include <stdio.h>

static void print(const TcpStoreConfig *config)
{
    fprintf(stderr, "spy: port %d, by a note of the run '%s'\n", config->places[0].port, config->name);
}

void __real_rendezvous_file_read(const char *path, TcpStoreConfig *config);
void __wrap_rendezvous_file_read(const char *path, TcpStoreConfig *config);
void __wrap_rendezvous_file_read(const char *path, TcpStoreConfig *config)
{
    fprintf(stderr, "spy: looks\n");
    __real_rendezvous_file_read(path, config);
    print(config);
}

void __real_rendezvous_file_write(const char *path, const TcpStoreConfig *config);
void __wrap_rendezvous_file_write(const char *path, const TcpStoreConfig *config);
void __wrap_rendezvous_file_write(const char *path, const TcpStoreConfig *config)
{
    __real_rendezvous_file_write(path, config);
    print(config);
}
