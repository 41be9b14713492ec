"""The outcome of each of some thousand bodies is the recorded one."""

import gzip
import json

import jsonschema_rs
import pytest

from gguf_spec.server.openapi import describe
from tests.server import request_bodies

pytestmark = pytest.mark.full

PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
# Fields that may be refused where each by itself is as described: for another field, or as they hold text in a form of its own.
TOGETHER = {
    "stream_options", "echo", "response_format", "grammar", "tool_choice", "tools", "top_logprobs", "max_tokens", "max_completion_tokens",
    "speculation.strict", "messages[1].tool_calls[0].function.arguments", "messages[3].tool_calls[0].function.arguments",
    "messages[3].tool_calls[1].function.arguments", "best_of", "n", "suffix", None,
}  # fmt: skip


def test_outcomes_are_those_recorded():
    single, several = json.loads(gzip.decompress(request_bodies.RECORD.read_bytes()))
    cases = list(request_bodies.bodies())
    found = list(request_bodies.outcomes(cases, keep=4))
    assert len(found) == len(single) > 5000
    wrong = [
        (case, was, now) for case, was, now in zip(cases, single, found, strict=True) if was != now
    ]
    assert not wrong, f"{len(wrong)}, the first {str(wrong[0])[:2000]}"
    refused = [isinstance(one, list) for one in request_bodies.outcomes(request_bodies.pairs())]
    assert refused == several


def test_errors_are_short():
    longest = max(
        len(json.dumps(one))
        for one in request_bodies.outcomes(request_bodies.bodies())
        if isinstance(one, list)
    )
    assert longest < 2000


def test_bodies_as_described_are_accepted():
    """Else the description allows more than is read; it may allow less, such as null for a field that is left out."""
    read = {}
    for kind, path in PATHS.items():
        content = describe(("m",), False)["paths"][path]["post"]["requestBody"]["content"]
        read[kind] = jsonschema_rs.Draft202012Validator(content["application/json"]["schema"])
    n_described = 0
    for kind, most, body in request_bodies.bodies():
        try:
            described = read[kind].is_valid(json.loads(body, parse_float=_fraction))
        except (ValueError, RecursionError):
            continue
        found = request_bodies.outcome(kind, most, body)
        n_described += described
        if described and isinstance(found, list):
            assert found[3] in TOGETHER, (body[:500], found)
    assert n_described > 200


def _fraction(text):
    """A number; JSON schema counts 2.0 as an integer, the server does not."""
    if float(text).is_integer():
        raise ValueError(text)
    return float(text)
