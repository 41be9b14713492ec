"""The rows of a batch without a cluster; where Ray is not installed, its check is replaced."""

import sys
import types

import numpy as np
import pytest

import gguf_spec
import gguf_spec_ray
from gguf_spec import Sampling, errors
from gguf_spec_ray import data


@pytest.fixture
def generate(tales, monkeypatch):
    """Return a function that makes a `Generate` of the bundled model."""
    monkeypatch.setattr(data, "load_on_node", lambda model, pull, options: tales)
    return lambda **given: gguf_spec_ray.Generate("tales", **given)


def test_rows_are_answered_as_by_generate(generate, tales):
    one = generate(sampling={"max_tokens": 8})
    batch = {
        "prompt": np.array(["Once", "The fox", "A king", "", None, "Once"], dtype=object),
        "messages": np.array([None] * 4 + [[{"role": "user", "content": "Hi", "name": None}]] + [None], dtype=object),
        "seed": np.array([1, np.nan, 2**53, 4, 5, 1]),
        "temperature": np.array([0.5, np.nan, -1, 1, 1, 0.5]),
        "max_tokens": np.array([np.nan, 3, 4, 4, 6, np.nan]),
        "stop": np.array([np.array([" "], dtype=object), None, None, None, None, None], dtype=object),
        "logit_bias": np.array([None, {"5": 1.0, "6": None}, None, None, None, None], dtype=object),
    }  # fmt: skip
    found = one(batch)
    assert set(found) == {*batch, *data._ANSWER}
    expected = tales.generate("Once", Sampling(seed=1, temperature=0.5, max_tokens=8, stop=(" ",)))
    assert (found["text"][0], found["seed"][0]) == (expected.text, 1)
    messages = [{"role": "user", "content": "Hi"}]
    expected = tales.generate(messages, Sampling(seed=5, temperature=1, max_tokens=6))
    assert (found["text"][4], found["completion_tokens"][4]) == (expected.text, 6)
    assert found["prompt_tokens"][4] == expected.stats.n_prompt
    assert (found["finish_reason"][1], found["completion_tokens"][1]) == ("length", 3)
    assert found["error"] == [
        "", "", "temperature is -1.0 but must be from 0 to a million. omit temperature to use its default.",
        "the prompt is empty. write a text to continue, such as 'Once upon a time'.", "", "",
    ]  # fmt: skip
    assert [found["finish_reason"][i] for i in (2, 3)] == ["error", "error"]
    assert found["text"][2] == ""


def test_a_row_without_a_seed_has_one_from_its_content(generate):
    one = generate(sampling=Sampling(max_tokens=4))
    rows = {"prompt": ["Once", "Once", "The"], "id": [1, 2, 3]}
    seeds = one(rows)["seed"]
    assert len(set(seeds)) == 3
    # Neither other rows nor the columns that only they fill change it.
    alone = one({"prompt": ["Once"], "id": [2], "seed": [np.nan], "top_k": [None]})
    assert alone["seed"] == [seeds[1]]
    assert alone["text"] == [one(rows)["text"][1]]
    assert generate(seed=1, sampling={"max_tokens": 4})(rows)["seed"] != seeds


@pytest.mark.parametrize(
    "row",
    [{"text": "Once"}, {"prompt": 3}, {"prompt": "a", "messages": [{}]}, {"messages": "Hi"}, {"messages": ["Hi"]}],
)  # fmt: skip
def test_rows_that_have_no_prompt(generate, row):
    found = generate()({name: [value] for name, value in row.items()})
    assert "must be" in found["error"][0]
    assert found["finish_reason"] == ["error"]


def test_an_empty_batch(generate):
    assert generate()({"prompt": np.array([], dtype=object)})["text"] == []


def test_wrong_options_before_the_model_is_loaded(generate, monkeypatch):
    monkeypatch.setattr(data, "load_on_node", lambda *_: pytest.fail("loaded"))
    with pytest.raises(errors.InvalidOptionError, match="fields of Sampling"):
        generate(sampling={"temprature": 1})
    with pytest.raises(errors.InvalidOptionError, match="top_p is 2"):
        generate(sampling={"top_p": 2})


def test_threads_follow_the_cpus_of_the_actor(monkeypatch):
    import gguf_spec.runtime.load

    given = []
    ray = types.SimpleNamespace(is_initialized=lambda: True)
    context = types.SimpleNamespace(get_assigned_resources=lambda: {"CPU": 3.5})
    ray.get_runtime_context = lambda: context
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(
        gguf_spec.runtime.load, "load", lambda model, **options: given.append(options)
    )
    data.load_on_node("tales", False, {"n_ctx": 5})
    data.load_on_node("tales", False, {"threads": 1})
    context.get_assigned_resources = lambda: {"CPU": 0.5}
    data.load_on_node("tales", False, {})
    ray.is_initialized = lambda: False
    data.load_on_node("tales", False, {})
    assert given == [{"threads": 3, "n_ctx": 5}, {"threads": 1}, {"threads": 1}, {"threads": None}]


def test_rows_of_a_batch_share_passes(monkeypatch):
    """With `parallel` the answers are those of one row at a time, errors in their places."""
    rows = {
        "prompt": ["Once", "", "The fox", "A king", "In the deep"],
        "temperature": [1, 1, -1, 0, 0.8],
    }
    found = []

    def load(model, pull, options):
        return gguf_spec.load(model, threads=1, n_ctx=128, **options)

    monkeypatch.setattr(data, "load_on_node", load)
    for parallel in (1, 3):
        one = gguf_spec_ray.Generate("tales", sampling={"max_tokens": 12}, parallel=parallel)
        found.append(one(rows))
        assert one._llm.parallel == parallel
        one._llm.close()
    assert found[0] == found[1]
    assert [bool(error) for error in found[0]["error"]] == [False, True, True, False, False]
