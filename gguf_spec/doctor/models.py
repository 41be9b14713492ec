"""Checks of `doctor` for models: the downloaded ones, and a target with a draft and a projector."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import GgufSpecError, Text, less_memory
from ..gguf.adapters import read_projector
from ..gguf.header import Tensor
from ..gguf.heads import head_kind
from ..gguf.validation import Header, ModelFile, check_written
from ..llama.memory import (
    MemoryEstimate,
    largest_ctx,
    longest_ctx,
    needs,
    prefix_memory_in_room,
    state_bytes,
)
from ..llama.options import ContextOptions
from ..options import DEFAULT_CTX, DRAFT_WORDS, Draft, default_sampling
from ..registry import hub as hub_module
from ..registry.download import path as local
from ..registry.proxy import by_proxy
from ..registry.resolve import Entry, entries, resolve, user_file
from ..runtime.load_options import LoadOptions, Plan
from ..system.files import cache_file, read_json, this_machine, write_json
from ..system.machine import format_bytes
from .build import COMPILED, READY_MADE, Build
from .installation import REBUILD, Check, Status, file_sizes

if TYPE_CHECKING:
    from ..llama.sequence import CachedSequence
    from ..passes import Exactness
    from ..speculative.profile import Profile
    from ..tune import Tuning

# seconds to wait for a response of the hub
_PATIENCE_S = 10
_NO_HUB = "huggingface_hub cannot be imported"
_REINSTALL_HUB = "reinstall it: pip install --force-reinstall huggingface_hub."

# tokens of the passes that are compared between builds of llama.cpp
_COMPARED = (1, 8)


def hub_cache() -> Check:
    """Check that downloaded models can be read and more can be downloaded."""
    name, todo = "hub cache", "change its permissions, or set HF_HOME to another folder."
    try:
        folder = hub_module.folder()
    except ImportError as error:
        return Check(name, "fail", f"{_NO_HUB}: {error}", _REINSTALL_HUB)
    if not os.path.lexists(folder):
        return Check(name, "ok", f"no model from the hub yet; the folder is {folder}")
    try:
        with os.scandir(folder) as there:
            models = [Path(one.path) for one in there if one.name.startswith("models--")]
        n_bytes = sum(file_sizes(model / "blobs" for model in models))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        found = f"{folder} cannot be read, so no downloaded model is found: {error.strerror}"
        return Check(name, "fail", found, todo)
    found = (
        f"{folder} contains {len(models)} {'repository' if len(models) == 1 else 'repositories'}, "
        f"{format_bytes(n_bytes)}; {format_bytes(free)} are free there"
    )
    if not os.access(folder, os.W_OK | os.X_OK):
        found += ", but no model can be downloaded because the folder is read-only"
        return Check(name, "warn", found, todo)
    return Check(name, "ok", found)


def models_file(given: Path | None) -> Check:
    """Check that names are resolved, with the user's models.yaml, if any, and the given one."""
    name, own = "models file", user_file()
    try:
        known = entries(given)
    except GgufSpecError as error:
        return Check(name, "fail", error.message, error.hint)
    read = [str(file) for file in (own, given) if file and os.path.lexists(file)]
    more = f"with {' and '.join(read)}" if read else f"there is no file of your own at {own}"
    return Check(name, "ok", f"{len(known)} models have names; {more}")


def hub() -> Check:
    """Check that the hub responds; no other check makes a request."""
    todo = (
        "check the network, HTTPS_PROXY and HF_ENDPOINT; "
        "local files and downloaded models work without the hub."
    )
    try:
        where = hub_module.endpoint()
        status = hub_module.status(_PATIENCE_S)
    except ImportError as error:
        return Check("hub", "fail", f"{_NO_HUB}: {error}", _REINSTALL_HUB)
    # the HTTP library depends on the version of huggingface_hub and has its own exceptions
    except Exception as error:
        if proxied := by_proxy(error, where):
            return Check("hub", "fail", *proxied)
        found = f"{where} cannot be reached: {error or type(error).__name__}"
        return Check("hub", "fail", found, todo)
    if status >= 400:
        return Check("hub", "fail", f"{where} responds with HTTP status {status}", todo)
    return Check("hub", "ok", f"{where} responds")


