"""LoRA adapters: their matrices are added to the weights; unsuitable files are refused before they crash llama.cpp."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import (
    InvalidOptionError,
    ModelNotFoundError,
    NotAModelError,
    UnsupportedModelError,
)
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import Adapter, ContextOptions, adapters
from gguf_spec.runtime.profile_files import ModelKey, read_profile, write_profile
from tests.support import children, tiny

ALPHA, RANK = 8.0, 4
CHANGED = ("blk.0.attn_q.weight", "blk.0.attn_v.weight", "blk.1.ffn_down.weight", "output.weight")
KIND = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": ALPHA,
}
METADATA, WEIGHTS = tiny.llama(seed=1, n_layer=2)


def matrices(names=CHANGED, rank=RANK, seed=5, weights=WEIGHTS):
    """A and B for each tensor, in numpy's order: W + scale * alpha / rank * B @ A."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(0, 0.2, shape).astype(np.float32)

    return {
        name: (normal(rank, weights[name].shape[1]), normal(weights[name].shape[0], rank))
        for name in names
    }


def write(path: Path, pairs=None, metadata=(), **tensors) -> Path:
    """Write an adapter; `tensors` come beside those of `pairs`."""
    pairs = matrices() if pairs is None else pairs
    ab = {
        f"{name}.lora_{end}": matrix
        for name, both in pairs.items()
        for end, matrix in zip("ab", both, strict=True)
    }
    nothing = dict.fromkeys(tiny.vocabulary())
    return tiny.write(
        path, (KIND, ab), metadata=nothing | dict(metadata), tensors=tensors.get("tensors", {})
    )


