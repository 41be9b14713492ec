// Products of many rows in the tiles of AMX: a unit of its own beside the set avx512vnni, with the same bits.
//
// A tile has 16 rows of 64 bytes. One instruction multiplies 16 rows of activations with 16 columns of weights and adds 64 elements (int8)
// or 32 (bf16) to each of 256 sums. It runs beside the vector unit, which unpacks weights and does the float steps meanwhile:
//
//   rows                                  packed once for all columns: what 16 of them have in a block lies side by side, as it is loaded
//   weights of 16 columns, some blocks    unpacked once for all rows, in the form of tiles
//   step t      tiles: 32 rows, one or two blocks; the sums of step t - 1 are stored as their tiles are needed
//               vectors, in between: the float steps of these
//
// Integer sums are exact. The float part is that of a single row (interleaved.h, plain.h): the same operations in the same order. So a row's
// bits do not depend on whether tiles were used.
//
// The instructions are written as assembler: no compiler option is needed, and the compiler knows which memory is read and written.
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"
#include "plain.h"

#ifdef TILES_IN_SOFTWARE
#include TILES_IN_SOFTWARE // for tests on processors without AMX: a header with what follows, tests/kernels/tiles_in_software.h
#else
// The system must be asked for the state of tiles (number 18) before their first use in a process. It refuses where a signal stack has
// no room for that state.
__attribute__((noinline)) bool may_use_tiles() {
    static thread_local int answer = -1;
    if (answer < 0) answer = syscall(SYS_arch_prctl, 0x1023, 18) == 0; // ARCH_REQ_XCOMP_PERM
    return answer;
}

#define TILE_CONFIGURE(c) asm volatile("ldtilecfg %0" ::"m"(c))
#define TILE_RELEASE() asm volatile("tilerelease" ::)
#define TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define TILE_ROWS(t, p, bytes) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((long) (bytes))) // packed before: nothing here writes them
#define TILE_WEIGHTS(t, p) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(64L), "m"(*(const char(*)[1024])(p)))
#define TILE_STORE(t, p) asm volatile("tilestored %%tmm" #t ", (%1,%2,1)" : "=m"(*(char(*)[1024])(p)) : "r"(p), "r"(64L))
#define TILE_DOT(sums, rows, w) asm volatile("tdpbssd %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::)          // signed by signed bytes
#define TILE_DOT_UNSIGNED(sums, rows, w) asm volatile("tdpbsud %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::) // signed rows, unsigned weights
#define TILE_DOT_BF16(sums, rows, w) asm volatile("tdpbf16ps %%tmm" #w ", %%tmm" #rows ", %%tmm" #sums ::)
#endif

