import contextlib
import dataclasses
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_spec._gguf import ArrayLength, read_header
from gguf_spec.errors import GgufSpecError, ModelError, NotAModelError
from tests.gguf import zoo


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.write(tmp_path_factory.mktemp("header") / "good.gguf", metadata={"llama.numbers": [1, 2, 3], "llama.many": [0.5] * 2000})


def test_reads_what_the_gguf_package_wrote(good):
    header = read_header(good)
    assert (header.architecture, header.n_tensors, header.file_bytes) == ("llama", len(zoo.llama()[1]), good.stat().st_size)
    assert header.of_architecture("embedding_length") == zoo.N_EMBD
    assert header.of_architecture("numbers") == (1, 2, 3)
    assert header.of_architecture("many") == ArrayLength(2000)
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayLength(len(zoo.TOKENS))
    assert header.metadata["tokenizer.chat_template"] == zoo.CHATML
    assert header.metadata["tokenizer.ggml.add_bos_token"] is False


def test_the_cache_of_a_llama_is_layers_times_heads_times_width(good):
    assert read_header(good).kv_bytes(100, 2.0) == 1 * 100 * 1 * (32 + 32) * 2


@pytest.mark.parametrize("value", [0, float("inf"), float("nan"), "two", True, ()])
def test_the_cache_of_a_model_with_odd_numbers_is_a_number(good, value):
    header = read_header(good)
    odd = header.metadata | {f"llama.{key}": value for key in ("attention.head_count", "attention.head_count_kv", "attention.key_length")}
    assert dataclasses.replace(header, metadata=odd).kv_bytes(100, 2.0) >= 0


def test_every_cut_is_noticed(good, tmp_path):
    data = good.read_bytes()
    cut = tmp_path / "cut.gguf"
    header_bytes = data.index(b"blk.0.ffn_down.weight")
    for n in [*range(0, 64), *range(64, header_bytes, 997), header_bytes, len(data) // 2, len(data) - 1]:
        cut.write_bytes(data[:n])
        with pytest.raises(NotAModelError) as caught:
            read_header(cut)
        assert caught.value.hint
        assert caught.value.path == cut


def test_a_cut_in_the_weights_names_both_sizes(good, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(NotAModelError, match=rf"has {cut.stat().st_size:,} bytes but its tensors need {good.stat().st_size:,}"):
        read_header(cut)


def test_a_file_without_tensors_is_not_cut_short(tmp_path):
    metadata, _ = zoo.llama()
    assert read_header(zoo.write(tmp_path / "vocabulary.gguf", (metadata, {}))).n_tensors == 0
    (tmp_path / "bare.gguf").write_bytes(_file(0, 1, _pair(b"k", 0, b"\x07")))
    assert read_header(tmp_path / "bare.gguf").metadata == {"k": 7}


def _file(n_tensors: int, n_pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + rest


def _pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a GGUF file"),
        (b"GGU", "is not a GGUF file"),
        (b"GGML" + bytes(100), "is not a GGUF file"),
        (b"GGUF", "header ends at byte 4"),
        (_file(0, 0, version=1), "version 1"),
        (_file(0, 0, version=1 << 24), "version 16777216"),
        (_file(2**63, 0), "claims 9,223,372,036,854,775,808 tensors"),
        (_file(0, 2**40), "metadata values"),
        (_file(0, 1, struct.pack("<Q", 2**62)), "bytes for one string"),
        (_file(0, 1, struct.pack("<Q", 1000) + b"abc"), "header ends"),
        (_file(0, 1, _pair(b"k", 13, b"")), "unknown type 13"),
        (_file(0, 1, _pair(b"k", 9, struct.pack("<IQ", 9, 1))), "array of the unknown type 9"),
        (_file(0, 1, _pair(b"k", 9, struct.pack("<IQ", 8, 2**63))), "values in one array"),
        (_file(0, 1, _pair(b"k", 9, struct.pack("<IQ", 4, 2**24))), "header ends"),
        (_file(0, 1, _pair(b"k", 9, struct.pack("<IQQ", 8, 5, 2**63))), "header ends"),
        (_file(0, 1, _pair(b"general.alignment", 4, struct.pack("<I", 0))), "its alignment is 0"),
        (_file(0, 1, _pair(b"general.alignment", 4, struct.pack("<I", 24))), "its alignment is 24"),
        (_file(0, 1, _pair(b"general.alignment", 8, struct.pack("<Q", 2) + b"32")), "its alignment is '32'"),
        (_file(1, 0, struct.pack("<QI", 0, 5)), "has 5 dimensions"),
        (_file(1, 0, struct.pack("<QI", 0, 0)), "has 0 dimensions"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 2**39, 0, 0)), "is cut short"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 0, 2**63)), "is cut short"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 28, 0)), "numbers of the type 28"),
    ],
)
def test_says_what_is_wrong(tmp_path, data, said):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(NotAModelError, match=said):
        read_header(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(NotAModelError, match="no regular file"):
        read_header(pipe)


def _try(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with contextlib.suppress(GgufSpecError):
        read_header(path)


fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20), in_header=st.booleans())
def test_flipped_bytes_give_a_header_or_a_typed_error(good, tmp_path, flips, in_header):
    data = bytearray(good.read_bytes())
    within = data.index(b"token_embd") if in_header else len(data)
    for where, byte in flips:
        data[int(where * within)] = byte
    _try(tmp_path / "flipped.gguf", bytes(data))


@fuzz
@given(noise=st.binary(max_size=300), at=st.integers(4, 300), n_tensors=st.integers(0, 2**64 - 1), n_pairs=st.integers(0, 2**64 - 1))
def test_any_bytes_after_the_magic_give_a_header_or_a_typed_error(good, tmp_path, noise, at, n_tensors, n_pairs):
    _try(tmp_path / "noise.gguf", _file(n_tensors % 5, n_pairs % 5, noise))
    _try(tmp_path / "noise.gguf", _file(n_tensors, n_pairs, noise))
    _try(tmp_path / "noise.gguf", good.read_bytes()[:at] + noise)


def test_huge_counts_take_no_memory(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(_file(0, 1, _pair(b"k", 9, struct.pack("<IQ", 8, 2**24))) + bytes(1000))
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_header(bad)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
