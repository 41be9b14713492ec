"""Files and folders that are taken for a model: each is named for what it is, with what to do."""

import gzip
import io
import json
import lzma
import pickle
import re
import struct
import tarfile
import zipfile

import pytest

import gguf_spec
from gguf_spec.errors import ModelNotFoundError, NotAModelError
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
    "error": (b'{"error":"Invalid username"}', "the error of a server: 'Invalid username'", "HF_TOKEN"),
    "error in error": (b'\n{"error": {"message": "Rate limit", "type": 1}}', "the error of a server: 'Rate limit'", _NEW),
    **{
        f"error {i}": (data, "the error of a server: 'no file'.", _NEW)
        for i, data in enumerate((
            b'[{"error":"no file"}]', b'{"errors":[{"code":"X","message":"no file"}]}', b'{"Code":404,"Message":"no file"}',
            b'{"code":404,"msg":"no file"}', b'{"detail":[{"loc":["x"],"msg":"no file"}]}', b'{"type":"about:blank","title":"no file","status":404}',
        ))
    },
    "cut error": (b'{"error": "' + b"a" * 9000, "the error of a server", _NEW),
    "page, no head": (b"<title>Sign in</title>", "a web page", _PAGE),
    "page, h1": (b"<h1>502 Bad Gateway</h1>", "a web page", _PAGE),
    "page, xhtml": (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN">', "a web page", _PAGE),
    "page, utf-16": ("<!doctype html><html>".encode("utf-16"), "a web page", _PAGE),
    "bucket": (b"<Error><Code>NoSuchKey</Code></Error>", "an XML text, the error of a server: 'NoSuchKey'", _NEW),
    "bucket, mark": (b"\xef\xbb\xbf<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an XML text, the error of a server: 'AccessDenied'", _NEW),
    "openvino": (b'<?xml version="1.0"?>\n<net name="Model0" version="11">', "the graph of a model of OpenVINO", _CONVERT),
    "headers": (b"HTTP/1.1 302 Found\r\nLocation: x\r\n\r\n", "the answer of a server with its headers: '302 Found'", "curl -L"),
    "access": (b"Access to model a/b is restricted.", "a text: 'Access to model a/b is restricted.'", "HF_TOKEN"),
    "address": (b"https://huggingface.co/a/b/resolve/main/c.gguf\n", "a text with an address: 'https://huggingface.co/a/b/resolve/main/c.gguf'", "at this address"),
    "address of a page": (b"https://huggingface.co/a/b/blob/main/c.gguf", "a text with an address", _PAGE),
    "shortcut": (b"[InternetShortcut]\r\nURL=https://example.org/a.gguf\r\n", "a text with an address: 'https://example.org/a.gguf'", "at this address"),
    "link in a clone": (b"../blobs/0123abcd", "a text with a path: '../blobs/0123abcd'", "name the file at this path"),
    "path": (b"C:\\models\\a b.gguf\r\n", "a text with a path: 'C:\\\\models\\\\a b.gguf'", "name the file at this path"),
    "windows link": (b"L\0\0\0\x01\x14\x02\0" + bytes(60), "a shortcut of Windows", "leads to"),
    "link of wsl": (b"!<symlink>\xff\xfea\0\0\0", "a link of another system", "leads to"),
    "annex": (b"/annex/objects/SHA256E-s4--ab.gguf\n", "a pointer of git-annex", "git annex get"),
    "xet": (b"# xet version 0\nfilesize = 4\n", "a Xet pointer", "the model file itself"),
    "dvc": (b"outs:\n- md5: ab\n  path: a.gguf\n", "a pointer of DVC", "dvc pull"),
    "index": (b'{"metadata": {}, "weight_map": {"a": "b.safetensors"}}', "the index of a model", _CONVERT),
    "manifest": (b'{"schemaVersion":2,"layers":[]}', "a manifest of a registry", "ollama:NAME"),
    "utf-16": ("hello".encode("utf-16"), "a text: 'hello'", "the model file itself"),
    "modelfile, comment": (b"# mine\n\nfrom ./model.gguf\r\n", "a Modelfile of Ollama", "after FROM"),
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
    "old adapter": (b"algg" + bytes(90), "a LoRA adapter in the old GGML format", "convert_lora_to_gguf.py"),
    "old session": (b"nsgg" + bytes(90), "a saved session of llama.cpp", "name the model"),
    "saved chat": (b"gguf-spec session 1\n" + bytes(90), "a saved chat", "/load"),
    "cut safetensors": (struct.pack("<Q", 99_999) + b'{"a": {', "a model in the safetensors format", _CONVERT),
    "safetensors": (_safetensors(), "a model in the safetensors format", _CONVERT),
    "torch": (_zip("archive/data.pkl"), "a model of PyTorch", _CONVERT),
    "torch, another member first": (_zip("archive/.format_version"), "a model of PyTorch", _CONVERT),
    "torchscript": (_zip("model/constants.pkl"), "a model of PyTorch", _CONVERT),
    "npz": (_zip("arr_0.npy"), "arrays of NumPy", _CONVERT),
    "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.0.1:\x10", "a model in the ONNX format", _CONVERT),
    "core ml": (b"\x08\x05\x12\x10\n\x05input" + bytes(9), "a model of Core ML", _CONVERT),
    "onnx runtime": (b"\x28\0\0\0ORTM" + bytes(9), "a model of ONNX Runtime", _CONVERT),
    "pickle": (pickle.dumps({"a": 1}, 2), "a pickled file of Python", _CONVERT),
    "zip": (_zip("model.gguf"), "a zip archive", "unpack it"),
    "gzip": (gzip.compress(b"GGUF"), "an archive (gzip)", "unpack it"),
    "xz": (lzma.compress(b"GGUF"), "an archive (xz)", "unpack it"),
    "lz4": (b"\x04\x22\x4d\x18" + bytes(9), "an archive (lz4)", "unpack it"),
    "tar": (_tar(), "an archive (tar)", "unpack it"),
    "pdf": (b"%PDF-1.7\n", "a PDF document", "GGUF"),
    "parquet": (b"PAR1" + bytes(9), "a table of data", "GGUF"),
    "characters of no text": (b"\n\x07saved_model", "a file in an unknown format", "GGUF"),
    "keras": (b"\x89HDF\r\n\x1a\n", "a file in the HDF5 format", _CONVERT),
    "picture": (b"\xff\xd8\xff\xe0" + bytes(99), "a picture", "GGUF"),
    "program": (b"\x7fELF" + bytes(99), "a program", "GGUF"),
    "blanks": (b"\r\n \n", "a text of blanks alone", _NEW),
    "mark alone": (b"\xef\xbb\xbf", "a file in an unknown format", "GGUF"),
    "one byte of no text": (b"\x80", "a file in an unknown format", "GGUF"),
    "many comments": (b"<!---->" * 580, "a text", "the model file itself"),
    "many marks": (b"# " * 2000, "a text", "the model file itself"),
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