def merged(path: Path, *added):
    """Write the model with adapters added, each with its scale."""
    weights = {name: tensor.astype(np.float64) for name, tensor in WEIGHTS.items()}
    for pairs, scale in added:
        for name, (a, b) in pairs.items():
            weights[name] = weights[name] + scale * ALPHA / a.shape[0] * (
                b.astype(np.float64) @ a.astype(np.float64)
            )
    return tiny.write(
        path, (METADATA, {name: tensor.astype(np.float32) for name, tensor in weights.items()})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    tiny.write(folder / "model.gguf", (METADATA, WEIGHTS))
    write(folder / "lora.gguf")
    write(
        folder / "other.gguf",
        matrices(("blk.0.attn_q.weight", "blk.1.attn_output.weight"), rank=2, seed=6),
    )
    return folder


TOKENS = [40, 100, 7, 260, 33, 90]


def logits(path, *lora, **options):
    model = Context(
        path, ContextOptions(n_ctx=64, threads=1, extra_bufts=False, lora=adapters(lora), **options)
    ).sequences[0]
    try:
        return model.logits(TOKENS, len(TOKENS)).copy()
    finally:
        model.close()


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_it_is_the_model_with_the_matrices_added(folder, tmp_path, scale):
    plain, with_it = (
        logits(folder / "model.gguf"),
        logits(folder / "model.gguf", (folder / "lora.gguf", scale)),
    )
    expected = logits(merged(tmp_path / "merged.gguf", (matrices(), scale)))
    assert np.abs(plain - expected).max() > 1
    assert np.abs(with_it - expected).max() < 1e-3 * np.ptp(expected)


def test_several_are_added(folder, tmp_path):
    other = matrices(("blk.0.attn_q.weight", "blk.1.attn_output.weight"), rank=2, seed=6)
    expected = logits(merged(tmp_path / "merged.gguf", (matrices(), 0.5), (other, 2.0)))
    found = logits(folder / "model.gguf", (folder / "lora.gguf", 0.5), (folder / "other.gguf", 2))
    assert np.abs(found - expected).max() < 1e-3 * np.ptp(expected)
    twice = logits(folder / "model.gguf", folder / "lora.gguf", folder / "lora.gguf")
    expected = logits(merged(tmp_path / "twice.gguf", (matrices(), 2.0)))
    assert np.abs(twice - expected).max() < 1e-3 * np.ptp(expected)


def test_a_scale_of_0_adds_nothing(folder):
    assert np.array_equal(
        logits(folder / "model.gguf"), logits(folder / "model.gguf", (folder / "lora.gguf", 0))
    )


@pytest.mark.parametrize("size", [np.nan, 1e38, 1e30, 1e8])
def test_queries_that_are_not_finite_give_no_logits(folder, tmp_path, size):
    """As with llama.cpp's kernels, which multiply them with keys in 16 bits."""
    pairs = matrices(("blk.0.attn_q.weight",))
    a, b = pairs["blk.0.attn_q.weight"]
    path = write(
        tmp_path / "lora.gguf", {"blk.0.attn_q.weight": (a, np.full_like(b, size) * np.sign(b))}
    )
    assert not np.isfinite(logits(folder / "model.gguf", path)[1:]).any()


def test_an_adapter_without_alpha_uses_the_scale_only(folder, tmp_path):
    path = write(tmp_path / "lora.gguf", metadata={"adapter.lora.alpha": None})
    expected = logits(folder / "model.gguf", (folder / "lora.gguf", RANK / ALPHA))
    assert np.abs(logits(folder / "model.gguf", path) - expected).max() < 1e-3 * np.ptp(expected)


def test_token_embeddings(folder, tmp_path):
    """Their matrices are turned around: A has a row for each token."""
    rng = np.random.default_rng(2)
    a, b = (
        rng.normal(size=(len(tiny.TOKENS), RANK)).astype(np.float32),
        rng.normal(size=(tiny.N_EMBD, RANK)).astype(np.float32),
    )
    path = write(tmp_path / "lora.gguf", {"token_embd.weight": (a, b)})
    rows = WEIGHTS["token_embd.weight"] + ALPHA / RANK * (a @ b.T)
    expected = logits(
        tiny.write(
            tmp_path / "merged.gguf",
            (METADATA, WEIGHTS | {"token_embd.weight": rows.astype(np.float32)}),
        )
    )
    assert np.abs(logits(folder / "model.gguf", path) - expected).max() < 1e-3 * np.ptp(expected)


def test_extra_bufts_and_half_precision(folder, tmp_path):
    """Weights that llama.cpp repacks, and an adapter of float16."""
    path = write(
        tmp_path / "lora.gguf",
        {name: (a.astype(np.float16), b.astype(np.float16)) for name, (a, b) in matrices().items()},
    )
    expected = logits(folder / "model.gguf", folder / "lora.gguf")
    assert np.abs(logits(folder / "model.gguf", path) - expected).max() < 1e-2 * np.ptp(expected)


def load(folder, draft=None, **options):
    return gguf_spec.load(
        folder / "model.gguf", draft, **{"threads": 1, "extra_bufts": False} | options
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_text_with_any_draft(folder, temperature):
    sampling = Sampling(temperature=temperature, seed=4, max_tokens=50, ignore_eos=True)
    with load(folder, lora=folder / "lora.gguf") as llm:
        expected = llm.generate("Once upon the time", sampling).tokens
    with load(folder) as llm:
        assert llm.generate("Once upon the time", sampling).tokens != expected
    for draft, drafter, draft_lora in (
        ("ngram", "auto", ()),
        ("model.gguf", "hybrid", ()),
        ("model.gguf", "model", folder / "lora.gguf"),
    ):
        path = draft if draft == "ngram" else folder / draft
        speculation = Speculation(k=4, drafter=drafter, adaptive=False)
        with load(
            folder, path, speculation=speculation, lora=folder / "lora.gguf", draft_lora=draft_lora
        ) as llm:
            result = llm.generate("Once upon the time", sampling)
            assert result.tokens == expected
            if draft_lora:  # the draft is the target then
                assert result.stats.acceptance > 0.9


def test_a_draft_has_its_own(folder):
    with (
        load(folder, folder / "model.gguf", lora=folder / "lora.gguf") as llm,
        llm.models() as (target, draft),
    ):
        assert ([a.path for a in target.options.lora], draft.options.lora) == (
            [folder / "lora.gguf"],
            (),
        )
        assert np.abs(target.logits(TOKENS, 1) - draft.logits(TOKENS, 1)).max() > 0.1
    with (
        load(folder, folder / "model.gguf", draft_lora=[(folder / "lora.gguf", 0.5)]) as llm,
        llm.models() as (target, draft),
    ):
        assert (target.options.lora, draft.options.lora) == (
            (),
            (Adapter(folder / "lora.gguf", 0.5),),
        )


def test_profiles_are_kept_apart(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from gguf_spec.speculative.profile import DEFAULT_PROFILE

    def loadable(*lora):
        return ModelKey(
            ModelFile(folder / "model.gguf"), ContextOptions(threads=1, lora=adapters(lora))
        )

    assert write_profile(loadable((folder / "lora.gguf", 0.5)), None, DEFAULT_PROFILE)
    assert read_profile(loadable((folder / "lora.gguf", 0.5)), None) is not None
    half = (folder / "lora.gguf", 0.5)
    for other in (
        (),
        (folder / "lora.gguf",),
        ((folder / "other.gguf", 0.5),),
        (half, folder / "other.gguf"),
    ):
        assert read_profile(loadable(*other), None) is None
    assert read_profile(loadable(), loadable((folder / "lora.gguf", 0.5))) is None


@pytest.mark.full
def test_memory_is_given_back(folder):
    """Loaded and closed many times: adapters go with their model."""
    code = (
        "import sys, resource\nfrom pathlib import Path\nfrom gguf_spec.llama.options import ContextOptions, Adapter\n"
        "from gguf_spec.llama.context import Context\n"
        "options = ContextOptions(n_ctx=64, threads=1, extra_bufts=False, lora=(Adapter(Path(sys.argv[2])), Adapter(Path(sys.argv[2]), 0.5)))\n"
        "def once():\n    model = Context(Path(sys.argv[1]), options).sequences[0]\n    model.logits([1, 2], 1)\n    model.close()\n    model.close()\n"
        "for _ in range(20): once()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for _ in range(100): once()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    child = children.run(
        [sys.executable, "-c", code, folder / "model.gguf", folder / "lora.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert int(child.stdout) < 20_000 * (1024 if sys.platform == "darwin" else 1)


# ---- refusals


def refused(folder, path, *said, kind=UnsupportedModelError):
    with pytest.raises(kind) as caught:
        load(folder, lora=path)
    for words in said:
        assert words in str(caught.value)
    assert caught.value.hint.endswith(".")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"general.type": "model"}, "is not an adapter but of type 'model'"),
        ({"general.type": None}, "is not an adapter but of type 'model'"),
        ({"general.type": 7}, "is not an adapter but of type 7"),
        ({"adapter.type": None}, "is an adapter of type None, not 'lora'"),
        ({"adapter.type": "control_vector"}, "of type 'control_vector'"),
        (
            {"general.architecture": "qwen2"},
            "was made for the architecture 'qwen2', but model.gguf has 'llama'",
        ),
        ({"general.architecture": 3}, "was made for the architecture 3"),
        ({"adapter.lora.alpha": 8}, "alpha 8 of type u32, not a number of type f32"),
        (
            {"adapter.lora.alpha": gguf.GGUFValue(8.0, gguf.GGUFValueType.FLOAT64)},
            "alpha 8.0 of type f64",
        ),
        ({"adapter.lora.alpha": float("nan")}, "alpha nan"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "is an activated LoRA"),
    ],
)
def test_metadata_of_an_adapter_is_checked(folder, tmp_path, metadata, said):
    refused(folder, write(tmp_path / "lora.gguf", metadata=metadata), "lora.gguf ", said)


def odd(**changes):
    pairs = matrices()
    name = changes.pop("name", "blk.0.attn_q.weight")
    a, b = (
        pairs[name]
        if name in pairs
        else (np.ones((RANK, 64), np.float32), np.ones((64, RANK), np.float32))
    )
    return pairs | {name: (changes.get("a", a), changes.get("b", b))}


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({}, "does not change any weights"),
        (
            odd(name="blk.9.attn_q.weight"),
            "changes blk.9.attn_q.weight, which model.gguf does not have",
        ),
        (
            odd(a=ones(RANK, 32)),
            "contains matrices of 32 x 4 and 4 x 64 for blk.0.attn_q.weight, which is 64 x 64 in model.gguf",
        ),
        (odd(b=ones(96, RANK)), "contains matrices of 64 x 4 and 4 x 96 for blk.0.attn_q.weight"),
        (odd(b=ones(64, 3)), "has the ranks 4 and 3 for blk.0.attn_q.weight"),
        (
            odd(a=ones(2, RANK, 64), b=ones(2, 64, RANK)),
            "contains matrices of 64 x 4 x 2 and 4 x 64 x 2",
        ),
        (odd(a=ones(2, RANK, 64)), "contains matrices of 64 x 4 x 2 and 4 x 64 for"),
        (odd(b=ones(3, 64, RANK)), "contains matrices of 64 x 4 and 4 x 64 x 3 for"),
        (
            {"token_embd.weight": (ones(len(tiny.TOKENS), 3), ones(64, RANK))},
            "has the ranks 3 and 4 for token_embd.weight",
        ),
        (
            {"token_embd.weight": (ones(RANK, 64), ones(len(tiny.TOKENS), RANK))},
            "for token_embd.weight, which is 64 x 275 in model.gguf",
        ),
    ],
)
def test_matrices_that_do_not_fit(folder, tmp_path, pairs, said):
    refused(folder, write(tmp_path / "lora.gguf", pairs), said)


