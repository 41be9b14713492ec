"""`gguf-spec chat` at a terminal, which tmux plays."""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.support import children, talkers, tiny

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")

SAYS = "abcdefghijkl"
COMMAND = [
    sys.executable,
    "-m",
    "gguf_spec",
    "chat",
    "--threads",
    "1",
    "-t",
    "0",
    "-d",
    "none",
    "-m",
    "chat.gguf",
]


@pytest.fixture(scope="session")
def parrots(work):
    tiny.write(work / "chat.gguf", tiny.one_text("\n" + SAYS))  # a question ends with a newline
    tiny.write(
        work / "on.gguf",
        tiny.one_text("\n" + SAYS, for_ever=True),
        metadata={"llama.context_length": 100_000},
    )
    tiny.write(work / "steers.gguf", tiny.one_text("\na\x1b]2;b\x07\rc\x9b1Ad"))
    return work


class Terminal:
    """A tmux terminal with a chat."""

    def __init__(self, folder, work, environment, width=80, height=24):
        self._tmux = ["tmux", "-u", "-S", str(folder / "tmux"), "-f", os.devnull]
        self._size, self._cage, self._environment = (
            (width, height),
            work,
            environment | {"LC_ALL": "C.UTF-8"},
        )

    def tmux(self, *args):
        return children.run(
            [*self._tmux, *map(str, args)],
            env=self._environment,
            check=True,
            capture_output=True,
            limit_s=180,
        ).stdout.decode()

    def begin(self, *args, until="\n>", **variables):
        """Start a chat in place of the previous one, and wait for its prompt."""
        command = shlex.join(
            [
                "env",
                *(f"{name}={value}" for name, value in variables.items()),
                *COMMAND,
                *map(str, args),
            ]
        )
        command = f"{command}; echo code $? $(stty -a | grep -oE '[-]?(echo|icanon) '); sleep 600"
        if self.alive():
            self.tmux("respawn-window", "-k", "-t", "chat", "-c", self._cage, command)
        else:
            width, height = self._size
            new = ["new-session", "-d", "-s", "chat", "-x", width, "-y", height, "-c", self._cage]
            self.tmux(
                "start-server",
                ";",
                "set-option",
                "-g",
                "history-limit",
                100_000,
                ";",
                *new,
                command,
            )
        self.see(until)

    def alive(self):
        return (
            children.run(
                [*self._tmux, "has-session"], check=False, capture_output=True, limit_s=180
            ).returncode
            == 0
        )

    def type(self, *keys):
        self.tmux("send-keys", "-t", "chat", *keys)

    def paste(self, text):
        self.tmux("set-buffer", text, ";", "paste-buffer", "-p", "-t", "chat")

    def screen(self, *options):
        return "\n".join(
            line.rstrip()
            for line in self.tmux("capture-pane", "-p", *options, "-t", "chat").split("\n")
        )

    def see(self, what, scrolled=False):
        """Wait for a text, or a pattern, and return the screen; `scrolled`: with all that left it, as an answer may be quick."""
        for _ in range(3600):
            seen = self.screen(*("-S", "-") if scrolled else ())
            if re.search(what, seen) if isinstance(what, re.Pattern) else what in seen:
                return seen
            time.sleep(0.05)
        raise AssertionError(f"{what!r} is not in\n{seen}")

    def ask(self, text):
        """Type a line, wait for the prompt after what it does, and return the screen."""
        asked = f"> {text[:12]}"
        before = self.screen("-S", "-").count(asked)
        self.type(text, "Enter")
        for _ in range(3600):
            seen = self.screen("-S", "-")
            if seen.count(asked) > before and "\n>" in seen[seen.rindex(asked) :]:
                return self.screen()
            time.sleep(0.05)
        raise AssertionError(self.screen())

    def pid(self):
        shell = self.tmux("display-message", "-p", "-t", "chat", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text())

    def end(self):
        """Wait for the end, see that the terminal is as it should be, and return the exit code."""
        return int(re.search(r"code (\d+)", self.see(re.compile(r"code \d+ icanon echo")))[1])

    def close(self):
        children.run([*self._tmux, "kill-server"], check=False, capture_output=True, limit_s=180)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def make(parrots, environment, tmp_path, home):
    made = []

    def make(**size):
        folder = tmp_path / f"t{len(made)}"
        folder.mkdir()
        kept = {
            name: value
            for name, value in environment.items()
            if name not in ("TMUX", "NO_COLOR", "LINES")
        }
        made.append(
            Terminal(
                folder, parrots, kept | {"XDG_STATE_HOME": str(home), "LC_ALL": "C.UTF-8"}, **size
            )
        )
        return made[-1]

    yield make
    for terminal in made:
        terminal.close()


