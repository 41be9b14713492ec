"""Session files: save the caches of a model pair and restore them later.

A file consists of a format line, three lengths, the hash of the data, the data as JSON, the caches
of both models, and a keyed hash over everything before it. llama.cpp trusts the caches it loads, so
they are used only if the keyed hash was made with this user's key. The data is used if its own hash
matches.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import RollbackError, SessionError
from ..llama.backend import library_parts
from ..llama.sequence import CachedSequence
from ..options import IMAGE_IDS
from ..system.files import atomic_write, cache_folder, remedy, this_machine, version
from ..system.machine import format_bytes
from ..system.piece_folder import user_key

_LOG = logging.getLogger("gguf_spec.runtime.session_file")
_FORMAT = b"gguf-spec session 1\n"
_MOST_DATA = 64 << 20  # maximum size of the data, in bytes
_PIECE = 1 << 22  # block size of hashing, in bytes
_LENGTHS = struct.Struct("<QQQ")  # sizes of data, target cache and draft cache, in bytes


def save(
    path: Path, data: Mapping[str, Any], target: CachedSequence, draft: CachedSequence | None
) -> None:
    """Write data and caches to a file, completely or not at all.

    Raises:
        SessionError: The file cannot be written.
    """
    head = b"" if version(path) else _FORMAT
    if not head and path.is_file():  # a pipe would wait for its writer
        with contextlib.suppress(OSError), path.open("rb") as file:
            head = file.read(len(_FORMAT))
    if head != _FORMAT:
        raise SessionError(f"{path} exists and is not a session file.", "choose another name.")
    models = [model for model in (target, draft) if model]
    for model in models:
        if model.options.placement.mmap is not False and model.file.is_rewritten():
            raise SessionError(
                f"{model.path} was changed after it was loaded: caches may be of both contents.",
                "load the model again.",
            )
        _cut_before_images(model)
    about = {**data, "caches": [_about(model) for model in models]}
    about_bytes = json.dumps(about, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    if len(about_bytes) > _MOST_DATA:
        raise SessionError(
            f"the conversation has {format_bytes(len(about_bytes))} with its images: at most "
            f"{format_bytes(_MOST_DATA)} can be saved.",
            "remove messages with images first.",
        )
    key, states = user_key(), [model.state_bytes() for model in models]
    if key is None:  # what it computed could not be told from what others wrote
        _LOG.warning(
            "%s cannot be written, so a chat is saved without its caches: it will be read again. "
            "Set XDG_CACHE_HOME to another folder.",
            cache_folder(),
        )
        models, states = [], []
    lengths = (len(about_bytes), *[*states, 0, 0][:2])
    try:
        free = shutil.disk_usage(path.parent).free
        if sum(lengths) > free:
            raise SessionError(
                f"{path} needs {sum(lengths):,} bytes, but {free:,} are free.",
                "free disk space, or save it on another disk.",
            )
        with atomic_write(path) as part, part.open("wb") as file:
            digest = hmac.new(key or b"", digestmod=hashlib.sha256)
            hash_of_data = hashlib.sha256(about_bytes).digest()
            pieces: Iterable[Any] = (_FORMAT, _LENGTHS.pack(*lengths), hash_of_data, about_bytes)
            for piece in chain(pieces, (model.state() for model in models)):
                file.write(piece)
                digest.update(piece)
            file.write(digest.digest())
    except OSError as error:
        raise SessionError(
            f"{path} cannot be written: {error.strerror or error}.",
            f"{remedy(error)}, or save it in another folder.",
        ) from error


def _cut_before_images(model: CachedSequence) -> None:
    """Drop the first image of the cache and all after it: ids of images belong to this process."""
    first = next((i for i, token in enumerate(model.cached) if token >= IMAGE_IDS), None)
    if first is None:
        return
    try:
        model.rollback(first)
    except RollbackError:
        model.rollback(0)


def restore(
    path: Path, target: CachedSequence, draft: CachedSequence | None
) -> tuple[dict[str, Any], str]:
    """Return the data of a session file, and restore the caches of both models.

    Returns:
        The data, and the reason why the caches were not restored; empty if they were. If not, both
        caches are empty.

    Raises:
        SessionError: The file is missing, damaged, or not a session file. The caches are unchanged,
            or empty where reading the caches themselves fails.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file, [model for model in (target, draft) if model])
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read(
    path: Path, file: BinaryIO, models: Sequence[CachedSequence]
) -> tuple[dict[str, Any], str]:
    n_bytes = os.fstat(file.fileno()).st_size
    head = file.read(len(_FORMAT) + _LENGTHS.size + hashlib.sha256().digest_size)
    if not head.startswith(_FORMAT) or len(head) < len(_FORMAT) + _LENGTHS.size + 32:
        raise SessionError(f"{path} is not a session file.")
    n_data, *n_states = _LENGTHS.unpack_from(head, len(_FORMAT))
    about_bytes = file.read(n_data) if n_data <= min(n_bytes, _MOST_DATA) else b""
    data = _data(path, about_bytes, head[-32:])
    for model in models:
        model.rollback(0)
    about = data.pop("caches", None)
    made_by = [_about(model)["made_by"] for model in models]
    found = about if isinstance(about, list) else []
    if made_by != [isinstance(one, dict) and one.get("made_by") for one in found]:
        return data, "it was saved with other models, settings or another build of llama.cpp"
    key = user_key()
    if key is None or not n_states[0]:  # that of the target
        where = f"{cache_folder()} cannot be read, where the key of its caches is"
        return data, where if n_states[0] else "it was saved without caches"
    if n_bytes != len(head) + n_data + sum(n_states) + 32:
        return data, "its caches are damaged"
    digest = hmac.new(key, head + about_bytes, hashlib.sha256)
    at = file.tell()
    for _ in range(0, sum(n_states), _PIECE):  # verify before llama.cpp reads any of it
        digest.update(file.read(min(_PIECE, at + sum(n_states) - file.tell())))
    if not hmac.compare_digest(digest.digest(), file.read(32)):
        return data, "its caches are damaged, or were written by another user"
    file.seek(at)
    for model, cache, n in zip(models, found, n_states, strict=False):
        if not model.restore(cache["tokens"], cache["n_read"], file.read(n)):
            models[0].rollback(0)
            return data, "llama.cpp cannot restore its caches"
    return data, ""


def _data(path: Path, text: bytes, digest: bytes) -> dict[str, Any]:
    """Return the data of a session file from their JSON and its hash."""
    data = None
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(text) if hashlib.sha256(text).digest() == digest else None
    if not isinstance(data, dict):
        raise SessionError(f"{path} is damaged.", "start a new conversation.")
    return data


def _about(model: CachedSequence) -> dict[str, Any]:
    """Return a fingerprint of everything the cache depends on, and the cached tokens."""
    o = model.options
    made_by = maker(model, [o.gpu_layers, o.extra_bufts, model.n_ctx, *o.rpc])
    return {"made_by": made_by, "tokens": list(model.cached), "n_read": model.n_read}


def maker(model: CachedSequence, more: Iterable[object]) -> str:
    """Return a fingerprint of files, library, processor and options that a cache depends on.

    Args:
        more: What else decides it.
    """
    o = model.options
    parts: list[object] = [*this_machine(), *library_parts(), model.file.content_id]
    parts += [model.flash_attention, o.kv_type, *more, *o.placement.parts]
    parts += [(adapter.content_id, adapter.scale) for adapter in o.lora]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
