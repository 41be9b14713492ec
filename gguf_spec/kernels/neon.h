// Products with quantised weights on ARM: as they lie in the file, or repacked by llama.cpp in four or eight columns.
//
// Four columns at a time; a lane of a sum is a column. Weights are unpacked once for a row as it was prepared, or for a tile of 2 to 16 rows that
// entry.cpp lets pack side by side; 16 elements of the four columns to four registers, in one of three forms (c: column, k: element):
//
//   LANES     w[i]          c0 k(4i..4i+3) | c1 the same | c2 | c3      a row's four bytes are an operand: "dot by lane"; no sum across lanes
//   PAIRS     w[2i], w[2i+1]    c0 k(8i..8i+7) | c1 the same; c2 | c3   products of 2 columns and 2 rows in one instruction (I8MM)
//   COLUMNS   w[i]          ci k0..k15                                  one row and weights as they lie: nothing is moved
//
// Repacked weights lie in the form LANES, or PAIRS where llama.cpp was compiled for I8MM; plain ones are brought to it for two rows and more.
// Integer sums are exact in any form, and the float part is that of llama.cpp's single row of repacked Q4_0 and Q8_0 for all blocks of 32:
// acc = fma(float(sum), scale of the column * scale of the row, acc), block by block. So a row has the same bits in each form, alone and in tiles.
#pragma once
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace ISA {

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool HAS_PAIRS = true;
constexpr int UNIT = 8; // bytes of a column that lie together in llama.cpp's repacked weights
#else
constexpr bool HAS_PAIRS = false;
constexpr int UNIT = 4;
#endif

#define INLINE inline __attribute__((always_inline)) // otherwise parts of a large tile are called, and their registers go through memory

enum Form { LANES, PAIRS, COLUMNS };
typedef uint8x16_t Bytes;
typedef int8x16_t Codes;

static inline Bytes low_nibbles(Bytes x) { return vandq_u8(x, vdupq_n_u8(15)); }
static inline Codes codes_of(Bytes x) { return vreinterpretq_s8_u8(x); }
template <int N> static inline Bytes right(Bytes x) {
    if constexpr (N > 0) return vshrq_n_u8(x, N);
    else if constexpr (N < 0) return vshlq_n_u8(x, -N);
    else return x;
}
static inline Bytes both(Bytes x, int mask) { return vandq_u8(x, vdupq_n_u8((uint8_t) mask)); }
// The halves of two registers, or their quarters, one of each in turn.
static inline void zip64(Bytes & a, Bytes & b) {
    const uint64x2_t x = vreinterpretq_u64_u8(a), y = vreinterpretq_u64_u8(b);
    a = vreinterpretq_u8_u64(vzip1q_u64(x, y)), b = vreinterpretq_u8_u64(vzip2q_u64(x, y));
}
static inline void zip32(Bytes & a, Bytes & b) {
    const uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
    a = vreinterpretq_u8_u32(vzip1q_u32(x, y)), b = vreinterpretq_u8_u32(vzip2q_u32(x, y));
}

// Where a part of a block lies, in a column's block as it is in the file, and in a group of repacked columns.
struct Place { int plain, repacked; };

// ---- where the weights of four columns lie

struct Plain {
    static constexpr bool repacked = false;
    const char * p[4]; // a column that does not exist is the first one again
    Plain(const char * w, size_t stride, int64_t c, int64_t n_columns, int) {
        for (int i = 0; i < 4; i++) p[i] = w + (c + (i < n_columns ? i : 0)) * stride;
    }
    void next(Place bytes) { UNROLL for (int i = 0; i < 4; i++) p[i] += bytes.plain; }
    // 16 bytes of each column from byte `at` of a place on.
    template <Form F> INLINE void load(Place place, int at, Bytes * x) const {
        UNROLL for (int i = 0; i < 4; i++) x[i] = vld1q_u8((const uint8_t *) p[i] + place.plain + at);
        if constexpr (F == LANES) transpose4(x);
        if constexpr (F == PAIRS) {
            zip64(x[0], x[1]), zip64(x[2], x[3]);
            const Bytes second = x[1];
            x[1] = x[2], x[2] = second;
        }
    }
    uint32x4_t words(Place place) const { // four bytes of each column
        uint32x4_t x = vld1q_dup_u32((const uint32_t *) (p[0] + place.plain));
        x = vld1q_lane_u32((const uint32_t *) (p[1] + place.plain), x, 1);
        x = vld1q_lane_u32((const uint32_t *) (p[2] + place.plain), x, 2);
        return vld1q_lane_u32((const uint32_t *) (p[3] + place.plain), x, 3);
    }
    uint16x4_t shorts(Place place) const {
        uint16x4_t x = vld1_dup_u16((const uint16_t *) (p[0] + place.plain));
        x = vld1_lane_u16((const uint16_t *) (p[1] + place.plain), x, 1);
        x = vld1_lane_u16((const uint16_t *) (p[2] + place.plain), x, 2);
        return vld1_lane_u16((const uint16_t *) (p[3] + place.plain), x, 3);
    }
    uint32x4_t bytes(Place place) const {
        const uint32_t x[4] = {(uint8_t) p[0][place.plain], (uint8_t) p[1][place.plain], (uint8_t) p[2][place.plain], (uint8_t) p[3][place.plain]};
        return vld1q_u32(x);
    }
};

// SIZE bytes of a column lie together, in groups of N columns.
template <int SIZE, int N> struct Repacked {
    static constexpr bool repacked = true;
    const char * p; // codes of blocks of 32: their loads need no offset then
    int first;      // of the four columns in the group
    Repacked(const char * w, size_t stride, int64_t c, int64_t, int before) : p(w + c / N * N * stride + before), first(N == 4 ? 0 : c % N) {}
    void next(Place bytes) { p += bytes.repacked; } // addresses in order: the processor reads ahead by itself
    template <Form F> INLINE void load(Place place, int at, Bytes * x) const {
        const uint8_t * const from = (const uint8_t *) p + place.repacked + at * N + first * SIZE;
        UNROLL for (int i = 0; i < 4; i++) x[i] = vld1q_u8(from + (SIZE == 4 ? i * 4 * N : i / 2 * 8 * N + i % 2 * 16));
        if constexpr (SIZE == 4 && F == PAIRS) zip32(x[0], x[1]), zip32(x[2], x[3]);
    }
    uint16x4_t shorts(Place place) const { return vld1_u16((const uint16_t *) (p + place.repacked) + first); }
    uint32x4_t bytes(Place place) const { return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vld1_dup_u32((const uint32_t *) (p + place.repacked + first)))))); }
};
typedef Repacked<UNIT, 4> Repacked4;
typedef Repacked<4, 4> Repacked4x4;

