"""Routes about the models: lists, tokens, properties and what is loaded, partly as llama-server."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import __version__
from ..errors import ClosedError, PromptTooLongError
from ..options import Speculation
from ..protocols.errors import ApiError, as_refusal, in_request, invalid_value
from ..protocols.fit import seen
from ..protocols.llama_server import native_params
from ..protocols.messages import PROMPT, read_request
from ..protocols.openai import read_chat
from ..protocols.request import ReadBody
from ..protocols.schema import COUNT, FLAG, TEXT, array_of, checked, is_count, obj
from ..tools.families import family_of, reads_tools
from .jobs import Done, ErrorEvent, Job
from .model_pool import ModelPool, ServedModel
from .settings import Settings
from .streams import JsonAnswer
from .turns import in_time
from .uploads import BodyReader
from .worker import Worker

if TYPE_CHECKING:
    from ..runtime.llm import LLM

Look = Callable[["LLM"], dict[str, Any]]
# Path of a look at the prompt of a chat -> what reads its body, and whether it shows the text.
_PROMPTS: dict[str, tuple[ReadBody, bool]] = {
    "/v1/messages/count_tokens": (partial(read_request, described=PROMPT), False),
    "/v1/chat/completions/input_tokens": (read_chat, False),
    "/apply-template": (read_chat, True),
}
# `prompt` and `add_special_tokens` are vLLM's names.
TOKENIZE = obj(
    {"content?": TEXT, "prompt?": TEXT, "model?": TEXT.schema, "add_special_tokens?": FLAG}
    | dict.fromkeys(("add_special?", "parse_special?", "with_pieces?"), FLAG),
)
DETOKENIZE = obj(
    {
        "tokens": checked(
            array_of(COUNT),
            lambda value: isinstance(value, list) and all(map(is_count, value)),
            "must be an array of token ids.",
        ),
        "model?": TEXT.schema,
    },
)


class ModelRoutes:
    """Routes that look models up; those that need a loaded model load it."""

    def __init__(
        self, pool: ModelPool, worker: Worker, settings: Settings, bodies: BodyReader, since: int
    ) -> None:
        self._pool, self._worker, self._settings = pool, worker, settings
        self._bodies, self._since = bodies, since
        self._looking = asyncio.Lock()
        self.routes: list[Route] = [
            Route("/v1/models", self._list, methods=["GET"]),
            Route("/v1/models/{name:path}", self._one, methods=["GET"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            Route("/tokenizer_info", self._tokenizer_info, methods=["GET"]),
            Route("/props", self._props, methods=["GET"]),
            Route("/slots", self._slots, methods=["GET"]),
            Route("/api/ps", self._loaded, methods=["GET"]),
            *(
                Route(path, partial(self._prompt, read, shows), methods=["POST"])
                for path, (read, shows) in _PROMPTS.items()
            ),
        ]

    def find(self, name: Any, any_model: bool) -> ServedModel:
        """Return the model that a request names, or the default one: `any_model` for any other."""
        if name is None or name == "":
            return self._pool.default
        TEXT.read(name, "model")
        # Clients of Ollama add a tag to names without one.
        if found := self._pool.find(name) or self._pool.find(name.removesuffix(":latest")):
            return found
        if any_model:
            return self._pool.default
        ids = ", ".join(repr(model.id) for model in self._pool.models[:20])
        raise ApiError(
            f"There is no model {name[:100]!r}: this server has {ids}.",
            "model",
            "model_not_found",
            404,
        )

    async def _list(self, _: Request) -> Response:
        models = [self._about(model) for model in self._pool.models]
        return JSONResponse({"object": "list", "data": models})

    async def _one(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        if not self._pool.find(name):  # it may be an address that was joined wrongly
            name = "/".join(filter(None, name.split("/")))
        return JSONResponse(self._about(self.find(name, False)))

    def _about(self, model: ServedModel) -> dict[str, Any]:
        about = {
            "id": model.id,
            "object": "model",
            "created": self._since,
            "owned_by": "gguf-spec",
            "aliases": sorted(one for one in model.names - {model.id.lower()} if _is_name(one)),
        }
        loaded = self._pool.loaded(model)
        if not loaded:
            return about | {"loaded": False}
        llm = loaded.llm
        try:
            _ = llm.vocabulary
        except ClosedError:  # by the program that serves it
            return about | {"loaded": False}
        return about | {
            "loaded": True,
            # as llama-server, vLLM and OpenRouter name it
            "n_ctx": llm.n_ctx,
            **dict.fromkeys(("max_model_len", "context_length"), self._pool.ctx_max(llm)),
            "meta": llm.file_numbers,
            "capabilities": _capabilities(llm),
            "max_tokens": self._settings.max_tokens,
            "draft": llm.draft_name,
            "speculation": llm.speculation.k > 0,
            "architecture": {
                "input_modalities": ["text", *(["image"] if llm.can_see else [])],
                "output_modalities": ["text"],
            },
            "notes": [text for note in llm.notes if (text := in_request(note))],
        }

    async def _loaded(self, _: Request) -> Response:
        """List the models in memory, with Ollama's field names."""
        models = []
        for model in self._pool.models:
            loaded, left = self._pool.loaded(model), self._pool.seconds_left(model)
            if not loaded:
                continue
            end = None
            if left is not None:
                now = datetime.datetime.now(datetime.timezone.utc)
                end = (now + datetime.timedelta(seconds=min(left, 1e9))).isoformat()
            models.append(
                {
                    "name": model.id,
                    "model": model.id,
                    "size": loaded.llm.memory_bytes,
                    "size_vram": 0,
                    "digest": "",
                    "context_length": loaded.llm.n_ctx,
                    "context_max": self._pool.ctx_max(loaded.llm),
                    "draft": loaded.llm.draft_name,
                    "busy": loaded.is_busy,
                    "seconds_left": left,
                    "expires_at": end,
                }
            )
        return JSONResponse({"models": models})

    async def _tokenize(self, request: Request) -> Response:
        data = await self._bodies.read(request, lambda data: TOKENIZE.read(data, ""))
        content, special = data.get("content"), data.get("parse_special", True)
        start, pieces = data.get("add_special", False), data.get("with_pieces", False)
        is_prompt = content is None and "prompt" in data
        if is_prompt:
            content, start = data["prompt"], data.get("add_special_tokens", True)
        if content is None:
            raise ApiError("content is required.", "content", "missing_required_parameter")

        def look(llm: LLM) -> dict[str, Any]:
            most = max(llm.n_ctx, self._settings.limits.counted)
            try:
                ids = llm.vocabulary.tokenize(content, special=special, start=start, most=most)
            except PromptTooLongError as error:
                fact = f"has about {error.n_prompt:,} tokens; at most {most:,} are returned."
                raise invalid_value("content", fact) from None
            more = (
                {"count": len(ids), "max_model_len": self._pool.ctx_max(llm)} if is_prompt else {}
            )
            return {"tokens": [_with_piece(llm, id_) for id_ in ids] if pieces else ids} | more

        return await self.look(data.get("model"), look)

    async def _detokenize(self, request: Request) -> Response:
        data = await self._bodies.read(request, lambda data: DETOKENIZE.read(data, ""))
        tokens = data["tokens"]

        def look(llm: LLM) -> dict[str, Any]:
            n_vocab = llm.vocabulary.n_vocab
            if not all(0 <= token < n_vocab for token in tokens):
                raise invalid_value("tokens", f"must be ids from 0 to {n_vocab - 1}.")
            data = b"".join(piece_of(llm, token) for token in tokens)
            return dict.fromkeys(("content", "prompt"), data.decode("utf-8", errors="replace"))

        return await self.look(data.get("model"), look)

    async def _prompt(self, read: ReadBody, shows: bool, request: Request) -> Response:
        """Answer with the number of tokens of a chat, or with its prompt (`shows`)."""
        model, parsed = await self._bodies.read(
            request, lambda data: (data.get("model"), read(data, Speculation(), None))
        )

        def look(llm: LLM) -> dict[str, Any]:
            assert parsed.messages is not None
            options = parsed.reasoning.options(llm, parsed.tools)
            most = max(llm.n_ctx, self._settings.limits.counted)
            try:
                messages = seen(parsed.messages, llm)
                ids = llm.tokenize(messages, most=most, prefill=parsed.prefill, **options)
                if not shows:
                    return {"input_tokens": len(ids)}
                starts = ids[:1] == [llm.vocabulary.special_tokens["bos"]]  # each prompt gets it
                text = b"".join(piece_of(llm, one) for one in ids[starts:])
                return {"prompt": text.decode("utf-8", "replace")}
            except ClosedError:
                raise
            except Exception as error:
                raise as_refusal(error, parsed.names) from None

        return await self.look(model, look)

    async def _tokenizer_info(self, request: Request) -> Response:
        """Answer with what evaluators read of a tokenizer, with vLLM's field names."""

        def look(llm: LLM) -> dict[str, Any]:
            most = self._pool.ctx_max(llm)
            about = {"chat_template": llm.chat_template, "model_max_length": most}
            return {name: text or None for name, text in _special_texts(llm).items()} | about

        return await self.look(request.query_params.get("model"), look)

    async def _props(self, request: Request) -> Response:
        return await self.look(request.query_params.get("model"), self._properties)

    def _properties(self, llm: LLM) -> dict[str, Any]:
        params = native_params(llm.sampling) | {"speculative.n_max": llm.speculation.k}
        if "max_tokens" not in llm.sampling_sources:
            most = self._settings.max_tokens or -1
            params |= {"max_tokens": most, "n_predict": most}
        return {
            "default_generation_settings": {"id": 0, "n_ctx": llm.n_ctx, "params": params},
            "sampling_sources": llm.sampling_sources,
            "total_slots": llm.parallel,
            "model_alias": llm.name,
            "model_path": llm.path.name,
            "modalities": {"vision": llm.can_see, "audio": False},
            "chat_template": llm.chat_template or "",
            "chat_template_caps": template_caps(llm),
            **_special_texts(llm),
            "build_info": f"gguf-spec {__version__}",
        }

    async def _slots(self, request: Request) -> Response:
        """List the slots of the models in memory, with llama-server's field names."""
        name = request.query_params.get("model")
        of = [self.find(name, self._settings.takes_any_model)] if name else self._pool.models
        slots = [slot for model in of for slot in self._slots_of(model)]
        if request.query_params.get("fail_on_no_slot") not in (None, "", "0") and all(
            slot["is_processing"] for slot in slots
        ):
            raise ApiError("No slot is free.", None, "no_slot_available", 503)
        return JSONResponse(slots)

    def _slots_of(self, model: ServedModel) -> list[dict[str, Any]]:
        """Return the slots of a model, each with the kept prefixes of the model."""
        loaded = self._pool.loaded(model)
        if not loaded:
            return []
        llm = loaded.llm
        try:
            slots, memory = llm.slots(), llm.prefix_memory
        except ClosedError:  # it was unloaded in between
            return []
        kept = {
            "entries": memory.n_entries,
            "bytes": memory.n_bytes,
            "limit_bytes": memory.limit_bytes,
            "tokens_reused": memory.n_tokens_restored,
        }
        return [
            {
                "id": slot.index,
                "id_task": -1 if slot.request is None else slot.request,
                "is_processing": slot.request is not None,
                "n_ctx": slot.n_ctx,
                "n_past": slot.n_cached,
                "speculative": llm.speculation.k > 0,
                "model": model.id,
                "kept_prefixes": kept,
            }
            for slot in slots
        ]

    async def look(self, name: Any, look: Look) -> Response:
        """Answer with what `look` returns for a model; it must not use the context of the model.

        A model in memory answers at once, even during a generation. One call runs at a time: a
        text may be long. The time limit includes the wait for others.
        """
        model = self.find(name, self._settings.takes_any_model)

        def answer(llm: LLM) -> Response:
            return JsonAnswer(look(llm))  # in the thread, because it may be long

        async def in_turn(llm: LLM) -> Response:
            async with self._looking:
                return await asyncio.to_thread(answer, llm)

        if loaded := self._pool.loaded(model):
            try:
                return await in_time(in_turn(loaded.llm), self._settings.limit_s)
            except ClosedError:
                pass  # it was unloaded in between
        job = Job(model, answer)
        self._worker.submit(job)
        try:
            event = await in_time(job.events.get(), self._settings.limit_s)
        finally:
            self._worker.cancel(job, "client_closed")  # no effect if it is done
        if isinstance(event, ErrorEvent):
            raise event.refusal
        assert isinstance(event, Done)
        response: Response = event.value
        return response


