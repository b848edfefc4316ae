// libraries.c - cuDNN's graph API and cuBLASLt, for fake.h: the parts that our programs use. Reads an operation from
// its descriptors, and computes it with plain loops in f32.
#include "fake.h"
#include "numbers.h"

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
    return (cudnnStatus_t)fake_status("cudnnCreate");
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
        fake_die("too many attributes or values for a cuDNN descriptor");
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

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values)
{
    const Descriptor *d = descriptor;
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

typedef struct Tensor {
    const int64_t *dims, *strides;      // of (n, c, h, w)
    NumberType type;
    void *p;
} Tensor;

static Tensor tensor_of(const Descriptor *operation, int name, const Descriptor *pack)
{
    const Descriptor *t = part_of(operation, name);
    const int64_t *uids = values_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const int64_t *pointers = values_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t uid = values_of(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0];
    int64_t alignment = values_of(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)[0];
    Tensor made = { values_of(t, CUDNN_ATTR_TENSOR_DIMENSIONS), values_of(t, CUDNN_ATTR_TENSOR_STRIDES), 0, NULL };
    switch (values_of(t, CUDNN_ATTR_TENSOR_DATA_TYPE)[0]) {
    case CUDNN_DATA_FLOAT: made.type = NUMBER_F32; break;
    case CUDNN_DATA_HALF: made.type = NUMBER_F16; break;
    case CUDNN_DATA_BFLOAT16: made.type = NUMBER_BF16; break;
    default: fake_die("a tensor of cuDNN's type %d", (int)values_of(t, CUDNN_ATTR_TENSOR_DATA_TYPE)[0]);
    }
    for (int i = 0; i < 3; i++)
        if (uids[i] == uid)
            made.p = (void *)(uintptr_t)pointers[i];
    if (!made.p || (uintptr_t)made.p % (uintptr_t)alignment)
        fake_die("a convolution whose tensor '%c' is at %p: must be aligned to %d bytes", (int)uid, made.p,
                 (int)alignment);
    return made;
}

// The span from the first number to the last, in bytes.
static size_t tensor_bytes(const Tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (t->dims[i] - 1) * t->strides[i];
    return (size_t)(last + 1) * number_bytes(t->type);
}

// Runs the last argument for each number; `at` is the number's place in the tensor, `i` that in (n, h, w, c).
#define FOR_EACH_NUMBER(t, i, at, ...)                                                            \
    do {                                                                                          \
        size_t i = 0;                                                                             \
        for (int64_t n_ = 0; n_ < (t)->dims[0]; n_++)                                             \
            for (int64_t h_ = 0; h_ < (t)->dims[2]; h_++)                                         \
                for (int64_t w_ = 0; w_ < (t)->dims[3]; w_++)                                     \
                    for (int64_t c_ = 0; c_ < (t)->dims[1]; c_++, i++) {                          \
                        size_t at = (size_t)(n_ * (t)->strides[0] + c_ * (t)->strides[1] +        \
                                             h_ * (t)->strides[2] + w_ * (t)->strides[3]);        \
                        __VA_ARGS__                                                               \
                    }                                                                             \
    } while (0)

static size_t tensor_count(const Tensor *t)
{
    return (size_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
}

// A copy in f32, as (n, h, w, c).
static float *tensor_load(const Tensor *t)
{
    float *copy = malloc(tensor_count(t) * sizeof *copy);
    FOR_EACH_NUMBER(t, i, at, copy[i] = (float)number_get(t->p, t->type, at););
    return copy;
}

typedef struct Convolution {
    Tensor x, w, y;             // w: (k, c, r, s)
    int64_t stride[2], pad[2], dilation[2];
    float alpha, beta;
    int type;                   // of the operation, which determines the pass
} Convolution;

// The input pixel that a tap of output pixel (p, q) reads, or -1 for padding.
static int64_t pixel_at(const Convolution *c, int64_t p, int64_t q, int64_t tap)
{
    int64_t h = p * c->stride[0] - c->pad[0] + tap / c->w.dims[3] * c->dilation[0];
    int64_t w = q * c->stride[1] - c->pad[1] + tap % c->w.dims[3] * c->dilation[1];
    return h < 0 || h >= c->x.dims[2] || w < 0 || w >= c->x.dims[3] ? -1 : h * c->x.dims[3] + w;
}

// For one output pixel: y = w * window, with a kernel w for each output channel. The other passes add to the gradients
// of the window or of the kernels.
static void convolve_window(const Convolution *c, float *window, float *w, float *y, int64_t size)
{
    for (int64_t k = 0; k < c->w.dims[0]; k++, w += size) {
        float sum = 0;
        if (c->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
            for (int64_t i = 0; i < size; i++)
                sum += window[i] * w[i];
            y[k] = sum;
        } else if (c->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
            for (int64_t i = 0; i < size; i++)
                window[i] += y[k] * w[i];
        } else {
            for (int64_t i = 0; i < size; i++)
                w[i] += y[k] * window[i];
        }
    }
}

// In x, w, y and each tap of a window, channels are contiguous.
static void convolve(const Convolution *c, float *x, float *w, float *y)
{
    int64_t channels = c->x.dims[1], taps = c->w.dims[2] * c->w.dims[3], pixels = c->x.dims[2] * c->x.dims[3];
    bool data = c->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    size_t bytes = (size_t)channels * sizeof(float);
    float *window = malloc((size_t)taps * bytes);
    for (int64_t n = 0; n < c->x.dims[0]; n++)
        for (int64_t p = 0; p < c->y.dims[2]; p++)
            for (int64_t q = 0; q < c->y.dims[3]; q++, y += c->y.dims[1]) {
                memset(window, 0, (size_t)taps * bytes);
                for (int64_t tap = 0, at; tap < taps && !data; tap++)
                    if ((at = pixel_at(c, p, q, tap)) >= 0)
                        memcpy(window + tap * channels, x + (n * pixels + at) * channels, bytes);
                convolve_window(c, window, w, y, taps * channels);
                for (int64_t tap = 0, at; tap < taps && data; tap++)
                    if ((at = pixel_at(c, p, q, tap)) >= 0)
                        for (int64_t i = 0; i < channels; i++)
                            x[(n * pixels + at) * channels + i] += window[tap * channels + i];
            }
    free(window);
}

static void run_convolution(void *arg)
{
    const Convolution *c = arg;
    float *x = tensor_load(&c->x), *w = tensor_load(&c->w), *y = tensor_load(&c->y);
    bool forward = c->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    bool data = c->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    const Tensor *to = forward ? &c->y : data ? &c->x : &c->w;
    float *result = forward ? y : data ? x : w;
    memset(result, 0, tensor_count(to) * sizeof *result);
    convolve(c, x, w, y);
    FOR_EACH_NUMBER(to, i, at,
        double before = c->beta ? c->beta * number_get(to->p, to->type, at) : 0;
        number_set(to->p, to->type, at, c->alpha * result[i] + before););
    free(x);
    free(w);
    free(y);
}

static float float_of_attribute(const Descriptor *d, int name)
{
    float value;
    memcpy(&value, values_of(d, name), sizeof value);
    return value;
}

// Each pass is a separate operation, with its own attribute names for tensors, alpha and beta.
static Convolution convolution_of(const Descriptor *o, const Descriptor *pack)
{
    static const int names[3][7] = {
#define NAMES(pass, x, w, y)                                                                           \
    { CUDNN_BACKEND_OPERATION_CONVOLUTION_##pass##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##x,     \
      CUDNN_ATTR_OPERATION_CONVOLUTION_##w, CUDNN_ATTR_OPERATION_CONVOLUTION_##y
        NAMES(FORWARD, FORWARD_X, FORWARD_W, FORWARD_Y),
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA },
        NAMES(BACKWARD_DATA, BWD_DATA_DX, BWD_DATA_W, BWD_DATA_DY),
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA },
        NAMES(BACKWARD_FILTER, BWD_FILTER_X, BWD_FILTER_DW, BWD_FILTER_DY),
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA },
    };
    const int *name = names[0];
    while (name[0] != o->type)
        name += 7;
    const Descriptor *how = part_of(o, name[4]);
    Convolution c = { tensor_of(o, name[1], pack), tensor_of(o, name[2], pack), tensor_of(o, name[3], pack),
                      .alpha = float_of_attribute(o, name[5]), .beta = float_of_attribute(o, name[6]),
                      .type = o->type };
    memcpy(c.stride, values_of(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), sizeof c.stride);
    memcpy(c.pad, values_of(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), sizeof c.pad);
    memcpy(c.dilation, values_of(how, CUDNN_ATTR_CONVOLUTION_DILATIONS), sizeof c.dilation);
    const int64_t *after = values_of(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    for (int i = 0; i < 2; i++) {
        int64_t seen = c.x.dims[2 + i] + c.pad[i] + after[i] - (c.w.dims[2 + i] - 1) * c.dilation[i] - 1;
        if (c.y.dims[2 + i] != seen / c.stride[i] + 1)
            fake_die("a convolution of %d pixels gives %d, not %d", (int)c.x.dims[2 + i],
                     (int)(seen / c.stride[i] + 1), (int)c.y.dims[2 + i]);
    }
    if (c.x.dims[0] != c.y.dims[0] || c.x.dims[1] != c.w.dims[1] || c.y.dims[1] != c.w.dims[0])
        fake_die("a convolution of tensors that do not fit each other");
    return c;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const Descriptor *operation = operation_of(plan);
    void *workspace = part_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (fake_status("cudnnBackendExecute"))
        return (cudnnStatus_t)fake_status("cudnnBackendExecute");
    if (!workspace)
        fake_die("a convolution without a workspace");
    Convolution c = convolution_of(operation, pack);
    fake_do(handle->stream, "convolution", run_convolution, &c, sizeof c,
            RANGES({ workspace, workspace_of(operation) }, { c.x.p, tensor_bytes(&c.x) },
                   { c.w.p, tensor_bytes(&c.w) }, { c.y.p, tensor_bytes(&c.y) }));
    return cudaGetLastError() ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// --- cuBLASLt ------------------------------------------------------------------------------------

enum { PRODUCT_WORKSPACE = 5000 };

typedef struct Layout {
    uint64_t rows, columns;
    int64_t ld;
    NumberType type;
    int32_t batch;
    int64_t distance;           // between the matrices of a batch, in numbers
} Layout;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *made)
{
    *made = malloc(1);
    return (cublasStatus_t)fake_status("cublasLtCreate");
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return "a fake error";
}

typedef struct ProductDesc {
    cublasOperation_t a, b;
} ProductDesc;

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t type)
{
    if (type != CUDA_R_32F)
        fake_die("a product whose alpha and beta are not f32");
    *made = calloc(1, sizeof(ProductDesc));
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
    ProductDesc *d = (ProductDesc *)desc;
    if (bytes != sizeof d->a || (name != CUBLASLT_MATMUL_DESC_TRANSA && name != CUBLASLT_MATMUL_DESC_TRANSB))
        fake_die("attribute %d of a product", (int)name);
    memcpy(name == CUBLASLT_MATMUL_DESC_TRANSA ? &d->a : &d->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    Layout *layout = malloc(sizeof *layout);
    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF)
        fake_die("a matrix of type %d", (int)type);
    NumberType number = type == CUDA_R_32F ? NUMBER_F32 : type == CUDA_R_16F ? NUMBER_F16 : NUMBER_BF16;
    *layout = (Layout){ rows, columns, ld, number, .batch = 1 };
    *made = (cublasLtMatrixLayout_t)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes)
{
    Layout *l = (Layout *)layout;
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l->batch)
        memcpy(&l->batch, value, bytes);
    else if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l->distance)
        memcpy(&l->distance, value, bytes);
    else
        fake_die("attribute %d of a matrix", (int)name);
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

