// Products with weights that llama.cpp has repacked: eight columns interleaved. A lane of a vector is a column.
//
// A group of eight columns holds, for each 32 elements (16 bytes of a column, two nibbles a byte):
//
//   8 scales | c0 k0-7 | c1 k0-7 | ... | c7 k0-7 | c0 k8-15 | ... | c7 k8-15        low nibbles; high nibbles are k16-31
//
// Two loads are shuffled to one vector that has four elements of each of L columns. An activation's four bytes, broadcast from memory,
// meet it in one dot instruction; eight of these finish 32 elements without any sum across lanes:
//
//   lane          0            1           ...      L-1
//   weights   c0 k0-3      c1 k0-3         ...   c(L-1) k0-3        unpacked once for up to ROWS rows
//   row r      a k0-3       a k0-3         ...      a k0-3
//
// Weights are unsigned (value + OFFSET); -OFFSET times the sum of the activations is where the sum starts. Integer sums are exact, and
// the float part is that of llama.cpp's single row: acc = fma(float(sum), scale of the column * scale of the row, acc), block by block.
#pragma once
#include "simd.h"

namespace ISA {

constexpr int ROWS = L == 16 ? 8 : 6;   // most rows of a tile: their sums and the weights fit into the registers
constexpr int NARROW = 2;                // rows up to which the narrow tiles are used
constexpr int ROWS_K = L == 16 ? 8 : 4;

// Four elements of each of L columns, the first four (even) and the next four (odd), from the 64 bytes at p and, on AVX-512, at q.
static inline void columns_at(const char * p, const char * q, Ints & even, Ints & odd) {
#if defined(__AVX512BW__)
    const __m512i a = load(p), b = load(q);
    const __m512i index = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    even = _mm512_permutex2var_epi32(a, index, b);
    odd = _mm512_permutex2var_epi32(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
#else
    (void) q;
    const __m256 a = _mm256_castsi256_ps(load(p)), b = _mm256_castsi256_ps(load(p + 32));
    even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)); // lanes: c0 c1 c4 c5 c2 c3 c6 c7, see in_lanes
    odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
#endif
}

// Values of columns 0 to 7 (p) and 8 to 15 (q) in the order of the lanes.
static inline Floats in_lanes(__m256 p, __m256 q) {
#if defined(__AVX512BW__)
    return _mm512_insertf32x8(_mm512_castps256_ps512(p), q, 1);
#else
    (void) q;
    return _mm256_permutevar8x32_ps(p, _mm256_set_epi32(7, 6, 3, 2, 5, 4, 1, 0));
#endif
}
static inline Ints in_lanes(__m256i p, __m256i q) {
#if defined(__AVX512BW__)
    return _mm512_inserti32x8(_mm512_castsi256_si512(p), q, 1);
#else
    (void) q;
    return _mm256_permutevar8x32_epi32(p, _mm256_set_epi32(7, 6, 3, 2, 5, 4, 1, 0));
#endif
}
static inline void store_columns(float * y, Floats x, int64_t n_columns) {
#if defined(__AVX512BW__)
    _mm512_mask_storeu_ps(y, n_columns >= 16 ? 0xffff : 0xff, x);
#else
    (void) n_columns;
    _mm256_storeu_ps(y, in_lanes(x, x)); // the order is its own inverse
#endif
}
static inline __m256 halves_at(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }

// ---- blocks of 32

// A block of a prepared row: activations, their scale, and where their sums start.
struct Block32 {
    char bytes[32];
    float scale;
    int32_t start;
};

struct Interleaved_Q4_0 {
    static constexpr int group_bytes = 144, codes = 16, offset = 8, most = 15;
    static __m256 scales(const char * p) { return halves_at(p); }
    static Ints values(Ints nibbles) { return flip(nibbles, all_bytes(8)); } // llama.cpp stores the code of value + 8 with its top bit flipped
};
struct Interleaved_IQ4_NL {
    static constexpr int group_bytes = 144, codes = 16, offset = 128, most = 241;
    static __m256 scales(const char * p) { return halves_at(p); }
    static Ints values(Ints nibbles) {
        const Ints v = look_up(table_of(iq4_nl_values), nibbles);
        return HAS_DOT ? flip(v, all_bytes(128)) : v;
    }
};
struct Interleaved_MXFP4 {
    static constexpr int group_bytes = 136, codes = 8, offset = 12, most = 24;
    static __m256 scales(const char * p) {
        float x[8];
        for (int i = 0; i < 8; i++) x[i] = mxfp4_scale((uint8_t) p[i]);
        return _mm256_loadu_ps(x);
    }
    static Ints values(Ints nibbles) {
        const int8_t plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
        return look_up(table_of(plus12), nibbles);
    }
};