static inline float32x4_t floats_of_shorts(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }

// ---- sums of products

// The form of weights for one row as it was prepared, and for several ones that are packed.
template <class Where> constexpr Form form_of_one() {
    if (!Where::repacked) return COLUMNS;
    return std::is_same<Where, Repacked<8, 4>>::value || std::is_same<Where, Repacked<8, 8>>::value ? PAIRS : LANES;
}
constexpr Form form_of_several = HAS_PAIRS ? PAIRS : LANES;

// Sums of 16 G elements of one row.
template <Form F, int G> static inline int32x4_t sums_of(const Codes (* w)[4], const char * bytes) {
    const int8_t * const a = (const int8_t *) bytes;
    const int32x4_t none = vdupq_n_s32(0);
    if constexpr (F == LANES) {
        int32x4_t s = none;
        Codes all[G]; // two registers are loaded at once
        UNROLL for (int g = 0; g < G; g++) all[g] = vld1q_s8(a + 16 * g);
        UNROLL for (int g = 0; g < G; g++) {
            const Codes x = all[g];
            s = vdotq_laneq_s32(s, w[g][0], x, 0), s = vdotq_laneq_s32(s, w[g][1], x, 1), s = vdotq_laneq_s32(s, w[g][2], x, 2), s = vdotq_laneq_s32(s, w[g][3], x, 3);
        }
        return s;
    } else if constexpr (F == PAIRS) {
        int32x4_t s = none, t = none; // two lanes a column
        UNROLL for (int g = 0; g < G; g++) {
            const int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(a + 16 * g));
            const int8x16_t x0 = vreinterpretq_s8_s64(vdupq_laneq_s64(x, 0)), x1 = vreinterpretq_s8_s64(vdupq_laneq_s64(x, 1));
            s = vdotq_s32(s, w[g][0], x0), t = vdotq_s32(t, w[g][1], x0), s = vdotq_s32(s, w[g][2], x1), t = vdotq_s32(t, w[g][3], x1);
        }
        return vpaddq_s32(s, t);
    } else {
        int32x4_t s[4] = {none, none, none, none}; // four lanes a column
        UNROLL for (int g = 0; g < G; g++) {
            const int8x16_t x = vld1q_s8(a + 16 * g);
            UNROLL for (int i = 0; i < 4; i++) s[i] = vdotq_s32(s[i], w[g][i], x);
        }
        return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
    }
}

// Sums of two packed rows: s of columns 0 and 1 of the first row, then of the second one; t of columns 2 and 3.
template <int G> static inline void sums_of_pair(const Codes (* w)[4], const char * bytes, int32x4_t & s, int32x4_t & t) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const int8_t * const a = (const int8_t *) bytes;
    s = t = vdupq_n_s32(0);
    UNROLL for (int g = 0; g < G; g++) {
        const Codes x = vld1q_s8(a + 32 * g), y = vld1q_s8(a + 32 * g + 16);
        s = vmmlaq_s32(s, x, w[g][0]), t = vmmlaq_s32(t, x, w[g][1]);
        s = vmmlaq_s32(s, y, w[g][2]), t = vmmlaq_s32(t, y, w[g][3]);
    }
#else
    (void) w, (void) bytes, (void) s, (void) t;
#endif
}
template <class V> static inline V twice_low(V x) { return (V) vdupq_laneq_s64((int64x2_t) x, 0); }
template <class V> static inline V twice_high(V x) { return (V) vdupq_laneq_s64((int64x2_t) x, 1); }
// From sums of a pair to a row each.
static inline void separate(float32x4_t & a, float32x4_t & b) {
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    a = vreinterpretq_f32_f64(vuzp1q_f64(x, y)), b = vreinterpretq_f32_f64(vuzp2q_f64(x, y));
}

// What is read at `next` is read when these sums are done: otherwise the compiler begins so many that registers are kept in memory.
template <class Vector, class Pointer> static INLINE void in_order(Vector a, Vector b, Pointer & next) { asm volatile("" : "+r"(next) : "w"(a), "w"(b)); }

// Columns c to c + n_columns of rows, four at most.
template <int R> static inline void store_columns(float * const * y, const float32x4_t (& x)[R], int64_t c, int64_t n_columns) {
    UNROLL for (int r = 0; r < R; r++) { // constant indices: otherwise sums are kept in memory
        float * const to = y[r] + c;
        if (n_columns >= 4) vst1q_f32(to, x[r]);
        else {
            vst1q_lane_f32(to, x[r], 0);
            if (n_columns > 1) vst1q_lane_f32(to + 1, x[r], 1);
            if (n_columns > 2) vst1q_lane_f32(to + 2, x[r], 2);
        }
    }
}

