// The way into llama.cpp: before it computes an operation on the CPU, ggml asks each entry of a list of "extra buffer types" whether it
// wants to. start() puts one at the front of that list. It takes matrix products and attention for which there is a kernel; all
// other operations go on as ever. No weights are copied. On Linux llama.cpp's large buffers get large memory pages, and ggml's own threads, in
// builds without OpenMP, are kept and sleep where they wait long. It does not know other systems: system.h does.
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "kernels.h"
#include "system.h"

// The sets that the library was compiled with: -D'SETS=SET(avx512vnni) SET(avx2)', the best one first; -DTILES: with tiles.cpp.
#ifndef SETS
#define SETS
#endif
#define SET(name) extern const Kernels kernels_##name;
SETS
#undef SET

Ggml ggml;

namespace {

// With tiles, products of many rows have other kernels.
struct Set {
    const char * name;
    const Kernels * kernels;
    const Tiled * tiles;
};
#define SET(name) {#name, &kernels_##name, nullptr},
const Set all_sets[] = { // ends without a name
#if defined(TILES)
    {"amx", &kernels_avx512vnni, tile_products},
#endif
    SETS {nullptr, nullptr, nullptr},
};
#if defined(__aarch64__)
const char * const lacks = "!this processor lacks instructions for dot products (ARMv8.2)";
#else
const char * const lacks = "!this processor lacks AVX2, FMA or F16C";
#endif
const Set * used;                       // the set in use
Set given;                              // for tests: a set with the tiles of another library
const Kernels * kernels;                // its kernels
std::atomic<int> switched_on{0};        // bit 0: products, bit 1: attention
std::atomic<long> n_products, n_attentions; // operations computed, for tests

#if defined(__aarch64__)
// What llama.cpp was compiled for decides how it repacks weights, and with that the set; vectors of 256 bits have a layout of their own.
int (*is_for_i8mm)(), (*vector_bytes)();

// Whether processor and system have the instructions of a set.
bool has(const Set & set) {
    const bool pairs = !strcmp(set.name, "neoni8mm");
    const Processor here = processor();
    return here.dot_products && (!pairs || here.i8mm) && pairs == (is_for_i8mm() != 0);
}
bool has_eight_columns(const Tensor * w) { return w->type == Q4_0 && w->ne[1] % 8 == 0 && is_for_i8mm() && vector_bytes() == 32; } // repacked; otherwise four

// Call ggml_graph_plan, which writes its large result where register x8 says.
void call_plan(void * result, void * plan_of, void * graph) {
    register void * a asm("x0") = graph;
    register long n asm("x1") = 1;
    register void * none asm("x2") = nullptr, * to asm("x8") = result;
    asm volatile("blr %4" : "+r"(a), "+r"(n), "+r"(none), "+r"(to) : "r"(plan_of) : "x3", "x4", "x5", "x6", "x7", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x30", "memory", "cc",
                 "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
#else
bool has_eight_columns(const Tensor *) { return false; }
void call_plan(void * result, void * plan_of, void * graph) { ((void (*)(void *, void *, int, void *)) plan_of)(result, graph, 1, nullptr); } // its result is in memory

// Whether processor and system have the instructions of a set.
bool has(const Set & set) {
    unsigned a, b, c, d, b7, c7, d7, a71 = 0, low, high, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return false;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &d, &unused);
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); // registers that the system saves
    const auto all = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
    const bool avx2 = all(low, 6) && all(c, 1u << 12 | 1u << 29) && all(b7, 1u << 5);                // FMA, F16C; AVX2
    const bool avx512 = avx2 && all(low, 0xe0) && all(b7, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31); // F, DQ, BW, VL
    const auto is = [&](const char * name) { return !strcmp(set.name, name); };
    if (is("avx2")) return avx2;
    if (is("avxvnni")) return avx2 && a71 >> 4 & 1;
    if (is("avx512")) return avx512;
    if (!avx512 || !(c7 >> 11 & 1)) return false;
    return !is("amx") || (all(low, 3u << 17) && all(d7, 1u << 22 | 3u << 24)); // BF16, TILE, INT8
}
#endif

// The kernel for a product, or null. The answer does not depend on the number of rows.
const Product * product_of(const Tensor * op) {
    const Tensor * w = op->src[0], * x = op->src[1];
    if (op->op != OP_MUL_MAT && op->op != OP_MUL_MAT_ID) return nullptr;
    if (x->type != F32 || op->type != F32 || x->nb[0] != 4 || op->nb[0] != 4) return nullptr;
    // A product of several matrices, such as attention without FLASH_ATTN_EXT, is no product with weights.
    if (w->ne[3] != 1 || (op->op == OP_MUL_MAT && w->ne[2] != 1)) return nullptr;
    bool repacked = false;
    if (w->buffer) {
        BufferType * where = ggml.buffer_type(w->buffer);
        repacked = where == ggml.repacked;
        if (!repacked && !(where->is_host && where->is_host(where))) return nullptr;
    }
    for (const Product * p = kernels->products; p->type >= 0; p++) {
        if (has_eight_columns(w) && p->columns == 4) continue;
        if (p->type == w->type && p->repacked == repacked) return w->ne[0] % p->block || w->ne[0] > p->most || w->ne[1] % p->columns ? nullptr : p;
    }
    return nullptr;
}

constexpr size_t line = 64; // bytes of a cache line; parts of the work memory begin at multiples of it
size_t aligned(size_t n) { return (n + line - 1) / line * line; }

// How a product is computed, and the parts of its work memory:
//   next chunk | rows before each matrix | prepared rows | pointers to rows and results, sorted by matrix | rows packed for tiles, sorted by
//   matrix, too | memory of each thread for tiles
struct Work {
    const TileProduct * tiles;   // for matrices with several rows, or null
    size_t row_bytes, bytes_of_16, scratch_bytes;
    int64_t n_rows, n_matrices;
    std::atomic<int64_t> * next; // [n_matrices], each in its own cache line
    int64_t * first;             // [n_matrices + 1]
    char * prepared;
    const char ** rows;
    float ** results;
    char * packed;
    char * scratch;
    char * end;

