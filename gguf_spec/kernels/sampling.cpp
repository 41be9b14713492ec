// The sampler, see sampling.h. Each step is that of gguf_spec/sampling (chain.py, rng.py, near_ties.py) and of arrays.py, in the same
// order and with the same rounding: a seed gives the same text with and without this library. Loops that look at a whole vocabulary are
// plain, in blocks, for the compiler to vectorise; it may not contract or reorder operations (build_kernels.py).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "sampling.h"

namespace ISA {
namespace {

constexpr int BLOCK = 64;          // values of a block, and sums side by side
constexpr double CLEAR = 1e-9;     // as in arrays.py
constexpr double LOWEST = -708;
constexpr double LOG2_E = 1.4426950408889634, LN2[] = {6.93147180369123816490e-01, 1.90821492927058770002e-10};
constexpr double ROUNDS = 6755399441055744; // 1.5 * 2^52: behind an addition of it the low bits are the nearest integer
constexpr double OUT_OF_SIGHT = 1e4, FAINT = -70; // as in chain.py
constexpr int FEW = 256;           // of more candidates, the noise is computed only where it can win
constexpr float INF = __builtin_inff(), LEAST = -3.4028234663852886e38f;

// Given to std::sort and std::nth_element: without an order of our own, libc++ calls its library, which is not linked.
constexpr auto LESS = [](auto a, auto b) { return a < b; };

template <class To, class From> inline To bits_of(From x) {
    To y;
    static_assert(sizeof(x) == sizeof(y), "");
    memcpy(&y, &x, sizeof(y));
    return y;
}

inline double exp_of(double x) {
    double rest = x > LOWEST ? x : LOWEST;
    const double shifted = rest * LOG2_E + ROUNDS, n = shifted - ROUNDS;
    rest -= n * LN2[0];
    rest -= n * LN2[1];
    double power = rest * (1 / 6227020800.) + 1 / 479001600.; // written out: the loops around a loop are not vectorised
    power = power * rest + 1 / 39916800.;
    power = power * rest + 1 / 3628800.;
    power = power * rest + 1 / 362880.;
    power = power * rest + 1 / 40320.;
    power = power * rest + 1 / 5040.;
    power = power * rest + 1 / 720.;
    power = power * rest + 1 / 120.;
    power = power * rest + 1 / 24.;
    power = power * rest + 1 / 6.;
    power = power * rest + 1 / 2.;
    power = power * rest + 1;
    power = power * rest + 1;
    power *= bits_of<double>((bits_of<uint64_t>(shifted) + 1023) << 52);
    return power * (double) (x >= LOWEST);
}

inline double log_of(double x) {
    constexpr double terms[] = {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01};
    constexpr uint64_t sqrt_half = (uint64_t) 0x3FE6A09E << 32;
    uint64_t bits = bits_of<uint64_t>(x) + ((uint64_t) (0x3FF00000 - 0x3FE6A09E) << 32);
    const double n = (double) (int) ((int) (bits >> 52) - 1023);
    bits = (bits & (((uint64_t) 1 << 52) - 1)) + sqrt_half;
    const double f = bits_of<double>(bits) - 1, s = f / (f + 2), z = s * s;
    double series = z * terms[6];
    for (int i = 5; i >= 0; i--) series = (series + terms[i]) * z;
    const double half = f * f * 0.5;
    return n * LN2[0] - ((half - (s * (half + series) + n * LN2[1])) - f);
}

// The sum of values in a fixed order: in lanes, then these and the rest one after the other.
template <class Value> inline double total(int64_t n, Value value) {
    double lanes[BLOCK], sum = 0;
    const int64_t whole = n - n % BLOCK;
    if (whole) {
        for (int j = 0; j < BLOCK; j++) lanes[j] = value(j);
        for (int64_t i = BLOCK; i < whole; i += BLOCK)
            for (int j = 0; j < BLOCK; j++) lanes[j] += value(i + j);
        sum = lanes[0];
        for (int j = 1; j < BLOCK; j++) sum += lanes[j];
    }
    for (int64_t i = whole; i < n; i++) sum = i ? sum + value(i) : value(i);
    return sum;
}

// Call `found` with the index of each value that is at least `least`, ascending; it may raise `least`.
template <class Value, class Limit, class Found> inline void search(int64_t n, const Value value, const Limit & least, Found found) {
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        const Limit now = least;
        int any = 0;
        for (int j = 0; j < BLOCK; j++) any |= value(i + j) >= now;
        if (any)
            for (int j = 0; j < BLOCK; j++)
                if (value(i + j) >= now) found(i + j);
    }
    for (; i < n; i++)
        if (value(i) >= least) found(i);
}

// The largest of a row; false where it is not finite.
bool best_of(const float * x, int64_t n, float & best) {
    float lanes[BLOCK];
    int bad = 0;
    for (float & lane : lanes) lane = -INF;
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (int j = 0; j < BLOCK; j++) {
            const float one = x[i + j];
            lanes[j] = one > lanes[j] ? one : lanes[j];
            bad |= !(one < INF);
        }
    for (; i < n; i++) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0], bad |= !(x[i] < INF);
    best = -INF;
    for (float lane : lanes) best = lane > best ? lane : best;
    return !bad && best > -INF;
}

