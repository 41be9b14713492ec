"""The user's folders, against the rules that platformdirs replaced."""

import os
import sys
from pathlib import Path

import pytest

from gguf_spec.cli.chat import terminal
from gguf_spec.registry.resolve import user_file
from gguf_spec.system import files

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the folders of other systems are the systems' own"
)

HOMES = {"CACHE": ".cache", "CONFIG": ".config", "STATE": ".local/state"}


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
        Path(terminal._KeptHistory(terminal.state_folder() / "chat-history").filename)
        == before("STATE") / "chat-history"
    )


def test_a_folder_is_not_made_by_asking_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in HOMES:
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    files.cache_folder(), files.config_folder(), files.state_folder()
    assert not [*tmp_path.iterdir()]
