"""Three tiers of tests, no unnoticed failure of a draft, and the bundled pair, loaded once.

A quick test starts no program, but for about forty of the command line, and takes tenths of a second of processor time. All others are
marked `full`, and `slow` where they take minutes: kills, thousands of signals, hours of load. `pytest` runs the quick ones, `--all` the full
ones too, and `--slow` all. A test that is named on the command line, or whose file or folder is, needs no `--all`.

How long a test takes fails none: `--cpu` lists which ones take most.
"""

import contextlib
import importlib
import logging
import os
import random
import re
import secrets
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import children

# files and tests that `--cpu` lists
N_FILES, N_TESTS = 12, 20
# at the beginning of a file without quick tests
_NO_QUICK_TEST = re.compile(r"(?m)^pytestmark = \[?\s*pytest\.mark\.(full|slow)\b")


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all tests but the slow ones")
    parser.addoption("--slow", action="store_true", help="run all tests, the slow ones too")
    parser.addoption(
        "--cpu", metavar="FILE", nargs="?", const="", help="print the files and tests that take most processor time; with =FILE also append that of each test to FILE"
    )  # fmt: skip


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
    file = config.getoption("--cpu")
    if file and (Path(file).is_dir() or file.partition("::")[0].endswith(".py")):
        raise pytest.UsageError(f"--cpu took {file} for its file: write --cpu behind it")
    config.addinivalue_line(
        "markers", "few(n): so many sets of parameters are quick; the others are full"
    )
    children.handle_ignored_signals()
    # the time that an example or its making takes is that of the machine
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    patient = settings(deadline=None, suppress_health_check=checks)
    settings.register_profile("all", patient)
    settings.register_profile("quick", patient, max_examples=25)
    if "full" in _left_out(config):
        settings.load_profile("quick")
    else:
        settings.load_profile(
            "all"
        )  # switched off in pyproject.toml: it takes seconds to import, and one file of full tests needs it
        with contextlib.suppress(ImportError):
            from schemathesis.pytest import plugin

            if not config.pluginmanager.is_registered(plugin):
                config.pluginmanager.register(plugin, "schemathesis.pytest.plugin")
    # each process of the tests has a core: numpy's threads would only wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # each core has a worker, so a thread that waits for another must not spin on its core
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
        if "full" in _left_out(config):
            _import_share(config, int(worker[2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def _import_share(config, worker, n_workers):
    """Import a part of the test files before all are collected.

    In a new clone pytest rewrites and compiles each file, which takes half a minute. So each process does a part, and finds
    the others done.
    """
    if sys.dont_write_bytecode:
        return
    files = sorted(config.rootpath.glob("tests/*/test_*.py"))
    for file in files[worker::n_workers]:
        if not _NO_QUICK_TEST.search(file.read_text(encoding="utf-8")):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports it
                importlib.import_module(f"tests.{file.parent.name}.{file.stem}")


def pytest_ignore_collect(collection_path, config):
    """Leave out files whose tests are all left out: some take seconds to import."""
    if collection_path.suffix == ".py" and "full" in _left_out(config):
        return bool(_NO_QUICK_TEST.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


@pytest.hookimpl(tryfirst=True)  # before the option -m is applied
def pytest_collection_modifyitems(config, items):
    _mark_full(items)
    left_out = _left_out(config)
    unwanted = {item for item in items if left_out & {mark.name for mark in item.iter_markers()}}
    if unwanted:
        config.hook.pytest_deselected(items=[*unwanted])
        items[:] = [item for item in items if item not in unwanted]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return three processes for two cores, because tests wait for a third of their time."""
    can_ask = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1
    return n_cores + n_cores // 2


def _processor_s():
    """Return the processor time of this process and of the programs that it started and that have ended."""
    return sum(os.times()[:4])


def _mark_full(items):
    """Mark all but a few sets of parameters of a test as full: those that are spread most evenly over the numbers of the sets stay quick."""
    sets_of = {}
    for item in items:
        if mark := item.get_closest_marker("few"):
            sets_of.setdefault((item.parent.nodeid, item.originalname, mark.args[0]), []).append(
                item
            )
    for (_, _, n), sets in sets_of.items():
        # with multiples of the golden ratio no factor of stacked parameters is always the same
        order = sorted(range(len(sets)), key=lambda i: i * 0.6180339887 % 1)
        for i in order[n:]:
            sets[i].add_marker("full")


# seconds of processor time by test: of this process, and of the processes of pytest-xdist when they end
_seconds_of = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Measure a test with what is made for it; what several use counts for the first one."""
    started_s = _processor_s()
    try:
        return (yield)
    finally:
        took_s = _seconds_of[item.nodeid] = _processor_s() - started_s
        if path := item.config.getoption("--cpu"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{took_s:.3f} {item.nodeid}\n")


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seconds_of"] = _seconds_of


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    _seconds_of.update(getattr(node, "workeroutput", {}).get("seconds_of", {}))


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--cpu") is None:
        return
    by_file = {}
    for name, seconds in _seconds_of.items():
        file = name.partition("::")[0]
        by_file[file] = by_file.get(file, 0.0) + seconds
    terminalreporter.section(
        f"{sum(by_file.values()):.0f} s of processor time in {len(_seconds_of)} tests"
    )
    for seconds_of, most in ((by_file, N_FILES), (_seconds_of, N_TESTS)):
        for name, seconds in sorted(seconds_of.items(), key=lambda one: -one[1])[:most]:
            terminalreporter.write_line(f"{seconds:7.2f}  {name}")
        terminalreporter.write_line("")


class _Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test in which a draft failed unnoticed: that does not change the text, so only the mark `failing_drafts` allows it."""
    from gguf_spec.speculative.drafters import model

    log, records = logging.getLogger("gguf_spec.speculative.drafters.model"), _Records()
    model._log.cache_clear()
    log.addHandler(records)
    try:
        result = yield
    finally:
        log.removeHandler(records)
    assert "failing_drafts" in item.keywords or not records.messages
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
        if sys.dont_write_bytecode:  # programs that tests start compile each module once
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        if "full" in _left_out(request.config):
            # the first model of a process tests the machine and the kernels for 2 s: the time of no test
            gguf_spec.load("tales", threads=1).close()
        yield


@pytest.fixture(autouse=True)
def same_seeds(request):
    """Requests without a seed get the same ones in each run of a test: an answer may end after a word by chance."""
    numbers = random.Random(request.node.nodeid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", numbers.getrandbits)
        yield


@pytest.fixture
def set_hub(monkeypatch):
    """Sets constants of the hub's library, which reads the environment once; `ENDPOINT` with the addresses of files."""
    from huggingface_hub import constants

    def set_hub(**given):
        if url := given.get("ENDPOINT"):
            pattern = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            given["HUGGINGFACE_CO_URL_TEMPLATE"] = pattern
        for name, value in given.items():
            monkeypatch.setattr(constants, name, value)

    return set_hub


@pytest.fixture
def free_memory(monkeypatch):
    """Sets the free memory that estimates see, in bytes; None if it is unknown."""
    from gguf_spec.llama import memory

    return lambda n_bytes: monkeypatch.setattr(memory, "available_bytes", lambda: n_bytes)


@pytest.fixture
def stock_kernels(monkeypatch):
    """llama.cpp's kernels for the models that a test loads; else the first model of the process decides."""
    from gguf_spec.llama import own_kernels

    switch = own_kernels.library().gguf_spec_kernels_switch if own_kernels.start().name else id
    monkeypatch.setattr(own_kernels, "decided", [own_kernels.Kernels("", "switched off")])
    switch(0)
    yield
    switch(3)


@pytest.fixture
def unmeasured(monkeypatch, tmp_path_factory):
    """No pair was measured before: on one core a test with `threads=1` measures for those with the default, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("unmeasured")))


@pytest.fixture
def copies_pay(monkeypatch):
    """Kept prefixes are copied whatever was measured: small models read as fast as memory is copied."""
    from gguf_spec.runtime.prefix_cache import PrefixStore

    monkeypatch.setattr(PrefixStore, "pays", lambda *_, **__: True)


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

    # what one test asks for gives no drafts to the next one
    with gguf_spec.load("tales", threads=1, draft_texts="off") as llm:
        yield llm


@pytest.fixture(scope="session")
def prompts():
    """Fifty openings of tales."""
    from gguf_spec.verify import bundled_prompts

    return bundled_prompts()