def projector(path: Path, model: str | Path, models_file: Path | None, works: bool) -> Check:
    try:
        header = read_projector(path)
        if works:
            from ..llama.vision import check_projector

            check_projector(path, local(resolve(model, models_file)))
    except GgufSpecError as error:
        return Check("projector", "fail", error.message, error.hint)
    data, size = header.metadata, format_bytes(header.file_bytes)
    kind = data.get("clip.projector_type") or data.get("clip.vision.projector_type")
    side = data["clip.vision.image_size"]
    return Check("projector", "ok", f"{path.name}: {kind}, images of {side:,} pixels, {size}")


# Bytes that are read at once; those of zeros that no file of a model is known to have in a row,
# those that are looked at, and those that may lie beside a row of zeros by chance.
_BLOCK, _ZEROS, _LEAST, _BESIDE = 1 << 20, 4 << 20, 1 << 14, 12


def contents(name: str, header: Header, entry: Entry | None = None) -> Check:
    """Read the files of a model completely, and compare their hash with the known one."""
    known = 0
    for i, path in enumerate(header.parts):
        try:
            digest, n_bytes, zeros = _read_all(path)
        except OSError as error:
            found = f"{path.name} cannot be read: {error.strerror}"
            return Check(name, "fail", found, "check the disk; copy or download the file again.")
        wanted, source = _declared(path, entry.parts[i].sha256 if entry and entry.parts else None)
        known += bool(wanted)
        if wanted and wanted != digest:
            found = f"the sha256 of {path.name} is {digest}, but {wanted} {source}"
            return Check(name, "fail", found, "download or copy it again.")
        tensors, data_at = [one for one in header.tensors if one.part == i], header.parts_at[i]
        for start, end in zeros if not wanted else ():
            if _is_hole(tensors, start - data_at, end - data_at):
                found = f"{path.name} has only zeros from byte {start:,} to {end:,}"
                return Check(name, "warn", found, "compare it with another copy.")
        more = n_bytes - data_at - max((one.offset + one.n_bytes for one in tensors), default=0)
        if more >= _BLOCK and not wanted:
            found = f"{path.name} has {more:,} bytes more than its header says"
            return Check(name, "warn", found, "compare it with another copy.")
    found = f"{format_bytes(header.file_bytes)} were read"
    found += ", and their sha256 is the known one" if known else "; their sha256 is not known"
    return Check(name, "ok", found)


def _is_hole(tensors: Sequence[Tensor], start: int, end: int) -> bool:
    """Return whether zeros stand for data: those of unused rows begin and end where rows do."""

    def in_row(at: int) -> tuple[int, int]:
        for one in tensors:
            if 0 <= (place := at - one.offset) < one.n_bytes:
                row = one.n_bytes // math.prod(one.shape[1:])
                return place % row, row
        return 0, 0

    (first, row), (last, other) = in_row(start), in_row(end)
    is_torn = 0 < first < row - _BESIDE and last > _BESIDE
    return end - start >= _ZEROS or (is_torn and end - start >= max(row, other))


def _read_all(path: Path) -> tuple[str, int, list[tuple[int, int]]]:
    """Return the sha256 of a file, its size, and where long runs of zeros begin and end."""
    digest, at, start, runs = hashlib.sha256(), 0, 0, list[tuple[int, int]]()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            for i in range(0, len(block), 4096):
                piece = block[i : i + 4096]
                if data := piece.lstrip(b"\0"):
                    if (end := at + len(piece) - len(data)) - start >= _LEAST:
                        runs.append((start, end))
                    start = at + len(piece.rstrip(b"\0"))
                at += len(piece)
    return digest.hexdigest(), at, [*runs, (start, at)]


def _declared(path: Path, in_models_file: str | None) -> tuple[str, str]:
    """Return the known sha256 of a file and where it stands; nothing if it is not known.

    The hub's library and Ollama name files by it.
    """
    if in_models_file:
        return in_models_file, "stands in models.yaml"
    found = re.fullmatch(r"(?:sha256-)?([0-9a-f]{64})", path.resolve().name)
    return (found[1], "is its name") if found else ("", "")


