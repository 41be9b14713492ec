// Products of many rows in the tiles of AMX: a unit of its own beside the set avx512vnni, with the same bits.
//
// A tile has 16 rows of 64 bytes. One instruction multiplies 16 rows of activations with 16 columns of weights and adds 64 elements (int8)
// or 32 (bf16) to each of 256 sums. It runs beside the vector unit, which unpacks weights and does the float steps meanwhile:
//
//   weights of 16 columns, some blocks    unpacked once for all rows, in the form of tiles
//   step t      tiles: 32 rows, one or two blocks -> sums in memory
//               vectors, in between: the float steps of the sums of step t - 1
//
// Integer sums are exact. The float part is that of a single row (interleaved.h, plain.h): the same operations in the same order. So a row's
// bits do not depend on whether tiles were used.
//
// The instructions are written as assembler: no compiler option is needed, and the compiler knows which memory is read and written.
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"
#include "plain.h"

// The system must be asked for the state of tiles (number 18) before their first use in a process. It refuses where a signal stack has
// no room for that state.
bool may_use_tiles() {
    static thread_local int answer = -1;
    if (answer < 0) answer = syscall(SYS_arch_prctl, 0x1023, 18) == 0; // ARCH_REQ_XCOMP_PERM
    return answer;
}

namespace ISA {
namespace {

#define TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, p, stride) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((long) (stride)))
#define TILE_WEIGHTS(t, p) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(64L), "m"(*(const char(*)[1024])(p)))
#define TILE_STORE(t, p) asm volatile("tilestored %%tmm" #t ", (%1,%2,1)" : "=m"(*(char(*)[1024])(p)) : "r"(p), "r"(64L))
#define TILE_DOT(sums, rows, w) asm volatile("tdpbssd %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::)          // signed by signed bytes
#define TILE_DOT_UNSIGNED(sums, rows, w) asm volatile("tdpbsud %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::) // signed rows, unsigned weights
#define TILE_DOT_BF16(sums, rows, w) asm volatile("tdpbf16ps %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::)

constexpr int BLOCK = 32;       // most rows of a step: two tiles
constexpr int TILE = 1024;      // bytes

// Registers: 0 and 1 sums of the first m0 rows, 2 and 3 of the next m1; 4 and 5 activations of these rows; 6 and 7 weights. `bytes` of
// activations in a row of a tile.
void configure(int m0, int m1, int bytes) {
    struct __attribute__((packed)) { uint8_t palette, start, unused[14]; uint16_t bytes[16]; uint8_t rows[16]; } c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    const int rows[8] = {m0, m0, m1, m1, m0, m1, bytes / 4, bytes / 4};
    for (int i = 0; i < 8; i++) c.rows[i] = (uint8_t) rows[i], c.bytes[i] = (uint16_t) (!rows[i] ? 0 : i == 4 || i == 5 ? bytes : 64);
    asm volatile("ldtilecfg %0" ::"m"(c));
}

// Up to 32 prepared rows (behind them the last one again), and a copy of those of their bytes that are loaded into tiles: whole rows lie in
// many pages, and those of experts anywhere. Distances are odd multiples of a cache line, so that 16 rows are in different sets of the cache.
struct Rows {
    const char * at[BLOCK];
    int n;
    const char * tiles;
    size_t distance;

