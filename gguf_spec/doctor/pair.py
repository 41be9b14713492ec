"""Checks of `doctor` for a target and a draft model: their files, then the loaded models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import GgufSpecError
from ..errors.model_errors import less_memory
from ..errors.texts import Option, Text
from ..gguf.model_file import ModelFile
from ..gguf.validation import Header
from ..llama.memory import largest_ctx, needs
from ..llama.options import ContextOptions
from ..registry.download import local
from ..registry.resolve import Entry, resolve
from ..system.hardware import available_bytes, total_bytes
from ..system.units import format_bytes
from .check import Check
from .installation import REBUILD, has

if TYPE_CHECKING:
    from ..llama.model import Model
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
        self._loaded: list[Model] = []

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
            target = ModelFile(local(entry))
            yield _file(role, target.header)
            self._choose_kernels(target.header)
            role = "draft"
            other, why_not = self._draft(entry, target, draft, str(model))
            yield _file(role, other.header) if other else why_not
        except GgufSpecError as error:
            yield Check(role, "fail", error.message, error.hint)
            return
        n_ctx = max(2, self._options.positions(_trained(target.header)))
        models = [(target, replace(self._options, n_ctx=n_ctx))]
        if other:
            models.append((other, replace(self._draft_options, n_ctx=n_ctx)))
        room = self._room(models)
        yield room
        if self._features is not None and room.status != "fail":
            yield from self._inside(entry.name, models)

    def _choose_kernels(self, header: Header) -> None:
        """Do not repack the target's weights where a load would not."""
        if self._options.extra_bufts and self._features is not None:
            from ..llama.kernel_choice import repacking_pays

            repack = repacking_pays(header, self._options)
            self._options = replace(self._options, extra_bufts=repack)

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
        if draft != "auto":
            return ModelFile(local(resolve(draft, self._models_file))), plain
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

    def _room(self, files: list[tuple[ModelFile, ContextOptions]]) -> Check:
        features = self._features or {}
        models = [(file.header, options) for file, options in files]
        wanted, free, total = needs(models, features), available_bytes(), total_bytes()
        found = (
            f"{format_bytes(wanted.added)}, "
            f"{format_bytes(wanted.caches)} of it for a context of {wanted.n_ctx:,}"
        )
        found += f"; {format_bytes(free)} are free" if free is not None else ""
        if has(features, "GPU"):
            return Check("room", "ok", f"{found}; the memory of the GPU is unknown")
        todo = less_memory()
        if not wanted.fits(free, total):
            longest = largest_ctx(models, features, free, total)
            return Check(
                "room",
                "fail",
                found,
                Text("set ", Option("n_ctx", longest), ", which would fit.")
                if longest
                else Text("the weights alone do not fit: ", todo),
            )
        if free is not None and wanted.added > free:
            return Check(
                "room", "warn", f"{found}: weights will be read from the disk repeatedly", todo
            )
        return Check("room", "ok", found)

    def _inside(self, name: str, models: list[tuple[ModelFile, ContextOptions]]) -> Iterator[Check]:
        from ..llama.model import Model
        from ..speculative.drafters import check_vocabulary

        for file, options in models:
            try:
                self._loaded.append(Model(file, options))
            except GgufSpecError as error:
                yield Check("loading", "fail", error.message, error.hint)
                return
        yield Check("loading", "ok", f"llama.cpp loads {'both' if len(models) > 1 else 'it'}")
        target, draft = self._loaded[0], self._loaded[1] if len(models) > 1 else None
        if draft:
            try:
                check_vocabulary(target, draft)
                yield Check(
                    "vocabulary",
                    "ok",
                    f"the draft has that of the target, {target.n_vocab:,} tokens",
                )
            except GgufSpecError as error:
                yield Check("vocabulary", "fail", error.message, error.hint)
                return
        fixed = [model.path.name for model in self._loaded if not model.can_roll_back]
        if fixed:
            found = (
                f"{' and '.join(fixed)} cannot remove tokens from the cache (recurrent or hybrid), "
                "which speculation needs"
            )
            yield Check("rollback", "warn", found, "use other models, or plain decoding.")
        else:
            yield Check(
                "rollback",
                "ok",
                f"{'both' if draft else 'it'} can remove tokens from the cache",
            )
        if target.can_roll_back:
            yield self._exact_passes(target, draft)
            yield self._costs(name, target, draft if draft and draft.can_roll_back else None)

    def _exact_passes(self, target: Model, draft: Model | None) -> Check:
        from ..speculative.profile import read_profile

        name, profile = "exact passes", read_profile(target, draft)
        inexact = not profile or profile.exact_width == 1
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

    def _costs(self, name: str, target: Model, draft: Model | None) -> Check:
        from ..speculative.profile import read_profile
        from ..tune import Tuning

        profile = read_profile(target, draft)
        if not profile:
            return Check("costs", "ok", "not measured yet; `gguf-spec tune` measures them")
        self.tuning = Tuning(name, draft.path.name if draft else None, profile)
        return Check(
            "costs",
            "ok",
            f"measured in {profile.seconds:.1f} s; `gguf-spec tune` measures them again",
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
