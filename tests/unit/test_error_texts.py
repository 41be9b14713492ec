"""Errors carry options as data: Python, the command line and the server each write their own names."""

import ast
import copy
import inspect
import pickle
import re
import traceback
from dataclasses import fields
from pathlib import Path

import click
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation, errors
from gguf_spec.cli import cli
from gguf_spec.cli.error_text import PARAMETERS, option_name
from gguf_spec.cli.error_text import name as typed_name
from gguf_spec.errors import Option, Pull, Text, in_python, written
from gguf_spec.protocols.errors import ApiError, as_refusal
from gguf_spec.server.settings import Settings
from gguf_spec_compat.llama import named_as_there

FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
ASSIGNED = re.compile(r"\b(\w+)=")
CLASSES = [getattr(errors, name) for name in errors.__all__]
# Values by the names of constructor parameters. The prompt and the context are those of `EXPECTED`.
VALUES = {
    "variable": "HF_HOME",
    "message": "it failed.", "hint": "try again.", "option": "top_p", "value": 2.0, "allowed": "1", "path": Path("m.gguf"), "needed_bytes": 1,
    "available_bytes": 2, "fitting_ctx": 1024, "fitting_parallel": 3, "what": "a prompt", "target_value": 1, "draft_value": 2, "token": 3, "n_prompt": 5120,
    "n_ctx": 4096, "code": 1, "n_past": 7, "n_tokens": 3, "reason": "no room", "name": "m.gguf", "to": 2, "expected": 1, "found": 2,
    "status": 404, "line": 3, "key": "file", "free_bytes": 1, "source": Path("a.gguf"), "target": Path("b.gguf"), "needed": 8192, "about": False, "n_ctx_limit": None, "is_estimate": False, "workers": ("127.0.0.1:50052",), "package": "ray", "extra": "ray", "distribution": "others",
    "version": "0.3.20", "tested": "0.3.36", "kv_type": Option("kv_type", "q8_0"), "flash_attention": Option("flash_attention", "off"), "architecture": "bert", "index": 0, "most": 2, "n_ctx_train": 2048,
}  # fmt: skip
# Classes whose constructors need other values: class -> example.
EXAMPLES = {
    errors.OptionConflictError: lambda: errors.OptionConflictError(
        Option("exact", True), Option("strict", True)
    ),
    errors.NoSpeculationError: lambda: errors.NoSpeculationError(
        "drafter", "model", "no draft model is loaded.", Text("set {drafter='ngram'}.")
    ),
    errors.OutputFileError: lambda: errors.OutputFileError(
        "target", Path("b.gguf"), "b.gguf exists.", Text("set {force=True}.")
    ),
    errors.InvalidGrammarError: lambda: errors.InvalidGrammarError("grammar", "root", "no rule"),
}  # fmt: skip
# Class -> (message and hint) in Python, on the command line of `command_of`, and to a client.
EXPECTED = {
    errors.InvalidOptionError: (
        "top_p is 2.0 but must be 1. omit top_p to use its default.",
        "--top-p is 2.0 but must be 1. omit --top-p to use its default.",
        "top_p is 2.0 but must be 1. Omit top_p to use its default.",
    ),
    errors.PromptTooLongError: (
        "the prompt has 5,120 tokens but the context holds 4,096, including one for the answer. set n_ctx=8192 or shorten the prompt.",
        "the prompt has 5,120 tokens but the context holds 4,096, including one for the answer. set --ctx 8192 or shorten the prompt.",
        "This model's maximum context length is 4096 tokens. However, your prompt has 5120 tokens. Shorten the prompt.",
    ),
    errors.OptionConflictError: (
        "exact=True cannot be combined with strict=True. omit one of the two.",
        "--allow-near-ties cannot be combined with --strict. omit one of the two.",
        "speculation.exact=true cannot be combined with speculation.strict=true. Omit one of the two.",
    ),
    errors.NotEnoughMemoryError: (
        "it failed. set parallel=3, set n_ctx=1024, set kv_type='q8_0', use a smaller model or close other programs.",
        "it failed. set --parallel 3, set --ctx 1024, set --kv-type q8_0, use a smaller model or close other programs.",
        "There is not enough memory: it failed.",
    ),
    errors.VocabularyMismatchError: (
        "it failed. use a draft of the same model family or set draft='none'.",
        "it failed. use a draft of the same model family or set --draft none.",
        "The server failed (VocabularyMismatchError).",
    ),
    errors.NoInfillError: (
        "m.gguf cannot fill in the middle of a text: its vocabulary lacks the tokens. use a model for code completion.",
        "m.gguf cannot fill in the middle of a text: its vocabulary lacks the tokens. use a model for code completion.",
        "m.gguf cannot fill in the middle of a text: its vocabulary lacks the tokens. Use a model for code completion.",
    ),
    errors.NoTokenLeftError: (
        "no token can be sampled: every token is forbidden, or no logit is finite. check logit_bias and grammar; without these options the model file is damaged.",
        "no token can be sampled: every token is forbidden, or no logit is finite. check --logit-bias and --grammar; without these options the model file is damaged.",
        "no token can be sampled: every token is forbidden, or no logit is finite. Check logit_bias and grammar; without these options the model file is damaged.",
    ),
}  # fmt: skip


