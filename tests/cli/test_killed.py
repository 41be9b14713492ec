"""kill -9 at random moments, three hundred times: files are complete or unchanged, and the next run works."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.cli.text_file import TextFile
from gguf_spec.registry.download import find
from gguf_spec.registry.resolve import entries
from gguf_spec.runtime import profile_files as profile_module
from tests.support import children
from tests.support.hub import Hub

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="no such signals there")]
KILLS = 50  # of each of the six
TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
TARGET = TALES / "tales-target-Q8_0.gguf"


def killed(code, *args, most_s, ready=True, env=None):
    """Run code that may print `ready`, and kill it some time later."""
    child = children.Child(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | (env or {}),
        text=True,
    )
    if ready:
        assert child.stdout.readline() == "ready\n"
    time.sleep(random.random() * most_s)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return child.returncode


def only(folder):
    return sorted(path.name for path in folder.iterdir())


SAVE = """
import sys, gguf_spec
from gguf_spec import Sampling
with gguf_spec.load("tales", threads=1) as llm:
    chat = llm.chat(sampling=Sampling(max_tokens=30, seed=1))
    for i in range(1000):
        chat.send("Tell me of a fox.") if i < 5 else None
        chat.save(sys.argv[1])
        if i == 0:
            print("ready", flush=True)
"""


def test_a_session_is_complete_or_unchanged(tmp_path, tales):
    session, lengths = tmp_path / "talk.session", set()
    for _ in range(KILLS):
        assert killed(SAVE, session, most_s=0.15) == -signal.SIGKILL
        data, why = tales.restore_session(session)
        assert why == ""
        lengths.add(len(data["messages"]))
    assert len(lengths) > 1, "it was never killed in the middle of a talk"
    chat = tales.chat(sampling=Sampling(max_tokens=5))
    chat.save(session)
    assert only(tmp_path) == ["talk.session"]


KEEP = """
import gguf_spec
from dataclasses import replace
from gguf_spec.runtime.profile_files import read_profile, write_profile
from gguf_spec.tune import tune
with gguf_spec.load("tales", threads=1) as llm:
    with llm.models() as pair:
        one = read_profile(*pair)
    if one is None:
        tune(llm)
        one = llm.profile
    with llm.models() as pair:
        print("ready", flush=True)
        for i in range(10**9):
            write_profile(*pair, replace(one, seconds=float(i)))
"""


def test_a_profile_is_complete_or_unchanged(tmp_path, monkeypatch, tales):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = set()
    for _ in range(KILLS):
        assert killed(KEEP, most_s=0.05) == -signal.SIGKILL
        with tales.models() as pair:
            profile = profile_module.read_profile(*pair)
        assert profile is not None
        seen.add(profile.seconds)
    assert len(seen) > 5
    done = children.run(
        [sys.executable, "-m", "gguf_spec", "tune", "--threads", "1", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["profile"]["target"]
    profiles = tmp_path / "gguf-spec" / "profiles"
    assert [path.suffix for path in profiles.iterdir()] == [".json"]


QUANTIZE = """
import sys
from gguf_spec.quantize import quantize
print("ready", flush=True)
while True:
    quantize(*sys.argv[1:3], "Q5_0", threads=1, force=True)
"""


def test_a_quantised_file_is_complete_or_unchanged(tmp_path):
    from gguf_spec.quantize import quantize

    made = tmp_path / "small.gguf"
    began = time.monotonic()
    quantize(TARGET, tmp_path / "right.gguf", "Q5_0", threads=1)
    most_s = 2 * (time.monotonic() - began)
    right = (tmp_path / "right.gguf").read_bytes()
    for _ in range(KILLS):
        assert killed(QUANTIZE, TARGET, made, most_s=most_s) == -signal.SIGKILL
        assert not made.exists() or made.read_bytes() == right
        made.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "gguf_spec",
        "models",
        "quantize",
        TARGET,
        made,
        "--type",
        "Q5_0",
        "--quiet",
    ]
    done = children.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    deadline = time.monotonic() + 180
    while only(tmp_path) != ["right.gguf", "small.gguf"] and time.monotonic() < deadline:
        time.sleep(0.1)  # the last quantiser that lost its parent may still be about to end
    assert only(tmp_path) == ["right.gguf", "small.gguf"]


TRIM = """
import sys
from gguf_spec_trim import trim
print("ready", flush=True)
while True:
    trim(*sys.argv[1:3], keep=1024, force=True)
