// Attention (FLASH_ATTN_EXT) for every number of rows with the same bits: one row, a draft, or a prompt.
//
// Rows are pairs of a token and a query head; rows that share a key-value head form blocks. Where these are small, a block has the rows of
// several heads, whose keys lie side by side. Cached positions are visited in tiles, and tiles form pieces of a fixed length:
//
//               | piece 0: 512 positions          | piece 1               | ...        a lane of a vector is a position
//               | tile | tile | tile | ... | tile | tile | ...
//   row block 0 |  K of a tile, converted to F32 and transposed once: k[d][position], then for each row
//   row block 1 |    score = sum over d, in order; softmax so far; result += weight * V, position by position
//   ...
//
// A row's sums in a piece begin at zero, and pieces are merged in order. So a row's bits depend on its query, its mask and the cache alone:
// not on the other rows, the threads, or how the prompt was cut. Positions that a row may not see change nothing: a tile without a visible
// position is left out, and weights of hidden positions are exactly zero (V with infinities or NaN is handled apart).
// All sums are F32. Online softmax: Milakov, Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, arXiv:2205.14135.
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace ISA {
namespace {

constexpr int TILE = 2 * L;     // positions of a tile
constexpr int PIECE = 512;      // positions of a piece
constexpr int BLOCK = 32;       // most rows of a block
constexpr int HEADS = 8;        // most key-value heads of a block
constexpr int SCORED = 4;       // rows whose scores are computed together
constexpr int SUMMED = L == 16 ? 4 : 2; // rows whose results are
constexpr int MOST_HEAD = 576;  // longest head
constexpr float HIDDEN = -INFINITY;
constexpr uint32_t EVERY = TILE == 32 ? ~0u : (1u << (TILE & 31)) - 1; // a bit for each position of a tile

// ---- numbers of the cache

inline Floats numbers_at(const char * p, int type) { // L numbers; of Q8_0 those of half a block or a quarter, see row_at
    switch (type) {
        case F16:
#if defined(__AVX512BW__)
            return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
        case BF16: return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
#else
            return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
        case BF16: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
#endif
        default: return load_floats((const float *) p);
    }
}
// L numbers of a head from element d on.
template <int TYPE> inline Floats row_at(const char * row, int d) {
    if (TYPE == Q8_0) {
        const char * block = row + d / 32 * 34;
#if defined(__AVX512BW__)
        const Ints x = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) (block + 2 + d % 32)));
#else
        const Ints x = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) (block + 2 + d % 32)));
#endif
        return mul(to_floats(x), all(half_at(block)));
    }
    return numbers_at(row + d * (TYPE == F32 ? 4 : 2), TYPE);
}