    Work(const Tensor * op, const Product * product, const TileProduct * with, int n_threads, void * memory) : tiles(with) {
        const Tensor * w = op->src[0], * x = op->src[1];
        const int64_t k = w->ne[0];
        n_rows = x->ne[1] * x->ne[2] * x->ne[3];
        n_matrices = op->op == OP_MUL_MAT ? 1 : w->ne[2];
        const int64_t n_uses = op->op == OP_MUL_MAT ? n_rows : op->src[2]->ne[0] * op->src[2]->ne[1];
        row_bytes = aligned(product->row_bytes(k));
        bytes_of_16 = tiles ? tiles->bytes_of_16(k) : 0;
        scratch_bytes = tiles ? aligned(tiles->scratch_bytes(n_uses)) : 0;
        char * p = (char *) aligned((size_t) memory);
        next = (std::atomic<int64_t> *) p; p += line * n_matrices;
        first = (int64_t *) p; p += aligned(8 * (n_matrices + 1));
        prepared = p; p += row_bytes * n_rows;
        rows = (const char **) p; p += aligned(8 * n_uses);
        results = (float **) p; p += aligned(8 * n_uses);
        packed = p; p += bytes_of_16 * (n_uses / 16 + n_matrices);
        scratch = p; p += scratch_bytes * n_threads;
        end = p;
    }
    char * packed_of(int64_t matrix) const { return packed + bytes_of_16 * (first[matrix] / 16 + matrix); } // whole tiles of the ones before
    // Pack row r of n of a matrix. The last one fills up what is read at once.
    void pack(const char * row, char * to, int64_t r, int64_t n, int64_t k, int64_t begin, int64_t end) const {
        to += r / 16 * bytes_of_16;
        for (int64_t i = r % 16; i == r % 16 || (r == n - 1 && i % tiles->at_once); i++) tiles->pack(row, to, (int) i, k, begin, end);
    }
};

std::atomic<int> tiles_from{0}; // for tests: rows from which tiles are used, in place of the least number of each kernel
int least_of(const TileProduct * tiles) {
    const int from = tiles_from.load(std::memory_order_relaxed);
    return from ? from : tiles->least;
}

// The kernel with tiles for a product; null where there is none, or for few rows.
const TileProduct * tiles_of(const Tensor * op, const Product * product) {
    const Tensor * x = op->src[1];
    const TileProduct * found = product->tiles;
    for (const Tiled * t = used->tiles; t && t->type >= 0; t++)
        if (t->type == product->type && t->repacked == product->repacked) found = &t->tiles;
    const int64_t n = op->op == OP_MUL_MAT ? x->ne[1] * x->ne[2] * x->ne[3] : op->src[2]->ne[1]; // at most for a matrix: no token uses an expert twice
    return found && n >= least_of(found) ? found : nullptr;
}

// Fill in which rows meet which matrix, and where the results go.
void assign_rows(const Tensor * op, const Work & work) {
    const Tensor * x = op->src[1], * ids = op->src[2];
    char * out = (char *) op->data;
    if (op->op == OP_MUL_MAT) {
        int64_t i = 0;
        for (int64_t c = 0; c < x->ne[3]; c++)
            for (int64_t b = 0; b < x->ne[2]; b++)
                for (int64_t a = 0; a < x->ne[1]; a++, i++) {
                    work.rows[i] = work.prepared + i * work.row_bytes;
                    work.results[i] = (float *) (out + a * op->nb[1] + b * op->nb[2] + c * op->nb[3]);
                }
        work.first[0] = 0;
        work.first[1] = i;
        return;
    }
    // Experts: row t uses matrices ids[0..][t]. Counting sort by matrix keeps the order of rows.
    const int64_t n_matrices = op->src[0]->ne[2];
    const auto id = [&](int64_t u, int64_t t) { return *(const int32_t *) ((const char *) ids->data + u * ids->nb[0] + t * ids->nb[1]); };
    memset(work.first, 0, 8 * (n_matrices + 1));
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t u = 0; u < ids->ne[0]; u++)
            if (id(u, t) >= 0 && id(u, t) < n_matrices) work.first[id(u, t) + 1]++;
    for (int64_t m = 0; m < n_matrices; m++) work.first[m + 1] += work.first[m];
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t u = 0; u < ids->ne[0]; u++) {
            const int64_t m = id(u, t);
            if (m < 0 || m >= n_matrices) continue;
            const int64_t i = work.first[m]++;
            work.rows[i] = work.prepared + (u % x->ne[1] + t % x->ne[2] * x->ne[1]) * work.row_bytes;
            work.results[i] = (float *) (out + u * op->nb[1] + t * op->nb[2]);
        }
    for (int64_t m = n_matrices; m > 0; m--) work.first[m] = work.first[m - 1];
    work.first[0] = 0;
}

