"""OpenAPI description of the server: its routes and answers. The bodies describe themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import __version__
from ..protocols import edit, embeddings, llama_server, messages, ollama, responses
from ..protocols.bodies import Body, model_of
from ..protocols.openai import CHAT, TEXT_BODY
from ..protocols.schema import COUNT, FLAG, NUMBER, TEXT, Shape, array_of, object_of
from . import model_routes

_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"
_PROBLEMS = {
    "400": "A field is wrong, unknown or not supported.",
    "401": "The API key is missing or wrong.",
    "403": "This host or origin may not ask.",
    "404": "There is no such model, or no such path.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The queue is full.",
    "503": "The server is shutting down, or a model does not fit into the memory.",
}


def _all(*names: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with some fields and others; `names` are those of texts."""
    return object_of(dict.fromkeys(names, TEXT) | fields, more=True)


def _only(*names: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with some fields and no others."""
    return object_of(dict.fromkeys(names, TEXT) | fields)


def _counts(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, COUNT)


# ---- answers

_TEXT_OR_NULL = {"type": ["string", "null"]}


def _completion(kind: str, text: str) -> dict[str, Any]:
    counts = _counts("prompt_tokens", "completion_tokens", "total_tokens")
    cached = {"prompt_tokens_details?": _only(cached_tokens=COUNT)}
    usage = _all(**counts, **cached, speculation=object_of({}, more=True))
    finish: dict[str, Any] = {"enum": ["stop", "length", "tool_calls"]}
    choice = _all(index=COUNT, finish_reason=finish, **{text: {}})
    head: dict[str, Any] = {"object": kind, "created": COUNT, "choices": array_of(choice)}
    return _all("id", "model", usage=usage, **head)


def _list(name: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = _only(**_counts("prompt_tokens", "total_tokens"))
    fields: dict[str, Any] = {"object": "list", name: array_of(item)}
    return _only("model", usage=usage, **fields, **more)


def _of_ollama(**answer: Any) -> dict[str, Any]:
    times = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    head: dict[str, Any] = {"done": {"const": True}, "logprobs?": array_of({}), **answer}
    head["done_reason?"] = {"enum": ["stop", "length", "load", "unload"]}
    optional = (f"{name}?" for name in (*times, "prompt_eval_count", "eval_count"))
    return _all("model", "created_at", **head, **_counts(*optional))


_VECTOR = {"anyOf": [array_of(NUMBER), TEXT.schema]}
_EMBEDDINGS = _list("data", _only(object="embedding", index=COUNT, embedding=_VECTOR))
_EMBEDDED = _all("model", embeddings=array_of(array_of(NUMBER)), prompt_eval_count=COUNT)
_RANK = object_of({"index": COUNT, "relevance_score": NUMBER, "document?": _only("text")})
_SCORED = {"index": COUNT, "tokens": array_of(COUNT, least=1), "logprobs": array_of(NUMBER)}
_SCORED = _only("text", logprob=NUMBER, probability=NUMBER, **_SCORED)
_CHAT_ANSWER = _completion("chat.completion", "message")
_TEXT_ANSWER = _completion("text_completion", "text")
_FILLED = object_of(  # `response_fields` chooses
    {
        **{"content?": TEXT, "model?": TEXT, "stop?": {"const": True}},
        "stop_type?": {"enum": ["eos", "limit", "word"]},
        **_counts("tokens_predicted?", "tokens_evaluated?", "tokens_cached?"),
    },
    more=True,
)
_ALL_FILLED = {"anyOf": [_FILLED, array_of(_FILLED)]}  # `n_cmpl` makes an array
_CHAT_OF_OLLAMA = _of_ollama(message=_all("role", "content"))
_ONE_EMBEDDED, _SHOWN = _only(embedding=array_of(NUMBER)), _all(details={}, model_info={})
_ITEM = object_of({"type": TEXT, "id": TEXT, "status?": TEXT}, more=True)
_RESPONSE = _all(
    "id",
    "model",
    object="response",
    created_at=COUNT,
    status={"enum": ["completed", "incomplete"]},
    output=array_of(_ITEM, least=1),
    usage=_all(
        input_tokens_details=_all(cached_tokens=COUNT),
        **_counts("input_tokens", "output_tokens", "total_tokens"),
    ),
)
# what `optional` answers where there is none
_RESPONSE_OR_NONE = {"anyOf": [_RESPONSE, _only("id", object="response", status="gone")]}
_MESSAGE = _all(
    "id",
    "model",
    type="message",
    role="assistant",
    content=array_of(_all("type")),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    stop_sequence=_TEXT_OR_NULL,
    usage=_all(**_counts("input_tokens", "cache_read_input_tokens", "output_tokens")),
)
_MODEL = _all("id", "owned_by", object="model", created=COUNT)
_MODELS, _NAMES = _only(object="list", data=array_of(_MODEL)), _only(models=array_of({}))
_ITEMS, _DELETED = _all(object="list", data=array_of({})), _only("id", "object", deleted=FLAG)
_PIECE = _only(id=COUNT, piece={"anyOf": [TEXT.schema, array_of(COUNT)]})
_TOKENS = _only(
    **_counts("count?", "max_model_len?"), tokens={"anyOf": [array_of(COUNT), array_of(_PIECE)]}
)
_SLOT = _only(
    "model",
    id_task={"type": "integer"},
    is_processing=FLAG,
    speculative=FLAG,
    kept_prefixes=_only(**_counts("entries", "bytes", "limit_bytes", "tokens_reused")),
    **_counts("id", "n_ctx", "n_past"),
)

# ---- routes

_CHAT, _MESSAGES = "Answer messages.", "Answer messages, in the format of Anthropic."
_RESPONSES = "Answer items, and store the response."
_NATIVE = "Go on from a text, as llama-server."
_COUNT = "The number of tokens of such a prompt."
_VECTORS, _ONE_VECTOR = "The embeddings of texts.", "The embedding of a text, not normalised."
_RANKS = {"anyOf": [_list("results", _RANK), array_of(_only("text?", index=COUNT, score=NUMBER))]}
_RERANK = ("The relevance of documents for a query.", embeddings.RERANK, _RANKS)
_ROWS = _only(index=COUNT, embedding=array_of(array_of(NUMBER)))
_CHOOSE = "The probability of each option as the continuation of a prompt."
# Path -> description, body, answer, and media type of a stream.
_HUNK = _only(line=COUNT, old=array_of(TEXT), new=array_of(TEXT), outside=FLAG)
_EDIT = _all(
    "text",
    "summary",
    object="edit",
    way={"enum": ["code", "part", "text"]},
    hunks=array_of(_HUNK),
    scope=array_of(TEXT),
    refused=array_of(TEXT),
)
_POSTS: dict[str, tuple[str, Body | Shape, dict[str, Any], str]] = {
    "/v1/chat/completions": (_CHAT, CHAT, _CHAT_ANSWER, _EVENTS),
    "/v1/completions": ("Go on from a text.", TEXT_BODY, _TEXT_ANSWER, _EVENTS),
    "/completion": (_NATIVE, llama_server.COMPLETION, _ALL_FILLED, _EVENTS),
    "/infill": ("Fill in the middle of a text.", llama_server.INFILL, _ALL_FILLED, _EVENTS),
    "/v1/edit": ("Change a text as an instruction says.", edit.EDIT, _EDIT, ""),
    "/v1/responses": (_RESPONSES, responses.BODY, _RESPONSE, _EVENTS),
    "/v1/messages": (_MESSAGES, messages.BODY, _MESSAGE, _EVENTS),
    "/v1/chat/completions/input_tokens": (_COUNT, CHAT, _only(input_tokens=COUNT), ""),
    "/apply-template": ("The prompt of such a chat.", CHAT, _only("prompt"), ""),
    "/v1/messages/count_tokens": (_COUNT, messages.PROMPT, _only(input_tokens=COUNT), ""),
    "/v1/embeddings": (_VECTORS, embeddings.EMBEDDING, _EMBEDDINGS, ""),
    **dict.fromkeys(
        ("/embedding", "/embeddings"),
        (_VECTORS, embeddings.NATIVE_EMBEDDING, array_of(_ROWS), ""),
    ),
    **dict.fromkeys(embeddings.RERANK_PATHS, (*_RERANK, "")),
    "/v1/choose": (_CHOOSE, embeddings.CHOOSE, _list("options", _SCORED, best=COUNT), ""),
    "/api/chat": (_CHAT, ollama.CHAT, _CHAT_OF_OLLAMA, _LINES),
    "/api/generate": ("Answer a prompt.", ollama.GENERATE, _of_ollama(response=TEXT), _LINES),
    "/api/embed": (_VECTORS, ollama.EMBED, _EMBEDDED, ""),
    "/api/embeddings": (_ONE_VECTOR, ollama.EMBEDDINGS, _ONE_EMBEDDED, ""),
    "/api/show": ("Facts about a model.", ollama.SHOW, _SHOWN, ""),
    "/tokenize": ("The tokens of a text.", model_routes.TOKENIZE, _TOKENS, ""),
    "/detokenize": ("The text of tokens.", model_routes.DETOKENIZE, _only("content", "prompt"), ""),
}
_ID = {"name": "id", "in": "path", "required": True, "schema": TEXT.schema}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 100}
_PAGE = {"limit": _LIMIT, "order": {"enum": ["asc", "desc"]}, "after": TEXT.schema}
_STORED, _OF_MODEL = ("400", "404"), ("404", "503")
_EVENTS_AFTER = {
    "stream": {"type": "boolean"},
    "starting_after": COUNT,
    "optional": {"type": "boolean"},  # no error where there is none
}
_KEPT = "A stored response, or one that goes on in the background, perhaps with its events."
_SLOTS = "The slots of the models in memory: one for each request that can run at once."
# Path, method, description, answer, status codes of errors, and parameters of the query.
_OTHERS: list[tuple[str, str, str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
    ("/v1/responses/{id}", "get", _KEPT, _RESPONSE_OR_NONE, _STORED, _EVENTS_AFTER),
    ("/v1/responses/{id}", "delete", "Forget a stored response.", _DELETED, _STORED, {}),
    ("/v1/responses/{id}/cancel", "post", "Cancel a response.", _RESPONSE, _STORED, {}),
    ("/v1/responses/{id}/input_items", "get", "The items of its input.", _ITEMS, _STORED, _PAGE),
    ("/v1/models", "get", "The models that are served.", _MODELS, (), {}),
    ("/v1/models/{name}", "get", "One of the models.", _MODEL, ("404",), {}),
    ("/slots", "get", _SLOTS, array_of(_SLOT), _OF_MODEL, {}),
    ("/tokenizer_info", "get", "Its special tokens.", _all("eos_token?"), _OF_MODEL, {}),
    ("/props", "get", "Properties of a model.", _all("chat_template"), _OF_MODEL, {}),
    ("/health", "get", "Whether requests are answered.", _all("status"), ("503",), {}),
    ("/metrics", "get", "Counts in the text format of Prometheus.", TEXT.schema, (), {}),
    ("/api/tags", "get", "The models that are served.", _NAMES, (), {}),
    ("/api/ps", "get", "The models in memory.", _NAMES, (), {}),
    ("/api/version", "get", "The versions.", _only("version", "gguf_spec"), (), {}),
]


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(path: str, about: str, content: dict[str, Any], *problems: str) -> dict[str, Any]:
    kind = "OllamaError" if path.startswith("/api/") else "Error"
    kind = "AnthropicError" if path.startswith("/v1/messages") else kind
    form = _json({"$ref": f"#/components/schemas/{kind}"})
    return {"200": {"description": about, "content": content}} | {
        status: {"description": _PROBLEMS[status], "content": form}
        for status in ("401", "403", *problems)
    }


def _post(path: str, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a route with a body; `names` are those of the models, None for any name."""
    about, described, answer, stream = _POSTS[path]
    if isinstance(described, Body):
        body = described.schema(names)
    else:
        fields, models = described.schema["properties"], model_of(names)
        if path == "/api/show" and names is not None:
            models = {"enum": [*names]}
        elif path.endswith("tokenize"):
            models = fields["model"]
        body = described.schema | {"properties": fields | {"model": models}}
    # Each event is an object of its own, so there is no schema of the whole stream.
    content = _json(answer) | ({stream: {}} if stream else {})
    what = "The answer, whole or in pieces." if stream == _EVENTS else about
    problems = ("400", "404", "408", "413", "429", "503")
    return {
        "summary": about,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": _responses(path, what, content, *problems),
    }


_PDF_TEXT = {
    "summary": "The text of a PDF file.",
    "requestBody": {
        "required": True,
        "content": {"application/pdf": {"schema": {"type": "string", "format": "binary"}}},
    },
    "responses": _responses(
        "/v1/documents/text",
        "Its text, its pages, and those of them that fitted.",
        _json(_only("text", object="document.text", pages=COUNT, pages_read=COUNT)),
        *("400", "408", "413", "429", "503"),
    ),
}


@cache
def describe(ids: tuple[str, ...], needs_key: bool, any_model: bool = False) -> dict[str, Any]:
    names = None if any_model else ids
    paths: dict[str, Any] = {path: {"post": _post(path, names)} for path in _POSTS}
    paths["/v1/documents/text"] = {"post": _PDF_TEXT}
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [*ids]}}
    for path, method, about, answer, problems, query in _OTHERS:
        of_path = [_ID] if "{id}" in path else [name] if "{name}" in path else []
        of_query = [{"name": key, "in": "query", "schema": one} for key, one in query.items()]
        content = {"text/plain": {"schema": answer}} if path == "/metrics" else _json(answer)
        paths.setdefault(path, {})[method] = {
            "summary": about,
            "parameters": [*of_path, *of_query],
            "responses": _responses(path, about, content, *problems),
        }
    error = _only("message", "type", param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
    of_anthropic = object_of({"type": TEXT, "message": TEXT, "details?": {"type": "object"}})
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "gguf-spec",
            "version": __version__,
            "description": "A server with speculative decoding and several API formats. Paths that "
            "begin with /v1 can also be written without it.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _only(error=error),
                "AnthropicError": _only(type="error", error=of_anthropic),
                "OllamaError": _only("error"),
            }
        },
    }
    if needs_key:
        description["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"key": []}]
    return description
