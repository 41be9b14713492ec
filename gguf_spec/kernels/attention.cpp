// Attention (FLASH_ATTN_EXT) for every number of rows with the same bits: one row, a draft, or a prompt.
//
// Rows are pairs of a token and a query head; rows that share a key-value head form blocks. Where these are small, a block has the rows of
// several heads, whose keys lie side by side. The positions that a row sees form pieces of a fixed number, and are visited in tiles:
//
//               | piece 0: 512 visible positions  | piece 1               | ...
//               | tile | tile | tile | ... | tile | tile | ...
//   row block 0 |  1. scores: sum over d of K[position][d] Q[row][d], in order
//   row block 1 |  2. weights: 2^(score / ln 2 - best), a lane for each row; their sum, position by position
//   ...         |  3. result += weight * V, position by position
//
// Few rows are scored with a lane for each position, K transposed; many with a lane for each row: the same sums. `best` is a whole number, so
// that a later, larger one rescales earlier sums without rounding. A row's sums in a piece begin at zero, and pieces are added in order. So a
// row's bits depend on its query and on what it sees, in its order, alone: not on the cells in which that lies or what lies between, the
// other rows, the threads, or how the prompt was cut. Weights of hidden positions are exactly zero (V with infinities or NaN is handled apart).
// A row has the NaN and infinities of llama.cpp's: it is NaN if one of its scores is, if two are infinite, or if the first one is -infinity.
// All sums are F32. Online softmax: Milakov, Gimelshein 2018, arXiv:1805.02867; in tiles: Dao et al. 2022, arXiv:2205.14135.
#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace ISA {
namespace {

constexpr int TILE = 32;        // positions of a tile
constexpr int PIECE = 512;      // visible positions of a piece
constexpr int SCORED = 32;      // most rows that are scored together
constexpr int SHARE = 96;       // most rows of a block that share a head
constexpr int BLOCK = SHARE;    // most rows of a block
constexpr int SPACE = BLOCK + 16; // rows of a block with space for whole vectors
constexpr int FEW = 4;          // rows up to which lanes are positions
constexpr int SUMMED = L == 16 ? 6 : 2; // rows whose results are summed together
constexpr int MOST_HEAD = 576;  // longest head
constexpr float NONE = -3e38f;  // `best` of a row that has seen nothing
constexpr uint32_t EVERY = ~0u; // a bit for each position of a tile

// ---- numbers of the cache

inline Floats numbers_at(const char * p, int type) { // L numbers; of Q8_0 those of half a block or a quarter, see row_at
    switch (type) {
        case F16: return floats_of_halves(p);
        case BF16: return floats_of_brain(p);
        default: return load_floats((const float *) p);
    }
}
// L numbers of a head from element d on.
template <int TYPE> inline Floats row_at(const char * row, int d) {
    if (TYPE == Q8_0) {
        const char * block = row + d / 32 * 34;
        const Ints x = ints_of_bytes(block + 2 + d % 32);
        return mul(to_floats(x), all(half_at(block)));
    }
    return numbers_at(row + d * (TYPE == F32 ? 4 : 2), TYPE);
}

// A tile of n positions: out[position][d], zero from n on. Returns whether all numbers are finite.
template <int TYPE> bool convert(const char * x, size_t stride, int n, int size, float * out) {
    Floats odd[4]; // 0 * x is NaN for infinities and NaN; several sums, not to wait for one
    UNROLL for (int i = 0; i < 4; i++) odd[i] = zero();
    const int whole = size / (4 * L) * (4 * L);
    for (int p = 0; p < n; p++, x += stride, out += size) {
        const auto at = [&](int d, Floats & is_odd) {
            const Floats y = row_at<TYPE>(x, d);
            is_odd = fma(y, zero(), is_odd);
            store_floats(out + d, y);
        };
        for (int d = 0; d < whole; d += 4 * L) UNROLL for (int i = 0; i < 4; i++) at(d + i * L, odd[i]);
        for (int d = whole; d < size; d += L) at(d, odd[0]);
    }
    memset(out, 0, sizeof(float) * (TILE - n) * size);
    return !any_nan(add(add(odd[0], odd[1]), add(odd[2], odd[3])));
}
// The same transposed: out[d][position].
template <int TYPE> void convert_transposed(const char * K, size_t stride, int n, int size, float * out) {
    for (int p = 0; p < TILE; p += L)
        for (int d = 0; d < size; d += L) {
            Floats x[L];
            if (n == TILE) UNROLL for (int i = 0; i < L; i++) x[i] = row_at<TYPE>(K + (p + i) * stride, d);
            else UNROLL for (int i = 0; i < L; i++) x[i] = p + i < n ? row_at<TYPE>(K + (p + i) * stride, d) : zero();
            transpose(x);
            UNROLL for (int i = 0; i < L; i++) store_floats(out + (d + i) * TILE + p, x[i]);
        }
}

// 2^n for whole n, and 0 below 2^-126.
inline Floats power(Floats n) { return zero_below(power_of_two(maximum(n, all(-126.0f))), n, -126.0f); }
inline float power(float n) {
    float x[L];
    store_floats(x, power(all(n)));
    return x[0];
}
// e^x = mantissa * 2^exponent. The mantissa of infinities and NaN is NaN: the second operand of a minimum or maximum is taken then.
inline Floats split_exponential(Floats x, Floats & exponent) {
    const Floats n = nearest(mul(x, all(1.44269504f)));
    Floats r = fma(n, all(-0.693359375f), x);
    r = fma(n, all(2.12194440e-4f), r);
    r = maximum(all(-1.0f), minimum(all(1.0f), r)); // rounding of huge scores
    Floats p = fma(r, all(1.9875691500e-4f), all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    exponent = n;
    return add(fma(mul(r, r), p, r), all(1.0f));
}
// cap * tanh(x) by t = e^(-2 |x|)
inline Floats capped(Floats x, float cap) {
    const Floats size = maximum(x, sub(zero(), x));
    Floats n;
    Floats t = split_exponential(mul(size, all(-2.0f)), n);
    t = zero_below(mul(t, power(n)), n, -126.0f);
    const Floats y = mul(all(cap), divide(sub(all(1.0f), t), add(all(1.0f), t)));
    return where_less(x, zero(), sub(zero(), y), y);
}

// ---- one operation

// A piece of what a token sees. It is dense where the token sees every cell up to the next piece, with nothing added to the scores: the mask
// need not be read again.
struct Piece {
    int32_t cell : 31; // the first one
    uint32_t dense : 1;
};

struct Sizes {
    const Tensor * q, * k, * v, * mask, * sinks;
    int64_t n_tokens, group, rows, blocks, n_kv, pieces, heads, head_blocks, items;
    int key, value;
    float scale, bias, cap;
    int n_threads; // that compute
    bool split; // pieces are computed by different threads, and added after a barrier
    size_t table, scratch, partial, bytes; // see find_pieces; of a thread; of a piece; in all

    Sizes(const Tensor * op, int n_threads) : q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), sinks(op->src[4]), n_threads(n_threads) {
        memcpy(&scale, op->op_params, 4), memcpy(&bias, op->op_params + 1, 4), memcpy(&cap, op->op_params + 2, 4);
        if (cap != 0) scale /= cap;
        key = (int) k->ne[0], value = (int) v->ne[0];
        n_tokens = q->ne[1], group = q->ne[2] / k->ne[2], rows = n_tokens * group;
        blocks = (rows + SHARE - 1) / SHARE;
        n_kv = k->ne[1], pieces = (n_kv + PIECE - 1) / PIECE;
        // as many heads in a block as leave every thread some blocks
        heads = blocks > 1 || n_threads < 1 ? 1 : q->ne[3] * k->ne[2] * pieces / (4 * n_threads);
        if (heads > BLOCK / (rows < SHARE ? rows : SHARE)) heads = BLOCK / rows;
        if (heads > k->ne[2]) heads = k->ne[2];
        if (heads < 1) heads = 1;
        head_blocks = (k->ne[2] + heads - 1) / heads;
        items = q->ne[3] * head_blocks * blocks;
        split = pieces > 1 && items < 4 * n_threads;
        table = mask ? sizeof(Piece) * (size_t) (mask->ne[3] * n_tokens * (pieces + 1)) : 0;
        const size_t sums = 2 * SPACE + BLOCK * value;
        scratch = sizeof(float) * (TILE * (key + value + SPACE) + heads * key * padded(rows < SHARE ? (int) rows : SHARE) + 2 * sums);
        partial = split ? sizeof(float) * sums : 0;
        bytes = 256 + table + n_threads * (scratch + 64) + items * pieces * partial;
    }
    // Those of as many of n threads as have room in `room` bytes: fewer threads than the memory was planned for may run, or more. None
    // where there is no room for one.
    static Sizes that_fit(const Tensor * op, int n, size_t room) {
        Sizes z(op, n);
        while (n > 0 && z.bytes > room) z = Sizes(op, --n);
        return z;
    }
    bool has_most_heads() const { return blocks > 1 || heads == k->ne[2] || heads == BLOCK / rows; }
    static int padded(int share) {
        const int left = share % SCORED;
        return share <= FEW ? share : share - left + (!left ? 0 : left <= 8 ? 8 : left <= 16 ? 16 : SCORED);
    }
};

// Positions of a tile that a row may not see; `plain`: nothing is added to the scores of the others.
uint32_t hidden_of(const uint16_t * mask, int n, bool & plain) {
    uint32_t hidden = n < TILE ? EVERY << n : 0, none = hidden;
    uint16_t copy[TILE] = {};
    if (n < TILE) mask = (const uint16_t *) memcpy(copy, mask, 2 * n);
    for (int i = 0; i < TILE; i += 16) {
        const uint32_t bits = mask_bits(mask + i);
        hidden |= (bits & 0xffff) << i, none |= (bits >> 16) << i;
    }
    plain = plain && (hidden | none) == EVERY;
    return hidden;
}

// Fill in the table of a token, and behind its last piece the end of what it sees.
void find_pieces(const Sizes & z, const uint16_t * mask, Piece * pieces) {
    int64_t n_seen = 0, piece = 0;
    int32_t end = 0;
    bool plain = true; // of the piece
    const auto close = [&](int32_t next) {
        if (piece) pieces[piece - 1].dense = plain && next - pieces[piece - 1].cell == n_seen - (piece - 1) * PIECE;
    };
    for (int64_t p = 0; p < z.n_kv; p += TILE) {
        bool is_plain = true;
        uint32_t seen = ~hidden_of(mask + p, z.n_kv - p < TILE ? (int) (z.n_kv - p) : TILE, is_plain);
        if (!seen) continue;
        plain = plain && is_plain;
        end = (int32_t) (p + 32 - __builtin_clz(seen));
        const int n = __builtin_popcount(seen);
        if (n_seen + n > piece * PIECE) { // a piece begins here
            for (; n_seen < piece * PIECE; n_seen++) seen &= seen - 1;
            const int32_t first = (int32_t) (p + __builtin_ctz(seen));
            close(first);
            pieces[piece++] = {first, 0};
            plain = is_plain;
        }
        n_seen += __builtin_popcount(seen);
    }
    close(end);
    for (; piece <= z.pieces; piece++) pieces[piece] = {end, 0};
}

// Rows of a block with what was summed up so far.
struct Rows {
    int n, share; // rows in all, and of a head
    const uint16_t * mask[SHARE];
    const Piece * pieces[SHARE]; // see find_pieces; null without a mask
    float slope[SPACE];
    const float * query; // [n][key], or for each head [key][SCORED], and in the end [key][the rest of padded(share)]
    float * best, * weight, * sum; // [n] largest exponent, [n] sum of weights, [n][value]
};
void put_sums(Rows & r, float * p) { r.best = p, r.weight = p + SPACE, r.sum = p + 2 * SPACE; }

// Add a later part of the positions to an earlier one.
void merge(float & best, float & weight, float * sum, float best2, float weight2, const float * sum2, int size) {
    if (best2 == NONE && weight2 == 0) return;
    const float most = best2 > best ? best2 : best, two = best == INFINITY && best2 == INFINITY ? NAN : 1;
    const float share = best == most ? two : power(best - most), share2 = best2 == most ? two : power(best2 - most);
    weight = __builtin_fmaf(weight, share, weight2 * share2);
    for (int d = 0; d < size; d += L) store_floats(sum + d, fma(load_floats(sum + d), all(share), mul(load_floats(sum2 + d), all(share2))));
    best = most;
}

// Lines of memory that will be needed soon, to be asked for little by little: where a position is a page apart from the next, the processor
// does not guess them, and many at once would be waited for.
struct Ahead {
    const char * p;
    size_t stride;
    int lines, left, line; // of a position; positions; next line
    Ahead(const char * p, size_t stride, int n, int bytes) : p(p), stride(stride), lines((bytes + 63) / 64), left(n), line(0) {}
    void fetch(int n) {
        for (; n > 0 && left > 0; n--) {
            prefetch(p + 64 * line);
            if (++line == lines) line = 0, left--, p += stride;
        }
    }
};

// ---- 1. scores

// Lanes are positions: k[d][position]. out[position][SPACE], R rows side by side.
template <int R> void score_few(const float * k, const float * query, int size, float * out, Ahead & ahead) {
    for (int p = 0; p < TILE; p += 2 * L) {
        Floats s[R][2];
        UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = zero();
        for (int d = 0; d < size; d++) {
            const Floats a = load_floats(k + d * TILE + p), b = load_floats(k + d * TILE + p + L);
            UNROLL for (int r = 0; r < R; r++) {
                const Floats x = all(query[r * size + d]);
                s[r][0] = fma(a, x, s[r][0]), s[r][1] = fma(b, x, s[r][1]);
            }
            if (d % 4 == 0) ahead.fetch(4);
        }
        UNROLL for (int r = 0; r < R; r++) {
            float x[2 * L];
            store_floats(x, s[r][0]), store_floats(x + L, s[r][1]);
            for (int i = 0; i < 2 * L; i++) out[(p + i) * SPACE + r] = x[i];
        }
    }
}

// Lanes are rows: V vectors of them, P positions at a time. k[position][d], query[d][rows].
template <class F, int V, int P> void score_many(const float * k, const float * query, int size, float * out, Ahead & ahead) {
    constexpr int N = sizeof(F) / sizeof(float);
    for (int p = 0; p < TILE; p += P) {
        F s[P][V];
        UNROLL for (int i = 0; i < P; i++) UNROLL for (int v = 0; v < V; v++) s[i][v] = F{};
        for (int d = 0; d < size; d++) {
            F q[V];
            UNROLL for (int v = 0; v < V; v++) memcpy(&q[v], query + (d * V + v) * N, sizeof(F));
            UNROLL for (int i = 0; i < P; i++) {
                F x;
                set_all(x, k[(p + i) * size + d]);
                UNROLL for (int v = 0; v < V; v++) s[i][v] = fma(x, q[v], s[i][v]);
            }
        }
        UNROLL for (int i = 0; i < P; i++) UNROLL for (int v = 0; v < V; v++) memcpy(out + (p + i) * SPACE + v * N, &s[i][v], sizeof(F));
        ahead.fetch(2 * P);
    }
}

// ---- 2. weights

// Make scores[position][SPACE] of all rows to weights. What was summed up is scaled to a new largest exponent.
void weigh(const Sizes & z, Rows & rows, const uint32_t * hidden, bool plain, int64_t p, int n, float * scores) {
    for (int r0 = 0; r0 < rows.n; r0 += L) {
        float * s = scores + r0;
        const Ints unseen = load(hidden + r0);
        Floats most = all(-INFINITY);
        for (int i = 0; i < TILE; i++) {
            Floats x = mul(load_floats(s + i * SPACE), all(z.scale));
            if (z.cap != 0) x = capped(x, z.cap);
            if (!plain && i < n) {
                float m[L] = {};
                for (int j = 0; j < L && r0 + j < rows.n; j++) m[j] = half_at(rows.mask[(r0 + j) % rows.share] + p + i);
                x = fma(load_floats(m), load_floats(rows.slope + r0), x);
            }
            x = where_bit(unseen, i, all(-INFINITY), x);
            store_floats(s + i * SPACE, x);
            most = maximum(most, x);
        }
        const Floats old = load_floats(rows.best + r0), best = maximum(nearest(mul(most, all(1.44269504f))), old);
        int infinite[L], at[L]; // scores of a row that had none of them before; the last one's position
        bool any_infinite = false;
        if (any_different(old, best)) {
            float share[L];
            if (any_different(sub(best, best), zero())) {
                any_infinite = true;
                memset(infinite, 0, sizeof(infinite));
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < L; j++)
                        if (s[i * SPACE + j] == INFINITY && rows.best[r0 + j] != INFINITY) infinite[j]++, at[j] = i;
            }
            store_floats(share, power(minimum(sub(old, best), zero()))); // 1 where both are infinite
            store_floats(rows.best + r0, best);
            store_floats(rows.weight + r0, mul(load_floats(rows.weight + r0), load_floats(share)));
            for (int j = 0; j < L && r0 + j < rows.n; j++) {
                if (share[j] == 1) continue;
                float * sum = rows.sum + (r0 + j) * z.value;
                for (int d = 0; d < z.value; d += L) store_floats(sum + d, mul(load_floats(sum + d), all(share[j])));
            }
        }
        Floats total = load_floats(rows.weight + r0);
        for (int i = 0; i < TILE; i++) {
            Floats exponent;
            const Floats mantissa = split_exponential(load_floats(s + i * SPACE), exponent);
            exponent = sub(exponent, best);
            const Floats weight = zero_below(mul(mantissa, power_of_two(maximum(exponent, all(-126.0f)))), exponent, -126.0f);
            store_floats(s + i * SPACE, weight);
            total = add(total, weight);
        }
        store_floats(rows.weight + r0, total);
        if (any_infinite)
            for (int j = 0; j < L; j++)
                if (infinite[j] == 1) s[at[j] * SPACE + j] = rows.weight[r0 + j] = 1; // the others' are zero
    }
}

