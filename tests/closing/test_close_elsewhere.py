"""A close in another thread, in the middle of each kind of call."""

import pytest

from tests.closing.children import run_child

pytestmark = pytest.mark.full


@pytest.mark.parametrize("n_times", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_close_in_another_thread_neither_crashes_nor_hangs(gguf_dir, n_times):
    assert run_child("elsewhere", gguf_dir, n_times, limit_s=900).endswith(" 0 failed: []")
