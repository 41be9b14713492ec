// Computes products and attention with libraries of llama.cpp and with our kernels, without Python; arm.py, wine.py and count_rows.py compile and run
// it for other processors and systems.
//
//   operations LLAMA CPU KERNELS check [NAME]                 all types, or operations whose names begin so; the exit status tells whether all is right
//   operations LLAMA CPU KERNELS count TYPE REPACKED ROWS N   N products, for counting instructions; KERNELS may be "-"
//
// LLAMA is the library that offers the functions of ggml, itself or by those that it needs. The variable SET names an instruction set, in place of the
// best one.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../gguf_spec/kernels/system.h"

namespace {

#if defined(_WIN32)
void * opened(const char * file) { return LoadLibraryA(file); }
std::string problem() { return "a library: error " + std::to_string(GetLastError()); }
#else
void * opened(const char * file) { return dlopen(file, RTLD_NOW | RTLD_GLOBAL); }
std::string problem() { return dlerror(); }
#endif

void * base, * cpu, * own;
template <class F> void find(void * library, const char * name, F & function) {
    if (!library || !(function = (F) symbol(library, name))) printf("%s is missing\n", library ? name : problem().c_str()), exit(2);
}
struct Init { size_t bytes; void * memory; bool no_alloc; };
void * (*init)(Init), (*end)(void *), * (*tensor4)(void *, int, int64_t, int64_t, int64_t, int64_t), * (*data_of)(void *), * (*mul_mat)(void *, void *, void *), * (*mul_mat_id)(void *, void *, void *, void *);
void * (*attend)(void *, void *, void *, void *, void *, float, float, float), * (*new_graph)(void *), (*expand)(void *, void *), * (*repacked_type)(), * (*allocate)(void *, void *);
void (*set_data)(void *, const void *, size_t, size_t), (*switch_on)(int);
int (*compute)(void *, void *, int), (*is_i8mm)();
size_t (*quantize)(int, const float *, void *, int64_t, int64_t, int64_t, const float *), (*row_bytes)(int, int64_t);
const char * (*type_name)(int);
long (*count)(int);

constexpr int MOST = 33;
typedef std::vector<float> Values;
int n_bad;
std::string only;

float some() { return rand() / (float) RAND_MAX - 0.5f; }
void say(const std::string & what, const char * format, double a = 0, double b = 0) {
    printf("%s: ", what.c_str()), printf(format, a, b), printf("\n"), n_bad++;
}
double distance(const float * a, const float * b, size_t n) { // relative to the root mean square of b
    double most = 0, sum = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i])), sum += (double) b[i] * b[i];
    return sum > 0 && most == most ? most / sqrt(sum / n) : most == 0 ? 0 : INFINITY;
}

// Single rows have llama.cpp's bits where it can be so, and differ little elsewhere: activations are rounded to 8 bits in both, and its attention
// adds values in 16 bits. rows(first, n, threads) computes n rows, of `size` values each.
void check(const std::string & what, size_t size, bool is_attention, bool has_stock_bits, std::function<Values(int, int, int)> rows, const Values & reference) {
    if (what.compare(0, only.size(), only)) return;
    const long before = count(is_attention);
    std::vector<Values> alone;
    for (int i = 0; i < MOST; i++) alone.push_back(rows(i, 1, 1));
    if (count(is_attention) != before + MOST) return say(what, "not computed by our kernels");
    const auto same = [&](int first, int n, int threads) {
        const Values y = rows(first, n, threads);
        for (int i = 0; i < n; i++)
            if (memcmp(y.data() + i * size, alone[first + i].data(), 4 * size)) return say(what, "a pass of %.0f rows with %.0f threads has other bits than single rows", n, threads);
    };
    for (int n = 2; n <= MOST; n++) same(0, n, 1);
    for (int n : {3, 6, 8, 11}) same(7, n, 1);
    for (int threads : {2, 3, 4})
        for (int n : {1, 2, 5, 8, 17, 33}) same(0, n, threads);
    switch_on(0);
    int equal = 0;
    double off = 0, from_reference = 0;
    for (int i = 0; i < MOST; i++) {
        const Values y = rows(i, 1, 1);
        equal += !memcmp(y.data(), alone[i].data(), 4 * size);
        off = fmax(off, distance(alone[i].data(), y.data(), size));
        from_reference = fmax(from_reference, distance(alone[i].data(), reference.data() + i * size, size));
    }
    switch_on(3);
    if (!is_attention && !(off < 0.01)) say(what, "off llama.cpp's by %.2g", off);
    if (!(from_reference < 0.05)) say(what, "off the reference by %.2g", from_reference);
    if (has_stock_bits && equal < MOST) say(what, "%.0f of %.0f single rows have llama.cpp's bits", equal, MOST);
    printf("%-24s %4.0f of %d single rows have llama.cpp's bits, off by %.1g at most; off the reference by %.1g\n", what.c_str(), (double) equal, MOST, off, from_reference);
    fflush(stdout);
}

