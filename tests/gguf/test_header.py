import dataclasses
import os
import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import pytest

import gguf_spec
from gguf_spec.errors import (
    ModelError,
    ModelNotFoundError,
    NotAModelError,
    UnsupportedModelError,
)
from gguf_spec.gguf.validation import ArrayLength, read_header
from gguf_spec.llama.memory import cache_bytes
from gguf_spec.llama.options import ContextOptions
from tests.support import children, tiny


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(
        tmp_path_factory.mktemp("header") / "good.gguf",
        metadata={"llama.numbers": [1, 2, 3], "llama.many": [0.5] * 2000},
    )


def test_reads_what_the_gguf_package_wrote(good):
    header = read_header(good)
    assert (header.architecture, header.n_tensors, header.file_bytes) == (
        "llama",
        len(tiny.llama()[1]),
        good.stat().st_size,
    )
    assert header.of_architecture("embedding_length") == tiny.N_EMBD
    assert header.of_architecture("numbers") == (1, 2, 3)
    assert header.of_architecture("many") == ArrayLength(2000)
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayLength(len(tiny.TOKENS))
    assert header.metadata["tokenizer.chat_template"] == tiny.CHATML
    assert header.metadata["tokenizer.ggml.add_bos_token"] is False


def test_offsets_of_the_header(good):
    header, theirs = read_header(good), gguf.GGUFReader(good)
    assert header.data_at == theirs.data_offset
    assert header.parts == (good,)
    assert [
        (t.name, t.shape, t.type, header.data_at + t.offset, t.n_bytes) for t in header.tensors
    ] == [
        (t.name, tuple(map(int, t.shape)), int(t.tensor_type), t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]
    data, at = good.read_bytes(), header.tokens_at
    for token in tiny.TOKENS:
        n = struct.unpack_from("<Q", data, at)[0]
        assert data[at + 8 : at + 8 + n].decode() == token
        at += 8 + n
    assert header.kinds["tokenizer.ggml.tokens"] == "[str]"
    assert header.kinds["llama.block_count"] == "u32"
    assert header.kinds["llama.numbers"] == "[i32]"


def split(folder: Path, most: int = 4, name: str = "whole") -> list[Path]:
    """Write the tiny llama as several files, as gguf's own writer splits it."""
    metadata, tensors = tiny.llama(seed=1)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=most)
    for key, value in (metadata | tiny.vocabulary()).items():
        if key != "general.architecture":
            writer.add_key_value(key, value, tiny.KINDS[type(value)])
    for key, tensor in tensors.items():
        writer.add_tensor(key, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}-*.gguf"))


def test_a_split_model_is_one(tmp_path):
    parts = split(tmp_path)
    assert [part.name for part in parts] == [f"whole-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    header, whole = (
        read_header(parts[0]),
        read_header(tiny.write(tmp_path / "whole.gguf", tiny.llama(seed=1))),
    )
    assert header.parts == tuple(parts)
    assert header.file_bytes == sum(part.stat().st_size for part in parts)
    assert header.n_tensors == len(header.tensors) == whole.n_tensors
    assert sorted(t[:3] for t in header.tensors) == sorted(t[:3] for t in whole.tensors)
    for i, part in enumerate(parts):
        data_at = read_header(part).data_at
        for theirs in gguf.GGUFReader(part).tensors:
            (ours,) = (t for t in header.tensors if t.name == theirs.name)
            assert (ours.part, data_at + ours.offset, ours.n_bytes) == (
                i,
                theirs.data_offset,
                theirs.n_bytes,
            )


def test_llama_cpp_loads_what_is_split(tmp_path):
    said = []
    for path in (split(tmp_path)[0], tiny.write(tmp_path / "whole.gguf", tiny.llama(seed=1))):
        with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
            said.append(llm.generate("The", gguf_spec.Sampling(temperature=0, max_tokens=8)).tokens)
    assert said[0] == said[1]


def test_a_part_that_is_missing_is_named(tmp_path):
    parts = split(tmp_path)
    parts[1].unlink()
    with pytest.raises(NotAModelError, match=r"whole-00002-of-00003\.gguf is missing") as caught:
        read_header(parts[0])
    assert "all 3 parts into one folder" in caught.value.hint
    read_header(parts[2])  # by itself it is a good file