def example(kind):
    """Return an error of a class."""
    if kind in EXAMPLES:
        return EXAMPLES[kind]()
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    optional = ("message", "hint") if issubclass(kind, errors.InvalidOptionError) else ()
    return kind(
        **{
            one.name: VALUES[one.name]
            for one in parameters
            if one.name not in optional and one.kind is not one.VAR_POSITIONAL
        }
    )


def options_of(text):
    parts = []
    written(text, parts.append)
    return [part for part in parts if isinstance(part, Option)]


def in_command(error, command):
    return error.written(
        lambda part: option_name(part, command) if isinstance(part, Option) else None
    )


def command_of(kind):
    """Return a command that has the options that errors of a class name."""
    if kind is errors.OutputFileError:
        return cli.commands["models"].commands["quantize"]
    return cli.commands["serve" if kind is errors.NotEnoughMemoryError else "generate"]


def flags_of(command):
    return {
        flag
        for one in command.params
        if isinstance(one, click.Option)
        for flag in (*one.opts, *one.secondary_opts)
    }


def of_a_request():
    """Return the options of requests."""
    return {
        *(one.name for one in fields(Sampling)),
        *(f"speculation.{one.name}" for one in fields(Speculation)),
        *("messages", "prompt", "tools"),
    }


@pytest.mark.parametrize("kind", CLASSES)
def test_each_surface_has_its_own_names(kind):
    error = example(kind)
    python = f"{error} {error.hint}"
    assert str(error).strip()
    assert error.hint.strip()
    assert error.hint.endswith((".", "?"))
    assert "\n" not in python
    assert not FLAG.search(python), python

    command = command_of(kind)
    message, hint = in_command(error, command)
    assert message
    assert hint.endswith(".")
    typed = f"{message} {hint}"
    assert set(FLAG.findall(typed)) <= flags_of(command), typed
    assert not ASSIGNED.search(typed), typed
    for option in options_of(error.hint):
        assert option_name(option, command) in typed

    refused = as_refusal(error, {})
    assert isinstance(refused, ApiError)
    assert not FLAG.search(str(refused)), refused
    known = of_a_request()
    for name in ASSIGNED.findall(str(refused)):
        assert name in {one.rpartition(".")[2] for one in known}, refused
    elsewhere = set(inspect.signature(gguf_spec.load).parameters) - known - {"draft", "model", "progress", "reference", "threads", "verbose", "speculation"}  # fmt: skip
    assert not elsewhere & set(re.findall(r"\w+", str(refused))), refused
    if kind in EXPECTED:
        assert (python, typed, str(refused)) == EXPECTED[kind]


def test_classes_are_in_the_order_of_their_tree():
    names, stack = [], [errors.GgufSpecError]
    while stack:
        kind = stack.pop()
        names.append(kind.__name__)
        stack += reversed([one for one in CLASSES if kind in one.__bases__])
    assert names == errors.__all__


def commands(command):
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from commands(one)


def test_other_names_of_parameters_exist():
    parameters = {one.name for command in commands(cli) for one in command.params}
    for names in PARAMETERS.values():
        assert set(names) <= parameters
    pull = cli.commands["models"].commands["pull"]
    assert "--force" in flags_of(pull)
    assert typed_name(Pull("my model", force=True)) == "gguf-spec models pull 'my model' --force"


def test_every_option_of_python_that_a_command_takes_has_a_name():
    known = {
        "serve": ["parallel", "max_gap", "prefix_memory", "keep", "draft_texts", "pooling", *(one.name for one in fields(Settings) if one.name not in ("listed", "tool_servers"))],
        "batch": ["parallel", "prefix_memory", "draft_texts"],
        "generate": [
            *(one.name for one in fields(Sampling)),
            *(one.name for one in fields(Speculation)),
            *set(inspect.signature(gguf_spec.load).parameters)
            - {"others", "sampling", "speculation", "progress", "on_measure", "parallel", "max_gap", "prefix_memory", "keep", "pooling"},
        ],
        "quantize": ["target", "type", "threads", "force"],
        "pull": ["force", "offline", "models_file"],
        "bench": ["n_ctx", "names", "n_rounds", "n_tokens", "seed"],
        "verify": ["n_ctx", "prompts", "n_tokens", "n_draws", "seed"],
    }  # fmt: skip
    found = {one.name: one for one in commands(cli)}
    for name, options in known.items():
        for option in options:
            assert option_name(Option(option), found[name]), (name, option)