namespace ISA {
namespace {

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
    TILE_CONFIGURE(c);
}

// Up to 32 packed rows. Of each block, 16 rows have `tiles` tiles and then `words` lines with a number of each row.
template <class K> struct Rows {
    static constexpr size_t numbers = 16 * K::tile_bytes * K::tiles, unit = numbers + 64 * K::words; // bytes of 16 rows
    const char * at; // the first block
    size_t next;     // bytes to the next 16 rows
    int n;

    const char * tile(int half, int block, int i) const { return at + half * next + block * unit + 16 * K::tile_bytes * i; }
    const char * word(int r, int block, int i) const { return at + r / 16 * next + block * unit + numbers + 64 * i + 4 * (r % 16); }
    float number(int r, int block, int i) const { float x; memcpy(&x, word(r, block, i), 4); return x; }
    // Ask for one of PARTS parts of what the next rows have in a block: the processor does not guess where they lie.
    template <int PARTS> void fetch(int block, int part) const {
        constexpr int lines = (unit / 64 + PARTS - 1) / PARTS;
        const char * p = tile(2, block, 0) + 64 * lines * part;
        UNROLL for (int i = 0; i < lines; i++) _mm_prefetch(p + 64 * i, _MM_HINT_T1), _mm_prefetch(p + next + 64 * i, _MM_HINT_T1);
    }
};
// Where row r of 16 has its part of a tile and its number in a line.
template <class K> char * part_of(char * to, int r, int64_t block, int tile) { return to + block * Rows<K>::unit + K::tile_bytes * (16 * tile + r); }
template <class K> void put_word(char * to, int r, int64_t block, int i, const void * x) { memcpy(to + block * Rows<K>::unit + Rows<K>::numbers + 64 * i + 4 * r, x, 4); }

size_t aligned64(size_t n) { return (n + 63) / 64 * 64; }

// Where a part of the work memory begins.
template <class X> X * take(char *& memory, size_t n) {
    X * const found = (X *) memory;
    memory += aligned64(n * sizeof(X));
    return found;
}

// How many groups of 16 columns, and blocks of each, are unpacked at once.
struct Share { int groups, depth; };

// The loops of all kernels. K has the weights of a block and 16 columns in tiles (Weights), and the float sums of 32 rows (Sums);
// it unpacks weights once for up to `most` rows, whose sums have room in the second cache beside the weights. Of up to `few` rows unpacking is
// most of the work: a smaller share stays in the first cache, with the sums of all rows.
template <class K> size_t scratch_bytes(int64_t n) {
    const int64_t blocks = ((n < K::most ? n : K::most) + BLOCK - 1) / BLOCK;
    return K::stage + blocks * K::groups * sizeof(typename K::Sums) + K::groups * K::depth * sizeof(typename K::Weights);
}
template <class K> size_t bytes_of_16(int64_t k) { return (size_t) (k / K::elements) * Rows<K>::unit; }
template <class K> bool multiply(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * x, float * const * y, int64_t n, char * memory) {
    static_assert(K::share_of_few.groups <= K::groups && K::share_of_few.depth <= K::depth, "it has room in the work memory");
    if (!may_use_tiles()) return false;
    const int64_t n_blocks = k / K::elements;
    const size_t next = bytes_of_16<K>(k);
    char * const stage = take<char>(memory, K::stage);
    typename K::Weights * const weights = take<typename K::Weights>(memory, K::groups * K::depth);
    typename K::Sums * const sums = (typename K::Sums *) memory;
    int m0 = 0, m1 = 0;
    for (int64_t first = 0; first < n; first += K::most) {
        const int64_t end = n - first < K::most ? n : first + K::most;
        const Share at_once = end - first <= K::few ? K::share_of_few : Share{K::groups, K::depth};
        for (int64_t c = c0; c < c1; c += 16 * at_once.groups) {
            const int64_t left = (c1 - c + 15) / 16;
            const int groups = (int) (left < at_once.groups ? left : at_once.groups);
            memset((void *) sums, 0, (end - first + BLOCK - 1) / BLOCK * groups * sizeof(typename K::Sums));
            for (int64_t b = 0; b < n_blocks; b += at_once.depth) {
                const int depth = (int) (n_blocks - b < at_once.depth ? n_blocks - b : at_once.depth);
                for (int g = 0; g < groups; g++)
                    for (int i = 0; i < depth; i++) { // the blocks that are asked for behind the last one are the first ones of the next columns
                        const int64_t ahead = b + i + K::ahead < n_blocks ? K::ahead * K::bytes : 16 * groups * (int64_t) stride - (n_blocks - K::ahead) * K::bytes;
                        weights[i * K::groups + g].unpack(w + (c + 16 * g) * stride, stride, c1 - c - 16 * g, b + i, ahead);
                    }
                typename K::Sums * to = sums;
                for (int64_t r = first; r < end; r += BLOCK, to += groups) {
                    const Rows<K> rows = {x + r / 16 * next + b * Rows<K>::unit, next, (int) (end - r < BLOCK ? end - r : BLOCK)};
                    const int m = rows.n < 16 ? rows.n : 16;
                    if (m != m0 || rows.n - m != m1) configure(m0 = m, m1 = rows.n - m, K::tile_bytes);
                    if (m1) K::template run<true>(weights, groups, depth, rows, to, stage);
                    else K::template run<false>(weights, groups, depth, rows, to, stage);
                }
            }
            const typename K::Sums * from = sums;
            for (int64_t r = first; r < end; r += BLOCK, from += groups)
                for (int i = 0; i < BLOCK && r + i < end; i++)
                    for (int g = 0; g < groups; g++) {
                        const int64_t at = c + 16 * g;
                        const __mmask16 columns = (__mmask16) (c1 - at >= 16 ? 0xffff : (1 << (c1 - at)) - 1);
                        _mm512_mask_storeu_ps(y[r + i] + at, columns, from[g].result(i));
                    }
        }
    }
    TILE_RELEASE(); // or the system saves their state at each change of threads
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

// Values of the codes as they are stored.
alignas(16) constexpr int8_t q4_0_values[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
inline const int8_t * values_of(Interleaved_Q4_0) { return q4_0_values; }
inline const int8_t * values_of(Interleaved_IQ4_NL) { return iq4_nl_values; }
inline const int8_t * values_of(Interleaved_MXFP4) { return mxfp4_values; }

template <class T> struct Interleaved32 {
    static constexpr int elements = 32, groups = 8, depth = 24, tile_bytes = 64, tiles = 1, words = 1, most = 512, few = 64, ahead = 8, bytes = T::group_bytes;
    static constexpr Share share_of_few = {8, 2};
    static constexpr size_t stage = 4 * TILE;

    static void pack(const char * row, char * to, int r, int64_t, int64_t begin, int64_t end) {
        for (int64_t b = begin / 32; b < end / 32; b++) {
            const Block32 & block = ((const Block32 *) row)[b];
            const __m128i * a = (const __m128i *) block.bytes;
            const Ints x = join(high_halves(floats_of(_mm_loadu_si128(a))), high_halves(floats_of(_mm_loadu_si128(a + 1))));
            _mm512_store_si512(part_of<Interleaved32>(to, r, b, 0), _mm512_permutexvar_epi16(load(order32.at), x));
            put_word<Interleaved32>(to, r, b, 0, &block.scale);
        }
    }

    struct alignas(64) Weights {
        char tile[TILE];
        Floats scale;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b, int64_t ahead) {
            const char * p = w + b * T::group_bytes, * q = n_columns > 8 ? p + 8 * stride : p;
            // Indices are the low nibbles of 16 bits; the table is there twice, as one more bit counts.
            const __m256i values = high_halves(floats_of(_mm_load_si128((const __m128i *) values_of(T()))));
            const Ints table = join(values, values);
            UNROLL for (int i = 0; i < 2; i++) {
                Ints raw[2];
                columns_at(p + T::codes + 64 * i, q + T::codes + 64 * i, raw[0], raw[1]);
                _mm_prefetch(p + T::codes + 64 * i + ahead, _MM_HINT_T0), _mm_prefetch(q + T::codes + 64 * i + ahead, _MM_HINT_T0);
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

    struct Step { // one block or two
        const Weights * weights;
        Rows<Interleaved32> rows;
        int block, n;
        Floats * sum;
        template <int N> void floats_of(const char * stage, int first) const {
            Floats scale[N];
            UNROLL for (int i = 0; i < N; i++) scale[i] = weights[groups * i].scale;
            UNROLL for (int r = first; r < first + 16; r++)
                UNROLL for (int i = 0; i < N; i++) {
                    const char * p = stage + TILE * (2 * (first / 16) + i) + 64 * (r % 16);
                    sum[r] = fma(load_floats((const float *) p), mul(scale[i], all(rows.number(r, block + i, 0))), sum[r]);
                }
        }
        // Float steps of 16 rows from row first on.
        void floats(const char * stage, int first) const {
            if (n == 2) floats_of<2>(stage, first);
            else if (n) floats_of<1>(stage, first);
        }
    };
    // Each sum of the step before is stored just before its tile is needed again: a store that follows its products at once waits for them.
    template <bool TWO> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, char * stage) {
        const auto rows = [&](int half, int i) { return now.rows.tile(half, now.block + i, 0); };
        const bool second = now.n == 2;
        TILE_ROWS(4, rows(0, 0), tile_bytes);
        TILE_WEIGHTS(6, now.weights[0].tile);
        TILE_STORE(0, stage);
        TILE_ZERO(0);
        TILE_DOT_BF16(0, 4, 6);
        TILE_STORE(1, stage + TILE);
        if (second) { TILE_ROWS(4, rows(0, 1), tile_bytes); TILE_WEIGHTS(7, now.weights[groups].tile); TILE_ZERO(1); TILE_DOT_BF16(1, 4, 7); }
        before.floats(stage, 0);
        if (TWO) {
            TILE_ROWS(5, rows(1, 0), tile_bytes);
            TILE_STORE(2, stage + 2 * TILE);
            TILE_ZERO(2);
            TILE_DOT_BF16(2, 5, 6);
            TILE_STORE(3, stage + 3 * TILE);
            if (second) { TILE_ROWS(5, rows(1, 1), tile_bytes); TILE_ZERO(3); TILE_DOT_BF16(3, 5, 7); }
            before.floats(stage, 16);
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows<Interleaved32> & rows, Sums * sums, char * stage) {
        Step before = {};
        for (int i = 0; i < n_blocks; i += 2)
            for (int g = 0; g < n_groups; g++) {
                const Step now = {weights + groups * i + g, rows, i, n_blocks - i < 2 ? 1 : 2, sums[g].sum};
                rows.template fetch<groups>(i, g), rows.template fetch<groups>(i + 1, g);
                step<TWO>(now, before, stage);
                before = now;
            }
        TILE_STORE(0, stage); TILE_STORE(1, stage + TILE);
        if (TWO) { TILE_STORE(2, stage + 2 * TILE); TILE_STORE(3, stage + 3 * TILE); }
        UNROLL for (int r = 0; r < (TWO ? 32 : 16); r += 16) before.floats(stage, r);
    }
};

// ---- repacked superblocks of Q4_K. A scale (6 bits) is 8 h + l: weight times h and weight times l are bytes. The minima are summed in
// bf16, exactly: a sum of 32 activations is 64 h + l, and all products are below 2^24.

struct Repacked_Q4_K {
    typedef Interleaved_Q4_K T;
    static constexpr int elements = 256, groups = 8, depth = 3, tile_bytes = 64, tiles = 5, words = 1, most = 512, few = 64, ahead = 2, bytes = T::group_bytes;
    static constexpr Share share_of_few = {2, 1};
    static constexpr size_t stage = 6 * TILE;

    // The last tile has h of the eight sums and l of them, in pairs, then zeros.
    static void pack(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end) {
        const Row256 from(row, k);
        for (int64_t b = begin / 256; b < end / 256; b++) {
            UNROLL for (int i = 0; i < 4; i++) _mm512_store_si512(part_of<Repacked_Q4_K>(to, r, b, i), load(from.bytes + 256 * b + 64 * i));
            const __m256i x = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *) (from.sums32 + 8 * b)));
            const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(63)), high = _mm256_sub_epi32(x, low);
            const __m256i h = _mm256_castps_si256(_mm256_cvtepi32_ps(high)), l = _mm256_castps_si256(_mm256_cvtepi32_ps(low));
            _mm512_store_si512(part_of<Repacked_Q4_K>(to, r, b, 4), _mm512_zextsi256_si512(_mm256_or_si256(h, _mm256_srli_epi32(l, 16))));
            put_word<Repacked_Q4_K>(to, r, b, 0, from.scale + b);
        }
    }

    struct alignas(64) Weights {
        char tile[4][2][TILE]; // of 64 elements: times h, times l
        char minimum[TILE];    // for h and for l; the second half stays zero
        Floats d, dmin;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b, int64_t ahead) {
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
                    _mm_prefetch(p + at + 64 * i + ahead, _MM_HINT_T0), _mm_prefetch(q + at + 64 * i + ahead, _MM_HINT_T0);
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
        Rows<Repacked_Q4_K> rows;
        int block;
        Floats (*sum)[2];
        // Float steps of COUNT rows from row r on.
        template <int COUNT> void floats(const char * stage, int r) const {
            if (!weights) return; // nothing came before
            const Floats d = weights->d, dmin = weights->dmin;
            const char * p = stage + 3 * TILE * (r / 16) + 64 * (r % 16);
            UNROLL for (int j = r; j < r + COUNT; j++, p += 64) {
                const Ints x = add32(_mm512_slli_epi32(load(p), 3), load(p + TILE));
                const Floats scale = all(rows.number(j, block, 0));
                sum[j][0] = fma(to_floats(x), mul(d, scale), sum[j][0]);
                sum[j][1] = fma(load_floats((const float *) (p + 2 * TILE)), mul(dmin, scale), sum[j][1]);
            }
        }
    };
    // The float steps of `before` are done before its sums in memory are replaced; its minima are still in tiles.
    template <bool TWO> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, char * stage) {
        constexpr int share = TWO ? 8 : 4; // rows of the step before, beside a load of tiles
        const Weights & x = *now.weights;
        const auto rows = [&](int half, int i) { return now.rows.tile(half, now.block, i); };
        UNROLL for (int l = 0; l < 4; l++) {
            TILE_ROWS(4, rows(0, l), tile_bytes);
            TILE_WEIGHTS(6, x.tile[l][0]);
            if (l == 0) { TILE_STORE(0, stage + 2 * TILE); TILE_ZERO(0); }
            TILE_DOT(0, 4, 6);
            TILE_WEIGHTS(7, x.tile[l][1]);
            if (l == 0) TILE_ZERO(1);
            TILE_DOT(1, 4, 7);
            if (TWO) {
                TILE_ROWS(5, rows(1, l), tile_bytes);
                if (l == 0) { TILE_STORE(2, stage + 5 * TILE); TILE_ZERO(2); }
                TILE_DOT(2, 5, 6);
                if (l == 0) TILE_ZERO(3);
                TILE_DOT(3, 5, 7);
            }
            before.template floats<share>(stage, share * l);
        }
        TILE_WEIGHTS(6, x.minimum);
        TILE_ROWS(4, rows(0, 4), tile_bytes);
        TILE_STORE(0, stage);
        TILE_ZERO(0);
        TILE_DOT_BF16(0, 4, 6);
        TILE_STORE(1, stage + TILE);
        if (TWO) {
            TILE_ROWS(5, rows(1, 4), tile_bytes);
            TILE_STORE(2, stage + 3 * TILE);
            TILE_ZERO(2);
            TILE_DOT_BF16(2, 5, 6);
            TILE_STORE(3, stage + 4 * TILE);
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows<Repacked_Q4_K> & rows, Sums * sums, char * stage) {
        Step before = {};
        for (int i = 0; i < n_blocks; i++)
            for (int g = 0; g < n_groups; g++) {
                const Step now = {weights + groups * i + g, rows, i, sums[g].sum};
                rows.template fetch<groups>(i, g);
                step<TWO>(now, before, stage);
                before = now;
            }
        TILE_STORE(0, stage + 2 * TILE);
        if (TWO) TILE_STORE(2, stage + 5 * TILE);
        UNROLL for (int r = 0; r < (TWO ? 32 : 16); r += 16) before.template floats<16>(stage, r);
    }
};

// ---- superblocks as they lie, with eight float sums a column as in tile_super: sum i is of elements 4 i to 4 i + 3 of each group of 32, so
// a tile of sums each. Weight times scale has at most 14 bits: 256 high + low.

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
    static constexpr int n_sums = n_lows ? 4 : 8; // pairs of sums of 32 or of 16 activations
    static constexpr int elements = 256, groups = 2, depth = 8, tile_bytes = 32, tiles = 8, words = 1 + n_sums, most = 256, few = 32, ahead = 2, bytes = T::bytes;
    static constexpr Share share_of_few = {1, 1};
    static constexpr size_t stage = 4 * TILE + n_products * depth * BLOCK * 64;

