// The way into llama.cpp: before it computes an operation on the CPU, ggml asks each entry of a list of "extra buffer types" whether it
// wants to. start() puts one at the front of that list. It takes matrix products and attention for which there is a kernel; all
// other operations go on as ever. No weights are copied. llama.cpp's large buffers get large memory pages.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.h"

Ggml ggml;

namespace {

const Kernels * const all_kernels[] = {&kernels_avx512vnni, &kernels_avx512, &kernels_avxvnni, &kernels_avx2};
const Kernels * kernels;                // those in use
std::atomic<int> switched_on{0};        // bit 0: products, bit 1: attention
std::atomic<long> n_products, n_attentions; // operations computed, for tests

bool has(const Kernels * set) {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (set == &kernels_avx2) return avx2;
    if (set == &kernels_avxvnni) return avx2 && __builtin_cpu_supports("avxvnni");
    return avx512 && (set == &kernels_avx512 || __builtin_cpu_supports("avx512vnni"));
}

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
        if (p->type == w->type && p->repacked == repacked) return w->ne[0] % p->block || w->ne[1] % p->columns ? nullptr : p;
    }
    return nullptr;
}

constexpr size_t line = 64; // bytes of a cache line; parts of the work memory begin at multiples of it
size_t aligned(size_t n) { return (n + line - 1) / line * line; }

// Parts of the work memory of a product of n_rows prepared rows with n_matrices matrices:
//   next chunk | rows before each matrix | prepared rows | pointers to rows and results, sorted by matrix
struct Work {
    std::atomic<int64_t> * next; // [n_matrices], each in its own cache line
    int64_t * first;             // [n_matrices + 1]
    char * prepared;
    const char ** rows;
    float ** results;
    size_t bytes;

    Work(void * memory, size_t row_bytes, int64_t n_rows, int64_t n_uses, int64_t n_matrices) {
        char * p = (char *) aligned((size_t) memory);
        next = (std::atomic<int64_t> *) p; p += line * n_matrices;
        first = (int64_t *) p; p += aligned(8 * (n_matrices + 1));
        prepared = p; p += row_bytes * n_rows;
        rows = (const char **) p; p += aligned(8 * n_uses);
        results = (float **) p; p += aligned(8 * n_uses);
        bytes = p - (char *) memory + line;
    }
};

Work work_of(const Tensor * op, const Product * product, void * memory) {
    const Tensor * w = op->src[0], * x = op->src[1];
    const int64_t n_rows = x->ne[1] * x->ne[2] * x->ne[3];
    const int64_t n_uses = op->op == OP_MUL_MAT ? n_rows : op->src[2]->ne[0] * op->src[2]->ne[1];
    return Work(memory, aligned(product->row_bytes(w->ne[0])), n_rows, n_uses, op->op == OP_MUL_MAT ? 1 : w->ne[2]);
}

// Fill in which rows meet which matrix, and where the results go.
void assign_rows(const Tensor * op, const Work & work, size_t row_bytes) {
    const Tensor * x = op->src[1], * ids = op->src[2];
    char * out = (char *) op->data;
    if (op->op == OP_MUL_MAT) {
        int64_t i = 0;
        for (int64_t c = 0; c < x->ne[3]; c++)
            for (int64_t b = 0; b < x->ne[2]; b++)
                for (int64_t a = 0; a < x->ne[1]; a++, i++) {
                    work.rows[i] = work.prepared + i * row_bytes;
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
            work.rows[i] = work.prepared + (u % x->ne[1] + t % x->ne[2] * x->ne[1]) * row_bytes;
            work.results[i] = (float *) (out + u * op->nb[1] + t * op->nb[2]);
        }
    for (int64_t m = n_matrices; m > 0; m--) work.first[m] = work.first[m - 1];
    work.first[0] = 0;
}

void multiply(const Params * params, const Tensor * op, const Product * product) {
    const Tensor * w = op->src[0], * x = op->src[1];
    const int64_t k = w->ne[0], n_columns = w->ne[1], n_matrices = op->op == OP_MUL_MAT ? 1 : w->ne[2];
    const size_t row_bytes = aligned(product->row_bytes(k));
    const Work work = work_of(op, product, params->wdata);
    const int64_t n_rows = x->ne[1] * x->ne[2] * x->ne[3];

    // Each thread prepares a part of each row, or whole rows if there are many.
    const int64_t n_parts = n_rows >= 4 * params->nth ? 1 : params->nth, quanta = (k + product->quantum - 1) / product->quantum;
    for (int64_t i = params->ith; i < n_rows * n_parts; i += params->nth) {
        const int64_t row = i / n_parts, part = i % n_parts;
        const int64_t begin = quanta * part / n_parts * product->quantum, end = quanta * (part + 1) / n_parts * product->quantum;
        const char * from = (const char *) x->data + row % x->ne[1] * x->nb[1] + row / x->ne[1] % x->ne[2] * x->nb[2] + row / (x->ne[1] * x->ne[2]) * x->nb[3];
        if (begin < end) product->prepare((const float *) from, work.prepared + row * row_bytes, k, begin, end < k ? end : k);
    }
    if (params->ith == 0) {
        assign_rows(op, work, row_bytes);
        for (int64_t m = 0; m < n_matrices; m++) *(std::atomic<int64_t> *) ((char *) work.next + m * line) = 0;
    }
    ggml.barrier(params->threadpool);

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
            const int64_t c1 = (g + size) * 16;
            product->multiply((const char *) w->data + m * w->nb[2], w->nb[1], k, g * 16, c1 < n_columns ? c1 : n_columns, work.rows + first, work.results + first, (int) n);
        }
    }
}

