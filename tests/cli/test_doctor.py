"""`gguf-spec doctor` from end to end: what it shows, how it ends, and how it looks at a terminal."""

import json
import re
import shutil
import sys
from functools import partial

import pytest

from gguf_spec.llama.bindings import CPU_LIBRARY, LIBRARY_FOLDER
from tests.support import children

WELL = ("-m", "abc.gguf", "-d", "abx.gguf", "--ctx", "64", "--threads", "1")


def test_what_it_shows(here):
    result = here("doctor", *WELL)
    assert (result.returncode, result.stderr) == (0, b"")
    lines = result.stdout.decode().splitlines()
    shown = [
        re.fullmatch(r"(ok|warn)  +(\S+(?: \S+)?)  *(.+)", line)
        for line in lines
        if line[:4] in ("ok  ", "warn")
    ]
    assert all(shown)
    names = [match[2] for match in shown]
    assert names[0].split()[0] == "Python"
    assert len(names) == 24
    assert "fast kernels" in names
    assert lines[1] == ""
    assert lines[0].startswith(("No problem was found.", "Could be better: "))


def test_json(here):
    result = here("doctor", *WELL, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    data = json.loads(result.stdout)
    assert data["ok"] is True
    assert {one["status"] for one in data["checks"]} <= {"ok", "warn"}
    assert [one["name"] for one in data["checks"]][-1] == "costs"
    assert data["costs"] is None


@pytest.mark.parametrize("as_json", [True, False])
def test_what_fails_ends_it_with_1(here, as_json):
    result = here("doctor", "-m", "abc.gguf", "-d", "no.gguf", *["--json"] * as_json)
    assert (result.returncode, result.stderr) == (1, b"")
    text = result.stdout.decode()
    if as_json:
        assert json.loads(text)["ok"] is False
        last = json.loads(text)["checks"][-1]
        assert last.pop("todo").startswith("name a GGUF file, ")
        assert last == {
            "name": "draft",
            "status": "fail",
            "found": "there is no file no.gguf and no model with that name.",
        }
    else:
        assert (
            "fail  draft        there is no file no.gguf and no model with that name.\n                   -> name a GGUF file"
            in text
        )
        assert text.splitlines()[0].startswith("Failed: draft")


def test_a_hub_that_cannot_be_reached(here):
    result = here(
        "doctor",
        *WELL,
        "--json",
        "--online",
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
    )
    assert (result.returncode, result.stderr) == (1, b"")
    data = json.loads(result.stdout)
    assert [one["name"] for one in data["checks"] if one["status"] == "fail"] == ["hub"]
    assert data["sentence"].startswith("Failed: hub")


def test_usage(here):
    result = here("doctor", "--threads", "0")
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"threads is 0" in result.stderr


@pytest.mark.full
def test_at_a_terminal_of_80_columns(work, environment):
    """No line is longer, continued lines are indented, and passed checks are green."""
    gone = "a file with a name that is quite long/and that is not there.gguf"
    command = [sys.executable, "-m", "gguf_spec", "doctor", "-m", "abc.gguf", "-d", gone]
    env = environment | {"GGUF_SPEC_CALLED": "/home/someone/a folder/scripts/run"}
    code, seen = children.at_terminal(command, size=(24, 80), cwd=work, env=env)
    assert code == 1, seen
    assert b"someone" in seen
    assert b"\n\x1b[32mok    \x1b[0mPython" in seen
    assert b"\x1b[31mfail  \x1b[0mdraft" in seen
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).replace("\r\n", "\n").splitlines()
    # A path is not broken, however long it is.
    assert all(len(line) <= 80 or max(map(len, line.split())) > 80 - 19 for line in lines)
    assert all(
        re.match(r"(ok    |warn  |fail  |(Failed|Could be better): )\S|\s{19}\S|$", line)
        for line in lines
    ), lines


# ---- libraries for GPUs that lack something, or whose driver ends the process


