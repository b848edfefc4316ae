// libraries.c - cuDNN's graph API and cuBLASLt, for fake.h: as far as our programs use them, and
// with one engine, which is always right. Each pass wants a workspace of another size.
#include "fake.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- cuDNN: descriptors, and their attributes ----------------------------------------------------

enum { MAX_ATTRIBUTES = 16, MAX_VALUES = 4 };

typedef struct Attribute {
    int name;
    cudnnBackendAttributeType_t type;
    int64_t values[MAX_VALUES];
} Attribute;

typedef struct Descriptor {
    int type, count;
    Attribute attributes[MAX_ATTRIBUTES];
} Descriptor;

struct cudnnContext {
    cudaStream_t stream;
};

cudnnStatus_t cudnnCreate(cudnnHandle_t *made)
{
    fake_not_in_capture("cudnnCreate");
    *made = calloc(1, sizeof **made);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    (void)status;
    return "a fake error";
}

void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "a fake error"); }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *made)
{
    Descriptor *d = calloc(1, sizeof *d);
    d->type = type;
    *made = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

static size_t width_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_HEUR_MODE: return 4;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: fake_die("an attribute of cuDNN's type %d", (int)type);
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    Descriptor *d = descriptor;
    size_t width = width_of(type);
    if (d->count == MAX_ATTRIBUTES || count > MAX_VALUES)
        fake_die("more of cuDNN's attributes than are known here");
    Attribute *a = &d->attributes[d->count++];
    *a = (Attribute){ .name = name, .type = type };
    for (int64_t i = 0; i < count; i++)
        memcpy(&a->values[i], (const char *)values + (size_t)i * width, width);
    return CUDNN_STATUS_SUCCESS;
}

static const int64_t *values_of(const Descriptor *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name)
            return d->attributes[i].values;
    fake_die("a cuDNN descriptor without attribute %d", name);
}

static Descriptor *part_of(const Descriptor *d, int name)
{
    return (Descriptor *)(uintptr_t)values_of(d, name)[0];
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    const Descriptor *d = descriptor;
    if (d->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        fake_not_in_capture("making of a cuDNN plan");
    return CUDNN_STATUS_SUCCESS;
}

// --- cuDNN: plans --------------------------------------------------------------------------------

static const Descriptor *operation_of(const Descriptor *plan)
{
    const Descriptor *configuration = part_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const Descriptor *graph = part_of(configuration, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    return part_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
}

static size_t workspace_of(const Descriptor *operation)
{
    return 1000 + 4096 * ((size_t)operation->type % 7);
}

// The one offer remembers what it is for.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values)
{
    const Descriptor *d = descriptor;
    (void)type;
    (void)most;
    *count = name != CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        const Descriptor *graph = part_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        cudnnBackendSetAttribute(*(Descriptor **)values, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = (int64_t)workspace_of(operation_of(d));
    } else if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
        *(int64_t *)values = 0;
    }
    return CUDNN_STATUS_SUCCESS;
}

// The operation's tensor of this name, at p.
static Range tensor_range(const Descriptor *operation, int64_t uid, int64_t written, void *p)
{
    for (int i = 0; i < operation->count; i++) {
        const Attribute *a = &operation->attributes[i];
        const Descriptor *t = (const Descriptor *)(uintptr_t)a->values[0];
        if (a->type != CUDNN_TYPE_BACKEND_DESCRIPTOR ||
            t->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR ||
            values_of(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0] != uid)
            continue;
        const int64_t *dims = values_of(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
        bool f32 = values_of(t, CUDNN_ATTR_TENSOR_DATA_TYPE)[0] == CUDNN_DATA_FLOAT;
        return (Range){ p, (size_t)(dims[0] * dims[1] * dims[2] * dims[3]) * (f32 ? 4 : 2),
                        uid == written ? FAKE_WRITE : FAKE_READ };
    }
    fake_die("a convolution without tensor %d", (int)uid);
}

static int64_t written_by(const Descriptor *operation)
{
    return operation->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? 'y'
           : operation->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? 'x'
                                                                                             : 'w';
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const Descriptor *operation = operation_of(plan);
    const int64_t *uids = values_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const int64_t *pointers = values_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    Range ranges[4] = {
        WRITE(part_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), workspace_of(operation)),
    };
    if (!ranges[0].p)
        fake_die("a convolution without a workspace");
    for (int i = 0; i < 3; i++)
        ranges[1 + i] =
            tensor_range(operation, uids[i], written_by(operation), (void *)(uintptr_t)pointers[i]);
    fake_mix(handle->stream, "convolution", (uint64_t)operation->type, ranges, 4);
    return cudaGetLastError() ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// --- cuBLASLt ------------------------------------------------------------------------------------

enum { PRODUCT_WORKSPACE = 5000 };

typedef struct Layout {
    uint64_t rows, columns;
    int64_t ld;
    cudaDataType_t type;
} Layout;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *made)
{
    *made = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "a fake error";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t type)
{
    (void)compute;
    (void)type;
    *made = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    (void)desc;
    (void)name;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    Layout *layout = malloc(sizeof *layout);
    *layout = (Layout){ rows, columns, ld, type };
    *made = (cublasLtMatrixLayout_t)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    *made = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes)
{
    (void)preference;
    (void)name;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked;
    memset(results, 0, sizeof *results);
    results->workspaceSize = PRODUCT_WORKSPACE;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t bytes_of(cublasLtMatrixLayout_t layout)
{
    const Layout *l = (const Layout *)layout;
    return ((size_t)(l->columns - 1) * (size_t)l->ld + l->rows) * (l->type == CUDA_R_32F ? 4 : 2);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle, (void)desc, (void)alpha, (void)beta, (void)c, (void)c_layout, (void)algo;
    if (!workspace || workspace_bytes < PRODUCT_WORKSPACE)
        fake_die("a product without the workspace that it needs");
    fake_mix(stream, "product", 0,
             RANGES(WRITE(workspace, workspace_bytes), READ(a, bytes_of(a_layout)),
                    READ(b, bytes_of(b_layout)), WRITE(d, bytes_of(d_layout))));
    return cudaGetLastError() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