int64_t first_of(const float * x, int64_t n, float best) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int m = (int) std::min<int64_t>(BLOCK, n - i);
        int any = 0;
        for (int j = 0; j < m; j++) any |= x[i + j] == best;
        if (any)
            for (int j = 0; j < m; j++)
                if (x[i + j] == best) return i + j;
    }
    return 0;
}

// Candidates in the order of their keys: by descending logit, and of equal ones by ascending id.
inline uint64_t key_of(float x, uint32_t id) {
    uint32_t bits = bits_of<uint32_t>(0.0f - x);
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return (uint64_t) bits << 32 | id;
}

// What is left of a row behind its filters.
struct Left {
    int64_t n;
    const int32_t * ids; // null: the whole row
    float floor;         // of a whole row, logits below it are out
};

// A row, and what is needed to filter it and to draw from it.
struct Row {
    const Chain & chain;
    float * x;
    int64_t n;
    const uint32_t * keys;
    // work memory
    double * masses;
    uint64_t * order;
    int32_t * ids;
    int32_t * counts;
    int32_t * changed;
    float * before;
    float * masked;
    float * copied;
    int64_t n_changed;

    Row(const Rows & rows, int i) : chain(*rows.chain), x(rows.logits + i * rows.n_vocab), n(rows.n_vocab), keys(rows.keys + 5 * i) {
        masses = (double *) rows.work;
        order = (uint64_t *) (masses + n);
        ids = (int32_t *) (order + n);
        counts = ids + n;
        changed = counts + n;
        before = (float *) (changed + 4 * n);
        masked = before + 4 * n;
        copied = masked + n;
        n_changed = 0;
    }

    // ---- bias, penalties, DRY, banned tokens

