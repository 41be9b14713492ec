// Products with quantised weights as they lie in the file. A vector has 32 elements of one column, or of two columns (AVX-512).
//
//   weights   c0 k0-3 | c0 k4-7 | ... | c0 k28-31 || c1 k0-3 | ... | c1 k28-31      unpacked once for up to ROWS_PLAIN rows
//   row r      a k0-3 |  a k4-7 | ... |  a k28-31 ||  a k0-3 | ... |  a k28-31
//
// One dot instruction gives eight sums of four products for each column. These are added to eight float sums, block by block, and the
// eight at the end: the arithmetic of llama.cpp's dot products for AVX2, to the last bit.
#pragma once
#include "interleaved.h"

namespace ISA {

constexpr int ROWS_PLAIN = L == 16 ? 8 : 4;
constexpr int COLUMNS = L / 8; // of a vector
constexpr int64_t MOST_PLAIN32 = 1 << 16; // longest row with blocks of 32; two bytes of stack a weight

// The same 32 bytes, or eight values, for each column of the vector.
static inline Ints repeat(const void * p) {
#if defined(__AVX512BW__)
    return _mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *) p));
#else
    return load(p);
#endif
}
static inline Ints join(__m256i p, __m256i q) {
#if defined(__AVX512BW__)
    return _mm512_inserti64x4(_mm512_castsi256_si512(p), q, 1);
#else
    (void) q;
    return p;
#endif
}
static inline Ints negative16(Ints x) {
#if defined(__AVX512BW__)
    return _mm512_sub_epi16(zero_ints(), x);
#else
    return _mm256_sub_epi16(zero_ints(), x);
#endif
}
static inline Floats join(float p, float q) {
#if defined(__AVX512BW__)
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set1_ps(p)), _mm256_set1_ps(q), 1);
#else
    (void) q;
    return all(p);
#endif
}

static inline __m256 part_of(Floats x, int i) { // eight values of column i
#if defined(__AVX512BW__)
    return i ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x);
#else
    (void) i;
    return x;
#endif
}

// ---- blocks of 32

static inline __m256i nibbles32(const char * p) {
    const __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) p));
    return _mm256_and_si256(_mm256_srlv_epi32(x, _mm256_set_epi32(4, 4, 4, 4, 0, 0, 0, 0)), _mm256_set1_epi8(15));
}
// 16 in each byte whose bit is set.
static inline __m256i bits32(const char * p) {
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(int_at(p)), _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
    const __m256i bit = _mm256_set1_epi64x((long long) 0x8040201008040201);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(16));
}
static inline __m256i table32(const int8_t * values, __m256i index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) values)), index);
}