_FINISH, _JOIN = "let the download finish", "join its pieces"
_HALF, _NO_GGUF = "its header ends", "is not a GGUF file but"


@pytest.mark.parametrize(
    ("name", "data", "what", "todo"),
    [
        *((f"a.gguf.{end}", b"GGUF\3\0\0\0", _HALF, _FINISH) for end in ("part", "partial", "incomplete", "crdownload", "download")),
        ("sha256-ab-partial", b"GGUF\3\0\0\0", _HALF, _FINISH),
        ("a.gguf.incomplete", bytes(900), f"{_NO_GGUF} zeros", _FINISH),
        ("a.gguf.aria2", b"\0\1\0\x80" + bytes(9), f"{_NO_GGUF} a download that did not finish", _FINISH),
        ("a.gguf-split-a", b"GGUF\3\0\0\0", _HALF, _JOIN),
        ("a.gguf.part1of2", b"GGUF\3\0\0\0", _HALF, _JOIN),
        ("a.gguf-split-b", b"\x80\x81" * 99, f"{_NO_GGUF} a piece of a file", _JOIN),
        ("a.gguf.part2of2", b"\x80\x81" * 99, f"{_NO_GGUF} a piece of a file", _JOIN),
        ("a.gguf", b"GGUF\3\0\0\0", _HALF, "download it again"),
    ],
)  # fmt: skip
def test_a_name_tells_why_a_file_is_cut_short(tmp_path, name, data, what, todo):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NotAModelError, match=what) as caught:
        read_header(tmp_path / name)
    assert todo in caught.value.hint


