"""Logs of the library: warnings, and one line a round at DEBUG; it prints nothing."""

import importlib.util
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.runtime import generation
from tests.support import children
from tests.support.fakes import FakeModel, fake_llm, random_table

LINE = re.compile(
    r"round (\d+): drafted (\d+) \(([a-z0-9, ]+)\), accepted (\d+), predicted (\d+\.\d\d) ms, measured (\d+\.\d\d) ms"
)
SAMPLING = Sampling(seed=1, max_tokens=30, ignore_eos=True)
LOAD = """
import os, sys
os.environ["GGUF_SPEC_KERNELS"] = "stock"
from gguf_spec.llama import probe
{}
from gguf_spec import Sampling, load
with load("tales", threads=1) as llm:
    llm.generate("Once", Sampling(seed=1, max_tokens=8))
"""
DIES = "probe.command = lambda *_: [sys.executable, '-c', 'import os; os.abort()']"
WORKS = """probe.command = lambda *_: [sys.executable, "-c", "print(0.0)"]"""
COMMAND = """
import os, sys
os.environ["GGUF_SPEC_KERNELS"] = "stock"
from gguf_spec.llama import probe
{}
from gguf_spec.cli import main
sys.argv = ["gguf-spec", "generate", "-m", "tales", "Once", "--threads", "1", "--seed", "1", "-n", "8"]
main()
"""
FAILED = (
    "llama.cpp's repacked kernels fail on this machine (the self-test was ended by signal 6). "
    "Models are loaded without them, which is slower but correct.\n"
)


@pytest.fixture
def llm():
    tables = [random_table(np.random.default_rng(seed), 6) for seed in (5, 6)]
    speculation = Speculation(3, adaptive=False, drafter="hybrid")
    with fake_llm(FakeModel(tables[0]), FakeModel(tables[1]), speculation) as one:
        yield one


def test_one_line_a_round(llm, caplog):
    with caplog.at_level(logging.DEBUG, "gguf_spec"):
        stats = llm.generate("ab", SAMPLING).stats
    found = [LINE.fullmatch(record.getMessage()) for record in caplog.records]
    assert {record.name for record in caplog.records} == {"gguf_spec.runtime.generation"}
    assert len(found) == stats.rounds > 3
    assert [int(one[1]) for one in found] == [*range(1, stats.rounds + 1)]
    assert sum(int(one[2]) for one in found) == stats.n_drafted > 0
    assert sum(int(one[4]) for one in found) == stats.n_accepted > 0
    for one in found:
        named = [int(n) for n in re.findall(r"[a-z]+ (\d+)", one[3])]
        assert sum(named) == int(one[2])
        assert (one[3] == "no drafter") == (one[2] == "0")
    rounds_s = stats.total_s - stats.prompt_s
    for i, seconds in ((5, stats.forecast_s), (6, rounds_s)):
        assert sum(float(one[i]) for one in found) == pytest.approx(
            1000 * seconds, abs=0.01 * len(found)
        )


def test_plain_decoding_is_logged_too(llm, caplog):
    with caplog.at_level(logging.DEBUG, "gguf_spec"):
        llm.generate("ab", SAMPLING, speculation=Speculation(0))
    assert [LINE.fullmatch(one)[3] for one in caplog.messages] == ["no drafter"] * 30


def test_without_debug_the_level_is_read_once_a_request(llm, monkeypatch):
    asked = []
    monkeypatch.setattr(generation, "_log_round", lambda *_: pytest.fail("logged"))
    monkeypatch.setattr(generation._LOG, "isEnabledFor", asked.append)
    for _ in range(2):
        llm.generate("ab", SAMPLING)
    assert asked == [logging.DEBUG] * 2


@pytest.mark.full
@pytest.mark.parametrize(("probe", "said"), [(WORKS, ""), (DIES, FAILED)])
def test_loading_writes_nothing_but_warnings(tmp_path, monkeypatch, probe, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = children.run(
        [sys.executable, "-c", LOAD.format(probe)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", said), "Python's last resort writes the warning"


@pytest.mark.full
@pytest.mark.parametrize(("probe", "said"), [(WORKS, ""), (DIES, f"Note: {FAILED}")])
def test_the_command_line_shows_warnings_as_notes(tmp_path, monkeypatch, probe, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = children.run(
        [sys.executable, "-c", COMMAND.format(probe)], capture_output=True, text=True, check=True
    )
    assert done.stderr == said
    assert done.stdout


def test_a_logger_has_the_name_of_a_module():
    """Users set levels by names, which stay right when a module moves."""
    package = Path(gguf_spec.__file__).parent
    for file in package.rglob("*.py"):
        for name in re.findall(
            r'getLogger\("(gguf_spec[\w.]*)"\)', file.read_text(encoding="utf-8")
        ):
            assert importlib.util.find_spec(name), f"{file}: {name}"