@dataclass
class PairChecks:
    """Checks of a target and a draft model: first their files, then the loaded models.

    Attributes:
        build: The llama.cpp in use; None if it does not work.
        loads: Whether the models are loaded.
        reads_all: Whether the files are read completely.
        tuning: Cached costs of their passes; None if they were not measured yet.
        loaded: The models to close, a draft before its target.
    """

    options: ContextOptions
    draft_options: ContextOptions
    build: Build | None
    models_file: Path | None
    loads: bool
    reads_all: bool
    tuning: Tuning | None = None
    loaded: list[CachedSequence] = field(default_factory=list)

    def close(self) -> None:
        for model in self.loaded:
            model.close()

    def examine(self, model: str | Path, draft: str | Path | None) -> Iterator[Check]:
        """Yield the checks of a pair, without those that depend on a failed one."""
        role = "target"
        try:
            entry = resolve(model, self.models_file)
            target = ModelFile(local(entry), may_embed=True)
            check_written(target.header)
            yield _file(role, target.header)
            yield from _sampling(target.header, entry)
            if self.reads_all:
                yield contents(f"{role} file", target.header, entry)
            if target.embeds_only:
                yield from self._embeds(target)
                return
            role = "draft"
            drafts = Draft.of(draft)
            planned = self._plan(entry, target, drafts)
            yield self._draft(planned, drafts, str(model))
            if self.reads_all and (other := planned.files[-1][0]).path != target.path:
                yield contents("draft file", other.header)
        except GgufSpecError as error:
            yield Check(role, "fail", error.message, error.hint)
            return
        n_ctx = max(2, planned.target.positions(_trained(target.header)))
        files = [(file, replace(options, n_ctx=n_ctx)) for file, options in planned.files]
        planned = replace(planned, files=files)
        headers = planned.headers
        wanted = needs(headers)
        found = (
            f"{format_bytes(wanted.added)}, "
            f"{format_bytes(wanted.caches)} of it for a context of {wanted.n_ctx:,}"
            + self._why_ctx(wanted.n_ctx, _trained(target.header), longest_ctx(headers))
        )
        longest = 0 if wanted.fits else largest_ctx(headers)
        kept = prefix_memory_in_room(headers)
        texts = f"{format_bytes(kept)} of it for texts of earlier requests" if kept else ""
        if kept and any(state_bytes(header) for header, _ in headers):
            texts += ", half of this for states of recurrent layers along the prompts"
        room = room_for(self.build, wanted, found, longest, texts)
        yield room
        if self.build and self.loads and room.status != "fail":
            yield from self._inside(planned, self.build)

    def _why_ctx(self, n_ctx: int, trained: int, most: int) -> str:
        if self.options.n_ctx or (self.build and self.build.has("GPU")):
            return ""
        if n_ctx == trained:
            return " (as trained)"
        why = "fits into" if n_ctx > DEFAULT_CTX else "more would take over"
        grows = f"; serve lets it grow to {most:,}" if most > n_ctx else ""
        return f" ({why} a tenth of the free memory; trained for {trained:,}{grows})"

    def _plan(self, entry: Entry, target: ModelFile, draft: Draft) -> Plan:
        """Return what `load` opens; without llama.cpp no draft is searched, nor a head."""
        given = LoadOptions(
            entry=entry,
            file=target,
            target=self.options,
            of_draft=self.draft_options,
            models_file=self.models_file,
            # `ngram` has snapshots for drafts
            draft=Draft("ngram") if draft.word == "none" else draft,
            parallel=self.options.parallel,
        )
        if self.build is not None:
            from ..runtime.plan import plan

            return plan(given)
        files = [(target, self.options)]
        if draft.model:
            path = local(resolve(draft.model, self.models_file))
            files.append((ModelFile(path, as_draft=True), self.draft_options))
        return Plan(given, files)

    def _draft(self, plan: Plan, draft: Draft, model: str) -> Check:
        head, files, entry = plan.head, plan.files, plan.load.entry
        by_text = "drafts come from the text only"
        status: Status = "ok"
        todo = ""
        if len(files) > 1 and not head.kind:
            return _file("draft", files[1][0].header)
        if head.kind:
            header = (head.file or files[0][0]).header
            found = (
                f"the prediction head in {header.path.name} drafts ({head_kind(header)}), unless "
                "requests run in parallel"
            )
        elif draft.word in ("none", "ngram"):
            found = by_text if draft.word == "ngram" else "none: plain decoding"
        elif head.why_not and draft.word != "auto":
            status, found = "warn", f"{head.why_not}: drafts come from elsewhere"
            todo = Text("to name another draft, set {draft}.")
        elif entry.draft in DRAFT_WORDS:
            found = f"models.yaml names none for {entry.name}: {by_text}"
        elif self.build is None:
            status, found = "warn", "no draft was searched, because llama.cpp does not work"
            todo = "see the check llama.cpp above."
        else:
            status, found = "warn", plan.notes[-1]
            todo = f"see `gguf-spec models drafts {model}`."
        return Check("draft", status, found, todo)

    def _embeds(self, file: ModelFile) -> Iterator[Check]:
        from ..llama.context import Context
        from ..llama.embedder import Embedder
        from ..llama.memory import embedding_needs

        wanted = embedding_needs(file.header, self.options)
        room = room_for(self.build, wanted, format_bytes(wanted.added))
        yield room
        if not self.loads or room.status == "fail":
            return
        try:
            model = Context(file, self.options).sequences[0]
            self.loaded.append(model)
            pooling = Embedder(model).pooling
        except GgufSpecError as error:
            yield Check("loading", "fail", error.message, error.hint)
            return
        found = f"llama.cpp loads it, for embeddings with the pooling {pooling}"
        yield Check("loading", "ok", found)

    def _inside(self, plan: Plan, build: Build) -> Iterator[Check]:
        from ..llama.context import Context
        from ..llama.head import open_head
        from ..runtime.profile_files import read_profile
        from ..speculative.vocabularies import translation_of
        from ..tune import Tuning

        try:
            target = Context(*plan.files[0]).sequences[0]
            self.loaded.append(target)
            if plan.head.kind:
                of_head = replace(self.draft_options, n_ctx=target.n_ctx, head="self")
                self.loaded.insert(0, open_head(target, of_head, plan.head.file))
            elif len(plan.files) > 1:
                self.loaded.insert(0, Context(*plan.files[1]).sequences[0])
        except GgufSpecError as error:
            yield Check("loading", "fail", error.message, error.hint)
            return
        draft = self.loaded[0] if len(self.loaded) > 1 else None
        yield Check("loading", "ok", f"llama.cpp loads {'both' if draft else 'it'}")
        if draft and not plan.head.kind:
            try:
                headers = (one.file.header for one in (target, draft))
                translation = translation_of(target.weights, draft.weights, *headers)
                same = f"the draft has that of the target, {target.n_vocab:,} tokens"
                yield Check("vocabulary", "ok", translation.note if translation else same)
            except GgufSpecError as error:
                yield Check("vocabulary", "fail", error.message, error.hint)
                return
        profile = read_profile(target, draft)
        yield _rollback(target, draft, profile)
        if target.why_plain:
            return
        yield exact_passes(build, target.exactness, profile)
        draft = draft if draft and not draft.why_plain else None
        profile = read_profile(target, draft)
        found, todo = "not measured yet; `gguf-spec tune` measures them", ""
        if profile:
            self.tuning = Tuning(plan.load.entry.name, draft.label if draft else None, profile)
            how = f"measured in {profile.seconds:.1f} s"
            how = how if profile.is_whole else "learned from passes of answers"
            found = f"{how}; `gguf-spec tune` measures them again"
            if profile.disturbed:
                found = f"{how} beside other programs"
                todo = "run `gguf-spec tune` when the machine is idle."
        yield Check("costs", "warn" if todo else "ok", found, todo)
        if profile and not profile.disturbed:
            yield other_build(build, target.path.name, profile)


