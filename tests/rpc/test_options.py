"""Workers without a build with the RPC backend: addresses, refusals, and local memory."""

import socket
import sys

import pytest

import gguf_spec
from gguf_spec import errors
from gguf_spec.doctor import doctor
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import memory
from gguf_spec.llama.options import ContextOptions
from gguf_spec.models import path
from gguf_spec_workers import remote, run_worker


@pytest.fixture
def with_rpc(monkeypatch):
    monkeypatch.setattr(remote, "has_rpc", lambda: True)


@pytest.mark.parametrize("address", ["", "host", "host:", ":5", "host:0", "host:65536", "host:x", "[::1]:5", "host:٣", 5])  # fmt: skip
def test_wrong_addresses(address, with_rpc):
    with pytest.raises(errors.InvalidOptionError, match=r"HOST:PORT|localhost:50052"):
        gguf_spec.load("tales", rpc=[address])
    with pytest.raises(errors.InvalidOptionError, match="HOST:PORT"):
        run_worker(address)


def test_a_build_without_rpc_is_named_with_what_builds_one(monkeypatch):
    monkeypatch.setattr(remote, "has_rpc", lambda: False)
    for call in (
        lambda: gguf_spec.load("tales", rpc="127.0.0.1:5"),
        lambda: run_worker("127.0.0.1:5"),
    ):
        with pytest.raises(errors.InvalidOptionError) as caught:
            call()
        assert str(caught.value) == "this build of llama.cpp has no RPC backend."
        assert caught.value.hint == (
            "build one in a clone: GGUF_SPEC_BUILD_RPC=1 scripts/run --version."
        )


def test_without_the_package_its_name_is_the_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf_spec_workers", None)
    with pytest.raises(
        errors.NotInstalledError, match="a target on workers needs gguf-spec-workers"
    ) as caught:
        gguf_spec.load("tales", rpc="127.0.0.1:5")
    assert caught.value.package == "gguf-spec-workers"
    assert caught.value.hint.startswith("run pip install . plugins/gguf-spec-workers in a clone")
    options = ContextOptions(threads=1, rpc=("127.0.0.1:5",), extra_bufts=False)
    (check,) = [one for one in doctor(options=options).checks if one.name == "workers"]
    assert (check.status, check.todo) == ("fail", caught.value.hint)


def test_the_doctor_loads_nothing_without_its_workers(monkeypatch):
    monkeypatch.setattr(remote, "has_rpc", lambda: False)
    checks = doctor(
        options=ContextOptions(threads=1, rpc=("127.0.0.1:5",), extra_bufts=False)
    ).checks
    found = {one.name: one.status for one in checks}
    assert (found["workers"], found["draft"], found["room"]) == ("fail", "ok", "ok")
    assert "loading" not in found


@pytest.mark.parametrize("address", ["0.0.0.0:50052", "192.0.2.1:50052"])
def test_other_machines_require_the_flag(address, with_rpc, monkeypatch):
    monkeypatch.setattr(remote, "serve", lambda *_: pytest.fail("it listens"))
    with pytest.raises(errors.InvalidOptionError, match="controls the process") as caught:
        run_worker(address)
    assert "ssh -L" in caught.value.hint
    assert "insecure_listen_anywhere=True" in caught.value.hint


def test_a_worker_needs_a_free_port(with_rpc, monkeypatch):
    monkeypatch.setattr(remote, "serve", lambda *_: pytest.fail("it listens"))
    with socket.create_server(("127.0.0.1", 0)) as one:
        with pytest.raises(errors.GgufSpecError, match="cannot listen"):
            run_worker(f"localhost:{one.getsockname()[1]}")
        with pytest.raises(errors.InvalidOptionError, match="threads"):
            run_worker("127.0.0.1:5", threads=0)


def test_a_worker_that_cannot_be_reached(with_rpc):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert remote.unreachable([f"127.0.0.1:{port}"]) == []
    with pytest.raises(errors.WorkerError) as caught:
        gguf_spec.load("tales", rpc=[f"127.0.0.1:{port}"])
    assert caught.value.workers == (f"127.0.0.1:{port}",)


def test_only_what_stays_here_counts():
    header = ModelFile(path("tales")).header
    n_layers = header.whole("block_count")

    def needs(**options):
        return memory.needs([(header, ContextOptions(n_ctx=512, **options))])

    local, away = needs(), needs(rpc=("host:1",))
    blocks = sum(one.n_bytes for one in header.tensors if one.name.startswith("blk."))
    assert away.caches == 0
    assert away.idle - local.idle >= blocks
    assert away.added < local.added + memory._CHILD - blocks // 2
    half = needs(rpc=("host:1",), gpu_layers=n_layers // 2)
    assert 0 < half.caches < local.caches
    assert local.idle < half.idle < away.idle
    assert needs(rpc=("host:1",), gpu_layers=0).caches == local.caches