// The first matrix of a batch. The distance between columns or, if transposed, between rows is `ld`.
typedef struct Matrix {
    void *p;
    Layout layout;
    bool transposed;
} Matrix;

static size_t matrix_bytes(const Matrix *m)
{
    size_t last = (size_t)(m->layout.batch - 1) * (size_t)m->layout.distance;
    return (last + (m->layout.columns - 1) * (size_t)m->layout.ld + m->layout.rows) * number_bytes(m->layout.type);
}

static size_t matrix_at(const Matrix *m, uint64_t row, uint64_t column)
{
    return m->transposed ? column + row * (size_t)m->layout.ld : row + column * (size_t)m->layout.ld;
}

// Returns a copy in f32, by rows or (by_column) by columns.
static float *matrix_load(const Matrix *m, uint64_t rows, uint64_t columns, bool by_column)
{
    float *copy = malloc(rows * columns * sizeof *copy);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++)
            copy[by_column ? j * rows + i : i * columns + j] =
                (float)number_get(m->p, m->layout.type, matrix_at(m, i, j));
    return copy;
}

typedef struct Product {
    Matrix a, b, c, d;
    float alpha, beta;
} Product;

static void *matrix_of_batch(const Matrix *m, int i)
{
    return (char *)m->p + (size_t)i * (size_t)m->layout.distance * number_bytes(m->layout.type);
}

