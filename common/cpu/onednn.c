#include "cpu/onednn.h"
#include "check.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <stdlib.h>
#include <string.h>

void dnn_check(dnnl_status_t status, const char *call, const char *file, int line)
{
    if (status != dnnl_success)
        fail_at(file, line, EXIT_FAILED, "", "oneDNN: %.60s: %s", call, dnnl_status2str(status));
}

#if DNNL_VERSION_MAJOR >= 3

DnnMd dnn_md(int ndims, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    DnnMd md;
    DNN_CHECK(dnnl_memory_desc_create_with_tag(&md, ndims, dims, type, tag));
    return md;
}

DnnMd dnn_matrix(int rows, int columns, int row_stride, int column_stride, dnnl_data_type_t type)
{
    DnnMd md;
    DNN_CHECK(dnnl_memory_desc_create_with_strides(&md, 2, (dnnl_dims_t){ rows, columns }, type,
                                                   (dnnl_dims_t){ row_stride, column_stride }));
    return md;
}

DnnMd dnn_md_copy(const_dnnl_memory_desc_t md)
{
    DnnMd copy;
    DNN_CHECK(dnnl_memory_desc_clone(&copy, md));
    return copy;
}

void dnn_md_free(DnnMd md)
{
    if (md)
        dnnl_memory_desc_destroy(md);
}

#else

DnnMd dnn_md(int ndims, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    DnnMd md = xcalloc(1, sizeof *md);
    DNN_CHECK(dnnl_memory_desc_init_by_tag(md, ndims, dims, type, tag));
    return md;
}

DnnMd dnn_matrix(int rows, int columns, int row_stride, int column_stride, dnnl_data_type_t type)
{
    DnnMd md = xcalloc(1, sizeof *md);
    DNN_CHECK(dnnl_memory_desc_init_by_strides(md, 2, (dnnl_dims_t){ rows, columns }, type,
                                               (dnnl_dims_t){ row_stride, column_stride }));
    return md;
}

DnnMd dnn_md_copy(const dnnl_memory_desc_t *md)
{
    DnnMd copy = xmalloc(sizeof *copy);
    *copy = *md;
    return copy;
}

void dnn_md_free(DnnMd md) { free(md); }

#endif

static const char *name_of(const_dnnl_primitive_desc_t desc)
{
    const char *name;
    DNN_CHECK(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name));
    return name;
}

// Does `desc` run brgemm code without AMX? With AMX, brgemm code is always fast.
static bool is_brgemm(const_dnnl_primitive_desc_t desc)
{
    return strncmp(name_of(desc), "brg", 3) == 0 && !strstr(name_of(desc), "amx");
}

static bool is_jit(const_dnnl_primitive_desc_t desc)
{
    return strncmp(name_of(desc), "jit", 3) == 0;
}

#if DNNL_VERSION_MAJOR >= 3

static dnnl_primitive_desc_t first_desc(dnnl_engine_t engine, const DnnConv *c, DnnPass pass,
                                        const_dnnl_primitive_desc_t hint)
{
    static const dnnl_dims_t dense = { 0, 0 };  // no dilation
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_primitive_desc_t desc = NULL;
    if (pass == DNN_FORWARD)
        DNN_CHECK(dnnl_convolution_forward_primitive_desc_create(
            &desc, engine, dnnl_forward_training, direct, c->x, c->w, c->bias, c->y, c->strides,
            dense, c->pad, c->pad_after, NULL));
    else if (pass == DNN_BACKWARD_DATA)
        DNN_CHECK(dnnl_convolution_backward_data_primitive_desc_create(
            &desc, engine, direct, c->x, c->w, c->y, c->strides, dense, c->pad, c->pad_after, hint,
            NULL));
    else
        DNN_CHECK(dnnl_convolution_backward_weights_primitive_desc_create(
            &desc, engine, direct, c->x, c->w, NULL, c->y, c->strides, dense, c->pad, c->pad_after,
            hint, NULL));
    return desc;
}

dnnl_primitive_desc_t dnn_conv_desc(dnnl_engine_t engine, const DnnConv *c, DnnPass pass,
                                    const_dnnl_primitive_desc_t hint)
{
    dnnl_primitive_desc_t desc = first_desc(engine, c, pass, hint);
    if (!c->avoid_brgemm || !is_brgemm(desc))
        return desc;
    while (dnnl_primitive_desc_next_impl(desc) == dnnl_success)
        if (is_jit(desc))
            return desc;
    DNN_CHECK(dnnl_primitive_desc_destroy(desc));
    return first_desc(engine, c, pass, hint);
}

