// libraries.c - cuDNN's graph API and cuBLASLt, for fake.h: the parts that our programs use. Reads an operation from
// its descriptors, and computes it with plain loops in f32.
#include "fake.h"
#include "numbers.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- cuDNN: descriptors, and their attributes ----------------------------------------------------

enum { MAX_ATTRIBUTES = 16, MAX_VALUES = 32 };

typedef struct Attribute {
    int name;
    int64_t count, values[MAX_VALUES];
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

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return "a fake error"; }
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

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    Descriptor *d = descriptor;
    bool wide = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR ||
                type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
    size_t width = wide ? 8 : type == CUDNN_TYPE_BOOLEAN ? 1 : 4;
    if (d->count == MAX_ATTRIBUTES || count > MAX_VALUES)
        fake_die("too many attributes or values for a cuDNN descriptor");
    Attribute *a = &d->attributes[d->count++];
    *a = (Attribute){ name, count, { 0 } };
    for (int64_t i = 0; i < count; i++)
        memcpy(&a->values[i], (const char *)values + (size_t)i * width, width);
    return CUDNN_STATUS_SUCCESS;
}

// Returns NULL if the attribute is not set.
static const Attribute *attribute_of(const Descriptor *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

static const int64_t *values_of(const Descriptor *d, int name)
{
    const Attribute *a = attribute_of(d, name);
    if (!a)
        fake_die("a cuDNN descriptor without attribute %d", name);
    return a->values;
}

static Descriptor *part_at(const Attribute *a, int64_t i) { return (Descriptor *)(uintptr_t)a->values[i]; }
static Descriptor *part_of(const Descriptor *d, int name) { return (Descriptor *)(uintptr_t)values_of(d, name)[0]; }

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    const Descriptor *d = descriptor;
    if (d->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        fake_not_in_capture("making of a cuDNN plan");
    return CUDNN_STATUS_SUCCESS;
}

// --- cuDNN: plans --------------------------------------------------------------------------------

static size_t workspace_of(const Descriptor *operation) { return 1000 + 4096 * ((size_t)operation->type % 7); }

static const Attribute *operations_of(const Descriptor *plan)
{
    const Descriptor *configuration = part_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const Descriptor *graph = part_of(configuration, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    return attribute_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
}

static int64_t engine_of(const Descriptor *plan)
{
    return values_of(part_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINE_GLOBAL_INDEX)[0];
}

// A heuristic offers three engines, all without numerical notes. The second always fails, and the third fails in a
// capture, so both must lose a race.
enum { ENGINE, FAILS, FAILS_IN_CAPTURE, ENGINES };

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values)
{
    const Descriptor *d = descriptor;
    *count = name == CUDNN_ATTR_ENGINEHEUR_RESULTS ? ENGINES : name != CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        const Descriptor *graph = part_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        for (int64_t engine = 0; engine < ENGINES; engine++) {
            Descriptor *configuration = ((Descriptor **)values)[engine];
            cudnnBackendSetAttribute(configuration, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
            cudnnBackendSetAttribute(configuration, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine);
        }
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        *(int64_t *)values = (int64_t)workspace_of(part_at(operations_of(d), 0));
    }
    return CUDNN_STATUS_SUCCESS;
}

typedef struct Tensor {
    int64_t dims[4], strides[4];        // of (n, c, h, w)
    NumberType type;
    bool in_memory;                     // in the device's memory: neither virtual nor a scalar
    void *p;
    const Descriptor *made_from;
    float scalar, *array;               // used by a formula; the array has tensor_copy's layout
} Tensor;

static Tensor tensor_of(const Descriptor *d, const Descriptor *pack)
{
    bool scalar = attribute_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    const Attribute *uids = attribute_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const int64_t *pointers = values_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t type = values_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE)[0];
    Tensor t = { .type = type == CUDNN_DATA_HALF       ? NUMBER_F16
                         : type == CUDNN_DATA_BFLOAT16 ? NUMBER_BF16
                                                       : NUMBER_F32,    // also for types that only virtual tensors have
                 .in_memory = !scalar && !attribute_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL), .made_from = d };
    memcpy(t.dims, values_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS), sizeof t.dims);
    memcpy(t.strides, values_of(d, CUDNN_ATTR_TENSOR_STRIDES), sizeof t.strides);
    for (int64_t i = 0; i < uids->count; i++)
        if (uids->values[i] == values_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0])
            t.p = (void *)(uintptr_t)pointers[i];
    if (scalar)
        t.scalar = *(float *)t.p;
    return t;
}