static void run_product(const Product *p)
{
    uint64_t m = p->d.layout.rows, n = p->d.layout.columns;
    uint64_t k = p->a.transposed ? p->a.layout.rows : p->a.layout.columns;
    float *a = matrix_load(&p->a, m, k, false), *b = matrix_load(&p->b, k, n, true);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i++) {
            float sum = 0;
            for (uint64_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[j * k + l];
            double before = p->beta ? p->beta * number_get(p->c.p, p->c.layout.type, matrix_at(&p->c, i, j)) : 0;
            number_set(p->d.p, p->d.layout.type, matrix_at(&p->d, i, j), p->alpha * sum + before);
        }
    free(a);
    free(b);
}

static void run_products(void *arg)
{
    const Product *all = arg;
    for (int i = 0; i < all->d.layout.batch; i++) {
        Product one = *all;
        one.a.p = matrix_of_batch(&all->a, i);
        one.b.p = matrix_of_batch(&all->b, i);
        one.c.p = matrix_of_batch(&all->c, i);
        one.d.p = matrix_of_batch(&all->d, i);
        run_product(&one);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const ProductDesc *how = (const ProductDesc *)desc;
    Product p = { { (void *)a, *(Layout *)a_layout, how->a == CUBLAS_OP_T },
                  { (void *)b, *(Layout *)b_layout, how->b == CUBLAS_OP_T },
                  { (void *)c, *(Layout *)c_layout, false }, { d, *(Layout *)d_layout, false },
                  *(const float *)alpha, *(const float *)beta };
    (void)handle, (void)algo;
    if (!workspace || workspace_bytes < PRODUCT_WORKSPACE)
        fake_die("a product without the workspace that it needs");
    uint64_t a_rows = p.a.transposed ? p.a.layout.columns : p.a.layout.rows;
    uint64_t a_columns = p.a.transposed ? p.a.layout.rows : p.a.layout.columns;
    uint64_t b_rows = p.b.transposed ? p.b.layout.columns : p.b.layout.rows;
    uint64_t b_columns = p.b.transposed ? p.b.layout.rows : p.b.layout.columns;
    if (a_rows != p.d.layout.rows || b_columns != p.d.layout.columns || a_columns != b_rows)
        fake_die("a product of matrices that do not fit each other");
    int32_t batch = p.d.layout.batch;
    if (p.a.layout.batch != batch || p.b.layout.batch != batch || p.c.layout.batch != batch)
        fake_die("a product of batches of different sizes");
    fake_do(stream, "product", run_products, &p, sizeof p,
            RANGES({ workspace, workspace_bytes }, { a, matrix_bytes(&p.a) }, { b, matrix_bytes(&p.b) },
                   { d, matrix_bytes(&p.d) }));
    return cudaGetLastError() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