// One thread's part; false, for all threads, if the work memory is too small.
bool multiply(const Params * params, const Tensor * op, const Product * product) {
    const Tensor * w = op->src[0], * x = op->src[1];
    const int64_t k = w->ne[0], n_columns = w->ne[1];
    const char * const room = (const char *) params->wdata + params->wsize;
    Work work(op, product, tiles_of(op, product), params->nth, params->wdata);
    if (work.end > room) work = Work(op, product, nullptr, params->nth, params->wdata); // planned without tiles
    if (work.end > room) return false;
    const int64_t n_rows = work.n_rows, n_matrices = work.n_matrices;

    // Each thread prepares a part of each row, or whole rows if there are many.
    const bool whole = n_rows >= 4 * params->nth;
    const int64_t quanta = (k + product->quantum - 1) / product->quantum;
    const auto share = [&](int64_t n, int i) { return n * (params->ith + i) / params->nth; };
    const int64_t begin = whole ? 0 : share(quanta, 0) * product->quantum, last = whole ? k : share(quanta, 1) * product->quantum, end = last < k ? last : k;
    for (int64_t row = whole ? share(n_rows, 0) : 0; row < (whole ? share(n_rows, 1) : n_rows) && begin < end; row++) {
        const char * from = (const char *) x->data + row % x->ne[1] * x->nb[1] + row / x->ne[1] % x->ne[2] * x->nb[2] + row / (x->ne[1] * x->ne[2]) * x->nb[3];
        char * const to = work.prepared + row * work.row_bytes;
        product->prepare((const float *) from, to, k, begin, end);
        if (work.tiles && op->op == OP_MUL_MAT) work.pack(to, work.packed, row, n_rows, k, begin, end);
    }
    if (params->ith == 0) {
        assign_rows(op, work);
        for (int64_t m = 0; m < n_matrices; m++) *(std::atomic<int64_t> *) ((char *) work.next + m * line) = 0;
    }
    ggml.barrier(params->threadpool);
    if (work.tiles && op->op != OP_MUL_MAT) { // rows of experts are known now
        int64_t turn = 0;
        for (int64_t m = 0; m < n_matrices; m++) {
            const int64_t first = work.first[m], n = work.first[m + 1] - first;
            for (int64_t r = 0; n >= least_of(work.tiles) && r < n; r++)
                if ((turn + r / 16) % params->nth == params->ith) work.pack(work.rows[first + r], work.packed_of(m), r, n, k, 0, k);
            turn += (n + 15) / 16;
        }
        ggml.barrier(params->threadpool);
    }

    // Threads take chunks of columns until none is left: about eight for each, of 16 columns at least.
    const int64_t groups = (n_columns + 15) / 16;
    for (int64_t m = 0; m < n_matrices; m++) {
        const int64_t first = work.first[m], n = work.first[m + 1] - first;
        if (!n) continue;
        const int64_t most = n > 32 ? 8 : groups, share = groups / (8 * params->nth);
        const int64_t size = share < 1 || params->nth == 1 ? (params->nth == 1 ? most : 1) : share < most ? share : most;
        std::atomic<int64_t> & next = *(std::atomic<int64_t> *) ((char *) work.next + m * line);
        for (;;) {
            const int64_t g = next.fetch_add(size, std::memory_order_relaxed);
            if (g >= groups) break;
            const int64_t c0 = g * 16, c1 = c0 + size * 16 < n_columns ? c0 + size * 16 : n_columns;
            const char * const matrix = (const char *) w->data + m * w->nb[2];
            if (work.tiles && n >= least_of(work.tiles) && work.tiles->multiply(matrix, w->nb[1], k, c0, c1, work.packed_of(m), work.results + first, n, work.scratch + params->ith * work.scratch_bytes)) continue;
            product->multiply(matrix, w->nb[1], k, c0, c1, work.rows + first, work.results + first, (int) n);
        }
    }
    return true;
}

// Bytes that llama.cpp's kernel needs for an operation.
thread_local bool is_asked_without_us;
size_t bytes_of_stock(int n_threads, const Tensor * op) {
    const Graph graph = {1, 1, 0, &op, {}};
    is_asked_without_us = true;
    const GraphPlan plan = ggml.plan(&graph, n_threads, nullptr);
    is_asked_without_us = false;
    return plan.work_bytes;
}

