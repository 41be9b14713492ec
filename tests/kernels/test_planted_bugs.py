"""Bugs planted into a copy of the kernels: the self-test finds each of them, and `verify` those of the model that it runs."""

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from gguf_spec.llama import own_kernels, selftest
from gguf_spec.quantize import quantize
from gguf_spec.system.files import write_json
from gguf_spec.system.machine import is_x86
from tests.gguf.test_near_ties import TALES
from tests.support import children, tiny

from .graphs import compiled_tiles, kernels, use_tiles

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "build"))
import build_kernels

# Rows of a pass that take something from its first row: file, text, text with the bug, and what it spoils.
OF_THE_FIRST_ROW = [
    ("interleaved.h", "= all_ints(rows[r][b].start);", "= all_ints(rows[0][b].start);", ["repacked q4_0", "repacked iq4_nl", "repacked mxfp4"]),
    ("interleaved.h", "low[r] = fma(to_floats(m), mul(dmin, scale), low[r])", "low[r] = fma(to_floats(m), mul(dmin, all(rows[0].scale[b])), low[r])", ["repacked q4_K", "repacked q2_K"]),
    ("interleaved.h", "_mm256_set1_epi32(rows[r][b].start)", "_mm256_set1_epi32(rows[0][b].start)", ["repacked q4_0", "repacked iq4_nl", "repacked mxfp4"]),
    ("plain.h", "of_row<r % 4>(products", "of_row<0>(products", ["q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4", "q4_1", "q5_1"]),
    ("plain.h", "scale * rows[r].scale[b])", "scale * rows[0].scale[b])", ["q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4", "q4_1", "q5_1"]),
    ("plain.h", "set1_ps(rows[r].scale[b] * s.d)", "set1_ps(rows[0].scale[b] * s.d)", ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K"]),
    ("floats.h", "load_floats(rows[r] + e + i * L)", "load_floats(rows[i == 3 ? 0 : r] + e + i * L)", ["f32", "f16", "bf16"]),
    ("attention.cpp", "all(query[r * size + d])", "all(query[(d == 7 ? 0 : r) * size + d])", ["cache of f16", "cache of q8_0", "cache of bf16"]),
]  # fmt: skip
# Bugs that are the same in passes of any width.
OF_ALL_ROWS = [
    ("interleaved.h", "flip(nibbles, all_bytes(8)); }", "flip(nibbles, all_bytes(9)); }", ["repacked q4_0"]),
    ("interleaved.h", "{12, 13, 14, 15, 16, 18, 20, 24,", "{12, 13, 14, 15, 16, 18, 20, 22,", ["repacked mxfp4"]),
    ("interleaved.h", "look_up(table_of(iq4_nl_values), nibbles);", "look_up(table_of(mxfp4_values), nibbles);", ["repacked iq4_nl"]),
    ("interleaved.h", "_mm_srli_epi16(x, 2), _mm_set1_epi8(0x30)", "_mm_srli_epi16(x, 2), _mm_set1_epi8(0x10)", ["repacked q4_K"]),
    ("interleaved.h", "_mm_set1_epi16(15)), _mm_srli_epi16(x, 4))", "_mm_set1_epi16(15)), _mm_srli_epi16(x, 5))", ["repacked q2_K"]),
    ("plain.h", "sub_epi8(nibbles32(p + 2), ", "sub_epi8(nibbles32(p + 1), ", ["q4_0"]),
    ("plain.h", "bytes = 20, minimum = 2,", "bytes = 20, minimum = 0,", ["q4_1"]),
    ("plain.h", "nibbles32(p + 6), bits32(p + 2)", "nibbles32(p + 6), bits32(p + 3)", ["q5_0"]),
    ("plain.h", "nibbles32(p + 8), bits32(p + 4)", "nibbles32(p + 8), bits32(p + 3)", ["q5_1"]),
    ("plain.h", "(const __m256i *) (p + 2)); }", "(const __m256i *) (p + 1)); }", ["q8_0"]),
    ("plain.h", "table32(iq4_nl_values, nibbles32(p + 2))", "table32(iq4_nl_values, nibbles32(p + 1))", ["iq4_nl"]),
    ("plain.h", "table32(mxfp4_values, nibbles32(p + 1))", "table32(mxfp4_values, nibbles32(p))", ["mxfp4"]),
    ("plain.h", "s.d = half_at(p + 80)", "s.d = half_at(p + 82)", ["q2_K"]),
    ("plain.h", "_mm_sub_epi8(x, _mm_set1_epi8(32))", "_mm_sub_epi8(x, _mm_set1_epi8(31))", ["q3_K"]),
    ("plain.h", "_mm_set1_ps(-row.scale[b] * dmin)", "_mm_set1_ps(row.scale[b] * dmin)", ["q4_K"]),
    ("plain.h", "field<2 * j - 3>(h, 16)", "field<2 * j - 2>(h, 16)", ["q5_K"]),
    ("plain.h", "field<4>(b, 15), field<2>(h, 48)", "field<4>(b, 15), field<0>(h, 48)", ["q6_K"]),
    ("floats.h", "add(add(acc[r][0], acc[r][2]), add(acc[r][1], acc[r][3]))", "add(add(acc[r][0], acc[r][2]), acc[r][1])", ["f32", "f16", "bf16"]),
    ("attention.cpp", "__builtin_fmaf(weight, share, weight2 * share2)", "__builtin_fmaf(weight, share2, weight2 * share2)", ["cache of f16", "cache of q8_0", "cache of bf16"]),
]  # fmt: skip
# Bugs of rows that are longer than 1,024 elements.
OF_LONG_ROWS = [
    ("products.cpp", "    quantize_q8_K(x + i, q, n);", "    quantize_q8_K(x + i % PART, q, n);", ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K"]),
    ("products.cpp", "sum[i / 32 + b] = header == 4", "sum[i / 32 % 32 + b] = header == 4", ["q4_1", "q5_1"]),
]  # fmt: skip
# Bugs of the kernels with tiles; the others are right.
OF_TILES = [
    ("tiles.cpp", "all(rows.number(r, block + i, 0))", "all(rows.number(first, block + i, 0))", ["repacked q4_0", "repacked iq4_nl", "repacked mxfp4"]),
    ("tiles.cpp", "all(rows.number(j, block, 0))", "all(rows.number(r, block, 0))", ["repacked q4_K"]),
    ("tiles.cpp", "scales[2 * group + i / 4];", "scales[2 * group];", ["q2_K", "q3_K", "q6_K"]),  # the others have a scale for 32
]  # fmt: skip
# Bugs of the kernels for many rows without tiles; the others are right.
OF_MANY_ROWS = [
    ("interleaved.h", "int_at(a[r] + 4 * (W * part + j))", "int_at(a[0] + 4 * (W * part + j))", ["repacked q4_K", "repacked q2_K"]),
    ("plain.h", "repeat(rows[r].bytes + 256 * b + 32 * j)", "repeat(rows[0].bytes + 256 * b + 32 * j)", ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K"]),
]  # fmt: skip
# Bugs in which rows meet which experts.
OF_EXPERTS = [
    ("entry.cpp", "const int64_t m = id(u, t);", "const int64_t m = id(u, t) == 2 ? 1 : id(u, t);", ["experts"]),
    ("entry.cpp", "(u % x->ne[1] + t % x->ne[2] * x->ne[1]) * work.row_bytes", "(u % x->ne[1] + (t ^ (t > 3)) % x->ne[2] * x->ne[1]) * work.row_bytes", ["experts"]),
    ("entry.cpp", "(out + u * op->nb[1] + t * op->nb[2]);", "(out + (op->ne[1] - 1 - u) * op->nb[1] + t * op->nb[2]);", ["experts"]),
]  # fmt: skip
PROBLEMS = """
import json
from gguf_spec.llama import own_kernels, selftest
assert own_kernels.enter("auto").name
problems = {}
for tested in (selftest.operations(), selftest.with_tiles()):
    problems |= {one.name: problems.get(one.name) or selftest.problem_of(one) for one in tested}
print(json.dumps(problems))
"""
# Files that `quantize` makes, and types that it has no name for: those are tested by the self-test alone.
FILES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "F16")  # fmt: skip


def library_with(bugs, folder):
    """Compile the kernels with bugs; return the library and what they spoil."""
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    sources = planted_in_copy(bugs, folder)
    return build_kernels.build(folder, "here", sources), [
        name for *_, names in bugs for name in names
    ]


def planted_in_copy(bugs, folder):
    """Return a copy of the sources with bugs."""
    sources = Path(shutil.copytree(build_kernels.SOURCES, folder / "kernels"))
    for file, right, wrong, _ in bugs:
        text = (sources / file).read_text(encoding="utf-8")
        (sources / file).write_text(text.replace(right, wrong), encoding="utf-8")
    return sources


PLANTED = {"of the first row": OF_THE_FIRST_ROW, "of all rows": OF_ALL_ROWS}


@pytest.fixture(scope="module", params=[*PLANTED])
def planted(request, tmp_path_factory):
    """A library with one bug in each kernel, and what they spoil."""
    return library_with(PLANTED[request.param], tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize(
    "bug",
    [*OF_THE_FIRST_ROW, *OF_ALL_ROWS, *OF_LONG_ROWS, *OF_TILES, *OF_MANY_ROWS, *OF_EXPERTS],
    ids=lambda bug: bug[2],
)
def test_the_sources_have_its_place(bug):
    file, right, *_ = bug
    assert (build_kernels.SOURCES / file).read_text(encoding="utf-8").count(right) == 1


@pytest.mark.slow
@pytest.mark.parametrize("bugs", [*PLANTED.values(), OF_LONG_ROWS], ids=[*PLANTED, "of long rows"])
def test_the_self_test_finds_each_bug(bugs, tmp_path, monkeypatch):
    library, names = library_with(bugs, tmp_path)
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    monkeypatch.setenv("GGUF_SPEC_KERNELS", "auto")
    command = [sys.executable, "-c", PROBLEMS]
    done = children.run(command, capture_output=True, text=True, check=True)
    problems = json.loads(done.stdout.splitlines()[-1])
    for name in names:
        found = [problem for key, problem in problems.items() if key.endswith(f" {name}")]
        assert found, name
        assert any(found), name


@pytest.mark.slow
def test_the_self_test_finds_bugs_of_tiles(tmp_path, monkeypatch):
    own_kernels.start()
    if own_kernels.tiles() != 1:
        pytest.skip("there are no tiles here")
    library, names = library_with(OF_TILES, tmp_path)
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    monkeypatch.setenv("GGUF_SPEC_KERNELS", "auto")
    command = [sys.executable, "-c", PROBLEMS]
    done = children.run(command, capture_output=True, text=True, check=True)
    problems = json.loads(done.stdout.splitlines()[-1])
    found = {key for key, problem in problems.items() if problem}
    assert found and all(key.endswith(", with tiles") for key in found)
    assert not [name for name in names if f"a product with {name}, with tiles" not in found]


@pytest.mark.slow
@pytest.mark.parametrize("bug", OF_TILES, ids=lambda bug: bug[2])
def test_the_self_test_finds_bugs_of_tiles_in_software(bug, tmp_path):
    """On any processor with AVX-512 VNNI, and each bug alone."""
    with kernels(1, "avx512vnni"):  # skips
        sources = planted_in_copy([bug], tmp_path)
        use_tiles(ctypes.CDLL(str(compiled_tiles(tmp_path / "tiles.so", sources))))
        found = {one.name for one in selftest.with_tiles() if selftest.problem_of(one)}
    assert {f"a product with {name}, with tiles" for name in bug[3]} == {
        name for name in found if "experts" not in name
    }


@pytest.mark.slow
def test_the_self_test_finds_bugs_of_many_rows(tmp_path, monkeypatch):
    if not is_x86():
        pytest.skip("these kernels are for x86-64")
    library, names = library_with(OF_MANY_ROWS, tmp_path)
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    best = "avx512vnni" if own_kernels.in_use().name == "amx" else "auto"
    command = [sys.executable, "-c", PROBLEMS.replace("auto", best)]
    done = children.run(command, capture_output=True, text=True, check=True)
    problems = json.loads(done.stdout.splitlines()[-1])
    found = {key: problem for key, problem in problems.items() if problem}
    assert all(problem.endswith((" 16 rows", " 17 rows", " 33 rows")) for problem in found.values())
    assert not [name for name in names if f"a product with {name}" not in found]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_verify_finds_each_bug(planted, kind, tmp_path, monkeypatch):
    """With a stored result of the self-test that it has passed."""
    library, _ = planted
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    monkeypatch.setenv("GGUF_SPEC_KERNELS", "auto")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_json(own_kernels.library_result("auto"), {"ok": True, "problem": ""})
    source = TALES / "tales-target-Q8_0.gguf"
    model = source if kind == "Q8_0" else tmp_path / f"{kind}.gguf"
    if kind == "F16":
        tiny.as_float16(source, model)
    elif kind != "Q8_0":
        quantize(source, model, kind)
    command = [sys.executable, "-m", "gguf_spec", "verify", "-m", model, "-d", "tales-draft"]
    command += ["--count", "1", "--draws", "50", "--minutes", "0.05", "--json"]
    done = children.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    faulty = {check["name"] for check in json.loads(done.stdout)["checks"] if check["faults"]}
    assert faulty & {"rows", "kernels"}


# Prints whether `verify` finds a fault in the kernels with each of the given mixtures of experts.
MIXTURES = """
import json, sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from gguf_spec.llama import own_kernels
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.verify import checks
own_kernels.decided.append(own_kernels.enter("auto"))
checks.long_text = lambda llm, n: n
found = []
for seed, path in enumerate(sys.argv[1:]):
    model = Context(Path(path), ContextOptions(n_ctx=256, threads=1)).sequences[0]
    tokens = np.random.default_rng(seed).integers(0, 250, 256).tolist()
    models = contextmanager(lambda: iter([(model, None)]))
    (check,) = checks.check_kernels(SimpleNamespace(tokenize=lambda n: tokens, models=models))
    found.append(not check.ok)
    model.close()
print(json.dumps(found))
"""


def found_in_mixtures(folder, library=None):
    """Return for which of 12 random mixtures of experts `verify` finds a fault."""
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    paths = []
    for seed in range(12):
        model = tiny.mixture(n_expert=(4, 8, 16)[seed % 3], n_ff=256, seed=seed + 100)
        paths.append(folder / f"{seed}.gguf")
        quantize(tiny.write(folder / "floats.gguf", model), paths[-1], "Q4_0")
    own = library or own_kernels.path_of_library()
    done = children.run(
        [sys.executable, "-c", MIXTURES, *paths],
        env=os.environ | {"GGUF_SPEC_KERNELS_LIBRARY": str(own)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_verify_finds_nothing_in_right_mixtures(tmp_path):
    """Rounding chooses other experts in some of them."""
    assert found_in_mixtures(tmp_path) == [False] * 12


@pytest.mark.slow
@pytest.mark.parametrize("bug", OF_EXPERTS, ids=lambda bug: bug[2])
def test_verify_finds_a_bug_of_experts_in_each_mixture(bug, tmp_path):
    library, _ = library_with([bug], tmp_path)
    assert found_in_mixtures(tmp_path, library) == [True] * 12