@pytest.mark.parametrize(
    ("version", "order", "what", "todo"),
    [
        (1, "<", "is GGUF of version 1; versions 2 and 3 can be read", "use a newer file"),
        (0, "<", "is GGUF of version 0", "use a newer file"),
        (4, "<", "is GGUF of version 4", "update gguf-spec"),
        (3, ">", "is a GGUF file for big-endian machines", "gguf-convert-endian"),
    ],
)
def test_other_versions_are_named(tmp_path, version, order, what, todo):
    path = tmp_path / "it.gguf"
    path.write_bytes(b"GGUF" + struct.pack(f"{order}IQQ", version, 1, 1) + bytes(99))
    with pytest.raises(NotAModelError, match=what) as caught:
        read_header(path)
    assert todo in caught.value.hint


@pytest.mark.parametrize("target", ["../blobs/ab", "it.gguf"])  # to nothing, and to itself
@pytest.mark.parametrize("below", ["", "/a.gguf"])
def test_a_link_that_leads_to_no_file(tmp_path, target, below):
    link = tmp_path / "it.gguf"
    link.symlink_to(target)
    said = re.escape(f"{link} is a link to {target}, which leads to no file.")
    with pytest.raises(ModelNotFoundError, match=said) as caught:
        read_header(tmp_path / f"it.gguf{below}")
    assert "download the model again" in caught.value.hint