// Each type: whether its values are signed; `minimum` is where a block's minimum lies, or -1; `sums` float sums a column.
struct Plain_Q4_0 {
    static constexpr int bytes = 18, minimum = -1, sums = 1;
    static constexpr bool is_signed = true;
    static __m256i values(const char * p) { return _mm256_sub_epi8(nibbles32(p + 2), _mm256_set1_epi8(8)); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_Q4_1 {
    static constexpr int bytes = 20, minimum = 2, sums = 1;
    static constexpr bool is_signed = false;
    static __m256i values(const char * p) { return nibbles32(p + 4); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_Q5_0 {
    static constexpr int bytes = 22, minimum = -1, sums = 1;
    static constexpr bool is_signed = true;
    static __m256i values(const char * p) { return _mm256_sub_epi8(_mm256_or_si256(nibbles32(p + 6), bits32(p + 2)), _mm256_set1_epi8(16)); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_Q5_1 {
    static constexpr int bytes = 24, minimum = 2, sums = 1;
    static constexpr bool is_signed = false;
    static __m256i values(const char * p) { return _mm256_or_si256(nibbles32(p + 8), bits32(p + 4)); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_Q8_0 {
    static constexpr int bytes = 34, minimum = -1, sums = 1;
    static constexpr bool is_signed = true;
    static __m256i values(const char * p) { return _mm256_loadu_si256((const __m256i *) (p + 2)); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_IQ4_NL { // llama.cpp adds even and odd blocks apart
    static constexpr int bytes = 18, minimum = -1, sums = 2;
    static constexpr bool is_signed = true;
    static __m256i values(const char * p) { return table32(iq4_nl_values, nibbles32(p + 2)); }
    static float scale(const char * p) { return half_at(p); }
};
struct Plain_MXFP4 {
    static constexpr int bytes = 17, minimum = -1, sums = 2;
    static constexpr bool is_signed = true;
    static __m256i values(const char * p) { return table32(mxfp4_values, nibbles32(p + 1)); }
    static float scale(const char * p) { return mxfp4_scale((uint8_t) *p); }
};

// Prepared row: k bytes | scale of each block | scale times sum of each block (Q8_1). Where weights are signed and there is a dot
// instruction, which needs an unsigned side, the bytes are activations + 128; the weights' sums take 128 times themselves back.
struct RowPlain {
    const char * bytes;
    const float * scale, * sum;
    RowPlain() {}
    RowPlain(const char * row, int64_t k) : bytes(row), scale((const float *) (row + k)), sum((const float *) (row + k + k / 8)) {}
};

// The product of the scales of a column and of row r, from those of four rows in each 128 bits.
template <int R> static inline Floats of_row(Floats products) {
#if defined(__AVX512BW__)
    return _mm512_permute_ps(products, 0x55 * R);
#else
    return _mm256_permute_ps(products, 0x55 * R);
#endif
}
static inline Floats four_rows(const float * p) {
#if defined(__AVX512BW__)
    return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
#else
    return _mm256_broadcast_ps((const __m128 *) p);
#endif
}

// Scales, and scales times sums, of a block: a lane for each row of the tile.
struct OfRows { float scale[8], sum[8]; };

// J vectors of columns from p on.
template <class T, int R, int J> static void tile_plain(const char * p, size_t stride, int64_t n_columns, int64_t n_blocks, const RowPlain * rows, const OfRows * of_rows, float * const * y) {
    constexpr int N = J * COLUMNS;
    Floats acc[R][J][T::sums];
    __m256 low[N];
    const char * at[N];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int j = 0; j < J; j++) UNROLL for (int i = 0; i < T::sums; i++) acc[r][j][i] = zero();
    UNROLL for (int i = 0; i < N; i++) low[i] = _mm256_setzero_ps(), at[i] = p + (i < n_columns ? i : 0) * stride;
    const auto block = [&](int64_t b, auto which) {
        constexpr int I = decltype(which)::value;
        const int64_t ahead = 1024 + (b * T::bytes + 1024 < (int64_t) stride ? 0 : (N - 1) * stride); // the next columns lie behind these
        Ints w[J], start[J];
        Floats products[J][2];
        UNROLL for (int j = 0; j < J; j++) {
            const char * u = at[j * COLUMNS], * v = at[j * COLUMNS + COLUMNS - 1];
            w[j] = join(T::values(u), T::values(v));
            const Floats scale = join(T::scale(u), T::scale(v));
            UNROLL for (int h = 0; h < (R + 3) / 4; h++) products[j][h] = mul(scale, four_rows(of_rows[b].scale + 4 * h));
#if HAS_DOT
            start[j] = zero_ints();
            if constexpr (T::is_signed) start[j] = subtract32(start[j], dot(start[j], all_bytes(128), w[j]));
#else
            if constexpr (T::is_signed) start[j] = absolute(w[j]);
#endif
        }
        UNROLL for (int i = 0; i < N; i++) {
            if constexpr (T::minimum >= 0) low[i] = _mm256_fmadd_ps(_mm256_set1_ps(half_at(at[i] + T::minimum)), _mm256_loadu_ps(of_rows[b].sum), low[i]);
            _mm_prefetch(at[i] + ahead, _MM_HINT_T0);
            at[i] += T::bytes;
        }
        const auto row = [&](auto number) {
            constexpr int r = decltype(number)::value;
            if constexpr (r < R) {
                const Ints a = repeat(rows[r].bytes + 32 * b);
                UNROLL for (int j = 0; j < J; j++) {
#if HAS_DOT
                    const Ints x = T::is_signed ? dot(start[j], a, w[j]) : dot(start[j], w[j], a);
#else
                    const Ints x = pairs16(T::is_signed ? pairs8(start[j], with_sign_of(a, w[j])) : pairs8(w[j], a), all_shorts(1));
#endif
                    acc[r][j][I] = fma(to_floats(x), of_row<r % 4>(products[j][r / 4]), acc[r][j][I]);
                }
            }
        };
        row(Int<0>()), row(Int<1>()), row(Int<2>()), row(Int<3>()), row(Int<4>()), row(Int<5>()), row(Int<6>()), row(Int<7>());
    };
    int64_t b = 0;
    if constexpr (T::sums == 2) {
        for (; b + 1 < n_blocks; b += 2) block(b, Int<0>()), block(b + 1, Int<1>());
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int j = 0; j < J; j++) acc[r][j][0] = add(acc[r][j][0], acc[r][j][1]);
    }
    for (; b < n_blocks; b++) block(b, Int<0>());
    alignas(32) float m[N][8];
    UNROLL for (int i = 0; i < N; i++) _mm256_store_ps(m[i], low[i]);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < N; i++) {
            if (i >= n_columns) break;
            const float sum = sum8(part_of(acc[r][i / COLUMNS][0], i % COLUMNS));
            y[r][i] = T::minimum >= 0 ? sum + m[i][r] : sum;
        }
}

#if defined(__AVX512BW__)
// The same for one column: one stream of weights is faster where memory is the limit.
template <class T, int R> static void tile_plain_narrow(const char * p, int64_t n_blocks, const RowPlain * rows, float * const * y) {
    __m256 acc[R][T::sums];
    float low[R];
    UNROLL for (int r = 0; r < R; r++) {
        low[r] = 0;
        UNROLL for (int i = 0; i < T::sums; i++) acc[r][i] = _mm256_setzero_ps();
    }
    const auto block = [&](int64_t b, auto which) {
        constexpr int I = decltype(which)::value;
        const __m256i w = T::values(p);
        const float scale = T::scale(p), minimum = T::minimum >= 0 ? half_at(p + T::minimum) : 0;
        _mm_prefetch(p + 2048, _MM_HINT_T0);
        p += T::bytes;
#if HAS_DOT
        const __m256i start = T::is_signed ? _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8((char) 128), w)) : _mm256_setzero_si256();
#endif
        UNROLL for (int r = 0; r < R; r++) {
            const __m256i a = _mm256_loadu_si256((const __m256i *) (rows[r].bytes + 32 * b));
#if HAS_DOT
            const __m256i x = T::is_signed ? _mm256_dpbusd_epi32(start, a, w) : _mm256_dpbusd_epi32(start, w, a);
#else
            const __m256i pairs = T::is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
            const __m256i x = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
            acc[r][I] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(scale * rows[r].scale[b]), acc[r][I]);
            if (T::minimum >= 0) low[r] = __builtin_fmaf(minimum, rows[r].sum[b], low[r]);
        }
    };
    int64_t b = 0;
    if constexpr (T::sums == 2) {
        for (; b + 1 < n_blocks; b += 2) block(b, Int<0>()), block(b + 1, Int<1>());
        UNROLL for (int r = 0; r < R; r++) acc[r][0] = _mm256_add_ps(acc[r][0], acc[r][1]);
    }
    for (; b < n_blocks; b++) block(b, Int<0>());
    UNROLL for (int r = 0; r < R; r++) y[r][0] = T::minimum >= 0 ? sum8(acc[r][0]) + low[r] : sum8(acc[r][0]);
}
#endif

template <class T> static void multiply32_plain(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    constexpr int J = L == 16 && T::sums == 1 ? 2 : 1;
    const int64_t n_blocks = k / 32;
    OfRows of_rows[MOST_PLAIN32 / 32];
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS_PLAIN);
        RowPlain rows[ROWS_PLAIN];
        for (int r = 0; r < m; r++) rows[r] = RowPlain(x[r0 + r], k);
#if defined(__AVX512BW__)
        if (m <= NARROW) {
            for (int64_t c = c0; c < c1; c++) {
                float * out[NARROW];
                for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
                if (m == 1) tile_plain_narrow<T, 1>(w + c * stride, n_blocks, rows, out);
                else tile_plain_narrow<T, 2>(w + c * stride, n_blocks, rows, out);
            }
            r0 += m;
            continue;
        }
#endif
        for (int64_t b = 0; b < n_blocks; b++)
            for (int r = 0; r < 8; r++) of_rows[b].scale[r] = r < m ? rows[r].scale[b] : 0, of_rows[b].sum[r] = r < m && T::minimum >= 0 ? rows[r].sum[b] : 0;
        for (int64_t c = c0; c < c1; c += J * COLUMNS) {
            float * out[ROWS_PLAIN];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile_plain<T, R, J>(w + c * stride, stride, c1 - c, n_blocks, rows, of_rows, out)
            WITH_ROWS(m, ROWS_PLAIN, CALL)
#undef CALL
        }
        r0 += m;
    }
}

// ---- superblocks of 256: eight groups of 32 elements, each 16 of them with an integer scale. A column at a time.

constexpr int V = 256 / (4 * L); // vectors of a superblock

// Codes and scales of a superblock of one column.
struct Superblock {
    Ints codes[V];   // 4 L elements
    Ints scale[V];   // of the pairs of elements, as 16 bits
    __m256i scales16; // of each 16 elements
    float d, dmin;
};

// Scale of 16 elements in each lane's 16 bits, from one for each 16 elements of the superblock.
static inline void spread_scales(__m256i scales16, Superblock & s) {
    s.scales16 = scales16;
    alignas(32) int16_t x[16];
    _mm256_store_si256((__m256i *) x, scales16);
    UNROLL for (int v = 0; v < V; v++) {
#if defined(__AVX512BW__)
        const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(x[4 * v])), _mm_set1_epi16(x[4 * v + 1]), 1);
        const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(x[4 * v + 2])), _mm_set1_epi16(x[4 * v + 3]), 1);
        s.scale[v] = join(a, b);
