from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from tests.support import zoo


@pytest.fixture(scope="session")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good files: a llama, one that drafts for it well and one that does so badly, a recurrent model and a hybrid."""
    folder = tmp_path_factory.mktemp("zoo")
    zoo.write(folder / "llama.gguf", zoo.llama(seed=1))
    zoo.write(folder / "twin.gguf", zoo.llama(seed=1))
    zoo.write(folder / "cousin.gguf", zoo.llama(seed=2))
    zoo.write(folder / "mamba.gguf", zoo.mamba())
    zoo.write(folder / "lfm2.gguf", zoo.lfm2())
    zoo.write(folder / "mixture.gguf", zoo.mixture())
    return folder


def check_translated_draft(target: Path, draft: Path, prompt: str, sampling: Sampling) -> None:
    """A draft with another tokenizer drafts, and the text is that of plain decoding."""
    with gguf_spec.load(target, draft, threads=1, extra_bufts=False) as llm:
        assert "has another tokenizer" in llm.notes[0]
        plain = llm.generate(prompt, sampling, speculation=Speculation(0))
        way = Speculation(4, drafter="model", adaptive=False)
        drafted = llm.generate(prompt, sampling, speculation=way)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.n_drafted > 0
