"""Names of files and folders that are taken for a GGUF file and are none, with what to do.

Only the first bytes of files and the names in folders are read. They are untrusted.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ModelNotFoundError, NotAModelError
from .header import shown

# Bytes at the beginning of a file that are looked at.
FIRST_BYTES = 4096
# Names below a folder that are looked at, and files in it.
_MOST_NAMES, _MOST_FILES = 10_000, 50
# Largest length of the header of a safetensors file.
_MOST_SAFETENSORS = 100_000_000

_GGUF_OF_IT = (
    "use a GGUF file of this model (on the hub repositories whose names end in GGUF have them)"
)
_CONVERT = f"{_GGUF_OF_IT}, or convert it with convert_hf_to_gguf.py of llama.cpp."
_CONVERT_ORIGINAL = (
    f"{_GGUF_OF_IT}, or convert what it was made from, in safetensors, with convert_hf_to_gguf.py "
    "of llama.cpp."
)
_CONVERT_ADAPTER = "convert it with convert_lora_to_gguf.py of llama.cpp, and set it as an adapter."
_AGAIN = "download the file again."
_LET_FINISH = "let the download finish, or download the file again."
_LOG_IN = (
    "where the model has a licence, accept it on its page and set HF_TOKEN for gguf-spec models "
    "pull; else check the address and download the file again."
)
_FILE = "download the model file itself."
_LED_TO = "name the file that it leads to."
_ITSELF = (
    "download the file itself: on the hub the address of a file has /resolve/, that of its page "
    "/blob/."
)
_FOLLOW = "download the file itself: curl -L follows a redirect, and -i adds what is no file."
_OLD = (
    "use a newer file of this model, or convert it with convert_llama_ggml_to_gguf.py of llama.cpp."
)
_UNPACK = "unpack it, and name the .gguf file in it."
_JOIN = "join its pieces in their order (cat FIRST SECOND ... > model.gguf), and name the result."
_OTHER = "use a file in the GGUF format."
_FROM_OLLAMA = "name it as ollama:NAME:TAG; `gguf-spec models list` shows those that Ollama has."
_IS_A_PAGE = (
    rb"(?:<\?xml[^>]*>\s*|<!--(?:(?!-->).)*-->\s*)*<(?i:!doctype\s+html|html|head|body|title|meta|script|"
    rb"style|link|div|h\d|p|center|table|iframe|noscript)\b"
)
_ZIPPED = rb"PK\x03\x04.{26}[^\0]{0,200}?"

# The first bytes of a file -> what it is, and what to do. Groups are values of the description.
_BEGINNINGS = (
    (rb"(?i:lmgg|ggml)", "a model in the old GGML format, before GGUF", _OLD),
    (rb"(?i:fmgg|ggmf|tjgg|ggjt)", "a model in the old GGML format, before GGUF", _OLD),
    (rb"(?i:algg|ggla)", "a LoRA adapter in the old GGML format, before GGUF", _CONVERT_ADAPTER),
    (rb"[nq]sgg|ggs[nq]", "a saved session of llama.cpp", "name the model that it belongs to."),
    (rb"gguf-spec session", "a saved chat", "load it in a chat, with /load."),
    (_ZIPPED + rb"(?:(?:data|constants)\.pkl|byteorder|\.format)", "a model of PyTorch", _CONVERT),
    (_ZIPPED + rb"\.npy", "arrays of NumPy", _CONVERT_ORIGINAL),
    (_ZIPPED + rb"\.tflite", "a model of TensorFlow Lite", _CONVERT_ORIGINAL),
    (rb"PK\x03\x04.{0,4000}?model\.weights\.h5", "a model of Keras", _CONVERT_ORIGINAL),
    (rb"\x80[\x02-\x05]", "a pickled file of Python, such as an old model of PyTorch", _CONVERT),
    (rb"\x89HDF", "a file in the HDF5 format, such as a model of Keras", _CONVERT_ORIGINAL),
    (rb".{4}TFL3", "a model of TensorFlow Lite", _CONVERT_ORIGINAL),
    (rb".{4}ORTM", "a model of ONNX Runtime", _CONVERT_ORIGINAL),
    (rb"\x93NUMPY", "an array of NumPy", _CONVERT_ORIGINAL),
    (rb"\x08[\x01-\x10](?:\x12(?:\0|.[\w.-])|:)", "a model in the ONNX format", _CONVERT_ORIGINAL),
    (rb"\x08[\x01-\x10]\x12", "a model of Core ML", _CONVERT_ORIGINAL),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive", _UNPACK),
    *(
        (magic, f"an archive ({name})", _UNPACK)
        for magic, name in (
            (rb"\x1f\x8b", "gzip"), (rb"BZh\d1AY", "bzip2"), (rb"\xfd7zXZ|\x5d\0\0", "xz"),
            (rb"\x28\xb5\x2f\xfd", "zstd"), (rb"\x04\x22\x4d\x18", "lz4"), (rb"7z\xbc\xaf", "7z"),
            (rb"Rar!", "rar"), (rb"MSCF", "cab"), (rb"\x1f\x9d", "Z"), (rb".{257}ustar", "tar"),
        )
    ),
    (rb"\x7fELF|MZ|#!|\xcf\xfa\xed\xfe", "a program", "use a GGUF file; of a llamafile, unzip it."),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF.{4}WEBP|BM.{4}\0\0\0\0", "a picture", _OTHER),
    (rb".{4}ftyp|ID3|OggS|RIFF", "a recording of sound or pictures", _OTHER),
    (rb"%PDF", "a PDF document", _OTHER),
    (rb"PAR1|SQLite format|ARROW1", "a table of data", _OTHER),
    (rb"L\0\0\0\x01\x14\x02\0", "a shortcut of Windows", _LED_TO),
    (rb"!<symlink>|IntxLNK\x01", "a link of another system", _LED_TO),
    (_IS_A_PAGE, "a web page", _ITSELF),
    (
        rb"(?:<\?xml[^>]*>\s*)?<Error>(?:.*?<Code>([^<]{1,80}))?",
        "an XML text, the error of a server: {}", _AGAIN,
    ),
    (rb"(?:<\?xml[^>]*>\s*)?<net\b", "the graph of a model of OpenVINO", _CONVERT_ORIGINAL),
    (rb"<\?xml", "an XML text, such as an error of a server", _AGAIN),
    (rb"HTTP/\d[\d.]* (\d[^\r\n]{0,60})", "the answer of a server with its headers: {}", _FOLLOW),
    (rb"(?:#[^\n]*\n\s*)*(?i:FROM)[ \t]+\S+[ \t\r]*(?:\n|$)", "a Modelfile of Ollama",
     "name the file after FROM, or the model in Ollama."),
    (rb"# xet version", "a Xet pointer", _FILE),
    (rb"/annex/objects/", "a pointer of git-annex", f"run `git annex get`, or {_FILE}"),
    (rb"outs:\s", "a pointer of DVC", f"run `dvc pull`, or {_FILE}"),
)  # fmt: skip
_BEGINNINGS_READ = [(re.compile(form, re.DOTALL), what, todo) for form, what, todo in _BEGINNINGS]
_POINTER = re.compile(rb"version https://[\w./-]+/spec/v\d+\s(?:.*\n)*?size (\d{1,20})")
_ADDRESS = re.compile(
    r"(?:\[(?:InternetShortcut|Desktop Entry)\].*?URL=)?((?:https?|file|s3|hf)://\S+).*", re.DOTALL
)
_PATH = re.compile(r"(?:\.{0,2}/|~/|\.{0,2}\\|[A-Za-z]:[\\/])\S[^\n]*|[^\s{}<>\"]+\.gguf")
_IS_ERROR = re.compile(r'\{\s*"(?:error|errors|message|detail)"\s*:')
_NO_ACCESS = re.compile(
    r"(?i)access|token|log ?in|username|credential|authori[sz]ed|forbidden|denied|gated|licen[sc]e"
)

# What the name of a file says: a download that goes on, or a piece that `split` made.
_PARTIAL = re.compile(
    r"(?i)\.(part|partial|incomplete|crdownload|opdownload|download|downloadInProgress|aria2|"
    r"filepart|!ut|!qb)$|-partial(-\d+)?$"
)
_PIECE = re.compile(r"(?i)\.gguf[._-](split-?\w{1,3}|part-?\w{1,3}(of\d+)?|\d{2,3}|a[a-z])$")
_LATER_PART = re.compile(r"-(?!00001-)\d{5}(?=-of-\d{5}\.gguf$)")
# Files in the GGUF format beside a model.
_BESIDE = re.compile(r"(?i)mmproj|imatrix")


def _in(name: str) -> str:
    return f"with a model in the format of {name}, not GGUF"


# Names of the files of a folder and of those directly below, sorted -> what it has, and what to do.
_FOLDERS = tuple(
    (re.compile(form, re.MULTILINE | re.DOTALL), what, todo)
    for form, what, todo in (
        (r"^adapter_(config\.json|model\.)", "with a LoRA adapter of PEFT", _CONVERT_ADAPTER),
        (r"^model_index\.json$", "with a model of diffusers for pictures", _OTHER),
        (r"^(mlc-chat-config|ndarray-cache)\.json$", _in("MLC"), _CONVERT_ORIGINAL),
        (r"^openvino_\w+\.(xml|bin)$", _in("OpenVINO"), _CONVERT_ORIGINAL),
        (r"\.(engine|plan)$", _in("TensorRT"), _CONVERT_ORIGINAL),
        (r"\.(mlpackage|mlmodelc)/|\.mlmodel$", _in("Core ML"), _CONVERT_ORIGINAL),
        (r"^model\.bin$.*^(\w+_)?vocabulary\.\w+$", _in("CTranslate2"), _CONVERT_ORIGINAL),
        (r"\.nemo$", _in("NeMo"), _CONVERT_ORIGINAL),
        (r"\.safetensors(\.index\.json)?$", _in("safetensors"), _CONVERT),
        (r"\.(pt|pth|ckpt)$|pytorch_model[\w.-]*\.bin(\.|$)", _in("PyTorch"), _CONVERT),
        (r"\.(onnx|onnx_data|ort)$", _in("ONNX"), _CONVERT_ORIGINAL),
        (r"\.(h5|keras|tflite|msgpack|task)$|^saved_model\.pb$", _in("TensorFlow or Keras"),
         _CONVERT_ORIGINAL),
        (r"^blobs/sha256-", "of Ollama, which names its models otherwise", _FROM_OLLAMA),
    )
)  # fmt: skip
_SETTINGS = re.compile(r"(config|tokenizer\w*|params|model\.\w*index)\.json|tokenizer\.model")
_QUANT_METHOD = re.compile(r'"quant_method"\s*:\s*"([\w-]{1,30})"')
_OF_MLX = re.compile(r'"quantization"\s*:\s*\{')


# ---- files


def refusal(path: Path, head: bytes, n_bytes: int) -> NotAModelError:
    """Return the error for a file that is no GGUF file: what it is, and what to do.

    Args:
        path: The file.
        head: Its first bytes, at most `FIRST_BYTES`.
        n_bytes: Its size.
    """
    what, todo = _described(path.name, head, n_bytes)
    return NotAModelError(path, f"{path.name} is not a GGUF file but {what}.", todo)


def todo_by_name(name: str) -> str | None:
    """Return what to do with a GGUF file that is cut short, if its name says why."""
    if _PARTIAL.search(name):
        return _LET_FINISH
    return _JOIN if _PIECE.search(name) else None


def link_refusal(path: Path) -> ModelNotFoundError | None:
    """Return the error for a path through a link that leads nowhere; None if there is no such."""
    for link in (path, *path.parents):
        with contextlib.suppress(OSError):
            if link.is_symlink() and not link.exists():
                what = f"{link} is a link to {link.readlink()}, which leads to no file."
                todo = "download the model again, or make the link again; or name another file."
                return ModelNotFoundError(path, what, todo)
    return None


def _described(name: str, head: bytes, n_bytes: int) -> tuple[str, str]:
    text, by_name = _text_of(head), todo_by_name(name)
    if b"GGUF".startswith(head) or not head.strip(b"\0"):
        n = f"{n_bytes} bytes" if head.strip(b"\0") else "zeros"
        what = f"{n}, as of a download that did not finish" if head else "empty"
        return what, by_name or _AGAIN
    if _is_safetensors(head):
        return "a model in the safetensors format", _CONVERT
    if found := _POINTER.match(text):
        what = f"a Git LFS pointer for a file of {int(found[1]):,} bytes"
        return what, "run `git lfs pull` in its repository, or download the file itself."
    for form, what, todo in _BEGINNINGS_READ:
        if found := form.match(head) or form.match(text):
            values = [shown(value) for value in found.groups() if value is not None]
            return what.format(*values) if values else what.removesuffix(": {}"), todo
    if by_name:
        what = "a piece of a file" if by_name == _JOIN else "a download that did not finish"
    else:
        what = "a file in an unknown format"
    is_text = _is_text(head) and _described_text(text.decode(errors="ignore"), n_bytes)
    return is_text or (what, by_name or _OTHER)


def _is_safetensors(head: bytes) -> bool:
    """Return whether a file begins with the length of a JSON object and that object."""
    return head[8:9] == b"{" and 2 <= struct.unpack_from("<Q", head)[0] <= _MOST_SAFETENSORS


def _text_of(head: bytes) -> bytes:
    """Return the first bytes in UTF-8, without a byte order mark and blanks before the text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        head = head.decode("utf-16", errors="ignore").encode()
    return head.removeprefix(codecs.BOM_UTF8).lstrip()