dnnl_primitive_desc_t dnn_product_desc(dnnl_engine_t engine, DnnMd a, DnnMd b, DnnMd bias,
                                       DnnMd c, const_dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t desc = NULL;
    DNN_CHECK(dnnl_matmul_primitive_desc_create(&desc, engine, a, b, bias, c, attr));
    return desc;
}

#else

dnnl_primitive_desc_t dnn_conv_desc(dnnl_engine_t engine, const DnnConv *c, DnnPass pass,
                                    const_dnnl_primitive_desc_t hint)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_iterator_t codes;
    if (pass == DNN_FORWARD)
        DNN_CHECK(dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, direct, c->x, c->w,
                                                     c->bias, c->y, c->strides, c->pad,
                                                     c->pad_after));
    else if (pass == DNN_BACKWARD_DATA)
        DNN_CHECK(dnnl_convolution_backward_data_desc_init(&op, direct, c->x, c->w, c->y,
                                                           c->strides, c->pad, c->pad_after));
    else
        DNN_CHECK(dnnl_convolution_backward_weights_desc_init(&op, direct, c->x, c->w, NULL, c->y,
                                                              c->strides, c->pad, c->pad_after));
    DNN_CHECK(dnnl_primitive_desc_iterator_create(&codes, &op, NULL, engine, hint));
    dnnl_primitive_desc_t desc = dnnl_primitive_desc_iterator_fetch(codes);
    while (c->avoid_brgemm && is_brgemm(desc) &&
           dnnl_primitive_desc_iterator_next(codes) == dnnl_success) {
        dnnl_primitive_desc_t next = dnnl_primitive_desc_iterator_fetch(codes), other = next;
        if (is_jit(next))
            other = desc, desc = next;
        DNN_CHECK(dnnl_primitive_desc_destroy(other));
    }
    DNN_CHECK(dnnl_primitive_desc_iterator_destroy(codes));
    return desc;
}

dnnl_primitive_desc_t dnn_product_desc(dnnl_engine_t engine, DnnMd a, DnnMd b, DnnMd bias,
                                       DnnMd c, const_dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_matmul_desc_t op;
    DNN_CHECK(dnnl_matmul_desc_init(&op, a, b, bias, c));
    DNN_CHECK(dnnl_primitive_desc_create(&desc, &op, attr, engine, NULL));
    return desc;
}

#endif

dnnl_primitive_attr_t dnn_own_scratch(void)
{
    dnnl_primitive_attr_t attr;
    DNN_CHECK(dnnl_primitive_attr_create(&attr));
    DNN_CHECK(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    return attr;
}

DnnPrimitive dnn_primitive(dnnl_engine_t engine, dnnl_primitive_desc_t desc, int count,
                           const int *arguments, const DnnMd *mds)
{
    DnnPrimitive p = { .arg_count = count };
    DNN_CHECK(dnnl_primitive_create(&p.primitive, desc));
    DNN_CHECK(dnnl_primitive_desc_destroy(desc));
    for (int i = 0; i < count; i++) {
        p.args[i].arg = arguments[i];
        DNN_CHECK(dnnl_memory_create(&p.args[i].memory, mds[i], engine, DNNL_MEMORY_NONE));
    }
    return p;
}

DnnPrimitive dnn_reorder(dnnl_engine_t engine, DnnMd from, DnnMd to)
{
    dnnl_primitive_desc_t desc;
    DNN_CHECK(dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, NULL));
    return dnn_primitive(engine, desc, 2, (int[]){ DNNL_ARG_FROM, DNNL_ARG_TO },
                         (DnnMd[]){ from, to });
}

void dnn_primitive_free(DnnPrimitive *p)
{
    for (int i = 0; i < p->arg_count; i++)
        dnnl_memory_destroy(p->args[i].memory);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

void dnn_run(const DnnPrimitive *p, dnnl_stream_t stream, void *const *pointers)
{
    for (int i = 0; i < p->arg_count; i++)
        DNN_CHECK(dnnl_memory_set_data_handle(p->args[i].memory, pointers[i]));
    DNN_CHECK(dnnl_primitive_execute(p->primitive, stream, p->arg_count, p->args));
}
