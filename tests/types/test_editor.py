"""What an editor knows: pyright's language server (basedpyright) and mypy over programs that use the package."""

import ast
import asyncio
import dataclasses
import inspect
import json
import os
import sys
import typing
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import LLM, AsyncLLM, Chat, Sampling, Speculation, arguments, errors
from gguf_spec.server import Settings
from tests.support import children
from tests.types import wrong

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD = [HERE / "desktop.py", ROOT / "scripts" / "examples" / "desktop_app.py", ROOT / "scripts" / "examples" / "async_app.py"]  # fmt: skip
WRONG = HERE / "wrong.py"


def run(program, *words):
    """Run a program of this environment, which finds the package in this clone."""
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    own = {"PYTHONPATH": str(ROOT), "VIRTUAL_ENV": str(folder.parent), "PATH": path}
    return children.run(
        [folder / program, *words], env=os.environ | own, cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip


def pyright(*words):
    pytest.importorskip("basedpyright")
    return json.loads(run("basedpyright", "--outputjson", *words).stdout)


def marked():
    """Yield the line, the source and the error of each statement in wrong.py."""
    text = WRONG.read_text("utf-8")
    lines = text.splitlines()
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in function.body:
                yield one.lineno, lines[one.lineno - 1].split("  # ")[0].strip(), lines[one.lineno - 1].rsplit("# ", 1)[1]  # fmt: skip


@pytest.mark.full
def test_pyright_accepts_programs_and_finds_each_mistake():
    found = pyright(*GOOD, WRONG)["generalDiagnostics"]
    red = [(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"]  # fmt: skip
    assert sorted(red) == [(WRONG.name, line) for line, *_ in marked()]


@pytest.mark.full
def test_mypy_accepts_programs_and_finds_each_mistake():
    words = ("--follow-imports", "silent", "--output", "json", "--cache-dir", ROOT / ".mypy_cache" / "programs")  # fmt: skip
    told = run("mypy", *words, *GOOD, WRONG)
    found = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    red = {(Path(one["file"]).name, one["line"]) for one in found if one["severity"] == "error"}
    assert sorted(red) == [(WRONG.name, line) for line, *_ in marked()], told.stdout


@pytest.mark.full
def test_all_public_names_have_types():
    """`pyright --verifytypes`: each attribute has a type in its class or where it is set; what an expression gives is no declaration."""
    told = pyright("--verifytypes", "gguf_spec", "--ignoreexternal")["typeCompleteness"]
    assert told["exportedSymbolCounts"]["withKnownType"] > 4000
    bad = [
        f"{one['name']}: {more['message']}"
        for one in told["symbols"]
        for more in one["diagnostics"]
        if "docstring" not in more["message"]
    ]
    assert (told["completenessScore"], bad) == (1, [])


@pytest.mark.parametrize(("line", "source", "error"), list(marked()))
def test_each_mistake_is_a_typed_error_at_run_time(line, source, error, tales):
    kind = getattr(errors, error, AttributeError)
    names = vars(wrong) | {"llm": tales, "chat": tales.chat()}
    names["chat"].messages[:] = [{"role": "user", "content": "a"}]

    async def awaited():
        names["llm"] = AsyncLLM(tales)
        names["asyncio"] = asyncio
        exec(f"async def one():\n    return {source}", names)
        answer = await names["one"]()
        [chunk async for chunk in answer]  # a stream begins when it is read

    with pytest.raises(kind) as raised:
        if line > wrong.awaited.__code__.co_firstlineno:
            asyncio.run(awaited())
        else:
            exec(source, names)
    if kind is not AttributeError:
        assert type(raised.value) is kind
        assert raised.value.hint


def test_errors_that_programs_catch_are_names_of_the_package():
    caught = [name for name in gguf_spec.__all__ if name.endswith("Error")]
    assert "GgufSpecError" in caught
    assert all(getattr(gguf_spec, name) is getattr(errors, name) for name in caught)


# ---- the types of options are those of the tables


def hints(kind):
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name[0] != "_"}


def fields(kind):
    return {one.name: hints(kind)[one.name] for one in dataclasses.fields(kind)}


def keywords(function, *others):
    """Return the keyword arguments of a function as it writes them, without some."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in others}  # fmt: skip


def written(kind, *bases):
    """Return the fields of a TypedDict as it writes them, without those of some bases."""
    return {
        name: getattr(text, "__forward_arg__", text)
        for name, text in kind.__annotations__.items()
        if not any(name in base.__annotations__ for base in bases)
    }


def test_options_of_requests_are_those_of_the_table():
    assert hints(arguments.RequestOptions) == fields(Sampling) | fields(Speculation)
    less = hints(arguments.RequestOptions)
    assert {**hints(arguments.ContinueOptions), "stop_tokens": less["stop_tokens"]} == less
    assert {**hints(arguments.EditOptions), "max_tokens": less["max_tokens"]} == less


@pytest.mark.parametrize(
    ("kind", "base", "function", "others"),
    [
        (arguments.GenerateOptions, arguments.ContinueOptions, LLM.stream, ()),
        (arguments.GenerateOptions, arguments.ContinueOptions, LLM.generate, ()),
        (arguments.SendOptions, arguments.RequestOptions, Chat.stream, ()),
        (arguments.EncodingOptions, None, LLM.tokenize, ("prefill", "most")),
        (arguments.LoadOptions, None, gguf_spec.load, ()),
    ],
)
def test_options_that_are_passed_on_are_those_of_the_function(kind, base, function, others):
    own = written(kind, *filter(None, [base]))
    assert own == keywords(function, *others)


def test_options_of_served_models_are_those_of_load():
    load = written(arguments.LoadOptions)
    del load["models_file"], load["progress"]
    assert written(arguments.ServedOptions) == load | {"draft": "str | Path | None"}


def test_options_of_servers_are_those_of_settings():
    settings = fields(Settings)
    del settings["port"]
    assert hints(arguments.ServerOptions) == settings


@pytest.mark.full
def test_the_desktop_program_runs(tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text('{"max_tokens": 8}', "utf-8")
    told = children.run([sys.executable, HERE / "desktop.py", "tales", settings, "Who is there?"], capture_output=True, text=True)  # fmt: skip
    kinds = [line.split(" ", 1)[0] for line in told.stdout.splitlines()]
    assert {"loading", "text", "stats", "best", "edited"} <= {*kinds}, told.stdout
    assert "stats 8 tokens, length" in told.stdout
    missing = children.run([sys.executable, HERE / "desktop.py", "qwen2.5-72b-none", settings], capture_output=True, text=True)  # fmt: skip
    assert missing.stdout.startswith("choose ")
