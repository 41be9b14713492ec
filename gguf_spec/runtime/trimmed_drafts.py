"""Trimmed copies of drafts: made once, measured here, and kept where they pay.

A pass of a draft multiplies with its whole output matrix, a third and more of the weights of a
small model with a large vocabulary. A copy has the rows of the most used tokens only. It reads all
tokens and proposes the kept ones, with the same numbers as the whole draft: where the draft would
propose a kept token, the copy proposes the same. So acceptance falls at most by the share of
proposals that change (from 0.60 to 0.58 at worst, where that is 0.02), whatever the target is, and
no target is loaded to measure it. The texts that it is measured with are not those whose tokens are
counted; a text of another kind may lose more.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Logits
from ..errors import OutputFileError, UnsupportedModelError, VocabularyMismatchError
from ..gguf.trimming import by_use, matrices, write_trimmed
from ..gguf.validation import Header, ModelFile, trimmed
from ..gguf.vocabulary import FileVocabulary
from ..llama.bindings import C
from ..llama.context import Context
from ..llama.memory import check_room
from ..llama.options import ContextOptions, physical_cores
from ..llama.own_kernels import extra_bufts_work
from ..registry.download import path as local
from ..registry.models_file import BUNDLED
from ..registry.resolve import ModelName, resolve
from ..registry.trimmed import VERSION, record_of, remove_trimmed, state_of, trimmed_folder
from ..results import OnProgress, Progress
from ..speculative.vocabularies import check_vocabulary
from ..system.files import atomic_write, exclusive, remedy, this_machine, write_json
from .draft_texts import stored_tokens

# Numbers of kept tokens, the smallest of which that loses few enough proposals is taken.
_SIZES = (16384, 24576, 32768, 49152, 65536, 98304)
# Share of the bytes of a pass that a copy must save to be tried, the largest share of the time that
# its pass may take, and the smallest share of proposals that must stay the same.
_LEAST_SAVED, _MOST_TIME, _LEAST_SAME = 0.1, 0.95, 0.98
# Shipped texts whose first part is counted, and the last piece compared; and files of which only
# two pieces are compared, because texts of other kinds have more rare tokens: 32,768 tokens cover
# 0.95 of Qwen-Coder's answers to questions, 0.95 of these files, and 0.99 of the rest of the books.
_TEXTS, _COUNTED = ("code.txt", "document.txt", "rewrite.txt", "turn20.txt"), 2 / 3
_OTHERS = ("server/page/markdown.js", "server/page/api.js", "kernels/tiles.cpp")
# Tokens of a piece, and of them those that are only read first; rows of a pass.
_PIECE, _READ, _AT_ONCE = 40, 8, 16
# Pieces of the user's store that are compared, its newest ones, and from how many tokens on.
_OF_STORE, _ENOUGH_STORED = 4, 1024
# Timed passes of each model, in turn; their context.
_N_PASSES, _N_CTX = 20, 128
# Difference of rows that other kernels of a GPU may give, as a share of their range.
_ROUNDING = 0.01


@dataclass(frozen=True)
class TrimmedDraft:
    """What was measured of a draft with the rows of its most used tokens only.

    Attributes:
        name: The draft.
        path: The trimmed copy, which loads use; None if they use the whole draft.
        n_kept: Number of tokens that the copy can propose.
        n_vocab: Number of tokens of the draft.
        same: Share of the proposals for some texts that stay the same.
        time: Time of a pass of the copy as a share of that of the whole draft; None if it was not
            timed, because too few proposals stay the same.
    """

    name: str
    path: Path | None
    n_kept: int
    n_vocab: int
    same: float
    time: float | None

    @property
    def sentence(self) -> str:
        """The result in a sentence, without a full stop."""
        of = f"{self.n_kept:,} of {self.n_vocab:,} tokens"
        shares = f"{self.same:.0%} of its proposals stay the same"
        if self.time is not None:
            shares = f"its pass takes {self.time:.2f} of the time, {shares}"
        if self.path:
            return f"draft {self.name} trimmed to {of}: {shares}"
        return f"draft {self.name} not trimmed: with {of} {shares}"


def trim_draft(
    model: ModelName,
    target: ModelName | None = None,
    *,
    models_file: str | Path | None = None,
    force: bool = False,
    progress: OnProgress | None = None,
) -> TrimmedDraft | None:
    """Make a trimmed copy of a draft on this disk, and keep it if it makes drafting faster here.

    Loads take the copy in place of the draft wherever that is given by its name, and not by its
    path. It goes with the draft when that is removed. The texts of answers stay the same.

    Args:
        model: The draft.
        target: The model that it drafts for: the tokens of its store of earlier texts
            (`load(draft_texts="disk")`) count, too.
        models_file: As for `list_models`.
        force: Measure again, also where that was done on this machine.
        progress: Called with the finished steps.

    Returns:
        None if a copy would save little, or if the draft cannot have one.

    Raises:
        ModelNotFoundError, NotDownloadedError: There is no such model on this disk.
        ModelError: Its file is invalid.
        NotEnoughMemoryError: The draft does not fit into memory.
        OutputFileError: The copy cannot be written.
    """
    entry = resolve(model, models_file)
    file = ModelFile(local(entry))
    if not _sizes(file.header):
        return None
    tokens = _stored(file, ModelFile(local(target, models_file))) if target else []
    machine = [*this_machine(timed=True)]
    try:
        folder = trimmed_folder(file.paths)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder.with_suffix(".lock"), lambda: None):
            record = {} if force else record_of(folder)
            if record.get("machine") != machine:
                remove_trimmed(folder)
                folder.mkdir()
                record = {"version": VERSION, "machine": machine}
                record |= _made(file, tokens, folder, progress or (lambda _: None))
                if not write_json(folder / "record.json", record):
                    remove_trimmed(folder)
                    raise OSError(errno.EIO, "its record was not kept", str(folder))
    except OSError as error:
        where = Path(error.filename or file.path)
        what = f"{where} cannot be written: {error.strerror or error}."
        raise OutputFileError("model", where, what, f"{remedy(error)}.") from error
    path = folder / record["file"] if record["file"] else None
    numbers = (record[name] for name in ("n_kept", "n_vocab", "same", "time"))
    return TrimmedDraft(entry.name, path, *numbers)


def _stored(draft: ModelFile, target: ModelFile) -> list[int]:
    """Return the tokens of a target's store, if they are those of the draft."""
    try:
        check_vocabulary(FileVocabulary(target.header), FileVocabulary(draft.header))
    except VocabularyMismatchError:
        return []
    n_vocab = FileVocabulary(draft.header).n_vocab
    return [token for token in stored_tokens(target) if 0 <= token < n_vocab]


