"""Damage GGUF files in thousands of ways, and see what reading their headers takes and which of them end llama.cpp's process.

.venv/bin/python scripts/checks/mutate_gguf.py headers [-n 10000] [--seed 0] FILE...   reads each header: time, memory, errors
.venv/bin/python scripts/checks/mutate_gguf.py load [-n 1000] [--seed 0] FILE...       loads each that is not refused, each in a process of its own

The files of `load` are written whole each time: take small ones. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import copy
import importlib
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 30: (1, 2)}
MEMORY = 6 << 30


@dataclass
class File:
    """A GGUF file taken apart: `pairs` of key, type and value (of an array: its type and a list), `tensors` of name, shape, type and bytes."""

    pairs: list[list[Any]] = field(default_factory=list)
    tensors: list[list[Any]] = field(default_factory=list)
    alignment: int = 32
    lies: dict[str, int] = field(
        default_factory=dict
    )  # name of a tensor -> offset that the header gives instead

    @classmethod
    def read(cls, path: Path) -> File:
        data, at = path.read_bytes(), 24
        n_tensors, n_pairs = struct.unpack_from("<QQ", data, 8)

        def take(form: str) -> Any:
            nonlocal at
            at += struct.calcsize("<" + form)
            return struct.unpack_from("<" + form, data, at - struct.calcsize("<" + form))[0]

        def text() -> bytes:
            nonlocal at
            n = take("Q")
            at += n
            return data[at - n : at]

        def value(kind: int) -> Any:
            nonlocal at
            if kind == STRING:
                return text()
            if kind != ARRAY:
                return take(FORMS[kind])
            inner, n = take("I"), take("Q")
            if inner == STRING:
                return inner, [text() for _ in range(n)]
            form = f"<{n}{FORMS[inner]}"
            at += struct.calcsize(form)
            return inner, list(struct.unpack_from(form, data, at - struct.calcsize(form)))

        self = cls()
        for _ in range(n_pairs):
            key, kind = text(), take("I")
            self.pairs.append([key, kind, value(kind)])
        infos = [
            (text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q"))
            for _ in range(n_tensors)
        ]
        start = -(-at // 32) * 32
        for name, shape, kind, offset in infos:
            per_block, n_bytes = BLOCKS[kind]
            size = n_bytes
            for n in shape:
                size *= n
            self.tensors.append(
                [name, shape, kind, data[start + offset : start + offset + size // per_block]]
            )
        return self

    def __getitem__(self, key: str) -> list[Any]:
        return next(pair for pair in self.pairs if pair[0] == key.encode())

    def pack(self) -> bytes:
        out = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))]
        for key, kind, value in self.pairs:
            out += [_text(key), struct.pack("<I", kind), _value(kind, value)]
        offset = 0
        for name, shape, kind, data in self.tensors:
            given = self.lies.get(name, offset)
            out.append(
                _text(name)
                + struct.pack(
                    f"<I{len(shape)}QIQ",
                    len(shape),
                    *[n % 2**64 for n in shape],
                    kind,
                    given % 2**64,
                )
            )
            offset += -(-len(data) // self.alignment) * self.alignment
        header = b"".join(out)
        pieces = [header, bytes(-len(header) % self.alignment)]
        for tensor in self.tensors:
            pieces += [tensor[3], bytes(-len(tensor[3]) % self.alignment)]
        return b"".join(pieces)


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind != ARRAY:
        return _number(kind, value)
    inner, items = value
    packed = [_text(item) if inner == STRING else _number(inner, item) for item in items]
    return struct.pack("<IQ", inner, len(items)) + b"".join(packed)


def _number(kind: int, value: Any) -> bytes:
    form = FORMS[kind]
    if form in "fd":
        return struct.pack("<" + form, value)
    bits = 8 * struct.calcsize("<" + form)
    return struct.pack("<" + form.upper(), int(value) % 2**bits)


# ---- ways to damage a file, each with a name

INTEGERS = [
    0,
    1,
    2,
    3,
    7,
    31,
    63,
    64,
    65,
    1000,
    2**15,
    2**16 - 1,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
]
FLOATS = [0.0, -0.0, -1.0, 1e-30, 1e30, 3e38, float("nan"), float("inf"), float("-inf")]
STRINGS = [
    b"",
    b"\0",
    b"x" * 5000,
    b"\xff\xfe",
    b"none",
    b"llama",
    b"gpt2",
    b"bert",
    b"t5",
    b"rwkv",
    b"plamo2",
    b"test",
    b"whitespace",
    b"gemma4",
]
KINDS = [*FORMS, STRING]


def of_metadata(file: File) -> Iterator[tuple[str, File]]:
    """Yield a file with one value changed, for all values and all changes."""
    for at, (raw, kind, value) in enumerate(file.pairs):
        key = raw.decode(errors="replace")

        def changed(new_kind: int, new: Any, at: int = at) -> File:
            other = copy.copy(file)
            other.pairs = [
                *file.pairs[:at],
                [file.pairs[at][0], new_kind, new],
                *file.pairs[at + 1 :],
            ]
            return other

        removed = copy.copy(file)
        removed.pairs = [*file.pairs[:at], *file.pairs[at + 1 :]]
        yield f"{key} removed", removed
        for new in (
            STRINGS
            if kind == STRING
            else FLOATS
            if kind in (6, 12)
            else INTEGERS
            if kind != ARRAY
            else []
        ):
            yield f"{key} = {str(new)[:24]}", changed(kind, new)
        if kind == ARRAY:
            inner, items = value
            for name, new_items in (
                ("empty", []),
                ("of one", items[:1]),
                ("one less", items[:-1]),
                ("one more", [*items, *items[-1:]]),
                ("twice", items * 2),
            ):
                yield f"{key} {name}", changed(ARRAY, (inner, new_items))
            for new in (
                STRINGS[:4] if inner == STRING else FLOATS if inner in (6, 12) else [*INTEGERS, -1]
            ):
                yield f"{key} all {str(new)[:24]}", changed(ARRAY, (inner, [new] * len(items)))
                yield (
                    f"{key} one {str(new)[:24]}",
                    changed(ARRAY, (inner, [*items[:5], new, *items[6:]])),
                )
            if inner != STRING:
                for other in FORMS:
                    yield (
                        f"{key} as array of {other}",
                        changed(
                            ARRAY,
                            (
                                other,
                                [0 if isinstance(x, float) and x != x else int(x) for x in items],
                            ),
                        ),
                    )
            yield f"{key} as number", changed(4, len(items))
        else:
            number = value if kind != STRING and value == value and abs(value) < 1e18 else 5
            for other in KINDS:
                if other != kind:
                    yield (
                        f"{key} as type {other}",
                        changed(other, b"5" if other == STRING else number),
                    )
            yield f"{key} as array", changed(ARRAY, (kind, [value] * 3))


def of_tensors(file: File, rng: random.Random) -> Iterator[tuple[str, File]]:
    """Yield a file with one tensor changed."""
    for at, (raw, shape, kind, data) in enumerate(file.tensors):
        name = raw.decode()

        def changed(*new: Any, at: int = at) -> File:
            other = copy.copy(file)
            other.tensors = [
                *file.tensors[:at],
                *([list(new)] if new else []),
                *file.tensors[at + 1 :],
            ]
            return other

        yield f"{name} removed", changed()
        yield f"{name} renamed", changed(raw + b"x", shape, kind, data)
        yield f"{name} twice", changed(file.tensors[at - 1][0], shape, kind, data)
        for new_shape in ([*shape, 1], [*shape, 2], shape[::-1], shape[:1], [], [0, *shape[1:]], [n * 2 for n in shape], [n // 2 or 1 for n in shape],
                          [2**32, *shape[1:]], [2**63 - 1], [2**62, 4], [1, *shape], [*shape, 1, 1, 1]):  # fmt: skip
            yield f"{name} of shape {new_shape}", changed(raw, new_shape, kind, data)
        n_values = 1
        for n in shape:
            n_values *= n
        for other in range(45):  # as many bytes as any type needs
            noise = rng.randbytes(64) * (n_values // 8 + 1)
            size = {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2}.get(
                other, 0
            ) * n_values or _size(other, n_values)
            yield f"{name} of type {other}", changed(raw, shape, other, noise[:size])
        for offset in (1, 16, 32, 2**40, 2**63, 2**64 - 32):
            lying = copy.copy(file)
            lying.lies = {raw: offset}
            yield f"{name} at {offset}", lying
        for what, filled in (
            ("zeros", bytes(len(data))),
            ("ones", b"\xff" * len(data)),
            ("noise", rng.randbytes(len(data))),
        ):
            yield f"{name} full of {what}", changed(raw, shape, kind, filled)


def _size(kind: int, n_values: int) -> int:
    from gguf_spec.gguf.header import _BLOCKS

    per_block, n_bytes = _BLOCKS.get(kind, (1, 1))
    return n_values // per_block * n_bytes


def of_file(file: File) -> Iterator[tuple[str, File]]:
    """Yield a file changed as a whole."""
    for alignment in (1, 2, 8, 16, 64, 4096):
        other = copy.copy(file)
        other.alignment = alignment
        other.pairs = [*file.pairs, [b"general.alignment", 4, alignment]]
        yield f"aligned to {alignment}", other
    shuffled = copy.copy(file)
    shuffled.tensors = file.tensors[::-1]
    yield "tensors in another order", shuffled
    for key, kind, value in (
        (b"split.count", 2, 2), (b"split.no", 2, 0), (b"tokenizer.ggml.add_bos_token", 7, 1), (b"tokenizer.ggml.add_eos_token", 7, 1),
        (b"tokenizer.ggml.add_sep_token", 7, 1), (b"tokenizer.ggml.token_type_count", 4, 0),
        (b"tokenizer.ggml.suppress_tokens", ARRAY, (5, [2**31 - 1, -1])),
        (b"tokenizer.ggml.precompiled_charsmap", ARRAY, (0, [255] * 64)),
        *((f"tokenizer.ggml.{name}_token_id".encode(), 4, 2**31) for name in ("eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre")),
        *((f"ARCH.{name}".encode(), 4, n) for n in (0, 1, 3, 2**31 - 1, 2**32 - 1) for name in (
            "attention.key_length", "attention.value_length", "attention.sliding_window", "vocab_size", "rope.dimension_count", "expert_count",
            "expert_used_count", "expert_group_count", "expert_group_used_count", "embedding_length_out", "leading_dense_block_count",
            "nextn_predict_layers", "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa", "pooling_type",
            "rope.scaling.original_context_length", "interleave_moe_layer_step", "feed_forward_length", "attention.head_count_kv",
        )),
        *((f"ARCH.{name}".encode(), 6, x) for x in FLOATS for name in (
            "rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor", "attention.clamp_kqv", "attention.scale", "logit_scale",
            "embedding_scale", "residual_scale", "rope.scale_linear", "attn_logit_softcapping", "rope.scaling.alpha",
        )),
        *((b"ARCH.rope.scaling.type", STRING, x) for x in (b"yarn", b"longrope", b"none")),
        *((f"ARCH.{name}".encode(), ARRAY, (4, items)) for items in ([], [0], [1], [2], [2**31] * 4, [1] * 600) for name in (
            "feed_forward_length", "attention.head_count", "attention.head_count_kv", "expert_used_count", "rope.dimension_sections",
            "attention.sliding_window_pattern")),
    ):  # fmt: skip
        more, key = copy.copy(file), key.replace(b"ARCH", file["general.architecture"][2])
        more.pairs = [pair for pair in file.pairs if pair[0] != key] + [[key, kind, value]]
        yield f"{key.decode()} ({kind}) = {str(value)[:30]}", more


def all_of(file: File, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield every damage that has a name."""
    rng = random.Random(seed)
    for of in (of_file(file), of_metadata(file), of_tensors(file, rng)):
        for name, damaged in of:
            try:
                yield name, damaged.pack()
            except (struct.error, OverflowError):
                continue  # a number that no type holds