def room_for(
    build: Build | None, wanted: MemoryEstimate, found: str, longest: int = 0, kept: str = ""
) -> Check:
    """Check that models fit into the memory.

    Args:
        found: What they need.
        longest: The longest context that would fit; 0 if none would.
        kept: Part of the free memory for texts of earlier requests, in words.
    """
    free = wanted.free
    found += f"; {format_bytes(free)} are free" if free is not None else ""
    found += f", {kept}" if kept else ""
    if build and build.has("GPU"):
        return Check("room", "ok", f"{found}; the memory of the GPU is unknown")
    if not wanted.fits:
        fits = Text("set {n_ctx=}, which would fit.", n_ctx=longest)
        too_large = Text("the weights alone do not fit: {}", less_memory(0))
        return Check("room", "fail", found, fits if longest else too_large)
    if free is not None and wanted.added > free:
        found += ": weights will be read from the disk repeatedly"
        return Check("room", "warn", found, less_memory())
    return Check("room", "ok", found)


def exact_passes(build: Build, exactness: Exactness, profile: Profile | None) -> Check:
    """Say which passes are exact, and whether another build would have more of them."""
    name = "exact passes"
    inexact = profile.exact_width == 1 if profile else not exactness.attention
    if inexact and build.has("LLAMAFILE"):
        found = (
            "llama.cpp was built without -DGGML_LLAMAFILE=OFF: llamafile's matrix products "
            "round rows differently in passes over several tokens, so nothing is drafted "
            "unless near ties are allowed"
        )
        return Check(name, "warn", found, REBUILD)
    if not profile:
        found = "all, by the kernels" if exactness.promised else "not measured yet"
        return Check(name, "ok", f"{found}; the first requests with drafting check it")
    return Check(name, "ok", profile.exact_passes)


