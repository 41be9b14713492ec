"""Requests of schemathesis from the server's own description: no 500, and only described answers.

schemathesis takes seconds to import and to make requests, so its tests are in a file that the quick run does not read.
"""

import pytest
import schemathesis
from hypothesis import settings

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.schema_checks import SETTINGS, check, schema_of
from tests.server.test_embeddings import files, several  # noqa: F401 -- fixtures

pytestmark = pytest.mark.full

EMBEDDINGS = ("/v1/embeddings", "/v1/rerank", "/rerank")


@pytest.fixture(scope="module")
def small():
    with (
        gguf_spec.load("tales", threads=1, parallel=2) as llm,
        serve_in_thread(llm, max_tokens=4) as one,
    ):
        yield one


schemathesis.serializer.alias("application/pdf", "application/octet-stream")
of_all = schema_of(("tales",))
of_ollama = schema_of(("tales",), lambda path: path.startswith("/api/"))
of_embeddings = schema_of(("bert.gguf", "rank.gguf", "tales"), EMBEDDINGS.__contains__)


@of_all.parametrize()
@settings(SETTINGS, max_examples=12)
def test_no_500(case, small):
    check(case, small)


@of_ollama.parametrize()
@settings(SETTINGS, max_examples=20)
def test_no_500_of_ollama(case, small):
    check(case, small)


@of_embeddings.parametrize()
@settings(SETTINGS, max_examples=30)
def test_no_500_of_embeddings(case, several):  # noqa: F811
    check(case, several)