    static constexpr size_t apart(size_t bytes) { return (bytes / 64 | 1) * 64; }
    Rows(const char * const * x, int n_rows, size_t offset, size_t bytes, char * copy) : n(n_rows), tiles(copy), distance(apart(bytes)) {
        for (int r = 0; r < BLOCK; r++) at[r] = x[r < n ? r : n - 1];
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < bytes; i += 64) _mm512_store_si512(copy + r * distance + i, load(x[r] + offset + i));
        asm volatile("" ::: "memory"); // tiles read what was written
    }
};

size_t aligned64(size_t n) { return (n + 63) / 64 * 64; }

// Where a part of the work memory begins.
template <class X> X * take(char *& memory, size_t n) {
    X * const found = (X *) memory;
    memory += aligned64(n * sizeof(X));
    return found;
}

// The loops of all kernels. K has the weights of a block and 16 columns in tiles (Weights), and the float sums of 32 rows (Sums);
// it unpacks weights once for up to `most` rows, whose sums have room in the cache beside the weights.
template <class K> size_t scratch_bytes(int64_t n) {
    const int64_t blocks = ((n < K::most ? n : K::most) + BLOCK - 1) / BLOCK;
    return K::stage + BLOCK * Rows::apart((size_t) K::depth * K::row_bytes) + blocks * K::groups * sizeof(typename K::Sums) + K::groups * K::depth * sizeof(typename K::Weights);
}
template <class K> bool multiply(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int64_t n, char * memory) {
    if (!may_use_tiles()) return false;
    const int64_t n_blocks = k / K::elements;
    char * const stage = take<char>(memory, K::stage), * const copy = take<char>(memory, BLOCK * Rows::apart((size_t) K::depth * K::row_bytes));
    typename K::Weights * const weights = take<typename K::Weights>(memory, K::groups * K::depth);
    typename K::Sums * const sums = (typename K::Sums *) memory;
    int m0 = 0, m1 = 0;
    for (int64_t first = 0; first < n; first += K::most) {
        const int64_t end = n - first < K::most ? n : first + K::most;
        for (int64_t c = c0; c < c1; c += 16 * K::groups) {
            const int64_t left = (c1 - c + 15) / 16;
            const int groups = (int) (left < K::groups ? left : K::groups);
            memset((void *) sums, 0, (end - first + BLOCK - 1) / BLOCK * K::groups * sizeof(typename K::Sums));
            for (int64_t b = 0; b < n_blocks; b += K::depth) {
                const int depth = (int) (n_blocks - b < K::depth ? n_blocks - b : K::depth);
                for (int g = 0; g < groups; g++)
                    for (int i = 0; i < depth; i++) weights[i * K::groups + g].unpack(w + (c + 16 * g) * stride, stride, c1 - c - 16 * g, b + i);
                typename K::Sums * to = sums;
                for (int64_t r = first; r < end; r += BLOCK, to += K::groups) {
                    const Rows rows(x + r, (int) (end - r < BLOCK ? end - r : BLOCK), K::offset(k, b), (size_t) depth * K::row_bytes, copy);
                    const int m = rows.n < 16 ? rows.n : 16;
                    if (m != m0 || rows.n - m != m1) configure(m0 = m, m1 = rows.n - m, K::tile_bytes);
                    if (m1) K::template run<true>(weights, groups, depth, rows, k, b, to, stage);
                    else K::template run<false>(weights, groups, depth, rows, k, b, to, stage);
                }
            }
            const typename K::Sums * from = sums;
            for (int64_t r = first; r < end; r += BLOCK, from += K::groups)
                for (int g = 0; g < groups; g++) {
                    const int64_t at = c + 16 * g;
                    const __mmask16 columns = (__mmask16) (c1 - at >= 16 ? 0xffff : (1 << (c1 - at)) - 1);
                    for (int i = 0; i < BLOCK && r + i < end; i++) _mm512_mask_storeu_ps(y[r + i] + at, columns, from[g].result(i));
                }
        }
    }
    asm volatile("tilerelease" ::); // or the system saves their state at each change of threads
    return true;
}

// ---- repacked blocks of 32, in bf16: sums of 32 products are whole numbers below 2^24, so a float holds them exactly

// 16-bit numbers of the 32 activations of a block, in the order of the tiles: neighbours are elements 2 apart, see unpack.
constexpr int place32(int i) { // element at place i
    const int row = i / 2, load = row / 8, half = row / 4 % 2, high = row / 2 % 2, odd = row % 2;
    return 8 * load + 4 * half + 16 * high + odd + 2 * (i % 2);
}
struct Order32 {
    uint16_t at[32];
    constexpr Order32() : at() { for (int i = 0; i < 32; i++) at[i] = (uint16_t) place32(i); }
};
alignas(64) constexpr Order32 order32;

inline __m256i high_halves(__m512 x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16)); } // bf16 of numbers of 8 bits
inline Floats floats_of(__m128i bytes) { return to_floats(_mm512_cvtepi8_epi32(bytes)); }

size_t extra32(int64_t k) { return 2 * k; }
void pack32(char * row, int64_t k, int64_t begin, int64_t end) {
    char * const out = row + aligned64(k / 32 * sizeof(Block32));
    for (int64_t b = begin / 32; b < end / 32; b++) {
        const __m128i * a = (const __m128i *) ((const Block32 *) row)[b].bytes;
        const Ints x = join(high_halves(floats_of(_mm_loadu_si128(a))), high_halves(floats_of(_mm_loadu_si128(a + 1))));
        _mm512_storeu_si512(out + 64 * b, _mm512_permutexvar_epi16(load(order32.at), x));
    }
}