def _sizes(header: Header) -> list[int]:
    """Return the numbers of tokens with which a pass reads clearly less of a model."""
    if trimmed(header) or not header.facts.takes_rows:
        return []
    try:
        names = {*matrices(header)}
    except UnsupportedModelError:
        return []
    embeddings, output = header.tensor("token_embd.weight"), header.tensor("output.weight")
    if not embeddings or names - {"token_embd.weight", "output.weight", "output.bias"}:
        return []
    used, n_bytes = output or embeddings, header.file_bytes
    n_bytes -= embeddings.n_bytes if output else 0
    return [n for n in _SIZES if used.n_bytes * (1 - n / used.shape[-1]) >= _LEAST_SAVED * n_bytes]


def _made(file: ModelFile, stored: Sequence[int], folder: Path, tell: OnProgress) -> dict[str, Any]:
    """Make and measure a copy, and return its part of the record."""
    header, done, total = file.header, 0, file.header.n_tensors + _N_PASSES

    def step(*_: object) -> None:
        nonlocal done
        done += 1
        tell(Progress("trim", done, total, "steps"))

    with closing(_opened(file)) as whole:
        counts, pieces = _texts(whole, stored)
        total += len(pieces) + 1
        first = _rows(whole, pieces[0], step)
        others = (_rows(whole, piece, step).argmax(axis=1) for piece in pieces[1:])
        proposals = np.concatenate([first.argmax(axis=1), *others])
        tokens, _ = by_use(header, counts)
        for n_kept in _sizes(header):
            ids = sorted(tokens[:n_kept])
            same = float(np.isin(proposals, ids).mean())
            if same >= _LEAST_SAME:
                break
        about: dict[str, Any] = {"n_kept": n_kept, "n_vocab": len(tokens), "same": same}
        about |= {"file": None, "state": None, "time": None}
        if same < _LEAST_SAME:
            return about
        path = folder / f"{file.path.stem}-{n_kept}.gguf"
        with atomic_write(path, private=False, is_ours=True) as part:
            write_trimmed(header, part, ids, step)
            with closing(_opened(ModelFile(part, as_draft=True), header)) as copy:
                is_right = _are_alike(first[:, ids], _rows(copy, pieces[0], step)[:, ids])
                about["time"] = time_share(whole, copy, pieces[0], step)
    if is_right and about["time"] <= _MOST_TIME:
        return about | {"file": path.name, "state": state_of(path)}
    path.unlink()
    return about