// ---- rows that are packed, four side by side
//
// Of each 16 G elements (which have a scale together) row after row; for products of pairs two rows after two, 8 elements of each in turn.

constexpr int AT_ONCE = HAS_PAIRS ? 2 : 1; // rows of an instruction

// 16 G elements of a row, as row r of four.
template <int G> static inline void pack_bytes(const char * from, char * to, int r) {
    to += HAS_PAIRS ? r / 2 * 32 * G + r % 2 * 8 : r * 16 * G;
    UNROLL for (int i = 0; i < 2 * G; i++) memcpy(to + 8 * AT_ONCE * i, from + 8 * i, 8);
}

// As TileProduct::multiply. Tiles begin with a whole number of four rows; the last row is there twice where an instruction needs two.
template <class Tiles, class Where>
static bool multiply_packed(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * rows, float * const * y, int64_t n, char *) {
    const size_t bytes_of_4 = Tiles::bytes_of_16(k) / 4;
    for (int64_t r0 = 0; r0 < n;) {
        const int fours = next_tile((int) (n - r0 + 3) / 4, Tiles::most / 4), m = n - r0 < 4 * fours ? n - r0 : 4 * fours;
        float * out[Tiles::most];
        for (int r = 0; r < 4 * fours; r++) out[r] = y[r0 + (r < m ? r : m - 1)];
        for (int64_t c = c0; c < c1; c += 4) {
#define CALL(R) Tiles::template tile<Where, R * AT_ONCE>(w, stride, k, c, c1, rows + r0 / 4 * bytes_of_4, out)
            WITH_ROWS((m + AT_ONCE - 1) / AT_ONCE, Tiles::most / AT_ONCE, CALL)
#undef CALL
        }
        r0 += m;
    }
    return true;
}
static size_t no_bytes(int64_t) { return 0; }
template <class Tiles, class Where> static const TileProduct packed = {2, AT_ONCE, Tiles::bytes_of_16, Tiles::pack, no_bytes, multiply_packed<Tiles, Where>};

// ---- blocks of 32

// A block of a prepared row: activations, their scale, and scale times sum for types with minima (Q8_1).
struct Block32 {
    char bytes[32];
    float scale, sum;
};

// Each type: whether its blocks have a minimum, by how many bits its codes are shifted to the left, and how many bytes lie before repacked codes.
struct Scale16 { // of F16
    static constexpr int before = 8;
    template <class Where> static float32x4_t scale(const Where & at) { return floats_of_shorts(at.shorts({0, -8})); }
};
struct Type_Q4_0 : Scale16 {
    static constexpr Place bytes = {18, 72}, codes = {2, 0};
    static constexpr bool minimum = false;
    static constexpr int shift = 4;
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) {
        Bytes x[4];
        at.template load<F>(codes, 0, x);
        UNROLL for (int i = 0; i < 4; i++) {
            if (!Where::repacked) x[i] = veorq_u8(x[i], vdupq_n_u8(0x88)); // value + 8: llama.cpp flips the top bits where it repacks
            w[0][i] = codes_of(vshlq_n_u8(x[i], 4)), w[1][i] = codes_of(both(x[i], 0xf0));
        }
    }
};
struct Type_Q4_0_in_eight : Type_Q4_0 { // for vectors of 256 bits
    static constexpr Place bytes = {0, 144};
    static constexpr int before = 16;
    template <class Where> static float32x4_t scale(const Where & at) { return floats_of_shorts(at.shorts({0, -16})); }
};
struct Nibbles {
    static constexpr int shift = 0;
    // Codes of 0 to 15, from 16 bytes of each column.
    template <Form F, class Where> static INLINE void unpack_nibbles(const Where & at, Place codes, Bytes (* w)[4]) {
        Bytes x[4];
        at.template load<F>(codes, 0, x);
        UNROLL for (int i = 0; i < 4; i++) w[0][i] = low_nibbles(x[i]), w[1][i] = right<4>(x[i]);
    }
};
struct Type_Q4_1 : Nibbles {
    static constexpr Place bytes = {20, 0}, codes = {4, 0};
    static constexpr int before = 0;
    static constexpr bool minimum = true;
    template <class Where> static float32x4_t scale(const Where & at, float32x4_t & low) {
        const uint32x4_t x = at.words({0, 0});
        low = floats_of_shorts(vshrn_n_u32(x, 16));
        return floats_of_shorts(vmovn_u32(x));
    }
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) { unpack_nibbles<F>(at, codes, (Bytes (*)[4]) w); }
};

// For each byte of codes: which byte of the high bits it needs, of those of four columns side by side, and which bit.
template <Form F> struct HighBits {
    uint8_t byte[2][4][16], bit[2][4][16];
    constexpr HighBits() : byte(), bit() {
        for (int g = 0; g < 2; g++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 16; j++) {
                    const int column = F == LANES ? j / 4 : F == PAIRS ? i % 2 * 2 + j / 8 : i;
                    const int k = 16 * g + (F == LANES ? 4 * i + j % 4 : F == PAIRS ? i / 2 * 8 + j % 8 : j);
                    byte[g][i][j] = (uint8_t) (4 * column + k / 8), bit[g][i][j] = (uint8_t) (1 << k % 8);
                }
    }
};
template <Form F> static constexpr HighBits<F> high_bits;