def test_a_later_part_alone_names_the_first_one(tmp_path):
    """gguf's own writer gives it no metadata but its number."""
    first, _, last = split(tmp_path)
    with pytest.raises(UnsupportedModelError, match="is part 3 of 3 of a split model") as caught:
        gguf_spec.load(last)
    assert caught.value.hint == f"name the first part: {first}."
    other = last.rename(tmp_path / "renamed.gguf")
    with pytest.raises(UnsupportedModelError, match="is part 3 of 3") as caught:
        gguf_spec.load(other)
    assert caught.value.hint == "name the first part, which has -00001-of- in its name."


def test_parts_of_other_models_are_refused(tmp_path):
    parts = split(tmp_path)
    two = split(tmp_path, 6, "other")
    for wrong, said in (
        (parts[2], "part 3 of 3, not 2 of 3"),
        (two[1], "part 2 of 2, not 2 of 3"),
        (parts[0], "part 1 of 3, not 2 of 3"),
    ):
        parts[1].write_bytes(wrong.read_bytes())
        with pytest.raises(NotAModelError, match=said):
            read_header(parts[0])
    tiny.write(parts[1], tiny.llama())
    with pytest.raises(NotAModelError, match="part None of 3, not 2 of 3"):
        read_header(parts[0])
    parts[1].write_bytes(b"GGUF")
    with pytest.raises(NotAModelError, match=r"whole-00002-of-00003\.gguf is a damaged"):
        read_header(parts[0])


def test_a_part_whose_number_is_of_another_type_would_end_the_process(tmp_path):
    parts = split(tmp_path)
    data = bytearray(parts[1].read_bytes())
    at = data.index(b"split.no") + len(b"split.no")
    data[at : at + 6] = struct.pack("<IH", 3, 1)  # i16 instead of u16, as long
    parts[1].write_bytes(data)
    with pytest.raises(NotAModelError, match="whole-00002-of-00003"):
        read_header(parts[0])


def test_a_tensor_in_two_parts(tmp_path):
    parts = split(tmp_path)
    data = parts[1].read_bytes()
    name = read_header(parts[1]).tensors[0].name.encode()
    other = next(t.name for t in read_header(parts[2]).tensors if len(t.name) == len(name)).encode()
    parts[1].write_bytes(data.replace(name, other))
    with pytest.raises(NotAModelError, match="1 of its tensors occur in two of its parts"):
        read_header(parts[0])


def test_a_first_part_of_another_name(tmp_path):
    parts = split(tmp_path)
    for name in ("renamed.gguf", "-00001-of-00003.gguf", "whole-00001-of-00004.gguf"):
        parts[0].rename(tmp_path / name)
        with pytest.raises(NotAModelError, match=r"does not end in -00001-of-00003\.gguf"):
            read_header(tmp_path / name)
        (tmp_path / name).rename(parts[0])


@pytest.mark.parametrize("value", [0, float("inf"), float("nan"), "two", True, ()])
def test_the_cache_of_a_model_with_odd_numbers_is_a_number(good, value):
    header = read_header(good)
    odd = header.metadata | {
        f"llama.{key}": value
        for key in ("attention.head_count", "attention.head_count_kv", "attention.key_length")
    }
    header = dataclasses.replace(header, metadata=odd)
    assert cache_bytes(header, ContextOptions(), 100) >= 0


def test_every_cut_is_noticed(good, tmp_path):
    data = good.read_bytes()
    cut = tmp_path / "cut.gguf"
    header_bytes = data.index(b"blk.0.ffn_down.weight")
    for n in [
        *range(0, 64),
        *range(64, header_bytes, 997),
        header_bytes,
        len(data) // 2,
        len(data) - 1,
    ]:
        cut.write_bytes(data[:n])
        with pytest.raises(NotAModelError) as caught:
            read_header(cut)
        assert caught.value.hint
        assert caught.value.path == cut