def _described_text(text: str, n_bytes: int) -> tuple[str, str] | None:
    """Return the description of a text; None if it is only the mark of one."""
    text = text.strip()
    if not text:
        return ("a text of blanks alone", _AGAIN) if n_bytes > 3 else None
    if re.match(r"[{\[](\s*[\"\[\]{}\d-]|$)", text):
        return _described_json(text)
    if found := _ADDRESS.fullmatch(text):
        todo = _ITSELF if "/blob/" in found[1] else "download the file at this address."
        return f"a text with an address: {shown(found[1])}", todo
    if _PATH.fullmatch(text):
        return f"a text with a path: {shown(text)}", f"name the file at this path, or {_FILE}"
    todo = _LOG_IN if n_bytes < 1000 and _NO_ACCESS.search(text) else _FILE
    return f"a text: {shown(text.splitlines()[0])}", todo


def _is_text(head: bytes) -> bool:
    """Return whether the bytes are a text in UTF-8 or UTF-16; its last character may be cut."""
    is_utf16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if is_utf16 else "utf-8")()
    try:
        text = decoder.decode(head)
    except ValueError:
        return False
    return not re.search(r"[\0-\x07\x0e-\x1a\x1c-\x1f]", text)


def _described_json(text: str) -> tuple[str, str]:
    if said := _message_of(text):
        todo = _LOG_IN if _NO_ACCESS.search(said) else _AGAIN
        return f"the error of a server: {shown(said)}", todo
    if _IS_ERROR.match(text):
        return "the error of a server", _AGAIN
    if '"weight_map"' in text:
        return "the index of a model in the safetensors or PyTorch format", _CONVERT
    if '"schemaVersion"' in text:
        return "a manifest of a registry, such as that of Ollama", _FROM_OLLAMA
    return "a JSON text", "name the model file, not its settings."


