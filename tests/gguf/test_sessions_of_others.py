"""A session's caches belong to the models that computed them: other weights of the same shape and vocabulary must not get them."""

import shutil

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import NotAModelError, SessionError
from gguf_spec.gguf.validation import ModelFile

SAID = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "a cat and a dog"


def load(gguf_dir, target, draft):
    return gguf_spec.load(
        gguf_dir / f"{target}.gguf",
        gguf_dir / f"{draft}.gguf" if draft else "none",
        threads=1,
        n_ctx=128,
    )


@pytest.fixture(scope="module")
def session(gguf_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("sessions") / "one"
    with load(gguf_dir, "llama", "twin") as llm:
        tokens = llm.tokenize(PROMPT)
        said = [*tokens, *llm.generate_tokens(tokens, SAID).tokens]
        llm.save_session(path, {"about": "animals"})
    return path, said


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        ("cousin", "twin"),
        ("llama", "cousin"),
        ("cousin", "cousin"),
        ("cousin", None),
        ("llama", None),
    ],
)
def test_a_session_of_another_model_is_refused(gguf_dir, session, target, draft):
    path, said = session
    with load(gguf_dir, target, draft) as llm:
        data, why_not = llm.restore_session(path)
        assert data == {"about": "animals"}
        assert "other models" in why_not
        with llm.models() as models:
            assert all(model.cached == [] for model in filter(None, models))
        after = llm.generate_tokens(said, SAID).tokens
        llm.forget()
        assert llm.generate_tokens(said, SAID).tokens == after


def test_the_same_models_get_it_back(gguf_dir, session):
    path, said = session
    with load(gguf_dir, "llama", "twin") as llm:
        assert llm.restore_session(path)[1] == ""
        with llm.models() as (target, _):
            assert target.cached == said[: target.n_past]
            assert target.n_past >= len(said) - 1


@pytest.fixture
def model_here(gguf_dir, tmp_path, monkeypatch):
    """A copy of a model in the working folder."""
    shutil.copy(gguf_dir / "llama.gguf", tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model.gguf"


def load_here(**options):
    return gguf_spec.load("./model.gguf", "none", threads=1, n_ctx=128, **options)


def replaced(gguf_dir, path):
    """Another model takes the name, as a download does it; both have the same size."""
    shutil.copy(gguf_dir / "cousin.gguf", path.with_name("new"))
    path.with_name("new").replace(path)


def test_a_file_that_takes_the_name_does_not_get_the_caches(gguf_dir, model_here):
    with load_here() as llm:
        tokens = llm.tokenize(PROMPT)
        llm.generate_tokens(tokens, SAID)
        replaced(gguf_dir, model_here)
        llm.save_session("saved", {})
    with load_here() as llm:
        assert "other models" in llm.restore_session("saved")[1]


def test_a_saved_chat_is_of_the_loaded_file_wherever_it_is_now(gguf_dir, model_here, monkeypatch):
    with load_here(lora=()) as llm:
        llm.generate_tokens(llm.tokenize(PROMPT), SAID)
        (model_here.parent / "other").mkdir()
        monkeypatch.chdir(model_here.parent / "other")
        assert llm.path == model_here
        llm.save_session("saved", {})
        model_here.rename("moved.gguf")
        llm.save_session("again", {})
    with gguf_spec.load("./moved.gguf", "none", threads=1, n_ctx=128) as llm:
        assert llm.restore_session("saved")[1] == ""
        assert llm.restore_session("again")[1] == ""


@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_that_is_rewritten_under_the_mapping(gguf_dir, model_here, mmap):
    with load_here(mmap=mmap) as llm:
        llm.generate_tokens(llm.tokenize(PROMPT), SAID)
        model_here.touch()
        llm.save_session("saved", {})
        model_here.write_bytes((gguf_dir / "cousin.gguf").read_bytes())
        if mmap:
            with pytest.raises(SessionError, match="was changed after it was loaded"):
                llm.save_session("again", {})
        else:
            llm.save_session("again", {})


def test_a_file_that_changes_while_it_is_loaded(gguf_dir, model_here):
    done = []

    def swap(_share):
        if not done:
            done.append(replaced(gguf_dir, model_here))

    with pytest.raises(NotAModelError, match=r"model\.gguf was changed while it was loaded"):
        load_here(progress=swap)
    load_here().close()


def test_all_files_of_a_split_model_count(tmp_path):
    for i in (1, 2):
        (tmp_path / f"a-0000{i}-of-00002.gguf").write_bytes(b"part %d" % i)
    before = ModelFile(tmp_path / "a-00001-of-00002.gguf").content_id
    (tmp_path / "a-00002-of-00002.gguf").write_bytes(b"part x")
    assert ModelFile(tmp_path / "a-00001-of-00002.gguf").content_id != before


def test_a_cache_that_cannot_be_written(gguf_dir, tmp_path, monkeypatch, caplog):
    """What needs no cache is done, and the folder is named."""
    (tmp_path / "file").touch()
    with load(gguf_dir, "llama", None) as llm:
        llm.generate_tokens(llm.tokenize(PROMPT), SAID)
        llm.save_session(tmp_path / "whole", {"about": "animals"})
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        llm.save_session(tmp_path / "saved", {"about": "animals"})
        assert str(tmp_path / "file") in caplog.text
        for name, why in (("saved", "without caches"), ("whole", "cannot be read")):
            data, why_not = llm.restore_session(tmp_path / name)
            assert (data, why in why_not) == ({"about": "animals"}, True)
        monkeypatch.undo()
        assert llm.restore_session(tmp_path / "saved")[1] == "it was saved without caches"
        assert llm.restore_session(tmp_path / "whole")[1] == ""
