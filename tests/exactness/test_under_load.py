"""`verify --under-load` passes on the bundled pair, and fails where a batch changes a text."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import gguf_spec
from gguf_spec.cli import cli
from gguf_spec.cli import verify as command
from gguf_spec.errors import DecodeError, InvalidOptionError, NotEnoughMemoryError
from gguf_spec.llama.context import Context
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.verify import verify

SAID = "Running requests together changes this model's output: "


@pytest.fixture(scope="module")
def llm():
    with gguf_spec.load("tales", threads=1, n_ctx=256, parallel=4) as one:
        yield one


@pytest.mark.full
def test_it_passes_on_the_bundled_pair(llm, prompts):
    steps: list[object] = []
    parts: list[str] = []
    report = verify(
        llm, prompts[:3], n_tokens=20, under_load=True, progress=steps.append, on_part=parts.append
    )
    assert parts == [*(f"prompt {i} of 3 alone" for i in (1, 2, 3)), "all of them together"]
    assert report.ok, report.sentence
    assert report.sentence == (
        "Running requests together does not change this model's output (36 of 36 texts identical)."
    )
    assert (report.n_parallel, report.n_prompts, report.laws) == (4, 3, ())
    assert [(c.n_texts, c.n_identical) for c in report.comparisons] == [(3, 3)] * 12
    assert any(c.acceptance > 0.1 for c in report.comparisons)
    assert [(check.name, check.n_cases > 0, check.ok) for check in report.checks] == [
        ("near ties", True, True),
        ("errors", True, True),
    ]
    assert steps == [("verify", i, 45, "generations") for i in range(1, 46)]
    assert json.dumps(report.to_dict())


def rows_of_the_neighbour(monkeypatch):
    """Each part of a common pass has the rows of another, where these are as many."""
    decode = Context.decode

    def wrong(self, parts, *more):
        rows = decode(self, parts, *more)
        turned = [*rows[1:], rows[0]]
        return [b if len(a) == len(b) else a for a, b in zip(rows, turned, strict=True)]

    monkeypatch.setattr(Context, "decode", wrong)


def noise_of_common_passes(monkeypatch):
    """Changes rows of common passes by more than rounding where passes are exact."""
    decode, rng = Context.decode, np.random.default_rng(1)

    def wrong(self, parts, *more):
        rows = decode(self, parts, *more)
        if len(parts) == 1:
            return rows
        return [one + rng.normal(0, 0.5, one.shape).astype(np.float32) for one in rows]

    monkeypatch.setattr(Context, "decode", wrong)


def copies_of_another_text(monkeypatch):
    """The list of cached tokens of a copied cache is right, but llama.cpp's cache has others."""

    def copy(self, other):
        self.rollback(0)
        # nothing is copied
        self.adopt(other.cached, other.n_read, 0)

    monkeypatch.setattr(CachedSequence, "copy_from", copy)


BUGS = {
    rows_of_the_neighbour: "texts differ",
    noise_of_common_passes: "texts differ",
    copies_of_another_text: "texts differ",
}


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.failing_drafts
def test_a_planted_bug_is_caught(llm, prompts, monkeypatch, bug):
    bug(monkeypatch)
    texts = ["Once upon a time there was a fox. " * 9 + text for text in prompts[:3]]
    try:
        report = verify(llm, texts, n_tokens=20, under_load=True)
    finally:
        monkeypatch.undo()
        llm.forget()
    assert not report.ok
    assert report.sentence.startswith(SAID)
    assert BUGS[bug] in report.sentence


@pytest.mark.failing_drafts
def test_requests_that_fail_only_in_a_batch_are_reported(llm, prompts, monkeypatch):
    decode = Context.decode

    def failing(self, parts, *more):
        if sum(one.task is not None for one in llm.engine.queue.scheduler.pairs) > 2:
            raise DecodeError(-3, 1, 1, "planted")
        return decode(self, parts, *more)

    monkeypatch.setattr(Context, "decode", failing)
    report = verify(llm, prompts[:2], n_tokens=8, under_load=True)
    monkeypatch.undo()
    llm.forget()
    assert not report.ok
    assert report.sentence.startswith(SAID)
    assert "requests fail" in report.sentence
    assert "planted" in report.checks[1].faults[0]


def test_one_request_at_a_time_is_refused(tales, prompts):
    with pytest.raises(InvalidOptionError, match="parallel"):
        verify(tales, prompts[:1], under_load=True)


def test_it_stops_when_the_time_is_up(llm, prompts):
    report = verify(llm, prompts, n_tokens=8, under_load=True, limit_s=0.0)
    assert report.n_prompts == 1
    assert 4 <= sum(c.n_texts for c in report.comparisons) < 12
    assert report.ok


@pytest.mark.full
@pytest.mark.parametrize("draft", ["auto", "none"])
def test_the_command(draft):
    args = ["verify", "--under-load", "-d", draft, "--count", "2", "-n", "12", "--threads", "1"]
    run = CliRunner().invoke(cli, [*args, "--ctx", "256"], standalone_mode=False)
    assert run.return_value == 0, run.output
    assert "8 requests at once" in run.stdout
    assert "first tokens" not in run.stdout
    n = 24 if draft == "auto" else 18
    assert run.stdout.splitlines()[0] == (
        f"Running requests together does not change this model's output ({n} of {n} texts "
        "identical)."
    )
    run = CliRunner().invoke(cli, [*args, "--json"], standalone_mode=False)
    assert run.return_value == 0
    assert json.loads(run.stdout)["n_parallel"] == 8


@pytest.mark.full
def test_as_many_requests_as_fit_into_memory(monkeypatch):
    tried, load = [], command.load_models

    def small(options, speculation):
        tried.append(options["parallel"])
        if options["parallel"] > most:
            raise NotEnoughMemoryError("too large")
        return load(options, speculation)

    monkeypatch.setattr(command, "load_models", small)
    args = ["verify", "--under-load", "-c", "1", "-n", "4", "--threads", "1", "--json"]
    most = 2
    run = CliRunner().invoke(cli, args, standalone_mode=False)
    assert (tried, json.loads(run.stdout)["n_parallel"]) == ([8, 4, 2], 2)
    most = 0
    with pytest.raises(NotEnoughMemoryError):
        CliRunner().invoke(cli, args, standalone_mode=False, catch_exceptions=False)
    assert tried[3:] == [8, 4, 2]