template <bool MINIMUM> struct Five : Nibbles { // Q5_0, Q5_1: nibbles, and a fifth bit of each
    static constexpr bool minimum = MINIMUM;
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) {
        Bytes x[2][4];
        unpack_nibbles<F>(at, {MINIMUM ? 8 : 6, 0}, x);
        const Bytes bits = vreinterpretq_u8_u32(at.words({MINIMUM ? 4 : 2, 0}));
        UNROLL for (int g = 0; g < 2; g++)
            UNROLL for (int i = 0; i < 4; i++) {
                const Bytes set = vtstq_u8(vqtbl1q_u8(bits, vld1q_u8(high_bits<F>.byte[g][i])), vld1q_u8(high_bits<F>.bit[g][i]));
                w[g][i] = codes_of(MINIMUM ? vorrq_u8(x[g][i], both(set, 16)) : vorrq_u8(x[g][i], vbicq_u8(vdupq_n_u8(0xf0), set))); // value - 16 where the bit is not set
            }
    }
};
struct Type_Q5_0 : Five<false>, Scale16 { static constexpr Place bytes = {22, 0}; };
struct Type_Q5_1 : Five<true> {
    static constexpr Place bytes = {24, 0};
    static constexpr int before = 0;
    template <class Where> static float32x4_t scale(const Where & at, float32x4_t & low) { return Type_Q4_1::scale(at, low); }
};
struct Type_Q8_0 : Scale16 {
    static constexpr Place bytes = {34, 136}, codes = {2, 0};
    static constexpr bool minimum = false;
    static constexpr int shift = 0;
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) {
        UNROLL for (int g = 0; g < 2; g++) at.template load<F>(codes, 16 * g, (Bytes *) w[g]);
    }
};
struct Tables : Nibbles {
    static constexpr bool minimum = false;
    template <Form F, class Where> static INLINE void unpack_table(const Where & at, Place codes, const int8_t * values, Codes (* w)[4]) {
        Bytes x[2][4];
        unpack_nibbles<F>(at, codes, x);
        UNROLL for (int g = 0; g < 2; g++) UNROLL for (int i = 0; i < 4; i++) w[g][i] = vqtbl1q_s8(vld1q_s8(values), x[g][i]);
    }
};
struct Type_IQ4_NL : Tables, Scale16 {
    static constexpr Place bytes = {18, 72};
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) { unpack_table<F>(at, {2, 0}, iq4_nl_values, w); }
};
struct Type_MXFP4 : Tables {
    static constexpr Place bytes = {17, 68};
    static constexpr int before = 4;
    template <class Where> static float32x4_t scale(const Where & at) { // as mxfp4_scale
        const uint32x4_t e = at.bytes({0, -4}), small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
        return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23)));
    }
    template <Form F, class Where> static INLINE void unpack(const Where & at, Codes (* w)[4]) { unpack_table<F>(at, {1, 0}, mxfp4_values, w); }
};

template <class T> static inline float32x4_t sum_as_floats(int32x4_t x) {
    if constexpr (T::shift) return vcvtq_n_f32_s32(x, T::shift);
    else return vcvtq_f32_s32(x);
}

// A row as it was prepared.
template <class T, class Where> static void row32(Where at, int64_t n_blocks, const Block32 * row, float * y, int64_t n_columns) {
    constexpr Form F = form_of_one<Where>();
    float32x4_t acc[1] = {vdupq_n_f32(0)}, low = vdupq_n_f32(0);
    for (int64_t b = 0; b < n_blocks; b++, row++, at.next(T::bytes)) {
        Codes w[2][4];
        T::template unpack<F>(at, w);
        float32x4_t scale, least;
        if constexpr (T::minimum) scale = T::scale(at, least), low = vfmaq_n_f32(low, least, row->sum);
        else scale = T::scale(at);
        acc[0] = vfmaq_f32(acc[0], sum_as_floats<T>(sums_of<F, 2>(w, row->bytes)), vmulq_n_f32(scale, row->scale));
    }
    if constexpr (T::minimum) acc[0] = vaddq_f32(acc[0], low);
    store_columns(&y, acc, 0, n_columns);
}

template <class T, class Where> static void multiply32(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r = 0; r < n; r++)
        for (int64_t c = c0; c < c1; c += 4) row32<T, Where>(Where(w, stride, c, c1 - c, T::before), k / 32, (const Block32 *) x[r], y[r] + c, c1 - c);
}

// A block of four packed rows.
template <bool MINIMUM> struct Four32 {
    char bytes[128];
    float scale[4 * AT_ONCE];
};
template <> struct Four32<true> : Four32<false> { float sum[4]; };

template <class T> static void pack32(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end) {
    const Block32 * from = (const Block32 *) row;
    Four32<T::minimum> * const four = (Four32<T::minimum> *) to + r / 4 * (k / 32);
    for (int64_t b = begin / 32; b < end / 32; b++) {
        pack_bytes<2>(from[b].bytes, four[b].bytes, r % 4);
        UNROLL for (int i = 0; i < AT_ONCE; i++) four[b].scale[r % 4 * AT_ONCE + i] = from[b].scale;
        if constexpr (T::minimum) four[b].sum[r % 4] = from[b].sum;
    }
}

