"""The public API and the command line as Markdown, from their docstrings and help."""

import importlib
import inspect
import re
from dataclasses import is_dataclass
from typing import get_args, get_origin

import click

from gguf_spec.cli import cli
from gguf_spec.errors import GgufSpecError

MODULES = [
    "gguf_spec",
    *(
        f"gguf_spec.{name}"
        for name in [
            "errors",
            "options",
            "tools",
            "drafters",
            "models",
            "kept",
            "images",
            "batch",
            "verify",
            "tune",
            "bench",
            "quantize",
            "doctor",
            "server",
        ]
    ),
    "gguf_spec_ray",
    "gguf_spec_trim",
    "gguf_spec_workers",
    "gguf_spec_compat",
]
# Classes whose objects come from a function of the package -> that function.
MAKERS = {
    "LLM": "load",
    "Stream": "LLM.stream",
    "Turn": "Chat.stream",
    "AsyncStream": "AsyncLLM.stream",
    "AsyncChat": "AsyncLLM.chat",
    "ServedLLM": "served",
}
# Base class of the package that the page does not list -> what stands for it.
SHOWN = {"Client[Any]": "LLM"}
SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")


def reference():
    """The public API. Before each name stands a comment from which mkdocstrings makes the entry of the site (scripts/docs/_site.py)."""
    parts = [
        "# Python API\n\nGenerated from the docstrings by `scripts/docs/readme.py`. Sizes are in bytes, times in seconds, and tokens are ids.\n"
        "Public is what this page lists; all else may change without notice.\n"
    ]
    seen, listed = set(), set(map(id, offered()))
    for name in MODULES:
        module = importlib.import_module(name)
        entries, others = [], []  # others: constants, and what another section describes
        for thing in public(module):
            value = getattr(module, thing)
            is_ours = (inspect.isclass(value) or inspect.isfunction(value)) and (
                value.__module__.startswith("gguf_spec")
            )
            if is_ours and inspect.isclass(value) and issubclass(value, GgufSpecError):
                if name != "gguf_spec.errors":  # they are in the table there
                    others.append(f"`{thing}`")
            elif is_ours and value not in seen:
                seen.add(value)
                inherits = " (with inherited members)" if hidden_bases(value, listed) else ""
                entries += [
                    f"<!-- ::: {value.__module__}.{value.__qualname__}{inherits} -->\n",
                    *described(thing, value, listed),
                ]
            else:
                others.append(f"`{thing}`")
        parts.append(f"## {module.__name__}\n\n{markdown(module.__doc__)}\n")
        if name == "gguf_spec.errors":
            rows = "\n".join(errors(module.GgufSpecError))
            parts.append(f"| error | is a | meaning | attributes |\n|---|---|---|---|\n{rows}\n")
        if name == "gguf_spec.drafters":
            rows = module.DRAFTERS.items()
            parts.append("".join(f"- `{one}`: {kind.help}\n" for one, kind in rows))
        if others:
            parts.append(f"Also in this module: {', '.join(others)}.\n")
        parts += entries
    return "\n".join(parts)


def errors(kind):
    """Yield rows of a table: an error class and those below it, with meaning and attributes."""
    about, _, attributes = markdown(kind.__doc__).partition("Attributes:\n")
    about = " ".join(about.split()).replace("|", "\\|")
    attributes = re.sub(r"\s+", " ", attributes).strip().removeprefix("- ").replace(" - `", "; `")
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    yield f"| `{kind.__name__}` | {bases} | {about} | {attributes} |"
    for one in kind.__subclasses__():
        if one.__module__ == kind.__module__:
            yield from errors(one)


def public(module):
    """Return the public names of a module: its `__all__`, or those it defines."""
    own = [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", "") == module.__name__
    ]
    return getattr(module, "__all__", own)