    void change(int32_t id, float to) {
        if (n_changed >= 4 * n) return;
        changed[n_changed] = id, before[n_changed++] = x[id];
        x[id] = to;
    }
    bool has(int32_t id) const { return id >= 0 && id < n; }
    void restore() {
        while (n_changed) n_changed--, x[changed[n_changed]] = before[n_changed];
    }
    void penalise(const Rows & rows, int n_draft) {
        const int all = rows.n_history + n_draft;
        const auto token = [&](int i) { return i < rows.n_history ? rows.history[i] : rows.draft[i - rows.n_history]; };
        const int first = chain.last_n < 0 ? 0 : std::max(0, all - chain.last_n);
        for (int i = first; i < all; i++)
            if (has(token(i))) counts[token(i)]++;
        for (int i = first; i < all; i++) {
            const int32_t id = token(i);
            if (!has(id) || !counts[id]) continue;
            const float old = x[id], scaled = old > 0 ? old / chain.repeat : old * chain.repeat;
            change(id, (float) ((double) scaled - (double) counts[id] * chain.frequency - chain.presence));
            counts[id] = 0;
        }
    }
    void shape(const Rows & rows, int i) {
        for (int j = 0; j < chain.n_biases; j++)
            if (has(chain.bias_ids[j])) change(chain.bias_ids[j], x[chain.bias_ids[j]] + chain.biases[j]);
        if (chain.penalises) penalise(rows, i);
        for (int j = 0; j < (i ? 0 : rows.n_dry); j++)
            if (has(rows.dry_ids[j])) change(rows.dry_ids[j], (float) ((double) x[rows.dry_ids[j]] - rows.dry[j]));
        for (int j = 0; j < (chain.bans_ends ? chain.n_ends : 0); j++)
            if (has(chain.ends[j])) change(chain.ends[j], -INF);
    }
    // Go on with a copy of the shaped row that has the allowed tokens alone; the given row is restored.
    void mask(const uint8_t * allowed) {
        const float * __restrict from = x;
        float * __restrict to = masked;
        const auto keep = [](float one, uint32_t some, int j) {
            const uint32_t all = 0u - (some >> j & (uint32_t) (one > -INF)); // no NaN
            return bits_of<float>((bits_of<uint32_t>(one) & all) | (bits_of<uint32_t>(-INF) & ~all));
        };
        for (int64_t i = 0; i < n; i += 32) {
            const int m = (int) std::min<int64_t>(32, n - i);
            uint32_t some = 0;
            memcpy(&some, allowed + i / 8, (m + 7) / 8);
            if (m == 32)
                for (int j = 0; j < 32; j++) to[i + j] = keep(from[i + j], some, j);
            else
                for (int j = 0; j < m; j++) to[i + j] = keep(from[i + j], some, j);
        }
        restore();
        x = masked;
    }
    // Where a bias or banned ends leave none of the allowed tokens, the grammar is complete, and the ends are left.
    void leave_ends(const uint8_t * allowed) {
        for (int j = 0; j < chain.n_ends; j++)
            if (has(chain.ends[j]) && allowed[chain.ends[j] / 8] >> chain.ends[j] % 8 & 1) x[chain.ends[j]] = 0;
    }

    // ---- filters

