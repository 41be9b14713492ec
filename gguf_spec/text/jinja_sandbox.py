"""Sandbox for chat templates: untrusted Jinja programs, with limits on time, memory and output.

Simple templates are rendered in this process, with a count of their steps. All others, and those
that exceed the count, are rendered in a child process, which the system limits and which can be
killed.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import markupsafe
from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..system import subprogram
from . import jinja_child
from .jinja_child import MEMORY, TemplateFailure, make_environment, now, refuse, write_text

# Limits in this process: characters of the template and of the values, comparisons in the template.
_SMALL_SOURCE, _SMALL_VALUES, _MOST_COMPARED = 1 << 16, 1 << 18, 500
# Limits in this process: steps (see `_PER_STEP`), seconds.
_STEPS, _SECONDS = 20_000_000, 1.0
# steps of one loop iteration or call; one character is one step
_PER_STEP = 500
# remaining steps and end time of the current rendering
_left = threading.local()
# fmt: off
# node types, filters, names, tests and methods of simple templates
_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign,
    nodes.Break, nodes.Continue, nodes.Name, nodes.NSRef, nodes.Const, nodes.Getattr,
    nodes.Getitem, nodes.Slice, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not,
    nodes.CondExpr, nodes.Test, nodes.Filter, nodes.Call, nodes.Keyword, nodes.Add, nodes.Sub,
    nodes.Mod, nodes.Neg, nodes.Concat, nodes.List, nodes.Tuple,
)
_FILTERS = {
    "trim", "length", "count", "upper", "lower", "capitalize", "title", "first", "last",
    "default", "d", "items", "list", "string", "tojson", "selectattr", "rejectattr", "map",
}
# filters that accept an iterator
_OF_ITERATORS = {"list", "first", "last"}
# Jinja globals that are not available
_ABSENT = {"range", "lipsum", "dict", "cycler", "joiner"}
_TESTS = {
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean",
    "mapping", "iterable", "sequence", "true", "false", "odd", "even", "eq", "equalto", "==",
    "ne", "!=", "in",
}
_METHODS = {
    (str, name)
    for name in (
        "strip", "lstrip", "rstrip", "split", "startswith", "endswith", "upper", "lower",
        "title", "capitalize",
    )
} | {(dict, name) for name in ("items", "keys", "values", "get")}
# fmt: on
# types with a short text, and types that filters accept
_PLAIN = (str, int, float, type(None), jinja2.Undefined)
_CONTAINERS = (str, list, tuple, dict, *_PLAIN)
__all__ = ["TemplateFailure", "names_read", "render", "template_fault"]
# characters of a template
MAX_SOURCE = 1 << 20
# characters of the output, in addition to the length of the messages
MAX_OUTPUT = 1 << 20
# processor time of the child process
CPU_SECONDS = 3
# run time of the child process; longer, because other programs may use the processor
_WALL_SECONDS = 20
# Start of the child process. The current folder and the packages of the environment must not
# replace the imported modules.
_START = (
    "import runpy, sys; sys.path[:0] = sys.argv[2:]; "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


# Variables of Jinja, or that only this package sets.
_RESERVED = frozenset((
    "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "tool_choice",
    "functions", "function_call", "raise_exception", "strftime_now", "namespace", "range", "loop",
    "dict", "lipsum", "cycler", "joiner", "self", "super", "caller", "varargs", "kwargs",
))  # fmt: skip


class _Unsure(Exception):
    """A template uses an operation without a known bound on its time or memory."""


def _charge(n: int) -> None:
    _left.steps -= n
    if _left.steps < 0 or time.monotonic() > _left.until:
        raise _Unsure


class _Careful(ImmutableSandboxedEnvironment):
    """A sandbox with few operations and a count of their steps.

    The time and memory of each operation are proportional to its counted steps.
    """

    intercepted_binops = frozenset({"+", "-", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and isinstance(right, str) and operator == "+":
            _charge(_PER_STEP + len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            _charge(_PER_STEP)
        else:
            raise _Unsure
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not any(function is known for known in (refuse, now, jinja2.utils.Namespace)):
            owner = getattr(function, "__self__", None)
            if (type(owner), getattr(function, "__name__", "")) not in _METHODS:
                raise _Unsure
            _charge(len(owner or ()))
            _check_short(args)
        _charge(_PER_STEP)
        return super().call(context, function, *args, **kwargs)


def _check_short(arguments: Iterable[Any]) -> None:
    """Reject large arguments, which could make an operation expensive, such as those of `strip`."""
    for argument in arguments:
        if (isinstance(argument, int) and argument > 100) or (
            hasattr(argument, "__len__") and len(argument) > 100
        ):
            raise _Unsure


def _careful_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # the first argument may be the environment
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def careful(*args: Any, **kwargs: Any) -> Any:
        value = args[at]
        is_iterator = name in _OF_ITERATORS and hasattr(value, "__next__")
        if not (is_iterator or isinstance(value, _PLAIN if name == "string" else _CONTAINERS)):
            raise _Unsure
        if name not in ("default", "d"):
            _check_short([*args[at + 1 :], *kwargs.values()])
        _charge(_PER_STEP + (len(value) if hasattr(value, "__len__") else 0))
        result = function(*args, **kwargs)
        _charge(len(result) if isinstance(result, (str, list)) else 0)
        return result

    return careful


def _shown(value: Any) -> Any:
    """Return a value with a short text form; reject others, such as endlessly nested namespaces."""
    if not isinstance(value, _PLAIN):
        raise _Unsure
    return value


# without a context, Jinja would evaluate the filter once, as a constant
@pass_context
def _tick(_: Context, value: Any) -> Any:
    _charge(_PER_STEP + (len(value) if isinstance(value, str) else 0))
    return value


@functools.lru_cache(maxsize=8)
def simple_template(source: str) -> jinja2.Template | None:
    """Compile a template whose loops and copies are counted; None for other templates."""
    environment = make_environment(_Careful)
    environment.finalize = _shown
    environment.globals = {"namespace": jinja2.utils.Namespace}
    filters = environment.filters
    environment.filters = {name: _careful_filter(name, filters[name]) for name in _FILTERS}
    environment.filters[" tick"] = _tick  # templates cannot contain this name
    environment.tests = {name: environment.tests[name] for name in _TESTS}
    # the parser already evaluates constants
    _left.steps, _left.until = _STEPS, time.monotonic() + _SECONDS
    try:
        tree = environment.parse(source)
        found = list(tree.find_all(nodes.Node))
        n_compared = sum(isinstance(node, (nodes.Compare, nodes.Test)) for node in found)
        if n_compared > _MOST_COMPARED or not all(_is_simple(node) for node in found):
            return None
        for node in found:
            if isinstance(node, nodes.For):
                turn = _through(" tick", nodes.Const(True))
                node.test = nodes.And(turn, node.test) if node.test else turn
            elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
                node.node = _through(" tick", node.node)
            elif isinstance(node, nodes.Concat):
                node.nodes = [_through("string", part) for part in node.nodes]
        return environment.from_string(tree)
    except Exception:  # the child process reports the reason
        return None


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def _is_simple(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)) and getattr(node, "ctx", "load") == "load":
        return all(isinstance(item, nodes.Const) for item in node.items)
    if isinstance(node, nodes.For):
        return not node.recursive
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS and node.node is not None
    if isinstance(node, nodes.Name):
        return node.name not in _ABSENT
    return isinstance(node, _NODES)


def render(source: str, values: Mapping[str, Any]) -> str:
    """Render a template.

    Args:
        values: Its variables; they must be JSON-serialisable.

    Returns:
        The output.

    Raises:
        TemplateFailure: The template fails or exceeds its limits: 3 s, 512 MiB, 1,048,576
            characters in addition to the length of the values.
    """
    if len(source) > MAX_SOURCE:
        raise TemplateFailure(f"it has {len(source):,} characters, more than {MAX_SOURCE:,}")
    try:
        text = json.dumps(values)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"the messages contain a value that JSON does not support: {error}"
        raise TemplateFailure(what) from error
    most = MAX_OUTPUT + len(text)
    is_small = len(source) <= _SMALL_SOURCE and len(text) <= _SMALL_VALUES
    template = simple_template(source) if is_small else None
    if template:
        _left.steps, _left.until = _STEPS, time.monotonic() + _SECONDS
        try:
            return write_text(template, json.loads(text), most)
        except TemplateFailure:
            raise
        except Exception:  # the child process reports the reason
            pass
    return render_in_child(source, text, most)


def render_in_child(source: str, values: str, most: int) -> str:
    if reason := subprogram.refusal():
        raise TemplateFailure(f"it is too complex to run inside this program, and {reason}")
    places = {str(Path(str(module.__file__)).parents[1]) for module in (jinja2, markupsafe)}
    command = [sys.executable, "-I", "-S", "-c", _START, jinja_child.__file__, *places]
    if subprogram.is_frozen():
        command = subprogram.command(jinja_child.__name__)
    task = {"source": source, "values": values, "most": most}
    limits = {"cpu": CPU_SECONDS, "memory": MEMORY + 20 * len(values)}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(task | limits),
            capture_output=True,
            encoding="ascii",
            timeout=_WALL_SECONDS,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        raise TemplateFailure(f"it takes more than {_WALL_SECONDS} seconds") from None
    except OSError as error:
        what = f"it needs a separate process, which cannot be started: {error}"
        raise TemplateFailure(what) from error
    if sys.platform != "win32" and done.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        raise TemplateFailure(f"it takes more than {CPU_SECONDS} seconds")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise TemplateFailure(f"its process ended with code {done.returncode}") from None
    if "error" in answer:
        raise TemplateFailure(answer["error"])
    return str(answer["text"])


# ---- what a source says: it is only parsed, and no constant is computed


@functools.lru_cache(maxsize=8)
def names_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads before it sets them; none if it is broken.

    The source is only parsed: no constant is computed.
    """
    first: dict[str, bool] = {}
    if len(template) > MAX_SOURCE:
        return frozenset()
    try:
        tree = make_environment(ImmutableSandboxedEnvironment).parse(template)
        set_here = _RESERVED.union(one.name for one in tree.find_all(nodes.Macro))
        for one in tree.find_all(nodes.Name):
            first.setdefault(one.name, one.ctx == "load" and one.name not in set_here)
    except (jinja2.TemplateError, ValueError, RecursionError):  # also a number of 5,000 digits
        return frozenset()
    return frozenset(name for name, is_read in first.items() if is_read)


