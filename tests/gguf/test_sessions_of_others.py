"""A session's caches belong to the models that computed them: other weights of the same shape and vocabulary must not get them."""

import pytest

import gguf_spec
from gguf_spec import Sampling

SAID = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "a cat and a dog"


def load(gguf_dir, target, draft):
    return gguf_spec.load(
        gguf_dir / f"{target}.gguf",
        gguf_dir / f"{draft}.gguf" if draft else "none",
        threads=1,
        n_ctx=128,
    )


@pytest.fixture(scope="module")
def session(gguf_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("sessions") / "one"
    with load(gguf_dir, "llama", "twin") as llm:
        tokens = llm.tokenize(PROMPT)
        said = [*tokens, *llm.generate_tokens(tokens, SAID).tokens]
        llm.save_session(path, {"about": "animals"})
    return path, said


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("cousin", "twin"),
        ("llama", "cousin"),
        ("cousin", "cousin"),
        ("cousin", None),
        ("llama", None),
    ],
)
def test_a_session_of_another_model_is_refused(gguf_dir, session, target, draft):
    path, said = session
    with load(gguf_dir, target, draft) as llm:
        data, why_not = llm.restore_session(path)
        assert data == {"about": "animals"}
        assert "other models" in why_not
        with llm.models() as models:
            assert all(model.cached == [] for model in filter(None, models))
        after = llm.generate_tokens(said, SAID).tokens
        llm.forget()
        assert llm.generate_tokens(said, SAID).tokens == after


def test_the_same_models_get_it_back(gguf_dir, session):
    path, said = session
    with load(gguf_dir, "llama", "twin") as llm:
        assert llm.restore_session(path)[1] == ""
        with llm.models() as (target, _):
            assert target.cached == said[: target.n_past]
            assert target.n_past >= len(said) - 1
