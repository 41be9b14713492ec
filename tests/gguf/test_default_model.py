"""The model that is taken if none is named."""

import pytest
from click.testing import CliRunner

import gguf_spec
from gguf_spec import errors, models
from gguf_spec.cli import cli
from gguf_spec.cli import download as downloads
from gguf_spec.registry.resolve import entries
from gguf_spec.runtime import default_model as module
from tests.support import tiny


@pytest.fixture
def home(tmp_path, monkeypatch, set_hub):
    """A home without models, where models of some kilobytes count as larger than the default."""
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    set_hub(HF_HUB_CACHE=str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/.cache"))
    monkeypatch.setattr(module, "least_bytes", lambda entry: 1000)
    return tmp_path / "home"


def put(path, *model, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny.write(path, *model, **changes)


def llama_cpp(home, name, *model, **changes):
    return put(home / ".cache/llama.cpp" / name, *(model or [tiny.llama()]), **changes)


def test_nothing_is_there(home):
    found = models.default_model()
    assert (found.entry.name, found.path, found.note) == ("smollm2-135m-instruct", None, "")
    with pytest.raises(errors.NotDownloadedError, match="no chat model on this disk") as caught:
        gguf_spec.load()
    assert "pull('smollm2-135m-instruct')" in caught.value.hint
    assert "model='tales'" in caught.value.hint
    assert caught.value.name == "smollm2-135m-instruct"


def test_the_default_is_there(home, monkeypatch):
    path = home / "default.gguf"
    put(path, tiny.llama())
    monkeypatch.setattr(module.download, "find", lambda entry: path if entry.name == module.DEFAULT else None)  # fmt: skip
    found = models.default_model()
    assert (found.entry, found.path, found.note) == (entries()[module.DEFAULT], path, "")


@pytest.mark.full
def test_the_largest_chat_model_that_fits(home, monkeypatch):
    llama_cpp(home, "small.gguf", tiny.llama(n_layer=2))
    best = llama_cpp(home, "best.gguf", tiny.llama(n_layer=5))
    llama_cpp(home, "base.gguf", tiny.llama(n_layer=6), metadata={"tokenizer.chat_template": None})
    llama_cpp(home, "adapter.gguf", tiny.llama(n_layer=7), metadata={"general.type": "adapter"})
    large = llama_cpp(home, "large.gguf", tiny.llama(n_layer=8))
    (home / ".cache/llama.cpp/broken.gguf").write_bytes(b"GGUF" + bytes(10_000_000))

    def check(shapes):
        if shapes[0][0].path == large:
            raise errors.ModelError(large, "It does not fit.", "close programs.")

    monkeypatch.setattr(module, "check_room", check)
    found = models.default_model()
    assert (found.path, found.entry.path, found.entry.name) == (best, best, "best.gguf")
    assert found.note.startswith("the model is best.gguf (")
    with gguf_spec.load(threads=1) as llm:
        assert llm.notes[0] == found.note
        assert llm.prompt == "chat"


def test_a_file_with_two_bits_a_weight_counts_as_a_quarter(home):
    best = llama_cpp(home, "best-Q4_0.gguf", tiny.llama(n_layer=2))
    few = llama_cpp(home, "larger-IQ2_XXS.gguf", tiny.llama(n_layer=5))
    assert best.stat().st_size < few.stat().st_size < 4 * best.stat().st_size
    assert models.default_model().path == best
    best.unlink()
    assert models.default_model().path == few


def test_a_named_model_has_priority_over_the_same_file(home, tmp_path):
    path = put(tmp_path / "mine.gguf", tiny.llama())
    file = tmp_path / "models.yaml"
    file.write_text(f"models: {{mine: {{path: {path}, sampling: {{temperature: 0.1}}}}}}")
    link = home / ".cache/llama.cpp/same.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    found = models.default_model(file)
    assert (found.entry.name, dict(found.entry.sampling)) == ("mine", {"temperature": 0.1})


def test_what_never_counts(home, tmp_path):
    """The bundled models, models for plain text, smaller ones, and later parts of split models."""
    path = put(tmp_path / "text.gguf", tiny.llama())
    file = tmp_path / "models.yaml"
    file.write_text(f"models: {{mine: {{path: {path}, prompt: text}}}}")
    llama_cpp(home, "x-00002-of-00002.gguf")
    assert models.default_model(file).path is None


@pytest.fixture
def lookups(monkeypatch):
    """The lookups of the default model, as they are made."""
    made, look_up = [], module.default_model
    monkeypatch.setattr(module, "default_model", lambda *a: made.append(look_up(*a)) or made[-1])
    return made


def invoke(*words, stdin=""):
    given = [*words, "--threads", "1", "--ctx", "64", "--draft", "none"]
    run = CliRunner().invoke(cli, given, input=stdin, standalone_mode=False)
    assert (run.exception, run.return_value) == (None, 0), run.stderr
    return run


@pytest.mark.full
@pytest.mark.parametrize("words", ["generate ab --yes -n 2", "chat --yes -n 2", "serve --yes --port 0"])  # fmt: skip
def test_a_command_looks_it_up_once(home, lookups, monkeypatch, words):
    if words.startswith("serve"):
        pytest.importorskip("uvicorn")
        monkeypatch.setattr("gguf_spec.cli.serve._wait", lambda *_: 0)
    llama_cpp(home, "small.gguf", tiny.one_text("ab"))
    best = llama_cpp(home, "best.gguf", tiny.one_text("abcdefgh"))
    run = invoke(*words.split(), stdin="a\n")
    assert [one.path for one in lookups] == [best]
    assert f"Note: {lookups[0].note}".split(";", maxsplit=1)[0] in run.stderr


@pytest.mark.full
def test_it_is_named_where_nothing_drafts(home, lookups):
    """A note on a missing draft is hidden then, and nothing else."""
    llama_cpp(home, "best.gguf", tiny.one_text("abcdefgh"))
    run = CliRunner().invoke(cli, ["generate", "ab", "--threads", "1", "--ctx", "64", "-n", "2"])
    assert run.stderr == f"Note: {lookups[0].note}\n".replace("set model", "set --model")
    assert not run.exception


@pytest.mark.full
def test_a_command_looks_it_up_again_after_a_download(home, lookups, monkeypatch):
    def download(wanted, optional):
        assert ([entry.name for entry in wanted], optional) == ([module.DEFAULT], [])
        llama_cpp(home, "loaded.gguf", tiny.one_text("ab"))

    monkeypatch.setattr(downloads, "download", download)
    run = invoke("generate", "ab", "--yes", "-n", "2")
    assert [one.entry.name for one in lookups] == [module.DEFAULT, "loaded.gguf"]
    assert "loaded.gguf" in run.stderr


@pytest.mark.full
def test_load_uses_an_earlier_choice(home, lookups):
    best = llama_cpp(home, "best.gguf", tiny.llama())
    chosen = models.default_model()
    llama_cpp(home, "later.gguf", tiny.llama(n_layer=5))
    with gguf_spec.load(chosen, None, threads=1) as llm:
        assert (llm.path, llm.notes[0]) == (best, chosen.note)
    assert len(lookups) == 1
    with pytest.raises(errors.NotDownloadedError, match="no chat model on this disk"):
        gguf_spec.load(models.DefaultModel(chosen.entry, None))