def test_flags_and_values_as_they_are_typed():
    generate = cli.commands["generate"]
    for option, typed in (
        (Option("extra_bufts", False), "--no-extra-bufts"),
        (Option("extra_bufts", True), "--extra-bufts"),
        (Option("adaptive", False), "--fixed"),
        (Option("exact", False), "--allow-near-ties"),
        (Option("draft", None), "--draft none"),
        (Option("reference", "my text.txt"), "--draft-text 'my text.txt'"),
        (Option("k"), "-k"),
        (Option("raw", True, of_commands=True), "--raw"),
        (Option("n_rounds", 3), None),
    ):
        assert option_name(option, generate) == typed


def test_a_command_without_the_option_leaves_the_advice_out():
    text = Text("no template[ ({})].", Option("raw", True, of_commands=True))
    for name, said in (("generate", "no template (--raw)."), ("chat", "no template.")):
        command = cli.commands[name]
        assert written(text, lambda part, of=command: option_name(part, of)) == said
    assert str(text) == "no template."


def test_texts():
    either = Text("set {a=1} | b | set {c}")
    assert either == "set a=1, b or set c"
    assert written(either, lambda _: None) == "b"
    assert written(Text("set {a} | set {b=}.", b=2), lambda _: None) is None
    assert Text("set {a} | set {b=}.", b="x") == "set a or set b='x'."
    assert Text("{}; e[: {}]", either, Option("d", of_commands=True)) == "set a=1, b or set c; e"
    assert in_python(Pull("one", force=True)) == "gguf_spec.pull('one', force=True)"
    assert [option.name for option in options_of(Text("{}.", either))] == ["a", "c"]
    assert options_of(copy.deepcopy(either)) == options_of(either)
    assert copy.copy(either) == pickle.loads(pickle.dumps(either)) == either


@pytest.mark.parametrize("value", ["{n_ctx}", "{}", "[a {b}]", "a | b.", "a; b", "%s {", "}", "."])
def test_values_are_not_searched_for_places(value):
    text = Text("{} is {n_ctx=} of {}.", value, value, n_ctx=value)
    assert text == f"{value} is n_ctx={value!r} of {value}."
    assert written(text, lambda option: f"--{option.value}") == f"{value} is --{value} of {value}."
    assert Text("set {a} | take {} | take {b}[: {}].", value, value) == (
        f"set a, take {value} or take b: {value}."
    )
    assert (
        written(Text("set {a} | {}[, set {b} to {}].", value, value), lambda _: None) == f"{value}."
    )
    error = errors.InvalidGrammarError("json_schema", value, value)
    assert error.message == f"json_schema is {value}, which cannot be used: {value}."
    assert errors.OptionConflictError(Option("a", value), value).message == (
        f"a={value!r} cannot be combined with {value}."
    )
    assert value in errors.ContextTooShortError(value, 1, 2, "shorten it").message


def templates(tree):
    """Yield the nodes of the templates of texts, those of variables included."""
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.FunctionDef, ast.Module)):
            continue
        inside = [*ast.walk(scope)]
        if isinstance(scope, ast.Module):
            inside = [one.value for one in scope.body if isinstance(one, ast.Assign)]
        for call in inside:
            kind = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if kind in ("Text", "ContextTooShortError"):  # the latter takes parts of a template
                given = call.args[:1] if kind == "Text" else call.args[3:]
                nodes = [node for one in given for node in ast.walk(one)]
                names = {node.id for node in nodes if isinstance(node, ast.Name)}
                for one in inside:
                    targets = getattr(one, "targets", [getattr(one, "target", None)])
                    if any(isinstance(of, ast.Name) and of.id in names for of in targets):
                        nodes += ast.walk(one.value) if hasattr(one, "value") else []
                yield from nodes


@pytest.mark.full
def test_templates_are_literal_and_name_options():
    """No value stands in a template, where it would be searched for places."""
    known = {one.name for command in commands(cli) for one in command.params} | set(PARAMETERS)
    places = []
    package = Path(gguf_spec.__file__).parent
    for file in package.rglob("*.py"):
        if file.is_relative_to(package / "cli"):
            continue  # its `Text` is that of rich
        for node in templates(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.JoinedStr), f"{file}:{node.lineno}"
            if isinstance(node, ast.Constant):
                places += re.findall(r"{(\w*)", str(node.value))
    assert set(places) <= {"", "tools", *known}
    assert len(places) > 70