// Sums of 32 products of each column for R rows: w[i] holds elements 4 i to 4 i + 3.
template <class T, int R> static inline void sums32(const Ints * w, const Block32 * const * rows, int64_t b, Ints * x) {
    UNROLL for (int r = 0; r < R; r++) x[r] = all_ints(rows[r][b].start);
#if HAS_DOT
    // by elements first: sums of different rows do not wait for each other
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int r = 0; r < R; r++) x[r] = dot(x[r], w[i], all_ints(int_at(rows[r][b].bytes + 4 * i)));
#else
    UNROLL for (int r = 0; r < R; r++) {
        const char * a = rows[r][b].bytes;
        if (T::most > 24) { // signed bytes: |w| by a with the sign of w
            UNROLL for (int i = 0; i < 8; i++) x[r] = add32(x[r], pairs16(pairs8(absolute(w[i]), with_sign_of(all_ints(int_at(a + 4 * i)), w[i])), all_shorts(1)));
            continue;
        }
        Ints u = pairs8(w[0], all_ints(int_at(a))), v = pairs8(w[4], all_ints(int_at(a + 16))); // each below 2^15: four times 2 most 127
        UNROLL for (int i = 1; i < 4; i++) { u = add16(u, pairs8(w[i], all_ints(int_at(a + 4 * i)))); v = add16(v, pairs8(w[i + 4], all_ints(int_at(a + 4 * i + 16)))); }
        const Ints both_of = T::most <= 15 ? pairs16(add16(u, v), all_shorts(1)) : add32(pairs16(u, all_shorts(1)), pairs16(v, all_shorts(1)));
        x[r] = add32(both_of, x[r]);
    }
#endif
}

template <class T, int R> static void tile32(const char * p, const char * q, int64_t n_blocks, const Block32 * const * rows, float * const * y, int64_t n_columns) {
    Floats acc[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = zero();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes, q += T::group_bytes) {
        Ints w[8];
        UNROLL for (int i = 0; i < 2; i++) {
            Ints even, odd;
            columns_at(p + T::codes + 64 * i, q + T::codes + 64 * i, even, odd);
            const Ints low = all_bytes(15);
            w[2 * i] = T::values(both(even, low));
            w[2 * i + 1] = T::values(both(odd, low));
            w[2 * i + 4] = T::values(both(shift_right(even, 4), low));
            w[2 * i + 5] = T::values(both(shift_right(odd, 4), low));
        }
        const int64_t ahead = 16 * T::group_bytes + (b + 16 < n_blocks ? 0 : q - p); // the next columns lie behind those at q
        _mm_prefetch(p + ahead, _MM_HINT_T0), _mm_prefetch(p + ahead + 64, _MM_HINT_T0);
        if (L == 16) _mm_prefetch(q + ahead, _MM_HINT_T0), _mm_prefetch(q + ahead + 64, _MM_HINT_T0);
        const Floats scale = in_lanes(T::scales(p), T::scales(q));
        Ints x[R];
        sums32<T, R>(w, rows, b, x);
        UNROLL for (int r = 0; r < R; r++) acc[r] = fma(to_floats(x[r]), mul(scale, all(rows[r][b].scale)), acc[r]);
    }
    UNROLL for (int r = 0; r < R; r++) store_columns(y[r], acc[r], n_columns);
}

constexpr int HALVES = 16 / L; // vectors of 64 bytes: eight bytes of each of eight columns

// A sum for each of eight columns, from sums in two neighbouring lanes.
static inline __m256i sum_of_lanes(const Ints * x) {
#if defined(__AVX512BW__)
    return _mm512_cvtepi64_epi32(add32(x[0], _mm512_srli_epi64(x[0], 32)));
#else
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(x[0], x[1]), 0xd8);
#endif
}

