"""The sampler of the kernels' library chooses as NumPy's rule does, bit for bit; so do its exp, its log and its sums."""

import ctypes
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, arrays
from gguf_spec.arrays import exp, log, total
from gguf_spec.grammar.token_grammar import Grammar
from gguf_spec.llama import own_kernels
from gguf_spec.sampling import chain, native, rng
from tests.support import children
from tests.support.sampled_rows import differences, tree_differences

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "build"))
import _llama_wheel
import build_kernels

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
SMALL, LARGE = [1, 2, 9, 63, 70, 300, 700, 2049], [4096, 49_152, 152_064]
# What entry.cpp does for one instruction set, without llama.cpp.
ALONE = """
#include "sampling.h"
namespace alone { extern const Sampling sampling; }
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int64_t gguf_spec_sampling_bytes(int64_t n_vocab) { return 64 * n_vocab; }
EXPORT int gguf_spec_sample(Rows * const * rows, int n) { for (int i = 0; i < n; i++) alone::sampling.sample(*rows[i]); return 1; }
EXPORT void gguf_spec_grow(Tree * tree, const uint8_t * texts, const int64_t * ends, int64_t n) { alone::sampling.grow(*tree, texts, ends, n); }
EXPORT int32_t gguf_spec_walk(Walk * walk) { return alone::sampling.walk(*walk); }
EXPORT void gguf_spec_sampling_compute(int what, double * values, int64_t n) { alone::sampling.compute(what, values, n); }
"""
# Mistakes: a piece of sampling.cpp, and what stands there instead.
BUGS = [
    ("power * rest + 1 / 362880.;", "power * rest + 1 / 362881.;"),
    ("h ^= h >> 16;", "h ^= h >> 17;"),
    ("hash(id, keys[0], keys[1]) * 4294967296.0", "hash(id, keys[0], keys[0]) * 4294967296.0"),
    ("if (one > best || (one == best && i < at))", "if (one > best + 0.1)"),
    ("* scale + (31.05f - log2_h)", "* scale + (29.0f - log2_h)"),
    ("old > 0 ? old / chain.repeat", "old >= 1 ? old / chain.repeat"),
    ("std::max(0, all - chain.last_n)", "std::max(0, all - chain.last_n + 1)"),
    ("* chain.frequency - chain.presence", "* chain.frequency + chain.presence"),
    ("if (has(chain.ends[j])) change", "if (j && has(chain.ends[j])) change"),
    ("x[chain.bias_ids[j]] + chain.biases[j]", "x[chain.bias_ids[j]] + chain.biases[0]"),
    ("- rows.dry[j]", "- rows.dry[0]"),
    ("std::max(LEAST, maxima[n_maxima - k])", "std::max(LEAST, maxima[n_maxima - k / 2 - 1])"),
    ("bits_of<uint32_t>(0.0f - x)", "bits_of<uint32_t>(-x)"),
    ("x[i] >= sight", "x[i] > best - 1"),
    ("< limits.top_p * mass) i++;", "<= limits.top_p * mass) i++;"),
    ("m = std::min(m, i + 1);", "m = std::min(m, i);"),
    ("(double) at(m - 1) < lowest", "(double) at(m - 1) <= lowest"),
    ("(double) at(0) + limits.log_min_p", "(double) best + limits.log_min_p"),
    ("- b >= FAINT)", "- b >= -2)"),
    ("<= p * whole) i++;", "< p * whole * 0.99) i++;"),
    ("(one == other && i < j)", "(one == other && i > j)"),
    ("!(sum >= p * whole * (1 + CLEAR))", "!(sum >= p * whole * 0.5)"),
    ("typical(is_cut ? m : above(floor)", "typical(is_cut ? m : above(-INF)"),
    ("x[ids[i]] <= x[ids[stays]]", "x[ids[i]] < x[ids[stays]]"),
    ("masses[i] < least || i == stays", "masses[i] < least"),
    ("i <= 397; i++) {", "i <= 396; i++) {"),
    ("keys[4] % 0xFFFFFFFFu", "keys[3] % 0xFFFFFFFFu"),
    ("chain.xtc_threshold * total(left.n,", "chain.xtc_threshold * total(left.n - 1,"),
    ("&& is_lost(own + noise)) return true;", ") {}"),
    ("std::fabs(own - (float) limit) < noise || ", ""),
    ("|| is_lost_above((float) (limit + chain.noise), token, own - noise)", ""),
    ("floor = (float) (limit - chain.noise);", "floor = (float) limit;"),
    ("std::max(floor, limit)", "limit"),
    ("choose(chain.tight, now)", "choose(chain.usual, now)"),
    ("filter(chain.loose, best, floor)", "filter(chain.usual, best, floor)"),
    ("is_lost(own - noise)", "is_lost(own)"),
    ("largest(std::min<int64_t>(chain.n_top, n))", "largest(std::min<int64_t>(1, n))"),
    ("token != rows.draft[i]) return;", "token == rows.draft[i]) return;"),
    ("row.restore();\n        row.x = given;", "row.x = given;"),
    ("(some >> j & (uint32_t) (one > -INF))", "(some >> j & 1)"),
    ("allowed + i / 8, (m + 7) / 8);", "allowed + i / 8, m / 8);"),
    ("restore();\n        x = masked;", "x = masked;"),
    ("row.x = given;\n        if", "if"),
    ("if (rows.masks && best == -INF)", "if (false)"),
    ("if (has(chain.ends[j]) && allowed[chain.ends[j] / 8] >> chain.ends[j] % 8 & 1)", "if (has(chain.ends[j]))"),
    ("i < tree.firsts[at + 1]; i++)", "i < std::min(tree.firsts[at] + 1, tree.firsts[at + 1]); i++)"),
    ("tree.depths[next] > tree.depths[i]", "tree.depths[next] >= tree.depths[i]"),
    ("below < next; below = tree.nexts[below])", "below < next; below = next)"),
    ("tree.longests[at] <= w.longer_than", "tree.longests[at] < w.longer_than"),
    ("w.used[from] = 1;", ""),
    ("for (int j = 1; j < BLOCK; j++) sum += lanes[j];", "for (int j = BLOCK - 1; j; j--) sum += lanes[j];"),
]  # fmt: skip