@pytest.fixture
def terminal(make):
    return make()


@pytest.mark.full
def test_it_begins_in_two_lines(terminal):
    terminal.begin()
    lines = terminal.see("context of 256 tokens").split("\n")
    assert lines[:2] == ["chat.gguf. /help lists the commands, Ctrl-D leaves.", ">"]


def stopped(n):
    return re.compile(rf"(\(stopped\)(.|\n)*){{{n}}}")


@pytest.mark.full
def test_a_conversation(terminal, tmp_path):
    """Edit, send, stop, undo, retry, save, exit, load, exit."""
    file = tmp_path / "talk.session"
    terminal.begin("-m", "on.gguf", "-n", "-1", "--ctx", "60000")
    terminal.type("helo", "Left", "l", "End", " you", "Enter")
    terminal.see(f"{SAYS}\n{SAYS}")
    terminal.type("C-c")
    seen = terminal.see("(stopped)")
    assert "^C" not in seen
    seen = terminal.see(re.compile(r"\n>\n+[\d,.]+ tok/s, context [\d,]+ of 60,000"))
    # What an earlier answer left on the screen is no sign of the next one.
    terminal.type("/retry", "Enter")
    terminal.see(re.compile(f"the answer is always the same(.|\n)*{SAYS}\n{SAYS}"), scrolled=True)
    terminal.type("C-c")
    terminal.see(stopped(2), scrolled=True)
    terminal.type("more", "Enter")
    terminal.see(f"> more\n{SAYS}", scrolled=True)
    terminal.type("C-c")
    terminal.see(stopped(3), scrolled=True)
    terminal.type("/undo", "Enter")
    terminal.see("Removed: more")
    terminal.type(f"/save {file}", "Enter")
    terminal.see("Saved 2 messages in")
    terminal.type("C-d")
    assert terminal.end() == 0
    terminal.begin("-m", "on.gguf", "-n", "-1", "--ctx", "60000", "--load", file)
    terminal.see("Loaded 2 messages from")
    terminal.see("You: hello you")
    terminal.see("Answer: abcdefghijkl abcdefghijkl")
    terminal.type("/undo", "Enter")
    terminal.see("Removed: hello you")
    terminal.type("/quit", "Enter")
    assert terminal.end() == 0


def told(file):
    """Return the questions in a saved session."""
    return [
        bytes(text).decode()
        for text in re.findall(rb'"role": "user", "content": "(.*?)"', file.read_bytes())
    ]


@pytest.mark.full
def test_lines_of_a_question(terminal, tmp_path):
    terminal.begin("--save", tmp_path / "talk.session")
    terminal.type("one", "M-Enter", "two", "\\", "Enter", "three")
    assert terminal.see("three").split("\n")[1:4] == ["> one", "  two", "  three"]
    terminal.type("Enter")
    terminal.see(re.compile(rf"{SAYS}(.|\n)*\n>"))  # the prompt takes the paste, not the terminal
    terminal.paste("four\nfive\n\nsix")
    terminal.see("six")
    terminal.type("Enter")
    terminal.see(re.compile(rf"six\n{SAYS}"))
    terminal.type("C-d")
    assert terminal.end() == 0
    assert told(tmp_path / "talk.session") == ["one\\ntwo\\nthree", "four\\nfive\\n\\nsix"]


SLOW_END = """
import time
import gguf_spec.cli.chat.terminal as terminal
ending = terminal._ending
terminal._ending = lambda *args: (time.sleep(1), ending(*args))[1]
"""