// The same for one group of eight columns, without a shuffle: a column has two neighbouring lanes. One stream of weights is faster where
// memory is the limit.
template <class T, int R> static void tile32_narrow(const char * p, int64_t n_blocks, const Block32 * const * rows, float * const * y) {
    __m256 acc[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes) {
        Ints w[4][HALVES];
        UNROLL for (int h = 0; h < HALVES; h++)
            UNROLL for (int i = 0; i < 2; i++) {
                const Ints raw = load(p + T::codes + 64 * i + 32 * h);
                w[i][h] = T::values(both(raw, all_bytes(15))), w[i + 2][h] = T::values(both(shift_right(raw, 4), all_bytes(15)));
            }
        _mm_prefetch(p + 2048, _MM_HINT_T0), _mm_prefetch(p + 2112, _MM_HINT_T0);
        const __m256 scale = T::scales(p);
        UNROLL for (int r = 0; r < R; r++) {
            Ints x[HALVES];
            UNROLL for (int i = 0; i < 4; i++) {
                const Ints a = all_longs(rows[r][b].bytes + 8 * i);
                UNROLL for (int h = 0; h < HALVES; h++) {
#if HAS_DOT
                    x[h] = dot(i ? x[h] : zero_ints(), w[i][h], a);
#else
                    if (T::most > 24) { // as in sums32
                        const Ints y32 = pairs16(pairs8(absolute(w[i][h]), with_sign_of(a, w[i][h])), all_shorts(1));
                        x[h] = i ? add32(x[h], y32) : y32;
                    } else {
                        const Ints y16 = pairs8(w[i][h], a); // the sum is below 2^15: four times 2 most 127
                        x[h] = i ? add16(x[h], y16) : y16;
                    }
#endif
                }
            }
            if (!HAS_DOT && T::most <= 24) UNROLL for (int h = 0; h < HALVES; h++) x[h] = pairs16(x[h], all_shorts(1));
            const __m256i sum = _mm256_add_epi32(sum_of_lanes(x), _mm256_set1_epi32(rows[r][b].start));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, _mm256_set1_ps(rows[r][b].scale)), acc[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) _mm256_storeu_ps(y[r], acc[r]);
}

template <class T> static void multiply32_interleaved(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS);
        const Block32 * const * rows = (const Block32 * const *) (x + r0);
        if (m <= NARROW) {
            for (int64_t c = c0; c < c1; c += 8) {
                float * out[NARROW];
                for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
                if (m == 1) tile32_narrow<T, 1>(w + c * stride, k / 32, rows, out);
                else tile32_narrow<T, 2>(w + c * stride, k / 32, rows, out);
            }
            r0 += m;
            continue;
        }
        for (int64_t c = c0; c < c1; c += L) {
            const char * p = w + c * stride, * q = c + 8 < c1 ? p + 8 * stride : p;
            float * out[ROWS];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile32<T, R>(p, q, k / 32, rows, out, c1 - c)
            WITH_ROWS(m, ROWS, CALL)
#undef CALL
        }
        r0 += m;
    }
}

// ---- superblocks of 256: parts of 32 (Q4_K) or 16 (Q2_K) elements have integer scales and minima

// Scales and minima of a superblock of L columns, a lane each.
struct Scales {
    Ints scale[16];  // of each part; without HAS_DOT twice in a lane, as 16 bits
    Ints minimum[8]; // of two parts, as 16 bits
};
static inline Ints scale_of(__m256i p, __m256i q) {
    const Ints x = in_lanes(p, q);
#if HAS_DOT
    return x;
#elif defined(__AVX512BW__)
    return _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
#else
    return _mm256_or_si256(x, _mm256_slli_epi32(x, 16));
#endif
}
// Minima of two parts, side by side as 16 bits for each column.
static inline __m256i minima_of(__m128i a, __m128i b) { return _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)); }

