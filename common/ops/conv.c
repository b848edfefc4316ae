// conv.c - what both backends share of a convolution: its output, and its weights in the arena.
#include "ops/numbers.h"
#include "ops/op.h"

Shape conv_output(const OpSpec *s)
{
    Shape y = { s->x.n, s->out_channels, window_count(s->x.h, s->kernel_h, s->stride, s->pad),
                window_count(s->x.w, s->kernel_w, s->stride, s->pad),
                s->f32_out ? TYPE_F32 : s->x.type };
    return y;
}

// The live taps along one axis. At output o, a tap reads input o * stride - pad + tap. A tap is
// dead if it reads before the image even at the last output, or after the image even at the first.
//
// *pad_after is *pad if equal padding gives the right number of outputs, because programs usually
// ask the libraries for equal padding. Otherwise *pad_after is what the last output needs.
static void live_range(int size, int kernel, int stride, int padding, int *first, int *count,
                       int *pad, int *pad_after)
{
    int outputs = window_count(size, kernel, stride, padding), lift = (outputs - 1) * stride;
    int end = kernel < size + padding ? kernel : size + padding;
    *first = padding > lift ? padding - lift : 0;
    *count = end - *first;
    *pad = padding - *first;
    int needed = lift + *count - size - *pad;
    *pad_after = window_count(size, *count, stride, *pad) == outputs ? *pad
                 : needed > 0                                        ? needed
                                                                     : 0;
}

LiveTaps conv_live_taps(const OpSpec *s)
{
    LiveTaps t;
    live_range(s->x.h, s->kernel_h, s->stride, s->pad, &t.row, &t.rows, &t.pad[0], &t.pad_after[0]);
    live_range(s->x.w, s->kernel_w, s->stride, s->pad, &t.col, &t.cols, &t.pad[1], &t.pad_after[1]);
    return t;
}

static size_t weights_of(const OpSpec *s, int rows, int cols)
{
    return (size_t)s->out_channels * rows * cols * s->x.c;
}

size_t conv_live_count(const Op *conv)
{
    LiveTaps t = conv_live_taps(&conv->spec);
    return weights_of(&conv->spec, t.rows, t.cols);
}

size_t conv_dead_count(const Op *conv)
{
    const OpSpec *s = &conv->spec;
    return weights_of(s, s->kernel_h, s->kernel_w) - conv_live_count(conv);
}

void conv_weights_move(const Op *conv, float *live, float *dead, float *oihw, Direction direction)
{
    const OpSpec *s = &conv->spec;
    const LiveTaps t = conv_live_taps(s);
    for (int o = 0; o < s->out_channels; o++)
        for (int i = 0; i < s->x.c; i++)
            for (int row = 0; row < s->kernel_h; row++)
                for (int col = 0; col < s->kernel_w; col++, oihw++) {
                    int r = row - t.row, c = col - t.col;
                    bool is_live = r >= 0 && r < t.rows && c >= 0 && c < t.cols;
                    size_t at = (((size_t)o * t.rows + r) * t.cols + c) * s->x.c + i;
                    float *weight = is_live ? live + at : dead++;
                    *(direction == TO_TORCH ? oihw : weight) =
                        *(direction == TO_TORCH ? weight : oihw);
                }
}