// R packed rows.
template <class T, class Where, int R> static void tile32(Where at, int64_t n_blocks, const char * rows, float * const * y, int64_t c, int64_t n_columns) {
    constexpr int FOURS = (R + 3) / 4;
    float32x4_t acc[R], low[R];
    const Four32<T::minimum> * four[FOURS];
    UNROLL for (int r = 0; r < R; r++) acc[r] = low[r] = vdupq_n_f32(0);
    UNROLL for (int i = 0; i < FOURS; i++) four[i] = (const Four32<T::minimum> *) rows + i * n_blocks;
    for (const void * const end = four[0] + n_blocks; four[0] != end; at.next(T::bytes)) {
        Codes w[2][4];
        T::template unpack<form_of_several>(at, w);
        float32x4_t scale, least = vdupq_n_f32(0);
        if constexpr (T::minimum) scale = T::scale(at, least);
        else scale = T::scale(at);
        const float32x4_t scale01 = twice_low(scale), scale23 = twice_high(scale);
        UNROLL for (int r = 0; r < R; r += AT_ONCE) {
            const Four32<T::minimum> & x = *four[r / 4];
            const float32x4_t numbers = vld1q_f32(x.scale + (HAS_PAIRS ? r % 4 * 2 : 0));
            if constexpr (HAS_PAIRS) {
                int32x4_t s, t;
                sums_of_pair<2>(w, x.bytes + 32 * (r % 4), s, t);
                acc[r] = vfmaq_f32(acc[r], sum_as_floats<T>(s), vmulq_f32(scale01, numbers)), acc[r + 1] = vfmaq_f32(acc[r + 1], sum_as_floats<T>(t), vmulq_f32(scale23, numbers));
                if constexpr (R > 8) if (r + 2 < R) in_order(acc[r], acc[r + 1], four[(r + 2) / 4]);
            } else acc[r] = vfmaq_f32(acc[r], sum_as_floats<T>(sums_of<LANES, 2>(w, x.bytes + 32 * (r % 4))), vmulq_n_f32(scale, numbers[r % 4]));
            if constexpr (!HAS_PAIRS && R > 2) if (r % 2 && r + 1 < R) in_order(acc[r - 1], acc[r], four[(r + 1) / 4]);
        }
        if constexpr (T::minimum) UNROLL for (int r = 0; r < R; r++) low[r] = vfmaq_n_f32(low[r], least, vld1q_f32(four[r / 4]->sum)[r % 4]);
        UNROLL for (int i = 0; i < FOURS; i++) four[i]++;
    }
    if constexpr (HAS_PAIRS) UNROLL for (int r = 0; r < R; r += 2) separate(acc[r], acc[r + 1]);
    if constexpr (T::minimum) UNROLL for (int r = 0; r < R; r++) acc[r] = vaddq_f32(acc[r], low[r]);
    float32x4_t results[R]; // where these are the sums themselves, each block writes them to memory
    UNROLL for (int r = 0; r < R; r++) results[r] = acc[r];
    store_columns(y, results, c, n_columns);
}
template <class T> struct Tiles32 {
    static constexpr int most = HAS_PAIRS && !T::minimum ? 16 : 8; // rows of a tile
    static size_t bytes_of_16(int64_t k) { return k / 32 * 4 * sizeof(Four32<T::minimum>); }
    template <class Where, int R> static void tile(const char * w, size_t stride, int64_t k, int64_t c, int64_t end, const char * rows, float * const * y) {
        tile32<T, Where, R>(Where(w, stride, c, end - c, T::before), k / 32, rows, y, c, end - c);
    }
    static void pack(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end) { pack32<T>(row, to, r, k, begin, end); }
};

// ---- superblocks of 256: parts of 16 or 32 elements have integer scales, and some types minima

// From 16 bytes of each of four columns to a register for each four of them: byte j of the four columns, byte j + 1, ...
static inline void bytes_by_column(const Bytes * x, Bytes * y) {
    const Bytes a = vzip1q_u8(x[0], x[2]), b = vzip1q_u8(x[1], x[3]), c = vzip2q_u8(x[0], x[2]), d = vzip2q_u8(x[1], x[3]);
    y[0] = vzip1q_u8(a, b), y[1] = vzip2q_u8(a, b), y[2] = vzip1q_u8(c, d), y[3] = vzip2q_u8(c, d);
}
static inline void widen(Bytes x, int16x4_t * y) { // four numbers of four columns
    const int16x8_t a = vmovl_s8(vget_low_s8(codes_of(x))), b = vmovl_s8(vget_high_s8(codes_of(x)));
    y[0] = vget_low_s16(a), y[1] = vget_high_s16(a), y[2] = vget_low_s16(b), y[3] = vget_high_s16(b);
}
// Scales and minima of four columns, a lane each.
struct Scales { int16x4_t scale[16], minimum[16]; };

// Scales of Q4_K and Q5_K: 6 bits, in 12 bytes; as bytes, then the minima.
static INLINE void scales6(const Plain & at, int place, Scales & s) {
    Bytes x[4], y[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const uint32_t a = int_at(at.p[i] + place), b = int_at(at.p[i] + place + 4), c = int_at(at.p[i] + place + 8);
        const uint32_t all[4] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4, b & 0x3f3f3f3fu, (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4};
        x[i] = vreinterpretq_u8_u32(vld1q_u32(all));
    }
    bytes_by_column(x, y);
    widen(y[0], s.scale), widen(y[1], s.scale + 4), widen(y[2], s.minimum), widen(y[3], s.minimum + 4);
}
// Repacked: 12 bytes for each part, scales and minima of columns 0 to 3 with high bits of the others, and low bits of these.
template <int SIZE> static INLINE void scales6(const Repacked<SIZE, 8> & at, int, Scales & s) {
    UNROLL for (int h = 0; h < 2; h++) {
        const uint32x4x3_t words = vld3q_u32((const uint32_t *) (at.p + 32 + 48 * h));
        const Bytes a = vreinterpretq_u8_u32(words.val[0]), b = vreinterpretq_u8_u32(words.val[1]), c = vreinterpretq_u8_u32(words.val[2]);
        if (at.first == 0) widen(both(a, 0x3f), s.scale + 4 * h), widen(both(b, 0x3f), s.minimum + 4 * h);
        else widen(vorrq_u8(low_nibbles(c), both(right<2>(a), 0x30)), s.scale + 4 * h), widen(vorrq_u8(right<4>(c), both(right<2>(b), 0x30)), s.minimum + 4 * h);
    }
}

