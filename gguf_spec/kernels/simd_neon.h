// simd.h for ARM (NEON): a vector is two registers of 128 bits.
#pragma once
#include <arm_neon.h>
#include <cstdint>
#include <cstring>

namespace ISA {

constexpr int L = 8;
struct Floats { float32x4_t low, high; };
struct Ints { int32x4_t low, high; };
typedef Floats Eight;

static inline Floats all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline Floats zero() { return all(0); }
static inline Ints all_ints(int x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
static inline Ints load(const void * p) { return {vld1q_s32((const int32_t *) p), vld1q_s32((const int32_t *) p + 4)}; }
static inline Floats load_floats(const float * p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void store_floats(float * p, Floats x) { vst1q_f32(p, x.low), vst1q_f32(p + 4, x.high); }
static inline void set_all(Floats & x, float y) { x = all(y); }
static inline Floats add(Floats a, Floats b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
static inline Floats sub(Floats a, Floats b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
static inline Floats mul(Floats a, Floats b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
static inline Floats divide(Floats a, Floats b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
static inline Floats fma(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
static inline float32x4_t choose(uint32x4_t where, float32x4_t a, float32x4_t b) { return vbslq_f32(where, a, b); }
static inline Floats where_less(Floats x, Floats y, Floats a, Floats b) { return {choose(vcltq_f32(x.low, y.low), a.low, b.low), choose(vcltq_f32(x.high, y.high), a.high, b.high)}; } // a in lanes with x < y
static inline Floats maximum(Floats a, Floats b) { return where_less(b, a, a, b); } // b where one of them is NaN
static inline Floats minimum(Floats a, Floats b) { return where_less(a, b, a, b); }
static inline Floats zero_below(Floats x, Floats where, float least) { return where_less(where, all(least), zero(), x); }
static inline Floats where_bit(Ints bits, int i, Floats a, Floats b) { // a in lanes whose bit i is set
    const int32x4_t bit = vdupq_n_s32((int32_t) (1u << i));
    return {choose(vtstq_s32(bits.low, bit), a.low, b.low), choose(vtstq_s32(bits.high, bit), a.high, b.high)};
}
static inline Floats nearest(Floats x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
static inline float32x4_t power_of_two(float32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)); }
static inline Floats power_of_two(Floats n) { return {power_of_two(n.low), power_of_two(n.high)}; }
static inline bool any_different(Floats a, Floats b) { return !vminvq_u32(vandq_u32(vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high))); }
static inline bool any_nan(Floats x) { return any_different(x, x); }
static inline float total(Floats x) {
    const float32x4_t s = vaddq_f32(x.low, x.high), t = vpaddq_f32(s, s);
    return vgetq_lane_f32(vpaddq_f32(t, t), 0);
}
static inline Floats to_floats(Ints x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
static inline Ints subtract32(Ints a, Ints b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }
static inline Ints both(Ints a, Ints b) { return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)}; }
static inline Ints at_most(Ints x, int most) { return {vminq_s32(x.low, vdupq_n_s32(most)), vminq_s32(x.high, vdupq_n_s32(most))}; }
static inline Ints bits_of(Floats x) { return {vreinterpretq_s32_f32(x.low), vreinterpretq_s32_f32(x.high)}; }
static inline Floats sizes_of(Floats x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
static inline void store_bytes(char * to, Ints x) { vst1_s8((int8_t *) to, vmovn_s16(vcombine_s16(vmovn_s32(x.low), vmovn_s32(x.high)))); } // low bytes
static inline void prefetch(const void * p) { __builtin_prefetch(p); }

static inline int32_t int_at(const void * p) { int32_t x; memcpy(&x, p, 4); return x; }
static inline float half_at(const void * p) { __fp16 x; memcpy(&x, p, 2); return x; }
static inline float rounded_to_half(float x) { return (float) (__fp16) x; }

// L numbers of F16, of BF16, and of 8 bits.
static inline Floats floats_of_halves(const void * p) {
    const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *) p));
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
static inline Floats floats_of_brain(const void * p) {
    const uint16x8_t x = vld1q_u16((const uint16_t *) p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)), vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(x), 16))};
}
static inline Ints ints_of_bytes(const void * p) {
    const int16x8_t x = vmovl_s8(vld1_s8((const int8_t *) p));
    return {vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x))};
}

// Bits of 16 numbers of a mask: which are -infinity (low 16), which are zero (high 16).
static inline uint32_t mask_bits(const uint16_t * mask) {
    const uint8_t powers[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t bit = vld1_u8(powers);
    uint32_t bits = 0;
    UNROLL for (int i = 0; i < 2; i++) {
        const uint16x8_t x = vld1q_u16(mask + 8 * i), least = vceqq_u16(x, vdupq_n_u16(0xfc00)), nothing = vceqq_u16(vaddq_u16(x, x), vdupq_n_u16(0));
        bits |= (uint32_t) vaddv_u8(vand_u8(vmovn_u16(least), bit)) << 8 * i | (uint32_t) vaddv_u8(vand_u8(vmovn_u16(nothing), bit)) << (16 + 8 * i);
    }
    return bits;
}

// Exchange rows and columns of four registers.
template <class Vector> static inline void transpose4(Vector * x) {
    uint32x4_t y[4];
    uint64x2_t z[4];
    memcpy(y, x, sizeof(y));
    UNROLL for (int i = 0; i < 2; i++) z[2 * i] = vreinterpretq_u64_u32(vtrn1q_u32(y[2 * i], y[2 * i + 1])), z[2 * i + 1] = vreinterpretq_u64_u32(vtrn2q_u32(y[2 * i], y[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; i++) y[i] = vreinterpretq_u32_u64(vtrn1q_u64(z[i], z[i + 2])), y[i + 2] = vreinterpretq_u32_u64(vtrn2q_u64(z[i], z[i + 2]));
    memcpy(x, y, sizeof(y));
}
// Exchange rows and columns of L vectors.
static inline void transpose(Floats * x) {
    float32x4_t part[4][4]; // [2 * (rows 4 to 7) + (columns 4 to 7)]
    UNROLL for (int i = 0; i < 4; i++) part[0][i] = x[i].low, part[1][i] = x[i].high, part[2][i] = x[4 + i].low, part[3][i] = x[4 + i].high;
    UNROLL for (int i = 0; i < 4; i++) transpose4(part[i]);
    UNROLL for (int i = 0; i < 4; i++) x[i] = {part[0][i], part[2][i]}, x[4 + i] = {part[1][i], part[3][i]};
}

} // namespace ISA
