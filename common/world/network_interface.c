#include "network_interface.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { NETWORKS_MOST = 32 };

static unsigned shared_with(const TcpNetwork *theirs, bool same_machine)
{
    TcpNetwork ours[NETWORKS_MOST];
    unsigned found = 0;
    for (int j = tcp_networks(ours, NETWORKS_MOST) - 1; j >= 0; j--)
        for (int i = 0; i < NETWORKS_MOST; i++)
            if (theirs[i].mask && theirs[i].network == ours[j].network &&
                theirs[i].mask == ours[j].mask &&
                (same_machine || strcmp(theirs[i].address, ours[j].address) != 0))
                found |= 1u << i;
    return found;
}

bool interface_common(bool rank_0_is_here, TcpAddress address, Error *err)
{
    TcpNetwork networks[NETWORKS_MOST] = { 0 };     // rank 0's; behind the last, the mask is 0
    tcp_networks(networks, NETWORKS_MOST);
    MPI_Bcast(networks, sizeof networks, MPI_BYTE, 0, MPI_COMM_WORLD);
    unsigned common = shared_with(networks, rank_0_is_here);
    MPI_Allreduce(MPI_IN_PLACE, &common, 1, MPI_UNSIGNED, MPI_BAND, MPI_COMM_WORLD);
    if (!common)
        return error_set(err, "--iface NAME, or --master-addr, says where to meet",
                         "there is no network that all hosts are in");
    memcpy(address, networks[__builtin_ctz(common)].address, TCP_ADDRESS);
    return true;
}

void interface_prefer(const char *interface)
{
    char exactly[80];       // to NCCL "eth1" alone would be "eth10" as well
    snprintf(exactly, sizeof exactly, "=%s", interface);
    setenv("NCCL_SOCKET_IFNAME", exactly, 0);
    setenv("GLOO_SOCKET_IFNAME", interface, 0);
    if (!getenv("OMPI_MCA_btl_tcp_if_exclude"))     // it wants one or the other
        setenv("OMPI_MCA_btl_tcp_if_include", interface, 0);
}
