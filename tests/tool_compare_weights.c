// tool_compare_weights.c - are two checkpoints alike? For the scripts.
//
//   tool_compare_weights OURS WANTED TOLERANCE [KIND]
//
// Ends with 0 if every tensor of OURS is within TOLERANCE of WANTED's, in parts of the largest entry
// there. What is compared are the parameters and the running statistics, not the optimizer's state.
// KIND: only names that hold this text. The last line says what is furthest off.
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

// The largest difference, in parts of the largest entry; infinite if there is no comparing.
static double distance(const StTensor *ours, const StTensor *wanted)
{
    if (!wanted || wanted->bytes != ours->bytes || strcmp(wanted->dtype, ours->dtype) != 0)
        return INFINITY;
    const float *a = ours->data, *b = wanted->data;
    double largest = 0, off = 0;
    for (size_t i = 0; i < ours->bytes / sizeof *a; i++) {
        if (!isfinite(a[i]))
            return INFINITY;
        largest = fmax(largest, fabs(b[i]));
        off = fmax(off, fabs((double)a[i] - b[i]));
    }
    return off > 0 ? off / largest : 0;
}

static bool is_weight(const StTensor *tensor, const char *kind)
{
    return strcmp(tensor->dtype, "F32") == 0 && !strstr(tensor->name, "momentum") &&
           (!kind || strstr(tensor->name, kind));
}

int main(int argc, char **argv)
{
    CHECK(argc == 4 || argc == 5, "", "tool_compare_weights OURS WANTED TOLERANCE [KIND]");
    StFile ours = file_open(argv[1]), wanted = file_open(argv[2]);
    double worst = 0;
    const char *name = "";
    int compared = 0;
    for (int i = 0; i < ours.count; i++) {
        const StTensor *tensor = &ours.tensors[i];
        if (!is_weight(tensor, argc == 5 ? argv[4] : NULL))
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
