"""Folders of the user that are read-only, full, shared by two processes, or written by an older version."""

import shutil
import sys
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.system import files
from tests.support import children

pytestmark = pytest.mark.full

TARGET = Path(gguf_spec.__file__).parent / "data" / "tales" / "tales-target-Q8_0.gguf"
TALE = ["generate", "Once upon a time", "--seed", "1", "-n", "30", "--threads", "1"]


@pytest.fixture
def disk(tmp_path):
    """Mount a small file system and return its folder; `remount` changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or children.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield folder
    children.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def command(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")

    def run(*args, stdin="", **env):
        env = environment | {"XDG_CONFIG_HOME": str(folder / "config")} | env
        return children.run(
            [sys.executable, "-m", "gguf_spec", *map(str, args)],
            env=env,
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def own(command, tmp_path_factory):
    """A home in which the command has run once."""
    folder = tmp_path_factory.mktemp("own")
    assert command(*TALE, **home(folder)).returncode == 0
    return folder


@pytest.fixture(scope="module")
def tale(command, own):
    """Return the output of the command without a fault."""
    return command(*TALE, **home(own)).stdout


def home(folder):
    return {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / ".cache"),
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "HF_HOME": str(folder / "hf"),
    }


def full(folder):
    with (
        (folder / "filler").open("wb", buffering=0) as file,
        pytest.raises(OSError, match="No space"),
    ):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("state", ["read-only", "full"])
def test_a_read_only_home(command, own, tale, disk, state):
    if state == "full":
        full(disk)
    else:
        children.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = sorted(disk.iterdir())
    told = command(*TALE, **home(disk))
    assert (told.returncode, told.stdout, told.stderr) == (0, tale, "")
    talking, fox = ["chat", "--seed", "1", "-n", "5"], "Tell me of a fox.\n"
    right = command(*talking, stdin=fox, **home(own))
    talk = command(*talking, "--save", disk / "talk.session", stdin=fox, **home(disk))
    why = (
        "cannot be written: Read-only file system."
        if state == "read-only"
        else "bytes, but 0 are free."
    )
    assert (talk.returncode, talk.stdout) == (1, right.stdout), (
        "the answer is there, only its place is not"
    )
    assert (right.returncode, right.stdout != "") == (0, True)
    # the note names the cache, which cannot be written either
    said = [line.partition(" ")[0] for line in talk.stderr.splitlines()]
    assert said == ["Note:", "Error:", "Hint:"]
    assert why in talk.stderr
    if state == "full":  # the last of a file is what does not fit
        tuned = command("tune", "--threads", "1", **home(disk))
        assert (tuned.returncode, "Traceback" in tuned.stderr) == (0, False)
        assert "the result cannot be saved" in tuned.stderr
    doctor = command("doctor", **home(disk))
    assert doctor.returncode in (0, 1) and "Traceback" not in doctor.stderr
    advice = " ".join(doctor.stdout.split())
    assert ("change its permissions, or set XDG_CACHE_HOME" in advice) == (state == "read-only")
    assert ("free disk space, or set XDG_CACHE_HOME to another folder" in advice) == (
        state == "full"
    )
    assert [
        path for path in sorted(disk.iterdir()) if path not in before and path.suffix != ""
    ] == []


@pytest.mark.parametrize("state", ["read-only", "full"])
def test_files_that_were_asked_for_are_refused_in_one_line(command, disk, state):
    if state == "full":
        full(disk)
    else:
        children.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = command("models", "quantize", TARGET, disk / "small.gguf", "--type", "Q4_0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2].startswith("Error: ")
    assert done.stderr.splitlines()[-1].startswith("Hint: ")
    assert not (disk / "small.gguf").exists()
    assert not list(disk.glob("*.part"))


@pytest.mark.parametrize("state", ["read-only", "full"])
def test_what_cannot_be_written_is_named_with_the_right_advice(command, disk, state):
    """The advice was free space on a read-only disk, and the other way round; no file was named."""
    chat = disk / "state" / "gguf-spec" / "chats" / "1.json"
    chat.parent.mkdir(parents=True)
    chat.write_text("x")
    (disk / "config").mkdir()
    (disk / "in.jsonl").write_text('{"prompt": "A fox", "max_tokens": 3}\n')
    env = {f"XDG_{name.upper()}_HOME": str(disk / name) for name in ("state", "config")}
    if state == "full":
        full(disk)
    else:
        children.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    why, advice = {
        "full": ("No space left on device.", "free disk space"),
        "read-only": ("Read-only file system.", "check its folder and its permissions"),
    }[state]
    run = [
        ("config.toml", ["config", "edit"]),
        ("out.jsonl", ["batch", "-m", "tales", disk / "in.jsonl", disk / "out.jsonl"]),
        ("1.json", ["chat", "--forget"]),
        ("talk.session", ["chat", "-n", "3", "-m", "tales", "--save", disk / "talk.session"]),
    ]
    for name, words in run:
        done = command(*words, stdin="A fox.\n", EDITOR="true", **env)
        if state == "full" and name in ("1.json", "talk.session"):
            continue  # a file can be removed; the session is refused by its size
        *_, error, hint = done.stderr.splitlines()
        assert (done.returncode, name in error, error.endswith(why)) == (1 + (name == "config.toml"), True, True), done.stderr  # fmt: skip
        assert hint.startswith(f"Hint: {advice}"), name
    assert not (disk / "out.jsonl").exists(), "it had no result"


def test_processes_at_once_on_empty_caches(environment, tale, tmp_path):
    """All of them probe, measure and store at the same time."""
    env = environment | home(tmp_path / "new")
    tellers = [
        children.Child(
            [sys.executable, "-m", "gguf_spec", *TALE], env=env, stdout=-1, stderr=-1, text=True
        )
        for _ in range(4)
    ]
    assert [(*child.communicate(), child.returncode) for child in tellers] == [(tale, "", 0)] * 4
    assert not list((tmp_path / "new").rglob("*.part"))


OLD = ["", "{", "[]", '{"version": 1, "target": {"1": 0.1}}', '{"version": 99}', "\0\xff"]


@pytest.mark.parametrize(
    "first", [0, 3, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 4, 5))]
)
def test_a_cache_of_another_version(command, own, tale, first):
    """Each kind of file is read with each of these contents in tests of its own."""
    kept = [path for path in (own / ".cache" / "gguf-spec").rglob("*.json") if path.is_file()]
    assert len(kept) >= 2, "the probe's answer and the profile"
    for i, path in enumerate(sorted(kept), first):
        path.write_text(OLD[i % len(OLD)], encoding="latin-1")
    again = command(*TALE, **home(own))
    assert (again.returncode, again.stdout, again.stderr) == (0, tale, "")


def test_a_cache_that_is_not_a_folder(command, tale, tmp_path):
    (tmp_path / "file").write_text("mine")
    told = command(*TALE, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (told.returncode, told.stdout, told.stderr) == (0, tale, "")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("n_names", [1, 2])
def test_an_edit_and_its_undo_on_a_full_disk(command, disk, tmp_path, n_names):
    """A file with two names is written in place: also there, nothing is lost."""
    file, other = disk / "notes.ini", disk / "other.ini"
    text = "[a]\nport = 1\n" + "# a comment\n" * 4000
    file.write_text(text)
    if n_names == 2:
        other.hardlink_to(file)
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    words = ["edit", file, "set port to 22222", "--yes"]

    def refused(*words):
        before = file.read_text()
        full(disk)
        done = command(*words, **env)
        assert done.returncode == 1
        error, hint = done.stderr.splitlines()[-2:]
        assert error == f"Error: {file} cannot be written: No space left on device."
        assert hint.startswith("Hint: free disk space")
        assert file.read_text() == before
        (disk / "filler").unlink()
        assert len(list(disk.iterdir())) == n_names

    refused(*words)
    assert command(*words, **env).returncode == 0
    assert file.read_text() == text.replace("1", "22222", 1)
    refused("edit", "--undo", file)
    assert command("edit", "--undo", file, **env).returncode == 0
    assert file.read_text() == text
    assert n_names == 1 or file.samefile(other)


def test_a_full_disk_while_data_are_copied_into_a_file(disk):
    """The complete copy is on another disk here, so that only the file itself can be too long."""
    file = disk / "notes"
    file.write_bytes(b"old" * 1000)
    full(disk)
    (disk.parent / "part").write_bytes(b"new" * 9000)
    with pytest.raises(OSError, match="No space left"):
        files._fill(file, disk.parent / "part")
    assert file.read_bytes() == b"old" * 1000


def test_a_mounted_and_an_immutable_file(command, tmp_path):
    file, source = tmp_path / "notes.ini", tmp_path / "source.ini"
    file.touch()
    source.write_text("[a]\nport = 1\n")
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    mount = ["mount", "--bind", str(source), str(file)]
    if (
        not shutil.which("mount")
        or children.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file can be mounted here")
    try:
        done = command("edit", file, "set port to 2", "--yes", **env)
    finally:
        children.run(["umount", str(file)], check=True)
    assert (done.returncode, source.read_text()) == (0, "[a]\nport = 2\n"), done.stderr
    fixed = ["chattr", "+i", str(source)]
    if (
        not shutil.which("chattr")
        or children.run(fixed, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file can be made immutable here")
    try:
        done = command("edit", source, "set port to 3", "--yes", **env)
    finally:
        children.run(["chattr", "-i", str(source)], check=True)
    assert f"Error: {source} cannot be written: Operation not permitted." in done.stderr
    assert "Hint: see with lsattr whether it is immutable" in done.stderr
    assert (done.returncode, source.read_text()) == (1, "[a]\nport = 2\n")
