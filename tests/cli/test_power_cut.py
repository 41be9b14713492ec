"""The power goes at 200 random moments: each file is the old or the new one, and what was said to be written is there.

The disk is a real one: ext4 in a file, without what ext4 does on its own for files that are renamed without fsync. What has
not reached that file when the writer is stopped is lost; a copy of it is mounted, and read.
"""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.errors import GgufSpecError
from tests.support import children
from tests.support.hub import Hub

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
TARGET = TALES / "tales-target-Q8_0.gguf"
CUTS = int(os.environ.get("GGUF_SPEC_CUTS", "25"))  # of each of the eight
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() or not shutil.which("mkfs.ext4"),
        reason="no file system can be made here",
    ),
]
# A writer stops itself before and after some of its calls that change the disk.
STOPS = """
import os, random, signal, sys
_random, _disk, _rate = random.Random(int(sys.argv[1])), sys.argv[2], float(sys.argv[3])
def _stop():
    if _random.random() < _rate:
        os.kill(os.getpid(), signal.SIGSTOP)
def _hook(event, given):
    if event in {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"} and str(given[0]).startswith(_disk):
        _stop()
sys.addaudithook(_hook)
_fsync = os.fsync
def _synced(handle):
    _stop()
    _fsync(handle)
    _stop()
os.fsync = _synced
_n = 0
def done():
    "Say that one more is written."
    global _n
    _n += 1
    os.pwrite(_told, b"%20d" % _n, 0)
_told = os.open(sys.argv[4], os.O_CREAT | os.O_RDWR)
disk = _disk
"""


def mounted(image, folder, options="loop"):
    folder.mkdir(exist_ok=True)
    made = children.run(["mount", "-o", options, image, folder], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr!r}")


class Disk:
    """A file system that loses what was not synced."""

    def __init__(self, folder):
        self.image, self.folder, self._lost = folder / "disk.img", folder / "disk", folder / "cut"
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        children.run(["mkfs.ext4", "-q", "-F", "-J", "size=4", self.image], check=True)
        mounted(self.image, self.folder, "loop,noauto_da_alloc,data=writeback,commit=900")

    @contextmanager
    def cut(self):
        """Return the folder of the disk as it is after a loss of power."""
        image = self.image.with_name("cut.img")
        while True:  # until nothing reached it during the copy
            data = self.image.read_bytes()
            if data == self.image.read_bytes():
                break
        image.write_bytes(data)
        mounted(image, self._lost)
        try:
            yield self._lost
        finally:
            children.run(["umount", self._lost], check=True)

    def close(self):
        children.run(["umount", self.folder], check=True)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path)
    yield made
    made.close()