def offered():
    """Yield all values that the modules offer."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield from (getattr(module, thing) for thing in public(module))


def hidden_bases(value, listed):
    """Return the base classes of a class that are ours and that the page does not list (by `id`)."""
    return [
        base
        for base in getattr(value, "__mro__", ())[1:]
        if base.__module__.startswith("gguf_spec") and id(base) not in listed
    ]


def described(name, value, listed):
    """Yield a function, or a class with its members, those of hidden bases included."""
    if inspect.isfunction(value):
        yield f"### `{name}{signature(value)}`\n\n{markdown(value.__doc__)}\n"
        return
    hidden = hidden_bases(value, listed)
    bases = [base.__name__ for base in value.__bases__ if base not in (object, *hidden)]
    made = (
        ""
        if issubclass(value, (BaseException, dict))  # dict: of keyword arguments
        or getattr(value, "_is_protocol", False)
        or name in MAKERS
        or (is_dataclass(value) and not value.__dataclass_params__.init)
        else signature(value)
    )
    for hidden_name, name_of in SHOWN.items():
        made = made.replace(hidden_name, name_of)
    yield f"### class `{name}{made}`\n"
    if bases:
        yield f"Is a {', '.join(f'`{base}`' for base in bases)}.\n"
    if name in MAKERS:
        yield f"Made by `{MAKERS[name]}`.\n"
    yield f"{markdown(value.__doc__)}\n"
    if issubclass(value, BaseException):
        return
    init = vars(value).get("__init__")
    if init and init.__doc__ and not is_dataclass(value) and name not in MAKERS:
        yield f"{markdown(init.__doc__)}\n"
    types = SHOWN | arguments_of(value)
    members = {one: member for kind in (*hidden, value) for one, member in vars(kind).items()}
    for one, member in sorted(members.items()):
        if one[0] == "_":
            continue
        if isinstance(member, property):
            yield f"- **`.{one}`**: {flat(member.__doc__)}"
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            function = getattr(member, "__func__", member)
            called = signature(function, method=not isinstance(member, staticmethod))
            for hidden_name, name_of in types.items():
                called = called.replace(hidden_name, name_of)
            yield f"- **`.{one}{called}`**: {flat(function.__doc__)}"
    yield ""


def arguments_of(kind):
    """Return type variables of the bases of a class -> the types that it gives for them."""
    bases = [one for one in getattr(kind, "__orig_bases__", ()) if get_args(one)]
    return {
        variable.__name__: given.__name__
        for base in bases
        for variable, given in zip(
            getattr(get_origin(base), "__parameters__", ()), get_args(base), strict=False
        )
        if inspect.isclass(given)
    }


def signature(function, method=False):
    """How it is called; what a default is made of does not matter."""
    found = inspect.signature(function)
    shown, marked = [], False
    for parameter in list(found.parameters.values())[1 if method else 0 :]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            marked = True
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            shown.append("*")
            marked = True
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        ) + parameter.name
        if (
            parameter.annotation is not parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
        ):  # whose docstring says more
            text += f": {annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += (
                " = ..."
                if callable(parameter.default) or "factory" in repr(parameter.default)
                else f" = {parameter.default!r}"
            )
        shown.append(text)
    returned = (
        ""
        if found.return_annotation in (found.empty, None, "None")
        else f" -> {annotation(found.return_annotation)}"
    )
    return f"({', '.join(shown)}){returned}"


def annotation(value):
    value = getattr(value, "__forward_arg__", value)  # of a NamedTuple
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def flat(text):
    """A docstring as one item of a list: its sections below it."""
    first, _, rest = markdown(text).partition("\n")
    return "\n".join([first, *(f"  {line}" if line else "" for line in rest.splitlines())]).rstrip()


def markdown(text):
    """A docstring, its sections as lists."""
    lines, section = [], False
    # of files of the package users need not know
    text = re.sub(r"\s+\(`(?:\w+/)+\w+\.py`\)", "", inspect.cleandoc(text or ""))
    for line in text.splitlines():
        if line in SECTIONS:
            section = True
            lines += [f"{line}", ""]
        elif section and (found := re.match(r" {4}([*\w][\w., *|]*):(?: (.*))?$", line)):
            lines.append(f"- `{found[1]}`: {found[2] or ''}".rstrip())
        elif section and line.startswith("    "):
            if lines[-1].startswith(("- ", "  ")):
                lines.append(f"  {line.strip()}")
            else:
                lines.append(line.strip())
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines).strip()


def commands():
    """The help of every command."""
    parts = [
        "# Command line\n\nGenerated from the code by `scripts/docs/readme.py`: what `--help` prints. In a clone use `scripts/run`.\n"
    ]
    parts += [f"## {path}\n\n```text\n{text}\n```\n" for path, text in helps(cli, "gguf-spec")]
    return "\n".join(parts)


def helps(command, path):
    """Yield the path and the help of a command and of all below it."""
    for name, one, context in walk(command, path):
        yield name, one.get_help(context).strip()


def walk(command, path, parent=None):
    """Yield the path, a command and its context, for it and all below it."""
    settings = command.context_settings | {"max_content_width": 110, "terminal_width": 110}
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, **settings)
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from walk(command.commands[name], f"{path} {name}", context)
