// nets.h - the networks that --arch names.
#pragma once
#include "model/net_builder.h"

// Builds the network of this name. Images that are smaller than its canvas get a black frame. Fails
// on sizes that the network cannot take.
Extent net_canvas(const ModelConfig *config);
void net_build(Net *net, const ModelConfig *config, Extent canvas);
