import llama_cpp
import numpy as np
import pytest

from gguf_spec.errors import InvalidOptionError, VocabularyMismatchError
from gguf_spec_compat import DraftModel
from tests.compat.test_llama import PROMPTS
from tests.support import tiny

Original = llama_cpp.llama.Llama


@pytest.fixture
def with_draft(pair):
    """Return a `llama_cpp.Llama` with a draft model."""
    made = []

    def make(draft):
        made.append(
            Original(
                pair[0],
                n_ctx=1024,
                n_threads=1,
                n_threads_batch=1,
                verbose=False,
                logits_all=True,
                draft_model=draft,
            )
        )
        return made[-1]

    yield make
    for llama in made:
        llama.draft_model.close()
        llama.close()


@pytest.mark.full
@pytest.mark.parametrize("drafter", ["text", "model"])
def test_the_greedy_text_stays_and_drafts_are_accepted(pair, theirs, with_draft, drafter):
    draft = DraftModel(pair[1] if drafter == "model" else None, target_path=pair[0], n_threads=1)
    llama = with_draft(draft)
    for prompt in PROMPTS:
        asked = {"max_tokens": 150, "temperature": 0}
        assert (
            llama(prompt, **asked)["choices"][0]["text"]
            == theirs(prompt, **asked)["choices"][0]["text"]
        )
    assert draft.n_drafted > 100
    assert draft.acceptance > 0.4


def test_it_is_a_draft_model_that_keeps_to_k():
    assert issubclass(DraftModel, llama_cpp.llama_speculative.LlamaDraftModel)
    draft = DraftModel(k=3)
    found = draft(np.array([5, 6, 7, 8, 9] * 4, dtype=np.intc))
    assert found.dtype == np.intc
    assert found.tolist() == [5, 6, 7]
    assert (
        draft(np.array([1, 2, 3], dtype=np.intc)).tolist() == []
    )  # another text: nothing is known of it
    for k in (-1, 65):
        with pytest.raises(InvalidOptionError):
            DraftModel(k=k)


def test_what_was_accepted_is_counted_and_learned():
    draft, tokens = DraftModel(k=4), [5, 6, 7, 8, 9] * 4
    assert draft(np.array(tokens, dtype=np.intc)).tolist() == [5, 6, 7, 8]
    tokens += [5, 6, 4]
    draft(np.array(tokens, dtype=np.intc))
    assert draft.n_accepted == 2
    assert draft.n_drafted >= 3
    always_right, tokens, longest = DraftModel(k=8), [5, 6, 7, 8, 9] * 4, []
    for _ in range(20):
        longest.append(len(always_right(np.array(tokens, dtype=np.intc))))
        tokens += [5, 6, 7, 8, 9]
    assert longest[0] < longest[-1] == 8
    always_wrong, tokens = DraftModel(k=1), [1, 2, 1]
    for i in range(60):  # what followed 1 never follows it again
        always_wrong(np.array(tokens, dtype=np.intc))
        tokens += [100 + i, 1]
    assert always_wrong.n_accepted == 0
    assert always_wrong.n_drafted < 20


def test_beyond_the_small_models_context_the_text_is_drafted_from(pair, with_draft):
    draft = DraftModel(pair[1], n_ctx=64, n_threads=1)
    llama = with_draft(draft)
    assert (
        llama("Once upon a time", max_tokens=150, temperature=0)["usage"]["completion_tokens"]
        == 150
    )
    assert draft._model.n_past <= 64


def test_models_that_cannot_draft(tmp_path, pair):
    with pytest.raises(VocabularyMismatchError):
        DraftModel(
            pair[1],
            target_path=tiny.write(tmp_path / "llama.gguf", tiny.llama(seed=1)),
            n_threads=1,
        )
