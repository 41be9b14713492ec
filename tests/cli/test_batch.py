"""`gguf-spec batch`: files of requests, continued after Ctrl-C and kill -9, the same with any number at once."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from gguf_spec.cli import output
from gguf_spec.cli.batch import duration, state, summary
from tests.batch.conftest import of_openai, read, write
from tests.support import children

TALES = ("-m", "tales", "--threads", "1")
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def batch(here, tmp_path):
    """Run `batch` in a folder of its own."""

    def run(*args, **options):
        return here("batch", *args, "--threads", "1", cwd=tmp_path, **options)

    return run


@pytest.mark.full
def test_a_file_of_both_formats(batch, work, tmp_path):
    lines = [
        {"prompt": "a"}, {"prompt": "abc", "max_tokens": 2, "id": "x"}, b"", b"no \x1b json",
        of_openai("o", prompt="ab", max_tokens=3), of_openai("p", "/v1/chat/completions", messages=HI, stream=True),
    ]  # fmt: skip
    write(tmp_path / "in.jsonl", lines)
    done = batch("in.jsonl", "out.jsonl", "-m", work / "abc.gguf", "-t", "0", "--raw", "-n", "5")
    assert (done.returncode, done.stdout) == (1, b"")
    results = read(tmp_path / "out.jsonl")
    assert [one.get("text") for one in results] == ["bcdef", "de", None, None, None]
    assert results[3]["response"]["body"]["choices"][0]["text"] == "cde"
    assert (results[0]["id"], results[1]["id"], results[3]["custom_id"]) == (1, "x", "o")
    notes = done.stderr.decode().splitlines()
    assert notes[0] == "Note: line 4: The line is not a JSON object in UTF-8."
    assert notes[1].startswith("Note: line 6: stream is not supported")
    assert notes[2].startswith("5 lines have a result, 2 of them an error: 10 tokens in ")
    again = batch("in.jsonl", "out.jsonl", "-m", work / "abc.gguf", "-t", "0", "--raw", "-n", "5")
    assert (again.returncode, again.stderr.decode()) == (
        1,
        "5 lines have a result (5 of them before), 2 of them an error.\n",
    )
    other = batch("in.jsonl", "out.jsonl", "-m", work / "abc.gguf", "-t", "0.5", "--raw", "-n", "5")
    assert (other.returncode, other.stdout) == (1, b"")
    assert other.stderr.decode().startswith(
        "Error: the results in out.jsonl are of another model or"
    )


def test_given_options_apply_to_lines_of_openai(batch, work, tmp_path):
    write(tmp_path / "in.jsonl", [of_openai("o", prompt="a"), of_openai("p", prompt="a", stop="d")])
    args = ("in.jsonl", "out.jsonl", "-m", work / "abc.gguf", "-t", "0", "--stop", "f")
    done = batch(*args, "--overflow", "shift")
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
    texts = [one["response"]["body"]["choices"][0]["text"] for one in read(tmp_path / "out.jsonl")]
    assert texts == ["bcde", "bc"]


@pytest.mark.parametrize("flags", [(), ("-q",)])
def test_a_pipe_is_told_how_far_it_is(batch, work, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(output, "LINE_S", 0.0)
    write(tmp_path / "in.jsonl", [{"prompt": "a"}] * 3)
    done = batch("in.jsonl", "out.jsonl", "-m", work / "abc.gguf", "-n", "4", *flags)
    assert (b" of 3 lines, " in done.stderr.splitlines()[0]) if not flags else (done.stderr == b"")


@pytest.mark.full
def test_standard_input_and_output(cli, work, tmp_path):
    stdin = b'{"prompt": "a"}\n{"prompt": "b"}'
    args = ("-", "-", "-m", work / "abc.gguf", "-t", "0", "--raw", "-n", "2", "-q")
    done = cli("batch", *args, "--threads", "1", stdin=stdin, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["bc", "cd"]
    assert [*tmp_path.iterdir()] == []
    done = cli("batch", *args[:-1], "--threads", "1", stdin=stdin, cwd=tmp_path)
    assert done.stderr.endswith(b" tok/s. 2 were cut at -n or a full context.\n")


@pytest.mark.full
def test_the_number_at_once_does_not_change_the_texts(batch, prompts, tmp_path):
    write(tmp_path / "in.jsonl", [{"prompt": one} for one in prompts[:16]])
    for n in (1, 4):
        args = ("in.jsonl", f"{n}.jsonl", "--seed", "7", "-n", "16", "--parallel", n, "-m", "tales")
        done = batch(*args)
        assert (done.returncode, b"16 lines have a result: 256 tokens" in done.stderr) == (0, True)
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "4.jsonl").read_bytes()
    assert len({one["seed"] for one in read(tmp_path / "1.jsonl")}) == 16


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("none.jsonl", "out.jsonl"), 1, "Error: none.jsonl cannot be read: No such file or directory."),
        (("in.jsonl", "in.jsonl"), 1, "Error: in.jsonl is both the file"),
        (("in.jsonl",), 2, "Missing argument 'OUT.jsonl'"),
        (("in.jsonl", "out.jsonl", "--parallel", "0"), 2, "--parallel"),
        (("in.jsonl", "out.jsonl", "--top-p", "7"), 2, "Error: --top-p is 7.0 but must be"),
        (("in.jsonl", "out.jsonl", "--raw", "-s", "x"), 2, "--system needs the chat template"),
        (("in.jsonl", "out.jsonl", "--think"), 2, "--think"),
        (("in.jsonl", "out.jsonl", "--stop-token", "999999"), 2, "--stop-token is 999999 but must be"),
    ],
)  # fmt: skip
def test_errors(batch, tmp_path, args, code, said):
    write(tmp_path / "in.jsonl", [{"prompt": "a"}])
    done = batch(*args, *TALES)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    out = tmp_path / "out.jsonl"
    assert not out.exists() or out.read_bytes() == b""


def test_many_bad_lines_are_not_all_named(batch, tmp_path):
    write(tmp_path / "in.jsonl", [b"x"] * 100)
    done = batch("in.jsonl", "out.jsonl", *TALES)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 22)
    assert b"100 lines have a result, 100 of them an error: 0 tokens" in done.stderr


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals there")
def test_a_terminal_shows_progress_and_ctrl_c_ends_it(work, environment, tmp_path):
    lines = [{"prompt": "a", "max_tokens": 3}, {"prompt": "b", "max_tokens": 3}, {"prompt": "c"}]
    write(tmp_path / "in.jsonl", lines)
    command = [
        sys.executable, "-m", "gguf_spec", "batch", "in.jsonl", "out.jsonl", "-m", str(work / "ever.gguf"),
        "-t", "0", "--raw", "-n", "-1", "--threads", "1", "--ctx", "50000", "--seed", "1", "--parallel", "2",
    ]  # fmt: skip
    code, seen = children.at_terminal(
        command, ctrl_c_at=b"2 of 3 lines, ", env=environment, cwd=tmp_path, size=(24, 100)
    )
    assert code == 130
    assert b" tok/s, " in seen
    assert b" left" in seen
    assert b"Interrupted: 2 of 3 lines have a result: " in seen
    assert b"Repeat the command to continue." in seen
    assert b"Traceback" not in seen
    assert [one["text"] for one in read(tmp_path / "out.jsonl")] == ["bcd", "cde"]


def test_texts():
    from gguf_spec.batch import BatchProgress

    now = BatchProgress(1200, 300, 2, 100, 5000, 100.0)
    assert state(now) == "300 of 1,200 lines, 2 failed, 50.0 tok/s, 8 min left"
    assert state(BatchProgress(None, 3, 0, 0, 50, 10.0)) == "3 lines, 5.0 tok/s"
    assert summary(now) == (
        "300 of 1,200 lines have a result (100 of them before), 2 of them an error: 5,000 tokens in 2 min, "
        "50.0 tok/s."
    )
    cut = summary(BatchProgress(3, 3, 0, 0, 60, 2.0, 3))
    assert (
        cut
        == "3 lines have a result: 60 tokens in 2.0 s, 30.0 tok/s. 3 were cut at -n or a full context."
    )
    assert [duration(s) for s in (0.04, 9.9, 99, 100, 5990, 12000)] == [
        "0.0 s", "9.9 s", "99 s", "2 min", "1 h 40 min", "3 h 20 min",
    ]  # fmt: skip


# ---- kill -9


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no such signal there")
@pytest.mark.parametrize("n_kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments(here, environment, prompts, tmp_path, n_kills):
    """The final file is that of an undisturbed run, and no finished line was answered again."""
    rng = random.Random(n_kills)
    lines = [
        {"prompt": one, "max_tokens": rng.randint(1, 60)}
        if i % 3
        else of_openai(f"é{i}", prompt=one, max_tokens=rng.randint(1, 30), n=2)
        for i, one in enumerate(prompts * (1 if n_kills < 9 else 8))
    ]
    write(tmp_path / "in.jsonl", [*lines[:20], b"bad", *lines[20:]])
    args = ["--seed", "3", "--parallel", "3", *TALES]
    right = here("batch", "in.jsonl", "right.jsonl", *args, cwd=tmp_path)
    assert right.returncode == 1
    whole, out = (tmp_path / "right.jsonl").read_bytes(), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "gguf_spec", "batch", "in.jsonl", "out.jsonl", *args, "-q"]
    sizes = [0]
    for _ in range(n_kills):
        with children.Child(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as child:
            while child.poll() is None and not (out.exists() and out.stat().st_size > sizes[-1]):
                time.sleep(0.001)
            time.sleep(rng.random() * 0.05)
            child.send_signal(signal.SIGKILL)
            _, said = child.communicate()
        assert said == b""
        assert whole.startswith(out.read_bytes())
        assert out.stat().st_size >= sizes[-1]
        sizes.append(out.stat().st_size)
        if rng.random() < 0.3:  # as a kill inside of a write leaves it
            os.truncate(out, max(0, sizes[-1] - rng.randint(1, 99)))
            sizes[-1] = out.stat().st_size
    assert len({*sizes}) > n_kills / 2
    last = here("batch", "in.jsonl", "out.jsonl", *args, cwd=tmp_path)
    assert last.returncode == 1
    assert out.read_bytes() == whole
    assert not (tmp_path / "out.jsonl.ahead").exists()