def test_a_link_is_no_repository_of_the_hub(tmp_path, monkeypatch):
    """`models/mine` could be one, but a link with this name exists."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine").symlink_to("nowhere")
    with pytest.raises(ModelNotFoundError, match="is a link to nowhere"):
        gguf_spec.load("models/mine")


_SETTINGS = b'{"quantization_config": {"bits": 4, "quant_method": "%s"}}'
_OF_MLX = b'{"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"bits": 4}}'
FOLDERS = {
    "one": (["a.gguf", "README.md"], "is a directory", "{}/a.gguf"),
    "split": (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "is a directory with a split model", "{}/m-00001-of-00002.gguf"),
    "later parts alone": (["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"], "with parts of a split model, without the first", "name m-00001-of-00003.gguf"),
    "a projector": (["a-mmproj.gguf", "b.gguf"], "is a directory", "{}/b.gguf"),
    "an imatrix": (["a-imatrix.gguf", "b.gguf"], "is a directory", "{}/b.gguf"),
    "of macOS": (["._b.gguf", "b.gguf"], "is a directory.", "{}/b.gguf"),
    "capitals": (["B.GGUF"], "is a directory.", "{}/B.GGUF"),
    "several": (["b.gguf", "a.gguf"], "is a directory with 2 GGUF files", "such as {}/a.gguf"),
    "another name": ({"model": b"GGUF\3\0\0\0"}, "is a directory.", "name the file in it: {}/model"),
    "pointers": ({".gitattributes": b"", "a.gguf": _POINTER, "b.gguf": _POINTER}, "a.gguf is not a GGUF file but a Git LFS pointer", "git lfs pull"),
    "unfinished": (["a.gguf.part"], "with a download that did not finish: a.gguf.part", _FINISH),
    "unfinished of the hub": (["refs/main", "blobs/ab.incomplete"], "with a download that did not finish: blobs/ab.incomplete", _FINISH),
    "safetensors": (["config.json", "model-00001-of-00002.safetensors"], "in the format of safetensors, not", _CONVERT),
    "mlx": ({"config.json": _OF_MLX, "model.safetensors": b""}, "in the format of safetensors (MLX), not", "what it was made from"),
    "gptq": ({"config.json": _SETTINGS % b"gptq", "model.safetensors": b""}, "in the format of safetensors (GPTQ), not", "what it was made from"),
    "awq": ({"config.json": _SETTINGS % b"awq", "model.safetensors": b""}, "in the format of safetensors (AWQ), not", "what it was made from"),
    "torch": (["config.json", "pytorch_model.bin"], "in the format of PyTorch", _CONVERT),
    "of meta": (["consolidated.00.pth", "params.json"], "in the format of PyTorch", _CONVERT),
    "onnx": (["model.onnx"], "in the format of ONNX", _CONVERT),
    "onnx below": (["config.json", "onnx/model.onnx"], "in the format of ONNX", _CONVERT),
    "tensorflow": (["saved_model.pb"], "in the format of TensorFlow", _CONVERT),
    "mlc": (["mlc-chat-config.json", "params_shard_0.bin", "ndarray-cache.json"], "in the format of MLC", "what it was made from"),
    "openvino": (["openvino_model.bin", "openvino_model.xml"], "in the format of OpenVINO", "what it was made from"),
    "core ml": (["a.mlpackage/Manifest.json"], "in the format of Core ML", "what it was made from"),
    "tensorrt": (["config.json", "rank0.engine"], "in the format of TensorRT", "what it was made from"),
    "ctranslate2": (["config.json", "model.bin", "vocabulary.json"], "in the format of CTranslate2", "what it was made from"),
    "adapter": (["adapter_config.json", "adapter_model.safetensors"], "with a LoRA adapter of PEFT", "convert_lora_to_gguf.py"),
    "diffusers": (["model_index.json", "unet/model.safetensors"], "with a model of diffusers", "GGUF"),
    "old ggml": ({"ggml-model-q4_0.bin": b"tjgg\3\0\0\0" + bytes(90)}, "with ggml-model-q4_0.bin, a model in the old GGML format", "convert_llama_ggml_to_gguf.py"),
    "zip": ({"a.gguf.zip": _zip("a.gguf")}, "with a.gguf.zip, a zip archive", "unpack it"),
    "of ollama": (["blobs/sha256-ab", "manifests/registry.ollama.ai/library/a/latest"], "of Ollama", "ollama:NAME"),
    "settings alone": (["README.md", "config.json", "tokenizer.json"], "with the settings of a model, without its weights", "GGUF"),
    "below": (["snapshots/abc/a.gguf"], "with GGUF files in the directories below", "{}/snapshots/abc/a.gguf"),
    "far below": (["a/b/c/d/a.gguf"], "with GGUF files in the directories below", "{}/a/b/c/d/a.gguf"),
    "other": (["README.md"], "is a directory without a GGUF file", "name a GGUF file"),
    "unknown": ({"a.bin": b"\x81\x82"}, "is a directory without a GGUF file", "name a GGUF file"),
    "a folder with the name of a file": (["a.gguf/README.md"], "is a directory without a GGUF file", "name a GGUF file"),
    "empty": ([], "is a directory that is empty", "name a GGUF file"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_named_for_what_it_has(tmp_path, case):
    names, what, todo = FOLDERS[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(names[name] if isinstance(names, dict) else b"")
    with pytest.raises(NotAModelError) as caught:
        read_header(tmp_path)
    assert what in str(caught.value)
    assert todo.format(tmp_path) in caught.value.hint


def test_links_to_nothing_in_a_folder(tmp_path):
    (tmp_path / "a.gguf").symlink_to("../../blobs/ab")
    with pytest.raises(NotAModelError, match=r"is a link to \.\./\.\./blobs/ab, which leads"):
        read_header(tmp_path)


def test_the_file_of_a_hint_is_taken(tmp_path):
    """Also where its name needs quotes in a shell."""
    path = tiny.write(tmp_path / "my model.gguf", tiny.llama(seed=1))
    with pytest.raises(NotAModelError) as caught:
        read_header(tmp_path)
    assert f"'{path}'" in caught.value.hint


@pytest.mark.parametrize("option", ["draft", "mmproj", "lora", "draft_lora"])
def test_every_file_of_a_load_is_named(tmp_path, option):
    path = tmp_path / "it.gguf"
    path.write_bytes(_POINTER)
    with pytest.raises(NotAModelError, match="a Git LFS pointer"):
        gguf_spec.load("tales", **{option: path})
