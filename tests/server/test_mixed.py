"""Mixed requests over all APIs at once: each answer is that of a separate request without drafts, on a server of its own."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.server.conftest import ask, metrics, until
from tests.server.test_command import Child
from tests.support import encoders

pytest.importorskip("ollama")
pytest.importorskip("anthropic")

from tests.server import mixed_requests as mixed

pytestmark = pytest.mark.full

N_CLIENTS = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Options for the models: a chat model, one that calls a tool, an encoder and a reranker."""
    folder = tmp_path_factory.mktemp("mixed")
    files = [
        mixed.write_caller(folder / "caller.gguf"),
        encoders.write(folder / "bert.gguf"),
        encoders.write(folder / "rank.gguf", pooling=4, ranks=True),
    ]
    return [word for name in ("tales", *files) for word in ("-m", name)]


def serve(models, *options):
    common = ("--port", 0, "--queue", 300, "--quiet", "--no-any-model", "--keep-alive", -1)
    return Child(*models, *common, *options)


@pytest.fixture(scope="module")
def alone(models):
    """The clients of a server that answers one request at a time and never drafts."""
    with serve(models, "--parallel", 1, "-d", "none") as child, mixed.Clients(child.url) as one:
        yield one


@pytest.fixture(scope="module")
def together(models):
    with serve(
        models, "--parallel", 4, "-k", 4, "--fixed"
    ) as child:  # measured costs may draft nothing
        yield child


@pytest.mark.parametrize("n", [45, pytest.param(200, marks=pytest.mark.slow)])
def test_each_answer_is_that_of_a_separate_request(alone, together, n):
    plans = mixed.plans(n, seed=n)
    with (
        mixed.Clients(together.url) as clients,
        ThreadPoolExecutor(N_CLIENTS) as threads,
    ):
        found = list(threads.map(lambda plan: mixed.answer(clients, plan), plans))
        for plan, (texts, rest) in zip(plans, found, strict=True):
            wanted, wanted_rest = mixed.answer(alone, replace(plan, most_pieces=None))
            if plan.most_pieces is None:
                assert (texts, rest) == (wanted, wanted_rest), plan
            else:
                assert all(wanted[which].startswith(text) for which, text in texts.items()), plan
    told, label = metrics(together), '{model="tales"}'
    assert told[f"target_rows_total{label}"] > told[f"target_passes_total{label}"]
    assert told["accepted_tokens_total"] > 0
    until(lambda: ask(together).json()["running"] == 0)
    assert ask(together).json()["queue"] == 0