def test_one_matrix_of_a_pair_and_unknown_tensors(folder, tmp_path):
    half = write(tmp_path / "half.gguf", tensors={"blk.0.attn_q.weight.lora_b": None})
    refused(folder, half, "only one of the two matrices for blk.0.attn_q.weight")
    refused(
        folder,
        write(tmp_path / "strange.gguf", tensors={"blk.0.attn_q.weight": ones(64, 64)}),
        "contains the tensor blk.0.attn_q.weight",
    )
    passed = write(tmp_path / "norm.gguf", tensors={"blk.0.attn_norm.weight": ones(64)})
    assert np.array_equal(
        logits(folder / "model.gguf", passed), logits(folder / "model.gguf", folder / "lora.gguf")
    )


def test_invalid_files(folder, tmp_path):
    refused(folder, tmp_path / "none.gguf", "none.gguf", kind=ModelNotFoundError)
    (tmp_path / "cut.gguf").write_bytes((folder / "lora.gguf").read_bytes()[:-500])
    refused(folder, tmp_path / "cut.gguf", "cut short", kind=NotAModelError)
    refused(folder, folder / "model.gguf", "model.gguf is not an adapter but of type 'model'")
    data = (folder / "lora.gguf").read_bytes()
    (tmp_path / "half.gguf").write_bytes(data[:-6000] + bytes(6000))
    refused(folder, tmp_path / "half.gguf", "zeros in place of data", kind=NotAModelError)