    // The elements of each sum: [group of 32][4].
    static void pack(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end) {
        const Row256 from(row, k);
        for (int64_t b = begin / 256; b < end / 256; b++) {
            const char * a = from.bytes + 256 * b;
            UNROLL for (int i = 0; i < 8; i += 2) { // dword (i, group) lies at 8 group + i
                const Ints index = _mm512_set_epi32(25 + i, 17 + i, 9 + i, 1 + i, 25 + i, 17 + i, 9 + i, 1 + i, 24 + i, 16 + i, 8 + i, i, 24 + i, 16 + i, 8 + i, i);
                const Ints x = _mm512_permutex2var_epi32(load(a), index, load(a + 64)), y = _mm512_permutex2var_epi32(load(a + 128), index, load(a + 192));
                const Ints both_sums = _mm512_mask_blend_epi32(0xf0f0, x, y);
                _mm256_store_si256((__m256i *) part_of<Super>(to, r, b, i), _mm512_castsi512_si256(both_sums));
                _mm256_store_si256((__m256i *) part_of<Super>(to, r, b, i + 1), _mm512_extracti64x4_epi64(both_sums, 1));
            }
            put_word<Super>(to, r, b, 0, from.scale + b);
            for (int i = 0; i < n_sums; i++) put_word<Super>(to, r, b, 1 + i, n_lows ? from.sums32 + 8 * b + 2 * i : from.sums16 + 16 * b + 2 * i);
        }
    }

