"""`gguf-spec chat`: in a pipe here, at a terminal in test_chat_terminal.py."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.cli.chat import loop
from gguf_spec.errors import GgufSpecError
from tests.support import children, tiny
from tests.support.programs import shell_program

SAYS = "abcdefghijkl"


@pytest.fixture(scope="session")
def chat(here, work):
    """Run `chat` with one thread and greedily on a model that always answers the same; arguments that come later override."""
    tiny.write(work / "chat.gguf", tiny.one_text("\n" + SAYS))  # a question ends with a newline
    tiny.write(
        work / "plain.gguf", tiny.one_text(":" + SAYS), metadata={"tokenizer.chat_template": None}
    )

    def run(lines, *args, run=here, **options):
        stdin = (
            lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
        )
        words = ("chat", "--threads", 1, "-t", 0, "-m", "chat.gguf", "-d", "none", *args)
        return run(*words, stdin=stdin, **options)

    return run


def seen(result):
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def test_a_turn_a_line_and_nothing_else_on_stdout(chat):
    assert seen(chat(["hello", "", "  ", "again"])) == (0, f"{SAYS}\n{SAYS}\n", "")


@pytest.mark.full
def test_a_last_line_without_a_newline_counts(chat, cli):
    assert seen(chat(b"hello\r\nagain", run=cli)) == (0, f"{SAYS}\n{SAYS}\n", "")


def test_empty_input_has_no_turns(chat):
    assert seen(chat([])) == (0, "", "")


def test_bytes_that_are_not_text_do_not_end_the_chat(chat):
    assert seen(chat(b"\xff\xfe\x00 a\xc3\n")) == (0, f"{SAYS}\n", "")


@pytest.mark.parametrize("encoding", ["utf-16", pytest.param("utf-32-le", marks=pytest.mark.full)])
def test_lines_in_other_encodings(chat, cli, encoding):
    """As programs of Windows write them; a command is found, so nothing is noise."""
    lines = "a text that is long enough\n/set seed 3\nagain\n".encode(encoding)
    assert seen(chat(lines, run=cli)) == (
        0,
        f"{SAYS}\n{SAYS}\n",
        "seed                  3 (changed)\n",
    )


@pytest.mark.parametrize("data", [b"a\n" + bytes(5000), b'a\n"""\n' + b"y\n" * 2600])
def test_an_endless_message_ends_the_chat(chat, data, monkeypatch):
    monkeypatch.setattr(loop, "MOST_BYTES", 5000)
    code, out, err = seen(chat(data))
    assert (code, out) == (1, f"{SAYS}\n")
    assert "which no context holds" in err
    assert err.count("Error") == 1


def objects(result):
    return [json.loads(line) for line in result.stdout.decode().splitlines()]


def test_json_has_an_object_for_each_turn(chat):
    result = chat(["hello", "again"], "--json", "--logprobs", "1")
    first, second = objects(result)
    assert (result.returncode, result.stderr) == (0, b"")
    assert first["text"] == second["text"] == SAYS
    assert (first["finish_reason"], first["target"], first["draft"], first["dropped"]) == (
        "stop",
        "chat.gguf",
        None,
        0,
    )
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(
        first["tokens"]
    )  # the whole conversation
    assert len(first["logprobs"]) == len(first["tokens"])


def test_the_system_message_is_read(chat):
    plain, told, later = (
        objects(chat(lines, "--json", *args))[-1]["prompt_tokens"]
        for lines, args in (
            (["hi"], ()),
            (["hi"], ("-s", "Be brief.")),
            (["/system Be brief.", "hi"], ()),
        )
    )
    assert plain < told == later
    code, _, said = seen(chat(["/system", "/system Be brief.", "/system", "/system -", "/system"]))
    assert (code, said.splitlines()) == (
        0, ["There is no system message.", "The system message applies from the next answer on.", "Be brief.", "The system message applies from the next answer on.", "There is no system message."],
    )  # fmt: skip


