"""`gguf_spec.models`, the functions behind `gguf-spec models`; the downloads themselves are tested in test_download."""

import sys
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import models
from gguf_spec.errors import InvalidOptionError, ModelNotFoundError, NotDownloadedError
from tests.support import children

MORE = """
models:
  other:
    repo: someone/models
    file: x.gguf
    revision: 2d4a76a30b4af41ecd395c35725ac11688d4cfe4
    size_bytes: 1000
    sha256: null
    license: mit
    context: 2048
    tokenizer: other
    chat: chatml
"""


@pytest.fixture
def more(tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text(MORE, encoding="utf-8")
    return file


def test_names_and_entries_are_the_same():
    entry = models.resolve("tales")
    assert models.resolve(entry) is entry
    for model in ("tales", entry):
        assert models.path(model) == models.find(model) == entry.path
        assert models.verified(model) == "local"
        assert models.pull(model).paths == (entry.path,)
    assert models.path(str(entry.path)) == models.path(Path(entry.path)) == entry.path
    assert gguf_spec.pull is models.pull


def test_more_names(more):
    assert "other" not in [one.name for one in models.list_models()]
    for file in (more, str(more)):
        assert "other" in [one.name for one in models.list_models(file)]
        assert models.find("other", file) is None
        assert models.verified("other", file) is None
        for call in (models.path, models.remove, models.find_drafts):
            with pytest.raises(NotDownloadedError):
                call("other", file)
        with pytest.raises(NotDownloadedError):
            models.pull("other", models_file=file, offline=True)
    for call in (
        models.resolve,
        models.find,
        models.path,
        models.verified,
        models.pull,
        models.remove,
    ):
        with pytest.raises(ModelNotFoundError):
            call("other")


def test_the_bundled_models_stay():
    with pytest.raises(InvalidOptionError):
        models.remove("tales")
    assert models.find("tales")


def test_drafts_of_the_bundled_model():
    found = models.find_drafts("tales")
    assert all(isinstance(one, models.Candidate) for one in found)
    assert (found[0].name, found[0].declared, found[0].fits) == ("tales-draft", True, True)
    again = models.find_drafts(models.resolve("tales"))
    assert [(one.name, one.why) for one in found] == [(one.name, one.why) for one in again]


def test_sizes_as_the_messages_have_them():
    assert [models.format_bytes(n) for n in (1e5, 2e7, 3e9)] == ["0.1 MiB", "19 MiB", "2.8 GiB"]


def test_names_are_found_without_llama():
    code = (
        "import sys\nfrom gguf_spec.models import list_models, pull\nlist_models()\npull('tales')\n"
    )
    code += "assert not {'llama_cpp', 'numpy', 'huggingface_hub'} & set(sys.modules)"
    children.run([sys.executable, "-c", code], check=True)