def test_a_cut_in_the_weights_names_both_sizes(good, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(
        NotAModelError,
        match=rf"has {cut.stat().st_size:,} bytes but its tensors need {good.stat().st_size:,}",
    ):
        read_header(cut)


def test_a_file_without_tensors_is_not_cut_short(tmp_path):
    metadata, _ = tiny.llama()
    assert read_header(tiny.write(tmp_path / "vocabulary.gguf", (metadata, {}))).n_tensors == 0
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
        (_file(0, 0, version=3 << 24), "big-endian"),
        (_file(0, 0, version=4), "version 4"),
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
        (
            _file(0, 1, _pair(b"general.alignment", 8, struct.pack("<Q", 2) + b"32")),
            "its alignment is '32'",
        ),
        (_file(0, 1, _pair(b"general.alignment", 4, struct.pack("<I", 16))), "its alignment is 16"),
        (_file(0, 1, _pair(b"general.alignment", 7, b"\1")), "its alignment is True"),
        (
            _file(0, 1, _pair(b"general.alignment", 10, struct.pack("<Q", 32))),
            "its alignment is 32",
        ),
        (_file(0, 2, _pair(b"k", 0, b"\1") * 2), "contains 'k' twice"),
        (_file(0, 2, _pair(b"\xff", 0, b"\1") * 2), "contains '�' twice"),
        (_file(1, 0, struct.pack("<QI", 0, 5)), "has 5 dimensions"),
        (_file(1, 0, struct.pack("<QI", 0, 0)), "has 0 dimensions"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 0, 0, 0)), r"has the shape \(0,\)"),
        (_file(1, 0, struct.pack("<QIQQIQ", 0, 2, 2**32, 2**32, 0, 0)), "has the shape"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 33, 8, 0)), "rows of 33 values"),
        (
            _file(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 4, 0)),
            "type 4, which llama.cpp no longer supports",
        ),
        (_file(2, 0, struct.pack("<QIQIQ", 0, 1, 32, 0, 0) * 2), "the tensor '' twice"),
        (
            _file(1, 0, struct.pack("<QIQIQ", 0, 1, 8, 0, 32) + bytes(99)),
            "starts at byte 32 of the data and not at 0",
        ),
        (
            _file(1, 0, struct.pack("<QIQIQ", 0, 1, 8, 0, 1) + bytes(99)),
            "starts at byte 1 of the data",
        ),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 2**39, 0, 0)), "is cut short"),
        (_file(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 0, 2**63)), "is cut short"),
        (
            _file(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 28, 0)),
            "is of the type 28, which is not a type of weights",
        ),
    ],
)
def test_errors_name_the_fault(tmp_path, data, said):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(NotAModelError, match=said):
        read_header(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(NotAModelError, match="is not a regular file"):
        read_header(pipe)


@pytest.mark.parametrize("name", ["a\0b.gguf", "x" * 5000, "\ud800.gguf", "no/such/folder.gguf"])
def test_names_that_no_file_has(tmp_path, name):
    with pytest.raises(ModelError):
        read_header(tmp_path / name)


def test_a_folder_that_is_a_file(good):
    with pytest.raises(ModelNotFoundError):
        read_header(good / "x.gguf")


def test_texts_that_are_not_utf8(tmp_path):
    (tmp_path / "odd.gguf").write_bytes(
        _file(
            0, 2, _pair(b"\xff", 8, struct.pack("<Q", 2) + b"\xc3\x28") + _pair(b"\xfe", 7, b"\x02")
        )
    )
    header = read_header(tmp_path / "odd.gguf")
    assert list(header.metadata.values()) == [True] or header.metadata["\ufffd"] is True


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _strings(key: bytes, n: int, items: bytes) -> bytes:
    return _pair(key, 9, struct.pack("<IQ", 8, n) + items)


HALF_A_MILLION = 1 << 19
# Files that make most of what a header may hold; where the second is above 0, they go on for that many zeros.
GREEDY = {
    "half a million tokens": lambda: (
        _file(
            0,
            1,
            _strings(
                b"tokenizer.ggml.tokens",
                HALF_A_MILLION,
                b"".join(_text(b"%07d" % i) for i in range(HALF_A_MILLION)),
            ),
        ),
        0,
    ),
    "as many empty tokens": lambda: (
        _file(0, 1, _strings(b"tokenizer.ggml.tokens", HALF_A_MILLION, b"")),
        16 * HALF_A_MILLION,
    ),
    "ten million tokens": lambda: (
        _file(0, 1, _strings(b"tokenizer.ggml.tokens", 10_000_000, b"")),
        1 << 40,
    ),
    "long tokens": lambda: (
        _file(
            0,
            1,
            _strings(
                b"tokenizer.ggml.tokens",
                9,
                b"".join(_text(b"%d" % i * (4 << 20)) for i in range(9)),
            ),
        ),
        0,
    ),
    "two million merges": lambda: (
        _file(0, 1, _strings(b"tokenizer.ggml.merges", 4 * HALF_A_MILLION, b"")),
        1 << 40,
    ),
    "empty strings without end": lambda: (
        _file(0, 1 << 16, b"".join(_strings(b"%07d" % i, 31, bytes(248)) for i in range(1 << 16))),
        1 << 40,
    ),
    "strings without end": lambda: (_file(0, 1 << 16, _strings(b"k", 1 << 22, b"")), 1 << 40),
    "short arrays": lambda: (
        _file(
            0,
            1 << 16,
            b"".join(
                _pair(b"%d" % i, 9, struct.pack("<IQ", 0, 1024) + bytes(1024)) for i in range(9999)
            ),
        ),
        0,
    ),
    "numbers": lambda: (
        _file(0, 1 << 16, b"".join(_pair(b"%07d" % i, 4, bytes(4)) for i in range(1 << 16))),
        0,
    ),
    "a long array": lambda: (_file(0, 2, _pair(b"k", 9, struct.pack("<IQ", 12, 7 << 20))), 1 << 40),
    "a longer array": lambda: (
        _file(0, 2, _pair(b"k", 9, struct.pack("<IQ", 12, 9 << 20))),
        1 << 40,
    ),
    "a text of 4 GB": lambda: (_file(0, 1, _pair(b"k", 8, struct.pack("<Q", 1 << 32))), 1 << 40),
    "a text of 32 MB": lambda: (
        _file(0, 1, _pair(b"k", 8, _text("\U0001f600".encode() * ((8 << 20) - 9)))),
        0,
    ),
    "long keys": lambda: (
        _file(0, 99, b"".join(_pair(b"%7d" % i * 99999, 4, bytes(4)) for i in range(99))),
        0,
    ),
    "tensors": lambda: (
        _file(
            1 << 16,
            0,
            b"".join(
                _text(b"%07d" % i) + struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(1 << 16)
            ),
        ),
        1 << 22,
    ),
    "tensors of one name": lambda: (
        _file(1 << 16, 0, struct.pack("<QIQIQ", 0, 1, 8, 0, 0) * (1 << 16)),
        1 << 40,
    ),
    "zeros": lambda: (_file(1 << 16, 1 << 16), 1 << 40),
}
REFUSED = {
    "ten million tokens": "claims 10,000,000 strings", "long tokens": "bytes of names and texts", "long keys": "bytes of names and texts",
    "strings without end": "claims 4,194,304 strings", "short arrays": "short arrays contain more than", "a longer array": "header takes more than",
    "a text of 4 GB": "for one string", "tensors of one name": "twice", "zeros": "twice",
}  # fmt: skip
MEASURE = """
import sys, time
from pathlib import Path
from gguf_spec.gguf.validation import read_header
from gguf_spec.errors import GgufSpecError
def peak():  # since this program began; ru_maxrss would count the one that started it
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
def yard():  # a yardstick that a busy machine stretches as well
    started = time.process_time()
    sum(range(20_000_000))
    return time.process_time() - started
yards, before, started = yard(), peak(), time.process_time()
try:
    read_header(Path(sys.argv[1]))
    said = "read"
except GgufSpecError as error:
    said = str(error)
print((time.process_time() - started) / yards, peak() - before, said, sep="|")
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory in KiB")
@pytest.mark.parametrize("name", GREEDY)
def test_no_header_takes_long_or_256_mb(tmp_path, name):
    data, zeros = GREEDY[name]()
    with (tmp_path / "greedy.gguf").open("wb") as file:
        file.write(data)
        file.truncate(len(data) + zeros)
    child = children.run(
        [sys.executable, "-c", MEASURE, tmp_path / "greedy.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    yards, kib, said = child.stdout.split("|")
    print(
        f"{float(yards):.2f} of the time to add up 20 million numbers, {int(kib) >> 10} MiB: {said.strip()}"
    )
    assert float(yards) < 3  # idle about a second
    assert int(kib) < 256 << 10
    assert REFUSED.get(name, "read") in said
    assert len(said) < 300


def test_huge_counts_take_no_memory(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(_file(0, 1, _pair(b"k", 9, struct.pack("<IQ", 8, 2**24))) + bytes(1000))
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_header(bad)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
