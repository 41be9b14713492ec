"""Program of the child process that renders a chat template under limits of the system.

It runs as a file of its own, without the packages of the environment, so it imports nothing from
this package. The renderer in the parent process uses the same environment.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# bytes of memory of the child process
MEMORY = 512 << 20


class TemplateFailure(Exception):
    """A template fails or exceeds a limit."""


class _Generation(Extension):
    """Support for `{% generation %}`.

    The tag marks training targets and has no effect on a prompt.
    """

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """Fail, as `raise_exception` of a template."""
    raise TemplateFailure(" ".join(str(message)[:500].split()))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[Any]:
    """Return the items of an iterator, such as the result of the filter `map`."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return [*value]


def now(form: str) -> str:
    """Return the local time as text, as `strftime_now` of a template."""
    return datetime.now().strftime(form)


def make_environment(kind: type[ImmutableSandboxedEnvironment]) -> ImmutableSandboxedEnvironment:
    """Return a Jinja environment with the settings that chat templates expect.

    Block tags leave no line of their own. Loop controls are enabled. JSON is not HTML-escaped.
    """
    environment = kind(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment


def write_text(template: jinja2.Template, values: Mapping[str, Any], most: int) -> str:
    """Render a template.

    Raises:
        TemplateFailure: The output has more than `most` characters, or the template fails.
    """
    pieces, n = [], 0
    for piece in template.generate(**values, raise_exception=refuse, strftime_now=now):
        n += len(piece)
        if n > most:
            raise TemplateFailure(f"it writes more than {most:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def _limit(cpu_seconds: int, memory: int) -> None:
    """Limit the resources of this process.

    Windows has no such limits; only the time-out applies.
    """
    if sys.platform == "win32":
        return
    import resource

    for what, n in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        # macOS has no memory limit
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (n if hard == resource.RLIM_INFINITY else min(n, hard), hard))


def main() -> None:
    """Read a task from stdin, render its template and write the answer to stdout, as JSON."""
    task = json.loads(sys.stdin.read())
    _limit(task["cpu"], task["memory"])
    try:
        template = make_environment(ImmutableSandboxedEnvironment).from_string(task["source"])
        answer = {"text": write_text(template, json.loads(task["values"]), task["most"])}
    except MemoryError:
        answer = {"error": f"it takes more than {MEMORY >> 20} MiB"}
    except Exception as error:  # a template is a program and may raise any exception
        answer = {"error": " ".join(str(error)[:500].split()) or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