// Copies the tensor to an array (n, h, w, c) of f32, or back.
static void tensor_copy(const Tensor *t, float *array, bool back)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (t->dims[i] - 1) * t->strides[i];
    fake_need(t->p, (size_t)(last + 1) * number_bytes(t->type), "a tensor");
    for (int64_t n = 0; n < t->dims[0]; n++)
        for (int64_t h = 0; h < t->dims[2]; h++)
            for (int64_t w = 0; w < t->dims[3]; w++)
                for (int64_t c = 0; c < t->dims[1]; c++, array++) {
                    size_t at = (size_t)(n * t->strides[0] + c * t->strides[1] + h * t->strides[2] + w * t->strides[3]);
                    if (back)
                        number_set(t->p, t->type, at, *array);
                    else
                        *array = (float)number_get(t->p, t->type, at);
                }
}

static int64_t tensor_count(const Tensor *t) { return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; }

static float *tensor_array(const Tensor *t, bool zero)
{
    float *array = calloc((size_t)tensor_count(t), sizeof *array);
    if (zero)
        *array = t->scalar;             // 0 if the tensor is not a scalar
    else
        tensor_copy(t, array, false);
    return array;
}

typedef enum Pass { FORWARD, DATA, WEIGHTS } Pass;

typedef struct Convolution {
    Pass pass;
    Tensor x, w, y;             // w: (k, c, r, s)
    int64_t stride[2], pad[2];
    void *workspace;
    size_t workspace_bytes;
} Convolution;

// One number of y, and `count` numbers of x that it is made from, with their weights.
static void multiply(Pass pass, float *x, float *w, float *y, int64_t count)
{
    float value = *y;
    switch (pass) {
    case FORWARD:
        for (int64_t i = 0; i < count; i++)
            value += x[i] * w[i];
        *y = value;
        break;
    case DATA:
        for (int64_t i = 0; i < count; i++)
            x[i] += value * w[i];
        break;
    case WEIGHTS:
        for (int64_t i = 0; i < count; i++)
            w[i] += value * x[i];
    }
}

// Leaves out padding. Within a row, the pixels are adjacent in x, and the weights in w.
static void run_convolution(void *arg)
{
    const Convolution *c = arg;
    int64_t kernels = c->w.dims[0], channels = c->w.dims[1], rows = c->w.dims[2], columns = c->w.dims[3];
    int64_t height = c->x.dims[2], width = c->x.dims[3];
    fake_need(c->workspace, c->workspace_bytes, "a convolution's workspace");
    float *x = tensor_array(&c->x, c->pass == DATA), *w = tensor_array(&c->w, c->pass == WEIGHTS);
    float *y = tensor_array(&c->y, c->pass == FORWARD), *to = y;
    for (int64_t n = 0; n < c->y.dims[0]; n++)
        for (int64_t p = 0; p < c->y.dims[2]; p++)
            for (int64_t q = 0; q < c->y.dims[3]; q++, to += kernels) {
                int64_t top = p * c->stride[0] - c->pad[0], left = q * c->stride[1] - c->pad[1];
                int64_t first = left < 0 ? -left : 0, end = left + columns > width ? width - left : columns;
                for (int64_t r = 0; r < rows; r++)
                    if (top + r >= 0 && top + r < height)
                        for (int64_t k = 0; k < kernels; k++)
                            multiply(c->pass, x + ((n * height + top + r) * width + left + first) * channels,
                                     w + ((k * rows + r) * columns + first) * channels, &to[k],
                                     (end - first) * channels);
            }
    if (c->pass == FORWARD)
        tensor_copy(&c->y, y, true);
    else if (c->pass == DATA)
        tensor_copy(&c->x, x, true);
    else
        tensor_copy(&c->w, w, true);
    free(x);
    free(w);
    free(y);
}