    // Write the keys of the k largest, in order, without those that are minus infinity; k <= n.
    int64_t largest(int64_t k) {
        float least = LEAST;
        const int64_t n_chunks = std::max<int64_t>(4, (8 * k + BLOCK - 1) / BLOCK), chunk = n / BLOCK / n_chunks * BLOCK;
        if (chunk >= 2 * BLOCK) {
            // The k-th largest of many maxima is a lower bound of the k-th largest logit.
            float * maxima = (float *) masses;
            int64_t n_maxima = 0;
            for (int64_t c = 0; c < n_chunks; c++, n_maxima += BLOCK) {
                float lanes[BLOCK];
                for (float & lane : lanes) lane = -INF;
                for (int64_t i = c * chunk; i < (c + 1) * chunk; i += BLOCK)
                    for (int j = 0; j < BLOCK; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
                memcpy(maxima + n_maxima, lanes, sizeof(lanes));
            }
            std::nth_element(maxima, maxima + n_maxima - k, maxima + n_maxima, LESS);
            least = std::max(LEAST, maxima[n_maxima - k]);
        }
        int64_t m = 0;
        search(n, [row = x](int64_t i) { return row[i]; }, least, [&](int64_t i) { order[m++] = key_of(x[i], (uint32_t) i); });
        if (m > k) std::nth_element(order, order + k, order + m, LESS);
        m = std::min(m, k);
        std::sort(order, order + m, LESS);
        return m;
    }

    // The lowest logit that top-n-sigma keeps.
    double sigma_limit(float best) {
        const float sight = best - (float) OUT_OF_SIGHT;
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (x[i] >= sight) masses[m++] = (double) x[i];
        const double mean = total(m, [&](int64_t i) { return masses[i]; }) / (double) m;
        const double variance = total(m, [&](int64_t i) { return (masses[i] - mean) * (masses[i] - mean); }) / (double) m;
        return (double) best - chain.sigma * std::sqrt(variance);
    }

    // Write the keys of all tokens of the nucleus of the whole row, and perhaps more, in order; return their number, and the row's mass.
    int64_t nucleus_superset(float best, float floor, double top_p, double & mass) {
        const double b = best;
        for (int64_t i = 0; i < n; i++) masses[i] = exp_of((double) (x[i] >= floor ? x[i] : -INF) - b);
        mass = total(n, [&](int64_t i) { return masses[i]; });
        for (double least = 0.0078125; least > 1e-12; least /= 64) {
            int64_t m = 0;
            double sum = 0;
            search(n, [all = masses](int64_t i) { return all[i]; }, least, [&](int64_t i) { order[m++] = key_of(x[i], (uint32_t) i), sum += masses[i]; });
            if (sum >= top_p * mass * (1 + CLEAR)) return std::sort(order, order + m, LESS), m;
        }
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (x[i] >= floor && x[i] > -INF) order[m++] = key_of(x[i], (uint32_t) i);
        return std::sort(order, order + m, LESS), m;
    }

    // Write the ids of all logits that are at least `least`, ascending; return their number.
    int64_t above(float least) {
        int64_t m = 0;
        search(n, [row = x](int64_t i) { return row[i]; }, least, [&](int64_t i) { if (x[i] > -INF) ids[m++] = (int32_t) i; });
        return m;
    }

    // Of m ids, ascending, keep those that typical-p keeps; return their number.
    int64_t typical(int64_t m, double p, float best) {
        const double b = best;
        int64_t near = 0;
        for (int64_t i = 0; i < m; i++)
            if ((double) x[ids[i]] - b >= FAINT) ids[near++] = ids[i];
        const auto relative = [row = x, some = ids, b](int64_t i) { return (double) row[some[i]] - b; };
        for (int64_t i = 0; i < near; i++) masses[i] = exp_of(relative(i));
        const double whole = total(near, [all = masses](int64_t i) { return all[i]; });
        const double mean = total(near, [=, all = masses](int64_t i) { return all[i] * relative(i); }) / whole;
        const auto distance = [=](int64_t i) { return std::fabs(relative(i) - mean); };
        // Sort no more than what may be needed.
        int64_t k = 0;
        double sum = 0;
        for (double most = near <= FEW ? 256 : 0.25; k < near && !(sum >= p * whole * (1 + CLEAR)); most *= 2) {
            k = 0, sum = 0;
            for (int64_t i = 0; i < near; i++)
                if (distance(i) <= most) order[k++] = (uint64_t) i, sum += masses[i];
        }
        std::sort(order, order + k, [=](uint64_t i, uint64_t j) {
            const double one = distance((int64_t) i), other = distance((int64_t) j);
            return one < other || (one == other && i < j);
        });
        double reached = 0;
        int64_t i = 0;
        while (i < k && (reached += masses[order[i]]) <= p * whole) i++;
        k = std::min(k, i + 1);
        std::sort(order, order + k, LESS);
        for (int64_t j = 0; j < k; j++) ids[j] = ids[order[j]];
        return k;
    }

    // What XTC leaves: of the tokens above its threshold the least likely one alone.
    Left exclude(Left left) {
        if (first_draw(keys[4] % 0xFFFFFFFFu) > chain.xtc_probability * 4294967296.0) return left;
        if (!left.ids) left = {above(left.floor), ids, left.floor};
        float top = -INF;
        for (int64_t i = 0; i < left.n; i++) top = std::max(top, x[ids[i]]);
        for (int64_t i = 0; i < left.n; i++) masses[i] = exp_of((double) x[ids[i]] - (double) top);
        const double least = chain.xtc_threshold * total(left.n, [all = masses](int64_t i) { return all[i]; });
        int64_t stays = -1, k = 0;
        for (int64_t i = 0; i < left.n; i++)
            if (masses[i] >= least && (stays < 0 || x[ids[i]] <= x[ids[stays]])) stays = i;
        for (int64_t i = 0; i < left.n; i++)
            if (masses[i] < least || i == stays) ids[k++] = ids[i];
        return {k, ids, left.floor};
    }

    // Filter the shaped row, whose largest logit is finite; logits below `floor` are out.
    Left filter(const Limits & limits, float best, float floor) {
        const Left left = usual_filters(limits, best, floor);
        return chain.xtc_probability > 0 ? exclude(left) : left;
    }
    Left usual_filters(const Limits & limits, float best, float floor) {
        const bool is_cut = chain.top_k > 0 && chain.top_k < n, is_typical = limits.typical_p < 1;
        const double least = (double) best + limits.log_min_p;
        if (!is_cut && !is_typical && limits.top_p >= 1) {
            if (limits.log_min_p == -INF && floor == -INF) return {n, nullptr, floor};
            float limit = (float) least;
            if ((double) limit < least) limit = std::nextafterf(limit, INF);
            return {above(std::max(floor, limit)), ids, floor};
        }
        double mass = 0;
        const bool is_whole = !is_cut && !is_typical;
        const auto at = [&](int64_t i) { return x[(uint32_t) order[i]]; };
        int64_t m = 0;
        if (is_cut || is_whole) {
            m = is_cut ? largest(chain.top_k) : nucleus_superset(best, floor, limits.top_p, mass);
            while (m && !(at(m - 1) >= floor)) m--;
        }
        if (is_typical) {
            for (int64_t i = 0; i < m; i++) ids[i] = (int32_t) (uint32_t) order[i];
            std::sort(ids, ids + m, LESS);
            m = typical(is_cut ? m : above(floor), limits.typical_p, best);
            for (int64_t i = 0; i < m; i++) order[i] = key_of(x[ids[i]], (uint32_t) ids[i]);
            if (limits.top_p < 1 || limits.log_min_p > -INF) std::sort(order, order + m, LESS);
        }
        if (limits.top_p < 1) {
            double reached = 0;
            if (!is_whole)
                for (int64_t i = 0; i < m; i++) mass += exp_of((double) at(i) - (double) best);
            int64_t i = 0;
            while (i < m && (reached += exp_of((double) at(i) - (double) best)) < limits.top_p * mass) i++;
            m = std::min(m, i + 1);
        }
        const double lowest = m && limits.log_min_p > -INF ? (double) at(0) + limits.log_min_p : -INF; // typical-p may remove the best one
        while (m && (double) at(m - 1) < lowest) m--;
        for (int64_t i = 0; i < m; i++) ids[i] = (int32_t) (uint32_t) order[i];
        if (limits.top_p >= 1) std::sort(ids, ids + m, LESS);
        return {m, ids, floor};
    }

    // ---- the draw

    static inline uint32_t hash(uint32_t id, uint32_t a, uint32_t b) {
        uint32_t h = id * 0x9E3779B9u;
        h += a;
        h ^= h >> 16;
        h *= 0x21F0AAADu;
        h += b;
        h ^= h >> 15;
        h *= 0xD35A2D97u;
        h ^= h >> 15;
        return h;
    }
    // What the Mersenne Twister with 32 bits draws first.
    static uint32_t first_draw(uint32_t seed) {
        uint32_t state = seed, second = 0;
        for (uint32_t i = 1; i <= 397; i++) {
            state = 1812433253u * (state ^ state >> 30) + i;
            if (i == 1) second = state;
        }
        const uint32_t joined = (seed & 0x80000000u) | (second & 0x7FFFFFFFu);
        uint32_t y = state ^ joined >> 1 ^ (joined & 1 ? 0x9908B0DFu : 0);
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C5680u;
        y ^= y << 15 & 0xEFC60000u;
        return y ^ y >> 18;
    }
    double gumbel(uint32_t id) const {
        double u = ((double) hash(id, keys[0], keys[1]) * 4294967296.0 + (double) hash(id, keys[2], keys[3]) + 0.5) * 0x1p-64;
        u = std::min(u, 1 - 0x1p-53);
        const double rest = 1 - u, rounded = 1 - rest;
        return -log_of(rounded == 0 ? u : -log_of(rest) * (u / rounded));
    }

    // Draw from the filtered row: the largest of score and noise.
    int32_t draw(const Left & left) const {
        const auto id_of = [&](int64_t i) { return left.ids ? left.ids[i] : (int32_t) i; };
        if (left.n == 1) return id_of(0);
        const float * const row = x;
        const int32_t * const some = left.ids;
        float top = -INF;
        int64_t first = 0;
        if (some) {
            for (int64_t i = 0; i < left.n; i++)
                if (row[some[i]] > top) top = row[some[i]], first = i;
        } else {
            best_of(row, left.n, top);
            first = first_of(row, left.n, top);
        }
        const double t = chain.temperature;
        const auto score = [&](int64_t i) { return ((double) row[id_of(i)] - (double) top) / t + gumbel((uint32_t) id_of(i)); };
        double best = score(first);
        int64_t at = first;
        const auto compare = [&](int64_t i) {
            const double one = score(i);
            if (one > best || (one == best && i < at)) best = one, at = i;
        };
        if (left.n <= FEW) {
            for (int64_t i = 0; i < left.n; i++) compare(i);
            return id_of(at);
        }
        // An upper limit of score and noise, in powers of two: the noise is below -log(h / 2^32), and the bits of a float are below its logarithm.
        const float scale = (float) (1.4426950408889634 / t);
        const uint32_t a = keys[0], b = keys[1];
        const auto limit = [=](int64_t id) {
            const float h = (float) (int32_t) (hash((uint32_t) id, a, b) >> 1);
            const float log2_h = (float) bits_of<int32_t>(h) * 0x1p-23f - 127;
            return (row[id] - top) * scale + (31.05f - log2_h);
        };
        float least = (float) (best * LOG2_E);
        const auto seen = [&](int64_t i) { compare(i), least = (float) (best * LOG2_E); };
        if (some) search(left.n, [=](int64_t i) { return limit(some[i]); }, least, seen);
        else search(left.n, [=](int64_t i) { return limit(i); }, least, seen);
        return id_of(at);
    }

    int32_t choose(const Limits & limits, float best) {
        if (chain.is_greedy) return (int32_t) first_of(x, n, best);
        return draw(filter(limits, best, chain.sigma ? (float) sigma_limit(best) : -INF));
    }

    // Whether changes of logits by the noise might prevent the choice of a token of the shaped row; see sampling/near_ties.py.
    bool is_near_tie(int32_t token, float best) {
        const float own = x[token], noise = (float) chain.noise;
        const auto is_lost = [&](float to) {
            float now;
            x[token] = to;
            return !best_of(x, n, now) || choose(chain.tight, now) != token;
        };
        change(token, own);
        if (is_lost(own - noise)) return true;
        if (chain.is_greedy) return false;
        // These may remove a token that is too likely.
        if ((chain.usual.typical_p < 1 || chain.xtc_probability > 0) && is_lost(own + noise)) return true;
        x[token] = own;
        float floor = -INF;
        if (chain.sigma) {
            const double limit = sigma_limit(best);
            if (std::fabs(own - (float) limit) < noise || is_lost_above((float) (limit + chain.noise), token, own - noise)) return true;
            floor = (float) (limit - chain.noise);
        }
        const Left kept = filter(chain.loose, best, floor);
        float low = INF, high = -INF;
        for (int64_t i = 0; i < kept.n; i++) {
            const float one = x[kept.ids ? kept.ids[i] : i];
            if (one > -INF || kept.ids) low = std::min(low, one), high = std::max(high, one);
        }
        const double least = (double) low - chain.noise, most = (double) high + chain.noise;
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++)
            if (x[i] >= floor && (double) x[i] >= least && (double) x[i] <= most) ids[m++] = (int32_t) i;
        x[token] = own - noise;
        return draw({m, ids, -INF}) != token;
    }
    // The limit of top-n-sigma changes with every logit. Without the tokens right above it the others have a larger share, which top-p limits.
    bool is_lost_above(float floor, int32_t token, float lower) {
        float * const given = x;
        float now;
        for (int64_t i = 0; i < n; i++) copied[i] = given[i] >= floor ? given[i] : -INF;
        if (copied[token] > -INF) copied[token] = lower;
        x = copied;
        const bool is_lost = !best_of(x, n, now) || draw(filter(chain.tight, now, -INF)) != token;
        x = given;
        return is_lost;
    }