def flipped(data: bytes, header_bytes: int, n: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield a file with a few bytes of its header changed."""
    rng = random.Random(seed)
    for i in range(n):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(min(header_bytes, 4096) if rng.random() < 0.7 else header_bytes)
            damaged[at] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), damaged[at] ^ 1 << rng.randrange(8))
            )
        yield f"flips {seed}.{i}", bytes(damaged)


def spliced(header: bytes, rng: random.Random) -> bytes:
    """Return a header with one of many damages to its bytes."""
    data = bytearray(header)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data) or 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at : at + 8] = struct.pack(
                    "<Q",
                    rng.choice((0, 1, 2**16, 2**24, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)),
                )
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 200)]
            case 4:
                start = rng.randrange(len(data) or 1)
                data[at:at] = data[start : start + rng.randrange(1, 2000)]
            case 5:
                data[at : at + 4] = struct.pack("<I", rng.randrange(45))
    return bytes(data)


def random_header(path: Path, rng: random.Random, text: bytes, n: int) -> bytes:
    """Return the header of a file with values replaced by `text`, lists of `n` items or numbers, or with damaged bytes."""
    good, lies, at = File.read(path), {}, 0
    for tensor in good.tensors:
        lies[tensor[0]], tensor[3], at = at, b"", at + -(-len(tensor[3]) // 32) * 32
    for _ in range(rng.choice((0, 1, 5))):
        array = rng.choice(((4, [1] * n), (6, [float("nan")] * n), (STRING, [b"xy"] * n)))
        rng.choice(good.pairs)[1:] = rng.choice(((ARRAY, array), (STRING, text), (4, 2**31)))
    n_times = rng.choice((1, 1, 1, int(300 ** rng.random())))
    data = File(good.pairs, good.tensors * n_times, lies=lies).pack()
    return spliced(data, rng) if rng.random() < 0.5 else data


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# ---- reading headers


def _peak_kib() -> int:
    """Return the most memory that this program has had; `ru_maxrss` would count the one that started it."""
    return int(
        Path("/proc/self/status").read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]
    )


def read_headers(paths: list[Path], n: int, seed: int) -> dict[str, Any]:
    """Read `n` damaged headers in this process; the damaged files are as long as the good ones, but hold only a header."""
    from gguf_spec.errors import GgufSpecError
    from gguf_spec.gguf.validation import check_model, read_header

    rng = random.Random(seed)
    headers = []
    for path in paths:
        with path.open("rb") as file:
            headers.append((file.read(read_header(path).data_at), path.stat().st_size))
    slowest, outcomes = 0.0, collections.Counter[str]()
    before = _peak_kib()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        path = Path(folder) / "damaged.gguf"
        for i in range(n):
            header, size = headers[i % len(headers)]
            with path.open("wb") as file:
                file.write(spliced(header, rng))
                file.truncate(max(file.tell(), size) if rng.random() < 0.9 else file.tell())
            started = time.perf_counter()
            try:
                check_model(read_header(path))
                outcome = "read"
            except GgufSpecError as error:
                outcome = type(error).__name__
            slowest = max(slowest, time.perf_counter() - started)
            outcomes[outcome] += 1
    more = _peak_kib() - before
    return {
        "slowest_s": round(slowest, 4),
        "more_memory_mib": round(more / 1024, 1),
        "outcomes": dict(outcomes),
    }


# ---- loading files


def load(path: Path) -> str:
    """Load a file and run it a little; return what came of it."""
    from gguf_spec.errors import GgufSpecError
    from gguf_spec.gguf.validation import ModelFile
    from gguf_spec.llama.context import Context
    from gguf_spec.llama.memory import check_room
    from gguf_spec.llama.options import ContextOptions

    file, options = ModelFile(path), ContextOptions(n_ctx=64, threads=1, extra_bufts=False)
    try:
        check_room([(file.header, options)])
        model = Context(file, options).sequences[0]
        try:
            ids = model.weights.tokenize("The cat <|im_end|>\n42é", special=True) or [0]
            model.logits(ids[:20], 1)
            model.logits([model.start % model.n_vocab], 1)
            model.rollback(1) if model.can_roll_back else None
            _ = (
                [model.weights.piece(token) for token in range(min(model.n_vocab, 300))],
                model.weights.ends,
                model.weights.special_tokens,
                model.weights.chat_template,
            )
        finally:
            model.close()
    except GgufSpecError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def apart(call: Callable[[], str], seconds: int = 20) -> tuple[str, str]:
    """Run `call` in a copy of this process; return its output, or the signal that ended it, and the earlier output of llama.cpp."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as log:
        pid = os.fork()
        if not pid:
            os.dup2(log.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(seconds)
            try:
                said.write(call().encode(errors="replace"))
            except BaseException as error:
                said.write(f"untyped {type(error).__name__}: {error}".encode(errors="replace"))
            said.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        if os.WIFSIGNALED(status):
            return f"died of {signal.Signals(os.WTERMSIG(status)).name}", next(
                (line for line in lines if "ASSERT" in line or "what()" in line), ""
            )
        return said.read().decode(), ""


def deaths(
    damages: Iterator[tuple[str, bytes]], only: Callable[[str], bool] = lambda _: True
) -> tuple[dict[str, int], list[tuple[str, str, str]]]:
    """Load damaged files one after another; return how often what came of it, and each that ended its process: its name, how and where."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    importlib.import_module(
        "gguf_spec.llama.context"
    )  # once, and not in every copy of this process

    outcomes, dead = collections.Counter[str](), []
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        path = Path(folder) / "damaged.gguf"
        for name, data in damages:
            if not only(name):
                continue
            path.write_bytes(data)
            outcome, where = apart(lambda: load(path))
            outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith(("died", "untyped")):
                dead.append((name, outcome, where))
    return dict(outcomes), dead


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("headers", "load"))
    parser.add_argument(
        "-n",
        type=int,
        default=None,
        help="how many damages (headers: 10,000; load: 500 flips beside those that have a name)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--like", default="", help="only damages whose name holds this")
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    if args.what == "headers":
        print(read_headers(args.files, args.n or 10_000, args.seed))
        return
    for path in args.files:
        from gguf_spec.gguf.validation import read_header

        started, data = time.monotonic(), path.read_bytes()
        named, flips = (
            all_of(File.read(path), args.seed),
            flipped(data, read_header(path).data_at, 500 if args.n is None else args.n, args.seed),
        )
        outcomes, dead = deaths(
            (x for some in (named, flips) for x in some), lambda name: args.like in name
        )
        print(
            f"{path.name}: {sum(outcomes.values())} files in {time.monotonic() - started:.0f} s: {outcomes}"
        )
        for name, outcome, where in dead:
            print(f"  {name}: {outcome} {where}")


if __name__ == "__main__":
    sys.exit(main())
