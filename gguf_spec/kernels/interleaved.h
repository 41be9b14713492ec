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
constexpr int NARROW = 2;                // rows up to which tile32_narrow is used
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
static inline void store_columns(float * y, Floats x, int n_columns) {
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

// Sum of 32 products of each column: w[i] holds elements 4 i to 4 i + 3.
template <class T> static inline Ints sum32(const Ints * w, const char * a, int32_t start, bool two_chains) {
#if HAS_DOT
    Ints x = all_ints(start);
    if (two_chains) { // shorter waits where there are few rows
        Ints y = zero_ints();
        UNROLL for (int i = 0; i < 8; i += 2) { x = dot(x, w[i], all_ints(int_at(a + 4 * i))); y = dot(y, w[i + 1], all_ints(int_at(a + 4 * i + 4))); }
        return add32(x, y);
    }
    UNROLL for (int i = 0; i < 8; i++) x = dot(x, w[i], all_ints(int_at(a + 4 * i)));
    return x;
#else
    (void) two_chains;
    if (T::most > 24) { // signed bytes: |w| by a with the sign of w
        Ints x = zero_ints();
        UNROLL for (int i = 0; i < 8; i++) x = add32(x, pairs16(pairs8(absolute(w[i]), with_sign_of(all_ints(int_at(a + 4 * i)), w[i])), all_shorts(1)));
        return x;
    }
    Ints x = pairs8(w[0], all_ints(int_at(a))), y = pairs8(w[4], all_ints(int_at(a + 16))); // each below 2^15: four times 2 most 127
    UNROLL for (int i = 1; i < 4; i++) { x = add16(x, pairs8(w[i], all_ints(int_at(a + 4 * i)))); y = add16(y, pairs8(w[i + 4], all_ints(int_at(a + 4 * i + 16)))); }
    if (T::most <= 15) return add32(pairs16(add16(x, y), all_shorts(1)), all_ints(start));
    return add32(add32(pairs16(x, all_shorts(1)), pairs16(y, all_shorts(1))), all_ints(start));
#endif
}

template <class T, int R> static void tile32(const char * p, const char * q, int64_t n_blocks, const Block32 * const * rows, float * const * y, int n_columns) {
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
        UNROLL for (int r = 0; r < R; r++)
            acc[r] = fma(to_floats(sum32<T>(w, rows[r][b].bytes, rows[r][b].start, R < 4)), mul(scale, all(rows[r][b].scale)), acc[r]);
    }
    UNROLL for (int r = 0; r < R; r++) store_columns(y[r], acc[r], n_columns);
}

#if defined(__AVX512BW__)
// The same for one group of eight columns: two neighbouring lanes for a column. One stream of weights is faster where memory is the limit.
template <class T, int R> static void tile32_narrow(const char * p, int64_t n_blocks, const Block32 * const * rows, float * const * y) {
    __m256 acc[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes) {
        const Ints low = all_bytes(15), first = load(p + T::codes), second = load(p + T::codes + 64);
        const Ints w[4] = {T::values(both(first, low)), T::values(both(second, low)), T::values(both(shift_right(first, 4), low)), T::values(both(shift_right(second, 4), low))};
        _mm_prefetch(p + 2048, _MM_HINT_T0), _mm_prefetch(p + 2112, _MM_HINT_T0);
        const __m256 scale = T::scales(p);
        UNROLL for (int r = 0; r < R; r++) {
            Ints x = zero_ints();
            UNROLL for (int i = 0; i < 4; i++) {
                int64_t a;
                memcpy(&a, rows[r][b].bytes + 8 * i, 8);
#if HAS_DOT
                x = dot(x, w[i], _mm512_set1_epi64(a));
#else
                const bool is_signed = T::most > 24;
                x = add32(x, pairs16(pairs8(is_signed ? absolute(w[i]) : w[i], is_signed ? with_sign_of(_mm512_set1_epi64(a), w[i]) : _mm512_set1_epi64(a)), all_shorts(1)));
#endif
            }
            const __m256i sum = _mm256_add_epi32(_mm512_cvtepi64_epi32(add32(x, _mm512_srli_epi64(x, 32))), _mm256_set1_epi32(rows[r][b].start));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, _mm256_set1_ps(rows[r][b].scale)), acc[r]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) _mm256_storeu_ps(y[r], acc[r]);
}
#endif

