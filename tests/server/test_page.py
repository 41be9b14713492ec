"""The page at `/` and the headers it comes with."""

import base64
import hashlib
import re

import pytest

from gguf_spec.server import _app
from tests.server.conftest import ask


@pytest.mark.skipif(not _app._PAGE.exists(), reason="there is no page yet")
def test_the_page(server):
    reply = ask(server, path="/")
    html = reply.body.decode()
    headers = {name.lower(): value for name, value in reply.headers.items()}
    assert reply.status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    for script in re.findall(r"<script\b[^>]*>(.*?)</script>", html, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", html), "the policy forbids handlers in attributes"
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", html), "a request to somewhere else"