"""


def test_a_trimmed_file_is_complete_or_unchanged(tmp_path):
    from gguf_spec_trim import trim

    made, right = tmp_path / "small.gguf", tmp_path / "right.gguf"
    began = time.monotonic()
    trim(TARGET, right, keep=1024)
    most_s = 2 * (time.monotonic() - began)
    for _ in range(KILLS):
        assert killed(TRIM, TARGET, made, most_s=most_s) == -signal.SIGKILL
        assert not made.exists() or made.read_bytes() == right.read_bytes()
        made.unlink(missing_ok=True)
    trim(TARGET, made, keep=1024)
    assert made.read_bytes() == right.read_bytes()
    assert only(tmp_path) == ["right.gguf", "small.gguf"]


EDIT = """
import sys
from pathlib import Path
from gguf_spec.cli.text_file import TextFile
print("ready", flush=True)
while True:
    for text in "ab":
        TextFile(Path(sys.argv[1])).write(text * 2_000_000)
"""


def what(file):
    found = file.stat()
    return found.st_mode, found.st_uid, found.st_gid


def test_an_edited_file_is_the_old_or_the_new_one(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("a" * 2_000_000, encoding="utf-8")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
    before = what(file)
    found = set()
    for _ in range(KILLS):
        assert killed(EDIT, file, most_s=0.2) == -signal.SIGKILL
        found.add(file.read_text(encoding="utf-8"))
        assert what(file) == before
    assert found == {"a" * 2_000_000, "b" * 2_000_000}
    TextFile(file).write("c")
    assert file.read_text(encoding="utf-8") == "c"
    assert only(tmp_path) == ["notes.txt"]


PULL = "import sys; from gguf_spec.cli import main; sys.argv[0] = 'gguf-spec'; main()"


def test_a_download_is_complete_or_missing(tmp_path, monkeypatch, set_hub):
    body = random.Random(1).randbytes(20_000_000)
    body = TARGET.read_bytes()[:4] + body[4:]
    with Hub() as hub:
        hub.add("m.gguf", body)
        models = hub.models_file(tmp_path / "models.yaml", one="m.gguf")
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        # read from HF_HOME once, by the first import in this process
        set_hub(HF_HUB_CACHE=str(tmp_path / "home" / "hub"))
        arguments = ["models", "pull", "one", "--models-file", models]
        remove = [
            sys.executable,
            "-m",
            "gguf_spec",
            "models",
            "remove",
            "one",
            "--yes",
            "--models-file",
            models,
        ]
        began = time.monotonic()
        children.run(
            [sys.executable, "-c", PULL, *map(str, arguments)], capture_output=True, check=True
        )
        most_s = 1.2 * (time.monotonic() - began)
        children.run(remove, check=True, capture_output=True)
        for _ in range(KILLS):
            code = killed(PULL, *arguments, most_s=most_s, ready=False)
            assert code in (0, -signal.SIGKILL)
            found = find(entries(models)["one"])
            if found:
                assert (
                    hashlib.sha256(found.read_bytes()).hexdigest()
                    == hashlib.sha256(body).hexdigest()
                )
                children.run(remove, check=True, capture_output=True)
        done = children.run(
            [sys.executable, "-c", PULL, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "sha256 verified" in done.stdout + done.stderr
        assert "rror" not in done.stdout + done.stderr
        assert find(entries(models)["one"])