def test_an_error_ends_only_its_own_turn(chat):
    code, out, err = seen(chat(["x" * 300, "hello"], "--ctx", "128"))
    assert (code, out) == (1, f"{SAYS}\n")
    assert err.splitlines()[0].startswith("Error: the prompt has ")
    assert err.splitlines()[1].startswith("Hint: ")
    result = chat(["x" * 300, "hello"], "--ctx", "128", "--json")
    failed, answered = objects(result)
    assert result.returncode == 1
    assert "the prompt has" in failed["error"]
    assert failed["hint"]
    assert answered["text"] == SAYS


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/hlep", "did you mean /help?"),
        ("/q", "did you mean /quit?"),
        ("/xyzzy", "/help lists them."),
        ("/undo it", "begin the line with a space"),
    ],
)
def test_an_unknown_command_gets_a_hint(chat, line, hint):
    code, out, err = seen(chat([line]))
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    assert hint in err


@pytest.mark.parametrize("line", [" /help", "/etc/hosts is a file", "/2 is a half"])
def test_other_text_with_slashes_is_sent_to_the_model(chat, line):
    assert seen(chat([line])) == (0, f"{SAYS}\n", "")


def test_quit_ends_it(chat):
    assert seen(chat(["hello", "/quit", "again"])) == (0, f"{SAYS}\n", "")


def test_help_names_every_command(chat):
    _, out, err = seen(chat(["/help"]))
    assert out == ""
    names = "/help /system /reset /undo /retry /stats /draft /save /load /quit Alt-Enter Ctrl-C"
    for word in names.split():
        assert word in err


def test_undo_and_reset_make_the_prompt_short_again(chat):
    one, two, undone, anew = (
        turn["prompt_tokens"]
        for turn in objects(chat(["hi", "hi", "/undo", "hi", "/reset", "hi"], "--json"))
    )
    assert one < two == undone
    assert anew == one
    code, _, err = seen(chat(["hi", "/undo", "/undo", "/retry", "/stats"]))
    assert code == 1
    assert err.startswith("Removed: hi\nError: there is no question to remove.\n")
    assert "Error: there is no question to answer again.\n" in err
    assert "speed " in err  # what the answer cost is still known


def test_retry_has_another_seed_that_a_fixed_seed_gives_again(here):
    run = ["chat", "--threads", "1", "-n", "12", "--json", "--seed", "5"]
    first, again = (
        objects(here(*run, stdin=b"Tell me a story.\n/retry\n/retry\n")) for _ in range(2)
    )
    assert [turn["seed"] for turn in first] == [5, 6, 7]
    assert len({turn["text"] for turn in first}) == 3
    assert len({turn["prompt_tokens"] for turn in first}) == 1
    assert [turn["text"] for turn in again] == [turn["text"] for turn in first]


def test_the_draft_can_be_switched_off_and_on(chat):
    lines, drafts = ["hi", "/draft off", "hi", "/draft on", "hi"], ("-d", "chat.gguf", "-k", "2")
    turns = objects(chat(lines, "--json", *drafts, "--fixed"))
    assert [turn["stats"]["n_drafted"] > 0 for turn in turns] == [True, False, True]
    assert {turn["text"] for turn in turns} == {SAYS}
    code, _, err = seen(chat(["/draft off", "/draft", "/draft on", "/draft perhaps"]))
    assert code == 1
    assert err.startswith(
        "Speculation is off.\nSpeculation is off.\nError: the models were loaded without speculation.\n"
    )
    assert "use on, off, show or hide" in err


def test_the_oldest_turns_are_dropped_on_request(chat):
    lines = ["x" * 40] * 3  # the third is too much, and `shift` keeps a quarter free for the answer
    code, out, err = seen(chat(lines, "--ctx", "160"))
    assert (code, out) == (1, f"{SAYS}\n{SAYS}\n")
    assert "Hint: " in err
    result = chat(lines, "--ctx", "160", "--overflow", "shift", "--json")
    assert (result.returncode, [turn["dropped"] for turn in objects(result)]) == (0, [0, 2, 2])
    assert (
        result.stderr.decode().splitlines()[-1]
        == "Note: the context was full, so the oldest 2 messages were dropped."
    )


