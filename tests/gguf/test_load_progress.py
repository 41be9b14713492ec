"""The progress of loading: bytes of all models, and cancelling."""

import pytest

import gguf_spec
from gguf_spec import Progress, models
from gguf_spec.errors import LoadCancelledError

OPTIONS = {"threads": 1, "extra_bufts": False}


@pytest.mark.full
def test_the_bytes_of_both_models_are_counted():
    seen = []
    with gguf_spec.load("tales", progress=seen.append, **OPTIONS):
        pass
    total = sum(models.path(name).stat().st_size for name in ("tales", "tales-draft"))
    assert all(isinstance(one, Progress) for one in seen)
    assert {(one.stage, one.total, one.unit) for one in seen} == {("load", total, "bytes")}
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert seen[0].share < 0.5 < seen[-1].share == 1


@pytest.mark.parametrize("at", [0.0, 0.99])
def test_false_cancels(at):
    with pytest.raises(LoadCancelledError):
        gguf_spec.load("tales", progress=lambda now: now.share < at, **OPTIONS)


def test_an_error_of_the_callback_ends_the_loading():
    def fail(now):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gguf_spec.load("tales", progress=fail, **OPTIONS)