void * weights_of(int type, bool repacked, int64_t k, int64_t n, const std::vector<char> & q, int64_t matrices = 1) {
    void * context = init({(size_t) (1 << 16) + (repacked ? 0 : q.size()), nullptr, repacked});
    void * w = tensor4(context, type, k, n, matrices, 1);
    if (!repacked) return memcpy(data_of(w), q.data(), q.size()), w;
    if (!allocate(context, repacked_type()) || !*(void **) ((char *) w + 320)) return nullptr; // `extra`: no repacked form
    set_data(w, q.data(), 0, q.size());
    return w;
}
Values product(void * w, const float * x, int64_t k, int64_t n_columns, int n, int threads) {
    void * context = init({(size_t) (8 << 20) + 8 * (k + n_columns) * n, nullptr, false}), * in = tensor4(context, 0, k, n, 1, 1);
    memcpy(data_of(in), x, 4 * k * n);
    void * out = mul_mat(context, w, in), * graph = new_graph(context);
    expand(graph, out), compute(context, graph, threads);
    const float * y = (const float *) data_of(out);
    Values values(y, y + n_columns * n);
    end(context);
    return values;
}

Values dequantized(int type, const std::vector<char> & q, const Values & like) {
    if (type == 0) return like;
    const std::string name = type == 1 ? "ggml_fp16_to_fp32_row" : type == 30 ? "ggml_bf16_to_fp32_row" : std::string("dequantize_row_") + type_name(type);
    void (*dequantize)(const void *, float *, int64_t);
    find(base, name.c_str(), dequantize);
    Values y(like.size());
    dequantize(q.data(), y.data(), y.size());
    return y;
}

void check_products() {
    const struct { int64_t n, k; } sizes[] = {{72, 512}, {24, 2304}, {37, 256}};
    for (int type : {0, 1, 30, 2, 3, 6, 7, 8, 20, 39, 10, 11, 12, 13, 14})
        for (const auto & size : sizes) {
            const int64_t k = size.k, n = size.n;
            Values w(k * n), x(k * MOST), exact(k * n), reference(n * MOST);
            for (auto & v : w) v = some();
            for (int r = 0; r < MOST; r++) {
                const float by = powf(10, rand() % 7 - 3);
                for (int i = 0; i < k; i++) x[r * k + i] = by * some();
            }
            std::vector<char> q(row_bytes(type, k) * n);
            quantize(type, w.data(), q.data(), 0, n, k, nullptr);
            exact = dequantized(type, q, w);
            for (int r = 0; r < MOST; r++)
                for (int c = 0; c < n; c++) {
                    double sum = 0;
                    for (int i = 0; i < k; i++) sum += (double) exact[c * k + i] * x[r * k + i];
                    reference[r * n + c] = (float) sum;
                }
            for (int repacked = 0; repacked < 2; repacked++) {
                void * matrix = weights_of(type, repacked, k, n, q);
                if (!matrix) continue;
                const std::string what = std::string(repacked ? "repacked " : "") + type_name(type) + " " + std::to_string(n) + "x" + std::to_string(k);
                check(what, n, false, repacked && (type == 2 || type == 8), [&](int first, int rows, int threads) { return product(matrix, x.data() + first * k, k, n, rows, threads); }, reference);
            }
        }
}