// Each type: `groups` of 16 elements have a scale together; `minima` in a superblock; unpack() calls f(part, codes) for the parts of step j.
struct Type_Q4_K {
    static constexpr Place bytes = {144, 1152}, codes = {16, 128}, d = {0, 0}, dmin = {2, 16};
    static constexpr int groups = 2, minima = 8, steps = 4;
    template <class Where> static INLINE void scales(const Where & at, Scales & s) { scales6(at, 4, s); }
    template <Form F, class Where, class Use> static INLINE void unpack(const Where & at, int j, Use use) {
        Bytes x[2][4];
        Codes w[2][4];
        UNROLL for (int g = 0; g < 2; g++) at.template load<F>(codes, 32 * j + 16 * g, x[g]);
        UNROLL for (int g = 0; g < 2; g++) UNROLL for (int i = 0; i < 4; i++) w[g][i] = codes_of(low_nibbles(x[g][i]));
        use(2 * j, w);
        UNROLL for (int g = 0; g < 2; g++) UNROLL for (int i = 0; i < 4; i++) w[g][i] = codes_of(right<4>(x[g][i]));
        use(2 * j + 1, w);
    }
};
struct Type_Q5_K {
    static constexpr Place bytes = {176, 1408}, high = {16, 128}, codes = {48, 384}, d = {0, 0}, dmin = {2, 16};
    static constexpr int groups = 2, minima = 8, steps = 4;
    template <class Where> static INLINE void scales(const Where & at, Scales & s) { scales6(at, 4, s); }
    template <Form F, class Where, class Use> static INLINE void unpack(const Where & at, int j, Use use) {
        Bytes x[2][4], h[2][4];
        Codes w[2][4];
        UNROLL for (int g = 0; g < 2; g++) at.template load<F>(codes, 32 * j + 16 * g, x[g]), at.template load<F>(high, 16 * g, h[g]);
        const int8x16_t right = vdupq_n_s8((int8_t) (-2 * j));
        UNROLL for (int g = 0; g < 2; g++)
            UNROLL for (int i = 0; i < 4; i++) h[g][i] = vshlq_u8(h[g][i], right), w[g][i] = codes_of(vorrq_u8(low_nibbles(x[g][i]), vshlq_n_u8(both(h[g][i], 1), 4)));
        use(2 * j, w);
        UNROLL for (int g = 0; g < 2; g++) UNROLL for (int i = 0; i < 4; i++) w[g][i] = codes_of(vorrq_u8(vshrq_n_u8(x[g][i], 4), vshlq_n_u8(both(h[g][i], 2), 3)));
        use(2 * j + 1, w);
    }
};
struct Type_Q6_K {
    static constexpr Place bytes = {210, 1680}, low = {0, 144}, high = {128, 1168}, d = {208, 0}, dmin = {0, 0};
    static constexpr int groups = 1, minima = 0, steps = 4; // a step: 16 elements of each 32 of half a superblock
    static INLINE void scales(const Plain & at, Scales & s) {
        Bytes x[4], y[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] = vld1q_u8((const uint8_t *) at.p[i] + 192);
        bytes_by_column(x, y);
        UNROLL for (int i = 0; i < 4; i++) widen(y[i], s.scale + 4 * i);
    }
    template <int SIZE> static INLINE void scales(const Repacked<SIZE, 8> & at, Scales & s) {
        UNROLL for (int i = 0; i < 16; i++) {
            const uint32x2_t x = vld1_dup_u32((const uint32_t *) (at.p + 16 + 8 * i + at.first));
            s.scale[i] = vget_low_s16(vmovl_s8(vreinterpret_s8_u32(x)));
        }
    }
    template <Form F, class Where, class Use> static INLINE void unpack(const Where & at, int step, Use use) {
        const int half = step / 2, g = step % 2;
        Bytes a[4], b[4], h[4];
        at.template load<F>(low, 64 * half + 16 * g, a), at.template load<F>(low, 64 * half + 32 + 16 * g, b), at.template load<F>(high, 32 * half + 16 * g, h);
        const auto part = [&](int i, auto code) {
            Codes w[1][4];
            UNROLL for (int j = 0; j < 4; j++) w[0][j] = vsubq_s8(codes_of(code(j)), vdupq_n_s8(32));
            use(8 * half + 2 * i + g, w);
        };
        part(0, [&](int j) { return vorrq_u8(low_nibbles(a[j]), both(right<-4>(h[j]), 48)); });
        part(1, [&](int j) { return vorrq_u8(low_nibbles(b[j]), both(right<-2>(h[j]), 48)); });
        part(2, [&](int j) { return vorrq_u8(right<4>(a[j]), both(h[j], 48)); });
        part(3, [&](int j) { return vorrq_u8(right<4>(b[j]), both(right<2>(h[j]), 48)); });
    }
};
struct Type_Q2_K {
    static constexpr Place bytes = {84, 0}, codes = {16, 0}, d = {80, 0}, dmin = {82, 0};
    static constexpr int groups = 1, minima = 16, steps = 4;
    static INLINE void scales(const Plain & at, Scales & s) {
        Bytes x[4], y[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] = vld1q_u8((const uint8_t *) at.p[i]);
        bytes_by_column(x, y);
        UNROLL for (int i = 0; i < 4; i++) widen(low_nibbles(y[i]), s.scale + 4 * i), widen(right<4>(y[i]), s.minimum + 4 * i);
    }
    template <Form F, class Where, class Use> static INLINE void unpack(const Where & at, int step, Use use) {
        const int half = step / 2, g = step % 2;
        Bytes x[4];
        at.template load<F>(codes, 32 * half + 16 * g, x);
        const auto part = [&](auto which) {
            constexpr int i = decltype(which)::value;
            Codes w[1][4];
            UNROLL for (int j = 0; j < 4; j++) w[0][j] = codes_of(both(right<2 * i>(x[j]), 3));
            use(8 * half + 2 * i + g, w);
        };
        part(Int<0>()), part(Int<1>()), part(Int<2>()), part(Int<3>());
    }
};
struct Type_Q3_K {
    static constexpr Place bytes = {110, 0}, high = {0, 0}, codes = {32, 0}, d = {108, 0}, dmin = {0, 0};
    static constexpr int groups = 1, minima = 0, steps = 4;
    static INLINE void scales(const Plain & at, Scales & s) { // 6 bits: low nibbles in 8 bytes, the two high bits in 4 more; value + 32
        Bytes x[4], y[4];
        UNROLL for (int i = 0; i < 4; i++) {
            const uint32_t a = int_at(at.p[i] + 96), b = int_at(at.p[i] + 100), c = int_at(at.p[i] + 104);
            const uint32_t all[4] = {(a & 0x0f0f0f0fu) | (c & 0x03030303u) << 4, (b & 0x0f0f0f0fu) | (c >> 2 & 0x03030303u) << 4,
                                     (a >> 4 & 0x0f0f0f0fu) | (c >> 4 & 0x03030303u) << 4, (b >> 4 & 0x0f0f0f0fu) | (c >> 6 & 0x03030303u) << 4};
            x[i] = vsubq_u8(vreinterpretq_u8_u32(vld1q_u32(all)), vdupq_n_u8(32));
        }
        bytes_by_column(x, y);
        UNROLL for (int i = 0; i < 4; i++) widen(y[i], s.scale + 4 * i);
    }
    template <Form F, class Where, class Use> static INLINE void unpack(const Where & at, int step, Use use) {
        const int half = step / 2, g = step % 2;
        Bytes x[4], h[4];
        at.template load<F>(codes, 32 * half + 16 * g, x), at.template load<F>(high, 16 * g, h);
        const int8x16_t shift = vdupq_n_s8((int8_t) (-4 * half));
        UNROLL for (int j = 0; j < 4; j++) h[j] = vshlq_u8(h[j], shift);
        const auto part = [&](auto which) {
            constexpr int i = decltype(which)::value;
            Codes w[1][4];
            UNROLL for (int j = 0; j < 4; j++) w[0][j] = vsubq_s8(codes_of(vorrq_u8(both(right<2 * i>(x[j]), 3), both(right<i - 2>(h[j]), 4))), vdupq_n_s8(4));
            use(8 * half + 2 * i + g, w);
        };
        part(Int<0>()), part(Int<1>()), part(Int<2>()), part(Int<3>());
    }
};

