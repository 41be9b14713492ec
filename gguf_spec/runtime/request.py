"""Requests: build them from the arguments of a call, and check them before any pass runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard, cast

from ..errors import EmptyPromptError, InvalidOptionError, PromptTooLongError
from ..llama.model import Model
from ..options import Sampling, Speculation
from ..results import OnProgress
from ..text.chat_template import Message, Tools, encode_chat
from ..text.reasoning import ReasoningFormat, reasoning_format
from ..text.template_values import PromptOptions, check_text, no_reasoning, read_options
from ..text.tool_history import call_tokens
from .images import GivenImage, check_ids, encode_with_images, with_images

Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True)
class Request:
    """Input of a stream.

    Attributes:
        prompt: Token ids.
        sampling: Sampling options.
        speculation: Draft options.
        on_token: Called with each emitted id; a true result ends the generation there.
        prefill: Text at the end of the prompt that belongs to the answer; a grammar starts there.
        echo: Text at the start of the first chunk.
        on_prompt: Called after each prefill pass. The last prompt token is not counted, because it
            is decoded with the answer.
        reasoning: Reasoning parts that are separated from the text; None for none.
        shown: Special tokens of tool calls that are written by their names in the text.
    """

    prompt: Sequence[int]
    sampling: Sampling
    speculation: Speculation
    on_token: Callable[[int], object] | None = None
    prefill: str = ""
    echo: str = ""
    on_prompt: OnProgress | None = None
    reasoning: ReasoningFormat | None = None
    shown: Mapping[int, str] = field(default_factory=dict)


def build_request(
    target: Model,
    sampling: Sampling,
    speculation: Speculation,
    *,
    prompt: Prompt,
    images: Sequence[GivenImage],
    prefill: str,
    echo: bool,
    tools: Tools | None,
    stop_tokens: Iterable[int],
    on_token: Callable[[int], object] | None,
    on_prompt: OnProgress | None,
    think: bool | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    reasoning: bool | None,
) -> Request:
    """Return the request of the arguments of `LLM.generate`, which describes them.

    Raises:
        InvalidOptionError: The options contradict each other, the prompt, or the model.
        TemplateError: The prompt is messages, and the model's chat template rejects them.
    """
    options = read_options(prefill, tools, think, chat_template_kwargs)
    is_chat = _is_text(prompt) and not isinstance(prompt, str)
    tokens = _encode_any(target, prompt, options, images)
    if more := tuple(stop_tokens):
        sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *more))
    separated = reasoning_format(target) if is_chat or reasoning else None
    if sampling.think_budget is not None and separated is None:
        raise no_reasoning(
            target, "think_budget", sampling.think_budget, is_chat or bool(reasoning)
        )
    shown = (prompt if isinstance(prompt, str) else "") + prefill
    return Request(
        tokens,
        sampling,
        speculation,
        on_token,
        prefill,
        shown if echo else "",
        on_prompt,
        separated if reasoning is not False else None,
        call_tokens(target) if options.tools else {},
    )


def encode(
    target: Model,
    prompt: str | Sequence[Message],
    options: PromptOptions,
    *,
    special: bool = True,
    images: Sequence[GivenImage] = (),
) -> list[int]:
    """Return the token ids of a text or messages; none for an empty prompt.

    Args:
        target: The model.
        prompt: A text, or messages for its chat template.
        options: Prefill, and for messages tools and variables of the template.
        special: Parse strings such as `<|im_end|>` in a text as special tokens.
        images: Images besides those of the messages.
    """
    encode_plain = partial(_encode_plain, options=options, special=special)
    return encode_with_images(target, prompt, images, encode_plain)


def _encode_plain(
    target: Model, prompt: str | Sequence[Message], options: PromptOptions, special: bool
) -> list[int]:
    if isinstance(prompt, str):
        check_text(options)
        text = prompt + options.prefill
        return target.tokenize(text, special=special) if text else []
    return encode_chat(target, prompt, options) if prompt else []


def _encode_any(
    target: Model, prompt: Prompt, options: PromptOptions, images: Sequence[GivenImage]
) -> list[int]:
    if _is_text(prompt):
        return encode(target, prompt, options, images=images)
    check_text(options)
    if images:
        raise InvalidOptionError("images", len(images), "given with a text or with messages")
    return with_images(cast("Sequence[int]", prompt), target)


def _is_text(prompt: Prompt) -> TypeGuard[str | Sequence[Message]]:
    """Return whether a prompt is a text or messages; an empty sequence is token ids."""
    return isinstance(prompt, str) or any(isinstance(one, (Mapping, str)) for one in prompt[:1])


def check_request(request: Request, target: Model) -> None:
    """Reject a request that cannot run, before any pass runs.

    Raises:
        EmptyPromptError, PromptTooLongError, InvalidOptionError: With the actual values.
    """
    if not request.prompt:
        raise EmptyPromptError
    if len(request.prompt) >= target.n_ctx:
        raise PromptTooLongError(len(request.prompt), target.n_ctx)
    sampling = request.sampling
    for option, tokens in (
        ("prompt", check_ids(request.prompt)),
        ("stop_tokens", sampling.stop_tokens),
        ("logit_bias", sampling.logit_bias),
    ):
        for token in tokens:
            if not (isinstance(token, int) and 0 <= token < target.n_vocab):
                raise InvalidOptionError(option, token, f"an id from 0 to {target.n_vocab - 1}")