// Values of the codes as they are stored.
alignas(16) constexpr int8_t q4_0_values[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
inline const int8_t * values_of(Interleaved_Q4_0) { return q4_0_values; }
inline const int8_t * values_of(Interleaved_IQ4_NL) { return iq4_nl_values; }
inline const int8_t * values_of(Interleaved_MXFP4) { return mxfp4_values; }

template <class T> struct Interleaved32 {
    static constexpr int elements = 32, groups = 4, depth = 48, row_bytes = 64, tile_bytes = 64, at_once = 4, most = 256;
    static constexpr size_t stage = 2 * at_once * 2 * TILE;
    static size_t offset(int64_t k, int64_t b) { return aligned64(k / 32 * sizeof(Block32)) + 64 * b; }

    struct alignas(64) Weights {
        char tile[TILE];
        Floats scale;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b) {
            const char * p = w + b * T::group_bytes, * q = n_columns > 8 ? p + 8 * stride : p;
            // Indices are the low nibbles of 16 bits; the table is there twice, as one more bit counts.
            const __m256i values = high_halves(floats_of(_mm_load_si128((const __m128i *) values_of(T()))));
            const Ints table = join(values, values);
            UNROLL for (int i = 0; i < 2; i++) {
                Ints raw[2];
                columns_at(p + T::codes + 64 * i, q + T::codes + 64 * i, raw[0], raw[1]);
                _mm_prefetch(p + T::codes + 64 * i + 1152, _MM_HINT_T0), _mm_prefetch(q + T::codes + 64 * i + 1152, _MM_HINT_T0);
                UNROLL for (int half = 0; half < 2; half++) {
                    char * to = tile + 256 * (2 * i + half);
                    _mm512_store_si512(to, _mm512_permutexvar_epi16(raw[half], table));
                    _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(shift_right(raw[half], 8), table));
                    _mm512_store_si512(to + 128, _mm512_permutexvar_epi16(shift_right(raw[half], 4), table));
                    _mm512_store_si512(to + 192, _mm512_permutexvar_epi16(shift_right(raw[half], 12), table));
                }
            }
            scale = in_lanes(T::scales(p), T::scales(q));
        }
    };
    struct Sums {
        Floats sum[BLOCK];
        Floats result(int r) const { return sum[r]; }
    };

    // Float steps of COUNT rows from row r on, for N blocks.
    struct Step {
        const Weights * weights;
        const char * const * rows;
        int64_t b;
        Floats * sum;
        const char * from;
        int n;
        template <int N, int COUNT> void floats(int r) const {
            Floats scale[N];
            UNROLL for (int i = 0; i < N; i++) scale[i] = weights[groups * i].scale;
            const char * at = from + TILE * (r / 16) + 64 * (r % 16);
            UNROLL for (int j = 0; j < COUNT; j++) {
                const Block32 * of_row = (const Block32 *) rows[r + j] + b;
                Floats x = sum[r + j];
                UNROLL for (int i = 0; i < N; i++) x = fma(load_floats((const float *) (at + 2 * TILE * i + 64 * j)), mul(scale[i], all(of_row[i].scale)), x);
                sum[r + j] = x;
            }
        }
        template <int COUNT> void some(int r) const {
            if (n == at_once) floats<at_once, COUNT>(r);
            else if (n) floats<1, COUNT>(r);
        }
    };
    template <bool TWO, int N> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, const char * a, size_t distance) {
        char * to = (char *) now.from;
        UNROLL for (int j = 0; j < N; j++, to += 2 * TILE, a += 64) {
            TILE_WEIGHTS(6, now.weights[groups * j].tile);
            TILE_LOAD(4, a, distance);
            TILE_ZERO(0);
            TILE_DOT_BF16(0, 4, 6);
            if (TWO) { TILE_LOAD(5, a + 16 * distance, distance); TILE_ZERO(2); TILE_DOT_BF16(2, 5, 6); }
            before.template some<(TWO ? 32 : 16) / N>((TWO ? 32 : 16) / N * j);
            TILE_STORE(0, to);
            if (TWO) TILE_STORE(2, to + TILE);
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows & rows, int64_t, int64_t b, Sums * sums, char * stage) {
        Step before = {};
        for (int i = 0, n, flip = 0; i < n_blocks; i += n) {
            n = n_blocks - i < at_once ? 1 : at_once;
            for (int g = 0; g < n_groups; g++, flip ^= 1) {
                const Step now = {weights + groups * i + g, rows.at, b + i, sums[g].sum, stage + flip * at_once * 2 * TILE, n};
                if (n == at_once) step<TWO, at_once>(now, before, rows.tiles + 64 * i, rows.distance);
                else step<TWO, 1>(now, before, rows.tiles + 64 * i, rows.distance);
                before = now;
            }
        }
        before.template some<16>(0);
        if (TWO) before.template some<16>(16);
    }
};