// ---- 3. results

// sum[r] += weights[p][r] v[p], position by position; D vectors of each row at a time.
template <int R, int D> void add_values(const float * v, const float * weights, float * sum, int size, int from, Ahead & ahead) {
    Floats s[R][D];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int d = 0; d < D; d++) s[r][d] = load_floats(sum + r * size + from + d * L);
    for (int p = 0; p < TILE; p++) {
        Floats x[D];
        UNROLL for (int d = 0; d < D; d++) x[d] = load_floats(v + p * size + from + d * L);
        UNROLL for (int r = 0; r < R; r++) {
            const Floats w = all(weights[p * SPACE + r]);
            UNROLL for (int d = 0; d < D; d++) s[r][d] = fma(w, x[d], s[r][d]);
        }
        if (p % 4 == 0) ahead.fetch(8);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int d = 0; d < D; d++) store_floats(sum + r * size + from + d * L, s[r][d]);
}
template <int R> void add_values(const float * v, const float * weights, float * sum, int size, Ahead & ahead) {
    int from = 0;
    for (; from + 4 * L <= size; from += 4 * L) add_values<R, 4>(v, weights, sum, size, from, ahead);
    for (; from + L <= size; from += L) add_values<R, 1>(v, weights, sum, size, from, ahead);
}
// The rows of a head. A position that is hidden may hold anything: its zero weight must not meet a NaN.
void add_all_values(const Rows & rows, int first, const uint32_t * hidden, const float * v, bool finite, const float * weights, int size, Ahead & ahead) {
    float * sum = rows.sum + first * size;
    weights += first, hidden += first;
    if (!finite) {
        for (int r = 0; r < rows.share; r++)
            for (int i = 0; i < TILE; i++)
                if (!(hidden[r] >> i & 1))
                    for (int d = 0; d < size; d++) sum[r * size + d] = __builtin_fmaf(weights[i * SPACE + r], v[i * size + d], sum[r * size + d]);
        return;
    }
    for (int r = 0; r < rows.share; r += SUMMED) {
        const int n = rows.share - r < SUMMED ? rows.share - r : SUMMED;
        uint32_t unseen = EVERY;
        for (int i = 0; i < n; i++) unseen &= hidden[r + i];
        if (unseen == EVERY) continue;
#define CALL(R) add_values<R>(v, weights + r, sum + r * size, size, ahead)
        WITH_ROWS(n, SUMMED, CALL)
#undef CALL
    }
}

