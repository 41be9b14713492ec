"""The choices of a request: one generation each, with its prompt, seed and grammar."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..options import Sampling, Speculation
from .reasoning import ReasoningFields
from .requests import CompletionRequest, seed_of
from .tool_calls import form_of
from .tool_grammar import tool_grammar

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream


@dataclass(frozen=True)
class ChoiceRequest:
    """One generation of a request.

    Attributes:
        index: Index of the choice.
        prompt: A text, token ids, or messages.
        sampling: Sampling options with the seed of the choice.
        speculation: Draft options; None for the defaults of the model.
        echo: Whether the answer begins with the prompt.
        tools: Tools for the chat template, or None.
        reasoning: Fields about reasoning.
    """

    index: int
    prompt: Any
    sampling: Sampling
    speculation: Speculation | None
    echo: bool
    tools: list[dict[str, Any]] | None
    reasoning: ReasoningFields

    def open(self, llm: LLM) -> Stream:
        """Start the generation."""
        return llm.stream(
            self.prompt,
            self.sampling,
            speculation=self.speculation,
            echo=self.echo,
            tools=self.tools,
            **self.reasoning.options(llm),
        )


def requests_of(asked: CompletionRequest, llm: LLM) -> Iterator[ChoiceRequest]:
    """Yield the generations of a request: all choices of the first prompt, then of the next.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        NoInfillError: The model cannot fill in the middle.
    """
    sampling = _with_grammar(asked, llm)
    n_choices = asked.n * len(asked.prompts)
    if sampling.seed is None and n_choices > 1:
        sampling = replace(sampling, seed=secrets.randbits(32))
    for index in range(n_choices):
        prompt, i = asked.prompts[index // asked.n], index % asked.n
        if asked.suffix is not None:
            prompt = llm.tokenize_infill(prompt, asked.suffix)
        if sampling.seed is not None:
            chosen = replace(sampling, seed=seed_of(sampling.seed, i))
        else:
            chosen = sampling
        tools = asked.tools.tools or None
        yield ChoiceRequest(
            index, prompt, chosen, asked.speculation, asked.echo, tools, asked.reasoning
        )


def _with_grammar(asked: CompletionRequest, llm: LLM) -> Sampling:
    """Return the sampling options, with a grammar if the tools demand one."""
    sampling, use = asked.sampling, asked.tools
    if not use.tools or not (use.has_grammar or sampling.json_schema is not None):
        return sampling
    template = llm.chat_template or ""
    gbnf = tool_grammar(
        use, form_of(template), template, partial(_control_token, llm), sampling.json_schema
    )
    return replace(sampling, grammar=gbnf, json_schema=None)


def _control_token(llm: LLM, text: str) -> int | None:
    """Return the id of a control token, whose text does not appear in answers, or None."""
    ids = llm.vocabulary.tokenize(text, special=True, start=False)
    return ids[0] if len(ids) == 1 and not llm.token_bytes(ids[0]) else None
