import importlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from click.testing import CliRunner

from gguf_spec import cli as program
from gguf_spec.cli import signals
from tests.support import children, tiny


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """Folder in which commands run, with models that write one text each."""
    folder = tmp_path_factory.mktemp("work")
    tiny.write(folder / "abc.gguf", tiny.one_text("abcdefghijkl"))
    tiny.write(folder / "abx.gguf", tiny.one_text("abcdefxyz"))
    tiny.write(
        folder / "ever.gguf",
        tiny.one_text("abcdefghijkl", for_ever=True),
        metadata={"llama.context_length": 100_000},
    )
    tiny.write(folder / "evil.gguf", tiny.one_text("a\x1b]2;b\x07\rc\x9bd\n"))
    tiny.write(folder / "split.gguf", tiny.one_text("aé日"))
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    foreign = ("gguf_spec_", "columns", "hf_", "hugging_face", "http_proxy", "https_proxy", "all_proxy")  # fmt: skip
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().startswith(foreign) or name == "GGUF_SPEC_KERNELS"  # of a variant
    }
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
    own = {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "GGUF_SPEC_MODEL": "tales",  # without it: test_default_model.py
    }
    return kept | own | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}


@pytest.fixture(scope="session")
def cli(work, environment):
    """Run the command line in the folder `work`; the result holds bytes."""

    def run(*args, stdin=b"", env=(), **options):
        command = [sys.executable, "-m", "gguf_spec", *map(str, args)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": work} | options
        return children.run(
            command, input=stdin, env=environment | dict(env), check=False, **options
        )

    run("generate", "a", "-n", "1")  # the probe runs once, and what it says is no part of a test
    return run


# One thread and greedily, which arguments that come later override.
GENERATE = ["generate", "--threads", "1", "--raw", "-t", "0", "-m", "abc.gguf", "-d", "none"]


@pytest.fixture(scope="session")
def generate(cli):
    """Run `generate` in the folder `work`."""
    return lambda *args, **options: cli(*GENERATE, *args, **options)


@pytest.fixture(scope="session")
def here(work, environment):
    """Run the command line as `cli` does, but in this process, without the log of llama.cpp. None in `env`: not set."""
    from huggingface_hub import constants

    def run(*args, stdin=b"", env=(), cwd=work, text=False):
        given = environment | dict(env)
        wanted = {name: value for name, value in given.items() if value is not None}
        with (
            pytest.MonkeyPatch.context() as patch,
            mock.patch.dict(os.environ, wanted, clear=True),
            mock.patch.dict(vars(constants)),
            CliRunner().isolation(input=stdin) as (out, err, _),
            pytest.raises(SystemExit) as end,
        ):
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["gguf-spec", *map(str, args)])
            patch.setattr(logging.getLogger("gguf_spec"), "handlers", [])
            patch.delattr(signal, "SIGPIPE", raising=False)  # the tests keep their own handlers
            patch.setattr(signals, "_started", [1])
            importlib.reload(constants)  # it reads the environment
            program.main()
        told = [one.getvalue().decode() if text else one.getvalue() for one in (out, err)]
        return SimpleNamespace(returncode=end.value.code, stdout=told[0], stderr=told[1])

    return run


@pytest.fixture(scope="session")
def generate_here(here):
    """Run `generate` in this process."""
    return lambda *args, **options: here(*GENERATE, *args, **options)