@pytest.fixture
def backend(cli, tmp_path):
    """Puts a library for a GPU, made of a source, beside those of llama.cpp, and returns a command line with it."""
    if not CPU_LIBRARY or not CPU_LIBRARY.variant or not shutil.which("cc"):
        pytest.skip("this llama.cpp loads no libraries by itself, or there is no compiler")
    folder = tmp_path / "libraries"
    folder.mkdir()
    for file in LIBRARY_FOLDER.iterdir():
        (folder / file.name).symlink_to(file)

    def backend(name, source, *needed):
        (tmp_path / "source.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", "-o", folder / name, tmp_path / "source.c", *needed]
        children.run(command, check=True)
        return partial(cli, env={"LLAMA_CPP_LIB_PATH": str(folder), "GGUF_SPEC_MODEL": ""})

    return backend


def test_what_a_gpu_backend_lacks_is_said(backend, tmp_path):
    """It was "compile it" once, the wrong cure."""
    (tmp_path / "empty.c").touch()
    other = tmp_path / "libmissing.so.13"
    name = "-Wl,-soname,libmissing.so.13"
    children.run(["cc", "-shared", "-o", other, tmp_path / "empty.c", name], check=True)
    run = backend("libggml-cuda.so", "", "-Wl,--no-as-needed", other)
    other.unlink()
    said = "libggml-cuda.so cannot be loaded: libmissing.so.13: cannot open shared object file"
    lines = run("doctor", *WELL).stdout.decode()
    assert f"warn  build        {said}" in lines
    assert "-> install what this library needs: " in lines
    result = run("generate", "-m", "abc.gguf", "-d", "none", "--gpu-layers", "9", "a")
    assert result.returncode == 2
    assert f"--gpu-layers is 9 but must be 0 or -1: {said}" in result.stderr.decode()
    assert "Hint: omit --gpu-layers, or install what " in result.stderr.decode()
    assert "CMAKE_ARGS" not in result.stderr.decode()
    result = run("serve", "-m", "no.gguf", "-ngl", "9")
    assert f" has no effect here: {said}" in result.stderr.decode()


def test_a_driver_that_crashes(backend):
    """It ended the doctor with exit code 139, without a word."""
    crash = "void __attribute__((constructor)) f(void) { __builtin_trap(); }"
    run = backend("libggml-vulkan.so", crash)
    for arguments in (WELL, ("--json",)):
        result = run("doctor", *arguments)
        assert result.returncode == 1
        assert "llama.cpp with libggml-vulkan.so was ended by signal " in result.stdout.decode()
        assert result.stderr == b""


@pytest.mark.full
def test_every_command_says_that_a_driver_crashes(backend):
    """They ended with exit code 139, without a word; what works is asked once."""
    crash = '#include <stdlib.h>\nvoid __attribute__((constructor)) f(void) { if (getenv("CRASH")) abort(); }'
    run = backend("libggml-vulkan.so", crash)
    env = run.keywords["env"]
    for command in (
        ["generate", "-m", "abc.gguf", "-d", "none", "a"],
        ["serve", "-m", "abc.gguf"],
        ["verify", "-m", "abc.gguf"],
        ["models", "recommend"],
    ):
        done = partial(run.func, env={**env, "CRASH": "1"})(*command)
        assert done.returncode in (0, 1), (command, done.stderr)
        if done.returncode:
            said = done.stderr.decode()
            assert "with libggml-vulkan.so was ended by signal 6." in said
            assert "Hint: update the driver of the GPU; to use the processor, " in said
        assert done.returncode or command[0] == "models"
    assert run(*command).returncode == 0


@pytest.mark.full
def test_a_library_for_a_gpu_that_is_no_library(backend, tmp_path):
    run = backend("libggml-vulkan.so", "")
    (tmp_path / "libraries" / "libggml-vulkan.so").write_text("no library")
    assert "libggml-vulkan.so cannot be loaded: " in run("doctor", *WELL).stdout.decode()