struct Traits final : TensorTraits {
    bool work_size(int n_threads, const Tensor * op, size_t & size) override {
        if (op->op == OP_FLASH_ATTN_EXT) size = kernels->attention_bytes(n_threads, op);
        else size = work_of(op, product_of(op), nullptr).bytes;
        return true;
    }
    bool compute_forward(Params * params, Tensor * op) override {
        if (params->use_ref) return false;
        if (op->op == OP_FLASH_ATTN_EXT) {
            kernels->attention(params, op);
            if (params->ith == 0) n_attentions++;
        } else {
            multiply(params, op, product_of(op));
            if (params->ith == 0) n_products++;
        }
        return true;
    }
} traits;

struct Extra final : ExtraBufferType {
    bool supports_op(void *, const Tensor *) override { return false; }
    TensorTraits * get_tensor_traits(const Tensor * op) override {
        const int on = switched_on.load(std::memory_order_relaxed);
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
    const size_t start = (size_t) ggml.buffer_start(buffer), first = (start + page - 1) / page * page, last = (start + bytes) / page * page;
    madvise((void *) first, last - first, MADV_HUGEPAGE); // where it fails the pages stay small
    return buffer;
}

// A loaded library of llama.cpp: its name begins with `name`, its folder is `folder`. A wheel has each file several times, under the
// names with and without a version, so a path alone does not find the one that is loaded.
void * loaded(const char * folder, const char * name) {
    struct Search { const char * folder, * name; void * found; } search = {folder, name, nullptr};
    dl_iterate_phdr([](dl_phdr_info * info, size_t, void * data) {
        Search * s = (Search *) data;
        const size_t n = strlen(s->folder);
        const auto is_at = [&](const char * path) { return !strncmp(path, s->folder, n) && path[n] == '/' && !strncmp(path + n + 1, s->name, strlen(s->name)); };
        char real[PATH_MAX];  // in an app by PyInstaller the loader finds links in another folder first
        if (!is_at(info->dlpi_name) && !(realpath(info->dlpi_name, real) && is_at(real))) return 0;
        s->found = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
        return s->found != nullptr ? 1 : 0;
    }, &search);
    return search.found;
}

bool is_version(void * base) {
    const auto version = (const char * (*) ()) dlsym(base, "ggml_version");
    const auto op_name = (const char * (*) (int)) dlsym(base, "ggml_op_name");
    const auto overhead = (size_t (*)()) dlsym(base, "ggml_tensor_overhead");
    const auto type_size = (size_t (*)(int)) dlsym(base, "ggml_type_size");
    return version && op_name && overhead && type_size && !strcmp(version(), GGUF_SPEC_GGML_VERSION) && !strcmp(op_name(OP_MUL_MAT), "MUL_MAT") &&
           !strcmp(op_name(OP_MUL_MAT_ID), "MUL_MAT_ID") && !strcmp(op_name(OP_FLASH_ATTN_EXT), "FLASH_ATTN_EXT") && overhead() == sizeof(Tensor) + 32 &&
           type_size(Q4_K) == 144 && type_size(MXFP4) == 17 && type_size(Q8_K) == 292;
}

} // namespace