// ---- repacked superblocks of Q4_K. A scale (6 bits) is 8 h + l: weight times h and weight times l are bytes. The minima are summed in
// bf16, exactly: a sum of 32 activations is 64 h + l, and all products are below 2^24.

// For each superblock, h of the eight sums and l of them, in pairs, then zeros.
size_t extra_q4_k(int64_t k) { return k / 4; }
void pack_q4_k(char * row, int64_t k, int64_t begin, int64_t end) {
    const Row256 from(row, k);
    char * const out = row + aligned64(k + k / 64 + k / 8 + k / 16);
    for (int64_t b = begin / 256; b < end / 256; b++) {
        const __m256i x = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *) (from.sums32 + 8 * b)));
        const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(63)), high = _mm256_sub_epi32(x, low);
        const __m256i h = _mm256_castps_si256(_mm256_cvtepi32_ps(high)), l = _mm256_castps_si256(_mm256_cvtepi32_ps(low));
        _mm512_storeu_si512(out + 64 * b, _mm512_zextsi256_si512(_mm256_or_si256(h, _mm256_srli_epi32(l, 16))));
    }
}

struct Repacked_Q4_K {
    typedef Interleaved_Q4_K T;
    static constexpr int elements = 256, groups = 4, depth = 6, row_bytes = 256, tile_bytes = 64, at_once = 2, most = 256;
    static constexpr size_t stage = 2 * at_once * 6 * TILE + BLOCK * Rows::apart(depth * 64);
    static size_t offset(int64_t, int64_t b) { return 256 * b; }

