"""Names of files and folders that are taken for a GGUF file and are none, with what to do.

Only the first bytes of a file and the names in a folder are read. They are untrusted.
"""

from __future__ import annotations

import json
import re
import shlex
import struct
from pathlib import Path
from typing import Any

from ..errors import NotAModelError
from .header import shown

# Bytes at the beginning of a file that are looked at.
FIRST_BYTES = 4096
_MOST_NAMES = 10_000  # names of a folder that are looked at

_CONVERT = (
    "use a GGUF file of this model (on the hub repositories whose names end in GGUF have them), "
    "or convert it with convert_hf_to_gguf.py of llama.cpp."
)
_AGAIN = "download the file again."
_ITSELF = (
    "download the file itself: on the hub the address of a file has /resolve/, that of its page "
    "/blob/."
)
_OLD = (
    "use a newer file of this model, or convert it with convert_llama_ggml_to_gguf.py of llama.cpp."
)
_UNPACK = "unpack it, and name the .gguf file in it."
_OTHER = "use a file in the GGUF format."

# The first bytes of a file -> what it is, and what to do.
_BEGINNINGS = (
    (rb"(?i:lmgg|ggml)", "a model in the old GGML format, before GGUF", _OLD),
    (rb"(?i:fmgg|ggmf|tjgg|ggjt)", "a model in the old GGML format, before GGUF", _OLD),
    (rb"(?i:algg|ggla)", "a LoRA adapter in the old GGML format, before GGUF", _CONVERT),
    (rb"PK\x03\x04.{26}[^\0]{0,200}?data\.pkl", "a model of PyTorch", _CONVERT),
    (rb"\x80[\x02-\x05]", "a pickled file of Python, such as an old model of PyTorch", _CONVERT),
    (rb"\x89HDF", "a file in the HDF5 format, such as a model of Keras", _CONVERT),
    (rb".{4}TFL3", "a model of TensorFlow Lite", _CONVERT),
    (rb"\x93NUMPY", "an array of NumPy", _CONVERT),
    (rb"\x08[\x01-\x10](\x12|:)", "a model in the ONNX format", _CONVERT),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive", _UNPACK),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!|.{257}ustar", "an archive", _UNPACK),
    (rb"\x7fELF|MZ|#!", "a program", "use its GGUF file; of a llamafile, unzip it."),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF.{4}WEBP|BM.{4}\0\0\0\0", "a picture", _OTHER),
    (rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)?<(?i:!doctype h|html|head|body)", "a web page", _ITSELF),
    (rb"\s*<\?xml|\s*<Error>", "an XML text, such as an error of a server", _AGAIN),
    (rb"FROM\s", "a Modelfile of Ollama", "name the file after FROM, or the model in Ollama."),
)  # fmt: skip
_BEGINNINGS_READ = [(re.compile(form, re.DOTALL), what, todo) for form, what, todo in _BEGINNINGS]
_POINTER = re.compile(rb"version https://[\w./-]+/spec/v\d+\s(?:.*\n)*?size (\d{1,20})")

# Formats of models, by the names of files in a folder.
_FORMATS = (
    ("safetensors", re.compile(r"\.safetensors(\.index\.json)?$")),
    ("PyTorch", re.compile(r"\.(bin|pt|pth|ckpt)(\.index\.json)?$")),
    ("ONNX", re.compile(r"\.onnx$")),
    ("TensorFlow or Keras", re.compile(r"\.(h5|keras|tflite|msgpack)$|^saved_model\.pb$")),
)
_LATER_PART = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$")


def refusal(path: Path, head: bytes, n_bytes: int) -> NotAModelError:
    """Return the error for a file that is no GGUF file: what it is, and what to do.

    Args:
        path: The file.
        head: Its first bytes, at most `FIRST_BYTES`.
        n_bytes: Its size.
    """
    what, todo = _described(head, n_bytes)
    return NotAModelError(path, f"{path.name} is not a GGUF file but {what}.", todo)


