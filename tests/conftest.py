"""Three tiers of tests, no unnoticed failure of a draft, and the bundled pair, loaded once.

A quick test starts no program, but for about forty of the command line, and takes at most `QUICK_S` of
processor time; the quick run fails one that takes more. All others are marked `full`, and `slow` where they take minutes: kills, thousands of
signals, hours of load. `pytest` runs the quick ones, `--all` the full ones too, and `--slow` all. A test
that is named on the command line, or whose file or folder is, needs no `--all`.
"""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import children

# Largest processor time of a quick test, in seconds, that of programs included. The same work takes up to three times
# as much where other programs use the caches, so beside them the limit is so much higher.
QUICK_S, BUSY = 2.0, 3.0


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all tests but the slow ones")
    parser.addoption("--slow", action="store_true", help="run all tests, the slow ones too")
    parser.addoption("--cpu", metavar="FILE", help="append the processor time of each test to FILE")


def _left_out(config):
    """Return the marks of the tests that this run leaves out."""
    if hasattr(config, "workerinput"):
        return set(config.workerinput["left_out"])
    if config.getoption("--slow"):
        return set()
    is_all = config.getoption("--all") or config.args_source is not config.ArgsSource.TESTPATHS
    return {"slow"} if is_all else {"slow", "full"}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    # a process of pytest-xdist cannot see where the paths come from
    node.workerinput["left_out"] = sorted(_left_out(node.config))


def pytest_configure(config):
    children.handle_ignored_signals()
    settings.register_profile("quick", max_examples=25)
    if "full" in _left_out(config):
        settings.load_profile("quick")
    if "PYTEST_XDIST_WORKER" in os.environ:
        # each core has a worker, so a thread that waits for another must not spin on its core
        os.environ.setdefault("GOMP_SPINCOUNT", "0")


def pytest_collection_modifyitems(config, items):
    left_out = _left_out(config)
    unwanted = [item for item in items if left_out & {mark.name for mark in item.iter_markers()}]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]


def _processor_s():
    """Return the processor time of this process and of the programs that it started and that have ended."""
    return sum(os.times()[:4])


class _Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test in which a draft failed unnoticed, and a quick one that takes long.

    A draft that fails does not change the text, so only the mark `failing_drafts` allows it.
    """
    from gguf_spec.speculative.drafters import model

    log, records = logging.getLogger("gguf_spec.drafters"), _Records()
    model._log.cache_clear()
    log.addHandler(records)
    started_s = _processor_s()
    try:
        result = yield
    finally:
        log.removeHandler(records)
    assert "failing_drafts" in item.keywords or not records.messages
    took_s = _processor_s() - started_s
    if path := item.config.getoption("--cpu"):
        with Path(path).open("a") as file:
            file.write(f"{took_s:.3f} {item.nodeid}\n")
    is_busy = hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.25 * (os.cpu_count() or 1)
    most_s = QUICK_S * (BUSY if is_busy else 1)
    assert took_s < most_s or "full" not in _left_out(item.config), (
        f"a quick test took {took_s:.1f} s of processor time: make it smaller, or mark it `full`"
    )
    return result


@pytest.fixture(scope="session", autouse=True)
def own_cache(request, tmp_path_factory):
    """A separate cache folder: tests must not depend on the user's cache, nor write measurements of a busy machine into it.

    Other running programs do not change what is measured either.
    """
    import gguf_spec
    from gguf_spec.system import machine

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv(
            "XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config"))
        )  # nor a models.yaml of theirs
        patch.setattr(machine, "others_running", lambda: 0)
        # programs that tests start compile each module once, and leave nothing in the clone
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        if "full" in _left_out(request.config):
            # the first model of a process tests the machine and the kernels for 2 s: the time of no test
            gguf_spec.load("tales", threads=1).close()
        yield


@pytest.fixture
def stock_kernels(monkeypatch):
    """llama.cpp's kernels for the models that a test loads; else the first model of the process decides."""
    from gguf_spec.llama import own_kernels

    switch = own_kernels.library().gguf_spec_kernels_switch if own_kernels.start().name else id
    monkeypatch.setattr(own_kernels, "_decided", [own_kernels.Kernels("", "switched off")])
    switch(0)
    yield
    switch(3)


@pytest.fixture
def copies_pay(monkeypatch):
    """Kept prefixes are copied whatever was measured: small models read as fast as memory is copied."""
    from gguf_spec.runtime.prefix_cache import PrefixStore

    monkeypatch.setattr(PrefixStore, "_pays", lambda *_, **__: True)


@pytest.fixture(params=["own", "stock"])
def kernels(request):
    """Both kinds of kernels, one after the other."""
    from gguf_spec.llama import own_kernels

    if request.param == "stock":
        request.getfixturevalue("stock_kernels")
    elif not own_kernels.start().name:
        pytest.skip(own_kernels.start().reason)
    return request.param


@pytest.fixture(scope="session")
def tales():
    """The bundled pair on one thread: so small a model does not gain from two, which are slow on a busy machine."""
    import gguf_spec

    with gguf_spec.load("tales", threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def prompts():
    """Fifty openings of tales."""
    from gguf_spec.verify import bundled_prompts

    return bundled_prompts()
