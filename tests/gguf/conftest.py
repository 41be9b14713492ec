from pathlib import Path

import pytest

from tests.gguf import zoo


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
