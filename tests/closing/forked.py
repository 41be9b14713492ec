"""Fork with loaded models, or end the program, in one of many ways; run by way of test_processes.py.

Usage: forked.py KIND CASE PARALLEL
"""

import asyncio
import atexit
import contextlib
import gc
import io
import json
import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import weakref
from concurrent.futures import ProcessPoolExecutor

import gguf_spec
from gguf_spec import AsyncLLM, Sampling, Speculation
from gguf_spec.batch.requests import LineDefaults
from gguf_spec.errors import ClosedError, ForkedError, PromptTooLongError
from gguf_spec.llama import native
from gguf_spec.speculative.pair import ModelPair

SHORT = Sampling(max_tokens=4, seed=1)
LONG = Sampling(max_tokens=None, seed=1, ignore_eos=True, overflow="shift")


PLAIN = {"threads": 1, "speculation": Speculation(k=0), "kernels": "stock", "extra_bufts": False}


def load(parallel=1):
    ModelPair.measure = lambda _: None  # what is usual is good enough
    return gguf_spec.load("tales", parallel=parallel, **PLAIN)


def refuses(call):
    try:
        call()
    except ForkedError as error:
        assert isinstance(error, ClosedError)
        assert "each process" in error.hint
        return True
    return False


def in_child(child):
    """Call a function in the child of a fork; return its exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        code = 0 if child() is not False else 2
    except BaseException:
        logging.getLogger().exception("in the child")
    os._exit(code)


def busily(llm):
    """Keep a model busy in another thread, which logs, too."""

    def work():
        try:
            while True:
                for _ in llm.stream("Once upon a time", LONG):
                    logging.getLogger("x").info("a chunk")
        except ClosedError:
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.05)
    return thread


# ---- forks: each returns the exit code of the child


def fork_calls(llm):
    """Everything that a child may try with the objects of its parent."""
    from gguf_spec.server import serve_in_thread
    from gguf_spec_compat import Llama

    compat = Llama(str(llm.path), n_threads=1, verbose=False)
    chat, asynchronous = llm.chat(), AsyncLLM(llm)
    stream = llm.stream("Once", SHORT)
    next(stream)
    answer = compat.create_completion("Once", max_tokens=400, stream=True)
    next(answer)
    server = serve_in_thread(llm)

    async def later():
        return await asynchronous.generate("a", SHORT)

    def child():
        assert all(
            refuses(one)
            for one in (
                lambda: llm.generate("a", SHORT), lambda: llm.stream("a"), lambda: llm.tokenize("a"), lambda: llm.embed(["a"]),
                lambda: llm.choose("a", [" b"]), lambda: llm.generate_many(["a"]), lambda: chat.send("a"), lambda: next(stream),
                lambda: llm.save_session("x", {}), lambda: llm.vocabulary, lambda: compat.create_completion("a"),
                lambda: asyncio.run(later()), llm.forget, lambda: llm.slots() and llm.token_text(3),
                lambda: list(answer),
            )
        )  # fmt: skip
        stream.close()
        server.close()
        for _ in range(2):
            llm.close()
        assert "closed" in repr(llm)

    code = in_child(child)
    assert [*stream][-1].finish_reason == "length"  # the parent's goes on
    server.close()
    answer.close()
    return code


def fork_listened(llm):
    """The child hears nothing of the requests of its parent, which go on, and begins none."""
    heard, waiting, ends = [], llm.stream("a", SHORT) if llm.parallel > 1 else None, queue.Queue()
    here = os.getpid()

    def call(event):
        heard.append(os.getpid())
        if isinstance(event, gguf_spec.Ended):
            ends.put(event)

    stream = llm.stream("Once", LONG)
    stream.listen(call)
    while not heard:
        time.sleep(0.01)

    def child():
        assert refuses(lambda: next(stream))
        assert refuses(lambda: llm.stream("a", SHORT))
        assert waiting is None or refuses(lambda: waiting.listen(call))
        n = len(heard)
        stream.close()
        llm.close()
        time.sleep(0.1)
        assert len(heard) == n
        assert {*heard} == {here}

    code = in_child(child)
    stream.cancel()
    assert ends.get(timeout=60) == gguf_spec.Ended(None)
    assert {*heard} == {here}
    return code


def fork_new_load(llm):
    """A model that the child loads works, with threads of its own."""
    busily(llm)

    def child():
        with gguf_spec.load("tales", draft=None, **PLAIN | {"threads": 2}) as own:
            assert own.generate("Once", SHORT).tokens
        assert refuses(lambda: llm.generate("a", SHORT))

    return in_child(child)


def fork_exit(llm):
    """A child that only ends does not wait for threads of the parent, and frees nothing of it."""
    busily(llm)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        sys.exit(7)  # with all handlers of atexit
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert llm.tokenize("a")
    return 0 if code == 7 else 3


def fork_collect(llm):
    """The child drops everything."""
    global LLM
    LLM, stream = llm, llm.stream("Once", SHORT)
    next(stream)
    holder = [llm, stream]
    holder.append(holder)

    def child():
        global LLM  # noqa: PLW0603
        LLM = None
        holder.clear()
        gc.collect()

    return in_child(child)


def fork_frees_nothing(llm):
    """The child frees no context and no weights, from its first moment on: its parent uses them."""
    parent, freed = os.getpid(), []
    for name in ("llama_free", "llama_model_free"):  # a model takes them when it is loaded
        free = getattr(native.C, name)

        def noted(*handle, free=free):
            freed.append(handle)
            if os.getpid() == parent:
                free(*handle)

        setattr(native.C, name, noted)
    n = llm.parallel
    llm.close()
    llm = load(n)
    stream = llm.stream("Once", SHORT)
    next(stream)

    def child():
        for one in (stream, llm):
            with contextlib.suppress(ForkedError):
                one.close()
        gc.collect()
        return not freed

    code = in_child(child)
    stream.close()
    assert llm.generate("Once", SHORT).tokens  # the parent goes on
    llm.close()
    assert freed  # what the child would have called
    return code


def fork_subprocess(llm):
    busily(llm)
    for _ in range(5):
        command = [sys.executable, "-S", "-c", "print(3)"]
        child = subprocess.run(command, preexec_fn=os.getpid, check=True, capture_output=True)
        assert child.stdout == b"3\n"
    return 0


def fork_many_times(llm):
    """Locks may be held at any moment."""
    busily(llm)
    for _ in range(20):
        if code := in_child(lambda: refuses(lambda: llm.generate("a", SHORT))):
            return code
    return 0


def _with_inherited(text):
    try:
        return INHERITED.generate(text, SHORT).text
    except ForkedError as error:
        return error


def fork_data_loader(llm):
    """Workers of multiprocessing by fork, as those of a data loader; errors come back whole."""
    global INHERITED  # noqa: PLW0603
    INHERITED = llm
    with multiprocessing.get_context("fork").Pool(2) as pool:
        errors = pool.map_async(_with_inherited, ["a"] * 6).get(60)
    assert {type(one) for one in errors} == {ForkedError}
    return 0


# ---- pools


def _start():
    global OWN  # noqa: PLW0603
    OWN = load()


def _answer(i):
    return len(OWN.generate("a " * (9000 if i % 10 == 0 else 1), SHORT).tokens)


def pool(method, n):
    """Every tenth request of a pool is bad: none is lost, and none hangs."""
    context, bad, good = multiprocessing.get_context(method), 0, 0
    with ProcessPoolExecutor(4 if n > 100 else 2, context, _start) as executor:
        for future in [executor.submit(_answer, i) for i in range(n)]:
            try:
                good += future.result(120) > 0
            except PromptTooLongError as error:
                assert error.n_ctx == 2048
                bad += 1
    assert (bad, good) == (n // 10, n - n // 10)
    with context.Pool(4 if n > 100 else 2, _start) as workers:
        results = [workers.apply_async(_answer, (i,)) for i in range(n)]
        for i, one in enumerate(results):
            try:
                assert one.get(120)
                assert i % 10
            except PromptTooLongError:
                assert i % 10 == 0


# ---- ends of the program: each returns what stays alive as a global


class Closes:
    """An object of an app, which closes what it has."""

    def __init__(self, *held):
        self.held = held

    def __del__(self):
        for one in self.held:
            one.close()


class Generates:
    def __init__(self, llm, text):
        self.llm, self.text = llm, text

    def __del__(self):
        with contextlib.suppress(ClosedError):
            self.llm.generate(self.text, SHORT)


def begun(llm):
    stream = llm.stream("Once", LONG)
    next(stream)
    return stream


def served(llm):
    from gguf_spec.server import serve_in_thread

    return serve_in_thread(llm)


def cycle(*held):
    one = Closes(*held)
    one.me = one


def listened(llm):
    """Leave a request that a thread of the engine computes."""
    stream, begun = llm.stream("Once", LONG), threading.Event()
    stream.listen(lambda _: begun.set())
    begun.wait()
    return stream


def listened_in_daemon(llm):
    """Listen to one request after the other, in a thread that the end of the program stops."""
    ends = queue.Queue()

    def work():
        with contextlib.suppress(ClosedError):
            while True:
                llm.stream("Once", SHORT).listen(ends.put)
                while not isinstance(ends.get(), gguf_spec.Ended):
                    pass

    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)


def raised(llm):
    raise ValueError


def exits_in_thread(llm):
    thread = threading.Thread(target=lambda: [sys.exit(5) for _ in llm.stream("Once", LONG)])
    thread.start()
    thread.join()


def many_in_daemon(llm):
    threading.Thread(target=llm.generate_many, args=(["Once"] * 20, LONG), daemon=True).start()
    time.sleep(0.2)


def in_loop(llm, whole):
    """Leave an event loop that is not closed, with a request that runs."""
    asynchronous, loop = AsyncLLM(llm), asyncio.new_event_loop()

    async def begin():
        stream = asynchronous.stream("Once", LONG)
        await stream.__anext__()
        return stream

    if not whole:
        return loop, loop.run_until_complete(begin()), asynchronous
    task = loop.create_task(asynchronous.generate("Once", LONG))
    loop.run_until_complete(asyncio.sleep(0.1))
    return loop, task, asynchronous


def of_compat(llm):
    from gguf_spec_compat import Llama

    llama = Llama(str(llm.path), n_threads=1, verbose=False)
    answer = llama.create_completion("Once", max_tokens=1900, stream=True)
    next(answer)
    return llama, answer


def embedder(llm):
    from gguf_spec.llama.embedder import Embedder

    llm.embed(["a"])
    return Closes(llm.engine.embedder, Embedder(llm.vocabulary))


def batch(llm):
    from gguf_spec.batch import Batch

    lines = b"".join(json.dumps({"prompt": f"Once {i}"}).encode() + b"\n" for i in range(99))
    run = Batch(io.BytesIO(lines), io.BytesIO())
    threading.Thread(target=run.run, args=(llm, LineDefaults(LONG)), daemon=True).start()
    time.sleep(0.1)
    return run


def queued(llm):
    """Leave more requests than have a thread, of a loop that is not closed."""
    asynchronous, loop = AsyncLLM(llm), asyncio.new_event_loop()
    tasks = [loop.create_task(asynchronous.generate("Once", LONG)) for _ in range(6)]
    loop.run_until_complete(asyncio.sleep(0.1))
    return loop, tasks, asynchronous


def embeds(llm):
    """Leave a call for which no stream is open."""
    asynchronous, loop = AsyncLLM(llm), asyncio.new_event_loop()
    task = loop.create_task(asynchronous.embed([[5] * 250] * 6_000))
    loop.run_until_complete(asyncio.sleep(0.1))
    return loop, task, asynchronous


def fails_in_loop(llm):
    async def fail():
        async with AsyncLLM(llm) as asynchronous:
            await asynchronous.stream("Once", LONG).__anext__()
            raise ValueError

    asyncio.run(fail())


def interrupted(llm):
    """Ctrl-C in the middle of an answer, which nothing handles."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    llm.generate("Once", LONG)