struct Interleaved_Q4_K {
    static constexpr int group_bytes = 1152, codes = 128, parts = 8;
    // Scales of eight columns in the low bytes, minima in the high ones. 12 bytes a part, 6 bits each.
    static __m128i part_of(const char * p, int part) {
        const __m128i x = _mm_loadu_si128((const __m128i *) (p + 32 + 12 * part)); // scales and minima of columns 0 to 3 | their high bits, for columns 4 to 7 | low bits for these
        const __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(x, 0xaa), _mm_set_epi32(0, 0, 4, 0)), _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(x, 2), _mm_set1_epi8(0x30));
        return _mm_unpacklo_epi32(_mm_and_si128(x, _mm_set1_epi8(0x3f)), _mm_or_si128(low, high));
    }
    // w: elements of part `part` of a load of N vectors, which has parts_of_load parts.
    static constexpr int parts_of_load = 2;
    template <int N> static void weights(const Ints * raw, int part, Ints * w) {
        UNROLL for (int i = 0; i < N; i++) w[i] = both(part ? shift_right(raw[i], 4) : raw[i], all_bytes(15));
    }
    static const char * sums(const Row256 & row, int64_t b) { return (const char *) (row.sums32 + 8 * b); }
    // Elements of part `part` of a load, within its 64.
    static constexpr int at(int part) { return 32 * part; }
};
struct Interleaved_Q2_K {
    static constexpr int group_bytes = 672, codes = 160, parts = 16;
    // The same as of Q4_K. 16 bytes for two parts: scale (low) and minimum (high nibble) of part 0 and 1 for each column.
    static __m128i part_of(const char * p, int part) {
        __m128i x = _mm_loadu_si128((const __m128i *) (p + 32 + 16 * (part / 2)));
        x = _mm_and_si128(part % 2 ? _mm_srli_epi16(x, 8) : x, _mm_set1_epi16(0xff));
        return _mm_packus_epi16(_mm_and_si128(x, _mm_set1_epi16(15)), _mm_srli_epi16(x, 4));
    }
    static constexpr int parts_of_load = 8;
    template <int N> static void weights(const Ints * raw, int part, Ints * w) {
        UNROLL for (int i = 0; i < N / 2; i++) w[i] = both(shift_right(raw[i + part % 2 * (N / 2)], part / 2 * 2), all_bytes(3));
    }
    static const char * sums(const Row256 & row, int64_t b) { return (const char *) (row.sums16 + 16 * b); }
    static constexpr int at(int part) { return 16 * part; }
};

