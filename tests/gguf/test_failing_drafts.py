"""A draft file with weights that are no numbers: the text is the plain one, with a note, in every mode and on the command line."""

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from tests.support import tiny

pytestmark = pytest.mark.failing_drafts
PROMPT = "the and of in the and of in the and of"
NOTE = "the model drafter failed and was switched off (FloatingPointError: its logits are not finite numbers)"


@pytest.fixture(scope="module", params=[np.nan, np.inf], ids=["nan", "inf"])
def broken(request, gguf_dir, tmp_path_factory):
    """A draft for `llama.gguf` whose last weights are all NaN, or whose products overflow."""
    metadata, tensors = tiny.llama(seed=1)
    return tiny.write(
        tmp_path_factory.mktemp("broken") / "draft.gguf",
        (
            metadata,
            tensors | {"output.weight": np.full_like(tensors["output.weight"], request.param)},
        ),
    )


@pytest.fixture(scope="module")
def llm(gguf_dir, broken):
    with gguf_spec.load(gguf_dir / "llama.gguf", draft=broken, threads=1, draft_texts="off") as one:
        yield one


@pytest.mark.few(6)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafter", ["model", "hybrid"])
@pytest.mark.parametrize(
    "mode",
    [{"k": 4, "adaptive": False}, {}],
    ids=["fixed", "adaptive"],
)
def test_the_text_is_the_plain_one(llm, mode, drafter, temperature):
    sampling = Sampling(temperature=temperature, seed=4, max_tokens=60)
    plain = llm.generate(PROMPT, sampling, speculation=Speculation(0))
    one = llm.generate(PROMPT, sampling, speculation=Speculation(**mode, drafter=drafter))
    assert one.text == plain.text or one.stats.n_near_ties
    assert one.stats.why_none == NOTE or mode.get("adaptive", True)
    assert "model" not in one.stats.drafters
    if drafter == "hybrid" and not mode.get("adaptive", True) and temperature == 0:
        assert one.stats.drafters["ngram"][0] > 0


@pytest.mark.parametrize("accept", ["rejection", "block"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_greedy_text_under_the_other_rules(llm, accept, adaptive):
    sampling = Sampling(temperature=0.0, max_tokens=60)
    one = llm.generate(
        PROMPT, sampling, speculation=Speculation(4, accept, drafter="model", adaptive=adaptive)
    )
    assert one.text == llm.generate(PROMPT, sampling, speculation=Speculation(0)).text
    assert one.stats.why_none == NOTE or adaptive


def test_adaptive_drafting_is_measured_without_the_draft(llm):
    """The first request measures the pair; a failing draft must not end it."""
    assert llm.profile.agreement == 0
    assert llm.profile.draft
    one = llm.generate(PROMPT, Sampling(temperature=0.0, max_tokens=100))
    assert len(one.tokens) == 100 or one.finish_reason == "stop"


def test_a_session_continues(llm, tmp_path):
    sampling = Sampling(temperature=0.0, max_tokens=20)
    first = llm.generate(PROMPT, sampling, speculation=Speculation(4, adaptive=False))
    llm.save_session(tmp_path / "one.session", {})
    llm.restore_session(tmp_path / "one.session")
    assert (
        llm.generate(PROMPT, sampling, speculation=Speculation(4, adaptive=False)).text
        == first.text
    )


def test_a_draft_for_llama_cpp_python_continues_the_text(gguf_dir, broken):
    from gguf_spec_compat import DraftModel

    with_draft = DraftModel(broken, 4, n_ctx=128, n_threads=1)
    text = np.array([5, 6, 7, 8] * 6, dtype=np.intc)
    assert with_draft(text).tolist()[:2] == [5, 6]
    assert with_draft(np.append(text, [5])).tolist()[:2] == [6, 7]
    with_draft.close()
