"""Any header is read, or refused by a typed error with one line and one hint."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.errors import ModelError
from gguf_spec.gguf.validation import check_model, read_header
from gguf_spec.registry.resolve import resolve
from tests.support import tiny

fuzz = settings(max_examples=300)
HOSTILE = st.sampled_from(
    [
        0,
        1,
        2,
        255,
        2**16,
        2**24,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**40,
        2**62,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ]
)
KEYS = [
    "general.architecture",
    "general.alignment",
    "general.type",
    "split.count",
    "split.no",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
]
KEYS += [
    f"llama.{key}"
    for key in (
        "block_count",
        "expert_count",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.dimension_count",
    )
]
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def values(kind: int) -> st.SearchStrategy[bytes]:
    if kind == 8:
        return st.one_of(
            st.binary(max_size=20), st.sampled_from([b"llama", b"gpt2", b"rwkv", b"qwen2", b"yarn"])
        ).map(text)
    if kind in SIZES:
        return st.binary(min_size=SIZES[kind], max_size=SIZES[kind])
    return HOSTILE.map(lambda n: struct.pack("<Q", n))


@st.composite
def pairs(draw: st.DrawFn) -> bytes:
    key = draw(st.one_of(st.sampled_from(KEYS).map(str.encode), st.binary(max_size=10)))
    kind = draw(st.sampled_from([*SIZES, 8, 9, 9, 13, 2**31]))
    if kind != 9:
        return text(key) + struct.pack("<I", kind) + draw(values(kind))
    inner = draw(st.sampled_from([*SIZES, 8, 8, 9, 13]))
    items = draw(st.lists(values(inner), max_size=5))
    n = draw(st.one_of(st.just(len(items)), HOSTILE))
    return text(key) + struct.pack("<IIQ", 9, inner, n) + b"".join(items)


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    shape = draw(st.lists(st.one_of(st.integers(0, 64), HOSTILE), max_size=6))
    n_dims = draw(st.one_of(st.just(len(shape)), HOSTILE.map(lambda n: n % 2**32)))
    name, kind, offset = (
        draw(st.binary(max_size=70)),
        draw(st.integers(0, 45)),
        draw(st.one_of(st.integers(0, 9).map(lambda n: 32 * n), HOSTILE)),
    )
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", n_dims, *shape, kind, offset)


def check(path: Path, data: bytes, size: int = 0) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.truncate(max(size, len(data)))
    try:
        header = read_header(path)
        check_model(header)
    except ModelError as error:
        assert error.hint.endswith(".")
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    assert header.n_tensors == len(header.tensors) > 0
    assert all(
        0 <= t.offset <= t.offset + t.n_bytes <= header.file_bytes - header.data_at
        for t in header.tensors
    )


@pytest.mark.full
@fuzz
@given(
    st.lists(pairs(), max_size=6),
    st.lists(tensors(), max_size=4),
    st.sampled_from([2, 3, 3, 3, 4, 3 << 24]),
    st.booleans(),
    st.binary(max_size=99),
)
def test_headers_of_hostile_fields(tmp_path, some_pairs, some_tensors, version, honest, rest):
    counts = (
        (len(some_tensors), len(some_pairs))
        if honest
        else (2**32 - len(some_tensors), len(some_pairs) + 1)
    )
    data = (
        b"GGUF"
        + struct.pack("<IQQ", version, *counts)
        + b"".join(some_pairs)
        + b"".join(some_tensors)
        + rest
    )
    check(tmp_path / "hostile.gguf", data)
    check(tmp_path / "hostile.gguf", data, 1 << 34)


class Headers(list[tuple[bytes, int]]):
    """Headers and the sizes of their files; hypothesis cannot show so many bytes."""

    def __repr__(self) -> str:
        return "headers"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Headers:
    """Headers of the bundled pair and of a tiny model, and how long their files are."""
    files = [
        resolve("tales").path,
        resolve("tales-draft").path,
        tiny.write(tmp_path_factory.mktemp("header") / "good.gguf"),
    ]
    return Headers(
        (path.read_bytes()[: read_header(path).data_at], path.stat().st_size) for path in files
    )


@pytest.mark.full
@fuzz
@given(
    st.integers(0, 2),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_flipped_bytes(good, tmp_path, which, flips, near):
    header, size = good[which]
    data = bytearray(header)
    for where, some in flips:
        at = int(where * (4096 if near else len(data)))
        data[at : at + len(some)] = some
    check(tmp_path / "flipped.gguf", bytes(data), size)


@pytest.mark.full
@fuzz
@given(
    st.integers(0, 2),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 3000),
    st.binary(max_size=300),
)
def test_bytes_taken_out_and_put_in(good, tmp_path, which, where, n, some):
    header, size = good[which]
    at = int(where * len(header))
    check(tmp_path / "spliced.gguf", header[:at] + some + header[at + n :], size)
    check(tmp_path / "spliced.gguf", header[:at] + some)
