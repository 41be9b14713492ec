"""After `close` nothing uses native memory: each call works or raises an error."""

import gc
import sys
import weakref

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ClosedError
from gguf_spec.server import serve_in_thread
from tests.closing.children import run_child
from tests.server.conftest import ask
from tests.support import children

SHORT = Sampling(max_tokens=12, seed=1)
OPTIONS = {"threads": 1, "n_ctx": 256, "extra_bufts": False}


@pytest.mark.full
@pytest.mark.parametrize("way", ["", "bare"])
def test_every_public_member_works_without_native_memory_or_raises_closed_error(gguf_dir, way):
    """In a separate process: a fault ends it with SIGSEGV."""
    assert run_child("closed", gguf_dir, way).endswith(" 0 failed: []")


MESSAGES = {"messages": [{"role": "user", "content": "a"}]}
INPUT = {"input": "a", "max_output_tokens": 4}
RANKED = {"query": "a", "documents": ["b"]}
REFUSED = (  # a response that does not run in the background, and what is no PDF
    "/v1/responses/{id}/cancel",
    "/v1/documents/text",
)
BODIES = {
    "/v1/completions": {"prompt": "a"},
    "/infill": {"input_prefix": "a"},
    "/v1/edit": {"text": "a", "instruction": "x"},
    "/v1/chat/completions": MESSAGES,
    "/v1/responses": INPUT,
    "/v1/embeddings": {"input": "a"},
    "/v1/rerank": RANKED,
    "/rerank": RANKED,
    "/reranking": RANKED,
    "/v1/reranking": RANKED,
    "/v1/choose": {"prompt": "a", "options": ["b"]},
    "/v1/chat/completions/input_tokens": MESSAGES,
    "/apply-template": MESSAGES,
    "/completion": {"prompt": "a"},
    "/completions": {"prompt": "a"},
    "/embedding": {"content": "a"},
    "/embeddings": {"content": "a"},
    "/v1/messages": MESSAGES | {"max_tokens": 4, "model": "llama"},
    "/v1/messages/count_tokens": MESSAGES | {"model": "llama"},
    "/api/chat": MESSAGES,
    "/api/generate": {"prompt": "a"},
    "/api/embed": {"input": "a"},
    "/api/embeddings": {"prompt": "a"},
    "/api/show": {"model": "llama"},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]},
}
NEED_A_MODEL = {*BODIES, "/props", "/tokenizer_info"} - {"/api/show"}


def test_every_route_of_the_server_answers_after_close(gguf_dir):
    llm = gguf_spec.load(gguf_dir / "llama.gguf", None, **OPTIONS)
    with serve_in_thread(llm) as server:
        paths = ask(server, path="/openapi.json").json()["paths"]
        assert len(paths) > 20
        stored = ask(server, "POST", "/v1/responses", INPUT).json()["id"]
        llm.close()
        (listed,) = ask(server, path="/v1/models").json()["data"]
        assert listed["loaded"] is False
        asked = [(method, path) for path, methods in paths.items() for method in methods]
        for method, path in sorted(asked, reverse=True):  # "delete" is the last one
            place = path.replace("{name}", llm.name).replace("{id}", stored)
            reply = ask(server, method.upper(), place, BODIES.get(path))
            right = 503 if path in NEED_A_MODEL else 200
            if path in REFUSED:
                right = 400
            assert reply.status == right, (path, reply.body)


def use_in_many_ways(llm, gguf_dir):
    llm.generate("ab", SHORT)
    llm.generate("ab", Sampling(max_tokens=12, seed=1, dry_multiplier=1.0, grammar='root ::= "a"*'))
    llm.generate(
        "ab",
        Sampling(temperature=0, max_tokens=12),
        speculation=Speculation(4, adaptive=False),
    )
    llm.generate("ab", SHORT, speculation=Speculation(4, accept="block", adaptive=False))
    with llm.models() as (target, _):
        target.logits([1, 2, 3], 2)
    next(iter(llm.stream("ab", SHORT)))
    chat = llm.chat(sampling=SHORT)
    chat.send("hi")
    chat.save(gguf_dir / "kept")
    chat.restore(gguf_dir / "kept")


def test_close_frees_all_memory_that_is_not_in_use(gguf_dir):
    llm = gguf_spec.load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", **OPTIONS)
    natives = [weakref.ref(model.native) for model in (llm.engine.target, llm.engine.pair.draft)]
    gc.disable()
    try:
        use_in_many_ways(llm, gguf_dir)
        open_stream = llm.stream("ab", SHORT)
        next(open_stream)
        llm.close()
        assert [one() for one in natives] == [None, None], (
            "freed by `close`, not by the collector some time later"
        )
    finally:
        gc.enable()


@pytest.mark.full
def test_an_llm_that_is_dropped_frees_its_memory(gguf_dir):
    llm = gguf_spec.load(gguf_dir / "llama.gguf", None, **OPTIONS)
    native = weakref.ref(llm.engine.target.native)
    llm.generate("ab", SHORT)
    del llm
    gc.collect()
    assert native() is None


def test_rows_that_are_held_keep_their_memory(gguf_dir):
    llm = gguf_spec.load(gguf_dir / "llama.gguf", None, **OPTIONS)
    with llm.models() as (target, _):
        rows = target.logits([1, 2, 3], 2)
        copy, native = rows.copy(), weakref.ref(target.native)
    llm.close()
    view = rows[1:]
    del rows
    assert (view == copy[1:]).all()
    with pytest.raises(ClosedError):
        target.logits([1], 1)
    del view
    assert native() is None


AT_EXIT = """
import sys, threading, gguf_spec
from gguf_spec import Sampling
llm = gguf_spec.load(sys.argv[1], None, threads=1, n_ctx=256, extra_bufts=False)
endless = Sampling(max_tokens=None, ignore_eos=True, overflow="shift", seed=1)
{}
print("done")
"""
LEFT_OPEN = {
    "a stream": 'stream = llm.stream("ab", endless); next(stream)',
    "a stream in a cycle": 'class A: pass\na = A(); a.a = a; a.stream = llm.stream("ab", endless); next(a.stream)',
    "a turn": 'turn = llm.chat(sampling=endless).stream("hi"); next(turn)',
    "a stream of a module": 'import json; json.stream = llm.stream("ab", endless); next(json.stream)',
    "a thread in a round": "\n".join((
        "begun = threading.Event()",
        'threading.Thread(target=lambda: llm.generate_tokens([1, 2], endless, on_token=lambda _: begun.set()), daemon=True).start()',
        "begun.wait(180)",
    )),
    "a stream of compat": "\n".join((
        "from gguf_spec_compat import Llama",
        "their = Llama(sys.argv[1], n_ctx=256, n_threads=1, draft_model_path=None, verbose=False)",
        'parts = their.create_completion("ab", max_tokens=None, stream=True); next(parts)',
    )),
    "a row": "lent = llm.models(); target, _ = lent.__enter__(); row = target.logits([1, 2], 1)",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("what", LEFT_OPEN)
def test_a_program_that_leaves_streams_open_ends_normally(gguf_dir, what):
    program = AT_EXIT.format(LEFT_OPEN[what])
    child = children.run(
        [sys.executable, "-c", program, gguf_dir / "llama.gguf"],
        capture_output=True,
        text=True,
        limit_s=120,
        check=False,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "done\n", "")
