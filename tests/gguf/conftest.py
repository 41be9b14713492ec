from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from tests.support import tiny


@pytest.fixture(scope="session")
def gguf_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of valid files: a llama, a good and a bad draft for it, recurrent models and a mixture."""
    folder = tmp_path_factory.mktemp("gguf")
    tiny.write(folder / "llama.gguf", tiny.llama(seed=1))
    tiny.write(folder / "twin.gguf", tiny.llama(seed=1))
    tiny.write(folder / "cousin.gguf", tiny.llama(seed=2))
    tiny.write(folder / "mamba.gguf", tiny.mamba())
    tiny.write(folder / "lfm2.gguf", tiny.lfm2())
    tiny.write(folder / "mixture.gguf", tiny.mixture())
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