def cuts(disk, code, *, rate=0.1, most=CUTS, env=None):
    """Run a writer, and yield the folder after each loss of power, with the number of things that were said to be written."""
    told = disk.image.with_name("told")
    arguments = [random.Random(code).randrange(1000), disk.folder, rate, told]
    child = children.Child(
        [sys.executable, "-c", STOPS + code, *arguments],
        env=os.environ | (env or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        limit_s=500,
    )
    try:
        for _ in range(most):
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                child.returncode = os.waitstatus_to_exitcode(status)
                raise AssertionError(child.stderr.read())
            n = int(told.read_bytes() or 0)
            with disk.cut() as folder:
                yield folder, n
            child.send_signal(signal.SIGCONT)
    finally:
        child.kill()
        child.communicate()


def only(folder):
    """Return the names in a folder, without what atomic writes have left."""
    return sorted(one.name for one in folder.iterdir() if one.suffix != ".part") if folder.exists() else []  # fmt: skip


def test_this_disk_loses_what_was_not_synced(disk):
    """Or the other tests see nothing."""
    code = """
from gguf_spec.system.files import atomic_write
from pathlib import Path
for i in range(1000):
    with atomic_write(Path(disk, f"{i}"), lasting=False) as part:
        part.write_text("x" * 5000)
    os.sync() if i % 5 == 0 else None
    done()
"""
    whole = lost = 0
    for folder, n in cuts(disk, code, rate=0.3):
        texts = [folder / f"{i}" for i in range(n)]
        whole += sum(one.exists() and one.read_text() == "x" * 5000 for one in texts)
        lost += sum(not one.exists() or one.read_text() != "x" * 5000 for one in texts)
    assert whole and lost


EDIT = """
os.environ["XDG_STATE_HOME"] = disk + "/state"
from pathlib import Path
from gguf_spec.cli.text_file import TextFile
path = Path(disk, "notes.txt")
path.write_text("0 " * 9000); path.chmod(0o640); os.sync(); done()
for i in range(1, 10**6):
    TextFile(path).write(f"{i} " * 9000)
    done()
"""


def test_an_edited_file_and_its_undo(disk, monkeypatch):
    from gguf_spec.cli.text_file import Undo

    seen = set()
    for folder, n in cuts(disk, EDIT):
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        if not n:
            continue
        words = (folder / "notes.txt").read_text().split()
        assert stat.S_IMODE((folder / "notes.txt").stat().st_mode) == 0o640
        number = int(words[0])
        assert words == [words[0]] * 9000
        assert number in (n - 1, n), (number, n)
        seen.add(number)
        if number:
            entry = [one for one in Undo().entries() if one["text"].read_text().startswith(f"{number - 1} ")]  # fmt: skip
            assert len(entry) == 1
            entry[0]["path"] = str((folder / "notes.txt").resolve())
            monkeypatch.setattr(Undo, "entries", lambda self, entry=entry: entry)
            Undo().restore(folder / "notes.txt")
            assert (folder / "notes.txt").read_text() == f"{number - 1} " * 9000
            monkeypatch.undo()
        assert set(only(folder)) <= {"lost+found", "notes.txt", "state"}
    assert len(seen) > 3


SESSION = """
os.environ["XDG_CACHE_HOME"] = disk + "/cache"
import gguf_spec
from gguf_spec import Sampling
from gguf_spec.speculative.pair import ModelPair
ModelPair.measure = lambda _: None
with gguf_spec.load("tales", threads=1) as llm:
    for i in range(1, 10**6):
        chat = llm.chat(sampling=Sampling(max_tokens=8, seed=1))
        for _ in range(1 + i % 3):
            chat.send("Tell me of a fox.")
        chat.save(disk + "/talk.session")
        done()
"""


def test_a_session_and_its_key(disk, monkeypatch, tales):
    lengths = set()
    for folder, n in cuts(disk, SESSION):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        session = folder / "talk.session"
        assert session.exists() or not n
        if session.exists():
            data, why = tales.restore_session(session)
            assert why == ""
            lengths.add(len(data["messages"]))
            assert len(data["messages"]) // 2 in (1 + n % 3, 1 + (n + 1) % 3)
    assert len(lengths) > 1


CHATS = """
os.environ["XDG_STATE_HOME"] = disk
from gguf_spec.cli.chat.kept import KeptChats
chats = KeptChats()
for i in range(1, 10**6):
    messages = []
    chats.begin()
    for k in range(3):
        messages += [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "x" * 3000}]
        chats.write(messages, "m", {})
    done()
"""


def test_kept_chats(disk, monkeypatch):
    from gguf_spec.cli.chat.kept import KeptChats

    for folder, n in cuts(disk, CHATS, rate=0.02):
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        kept = KeptChats()
        chats = kept.newest()
        assert len(chats) == len(only(kept.folder)), "each file is whole"
        whole = {one.title for one in chats if len(one.messages) == 6}
        assert {f"{i}" for i in range(max(1, n - 190), n + 1)} <= whole


CONFIG = """
os.environ["XDG_CONFIG_HOME"] = disk
os.environ["EDITOR"] = "true"
from gguf_spec.cli import cli
for i in range(10**6):
    try:
        cli.main(["config", "edit"], standalone_mode=False)
    except SystemExit:
        pass
    done()
    os.unlink(disk + "/gguf-spec/config.toml"); os.sync()
"""


def test_the_config_file(disk):
    from gguf_spec.cli import config

    for folder, _ in cuts(disk, CONFIG):
        file = folder / "gguf-spec" / "config.toml"
        assert not file.exists() or file.read_text(encoding="utf-8") == config._TEMPLATE


QUANTIZE = """
from gguf_spec.quantize import quantize
for i in range(10**6):
    quantize(%r, disk + "/small.gguf", ["Q5_0", "Q4_0"][i %% 2], threads=1, force=True)
    done()
"""


def test_a_quantised_file(disk, tmp_path):
    from gguf_spec.quantize import quantize

    right = {}
    for kind in ("Q5_0", "Q4_0"):
        quantize(TARGET, tmp_path / kind, kind, threads=1)
        right[kind] = (tmp_path / kind).read_bytes()
    for folder, n in cuts(disk, QUANTIZE % str(TARGET), rate=0.4):
        made = folder / "small.gguf"
        assert made.exists() or not n
        assert not made.exists() or made.read_bytes() in right.values()
        assert set(only(folder)) <= {"lost+found", "small.gguf"}


PULL = """
from gguf_spec.cli import cli
import shutil
for i in range(10**6):
    cli.main(["models", "pull", "one", "--models-file", os.environ["MODELS"]], standalone_mode=False)
    done()
    if i % 2 == 0:
        cli.main(["models", "remove", "one", "--yes", "--models-file", os.environ["MODELS"]], standalone_mode=False)
        os.sync()
"""


def test_a_download(disk, tmp_path, monkeypatch, set_hub):
    """A file that is not whole is never taken for one that was verified."""
    from gguf_spec.registry import download

    body = TARGET.read_bytes()
    with Hub() as hub:
        hub.add("m.gguf", body)
        models = hub.models_file(tmp_path / "models.yaml", one="m.gguf")
        env = hub.environment(disk.folder)
        found = set()
        for folder, _ in cuts(disk, PULL, rate=0.03, env=env | {"MODELS": str(models)}):
            for name, value in hub.environment(folder).items():
                monkeypatch.setenv(name, value)
            set_hub(HF_HUB_CACHE=str(folder / "hub"))
            there = download.find("one", models)
            if there and download.verified("one", models):
                assert there.read_bytes() == body
            if there:
                found.add(there.read_bytes() == body)
                try:
                    with gguf_spec.load(there, None, n_ctx=64, threads=1) as llm:
                        assert there.read_bytes() == body, llm
                except GgufSpecError:
                    assert there.read_bytes() != body
    print(found)


BATCH = """
from pathlib import Path
import gguf_spec
from gguf_spec import Sampling
from gguf_spec.batch import Batch
from gguf_spec.batch.requests import LineDefaults
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.batch import Output
ModelPair.measure = lambda _: None
put = Output.put
def put_and_stop(*given):
    put(*given)
    _stop()
Output.put = put_and_stop
source = Path(disk, "in.jsonl")
source.write_text("".join('{"prompt": "Once %d"}\\n' % i for i in range(100))); os.sync()
done()
with gguf_spec.load("tales", threads=1) as llm:
    while True:
        with Batch(source, Path(disk, "out.jsonl")) as run:
            run.run(llm, LineDefaults(Sampling(max_tokens=4, seed=1)))
        os.unlink(disk + "/out.jsonl")
"""


def test_the_results_of_a_batch(disk, tales):
    """What was lost is answered again, and no line twice."""
    from gguf_spec import Sampling
    from gguf_spec.batch import Batch
    from gguf_spec.batch.requests import LineDefaults

    n_kept = set()
    for folder, n in cuts(disk, BATCH, rate=0.02):
        if not n:
            continue
        target = folder / "out.jsonl"
        n_kept.add(target.read_bytes().count(b"\n") if target.exists() else 0)
        source = folder / "few.jsonl"
        source.write_bytes(b"".join((folder / "in.jsonl").read_bytes().splitlines(True)))
        with Batch(source, target) as run:
            run.run(tales, LineDefaults(Sampling(max_tokens=4, seed=1)))
        lines = [json.loads(one) for one in target.read_bytes().splitlines()]
        assert len(lines) == 100
    assert len(n_kept) > 1