// Exchange rows and columns of L vectors.
inline void transpose(Floats * x) {
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

// K of a tile: k[d][position]. Positions from n on are zero.
template <int TYPE> void convert_keys(const char * K, size_t stride, int n, int size, float * k) {
    for (int p = 0; p < TILE; p += L)
        for (int d = 0; d < size; d += L) {
            Floats x[L];
            if (n == TILE) UNROLL for (int i = 0; i < L; i++) x[i] = row_at<TYPE>(K + (p + i) * stride, d);
            else UNROLL for (int i = 0; i < L; i++) x[i] = p + i < n ? row_at<TYPE>(K + (p + i) * stride, d) : zero();
            transpose(x);
            UNROLL for (int i = 0; i < L; i++) store_floats(k + (d + i) * TILE + p, x[i]);
        }
}
// V of a tile: v[position][d]. Returns whether all numbers are finite.
template <int TYPE> bool convert_values(const char * V, size_t stride, int n, int size, float * v) {
    Floats odd = zero(); // 0 * x is NaN for infinities and NaN
    for (int p = 0; p < TILE; p++)
        for (int d = 0; d < size; d += L) {
            const Floats x = p < n ? row_at<TYPE>(V + p * stride, d) : zero();
            odd = fma(x, zero(), odd);
            store_floats(v + p * size + d, x);
        }
    return !any_nan(odd);
}

// e^x for x <= 0; 0 below -87. A NaN stays one.
inline Floats exponential(Floats x) {
    const Floats n = nearest(mul(x, all(1.44269504f)));
    Floats r = fma(n, all(-0.693359375f), x);
    r = fma(n, all(2.12194440e-4f), r);
    Floats p = fma(r, all(1.9875691500e-4f), all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = add(fma(mul(r, r), p, r), all(1.0f));
    return zero_below(mul(p, power_of_two(n)), x, -87.0f);
}

// ---- one operation

struct Sizes {
    const Tensor * q, * k, * v, * mask, * sinks;
    int64_t n_tokens, group, rows, blocks, n_kv, pieces, heads, head_blocks, items;
    int key, value;
    float scale, bias, cap;
    bool split; // pieces are computed by different threads, and merged after a barrier
    size_t scratch, partial;

    Sizes(const Tensor * op, int n_threads) : q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), sinks(op->src[4]) {
        memcpy(&scale, op->op_params, 4), memcpy(&bias, op->op_params + 1, 4), memcpy(&cap, op->op_params + 2, 4);
        if (cap != 0) scale /= cap;
        key = (int) k->ne[0], value = (int) v->ne[0];
        n_tokens = q->ne[1], group = q->ne[2] / k->ne[2], rows = n_tokens * group;
        blocks = (rows + BLOCK - 1) / BLOCK;
        n_kv = k->ne[1], pieces = (n_kv + PIECE - 1) / PIECE;
        // as many heads in a block as leave every thread some blocks
        heads = q->ne[3] * k->ne[2] * blocks * pieces / (4 * n_threads);
        if (heads > BLOCK / rows) heads = BLOCK / rows;
        heads = heads < 1 ? 1 : heads > HEADS ? HEADS : heads;
        head_blocks = (k->ne[2] + heads - 1) / heads;
        items = q->ne[3] * head_blocks * blocks;
        split = pieces > 1 && items < 4 * n_threads;
        scratch = sizeof(float) * (size_t) (key * TILE + value * TILE + BLOCK * (key + TILE) + 2 * BLOCK * (value + 2) + BLOCK * L);
        partial = split ? sizeof(float) * (size_t) (BLOCK * (value + 2)) : 0;
    }
    size_t bytes(int n_threads) const { return 128 + n_threads * (scratch + 64) + items * pieces * partial; }
};

// Rows of a block with what was summed up so far.
struct Rows {
    int n, heads; // rows in all, and key-value heads that have an equal share of them
    const uint16_t * mask[BLOCK];
    float slope[BLOCK];
    const float * query; // [n][key]
    float * best, * weight, * sum; // [n] largest score, [n] sum of weights, [n][value]
};
Rows rows_in(float * p) { Rows r; r.best = p, r.weight = p + BLOCK, r.sum = p + 2 * BLOCK; return r; }

// Add a later part of the positions to an earlier one.
void merge(float & best, float & weight, float * sum, float best2, float weight2, const float * sum2, int size) {
    if (best2 == HIDDEN && weight2 == 0) return;
    if (best == HIDDEN && weight == 0) {
        best = best2, weight = weight2;
        memcpy(sum, sum2, sizeof(float) * size);
        return;
    }
    const float most = best2 > best ? best2 : best;
    float share[2 * L] = {best - most, best2 - most};
    store_floats(share, exponential(load_floats(share)));
    weight = __builtin_fmaf(weight, share[0], weight2 * share[1]);
    for (int d = 0; d < size; d += L) store_floats(sum + d, fma(load_floats(sum + d), all(share[0]), mul(load_floats(sum2 + d), all(share[1]))));
    best = most;
}

// Scores of R rows: score[r][TILE] = sum over d of k[d][position] query[d].
template <int R> void score(const float * k, const float * query, int size, float * out) {
    Floats s[R][2];
    UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = zero();
    for (int d = 0; d < size; d++) {
        const Floats a = load_floats(k + d * TILE), b = load_floats(k + d * TILE + L);
        UNROLL for (int r = 0; r < R; r++) {
            const Floats x = all(query[r * size + d]);
            s[r][0] = fma(a, x, s[r][0]), s[r][1] = fma(b, x, s[r][1]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) store_floats(out + r * TILE, s[r][0]), store_floats(out + r * TILE + L, s[r][1]);
}

// sum[r] += weights[r][p] v[p], position by position; D vectors of each row at a time.
template <int R, int D> void add_values(const float * v, const float * weights, float * const * sum, int size, int from) {
    Floats s[R][D];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int d = 0; d < D; d++) s[r][d] = load_floats(sum[r] + from + d * L);
    for (int p = 0; p < TILE; p++) {
        Floats x[D];
        UNROLL for (int d = 0; d < D; d++) x[d] = load_floats(v + p * size + from + d * L);
        UNROLL for (int r = 0; r < R; r++) {
            const Floats w = all(weights[r * TILE + p]);
            UNROLL for (int d = 0; d < D; d++) s[r][d] = fma(w, x[d], s[r][d]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int d = 0; d < D; d++) store_floats(sum[r] + from + d * L, s[r][d]);
}
template <int R> void add_values(const float * v, const float * weights, float * const * sum, int size) {
    int from = 0;
    for (; from + 4 * L <= size; from += 4 * L) add_values<R, 4>(v, weights, sum, size, from);
    for (; from + L <= size; from += L) add_values<R, 1>(v, weights, sum, size, from);
}

// One row's scores of a tile: scaled, masked, and made to weights; what was summed up is scaled to a new largest score. Returns false if no
// position is visible.
bool weigh(const Sizes & z, Rows & rows, int r, uint32_t hidden, const uint16_t * mask, float * s, float * lanes) {
    if (hidden == EVERY) return false;
    Floats x[2];
    UNROLL for (int i = 0; i < 2; i++) x[i] = mul(load_floats(s + i * L), all(z.scale));
    if (z.cap != 0) {
        UNROLL for (int i = 0; i < 2; i++) store_floats(s + i * L, x[i]);
        for (int i = 0; i < TILE; i++) s[i] = z.cap * tanhf(s[i]);
        UNROLL for (int i = 0; i < 2; i++) x[i] = load_floats(s + i * L);
    }
    if (mask) UNROLL for (int i = 0; i < 2; i++) x[i] = fma(numbers_at((const char *) (mask + i * L), F16), all(rows.slope[r]), x[i]);
    UNROLL for (int i = 0; i < 2; i++) x[i] = where_set(hidden >> (i * L), all(HIDDEN), x[i]);
    const float most = largest(maximum(x[0], x[1]));
    float * sum = rows.sum + r * z.value;
    if (most > rows.best[r]) {
        if (rows.best[r] != HIDDEN) {
            const Floats share = exponential(all(rows.best[r] - most));
            store_floats(lanes, mul(load_floats(lanes), share));
            for (int d = 0; d < z.value; d += L) store_floats(sum + d, mul(load_floats(sum + d), share));
        }
        rows.best[r] = most;
    }
    const Floats best = all(rows.best[r] == HIDDEN ? 0 : rows.best[r]);
    UNROLL for (int i = 0; i < 2; i++) {
        x[i] = exponential(sub(x[i], best));
        store_floats(s + i * L, x[i]);
    }
    store_floats(lanes, add(load_floats(lanes), add(x[0], x[1])));
    return true;
}

// Positions of a tile, 1 where the row may not see them; n of them exist.
uint32_t hidden_of(const uint16_t * mask, int n) {
    uint32_t bits = n < TILE ? ~0u << n : 0;
    bits &= EVERY;
    if (!mask) return bits;
    if (n < TILE) {
        for (int i = 0; i < n; i++) bits |= (uint32_t) (mask[i] == 0xfc00) << i;
        return bits;
    }
    const __m256i low = _mm256_set1_epi16((short) 0xfc00);
    for (int i = 0; i < TILE; i += 16) {
        const __m256i x = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *) (mask + i)), low);
        const __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        bits |= (uint32_t) _mm_movemask_epi8(b) << i;
    }
    return bits;
}

// A converted tile of n positions from p on, for `count` rows of its head.
void attend_tile(const Sizes & z, Rows & rows, int from, int count, const uint32_t * hidden, int64_t p, int n, const float * k, const float * v, bool finite, float * weights, float * lanes) {
    int used[BLOCK], n_used = 0; // rows that see something here; their weights are moved together
    for (int r = from; r < from + count; r += SCORED) {
        const float * query = rows.query + r * z.key;
        float s[SCORED * TILE];
        const int m = from + count - r < SCORED ? from + count - r : SCORED;
        if (m == 4) score<4>(k, query, z.key, s);
        else if (m == 3) score<3>(k, query, z.key, s);
        else if (m == 2) score<2>(k, query, z.key, s);
        else score<1>(k, query, z.key, s);
        for (int i = 0; i < m; i++) {
            float * own = weights + n_used * TILE;
            memcpy(own, s + i * TILE, sizeof(float) * TILE);
            const uint16_t * mask = rows.mask[r + i] ? rows.mask[r + i] + p : nullptr;
            uint16_t padded[TILE] = {};
            if (mask && n < TILE) mask = (const uint16_t *) memcpy(padded, mask, 2 * n);
            if (weigh(z, rows, r + i, hidden[r + i], mask, own, lanes + (r + i) * L)) used[n_used++] = r + i;
        }
    }
    if (!finite) { // a hidden position may hold anything: its zero weight must not meet a NaN
        for (int u = 0; u < n_used; u++)
            for (int i = 0; i < n; i++)
                if (!(hidden[used[u]] >> i & 1))
                    for (int d = 0; d < z.value; d++) {
                        float & sum = rows.sum[used[u] * z.value + d];
                        sum = __builtin_fmaf(weights[u * TILE + i], v[i * z.value + d], sum);
                    }
        return;
    }
    for (int u = 0; u < n_used; u += SUMMED) {
        float * sum[SUMMED];
        const int m = n_used - u < SUMMED ? n_used - u : SUMMED;
        for (int i = 0; i < m; i++) sum[i] = rows.sum + used[u + i] * z.value;
        const float * w = weights + u * TILE;
        if (m == SUMMED) add_values<SUMMED>(v, w, sum, z.value);
        else if (m == 3) add_values<3>(v, w, sum, z.value);
        else if (m == 2) add_values<2>(v, w, sum, z.value);
        else add_values<1>(v, w, sum, z.value);
    }
}

// Bytes of 32 numbers.
template <int TYPE> constexpr int size_of() { return TYPE == F32 ? 128 : TYPE == Q8_0 ? 34 : 64; }
// Ask for n rows of the cache; positions lie a page apart, where the processor does not guess them.
inline void fetch(const char * p, size_t stride, int n, int bytes) {
    for (int i = 0; i < n; i++)
        for (int b = 0; b < bytes; b += 64) _mm_prefetch(p + i * stride + b, _MM_HINT_T1);
}

// One piece of the positions for a block of rows. K, V: the first position of the piece; masks begin there as well.
template <int TK, int TV> void attend(const Sizes & z, Rows & rows, const char * K, const char * V, int64_t first, float * scratch) {
    float * k = scratch, * v = k + z.key * TILE, * weights = v + z.value * TILE, * lanes = weights + BLOCK * TILE;
    const int64_t end = first + PIECE < z.n_kv ? first + PIECE : z.n_kv;
    for (int r = 0; r < rows.n; r++) rows.best[r] = HIDDEN, store_floats(lanes + r * L, zero());
    memset(rows.sum, 0, sizeof(float) * rows.n * z.value);
    const int share = rows.n / rows.heads;
    for (int64_t p = first; p < end; p += TILE) {
        const int n = end - p < TILE ? (int) (end - p) : TILE;
        uint32_t hidden[BLOCK], all_hidden = ~0u;
        for (int r = 0; r < rows.n; r++) hidden[r] = hidden_of(rows.mask[r] ? rows.mask[r] + p : nullptr, n), all_hidden &= hidden[r];
        if (all_hidden == EVERY) continue;
        for (int h = 0; h < rows.heads; h++) {
            const char * K_tile = K + p * z.k->nb[1] + h * z.k->nb[2], * V_tile = V + p * z.v->nb[1] + h * z.v->nb[2];
            // what is read next: the next head, or the first one of the next tile
            const int64_t ahead = h + 1 < rows.heads ? 0 : TILE;
            if (p + ahead < end) {
                const int64_t back = ahead ? h : -1, left = end - p - ahead < TILE ? end - p - ahead : TILE;
                fetch(K_tile + ahead * z.k->nb[1] - back * z.k->nb[2], z.k->nb[1], (int) left, z.key * size_of<TK>() / 32);
                fetch(V_tile + ahead * z.v->nb[1] - back * z.v->nb[2], z.v->nb[1], (int) left, z.value * size_of<TV>() / 32);
            }
            convert_keys<TK>(K_tile, z.k->nb[1], n, z.key, k);
            const bool finite = convert_values<TV>(V_tile, z.v->nb[1], n, z.value, v);
            attend_tile(z, rows, h * share, share, hidden, p, n, k, v, finite, weights, lanes);
        }
    }
    for (int r = 0; r < rows.n; r++) rows.weight[r] = total(load_floats(lanes + r * L));
}

typedef void (*Attend)(const Sizes &, Rows &, const char *, const char *, int64_t, float *);
template <int TK> Attend attend_with(int type) {
    switch (type) {
        case F16: return attend<TK, F16>;
        case BF16: return attend<TK, BF16>;
        case Q8_0: return attend<TK, Q8_0>;
        default: return attend<TK, F32>;
    }
}
Attend attend_with(int key, int value) {
    switch (key) {
        case F16: return attend_with<F16>(value);
        case BF16: return attend_with<BF16>(value);
        case Q8_0: return attend_with<Q8_0>(value);
        default: return attend_with<F32>(value);
    }
}

// A block of rows: of one stream, and `heads` key-value heads from `head` on with n rows each.
struct Item {
    int64_t stream, head, first; // first row
    int heads, n;
    Item(const Sizes & z, int64_t i) : stream(i / (z.head_blocks * z.blocks)), head(i / z.blocks % z.head_blocks * z.heads), first(i % z.blocks * BLOCK) {
        n = (int) (z.rows - first < BLOCK ? z.rows - first : BLOCK);
        heads = (int) (z.k->ne[2] - head < z.heads ? z.k->ne[2] - head : z.heads);
    }
    int rows() const { return heads * n; }
    int64_t token(const Sizes & z, int r) const { return (first + r % n) / z.group; }
    int64_t query_head(const Sizes & z, int r) const { return (head + r / n) * z.group + (first + r % n) % z.group; }
};

float slope_of(const Sizes & z, int64_t head) {
    if (z.bias <= 0) return 1;
    const int64_t n = 1ll << (int) floor(log2((double) z.q->ne[2]));
    return head < n ? powf(powf(2, -z.bias / n), head + 1) : powf(powf(2, -z.bias / 2 / n), 2 * (head - n) + 1);
}

void fill(const Sizes & z, const Item & item, Rows & rows, float * query) {
    rows.n = item.rows(), rows.heads = item.heads, rows.query = query;
    for (int r = 0; r < rows.n; r++) {
        const int64_t t = item.token(z, r), h = item.query_head(z, r), b = item.stream;
        memcpy(query + r * z.key, (const char *) z.q->data + t * z.q->nb[1] + h * z.q->nb[2] + b * z.q->nb[3], sizeof(float) * z.key);
        rows.mask[r] = z.mask ? (const uint16_t *) ((const char *) z.mask->data + t * z.mask->nb[1] + h % z.mask->ne[2] * z.mask->nb[2] + b % z.mask->ne[3] * z.mask->nb[3]) : nullptr;
        rows.slope[r] = slope_of(z, h);
    }
}

void finish(const Sizes & z, const Item & item, Rows & rows, const Tensor * op) {
    for (int r = 0; r < item.rows(); r++) {
        const int64_t h = item.query_head(z, r);
        float * sum = rows.sum + r * z.value;
        if (z.sinks) { // a position without a value
            float nothing[MOST_HEAD] = {};
            merge(rows.best[r], rows.weight[r], sum, ((const float *) z.sinks->data)[h], 1, nothing, z.value);
        }
        const Floats share = all(rows.weight[r] == 0 ? 0 : 1 / rows.weight[r]);
        float * out = (float *) ((char *) op->data + (item.stream * op->ne[2] * op->ne[1] + h + item.token(z, r) * op->ne[1]) * op->nb[1]);
        for (int d = 0; d < z.value; d += L) store_floats(out + d, mul(load_floats(sum + d), share));
    }
}

void merge_rows(Rows & rows, const Rows & later, int n, int size) {
    for (int r = 0; r < n; r++) merge(rows.best[r], rows.weight[r], rows.sum + r * size, later.best[r], later.weight[r], later.sum + r * size, size);
}

bool is_number_of_cache(const Tensor * t) { return (t->type == F16 || t->type == BF16 || t->type == F32) ? t->ne[0] % 16 == 0 : t->type == Q8_0 && t->ne[0] % 32 == 0; }

} // namespace

