"""The choices of a request: one generation each, with its prompt, seed and grammar."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import Option, OptionConflictError
from ..grammar.json_schema import to_gbnf
from ..options import Sampling, Speculation
from ..sampling.chain import WholeGrammarSampling
from ..tools.families import HARMONY, family_of
from ..tools.grammar import ToolSchemaError, tool_grammar
from ..tools.use import ToolUse
from .errors import ApiError, bad
from .requests import CompletionRequest, ReasoningFields, seed_of
from .truncation import newest_that_fit

if TYPE_CHECKING:
    from ..results import OnProgress
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
    tools: Sequence[Mapping[str, Any]] | None
    reasoning: ReasoningFields

    def open(self, llm: LLM, on_prompt: OnProgress | None = None) -> Stream:
        """Start the generation.

        Args:
            llm: The model.
            on_prompt: Called after each pass that reads the prompt.
        """
        return llm.stream(
            self.prompt,
            self.sampling,
            speculation=self.speculation,
            echo=self.echo,
            tools=self.tools,
            on_prompt=on_prompt,
            **self._reasoning_options(llm),
        )

    def _reasoning_options(self, llm: LLM) -> dict[str, Any]:
        options = self.reasoning.options(llm)
        if isinstance(self.sampling, WholeGrammarSampling) and not _thinks(options):
            # The grammar allows no reasoning, and an answer that has begun could not call.
            options["think"] = None
            (options["chat_template_kwargs"] or {}).pop("enable_thinking", None)
        return options


def _thinks(options: Mapping[str, Any]) -> bool:
    values = options["chat_template_kwargs"] or {}
    return options["think"] is not False and values.get("enable_thinking") is not False


def requests_of(asked: CompletionRequest, llm: LLM) -> Iterator[ChoiceRequest]:
    """Yield the generations of a request: all choices of the first prompt, then of the next.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        NoInfillError: The model cannot fill in the middle.
    """
    asked = with_grammar(asked, llm)
    sampling, tools = asked.sampling, asked.tools.tools or None
    if asked.reasoning.budget is not None and llm.can_think:
        sampling = replace(sampling, think_budget=asked.reasoning.budget)
    if asked.drops_oldest:
        options = asked.reasoning.options(llm) | {"tools": tools}
        fitting = newest_that_fit(llm, asked.prompts[0], sampling.max_tokens, **options)
        asked = replace(asked, prompts=(fitting,))
    if sampling.seed is None and asked.n_choices > 1:
        sampling = replace(sampling, seed=secrets.randbits(32))
    for index in range(asked.n_choices):
        prompt, i = asked.prompts[index // asked.n], index % asked.n
        if asked.suffix is not None:
            prompt = llm.tokenize_infill(prompt, asked.suffix)
        if sampling.seed is not None:
            chosen = replace(sampling, seed=seed_of(sampling.seed, i))
        else:
            chosen = sampling
        yield ChoiceRequest(
            index, prompt, chosen, asked.speculation, asked.echo, tools, asked.reasoning
        )


def with_grammar(asked: CompletionRequest, llm: LLM) -> CompletionRequest:
    """Return a request with the grammar that its schemas demand.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        InvalidOptionError: The schema of the answer cannot be converted.
    """
    if not asked.needs_grammar:
        return asked
    return replace(asked, sampling=_grammar_sampling(asked, llm))


def _grammar_sampling(asked: CompletionRequest, llm: LLM) -> Sampling:
    """Return the sampling options with the grammar of the tools and of the answer."""
    sampling, use = asked.sampling, asked.tools
    if not use.tools:
        schema = sampling.json_schema
        assert schema is not None
        return replace(sampling, grammar=to_gbnf(schema), json_schema=None)
    family = family_of(llm.chat_template or "")
    try:
        thinks = _thinks(asked.reasoning.options(llm))
        token = partial(_control_token, llm)
        gbnf = tool_grammar(use, family, token, sampling.json_schema, thinks)
    except ToolSchemaError as error:
        raise _schema_error(error, use) from None
    if family.name != HARMONY or not llm.can_think:
        return replace(sampling, grammar=gbnf, json_schema=None)
    if sampling.think_budget is not None:
        raise OptionConflictError(Option("think_budget"), Option("tools"))
    fields = {one.name: getattr(sampling, one.name) for one in dataclass_fields(sampling)}
    return WholeGrammarSampling(**(fields | {"grammar": gbnf, "json_schema": None}))


def _schema_error(error: ToolSchemaError, use: ToolUse) -> ApiError:
    if error.tool is None:
        return bad("response_format", f"cannot be used: {error.reason}")
    names = [tool["function"]["name"] for tool in use.tools]
    param = f"tools[{names.index(error.tool)}].function.parameters"
    strict = " with strict" if error.tool in use.strict else ""
    return bad(param, f"cannot be used{strict}: {error.reason}")


def _control_token(llm: LLM, text: str) -> int | None:
    """Return the id of a control token, whose text does not appear in answers, or None."""
    ids = llm.vocabulary.tokenize(text, special=True, start=False)
    return ids[0] if len(ids) == 1 and not llm.token_bytes(ids[0]) else None