    // ---- log-probabilities of the row as the model gave it

    void name(Rows & rows, int i, int32_t token) {
        float best;
        rows.n_named[i] = 0;
        if (!best_of(x, n, best)) {
            rows.logprobs[i] = __builtin_nan("");
            return;
        }
        const float * const row = x;
        const double b = best, of_all = log_of(total(n, [=](int64_t j) { return exp_of((double) row[j] - b); }));
        const auto value = [&](int64_t id) { return ((double) row[id] - b) - of_all; };
        rows.logprobs[i] = std::max(value(token), -(double) 3.4028234663852886e38);
        const int64_t m = chain.n_top ? largest(std::min<int64_t>(chain.n_top, n)) : 0;
        for (int64_t j = 0; j < m; j++) {
            const int32_t id = (int32_t) (uint32_t) order[j];
            rows.named[i * chain.n_top + j] = id;
            rows.named_logprobs[i * chain.n_top + j] = value(id);
            rows.n_named[i]++;
        }
    }
};

void sample(Rows & rows) {
    const Chain & chain = *rows.chain;
    rows.n_tokens = 0;
    for (int i = 0; i < rows.n_rows; i++) {
        Row row(rows, i);
        row.shape(rows, i);
        float * const given = row.x;
        if (rows.masks) row.mask(rows.masks[i]);
        float best;
        bool is_fine = best_of(row.x, row.n, best);
        if (rows.masks && best == -INF) {
            row.leave_ends(rows.masks[i]);
            is_fine = best_of(row.x, row.n, best);
        }
        if (!is_fine) {
            row.restore();
            rows.n_tokens = -1;
            return;
        }
        const int32_t token = rows.tokens[i] = row.choose(chain.usual, best);
        rows.near_ties[i] = rows.checks && row.is_near_tie(token, best);
        row.restore();
        row.x = given;
        if (chain.n_top >= 0) row.name(rows, i, token);
        rows.n_tokens++;
        if (i + 1 < rows.n_rows && token != rows.draft[i]) return;
    }
}

