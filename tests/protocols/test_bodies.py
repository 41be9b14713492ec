"""Bodies as JSON: how many values they may have, and infinite numbers."""

import gc
import json

import pytest

from gguf_spec.protocols import bodies as protocol


@pytest.mark.parametrize(
    ("values", "is_taken"),
    [
        ("[" + "1," * 1500 + "1]", True),
        ("[" + "1," * 2100 + "1]", False),
        ("[" + "[]," * 350 + "[]]", True),
        ("[" + "[]," * 450 + "[]]", False),
        ("{" + ",".join(f'"{i}":1' for i in range(140)) + "}", True),
        ("{" + ",".join(f'"{i}":1' for i in range(170)) + "}", False),
        ('"' + '[{:,\\"' * 3000 + '"', True),
    ],
)
def test_what_counts_as_values(monkeypatch, values, is_taken):
    """The parser takes longer for an array or a field than for a number; texts do not count."""
    monkeypatch.setattr(protocol, "VALUES_MAX", 2_000)
    body = f'{{"x": {values}}}'.encode()
    if is_taken:
        assert protocol.parse(body) == json.loads(body)
    else:
        with pytest.raises(protocol.ApiError, match="more than 2,000 values"):
            protocol.parse(body)


def test_the_garbage_collector_does_not_look_through_a_body_while_it_is_parsed():
    found = []
    gc.callbacks.append(lambda phase, _: found.append(phase))
    try:
        data = protocol.parse(b'{"x": [' + b"[]," * 100_000 + b"[]]}")
        assert len(found) < 20 and len(data["x"]) == 100_001  # about 300 without
        with pytest.raises(protocol.ApiError):
            protocol.parse(b'{"x": [')
    finally:
        gc.callbacks.pop()
    assert gc.isenabled()


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"[[1e999]]", b'{"a": 1e999}'])
def test_numbers_that_are_infinite(number):
    is_plain = number[:1] not in b"[{"
    body = b'{"tools": %s, "text": "Infinity"}' % number
    if is_plain:
        assert protocol.parse(body)["tools"] in (float("inf"), -float("inf"))
    else:
        with pytest.raises(protocol.ApiError, match="tools contains a number"):
            protocol.parse(body)
