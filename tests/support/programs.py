"""Programs that tests write; the path of Python in them may have spaces, and bytes that are no text in this locale."""

import os
import sys


def shell_program(path, text):
    """Write a program for /bin/sh; return its path."""
    path.write_bytes(os.fsencode(f"#!/bin/sh\n{text}"))
    path.chmod(0o755)
    return path


def python_program(path, text):
    """Write a program for this Python, in a file beside it; return its path."""
    code = path.with_name(f"{path.name}.py")
    code.write_text(text, encoding="utf-8")
    return shell_program(path, f'exec "{sys.executable}" "{code}" "$@"\n')