// A row as it was prepared.
template <class T, class Where> static void row256(Where at, int64_t n_blocks, Row256 row, float * y, int64_t n_columns) {
    constexpr Form F = form_of_one<Where>();
    constexpr int G = T::groups;
    float32x4_t acc[1] = {vdupq_n_f32(0)}, low = vdupq_n_f32(0);
    for (int64_t b = 0; b < n_blocks; b++, at.next(T::bytes)) {
        Scales scales;
        T::scales(at, scales);
        int32x4_t sum = vdupq_n_s32(0);
        for (int step = 0; step < T::steps; step++)
            T::template unpack<F>(at, step, [&](int part, const Codes (& w)[G][4]) {
                sum = vmlaq_s32(sum, sums_of<F, G>(w, row.bytes + 256 * b + 16 * G * part), vmovl_s16(scales.scale[part]));
            });
        acc[0] = vfmaq_f32(acc[0], vcvtq_f32_s32(sum), vmulq_n_f32(floats_of_shorts(at.shorts(T::d)), row.scale[b]));
        if constexpr (T::minima > 0) {
            const int16_t * const sums = T::minima == 8 ? row.sums32 + 8 * b : row.sums16 + 16 * b;
            int32x4_t m = vdupq_n_s32(0);
            UNROLL for (int i = 0; i < T::minima; i++) m = vmlal_n_s16(m, scales.minimum[i], sums[i]);
            low = vfmaq_f32(low, vcvtq_f32_s32(m), vmulq_n_f32(floats_of_shorts(at.shorts(T::dmin)), row.scale[b]));
        }
    }
    if constexpr (T::minima > 0) acc[0] = vsubq_f32(acc[0], low);
    store_columns(&y, acc, 0, n_columns);
}

template <class T, class Where> static void multiply256(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r = 0; r < n; r++)
        for (int64_t c = c0; c < c1; c += 4) row256<T, Where>(Where(w, stride, c, c1 - c, 0), k / 256, Row256(x[r], k), y[r] + c, c1 - c);
}