@pytest.fixture(scope="module")
def library():
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    return native.functions(own_kernels.library())


@pytest.fixture
def always_fixed(monkeypatch):
    """Use the arithmetic with fixed bits for each choice, not only for those that are not clear."""
    for module in (arrays, chain, rng):
        monkeypatch.setattr(module, "CLEAR", np.inf)


def compute(library, what, values):
    found = np.array(values, dtype=np.float64)
    library.compute(what, found.ctypes.data, len(found))
    return found


def test_exp_log_and_sums_have_the_same_bits(library):
    random = np.random.default_rng(1)
    down = np.concatenate(
        [-random.exponential(50, 20_011), [0.0, -0.0, -708.0, -708.1, -1e300, -np.inf]]
    )
    assert compute(library, 0, down).tobytes() == exp(down).tobytes()
    up = np.concatenate([np.exp(15 * random.normal(size=20_011)), [1.0, 0.5, 2.0**-64, 1e300]])
    assert compute(library, 1, up).tobytes() == log(up).tobytes()
    for n in (1, 2, 63, 64, 65, 128, 1000, 49_152):
        values = random.normal(size=n)
        assert compute(library, 2, values)[0] == total(values)


def test_exp_and_log_are_those_of_numpy_up_to_one_bit():
    random = np.random.default_rng(2)
    down, up = -random.exponential(50, 20_000), np.exp(15 * random.normal(size=20_000))
    assert exp(down) == pytest.approx(np.exp(down), rel=3e-16, abs=1e-300)
    assert log(up) == pytest.approx(np.log(up), rel=3e-16)
    assert exp([0.0, -np.inf, -1e9]).tolist() == [1, 0, 0]
    assert total(np.ones(0)) == 0


@pytest.mark.parametrize(("sizes", "n"), [(SMALL, 600), (LARGE, 12)], ids=["small", "large"])
def test_choices_are_those_of_the_rule(library, sizes, n):
    n_rows, found = differences(library, 1, n, sizes)
    assert n_rows > n
    assert not found, found[0]


def test_choices_are_those_of_the_rule_with_fixed_bits(library, always_fixed):
    assert not differences(library, 2, 300, SMALL)[1]


def test_a_tree_of_tokens_has_those_that_an_automaton_accepts(library):
    found = tree_differences(library, 1, 200)
    assert not found, found[0]