struct Traits final : TensorTraits {
    bool work_size(int n_threads, const Tensor * op, size_t & size) override {
        if (op->op == OP_FLASH_ATTN_EXT) size = kernels->attention_bytes(n_threads, op);
        else {
            const Product * product = product_of(op);
            size = (size_t) Work(op, product, tiles_of(op, product), n_threads, nullptr).end + line;
        }
        const size_t stock = bytes_of_stock(n_threads, op); // where we refuse, it is computed there
        if (size < stock) size = stock;
        return true;
    }
    bool compute_forward(Params * params, Tensor * op) override {
        if (params->use_ref) return false;
        if (op->op == OP_FLASH_ATTN_EXT) {
            if (!kernels->attention(params, op)) return false;
            if (params->ith == 0) n_attentions++;
        } else {
            if (!multiply(params, op, product_of(op))) return false;
            if (params->ith == 0) n_products++;
        }
        return true;
    }
} traits;

struct Extra final : ExtraBufferType {
    bool supports_op(void *, const Tensor *) override { return false; }
    TensorTraits * get_tensor_traits(const Tensor * op) override {
        const int on = is_asked_without_us ? 0 : switched_on.load(std::memory_order_relaxed);
        if (op->op == OP_FLASH_ATTN_EXT) return on & 2 && kernels->takes_attention(op) ? &traits : nullptr;
        return on & 1 && product_of(op) ? &traits : nullptr;
    }
} extra;

// llama.cpp's AMX keeps weights in a form of its own, which no kernel here reads, so it gets none any more of the types that have
// kernels. When a model is loaded, llama.cpp asks with an empty buffer where a weight may go. Models that were loaded before stay.
bool has_kernel(int type) {
    const Product * p = kernels->products;
    while (p->type >= 0 && p->type != type) p++;
    return p->type >= 0;
}
struct Amx final : ExtraBufferType {
    ExtraBufferType * before = nullptr;
    bool supports_op(void * device, const Tensor * op) override {
        const Tensor * w = op->src[0];
        return !(w && w->buffer && !ggml.buffer_bytes(w->buffer) && has_kernel(w->type)) && before->supports_op(device, op);
    }
    TensorTraits * get_tensor_traits(const Tensor * op) override { return before->get_tensor_traits(op); }
} amx;

BufferType entry;

// A pass reads all weights and the cache. In pages of 4 KiB the processor translates 512 times as many addresses as in pages of 2 MiB,
// and a pass over one row takes up to a fifth longer. Most Linux systems give large pages only where a program asks for them before it
// writes. llama.cpp allocates repacked weights, caches and work memory here, but not the files that it maps.
void * (*allocate)(BufferType *, size_t);
void * allocate_large_pages(BufferType * type, size_t bytes) {
    constexpr size_t page = 2 << 20, least = 32 << 20; // malloc has parts of a common heap below, and a mapping for each above
    void * buffer = allocate(type, bytes);
    if (!buffer || bytes <= least) return buffer;
    ask_for_large_pages(ggml.buffer_start(buffer), bytes, page);
    return buffer;
}

// ---- threads of builds without OpenMP
//
// ggml makes threads for each pass, and ends them after it; at a barrier they spin until the last one is there. If another program uses the
// core of one, the others spin for its whole time slice. Here the threads of a caller are kept, and sleep after `n_spins` turns. That is for
// Linux, where the calls of ggml's library can be replaced (gguf_spec/llama/library.py).

#if defined(__linux__)
int n_spins;
std::atomic<int> n_sleepers; // threads that sleep at a barrier
#if defined(__aarch64__)
void wait_a_little() { asm volatile("isb"); } // about as long as x86's; `yield` does nothing on most processors
#else
void wait_a_little() { __builtin_ia32_pause(); }
#endif
long futex(std::atomic<int> * word, int what, int value) { return syscall(SYS_futex, word, what, value, nullptr, nullptr, 0); }

void barrier(void * threads) {
    ThreadPool * pool = (ThreadPool *) threads;
    const int n = pool->n_graph.load(std::memory_order_relaxed) & 0xffff;
    if (n == 1) return;
    const int passed = pool->n_barrier_passed.load(std::memory_order_relaxed);
    if (pool->n_barrier.fetch_add(1) == n - 1) {
        pool->n_barrier.store(0, std::memory_order_relaxed);
        pool->n_barrier_passed.fetch_add(1);
        if (n_sleepers.load()) futex(&pool->n_barrier_passed, FUTEX_WAKE_PRIVATE, INT_MAX);
        return;
    }
    for (int i = 0; i < n_spins; i++) {
        if (pool->n_barrier_passed.load(std::memory_order_relaxed) != passed) return std::atomic_thread_fence(std::memory_order_seq_cst);
        wait_a_little();
    }
    n_sleepers++;
    while (pool->n_barrier_passed.load() == passed) futex(&pool->n_barrier_passed, FUTEX_WAIT_PRIVATE, passed);
    n_sleepers--;
}

