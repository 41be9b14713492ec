"""Errors and results are copied and pickled whole; what belongs to one process refuses it."""

import copy
import dataclasses
import pickle
import pkgutil
from importlib import import_module
from pathlib import Path

import click
import pytest

import gguf_spec
import gguf_spec_compat
import gguf_spec_ray
import gguf_spec_trim
import gguf_spec_workers
from gguf_spec import AsyncLLM, Sampling, Speculation, errors
from gguf_spec.cli.command import UnknownNameError
from gguf_spec.cli.config import ConfigFileError
from gguf_spec.errors import Option, Text
from gguf_spec.protocols.errors import ApiError
from gguf_spec.tools.grammar import ToolSchemaError
from tests.unit.test_error_texts import example

COPIES = [
    copy.copy,
    copy.deepcopy,
    *(lambda one, n=n: pickle.loads(pickle.dumps(one, n)) for n in range(pickle.HIGHEST_PROTOCOL)),
]
PACKAGES = (gguf_spec, gguf_spec_compat, gguf_spec_ray, gguf_spec_trim, gguf_spec_workers)
MOVED = {f"gguf_spec.{name}" for name in ("compat", "ray", "trim", "worker")}
SPECIAL = {
    ToolSchemaError: lambda: ToolSchemaError("f", errors.InvalidGrammarError("a", "b", "c")),
    ApiError: lambda: ApiError("no", "model", "not_found", 404, {"Retry-After": "3"}),
    UnknownNameError: lambda: UnknownNameError(
        "no x.", "try y.", click.Context(click.Command("c"))
    ),
    ConfigFileError: lambda: ConfigFileError("it is broken.", "mend it."),
}


def all_errors():
    """Return all classes of errors in the package; modules of extras that are missing are left out."""
    for module in (
        one
        for package in PACKAGES
        for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ):
        # PyInstaller, which the last one imports, reads the messages of ldd as UTF-8, also where they are not
        if not module.name.endswith(("__main__", "hook-gguf_spec")):
            try:
                import_module(module.name)
            except ImportError:
                assert module.name in MOVED
    found, rest = [], [Exception]
    while rest:
        rest += (below := rest.pop().__subclasses__())
        found += [one for one in below if one.__module__.startswith("gguf_spec")]
    return sorted(set(found), key=lambda one: one.__name__)


def made(kind):
    if kind in SPECIAL:
        return SPECIAL[kind]()
    return example(kind) if issubclass(kind, errors.GgufSpecError) else kind("it failed.")


def facts(error):
    """Return everything that a caller may look at."""
    names = {*vars(error), "message", "hint", "suggested", "name", "msg", "path"} - {"ctx", "cmd"}
    written = error.written(lambda _: "X") if hasattr(error, "written") else ()
    return (
        type(error), str(error), error.args, written,
        {name: getattr(error, name) for name in names if hasattr(error, name)},
    )  # fmt: skip


def test_every_error_is_copied_and_pickled_whole():
    kinds = all_errors()
    assert {*map(errors.__dict__.get, errors.__all__), *SPECIAL} <= {*kinds}
    for kind in kinds:
        error = made(kind)
        error.__cause__ = cause = errors.PromptTooLongError(5000, 4096)
        cause.__cause__ = OSError(28, "no space left", "a.gguf")
        error.__notes__ = ["in the third file"]
        error.more = {"of": ("the", "user")}
        for copied in (one(error) for one in COPIES):
            assert copied is not error
            assert facts(copied) == facts(error), kind
            if not isinstance(error, errors.GgufSpecError):
                continue  # Python drops the cause of all others
            assert facts(copied.__cause__) == facts(cause)
            last = copied.__cause__.__cause__
            assert (type(last), last.args, last.filename) == (
                type(cause.__cause__), (28, "no space left"), "a.gguf",
            )  # fmt: skip


class Strange(Exception):
    """An error of another package, which cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_what_cannot_be_pickled_becomes_text():
    error = errors.OptionConflictError(Option("stop", lambda: 0), Option("k", 3))
    error.__cause__ = Strange(1, 2)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.hint) == (str(error), error.hint)
    assert copied.value == repr(error.value)
    assert (type(copied.__cause__), str(copied.__cause__)) == (Exception, "Strange: 1 2")
    assert type(pickle.loads(pickle.dumps(errors.BusyError())).args[0]) is str
    two = errors.ClosedError(), errors.BusyError()
    two[0].__cause__, two[1].__cause__ = two[1], two[0]
    copied = pickle.loads(pickle.dumps(two[0]))
    assert copied.__cause__.__cause__ is copied


def test_results_are_copied_and_pickled_whole(tales):
    sampling = Sampling(max_tokens=3, seed=1, logprobs=2, stop=("x",), logit_bias={3: 1.0})
    with tales.stream("Once", sampling) as stream:
        chunks = [*stream]
    results = [
        sampling, Speculation(k=3), stream.result, stream.stats, *chunks, tales.slots()[0],
        tales.prefix_memory, tales.pass_counts, tales.profile, tales.embed(["a", "b"]),
        *tales.choose("a", [" b", " c"]), gguf_spec.Progress("load", 1, None, "bytes"),
    ]  # fmt: skip
    for result in results:
        for copied in (one(result) for one in COPIES):
            assert type(copied) is type(result)
            assert repr(copied) == repr(result)
            if dataclasses.is_dataclass(result):
                assert copied == result


def test_what_belongs_to_one_process_is_neither_copied_nor_pickled(tales, tmp_path):
    from gguf_spec.batch import Batch
    from gguf_spec.llama.embedder import Embedder
    from gguf_spec.server import ModelPool, serve_in_thread
    from gguf_spec.server.model_pool import loaded_model
    from gguf_spec_compat import DraftModel, Llama

    chat, lines = tales.chat(), tmp_path / "in.jsonl"
    lines.write_text("")
    llama = Llama.__new__(Llama)
    llama._llm = None
    with tales.stream("Once", Sampling(max_tokens=2)) as stream:
        list(stream)
    with chat.stream("Once", Sampling(max_tokens=2)) as turn:
        list(turn)
    with serve_in_thread(tales) as server, Batch(lines, tmp_path / "out.jsonl") as batch:
        objects = [
            tales, AsyncLLM(tales), AsyncLLM(tales).chat(), chat, stream, turn, server, llama, DraftModel(),
            batch, Embedder(tales.vocabulary), ModelPool([loaded_model(tales)]), tales.vocabulary,
        ]  # fmt: skip
        for one in objects:
            for copied in COPIES:
                with pytest.raises(TypeError, match=r"cannot be .*load in each process"):
                    copied(one)
            assert len(repr(one)) < 200
    assert repr(tales) == "<LLM 'tales': draft='tales-draft-Q4_0.gguf', n_ctx=2048>"
    assert "tales" in repr(chat)
    assert repr(stream) == "<Stream: 2 tokens, length>"


def test_a_path_or_text_of_an_option_stays_what_it_is():
    error = errors.OutputFileError("target", Path("b.gguf"), "b exists.", Text("set {force=True}."))
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.path, type(copied.hint)) == (Path("b.gguf"), Text)
    assert copied.suggested == {"force": True}