def test_a_saved_conversation_is_continued(chat, tmp_path):
    file = tmp_path / "talk.session"
    code, _, err = seen(chat(["hello", "more"], "--save", file))
    assert code == 0
    assert err.startswith(f"Saved 4 messages in {file} (")
    whole = objects(chat(["hello", "more", "last"], "--json"))[-1]
    result = chat(["last", "/save"], "--load", file, "--json")
    assert objects(result)[0]["prompt_tokens"] == whole["prompt_tokens"]
    said = result.stderr.decode().splitlines()
    assert said[:3] == [f"Loaded 4 messages from {file}.", "You: more", f"Answer: {SAYS}"]
    assert said[3].startswith(f"Saved 6 messages in {file} (")
    within = objects(chat([f"/load {file}", "/undo", "last"], "--json"))
    assert within[0]["prompt_tokens"] == whole["prompt_tokens"]


def test_caches_of_other_models_are_not_used_and_a_note_says_so(chat, tmp_path):
    file = tmp_path / "talk.session"
    chat(["hello", f"/save {file}"])
    code, out, err = seen(chat([f"/load {file}", "more"], "-m", "plain.gguf"))
    assert (code, out) == (0, f"{SAYS}\n")
    assert "Note: the next answer reads the conversation again: " in err


@pytest.mark.parametrize(
    "line",
    [
        "/load gone.session",
        "/load chat.gguf",
        "/load ~nobody-here/x",
        "/save gone/x",
        "/save ~nobody-here/x",
        "/save",
        "/load",
    ],
)
def test_a_file_that_cannot_be_used_does_not_end_the_chat(chat, line):
    code, out, err = seen(chat([line, "hello"]))
    assert (code, out) == (1, f"{SAYS}\n")
    assert err.count("Error: ") == err.count("Hint: ") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "args", [("--load", "gone.session"), ("--save", "gone/x"), ("--save", ".")]
)
def test_a_file_that_cannot_be_used_is_an_error_before_the_first_turn(chat, args):
    code, out, err = seen(chat(["hello"], *args))
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")


def test_an_empty_conversation_does_not_overwrite_a_saved_one(chat, tmp_path):
    file = tmp_path / "talk.session"
    file.write_bytes(b"mine")
    assert seen(chat([], "--save", file)) == (0, "", "")
    assert file.read_bytes() == b"mine"


def test_a_model_without_a_template_is_noted(chat):
    code, out, err = seen(chat(["hello"], "-m", "plain.gguf"))
    assert (code, out) == (0, f"{SAYS}\n")
    assert (
        err
        == "Note: the model has no chat template: it reads User: and Assistant: before each message.\n"
    )


def test_probabilities_go_to_stderr(chat):
    code, out, err = seen(chat(["hello"], "--logprobs", "0", "-n", "2"))
    assert (code, out) == (0, "ab\n")
    assert [line.split()[-1] for line in err.splitlines()] == ["'a'", "'b'"]


