"""What schemathesis makes of the server's own description: no 500, and no answer that the description does not know."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

import gguf_spec
from gguf_spec.server import serve_in_thread
from gguf_spec.server.openapi import describe
from tests.server.conftest import ask


@pytest.fixture(scope="module")
def small():
    with (
        gguf_spec.load("tales", threads=1, parallel=2) as llm,
        serve_in_thread(llm, max_tokens=4) as one,
    ):
        yield one


schema = schemathesis.openapi.from_dict(describe(("tales",), False))


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_500(case, small):
    case.call_and_validate(
        base_url=small.url,
        checks=[not_a_server_error, status_code_conformance, response_schema_conformance],
    )


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
