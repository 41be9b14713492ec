"""What the digest of a loaded model depends on: a command takes the server's model where texts are the same."""

import os

import pytest

from gguf_spec.server import running


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 9)
    os.utime(path, ns=(10**18, 10**18))
    return path


def test_the_same_file_has_the_same_key(file, tmp_path):
    key = running.load_key(file, {})
    (tmp_path / "link.gguf").symlink_to(file)
    assert running.load_key(tmp_path / "link.gguf", {}) == key
    assert running.load_key(file, {"threads": 3}) == key, "an option of speed"


def test_another_file_has_another_key(file, tmp_path, monkeypatch):
    keys = [running.load_key(file, {})]
    # one of another time, which may have other contents of the same size
    os.utime(file, ns=(10**18, 10**18 + 1))
    keys.append(running.load_key(file, {}))
    file.write_bytes(b"x" * 10)
    os.utime(file, ns=(10**18, 10**18))
    keys.append(running.load_key(file, {}))
    keys.append(running.load_key(file.rename(tmp_path / "other.gguf"), {}))
    keys.append(running.load_key(tmp_path / "other.gguf", {"kv_type": "q8_0"}))
    monkeypatch.setattr(running, "__version__", "0")
    keys.append(running.load_key(tmp_path / "other.gguf", {"kv_type": "q8_0"}))
    assert len(set(keys)) == len(keys) == 6
