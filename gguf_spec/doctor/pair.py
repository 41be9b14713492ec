"""Checks of `doctor` for a target and a draft model: their files, then the loaded models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import GgufSpecError, Option, Text, less_memory
from ..gguf.heads import head_kind
from ..gguf.validation import Header, ModelFile
from ..llama.cache_size import state_bytes
from ..llama.memory import MemoryEstimate, largest_ctx, needs, usual_prefix_memory
from ..llama.options import ContextOptions
from ..options import K_MAX
from ..registry.download import local
from ..registry.resolve import Entry, resolve
from ..system.machine import available_bytes, format_bytes, total_bytes
from .check import Check
from .installation import REBUILD, has

if TYPE_CHECKING:
    from ..llama.head import Head
    from ..llama.model import Model
    from ..runtime.head_choice import HeadChoice
    from ..tune import Tuning


class PairChecks:
    """Checks of a target and a draft model: first their files, then the loaded models.

    Attributes:
        tuning: Cached costs of their passes; None if they were not measured yet.
    """

    def __init__(
        self,
        options: ContextOptions,
        draft_options: ContextOptions,
        features: dict[str, str] | None,
        models_file: Path | None,
    ) -> None:
        """Set the load options.

        Args:
            options: Options of the target.
            draft_options: Options of the draft model.
            features: Features of the llama.cpp build; None if it does not work, so that no model is
                loaded.
            models_file: As for `load`.
        """
        self.tuning: Tuning | None = None
        self._options, self._draft_options, self._features, self._models_file = (
            options,
            draft_options,
            features,
            models_file,
        )
        self._loaded: list[Model | Head] = []
        self._head: HeadChoice | None = None

    def close(self) -> None:
        """Free the models."""
        for model in self._loaded:
            model.close()

    def examine(self, model: str | Path, draft: str | Path | None) -> Iterator[Check]:
        """Yield the checks of a pair.

        Checks that depend on a failed check are skipped.
        """
        role = "target"
        try:
            entry = resolve(model, self._models_file)
            target = ModelFile(local(entry), may_embed=True)
            yield _file(role, target.header)
            if target.embeds_only:
                yield from self._embeds(target)
                return
            role = "draft"
            other, why_not = self._draft(entry, target, draft, str(model))
            yield _file(role, other.header) if other else why_not
            of_head = self._options_with_head()
        except GgufSpecError as error:
            yield Check(role, "fail", error.message, error.hint)
            return
        n_ctx = max(2, self._options.positions(_trained(target.header)))
        models = [(target, replace(self._options, n_ctx=n_ctx))]
        models += [(file, replace(one, n_ctx=n_ctx)) for file, one in of_head]
        if other:
            models.append((other, replace(self._draft_options, n_ctx=n_ctx)))
        models = self._with_snapshots(models)
        room = self._room(models)
        yield room
        if self._features is not None and room.status != "fail":
            yield from self._inside(entry.name, models)

    def _with_snapshots(
        self, models: list[tuple[ModelFile, ContextOptions]]
    ) -> list[tuple[ModelFile, ContextOptions]]:
        """Return the models with the snapshots of a load with drafts."""
        if self._features is None:
            return models
        from ..llama.backend import with_snapshots

        options = with_snapshots([(file.header, options) for file, options in models], K_MAX)
        return [(file, one) for (file, _), (_, one) in zip(models, options, strict=True)]

    def _embeds(self, file: ModelFile) -> Iterator[Check]:
        """Yield the checks of a model that only computes embeddings."""
        from ..llama.embedder import Embedder
        from ..llama.embedding_memory import embedding_needs
        from ..llama.model import Model

        wanted = embedding_needs(file.header, self._options, self._features or {})
        room = self._fits(wanted, format_bytes(wanted.added), lambda *_: 0)
        yield room
        if self._features is None or room.status == "fail":
            return
        try:
            model = Model(file, self._options)
            self._loaded.append(model)
            pooling = Embedder(model).pooling
        except GgufSpecError as error:
            yield Check("loading", "fail", error.message, error.hint)
            return
        found = f"llama.cpp loads it, for embeddings with the pooling {pooling}"
        yield Check("loading", "ok", found)

    def _draft(
        self, target: Entry, file: ModelFile, draft: str | Path | None, given: str
    ) -> tuple[ModelFile | None, Check]:
        """Return the file of the draft model, or None, and the check that explains the result."""
        plain, by_text = (
            Check("draft", "ok", "none: plain decoding"),
            Check("draft", "ok", "drafts come from the text only"),
        )
        if draft in (None, "none", "ngram"):
            return None, by_text if draft == "ngram" else plain
        if self._features is not None and (found := self._find_head(target, file, draft)):
            return None, found
        if draft != "auto":
            return ModelFile(local(resolve(draft, self._models_file)), as_draft=True), plain
        if target.draft in ("ngram", "none"):
            return None, replace(
                by_text, found=f"models.yaml names none for {target.name}: {by_text.found}"
            )
        if self._features is None:
            return None, Check(
                "draft",
                "warn",
                "no draft was searched, because llama.cpp does not work",
                "see the check llama.cpp above.",
            )
        from ..runtime.draft_search import choose

        chosen, why = choose(target, file, self._options, self._draft_options, self._models_file)
        return chosen.file if chosen else None, Check(
            "draft", "warn", why, f"see `gguf-spec models drafts {given}`."
        )

    def _find_head(self, target: Entry, file: ModelFile, draft: str | Path | None) -> Check | None:
        """Choose the prediction head that drafts; return the check of it, or None without one.

        Raises:
            NoSpeculationError: A head is asked for, and none can be used.
        """
        from ..runtime.head_choice import choose_head

        if draft == "auto" and target.draft not in (None, "ngram"):
            return None
        asked = Option("draft", "mtp") if draft == "mtp" else None
        given = (
            None
            if draft in ("auto", "mtp")
            else ModelFile(local(resolve(str(draft), self._models_file)))
        )
        self._head = choice = choose_head(file, given, self._options, asked)
        if choice.why_not and given:
            return Check(
                "draft",
                "warn",
                f"{choice.why_not}: drafts come from elsewhere",
                Text("to name another draft, set {draft}."),
            )
        if not choice.kind:
            return None
        header = (choice.file or file).header
        found = (
            f"the prediction head in {header.path.name} drafts ({head_kind(header)}), unless "
            "requests run in parallel"
        )
        return Check("draft", "ok", found)

    def _options_with_head(self) -> list[tuple[ModelFile, ContextOptions]]:
        """Let the target load its head, and return the head's own file with options."""
        if not self._head or not self._head.kind:
            return []
        self._options = self._head.of_target(self._options)
        of_head = replace(self._draft_options, head="self")
        return [(self._head.file, of_head)] if self._head.file else []

    def _room(self, files: list[tuple[ModelFile, ContextOptions]]) -> Check:
        features = self._features or {}
        models = [(file.header, options) for file, options in files]
        wanted = needs(models, features)
        found = (
            f"{format_bytes(wanted.added)}, "
            f"{format_bytes(wanted.caches)} of it for a context of {wanted.n_ctx:,}"
        )
        return self._fits(
            wanted,
            found,
            lambda free, total: largest_ctx(models, features, free, total),
            usual_prefix_memory(models, features),
        )

    def _fits(
        self,
        wanted: MemoryEstimate,
        found: str,
        longest_of: Callable[[int | None, int | None], int],
        kept: int = 0,
    ) -> Check:
        """Return the check whether there is enough memory.

        Args:
            wanted: What is needed.
            found: The same in words.
            longest_of: Returns the context that would fit in the free memory; 0 if none would.
            kept: Memory for texts of earlier requests, in bytes.
        """
        free, total = available_bytes(), total_bytes()
        found += f"; {format_bytes(free)} are free" if free is not None else ""
        found += f", {format_bytes(kept)} of it for texts of earlier requests" if kept else ""
        if has(self._features or {}, "GPU"):
            return Check("room", "ok", f"{found}; the memory of the GPU is unknown")
        todo = less_memory()
        if not wanted.fits(free, total):
            longest = longest_of(free, total)
            return Check(
                "room",
                "fail",
                found,
                Text("set {n_ctx=}, which would fit.", n_ctx=longest)
                if longest
                else Text("the weights alone do not fit: {}", todo),
            )
        if free is not None and wanted.added > free:
            return Check(
                "room", "warn", f"{found}: weights will be read from the disk repeatedly", todo
            )
        return Check("room", "ok", found)

    def _inside(self, name: str, models: list[tuple[ModelFile, ContextOptions]]) -> Iterator[Check]:
        from ..llama.eagle_head import open_head
        from ..llama.model import Model
        from ..speculative.vocabularies import translation_of

        try:
            target = Model(*models[0])
            self._loaded.append(target)
            if self._head and self._head.kind:
                of_head = replace(self._draft_options, n_ctx=target.n_ctx, head="self")
                self._loaded.insert(0, open_head(target, of_head, self._head.file))
            elif len(models) > 1:
                self._loaded.insert(0, Model(*models[1]))
        except GgufSpecError as error:
            yield Check("loading", "fail", error.message, error.hint)
            return
        draft = self._loaded[0] if len(self._loaded) > 1 else None
        yield Check("loading", "ok", f"llama.cpp loads {'both' if draft else 'it'}")
        if isinstance(draft, Model):
            try:
                translation = translation_of(target, draft)
                same = f"the draft has that of the target, {target.n_vocab:,} tokens"
                yield Check("vocabulary", "ok", translation.note if translation else same)
            except GgufSpecError as error:
                yield Check("vocabulary", "fail", error.message, error.hint)
                return
        yield _rollback(target, draft)
        if not target.why_plain:
            yield self._exact_passes(target, draft)
            yield self._costs(name, target, draft if draft and not draft.why_plain else None)

    def _exact_passes(self, target: Model, draft: Model | Head | None) -> Check:
        from ..speculative.profile import read_profile

        name, profile = "exact passes", read_profile(target, draft)
        inexact = profile.exact_width == 1 if profile else not target.exact_attention
        if inexact and has(self._features or {}, "LLAMAFILE"):
            found = (
                "llama.cpp was built without -DGGML_LLAMAFILE=OFF: llamafile's matrix products "
                "round rows differently in passes over several tokens, so nothing is drafted "
                "unless near ties are allowed"
            )
            return Check(name, "warn", found, REBUILD)
        if not profile:
            return Check(name, "ok", "not measured yet; the first load with drafting measures it")
        return Check(name, "ok", profile.exact_passes)

    def _costs(self, name: str, target: Model, draft: Model | Head | None) -> Check:
        from ..speculative.profile import read_profile
        from ..tune import Tuning

        profile = read_profile(target, draft)
        if not profile:
            return Check("costs", "ok", "not measured yet; `gguf-spec tune` measures them")
        self.tuning = Tuning(name, draft.label if draft else None, profile)
        return Check(
            "costs",
            "ok",
            f"measured in {profile.seconds:.1f} s; `gguf-spec tune` measures them again",
        )


def _rollback(target: Model, draft: Model | Head | None) -> Check:
    """Return the check of how the models drop rejected tokens."""
    from ..speculative.profile import read_profile

    models = [target, *([draft] if draft else [])]
    profile = read_profile(target, draft)
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


def _way(model: Model | Head) -> str:
    """Return how a model drops rejected tokens."""
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


def _file(role: str, header: Header) -> Check:
    return Check(
        role,
        "ok",
        f"{header.path.name}: {header.architecture}, {format_bytes(header.file_bytes)}, "
        f"context of {_trained(header):,}",
    )