#else
        s.scale[v] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(x[2 * v])), _mm_set1_epi16(x[2 * v + 1]), 1);
#endif
    }
}
static inline void put(Superblock & s, int group, __m256i a, __m256i b) { // groups `group` (even) and the next one
#if defined(__AVX512BW__)
    s.codes[group / 2] = join(a, b);
#else
    s.codes[group] = a, s.codes[group + 1] = b;
#endif
}
static inline __m256i bytes_at(const char * p) { return _mm256_loadu_si256((const __m256i *) p); }
template <int N> static inline __m256i field(__m256i x, int mask) { return _mm256_and_si256(N >= 0 ? _mm256_srli_epi16(x, N < 0 ? 0 : N) : _mm256_slli_epi16(x, N < 0 ? -N : 0), _mm256_set1_epi8((char) mask)); }

// Scales (low 8 bytes) and minima (high) of Q4_K and Q5_K: 6 bits each.
static inline __m128i scales6(const char * p) {
    const uint32_t a = int_at(p), b = int_at(p + 4), c = int_at(p + 8);
    return _mm_set_epi32((int) ((c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4), (int) (b & 0x3f3f3f3fu),
                         (int) ((c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4), (int) (a & 0x3f3f3f3fu));
}
static inline __m256i doubled(__m128i scales8) { return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(scales8, scales8)); }

// What a type takes from where: offsets from the whole-number sums, minima from the eight float sums, or from sums of their own.
enum Lows { FROM_SUMS, FROM_EIGHT, APART };

struct Plain_Q4_K {
    static constexpr int bytes = 144;
    static constexpr Lows lows = APART;
    __m128i minima;
    void unpack(const char * p, Superblock & s) {
        s.d = half_at(p), s.dmin = half_at(p + 2);
        const __m128i x = scales6(p + 4);
        minima = _mm_cvtepu8_epi16(_mm_srli_si128(x, 8));
        spread_scales(doubled(x), s);
        UNROLL for (int j = 0; j < 4; j++) {
            const __m256i q = bytes_at(p + 16 + 32 * j);
            put(s, 2 * j, field<0>(q, 15), field<4>(q, 15));
        }
    }
    struct Low { __m128 x; };
    static void clear(Low & low) { low.x = _mm_setzero_ps(); }
    // llama.cpp keeps four sums of the minima.
    void minimum(float dmin, const Row256 & row, int64_t b, Low & low) const {
        const __m128i m = _mm_madd_epi16(minima, _mm_loadu_si128((const __m128i *) (row.sums32 + 8 * b)));
        low.x = _mm_fmadd_ps(_mm_set1_ps(-row.scale[b] * dmin), _mm_cvtepi32_ps(m), low.x);
    }
    static float result(__m256 acc, const Low & low) {
        const __m128 x = _mm_add_ps(low.x, _mm_movehl_ps(low.x, low.x));
        return sum8(acc) + _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
};
struct Plain_Q5_K {
    static constexpr int bytes = 176;
    static constexpr Lows lows = APART;
    __m128i minima;
    void unpack(const char * p, Superblock & s) {
        s.d = half_at(p), s.dmin = half_at(p + 2);
        const __m128i x = scales6(p + 4);
        minima = _mm_cvtepu8_epi16(_mm_srli_si128(x, 8));
        spread_scales(doubled(x), s);
        const __m256i h = bytes_at(p + 16);
        const auto pair = [&](auto which) {
            constexpr int j = decltype(which)::value;
            const __m256i q = bytes_at(p + 48 + 32 * j);
            put(s, 2 * j, _mm256_or_si256(field<0>(q, 15), field<2 * j - 4>(h, 16)), _mm256_or_si256(field<4>(q, 15), field<2 * j - 3>(h, 16)));
        };
        pair(Int<0>()), pair(Int<1>()), pair(Int<2>()), pair(Int<3>());
    }
    struct Low { float x; };
    static void clear(Low & low) { low.x = 0; }
    void minimum(float dmin, const Row256 & row, int64_t b, Low & low) const {
        __m128i m = _mm_madd_epi16(minima, _mm_loadu_si128((const __m128i *) (row.sums32 + 8 * b)));
        m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
        low.x = __builtin_fmaf(-row.scale[b] * dmin, (float) _mm_cvtsi128_si32(m), low.x);
    }
    static float result(__m256 acc, const Low & low) { return sum8(acc) + low.x; }
};
struct Plain_Q2_K {
    static constexpr int bytes = 84;
    static constexpr Lows lows = FROM_EIGHT;
    __m256i minima;
    void unpack(const char * p, Superblock & s) {
        s.d = half_at(p + 80), s.dmin = half_at(p + 82);
        const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *) p));
        minima = _mm256_srli_epi16(x, 4);
        spread_scales(_mm256_and_si256(x, _mm256_set1_epi16(15)), s);
        UNROLL for (int j = 0; j < 2; j++) {
            const __m256i q = bytes_at(p + 16 + 32 * j);
            put(s, 4 * j, field<0>(q, 3), field<2>(q, 3)), put(s, 4 * j + 2, field<4>(q, 3), field<6>(q, 3));
        }
    }
    struct Low {};
    static void clear(Low &) {}
    void minimum(float dmin, const Row256 & row, int64_t b, __m256 & acc) const {
        const __m256i m = _mm256_madd_epi16(minima, _mm256_loadu_si256((const __m256i *) (row.sums16 + 16 * b)));
        acc = _mm256_fmadd_ps(_mm256_set1_ps(-row.scale[b] * dmin), _mm256_cvtepi32_ps(m), acc);
    }
    static float result(__m256 acc, const Low &) { return sum8(acc); }
};
// Q3_K and Q6_K have no minima; their codes are value + 4 and value + 32, which is taken back with the sums of 16 activations.
template <int SHIFT> struct WithOffset {
    static constexpr Lows lows = FROM_SUMS;
    static constexpr int shift = SHIFT;
    __m256i scales;
    struct Low {};
    static void clear(Low &) {}
    void offset(const Row256 & row, int64_t b, Ints & sum) const {
        const __m256i m = _mm256_slli_epi32(_mm256_madd_epi16(scales, _mm256_loadu_si256((const __m256i *) (row.sums16 + 16 * b))), SHIFT);
#if defined(__AVX512BW__)
        sum = _mm512_sub_epi32(sum, _mm512_zextsi256_si512(m));
#else
        sum = _mm256_sub_epi32(sum, m);
#endif
    }
    static float result(__m256 acc, const Low &) { return sum8(acc); }
};
struct Plain_Q6_K : WithOffset<5> {
    static constexpr int bytes = 210;
    void unpack(const char * p, Superblock & s) {
        s.d = half_at(p + 208);
        scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) (p + 192)));
        spread_scales(scales, s);
        UNROLL for (int j = 0; j < 2; j++) {
            const __m256i a = bytes_at(p + 64 * j), b = bytes_at(p + 64 * j + 32), h = bytes_at(p + 128 + 32 * j);
            put(s, 4 * j, _mm256_or_si256(field<0>(a, 15), field<-4>(h, 48)), _mm256_or_si256(field<0>(b, 15), field<-2>(h, 48)));
            put(s, 4 * j + 2, _mm256_or_si256(field<4>(a, 15), field<0>(h, 48)), _mm256_or_si256(field<4>(b, 15), field<2>(h, 48)));
        }
    }
};
struct Plain_Q3_K : WithOffset<2> {
    static constexpr int bytes = 110;
    void unpack(const char * p, Superblock & s) {
        s.d = half_at(p + 108);
        // 6 bits a scale: low nibbles in 8 bytes, the two high bits in 4 more; value + 32.
        const uint32_t a = int_at(p + 96), b = int_at(p + 100), c = int_at(p + 104);
        const __m128i x = _mm_set_epi32((int) ((b >> 4 & 0x0f0f0f0fu) | (c >> 6 & 0x03030303u) << 4), (int) ((a >> 4 & 0x0f0f0f0fu) | (c >> 4 & 0x03030303u) << 4),
                                        (int) ((b & 0x0f0f0f0fu) | (c >> 2 & 0x03030303u) << 4), (int) ((a & 0x0f0f0f0fu) | (c & 0x03030303u) << 4));
        scales = _mm256_cvtepi8_epi16(_mm_sub_epi8(x, _mm_set1_epi8(32)));
        spread_scales(scales, s);
        const __m256i h = bytes_at(p);
        const auto half = [&](auto which) {
            constexpr int j = decltype(which)::value;
            const __m256i q = bytes_at(p + 32 + 32 * j);
            put(s, 4 * j, _mm256_or_si256(field<0>(q, 3), field<4 * j - 2>(h, 4)), _mm256_or_si256(field<2>(q, 3), field<4 * j - 1>(h, 4)));
            put(s, 4 * j + 2, _mm256_or_si256(field<4>(q, 3), field<4 * j>(h, 4)), _mm256_or_si256(field<6>(q, 3), field<4 * j + 1>(h, 4)));
        };
        half(Int<0>()), half(Int<1>());
    }
};