    struct alignas(64) Weights {
        char tile[8][2][TILE / 2]; // for each sum: high and low bytes; 8 groups of four elements of 16 columns
        Ints low[8];               // offsets or minima of two parts, as 16 bits
        Floats d, dmin;
        void unpack(const char * w, size_t stride, int64_t n_columns, int64_t b, int64_t ahead) {
            Ints codes[V][16], scales[16], lows[16];
            alignas(64) float d_of[16], dmin_of[16];
            UNROLL for (int c = 0; c < 16; c++) {
                const char * p = w + (c < n_columns ? c : n_columns - 1) * stride + b * T::bytes;
                _mm_prefetch(p + ahead, _MM_HINT_T0), _mm_prefetch(p + ahead + 64, _MM_HINT_T0), _mm_prefetch(p + ahead + 128, _MM_HINT_T0);
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
        Rows<Super> rows;
        int block, i;
        Floats * sum;
        const Floats * products; // of the scales of columns and rows
        // Float steps of 16 rows from row first on.
        void floats(const char * stage, int first) const {
            if (!weights) return; // nothing came before
            const Ints low = weights->low[i];
            UNROLL for (int r = first; r < first + 16; r++) {
                const char * p = stage + 2 * TILE * (r / 16) + 64 * (r % 16);
                const auto pair = [&] { return all_ints(int_at(rows.word(r, block, 1 + i))); }; // the row's sums of 16 that belong to this sum
                Ints x = add32(_mm512_slli_epi32(load(p), 8), load(p + TILE));
                Floats u = sum[r];
                if constexpr (kind == OFFSET) x = add_pairs16(x, low, pair());
                if constexpr (kind == OF_EIGHT) u = fma(products[BLOCK + r], to_floats(pairs16(low, pair())), u);
                sum[r] = fma(products[r], to_floats(x), u);
            }
        }
    };
    // Each sum of the step before is stored just before its tile is needed again: a store that follows its products at once waits for them.
    template <bool TWO> static inline __attribute__((always_inline)) void step(const Step & now, const Step & before, char * stage) {
        const auto rows = [&](int half) { return now.rows.tile(half, now.block, now.i); };
        const char (&x)[2][TILE / 2] = now.weights->tile[now.i];
        TILE_ROWS(4, rows(0), tile_bytes);
        TILE_WEIGHTS(6, x[0]);
        TILE_STORE(0, stage);
        TILE_ZERO(0);
        TILE_DOT(0, 4, 6);
        TILE_WEIGHTS(7, x[1]);
        TILE_STORE(1, stage + TILE);
        TILE_ZERO(1);
        TILE_DOT_UNSIGNED(1, 4, 7);
        before.floats(stage, 0);
        if (TWO) {
            TILE_ROWS(5, rows(1), tile_bytes);
            TILE_STORE(2, stage + 2 * TILE);
            TILE_ZERO(2);
            TILE_DOT(2, 5, 6);
            TILE_STORE(3, stage + 3 * TILE);
            TILE_ZERO(3);
            TILE_DOT_UNSIGNED(3, 5, 7);
            before.floats(stage, 16);
        }
    }
    template <bool TWO> static void run(const Weights * weights, int n_groups, int n_blocks, const Rows<Super> & rows, Sums * sums, char * stage) {
        Floats * const products = (Floats *) (stage + 4 * TILE);
        for (int g = 0; g < n_groups; g++) {
            Sums & to = sums[g];
            for (int b = 0; b < n_blocks; b++)
                for (int r = 0; r < (TWO ? 32 : 16); r++) {
                    const Weights & w = weights[groups * b + g];
                    const float scale = rows.number(r, b, 0);
                    const auto pair = [&](int i) { return all_ints(int_at(rows.word(r, b, 1 + i))); }; // of sums of 32
                    const Floats dmin = mul(all(-scale), w.dmin);
                    Floats * product = products + n_products * BLOCK * b + r;
                    product[0] = mul(all(scale), w.d);
                    if constexpr (kind == OF_EIGHT) product[BLOCK] = dmin;
                    if constexpr (kind == OF_FOUR)
                        UNROLL for (int i = 0; i < 4; i++) to.low[r][i] = fma(dmin, to_floats(pairs16(w.low[i], pair(i))), to.low[r][i]);
                    if constexpr (kind == OF_ONE) {
                        Ints m = zero_ints();
                        UNROLL for (int i = 0; i < 4; i++) m = add_pairs16(m, w.low[i], pair(i));
                        to.low[r][0] = fma(dmin, to_floats(m), to.low[r][0]);
                    }
                }
            Step before = {};
            for (int i = 0; i < 8; i++)
                for (int b = 0; b < n_blocks; b++) {
                    const Step now = {weights + groups * b + g, rows, b, i, to.sum[i], products + n_products * BLOCK * b};
                    rows.template fetch<8 * groups>(b, 8 * g + i);
                    step<TWO>(now, before, stage);
                    before = now;
                }
            TILE_STORE(0, stage); TILE_STORE(1, stage + TILE);
            if (TWO) { TILE_STORE(2, stage + 2 * TILE); TILE_STORE(3, stage + 3 * TILE); }
            UNROLL for (int r = 0; r < (TWO ? 32 : 16); r += 16) before.floats(stage, r);
        }
    }
};

} // namespace
} // namespace ISA

