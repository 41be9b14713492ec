// The table of products for one instruction set, and how activations are prepared for them. The kernels are in interleaved.h, plain.h
// and floats.h.
//
// Rows are quantised by llama.cpp's own functions, or as these do it, so that they have its bits, and then sorted: bytes first, scales behind
// them.
#include "kernels.h"
#include "floats.h"
#if defined(__aarch64__)
#include "neon.h"
#else
#include "plain.h"
#endif

namespace ISA {

bool takes_attention(const Tensor * op);
size_t attention_bytes(int n_threads, const Tensor * op);
bool attention(const Params * params, const Tensor * op);
extern const Sampling sampling;

namespace {

constexpr int PART = 1024; // elements that are quantised at a time
constexpr int64_t ANY = INT64_MAX;

// Activations of a block of 32: 16-bit scale, with `header` bytes, then 32 bytes. q8_1 has a second number: scale times sum.
size_t bytes_blocks(int64_t k) { return k / 32 * sizeof(Block32); }
#if defined(__aarch64__)
// What ggml's quantize_row_q8_0 does for a block on ARM.
void quantize_q8_0(const float * x, Block32 & to) {
    float32x4_t v[8], size[8];
    UNROLL for (int i = 0; i < 8; i++) v[i] = vld1q_f32(x + 4 * i), size[i] = vabsq_f32(v[i]);
    for (int n = 4; n > 0; n /= 2) UNROLL for (int i = 0; i < n; i++) size[i] = vmaxq_f32(size[2 * i], size[2 * i + 1]);
    const float scale = vmaxvq_f32(size[0]) / 127, inverse = scale ? 1 / scale : 0;
    int16x8_t shorts[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i], inverse)), b = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i + 1], inverse));
        shorts[i] = vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)); // low halves
    }
    UNROLL for (int i = 0; i < 2; i++) vst1q_s8((int8_t *) to.bytes + 16 * i, vuzp1q_s8(vreinterpretq_s8_s16(shorts[2 * i]), vreinterpretq_s8_s16(shorts[2 * i + 1])));
    to.scale = rounded_to_half(scale), to.sum = 0;
}
template <class T> void prepare_32(const float * x, char * row, int64_t, int64_t begin, int64_t end) {
    Block32 * const blocks = (Block32 *) row;
    if constexpr (!T::minimum) {
        for (int64_t i = begin; i < end; i += 32) quantize_q8_0(x + i, blocks[i / 32]);
        return;
    }
    char q[PART / 32 * 36];
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = end - i < PART ? end - i : PART;
        ggml.quantize_q8_1(x + i, q, n);
        for (int64_t b = 0; b < n / 32; b++) {
            Block32 & to = blocks[i / 32 + b];
            memcpy(to.bytes, q + 36 * b + 4, 32);
            to.scale = half_at(q + 36 * b), to.sum = half_at(q + 36 * b + 2);
        }
    }
}
#else
int32_t sum_of(const int8_t * a, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += a[i];
    return sum;
}

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
#endif

// What ggml's quantize_row_q8_K does, with vectors: scale, 256 bytes and 16 sums for each 256 elements. The number with the largest size
// becomes -127; of several the first one counts. A number is rounded by the bits of its sum with 1.5 * 2^23, which is defined for NaN, too.
void quantize_q8_K(const float * x, char * out, int64_t n) {
    for (const float * end = x + n; x < end; x += 256, out += 292) {
        Floats most[2] = {zero(), zero()};
        UNROLL for (int i = 0; i < 256; i += 2 * L)
            UNROLL for (int j = 0; j < 2; j++) most[j] = maximum(sizes_of(load_floats(x + i + j * L)), most[j]); // a NaN is no maximum
        float lanes[L], size = 0;
        store_floats(lanes, maximum(most[0], most[1]));
        for (float one : lanes) size = one > size ? one : size;
        if (!(size > 0)) {
            memset(out, 0, 292);
            continue;
        }
        int first = 0;
        while (__builtin_fabsf(x[first]) != size) first++;
        const float inverse = -127.0f / x[first], scale = 1 / inverse;
        memcpy(out, &scale, 4);
        char * const bytes = out + 4;
        UNROLL for (int i = 0; i < 256; i += L) {
            const Ints bits = bits_of(add(mul(load_floats(x + i), all(inverse)), all(12582912.0f)));
            store_bytes(bytes + i, at_most(subtract32(both(bits, all_ints(0x007fffff)), all_ints(0x00400000)), 127));
        }
        int16_t sums[16];
        UNROLL for (int i = 0; i < 256; i += 32) { // of the bytes plus 128, by differences from zero
#if defined(__aarch64__)
            UNROLL for (int j = 0; j < 32; j += 16) sums[(i + j) / 16] = (int16_t) vaddlvq_s8(vld1q_s8((const int8_t *) bytes + i + j));
#else
            alignas(32) int64_t sum[4];
            const __m256i plus = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) (bytes + i)), _mm256_set1_epi8((char) 128));
            _mm256_store_si256((__m256i *) sum, _mm256_sad_epu8(plus, _mm256_setzero_si256()));
            sums[i / 16] = (int16_t) (sum[0] + sum[1] - 2048), sums[i / 16 + 1] = (int16_t) (sum[2] + sum[3] - 2048);
