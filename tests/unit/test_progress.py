"""Reports while a prompt is read, cancelling from there, and the lines of the command line that show it."""

import io
import time

import numpy as np
import pytest

from gguf_spec import Progress, Sampling, Speculation
from gguf_spec.cli import download, output
from gguf_spec.cli.output import CountedLines, LateBar, StatusLine, counted
from gguf_spec.registry.resolve import resolve
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from tests.support.fakes import FakeModel, fake_llm, random_table

SAMPLING = Sampling(temperature=0, max_tokens=4)
PROMPT = [1 + i % 3 for i in range(101)]


def an_llm(k=0, n_ctx=256):
    rng = np.random.default_rng(0)
    target, draft = (FakeModel(random_table(rng, 4), n_ctx) for _ in range(2))
    return fake_llm(
        target, draft if k else None, Speculation(k), lambda *_: DEFAULT_PROFILE if not k else None
    ), target


# ---- the callback


def test_each_pass_over_the_prompt_is_reported():
    llm, _ = an_llm()
    seen = []
    result = llm.generate_tokens(PROMPT, SAMPLING, on_prompt=lambda now: seen.append(now[1:3]))
    assert seen == [(32, 100), (64, 100), (96, 100), (100, 100)]
    assert len(result.tokens) == 4
    seen.clear()
    llm.generate_tokens(
        [*PROMPT[:80], *PROMPT], SAMPLING, on_prompt=lambda now: seen.append(now[1:3])
    )
    assert seen[0][0] > 80, "what is in the cache counts as read"
    assert seen[-1] == (180, 180)


def test_nothing_to_read_is_not_reported():
    llm, _ = an_llm()
    llm.generate_tokens(
        [1], SAMPLING, on_prompt=lambda *at: pytest.fail("there is nothing to read")
    )


def test_every_kind_of_request_reports_progress():
    llm, _ = an_llm()
    text = "b" * 40
    seen = []

    def note(now):
        seen.append(now)
        assert (now.stage, now.unit) == ("prompt", "tokens")
        assert now.share == now.done / now.total

    for ask in (
        lambda: llm.generate(text, SAMPLING, on_prompt=note),
        lambda: [*llm.stream(text, SAMPLING, on_prompt=note)],
        lambda: [*llm.stream_tokens([1] * 40, SAMPLING, on_prompt=note)],
        lambda: llm.generate_tokens([1] * 40, SAMPLING, on_prompt=note),
        lambda: [*llm.chat().stream(text, on_prompt=note)],
    ):
        llm.forget()
        seen.clear()
        ask()
        assert len(seen) >= 2


@pytest.mark.parametrize("way", ["returns False", "cancels the stream"])
def test_cancelling_takes_effect_after_the_pass(way):
    llm, target = an_llm()
    passes = []

    def stop(now):
        passes.append(now.done)
        if way == "returns False":
            return False
        stream.cancel()
        return None

    stream = llm.stream_tokens(PROMPT, SAMPLING, on_prompt=stop)
    chunks = [*stream]
    assert passes == [32]
    assert target.n_past == 32
    assert [chunk.finish_reason for chunk in chunks] == ["cancelled"]
    assert stream.result.tokens == ()
    assert len(llm.generate_tokens(PROMPT, SAMPLING).tokens) == 4, "the LLM is free again"


def test_none_and_true_continue():
    for result in (None, True, 0):
        llm, _ = an_llm()
        assert (
            len(
                llm.generate_tokens(
                    PROMPT, SAMPLING, on_prompt=lambda *_, result=result: result
                ).tokens
            )
            == 4
        )


def test_an_error_of_the_callback_ends_the_stream():
    llm, _ = an_llm()

    def fail(now):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llm.generate_tokens(PROMPT, SAMPLING, on_prompt=fail)
    assert len(llm.generate_tokens(PROMPT, SAMPLING).tokens) == 4


def test_a_text_that_is_read_again_is_not_reported():
    """With overflow="shift" half of the answer is read again; a bar would stand in the middle of the text."""
    llm, _ = an_llm(n_ctx=64)
    seen = []
    result = llm.generate_tokens(
        [1] * 40,
        Sampling(temperature=0, max_tokens=90, overflow="shift"),
        on_prompt=lambda now: seen.append(now[1:3]),
    )
    assert len(result.tokens) == 90
    assert seen == [(32, 39), (39, 39)]


# ---- the lines


def at(done, total):
    return Progress("prompt", done, total, "tokens")


class Terminal(io.StringIO):
    """A terminal that records its last visible line."""

    def isatty(self):
        return True

    @property
    def seen(self):
        line = []
        at = 0
        for character in self.getvalue():
            if character == "\r":
                at = 0
            else:
                line[at : at + 1] = [character]
                at += 1
        return "".join(line).rstrip()


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_the_bar_waits_two_seconds_and_leaves_nothing(terminal):
    now = [10.0]
    bar = LateBar(terminal, lambda: now[0])
    now[0] = 11.9
    bar(at(100, 3000))
    assert terminal.getvalue() == ""
    now[0] = 12.0
    bar(at(1000, 3000))
    assert terminal.seen == "Reading the prompt [########................]  33% of 3,000 tokens"
    bar(at(3000, 3000))
    assert terminal.seen == "Reading the prompt [########################] 100% of 3,000 tokens"
    bar.remove()
    assert terminal.seen == ""
    n = len(terminal.getvalue())
    bar.remove()
    assert len(terminal.getvalue()) == n


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("gguf_spec.cli.output.MOVE_S", 0.001)


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


