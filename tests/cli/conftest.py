import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import children, zoo


@pytest.fixture(scope="session")
def cage(tmp_path_factory) -> Path:
    """A folder of models with one fixed text each, and the folder in which commands run."""
    folder = tmp_path_factory.mktemp("cage")
    zoo.write(folder / "abc.gguf", zoo.parrot("abcdefghijkl"))
    zoo.write(folder / "abx.gguf", zoo.parrot("abcdefxyz"))
    zoo.write(
        folder / "ever.gguf",
        zoo.parrot("abcdefghijkl", for_ever=True),
        metadata={"llama.context_length": 100_000},
    )
    zoo.write(folder / "evil.gguf", zoo.parrot("a\x1b]2;b\x07\rc\x9bd\n"))
    zoo.write(folder / "split.gguf", zoo.parrot("aé日"))
    return folder


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GGUF_SPEC_", "COLUMNS"))
    }
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
    own = {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "GGUF_SPEC_MODEL": "tales",  # without it: test_default_model.py
    }
    return kept | own | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}


@pytest.fixture(scope="session")
def cli(cage, environment):
    """Run the command line in the cage; the result holds bytes."""

    def run(*args, stdin=b"", env=(), **options):
        command = [sys.executable, "-m", "gguf_spec", *map(str, args)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": cage} | options
        return children.run(
            command, input=stdin, env=environment | dict(env), check=False, **options
        )

    run("generate", "a", "-n", "1")  # the probe runs once, and what it says is no part of a test
    return run


@pytest.fixture(scope="session")
def generate(cli):
    """Run `generate` with one thread and greedily, which arguments that come later override."""

    def run(*args, **options):
        return cli(
            "generate",
            "--threads",
            "1",
            "--raw",
            "-t",
            "0",
            "-m",
            "abc.gguf",
            "-d",
            "none",
            *args,
            **options,
        )

    return run
