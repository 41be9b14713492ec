"""The own attention against float64, and the bits of a row in a batch."""

import numpy as np
import pytest

from gguf_spec.llama import own_kernels

from .graphs import BF16, F16, F32, Q8_0, attention, kernels, quantized

SETS = ("avx2", "avx512vnni")
HIDDEN = np.float16(-np.inf)


def stored(x, kind):
    """Return what a cache of this type holds, as float64."""
    if kind == F16:
        return x.astype(np.float16).astype(np.float64)
    data = quantized(x.reshape(-1, x.shape[-1]), kind)
    if kind == F32:
        return x.astype(np.float64)
    if kind == BF16:
        return (
            (np.frombuffer(data, np.uint16).astype(np.uint32) << 16)
            .view(np.float32)
            .reshape(x.shape)
            .astype(np.float64)
        )
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 34)
    return (
        blocks[:, 2:].copy().view(np.int8)
        * blocks[:, :2].copy().view(np.float16).astype(np.float64)
    ).reshape(x.shape)


def exact(q, k, v, mask, kinds, scale=0.125, bias=0.0, cap=0.0, sinks=None):
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    k, v = (stored(x, kind).repeat(group, 1) for x, kind in zip((k, v), kinds, strict=True))
    score = np.einsum("shnd,shtd->shnt", q.astype(np.float64), k) * (scale / (cap or 1))
    if cap:
        score = cap * np.tanh(score)
    n = 2 ** int(np.log2(heads))
    slopes = np.array(
        [
            1.0
            if not bias
            else 2 ** (-bias / n * (h + 1))
            if h < n
            else 2 ** (-bias / 2 / n * (2 * (h - n) + 1))
            for h in range(heads)
        ]
    )
    if mask is not None:
        score = score + mask.astype(np.float64) * slopes[None, :, None, None]
    sink = np.full(heads, -np.inf) if sinks is None else sinks
    best = np.maximum(score.max(-1, keepdims=True), sink[None, :, None, None])
    best = np.where(np.isinf(best), 0, best)
    weight = np.exp(score - best)
    total = weight.sum(-1, keepdims=True) + np.exp(sink[None, :, None, None] - best)
    return np.einsum(
        "shnt,shtd->snhd", np.where(total > 0, weight / np.where(total > 0, total, 1), 0), v
    )


def causal(streams, rows, positions, past, window=0):
    mask = np.full((streams, 1, rows, positions), HIDDEN)
    for i in range(rows):
        mask[:, :, i, max(0, past + i + 1 - window) if window else 0 : past + i + 1] = 0
    return mask


def case(heads, kv_heads, rows, positions, key=64, value=None, streams=1, seed=0, size=1.0):
    random = np.random.default_rng(seed)
    draw = lambda *shape: random.standard_normal(shape, dtype=np.float32)  # noqa: E731 -- three calls
    return (
        draw(streams, heads, rows, key) * np.float32(size),
        draw(streams, kv_heads, positions, key),
        draw(streams, kv_heads, positions, value or key),
    )


def alone(q, k, v, mask, **options):
    """Return each row computed by itself, with a changing number of threads."""
    rows = [
        attention(
            q[:, :, i : i + 1],
            k,
            v,
            None if mask is None else mask[:, :, i : i + 1],
            threads=(1, 2, 3, 16)[i % 4],
            **options,
        )
        for i in range(q.shape[2])
    ]
    return np.concatenate(rows, 1)


