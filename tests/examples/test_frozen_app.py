"""An app that PyInstaller built, run without a Python on the PATH: the Tk example's window, and every child process of gguf-spec."""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.llama import own_kernels
from tests.examples.test_desktop_app import ROOT, App, display, missing
from tests.support import children

__all__ = ["display"]  # a fixture
HERE = ROOT / "tests" / "examples"
lacks = [] if importlib.util.find_spec("PyInstaller") else ["PyInstaller"]
if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
    lacks.append("shared library of Python")
if not shutil.which("objdump"):
    lacks.append("objdump")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(lacks), reason=f"there is no {', no '.join(lacks)}"),
]


@pytest.fixture(
    scope="module", params=["--onedir", pytest.param("--onefile", marks=pytest.mark.slow)]
)
def app(request, tmp_path_factory):
    """Return the program and the environment in which it runs."""
    # installed before the entry point was added? scripts/test installs it again
    hooks = importlib.metadata.entry_points(group="pyinstaller40")
    assert "gguf_spec._pyinstaller:hook_dirs" in [one.value for one in hooks]
    folder = tmp_path_factory.mktemp("frozen")
    places = [f"--{kind}path={folder / kind}" for kind in ("dist", "work", "spec")]
    children.run(
        [
            *(sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=ERROR", *places),
            *(
                request.param,
                f"--paths={HERE}",
                f"--paths={ROOT / 'scripts' / 'examples'}",
                HERE / "frozen_app.py",
            ),
        ],
        # it reads what programs of the system say as UTF-8
        env=os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        check=True,
        limit_s=600,
    )
    around = {
        "PATH": str(folder / "nothing"),
        "HOME": str(folder),
        "STARTS": str(folder / "starts"),
    }
    around |= {name: value for name, value in os.environ.items() if name == "GGUF_SPEC_KERNELS"}
    place = folder / "dist" / "frozen_app"
    program = place / "frozen_app" if request.param == "--onedir" else place
    return program, around | {"LANG": "C.UTF-8"}


def test_every_child_process(app, tmp_path):
    program, around = app
    out = tmp_path / "seen.json"
    children.run([program, out], env=around, check=True)
    seen = json.loads(out.read_text(encoding="utf-8"))
    with gguf_spec.load("tales", n_ctx=256, threads=1) as llm:
        sampling = Sampling(max_tokens=20, temperature=0.0)
        used = own_kernels.in_use()
        assert seen["text"] == llm.generate("Once upon a time", sampling).text
        assert (seen["kernels"], seen["no_kernels"]) == (used.name, used.reason)
    assert seen["frozen"]
    assert seen["repacking"] == ""
    assert seen["template"] == "0-1-2-"
    assert seen["quantized"] == "Q4_0"
    assert seen["workers"].startswith("WorkerError: the workers at 127.0.0.1:1 cannot be used")
    assert seen["package"].endswith(
        "comes from the package index, and a packed program has no pip."
    )
    starts = Path(around["STARTS"]).read_text(encoding="utf-8")
    assert starts == f"{[str(out)]}\n", "a child was the app again"
    Path(around["STARTS"]).unlink()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_and_has_another_name_each_time(app, tmp_path):
    """As an AppImage is mounted; there is no home folder, either."""
    program, around = app
    for name in ("first", "second"):
        place, out = tmp_path / name, tmp_path / f"{name}.json"
        place.mkdir()
        for command in (
            ["mount", "--bind", program.parent, place],
            ["mount", "-o", "remount,bind,ro", place],
        ):
            if children.run(command, capture_output=True).returncode:
                pytest.skip("no folder can be mounted here")
        try:
            with pytest.raises(OSError, match="Read-only"):
                (place / "x").touch()
            children.run(
                [place / program.name, out], env=around | {"HOME": "/dev/null"}, check=True
            )
        finally:
            children.run(["umount", place], check=True)
        seen = json.loads(out.read_text(encoding="utf-8"))
        assert (seen["frozen"], seen["quantized"], seen["text"] != "") == (True, "Q4_0", True)


@pytest.mark.skipif(bool(missing), reason=f"there is no {', no '.join(missing)}")
def test_the_window_answers(app, display, tmp_path):
    program, around = app
    one = App(display, "tales", 0.0, [program], around)
    try:
        ready = one.until(lambda shown: shown["state"] == "ready")
        assert ready["status"].startswith("tales, ")
        one.type("Tell me a story about a fox.", "Return")
        shown = one.until(lambda shown: shown["state"] == "ready" and "fox.\n" in shown["text"])
        assert len(shown["text"].splitlines()) >= 2
        if shutil.which("import"):  # to look at
            picture = os.environ.get("GGUF_SPEC_SCREENSHOT", str(tmp_path / "app.png"))
            children.run(["import", "-window", "root", picture], env=one.environment, check=True)
        one.close()
        assert one.left() == (["MainThread"], "")
    finally:
        one.process.kill()
        one.process.communicate()
