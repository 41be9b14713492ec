"""Use every public member of everything that a closed LLM leaves behind: each works without native memory, or raises ClosedError.

Usage: closed.py FOLDER [bare]. Unless `bare`, functions of llama.cpp that need a model are replaced by one that fails.
"""

import inspect
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from llama_cpp import llama_cpp as C

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import BusyError, ClosedError, SessionError
from gguf_spec.passes import PassPart
from gguf_spec.results import Listener
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from gguf_spec_compat import DraftModel, Llama
from gguf_spec_compat.llama import NOT_HERE, UnsupportedError

SHORT = Sampling(max_tokens=6, seed=1)
MESSAGES = [{"role": "user", "content": "hi"}]
NEED_A_MODEL = (
    "llama_model_", "llama_vocab_", "llama_get_", "llama_memory_", "llama_state_", "llama_decode", "llama_tokenize", "llama_token_to_piece",
    "llama_detokenize", "llama_n_ctx", "llama_set_", "llama_synchronize", "llama_sampler_init_dry", "llama_adapter_",
)  # fmt: skip
GIVEN = {
    "prompt": ["ab", [1, 2]], "messages": [MESSAGES], "text": ["hi", b"hi"], "tokens": [[1, 2]], "token": [1], "path": [], "data": [{}], "k": [2],
    "seed": [3], "input": ["a"], "cache": [None], "a": [[1]], "b": [[1]], "n_rows": [1], "to": [0], "special": [True], "n_read": [0], "state": [b"x"],
    "kind": [None], "error": [None], "trace": [None], "input_ids": [], "profile": [DEFAULT_PROFILE], "snapshot": [None],
    "prompts": [["ab"]], "cached": [[1]], "parts": [[]], "prefix": ["a"], "suffix": ["b"], "llm": [],
    "texts": ["ab", [[1, 2]]], "query": ["a"], "documents": [["b"]], "options": [["b"]], "least_cut": [0], "why": ["planted"], "n": [0], "n_tokens": [2], "most": [8], "instruction": ["shorten it"], "question": ["a"],
    "results": [["b"]],
    "call": [lambda _: None], "listener": [Listener(lambda _: None)],
    "other": [SimpleNamespace(index=0, cached=[1], n_read=0, least_cut=0)],
}  # fmt: skip
PASSED_ON = {"create_chat_completion_openai_v1": (MESSAGES,)}  # as they are, to another member
SPECIAL = ["__iter__", "__next__", "__enter__", "__exit__", "__call__"]
REFUSED = {("Llama", name): UnsupportedError for name in NOT_HERE}
REFUSED |= {(kind, "listen"): BusyError for kind in ("Stream", "Turn")}  # it was read before


class TouchedError(BaseException):
    """llama.cpp was called with what is freed."""


def forbid_native_memory():
    def failing(name):
        def touched(*_):
            raise TouchedError(name)

        return touched

    for name in dir(C):
        if (
            name.startswith(NEED_A_MODEL)
            and callable(getattr(C, name))
            and not inspect.isclass(getattr(C, name))
        ):
            setattr(C, name, failing(name))


def members(one):
    """Return the names of all public members: a new one is tested without being named here."""
    if inspect.isgenerator(one):
        return ["__next__", "close"]
    own = {name for name in dir(one) if not name.startswith("_")} | {
        name for name in SPECIAL if any(name in vars(kind) for kind in type(one).mro())
    }
    return sorted(own | ({*NOT_HERE} if isinstance(one, Llama) else set()))


def calls(member):
    """Return all ways to call a member, from the names of its parameters; those of the same name in the same place."""
    if member.__name__ in PASSED_ON:
        return [PASSED_ON[member.__name__]]
    try:
        parameters = inspect.signature(member).parameters.values()
    except ValueError:  # written in C
        return [()]
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    unknown = [name for name in needed if name not in GIVEN]
    assert not unknown, f"say in GIVEN what to give {member} as {unknown}"
    n_ways = max([len(GIVEN[name]) for name in needed] or [1])
    return [
        tuple(GIVEN[name][min(way, len(GIVEN[name]) - 1)] for name in needed)
        for way in range(n_ways)
    ]