def test_a_bad_option_is_an_error_before_a_model_is_loaded(chat):
    assert chat([], "--top-p", "2", "-m", "gone.gguf").returncode == 2
    assert chat([], "--overflow", "spill").returncode == 2


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("when", ["in an answer", "between two"])
def test_sigterm_saves_and_ends_the_chat(chat, work, environment, tmp_path, number, code, when):
    tiny.write(
        work / "on.gguf",
        tiny.one_text("\n" + SAYS, for_ever=True),
        metadata={"llama.context_length": 100_000},
    )
    file, model = tmp_path / "talk.session", "on.gguf" if when == "in an answer" else "chat.gguf"
    words = "chat --threads 1 -d none -t 0 -n -1 --ctx 8192 --save"
    command = [sys.executable, "-m", "gguf_spec", *words.split(), str(file), "-m", model]
    with children.Child(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=work,
        env=environment,
        start_new_session=True,
    ) as child:
        child.stdin.write(b"hello\n")
        child.stdin.flush()
        first = child.stdout.read(len(SAYS))
        if when == "between two":
            first += child.stdout.read(1)
        child.send_signal(number)
        rest, err = (
            child.stdout.read(),
            child.stderr.read(),
        )  # and it does not wait for the end of its input
        child.wait(timeout=180)
    assert child.returncode == code
    assert (first + rest).decode().startswith(SAYS)
    assert (first + rest).endswith(b"\n")
    assert err.decode().splitlines()[-1].startswith("Saved 2 messages in ")
    assert b"Traceback" not in err
    assert b"Ctrl-D" not in err
    assert seen(chat(["/undo"], "--load", file, "-m", model, "--ctx", "8192"))[0] == 0


@pytest.mark.parametrize(
    ("number", "keep_on", "code"),
    [(signal.SIGINT, True, 0), (signal.SIGINT, False, 130), (signal.SIGTERM, True, 143)],
)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_signal_cancels_the_answer_even_one_that_has_not_begun(number, keep_on, code, when):
    from gguf_spec.cli.chat.loop import Signals

    class Turn:
        cancelled = False

        def cancel(self):
            self.cancelled = True

    def start():
        if when == "during":
            signal.raise_signal(number)
        return Turn()

    before = signal.getsignal(number)
    with Signals(keep_on) as signals:
        assert signals.wait(lambda: "line", pytest.fail) == "line"
        if when == "before":
            signal.raise_signal(number)
        turn = signals.open(start)
        assert turn.cancelled == (when != "after")
        if when == "after":
            signal.raise_signal(number)
        assert turn.cancelled
        assert signals.code == code
        if code:
            with pytest.raises(SystemExit):
                signals.wait(lambda: "line", pytest.fail)
        else:
            assert signals.wait(lambda: "line", pytest.fail) == "line"
            assert not signals.open(Turn).cancelled
    assert signal.getsignal(number) == before


class AtLine:
    """Calls a function before one line of some packages, when it is first reached."""

    def __init__(self, packages, line=None, call=None):
        self._folders = tuple(str(Path(one.__file__).parent) for one in packages)
        self._line, self._call, self.lines = line, call, {}

    def _enter(self, frame, _event, _argument):
        return self._step if frame.f_code.co_filename.startswith(self._folders) else None

    def _step(self, frame, event, _argument):
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line not in self.lines:
            self.lines[line] = None
            if line == self._line:
                sys.settrace(None)
                self._call()
        return self._step

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)


