"""`gguf-spec uninstall`: nothing of this program is left but the program."""

import pytest

PLACES = {"XDG_CACHE_HOME": "cache", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}


@pytest.fixture
def home(tmp_path):
    for folder in PLACES.values():
        file = tmp_path / folder / "gguf-spec" / "sub" / "file"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 2048)
        (tmp_path / folder / "other").write_text("of another program")
    return tmp_path


@pytest.fixture
def run(here, home):
    env = {name: str(home / folder) for name, folder in PLACES.items()}
    return lambda *args: here("uninstall", *args, env=env, text=True)


def test_it_asks(run, home):
    done = run()
    assert done.returncode == 1 and "Nothing was removed." in done.stderr
    assert all(
        (home / folder / "gguf-spec" / "sub" / "file").exists() for folder in PLACES.values()
    )


def test_own_folders_go_and_others_stay(run, home):
    done = run("--yes")
    assert done.returncode == 0
    for folder, contents in (("cache", "models"), ("state", "chats"), ("config", "settings")):
        assert f"{home / folder / 'gguf-spec'}: {contents}" in done.stdout
        assert [one.name for one in (home / folder).iterdir()] == ["other"]
    assert "The program itself: remove " in done.stdout
    assert "There is nothing to remove." in run("--yes").stdout


def test_models_that_stay_in_the_cache_of_the_hub_are_named(run, monkeypatch, home):
    """One that came from packages is in the program's own cache, and goes with it."""
    files = {
        "qwen3-8b": home / "hub" / "model.gguf",
        "qwen2.5-coder-1.5b": home / "cache" / "gguf-spec" / "models" / "ab" / "model.gguf",
        "tales": home / "tales.gguf",
    }
    monkeypatch.setattr("gguf_spec.models.find", lambda one: files.get(one.name))
    done = run()
    assert (
        "The hub's cache keeps qwen3-8b; gguf-spec models remove NAME removes one." in done.stdout
    )


def test_a_link_is_not_followed(run, home):
    folder, elsewhere = home / "state" / "gguf-spec", home / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    assert run("--yes").returncode == 1
    assert (elsewhere / "sub" / "file").exists()


def test_not_while_a_server_runs(run, monkeypatch, home):
    from gguf_spec.server import running

    one = running.RunningServer("http://127.0.0.1:5", 77, ())
    monkeypatch.setattr(running, "running_servers", lambda: [one])
    done = run("--yes")
    assert done.returncode == 1 and "http://127.0.0.1:5" in done.stderr and "kill 77" in done.stderr
    assert (home / "cache" / "gguf-spec").exists()