class TemplateFault(NamedTuple):
    """What is wrong with a template, whatever the messages are.

    Attributes:
        text: The fact, with its line.
        name: The name that is not known; empty for other faults.
    """

    text: str
    name: str = ""


@functools.lru_cache(maxsize=8)
def template_fault(template: str) -> TemplateFault | None:
    """Return the first fault of a template: its syntax, or a filter, test or function not known.

    The source is only parsed. A function that the template looks for (`is defined`) is no fault.
    """
    environment = make_environment(ImmutableSandboxedEnvironment)
    if len(template) > MAX_SOURCE:
        return TemplateFault(f"it has {len(template):,} characters, more than {MAX_SOURCE:,}")
    try:
        tree = environment.parse(template)
    except jinja2.TemplateSyntaxError as error:
        text = " ".join(str(error.message)[:200].split())
        text = "".join(one if one.isprintable() else "?" for one in text).rstrip(".")
        return TemplateFault(f"line {error.lineno}: {text}")
    except (jinja2.TemplateError, ValueError, RecursionError):
        return TemplateFault("it cannot be parsed")
    tested = {
        one.node.name for one in tree.find_all(nodes.Test) if isinstance(one.node, nodes.Name)
    }
    made = {one.name for one in tree.find_all(nodes.Name) if one.ctx != "load"} | tested
    made.update(one.name for one in tree.find_all(nodes.Macro))
    known = (_RESERVED | environment.globals.keys() | made) - {"messages", "tools"}
    filters, tests = environment.filters, environment.tests
    named = [
        *(
            (one, "filter", one.name)
            for one in tree.find_all(nodes.Filter)
            if one.name not in filters
        ),
        *((one, "test", one.name) for one in tree.find_all(nodes.Test) if one.name not in tests),
        *(
            (one, "function", one.node.name)
            for one in tree.find_all(nodes.Call)
            if isinstance(one.node, nodes.Name) and one.node.name not in known
        ),
    ]
    for one, kind, name in sorted(named, key=lambda found: found[0].lineno):
        return TemplateFault(f"line {one.lineno}: there is no {kind} {name[:60]!r}", name)
    return None