@pytest.mark.few(10)
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kinds", [(F16, F16), (F32, F32), (BF16, BF16), (Q8_0, Q8_0), (Q8_0, F16)])
@pytest.mark.parametrize(("heads", "kv_heads", "streams"), [(4, 4, 1), (8, 2, 2), (6, 1, 1)])
def test_numbers_and_bits(kinds, heads, kv_heads, streams, instruction_set):
    with kernels(2, instruction_set):
        for key, value, rows, positions, past, window in (
            (64, 64, 1, 1, 0, 0), (128, 128, 3, 17, 13, 0), (96, 64, 9, 255, 200, 100), (64, 64, 5, 1030, 1000, 0), (256, 128, 40, 300, 250, 90),
        ):  # fmt: skip
            q, k, v = case(heads, kv_heads, rows, positions, key, value, streams)
            mask = causal(streams, rows, positions, past, window)
            found = attention(q, k, v, mask, kinds)
            assert np.abs(found - exact(q, k, v, mask, kinds)).max() < 1e-4
            assert np.array_equal(alone(q, k, v, mask, kinds=kinds), found)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(
    "options",
    [
        {"bias": 8.0},
        {"cap": 30.0},
        {"sinks": True},
        {"bias": 4.0, "cap": 20.0, "sinks": True},
        {"size": 100.0},
        {"size": 1e-4},
    ],
)
def test_variants(options, instruction_set):
    options = dict(options)
    size = options.pop("size", 1.0)
    if "sinks" in options:
        options["sinks"] = np.linspace(-3, 9, 6)
    q, k, v = case(
        6, 2, 7, 700, size=size
    )  # slopes of a group of 3 heads are shifted in each vector of rows
    mask = causal(1, 7, 700, 600)
    mask = np.where(np.isinf(mask), mask, -(np.arange(700) % 9).astype(np.float16))
    with kernels(2, instruction_set):
        found = attention(q, k, v, mask, **options)
        assert np.abs(found - exact(q, k, v, mask, (F16, F16), **options)).max() < 1e-4
        assert np.array_equal(alone(q, k, v, mask, **options), found)
        without = attention(q, k, v, None, **{**options, "bias": 0.0})
        assert (
            np.abs(without - exact(q, k, v, None, (F16, F16), **{**options, "bias": 0.0})).max()
            < 1e-4
        )


@pytest.mark.parametrize("instruction_set", SETS)
def test_hidden_positions_change_nothing(instruction_set):
    """Neither more of them behind, nor what they hold."""
    q, k, v = case(4, 2, 6, 520)
    mask = causal(1, 6, 520, 514, 400)
    with kernels(2, instruction_set):
        found = attention(q, k, v, mask)
        for fill in (0.0, np.nan, np.inf):
            more = [
                np.concatenate([x, np.full((1, 2, 600, 64), fill, np.float32)], 2) for x in (k, v)
            ]
            wide = np.concatenate([mask, np.full((1, 1, 6, 600), HIDDEN)], 3)
            assert np.array_equal(attention(q, *more, wide, threads=5), found)
        # position 515 is hidden from row 0 alone
        k[:, :, 515] = v[:, :, 515] = np.nan
        spoilt = attention(q, k, v, mask)
        assert np.array_equal(spoilt[:, 0], found[:, 0])
        assert np.isnan(spoilt[:, 1:]).all()
        for d in (5, 13, 20, 63):  # in each vector of a head
            q, k, v = case(4, 2, 6, 520)
            v[:, :, 515, d] = np.nan
            one = attention(q, k, v, mask)
            assert np.array_equal(one[:, 0], found[:, 0])
            assert np.isnan(one[:, 1:, :, d]).all()


@pytest.mark.parametrize("instruction_set", SETS)
def test_pieces_that_begin_in_other_cells_for_each_row(instruction_set):
    """Behind a window longer than a piece."""
    q, k, v = case(4, 2, 9, 1300)
    mask = causal(1, 9, 1300, 1291, 700)
    with kernels(2, instruction_set):
        found = attention(q, k, v, mask)
        assert np.abs(found - exact(q, k, v, mask, (F16, F16))).max() < 1e-4
        assert np.array_equal(alone(q, k, v, mask), found)


@pytest.mark.parametrize("instruction_set", SETS)
def test_a_mask_is_read_where_a_piece_has_a_gap_or_numbers(instruction_set):
    """Of two pieces, either one, both or none."""
    q, k, v = case(2, 1, 3, 1024)
    with kernels(2, instruction_set):
        for changes in (
            {},
            {300: HIDDEN},
            {700: -2},
            {300: -2, 700: HIDDEN},
            {511: HIDDEN, 1023: -2},
        ):
            mask = np.zeros((1, 1, 3, 1024), np.float16)
            for position, value in changes.items():
                mask[:, :, 1, position] = value
            found = attention(q, k, v, mask)
            assert np.abs(found - exact(q, k, v, mask, (F16, F16))).max() < 1e-4, changes
            assert np.array_equal(alone(q, k, v, mask), found), changes