@pytest.mark.full
@pytest.mark.parametrize("model", ["chat.gguf", "on.gguf"])
def test_ctrl_d_before_the_next_prompt_leaves(terminal, tmp_path, model):
    """In an answer, and between an answer and the prompt."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_END if model == "chat.gguf" else "")
    terminal.begin("-m", model, "-n", "3000", "--ctx", "4096", PYTHONPATH=tmp_path)
    terminal.type("one", "Enter")
    terminal.see(SAYS)
    terminal.type("C-d")
    assert terminal.end() == 0


@pytest.mark.full
def test_what_was_typed_is_there_the_next_time(terminal, home):
    terminal.begin()
    terminal.ask("first words")
    terminal.ask("other words")
    terminal.type("C-d")
    terminal.end()
    terminal.begin()
    terminal.type("Up", "Up")
    terminal.see("> first words")
    terminal.type("Down")
    terminal.see("> other words")
    assert stat.S_IMODE((home / "gguf-spec" / "chat-history").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "gguf-spec").stat().st_mode) == 0o700


@pytest.mark.full
def test_what_is_typed_is_not_kept_on_request(terminal, home):
    terminal.begin("--no-history")
    terminal.ask("first words")
    terminal.type("Up")
    terminal.see(re.compile(r"> first words\n.*\n\n> first words"))
    assert not home.exists()


@pytest.mark.full
def test_a_history_that_cannot_be_saved_does_not_end_the_chat(terminal, home):
    home.write_text("a file where a folder should be")
    terminal.begin()
    seen = terminal.ask("first words")
    seen = terminal.ask("other words")
    assert seen.count("Note: typed lines are not saved: ") == 1
    assert seen.count(SAYS) == 2


@pytest.mark.full
def test_ctrl_c_at_the_prompt_leaves_nothing_but_the_line(terminal):
    terminal.begin()
    terminal.type("C-c")
    terminal.see("Ctrl-D leaves the chat")
    terminal.type("some words", "C-c")
    seen = terminal.see(re.compile("> some words\n>"))
    assert seen.count("Ctrl-D leaves the chat") == 1
    assert SAYS in terminal.ask("hello")


@pytest.mark.full
def test_typing_while_an_answer_comes_does_not_mix_with_it(terminal):
    terminal.begin("-m", "on.gguf", "-n", "3000", "--ctx", "60000")
    terminal.type("hello", "Enter")
    terminal.see(f"{SAYS}\n{SAYS}")
    terminal.type("XYZ")
    terminal.see("(cut after 3,000 tokens: /set max_tokens N changes the limit)")
    terminal.see("> XYZ")
    assert "X" not in terminal.screen("-S", "-").replace("> XYZ", "")


@pytest.mark.full
def test_commands_are_completed(terminal):
    terminal.begin()
    terminal.type("/re")
    seen = terminal.see("/retry")
    assert "/reset" in seen
    assert "remove all messages except the system message" in seen
    terminal.type("t")
    terminal.see(re.compile("> /ret\n +/retry "))
    terminal.type("Tab")
    terminal.see("> /retry\n")
    terminal.type("Enter")
    terminal.see(re.compile(r"Error: there is no question to answer again\.\nHint: .*\n>"))
    terminal.type("/draft s")
    terminal.see(re.compile("> /draft s\n +show"))
    terminal.type("Tab")
    terminal.see("> /draft show\n")
    terminal.type("Enter")
    terminal.see("Accepted draft tokens are green")


@pytest.mark.full
def test_errors_are_shown_and_the_chat_continues(terminal):
    terminal.begin("--ctx", "128")
    seen = terminal.ask("/hlep")
    assert (
        "Error: there is no command /hlep.\nHint: did you mean /help? Begin the line with a space to send it to the model."
        in seen
    )
    assert "Hint: /set ctx" in terminal.ask("x" * 150)
    assert SAYS in terminal.ask("hello")
    terminal.type("C-d")
    assert terminal.end() == 0


@pytest.mark.full
def test_a_narrow_terminal(make):
    terminal = make(width=30, height=16)
    terminal.begin()
    for words in (
        "a question that takes more than one line",
        "another one that does so too",
        "日本語" * 8,
    ):
        terminal.ask(words)
    lines = terminal.see(re.compile(r"of\s256\s*$")).rstrip("\n").split("\n")
    assert lines.count(SAYS) >= 2
    assert re.search(r"[\d,.]+ tok/s, context \d+ of 256$", " ".join(lines[-3:]))
    terminal.type("/help", "Enter")
    terminal.see("with a slash.\n>")


@pytest.mark.full
def test_the_window_may_change_its_size(terminal):
    terminal.begin()
    terminal.type("some words that are to be seen whole")
    terminal.tmux("resize-window", "-t", "chat", "-x", "20", "-y", "10")
    time.sleep(0.3)
    terminal.type("Home", "so ", "Enter")
    terminal.see(SAYS)
    terminal.type("/undo", "Enter")
    seen = terminal.see("Removed")
    assert "so some words" in " ".join(seen.split())


@pytest.mark.full
def test_a_model_cannot_steer_the_terminal(terminal):
    title = terminal.tmux
    terminal.begin("-m", "steers.gguf")
    before = title("display-message", "-p", "-t", "chat", "#{pane_title}")
    seen = terminal.ask("hello")
    assert "> hello\na\ufffd]2;b\ufffd\ufffdc\ufffd1Ad\n" in seen
    terminal.ask("/draft show")
    seen = terminal.ask("hello")
    assert seen.count("a\ufffd]2;b\ufffd\ufffdc\ufffd1Ad\n") == 2
    assert title("display-message", "-p", "-t", "chat", "#{pane_title}") == before


@pytest.mark.full
def test_accepted_tokens_are_green_on_request(terminal):
    green = re.compile(r"\x1b\[32m([a-z]+)")
    terminal.begin("-d", "chat.gguf", "-k", "2", "--fixed")
    terminal.ask("hello")
    assert not green.findall(terminal.screen("-e"))
    terminal.ask("/draft show")
    seen = terminal.ask("hello")
    assert seen.count(SAYS) == 2
    assert "".join(green.findall(terminal.screen("-e"))) == "abdeghjk"
    terminal.see(re.compile(r"tok/s, context"))
    terminal.begin("-d", "chat.gguf", "-k", "2", "--fixed", "--show-draft")
    terminal.ask("hello")
    assert green.findall(terminal.screen("-e"))
    terminal.type("/draft hide", "Enter")
    terminal.see("Markdown is formatted.")


@pytest.mark.full
def test_no_colour_on_request(terminal):
    terminal.begin("-d", "chat.gguf", "-k", "2", "--fixed", "--show-draft", NO_COLOR="1")
    terminal.ask("/hlep")
    terminal.ask("hello")
    assert SAYS in terminal.screen()
    assert not re.search(
        r"\x1b\[[0-9;]*(3[0-7]|9[0-7])", terminal.screen("-e").replace("\x1b[39m", "")
    )


@pytest.mark.full
def test_a_dumb_terminal(terminal):
    terminal.begin(TERM="dumb")
    seen = terminal.ask("hello")
    assert SAYS in seen
    assert re.search(r"tok/s, context \d+ of 256", seen)
    terminal.type("C-c")
    terminal.see("Ctrl-D leaves the chat")
    assert "\x1b" not in terminal.screen("-e")
    terminal.type("C-d")
    assert terminal.end() == 0


@pytest.mark.full
@pytest.mark.parametrize("while_it_answers", [False, True])
def test_sigterm_restores_the_terminal(terminal, tmp_path, while_it_answers):
    file = tmp_path / "talk.session"
    model = ("-m", "on.gguf", "-n", "-1", "--ctx", "60000") if while_it_answers else ()
    terminal.begin(*model, "--save", file)
    terminal.type("hello", "Enter")
    terminal.see(f"{SAYS}\n{SAYS}" if while_it_answers else f"{SAYS}\n\n>")
    os.kill(terminal.pid(), signal.SIGTERM)
    assert terminal.end() == 143
    terminal.see("Saved 2 messages")


@pytest.mark.full
@pytest.mark.parametrize("while_it_answers", [False, True])
def test_a_killed_chat_keeps_what_was_said(terminal, while_it_answers):
    model = ("-m", "on.gguf", "-n", "-1", "--ctx", "60000") if while_it_answers else ()
    terminal.begin(*model)
    terminal.type("hello", "Enter")
    terminal.see(f"{SAYS}\n{SAYS}" if while_it_answers else f"{SAYS}\n\n>")
    os.kill(terminal.pid(), signal.SIGKILL)
    terminal.see("code 137")
    terminal.begin("-c")
    seen = terminal.screen()
    assert "Chat of 2 messages: hello" in seen and f"Answer: {SAYS[0]}" in seen


@pytest.mark.full
@pytest.mark.parametrize("while_it_answers", [False, True])
def test_a_terminal_that_is_closed_saves_the_conversation(terminal, tmp_path, while_it_answers):
    file = tmp_path / "talk.session"
    model = ("-m", "on.gguf", "-n", "-1", "--ctx", "60000") if while_it_answers else ()
    terminal.begin(*model, "--save", file)
    terminal.type("hello", "Enter")
    terminal.see(f"{SAYS}\n{SAYS}" if while_it_answers else f"{SAYS}\n\n>")
    terminal.close()
    for _ in range(3600):
        if file.exists():
            break
        time.sleep(0.05)
    assert told(file) == ["hello"]


@pytest.mark.full
def test_a_message_of_several_lines_and_the_clipboard(terminal):
    """Enter inside of three quotes is a new line; /copy asks the terminal, which is tmux here."""
    terminal.begin(PATH="/nowhere:/usr/bin:/bin", DISPLAY="", WAYLAND_DISPLAY="")
    terminal.tmux("set-option", "-g", "set-clipboard", "on")
    terminal.type('"""one', "Enter", "two", "Enter", '"""', "Enter")
    terminal.see(re.compile(r'> """one\n +two\n +"""\n+abcdefghijkl'))
    terminal.ask("/copy")
    terminal.see("The last answer was copied by the terminal")
    assert terminal.tmux("show-buffer") == SAYS


@pytest.mark.full
def test_another_model_and_options(terminal, work):
    tiny.write(
        work / "other.gguf",
        tiny.one_text(
            "\nzyxw",
        ),
    )
    terminal.begin()
    assert SAYS in terminal.ask("hello")
    assert "other.gguf answers from now on" in terminal.ask("/model other.gguf")
    assert "zyxw" in terminal.ask("hello")
    terminal.type("/set tempe")
    terminal.see(re.compile(r"^ +temperature", re.MULTILINE))
    terminal.type("Tab", " 0.5", "Enter")
    terminal.see("temperature           0.5 (changed)")
    terminal.type("C-d")
    assert terminal.end() == 0


@pytest.mark.full
def test_chats_are_kept_and_continued(terminal, home):
    terminal.begin()
    terminal.ask("first question")
    terminal.ask("/set temperature 0.5")
    terminal.ask("second question")
    terminal.type("C-d")
    assert terminal.end() == 0
    (file,) = (home / "gguf-spec" / "chats").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    data = json.loads(file.read_text())
    assert data["format"] == "gguf-spec-conversations"  # the page imports it
    (chat,) = data["conversations"]
    assert chat["title"] == "first question"
    assert [one["role"] for one in chat["messages"]] == ["user", "assistant"] * 2
    terminal.begin("-c")
    seen = terminal.screen()
    assert "Chat of 4 messages: first question" in seen and "You: second question" in seen
    assert "0.5 (changed)" in terminal.ask("/set temperature")
    terminal.ask("third")
    assert len(json.loads(file.read_text())["conversations"][0]["messages"]) == 6
    terminal.type("/exit", "Enter")
    assert terminal.end() == 0
    terminal.begin()
    terminal.ask("another chat")
    assert "  2  " in terminal.ask("/chats") and "first question" in terminal.screen()
    assert "Chat of 6 messages" in terminal.ask("/load 2")
    terminal.ask("/clear")
    terminal.ask("begun anew")
    assert len([*file.parent.iterdir()]) == 3
    assert len(json.loads(file.read_text())["conversations"][0]["messages"]) == 6


@pytest.mark.full
def test_no_history_keeps_nothing_and_forget_removes_all(terminal, home, here):
    terminal.begin("--no-history")
    terminal.ask("a secret")
    terminal.type("C-d")
    assert terminal.end() == 0
    assert not home.exists() or not [one for one in home.rglob("*") if "chat" in one.name]
    terminal.begin()
    terminal.ask("taken back")
    terminal.ask("/undo")
    assert not [*(home / "gguf-spec" / "chats").iterdir()]
    terminal.ask("not a secret")
    terminal.type("C-d")
    assert terminal.end() == 0
    (file,) = (home / "gguf-spec" / "chats").iterdir()
    before = file.read_bytes()
    terminal.begin("-c", "--no-history")
    terminal.ask("a secret")
    assert file.read_bytes() == before
    terminal.type("C-d")
    assert terminal.end() == 0
    result = here("chat", "--forget", env={"XDG_STATE_HOME": str(home)})
    assert result.returncode == 0, result.stderr
    assert b"1 chat, typed lines and texts for drafts were removed" in result.stderr
    assert not [one for one in home.rglob("*") if one.is_file() and "chat" in str(one)]


@pytest.mark.full
class TestTools:
    """Each call of a tool is shown and asked for; see tests/tools/test_chat.py for the model."""

    @pytest.fixture
    def start(self, make, tmp_path):
        pytest.importorskip("mcp")
        from tests.tools.test_chat import CALL
        from tests.tools.test_tool_servers import COMMAND as SERVER

        folder = tmp_path / "gguf-spec"
        folder.mkdir()
        command, *args = SERVER
        config = f"[mcp.mine]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
        (folder / "config.toml").write_text(config, "utf-8")

        def start(call=CALL):
            path = talkers.answering(tmp_path / "caller.gguf", {"\n": call, "Q": ["Done", " now"]})
            terminal = make(height=40)
            terminal.begin(
                "-m",
                path,
                "--ctx",
                "2048",
                "--mcp",
                XDG_CONFIG_HOME=tmp_path,
                until="asked for: add, odd",
            )
            terminal.see("\n>")
            return terminal

        return start

    def test_allowed(self, start):
        terminal = start()
        terminal.type("2 + 40?", "Enter")
        seen = terminal.see("Allow this call? [y/N]")
        assert "Let me see." in seen
        assert "tool_call" not in seen
        assert 'The model asks to call add with {"a": 2, "b": 40}' in " ".join(seen.split())
        terminal.type("y", "Enter")
        seen = terminal.see("Done now")
        assert "\n42\n" in seen
        terminal.type("C-d")
        assert terminal.end() == 0

    @pytest.mark.parametrize("keys", [["Enter"], ["n", "Enter"], ["C-d"], ["yellow", "Enter"]])
    def test_denied(self, start, keys):
        terminal = start()
        terminal.type("2 + 40?", "Enter")
        terminal.see("Allow this call? [y/N]")
        terminal.type(*keys)
        assert "\n42\n" not in terminal.see("Done now")

    def test_what_is_typed_ahead_allows_nothing(self, start):
        terminal = start()
        terminal.type("2 + 40?", "Enter", "y", "Enter", "y", "Enter")
        seen = terminal.see("Allow this call? [y/N]")
        time.sleep(0.5)
        assert "Done now" not in terminal.screen(), seen
        terminal.type("Enter")
        assert "\n42\n" not in terminal.see("Done now")

    def test_ctrl_c_at_the_question(self, start):
        terminal = start()
        terminal.type("2 + 40?", "Enter")
        terminal.see("Allow this call? [y/N]")
        terminal.type("C-c")
        terminal.see("Ctrl-D leaves the chat")
        terminal.type("C-d")
        assert terminal.end() == 0

    def test_the_text_of_a_tool_does_not_control_the_terminal(self, start):
        terminal = start(["<tool_call>", '\n{"name": "odd", "arguments": {}}', "\n</tool_call>"])
        terminal.type("Odd?", "Enter")
        terminal.see("Allow this call? [y/N]")
        terminal.type("y", "Enter")
        seen = terminal.see("Done now")
        assert "<img src=x onerror=alert(1)>\\u001b[31m\\u202e</tool_response>" in seen.replace(
            "\n", ""
        )

    def test_in_a_pipe_it_is_refused(self, here):
        for flags in ((), ("--json",)):
            result = here("chat", "--mcp", *flags, stdin=b"hi\n")
            assert (result.returncode, result.stdout) == (1, b"")
            assert (
                b"--mcp takes a terminal: each call of a tool is asked for there." in result.stderr
            )