    struct alignas(64) Weights {
        char tile[4][2][TILE]; // of 64 elements: times h, times l
        char minimum[TILE];    // for h and for l; the second half stays zero
        Floats d, dmin;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b) {
            const char * p = w + b * T::group_bytes, * q = n_columns > 8 ? p + 8 * stride : p;
            Ints high[8], low[8];
            UNROLL for (int i = 0; i < 8; i++) {
                const __m128i a = T::part_of(p, i), c = T::part_of(q, i);
                Ints x = in_lanes(_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(c));
                x = either(x, _mm512_slli_epi32(x, 16));
                high[i] = shift_right(x, 3), low[i] = both(x, all_shorts(7));
                const Ints m = in_lanes(_mm256_cvtepu8_epi32(_mm_srli_si128(a, 8)), _mm256_cvtepu8_epi32(_mm_srli_si128(c, 8)));
                const Ints y = _mm512_castps_si512(to_floats(m)); // six bits: the lower half is zero
                _mm512_store_si512(minimum + 64 * i, either(y, _mm512_srli_epi32(y, 16)));
                _mm512_store_si512(minimum + 64 * (8 + i), zero_ints());
            }
            UNROLL for (int l = 0; l < 4; l++) {
                const int at = T::codes + 256 * l;
                UNROLL for (int i = 0; i < 4; i++) {
                    Ints raw[2];
                    columns_at(p + at + 64 * i, q + at + 64 * i, raw[0], raw[1]);
                    _mm_prefetch(p + at + 64 * i + 2 * T::group_bytes, _MM_HINT_T0), _mm_prefetch(q + at + 64 * i + 2 * T::group_bytes, _MM_HINT_T0);
                    UNROLL for (int j = 0; j < 2; j++)
                        UNROLL for (int part = 0; part < 2; part++) {
                            const Ints x = both(part ? shift_right(raw[j], 4) : raw[j], all_bytes(15));
                            const int row = 64 * (8 * part + 2 * i + j);
                            _mm512_store_si512(tile[l][0] + row, _mm512_mullo_epi16(x, high[2 * l + part]));
                            _mm512_store_si512(tile[l][1] + row, _mm512_mullo_epi16(x, low[2 * l + part]));
                        }
                }
            }
            d = in_lanes(halves_at(p), halves_at(q)), dmin = in_lanes(halves_at(p + 16), halves_at(q + 16));
        }
    };
    struct Sums {
        Floats sum[BLOCK][2];
        Floats result(int r) const { return sub(sum[r][0], sum[r][1]); }
    };

    struct Step {
        const Weights * weights;
        const char * const * rows;
        size_t scale; // where a row's scales begin
        Floats (*sum)[2];
        const char * from;
        int n;
        template <int N, int COUNT> void floats(int r) const {
            Floats d[N], dmin[N];
            UNROLL for (int i = 0; i < N; i++) d[i] = weights[groups * i].d, dmin[i] = weights[groups * i].dmin;
            const char * at = from + 3 * TILE * (r / 16) + 64 * (r % 16);
            UNROLL for (int j = 0; j < COUNT; j++) {
                const float * scales = (const float *) (rows[r + j] + scale);
                Floats u = sum[r + j][0], v = sum[r + j][1];
                UNROLL for (int i = 0; i < N; i++) {
                    const char * p = at + 6 * TILE * i + 64 * j;
                    const Ints x = add32(_mm512_slli_epi32(load(p), 3), load(p + TILE));
                    u = fma(to_floats(x), mul(d[i], all(scales[i])), u);
                    v = fma(load_floats((const float *) (p + 2 * TILE)), mul(dmin[i], all(scales[i])), v);
                }
                sum[r + j][0] = u, sum[r + j][1] = v;
            }
        }
        template <int COUNT> void some(int r) const {
            if (n == at_once) floats<at_once, COUNT>(r);
            else if (n) floats<1, COUNT>(r);
        }
    };
    template <bool TWO, int N> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, const char * a, size_t distance, const char * low, size_t low_distance) {
        constexpr int share = (TWO ? 8 : 4) / N; // rows of the step before, beside a load of a tile
        char * to = (char *) now.from;
        UNROLL for (int s = 0; s < N; s++, to += 6 * TILE, a += 256, low += 64) {
            const Weights & x = now.weights[groups * s];
            TILE_WEIGHTS(6, x.minimum);
            TILE_LOAD(4, low, low_distance);
            TILE_ZERO(0);
            TILE_DOT_BF16(0, 4, 6);
            if (TWO) { TILE_LOAD(5, low + 16 * low_distance, low_distance); TILE_ZERO(2); TILE_DOT_BF16(2, 5, 6); }
            TILE_STORE(0, to + 2 * TILE);
            if (TWO) TILE_STORE(2, to + 5 * TILE);
            TILE_ZERO(0); TILE_ZERO(1);
            if (TWO) { TILE_ZERO(2); TILE_ZERO(3); }
            UNROLL for (int l = 0; l < 4; l++) {
                TILE_LOAD(4, a + 64 * l, distance);
                TILE_WEIGHTS(6, x.tile[l][0]);
                TILE_DOT(0, 4, 6);
                TILE_WEIGHTS(7, x.tile[l][1]);
                TILE_DOT(1, 4, 7);
                if (TWO) {
                    TILE_LOAD(5, a + 64 * l + 16 * distance, distance);
                    TILE_DOT(2, 5, 6);
                    TILE_DOT(3, 5, 7);
                }
                before.template some<share>(share * (4 * s + l));
            }
            TILE_STORE(0, to); TILE_STORE(1, to + TILE);
            if (TWO) { TILE_STORE(2, to + 3 * TILE); TILE_STORE(3, to + 4 * TILE); }
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows & rows, int64_t k, int64_t b, Sums * sums, char * stage) {
        const Rows minima(rows.at, rows.n, aligned64(k + k / 64 + k / 8 + k / 16) + 64 * b, (size_t) n_blocks * 64, stage + 2 * at_once * 6 * TILE);
        Step before = {};
        for (int i = 0, n, flip = 0; i < n_blocks; i += n) {
            n = n_blocks - i < at_once ? 1 : at_once;
            for (int g = 0; g < n_groups; g++, flip ^= 1) {
                const Step now = {weights + groups * i + g, rows.at, (size_t) (k + 4 * (b + i)), sums[g].sum, stage + flip * at_once * 6 * TILE, n};
                const char * a = rows.tiles + 256 * i, * low = minima.tiles + 64 * i;
                if (n == at_once) step<TWO, at_once>(now, before, a, rows.distance, low, minima.distance);
                else step<TWO, 1>(now, before, a, rows.distance, low, minima.distance);
                before = now;
            }
        }
        before.template some<16>(0);
        if (TWO) before.template some<16>(16);
    }
};