@pytest.mark.slow
def test_a_million_rows(library):
    n_rows = 0
    for seed in range(100):
        for n, sizes in ((3400, SMALL), (20, LARGE)):
            more, found = differences(library, 100 + seed, n, sizes)
            n_rows += more
            assert not found, found[0]
    assert n_rows > 1_000_000


# ---- without llama.cpp: the source compiled alone


def compiled(folder, sources=build_kernels.SOURCES, flags=()):
    """Compile the sampler alone, for any processor; return its functions."""
    (folder / "alone.cpp").write_text(ALONE)
    flags = [*build_kernels.FLAGS, *build_kernels.OF_FILE["sampling"], *flags, "-DISA=alone"]
    files = [str(sources / "sampling.cpp"), str(folder / "alone.cpp"), f"-I{sources}"]
    command = [*_llama_wheel.compiler_command("CXX"), *flags, "-shared", *files]
    children.run([*command, "-o", str(folder / "alone.so")], check=True)
    return native.Library(ctypes.CDLL(str(folder / "alone.so")))


@pytest.fixture
def compiler():
    if sys.platform == "win32" or not shutil.which(_llama_wheel.compiler_command("CXX")[0]):
        pytest.skip("there is no compiler")


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_other_instructions_give_the_same_bits(tmp_path):
    """Without vectors of the processor's best kind: what a compiler for another processor makes of the source."""
    library = compiled(tmp_path)
    assert not differences(library, 3, 400, SMALL)[1]
    assert not differences(library, 3, 6, LARGE)[1]
    assert not tree_differences(library, 3, 200)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0])
def test_the_source_has_the_place_of_a_bug(bug):
    text = (build_kernels.SOURCES / "sampling.cpp").read_text(encoding="utf-8")
    assert text.count(bug[0]) >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("compiler", "always_fixed")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0])
def test_a_bug_is_noticed(bug, tmp_path):
    sources = Path(shutil.copytree(build_kernels.SOURCES, tmp_path / "kernels"))
    text = (sources / "sampling.cpp").read_text(encoding="utf-8")
    (sources / "sampling.cpp").write_text(text.replace(*bug, 1), encoding="utf-8")
    library = compiled(tmp_path, sources, ["-O1"])
    found = tree_differences(library, 1, 300) or differences(library, 1, 2000, SMALL)[1]
    found = found or differences(library, 1, 30, LARGE)[1]
    down = np.linspace(-30, 0, 10_000)
    assert found or (compute(library, 0, down) != exp(down)).any()


# ---- whole texts


@pytest.mark.few(2)
@pytest.mark.parametrize(("parallel", "most"), [(1, 20_000), (3, 20_000), (1, -1), (1, 500)])
def test_texts_are_those_without_the_library(library, monkeypatch, parallel, most):
    """Drafts, near ties, penalties of long texts and log-probabilities; and each request used the library.

    So do grammars whose masks take too much work, and those of which some do.
    """
    monkeypatch.setattr(Grammar, "mask_work", most)
    schema = {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2}
    ways = [
        {"temperature": 0.0},
        {},
        {"top_k": 0, "top_p": 0.9, "logprobs": 3},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.02, "repeat_penalty": 1.2, "penalty_last_n": -1},
        {"top_n_sigma": 1.0, "presence_penalty": 0.5, "ignore_eos": True},
        {"dry_multiplier": 0.8, "logit_bias": {5: -1.0}},
        {"json_schema": schema, "logprobs": 2},
        {"json_schema": schema, "temperature": 0.0, "ignore_eos": True},
        {"grammar": 'root ::= ([a-z]{1,4} " ")+ "."', "top_k": 0, "dry_multiplier": 0.8},
    ]
    asked = []

    def texts():
        with gguf_spec.load(TALES / "tales-target-Q8_0.gguf", "ngram", parallel=parallel) as llm:
            options = [Sampling(seed=3, max_tokens=40, **way) for way in ways]
            found = llm.generate_many(["Once upon a time there was"] * len(ways), options)
            return [(one.text, one.tokens, repr(one.logprobs)) for one in found]

    def counted(*arguments):
        asked.append(arguments)
        return library

    monkeypatch.setattr(native, "functions", counted)
    found = texts()
    assert len(asked) == len(ways)
    monkeypatch.setattr(native, "functions", lambda _: None)
    assert texts() == found
