"""OpenAPI description of the server: its routes with their answers; `schema` describes bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import __version__
from . import embeddings, messages_api, model_routes, ollama, ollama_routes, requests, responses_api
from .fields import Body, model_of
from .schema import COUNT, FLAG, NUMBER, TEXT, Shape, array_of, const, object_of

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
_OPTIONAL_TEXT = {"type": ["string", "null"]}


def _all(*names: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with some fields and others; `names` are those of texts."""
    return object_of(dict.fromkeys(names, TEXT.schema) | fields, *names, *fields, more=True)


def _only(*names: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with some fields and no others."""
    return _all(*names, **fields) | {"additionalProperties": False}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(
    about: str, content: dict[str, Any], *problems: str, error: str = "Error"
) -> dict[str, Any]:
    """Return the responses of a route: the one with status 200, and errors.

    Args:
        about: Description of the response.
        content: Its content.
        problems: HTTP status codes of errors, beside those of all routes.
        error: Schema of the errors.
    """
    form = {"$ref": f"#/components/schemas/{error}"}
    return {"200": {"description": about, "content": content}} | {
        status: {"description": _PROBLEMS[status], "content": _json(form)}
        for status in ("401", "403", *problems)
    }


def _post(
    about: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    stream: str = "",
    error: str = "Error",
) -> dict[str, Any]:
    """Return a route with the method POST.

    Args:
        about: Its description.
        body: Schema of the body.
        answer: Schema of the response.
        stream: Media type of a streamed response; empty if there is none.
        error: Schema of the errors.
    """
    content = _json(answer) | ({stream: {"schema": TEXT.schema}} if stream else {})
    what = "The answer, whole or in pieces." if stream == _EVENTS else about
    problems = ("400", "404", "408", "413", "429", "503")
    return {
        "post": {
            "summary": about,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": _responses(what, content, *problems, error=error),
        }
    }


def _get(
    about: str,
    content: dict[str, Any],
    *problems: str,
    parameters: tuple[dict[str, Any], ...] = (),
    error: str = "Error",
) -> dict[str, Any]:
    """Return what a route without a body does, such as one with the method GET."""
    return {
        "summary": about,
        "parameters": [*parameters],
        "responses": _responses(about, content, *problems, error=error),
    }


def _parameter(place: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    more = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **more, "schema": schema}


_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"
_USAGE = object_of(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": _only(cached_tokens=COUNT),
        "speculation": object_of({}, more=True),
    },
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "speculation",
    more=True,
)
_MODEL = _all("id", "owned_by", object=const("model"), created=COUNT)


def _list(name: str, item: dict[str, Any]) -> dict[str, Any]:
    usage = _only(prompt_tokens=COUNT, total_tokens=COUNT)
    fields: dict[str, Any] = {name: array_of(item), "usage": usage}
    return _only("model", object=const("list"), **fields)


def _completion(kind: str, text: str) -> dict[str, Any]:
    finish = {"enum": ["stop", "length", "tool_calls"]}
    choice = _all(index=COUNT, finish_reason=finish, **{text: {}})
    fields: dict[str, Any] = {"object": const(kind), "created": COUNT, "choices": array_of(choice)}
    return _all("id", "model", usage=_USAGE, **fields)


def _openai(names: tuple[str, ...] | None) -> dict[str, Any]:
    embedding = {"anyOf": [array_of(NUMBER), TEXT.schema]}
    vector = _only(object=const("embedding"), index=COUNT, embedding=embedding)
    result: dict[str, Any] = {"index": COUNT, "relevance_score": NUMBER, "document": _only("text")}
    rank = object_of(result, "index", "relevance_score")
    about = "The relevance of documents for a query."
    ranks = _post(about, _of(embeddings.RERANK, names), _list("results", rank))
    return {
        "/v1/chat/completions": _post(
            "Answer messages.",
            _of(requests.CHAT, names),
            _completion("chat.completion", "message"),
            _EVENTS,
        ),
        "/v1/completions": _post(
            "Go on from a text.",
            _of(requests.TEXT_BODY, names),
            _completion("text_completion", "text"),
            _EVENTS,
        ),
        "/v1/embeddings": _post(
            "The embeddings of texts.", _of(embeddings.EMBEDDING, names), _list("data", vector)
        ),
        **dict.fromkeys(embeddings.RERANK_PATHS, ranks),
    }


def _of(described: Body | Shape, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the schema of a body; `names` are those of the models, None for any name."""
    if isinstance(described, Body):
        return described.schema(names)
    fields = described.schema["properties"] | {"model": model_of(names)}
    return described.schema | {"properties": fields}


def _stored(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes of the Responses API."""
    details = _all(cached_tokens=COUNT)
    counts: dict[str, Any] = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), COUNT)
    item = object_of({"type": TEXT, "id": TEXT, "status": TEXT}, "type", "id", more=True)
    response = _all(
        "id",
        "model",
        object=const("response"),
        created_at=COUNT,
        status={"enum": ["completed", "incomplete"]},
        output=array_of(item, least=1),
        usage=_all(**counts, input_tokens_details=details),
    )
    items = _all(object=const("list"), data=array_of({}))
    query: dict[str, Any] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
        "after": TEXT.schema,
    }

    def of(about: str, schema: dict[str, Any], **more: dict[str, Any]) -> dict[str, Any]:
        path = _parameter("path", "id", TEXT.schema)
        asked = [_parameter("query", name, one) for name, one in more.items()]
        return _get(about, _json(schema), "400", "404", parameters=(path, *asked))

    deleted = _only("id", "object", deleted=FLAG)
    return {
        "/v1/responses": _post(
            "Answer items, and store the response.",
            _of(responses_api.BODY, names),
            response,
            _EVENTS,
        ),
        "/v1/responses/{id}": {
            "get": of("A stored response.", response, stream={"const": False}),
            "delete": of("Forget a stored response.", deleted),
        },
        "/v1/responses/{id}/input_items": {"get": of("The items of its input.", items, **query)},
    }


def _anthropic(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes of the Messages API."""
    reasons = ["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    counts: dict[str, Any] = dict.fromkeys(
        ("input_tokens", "cache_read_input_tokens", "output_tokens"), COUNT
    )
    message = _all(
        "id",
        "model",
        type=const("message"),
        role=const("assistant"),
        content=array_of(_all("type")),
        stop_reason={"enum": reasons},
        stop_sequence=_OPTIONAL_TEXT,
        usage=_all(**counts),
    )
    total = _only(input_tokens=COUNT)
    about = "The number of tokens of such a prompt."
    counted = _of(messages_api.PROMPT, names)
    shown = {name: counted["properties"][name] for name in messages_api.PROMPT.fields}
    return {
        "/v1/messages": _post(
            "Answer messages, in the format of Anthropic.",
            _of(messages_api.BODY, names),
            message,
            _EVENTS,
            "AnthropicError",
        ),
        "/v1/messages/count_tokens": _post(
            about, counted | {"properties": shown}, total, error="AnthropicError"
        ),
    }


def _ollama(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return Ollama's routes."""
    numbers = (
        *("prompt_eval_count", "eval_count"),
        *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"),
    )

    def text(about: str, body: Shape, **answer: Any) -> dict[str, Any]:
        head = {"model": TEXT, "created_at": TEXT, "done": {"const": True}, **answer}
        rest = {"done_reason": {"enum": ["stop", "length", "load"]}, "logprobs": array_of({})}
        fields = head | rest | dict.fromkeys(numbers, COUNT)
        whole = object_of(fields, *head, more=True)
        return _post(about, _of(body, names), whole, _LINES, "OllamaError")

    vector = array_of(NUMBER)
    facts, models = _all(details={}, model_info={}), _only(models=array_of({}))

    def get(about: str, answer: dict[str, Any]) -> dict[str, Any]:
        return {"get": _get(about, _json(answer), error="OllamaError")}

    vectors = _all("model", embeddings=array_of(vector), prompt_eval_count=COUNT)
    shown = ollama_routes.SHOW.schema["properties"]
    shown = shown | {"model": TEXT if names is None else {"enum": [*names]}}
    return {
        "/api/chat": text("Answer messages.", ollama.CHAT, message=_all("role", "content")),
        "/api/generate": text("Answer a prompt.", ollama.GENERATE, response=TEXT),
        "/api/embed": _post(
            "The embeddings of texts.",
            _of(ollama_routes.EMBED, names),
            vectors,
            error="OllamaError",
        ),
        "/api/embeddings": _post(
            "The embedding of a text, not normalised.",
            _of(ollama_routes.EMBEDDINGS, names),
            _only(embedding=vector),
            error="OllamaError",
        ),
        "/api/show": _post("Facts about a model.", object_of(shown), facts, error="OllamaError"),
        "/api/tags": get("The models that are served.", models),
        "/api/ps": get("The models in memory.", models),
        "/api/version": get("The version of gguf-spec.", object_of({"version": TEXT})),
    }


def _lookups(ids: tuple[str, ...]) -> dict[str, Any]:
    """Return the routes about models and the server, partly in the form of llama-server."""
    tokens = array_of(COUNT)
    piece = _only(id=COUNT, piece={"anyOf": [TEXT.schema, tokens]})
    kept: dict[str, Any] = dict.fromkeys(
        ("entries", "bytes", "limit_bytes", "tokens_reused"), COUNT
    )
    slot = _only(
        "model",
        id_task={"type": "integer"},
        kept_prefixes=_only(**kept),
        **dict.fromkeys(("is_processing", "speculative"), FLAG),
        **dict.fromkeys(("id", "n_ctx", "n_past"), COUNT),
    )
    name = _parameter("path", "name", {"enum": [*ids]})

    def get(about: str, answer: dict[str, Any], *problems: str) -> dict[str, Any]:
        return {"get": _get(about, _json(answer), *problems)}

    models = _only(object=const("list"), data=array_of(_MODEL))
    counts = "Counts in the text format of Prometheus."
    return {
        "/v1/models": get("The models that are served.", models),
        "/v1/models/{name}": {
            "get": _get("One of the models.", _json(_MODEL), "404", parameters=(name,))
        },
        "/tokenize": _post(
            "The tokens of a text.",
            model_routes.TOKENIZE.schema,
            _only(tokens={"anyOf": [tokens, array_of(piece)]}),
        ),
        "/detokenize": _post(
            "The text of tokens.", model_routes.DETOKENIZE.schema, _only("content")
        ),
        "/slots": get(
            "The slots of the models in memory: one for each request that can run at once.",
            array_of(slot),
            "404",
            "503",
        ),
        "/props": get("Properties of a model.", _all("chat_template"), "404", "503"),
        "/health": get("Whether requests are answered.", _all("status"), "503"),
        "/metrics": {"get": _get(counts, {"text/plain": {"schema": TEXT.schema}})},
    }


@cache
def describe(ids: tuple[str, ...], needs_key: bool, any_model: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a server.

    Args:
        ids: Names of its models.
        needs_key: Whether requests require an API key.
        any_model: Whether requests may name any model.
    """
    names = None if any_model else ids
    error = _only("message", "type", param=_OPTIONAL_TEXT, code=_OPTIONAL_TEXT)
    details: dict[str, Any] = {"type": TEXT, "message": TEXT, "details": {"type": "object"}}
    of_anthropic = object_of(details, "type", "message")
    paths = {
        **_openai(names),
        **_stored(names),
        **_ollama(names),
        **_anthropic(names),
        **_lookups(ids),
    }
    about: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "gguf-spec",
            "version": __version__,
            "description": "A server with speculative decoding and several API formats.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _only(error=error),
                "AnthropicError": _only(type=const("error"), error=of_anthropic),
                "OllamaError": _only("error"),
            }
        },
    }
    if needs_key:
        about["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        about["security"] = [{"key": []}]
    return about
