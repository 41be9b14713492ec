"""The loaded models of a chat; others can take their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import NotEnoughMemoryError
from ..options import load_models, to_sampling

if TYPE_CHECKING:
    from ... import LLM, Sampling, Speculation


class ChatModels:
    """A target and its draft.

    Attributes:
        llm: The loaded models.
        sampling: Sampling options for the target: those of the command, and where it has none those
            of models.yaml.
    """

    def __init__(self, options: dict[str, Any], speculation: Speculation) -> None:
        """Load the models of the options."""
        self._options, self._speculation = options, speculation
        self.sampling: Sampling = to_sampling(options)
        self.llm: LLM = self._load(options)

    def _load(self, options: dict[str, Any], cancelled: Callable[[], bool] | None = None) -> LLM:
        draft = options["draft"] if self._speculation.k else "none"
        return load_models(options, draft, self._speculation, cancelled)

    def switch(self, name: str, cancelled: Callable[[], bool]) -> None:
        """Load another target, and close the old one.

        A draft model of the old target is not kept: its place takes the best one for the new
        target. If both targets do not fit into memory, the old one is closed first.

        Args:
            name: The target.
            cancelled: Returns whether the loading is to end, which keeps the old target.

        Raises:
            GgufSpecError: The model cannot be loaded. The old one is still there.
        """
        from ...models import path

        path(name, self._options["models_file"])  # raises before anything is loaded
        own = {"model": name, "mmproj": None, "lora": (), "draft_lora": ()}
        old, options = self.llm, self._options | own
        if options["draft"] not in ("auto", "mtp", "ngram", "none"):
            options["draft"] = "auto"
        sampling = to_sampling(options)
        try:
            self.llm = self._load(options, cancelled)
        except NotEnoughMemoryError:
            old.close()
            try:
                self.llm = self._load(options, cancelled)
            except BaseException:
                self.llm = self._load(self._options)
                raise
        old.close()
        self._options, self.sampling = options, sampling

    def __enter__(self) -> ChatModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()
