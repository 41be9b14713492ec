"""Shared fixtures: --slow, no unnoticed failure of a draft, and the bundled pair, loaded once."""

import logging
import os

import pytest

from tests.support import children


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure():
    children.handle_ignored_signals()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # each core has a worker, so a thread that waits for another must not spin on its core
        os.environ.setdefault("GOMP_SPINCOUNT", "0")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: give --slow"))


class _Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test in which a draft failed, unless it is marked `failing_drafts`: the text does not show it."""
    from gguf_spec.speculative.drafters import model

    log, records = logging.getLogger("gguf_spec.drafters"), _Records()
    model._log.cache_clear()
    log.addHandler(records)
    try:
        result = yield
    finally:
        log.removeHandler(records)
    assert "failing_drafts" in item.keywords or not records.messages
    return result


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """A folder for what is measured here: what the user's cache holds must decide nothing, and what a busy machine measures is not kept there.

    Nor does what else runs now decide what is measured.
    """
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
    """The bundled pair on one thread: so small a model does not gain from two, and a busy machine does not hold it up."""
    import gguf_spec

    with gguf_spec.load("tales", threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def prompts():
    """Fifty openings of tales."""
    from gguf_spec.verify import bundled_prompts

    return bundled_prompts()
