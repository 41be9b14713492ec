import dataclasses
import json
import math

import pytest

from gguf_spec import Chunk, Completion, Sampling, Speculation, Stats
from gguf_spec.errors import GgufSpecError, InvalidOptionError
from gguf_spec.options import K_MAX

NAN, INF = math.nan, math.inf
BAD = {
    "temperature": [-0.1, 1e39, NAN, INF, "0", None, True],
    "top_k": [-1, 1.5, "3", None, True],
    "top_p": [0, -0.5, 1.5, NAN, INF, "1", None],
    "min_p": [-0.1, 1.1, NAN, None],
    "repeat_penalty": [0, -1, 1e-300, 1e300, NAN, INF, None],
    "frequency_penalty": [1e39, NAN, INF, -INF, "1", None],
    "presence_penalty": [-1e39, NAN, INF, -INF, "1", None],
    "penalty_last_n": [-2, 1.0, None],
    "seed": [-1, 2**64, 1.5, "1", True],
    "think_budget": [-1, 1.5, "1", True],
    "max_tokens": [-1, 1.5, "5", True],
    "stop": ["", [""], ["a", ""], [b"a"], [3]],
    "typical_p": [0, 1.1, NAN, None],
    "top_n_sigma": [-1, 1e308, NAN, INF, "1"],
    "xtc_probability": [-0.1, 1.1, NAN, None],
    "xtc_threshold": [-0.1, 1.1, NAN, None],
    "dry_multiplier": [-0.1, 1e39, NAN, INF, None],
    "dry_base": [0.9, NAN, INF, None],
    "dry_allowed_length": [-1, 1.5, None],
    "dry_penalty_last_n": [-2, 1.0, None],
    "dry_sequence_breakers": ["", [""], [b"a"], 3, ["a"] * 51],
    "grammar": [3, b"root ::= [a]"],
    "json_schema": [],  # read when a request is made: see tests/gguf/test_grammar.py
    "stop_tokens": [[-1], [1.5], ["1"], [True], 3, None],
    "ignore_eos": [1, None, "yes"],
    "overflow": ["drop", None, True],
    "logprobs": [-1, 101, 1.5, "3", True],
    "logit_bias": [
        {-1: 1.0},
        {1: 1e39},
        [(1, 2)],
        None,
        {"a": 1.0},
        {1: NAN},
        {1: INF},
        {1: None},
        {1.5: 1.0},
        {True: 1.0},
    ],
}
GOOD = {
    "temperature": [0, 0.0, 1, 100.0],
    "top_k": [0, 1, 10**9],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 1, 0.5],
    "repeat_penalty": [0.5, 1, 2],
    "frequency_penalty": [-2, 0, 2.0],
    "presence_penalty": [-2, 0, 2.0],
    "penalty_last_n": [-1, 0, 10**6],
    "seed": [None, 0, 2**64 - 1],
    "think_budget": [None, 0, 10**9],
    "max_tokens": [None, 1, 10**9],
    "stop": [(), [], ["a"], ("a", "b")],
    "typical_p": [1e-9, 1],
    "top_n_sigma": [0, 1.5],
    "xtc_probability": [0, 1, 0.5],
    "xtc_threshold": [0, 1, 0.1],
    "dry_multiplier": [0, 0.8],
    "dry_base": [1, 1.75],
    "dry_allowed_length": [0, 2],
    "dry_penalty_last_n": [-1, 0, 10**6],
    "dry_sequence_breakers": [(), ("a", "\n")],
    "grammar": [None, 'root ::= "a"'],
    "json_schema": [None, {}, '{"type": "object"}', True],
    "stop_tokens": [(), (0, 5)],
    "ignore_eos": [True, False],
    "overflow": ["stop", "shift"],
    "logprobs": [None, 0, 100],
    "logit_bias": [{}, {0: -INF}, {5: 1, 7: -3.5}],
}


REFUSED = {field: values for field, values in BAD.items() if values}


@pytest.mark.parametrize(("field", "values"), REFUSED.items(), ids=REFUSED)
def test_a_value_out_of_range_is_named(field, values):
    for value in values:
        with pytest.raises(InvalidOptionError) as caught:
            Sampling(**{field: value})
        error = caught.value
        assert error.option == field
        assert str(error).startswith(f"{field} is ")
        assert "must be" in str(error)
        assert error.hint
        assert isinstance(error, GgufSpecError)
        assert isinstance(error, ValueError)


@pytest.mark.parametrize(("field", "values"), GOOD.items(), ids=GOOD)
def test_a_value_in_range_is_kept(field, values):
    for value in values:
        kept = getattr(Sampling(**{field: value}), field)
        assert kept == (tuple(value) if field == "stop" else value)