// ---- superblocks as they lie, with eight float sums a column as in tile_super: sum i is of elements 4 i to 4 i + 3 of each group of 32, so
// a tile of sums each. Weight times scale has at most 14 bits: 256 high + low.

// The activations of each superblock by these eight: [8][group of 32][4].
size_t extra_super(int64_t k) { return k; }
void pack_super(char * row, int64_t k, int64_t begin, int64_t end) {
    char * const out = row + aligned64(k + k / 64 + k / 8 + k / 16);
    for (int64_t at = begin; at < end; at += 256) {
        const char * a = row + at;
        UNROLL for (int i = 0; i < 8; i += 2) { // dword (i, group) lies at 8 group + i
            const Ints index = _mm512_set_epi32(25 + i, 17 + i, 9 + i, 1 + i, 25 + i, 17 + i, 9 + i, 1 + i, 24 + i, 16 + i, 8 + i, i, 24 + i, 16 + i, 8 + i, i);
            const Ints x = _mm512_permutex2var_epi32(load(a), index, load(a + 64)), y = _mm512_permutex2var_epi32(load(a + 128), index, load(a + 192));
            _mm512_storeu_si512(out + at + 32 * i, _mm512_mask_blend_epi32(0xf0f0, x, y));
        }
    }
}

// What a type does with minima or offsets: taken from the integer sums, from the float sums, or from one or four sums of their own.
enum Lows { OFFSET, OF_EIGHT, OF_FOUR, OF_ONE };
template <class T> struct LowsOf;
template <> struct LowsOf<Plain_Q6_K> { static constexpr int kind = OFFSET, shift = 5; };
template <> struct LowsOf<Plain_Q3_K> { static constexpr int kind = OFFSET, shift = 2; };
template <> struct LowsOf<Plain_Q2_K> { static constexpr int kind = OF_EIGHT, shift = 0; };
template <> struct LowsOf<Plain_Q4_K> { static constexpr int kind = OF_FOUR, shift = 0; };
template <> struct LowsOf<Plain_Q5_K> { static constexpr int kind = OF_ONE, shift = 0; };

inline void transpose_ints(Ints * x) {
    Floats y[16];
    UNROLL for (int i = 0; i < 16; i++) y[i] = _mm512_castsi512_ps(x[i]);
    transpose(y);
    UNROLL for (int i = 0; i < 16; i++) x[i] = _mm512_castps_si512(y[i]);
}

