"""Answers as JSON, in parts."""

import json

import pytest

from gguf_spec.protocols import replies

VALUES = {
    "numbers": [*range(9000)],
    "objects": [{"a": [i, None, True], "b": {"ü": 1.5}} for i in range(3000)],
    "names": {f"k{i}": [i] * (i % 7) for i in range(5000)},
    "a large one between": [1, [*range(5000)], 2, {"a": {"b": [*range(5000)]}}, []],
    "nested": [json.loads("[" * 50 + "]" * 50)] * 300,
    "small": {"a": [], "b": {}, "c": "d"},
    "numbers as names": dict.fromkeys(range(3000)),
}


@pytest.mark.parametrize("name", VALUES)
def test_json_in_parts_is_the_same_json(name):
    """No call writes many values, as no other thread runs in it."""
    counts = []

    def write(value):
        counts.append(replies._n_values(value))
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    value = VALUES[name]
    whole = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for parts in (replies.json_parts(value, write), replies.json_parts(value)):
        is_same = "".join(parts) == whole  # pytest cannot show the difference of nested ones
        assert is_same
    assert max(counts) <= replies._MOST_VALUES + 1 and (len(counts) > 1) == (name != "small")


def test_an_iterator_is_written_as_an_array():
    value = {"a": iter([1, {"b": iter([])}]), "c": (2, iter("d"))}
    assert "".join(replies.json_parts(value)) == '{"a":[1,{"b":[]}],"c":[2,["d"]]}'


def test_an_array_that_is_empty_when_it_is_written_has_its_brackets():
    for value in (iter(()), {"a": iter(())}):
        text = "".join(replies.json_parts(value))
        assert text == ("[]" if not isinstance(value, dict) else '{"a":[]}')
