// network.h - a simulated slow network, for teaching. It sleeps for as long as a message would
// take. So it uses no core, while a real network's copies do.
#pragma once
#include <stddef.h>

// One link. Messages cross it one after the other. Then each has a latency of 1 ms, during which
// the link carries the next one:
//
//   the link   | to device 1 | to device 2 |
//   device 1   |             | latency |               arrived
//   device 2   |             |             | latency | arrived
typedef struct Network {
    double rate;            // MB/s; 0: nothing is simulated
    double idle;            // time (clock.h) from which the link is free
    size_t bytes;           // bytes that have crossed the link so far
} Network;

typedef struct NetworkMessage {
    Network *network;
    size_t bytes;
} NetworkMessage;
// Sleeps until the message has arrived. `message` is a NetworkMessage; it is a void pointer for
// stream_enqueue. Several threads may send over one network.
void network_send(void *message);
