// What we use of ggml 0.25.3's binary interface: numbers, structures and virtual functions, in the order in which that version has them.
//
// The library is loaded only beside that version (start() in entry.cpp compares ggml_version()), so these declarations need no
// headers of llama.cpp, which its wheel has only in part. Functions of ggml are found at run time.
#pragma once
#include <cstddef>
#include <cstdint>

#define GGUF_SPEC_GGML_VERSION "0.25.3"

enum TensorType : int {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q8_1 = 9, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, Q8_K = 15, IQ4_NL = 20, I32 = 26, BF16 = 30, MXFP4 = 39,
};
enum TensorOp : int { OP_MUL_MAT = 29, OP_MUL_MAT_ID = 30, OP_FLASH_ATTN_EXT = 74 };

struct BufferType {
    const char * (*get_name)(BufferType *);
    void * (*alloc_buffer)(BufferType *, size_t);
    size_t (*get_alignment)(BufferType *);
    size_t (*get_max_size)(BufferType *);
    size_t (*get_alloc_size)(BufferType *, const void *);
    bool (*is_host)(BufferType *);
    void * device;
    void * context;
};

struct Tensor {
    int type;
    void * buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    Tensor * src[10];
    Tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};
static_assert(sizeof(Tensor) == 336, "the tensor of ggml 0.25.3 has 336 bytes");

// One thread's part in computing an operation.
struct Params {
    int ith, nth;
    size_t wsize;
    void * wdata;
    void * threadpool;
    bool use_ref;
};

// ggml calls these through the virtual table: the order counts, the names do not.
struct TensorTraits {
    virtual ~TensorTraits() {}
    virtual bool work_size(int n_threads, const Tensor * op, size_t & size) = 0;
    virtual bool compute_forward(Params * params, Tensor * op) = 0;
};
struct ExtraBufferType {
    virtual ~ExtraBufferType() {}
    virtual bool supports_op(void * device, const Tensor * op) = 0;
    virtual TensorTraits * get_tensor_traits(const Tensor * op) = 0;
};

// Functions of ggml that we call.
struct Ggml {
    void (*barrier)(void * threadpool);
    BufferType * (*buffer_type)(void * buffer);
    size_t (*buffer_bytes)(void * buffer);
    void * (*buffer_start)(void * buffer);
    void (*quantize_q8_0)(const float * x, void * y, int64_t k);
    void (*quantize_q8_1)(const float * x, void * y, int64_t k);
    void (*quantize_q8_K)(const float * x, void * y, int64_t k);
    BufferType * repacked;
};
extern Ggml ggml;