def _described(head: bytes, n_bytes: int) -> tuple[str, str]:
    if not head.strip(b"\0"):
        what = "zeros, as of a download that did not finish" if head else "empty"
        return what, _AGAIN
    if b"GGUF".startswith(head):
        return f"{n_bytes} bytes, as of a download that did not finish", _AGAIN
    if found := _POINTER.match(head):
        what = f"a Git LFS pointer for a file of {int(found[1]):,} bytes"
        return what, "run `git lfs pull` in its repository, or download the file itself."
    if _is_safetensors(head, n_bytes):
        return "a model in the safetensors format", _CONVERT
    known = next((one[1:] for one in _BEGINNINGS_READ if one[0].match(head)), None)
    return known or _described_text(head, n_bytes) or ("a file in an unknown format", _OTHER)


def _is_safetensors(head: bytes, n_bytes: int) -> bool:
    """Return whether a file begins with the size of a JSON object and that object."""
    return (
        len(head) > 9
        and 2 <= struct.unpack_from("<Q", head)[0] <= n_bytes - 8
        and head[8:9] == b"{"
    )


def _described_text(head: bytes, n_bytes: int) -> tuple[str, str] | None:
    """Return the description of a text; None for other data."""
    text = head.decode("utf-8-sig", errors="ignore").strip()
    if b"\0" in head or len(text.encode()) < len(head.strip()) - 6:  # a character may be cut
        return None
    if not text:
        return None if head.strip() else ("a text of blanks alone", _AGAIN)
    if text[:1] in ("{", "["):
        said = _message_of(text) if n_bytes == len(head) else None
        if said:
            return f"the error of a server: {shown(said)}", _AGAIN
        return "a JSON text", "name the model file, not its settings."
    return f"a text: {shown(text.splitlines()[0])}", "download the model file itself."


def _message_of(text: str) -> str | None:
    """Return the message in the JSON of an error; None for other JSON."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for _ in range(2):  # `{"error": {"message": ...}}`
        if isinstance(value, dict):
            names = ("error", "message", "detail", "errors", "error_description")
            value = next((value[name] for name in names if name in value), None)
    return value if isinstance(value, str) else None


def folder_refusal(path: Path) -> NotAModelError:
    """Return the error for a folder: the model in it, and what to do."""
    names: list[str] = []
    try:
        for one in path.iterdir():
            names.append(one.name)
            if len(names) == _MOST_NAMES:
                break
    except OSError:
        pass  # what it holds stays unknown
    names.sort()
    models = [one for one in names if one.lower().endswith(".gguf") and not _LATER_PART.search(one)]
    models = [one for one in models if "mmproj" not in one.lower()] or models
    if models:
        first = shlex.quote(str(path / models[0]))
        if len(models) == 1:
            return NotAModelError(path, f"{path} is a directory.", f"name the file in it: {first}.")
        what = f"{path} is a directory with {len(models)} GGUF files."
        return NotAModelError(path, what, f"name one of them, such as {first}.")
    for format_name, form in _FORMATS:
        if any(form.search(one) for one in names):
            what = f"{path} is a directory with a model in the format of {format_name}, not GGUF."
            return NotAModelError(path, what, _CONVERT)
    if found := _below(path):
        what = f"{path} is a directory with GGUF files in the directories below."
        return NotAModelError(path, what, f"name one of them, such as {shlex.quote(str(found))}.")
    what = f"{path} is a directory {'without a GGUF file' if names else 'that is empty'}."
    return NotAModelError(path, what, "name a GGUF file.")


def _below(path: Path) -> Path | None:
    """Return a GGUF file in the folders below, as in the hub's cache; two or three levels down."""
    for pattern in ("*/*.gguf", "*/*/*.gguf"):
        try:
            if found := next(path.glob(pattern), None):
                return found
        except OSError:
            pass  # a folder that cannot be read
    return None
