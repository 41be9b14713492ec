"""Two workers on the loopback hold the layers of a model; one is killed in the middle."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation, errors
from gguf_spec.llama import devices
from gguf_spec.llama.backend import offloads
from gguf_spec.server import serve_in_thread
from gguf_spec_workers import remote
from tests.server.conftest import ask, ask_text, until
from tests.support import children, encoders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not devices.has_rpc(), reason=f"llama.cpp has no RPC backend: {remote.BUILD}"
    ),
]
ROOT = Path(__file__).resolve().parents[2]
PROMPT = "The old king"


class Worker:
    """`gguf-spec worker` at a free port."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "gguf_spec",
            "worker",
            "--listen",
            self.address,
            "--threads",
            "1",
            "-q",
        ]
        self.process = children.Child(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )  # fmt: skip
        assert self.process.stdout.readline() == f"Listening at {self.address}\n"
        until(lambda: not remote.unreachable([self.address]))

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        code = self.process.wait()
        self.process.stdout.close()
        return code


@pytest.fixture
def workers():
    found = [Worker(), Worker()]
    yield found
    for one in found:
        if one.process.poll() is None:
            one.end()


def load(workers, model="tales", *rest, **options):
    return gguf_spec.load(model, *rest, threads=1, rpc=[one.address for one in workers], **options)


def held():
    """Return the processes that hold models of this one."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it ends just now
            if "gguf_spec_workers.child" in one.cmdline():
                found.append(one)
    return found


def test_an_rpc_build_has_no_gpu():
    """llama.cpp reports that it can offload; this must not change local runs."""
    assert not offloads() or devices.has_gpu()


# A run of this machine with the kernels of workers, of which a process has one kind: the texts of seeds 0 to 3.
LOCAL = f"""
import json, gguf_spec
from gguf_spec import Sampling
with gguf_spec.load("tales", "none", threads=1, kernels="stock", extra_bufts=False) as llm:
    print(json.dumps([llm.generate({PROMPT!r}, Sampling(seed=seed, max_tokens=80)).text for seed in range(4)]))
