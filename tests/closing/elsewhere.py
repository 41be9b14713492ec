"""Close a model in the middle of each kind of call of another thread: ClosedError or a clean result, never a crash, never a hang.

Usage: elsewhere.py FOLDER N_TIMES
"""

import random
import sys
import threading
from pathlib import Path

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ClosedError
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec_compat import Llama
from tests.closing.children import default_signals

LIMIT_S = 60
FREE = Sampling(max_tokens=40, seed=1, ignore_eos=True)
FIXED = Speculation(4, adaptive=False)
LONG = "Once upon the time and on " * 40
MESSAGES = [{"role": "user", "content": "hi <|im_end|> " * 20}]


def look_inside(llm):
    with llm.models() as (target, draft):
        for model in filter(None, (target, draft)):
            model.rollback(0)
            model.read([1, 2, 3, 4])
            assert model.logits([5, 6, 7], 3).shape[0] == 3
            model.rollback(2)


def read(stream):
    with stream:
        return sum(len(chunk.tokens) for chunk in stream)


OF_AN_LLM = {
    "generate": lambda llm, _: llm.generate("ab", FREE),
    "generate, fixed": lambda llm, _: llm.generate("ab", FREE, speculation=FIXED),
    "generate, grammar and DRY": lambda llm, _: llm.generate(
        "ab", Sampling(max_tokens=20, grammar='root ::= "a"+', dry_multiplier=1.0)
    ),
    "stream": lambda llm, _: read(llm.stream("ab", FREE)),
    "a long prompt": lambda llm, _: llm.generate(LONG, FREE),
    "chat.send": lambda llm, _: llm.chat(sampling=FREE).send("hi"),
    "tokenize": lambda llm, _: llm.tokenize(LONG),
    "tokenize a short text": lambda llm, _: llm.tokenize("Once upon"),
    "tokenize messages": lambda llm, _: llm.tokenize(MESSAGES),
    "pieces": lambda llm, _: [(llm.token_bytes(i), llm.token_text(i)) for i in range(200)],
    "save a session": lambda llm, folder: llm.save_session(
        folder / f"kept-{threading.get_ident()}", {}
    ),
    "restore a session": lambda llm, folder: llm.restore_session(folder / "kept"),
    "forget": lambda llm, _: (llm.generate("ab", FREE), llm.forget()),
    "look inside": lambda llm, _: look_inside(llm),
}
OF_A_LLAMA = {
    "create_completion": lambda llama: llama.create_completion("ab", max_tokens=20),
    "create_chat_completion": lambda llama: llama.create_chat_completion(MESSAGES, max_tokens=20),
    "create_completion in parts": lambda llama: list(
        llama.create_completion("ab", max_tokens=20, stream=True)
    ),
    "tokens": lambda llama: llama.detokenize(llama.tokenize(b"Once upon \xff")),
    "generate": lambda llama: sum(1 for _ in zip(range(20), llama.generate([1, 2]), strict=False)),
    "reset": lambda llama: llama.reset(),
}
OF_A_MODEL = {  # nothing protects a bare model but the mechanism itself
    "rows": lambda model: (model.logits([1, 2, 3], 2).sum(), model.rollback(0)),
    "read": lambda model: (model.read([7] * 200), model.rollback(100), model.rollback(0)),
    "state": lambda model: (
        model.read([1, 2, 3]),
        model.restore([1, 2, 3], 3, model.state().tobytes()),
        model.rollback(0),
    ),
    "vocabulary": lambda model: (
        model.weights.tokenize(LONG, special=True),
        [model.weights.token_text(i) for i in range(200)],
        model.is_end(3),
        model.weights.chat_template,
    ),
}


def close_during(one, call, rng, n_threads):
    """Let threads call until `one` is closed; return what went wrong."""
    counts, wrong, begun = [0] * n_threads, [], threading.Semaphore(0)

    def work(i):
        try:
            while True:
                begun.release()
                call(one)
                counts[i] += 1
        except ClosedError:
            pass
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for _ in range(
        rng.randrange(1, 12)
    ):  # calls that have begun, so that it is closed in any of them
        while not begun.acquire(timeout=0.1) and not wrong:
            pass
    for _ in range(rng.randrange(3000)):  # and somewhere in it
        pass
    closer = threading.Thread(target=one.close, daemon=True)
    for thread in (closer, *threads):
        if thread is closer:
            thread.start()
        thread.join(LIMIT_S)
        if thread.is_alive():
            wrong.append("hangs")
    return wrong


def main(folder, n_times):
    default_signals()
    folder, rng, n, failed = Path(folder), random.Random(1), 0, []
    options = {"threads": 1, "n_ctx": 2000, "extra_bufts": False}

    def pair():
        return gguf_spec.load(folder / "llama.gguf", folder / "twin.gguf", **options)

    with pair() as llm:
        llm.generate("ab", FREE)
        llm.save_session(folder / "kept", {})
    makers = [
        (f"LLM: {name}", pair, lambda llm, call=call: call(llm, folder), 2)
        for name, call in OF_AN_LLM.items()
    ]
    makers += [
        (
            f"Llama: {name}",
            lambda: Llama(
                str(folder / "llama.gguf"),
                n_ctx=1000,
                n_threads=1,
                draft_model_path="ngram",
                verbose=False,
            ),
            call,
            2,
        )
        for name, call in OF_A_LLAMA.items()
    ]
    makers += [
        (
            f"Model: {name}",
            lambda: Context(
                folder / "llama.gguf", ContextOptions(n_ctx=512, threads=1, extra_bufts=False)
            ).sequences[0],
            call,
            1,
        )
        for name, call in OF_A_MODEL.items()
    ]
    for name, make, call, n_threads in makers:
        print(name, flush=True)
        for _ in range(int(n_times)):
            wrong = close_during(make(), call, rng, n_threads)
            n += 1
            if wrong:
                print("FAILED:", wrong, flush=True)
                failed.append(name)
    print(f"{n} closings, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
