// Products with weights of F32, F16 and BF16. Activations are rounded to the type of the weights and kept as F32.
//
// Four vectors of sums for each row and column, L elements apart, added pairwise at the end. The last k % (4 L) elements go
// to the first sums, with zeros behind them.
#pragma once
#include "simd.h"

namespace ISA {

constexpr int ROWS_FLOATS = L == 16 ? 4 : 2;

struct Weights_F32 {
    typedef float Number;
    static Floats at(const Number * p) { return load_floats(p); }
    static float one(Number x) { return x; }
    static float rounded(float x) { return x; }
};
struct Weights_F16 {
    typedef uint16_t Number;
    static Floats at(const Number * p) { return floats_of_halves(p); }
    static float one(Number x) { return half_at(&x); }
    static float rounded(float x) { return rounded_to_half(x); }
};
struct Weights_BF16 {
    typedef uint16_t Number;
    static Floats at(const Number * p) { return floats_of_brain(p); }
    static float of_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
    static float one(Number x) { return of_bits((uint32_t) x << 16); }
    static float rounded(float x) { // to the nearest, ties to even; a NaN stays one
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return of_bits((bits | 0x400000u) & 0xffff0000u);
        return of_bits((bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u);
    }
};

template <class T, int R> static void tile_floats(const typename T::Number * w, int64_t k, const float * const * rows, float * const * y) {
    Floats acc[R][4];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < 4; i++) acc[r][i] = zero();
    const int64_t whole = k / (4 * L) * (4 * L);
    for (int64_t e = 0; e < whole; e += 4 * L)
        UNROLL for (int i = 0; i < 4; i++) {
            const Floats v = T::at(w + e + i * L);
            UNROLL for (int r = 0; r < R; r++) acc[r][i] = fma(v, load_floats(rows[r] + e + i * L), acc[r][i]);
        }
    if (whole < k) {
        float v[4 * L] = {}, a[4 * L];
        for (int64_t e = whole; e < k; e++) v[e - whole] = T::one(w[e]);
        UNROLL for (int r = 0; r < R; r++) {
            for (int i = 0; i < 4 * L; i++) a[i] = whole + i < k ? rows[r][whole + i] : 0;
            for (int i = 0; i < 4 * L; i += L) acc[r][0] = fma(load_floats(v + i), load_floats(a + i), acc[r][0]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) *y[r] = total(add(add(acc[r][0], acc[r][2]), add(acc[r][1], acc[r][3])));
}

template <class T> static void multiply_floats(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * x, float * const * y, int n) {
    for (int r0 = 0; r0 < n;) {
        const int m = next_tile(n - r0, ROWS_FLOATS);
        const float * const * rows = (const float * const *) (x + r0);
        for (int64_t c = c0; c < c1; c++) {
            float * out[ROWS_FLOATS];
            for (int r = 0; r < m; r++) out[r] = y[r0 + r] + c;
#define CALL(R) tile_floats<T, R>((const typename T::Number *) (w + c * stride), k, rows, out)
            WITH_ROWS(m, ROWS_FLOATS, CALL)
#undef CALL
        }
        r0 += m;
    }
}

} // namespace ISA