// Each token uses two of four matrices, with one row for both or a row for each.
void check_experts() {
    const int64_t k = 512, n = 40, matrices = 4;
    for (int type : {2, 8, 12})
        for (int each : {1, 2})
            for (int repacked = 0; repacked < 2; repacked++) {
                Values w(k * n * matrices), x(k * each * MOST), reference(2 * n * MOST);
                for (auto & v : w) v = some();
                for (auto & v : x) v = some();
                std::vector<char> q(row_bytes(type, k) * n * matrices);
                quantize(type, w.data(), q.data(), 0, n * matrices, k, nullptr);
                const Values exact = dequantized(type, q, w);
                const auto used = [&](int t, int u) { return (t * t + u * (1 + t % 3)) % matrices; };
                for (int t = 0; t < MOST; t++)
                    for (int u = 0; u < 2; u++)
                        for (int c = 0; c < n; c++) {
                            double sum = 0;
                            for (int i = 0; i < k; i++) sum += (double) exact[(used(t, u) * n + c) * k + i] * x[(t * each + u % each) * k + i];
                            reference[(t * 2 + u) * n + c] = (float) sum;
                        }
                void * matrix = weights_of(type, repacked, k, n, q, matrices);
                if (!matrix) continue;
                const auto rows = [&](int first, int tokens, int threads) {
                    void * context = init({(size_t) (8 << 20) + 8 * (each * k + 2 * n) * tokens, nullptr, false});
                    void * in = tensor4(context, 0, k, each, tokens, 1), * ids = tensor4(context, 26, 2, tokens, 1, 1);
                    memcpy(data_of(in), x.data() + first * each * k, 4 * each * k * tokens);
                    for (int t = 0; t < tokens; t++)
                        for (int u = 0; u < 2; u++) ((int32_t *) data_of(ids))[2 * t + u] = (int32_t) used(first + t, u);
                    void * out = mul_mat_id(context, matrix, in, ids), * graph = new_graph(context);
                    expand(graph, out), compute(context, graph, threads);
                    const float * y = (const float *) data_of(out);
                    Values values(y, y + 2 * n * tokens);
                    end(context);
                    return values;
                };
                check(std::string(repacked ? "experts of repacked " : "experts of ") + type_name(type) + " " + std::to_string(each), 2 * n, false, false, rows, reference);
            }
}

