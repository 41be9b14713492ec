"""Properties hold on a slow machine, too: conftest.py says so for all of them."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@given(st.integers())
def test_no_example_is_too_slow(n):
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
