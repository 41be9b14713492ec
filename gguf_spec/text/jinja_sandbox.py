"""Chat templates: programs in Jinja that nobody trusts, run under limits on time, memory and output.

Templates that only do what nearly all do are rendered here, step by step under a count. All others, and those that count too far, are rendered
in a process of their own that the system limits and that can be ended: inside one process nothing stops a single operation that takes for ever
(`9**9**9`) or all memory (`"x" * 10**12`). This file is run there, so it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE = 1 << 20  # characters of a template
MAX_OUTPUT = 1 << 20  # characters it may write, more than the messages hold
CPU_SECONDS = 3
_WALL_SECONDS = 20  # the processor may be busy with others
_MEMORY = 512 << 20
# Here, and not in a process of its own: characters of template and values, comparisons, what all steps may cost, and seconds.
_SMALL_SOURCE, _SMALL_VALUES, _MOST_COMPARED, _STEPS, _SECONDS = (
    1 << 16,
    1 << 18,
    500,
    20_000_000,
    1.0,
)
_PER_STEP = 500  # a turn of a loop costs as much as 500 characters


class TemplateFailure(Exception):
    """A template fails, or goes beyond its limits."""


class _Unsure(Exception):
    """A template does something that is not known to end soon."""


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; for writing a prompt it means nothing."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise TemplateFailure(" ".join(str(message)[:500].split()))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment(kind: type[ImmutableSandboxedEnvironment]) -> ImmutableSandboxedEnvironment:
    """Return Jinja as chat templates expect it: no line of its own for a block, loop controls, plain JSON."""
    environment = kind(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _write(template: jinja2.Template, values: Mapping[str, Any], most: int) -> str:
    pieces, n = [], 0
    for piece in template.generate(**values, raise_exception=_refuse, strftime_now=_now):
        n += len(piece)
        if n > most:
            raise TemplateFailure(f"it writes more than {most:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def render(source: str, values: Mapping[str, Any]) -> str:
    """Render a template.

    Args:
        source: The template.
        values: What it may use; they must be what JSON can hold.

    Raises:
        TemplateFailure: It fails, or takes more than its limits: 3 s, 512 MB, a megabyte beyond what the values hold.
    """
    if len(source) > MAX_SOURCE:
        raise TemplateFailure(f"it has {len(source):,} characters, more than {MAX_SOURCE:,}")
    try:
        text = json.dumps(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateFailure(f"the messages hold what JSON cannot: {error}") from error
    most = MAX_OUTPUT + len(text)
    if (
        len(source) <= _SMALL_SOURCE
        and len(text) <= _SMALL_VALUES
        and (template := _simple(source))
    ):
        _left.steps, _left.until = _STEPS, time.monotonic() + _SECONDS
        try:
            return _write(template, json.loads(text), most)
        except TemplateFailure:
            raise
        except Exception:  # the other process says what is wrong
            pass
    return _render_apart(source, text, most)


# ---- simple templates, here

_left = threading.local()  # of the rendering that this thread is at


def _charge(n: int) -> None:
    _left.steps -= n
    if _left.steps < 0 or time.monotonic() > _left.until:
        raise _Unsure


_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.Break, nodes.Continue, nodes.Name, nodes.NSRef,
    nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr,
    nodes.Test, nodes.Filter, nodes.Call, nodes.Keyword, nodes.Add, nodes.Sub, nodes.Mod, nodes.Neg, nodes.Concat, nodes.List, nodes.Tuple,
)  # fmt: skip
_FILTERS = {
    "trim", "length", "count", "upper", "lower", "capitalize", "title", "first", "last", "default", "d", "items", "list", "string", "tojson",
    "selectattr", "rejectattr", "map",
}  # fmt: skip
_OF_ITERATORS = {"list", "first", "last"}
_ABSENT = {"range", "lipsum", "dict", "cycler", "joiner"}
_TESTS = {
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "true", "false",
    "odd", "even", "eq", "equalto", "==", "ne", "!=", "in",
}  # fmt: skip
_METHODS = {
    (str, name) for name in ("strip", "lstrip", "rstrip", "split", "startswith", "endswith", "upper", "lower", "title", "capitalize")
} | {(dict, name) for name in ("items", "keys", "values", "get")}  # fmt: skip
_PLAIN = (str, int, float, type(None), jinja2.Undefined)
_CONTAINERS = (str, list, tuple, dict, *_PLAIN)


class _Careful(ImmutableSandboxedEnvironment):
    """A sandbox that knows few operations, each of which takes time and memory in proportion to what it is charged for."""

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
        if not any(function is known for known in (_refuse, _now, jinja2.utils.Namespace)):
            owner = getattr(function, "__self__", None)
            if (type(owner), getattr(function, "__name__", "")) not in _METHODS:
                raise _Unsure
            _charge(len(owner or ()))
            _check_short(args)
        _charge(_PER_STEP)
        return super().call(context, function, *args, **kwargs)


def _check_short(arguments: Iterable[Any]) -> None:
    """Let only what is short say how much an operation does, such as all characters that `strip` looks for."""
    for argument in arguments:
        if (isinstance(argument, int) and argument > 100) or (
            hasattr(argument, "__len__") and len(argument) > 100
        ):
            raise _Unsure


def _careful_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    at = (
        1 if hasattr(function, "jinja_pass_arg") else 0
    )  # the first argument may be the environment

    @functools.wraps(function)
    def careful(*args: Any, **kwargs: Any) -> Any:
        value = args[at]
        if not (
            isinstance(value, _PLAIN if name == "string" else _CONTAINERS)
            or (name in _OF_ITERATORS and hasattr(value, "__next__"))
        ):
            raise _Unsure
        if name not in ("default", "d"):
            _check_short([*args[at + 1 :], *kwargs.values()])
        _charge(_PER_STEP + (len(value) if hasattr(value, "__len__") else 0))
        result = function(*args, **kwargs)
        _charge(len(result) if isinstance(result, (str, list)) else 0)
        return result

    return careful


def _shown(value: Any) -> Any:
    """Let only what is short to write out be written; a namespace could hold others without end."""
    if not isinstance(value, _PLAIN):
        raise _Unsure
    return value


@pass_context  # or it would be computed once, as a constant
def _tick(_: Context, value: Any) -> Any:
    _charge(_PER_STEP + (len(value) if isinstance(value, str) else 0))
    return value


@functools.lru_cache(maxsize=8)
def _simple(source: str) -> jinja2.Template | None:
    """Return a template whose loops and copies are counted; None for one that does more than `_Careful` can watch."""
    environment = _environment(_Careful)
    environment.finalize = _shown
    environment.globals = {"namespace": jinja2.utils.Namespace}
    environment.filters = {
        name: _careful_filter(name, environment.filters[name]) for name in _FILTERS
    }
    environment.filters[" tick"] = _tick  # a name that no template can write
    environment.tests = {name: environment.tests[name] for name in _TESTS}
    _left.steps, _left.until = _STEPS, time.monotonic() + _SECONDS  # constants are computed here
    try:
        tree = environment.parse(source)
        found = list(tree.find_all(nodes.Node))
        if (
            not all(_is_simple(node) for node in found)
            or sum(isinstance(node, (nodes.Compare, nodes.Test)) for node in found) > _MOST_COMPARED
        ):
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
    except Exception:  # the other process says what is wrong
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


# ---- all others, in a process of their own

# Neither the folder that this runs in nor the packages of the environment may stand in for what is imported.
_START = "import runpy, sys; sys.path[:0] = sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"


def _render_apart(source: str, values: str, most: int) -> str:
    if not sys.executable or getattr(sys, "frozen", False):
        raise TemplateFailure(
            "it does more than can be watched inside this program, and there is no Python to run it with"
        )
    places = {str(Path(str(module.__file__)).parents[1]) for module in (jinja2, markupsafe)}
    task = json.dumps(
        {
            "source": source,
            "values": values,
            "most": most,
            "cpu": CPU_SECONDS,
            "memory": _MEMORY + 20 * len(values),
        }
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, __file__, *places],
            input=task, capture_output=True, encoding="ascii", timeout=_WALL_SECONDS, check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TemplateFailure(f"it takes more than {_WALL_SECONDS} seconds") from None
    except OSError as error:
        raise TemplateFailure(
            f"it needs a process of its own, which cannot be started: {error}"
        ) from error
    if done.returncode in (-signal.SIGKILL, -signal.SIGXCPU) if sys.platform != "win32" else False:
        raise TemplateFailure(f"it takes more than {CPU_SECONDS} seconds")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise TemplateFailure(f"its process ended with code {done.returncode}") from None
    if "error" in answer:
        raise TemplateFailure(answer["error"])
    return str(answer["text"])


def _limit(cpu_seconds: int, memory: int) -> None:
    """Let the system end this process when it takes too much; Windows cannot, and only its time is limited there."""
    if sys.platform == "win32":
        return
    import resource

    for what, n in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit on memory
            resource.setrlimit(what, (n if hard == resource.RLIM_INFINITY else min(n, hard), hard))


def _main() -> None:
    task = json.loads(sys.stdin.read())
    _limit(task["cpu"], task["memory"])
    try:
        template = _environment(ImmutableSandboxedEnvironment).from_string(task["source"])
        answer = {"text": _write(template, json.loads(task["values"]), task["most"])}
    except MemoryError:
        answer = {"error": f"it takes more than {_MEMORY >> 20} MB"}
    except Exception as error:  # a template is a program: it may raise anything
        answer = {"error": " ".join(str(error)[:500].split()) or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main()
