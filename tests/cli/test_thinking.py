"""Reasoning on the command line: apart from the answer, dim at a terminal, hidden in a pipe."""

import json
import re
import shutil

import pytest

from tests.cli.test_chat_terminal import Terminal
from tests.cli.test_generate import out
from tests.support import reasoners

CHAIN = ["Ċ", "a", "b", "</think>", "c", "d", "<|endoftext|>"]


@pytest.fixture(scope="module")
def thinker(work):
    reasoners.write(work / "thinker.gguf", reasoners.QWEN35, CHAIN)
    return ("-m", "thinker.gguf", "--chat")


def test_in_a_pipe_only_the_answer_is_written(generate_here, thinker):
    assert out(generate_here("hi", *thinker)) == "cd\n"
    answer = json.loads(out(generate_here("hi", *thinker, "--json")))
    assert (answer["text"], answer["reasoning"], answer["stats"]["n_reasoning"]) == ("cd", "ab", 3)


def test_options(generate_here, thinker):
    budget = json.loads(
        out(generate_here("hi", *thinker, "--think-budget", "1", "--json", "-n", "20"))
    )
    assert budget["reasoning"] == "a"
    counts = [
        json.loads(out(generate_here("hi", *thinker, *option, "--json", "-n", "9")))[
            "prompt_tokens"
        ]
        for option in ((), ("--think",), ("--no-think",))
    ]
    assert counts[0] == counts[1] < counts[2]


def test_an_answer_that_is_reasoning_only(generate_here, thinker):
    result = generate_here("hi", *thinker, "-n", "2")
    assert (result.returncode, result.stdout) == (0, b"\n")
    assert result.stderr == (
        b"Note: the reasoning used all 2 tokens, so there is no answer. "
        b"Set a larger -n, a --think-budget, or --no-think.\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-m", "abc.gguf", "--chat", "--think"), "the chat template of abc.gguf has no reasoning"),
        (("-m", "abc.gguf", "--raw", "--no-think"), "--no-think needs messages"),
        (("-m", "abc.gguf", "--chat", "--think-budget", "3"), "has no reasoning parts"),
        (("-m", "thinker.gguf", "--raw", "--think-budget", "3"), "--think-budget needs messages"),
        (
            ("-m", "thinker.gguf", "--chat", "--think", "--prefill", "x"),
            "--think cannot be combined",
        ),
    ],
)
def test_options_that_a_model_does_not_have(generate_here, thinker, options, message):
    result = generate_here("hi", *options)
    assert (result.returncode, result.stdout) == (2, b"")
    assert message in result.stderr.decode()
    assert b"Traceback" not in result.stderr


def test_a_chat_in_a_pipe(here, thinker):
    lines = b"one\n/think off\n/think\n/think hide\n/think maybe\n"
    options = ("--threads", "1", "-t", "0", "-d", "none")
    result = here("chat", *thinker[:2], *options, stdin=lines)
    assert result.stdout.decode() == "cd\n"
    assert result.stderr.decode().splitlines() == [
        *["Reasoning is off, and hidden."] * 3,
        "Error: 'maybe' is not an argument of /think.",
        "Hint: use on, off, show or hide.",
    ]
    result = here("chat", "-m", "abc.gguf", *options, stdin=b"/think on\n")
    assert result.stderr.startswith(b"Error: abc.gguf has no reasoning parts.")


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_reasoning_is_dim_at_a_terminal(thinker, work, environment, tmp_path):
    kept = {name: value for name, value in environment.items() if name not in ("TMUX", "NO_COLOR")}
    terminal = Terminal(tmp_path, work, kept | {"XDG_STATE_HOME": str(tmp_path)})
    try:
        terminal.begin(*thinker[:2])
        terminal.ask("hi")
        assert "ab\n\ncd\n" in terminal.screen()
        assert re.search(r"\x1b\[(\d+;)*2m(\x1b\[\d+m)*ab", terminal.screen("-e"))
        terminal.ask("/think hide")
        terminal.ask("again")
        assert "Thinking...\n\ncd\n" in terminal.screen()
        assert terminal.screen().count("ab") == 1
        terminal.type("/think o")
        terminal.see("/think o")
    finally:
        terminal.close()