def interrupted_in_loop(llm):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    asyncio.run(AsyncLLM(llm).generate("Once", LONG))


def generator(llm):
    """Leave a generator in the middle of its `with`."""

    def answer():
        with llm, llm.stream("Once", LONG) as stream:
            yield from stream

    parts = answer()
    next(parts)
    return parts


def asked(llm):
    """Leave a server with a request that runs."""
    server = served(llm)
    body = json.dumps({"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True})
    address = urllib.request.Request(
        f"{server.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    return server, urllib.request.urlopen(address).readline()


def fails_in_thread(llm):
    busily(llm)
    thread = threading.Thread(target=raised, args=(llm,))
    thread.start()
    thread.join()


def local(llm):
    kept = threading.local()
    kept.it = Closes(begun(llm), llm)
    return kept


ENDS = {
    "nothing": lambda llm: llm,
    "closed": lambda llm: llm.close(),
    "del": Closes,
    "del, busy": lambda llm: (busily(llm), Closes(llm)),
    "del, stream": lambda llm: Closes(begun(llm), llm),
    "del, stream last": lambda llm: Closes(llm, begun(llm)),
    "del, chat": lambda llm: Closes(next(iter([llm.chat().stream("a", LONG)])), llm),
    "del, embedder": embedder,
    "del, server": lambda llm: Closes(served(llm), llm),
    "del, LLM before server": lambda llm: Closes(llm, served(llm)),
    "del generates": lambda llm: Generates(llm, "a"),
    "del generates long": lambda llm: Generates(llm, "a " * 900),
    "del generates, busy": lambda llm: (busily(llm), Generates(llm, "a")),
    "cycle": cycle,
    "cycle, busy": lambda llm: (busily(llm), cycle(llm)),
    "cycle, stream": lambda llm: cycle(begun(llm), llm),
    "stream": begun,
    "listened": listened,
    "listened, del": lambda llm: Closes(listened(llm), llm),
    "raised, listened": lambda llm: (listened(llm), raised(llm)),
    "listened, daemon": listened_in_daemon,
    "chat": lambda llm: next(turn := llm.chat().stream("a", LONG)) and turn,
    "busy": busily,
    "server": served,
    "atexit": lambda llm: atexit.register(llm.close),
    "atexit, busy": lambda llm: (busily(llm), atexit.register(llm.close)),
    "atexit generates": lambda llm: atexit.register(llm.generate, "a", SHORT),
    "exit in a thread": exits_in_thread,
    "many, daemon": many_in_daemon,
    "batch, daemon": batch,
    "async stream": lambda llm: in_loop(llm, False),
    "async, whole": lambda llm: in_loop(llm, True),
    "async, del": lambda llm: Closes(llm, *in_loop(llm, False)[:1]),
    "compat": of_compat,
    "code 3": lambda llm: (busily(llm), sys.exit(3)),
    "raised": raised,
    "raised, busy": lambda llm: (busily(llm), raised(llm)),
    "os._exit": lambda llm: (busily(llm), os._exit(0)),
    "async, queued": queued,
    "async, embeds": embeds,
    "raised in a loop": fails_in_loop,
    "code of a text": lambda llm: (busily(llm), sys.exit("ValueError")),
    "signal 2": interrupted,
    "signal 2 in a loop": interrupted_in_loop,
    "signal 15": lambda llm: (busily(llm), os.kill(os.getpid(), signal.SIGTERM), time.sleep(60)),
    "execv": lambda llm: (busily(llm), os.execv(sys.executable, [sys.executable, "-c", "exit(7)"])),
    "generator": generator,
    "server, asked": asked,
    "thread fails": fails_in_thread,
    "thread local": local,
    "finalize": lambda llm: weakref.finalize(busily(llm), llm.close),
    "frozen by gc": lambda llm: (cycle(begun(llm), llm), gc.freeze()),
    "closed in a thread": lambda llm: (busily(llm), threading.Thread(target=llm.close).start()),
    "reads in a thread": lambda llm: threading.Thread(target=lambda: [llm.close() for _ in llm.stream("Once", LONG)]).start(),
    "two": lambda llm: (busily(llm), busily(load()), llm),
}  # fmt: skip


def main(kind, case, n):
    global KEPT  # noqa: PLW0603
    if kind == "pool":
        pool(case, n)
    elif kind == "fork":
        sys.exit(globals()[case](load(n)))
    else:
        llm = load(n)
        began = time.monotonic()
        try:
            KEPT = ENDS[case](llm)
        finally:
            del llm
            print("ends", time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