template <class T, int R> static void tile256(const char * p, const char * q, int64_t n_blocks, const Row256 * rows, float * const * y, int64_t n_columns) {
    constexpr int W = T::parts == 8 ? 8 : 4; // vectors of a part
    Floats acc[R], low[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = low[r] = zero();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes, q += T::group_bytes) {
        Scales s;
        for (int i = 0; i < T::parts; i += 2) {
            const __m128i p0 = T::part_of(p, i), p1 = T::part_of(p, i + 1), q0 = T::part_of(q, i), q1 = T::part_of(q, i + 1);
            s.scale[i] = scale_of(_mm256_cvtepu8_epi32(p0), _mm256_cvtepu8_epi32(q0)), s.scale[i + 1] = scale_of(_mm256_cvtepu8_epi32(p1), _mm256_cvtepu8_epi32(q1));
            s.minimum[i / 2] = in_lanes(minima_of(p0, p1), minima_of(q0, q1));
        }
        Ints sum[R];
        UNROLL for (int r = 0; r < R; r++) sum[r] = zero_ints();
        const int64_t ahead = 2 * T::group_bytes + (b + 2 < n_blocks ? 0 : q - p); // the next columns lie behind those at q
        for (int load = 0; load < T::parts / T::parts_of_load; load++) {
            Ints raw[8];
            const int at = T::codes + 256 * load;
            UNROLL for (int i = 0; i < 4; i++) {
                columns_at(p + at + 64 * i, q + at + 64 * i, raw[2 * i], raw[2 * i + 1]);
                _mm_prefetch(p + at + 64 * i + ahead, _MM_HINT_T0);
                if (L == 16) _mm_prefetch(q + at + 64 * i + ahead, _MM_HINT_T0);
            }
            UNROLL for (int part = 0; part < T::parts_of_load; part++) {
                Ints w[W];
                T::template weights<8>(raw, part, w);
                const Ints scale = s.scale[load * T::parts_of_load + part];
                const int64_t from = 256 * b + load * T::at(T::parts_of_load) + T::at(part);
#if HAS_DOT
                Ints x[R]; // by elements first: sums of different rows do not wait for each other
                UNROLL for (int i = 0; i < W; i++) UNROLL for (int r = 0; r < R; r++) x[r] = dot(i ? x[r] : zero_ints(), w[i], all_ints(int_at(rows[r].bytes + from + 4 * i)));
                UNROLL for (int r = 0; r < R; r++) sum[r] = add32(sum[r], mul32(x[r], scale));
#else
                UNROLL for (int r = 0; r < R; r++) {
                    const char * a = rows[r].bytes + from;
                    Ints x = pairs8(w[0], all_ints(int_at(a))); // the sum is below 2^15: 8 * 2 * 15 * 127
                    UNROLL for (int i = 1; i < W; i++) x = add16(x, pairs8(w[i], all_ints(int_at(a + 4 * i)))), in_order(x);
                    sum[r] = add32(sum[r], pairs16(x, scale));
                }
#endif
            }
        }
        const Floats d = in_lanes(halves_at(p), halves_at(q)), dmin = in_lanes(halves_at(p + 16), halves_at(q + 16));
        UNROLL for (int r = 0; r < R; r++) {
            const char * sums = T::sums(rows[r], b);
            Ints m = zero_ints();
            UNROLL for (int i = 0; i < T::parts / 2; i++) m = add_pairs16(m, s.minimum[i], all_ints(int_at(sums + 4 * i)));
            const Floats scale = all(rows[r].scale[b]);
            acc[r] = fma(to_floats(sum[r]), mul(d, scale), acc[r]);
            low[r] = fma(to_floats(m), mul(dmin, scale), low[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) store_columns(y[r], sub(acc[r], low[r]), n_columns);
}

// A byte of a part's scales for both lanes of its column: as 32 bits, or twice as 16.
struct Spread {
    uint8_t bytes[64];
    constexpr Spread() : bytes() {
        for (int i = 0; i < 64; i++) bytes[i] = (uint8_t) (i % (HAS_DOT ? 4 : 2) ? 0x80 : i / 8);
    }
};
alignas(64) static constexpr Spread spread;

// As tile32_narrow.
template <class T, int R> static void tile256_narrow(const char * p, int64_t n_blocks, const Row256 * rows, float * const * y) {
    constexpr int H = HALVES, W = T::parts == 8 ? 4 : 2; // vectors of a part, for each half
    __m256 acc[R], low[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = low[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes) {
        Ints sum[R][H];
        __m256i minima[R];
        UNROLL for (int r = 0; r < R; r++) {
            minima[r] = _mm256_setzero_si256();
            UNROLL for (int h = 0; h < H; h++) sum[r][h] = zero_ints();
        }
        for (int l = 0; l < T::parts / T::parts_of_load; l++) {
            const char * at = p + T::codes + 256 * l;
            Ints raw[H][4];
            UNROLL for (int i = 0; i < 4; i++) {
                UNROLL for (int h = 0; h < H; h++) raw[h][i] = load(at + 64 * i + 32 * h);
                _mm_prefetch(at + 64 * i + 2 * T::group_bytes, _MM_HINT_T0);
            }
            UNROLL for (int j = 0; j < T::parts_of_load; j += 2) {
                const int part = l * T::parts_of_load + j;
                const __m128i scales[2] = {T::part_of(p, part), T::part_of(p, part + 1)};
                UNROLL for (int i = 0; i < 2; i++) {
                    Ints w[H][4], scale[H];
                    UNROLL for (int h = 0; h < H; h++) {
                        T::template weights<4>(raw[h], j + i, w[h]);
                        scale[h] = look_up(in_each_lane(scales[i]), load(spread.bytes + 32 * h));
                    }
                    UNROLL for (int r = 0; r < R; r++) {
                        const char * a = rows[r].bytes + 256 * b + l * T::at(T::parts_of_load) + T::at(j + i);
                        Ints x[H];
                        UNROLL for (int k = 0; k < W; k++) {
                            const Ints eight = all_longs(a + 8 * k);
                            UNROLL for (int h = 0; h < H; h++) {
#if HAS_DOT
                                x[h] = dot(k ? x[h] : zero_ints(), w[h][k], eight);
#else
                                x[h] = k ? add16(x[h], pairs8(w[h][k], eight)) : pairs8(w[h][k], eight); // below 2^15
#endif
                            }
                        }
                        UNROLL for (int h = 0; h < H; h++) sum[r][h] = add32(sum[r][h], HAS_DOT ? mul32(x[h], scale[h]) : pairs16(x[h], scale[h]));
                    }
                }
                const __m256i m = minima_of(scales[0], scales[1]);
                UNROLL for (int r = 0; r < R; r++) minima[r] = _mm256_add_epi32(minima[r], _mm256_madd_epi16(m, _mm256_set1_epi32(int_at(T::sums(rows[r], b) + 2 * part))));
            }
        }
        const __m256 d = halves_at(p), dmin = halves_at(p + 16);
        UNROLL for (int r = 0; r < R; r++) {
            const __m256i x = sum_of_lanes(sum[r]);
            const __m256 scale = _mm256_set1_ps(rows[r].scale[b]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_mul_ps(d, scale), acc[r]);
            low[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(minima[r]), _mm256_mul_ps(dmin, scale), low[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) _mm256_storeu_ps(y[r], _mm256_sub_ps(acc[r], low[r]));
}

// ---- the same for many rows: weights are unpacked once for a block of rows, into memory that stays in the cache, and R rows meet C vectors of
// columns there, so that a load serves several products

constexpr int BLOCK_ROWS = 64, ROWS_AT_ONCE = 4; // most rows of a block; R

// The next rows of n, up to a whole number of ROWS_AT_ONCE: behind the last one it is there again, and its results are not read. Returns
// their number; blocks have nearly the same size.
static inline int rows_of_block(const char * const * x, int n, int64_t k, Row256 * rows) {
    const int m = next_tile((n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, BLOCK_ROWS / ROWS_AT_ONCE) * ROWS_AT_ONCE;
    for (int r = 0; r < m; r++) rows[r] = Row256(x[r < n ? r : n - 1], k);
    return m;
}

template <class T> struct Unpacked256 {
    // Sums of 32 products have 17 bits. With `start` times the sum of the activations less they have 16, and one instruction multiplies
    // them with the scale and adds them; `back` has the scales of two parts, times `start`, to take that back.
    static constexpr int start = HAS_DOT && T::parts == 8 ? 8 : 0;
    Ints w[64], scale[T::parts], minimum[T::parts / 2], back[start ? T::parts / 2 : 1];
    Floats d, dmin;
    void unpack(const char * p, const char * q) {
        for (int i = 0; i < T::parts; i += 2) {
            const __m128i p0 = T::part_of(p, i), p1 = T::part_of(p, i + 1), q0 = T::part_of(q, i), q1 = T::part_of(q, i + 1);
            scale[i] = scale_of(_mm256_cvtepu8_epi32(p0), _mm256_cvtepu8_epi32(q0)), scale[i + 1] = scale_of(_mm256_cvtepu8_epi32(p1), _mm256_cvtepu8_epi32(q1));
            minimum[i / 2] = in_lanes(minima_of(p0, p1), minima_of(q0, q1));
            if constexpr (start != 0) back[i / 2] = shift_left(in_lanes(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(p0, p1)), _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(q0, q1))), __builtin_ctz(start));
        }
        for (int load = 0; load < T::parts / T::parts_of_load; load++) {
            Ints raw[8];
            const int at = T::codes + 256 * load;
            UNROLL for (int i = 0; i < 4; i++) {
                columns_at(p + at + 64 * i, q + at + 64 * i, raw[2 * i], raw[2 * i + 1]);
                _mm_prefetch(p + at + 64 * i + 2 * T::group_bytes, _MM_HINT_T0);
                if (L == 16) _mm_prefetch(q + at + 64 * i + 2 * T::group_bytes, _MM_HINT_T0);
            }
            UNROLL for (int part = 0; part < T::parts_of_load; part++) T::template weights<8>(raw, part, w + 64 / T::parts * (load * T::parts_of_load + part));
        }
        d = in_lanes(halves_at(p), halves_at(q)), dmin = in_lanes(halves_at(p + 16), halves_at(q + 16));
    }
};

// Add the products of `depth` superblocks from b on to the float sums: of the values, and of the minima.
template <class T, int R, int C> static void add256(const Unpacked256<T> * u, int depth, const Row256 * rows, int64_t b, Floats (*sums)[C][2]) {
    constexpr int W = 64 / T::parts, START = Unpacked256<T>::start; // vectors of a part
    for (int i = 0; i < depth; i++, b++, u += C) {
        Ints sum[R][C];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) sum[r][c] = zero_ints();
        const char * a[R];
        alignas(32) int32_t starts[R][8];
        UNROLL for (int r = 0; r < R; r++) {
            a[r] = rows[r].bytes + 256 * b;
            if (START) _mm256_store_si256((__m256i *) starts[r], _mm256_mullo_epi32(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *) (rows[r].sums32 + 8 * b))), _mm256_set1_epi32(-START)));
        }
        _Pragma("GCC unroll 1") for (int part = 0; part < T::parts; part++) { // the loop stays in the cache of decoded instructions
            Ints x[R][C];
            if (START) UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) x[r][c] = all_ints(starts[r][part]);
            UNROLL for (int j = 0; j < W; j++)
                UNROLL for (int r = 0; r < R; r++) {
                    const Ints four = all_ints(int_at(a[r] + 4 * (W * part + j)));
                    UNROLL for (int c = 0; c < C; c++) {
                        const Ints w = u[c].w[W * part + j];
#if HAS_DOT
                        x[r][c] = dot(j || START ? x[r][c] : zero_ints(), w, four);
#else
                        x[r][c] = j ? add16(x[r][c], pairs8(w, four)) : pairs8(w, four); // the sum is below 2^15: 8 * 2 * 15 * 127
                        in_order(x[r][c]);
#endif
                    }
                }
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) sum[r][c] = add_pairs16(sum[r][c], x[r][c], u[c].scale[part]);
        }
        UNROLL for (int r = 0; r < R; r++) {
            const char * of_parts = T::sums(rows[r], b);
            const Floats scale = all(rows[r].scale[b]);
            Ints m[C];
            UNROLL for (int c = 0; c < C; c++) m[c] = zero_ints();
            UNROLL for (int j = 0; j < T::parts / 2; j++) {
                const Ints two = all_ints(int_at(of_parts + 4 * j));
                UNROLL for (int c = 0; c < C; c++) {
                    m[c] = add_pairs16(m[c], u[c].minimum[j], two);
                    if (START) sum[r][c] = add_pairs16(sum[r][c], u[c].back[j], two);
                }
            }
            UNROLL for (int c = 0; c < C; c++) {
                sums[r][c][0] = fma(to_floats(sum[r][c]), mul(u[c].d, scale), sums[r][c][0]);
                sums[r][c][1] = fma(to_floats(m[c]), mul(u[c].dmin, scale), sums[r][c][1]);
            }
        }
    }
}