// A thread without work waits for the next pass. ggml calls this with the lock, in a loop that asks again what it waits for: the first call
// gives the lock away while it spins and returns in any case, the second one sleeps.
int wait_for_work(pthread_cond_t * changed, pthread_mutex_t * lock) {
    static thread_local struct { void * pool; int n_graph; } spun;
    ThreadPool * pool = (ThreadPool *) lock;
    const int before = pool->n_graph.load();
    if (n_spins > 0 && !(spun.pool == pool && spun.n_graph == before)) {
        spun = {pool, before};
        pthread_mutex_unlock(lock);
        const int n = n_spins / 50 + 1; // less than a millisecond: the next pass comes soon, or after a request
        for (int i = 0; i < n && pool->n_graph.load(std::memory_order_relaxed) == before; i++) wait_a_little();
        return pthread_mutex_lock(lock);
    }
    spun = {};
    return pthread_cond_wait(changed, lock);
}

struct Threads { void * pool; int n; };
pthread_key_t threads_of_caller; // freed with it

// Threads for the passes of the calling thread, as many at least; null where there are none.
void * kept_threads(int n) {
    Threads * found = (Threads *) pthread_getspecific(threads_of_caller);
    if (found && found->n >= n) return found->pool;
    ThreadPoolParams params = {};
    params.n_threads = n;
    void * pool = ggml.new_threads(&params);
    if (!pool) return nullptr;
    if (found) ggml.free_threads(found->pool);
    else if ((found = (Threads *) malloc(sizeof(Threads)))) pthread_setspecific(threads_of_caller, found);
    else return ggml.free_threads(pool), nullptr;
    *found = {pool, n};
    return pool;
}

GraphPlan plan(const void * graph, int n_threads, void * threads) {
    return ggml.plan(graph, n_threads, threads || n_threads < 2 ? threads : kept_threads(n_threads));
}
#endif

bool is_known(const char * version) {
    static const char * const all[] = {GGUF_SPEC_GGML_VERSIONS};
    for (const char * known : all)
        if (!strcmp(version, known)) return true;
    return false;
}

// ---- whether our declarations (ggml_abi.h) are those of llama.cpp's loaded libraries
//
// The version alone does not tell: releases with the same number have other structures. So what the libraries answer is compared with
// what is read from memory by our declarations.

template <typename F> bool find(void * library, const char * name, F & function) { return (function = (F) symbol(library, name)); }

char fact[256]; // what is off; empty if nothing is
bool is_off(const char * what, size_t found, size_t expected) {
    if (found != expected) snprintf(fact, sizeof(fact), "%s is %zu, not %zu", what, found, expected);
    return found != expected;
}
// Where a member lies, by the library and by our declarations.
bool is_elsewhere(const char * what, const void * found, const void * expected) {
    if (found != expected) snprintf(fact, sizeof(fact), "%s is not where it is expected", what);
    return found != expected;
}

// Whether an object is one of a class of the library with a function, and has the functions of an ExtraBufferType.
bool is_object_beside(void * object, void * function) {
    if (!is_mapped(object) || !is_mapped(*(void **) object)) return false;
    void ** functions = *(void ***) object;
    void * const library = library_of(function);
    return library && library_of(functions[2]) == library && library_of(functions[3]) == library;
}

// std::vector: first, last, and end of the memory
struct List { BufferType ** first, ** last, ** end; };
using ListFunction = List & (*) ();
using TypeFunction = BufferType * (*) ();
const char * const list_name = "_Z39ggml_backend_cpu_get_extra_buffer_typesv", * const repacked_name = "_Z35ggml_backend_cpu_repack_buffer_typev";