@pytest.mark.parametrize(
    "given",
    [
        [("a", "b")],
        [("a", 1, 2)],
        [("a", float("nan"))],
        [("a", float("inf"))],
        [("a", -1e9)],
        [3],
    ],
)
def test_what_is_given_is_checked(given):
    with pytest.raises(InvalidOptionError, match="draft_lora is"):
        adapters(given, "draft_lora")


def test_what_can_be_given():
    one = Adapter(Path("a").absolute())
    assert adapters("a") == adapters(Path("a")) == adapters(["a"]) == adapters([("a", 1)]) == (one,)
    assert adapters(["a", (Path("a:b"), 2)]) == (one, Adapter(Path("a:b").absolute(), 2.0))


def test_an_adapter_for_no_draft(folder):
    for draft in (None, "ngram"):
        with pytest.raises(
            InvalidOptionError,
            match=r"no draft model is loaded for the adapter lora\.gguf\.",
        ):
            load(folder, draft, draft_lora=folder / "lora.gguf")


# What our checks keep from llama.cpp: loaded there without them, in a child.
DIES = (
    "import sys\nfrom pathlib import Path\nfrom gguf_spec.llama import context as _context\nfrom gguf_spec.errors import UnsupportedModelError\nfrom gguf_spec.llama.options import ContextOptions, Adapter\n"
    "if sys.argv[3] == 'unchecked': _context.check_adapter = lambda *_: None\n"
    "try:\n    model = _context.Context(Path(sys.argv[1]), ContextOptions(n_ctx=64, threads=1, extra_bufts=False, lora=(Adapter(Path(sys.argv[2])),))).sequences[0]\n"
    "except UnsupportedModelError as error:\n    print(error)\nelse:\n    print(model.logits([1, 2, 3], 1).shape)\n"
)
FATAL = {
    "alpha is a whole number": (write, {"metadata": {"adapter.lora.alpha": 8}}, False),
    "a type that is a number": (write, {"metadata": {"general.type": 7}}, False),
    "ranks of token embeddings": (
        write,
        {"pairs": {"token_embd.weight": (ones(len(tiny.TOKENS), 3), ones(64, RANK))}},
        False,
    ),
    "experts where there are none": (
        write,
        {"pairs": odd(a=ones(2, RANK, 64), b=ones(2, 64, RANK))},
        False,
    ),
    "embeddings that are the output too": (
        write,
        {"pairs": {"token_embd.weight": (ones(len(tiny.TOKENS), RANK), ones(64, RANK))}},
        True,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("make", "what", "tied"), FATAL.values(), ids=FATAL)
def test_what_would_end_the_process(folder, tmp_path, make, what, tied):
    path, model = make(tmp_path / "lora.gguf", **what), folder / "model.gguf"
    if tied:
        model = tiny.write(
            tmp_path / "tied.gguf", (METADATA, WEIGHTS), tensors={"output.weight": None}
        )
    command = [sys.executable, "-c", DIES, model, path]
    runs = [
        children.run([*command, how], capture_output=True, text=True, check=False)
        for how in ("checked", "unchecked")
    ]
    assert (runs[0].returncode, runs[0].stderr) == (0, "")
    assert runs[0].stdout.startswith("lora.gguf ")
    assert runs[1].returncode < 0, "llama.cpp copes with it now"