def _message_of(text: str) -> str | None:
    """Return the message in the JSON of an error; None for other JSON, and for one that is cut."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = ["error", "message", "detail", "errors", "error_description", "msg"]
    for _ in range(5):  # `{"errors": [{"message": ...}]}`
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict):
            named = {str(name).lower(): one for name, one in value.items()}
            more = ["title"] if "status" in named else []
            value = next((named[name] for name in [*names, *more] if named.get(name)), None)
    return value if isinstance(value, str) else None


# ---- folders


def folder_refusal(path: Path) -> NotAModelError:
    """Return the error for a folder: the model in it, and what to do."""
    names = list(_names(path))
    here = sorted(name for name in names if "/" not in name)
    if error := _of_links_or_pointers(path, here):
        return error
    what, todo = (
        _of_models(path, here)
        or _of_models_below(path, names)
        or _of_formats(path, names)
        or next(filter(None, (_of_content(path / name) for name in here[:_MOST_FILES])), None)
        or (f"{'without a GGUF file' if names else 'that is empty'}", "name a GGUF file.")
    )
    return NotAModelError(path, f"{path} is a directory{what and ' '}{what}.", todo)


def _names(folder: Path) -> Iterator[str]:
    """Yield the files below a folder with their paths from there, those in the folder first."""
    left, folders = _MOST_NAMES, [""]
    for place in folders:
        with contextlib.suppress(OSError), os.scandir(folder / place) as found:
            for one in found:
                left -= 1
                if not left:
                    return
                name = f"{place}{one.name}"
                if one.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif not one.name.startswith("._"):  # what macOS adds
                    yield name


def _is_model(folder: Path, name: str) -> bool:
    is_named = name.lower().endswith(".gguf") and not _LATER_PART.search(name)
    return is_named and (folder / name).is_file()


def _models(path: Path, names: list[str]) -> list[str]:
    """Return the GGUF files of a folder, without those that only belong to a model."""
    found = [one for one in names if _is_model(path, one)]
    return [one for one in found if not _BESIDE.search(one)] or found


def _of_links_or_pointers(path: Path, names: list[str]) -> NotAModelError | None:
    """Return the error for what stands in place of the GGUF files of a folder."""
    models = _models(path, names)
    if models:
        head, n_bytes = _head(path / models[0])
        return refusal(path / models[0], head, n_bytes) if _POINTER.match(head) else None
    for name in names:
        if name.lower().endswith(".gguf") and (error := link_refusal(path / name)):
            return NotAModelError(path, error.message, error.hint)
    return None


def _of_models(path: Path, names: list[str]) -> tuple[str, str] | None:
    """Return what a folder with GGUF files has, and what to do."""
    models = _models(path, names)
    if not models:
        for name in names:
            if _LATER_PART.search(name) and (path / name).is_file():
                todo = f"copy all parts into it, and name {_LATER_PART.sub('-00001', name)}."
                return "with parts of a split model, without the first of them", todo
        return None
    first = shlex.quote(str(path / models[0]))
    if len(models) > 1:
        return f"with {len(models)} GGUF files", f"name one of them, such as {first}."
    if "-00001-of-" in models[0]:
        return "with a split model", f"name its first file: {first}."
    return "", f"name the file in it: {first}."


def _of_models_below(path: Path, names: list[str]) -> tuple[str, str] | None:
    if below := next((one for one in names if _is_model(path, one)), None):
        todo = f"name one of them, such as {shlex.quote(str(path / below))}."
        return "with GGUF files in the directories below", todo
    if partial := next(filter(_PARTIAL.search, names), None):
        return f"with a download that did not finish: {partial}", _LET_FINISH
    return None


def _of_formats(path: Path, names: list[str]) -> tuple[str, str] | None:
    near = "\n".join(sorted(name for name in names if name.count("/") < 2))
    for form, what, todo in _FOLDERS:
        if form.search(near):
            return _quantised(path, what, todo)
    return None


def _quantised(path: Path, what: str, todo: str) -> tuple[str, str]:
    """Add how the weights of a folder are quantised, which a converter may not read."""
    text = _head(path / "config.json")[0].decode(errors="replace")
    method = _QUANT_METHOD.search(text)
    name = "MLX" if _OF_MLX.search(text) else method and method[1].upper()
    if not name or todo != _CONVERT:
        return what, todo
    return what.replace(", not", f" ({name}), not"), _CONVERT_ORIGINAL


def _of_content(path: Path) -> tuple[str, str] | None:
    """Return the description of a folder by the content of a file in it; None for a text."""
    head, n_bytes = _head(path)
    if head[:4] == b"GGUF":
        return "", f"name the file in it: {shlex.quote(str(path))}."
    if _SETTINGS.fullmatch(path.name):
        return "with the settings of a model, without its weights", f"{_GGUF_OF_IT}."
    if not head or _is_text(head):
        return None
    what, todo = _described(path.name, head, n_bytes)
    return None if todo == _OTHER else (f"with {path.name}, {what}", todo)


def _head(path: Path) -> tuple[bytes, int]:
    """Return the first bytes of a file and its size; nothing if it cannot be read."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return file.read(FIRST_BYTES), os.fstat(file.fileno()).st_size
    except OSError:
        pass  # what it holds stays unknown
    return b"", 0
