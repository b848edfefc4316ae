// onednn.h - one interface to versions 2 and 3 of oneDNN.
//
// Version 3 has no operation descriptors, and its memory descriptors are opaque. Only onednn.h and
// onednn.c handle the differences.
#pragma once
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stddef.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t DnnMd;       // in oneDNN 3, this type is a pointer
#else
typedef dnnl_memory_desc_t *DnnMd;
typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t;
#endif

// Ends the program if the call failed.
#define DNN_CHECK(call) dnn_check((call), #call, __FILE__, __LINE__)
void dnn_check(dnnl_status_t status, const char *call, const char *file, int line);

// Free memory descriptors with dnn_md_free.
DnnMd dnn_md(int ndims, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag);
// Describes a matrix whose element (i, j) is at i * row_stride + j * column_stride.
DnnMd dnn_matrix(int rows, int columns, int row_stride, int column_stride, dnnl_data_type_t type);
DnnMd dnn_md_copy(const_dnnl_memory_desc_t md);
void dnn_md_free(DnnMd md);

typedef enum { DNN_FORWARD, DNN_BACKWARD_DATA, DNN_BACKWARD_WEIGHTS } DnnPass;

typedef struct DnnConv {
    DnnMd x, w, bias, y;
    dnnl_dims_t strides, pad, pad_after;
    bool avoid_brgemm;          // avoid oneDNN's brgemm code: see dnn_conv_desc
} DnnConv;

typedef struct DnnPrimitive {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[4];
    int arg_count;
} DnnPrimitive;

// Makes the descriptor of a convolution's pass. hint: for a backward pass, the forward pass's
// descriptor. oneDNN lists its newest code first, in which a kernel for batches of small matrix
// products (brgemm) does the work. For very small matrices, oneDNN's older code (jit) is faster.
// avoid_brgemm selects jit code if there is any, unless the brgemm code uses AMX.
dnnl_primitive_desc_t dnn_conv_desc(dnnl_engine_t engine, const DnnConv *conv, DnnPass pass,
                                    const_dnnl_primitive_desc_t hint);
// c (m, n) = a (m, k) b (k, n) + bias (1, n). bias may be NULL. attr: NULL, or dnn_own_scratch().
dnnl_primitive_desc_t dnn_product_desc(dnnl_engine_t engine, DnnMd a, DnnMd b, DnnMd bias, DnnMd c,
                                       const_dnnl_primitive_attr_t attr);
// With this attribute, dnn_run's caller passes scratch memory to a primitive, so that several
// threads can run such primitives at once. dnnl_primitive_attr_destroy frees the attribute.
dnnl_primitive_attr_t dnn_own_scratch(void);
// Takes ownership of the descriptor. arguments: up to 4 DNNL_ARG_*. mds: their memory descriptors.
DnnPrimitive dnn_primitive(dnnl_engine_t engine, dnnl_primitive_desc_t desc, int count,
                           const int *arguments, const DnnMd *mds);
DnnPrimitive dnn_reorder(dnnl_engine_t engine, DnnMd from, DnnMd to);
void dnn_primitive_free(DnnPrimitive *p);

// Runs the primitive on these pointers, one for each argument, in the order given at creation.
void dnn_run(const DnnPrimitive *p, dnnl_stream_t stream, void *const *pointers);