@pytest.mark.parametrize(("token_s", "percent", "n"), [(0.0, 0, 0), (0.01, 33, 8), (0.001, 99, 23)])
def test_a_slow_first_pass_has_a_bar_that_moves(terminal, quick, token_s, percent, n):
    """256 tokens took 9 s, and nothing was shown in them; then 0 % until their end."""
    now = [10.0]
    bar = LateBar(terminal, lambda: now[0])
    bar.begin(3000, token_s)
    now[0] = 20.0
    until(
        lambda: (
            terminal.seen
            == f"Reading the prompt [{'#' * n}{'.' * (24 - n)}] {percent:3}% of 3,000 tokens"
        )
    )
    bar.remove()
    assert terminal.seen == ""


def test_the_bar_between_two_passes(terminal, quick):
    """Its speed is that of the last pass; it never goes back, and is full at the end only."""
    now = [10.0]
    bar = LateBar(terminal, lambda: now[0])
    bar.begin(1000, 0.01)

    def at_time(seconds, percent):
        now[0] = 10.0 + seconds
        until(lambda: f" {percent}% of " in terminal.seen)

    at_time(4, 40)
    bar(at(300, 1000))
    at_time(4.5, 40)
    now[0] = 18.0
    bar(at(500, 1000))  # 200 tokens in 4 s
    at_time(10, 60)
    at_time(30, 99)
    bar(at(1000, 1000))
    until(lambda: "100% of" in terminal.seen)
    bar.remove()
    assert terminal.seen == ""


def test_a_bar_that_is_removed_does_not_appear_later(terminal):
    bar = LateBar(terminal)
    bar.begin(3000)
    thread = bar._thread
    bar.remove()
    assert not thread.is_alive()
    assert terminal.getvalue() == ""


def test_no_progress_bar_without_a_terminal(monkeypatch, terminal):
    pipe = io.StringIO()
    for out in (pipe, terminal):
        bar = LateBar(out, iter([0.0, 9.0, 9.0]).__next__)
        bar(at(1, 2))
        bar.remove()
        monkeypatch.setenv("TERM", "dumb")
    assert pipe.getvalue() == ""
    monkeypatch.setattr("sys.stderr", None)
    LateBar(clock=iter([0.0, 9.0]).__next__)(at(1, 2))


def test_a_narrow_terminal(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "20")
    line = StatusLine(terminal)
    line.show("a" * 50)
    assert terminal.seen == "a" * 19
    line.show("b")
    assert terminal.seen == "b"


def test_a_line_is_removed(terminal):
    line = StatusLine(terminal)
    line.remove()
    assert terminal.getvalue() == ""
    line.show("Measuring")
    assert terminal.seen == "Measuring"
    line.remove()
    assert terminal.seen == ""


def test_loading_has_a_bar_too(terminal):
    now = [10.0]
    bar = LateBar(terminal, lambda: now[0])
    bar(Progress("load", 2**20, 2**21, "bytes"))
    assert terminal.getvalue() == ""
    now[0] = 12.0
    bar(Progress("load", 2**20, 2**21, "bytes"))
    assert terminal.seen == "Loading [############............]  50% of 2.0 MiB"
    n = len(terminal.getvalue())
    bar(Progress("load", 2**20 + 1, 2**21, "bytes"))
    assert len(terminal.getvalue()) == n, "the same percentage is not written again"
    bar.remove()
    assert terminal.seen == ""


def test_lines_in_a_pipe_say_how_far_it_is(capsys):
    """One when the first 15 seconds are over, and one for each part that ends."""
    times = iter([0.0, 10.0, 16.0, 16.0, 20.0, 40.0, 200.0, 220.0, 220.0])
    lines = CountedLines("verifying", "texts", clock=lambda: next(times))
    lines(Progress("verify", 1, 100, "texts"))
    lines(Progress("verify", 10, 100, "texts"))
    lines(Progress("verify", 11, 100, "texts"))
    lines.part("kernels")
    lines._now = Progress("verify", 100, 100, "texts")
    lines.part("all")
    lines(Progress("verify", 4, 100, "texts"))  # too few for an estimate
    assert capsys.readouterr() == (
        "",
        "verifying, 10 of 100 texts, about 2 min left\n"
        "verifying: kernels done, 11 of 100 texts, about 5 min left\n"
        "verifying: all done, 100 of 100 texts\n"
        "verifying, 4 of 100 texts\n",
    )


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_is_lines_in_a_pipe(capsys, monkeypatch, quiet):
    monkeypatch.setattr(output, "LINE_S", 0.0)
    with counted("measuring", "passes", quiet=quiet) as progress:
        progress(Progress("tune", 3, 3, "passes"))
    assert capsys.readouterr().err == ("" if quiet else "measuring, 3 of 3 passes\n")


@pytest.mark.parametrize("in_pipe", [False, True])
def test_a_status_is_lines_in_a_pipe(capsys, in_pipe):
    """For those who ask for it: one after 15 seconds, not one for each text."""
    now = [100.0]
    line = StatusLine(in_pipe=in_pipe, clock=lambda: now[0])
    line.show("1 of 9 lines")
    now[0] += 15.0
    line.show("2 of 9 lines")
    line.show("3 of 9 lines")
    line.remove()
    assert capsys.readouterr() == ("", "2 of 9 lines\n" if in_pipe else "")


def test_a_download_in_a_pipe_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(output, "LINE_S", 0.0)
    with download._progress(resolve("tales"), quiet=False) as tell:
        tell(Progress("download", 1 << 20, 4 << 20, "bytes"))
        tell(Progress("download", 2 << 20, 4 << 20, "bytes"))
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("downloading tales")
    assert [line.partition(", about")[0] for line in lines] == [
        "downloading tales, 1.0 MiB of 4.0 MiB",
        "downloading tales, 2.0 MiB of 4.0 MiB",
    ]
