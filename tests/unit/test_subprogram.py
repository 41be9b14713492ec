"""Child processes in a frozen app: the app recognises them, or they are refused. No test here starts a program."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gguf_spec import errors
from gguf_spec.llama import own_kernels, probe
from gguf_spec.quantize import quantize
from gguf_spec.registry import package
from gguf_spec.registry.models_file import BUNDLED
from gguf_spec.system import subprogram
from gguf_spec.text import jinja_child, jinja_sandbox

REFUSED = "a packed program without gguf_spec.freeze_support() cannot start a child process"


@pytest.fixture
def frozen(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprogram, "_recognised", [])


@pytest.fixture
def never_started(monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError(f"{arguments} was started")

    monkeypatch.setattr(subprocess, "Popen", fail)


def test_every_program_has_a_main():
    assert all(
        callable(sys.modules[name].main) for name in subprogram.PROGRAMS if name in sys.modules
    )
    assert jinja_child.__name__ in subprogram.PROGRAMS


def test_outside_a_frozen_app():
    command = subprogram.command("gguf_spec.llama.selftest", "kernels")
    assert command == [sys.executable, "-m", "gguf_spec.llama.selftest", "kernels"]
    subprogram.freeze_support()  # does nothing


def test_an_app_without_freeze_support_starts_no_child(
    frozen, never_started, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert subprogram.refusal() == REFUSED
    assert own_kernels.library_problem("auto") == REFUSED
    with pytest.raises(errors.FrozenAppError, match="freeze_support") as caught:
        quantize(BUNDLED / "tales" / "tales-target-Q8_0.gguf", tmp_path / "small.gguf", "Q4_0")
    assert "freeze_support" in caught.value.hint
    with pytest.raises(errors.FrozenAppError):
        probe.run("kernels", "auto")
    with pytest.raises(
        jinja_sandbox.TemplateFailure,
        match="it is too complex to run inside this program, and a packed",
    ):
        jinja_sandbox.render_in_child("x", "{}", 1)


def test_pip_is_refused(frozen, never_started, tmp_path):
    with pytest.raises(errors.PackageError, match="a packed program has no pip") as caught:
        package.command("a-model", "a-package==1", tmp_path, package.programs())
    assert sys.executable not in caught.value.hint


def test_the_app_with_an_argument(frozen):
    subprogram.freeze_support()
    assert subprogram.refusal() == ""
    for command in (probe.command("kernels"), subprogram.command(jinja_child.__name__)):
        assert command[:2] == [sys.executable, "--gguf-spec-child"]
        assert command[2] in subprogram.PROGRAMS


def test_the_child_runs_its_module_and_ends(frozen, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["app", "--gguf-spec-child", "gguf_spec.llama.selftest", "seen", "a", "b"]
    )
    from gguf_spec.llama import selftest

    monkeypatch.setattr(selftest, "main", lambda *given: print(given) or 7)
    with pytest.raises(SystemExit) as ended:
        subprogram.freeze_support()
    assert ended.value.code == 7
    assert capsys.readouterr().out == "('seen', 'a', 'b')\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["app"],
        ["app", "--gguf-spec-child"],
        ["app", "--gguf-spec-child", "os"],
        ["app", "x", "gguf_spec.llama.selftest"],
    ],
)
def test_other_arguments_are_the_apps_own(frozen, monkeypatch, argv):
    monkeypatch.setattr(sys, "argv", argv)
    subprogram.freeze_support()


def test_other_programs_get_no_libraries_of_the_app(frozen, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/app/_internal")
    assert subprogram.environment_of_others() == dict(os.environ), "of Nuitka: the user's own"
    monkeypatch.setattr(sys, "_MEIPASS", "/app/_internal", raising=False)
    assert "LD_LIBRARY_PATH" not in subprogram.environment_of_others()
    monkeypatch.setenv("LD_LIBRARY_PATH_ORIG", "/usr/local/lib")
    assert subprogram.environment_of_others()["LD_LIBRARY_PATH"] == "/usr/local/lib"
    monkeypatch.delattr(sys, "_MEIPASS")
    assert subprogram.environment_of_others() == dict(os.environ)


@pytest.mark.parametrize(
    ("compiled", "is_one"),
    [
        (SimpleNamespace(standalone=True), True),
        (SimpleNamespace(standalone=False), False),
        (object(), True),
    ],
)
def test_a_program_of_nuitka_that_needs_its_interpreter_is_not_frozen(
    monkeypatch, compiled, is_one
):
    """`--mode=accelerated`: `sys.executable` is the interpreter, which knows no argument of the app."""
    monkeypatch.setattr(subprogram, "__compiled__", compiled, raising=False)
    assert subprogram.is_frozen() is is_one
