"""The request of `gguf-spec edit` to the model, and the new text in its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import ContextTooShortError, GgufSpecError

if TYPE_CHECKING:
    from .. import LLM, Completion, Sampling

# The text comes first: small models follow an instruction better that stands next to their answer.
_ASK = "{old}\n\nTask: {instruction}. Write the whole text again with this change."
_FENCED = re.compile(r"(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\1\s*", re.DOTALL)
_SPARE = 64  # tokens of the context beyond the expected length of the new text


class EditPrompt:
    """The request for a new version of a text.

    The text is put between two lines of backquotes. The answer is made to begin with such a line,
    so that the text follows at once, and ends at the next one.

    Attributes:
        request: The messages, or the text for a model without a chat template.
        prefill: Beginning of the answer.
        n_text: Number of tokens of the old text.
    """

    def __init__(self, llm: LLM, text: str, instruction: str, name: str) -> None:
        """Make the request.

        Args:
            llm: The model.
            text: The old text.
            instruction: What to change.
            name: Name of the file.

        Raises:
            ContextTooShortError: The old and the new text do not fit into the context.
        """
        longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
        self._fence, self._old = "`" * max(3, longest + 1), text
        body = text.removesuffix("\n")
        old = f"{self._fence}\n{body}\n{self._fence}"
        asked = _ASK.format(instruction=instruction.strip().rstrip("."), old=old)
        self.prefill = f"{self._fence}\n"
        self.request: str | Sequence[dict[str, str]] = [{"role": "user", "content": asked}]
        if not llm.has_chat_template:
            self.request, self.prefill = f"{asked}\n\nThe new text:\n\n{self._fence}\n", ""
        self.n_text = len(llm.tokenize(text, special=False))
        n_prompt = len(llm.tokenize(self.request, prefill=self.prefill))
        needed = n_prompt + self.n_text + self.n_text // 4 + _SPARE
        if needed > llm.n_ctx:
            raise ContextTooShortError(
                f"editing {name}, which has {self.n_text:,} tokens,",
                llm.n_ctx,
                needed,
                "split the file",
                about=True,
            )
        self._n_room = llm.n_ctx - n_prompt

    def limited(self, sampling: Sampling, max_tokens: int | None) -> Sampling:
        """Return sampling options that end with the new text."""
        most = max_tokens or 2 * self.n_text + 4 * _SPARE
        return replace(sampling, max_tokens=min(most, self._n_room), stop=[f"\n{self._fence}"])

    def text_of(self, result: Completion) -> str:
        """Return the new text of an answer.

        Raises:
            GgufSpecError: The answer was cut, or is empty.
        """
        if result.finish_reason == "length":
            raise GgufSpecError(
                f"the new text was not complete after {len(result.tokens):,} tokens; "
                "nothing was written.",
                "the model may repeat itself: use a larger model, a clearer instruction, or a "
                "larger --max-tokens and --ctx.",
            )
        text = result.text
        fenced = _FENCED.fullmatch(text.strip())
        if fenced and not _FENCED.fullmatch(self._old.strip()):
            text = fenced[2]
        if not text.strip():
            raise GgufSpecError(
                "the model wrote no text; nothing was written.",
                "use a larger model or a clearer instruction.",
            )
        ending = "\n" if self._old.endswith("\n") else ""
        return text.removesuffix("\n") + ending