template <class T> struct Super {
    static constexpr int kind = LowsOf<T>::kind, n_lows = kind == OF_FOUR ? 4 : kind == OF_ONE ? 1 : 0, n_products = kind == OF_EIGHT ? 2 : 1;
    static constexpr int elements = 256, groups = 2, depth = 8, row_bytes = 256, tile_bytes = 32, at_once = 2, most = 128;
    static constexpr size_t stage = 2 * at_once * 4 * TILE + 2 * n_products * at_once * BLOCK * 64;
    static size_t offset(int64_t k, int64_t b) { return aligned64(k + k / 64 + k / 8 + k / 16) + 256 * b; }

    struct alignas(64) Weights {
        char tile[8][2][TILE / 2]; // for each sum: high and low bytes; 8 groups of four elements of 16 columns
        Ints low[8];               // offsets or minima of two parts, as 16 bits
        Floats d, dmin;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b) {
            Ints codes[V][16], scales[16], lows[16];
            alignas(64) float d_of[16], dmin_of[16];
            UNROLL for (int c = 0; c < 16; c++) {
                const char * p = w + (c < n_columns ? c : n_columns - 1) * stride + b * T::bytes;
                _mm_prefetch(p + 2 * T::bytes, _MM_HINT_T0), _mm_prefetch(p + 2 * T::bytes + 64, _MM_HINT_T0), _mm_prefetch(p + 2 * T::bytes + 128, _MM_HINT_T0);
                T type;
                Superblock s;
                s.dmin = 0;
                type.unpack(p, s);
                UNROLL for (int v = 0; v < V; v++) codes[v][c] = s.codes[v];
                scales[c] = _mm512_cvtepi16_epi32(s.scales16);
                lows[c] = zero_ints();
                if constexpr (kind == OFFSET) lows[c] = _mm512_zextsi256_si512(_mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(s.scales16, LowsOf<T>::shift)));
                else if constexpr (kind == OF_EIGHT) lows[c] = _mm512_zextsi256_si512(type.minima);
                else lows[c] = _mm512_zextsi256_si512(_mm256_zextsi128_si256(type.minima));
                d_of[c] = s.d, dmin_of[c] = s.dmin;
            }
            transpose_ints(scales), transpose_ints(lows);
            UNROLL for (int i = 0; i < 8; i++) low[i] = lows[i];
            UNROLL for (int i = 0; i < 16; i++) scales[i] = either(both(scales[i], all_ints(0xffff)), _mm512_slli_epi32(scales[i], 16));
            d = load_floats(d_of), dmin = load_floats(dmin_of);
            UNROLL for (int v = 0; v < V; v++) {
                transpose_ints(codes[v]);
                UNROLL for (int j = 0; j < 16; j++) {
                    const int group = 2 * v + j / 8, i = j % 8;
                    const Ints scale = scales[2 * group + i / 4];
                    const Ints even = _mm512_mullo_epi16(both(codes[v][j], all_shorts(255)), scale), odd = _mm512_mullo_epi16(shift_right(codes[v][j], 8), scale);
                    _mm512_store_si512(tile[i][0] + 64 * group, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, shift_right(even, 8), odd));
                    _mm512_store_si512(tile[i][1] + 64 * group, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, shift_left(odd, 8)));
                }
            }
        }
    };
    struct Sums {
        Floats sum[8][BLOCK];
        Floats low[BLOCK][n_lows ? n_lows : 1];
        Floats result(int r) const { // as sum8
            const auto at = [&](int i) { return sum[i][r]; };
            const Floats x = add(add(add(at(4), at(0)), add(at(6), at(2))), add(add(at(5), at(1)), add(at(7), at(3))));
            if constexpr (kind == OF_ONE) return add(x, low[r][0]);
            if constexpr (kind == OF_FOUR) return add(x, add(add(low[r][0], low[r][2]), add(low[r][1], low[r][3])));
            return x;
        }
    };

    struct Step { // one of the eight sums
        const Weights * weights;
        const char * const * rows;
        size_t sums; // where the row's sums of 16 begin, of the two that belong to this sum
        int i;
        Floats * sum;
        const char * from;
        const Floats * products; // of the scales of columns and rows
        int n;
        template <int N, int COUNT> void floats(int r) const {
            Ints low[N];
            UNROLL for (int s = 0; s < N; s++) low[s] = weights[groups * s].low[i];
            const char * at = from + 2 * TILE * (r / 16) + 64 * (r % 16);
            UNROLL for (int j = 0; j < COUNT; j++) {
                const char * sums16 = rows[r + j] + sums;
                Floats u = sum[r + j];
                UNROLL for (int s = 0; s < N; s++) {
                    const char * p = at + 4 * TILE * s + 64 * j;
                    Ints x = add32(_mm512_slli_epi32(load(p), 8), load(p + TILE));
                    if constexpr (kind == OFFSET) x = add_pairs16(x, low[s], all_ints(int_at(sums16 + 32 * s)));
                    if constexpr (kind == OF_EIGHT) u = fma(products[BLOCK * (at_once + s) + r + j], to_floats(pairs16(low[s], all_ints(int_at(sums16 + 32 * s)))), u);
                    u = fma(products[BLOCK * s + r + j], to_floats(x), u);
                }
                sum[r + j] = u;
            }
        }
        template <int COUNT> void some(int r) const {
            if (n == at_once) floats<at_once, COUNT>(r);
            else if (n) floats<1, COUNT>(r);
        }
    };
    template <bool TWO, int N> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, const char * a, size_t distance) {
        constexpr int share = (TWO ? 16 : 8) / N;
        char * to = (char *) now.from;
        UNROLL for (int s = 0; s < N; s++, to += 4 * TILE, a += 256) {
            TILE_LOAD(4, a, distance);
            TILE_WEIGHTS(6, now.weights[groups * s].tile[now.i][0]);
            TILE_ZERO(0);
            TILE_DOT(0, 4, 6);
            TILE_WEIGHTS(7, now.weights[groups * s].tile[now.i][1]);
            TILE_ZERO(1);
            TILE_DOT_UNSIGNED(1, 4, 7);
            before.template some<share>(2 * share * s);
            if (TWO) {
                TILE_LOAD(5, a + 16 * distance, distance);
                TILE_ZERO(2);
                TILE_DOT(2, 5, 6);
                TILE_ZERO(3);
                TILE_DOT_UNSIGNED(3, 5, 7);
            }
            before.template some<share>(2 * share * s + share);
            TILE_STORE(0, to); TILE_STORE(1, to + TILE);
            if (TWO) { TILE_STORE(2, to + 2 * TILE); TILE_STORE(3, to + 3 * TILE); }
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows & rows, int64_t k, int64_t b, Sums * sums, char * stage) {
        Floats * const products = (Floats *) (stage + 2 * at_once * 4 * TILE);
        Step before = {};
        for (int j = 0, n, flip = 0; j < n_blocks; j += n) {
            n = n_blocks - j < at_once ? 1 : at_once;
            for (int g = 0; g < n_groups; g++, flip ^= 1) {
                const Weights * from = weights + groups * j + g;
                Floats * const product = products + flip * n_products * at_once * BLOCK;
                for (int s = 0; s < n; s++)
                    for (int r = 0; r < (TWO ? 32 : 16); r++) {
                        const Row256 row(rows.at[r], k);
                        const float scale = row.scale[b + j + s];
                        const int16_t * sums32 = row.sums32 + 8 * (b + j + s);
                        const Floats dmin = mul(all(-scale), from[groups * s].dmin);
                        product[BLOCK * s + r] = mul(all(scale), from[groups * s].d);
                        if constexpr (kind == OF_EIGHT) product[BLOCK * (at_once + s) + r] = dmin;
                        if constexpr (kind == OF_FOUR)
                            UNROLL for (int i = 0; i < 4; i++) sums[g].low[r][i] = fma(dmin, to_floats(pairs16(from[groups * s].low[i], all_ints(int_at(sums32 + 2 * i)))), sums[g].low[r][i]);
                        if constexpr (kind == OF_ONE) {
                            Ints m = zero_ints();
                            UNROLL for (int i = 0; i < 4; i++) m = add_pairs16(m, from[groups * s].low[i], all_ints(int_at(sums32 + 2 * i)));
                            sums[g].low[r][0] = fma(dmin, to_floats(m), sums[g].low[r][0]);
                        }
                    }
                UNROLL for (int i = 0; i < 8; i++) {
                    const Step now = {from, rows.at, (size_t) (k + k / 64 + 32 * (b + j) + 4 * i), i, sums[g].sum[i], stage + i % 2 * at_once * 4 * TILE, product, n};
                    const char * a = rows.tiles + 256 * j + 32 * i;
                    if (n == at_once) step<TWO, at_once>(now, before, a, rows.distance);
                    else step<TWO, 1>(now, before, a, rows.distance);
                    before = now;
                }
            }
        }
        before.template some<16>(0);
        if (TWO) before.template some<16>(16);
    }
};

} // namespace
} // namespace ISA

