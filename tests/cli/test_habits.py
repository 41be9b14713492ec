"""Names and options of llama.cpp, ollama and llm."""

import re

import pytest

from gguf_spec.cli import cli as root
from gguf_spec.cli.command import Command
from gguf_spec.cli.habits import _DESTRUCTIVE, HIDDEN_NAMES, nearest_command, nearest_option
from tests.cli.test_errors import check
from tests.support import children


def commands():
    return [(path, one) for path, one in root.paths() if isinstance(one, Command)]


@pytest.mark.parametrize("flags", [
    ["--temp", "0", "-c", "64", "--n-predict", "3"],
    ["-ngl", "0", "-fa", "off", "--ctx-size=64", "--n-predict=3"],
    ["--repeat-last-n", "8", "--draft-max", "0", "-md", "none", "-r", "e"],
])  # fmt: skip
def test_hidden_names_are_the_options(here, flags):
    given = here("generate", "a", "-m", "abc.gguf", "-d", "none", "--raw", "--threads", 1, "-t", 0, *flags)  # fmt: skip
    assert (given.stdout, given.stderr, given.returncode) == (b"bcd\n", b"", 0)


def test_a_prompt_as_an_option(generate_here):
    assert generate_here("-p", "xa").stdout == b"bcdefghijkl\n"
    assert generate_here("-n", "2", "--prompt", "xa").stdout == b"bc\n"


def test_a_command_keeps_its_own_names():
    for path, command in commands():
        taken = [name for one in command.params for name in (*one.opts, *one.secondary_opts)]
        assert len(taken) == len(set(taken)), path
        hidden = [name for one in command.params for name in HIDDEN_NAMES.get(one.name, ())]
        assert len(hidden) == len(set(hidden)), path


def test_verify_keeps_its_short_name(here):
    check(here("verify", "-c", "0"), 2, "--count is 0")


def test_hidden_names_are_hidden(here):
    text = here("generate", "--help").stdout.decode()
    assert "--temp " not in text
    assert "-ngl" not in text
    assert "--prompt" not in text


NEAR = {
    "genrate": "generate", "ask": "generate", "serv": "serve", "download": "models pull",
    "quantize": "models quantize", "benchmark": "bench", "settings": "config", "xyzzy": None,
    "remov": None, "delete": None, "rmm": None,
}  # fmt: skip


@pytest.mark.parametrize(("typed", "near"), NEAR.items())
def test_the_nearest_command(typed, near):
    names = [*(path for path, _ in root.paths()), "config"]
    assert nearest_command(typed, names) == near


def test_no_hint_names_a_destructive_command():
    names = [path for path, _ in root.paths()]
    options = ["--force", "--yes", "-y", "--draft"]
    for typed in ("remove", "models remove", "rm", "del", "uninstall", "erase", "r"):
        assert nearest_command(typed, names) not in _DESTRUCTIVE
    for typed in ("--forc", "--forced", "--ye", "-y", "--yess"):
        assert nearest_option(typed, options) is None


def test_an_unknown_command(here):
    said = check(here("genrate"), 2, "there is no command 'genrate'.")
    assert said.endswith("Hint: did you mean gguf-spec generate?\n")
    said = check(here("models", "remov"), 2, "there is no command 'remov'.")
    assert said.endswith("Hint: gguf-spec models --help lists the commands.\n")
    check(here("models", "rm", "x"), 2, "did you mean gguf-spec models remove?")
    check(here("--temperature", "1"), 2, "gguf-spec has no option --temperature.")


@pytest.mark.parametrize("words", [["ls"], ["list"], ["show", "tales"], ["rm", "tales"]])
def test_short_names_of_commands(here, words):
    long = {"ls": "list", "rm": "remove"}.get(words[0], words[0])
    short, full = here(*words), here("models", long, *words[1:])
    assert (short.stdout, short.stderr, short.returncode) == (
        full.stdout, full.stderr, full.returncode,
    )  # fmt: skip


def test_help_is_a_command(here):
    assert here("help", "models", "pull").stdout == here("models", "pull", "--help").stdout
    assert here("help").stdout == here("--help").stdout
    check(here("help", "genrate"), 2, "did you mean gguf-spec generate?")


RUN = ["-t", "0", "--threads", "1", "-d", "none"]