void check_attention() {
    const int heads = 4, kv_heads = 2, cells = 576;
    for (int type : {1, 8, 30})
        for (int length : {64, 128})
            for (float cap : {0.0f, 30.0f}) {
                Values q(length * heads * MOST), kv(length * kv_heads * cells);
                std::vector<char> bytes[2];
                Values numbers[2], reference(length * heads * MOST);
                for (auto & v : q) v = 4 * some();
                for (int i = 0; i < 2; i++) {
                    for (auto & v : kv) v = 2 * some();
                    bytes[i].resize(row_bytes(type, length) * kv_heads * cells);
                    quantize(type, kv.data(), bytes[i].data(), 0, kv_heads * cells, length, nullptr);
                    numbers[i] = dequantized(type, bytes[i], kv);
                }
                for (int r = 0; r < MOST; r++)
                    for (int h = 0; h < heads; h++) {
                        const size_t head = h / (heads / kv_heads) * cells * length;
                        double sum = 0;
                        std::vector<double> result(length);
                        for (int i = 0; i <= cells - MOST + r; i++) {
                            double score = 0;
                            for (int d = 0; d < length; d++) score += (double) numbers[0][head + i * length + d] * q[(r * heads + h) * length + d];
                            score *= 0.125;
                            const double weight = exp(cap ? cap * tanh(score / cap) : score);
                            sum += weight;
                            for (int d = 0; d < length; d++) result[d] += weight * numbers[1][head + i * length + d];
                        }
                        for (int d = 0; d < length; d++) reference[(r * heads + h) * length + d] = (float) (result[d] / sum);
                    }
                const auto rows = [&](int first, int n, int threads) {
                    void * context = init({(size_t) (4 << 20) + 4 * bytes[0].size() + 16 * length * heads * n, nullptr, false});
                    void * in = tensor4(context, 0, length, n, heads, 1), * mask = tensor4(context, 1, cells, n, 1, 1), * cache[2];
                    for (int h = 0; h < heads; h++)
                        for (int r = 0; r < n; r++) memcpy((float *) data_of(in) + (h * n + r) * length, q.data() + ((first + r) * heads + h) * length, 4 * length);
                    for (int i = 0; i < 2; i++) memcpy(data_of(cache[i] = tensor4(context, type, length, cells, kv_heads, 1)), bytes[i].data(), bytes[i].size());
                    for (int r = 0; r < n; r++)
                        for (int i = 0; i < cells; i++) ((uint16_t *) data_of(mask))[r * cells + i] = i <= cells - MOST + first + r ? 0 : 0xfc00;
                    void * out = attend(context, in, cache[0], cache[1], mask, 0.125f, 0, cap), * graph = new_graph(context);
                    expand(graph, out), compute(context, graph, threads);
                    const float * y = (const float *) data_of(out);
                    Values values(y, y + length * heads * n);
                    end(context);
                    return values;
                };
                check(std::string("cache of ") + type_name(type) + " " + std::to_string(length) + (cap ? " capped" : ""), length * heads, true, false, rows, reference);
            }
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 5) return 2;
    base = opened(argv[1]);
    void * (*load)(const char *);
    find(base, "ggml_backend_load", load), load(argv[2]);
    cpu = opened(argv[2]);
    find(base, "ggml_init", init), find(base, "ggml_free", end), find(base, "ggml_new_tensor_4d", tensor4), find(base, "ggml_get_data", data_of), find(base, "ggml_mul_mat", mul_mat), find(base, "ggml_mul_mat_id", mul_mat_id);
    find(base, "ggml_flash_attn_ext", attend), find(base, "ggml_new_graph", new_graph), find(base, "ggml_build_forward_expand", expand), find(base, "ggml_quantize_chunk", quantize);
    find(base, "ggml_row_size", row_bytes), find(base, "ggml_type_name", type_name), find(base, "ggml_backend_alloc_ctx_tensors_from_buft", allocate), find(base, "ggml_backend_tensor_set", set_data);
    find(cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", repacked_type), find(cpu, "ggml_graph_compute_with_ctx", compute), find(cpu, "ggml_cpu_has_matmul_int8", is_i8mm);
    void (*start_cpu)();
    find(cpu, "ggml_cpu_init", start_cpu), start_cpu();
    srand(1);
    if (strcmp(argv[3], "-")) {
        const char * (*start)(void *, void *, const char *);
        own = opened(argv[3]);
        find(own, "gguf_spec_kernels_start", start), find(own, "gguf_spec_kernels_switch", switch_on), find(own, "gguf_spec_kernels_count", count);
        const char * const set = getenv("SET"), * const name = start(cpu, base, set ? set : "");
        printf("kernels: %s\n", name);
        if (*name == '!') return 2;
    }
    if (!strcmp(argv[4], "check") && own) {
        if (argc > 5) only = argv[5];
        check_products(), check_experts(), check_attention();
        return n_bad > 0;
    }
    if (argc < 9) return 2;
    const int type = atoi(argv[5]), rows = atoi(argv[7]), k = 1024, columns = 512;
    Values x(k * rows);
    for (auto & v : x) v = some();
    void * w = weights_of(type, atoi(argv[6]), k, columns, std::vector<char>(row_bytes(type, k) * columns));
    if (!w) return printf("not repacked\n"), 3;
    for (int i = 0; i < atoi(argv[8]); i++) product(w, x.data(), k, columns, rows, 1);
    return 0;
}
