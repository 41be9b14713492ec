import json
import os

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.batch import Batch, LineDefaults
from tests.support.fakes import FakeModel, fake_llm, random_table

TABLES = [random_table(np.random.default_rng(seed), 6) for seed in (5, 6)]
DEFAULTS = LineDefaults(Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=12))


@pytest.fixture
def llm():
    with fake_llm(
        FakeModel(TABLES[0]), FakeModel(TABLES[1]), Speculation(3, adaptive=False)
    ) as one:
        yield one


def of_openai(custom_id, url="/v1/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m"} | body}


def write(path, lines):
    """Write lines, those that are not bytes as JSON; the time of the file is always the same."""
    path.write_bytes(
        b"".join(
            (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
        )
    )
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def answer(llm, folder, lines, defaults=DEFAULTS, **options):
    """Answer lines; return the results."""
    source = write(folder / "in.jsonl", lines)
    with Batch(source, folder / "out.jsonl") as batch:
        batch.run(llm, defaults, **options)
    return read(folder / "out.jsonl")
