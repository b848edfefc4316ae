// dense_cpu.h - the weights of convolutions that are matrix products.
//
// If every output pixel of a convolution depends on every input pixel, the convolution is one
// matrix product over the batch, y = x W^T: a row of W for each output number of an image, a column
// for each input number. Examples are linear layers and, in ResNet-18's last two stages at 32x32,
// 3x3 kernels with padding 1 that slide over 2x2 or 1x1 pixels:
//
//        a 3x3 kernel on 2x2 pixels           on 1x1
//      out 00 reads taps  . . .   01: . . .    . . .
//                         . 4 5       3 4 .    . 4 .     a dot: the tap reads only padding
//                         . 7 8       6 7 .    . . .
//
// Multiplying the padding would be most of the work: on 1x1 pixels eight taps of nine are dead, as
// they read only padding for every output. They add zero, and their gradient is zero.
//
// With one output pixel each live tap occurs once in W, and the arena holds W itself. With more, it
// holds the live taps one after the other, [tap][o][i], and dense_expand makes W from them.
#pragma once
#include "ops.h"

typedef struct Dense Dense;

// NULL if the convolution is not computed as such a product. Free it with free().
Dense *dense_new(const OpSpec *spec, Shape y);
bool dense_is_matrix(const Dense *dense);       // the arena holds W itself
size_t dense_live_count(const Dense *dense);    // weights in the live taps
size_t dense_dead_count(const Dense *dense);
// Copies every weight from the arena's order to torch's, or back.
void dense_reorder(const Dense *dense, float *live, float *dead, float *oihw, Direction direction);
// Makes W from the live taps, numbers of `size` bytes.
void dense_expand(const Dense *dense, size_t size, const void *taps, void *matrix);
// The reverse for gradients: a tap's gradient is the sum over its places in W.
void dense_gather(const Dense *dense, const float *matrix, float *taps);