// Bytes of 32 numbers.
template <int TYPE> constexpr int size_of() { return TYPE == F32 ? 128 : TYPE == Q8_0 ? 34 : 64; }

// One piece of the positions for a block of rows.
template <int TK, int TV> void attend(const Sizes & z, Rows & rows, const char * K, const char * V, int64_t piece, float * scratch) {
    float * k = scratch, * v = k + z.key * TILE, * scores = v + z.value * TILE;
    const int heads = rows.n / rows.share, width = Sizes::padded(rows.share);
    for (int r = 0; r < SPACE; r++) rows.best[r] = NONE, rows.weight[r] = 0;
    memset(rows.sum, 0, sizeof(float) * rows.n * z.value);
    int64_t first[SHARE], last[SHARE], begin = z.n_kv, end = 0;
    bool dense[SHARE];
    for (int r = 0; r < rows.share; r++) {
        const Piece * of_row = rows.pieces[r] ? rows.pieces[r] + piece : nullptr;
        first[r] = of_row ? of_row[0].cell : piece * PIECE, last[r] = of_row ? of_row[1].cell : (piece + 1) * PIECE;
        dense[r] = !of_row || of_row->dense;
        if (last[r] > z.n_kv) last[r] = z.n_kv;
        if (first[r] >= last[r]) continue;
        begin = first[r] < begin ? first[r] : begin, end = last[r] > end ? last[r] : end;
    }
    uint32_t hidden[SPACE];
    for (int r = rows.n; r < SPACE; r++) hidden[r] = EVERY;
    for (int64_t p = begin; p < end; p += TILE) {
        const int n = end - p < TILE ? (int) (end - p) : TILE;
        uint32_t all_hidden = EVERY;
        bool plain = true;
        for (int r = 0; r < rows.share; r++) {
            const bool again = r > 0 && rows.mask[r] == rows.mask[r - 1] && rows.mask[r];
            hidden[r] = again ? hidden[r - 1] : dense[r] ? 0 : hidden_of(rows.mask[r] + p, n, plain);
            if (!again) {
                if (first[r] > p) hidden[r] |= first[r] - p >= TILE ? EVERY : ~(EVERY << (first[r] - p));
                if (last[r] < p + TILE) hidden[r] |= last[r] <= p ? EVERY : EVERY << (last[r] - p);
            }
            all_hidden &= hidden[r];
        }
        if (all_hidden == EVERY) continue;
        for (int r = rows.share; r < rows.n; r++) hidden[r] = hidden[r - rows.share];
        // what is read next: the next head, or the first one of the next tile
        const int64_t left = end - p - TILE;
        const auto ahead_of = [&](const char * x, const Tensor * t, int h, int bytes) {
            if (h + 1 < heads) return Ahead(x + p * t->nb[1] + (h + 1) * t->nb[2], t->nb[1], n, bytes);
            return Ahead(x + (p + TILE) * t->nb[1], t->nb[1], left < 0 ? 0 : left < TILE ? (int) left : TILE, bytes);
        };
        for (int h = 0; h < heads; h++) {
            const char * from = K + p * z.k->nb[1] + h * z.k->nb[2];
            const float * query = rows.query + h * z.key * width;
            float * out = scores + h * rows.share;
            Ahead ahead = ahead_of(K, z.k, h, z.key * size_of<TK>() / 32);
            if (width <= FEW) {
                convert_transposed<TK>(from, z.k->nb[1], n, z.key, k);
                if (width == 1) score_few<1>(k, query, z.key, out, ahead);
                else if (width == 2) score_few<2>(k, query, z.key, out, ahead);
                else if (width == 3) score_few<3>(k, query, z.key, out, ahead);
                else score_few<4>(k, query, z.key, out, ahead);
                continue;
            }
            convert<TK>(from, z.k->nb[1], n, z.key, k);
            for (int r = 0; r < width; r += SCORED, query += SCORED * z.key, out += SCORED) {
                if (width - r == 8) score_many<Eight, 1, 8>(k, query, z.key, out, ahead);
                else if (width - r == 16) score_many<Floats, 16 / L, L == 16 ? 8 : 4>(k, query, z.key, out, ahead);
                else score_many<Floats, SCORED / L, L == 16 ? 8 : 2>(k, query, z.key, out, ahead);
            }
        }
        if (piece == 0 && z.cap == 0)
            for (int r = 0; r < rows.n; r++) { // e^(-infinity - -infinity)
                const int64_t i = first[r % rows.share] - p;
                if (i >= 0 && i < TILE && scores[i * SPACE + r] * z.scale == -INFINITY) scores[i * SPACE + r] = NAN;
            }
        weigh(z, rows, hidden, plain, p, n, scores);
        for (int h = 0; h < heads; h++) {
            Ahead ahead = ahead_of(V, z.v, h, z.value * size_of<TV>() / 32);
            const bool finite = convert<TV>(V + p * z.v->nb[1] + h * z.v->nb[2], z.v->nb[1], n, z.value, v);
            add_all_values(rows, h * rows.share, hidden, v, finite, scores, z.value, ahead);
        }
    }
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
    Item(const Sizes & z, int64_t i) : stream(i / (z.head_blocks * z.blocks)), head(i / z.blocks % z.head_blocks * z.heads), first(i % z.blocks * SHARE) {
        n = (int) (z.rows - first < SHARE ? z.rows - first : SHARE);
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

// Numbers of a query: infinite where they are in the type in which llama.cpp multiplies them with the keys.
float most_of_query(int type) { return type == F16 ? 65520 : type == Q8_0 ? 65520 * 127 : INFINITY; }

void fill(const Sizes & z, const Item & item, Rows & rows, const Piece * table, float * query) {
    const int width = Sizes::padded(item.n);
    const float most = most_of_query(z.k->type);
    rows.n = item.rows(), rows.share = item.n, rows.query = query;
    for (int r = 0; r < rows.n; r++) {
        const int64_t t = item.token(z, r), h = item.query_head(z, r), b = item.stream;
        const float * from = (const float *) ((const char *) z.q->data + t * z.q->nb[1] + h * z.q->nb[2] + b * z.q->nb[3]);
        const int first = r % item.n / SCORED * SCORED, step = width <= FEW ? 1 : width - first < SCORED ? width - first : SCORED;
        float * to = width <= FEW ? query + r * z.key : query + (r / item.n * width + first) * z.key + r % item.n - first;
        for (int d = 0; d < z.key; d++) to[d * step] = __builtin_fabsf(from[d]) < most ? from[d] : from[d] * INFINITY;
        rows.slope[r] = slope_of(z, h);
        if (r >= item.n) continue;
        const int64_t m = z.mask ? b % z.mask->ne[3] : 0;
        rows.mask[r] = z.mask ? (const uint16_t *) ((const char *) z.mask->data + t * z.mask->nb[1] + m * z.mask->nb[3]) : nullptr;
        rows.pieces[r] = z.mask ? table + (m * z.n_tokens + t) * (z.pieces + 1) : nullptr;
    }
    const int last = item.n / SCORED * SCORED, step = width - last; // rows of padding
    for (int i = 0; width > FEW && i < item.heads * z.key; i++)
        for (int r = item.n - last; r < step; r++) query[i / z.key * width * z.key + last * z.key + i % z.key * step + r] = 0;
}

void finish(const Sizes & z, const Item & item, Rows & rows, const Tensor * op) {
    for (int r = 0; r < item.rows(); r++) {
        const int64_t h = item.query_head(z, r);
        float * sum = rows.sum + r * z.value;
        if (z.sinks) { // a position without a value
            const float nothing[MOST_HEAD] = {};
            float exponent[L], mantissa[L];
            const float sink = ((const float *) z.sinks->data)[h];
            Floats n;
            store_floats(mantissa, split_exponential(all(sink), n));
            store_floats(exponent, n);
            if (sink != -INFINITY || rows.weight[r] == 0) merge(rows.best[r], rows.weight[r], sum, exponent[0], sink == INFINITY ? 1 : mantissa[0], nothing, z.value);
        }
        const Floats share = all(rows.weight[r] == 0 ? 0 : 1 / rows.weight[r]);
        float * out = (float *) ((char *) op->data + (item.stream * op->ne[2] * op->ne[1] + h + item.token(z, r) * op->ne[1]) * op->nb[1]);
        for (int d = 0; d < z.value; d += L) store_floats(out + d, mul(load_floats(sum + d), share));
    }
}

void merge_rows(Rows & rows, const Rows & later, int n, int size) {
    for (int r = 0; r < n; r++) merge(rows.best[r], rows.weight[r], rows.sum + r * size, later.best[r], later.weight[r], later.sum + r * size, size);
}

// Heads of whole vectors, whose numbers lie side by side.
bool is_number_of_cache(const Tensor * t) {
    if (t->type == Q8_0) return t->ne[0] % 32 == 0 && t->nb[0] == 34;
    return (t->type == F16 || t->type == BF16 || t->type == F32) && t->ne[0] % 16 == 0 && t->nb[0] == (t->type == F32 ? 4 : 2);
}

} // namespace

bool takes_attention(const Tensor * op) {
    const Tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    return q->type == F32 && op->type == F32 && q->nb[0] == 4 && q->ne[1] > 0 && k->ne[1] > 0 && is_number_of_cache(k) && is_number_of_cache(v) && k->ne[0] <= MOST_HEAD && v->ne[0] <= MOST_HEAD &&
           k->ne[2] == v->ne[2] && q->ne[2] % k->ne[2] == 0 && k->ne[3] == v->ne[3] && (!mask || (mask->type == F16 && mask->nb[0] == 2 && mask->ne[2] == 1));
}

// Fewer threads may need more: they share blocks of more heads. With the most heads of a block they need less.
size_t attention_bytes(int n_threads, const Tensor * op) {
    size_t most = 0;
    for (int n = n_threads; n > 0; n--) {
        const Sizes z(op, n);
        if (z.bytes > most) most = z.bytes;
        if (z.has_most_heads()) break;
    }
    return most;
}

bool attention(const Params * params, const Tensor * op) {
    const Sizes z = Sizes::that_fit(op, params->nth, params->wsize);
    const int64_t n_threads = z.n_threads, start = params->ith < n_threads ? params->ith : INT64_MAX; // the other threads wait
    if (!n_threads) return false;
    const auto aligned = [](size_t n) { return (n + 63) / 64 * 64; };
    Piece * table = (Piece *) aligned((size_t) params->wdata);
    char * memory = (char *) table + aligned(z.table);
    float * scratch = (float *) (memory + params->ith * aligned(z.scratch));
    float * partials = (float *) (memory + n_threads * aligned(z.scratch));
    const size_t size = 2 * SPACE + BLOCK * z.value;
    float * sums = scratch + TILE * (z.key + z.value + SPACE), * query = sums + 2 * size;
    const Attend attend_piece = attend_with(z.k->type, z.v->type);
    if (z.mask) {
        for (int64_t i = start; i < z.mask->ne[3] * z.n_tokens; i += n_threads)
            find_pieces(z, (const uint16_t *) ((const char *) z.mask->data + i % z.n_tokens * z.mask->nb[1] + i / z.n_tokens * z.mask->nb[3]), table + i * (z.pieces + 1));
        ggml.barrier(params->threadpool);
    }
    const auto piece = [&](const Item & item, Rows & rows, int64_t p) {
        const int64_t b = item.stream * z.k->ne[3] / z.q->ne[3];
        const char * K = (const char *) z.k->data + item.head * z.k->nb[2] + b * z.k->nb[3], * V = (const char *) z.v->data + item.head * z.v->nb[2] + b * z.v->nb[3];
        attend_piece(z, rows, K, V, p, scratch);
    };
    Rows rows, later;
    if (!z.split) {
        for (int64_t i = start; i < z.items; i += n_threads) {
            const Item item(z, i);
            fill(z, item, rows, table, query);
            later = rows;
            put_sums(rows, sums), put_sums(later, sums + size);
            piece(item, rows, 0);
            for (int64_t p = 1; p < z.pieces; p++) piece(item, later, p), merge_rows(rows, later, item.rows(), z.value);
            finish(z, item, rows, op);
        }
        return true;
    }
    for (int64_t i = start; i < z.items * z.pieces; i += n_threads) {
        const Item item(z, i / z.pieces);
        fill(z, item, rows, table, query);
        put_sums(rows, partials + i * size);
        piece(item, rows, i % z.pieces);
    }
    ggml.barrier(params->threadpool);
    for (int64_t i = start; i < z.items; i += n_threads) {
        const Item item(z, i);
        put_sums(rows, partials + i * z.pieces * size);
        for (int64_t p = 1; p < z.pieces; p++) put_sums(later, partials + (i * z.pieces + p) * size), merge_rows(rows, later, item.rows(), z.value);
        finish(z, item, rows, op);
    }
    return true;
}

} // namespace ISA