@pytest.mark.parametrize("instruction_set", SETS)
def test_numbers_of_rows_of_a_block(instruction_set):
    """They are scored by 32, and the last ones by 8, 16 or 32; their results are summed in groups."""
    q, k, v = case(1, 1, 130, 150)
    mask = causal(1, 130, 150, 20)
    with kernels(2, instruction_set):
        right = alone(q, k, v, mask)
        for rows in (5, 31, 33, 40, 41, 48, 49, 64, 65, 71, 95, 96, 97, 104, 130):
            found = attention(q[:, :, :rows], k, v, mask[:, :, :rows])
            assert np.array_equal(found, right[:, :rows]), rows


@pytest.mark.parametrize("instruction_set", SETS)
def test_a_fully_masked_row_is_zero(instruction_set):
    q, k, v = case(4, 4, 3, 64)
    mask = causal(1, 3, 64, 60)
    mask[:, :, 1] = HIDDEN
    with kernels(2, instruction_set):
        found = attention(q, k, v, mask)
    assert not found[:, 1].any()
    assert found[:, 0].any()
    assert found[:, 2].any()


@pytest.mark.full
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (12, 2), (32, 32)])
def test_widths_chunks_and_threads(heads, kv_heads, instruction_set):
    rows, positions = 65, 1200
    q, k, v = case(heads, kv_heads, rows, positions)
    mask = causal(1, rows, positions, 1100)
    with kernels(2, instruction_set):
        whole = attention(q, k, v, mask, threads=2)
        for width in (1, 2, 7, 8, 33):
            parts = [
                attention(
                    q[:, :, i : i + width], k, v, mask[:, :, i : i + width], threads=1 + i % 16
                )
                for i in range(0, rows, width)
            ]
            assert np.array_equal(np.concatenate(parts, 1), whole), width


def test_the_comparison_can_fail():
    """llama.cpp's own flash attention with an F16 cache has other bits in wider passes."""
    q, k, v = case(4, 4, 3, 300)
    mask = causal(1, 3, 300, 290)
    with kernels(0):
        stock = attention(q, k, v, mask)
    with kernels(2):
        found = attention(q, k, v, mask)
    assert not np.array_equal(stock, found)
    assert np.abs(stock - found).max() < 0.02


@pytest.mark.parametrize("instruction_set", SETS)
def test_bits_do_not_depend_on_the_cells(instruction_set):
    """A state that was put back lies in other cells, and rows of other sequences may lie between its own."""
    n, rows = 1300, 6
    q, k, v = case(4, 2, rows, n, size=3.0)
    mask = causal(1, rows, n, n - rows)
    random = np.random.default_rng(4)
    with kernels(2, instruction_set):
        found = attention(q, k, v, mask)
        for n_cells in (n + 1, n + 45, n + 512, 2 * n):
            cells = np.sort(random.choice(n_cells, n, replace=False))
            if n_cells == n + 45:
                cells = np.arange(n) + 45
            far_k, far_v = (
                random.standard_normal((1, 2, n_cells, 64)).astype(np.float32) * 9 for _ in range(2)
            )
            far_mask = np.full((1, 1, rows, n_cells), HIDDEN)
            far_k[:, :, cells], far_v[:, :, cells], far_mask[..., cells] = k, v, mask
            assert np.array_equal(attention(q, far_k, far_v, far_mask, threads=3), found)
            one = attention(q[:, :, 2:3], far_k, far_v, far_mask[:, :, 2:3])
            assert np.array_equal(one, found[:, 2:3])