def use_up(result):
    """Use a result as its caller would."""
    if (
        hasattr(result, "__enter__")
        and not hasattr(result, "__next__")
        and not isinstance(result, Path)
    ):
        with result:
            return
    if hasattr(result, "__next__"):
        for _ in result:
            pass


def use(one, name):
    """Use a member in all ways; return how it went."""
    static = inspect.getattr_static(type(one), name, None)
    if isinstance(static, classmethod):
        return "makes another object"
    outcomes = set()
    if isinstance(one, gguf_spec.Chat):
        one.messages[:] = MESSAGES  # others have changed them
    try:
        member = getattr(one, name)
    except REFUSED.get((type(one).__name__, name), ClosedError) as error:
        return type(error).__name__
    for arguments in calls(member) if callable(member) and not inspect.isclass(member) else [None]:
        try:
            use_up(member if arguments is None else member(*arguments))
            outcomes.add("works")
        except StopIteration:
            outcomes.add("works")
        except (ClosedError, REFUSED.get((type(one).__name__, name), ClosedError)) as error:
            outcomes.add(type(error).__name__)
        except (TypeError, AttributeError, ValueError) as error:
            if (
                isinstance(error, SessionError)
                or not arguments
                or not isinstance(arguments[0], (bytes, str, list))
            ):
                raise
            outcomes.add("takes something else")  # `text` is str here and bytes there
    return ", ".join(sorted(outcomes))


def closed_things(folder):
    """Yield what a closed LLM leaves behind, in many states."""
    import numpy as np

    def pair():
        return gguf_spec.load(
            folder / "llama.gguf", folder / "twin.gguf", threads=1, n_ctx=256, extra_bufts=False
        )

    session = folder / "session"
    llm = pair()
    chat = llm.chat(sampling=SHORT)
    chat.send("hi")
    chat.save(session)
    GIVEN["path"] = [session]
    GIVEN["llm"] = [llm]
    GIVEN["input_ids"] = [np.array([1, 2], dtype=np.intc)]
    model = llm.engine.target
    part = PassPart(model, [1], 1)
    GIVEN["part"], GIVEN["parts"], GIVEN["header"] = [part], [[part]], [model.file.header]
    GIVEN["sequence"] = GIVEN["free"] = [model]
    llm.close()
    yield from (llm, chat, model, model.weights, model.context)
    for load in (pair, partial(gguf_spec.load, "tales", None, threads=1, n_ctx=256)):
        llm = load()
        chat = llm.chat(sampling=SHORT)
        llm.close()
        yield from (chat, llm)  # of which nothing was asked
    llm = pair()
    stream = llm.stream("ab", SHORT)
    next(stream)
    llm.close()
    yield stream
    for n_read in (0, 1, 99):
        llm = pair()
        chat = llm.chat(sampling=SHORT)
        turn = chat.stream("hi")
        for _ in zip(range(n_read), turn, strict=False):
            pass
        llm.close()
        yield from (turn, chat, turn._stream)
    theirs = Llama(
        str(folder / "llama.gguf"),
        draft_model_path=str(folder / "twin.gguf"),
        n_ctx=256,
        n_threads=1,
        verbose=False,
    )
    theirs.create_completion("ab", max_tokens=4)
    parts, tokenizer = theirs.create_completion("ab", max_tokens=4, stream=True), theirs.tokenizer()
    theirs.close()
    yield from (theirs, tokenizer, parts)
    draft = DraftModel(folder / "llama.gguf", n_ctx=256, n_threads=1)
    draft(GIVEN["input_ids"][0])
    draft.close()
    yield draft


def main(folder, bare=""):
    things = list(closed_things(Path(folder)))
    if not bare:
        forbid_native_memory()
    n, failed = 0, []
    for one in things:
        for name in members(one):
            n += 1
            print(f"{type(one).__name__}.{name}:", end=" ", flush=True)
            try:
                print(use(one, name), flush=True)
            except (Exception, TouchedError) as error:
                print(f"FAILED with {type(error).__name__}: {error}", flush=True)
                failed.append(f"{type(one).__name__}.{name}")
    print(f"{n} members, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