def other_build(build: Build, model: str, profile: Profile) -> Check:
    """Compare a target's costs with those that were measured with the other build here."""
    name, here = "other build", build.origin
    other = COMPILED if here == READY_MADE else READY_MADE
    parts = [*this_machine(timed=True), model, build.kernels.name]
    file = cache_file("builds", parts)
    known = read_json(file)
    known = known if isinstance(known, dict) else {}
    costs = {str(n): profile.target[n] for n in _COMPARED if n in profile.target}
    write_json(file, known | {here: costs})
    try:
        ratios = [costs[n] / known[other][n] for n in costs]
    except (KeyError, TypeError, ZeroDivisionError):
        way = "native" if other == COMPILED else "ready-made"
        found = f"not measured here; in a clone, scripts/run --{way} doctor does so"
        return Check(name, "ok", found)
    shown = " and ".join(
        f"{ratio:.2f} times as fast ({n} token{'s' * (n != '1')})"
        for n, ratio in zip(costs, ratios, strict=True)
    )
    return Check(name, "ok", f"{other}, measured on this machine: {shown}")


def _rollback(
    target: CachedSequence, draft: CachedSequence | None, profile: Profile | None
) -> Check:
    models = [target, *([draft] if draft else [])]
    why = [model.why_plain for model in models if model.why_plain]
    if profile and not profile.restores:
        why.append(f"llama.cpp did not restore the state of {target.path.name} in a test")
    if why:
        return Check("rollback", "warn", "; ".join(why), "use other models, or plain decoding.")
    if all(model.can_roll_back for model in models):
        return Check(
            "rollback", "ok", f"{'both' if draft else 'it'} can remove tokens from the cache"
        )
    ways = [_way(model) for model in models]
    if not target.can_roll_back:
        ways.append("parallel requests are decoded plainly")
    return Check("rollback", "ok", "; ".join(ways))


def _way(model: CachedSequence) -> str:
    name = model.path.name
    if model.can_roll_back:
        return f"{name} can remove tokens from the cache"
    size = format_bytes(state_bytes(model.file.header))
    if model.free_rollback:
        return (
            f"{name} (recurrent or hybrid) has snapshots of its state after the last "
            f"{model.free_rollback + 1} tokens, {size} each; longer drafts copy the state"
        )
    return (
        f"{name} (recurrent or hybrid) copies its state of {size} before a draft, and decodes "
        "accepted tokens again after a rejection"
    )


def _trained(header: Header) -> int:
    n_ctx = header.of_architecture("context_length", 0)
    return n_ctx if isinstance(n_ctx, int) else 0


def _sampling(header: Header, entry: Entry) -> Iterator[Check]:
    values, sources = default_sampling(header.metadata, entry.sampling, {})
    found = ", ".join(f"{name} {values[name]} ({source})" for name, source in sources.items())
    if found:
        yield Check("sampling", "ok", f"defaults of requests: {found}")


def _file(role: str, header: Header) -> Check:
    return Check(
        role,
        "ok",
        f"{header.path.name}: {header.architecture}, {format_bytes(header.file_bytes)}, "
        f"context of {_trained(header):,}",
    )
