"""The command at a pseudo-terminal."""

import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import GENERATE
from tests.support import children, tiny

pytestmark = pytest.mark.full


@pytest.fixture
def terminal(work, environment):
    """Run the command at a terminal; return its exit code and all it showed. `until`: press Ctrl-C when this is seen."""

    def run(*args, until=None, typed=b""):
        command = [sys.executable, "-m", "gguf_spec", *GENERATE, *map(str, args)]
        code, seen = children.at_terminal(
            command, typed=typed, ctrl_c_at=until, cwd=work, env=environment
        )
        shown = seen.replace(b"\r\n", b"\n").decode()
        # Only the first load of a pair measures, and only a slow one shows its progress.
        return code, re.sub(r"^((\rLoading [^\r]*)+\r *\r|\rMeasuring [^\r]*\r *\r)+", "", shown)

    return run


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_prompt_is_shown_before_the_text(terminal):
    code, seen = terminal("xa")
    assert code == 0
    assert plain(seen) == "xabcdefghijkl\n"
    assert seen.index("\x1b[2mxa") == 0


def test_accepted_tokens_are_green(terminal):
    code, seen = terminal("a", "--show-draft", "-d", "abc.gguf", "-k", "2", "--fixed")
    assert (code, plain(seen)) == (0, "abcdefghijkl\n")
    green = "".join(re.findall(r"\x1b\[32m(.*?)\x1b\[0m", seen))
    assert green == "bcefhikl"


def test_no_colour_on_request(terminal, environment, monkeypatch):
    monkeypatch.setitem(environment, "NO_COLOR", "1")
    _, seen = terminal("a", "--show-draft", "-d", "abc.gguf")
    assert "\x1b[32m" not in seen


def test_a_model_cannot_steer_the_terminal(terminal):
    code, seen = terminal("a", "-m", "evil.gguf", "-n", "20")
    assert code == 0
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain(seen))
    assert plain(seen) == "a\ufffd]2;b\ufffd\ufffdc\ufffdd\n"


def test_a_prompt_is_text_on_one_line(terminal):
    """It cannot steer the terminal, has no markup, and is not broken."""
    words = "[bold red]:smile:[/] 3.5 'a'" + "z" * 150
    _, seen = terminal(f"\x1b]2;z\x07{words}a")
    assert plain(seen) == f"\ufffd]2;z\ufffd{words}abcdefghijkl\n"


def test_json_at_a_terminal_is_only_json(terminal):
    code, seen = terminal("a", "--json")
    assert (code, seen[0], seen[-2:]) == (0, "{", "}\n")


def test_no_prompt_at_a_terminal_is_an_error_and_not_a_wait(terminal):
    code, seen = terminal()
    assert code == 2
    assert re.match(r"Error: there is no prompt[^\n]*\nHint: ", seen)


def test_a_prompt_can_be_typed(terminal):
    code, seen = terminal("-", typed=b"xa\n\x04")
    assert code == 0
    assert plain(seen).endswith("xabcdefghijkl\n")


def test_an_answer_that_was_cut_says_so(terminal):
    _, seen = terminal("a", "-m", "ever.gguf", "--ctx", "1000")
    assert plain(seen).endswith("\n(cut after 256 tokens: -n -1 for all)\n")
    _, seen = terminal("a", "-m", "ever.gguf", "-n", "20")
    assert "cut" not in plain(seen)
    _, seen = terminal("a", "-m", "ever.gguf", "-n", "-1", "--ctx", "64")
    assert plain(seen).endswith("\n(cut: the context of 64 tokens is full: --ctx 128 for more)\n")


def test_an_answer_with_the_chat_template_ends_by_itself(terminal):
    _, seen = terminal("a", "-m", "ever.gguf", "--chat", "--ctx", "400")
    assert "the context of 400 tokens is full" in plain(seen)


def test_ctrl_c(terminal):
    code, seen = terminal("a", "-m", "ever.gguf", "-n", "-1", "--ctx", "100000", until=b"ghijklabc")
    assert code == 130
    assert "Traceback" not in seen
    assert plain(seen).startswith("abcdefghijklabc")
    assert seen.endswith("\n")


def test_errors_at_a_terminal(terminal):
    code, seen = terminal("a", "-m", "gone.gguf")
    assert code == 1
    assert re.fullmatch(r"Error: [^\n]+\nHint: [^\n]+\n", plain(seen))


@pytest.mark.parametrize(
    ("command", "wait_s"),
    [("generate", 0.2), ("verify", 0.25), ("generate", 0.3), ("verify", 0.4)],
)
def test_ctrl_c_while_loading_ends_it_without_a_trace(work, environment, command, wait_s):
    """At any moment: 130, or the signal itself where Python had not yet begun."""
    words = [
        command,
        "--threads",
        "1",
        *(
            ["Once", "-n", "-1", "-m", "ever.gguf", "-d", "none", "--raw", "--overflow", "shift"]
            if command == "generate"
            else []
        ),
    ]
    child = children.Child(
        [sys.executable, "-m", "gguf_spec", *words],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(wait_s)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate()
    assert child.returncode in (130, -signal.SIGINT)
    assert child.returncode == -signal.SIGINT or b"Traceback" not in stderr


AT_ONCE = "from gguf_spec.cli import main, output; output._PATIENCE_S = 0; main()"


@pytest.fixture
def impatient(work, environment):
    """Run `generate` at a terminal, with a progress bar from the first pass on; `until` as for `terminal`."""

    def run(*args, until=None):
        flags = ["-m", "ever.gguf", "--ctx", "60000", *map(str, args)]
        command = [sys.executable, "-c", AT_ONCE, *GENERATE, *flags]
        code, seen = children.at_terminal(command, ctrl_c_at=until, cwd=work, env=environment)
        return code, seen.replace(b"\r\n", b"\n").decode()

    return run


def test_a_long_prompt_has_a_bar_that_goes_before_the_text(impatient):
    code, seen = impatient("z" * 300 + "a", "-n", "3")
    bars, _, rest = seen.rpartition("\r")
    assert code == 0
    assert "\rReading the prompt [" in bars
    assert "100% of 300 tokens" in bars
    assert bars.rpartition("\r")[2].strip() == "", "the line is blank before the text"
    assert plain(rest) == "z" * 300 + "abcd\n"


def test_ctrl_c_while_a_prompt_is_read(impatient):
    code, seen = impatient("z" * 50_000, "-n", "3", until=b"Reading the prompt")
    assert code == 130
    assert "Traceback" not in seen
    assert "100% of 49,999" not in seen


def test_the_first_load_notes_that_it_measures(environment, tmp_path):
    """One of a recurrent model does: whether a rollback restores its state takes passes."""
    tiny.write(tmp_path / "mamba.gguf", tiny.mamba())

    def load(**variables):
        command = [sys.executable, "-m", "gguf_spec", "generate", "--threads", "1", "--raw"]
        command += ["-t", "0", "-n", "5", "-m", "mamba.gguf", "-d", "ngram", "a"]
        code, seen = children.at_terminal(command, cwd=tmp_path, env=environment | variables)
        assert code == 0, seen
        return seen.replace(b"\r\n", b"\n").decode()

    note = "Measuring this model (once; twice, and longer, beside other programs)"
    first, second = (load(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert f"\r{note}\r{' ' * len(note)}\r" in first  # a slow load shows its progress before
    # beside other programs the second one measures too
    assert plain(first.rpartition("\r")[2]) == plain(second.rpartition("\r")[2]) != ""