#define TILED(TYPE, REPACKED, LEAST, EXTRA, PACK, ...) {TYPE, REPACKED, LEAST, ISA::EXTRA, ISA::PACK, ISA::scratch_bytes<ISA::__VA_ARGS__>, ISA::multiply<ISA::__VA_ARGS__>}

extern const TileProduct tile_products[];
// The numbers of rows are from measurements: 2 cores of a Xeon of 2023, matrices of 1536 and 8960.
const TileProduct tile_products[] = {
    TILED(Q4_0, true, 64, extra32, pack32, Interleaved32<ISA::Interleaved_Q4_0>),
    TILED(IQ4_NL, true, 64, extra32, pack32, Interleaved32<ISA::Interleaved_IQ4_NL>),
    TILED(MXFP4, true, 64, extra32, pack32, Interleaved32<ISA::Interleaved_MXFP4>),
    TILED(Q4_K, true, 24, extra_q4_k, pack_q4_k, Repacked_Q4_K),
    TILED(Q2_K, false, 24, extra_super, pack_super, Super<ISA::Plain_Q2_K>),
    TILED(Q3_K, false, 24, extra_super, pack_super, Super<ISA::Plain_Q3_K>),
    TILED(Q4_K, false, 24, extra_super, pack_super, Super<ISA::Plain_Q4_K>),
    TILED(Q5_K, false, 24, extra_super, pack_super, Super<ISA::Plain_Q5_K>),
    TILED(Q6_K, false, 24, extra_super, pack_super, Super<ISA::Plain_Q6_K>),
    {-1, false, 0, nullptr, nullptr, nullptr, nullptr},
};
