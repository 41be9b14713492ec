"""Response objects in OpenAI's format for chats and text completions, complete or streamed."""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Iterable
from typing import Any

from ..results import Completion, FinishReason, Stats
from .errors import ending, gone
from .reasoning import REASONING
from .requests import CompletionRequest
from .tool_calls import ToolReader
from .worker import ChunkEvent, Finished, TokenInfo, Why


class ResponseBuilder:
    """Converts the events of one job to response objects."""

    def __init__(self, asked: CompletionRequest, model: str, tools: ToolReader | None) -> None:
        self._asked, self._tools = asked, tools
        kind = "chat.completion" if asked.is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if asked.is_chat and asked.stream else kind,
            "created": int(time.time()),
            "model": model,
        }
        self._offsets = _Offsets()

    # ---- complete responses

    def whole(self, said: Iterable[ChunkEvent], ended: Finished) -> dict[str, Any]:
        """Return the complete response.

        Args:
            said: All chunk events of the answer.
            ended: The final event of the answer.

        Raises:
            ApiError: The server shut down before the answer was complete, or the client
                disconnected.
        """
        finish = _finish(ended.result.finish_reason, ended.why)
        text, named = ended.result.text, [one for piece in said for one in piece.logprobs]
        choice: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(named)}
        if self._asked.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if ended.result.reasoning:
                message[REASONING] = ended.result.reasoning
            if self._tools:
                text = self._tools.push(text) + self._tools.finish()
                message["content"] = text
                if self._tools.calls:
                    message |= {"content": text or None, "tool_calls": self._tools.calls}
                    finish = "tool_calls"
            choice["message"] = message
        else:
            choice["text"] = text
        choice["finish_reason"] = finish
        return self._head | {
            "choices": [choice],
            "usage": usage(ended.result),
            "seed": ended.result.seed,
        }

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return the chunks that are sent before the first text: the role, for a chat."""
        return [self._piece({"role": "assistant", "content": ""})] if self._asked.is_chat else []

    def said(self, said: ChunkEvent) -> list[dict[str, Any]]:
        """Return the response chunks for one chunk event; may be empty."""
        chunk = said.chunk
        text = self._tools.push(chunk.text) if self._tools else chunk.text
        # The reasoning of a chunk is sent before its answer, in a response chunk of its own.
        thought = [self._piece({REASONING: chunk.reasoning})] if chunk.reasoning else []
        if not (text or said.logprobs or self._asked.shows_drafts):
            return thought
        piece = self._piece(text, logprobs=self._logprobs(said.logprobs))
        if self._asked.shows_drafts:
            parts = (
                [[part, accepted] for part, accepted in chunk.accepted_text]
                if not self._tools
                else [[text, False]]
            )
            piece["speculation"] = {
                "drafted": chunk.n_drafted,
                "accepted": chunk.n_accepted,
                "tokens": len(chunk.tokens),
                "text": parts,
            }
        return [*thought, piece]

    def ended(self, ended: Finished) -> list[dict[str, Any]]:
        """Return the last chunks: remaining text, tool calls, finish reason and usage.

        Raises:
            ApiError: The server shut down before the answer was complete, or the client
                disconnected.
        """
        pieces, finish = [], _finish(ended.result.finish_reason, ended.why)
        if self._tools:
            if rest := self._tools.finish():
                pieces.append(self._piece(rest))
            if self._tools.calls:
                finish = "tool_calls"
                pieces.append(
                    self._piece(
                        {
                            "tool_calls": [
                                {"index": i} | call for i, call in enumerate(self._tools.calls)
                            ]
                        }
                    )
                )
        pieces.append(
            self._piece({} if self._asked.is_chat else "", finish) | {"seed": ended.result.seed}
        )
        if self._asked.usage:
            pieces.append(self._head | {"choices": [], "usage": usage(ended.result)})
        return pieces

    def _piece(
        self,
        said: str | dict[str, Any],
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": logprobs, "finish_reason": finish}
        if self._asked.is_chat:
            choice["delta"] = {"content": said} if isinstance(said, str) else said
        else:
            choice["text"] = said
        return self._head | {"choices": [choice]} | ({"usage": None} if self._asked.usage else {})

    def _logprobs(self, named: Iterable[TokenInfo]) -> dict[str, Any] | None:
        if self._asked.sampling.logprobs is None:
            return None
        if self._asked.is_chat:
            return {
                "content": [
                    _shown(one) | {"top_logprobs": [_shown(other) for other in one.top]}
                    for one in named
                ],
                "refusal": None,
            }
        named = list(named)
        tops = [{other.text: other.logprob for other in reversed((*one.top, one))} for one in named]
        return {
            "tokens": [one.text for one in named],
            "token_logprobs": [one.logprob for one in named],
            "top_logprobs": tops if self._asked.sampling.logprobs else None,
            "text_offset": [self._offsets.of(one.piece) for one in named],
        }


class _Offsets:
    """Character offsets of tokens in the answer, from their bytes."""

    def __init__(self) -> None:
        self._decoder, self._n = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0

    def of(self, piece: bytes) -> int:
        before = self._n
        self._n += len(self._decoder.decode(piece))
        return before


def _shown(one: TokenInfo) -> dict[str, Any]:
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.piece)}


def _finish(reason: FinishReason, why: Why | None) -> str:
    """Return OpenAI's finish reason of an answer; a timeout is reported as `length`.

    Raises:
        ApiError: The server shut down before the answer was complete, or the client disconnected.
    """
    if reason != "cancelled":
        return reason
    if why == "timeout":
        return "length"
    raise gone() if why == "gone" else ending()


def usage(result: Completion) -> dict[str, Any]:
    """Return the usage object: token counts, and statistics of the speculation."""
    s: Stats = result.stats
    return {
        "prompt_tokens": s.n_prompt,
        "completion_tokens": s.n_generated,
        "total_tokens": s.n_prompt + s.n_generated,
        "completion_tokens_details": {
            "reasoning_tokens": s.n_reasoning,
            "accepted_prediction_tokens": s.n_accepted,
            "rejected_prediction_tokens": s.n_drafted - s.n_accepted,
        },
        "speculation": {
            "drafted": s.n_drafted,
            "accepted": s.n_accepted,
            "acceptance": round(s.acceptance, 4),
            "rounds": s.rounds,
            "tokens_per_round": round(s.tokens_per_round, 4),
            "tokens_per_s": round(s.tokens_per_s, 2),
            "speedup": round(s.speedup, 4),
            "predicted_speedup": round(s.predicted_speedup, 4),
            "near_ties": s.n_near_ties,
            "why_none": s.why_none,
            "drafters": {
                name: {"drafted": drafted, "accepted": accepted}
                for name, (drafted, accepted) in s.drafters.items()
            },
            "prompt_s": s.prompt_s,
            "draft_s": s.draft_s,
            "verify_s": s.verify_s,
            "other_s": s.other_s,
            "ttft_s": s.ttft_s,
        },
    }
