"""Prompts that are read in small pieces beside other requests: the tokens are those of requests alone."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.gguf.architectures import architecture
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.passes import Exactness
from gguf_spec.runtime import prompt as prompt_module
from gguf_spec.speculative.cost_model import BatchCosts
from tests.support import families

PLAIN = {"threads": 1, "extra_bufts": False, "n_ctx": 512}
IN_TURNS = {"parallel": 4, "max_gap": 0.001}
LENGTHS = (3, 300, 40, 160, 7, 90, 250, 30)
REQUESTS = [
    {
        "prompt": [20 + (i * 7 + j * j) % 220 for j in range(n)],
        "sampling": Sampling(seed=i, max_tokens=12, ignore_eos=True),
    }
    for i, n in enumerate(LENGTHS)
]
RECURRENT = [name for name in families.NAMES if architecture(name).cache != "attention"]


@pytest.fixture
def pieces(monkeypatch):
    """Number of tokens of each pass of several requests that reads; reading is dear, so all are short."""
    found, decode = [], Context.decode
    monkeypatch.setattr(BatchCosts, "reading_s", lambda self, costs, n, n_past: float(n))

    def decode_some(self, parts, *more, **options):
        if len(self.sequences) > 1 and not any(part.n_rows for part in parts):
            found.append(sum(len(part.tokens) for part in parts))
        return decode(self, parts, *more, **options)

    monkeypatch.setattr(Context, "decode", decode_some)
    return found


def together(llm, requests):
    """Tokens of requests that begin at the same moment, each in a thread."""
    found = [None] * len(requests)

    def answer(i):
        found[i] = llm.generate(**requests[i]).tokens

    threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def alone(path, requests, draft=None):
    with gguf_spec.load(path, draft, **PLAIN) as llm:
        found = []
        for request in requests:
            llm.forget()
            found.append(llm.generate(**request).tokens)
        return found


@pytest.mark.parametrize("kind", ["llama", "mamba", "lfm2"])
def test_tokens_do_not_depend_on_pieces(gguf_dir, pieces, kind):
    path = gguf_dir / f"{kind}.gguf"
    right = alone(path, REQUESTS)
    with gguf_spec.load(path, None, **PLAIN, **IN_TURNS) as llm:
        for _ in range(2):  # then with caches
            assert together(llm, REQUESTS) == right
    assert pieces.count(16) > 20
    assert max(pieces) == 16


def test_grammars_and_drafts_beside_long_prompts(gguf_dir, pieces):
    path = gguf_dir / "llama.gguf"
    strict = Sampling(seed=3, max_tokens=12, grammar='root ::= [a-z ]{4,20} "."')
    requests = [
        replace_sampling(one, strict) if i % 2 else one | {"speculation": Speculation(4)}
        for i, one in enumerate(REQUESTS)
    ]
    right = alone(path, requests, gguf_dir / "twin.gguf")
    with gguf_spec.load(path, gguf_dir / "twin.gguf", **PLAIN, **IN_TURNS) as llm:
        assert together(llm, requests) == right
    assert pieces.count(16) > 20


def replace_sampling(request, sampling):
    return request | {"sampling": replace(sampling, seed=request["sampling"].seed)}


def test_choices_that_share_a_prompt_read_it_once(gguf_dir, pieces):
    path, prompt = gguf_dir / "llama.gguf", REQUESTS[1]["prompt"]
    requests = [
        {"prompt": prompt, "sampling": Sampling(seed=i, max_tokens=8, ignore_eos=True)}
        for i in range(4)
    ]
    right = alone(path, requests)
    with gguf_spec.load(path, None, **PLAIN, **IN_TURNS) as llm:
        pieces.clear()
        assert together(llm, requests) == right
    assert sum(pieces) < 2 * len(prompt)


def test_a_request_that_is_closed_while_its_prompt_is_read(gguf_dir):
    """Its slot is free again, and the others have their tokens."""
    path = gguf_dir / "llama.gguf"
    right = alone(path, REQUESTS)
    with gguf_spec.load(path, None, **PLAIN, **IN_TURNS) as llm:
        for stop_at in (1, 100, 200):
            llm.forget()
            seen = []

            def stop(now, stop_at=stop_at, seen=seen):
                seen.append(now.done)
                return now.done < stop_at

            others = REQUESTS[2:6]
            closing = threading.Thread(
                target=lambda stop=stop: llm.generate(**REQUESTS[1], on_prompt=stop)
            )
            closing.start()
            assert together(llm, others) == right[2:6]
            closing.join(60)
            assert not closing.is_alive()
            assert all(n < stop_at for n in seen[:-1])
            assert seen[-1] >= stop_at
        assert all(one.request is None for one in llm.slots())
        assert llm.generate(**REQUESTS[1]).tokens == right[1]


@pytest.mark.parametrize("name", RECURRENT)
def test_states_of_recurrent_layers_do_not_depend_on_pieces(tmp_path, name):
    options = ContextOptions(n_ctx=512, threads=1, extra_bufts=False)
    model = Context(families.write_family(tmp_path, name), options).sequences[0]
    text, rows = [20 + (j * j) % 200 for j in range(300)], []
    for ends in ((256, 299), range(16, 300, 16), (48, 50, 130, 131, 290), range(64, 300, 64)):
        model.rollback(0)
        at = 0
        for end in (*ends, 299):
            model.read(text[at:end])
            at = end
        rows.append(np.array(model.logits(text[299:], 1)))
    assert all(np.array_equal(one, rows[0]) for one in rows[1:])
    model.close()


def test_pieces_end_on_the_grid_where_ends_matter(gguf_dir, pieces, monkeypatch):
    ends, decode = [], Context.decode

    def decode_some(self, parts, *more, **options):
        found = decode(self, parts, *more, **options)
        if not any(part.n_rows for part in parts):
            ends.extend((part.sequence.n_past, len(part.tokens)) for part in parts)
        return found

    with gguf_spec.load(gguf_dir / "llama.gguf", None, **PLAIN, **IN_TURNS) as llm:
        llm.engine.target.context.exactness = Exactness(grid=64)
        monkeypatch.setattr(Context, "decode", decode_some)
        together(llm, REQUESTS)
    whole = {n - 1 for n in LENGTHS}
    assert all(end % 64 == 0 or end in whole for end, _ in ends)
    assert max(n for _, n in ends) <= 64


def test_a_prompt_that_is_prepared_holds_nobody(gguf_dir, monkeypatch):
    """A chat is rendered and tokenised in the thread of its request, while others are answered."""
    path = gguf_dir / "llama.gguf"
    begun, goes_on = threading.Event(), threading.Event()
    encode = prompt_module.encode_chat

    def slowly(*args, **options):
        begun.set()
        assert goes_on.wait(60)
        return encode(*args, **options)

    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with gguf_spec.load(path, None, chat_template=template, **PLAIN, **IN_TURNS) as llm:
        monkeypatch.setattr(prompt_module, "encode_chat", slowly)
        chat = [{"role": "user", "content": "abc ab " * 20}]
        sampling = Sampling(max_tokens=3, ignore_eos=True)
        found = []
        thread = threading.Thread(target=lambda: found.append(llm.generate(chat, sampling)))
        thread.start()
        assert begun.wait(60)
        assert len(llm.generate(**REQUESTS[0]).tokens) == 12
        assert not found
        goes_on.set()
        thread.join(60)
        assert len(found[0].tokens) == 3
