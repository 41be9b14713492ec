"""The table of llama-server's routes in docs/server-apis.md against a real server."""

import re
from pathlib import Path

from tests.server.conftest import ask

PAGE = (Path(__file__).parents[2] / "docs" / "server-apis.md").read_text(encoding="utf-8")
TABLE = re.search(r"(?s)\n## Compared with llama-server\n(.*?)(?:\n## |\Z)", PAGE)[1]


def test_routes_that_are_missing_and_routes_that_are_there(server):
    rows = [row.split("|") for row in TABLE.splitlines() if row.startswith("| `")]
    missing = [row[1] for row in rows if "Missing" in row[2]]
    paths = re.findall(r"`(?:POST )?(/[\w./-]+)`?", " ".join(missing))
    assert len(paths) > 12
    # those with another method here
    found = {path for path in paths if ask(server, "POST", path, {}).status not in (404, 405)}
    assert found == set()
    there = " ".join(row[1] for row in rows if "The same path" in row[2])
    for path in re.findall(r"`(/[\w./]+)`", there):
        assert ask(server, path=path).status in (200, 405), path


# Those that tools/server/server.cpp of the pinned llama.cpp registers.
THEIRS = [
    "/health",
    "/v1/health",
    "/metrics",
    "/props",
    "/models",
    "/v1/models",
    "/completion",
    "/completions",
    "/v1/completions",
    "/chat/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/control",
    "/v1/responses",
    "/responses",
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
    "/v1/messages",
    "/infill",
    "/embedding",
    "/embeddings",
    "/v1/embeddings",
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/chat/completions/input_tokens",
    "/v1/chat/completions/input_tokens",
    "/responses/input_tokens",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/lora-adapters",
    "/slots",
    "/slots/ID",
    "/v1/stream",
    "/v1/streams/lookup",
    "/cors-proxy",
    "/tools",
    "/models/load",
    "/models/unload",
    "/models/sse",
]


def test_the_table_has_each_route_of_llama_server():
    rows = [row.split("|")[1] for row in TABLE.splitlines() if row.startswith("| `")]
    named = re.findall(r"`(?:[A-Z]+ )?(/[\w./-]+)`", " ".join(rows))
    assert set(named) == set(THEIRS)


def test_other_names_of_routes(server):
    assert ask(server, path="/v1/health").json() == ask(server).json()
    bodies = [ask(server, "POST", path, {"query": "a", "documents": ["b"]}).body for path in ("/v1/rerank", "/reranking", "/v1/reranking")]  # fmt: skip
    assert len({*bodies}) == 1 and b"no_ranking" in bodies[0]