template <class T> static void multiply256_blocks(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    constexpr int C = 2, DEPTH = 2;
    alignas(64) Unpacked256<T> u[DEPTH][C];
    alignas(64) Floats sums[BLOCK_ROWS][C][2];
    Row256 rows[BLOCK_ROWS];
    for (int first = 0, m; first < n; first += m) {
        m = rows_of_block(x + first, n - first, k, rows);
        for (int64_t c = c0; c < c1; c += C * L) {
            memset((void *) sums, 0, m * sizeof(sums[0]));
            for (int64_t b = 0; b < k / 256; b += DEPTH) {
                const int depth = (int) (k / 256 - b < DEPTH ? k / 256 - b : DEPTH);
                for (int j = 0; j < C; j++) {
                    const int64_t at = c + j * L < c1 ? c + j * L : c; // the last vector may be alone
                    const char * p = w + at * stride + b * T::group_bytes, * q = at + 8 < c1 ? p + 8 * stride : p;
                    for (int i = 0; i < depth; i++) u[i][j].unpack(p + i * T::group_bytes, q + i * T::group_bytes);
                }
                for (int r = 0; r < m; r += ROWS_AT_ONCE) add256<T, ROWS_AT_ONCE, C>(u[0], depth, rows + r, b, sums + r);
            }
            for (int r = 0; r < m && first + r < n; r++)
                for (int j = 0; j < C && c + j * L < c1; j++) store_columns(y[first + r] + c + j * L, sub(sums[r][j][0], sums[r][j][1]), c1 - c - j * L);
        }
    }
}

template <class T> static void multiply256_interleaved(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    if (n >= (L == 16 ? 24 : 16)) return multiply256_blocks<T>(w, stride, k, c0, c1, x, y, n);
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS_K);
        Row256 rows[ROWS_K];
        for (int r = 0; r < m; r++) rows[r] = Row256(x[r0 + r], k);
        if (m <= NARROW) {
            for (int64_t c = c0; c < c1; c += 8) {
                float * out[NARROW];
                for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
                if (m == 1) tile256_narrow<T, 1>(w + c * stride, k / 256, rows, out);
                else tile256_narrow<T, 2>(w + c * stride, k / 256, rows, out);
            }
            r0 += m;
            continue;
        }
        for (int64_t c = c0; c < c1; c += L) {
            const char * p = w + c * stride, * q = c + 8 < c1 ? p + 8 * stride : p;
            float * out[ROWS_K];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile256<T, R>(p, q, k / 256, rows, out, c1 - c)
            WITH_ROWS(m, ROWS_K, CALL)
#undef CALL
        }
        r0 += m;
    }
}

} // namespace ISA