// Each pass is a separate operation, with its own names of attributes.
static Convolution convolution_of(const Descriptor *o, const Descriptor *pack)
{
    static const int names[][5] = {
#define NAMES(operation, pass, x, w, y)                                                                     \
    { CUDNN_BACKEND_OPERATION_CONVOLUTION_##operation##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##x, \
      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##w, CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_##y,           \
      CUDNN_ATTR_OPERATION_CONVOLUTION_##pass##_CONV_DESC }
        [FORWARD] = NAMES(FORWARD, FORWARD, X, W, Y),
        [DATA] = NAMES(BACKWARD_DATA, BWD_DATA, DX, W, DY),
        [WEIGHTS] = NAMES(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    };
    Pass pass = FORWARD;
    while (names[pass][0] != o->type)
        pass++;
    const Descriptor *how = part_of(o, names[pass][4]);
    Convolution c = { pass, tensor_of(part_of(o, names[pass][1]), pack), tensor_of(part_of(o, names[pass][2]), pack),
                      tensor_of(part_of(o, names[pass][3]), pack), .workspace_bytes = workspace_of(o),
                      .workspace = part_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) };
    memcpy(c.stride, values_of(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), sizeof c.stride);
    memcpy(c.pad, values_of(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), sizeof c.pad);
    return c;
}

// --- cuDNN: formulas of several operations, for attention ----------------------------------------

typedef struct Formula {
    const Attribute *operations;
    Tensor tensors[MAX_VALUES];
    int count;
    void *workspace;
} Formula;

// Returns NULL if the formula does not have this tensor.
static Tensor *tensor_from(Formula *f, const Descriptor *d)
{
    for (int i = 0; i < f->count; i++)
        if (f->tensors[i].made_from == d)
            return &f->tensors[i];
    return NULL;
}

static Formula formula_of(const Attribute *operations, const Descriptor *pack)
{
    Formula f = { operations, .workspace = part_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) };
    for (int64_t i = 0; i < operations->count; i++)
        for (int j = 0; j < part_at(operations, i)->count; j++) {
            const Descriptor *part = part_at(&part_at(operations, i)->attributes[j], 0);
            if (part->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || tensor_from(&f, part))
                continue;
            if (f.count == MAX_VALUES)
                fake_die("a cuDNN graph of more than %d tensors", MAX_VALUES);
            f.tensors[f.count++] = tensor_of(part, pack);
        }
    return f;
}

// The number at row i and column j of head h of sample n. A side of length 1 repeats its one number.
static const float *at(const Tensor *t, int64_t n, int64_t h, int64_t i, int64_t j)
{
    const int64_t *d = t->dims;
    return t->array + ((n % d[0] * d[2] + i % d[2]) * d[3] + j % d[3]) * d[1] + h % d[1];
}

static float pointwise(int64_t mode, float x, float b, float choice, int64_t index)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_GEN_INDEX: return (float)index;
    case CUDNN_POINTWISE_BINARY_SELECT: return choice != 0 ? x : b;
    default: fake_die("mode %d of a pointwise operation", (int)mode);
    }
}

// The sum of products or, without b, the sum or maximum of x's row.
static float fold(const Tensor *x, const Tensor *b, bool max, int64_t n, int64_t h, int64_t i, int64_t j)
{
    const float *row = at(x, n, h, i, 0), *column = b ? at(b, n, h, 0, j) : NULL;
    float result = max ? -INFINITY : 0;
    for (int64_t k = 0; k < x->dims[3]; k++, row += x->dims[1], column += b ? b->dims[3] * b->dims[1] : 0)
        result = max ? fmaxf(result, *row) : result + *row * (b ? *column : 1);
    return result;
}