#endif
        }
        memcpy(bytes + 256, sums, 32);
    }
}

size_t bytes_256(int64_t k) { return k + k / 64 + k / 8 + k / 16; }
void prepare_256(const float * x, char * row, int64_t k, int64_t begin, int64_t end) {
    char q[PART / 256 * 292]; // scale, 256 bytes, 16 sums of 16
    float * scale = (float *) (row + k);
    int16_t * sums16 = (int16_t *) (row + k + k / 64), * sums32 = (int16_t *) (row + k + k / 64 + k / 8);
    for (int64_t i = begin; i < end; i += PART) {
        const int64_t n = end - i < PART ? end - i : PART;
        quantize_q8_K(x + i, q, n);
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

#if defined(__aarch64__)
// With llama.cpp's layouts for a processor with, or without, products of pairs.
#define PLAIN32(T) {T, false, 32, ANY, 1, 32, bytes_blocks, prepare_32<Type_##T>, multiply32<Type_##T, Plain>, &packed<Tiles32<Type_##T>, Plain>}
#define REPACKED32(T, LAYOUT) {T, true, 32, ANY, 4, 32, bytes_blocks, prepare_32<Type_##T>, multiply32<Type_##T, LAYOUT>, &packed<Tiles32<Type_##T>, LAYOUT>}
#define IN_EIGHT(T) {T, true, 32, ANY, 8, 32, bytes_blocks, prepare_32<Type_##T>, multiply32<Type_##T##_in_eight, Repacked<UNIT, 8>>, &packed<Tiles32<Type_##T##_in_eight>, Repacked<UNIT, 8>>}
#define PLAIN256(T) {T, false, 256, ANY, 1, 256, bytes_256, prepare_256, multiply256<Type_##T, Plain>, &packed<Tiles256<Type_##T>, Plain>}
#define REPACKED256(T) {T, true, 256, ANY, 8, 256, bytes_256, prepare_256, multiply256<Type_##T, Repacked<UNIT, 8>>, &packed<Tiles256<Type_##T>, Repacked<UNIT, 8>>}
#else
#define INTERLEAVED32(T) {T, true, 32, ANY, 8, 32, bytes_blocks, prepare_interleaved32<Interleaved_##T>, multiply32_interleaved<Interleaved_##T>, nullptr}
#define INTERLEAVED256(T) {T, true, 256, ANY, 8, 256, bytes_256, prepare_256, multiply256_interleaved<Interleaved_##T>, nullptr}
#define PLAIN32(T) {T, false, 32, MOST_PLAIN32, 1, 32, bytes_plain32, prepare_plain32<Plain_##T>, multiply32_plain<Plain_##T>, nullptr}
#define PLAIN256(T) {T, false, 256, ANY, 1, 256, bytes_256, prepare_256, multiply_super<Plain_##T>, nullptr}
#endif
#define FLOATS(T) {T, false, 1, ANY, 1, 64, bytes_floats, prepare_floats<Weights_##T>, multiply_floats<Weights_##T>, nullptr}

const Product products[] = {
#if defined(__aarch64__)
    REPACKED32(Q4_0, Repacked4), REPACKED32(Q8_0, Repacked4), REPACKED32(IQ4_NL, Repacked4x4), REPACKED32(MXFP4, Repacked4x4),
    IN_EIGHT(Q4_0), REPACKED256(Q4_K), REPACKED256(Q5_K), REPACKED256(Q6_K),
#else
    INTERLEAVED32(Q4_0), INTERLEAVED32(IQ4_NL), INTERLEAVED32(MXFP4), INTERLEAVED256(Q4_K), INTERLEAVED256(Q2_K),
#endif
    PLAIN32(Q4_0), PLAIN32(Q4_1), PLAIN32(Q5_0), PLAIN32(Q5_1), PLAIN32(Q8_0), PLAIN32(IQ4_NL), PLAIN32(MXFP4),
    PLAIN256(Q2_K), PLAIN256(Q3_K), PLAIN256(Q4_K), PLAIN256(Q5_K), PLAIN256(Q6_K),
    FLOATS(F32), FLOATS(F16), FLOATS(BF16),
    {-1, false, 1, ANY, 1, 1, nullptr, nullptr, nullptr, nullptr},
};

} // namespace ISA

extern const Kernels KERNELS;
const Kernels KERNELS = {ISA_NAME, ISA::products, ISA::takes_attention, ISA::attention_bytes, ISA::attention, &ISA::sampling};