// Call f<R>() with R = n, 1 to MOST.
#define WITH_ROWS(n, MOST, CALL) \
    switch (n) { \
        case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; case 4: CALL(4); break; case 5: CALL(5); break; case 6: CALL(6); break; \
        case 7: if constexpr (MOST >= 8) { CALL(7); } break; case 8: if constexpr (MOST >= 8) { CALL(8); } break; \
        case 9: if constexpr (MOST >= 16) { CALL(9); } break; case 10: if constexpr (MOST >= 16) { CALL(10); } break; \
        case 11: if constexpr (MOST >= 16) { CALL(11); } break; case 12: if constexpr (MOST >= 16) { CALL(12); } break; \
        case 13: if constexpr (MOST >= 16) { CALL(13); } break; case 14: if constexpr (MOST >= 16) { CALL(14); } break; \
        case 15: if constexpr (MOST >= 16) { CALL(15); } break; case 16: if constexpr (MOST >= 16) { CALL(16); } break; \
    }

// Rows of the next tile of n: as few tiles as possible, of nearly the same size.
static inline int next_tile(int n, int most) {
    const int tiles = (n + most - 1) / most;
    return (n + tiles - 1) / tiles;
}

template <class T> static void multiply32_interleaved(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS);
        const Block32 * const * rows = (const Block32 * const *) (x + r0);
#if defined(__AVX512BW__)
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
#endif
        for (int64_t c = c0; c < c1; c += L) {
            const char * p = w + c * stride, * q = c + 8 < c1 ? p + 8 * stride : p;
            float * out[ROWS];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile32<T, R>(p, q, k / 32, rows, out, (int) (c1 - c))
            WITH_ROWS(m, ROWS, CALL)
#undef CALL
        }
        r0 += m;
    }
}

// ---- superblocks of 256: parts of 32 (Q4_K) or 16 (Q2_K) elements have integer scales and minima

// Prepared row: k bytes | scale of each superblock | sums of 16 activations (16 bits) | sums of 32 (16 bits).
struct Row256 {
    const char * bytes;
    const float * scale;
    const int16_t * sums16, * sums32;
    Row256() {}
    Row256(const char * row, int64_t k)
        : bytes(row), scale((const float *) (row + k)), sums16((const int16_t *) (row + k + k / 64)), sums32((const int16_t *) (row + k + k / 64 + k / 8)) {}
};

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
static inline __m256i pair_of(__m256i a, __m256i b) { return _mm256_or_si256(a, _mm256_slli_epi32(b, 16)); }

struct Interleaved_Q4_K {
    static constexpr int group_bytes = 1152, codes = 128, parts = 8;
    // 12 bytes a part: 6 bits of 8 scales and 8 minima.
    static void part_of(const char * p, int part, __m256i & scale, __m256i & minimum) {
        const char * s = p + 32 + 12 * part;
        const uint32_t a = int_at(s), b = int_at(s + 4), c = int_at(s + 8);
        const uint64_t scales = (a & 0x3f3f3f3fu) | (uint64_t) ((c & 0x0f0f0f0fu) | ((a >> 6 & 0x03030303u) << 4)) << 32;
        const uint64_t minima = (b & 0x3f3f3f3fu) | (uint64_t) ((c >> 4 & 0x0f0f0f0fu) | ((b >> 6 & 0x03030303u) << 4)) << 32;
        scale = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) scales));
        minimum = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) minima));
    }
    // w[0..7] elements of part `part`, after the bytes of parts 2 i and 2 i + 1 were loaded to raw.
    static constexpr int parts_of_load = 2;
    static void weights(const Ints * raw, int part, Ints * w) {
        UNROLL for (int i = 0; i < 8; i++) w[i] = both(part ? shift_right(raw[i], 4) : raw[i], all_bytes(15));
    }
    static const char * sums(const Row256 & row, int64_t b) { return (const char *) (row.sums32 + 8 * b); }
    // Elements of part `part` of a load, within its 64.
    static constexpr int at(int part) { return 32 * part; }
};
struct Interleaved_Q2_K {
    static constexpr int group_bytes = 672, codes = 160, parts = 16;
    // 16 bytes for two parts: scale (low) and minimum (high nibble) of part 0 and 1 for each column.
    static void part_of(const char * p, int part, __m256i & scale, __m256i & minimum) {
        __m128i s = _mm_loadu_si128((const __m128i *) (p + 32 + 16 * (part / 2)));
        s = _mm_and_si128(part % 2 ? _mm_srli_epi16(s, 8) : s, _mm_set1_epi16(0xff));
        const __m256i both_of = _mm256_cvtepu16_epi32(s);
        scale = _mm256_and_si256(both_of, _mm256_set1_epi32(15));
        minimum = _mm256_srli_epi32(both_of, 4);
    }
    static constexpr int parts_of_load = 8;
    static void weights(const Ints * raw, int part, Ints * w) {
        UNROLL for (int i = 0; i < 4; i++) w[i] = both(shift_right(raw[i + part % 2 * 4], part / 2 * 2), all_bytes(3));
    }
    static const char * sums(const Row256 & row, int64_t b) { return (const char *) (row.sums16 + 16 * b); }
    static constexpr int at(int part) { return 16 * part; }
};