@pytest.mark.parametrize("words", [
    ["abc.gguf", "xa", "--raw", *RUN], ["--raw", *RUN, "abc.gguf", "xa"], [*RUN, "abc.gguf", "--raw", "-p", "xa"],
])  # fmt: skip
def test_run_with_a_prompt_answers_it(here, words):
    given = here("run", *words)
    assert (given.stdout, given.stderr, given.returncode) == (b"bcdefghijkl\n", b"", 0)


@pytest.mark.full
def test_run_in_a_pipe_answers_it(cli):
    assert cli("run", "abc.gguf", "--raw", *RUN, stdin=b"xa").stdout == b"bcdefghijkl\n"


@pytest.mark.full
def test_run_at_a_terminal_is_a_chat(work, environment):
    import sys

    line = [sys.executable, "-m", "gguf_spec", "run", "abc.gguf", *RUN]
    code, seen = children.at_terminal(line, typed=b"/quit\r", cwd=work, env=environment)
    assert code == 0
    assert b"/help" in seen
    assert b"Ctrl-D" in seen


def test_run_requires_a_model(here):
    check(here("run"), 2, "MODEL is missing")
    check(here("run", "--temp", "0"), 2, "MODEL is missing")
    check(here("run", "abc.gguf", "a", "--nonsense"), 2, "gguf-spec run has no option --nonsense")
    assert b"Usage: gguf-spec run MODEL [PROMPT]" in here("run", "--help").stdout


# ---- the prompt


def test_argument_files_and_pipe_are_joined(here, work, tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("one\n", encoding="utf-8")
    two.write_text("two", encoding="utf-8")

    def prompt(*words, stdin=b""):
        given = here(
            "generate", *words, "-m", "ever.gguf", "-d", "none", "--raw", "-n", 1, "--echo",
            "--threads", 1, "-t", 0, stdin=stdin,
        )  # fmt: skip
        assert (given.returncode, given.stderr) == (0, b"")
        return given.stdout.decode()[:-2]

    assert prompt("Q:", stdin=b"pipe\n") == "Q:\n\npipe"
    assert prompt("Q:", "-f", one, "-f", two, stdin=b"pipe") == "Q:\n\none\n\ntwo\n\npipe"
    assert prompt("-", "-f", one, stdin=b"pipe") == "pipe\n\none"
    assert prompt("-f", two, "-f", one) == "two\n\none"
    assert prompt("Q:") == "Q:"


@pytest.mark.parametrize("words", [[""], ["-f", "nothing.txt"], ["-p", ""], []])
def test_an_empty_prompt_is_refused_before_the_model_is_loaded(here, work, words):
    (work / "nothing.txt").touch()
    check(here("generate", *words, "-m", "gone.gguf"), 1, "the prompt is empty")


@pytest.mark.full
def test_a_pipe_that_is_never_closed_is_named(work, environment):
    import subprocess
    import sys

    program = "from gguf_spec.cli import generate, main; generate._PATIENCE_S = 0; main()"
    line = [sys.executable, "-c", program, "generate", "xa", "-m", "abc.gguf", "--raw", *RUN]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    child = children.Child(line, cwd=work, env=environment, **pipes)
    said = child.stderr.readline()
    assert re.match(rb"Note: waiting for the end of the standard input", said)
    assert child.communicate(b"")[0] == b"bcdefghijkl\n"


# ---- the help


def test_descriptions_of_commands_fit_80_columns(here):
    for words in ([], ["models"]):
        text = here(*words, "--help", env={"COLUMNS": "80"}).stdout.decode()
        rows = text[text.index("Commands:") :].splitlines()[1:]
        assert all(len(row) <= 80 and "..." not in row for row in rows)
        assert len([row for row in rows if re.match(r"  \w", row)]) >= 5


def test_help_of_generate_is_in_groups(here):
    text = here("generate", "--help").stdout.decode()
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [
        "Usual options", "Prompt and answer options", "Drafting options", "Sampling options",
        "Model and machine options", "Output and other options",
    ]  # fmt: skip
    usual = text[text.index("Usual options") : text.index("Prompt and answer")]
    assert len(re.findall(r"^  -", usual, re.MULTILINE)) == 10


def test_every_option_is_in_the_help():
    import click

    for path, command in commands():
        context = click.Context(command, info_name=path)
        text = command.get_help(context)
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                assert max(one.opts, key=len) in text, path