// A superblock of four packed rows, with the sums of 8 or 16 parts for types with minima.
template <int SUMS> struct Four256 {
    char bytes[1024];
    float scale[4 * AT_ONCE];
    int16_t sums[4][SUMS];
};
template <> struct Four256<0> {
    char bytes[1024];
    float scale[4 * AT_ONCE];
};

template <class T> static void pack256(const char * prepared, char * to, int r, int64_t k, int64_t begin, int64_t end) {
    constexpr int G = T::groups;
    const Row256 row(prepared, k);
    Four256<T::minima> * const four = (Four256<T::minima> *) to + r / 4 * (k / 256);
    for (int64_t b = begin / 256; b < end / 256; b++) {
        for (int i = 0; i < 256; i += 16 * G) pack_bytes<G>(row.bytes + 256 * b + i, four[b].bytes + 4 * i, r % 4);
        UNROLL for (int i = 0; i < AT_ONCE; i++) four[b].scale[r % 4 * AT_ONCE + i] = row.scale[b];
        if constexpr (T::minima > 0) memcpy(four[b].sums[r % 4], T::minima == 8 ? row.sums32 + 8 * b : row.sums16 + 16 * b, 2 * T::minima);
    }
}

// R packed rows.
template <class T, class Where, int R> static void tile256(Where at, int64_t n_blocks, const char * rows, float * const * y, int64_t c, int64_t n_columns) {
    constexpr int FOURS = (R + 3) / 4, G = T::groups;
    float32x4_t acc[R], low[R];
    const Four256<T::minima> * four[FOURS];
    UNROLL for (int r = 0; r < R; r++) acc[r] = low[r] = vdupq_n_f32(0);
    UNROLL for (int i = 0; i < FOURS; i++) four[i] = (const Four256<T::minima> *) rows + i * n_blocks;
    for (int64_t b = 0; b < n_blocks; b++, at.next(T::bytes)) {
        Scales scales;
        T::scales(at, scales);
        int32x4_t sum[R];
        UNROLL for (int r = 0; r < R; r++) sum[r] = vdupq_n_s32(0);
        for (int step = 0; step < T::steps; step++)
            T::template unpack<form_of_several>(at, step, [&](int part, const Codes (& w)[G][4]) {
                const int32x4_t scale = vmovl_s16(scales.scale[part]), scale01 = twice_low(scale), scale23 = twice_high(scale);
                UNROLL for (int r = 0; r < R; r += AT_ONCE) {
                    const char * const bytes = four[r / 4]->bytes + 64 * G * part + 16 * G * (r % 4);
                    if constexpr (HAS_PAIRS) {
                        int32x4_t s, t;
                        sums_of_pair<G>(w, bytes, s, t);
                        sum[r] = vmlaq_s32(sum[r], s, scale01), sum[r + 1] = vmlaq_s32(sum[r + 1], t, scale23);
                        if (R > 4 && r + 2 < R) in_order(sum[r], sum[r + 1], four[(r + 2) / 4]);
                    } else sum[r] = vmlaq_s32(sum[r], sums_of<LANES, G>(w, bytes), scale);
                }
            });
        const float32x4_t d = floats_of_shorts(at.shorts(T::d)), d01 = twice_low(d), d23 = twice_high(d);
        UNROLL for (int r = 0; r < R; r += AT_ONCE) {
            const float32x4_t numbers = vld1q_f32(four[r / 4]->scale + (HAS_PAIRS ? r % 4 * 2 : 0));
            if constexpr (HAS_PAIRS) acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(sum[r]), vmulq_f32(d01, numbers)), acc[r + 1] = vfmaq_f32(acc[r + 1], vcvtq_f32_s32(sum[r + 1]), vmulq_f32(d23, numbers));
            else acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(sum[r]), vmulq_n_f32(d, numbers[r % 4]));
        }
        if constexpr (T::minima > 0) {
            const float32x4_t dmin = floats_of_shorts(at.shorts(T::dmin));
            UNROLL for (int r = 0; r < R; r++) {
                int32x4_t m = vdupq_n_s32(0);
                UNROLL for (int i = 0; i < T::minima; i++) m = vmlal_n_s16(m, scales.minimum[i], four[r / 4]->sums[r % 4][i]);
                low[r] = vfmaq_f32(low[r], vcvtq_f32_s32(m), vmulq_n_f32(dmin, four[r / 4]->scale[r % 4 * AT_ONCE]));
            }
        }
        UNROLL for (int i = 0; i < FOURS; i++) four[i]++;
    }
    if constexpr (HAS_PAIRS) UNROLL for (int r = 0; r < R; r += 2) separate(acc[r], acc[r + 1]);
    if constexpr (T::minima > 0) UNROLL for (int r = 0; r < R; r++) acc[r] = vsubq_f32(acc[r], low[r]);
    float32x4_t results[R]; // where these are the sums themselves, each block writes them to memory
    UNROLL for (int r = 0; r < R; r++) results[r] = acc[r];
    store_columns(y, results, c, n_columns);
}
template <class T> struct Tiles256 {
    static constexpr int most = 8;
    static size_t bytes_of_16(int64_t k) { return k / 256 * 4 * sizeof(Four256<T::minima>); }
    template <class Where, int R> static void tile(const char * w, size_t stride, int64_t k, int64_t c, int64_t end, const char * rows, float * const * y) {
        tile256<T, Where, R>(Where(w, stride, c, end - c, 0), k / 256, rows, y, c, end - c);
    }
    static void pack(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end) { pack256<T>(row, to, r, k, begin, end); }
};

} // namespace ISA