"""


def test_the_text_is_that_of_a_local_run(workers):
    local = json.loads(
        children.run([sys.executable, "-c", LOCAL], capture_output=True, check=True).stdout
    )
    for k in (0, 4):
        speculation = Speculation(k=k, adaptive=False)
        with load(workers, speculation=speculation) as llm:
            (child,) = held()
            for seed, text in enumerate(local):
                found = llm.generate(PROMPT, Sampling(seed=seed, max_tokens=80))
                assert found.text == text or found.stats.n_near_ties
            chat = llm.chat()
            assert chat.send("Hi", Sampling(seed=1, max_tokens=8)).text
        until(lambda child=child: not child.is_running())
    assert not held()


def test_the_costs_are_measured_through_the_workers(workers, tales):
    with load(workers, speculation=Speculation(k=4)) as llm:
        mine, local = llm.profile, tales.profile
        assert mine.measured_at != local.measured_at
        assert mine.target[1] > 0


def test_a_saved_session_is_restored(workers, tmp_path):
    with load(workers) as llm:
        chat = llm.chat()
        chat.send("Hi", Sampling(seed=1, max_tokens=8))
        chat.save(tmp_path / "a.session")
        other = llm.chat()
        other.restore(tmp_path / "a.session")
        assert llm.generate("Hi", Sampling(max_tokens=2)).text is not None


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_lost_worker_is_an_error_and_not_the_end(workers, in_thread):
    with load(workers) as llm:
        errors_found = []

        def generate():
            try:
                for _ in range(200):
                    llm.generate(
                        PROMPT, Sampling(max_tokens=400, ignore_eos=True), on_token=on_token
                    )
            except errors.WorkerError as error:
                errors_found.append(error)

        n = []

        def on_token(token):
            n.append(token)
            if len(n) == 50:
                workers[1].end()

        if in_thread:
            thread = threading.Thread(target=generate)
            thread.start()
            thread.join()
        else:
            generate()
        (error,) = errors_found
        assert error.workers == (workers[1].address,)
        assert f"no worker answers at {workers[1].address} any more" in str(error)
        assert "/" not in str(error)  # no path of the machine that built llama.cpp
        with pytest.raises(errors.WorkerError):
            llm.generate(PROMPT)
    assert not held()
    workers[1] = Worker()
    with load(workers) as llm:
        assert llm.generate(PROMPT, Sampling(max_tokens=3)).text


def test_an_interrupt_at_any_moment_leaves_the_pipe_usable(workers):
    with load(workers) as llm:
        sampling = Sampling(seed=2, max_tokens=60, ignore_eos=True)
        expected = llm.generate(PROMPT, sampling).text
        for i in range(30):
            sent = []

            def interrupt(_, sent=sent, i=i):
                if not sent:
                    sent.append(threading.Timer(i * 0.0004, signal.raise_signal, [signal.SIGINT]))
                    sent[0].start()

            with pytest.raises(KeyboardInterrupt):
                llm.generate(
                    PROMPT,
                    Sampling(seed=i, max_tokens=None, ignore_eos=True, overflow="shift"),
                    on_token=interrupt,
                )
            sent[0].join()
            if i % 10 == 9:
                assert llm.generate(PROMPT, sampling).text == expected


def test_the_server_continues_without_its_workers(workers):
    with load(workers) as llm, serve_in_thread(llm) as server:
        assert ask_text(server).status == 200
        workers[0].end()
        answer = ask_text(server)
        assert (answer.status, answer.code) == (503, "worker_lost")
        assert workers[0].address not in answer.body.decode()
        assert ask(server).status == 200


def test_workers_that_do_not_answer(workers):
    workers[1].end()
    with pytest.raises(errors.WorkerError, match=f"no worker answers at {workers[1].address}"):
        load(workers)
    with load(workers[:1]) as llm:
        assert llm.generate(PROMPT, Sampling(max_tokens=3)).text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gguf_spec_workers.remote._ANSWER_S", 2.0)
            with pytest.raises(errors.WorkerError, match="one program at a time"):
                load(workers[:1])
        assert llm.generate(PROMPT, Sampling(max_tokens=3)).text
    assert not held()


def test_another_program_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as one:
        address = f"127.0.0.1:{one.getsockname()[1]}"

        def refuse():
            while True:
                connection = one.accept()[0]
                connection.recv(1)
                connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(errors.WorkerError, match=f"workers at {address} cannot be used"):
            gguf_spec.load("tales", rpc=address)
    assert not held()


def test_cancelled_loading(workers):
    with pytest.raises(errors.LoadCancelledError):
        load(workers, progress=lambda now: False)
    assert not held()
    with load(workers, progress=lambda now: True) as llm:
        assert llm.n_ctx


def test_the_worker_ends_on_a_signal_and_refuses_other_machines(workers):
    assert workers[0].end(signal.SIGINT) == -signal.SIGINT
    assert workers[1].end(signal.SIGTERM) == -signal.SIGTERM


def test_the_command_line(workers):
    command = [
        sys.executable,
        "-m",
        "gguf_spec",
        "generate",
        "-m",
        "tales",
        "--seed",
        "3",
        "-n",
        "20",
        PROMPT,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    more = [part for one in workers for part in ("--rpc", one.address)]
    texts = [
        children.run([*command, *words], capture_output=True, text=True, env=environment, check=True).stdout
        for words in ([], more)
    ]  # fmt: skip
    assert texts[0] == texts[1] != ""
    workers[0].end()
    done = children.run(
        [*command, *more], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert re.match(r"Error: no worker answers at \S+\.\nHint: start it there with", done.stderr)


def test_embeddings_of_a_model_on_workers(workers, tales, tmp_path):
    """They have a context of their own in the child, which longer texts replace."""
    texts = ["A fox.", "The wolf said nothing.", "A long tale of a king. " * 60]
    with load(workers) as llm:
        before = llm.generate(PROMPT, Sampling(seed=1, max_tokens=20)).text
        for n in (2, 3, 1):
            assert llm.embed(texts[:n]) == pytest.approx(tales.embed(texts[:n]), abs=2e-3)
        again = llm.generate(PROMPT, Sampling(seed=1, max_tokens=20))
        assert again.text == before or again.stats.n_near_ties
        assert llm.embed("x", normalize=False).shape == (1, 256)
    assert not held()


@pytest.mark.parametrize("ranks", [False, True])
def test_models_that_only_compute_embeddings(workers, tmp_path, ranks):
    path = encoders.write(tmp_path / "bert.gguf", pooling=4 if ranks else 1, ranks=ranks)
    texts = ["the cat sat on the mat", "hello world", "zebra"]
    with load(workers, path) as llm, gguf_spec.load(path, threads=1) as local:
        if ranks:
            assert llm.rerank("moon", texts) == pytest.approx(local.rerank("moon", texts), abs=1e-2)
        else:
            assert llm.embed(texts) == pytest.approx(local.embed(texts), abs=2e-3)
    with load(workers, path, pooling="none") as llm:
        assert [len(rows) for rows in llm.embed(texts)] == [8, 4, 7]
