"""Requests of schemathesis from the server's own description: no 500, and only described answers."""

import pytest
from hypothesis import settings

import gguf_spec
from gguf_spec.server import serve_in_thread
from gguf_spec.server.openapi import describe
from tests.server.conftest import ask
from tests.server.schema_checks import SETTINGS, check, schema_of


@pytest.fixture(scope="module")
def small():
    with (
        gguf_spec.load("tales", threads=1, parallel=2) as llm,
        serve_in_thread(llm, max_tokens=4) as one,
    ):
        yield one


schema = schema_of(("tales",))


@pytest.mark.full
@schema.parametrize()
@settings(SETTINGS, max_examples=20)
def test_no_500(case, small):
    check(case, small)


def test_the_description(small):
    told = ask(small, path="/openapi.json").json()
    assert set(told["paths"]) >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/health",
        "/metrics",
    }
    assert "security" not in told
    assert describe(("m",), True)["security"] == [{"key": []}]