def test_every_field_is_checked():
    assert set(BAD) == set(GOOD) == {field.name for field in dataclasses.fields(Sampling)}


def test_a_grammar_and_a_schema_exclude_each_other():
    with pytest.raises(
        InvalidOptionError, match=r"json_schema is .* but must be omitted if there is a grammar"
    ):
        Sampling(grammar='root ::= "a"', json_schema={})


@pytest.mark.parametrize("accept", ["gumbel", "", None, 3])
def test_an_unknown_rule(accept):
    with pytest.raises(InvalidOptionError, match="coupled, rejection, block"):
        Speculation(accept=accept)


@pytest.mark.parametrize("options", [{"strict": "yes"}, {"strict": True, "accept": "block"}])
def test_strict_is_a_switch_of_the_rule_coupled(options):
    with pytest.raises(InvalidOptionError, match="strict"):
        Speculation(**options)


def test_sequences_of_any_kind_are_kept():
    one = Sampling(
        stop=(s for s in ["a"]), stop_tokens=(t for t in [5]), dry_sequence_breakers=iter("x")
    )
    assert (one.stop, one.stop_tokens, one.dry_sequence_breakers) == (("a",), (5,), ("x",))


def test_one_stop_string_needs_no_list():
    assert Sampling(stop="END").stop == ("END",)


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [({"temperature": 0}, True), ({"top_k": 1}, True), ({}, False), ({"temperature": 1e-9}, False)],
)
def test_greedy(sampling, greedy):
    assert Sampling(**sampling).greedy is greedy


@pytest.mark.parametrize("k", [-1, K_MAX + 1, 1.5, "4", None, True])
def test_k_out_of_range(k):
    with pytest.raises(InvalidOptionError, match=f"from 0 to {K_MAX}"):
        Speculation(k)


@pytest.mark.parametrize(
    "one",
    [
        Sampling(),
        Speculation(),
        Stats(),
        Chunk("", (), 0, 0),
        Completion("", (), "stop", 0, Stats()),
    ],
)
def test_frozen(one):
    field = dataclasses.fields(one)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, field, 1)


def test_rates():
    stats = Stats(n_generated=30, n_drafted=40, n_accepted=20, rounds=10, prompt_s=1.0, total_s=4.0)
    assert (stats.acceptance, stats.tokens_per_round, stats.tokens_per_s) == (0.5, 3.0, 10.0)


def test_rates_of_nothing_are_0():
    assert (Stats().acceptance, Stats().tokens_per_round, Stats().tokens_per_s) == (0, 0, 0)


def test_dicts_can_be_written_as_json():
    stats = Stats(n_generated=1, rounds=1, total_s=0.5)
    result = Completion("ä", (1, 2), "length", 7, stats)
    read = json.loads(json.dumps(result.to_dict()))
    assert read["tokens"] == [1, 2]
    assert read["stats"]["tokens_per_s"] == 2.0
    assert set(read) == {
        "text", "reasoning", "tokens", "finish_reason", "seed", "stats", "logprobs", "stop_string",
    }  # fmt: skip
    chunk = json.loads(
        json.dumps(Chunk("ab", (1,), 4, 1, "stop", (("a", True), ("b", False))).to_dict())
    )
    assert chunk["accepted_text"] == [["a", True], ["b", False]]


def test_a_gain_is_never_more_than_the_tokens_of_a_round():
    """With any cost table, a pass is never faster than one over a single token."""
    stats = Stats(n_generated=30, rounds=10, total_s=1.0, forecast_s=1.0, plain_s=50.0)
    assert (stats.predicted_speedup, stats.speedup) == (3.0, 3.0)
    assert (
        Stats(n_generated=9, rounds=10, total_s=1.0, forecast_s=1.0, plain_s=1.0).predicted_speedup
        == 1.0
    )


def test_a_completion_in_a_notebook():
    """Accepted text is green; text of the model never becomes markup."""
    shown = (("a<b>", False), ("&c", True))
    one = Completion("a<b>&c", (1, 2), "stop", 0, Stats(), accepted_text=shown)
    html = 'a&lt;b&gt;<span style="color: green">&amp;c</span>'
    assert one._repr_html_() == f'<pre style="white-space: pre-wrap">{html}</pre>'
    alone = Completion("<i>", (1,), "stop", 0, Stats())
    assert alone._repr_html_() == '<pre style="white-space: pre-wrap">&lt;i&gt;</pre>'
    assert "accepted_text" not in one.to_dict() and "accepted_text" not in repr(one)
    assert one == Completion("a<b>&c", (1, 2), "stop", 0, Stats())
