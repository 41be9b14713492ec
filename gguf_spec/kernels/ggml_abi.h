// What we use of ggml's binary interface: numbers, structures and virtual functions, in the order in which these versions have them.
//
// These declarations need no headers of llama.cpp, which its wheel has only in part. Functions of ggml are found at run time. The kernels are
// used only where misfit() in entry.cpp finds that the loaded libraries have these structures: the version alone does not tell.
#pragma once
#if defined(__linux__)
#include <pthread.h>
#endif
#include <atomic>
#include <cstddef>
#include <cstdint>

// The ready-made llama.cpp (scripts/build/ready_made.py) has the first one, a compiled llama-cpp-python 0.3.36 the second.
#define GGUF_SPEC_GGML_VERSIONS "0.25.1", "0.25.3"
#define GGML_VERSIONS_TEXT "0.25.1 or 0.25.3"

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
static_assert(sizeof(Tensor) == 336, "a tensor of ggml has 336 bytes");

#if defined(__linux__)
// ggml's own threads, in builds without OpenMP.
struct ThreadPool {
    pthread_mutex_t lock; // its size depends on the processor
    pthread_cond_t changed;
    void * graph, * plan;
    std::atomic<int> n_graph;                      // lower 16 bits: number of threads in the pass
    alignas(64) std::atomic<int> n_barrier;        // threads that wait
    alignas(64) std::atomic<int> n_barrier_passed; // barriers so far
};
#endif

struct ThreadPoolParams {
    bool mask[512]; // cores; none for all
    int n_threads, priority;
    unsigned poll;  // times 131,072 turns that a thread spins after a pass, before it waits for work
    bool strict, paused;
    char more[64];  // room for further fields
};
// `ggml_cplan`, returned in memory. What follows the first field is only passed on.
struct GraphPlan { size_t work_bytes; char more[48]; };
// The beginning of `ggml_cgraph`.
struct Graph {
    int size, n_nodes, n_leafs;
    const Tensor * const * nodes;
    char more[104];
};

// One thread's part in computing an operation.
struct Params {
    int ith, nth;
    size_t wsize;
    void * wdata;
    void * threadpool;
    bool use_ref;
};

// ggml calls these through the virtual table: the order counts, the names do not. The first two have the places of a destructor, which is never
// called: these objects stay. So the library needs no C++ library, and no compiler has to bring one.
struct TensorTraits {
    virtual void destroy() {}
    virtual void destroy_and_free() {}
    virtual bool work_size(int n_threads, const Tensor * op, size_t & size) = 0;
    virtual bool compute_forward(Params * params, Tensor * op) = 0;
};
struct ExtraBufferType {
    virtual void destroy() {}
    virtual void destroy_and_free() {}
    virtual bool supports_op(void * device, const Tensor * op) = 0;
    virtual TensorTraits * get_tensor_traits(const Tensor * op) = 0;
};

// Functions of ggml that we call.
struct Ggml {
    void (*barrier)(void * threadpool);
    void * (*new_threads)(ThreadPoolParams * params);
    void (*free_threads)(void * threadpool);
    GraphPlan (*plan)(const void * graph, int n_threads, void * threadpool);
    BufferType * (*buffer_type)(void * buffer);
    size_t (*buffer_bytes)(void * buffer);
    void * (*buffer_start)(void * buffer);
    void (*quantize_q8_0)(const float * x, void * y, int64_t k);
    void (*quantize_q8_1)(const float * x, void * y, int64_t k);
    BufferType * repacked;
};
extern Ggml ggml;