def test_compat_translates_options_without_a_repair_of_texts():
    for error, said in (
        (
            errors.InvalidOptionError("gpu_layers", 5, "0"),
            "n_gpu_layers is 5 but must be 0. omit n_gpu_layers to use its default.",
        ),
        (
            errors.NotEnoughMemoryError("gpu_layers do not fit."),
            "gpu_layers do not fit. set a smaller n_ctx, set type_k=8, use a smaller model or close other programs.",
        ),
        (
            errors.VocabularyMismatchError("size", "sizes differ.", 1, 2),
            "sizes differ. use a draft of the same model family or set draft_model_path=None.",
        ),
    ):
        with pytest.raises(type(error)) as caught, named_as_there():
            raise error
        assert f"{caught.value} {caught.value.hint}" == said
        assert caught.value.args == (str(caught.value),)
    assert caught.value.suggested == {"draft_model_path": None}


def test_errors_carry_what_they_suggest():
    assert example(errors.PromptTooLongError).suggested == {"n_ctx": 8192}
    assert example(errors.NotEnoughMemoryError).suggested == {
        "parallel": 3,
        "n_ctx": 1024,
        "kv_type": "q8_0",
    }
    error = example(errors.InvalidOptionError)
    assert (error.option, error.value, error.allowed) == ("top_p", 2.0, "1")


def test_no_flag_in_texts_of_the_library():
    """Only texts of the command line name flags; pip, Python and a child process have flags of their own."""
    package = Path(gguf_spec.__file__).parent
    others = (
        "pip install",
        "--force-reinstall",
        '"--gguf-spec-child"',
        "scripts/run --version",
        "scripts/run --images",
        "scripts/run --gpu",
        "scripts/run --ready-made",
        "gguf-spec serve --cors-origin",
        "gguf-spec serve --allow-host",
        "gguf-spec serve --timeout",
        "gguf-spec serve --mcp",
        "(--timeout)",
        "gguf-spec chat --forget",
    )
    tables = package / "options.py"
    for file in package.rglob("*.py"):
        if "cli" in file.relative_to(package).parts or file == tables:
            continue  # the tables are also those of the command line
        if file == package / "registry" / "package.py":
            continue  # pip's own flags
        for line in file.read_text(encoding="utf-8").splitlines():
            if re.search(r"""["' (]--[a-z]""", line) and not any(one in line for one in others):
                assert line.lstrip().startswith("#"), f"{file}: {line}"


def test_the_trace_of_an_uncaught_error_has_its_hint_once():
    with pytest.raises(errors.OptionTypeError) as caught:
        gguf_spec.load("tales", ctx=3)
    error = caught.value
    text = "".join(traceback.format_exception(error))
    assert text.rstrip().endswith("there is no argument 'ctx'.\nHint: did you mean n_ctx?")
    assert text.count("did you mean") == 1
    error.hint = "set n_ctx."
    getattr(error, "add_note", error.__notes__.append)("with the model of the tests")  # from 3.11
    for one in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        text = "".join(traceback.format_exception(one))
        assert text.endswith("\nHint: set n_ctx.\nwith the model of the tests\n")
    assert "Hint" not in f"{error} {error.message} {error!r}"


@pytest.mark.parametrize(
    ("n_prompt", "limit", "advised"),
    [
        (5_000, None, 8192),
        (5_000, 131_072, 8192),
        (5_000, 6_000, 6_000),  # no more than is possible
        (6_000, 6_000, None),
        (3_000_000, 131_072, None),
    ],
)
def test_a_longer_context_is_advised_where_it_is_possible(n_prompt, limit, advised):
    error = errors.PromptTooLongError(n_prompt, 4096, n_ctx_limit=limit)
    assert error.suggested == ({} if advised is None else {"n_ctx": advised})
    assert (f"{limit} tokens are possible" in error.hint.replace(",", "")) is (advised is None)
    assert "shorten the prompt" in error.hint


def test_the_limit_of_a_loaded_model_is_that_of_its_training():
    with gguf_spec.load("tales", "none", threads=1, n_ctx=64) as llm:
        for words, advised in ((100, {"n_ctx": 128}), (9_000, {})):
            with pytest.raises(errors.PromptTooLongError) as caught:
                llm.generate("and " * words)
            assert caught.value.suggested == advised
        assert llm.n_ctx_limit == 2048