#define TILED(TYPE, REPACKED, LEAST, ...) {TYPE, REPACKED, {LEAST, 16, ISA::bytes_of_16<ISA::__VA_ARGS__>, ISA::__VA_ARGS__::pack, ISA::scratch_bytes<ISA::__VA_ARGS__>, ISA::multiply<ISA::__VA_ARGS__>}}

extern const Tiled tile_products[];
// The numbers of rows are from measurements: 2 cores of a Xeon of 2023, matrices of 1536 and 8960.
const Tiled tile_products[] = {
    TILED(Q4_0, true, 48, Interleaved32<ISA::Interleaved_Q4_0>),
    TILED(IQ4_NL, true, 48, Interleaved32<ISA::Interleaved_IQ4_NL>),
    TILED(MXFP4, true, 48, Interleaved32<ISA::Interleaved_MXFP4>),
    TILED(Q4_K, true, 24, Repacked_Q4_K),
    TILED(Q2_K, false, 24, Super<ISA::Plain_Q2_K>),
    TILED(Q3_K, false, 24, Super<ISA::Plain_Q3_K>),
    TILED(Q4_K, false, 24, Super<ISA::Plain_Q4_K>),
    TILED(Q5_K, false, 24, Super<ISA::Plain_Q5_K>),
    TILED(Q6_K, false, 16, Super<ISA::Plain_Q6_K>),
    {-1, false, {0, 0, nullptr, nullptr, nullptr, nullptr}},
};
