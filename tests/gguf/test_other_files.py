"""Files and folders that are taken for a model: each is named for what it is, with what to do."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile

import pytest

import gguf_spec
from gguf_spec.errors import NotAModelError
from gguf_spec.gguf.validation import read_header
from tests.support import tiny


def _zip(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"content")
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.gguf"))
    return out.getvalue()


def _safetensors() -> bytes:
    head = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(16)


_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4683074240\n" % (
    b"ab" * 32
)
_CONVERT, _NEW, _PAGE = "convert_hf_to_gguf.py", "download the file again", "/resolve/"
FILES = {
    "pointer": (_POINTER, "a Git LFS pointer for a file of 4,683,074,240 bytes", "`git lfs pull`"),
    "pointer, CRLF": (_POINTER.replace(b"\n", b"\r\n"), "a Git LFS pointer for a file of", "git lfs"),
    "page": (b"\n <!DOCTYPE html>\n<html>" + b"a" * 9000, "a web page", _PAGE),
    "page, upper case": (b"<HTML><BODY>", "a web page", _PAGE),
    "page, mark and comment": (b"\xef\xbb\xbf<!-- saved\nfrom -->\n<html>", "a web page", _PAGE),
    "error": (b'{"error":"Invalid username"}', "the error of a server: 'Invalid username'", _NEW),
    "error in error": (b'\n{"error": {"message": "Rate limit", "type": 1}}', "the error of a server: 'Rate limit'", _NEW),
    "detail": (b'{"detail": "Not Found"}', "the error of a server: 'Not Found'", _NEW),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML text", _NEW),
    "settings": (b'{"model_type": "llama"}', "a JSON text", "not its settings"),
    "long json": (b"[" * 20_000, "a JSON text", "not its settings"),
    "text": (b"Entry not found", "a text: 'Entry not found'", "the model file itself"),
    "cut character": ("text über alles ".encode() * 900, "a text: 'text über", "the model file itself"),
    "modelfile": (b"FROM ./model.gguf\n", "a Modelfile of Ollama", "after FROM"),
    "empty": (b"", "empty", _NEW),
    "zeros": (bytes(9000), "zeros", _NEW),
    "three bytes": (b"GGU", "3 bytes", _NEW),
    **{
        magic.decode(): (magic + struct.pack("<I", 1) + bytes(900), "a model in the old GGML format", "convert_llama_ggml_to_gguf.py")
        for magic in (b"lmgg", b"ggml", b"fmgg", b"ggmf", b"tjgg", b"ggjt")
    },
    "old adapter": (b"algg" + bytes(90), "a LoRA adapter in the old GGML format", _CONVERT),
    "safetensors": (_safetensors(), "a model in the safetensors format", _CONVERT),
    "torch": (_zip("archive/data.pkl"), "a model of PyTorch", _CONVERT),
    "pickle": (pickle.dumps({"a": 1}, 2), "a pickled file of Python", _CONVERT),
    "zip": (_zip("model.gguf"), "a zip archive", "unpack it"),
    "gzip": (gzip.compress(b"GGUF"), "an archive", "unpack it"),
    "tar": (_tar(), "an archive", "unpack it"),
    "keras": (b"\x89HDF\r\n\x1a\n", "a file in the HDF5 format", _CONVERT),
    "picture": (b"\xff\xd8\xff\xe0" + bytes(99), "a picture", "GGUF"),
    "program": (b"\x7fELF" + bytes(99), "a program", "GGUF"),
    "blanks": (b"\r\n \n", "a text of blanks alone", _NEW),
    "mark alone": (b"\xef\xbb\xbf", "a file in an unknown format", "GGUF"),
    "one byte of no text": (b"\x80", "a file in an unknown format", "GGUF"),
    "unknown": (bytes(range(1, 256)), "a file in an unknown format", "GGUF"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_named_for_what_it_is(tmp_path, case):
    data, what, todo = FILES[case]
    path = tmp_path / "it.gguf"
    path.write_bytes(data)
    with pytest.raises(NotAModelError) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"it.gguf is not a GGUF file but {what}")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert todo in caught.value.hint
    assert caught.value.hint.endswith(".")


FOLDERS = {
    "one": (["a.gguf", "README.md"], "is a directory", "{}/a.gguf"),
    "split": (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "is a directory", "{}/m-00001-of-00002.gguf"),
    "a projector": (["a-mmproj.gguf", "b.gguf"], "is a directory", "{}/b.gguf"),
    "several": (["b.gguf", "a.gguf"], "is a directory with 2 GGUF files", "such as {}/a.gguf"),
    "safetensors": (["config.json", "model-00001-of-00002.safetensors"], "in the format of safetensors", _CONVERT),
    "torch": (["config.json", "pytorch_model.bin"], "in the format of PyTorch", _CONVERT),
    "onnx": (["model.onnx"], "in the format of ONNX", _CONVERT),
    "tensorflow": (["saved_model.pb"], "in the format of TensorFlow", _CONVERT),
    "below": (["snapshots/abc/a.gguf"], "with GGUF files in the directories below", "{}/snapshots/abc/a.gguf"),
    "other": (["README.md"], "is a directory without a GGUF file", "name a GGUF file"),
    "empty": ([], "is a directory that is empty", "name a GGUF file"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_named_for_what_it_has(tmp_path, case):
    names, what, todo = FOLDERS[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(NotAModelError) as caught:
        read_header(tmp_path)
    assert what in str(caught.value)
    assert todo.format(tmp_path) in caught.value.hint


def test_the_file_of_a_hint_is_taken(tmp_path):
    """Also where its name needs quotes in a shell."""
    path = tiny.write(tmp_path / "my model.gguf", tiny.llama(seed=1))
    with pytest.raises(NotAModelError) as caught:
        read_header(tmp_path)
    assert f"'{path}'" in caught.value.hint


@pytest.mark.parametrize("option", ["draft", "mmproj", "lora"])
def test_every_file_of_a_load_is_named(tmp_path, option):
    path = tmp_path / "it.gguf"
    path.write_bytes(_POINTER)
    with pytest.raises(NotAModelError, match="a Git LFS pointer"):
        gguf_spec.load("tales", **{option: path})