# query heads, key-value heads, length of a head, rows, positions; threads that are planned, and that run
PLANS = [
    (8, 4, 256, 9, 15104, 11, 10), (8, 4, 32, 9, 3100, 64, 63), (32, 8, 64, 1, 4096, 64, 1), (6, 2, 128, 1, 2000, 7, 5),
    (12, 12, 64, 3, 1030, 64, 17), (4, 1, 576, 40, 600, 13, 12), (16, 16, 32, 5, 513, 33, 2), (4, 2, 64, 2, 100, 3, 1), (8, 2, 96, 1, 9000, 1, 64),
]  # fmt: skip


def in_its_memory(heads, kv_heads, length, rows, positions, planned, running):
    """Compute with fewer or more threads than the work memory was planned for: right, and within it."""
    q, k, v = case(heads, kv_heads, rows, 64, length)
    k, v = (np.resize(x.astype(np.float16), (1, kv_heads, positions, length)) for x in (k, v))
    mask = causal(1, rows, positions, positions - rows)
    with kernels(2):
        before = own_kernels.n_computed(attentions=True)
        usual = attention(q, k, v, mask, threads=2)
        found = attention(q, k, v, mask, threads=running, planned=planned)
        assert own_kernels.n_computed(attentions=True) == before + 2
    assert np.array_equal(found, usual)


@pytest.mark.few(3)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_fewer_threads_than_planned_stay_in_its_memory(plan):
    in_its_memory(*plan)


@pytest.mark.full
def test_any_number_of_threads_stays_in_its_memory():
    random = np.random.default_rng(0)
    for _ in range(250):
        kv_heads, length = (
            int(random.choice([1, 2, 3, 4, 8, 12, 32])),
            int(random.choice([32, 64, 96, 128, 256])),
        )
        heads, rows = (
            kv_heads * int(random.integers(1, 9)),
            int(random.choice([1, 2, 3, 5, 9, 17, 33, 70])),
        )
        positions = int(2.0 ** random.uniform(5, 14))
        if heads * rows * positions * length < 1 << 28:
            planned, running = random.integers(1, 65, 2).tolist()
            in_its_memory(
                heads, kv_heads, length, max(1, min(rows, positions)), positions, planned, running
            )


@pytest.mark.few(1)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_plan_of_other_kernels(threads):
    """Where its memory is too small for ours, llama.cpp's kernel computes; its own always has room for both."""
    for shape in ((32, 8, 1, 2000), (8, 8, 40, 600), (64, 64, 1, 1100)):
        q, k, v = case(*shape)
        mask = causal(1, shape[2], shape[3], shape[3] - shape[2])
        for planning, computing in ((0, 2), (2, 0)):
            with kernels(planning):
                found = attention(q, k, v, mask, threads=threads, which=computing)
            with kernels(0):
                assert np.abs(found - attention(q, k, v, mask)).max() < 0.02


ODD = (np.nan, np.inf, -np.inf, 3e38, -3e38)  # the last ones overflow in F16


def as_stock(inputs, wide=True, **options):
    """A row is as finite as that of llama.cpp, and then the same but for rounding; return the share of finite numbers."""
    with np.errstate(all="ignore"):
        with kernels(0):
            stock = attention(*inputs, threads=1, **options)
        with kernels(2):
            found = attention(*inputs, threads=1, **options)
            if wide:
                assert np.array_equal(alone(*inputs, **options), found, equal_nan=True)
    finite = np.isfinite(stock)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.allclose(found[finite], stock[finite], atol=0.05, rtol=0.01)
    return finite.mean()


def spoilt(inputs, name, value, where):
    """Put a value at one position, or at several, for some heads and rows."""
    inputs = [one.copy() for one in inputs]
    q, k, v, mask = inputs
    if name == "q":
        q[:, 1, where if isinstance(where, slice) else where % q.shape[2], 5] = value
    elif name == "mask":
        mask[..., -1, where] = value
    else:
        (k if name == "k" else v)[:, 0, where, 5] = value
    return inputs


