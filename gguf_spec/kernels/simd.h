// A vector of the widest kind of the instruction set: L floats or 32-bit integers, 4 L bytes.
#pragma once
#include <cstdint>
#include <cstring>

#define UNROLL _Pragma("GCC unroll 32")

#if defined(__aarch64__)
#include "simd_neon.h"

namespace ISA {
#else
#include <immintrin.h>

namespace ISA {

#if defined(__AVX512BW__)
constexpr int L = 16;
typedef __m512 Floats;
typedef __m512i Ints;
static inline Floats zero() { return _mm512_setzero_ps(); }
static inline Ints zero_ints() { return _mm512_setzero_si512(); }
static inline Floats all(float x) { return _mm512_set1_ps(x); }
static inline Ints all_bytes(int x) { return _mm512_set1_epi8((char) x); }
static inline Ints all_shorts(int x) { return _mm512_set1_epi16((short) x); }
static inline Ints all_ints(int x) { return _mm512_set1_epi32(x); }
static inline Ints load(const void * p) { return _mm512_loadu_si512(p); }
static inline Floats load_floats(const float * p) { return _mm512_loadu_ps(p); }
static inline void store_floats(float * p, Floats x) { _mm512_storeu_ps(p, x); }
static inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
static inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 8); }
static inline Floats power_of_two(Floats n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23)); }
static inline Floats zero_below(Floats x, Floats where, float least) { return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(where, all(least), _CMP_LT_OQ), zero()); }
static inline Floats where_less(Floats x, Floats y, Floats a, Floats b) { return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), a); } // a in lanes with x < y
static inline Floats where_bit(Ints bits, int i, Floats a, Floats b) { return _mm512_mask_mov_ps(b, _mm512_test_epi32_mask(bits, _mm512_set1_epi32((int) (1u << i))), a); } // a in lanes whose bit i is set
static inline bool any_different(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0; }
static inline bool any_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
static inline float total(Floats x) { return _mm512_reduce_add_ps(x); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline __m256 fma(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
static inline void set_all(Floats & x, float y) { x = _mm512_set1_ps(y); }
static inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
static inline Ints add32(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints subtract32(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
static inline Ints add16(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
static inline Ints mul32(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
static inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
static inline Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
static inline Ints flip(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
static inline Ints shift_right(Ints a, int n) { return _mm512_srli_epi16(a, n); }
static inline Ints shift_left(Ints a, int n) { return _mm512_slli_epi16(a, n); }
static inline Ints look_up(Ints table, Ints index) { return _mm512_shuffle_epi8(table, index); }
static inline Ints pairs8(Ints u, Ints s) { return _mm512_maddubs_epi16(u, s); }  // unsigned by signed bytes, neighbours added
static inline Ints pairs16(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
static inline Ints subtract_bytes(Ints a, Ints b) { return _mm512_sub_epi8(a, b); }
static inline Ints absolute(Ints a) { return _mm512_abs_epi8(a); }
static inline Ints with_sign_of(Ints a, Ints s) { return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(s), zero_ints(), a); }
static inline Ints at_most(Ints x, int most) { return _mm512_min_epi32(x, all_ints(most)); }
static inline Ints bits_of(Floats x) { return _mm512_castps_si512(x); }
static inline Floats sizes_of(Floats x) { return _mm512_abs_ps(x); }
static inline void store_bytes(char * to, Ints x) { _mm_storeu_si128((__m128i *) to, _mm512_cvtepi32_epi8(x)); } // low bytes
// L numbers of F16, of BF16, and of 8 bits.
static inline Floats floats_of_halves(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
static inline Floats floats_of_brain(const void * p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16)); }
static inline Ints ints_of_bytes(const void * p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)); }
#else
constexpr int L = 8;
typedef __m256 Floats;
typedef __m256i Ints;
static inline Floats zero() { return _mm256_setzero_ps(); }
static inline Ints zero_ints() { return _mm256_setzero_si256(); }
static inline Floats all(float x) { return _mm256_set1_ps(x); }
static inline Ints all_bytes(int x) { return _mm256_set1_epi8((char) x); }
static inline Ints all_shorts(int x) { return _mm256_set1_epi16((short) x); }
static inline Ints all_ints(int x) { return _mm256_set1_epi32(x); }
static inline Ints load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline Floats load_floats(const float * p) { return _mm256_loadu_ps(p); }
static inline void store_floats(float * p, Floats x) { _mm256_storeu_ps(p, x); }
static inline Floats maximum(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats minimum(Floats a, Floats b) { return _mm256_min_ps(a, b); }
static inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
static inline Floats nearest(Floats x) { return _mm256_round_ps(x, 8); }
static inline Floats power_of_two(Floats n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)); }
static inline Floats zero_below(Floats x, Floats where, float least) { return _mm256_andnot_ps(_mm256_cmp_ps(where, all(least), _CMP_LT_OQ), x); }
static inline Floats where_less(Floats x, Floats y, Floats a, Floats b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ)); }
static inline Floats where_bit(Ints bits, int i, Floats a, Floats b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 31 - i))); }
static inline bool any_different(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0; }
static inline bool any_nan(Floats x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
static inline float total(Floats x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_hadd_ps(s, s);
    return _mm_cvtss_f32(_mm_hadd_ps(s, s));
}
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
static inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
static inline Ints add32(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
static inline Ints subtract32(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
static inline Ints add16(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
static inline Ints mul32(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
static inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
static inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
static inline Ints flip(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
static inline Ints shift_right(Ints a, int n) { return _mm256_srli_epi16(a, n); }
static inline Ints shift_left(Ints a, int n) { return _mm256_slli_epi16(a, n); }
static inline Ints look_up(Ints table, Ints index) { return _mm256_shuffle_epi8(table, index); }
static inline Ints pairs8(Ints u, Ints s) { return _mm256_maddubs_epi16(u, s); }
static inline Ints pairs16(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }
static inline Ints subtract_bytes(Ints a, Ints b) { return _mm256_sub_epi8(a, b); }
static inline Ints absolute(Ints a) { return _mm256_abs_epi8(a); }
static inline Ints with_sign_of(Ints a, Ints s) { return _mm256_sign_epi8(a, s); }
static inline Ints at_most(Ints x, int most) { return _mm256_min_epi32(x, all_ints(most)); }
static inline Ints bits_of(Floats x) { return _mm256_castps_si256(x); }
static inline Floats sizes_of(Floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
static inline void store_bytes(char * to, Ints x) {
    const __m256i four = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));
    const __m256i eight = _mm256_permutevar8x32_epi32(four, _mm256_set_epi32(4, 0, 4, 0, 4, 0, 4, 0));
    _mm_storel_epi64((__m128i *) to, _mm256_castsi256_si128(eight));
}
static inline Floats floats_of_halves(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
static inline Floats floats_of_brain(const void * p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16)); }
static inline Ints ints_of_bytes(const void * p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
#endif

typedef __m256 Eight; // eight floats
static inline void set_all(__m256 & x, float y) { x = _mm256_set1_ps(y); }

// HAS_DOT: four bytes are multiplied and added in one instruction. Without it products of bytes pass through 16 bits.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_DOT 1
static inline Ints dot(Ints sum, Ints u, Ints s) { return _mm512_dpbusd_epi32(sum, u, s); }
static inline Ints add_pairs16(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
#elif defined(__AVXVNNI__)
#define HAS_DOT 1
static inline Ints dot(Ints sum, Ints u, Ints s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }
static inline Ints add_pairs16(Ints sum, Ints a, Ints b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#else
#define HAS_DOT 0
static inline Ints add_pairs16(Ints sum, Ints a, Ints b) { return add32(sum, pairs16(a, b)); }
#endif

// Compilers may not add whole numbers in another order here: GCC makes trees of such sums, and the registers do not hold their parts.
static inline void in_order(Ints & x) { asm("" : "+v"(x)); }

static inline int32_t int_at(const void * p) { int32_t x; memcpy(&x, p, 4); return x; }
static inline float half_at(const void * p) { uint16_t x; memcpy(&x, p, 2); return _cvtsh_ss(x); }
static inline float rounded_to_half(float x) { return _cvtsh_ss(_cvtss_sh(x, 0)); }
static inline void prefetch(const void * p) { _mm_prefetch(p, _MM_HINT_T0); }
// The same 16 bytes in each 128-bit lane, and the same 8 bytes everywhere.
static inline Ints in_each_lane(__m128i x) {
#if defined(__AVX512BW__)
    return _mm512_broadcast_i32x4(x);
#else
    return _mm256_broadcastsi128_si256(x);
#endif
}
static inline Ints all_longs(const void * p) {
    int64_t x;
    memcpy(&x, p, 8);
#if defined(__AVX512BW__)
    return _mm512_set1_epi64(x);
#else
    return _mm256_set1_epi64x(x);
#endif
}
static inline Ints table_of(const int8_t * values) { return in_each_lane(_mm_loadu_si128((const __m128i *) values)); }

// Exchange rows and columns of L vectors.
static inline void transpose(Floats * x) {
#if defined(__AVX512BW__)
    Floats y[16];
    UNROLL for (int i = 0; i < 8; i++) y[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), y[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(y[4 * i + j]), b = _mm512_castps_pd(y[4 * i + 2 + j]);
            x[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), x[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    UNROLL for (int j = 0; j < 4; j++) { // x[4 i + j]: columns j, 4 + j, 8 + j, 12 + j of rows 4 i to 4 i + 3
        const Floats a = _mm512_shuffle_f32x4(x[j], x[4 + j], 0x88), b = _mm512_shuffle_f32x4(x[j], x[4 + j], 0xdd);
        const Floats c = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0x88), d = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0xdd);
        y[j] = _mm512_shuffle_f32x4(a, c, 0x88), y[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        y[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88), y[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    UNROLL for (int i = 0; i < 16; i++) x[i] = y[i];
#else
    Floats y[8];
    UNROLL for (int i = 0; i < 4; i++) y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]), y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int j = 0; j < 2; j++) {
            x[4 * i + 2 * j] = _mm256_shuffle_ps(y[4 * i + j], y[4 * i + 2 + j], 0x44);
            x[4 * i + 2 * j + 1] = _mm256_shuffle_ps(y[4 * i + j], y[4 * i + 2 + j], 0xee);
        }
    UNROLL for (int j = 0; j < 4; j++) y[j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x20), y[4 + j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x31);
    UNROLL for (int i = 0; i < 8; i++) x[i] = y[i];
#endif
}

// Sum of eight floats, in the order in which llama.cpp adds them.
static inline float sum8(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Bits of 16 numbers of a mask: which are -infinity (low 16), which are zero (high 16).
static inline uint32_t mask_bits(const uint16_t * mask) {
    const __m256i x = _mm256_loadu_si256((const __m256i *) mask), low = _mm256_cmpeq_epi16(x, _mm256_set1_epi16((short) 0xfc00));
    const __m256i nothing = _mm256_cmpeq_epi16(_mm256_add_epi16(x, x), _mm256_setzero_si256());
    const __m256i both_of = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, nothing), 0xd8); // bytes: 16 of low, 16 of nothing
    return (uint32_t) _mm256_movemask_epi8(both_of);
}
#endif

// CALL(R) with R = n, from 1 to MOST.
#define CASE(R, MOST, CALL) case R: if constexpr (R <= MOST) { CALL(R); } break;
#define WITH_ROWS(n, MOST, CALL) \
    switch (n) { \
        CASE(1, MOST, CALL) CASE(2, MOST, CALL) CASE(3, MOST, CALL) CASE(4, MOST, CALL) CASE(5, MOST, CALL) CASE(6, MOST, CALL) CASE(7, MOST, CALL) CASE(8, MOST, CALL) \
    }

// Rows of the next tile of n: as few tiles as possible, of nearly the same size.
static inline int next_tile(int n, int most) {
    const int tiles = (n + most - 1) / most;
    return (n + tiles - 1) / tiles;
}

// Prepared row: k bytes | scale of each superblock | sums of 16 activations (16 bits) | sums of 32 (16 bits).
struct Row256 {
    const char * bytes;
    const float * scale;
    const int16_t * sums16, * sums32;
    Row256() {}
    Row256(const char * row, int64_t k)
        : bytes(row), scale((const float *) (row + k)), sums16((const int16_t *) (row + k + k / 64)), sums32((const int16_t *) (row + k + k / 64 + k / 8)) {}
};

// A number as a type, for shifts and places that must be known at compile time.
template <int N> struct Int { static constexpr int value = N; };

// Values of 4-bit codes.
alignas(16) static const int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of 2^(e - 127): mxfp4_values are doubled.
static inline float mxfp4_scale(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t) (e - 1) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

} // namespace ISA
