"""The user's folders, against the rules that platformdirs replaced."""

import os
import sys
from pathlib import Path

import pytest

from gguf_spec.cli import config
from gguf_spec.cli.chat import terminal
from gguf_spec.doctor import installation
from gguf_spec.registry.resolve import entries, user_file
from gguf_spec.system import files

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the folders of other systems are the systems' own"
)

HOMES = {"CACHE": ".cache", "CONFIG": ".config", "STATE": ".local/state"}


@pytest.fixture
def changing(tmp_path, monkeypatch):
    """A folder with one file, and a folder that another program has removed when it is listed."""
    folder = tmp_path / "changing"
    (folder / "lost").mkdir(parents=True)
    (folder / "kept.gguf").write_text("1234")
    scandir = os.scandir

    def list_folder(path="."):
        if str(path) == str(folder / "lost"):
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", list_folder)
    return folder


def test_a_folder_that_changes_while_it_is_listed(changing):
    assert files.files_below(changing) == [changing / "kept.gguf"]


def test_the_size_of_a_folder_that_changes(changing, monkeypatch):
    monkeypatch.setattr(installation, "cache_folder", lambda: changing)
    assert installation.own_folders()[0][1:] == (changing, 4)


def before(kind):
    """Return a folder by the rule of earlier versions."""
    given = Path(os.environ.get(f"XDG_{kind}_HOME") or "")
    return (given if given.is_absolute() else Path.home() / HOMES[kind]) / "gguf-spec"


@pytest.mark.parametrize("given", [None, "", "relative/folder", "/some/where", "/some/wh ere/"])
def test_the_folders_are_those_of_earlier_versions(monkeypatch, tmp_path, given):
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in HOMES:
        if given is None:
            monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
        else:
            monkeypatch.setenv(f"XDG_{kind}_HOME", given)
    assert files.cache_folder() == before("CACHE")
    assert files.cache_folder() == files.caches_of_others() / "gguf-spec"
    assert files.config_folder() == before("CONFIG")
    assert files.state_folder() == before("STATE")
    assert user_file() == before("CONFIG") / "models.yaml"
    assert (
        Path(terminal._KeptHistory(terminal.history_file()).filename)
        == before("STATE") / "chat-history"
    )


def test_a_folder_is_not_made_by_asking_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in HOMES:
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    files.cache_folder(), files.config_folder(), files.state_folder()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("home", ["file", "none"])
def test_without_a_home_all_that_needs_none_is_done(tmp_path, monkeypatch, home):
    """`HOME=/dev/null`, and a user that the system does not know."""
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", os.devnull)
    if home == "none":

        def fail(*_, **__):
            raise RuntimeError("could not determine the home directory")

        for name in ("cache", "config", "state"):
            monkeypatch.setattr(f"platformdirs.user_{name}_path", fail)
    monkeypatch.chdir(tmp_path)
    file = files.cache_file("profiles", ["one"])
    assert (files.write_json(file, [1]), files.read_json(file)) == (False, None)
    assert config.read() == {}
    assert entries()
    assert [*tmp_path.iterdir()] == []


def test_a_config_file_that_cannot_be_read_is_still_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gguf-spec/config.toml").mkdir(parents=True)
    with pytest.raises(config.ConfigFileError, match="cannot be read"):
        config.read()