@pytest.mark.full
def test_a_signal_at_any_line_of_the_editor_ends_the_chat(monkeypatch):
    """Also before its event loop begins, and where an exception would be caught: the chat does not wait for ever."""
    import asyncio

    import prompt_toolkit
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    from gguf_spec.cli import chat
    from gguf_spec.cli.chat.loop import Signals
    from gguf_spec.cli.chat.terminal import TerminalUI

    def typed(at):
        with (
            create_pipe_input() as keys,
            create_app_session(input=keys, output=DummyOutput()),
            Signals(keep_on=True) as signals,
        ):
            keys.send_text("hello\r")  # the editor ends if the signal is lost
            ui = TerminalUI(None, None, show_draft=False, keep_history=False)
            monkeypatch.setattr(ui._session, "bottom_toolbar", "")
            with at:
                return signals.wait(ui.read, ui.interrupt)

    packages = prompt_toolkit, asyncio, chat
    with AtLine(packages) as at:
        assert typed(at) == "hello"
    lines = [*at.lines][:-20]  # in the last ones `wait` returns
    assert len(lines) > 1000
    lost = []
    begins = [line for line in lines if line[0] == asyncio.runners.__file__]
    for line in (*lines[:: len(lines) // 5], *begins[::4]):
        at = AtLine(packages, line, lambda: signal.raise_signal(signal.SIGHUP))
        try:
            typed(at)
        except SystemExit as error:
            assert error.code == 129
        except BaseException as error:
            lost.append((line, error))
        else:
            lost.append((line, None)) if line in at.lines else None
    assert not lost


# ---- options, models, files, blocks


def test_set_changes_options(chat):
    lines = [
        "/set temperature 0.5",
        "/set top-p",
        "/set n_predict 3",
        "hello",
        "/set max_tokens default",
        "hello",
    ]
    code, out, err = seen(chat(lines))
    assert (code, out) == (0, f"{SAYS[:3]}\n{SAYS}\n")
    said = err.splitlines()
    assert said[0] == "temperature           0.5 (changed)"
    assert said[1].startswith("top_p                 0.95")
    assert said[2] == "Keep the most likely tokens up to this total probability."
    assert said[3] == "max_tokens            3 (changed)"
    assert said[4] == "max_tokens            1024"


def test_set_takes_lists_and_shows_all_options(chat):
    code, out, err = seen(chat(["/set stop 'e f' def", "hello", "/set stop none", "hello", "/set"]))
    assert (code, out) == (0, f"abc\n{SAYS}\n")
    assert {"temperature", "k", "drafter", "logit_bias", "json_schema"} <= {
        line.split()[0] for line in err.splitlines()
    }
    assert err.count("overflow") == 1  # that of the chat, not of one answer


SET_WRONG = {
    "/set temperature hot": "--temperature is 'hot' but must be",
    "/set temperature -1": "--temperature is -1.0 but must be",
    "/set tempratur 1": "did you mean temperature?",
    "/set ignore_eos perhaps": "--ignore-eos is 'perhaps' but must be on or off",
    "/set k 4": "loaded without speculation",
    "/set grammar gone.gbnf": "gone.gbnf cannot be read",
}


@pytest.mark.parametrize(("line", "said"), SET_WRONG.items())
def test_set_refuses_and_keeps_the_rest(chat, line, said):
    code, out, err = seen(chat([line, "hello"]))
    assert (code, out) == (1, f"{SAYS}\n")
    assert said in err
    assert "omit --" not in err
    if "must be" in said:
        field = line.split()[1]
        assert f"Hint: use such a value, or /set {field} default." in err


def test_set_ctx_loads_the_model_with_another_context(chat):
    lines = [
        "/set ctx",
        "hello",
        "/set max_tokens 2",
        "/set --ctx-size 300",
        "/undo",
        "/set ctx 5k",
        "/set",
    ]
    code, _out, err = seen(chat(lines))
    said = err.splitlines()
    assert code == 1 and "The context holds 300 tokens. The conversation is read again." in said
    assert "Removed: hello" in said  # the conversation is still there
    assert "Error: --ctx is '5k' but must be a whole number, 2 or more." in said
    assert f"{'max_tokens':<22}2 (changed)" in said and said[-2:] == [
        f"{'ctx':<22}300",
        f"{'overflow':<22}error",
    ]


def test_a_message_that_is_too_long_names_the_command_for_a_larger_context(chat):
    code, _out, err = seen(chat(["/set ctx 64", "a" * 200]))
    assert code == 1 and "Hint: /set ctx 256 goes on with a larger one, or send less." in err


def test_model_keeps_the_conversation_and_what_was_set(chat, work):
    tiny.write(work / "other.gguf", tiny.one_text("\nzyxw"))
    lines = [
        "/set max_tokens 2",
        "hello",
        "/model other.gguf",
        "again",
        "/model",
        "/undo",
        "/undo",
        "/undo",
    ]
    code, out, err = seen(chat(lines))
    assert (code, out) == (1, "ab\nzy\n")
    said = err.splitlines()
    assert (
        "other.gguf answers from now on. It reads the conversation before its first answer." in said
    )
    assert "other.gguf, with drafts from the text only." in said
    assert [line for line in said if line.startswith("Removed")] == [
        "Removed: again",
        "Removed: hello",
    ]


def test_a_model_that_is_not_there_changes_nothing(chat):
    code, out, err = seen(chat(["/model gone.gguf", "/model", "hello"]))
    assert (code, out) == (1, f"{SAYS}\n")
    assert "there is no file gone.gguf" in err
    assert "chat.gguf, with drafts from" in err


def test_a_file_is_sent_with_the_next_message_only(chat, tmp_path):
    (tmp_path / "a.txt").write_text("x" * 40 + "\n", encoding="utf-8")
    (tmp_path / "b.bin").write_bytes(b"a\0b")
    lines = [
        f"/file {tmp_path}/a.txt",
        "hello",
        "hello",
        f"/file {tmp_path}/a.txt",
        "/file -",
        "hello",
    ]
    result = chat(lines, "--json")
    first, second, third = objects(result)
    assert "With the next message: a.txt (40 bytes)." in result.stderr.decode()
    grown = second["prompt_tokens"] - first["prompt_tokens"]
    assert first["prompt_tokens"] > 40
    assert third["prompt_tokens"] - second["prompt_tokens"] == grown
    given = chat(["hello", "hello"], "--json", "--file", str(tmp_path / "a.txt"))
    assert "With the next message: a.txt (40 bytes)." in given.stderr.decode()
    assert [one["prompt_tokens"] for one in objects(given)] == [
        one["prompt_tokens"] for one in (first, second)
    ]
    code, out, err = seen(chat(["hello"], "-f", str(tmp_path / "gone")))
    assert (code, out) == (1, "")
    assert "gone cannot be read" in err
    code, _, err = seen(chat([f"/file {tmp_path}/b.bin", f"/file {tmp_path}/gone"]))
    assert code == 1
    assert "b.bin is not a text file in UTF-8" in err
    assert "gone cannot be read" in err


def test_a_message_of_several_lines(chat):
    result = chat(['"""a', "/quit", 'b"""', '""" one """', '"""', "two", '"""'], "--json")
    first, second, third = objects(result)
    assert first["text"] == second["text"] == third["text"] == SAYS
    alone = objects(chat(["a"], "--json"))[0]["prompt_tokens"]
    assert first["prompt_tokens"] == alone + len("\n/quit\nb")
    code, out, err = seen(chat(['"""a', "b"]))
    assert (code, out) == (1, "")
    assert 'the input ended before the closing """' in err


@pytest.mark.full
def test_copy_needs_an_answer_and_a_clipboard(chat, tmp_path):
    programs = {"PATH": str(tmp_path), "DISPLAY": ":9"}
    code, _, err = seen(chat(["/copy", "hello", "/copy"], env=programs))
    assert code == 1
    assert "there is no answer yet" in err
    assert "the answer was not copied" in err
    shell_program(tmp_path / "xclip", f'/bin/cat > "{tmp_path}/copied"\n')
    code, _, err = seen(chat(["hello", "/copy"], env=programs))
    assert (code, err) == (0, "The last answer was copied with xclip.\n")
    assert (tmp_path / "copied").read_text() == SAYS


@pytest.mark.parametrize(("typed", "hint"), [
    ("/leave", "did you mean /quit?"), ("/temp 0", "did you mean /set?"), ("/rese", "/help lists them."),
    ("/und", "/help lists them."), ("/history", "did you mean /chats?"), ("/sav", "did you mean /save?"), ("/read x", "did you mean /file?"),
])  # fmt: skip
def test_hints_never_remove_anything(chat, typed, hint):
    code, _, err = seen(chat([typed]))
    assert code == 1
    assert f"Hint: {hint}" in err


def test_models_are_closed_if_the_chat_cannot_begin(monkeypatch):
    class LLM:
        speculation, closed, sampling_sources = Speculation(), False, {}

        def chat(self, **_):
            raise GgufSpecError("no chat template.", "use another model.")

        def close(self):
            self.closed = True

    llm = LLM()
    monkeypatch.setattr(loop, "load_models", lambda *_: llm)
    monkeypatch.setattr(loop, "to_sampling", lambda _: Sampling())
    monkeypatch.setattr(loop, "to_speculation", lambda _: llm.speculation)
    options = {
        "image": (),
        "file": (),
        "save": None,
        "load": None,
        "overflow": "error",
        "think": None,
    }
    with pytest.raises(GgufSpecError, match="no chat template"):
        loop.ChatLoop(options)
    assert llm.closed


def test_words_of_other_programs(chat):
    code, out, err = seen(chat(["hello", "/clear", "/bye", "never read"]))
    assert (code, out) == (0, f"{SAYS}\n")
    assert "All messages were removed." in err


def test_a_session_keeps_the_changed_options(chat, tmp_path):
    file = tmp_path / "talk.session"
    assert seen(chat(["hello", "/set max_tokens 3", '/set stop "x y"', f"/save {file}"]))[0] == 0
    code, out, err = seen(chat(["/set max_tokens", "again"], "--load", file))
    assert (code, out) == (0, "abc\n")
    assert "3 (changed)" in err


def test_kept_chats_that_are_damaged_are_left_out(tmp_path, monkeypatch):
    from gguf_spec.cli.chat import kept
    from gguf_spec.errors import SessionError

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chats = kept.KeptChats()
    assert chats.listed() == "No chat is kept yet."
    with pytest.raises(SessionError, match="no chat is kept") as none:
        chats.number(1)
    assert "/chats" not in none.value.hint, "it would list none"
    image = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:x"}},
    ]
    chats.write([{"role": "user", "content": image}, {"role": "assistant", "content": "\ud800"}], "m", {"k": 3})  # fmt: skip
    (one,) = chats.newest()
    assert (one.title, one.model, one.settings) == ("look [image]", "m", {"k": 3})
    assert one.messages[0]["content"] == "look [image]"
    for text in ("", "{", "[]", '{"conversations": [{}]}', '{"conversations": [{"messages": 5}]}'):
        (chats.folder / "0.json").write_text(text)
        assert len(chats.newest()) == 1
    with pytest.raises(SessionError, match="there is no chat 2"):
        chats.number(2)
    monkeypatch.setattr(kept, "atomic_write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))  # fmt: skip
    chats.write(one.messages, "m", {})
    assert "the chat is not kept" in chats.problem and "No space left" in chats.problem
    assert kept.forget()[0] == 2


def test_a_long_title_of_a_chat_is_cut_at_a_word(tmp_path, monkeypatch):
    from gguf_spec.cli.chat import kept

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chats = kept.KeptChats()
    long = "Which function parses the lines,\nand what does it return? Tell me."
    chats.write([{"role": "user", "content": long}, {"role": "assistant", "content": "x"}], "m", {})
    (one,) = chats.newest()
    assert one.title == "Which function parses the lines, and what does it return?..."


def test_the_chat_of_a_clock_that_was_set_back_is_kept(tmp_path, monkeypatch):
    """A box without a battery begins in 1970: the newest chat is not taken for the oldest one."""
    from gguf_spec.cli.chat import kept

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    times = (10**18, 10**18 + 1, 10**18 + 2, 5, 6)
    chats = kept.KeptChats(3, iter(times).__next__)
    for i in range(len(times)):
        chats.begin()
        chats.write([{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x"}], "m", {})  # fmt: skip
    assert [one.title for one in chats.newest()] == ["4", "3", "2"]
    assert [one.updated for one in chats.newest()] == [0, 0, 10**9]


def test_chats_are_in_the_order_of_their_last_answers(tmp_path, monkeypatch):
    """With one time for all, and with a clock that goes back; the one continued is kept the longest."""
    from gguf_spec.cli.chat import kept

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = 10**18
    chats = kept.KeptChats(3, lambda: now)

    def answer(title, n=1):
        pair = {"role": "user", "content": title}, {"role": "assistant", "content": "x"}
        chats.write([*pair] * n, "m", {})

    for title in "abc":
        chats.begin()
        answer(title)
    now = 5
    assert chats.number(3).title == "a"
    answer("a", 2)
    answer("a", 3)
    found = chats.newest()
    assert [(one.title, len(one.messages)) for one in found] == [("a", 6), ("c", 2), ("b", 2)]
    chats.begin()
    answer("d")
    assert [one.title for one in chats.newest()] == ["d", "a", "c"], "b had the oldest answer"
    (chats.folder / "of another program.json").write_bytes(found[1].path.read_bytes())
    assert [one.title for one in chats.newest()] == ["d", "a", "c", "c"]
    assert chats.number(2).title == "a"
    chats.write([{"role": "user", "content": "a"}], "m", {})
    assert [one.title for one in chats.newest()] == ["d", "c", "c"], "it has no answer now"


def test_overflow_is_set_in_the_chat(chat):
    _, _, shown = seen(chat(["/set overflow", "/set overflow shift", "/set overflow x"]))
    assert "overflow              error: a full context is an error." in shown
    assert "overflow              shift: the oldest messages are left out." in shown
    assert "Hint: write /set overflow shift, or /set overflow error." in shown


def test_a_full_chat_names_only_what_helps(chat):
    """At the length of the training no larger context; for one message alone no shift; and the named command works."""
    code, _, err = seen(chat(["a" * 3000], "--ctx", "2048"))
    assert code == 1 and err.splitlines()[-1] == "Hint: send less."
    lines = ["hello", "a" * 2040, "/set overflow shift", "a" * 1900]
    code, out, err = seen(chat(lines, "--ctx", "2048"))
    assert "Hint: /set overflow shift leaves out the oldest messages, or send less." in err
    assert err.count("Error: ") == 1 and out.count(SAYS) == 2


def test_options_of_loading_are_set_in_the_chat(chat):
    """What hints name can be done there: the models are loaded again, and a wrong value changes nothing."""
    lines = [
        "hello",
        "/set kv_type q8_0",
        "/set threads 1",
        "/set threads 0",
        "/set kv-type q9",
        "/set ctx -1",
        "/set kv_type default",
        "/set threads",
        "/set kv_type",
        "hello",
    ]
    code, out, err = seen(chat(lines))
    assert code == 1 and out.count(SAYS) == 2
    assert f"{'kv_type':<22}q8_0. The conversation is read again.\n{'threads':<22}1. The" in err
    assert "Hint: use such a value, or /set threads default.\n" in err
    assert "but must be one of f32, f16" in err
    assert "Hint: /set kv_type default to use its default.\n" in err
    assert "Hint: use such a value, or /set ctx default.\n" in err
    again = f"{'kv_type':<22}f16. The conversation is read again.\n"
    assert f"{again}{'threads':<22}1.\n{'kv_type':<22}f16.\n" in err


def test_hints_in_the_chat_name_its_commands(chat, tmp_path):
    (tmp_path / "it.gguf").write_bytes(b"<!doctype html>")
    lines = ["/set ctx 99999999", "/image it.png", f"/set mmproj {tmp_path / 'it.gguf'}"]
    code, _, err = seen(chat(lines))
    assert code == 1 and "--" not in err
    assert ", /set kv_type q8_0, use a smaller model or close other programs.\n" in err
    assert "Hint: /set mmproj to the projector file of the model.\n" in err
    assert "it.gguf is not a GGUF file but a web page" in err


@pytest.mark.parametrize(
    ("typed", "todo"),
    [
        ("/set system x", "use /system; /help lists the commands."),
        ("/set draft none", "use /draft; /help lists the commands."),
        ("/set hide-thinking on", "use /think; /help lists the commands."),
        ("/set --lora x", "start the chat again with it."),
        ("/set parrot 2", "/set lists them."),
    ],
)
def test_what_set_does_not_change_says_what_does(chat, typed, todo):
    assert seen(chat([typed]))[2].splitlines()[-1] == f"Hint: {todo}"