def _special_texts(llm: LLM) -> dict[str, str]:
    """Return the texts of the tokens at the start and at the end of a text; empty without them."""
    ids = llm.vocabulary.special_tokens
    return {
        f"{name}_token": llm.token_text(ids[name]) if ids[name] >= 0 else ""
        for name in ("bos", "eos")
    }


def _is_name(name: str) -> bool:
    """Return whether a name of a model is no path of this machine."""
    is_file = name.endswith(".gguf") and not name.startswith("hf:")
    return not ("\\" in name or ("/" in name and is_file))


def _capabilities(llm: LLM) -> list[str]:
    """Return what a model does, with llama-server's and Ollama's words."""
    found = {"multimodal": llm.can_see, "tools": llm.has_chat_template, "thinking": llm.can_think}
    does = ["completion", *(name for name, is_there in found.items() if is_there)]
    return does if llm.generates else ["embedding"]


def template_caps(llm: LLM) -> dict[str, bool]:
    """Return what chats may have, with llama-server's names; empty without a chat template."""
    template = llm.chat_template or ""
    has_tools = reads_tools(template)
    if not template:
        return {}
    return {
        "supports_string_content": True,
        "supports_typed_content": llm.can_see,
        "supports_tools": has_tools,
        "supports_tool_calls": has_tools,
        "supports_parallel_tool_calls": has_tools and family_of(template).is_parallel,
        "supports_reasoning_effort": "reasoning_effort" in llm.template_variables,
    }


def piece_of(llm: LLM, token: int) -> bytes:
    """Return the bytes of a token, and the text of a special token."""
    return llm.token_bytes(token) or llm.token_text(token).encode()


def _with_piece(llm: LLM, token: int) -> dict[str, Any]:
    """Return a token with its text, or with its bytes if they are a part of a character."""
    data = piece_of(llm, token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
