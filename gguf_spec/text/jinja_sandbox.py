"""Sandbox for chat templates: untrusted Jinja programs, with limits on time, memory and output.

Simple templates are rendered in this process, with a count of their steps. All others, and those
that exceed the count, are rendered in a child process, which the system limits and which can be
killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from . import jinja_child
from .jinja_child import MEMORY, TemplateFailure
from .jinja_in_process import render_simple

__all__ = ["TemplateFailure", "render"]

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


def render(source: str, values: Mapping[str, Any]) -> str:
    """Render a template.

    Args:
        source: The template.
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
        raise TemplateFailure(
            f"the messages contain a value that JSON does not support: {error}"
        ) from error
    most = MAX_OUTPUT + len(text)
    rendered = render_simple(source, text, most)
    return _render_apart(source, text, most) if rendered is None else rendered


def _render_apart(source: str, values: str, most: int) -> str:
    if not sys.executable or getattr(sys, "frozen", False):
        raise TemplateFailure(
            "it is too complex to run inside this program, "
            "and there is no Python interpreter for a separate process"
        )
    places = {str(Path(str(module.__file__)).parents[1]) for module in (jinja2, markupsafe)}
    task = json.dumps(
        {
            "source": source,
            "values": values,
            "most": most,
            "cpu": CPU_SECONDS,
            "memory": MEMORY + 20 * len(values),
        }
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, jinja_child.__file__, *places],
            input=task,
            capture_output=True,
            encoding="ascii",
            timeout=_WALL_SECONDS,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired:
        raise TemplateFailure(f"it takes more than {_WALL_SECONDS} seconds") from None
    except OSError as error:
        raise TemplateFailure(
            f"it needs a separate process, which cannot be started: {error}"
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