template <class T, int R> static void tile_super(const char * p, int64_t n_blocks, const Row256 * rows, float * const * y) {
    __m256 acc[R];
    typename T::Low low[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_ps(), T::clear(low[r]);
    for (int64_t b = 0; b < n_blocks; b++, p += T::bytes) {
        T type;
        Superblock s;
        type.unpack(p, s);
        UNROLL for (int i = 0; i < T::bytes; i += 64) _mm_prefetch(p + 1024 + i, _MM_HINT_T0);
        UNROLL for (int r = 0; r < R; r++) {
            const char * a = rows[r].bytes + 256 * b;
            Ints sum = pairs16(pairs8(s.codes[0], load(a)), s.scale[0]);
            UNROLL for (int v = 1; v < V; v++) sum = add_pairs16(sum, pairs8(s.codes[v], load(a + 4 * L * v)), s.scale[v]);
            if constexpr (T::lows == FROM_SUMS) type.offset(rows[r], b, sum);
            else if constexpr (T::lows == FROM_EIGHT) type.minimum(s.dmin, rows[r], b, acc[r]);
            else type.minimum(s.dmin, rows[r], b, low[r]);
#if defined(__AVX512BW__)
            const __m256i x = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
#else
            const __m256i x = sum;
#endif
            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(rows[r].scale[b] * s.d), _mm256_cvtepi32_ps(x), acc[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) *y[r] = T::result(acc[r], low[r]);
}

// A superblock of COLUMNS columns, unpacked for many rows: 32 elements of each in a vector.
template <class T> struct UnpackedSuper {
    Ints codes[8], scale[8], by16; // by16: what meets the sums of 16 activations, offsets or minima
    Floats d, dmin;
    T type[COLUMNS];
    void unpack(const char * p, const char * q) {
        Superblock s[2];
        s[0].dmin = s[1].dmin = 0;
        UNROLL for (int i = 0; i < COLUMNS; i++) type[i].unpack(i ? q : p, s[i]);
        const __m256i * const u = (const __m256i *) s[0].codes, * const v = (const __m256i *) s[COLUMNS - 1].codes;
        const __m256i * const x = (const __m256i *) s[0].scale, * const z = (const __m256i *) s[COLUMNS - 1].scale;
        UNROLL for (int i = 0; i < 8; i++) codes[i] = join(u[i], v[i]), scale[i] = join(x[i], z[i]);
        if constexpr (T::lows == FROM_SUMS) by16 = negative16(shift_left(join(type[0].scales, type[COLUMNS - 1].scales), T::shift));
        if constexpr (T::lows == FROM_EIGHT) by16 = join(type[0].minima, type[COLUMNS - 1].minima);
        d = join(s[0].d, s[COLUMNS - 1].d), dmin = join(s[0].dmin, s[COLUMNS - 1].dmin);
    }
};

// Add the products of `depth` superblocks from b on.
template <class T, int R> static void add_super(const UnpackedSuper<T> * u, int depth, const Row256 * rows, int64_t b, Floats * acc, typename T::Low (*low)[BLOCK_ROWS]) {
    for (int i = 0; i < depth; i++, b++, u++) {
        Ints sum[R], lows[R];
        UNROLL for (int r = 0; r < R; r++) {
            if constexpr (T::lows != APART) lows[r] = pairs16(u->by16, repeat(rows[r].sums16 + 16 * b));
            sum[r] = T::lows == FROM_SUMS ? lows[r] : zero_ints();
        }
        UNROLL for (int j = 0; j < 8; j++)
            UNROLL for (int r = 0; r < R; r++) {
                sum[r] = add_pairs16(sum[r], pairs8(u->codes[j], repeat(rows[r].bytes + 256 * b + 32 * j)), u->scale[j]);
                in_order(sum[r]);
            }
        UNROLL for (int r = 0; r < R; r++) {
            const float scale = rows[r].scale[b];
            if constexpr (T::lows == FROM_EIGHT) acc[r] = fma(mul(all(-scale), u->dmin), to_floats(lows[r]), acc[r]);
            if constexpr (T::lows == APART) UNROLL for (int c = 0; c < COLUMNS; c++) u->type[c].minimum(((const float *) &u->dmin)[8 * c], rows[r], b, low[c][r]);
            acc[r] = fma(mul(all(scale), u->d), to_floats(sum[r]), acc[r]);
        }
    }
}

template <class T> static void multiply_super_blocks(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    constexpr int GROUPS = 4, DEPTH = 64 / L; // of COLUMNS columns; superblocks
    alignas(64) UnpackedSuper<T> u[GROUPS][DEPTH];
    alignas(64) Floats acc[GROUPS][BLOCK_ROWS];
    typename T::Low low[GROUPS][COLUMNS][BLOCK_ROWS];
    Row256 rows[BLOCK_ROWS];
    for (int first = 0, m; first < n; first += m) {
        m = rows_of_block(x + first, n - first, k, rows);
        for (int64_t c = c0; c < c1; c += GROUPS * COLUMNS) {
            const int groups = (int) (c1 - c < GROUPS * COLUMNS ? (c1 - c + COLUMNS - 1) / COLUMNS : GROUPS);
            memset((void *) acc, 0, sizeof(acc)), memset((void *) low, 0, sizeof(low));
            for (int64_t b = 0; b < k / 256; b += DEPTH) {
                const int depth = (int) (k / 256 - b < DEPTH ? k / 256 - b : DEPTH);
                for (int g = 0; g < groups; g++) {
                    const int64_t at = c + g * COLUMNS, next = at + COLUMNS - 1 < c1 ? at + COLUMNS - 1 : at;
                    for (int i = 0; i < depth; i++) u[g][i].unpack(w + at * stride + (b + i) * T::bytes, w + next * stride + (b + i) * T::bytes);
                }
                for (int r = 0; r < m; r += ROWS_AT_ONCE)
                    for (int g = 0; g < groups; g++) add_super<T, ROWS_AT_ONCE>(u[g], depth, rows + r, b, acc[g] + r, (typename T::Low (*)[BLOCK_ROWS]) (low[g][0] + r));
            }
            for (int r = 0; r < m && first + r < n; r++)
                for (int i = 0; i < groups * COLUMNS && c + i < c1; i++) y[first + r][c + i] = T::result(part_of(acc[i / COLUMNS][r], i % COLUMNS), low[i / COLUMNS][i % COLUMNS][r]);
        }
    }
}

template <class T> static void multiply_super(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    if (n >= 16) return multiply_super_blocks<T>(w, stride, k, c0, c1, x, y, n);
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS_PLAIN);
        Row256 rows[ROWS_PLAIN];
        for (int r = 0; r < m; r++) rows[r] = Row256(x[r0 + r], k);
        for (int64_t c = c0; c < c1; c++) {
            float * out[ROWS_PLAIN];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile_super<T, R>(w + c * stride, k / 256, rows, out)
            WITH_ROWS(m, ROWS_PLAIN, CALL)
#undef CALL
        }
        r0 += m;
    }
}

} // namespace ISA