// Each kind of operation has its own names of attributes; 0: it has no such attribute. Our reshapes only transpose.
static void run_operation(Formula *f, const Descriptor *o)
{
    enum { TYPE, X, B, CHOICE, Y, HOW, MODE, NAMES };
    static const int all[][NAMES] = {
#define OPERATION(name) CUDNN_BACKEND_OPERATION_##name##_DESCRIPTOR
#define PART(name) CUDNN_ATTR_OPERATION_##name
        { OPERATION(MATMUL), PART(MATMUL_ADESC), PART(MATMUL_BDESC), 0, PART(MATMUL_CDESC) },
        { OPERATION(RESHAPE), PART(RESHAPE_XDESC), 0, 0, PART(RESHAPE_YDESC) },
        { OPERATION(REDUCTION), PART(REDUCTION_XDESC), 0, 0, PART(REDUCTION_YDESC), PART(REDUCTION_DESC),
          CUDNN_ATTR_REDUCTION_OPERATOR },
        { OPERATION(POINTWISE), PART(POINTWISE_XDESC), PART(POINTWISE_BDESC), PART(POINTWISE_TDESC),
          PART(POINTWISE_YDESC), PART(POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE },
    };
    const int *names = all[0];
    Tensor *parts[HOW] = { NULL };
    while (names[TYPE] != o->type)
        names += NAMES;
    for (int i = X; i <= Y; i++)
        if (attribute_of(o, names[i]))
            parts[i] = tensor_from(f, part_of(o, names[i]));
    const Tensor *x = parts[X], *b = parts[B], *choice = parts[CHOICE], *y = parts[Y];
    const Descriptor *how = names[HOW] ? part_of(o, names[HOW]) : NULL;
    const Attribute *axis = how ? attribute_of(how, CUDNN_ATTR_POINTWISE_AXIS) : NULL;
    int64_t mode = how ? values_of(how, names[MODE])[0] : 0, columns = y->dims[3], heads = y->dims[1];
    for (int64_t k = 0; k < tensor_count(y); k++) {
        int64_t h = k % heads, j = k / heads % columns, row = k / heads / columns, rounded = 0;
        int64_t n = row / y->dims[2], i = row % y->dims[2];
        float value;
        if (o->type == OPERATION(RESHAPE))
            value = *at(x, n, h, j, i);
        else if (o->type == OPERATION(POINTWISE))
            value = pointwise(mode, *at(x, n, h, i, j), b ? *at(b, n, h, i, j) : 0,
                              choice ? *at(choice, n, h, i, j) : 0, axis && axis->values[0] == 2 ? i : j);
        else
            value = fold(x, b, mode == CUDNN_REDUCE_TENSOR_MAX, n, h, i, j);
        number_set(&rounded, y->type, 0, value);
        y->array[k] = (float)number_get(&rounded, y->type, 0);
    }
    if (y->in_memory)
        tensor_copy(y, y->array, true);
}

static void run_formula(void *arg)
{
    Formula *f = arg;
    fake_need(f->workspace, workspace_of(part_at(f->operations, 0)), "a formula's workspace");
    for (int i = 0; i < f->count; i++)
        f->tensors[i].array = tensor_array(&f->tensors[i], !f->tensors[i].in_memory);
    for (int64_t i = 0; i < f->operations->count; i++)
        run_operation(f, part_at(f->operations, i));
    for (int i = 0; i < f->count; i++)
        free(f->tensors[i].array);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const Attribute *operations = operations_of(plan);
    if (engine_of(plan) == FAILS || (engine_of(plan) == FAILS_IN_CAPTURE && fake_captures))
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (operations->count == 1) {
        Convolution c = convolution_of(part_at(operations, 0), pack);
        fake_do(handle->stream, "convolution", run_convolution, &c, sizeof c);
    } else {
        Formula f = formula_of(operations, pack);
        fake_do(handle->stream, "attention", run_formula, &f, sizeof f);
    }
    return cudaGetLastError() ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// --- cuBLASLt ------------------------------------------------------------------------------------

enum { PRODUCT_WORKSPACE = 5000 };

typedef struct Layout {
    size_t rows, columns, ld;
    NumberType type;
    int32_t batch;
    int64_t distance;           // between the matrices of a batch, in numbers
} Layout;

typedef struct ProductDesc {
    cublasOperation_t a, b;
} ProductDesc;

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

const char *cublasLtGetStatusString(cublasStatus_t status) { return "a fake error"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t type)
{
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
    memcpy(name == CUBLASLT_MATMUL_DESC_TRANSA ? &d->a : &d->b, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    Layout *layout = malloc(sizeof *layout);
    NumberType number = type == CUDA_R_32F ? NUMBER_F32 : type == CUDA_R_16F ? NUMBER_F16 : NUMBER_BF16;
    *layout = (Layout){ rows, columns, (size_t)ld, number, .batch = 1 };
    *made = (cublasLtMatrixLayout_t)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes)
{
    Layout *l = (Layout *)layout;
    memcpy(name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? (void *)&l->batch : &l->distance, value, bytes);
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
    memset(results, 0, sizeof *results);
    results->workspaceSize = PRODUCT_WORKSPACE;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// A matrix of a batch. The distance between columns or, if transposed, between rows is `ld`.
typedef struct Matrix {
    char *p;
    Layout layout;
    bool transposed;
} Matrix;

static size_t matrix_at(const Matrix *m, size_t row, size_t column)
{
    return m->transposed ? column + row * m->layout.ld : row + column * m->layout.ld;
}

// Returns a copy in f32, by rows or (by_column) by columns.
static float *matrix_load(const Matrix *m, size_t rows, size_t columns, bool by_column)
{
    float *copy = malloc(rows * columns * sizeof *copy);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            copy[by_column ? j * rows + i : i * columns + j] =
                (float)number_get(m->p, m->layout.type, matrix_at(m, i, j));
    return copy;
}

typedef struct Product {
    Matrix a, b, d;
    float alpha, beta;
    void *workspace;
} Product;

static void run_product(const Product *p)
{
    size_t m = p->d.layout.rows, n = p->d.layout.columns;
    size_t k = p->a.transposed ? p->a.layout.rows : p->a.layout.columns;
    float *a = matrix_load(&p->a, m, k, false), *b = matrix_load(&p->b, k, n, true);
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < m; i++) {
            float sum = 0;
            for (size_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[j * k + l];
            size_t at = matrix_at(&p->d, i, j);
            double before = p->beta ? p->beta * number_get(p->d.p, p->d.layout.type, at) : 0;
            number_set(p->d.p, p->d.layout.type, at, p->alpha * sum + before);
        }
    free(a);
    free(b);
}

static Matrix matrix_of_batch(const Matrix *first, int i)
{
    Matrix m = *first;
    const Layout *l = &m.layout;
    size_t width = number_bytes(l->type);
    m.p += (size_t)i * (size_t)l->distance * width;
    fake_need(m.p, ((l->columns - 1) * l->ld + l->rows) * width, "a product's matrix");
    return m;
}

static void run_products(void *arg)
{
    const Product *all = arg;
    fake_need(all->workspace, PRODUCT_WORKSPACE, "a product's workspace");
    for (int i = 0; i < all->d.layout.batch; i++) {
        Product one = { matrix_of_batch(&all->a, i), matrix_of_batch(&all->b, i), matrix_of_batch(&all->d, i),
                        all->alpha, all->beta, NULL };
        run_product(&one);
    }
}

// Our programs pass the same matrices as c and d.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const ProductDesc *how = (const ProductDesc *)desc;
    Product p = { { (char *)(uintptr_t)a, *(Layout *)a_layout, how->a == CUBLAS_OP_T },
                  { (char *)(uintptr_t)b, *(Layout *)b_layout, how->b == CUBLAS_OP_T },
                  { d, *(Layout *)d_layout, false },
                  *(const float *)alpha, *(const float *)beta, workspace };
    fake_do(stream, "product", run_products, &p, sizeof p);
    return cudaGetLastError() ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
