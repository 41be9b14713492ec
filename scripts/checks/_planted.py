"""A copy of the package with one mistake in it, and what the tests and `gguf-spec verify` say of that copy.

Tests run in a child that is forked from a process which has the libraries loaded already: most mistakes are caught within a second.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("gguf_spec", "tests", "scripts", "models.yaml", "pyproject.toml", "README.md")
_LIBRARIES = (
    "numpy",
    "llama_cpp",
    "jinja2",
    "yaml",
    "click",
    "rich.console",
)  # none that is a plugin of pytest, or needs one
_VERIFY = ("verify", "--count", "3", "--max-tokens", "48", "--draws", "400", "--threads", "1")


def preload() -> None:
    """Load the libraries, and none of our modules."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for name in _LIBRARIES:
        importlib.import_module(name)


class _Once:
    """A plugin: examples that fail are not made smaller, nor kept."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("once", phases=(Phase.explicit, Phase.generate), database=None)
        settings.load_profile("once")


class Copy:
    """The package and its tests in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in _PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "gguf_spec"], check=True)

    @contextlib.contextmanager
    def planted(self, file: str, text: str) -> Iterator[None]:
        """Put another text into a file, and take it out again."""
        path = self.folder / file
        right, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
        path.write_text(text, encoding="utf-8")
        compiled.unlink(missing_ok=True)
        try:
            yield
        finally:
            path.write_bytes(right)
            compiled.unlink(missing_ok=True)

    def test(self, tests: Sequence[str], limit_s: float) -> str:
        """Return the first of the tests that fails, or that the time was up; nothing where all pass."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        said = self.folder / "output"
        child = os.fork()
        if not child:
            code = 99
            try:
                code = self._pytest(tests, said)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = self._wait(child, limit_s)
        if status is None:
            return "time limit"
        text = said.read_text(errors="replace")
        if os.WIFSIGNALED(status):
            return f"signal {os.WTERMSIG(status)}"
        code = os.WEXITSTATUS(status)
        if code == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        if code not in (1, 2) or not failed:
            raise RuntimeError(f"pytest ended with {code}:\n{text[-3000:]}")
        return failed[1]

    def _pytest(self, tests: Sequence[str], said: Path) -> int:
        os.setsid()
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        sys.dont_write_bytecode = True
        sys.path[:] = [
            str(self.folder),
            *(
                path
                for path in sys.path
                if Path(path or ".").resolve() not in (ROOT, ROOT / "scripts" / "checks")
            ),
        ]
        import gguf_spec

        if Path(gguf_spec.__file__).parent != self.folder / "gguf_spec":
            raise RuntimeError(f"{gguf_spec.__file__} is not the copy")
        import pytest

        return int(
            pytest.main(
                [
                    "-x",
                    "-q",
                    "--tb=short",
                    "-p",
                    "no:cacheprovider",
                    "--hypothesis-seed=15",
                    *tests,
                ],
                [_Once()],
            )
        )

    @staticmethod
    def _wait(child: int, limit_s: float) -> int | None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def verify(self, limit_s: float) -> str:
        """Return what `gguf-spec verify` says of the bundled pair, or that it fails otherwise; nothing where it finds no fault."""
        environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        command = [sys.executable, "-B", "-m", "gguf_spec", *_VERIFY]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "time limit"
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
        return f"{done.returncode}: {''.join(last)}" if done.returncode else ""