// Return the version of ggml that this library belongs to.
extern "C" __attribute__((visibility("default"))) const char * gguf_spec_kernels_version() { return GGUF_SPEC_GGML_VERSION; }

// Enter the kernels into llama.cpp's list. To be called before the first model is loaded: llama.cpp copies the list then.
//
// folder: the folder of llama.cpp's libraries, which must be loaded. wanted: name of an instruction set, or "" for the best one of this
// processor. Returns the name of the instruction set in use, or "!" and the reason why no kernels are in use.
extern "C" __attribute__((visibility("default"))) const char * gguf_spec_kernels_start(const char * folder, const char * wanted) {
    if (kernels) return kernels->name;
    void * of_cpu = loaded(folder, "libggml-cpu"), * of_base = loaded(folder, "libggml-base");
    if (!of_cpu || !of_base) return "!llama.cpp's libraries are not loaded";
    if (!is_version(of_base)) return "!llama.cpp has another version of ggml than " GGUF_SPEC_GGML_VERSION;
    const auto list = (std::vector<BufferType *> & (*) ()) dlsym(of_cpu, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    const auto repacked = (BufferType * (*) ()) dlsym(of_cpu, "_Z35ggml_backend_cpu_repack_buffer_typev");
    ggml.barrier = (decltype(ggml.barrier)) dlsym(of_cpu, "ggml_barrier");
    ggml.buffer_type = (decltype(ggml.buffer_type)) dlsym(of_base, "ggml_backend_buffer_get_type");
    ggml.buffer_bytes = (decltype(ggml.buffer_bytes)) dlsym(of_base, "ggml_backend_buffer_get_size");
    ggml.buffer_start = (decltype(ggml.buffer_start)) dlsym(of_base, "ggml_backend_buffer_get_base");
    const auto plain = (BufferType * (*) ()) dlsym(of_base, "ggml_backend_cpu_buffer_type");
    ggml.quantize_q8_0 = (decltype(ggml.quantize_q8_0)) dlsym(of_cpu, "quantize_row_q8_0");
    ggml.quantize_q8_1 = (decltype(ggml.quantize_q8_1)) dlsym(of_cpu, "quantize_row_q8_1");
    ggml.quantize_q8_K = (decltype(ggml.quantize_q8_K)) dlsym(of_cpu, "quantize_row_q8_K");
    if (!list || !plain || !ggml.barrier || !ggml.buffer_type || !ggml.buffer_bytes || !ggml.buffer_start || !ggml.quantize_q8_0 || !ggml.quantize_q8_1 || !ggml.quantize_q8_K)
        return "!llama.cpp's libraries lack functions that the kernels need";
    ggml.repacked = repacked ? repacked() : nullptr;
    for (const Kernels * set : all_kernels) {
        if ((*wanted && strcmp(set->name, wanted)) || !has(set)) continue;
        kernels = set;
        entry.get_name = [](BufferType *) { return "GGUF_SPEC"; };
        entry.get_alignment = [](BufferType *) -> size_t { return line; };
        entry.context = &extra;
        for (BufferType * one : list())
            if (one && !strcmp(one->get_name(one), "AMX")) amx.before = (ExtraBufferType *) one->context, one->context = &amx;
        list().insert(list().begin(), &entry);
        allocate = plain()->alloc_buffer;
        plain()->alloc_buffer = allocate_large_pages;
        switched_on = 3;
        return set->name;
    }
    return *wanted ? "!this processor lacks the instruction set" : "!this processor lacks AVX2, FMA or F16C";
}

// For tests: switch products (1) and attention (2) on or off, in the whole process, between passes.
extern "C" __attribute__((visibility("default"))) void gguf_spec_kernels_switch(int which) { switched_on = kernels ? which : 0; }

// For tests: use another instruction set from now on; returns whether this processor has it.
extern "C" __attribute__((visibility("default"))) int gguf_spec_kernels_use(const char * name) {
    for (const Kernels * set : all_kernels)
        if (kernels && !strcmp(set->name, name) && has(set)) return kernels = set, 1;
    return 0;
}

// Number of products (0) or attentions (1) that were computed here.
extern "C" __attribute__((visibility("default"))) long gguf_spec_kernels_count(int which) { return which ? n_attentions : n_products; }
