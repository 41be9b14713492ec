import pytest

from gguf_spec._registry import names, resolve
from gguf_spec.errors import ModelNotFoundError


def test_the_bundled_pair_is_there():
    entry = resolve("tales")
    assert "tales" in names()
    assert (entry.name, entry.prompt) == ("tales", "text")
    assert entry.target.is_file()
    assert entry.draft.is_file()
    assert entry.target.stat().st_size + entry.draft.stat().st_size < 25_000_000


def test_every_name_is_a_pair_of_files_in_the_package():
    for name in names():
        assert resolve(name).target.suffix == ".gguf"


@pytest.mark.parametrize("as_text", [True, False])
def test_a_path_is_taken_as_it_is(tmp_path, as_text):
    path = tmp_path / "a model.gguf"
    path.write_text("")
    entry = resolve(str(path) if as_text else path)
    assert (entry.name, entry.target, entry.draft, entry.prompt) == ("a model.gguf", path, None, None)


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_text("")
    assert resolve("~/m.gguf").target == tmp_path / "m.gguf"


@pytest.mark.parametrize(("wrong", "right"), [("tale", "tales"), ("talse", "tales"), ("tales2", "tales")])
def test_what_comes_close_is_suggested(wrong, right):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(wrong)
    assert wrong in str(caught.value)
    assert caught.value.hint == f"did you mean {right}?"


def test_what_comes_close_to_nothing_is_told_the_names():
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("/nowhere/x.gguf")
    assert "/nowhere/x.gguf" in str(caught.value)
    assert all(name in caught.value.hint for name in names())


IMPOSSIBLE = {
    "a name too long": "x" * 300,
    "nobody's home": "~nobody-of-that-name/m.gguf",
    "a zero byte": "a\0b",
    "no text": "\udcff.gguf",
    "an address": "http://host/m.gguf",
}


@pytest.mark.parametrize("name", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_names_that_no_file_can_have(name):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert caught.value.hint
