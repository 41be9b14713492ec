// The table of products for one instruction set, and how activations are prepared for them. The kernels are in interleaved.h, plain.h
// and floats.h.
//
// Rows are quantised by llama.cpp's own functions, so that they have its bits, and then sorted: bytes first, scales behind them.
#include "kernels.h"
#include "floats.h"
#include "plain.h"

namespace ISA {

bool takes_attention(const Tensor * op);
size_t attention_bytes(int n_threads, const Tensor * op);
bool attention(const Params * params, const Tensor * op);

namespace {

constexpr int PART = 1024; // elements that are quantised at a time
constexpr int64_t ANY = INT64_MAX;

// Activations of a block of 32: 16-bit scale, with `header` bytes, then 32 bytes. q8_1 has a second number: scale times sum.
int32_t sum_of(const int8_t * a, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += a[i];
    return sum;
}

size_t bytes_interleaved32(int64_t k) { return k / 32 * sizeof(Block32); }
template <class T> void prepare_interleaved32(const float * x, char * row, int64_t, int64_t begin, int64_t end) {
    char q[PART / 32 * 34];
    Block32 * blocks = (Block32 *) row;
    const int32_t offset = HAS_DOT || T::most <= 24 ? T::offset : 0;
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = end - i < PART ? end - i : PART;
        ggml.quantize_q8_0(x + i, q, n);
        for (int64_t b = 0; b < n / 32; b++) {
            Block32 & block = blocks[i / 32 + b];
            memcpy(block.bytes, q + 34 * b + 2, 32);
            block.scale = half_at(q + 34 * b);
            block.start = -offset * sum_of((const int8_t *) block.bytes, 32);
        }
    }
}

size_t bytes_plain32(int64_t k) { return k + k / 4; }
template <class T> void prepare_plain32(const float * x, char * row, int64_t k, int64_t begin, int64_t end) {
    constexpr int header = T::minimum >= 0 ? 4 : 2, size = header + 32;
    constexpr char plus = HAS_DOT && T::is_signed ? (char) 128 : 0;
    char q[PART / 32 * 36];
    float * scale = (float *) (row + k), * sum = (float *) (row + k + k / 8);
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = end - i < PART ? end - i : PART;
        if (header == 4) ggml.quantize_q8_1(x + i, q, n);
        else ggml.quantize_q8_0(x + i, q, n);
        for (int64_t b = 0; b < n / 32; b++) {
            const char * p = q + size * b;
            for (int j = 0; j < 32; j++) row[i + 32 * b + j] = (char) (p[header + j] ^ plus);
            scale[i / 32 + b] = half_at(p);
            sum[i / 32 + b] = header == 4 ? half_at(p + 2) : 0;
        }
    }
}

size_t bytes_256(int64_t k) { return k + k / 64 + k / 8 + k / 16; }
void prepare_256(const float * x, char * row, int64_t k, int64_t begin, int64_t end) {
    char q[PART / 256 * 292]; // scale, 256 bytes, 16 sums of 16
    float * scale = (float *) (row + k);
    int16_t * sums16 = (int16_t *) (row + k + k / 64), * sums32 = (int16_t *) (row + k + k / 64 + k / 8);
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = end - i < PART ? end - i : PART;
        ggml.quantize_q8_K(x + i, q, n);
        for (int64_t b = 0; b < n / 256; b++) {
            const char * p = q + 292 * b;
            const int64_t at = i / 256 + b;
            memcpy(scale + at, p, 4);
            memcpy(row + 256 * at, p + 4, 256);
            memcpy(sums16 + 16 * at, p + 260, 32);
            for (int j = 0; j < 8; j++) sums32[8 * at + j] = (int16_t) (sums16[16 * at + 2 * j] + sums16[16 * at + 2 * j + 1]);
        }
    }
}

size_t bytes_floats(int64_t k) { return 4 * k; }
template <class T> void prepare_floats(const float * x, char * row, int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) ((float *) row)[i] = T::rounded(x[i]);
}

} // namespace

#define INTERLEAVED32(T) {T, true, 32, ANY, 8, 32, bytes_interleaved32, prepare_interleaved32<Interleaved_##T>, multiply32_interleaved<Interleaved_##T>}
#define INTERLEAVED256(T) {T, true, 256, ANY, 8, 256, bytes_256, prepare_256, multiply256_interleaved<Interleaved_##T>}
#define PLAIN32(T) {T, false, 32, MOST_PLAIN32, 1, 32, bytes_plain32, prepare_plain32<Plain_##T>, multiply32_plain<Plain_##T>}
#define PLAIN256(T) {T, false, 256, ANY, 1, 256, bytes_256, prepare_256, multiply_super<Plain_##T>}
#define FLOATS(T) {T, false, 1, ANY, 1, 64, bytes_floats, prepare_floats<Weights_##T>, multiply_floats<Weights_##T>}

const Product products[] = {
    INTERLEAVED32(Q4_0), INTERLEAVED32(IQ4_NL), INTERLEAVED32(MXFP4), INTERLEAVED256(Q4_K), INTERLEAVED256(Q2_K),
    PLAIN32(Q4_0), PLAIN32(Q4_1), PLAIN32(Q5_0), PLAIN32(Q5_1), PLAIN32(Q8_0), PLAIN32(IQ4_NL), PLAIN32(MXFP4),
    PLAIN256(Q2_K), PLAIN256(Q3_K), PLAIN256(Q4_K), PLAIN256(Q5_K), PLAIN256(Q6_K),
    FLOATS(F32), FLOATS(F16), FLOATS(BF16),
    {-1, false, 1, ANY, 1, 1, nullptr, nullptr, nullptr},
};

} // namespace ISA

extern const Kernels KERNELS;
const Kernels KERNELS = {ISA_NAME, ISA::products, ISA::takes_attention, ISA::attention_bytes, ISA::attention};