def _opened(file: ModelFile, *others: Header) -> Context:
    """Load a draft beside others that are loaded."""
    options = ContextOptions(
        n_ctx=_N_CTX, threads=physical_cores(), extra_bufts=extra_bufts_work(), drafts=True
    )
    check_room([(header, options) for header in (file.header, *others)])
    return Context(file, options)


def _texts(model: Context, stored: Sequence[int]) -> tuple[Counter[int], list[Sequence[int]]]:
    """Return how often tokens occur in texts, and pieces of other texts to compare proposals."""
    counts, pieces = Counter[int](), list[Sequence[int]]()
    for name in _TEXTS:
        text = (BUNDLED / name).read_text(encoding="utf-8")
        tokens = model.weights.tokenize(text, special=False, start=False)
        n_counted = int(len(tokens) * _COUNTED)
        counts.update(tokens[:n_counted])
        pieces.append(tokens[-_PIECE:])
    for name in _OTHERS:
        text = (BUNDLED.parent / name).read_text(encoding="utf-8")
        tokens = model.weights.tokenize(text, special=False, start=False)
        pieces += [tokens[len(tokens) // n :][:_PIECE] for n in (2, 3)]
    n_pieces = _OF_STORE if len(stored) >= _ENOUGH_STORED else 0
    at = len(stored) - n_pieces * _PIECE
    counts.update(stored[:at])
    pieces += [stored[i : i + _PIECE] for i in range(at, len(stored), _PIECE) if n_pieces]
    return counts, pieces


def _rows(model: Context, piece: Sequence[int], step: Callable[[], object]) -> Logits:
    """Return the rows of all but the first tokens of a piece."""
    sequence, found = model.sequences[0], list[Logits]()
    sequence.rollback(0)
    sequence.read(piece[:_READ])
    for at in range(_READ, len(piece), _AT_ONCE):
        part = piece[at : at + _AT_ONCE]
        found.append(sequence.logits(part, len(part)).copy())
    step()
    return np.concatenate(found)


def _are_alike(a: Logits, b: Logits) -> bool:
    """Return whether the rows of a copy are those of the whole draft, up to rounding."""
    return bool(np.abs(a - b).max() <= _ROUNDING * np.ptp(a))


def time_share(
    whole: Context, copy: Context, piece: Sequence[int], step: Callable[[], object]
) -> float:
    """Return the time of a pass of a copy, as a share of that of the whole draft.

    Passes are timed in turn, and the shortest ones count, because other programs only add to them.
    Of a processor it is the processor time with one thread: several wait for each other.
    """
    clock = time.perf_counter if whole.slow_first_pass else time.process_time
    took = [list[float](), list[float]()]
    for token in piece[:_N_PASSES]:
        for model, seconds in zip((whole, copy), took, strict=True):
            model.weights.native.context(C.llama_set_n_threads, 1, 1)
            model.sequences[0].rollback(len(piece))
            started = clock()
            model.sequences[0].logits([token], 1)
            seconds.append(clock() - started)
        step()
    return min(took[1]) / min(took[0])