@pytest.mark.parametrize(
    "kind", [F16, Q8_0, *(pytest.param(kind, marks=pytest.mark.full) for kind in (F32, BF16))]
)
@pytest.mark.parametrize("name", ["q", "k", "v", "mask"])
def test_numbers_that_are_not_finite_reach_the_row(name, kind):
    """Of the first position, a middle one, one that some rows do not see, and of several."""
    if name == "q" and kind == Q8_0:
        pytest.skip("llama.cpp makes any bytes of a query with NaN")
    shares = set()
    # llama.cpp's kernels for one row behind 512 positions, and for 64 rows, have other rules for infinities
    for rows, positions in ((1, 100), (7, 600)):
        inputs = [*case(4, 2, rows, positions), causal(1, rows, positions, positions - rows)]
        for value in ODD if name != "mask" else ODD[:2]:
            for where in (0, positions // 2, positions - 1, slice(3, None, 7)):
                if name == "v" and abs(value) == 3e38 and isinstance(where, slice):
                    continue  # whether sums overflow depends on their order
                one = spoilt(inputs, name, value, where)
                shares.add(as_stock(one, value is ODD[0] and where == 0, kinds=(kind, kind)))
    assert min(shares) < 1


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_one_infinite_score_in_each_of_two_pieces(value):
    inputs = [*case(4, 2, 3, 600), causal(1, 3, 600, 597)]
    assert as_stock(spoilt(inputs, "k", value, [100, 550])) < 1


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{"cap": 30.0}, {"bias": 8.0}, {"sinks": True}], ids=str)
def test_variants_that_are_not_finite(options):
    inputs = [*case(4, 2, 5, 200), causal(1, 5, 200, 195)]
    inputs[3][..., 2, :] = HIDDEN
    if "sinks" in options:
        for sink in (*ODD[:3], 0.5):
            as_stock(inputs, sinks=np.array([0, sink, 2, sink]))
            as_stock(spoilt(inputs, "k", np.inf, 0), sinks=np.array([0, sink, 2, sink]))
        return
    for name in ("q", "k", "v"):
        for value in ODD[:4]:
            as_stock(spoilt(inputs, name, value, 2), **options)


def test_a_query_with_nan_behind_a_cache_of_8_bits():
    """It reaches the row, although llama.cpp's kernel makes any bytes of it."""
    inputs = [*case(4, 2, 5, 200), causal(1, 5, 200, 195)]
    with kernels(2):
        found = attention(*spoilt(inputs, "q", np.nan, 2), kinds=(Q8_0, Q8_0))
    assert np.isnan(found[:, 2, 1]).all()
    assert np.isnan(found).mean() == 1 / 20


def test_rows_of_several_heads_in_a_block():
    q, k, v = case(16, 16, 3, 600)
    mask = causal(1, 3, 600, 597)
    with kernels(2):
        found = attention(q, k, v, mask, threads=1)
        assert np.abs(found - exact(q, k, v, mask, (F16, F16))).max() < 1e-4
        assert np.array_equal(alone(q, k, v, mask), found)


def test_each_stream_has_its_mask():
    q, k, v = case(4, 2, 3, 100, streams=2)
    mask = causal(2, 3, 100, 97)
    mask[1, :, :, :50] = HIDDEN
    with kernels(2):
        found = attention(q, k, v, mask)
    assert np.abs(found - exact(q, k, v, mask, (F16, F16))).max() < 1e-4


def test_heads_that_are_too_long_are_left_to_llama_cpp():
    q, k, v = case(2, 1, 2, 40, key=608)
    mask = causal(1, 2, 40, 38)
    with kernels(2):
        before = own_kernels.n_computed(attentions=True)
        found = attention(q, k, v, mask)
        assert own_kernels.n_computed(attentions=True) == before
    assert np.abs(found - exact(q, k, v, mask, (F16, F16))).max() < 0.02


def test_a_large_query_behind_a_cache_of_8_bits_is_finite():
    inputs = spoilt([*case(4, 2, 3, 100), causal(1, 3, 100, 97)], "q", 1e5, 2)
    assert as_stock(inputs, kinds=(Q8_0, Q8_0)) == 1


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_score_of_the_first_position_under_a_cap(value):
    inputs = [*case(4, 2, 5, 200), causal(1, 5, 200, 195)]
    as_stock(spoilt(inputs, "k", value, 0), cap=30.0)
