// The instructions of AMX that tiles.cpp uses, computed with AVX-512 VNNI: the kernels can be tested on processors without tiles.
//
// Only tests compile this (tests/kernels/graphs.py); the library that users get has the real instructions. It knows no kernel. As the
// processor does, it traps (SIGILL) at a wrong configuration, at tiles that were not configured, and at products of tiles whose shapes do not
// fit. Sums of bytes wrap at 32 bits. Products of bf16 follow the order of Intel's manual: even and odd places in sums of their own, by
// fused operations, numbers below 2^-126 as zero, rounded to the nearest even. That order does not matter to tiles.cpp, whose sums are
// whole numbers below 2^24: a kernel that needs it would have other bits with an instruction that adds in another order.
#pragma once
#include <immintrin.h>
#include <cstdint>
#include <cstring>

namespace in_software {

struct Tiles { // of a thread; all zero: not configured
    uint8_t palette;
    uint16_t bytes[8];
    uint8_t rows[8];
    alignas(64) char row[8][16][64];
};
inline Tiles & tiles() {
    static thread_local Tiles of_thread;
    return of_thread;
}
inline void trap_unless(bool fine) {
    if (!fine) __builtin_trap();
}

inline void release() { memset((void *) &tiles(), 0, sizeof(Tiles)); }
inline void configure(const void * what) { // 64 bytes: palette, first row, 14 zeros, 16 times bytes of a row, 16 times rows
    const uint8_t * const p = (const uint8_t *) what;
    release();
    for (int i = 1; i < 16; i++) trap_unless(!p[i]);
    for (int i = 0; i < 16; i++) {
        const int bytes = p[16 + 2 * i] + 256 * p[17 + 2 * i], rows = p[48 + i];
        trap_unless(i < 8 ? bytes <= 64 && rows <= 16 && !bytes == !rows : !bytes && !rows);
        if (i < 8) tiles().bytes[i] = (uint16_t) bytes, tiles().rows[i] = (uint8_t) rows;
    }
    trap_unless((tiles().palette = p[0]) == 1);
}
inline Tiles & with(int t) {
    trap_unless(tiles().palette && tiles().rows[t]);
    return tiles();
}
inline void zero(int t) { memset(with(t).row[t], 0, 1024); }
inline void load(int t, const void * from, long stride) {
    zero(t);
    for (int r = 0; r < tiles().rows[t]; r++) memcpy(tiles().row[t][r], (const char *) from + r * stride, tiles().bytes[t]);
}
inline void store(int t, void * to, long stride) {
    const Tiles & of = with(t);
    for (int r = 0; r < of.rows[t]; r++) memcpy((char *) to + r * stride, of.row[t][r], of.bytes[t]);
}

// Products of tiles a and b, added to tile `sums`: ADD(sums of a row, four bytes of a in all lanes, row of b) for each row of b.
template <class Add> inline void dot(int sums, int a, int b, Add add) {
    Tiles & x = with(sums);
    trap_unless(sums != a && sums != b && a != b && x.rows[a] == x.rows[sums] && x.bytes[b] == x.bytes[sums] && x.bytes[a] == 4 * x.rows[b] && x.bytes[b] % 4 == 0);
    for (int r = 0; r < x.rows[a]; r++)
        add(x.row[sums][r], x.rows[b], [&](int k) { int four; memcpy(&four, x.row[a][r] + 4 * k, 4); return _mm512_set1_epi32(four); },
            [&](int k) { return _mm512_load_si512(x.row[b][k]); });
}
inline void dot_signed(int sums, int a, int b) {
    dot(sums, a, b, [](char * to, int n, auto of_a, auto of_b) {
        const __m512i flip = _mm512_set1_epi8((char) 128); // a + 128 is not signed: 128 b is taken away
        __m512i sum = _mm512_load_si512(to), more = _mm512_setzero_si512();
        for (int k = 0; k < n; k++) sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(of_a(k), flip), of_b(k)), more = _mm512_dpbusd_epi32(more, flip, of_b(k));
        _mm512_store_si512(to, _mm512_sub_epi32(sum, more));
    });
}
inline void dot_unsigned(int sums, int a, int b) {
    dot(sums, a, b, [](char * to, int n, auto of_a, auto of_b) {
        __m512i sum = _mm512_load_si512(to);
        for (int k = 0; k < n; k++) sum = _mm512_dpbusd_epi32(sum, of_b(k), of_a(k));
        _mm512_store_si512(to, sum);
    });
}
inline void dot_bf16(int sums, int a, int b) {
    const unsigned usual = _mm_getcsr();
    _mm_setcsr(0x9fc0); // no exceptions, nearest even, small numbers are zero
    dot(sums, a, b, [](char * to, int n, auto of_a, auto of_b) {
        const auto even = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
        const auto odd = [](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int) 0xffff0000))); };
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int k = 0; k < n; k++) sum[0] = _mm512_fmadd_ps(even(of_a(k)), even(of_b(k)), sum[0]), sum[1] = _mm512_fmadd_ps(odd(of_a(k)), odd(of_b(k)), sum[1]);
        _mm512_store_ps((float *) to, _mm512_add_ps(_mm512_load_ps((const float *) to), _mm512_add_ps(sum[0], sum[1])));
    });
    _mm_setcsr(usual);
}

} // namespace in_software

// For tests: whether this thread has tiles in use, and whether all threads are refused them.
extern "C" int tiles_in_use() { return in_software::tiles().palette; }
extern "C" { int tiles_are_refused; }
inline bool may_use_tiles() { return !tiles_are_refused; }
#define TILE_CONFIGURE(c) in_software::configure(&(c))
#define TILE_RELEASE() in_software::release()
#define TILE_ZERO(t) in_software::zero(t)
#define TILE_ROWS(t, p, bytes) in_software::load(t, p, bytes)
#define TILE_WEIGHTS(t, p) in_software::load(t, p, 64)
#define TILE_STORE(t, p) in_software::store(t, p, 64)
#define TILE_DOT(sums, rows, w) in_software::dot_signed(sums, rows, w)
#define TILE_DOT_UNSIGNED(sums, rows, w) in_software::dot_unsigned(sums, rows, w)
#define TILE_DOT_BF16(sums, rows, w) in_software::dot_bf16(sums, rows, w)