bool takes_attention(const Tensor * op) {
    const Tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    return q->type == F32 && op->type == F32 && q->nb[0] == 4 && is_number_of_cache(k) && is_number_of_cache(v) && k->ne[0] <= MOST_HEAD && v->ne[0] <= MOST_HEAD &&
           k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0 && k->ne[3] == v->ne[3] && (!mask || (mask->type == F16 && mask->nb[0] == 2));
}

size_t attention_bytes(int n_threads, const Tensor * op) { return Sizes(op, n_threads).bytes(n_threads); }

void attention(const Params * params, const Tensor * op) {
    const Sizes z(op, params->nth);
    char * memory = (char *) (((size_t) params->wdata + 63) / 64 * 64);
    float * scratch = (float *) (memory + params->ith * ((z.scratch + 63) / 64 * 64));
    float * partials = (float *) (memory + params->nth * ((z.scratch + 63) / 64 * 64));
    float * query = scratch + (z.key + z.value) * TILE + BLOCK * (TILE + L), * sums = query + BLOCK * z.key;
    const Attend attend_piece = attend_with(z.k->type, z.v->type);
    const size_t size = BLOCK * (z.value + 2);
    const auto piece = [&](const Item & item, int64_t p, float * to) {
        Rows rows = rows_in(to);
        fill(z, item, rows, query);
        const int64_t b = item.stream * z.k->ne[3] / z.q->ne[3];
        const char * K = (const char *) z.k->data + item.head * z.k->nb[2] + b * z.k->nb[3], * V = (const char *) z.v->data + item.head * z.v->nb[2] + b * z.v->nb[3];
        attend_piece(z, rows, K, V, p * PIECE, scratch);
    };
    if (!z.split) {
        for (int64_t i = params->ith; i < z.items; i += params->nth) {
            const Item item(z, i);
            Rows rows = rows_in(sums), later = rows_in(sums + size);
            piece(item, 0, sums);
            for (int64_t p = 1; p < z.pieces; p++) piece(item, p, sums + size), merge_rows(rows, later, item.rows(), z.value);
            finish(z, item, rows, op);
        }
        return;
    }
    for (int64_t i = params->ith; i < z.items * z.pieces; i += params->nth) piece(Item(z, i / z.pieces), i % z.pieces, partials + i * size);
    ggml.barrier(params->threadpool);
    for (int64_t i = params->ith; i < z.items; i += params->nth) {
        const Item item(z, i);
        Rows rows = rows_in(partials + i * z.pieces * size);
        for (int64_t p = 1; p < z.pieces; p++) merge_rows(rows, rows_in(partials + (i * z.pieces + p) * size), item.rows(), z.value);
        finish(z, item, rows, op);
    }
}

} // namespace ISA