bool numbers_are_off(void * base) {
    const char * (*version)(), * (*op_name)(int), * (*type_name)(int);
    size_t (*overhead)(), (*type_size)(int);
    if (!find(base, "ggml_version", version) || !find(base, "ggml_op_name", op_name) || !find(base, "ggml_type_name", type_name) ||
        !find(base, "ggml_tensor_overhead", overhead) || !find(base, "ggml_type_size", type_size))
        return snprintf(fact, sizeof(fact), "functions that tell of its structures are missing");
    if (!is_known(version())) return snprintf(fact, sizeof(fact), "its version is %s, not " GGML_VERSIONS_TEXT, version());
    const struct { int number; const char * name; } ops[] = {{OP_MUL_MAT, "MUL_MAT"}, {OP_MUL_MAT_ID, "MUL_MAT_ID"}, {OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"}};
    for (const auto & op : ops)
        if (strcmp(op_name(op.number), op.name)) return snprintf(fact, sizeof(fact), "operation %d is %s, not %s", op.number, op_name(op.number), op.name);
    const struct { int number; const char * name; size_t bytes; } types[] = {
        {F32, "f32", 4}, {F16, "f16", 2}, {Q4_0, "q4_0", 18}, {Q4_1, "q4_1", 20}, {Q5_0, "q5_0", 22}, {Q5_1, "q5_1", 24}, {Q8_0, "q8_0", 34},
        {Q8_1, "q8_1", 36}, {Q2_K, "q2_K", 84}, {Q3_K, "q3_K", 110}, {Q4_K, "q4_K", 144}, {Q5_K, "q5_K", 176}, {Q6_K, "q6_K", 210},
        {Q8_K, "q8_K", 292}, {IQ4_NL, "iq4_nl", 18}, {I32, "i32", 4}, {BF16, "bf16", 2}, {MXFP4, "mxfp4", 17}};
    for (const auto & type : types) {
        if (strcmp(type_name(type.number), type.name)) return snprintf(fact, sizeof(fact), "type %d is %s, not %s", type.number, type_name(type.number), type.name);
        if (type_size(type.number) != type.bytes) return snprintf(fact, sizeof(fact), "a block of %s has %zu bytes, not %zu", type.name, type_size(type.number), type.bytes);
    }
    return is_off("the number of bytes of a tensor", overhead() - 32, sizeof(Tensor));
}

struct InitParams { size_t bytes; void * memory; bool no_alloc; };

bool tensors_are_off(void * base, void * cpu) {
    void * (*init)(InitParams), (*end)(void *), * (*data_of)(const Tensor *), * (*new_graph)(void *, size_t, bool), (*expand)(void *, Tensor *);
    Tensor * (*new_tensor)(void *, int, int64_t, int64_t), * (*mul_mat)(void *, Tensor *, Tensor *), * (*scale)(void *, Tensor *, float), * (*view)(void *, Tensor *, int64_t, size_t), * (*node)(void *, int);
    int (*n_nodes)(void *), (*n_places)(void *);
    const char * (*name_of)(const Tensor *);
    void (*threads_of)(ThreadPoolParams *, int);
    void * plan_of;
    if (!find(base, "ggml_init", init) || !find(base, "ggml_free", end) || !find(base, "ggml_get_data", data_of) || !find(base, "ggml_get_name", name_of) ||
        !find(base, "ggml_new_tensor_2d", new_tensor) || !find(base, "ggml_mul_mat", mul_mat) || !find(base, "ggml_scale", scale) || !find(base, "ggml_view_1d", view) ||
        !find(base, "ggml_new_graph_custom", new_graph) || !find(base, "ggml_build_forward_expand", expand) || !find(base, "ggml_graph_n_nodes", n_nodes) ||
        !find(base, "ggml_graph_size", n_places) || !find(base, "ggml_graph_node", node) || !find(base, "ggml_threadpool_params_init", threads_of) || !find(cpu, "ggml_graph_plan", plan_of))
        return snprintf(fact, sizeof(fact), "functions that make its structures are missing");
    void * context = init({1 << 16, nullptr, false});
    if (!context) return snprintf(fact, sizeof(fact), "it makes no tensors");
    Tensor * a = new_tensor(context, Q8_0, 64, 3), * b = new_tensor(context, F32, 64, 5), * product = mul_mat(context, a, b), * part = view(context, b, 32, 128), * half = scale(context, b, 0.5f);
    Graph * graph = (Graph *) new_graph(context, 16, false);
    expand(graph, product);
    float factor;
    memcpy(&factor, half->op_params, sizeof(factor));
    char room[1024];
    memset(room, 0xa5, sizeof(room));
    size_t plan_bytes = sizeof(room);
    call_plan(room, plan_of, graph);
    while (plan_bytes && room[plan_bytes - 1] == (char) 0xa5) plan_bytes--;
    ThreadPoolParams threads = {};
    threads_of(&threads, 3);
    const bool off = is_off("the type of a tensor", a->type, Q8_0) || is_off("the size of a tensor", a->ne[0], 64) || is_off("the number of rows of a tensor", a->ne[1], 3) ||
        is_off("the number of bytes between rows", a->nb[1], 68) || is_elsewhere("a tensor's memory", data_of(a), a->data) || is_elsewhere("a tensor's name", name_of(a), a->name) ||
        is_off("the operation of a tensor", product->op, OP_MUL_MAT) || is_elsewhere("a tensor's first input", product->src[0], a) || is_elsewhere("a tensor's second input", product->src[1], b) ||
        is_elsewhere("a view's tensor", part->view_src, b) || is_off("the offset of a view", part->view_offs, 128) || is_off("a number of an operation, in hundredths,", (size_t) (factor * 100), 50) ||
        is_off("the number of places in a graph", graph->size, n_places(graph)) || is_off("the number of nodes in a graph", graph->n_nodes, n_nodes(graph)) || is_elsewhere("a graph's first node", node(graph, 0), graph->nodes[0]) ||
        (plan_bytes > sizeof(GraphPlan) && is_off("the number of bytes of a plan", plan_bytes, sizeof(GraphPlan))) || is_off("the number of threads", threads.n_threads, 3) || is_off("how often a thread asks for work", threads.poll, 50);
    end(context);
    return off;
}

bool buffers_are_off(void * base, void * cpu) {
    ListFunction list;
    TypeFunction plain, repacked;
    void * (*device_of)(BufferType *), * (*device)(int), * (*library_of)(void *), * (*function)(void *, const char *);
    if (!find(cpu, list_name, list) || !find(base, "ggml_backend_cpu_buffer_type", plain) || !find(base, "ggml_backend_buft_get_device", device_of) || !find(base, "ggml_backend_dev_by_type", device) ||
        !find(base, "ggml_backend_dev_backend_reg", library_of) || !find(base, "ggml_backend_reg_get_proc_address", function))
        return snprintf(fact, sizeof(fact), "functions for its buffers are missing");
    void * const here = device(0);
    const auto same = (BufferType ** (*) (void *)) (here ? function(library_of(here), "ggml_backend_dev_get_extra_bufts") : nullptr);
    if (!same) return snprintf(fact, sizeof(fact), "it does not tell the CPU's buffer types");
    BufferType ** others = same(here);
    const List & entries = list();
    for (BufferType ** one = entries.first; one <= entries.last; one++, others++) {
        if (is_elsewhere("the list of the CPU's buffer types", *others, one < entries.last ? *one : nullptr)) return true;
        if (*others && is_elsewhere("a buffer type's device", device_of(*one), (*one)->device)) return true;
    }
    if (is_elsewhere("a buffer type's device", device_of(plain()), plain()->device)) return true;
    if (!find(cpu, repacked_name, repacked)) return false;
    if (is_elsewhere("a buffer type's device", here, repacked()->device)) return true;
    return !is_object_beside(repacked()->context, (void *) repacked) && is_elsewhere("a buffer type's context", here, nullptr);
}

#if defined(__linux__)
// Whether a pool of threads is not as declared: a pass of one thread writes the number of threads there.
bool pool_is_off(void * cpu, void * base) {
    void * (*init)(InitParams), (*end)(void *), * (*new_graph)(void *);
    int (*compute)(const void *, GraphPlan *);
    if (!find(base, "ggml_init", init) || !find(base, "ggml_free", end) || !find(base, "ggml_new_graph", new_graph) || !find(cpu, "ggml_graph_compute", compute)) return true;
    ThreadPoolParams params = {};
    params.n_threads = 1;
    void * const context = init({1 << 20, nullptr, false});
    ThreadPool * const pool = (ThreadPool *) ggml.new_threads(&params);
    bool is_off = true;
    if (context && pool) {
        const void * const graph = new_graph(context);
        GraphPlan plan = ggml.plan(graph, 1, pool);
        compute(graph, &plan);
        is_off = (pool->n_graph & 0xffff) != 1;
    }
    if (pool) ggml.free_threads(pool);
    if (context) end(context);
    return is_off;
}
#endif

// What is off; empty where our declarations fit.
const char * misfit(void * cpu, void * base) {
    if (!numbers_are_off(base) && !tensors_are_off(base, cpu) && !buffers_are_off(base, cpu)) *fact = 0;
    return fact;
}

} // namespace

// Return which fact of llama.cpp's loaded libraries (handles of dlopen or LoadLibrary, as below) is not as declared here; empty if all are.
EXPORT const char * gguf_spec_kernels_misfit(void * cpu, void * base) { return misfit(cpu, base); }

// Enter the kernels into llama.cpp's list. To be called before the first model is loaded: llama.cpp copies the list then.
//
// cpu, base: llama.cpp's loaded libraries with its CPU kernels and its tensors (handles of dlopen or LoadLibrary). wanted: name of an instruction set, or ""
// for the best one of this processor. Returns the name of the instruction set in use, or "!" and the reason why no kernels are in use.
EXPORT const char * gguf_spec_kernels_start(void * cpu, void * base, const char * wanted) {
    if (used) return used->name;
    if (*misfit(cpu, base)) {
        static char why[sizeof(fact) + 64];
        snprintf(why, sizeof(why), "!they do not fit this llama.cpp: %s", fact);
        return why;
    }
    const auto list = (ListFunction) symbol(cpu, list_name);
    const auto repacked = (TypeFunction) symbol(cpu, repacked_name);
    const auto plain = (TypeFunction) symbol(base, "ggml_backend_cpu_buffer_type");
    if (!ggml.barrier) ggml.barrier = (decltype(ggml.barrier)) symbol(cpu, "ggml_barrier");
    ggml.plan = (decltype(ggml.plan)) symbol(cpu, "ggml_graph_plan");
    ggml.buffer_type = (decltype(ggml.buffer_type)) symbol(base, "ggml_backend_buffer_get_type");
    ggml.buffer_bytes = (decltype(ggml.buffer_bytes)) symbol(base, "ggml_backend_buffer_get_size");
    ggml.buffer_start = (decltype(ggml.buffer_start)) symbol(base, "ggml_backend_buffer_get_base");
    ggml.quantize_q8_0 = (decltype(ggml.quantize_q8_0)) symbol(cpu, "quantize_row_q8_0");
    ggml.quantize_q8_1 = (decltype(ggml.quantize_q8_1)) symbol(cpu, "quantize_row_q8_1");
    if (!list || !plain || !ggml.barrier || !ggml.plan || !ggml.buffer_type || !ggml.buffer_bytes || !ggml.buffer_start || !ggml.quantize_q8_0 || !ggml.quantize_q8_1)
        return "!llama.cpp's libraries lack functions that the kernels need";
    ggml.repacked = repacked ? repacked() : nullptr;
#if defined(__aarch64__)
    if (!find(cpu, "ggml_cpu_has_matmul_int8", is_for_i8mm) || !find(cpu, "ggml_cpu_get_sve_cnt", vector_bytes)) return "!llama.cpp's libraries lack functions that the kernels need";
#endif
    for (const Set * one = all_sets; one->name; one++) {
        const Set & set = *one;
        if (!has(set) || (*wanted && strcmp(set.name, wanted))) continue;
        List & entries = list();
        const size_t n = entries.last - entries.first;
        BufferType ** more = (BufferType **) allocated_for(cpu, base, (n + 1) * sizeof(*more)); // ggml frees the list
        if (!more) break;
        used = &set, kernels = set.kernels;
        entry.get_name = [](BufferType *) { return "GGUF_SPEC"; };
        entry.get_alignment = [](BufferType *) -> size_t { return line; };
        entry.context = &extra;
        more[0] = &entry;
        for (size_t i = 0; i < n; i++) {
            BufferType * one = more[i + 1] = entries.first[i];
            if (one && !strcmp(one->get_name(one), "AMX")) amx.before = (ExtraBufferType *) one->context, one->context = &amx;
        }
        entries = {more, more + n + 1, more + n + 1};
        allocate = plain()->alloc_buffer;
        plain()->alloc_buffer = allocate_large_pages;
        switched_on = 3;
        return set.name;
    }
    return *wanted ? "!this processor, or the library, lacks the instruction set" : lacks;
}

#if defined(__linux__)
// Prepare to keep ggml's threads, which sleep after `spins` turns at a barrier. Returns whether that is possible; the caller lets ggml call
// the next three functions then, in place of ggml_barrier, pthread_cond_wait and ggml_graph_plan, before the first pass.
EXPORT int gguf_spec_kernels_keep_threads(void * cpu, void * base, int spins) {
    if (*misfit(cpu, base)) return 0;
    ggml.new_threads = (decltype(ggml.new_threads)) symbol(cpu, "ggml_threadpool_new");
    ggml.free_threads = (decltype(ggml.free_threads)) symbol(cpu, "ggml_threadpool_free");
    ggml.plan = (decltype(ggml.plan)) symbol(cpu, "ggml_graph_plan");
    if (!ggml.new_threads || !ggml.free_threads || !ggml.plan || pool_is_off(cpu, base)) return 0;
    const auto free_threads = [](void * data) { ggml.free_threads(((Threads *) data)->pool); free(data); };
    const auto forget = [] { pthread_setspecific(threads_of_caller, nullptr); }; // a child by fork has no other threads
    if (pthread_key_create(&threads_of_caller, free_threads) || pthread_atfork(nullptr, nullptr, forget)) return 0;
    n_spins = spins;
    ggml.barrier = barrier;
    return 1;
}
EXPORT void gguf_spec_kernels_barrier(void * threads) { barrier(threads); }
EXPORT int gguf_spec_kernels_wait(pthread_cond_t * changed, pthread_mutex_t * lock) { return wait_for_work(changed, lock); }
EXPORT GraphPlan gguf_spec_kernels_plan(const void * graph, int n_threads, void * threads) { return plan(graph, n_threads, threads); }
#endif

// For tests: switch products (1) and attention (2) on or off, in the whole process, between passes.
EXPORT void gguf_spec_kernels_switch(int which) { switched_on = kernels ? which : 0; }

// For tests: use another instruction set from now on; returns whether this processor has it.
EXPORT int gguf_spec_kernels_use(const char * name) {
    for (const Set * set = all_sets; set->name; set++)
        if (!strcmp(set->name, name) && used && has(*set)) return used = set, kernels = set->kernels, 1;
    return 0;
}

// Whether tiles are in use: 1, or 0 if the set has none, or -1 if the system refuses them.
EXPORT int gguf_spec_kernels_tiles() {
    if (!used || !used->tiles) return 0;
#if defined(TILES)
    if (used != &given) return may_use_tiles() ? 1 : -1;
#endif
    return 1;
}

// For tests: use another library's table of tiles with the instruction set in use, until another one is used. That library stays loaded.
EXPORT void gguf_spec_kernels_use_tiles(const Tiled * tiles) { given = {used->name, used->kernels, tiles}, used = &given; }

// For tests: the number of rows from which tiles are used, in the whole process; 0 for those of the kernels.
EXPORT void gguf_spec_kernels_tiles_from(int rows) { tiles_from = rows; }

// Number of products (0) or attentions (1) that were computed here.
EXPORT long gguf_spec_kernels_count(int which) { return which ? n_attentions : n_products; }

// Bytes of work memory of the sampler for rows of so many logits. It keeps zeros where it needs them: one memory for one size of a row.
EXPORT int64_t gguf_spec_sampling_bytes(int64_t n_vocab) { return 64 * n_vocab; }

// Sample the rows of one request or of several; returns whether there are kernels.
EXPORT int gguf_spec_sample(Rows * const * rows, int n) {
    for (int i = 0; i < n && kernels; i++) kernels->sampling->sample(*rows[i]);
    return kernels != nullptr;
}

// Make a tree of sorted texts.
EXPORT void gguf_spec_grow(Tree * tree, const uint8_t * texts, const int64_t * ends, int64_t n_texts) {
    kernels->sampling->grow(*tree, texts, ends, n_texts);
}

// The next state whose row a walk needs; -1 where it is at its end.
EXPORT int32_t gguf_spec_walk(Walk * walk) { return kernels->sampling->walk(*walk); }

// For tests, see sampling.h.
EXPORT void gguf_spec_sampling_compute(int what, double * values, int64_t n) { kernels->sampling->compute(what, values, n); }