void grow(Tree & tree, const uint8_t * texts, const int64_t * ends, int64_t n_texts) {
    int64_t n = 0, begin = 0, before = 0;
    for (int64_t i = 0; i < n_texts; before = begin, begin = ends[i++]) {
        int64_t shared = 0;
        while (before + shared < begin && begin + shared < ends[i] && texts[before + shared] == texts[begin + shared]) shared++;
        for (int64_t j = begin + shared; j < ends[i]; j++, n++) {
            tree.bytes[n] = texts[j];
            tree.depths[n] = (int32_t) (j - begin + 1);
            tree.firsts[n] = (int32_t) i;
        }
    }
    tree.n_nodes = n;
    tree.firsts[n] = (int32_t) n_texts;
    for (int64_t i = n - 1; i >= 0; i--) {
        int64_t next = i + 1;
        while (next < n && tree.depths[next] > tree.depths[i]) next = tree.nexts[next];
        tree.nexts[i] = (int32_t) next;
        tree.longests[i] = tree.depths[i];
        for (int64_t below = i + 1; below < next; below = tree.nexts[below]) tree.longests[i] = std::max(tree.longests[i], tree.longests[below]);
    }
}

int32_t walk(Walk & w) {
    const Tree & tree = *w.tree;
    int64_t at = w.at;
    while (at < tree.n_nodes) {
        if (tree.longests[at] <= w.longer_than) {
            at = tree.nexts[at];
            continue;
        }
        const int32_t depth = tree.depths[at], from = w.states[depth - 1];
        const int32_t * const row = w.rows[from];
        if (!row) return w.at = at, from;
        w.used[from] = 1;
        const int32_t to = row[tree.bytes[at]];
        if (to < 0) {
            at = tree.nexts[at];
            continue;
        }
        w.states[depth] = to;
        for (int32_t i = tree.firsts[at]; i < tree.firsts[at + 1]; i++) w.mask[w.tokens[i] / 8] |= (uint8_t) (1 << w.tokens[i] % 8);
        at++;
    }
    return -1;
}

void compute(int what, double * values, int64_t n) {
    if (what == 2) values[0] = total(n, [=](int64_t i) { return values[i]; });
    else
        for (int64_t i = 0; i < n; i++) values[i] = what ? log_of(values[i]) : exp_of(values[i]);
}

} // namespace

extern const Sampling sampling;
const Sampling sampling = {sample, grow, walk, compute};

} // namespace ISA
