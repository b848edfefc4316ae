// tool_compare_weights.c - compares the weights of two checkpoints, for the test scripts.
//
//   tool_compare_weights OURS WANTED TOLERANCE
//
// Compares each f32 tensor of OURS, except SGD's momentum, with WANTED's of the same name. A tensor may be
// off by at most TOLERANCE times the wanted tensor's largest entry. Prints the name of the tensor that is furthest off.
// Fails if it has compared none, or if the files have different numbers of tensors.
#include "check.h"
#include "checkpoint/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static StFile file_open(const char *path)
{
    StFile file;
    Error error;
    if (!st_open(&file, path, &error))
        FAIL_ERROR(&error);
    return file;
}

// The largest difference, relative to the largest wanted entry; infinite if there is no wanted tensor,
// if size or type differ, or if a number is not finite.
static double distance(const StTensor *ours, const StTensor *wanted)
{
    if (!wanted || wanted->bytes != ours->bytes || strcmp(wanted->dtype, ours->dtype) != 0)
        return INFINITY;
    const float *a = ours->data, *b = wanted->data;
    double largest = 0, off = 0;
    for (size_t i = 0; i < ours->bytes / sizeof *a; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return INFINITY;
        largest = fmax(largest, fabs(b[i]));
        off = fmax(off, fabs((double)a[i] - b[i]));
    }
    return off > 0 ? off / largest : 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "", "tool_compare_weights OURS WANTED TOLERANCE");
    StFile ours = file_open(argv[1]), wanted = file_open(argv[2]);
    double worst = 0;
    const char *name = "";
    int compared = 0;
    for (int i = 0; i < ours.count; i++) {
        const StTensor *tensor = &ours.tensors[i];
        if (strcmp(tensor->dtype, "F32") != 0 || strstr(tensor->name, "momentum"))
            continue;
        double off = distance(tensor, st_find(&wanted, tensor->name));
        name = off > worst ? tensor->name : name;
        worst = fmax(worst, off);
        compared++;
    }
    printf("%d tensors, off by at most %.2g %s\n", compared, worst, name);
    int status = compared > 0 && ours.count == wanted.count && worst <= atof(argv[3]) ? 0 : 1;
    st_close(&wanted);
    st_close(&ours);
    return status;
}