template <class T, int R> static void tile256(const char * p, const char * q, int64_t n_blocks, const Row256 * rows, float * const * y, int n_columns) {
    constexpr int W = T::parts == 8 ? 8 : 4; // vectors of a part
    Floats acc[R], low[R];
    UNROLL for (int r = 0; r < R; r++) acc[r] = low[r] = zero();
    for (int64_t b = 0; b < n_blocks; b++, p += T::group_bytes, q += T::group_bytes) {
        Scales s;
        for (int i = 0; i < T::parts; i += 2) {
            __m256i sp[2], sq[2], mp[2], mq[2];
            for (int j = 0; j < 2; j++) T::part_of(p, i + j, sp[j], mp[j]), T::part_of(q, i + j, sq[j], mq[j]);
            s.scale[i] = scale_of(sp[0], sq[0]), s.scale[i + 1] = scale_of(sp[1], sq[1]);
            s.minimum[i / 2] = in_lanes(pair_of(mp[0], mp[1]), pair_of(mq[0], mq[1]));
        }
        Ints sum[R];
        UNROLL for (int r = 0; r < R; r++) sum[r] = zero_ints();
        for (int load = 0; load < T::parts / T::parts_of_load; load++) {
            Ints raw[8];
            const int at = T::codes + 256 * load;
            UNROLL for (int i = 0; i < 4; i++) {
                columns_at(p + at + 64 * i, q + at + 64 * i, raw[2 * i], raw[2 * i + 1]);
                _mm_prefetch(p + at + 64 * i + 2304, _MM_HINT_T0);
                if (L == 16) _mm_prefetch(q + at + 64 * i + 2304, _MM_HINT_T0);
            }
            UNROLL for (int part = 0; part < T::parts_of_load; part++) {
                Ints w[W];
                T::weights(raw, part, w);
                const Ints scale = s.scale[load * T::parts_of_load + part];
                const int64_t from = 256 * b + load * T::at(T::parts_of_load) + T::at(part);
                UNROLL for (int r = 0; r < R; r++) {
                    const char * a = rows[r].bytes + from;
#if HAS_DOT
                    Ints x = dot(zero_ints(), w[0], all_ints(int_at(a)));
                    UNROLL for (int i = 1; i < W; i++) x = dot(x, w[i], all_ints(int_at(a + 4 * i)));
                    sum[r] = add32(sum[r], mul32(x, scale));
#else
                    Ints x = pairs8(w[0], all_ints(int_at(a))); // the sum is below 2^15: 8 * 2 * 15 * 127
                    UNROLL for (int i = 1; i < W; i++) x = add16(x, pairs8(w[i], all_ints(int_at(a + 4 * i))));
                    sum[r] = add32(sum[r], pairs16(x, scale));
#endif
                }
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

template <class T> static void multiply256_interleaved(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS_K);
        Row256 rows[ROWS_K];
        for (int r = 0; r < m; r++) rows[r] = Row256(x[r0 + r], k);
        for (int64_t c = c0; c < c1; c += L) {
            const char * p = w + c * stride, * q = c + 8 < c1 ? p + 8 * stride : p;
            float * out[ROWS_K];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile256<T, R>(p, q, k / 256, rows, out, (int) (c1 - c))
            WITH_ROWS(m, ROWS_K, CALL)
#undef CALL
        }
        r0 += m;
    }
}

} // namespace ISA
