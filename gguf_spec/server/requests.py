"""Request bodies, and their conversion to options of the engine: chats and text completions.

Fields of other APIs follow the rule and the tables of `fields`. The other APIs convert their bodies
to the fields of a chat, and `request_of` makes the request of all.

What reads a field or a body raises `ApiError` where it is invalid or not supported; the error names
the field. `names` are, for options whose field has another name: option -> field. `most` is the
maximum length of an answer in tokens; None for no limit.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request

from ..errors import ImageError, InvalidOptionError
from ..llama.image_file import Image
from ..options import SAMPLING, SPECULATION, Sampling, Speculation, require, well_formed
from ..runtime.images import image_of_base64, image_of_url
from ..tools.families import NO_TOOLS, ToolUse
from . import schema as s
from .errors import (
    LOG,
    ApiError,
    client_closed,
    invalid_value,
    option_refusal,
    shutting_down,
    unknown,
)
from .fields import (
    IGNORED_FIELDS,
    OTHER_FIELDS,
    OTHER_NAMES,
    REASONING_FIELDS,
    OtherField,
    Route,
    note,
    note_taken,
    same,
    whole,
    without_effect,
)
from .schema import Fields, Read, Shape
from .settings import Settings

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..tools.grammar import Unenforced
    from .events import TokenInfo

# Routes whose requests have a seed.
SEEDED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/infill",
    "/completion",
    "/v1/edit",
)
TEXT_MAX_TOKENS = 16  # OpenAI's default `max_tokens` of the completions endpoint
SEEDS = 2**64  # number of seeds
# Most values of a body. The parser keeps all other threads waiting, and an array or an object takes
# it as long as 4 numbers, a field of an object as long as 12.
VALUES_MAX, _OF_VALUES = 1 << 20, ((b",", 1), (b"[", 4), (b"{", 4), (b":", 12))
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# What may be half of a surrogate pair: an escape, or its bytes.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_REPEATS = 5  # turns with the same call after which the log names it
# A probability that one token has in any case; lowest temperature that means 0, as in llama-server.
_TINY, _MOST_COLD = 1e-9, 100
# Field of messages and deltas with the reasoning.
REASONING = "reasoning_content"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Effort of other APIs -> the nearest one here; None is the default.
_MEANT_EFFORTS: dict[str, str | None] = {
    **dict.fromkeys(("max", "maximum", "highest", "ultra", "very_high", "extra_high"), "xhigh"),
    **dict.fromkeys(("min", "minimum", "lowest", "very_low"), "minimal"),
    **dict.fromkeys(("off", "disabled", "disable", "false", "no"), "none"),
    **dict.fromkeys(("moderate", "normal", "standard"), "medium"),
    **dict.fromkeys(("auto", "default", "adaptive", "dynamic"), None),
}
# Efforts that switch reasoning on or off; `minimal` leaves it to the chat template.
_THINK = {"none": False, "low": True, "medium": True, "high": True, "xhigh": True}

Message = dict[str, Any]


@dataclass(frozen=True)
class ReasoningFields:
    """Fields of a chat request about reasoning.

    Attributes:
        effort: `reasoning_effort`.
        values: `chat_template_kwargs`: variables of the chat template.
        think: Whether the model reasons; None leaves it to the effort.
        budget: Maximum number of reasoning tokens of a model that reasons; -1 for no limit.
    """

    effort: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    budget: int | None = None

    def options(self, llm: LLM) -> dict[str, Any]:
        """Return the options of a generation, without what the model or its template ignores."""
        values, effort = dict[str, Any](), self.effort
        for name, value in self.values.items():
            if name in llm.template_variables or name == "enable_thinking":
                values[name] = value
            else:
                note(f"chat_template_kwargs.{name[:60]}", "The chat template does not read it.")
        if effort not in (None, "none") and "reasoning_effort" in llm.template_variables:
            values.setdefault("reasoning_effort", effort)
        think = _THINK.get(effort or "") if self.think is None else self.think
        think = think if llm.can_think else None
        return {"think": think, "chat_template_kwargs": values or None}


# Fields of a request without any.
NO_REASONING_FIELDS = ReasoningFields()


@dataclass(frozen=True)
class LineLimits:
    """Limits of an answer after its first line, for editors.

    Attributes:
        indent: A line with fewer spaces and tabs at its beginning ends the answer.
        seconds: Time after which the next line break ends the answer; None for no limit.
    """

    indent: int = 0
    seconds: float | None = None


class LineReader:
    """Finds where an answer ends by its `LineLimits`, while it comes."""

    is_over: bool

    def __init__(self, limits: LineLimits) -> None:
        self._limits, self.is_over = limits, False
        self._missing = 0  # spaces and tabs that the current line needs further

    def read(self, text: str, seconds: float) -> str:
        """Return what of a text belongs to the answer, `seconds` after the prompt was read."""
        if self.is_over:
            return ""
        most = self._limits.seconds
        self.is_over = most is not None and "\n" in text and seconds > most
        for i, character in enumerate(text if self._limits.indent else ""):
            if self._missing and character in " \t":
                self._missing -= 1
            elif self._missing:
                self.is_over = True
                return text[:i]
            elif character == "\n":
                self._missing = self._limits.indent
        return text


@dataclass(frozen=True)
class CompletionRequest:
    """Validated request for one or several completions.

    Attributes:
        prompts: Texts, token ids, or messages; each gets `n` choices.
        speculation: Speculation options; None for the defaults of the server.
        usage: Whether the last chunk of a stream contains the usage.
        shows_drafts: Whether the chunks of a stream mark the text that was drafted.
        suffix: Text after the answer, for filling in the middle; None to continue the prompt.
        files: Names and texts of other files, for filling in the middle; the first ones are left
            out if they do not fit into the context.
        drops_oldest: Whether the oldest turns of a conversation that is too long are left out.
        prefill: Beginning of the answer, as part of the prompt.
        given: Names of the sampling options that the body has.
        biases: Texts whose tokens get a bias.
        each: What each chunk of a stream has: `timings`, `usage`; and `progress` where the parts of
            the prompt are reported, too.
        fit: Makes the prompt for a model, where that depends on the model.
        more: What only the reply of its API needs.
        unenforced: What the grammar does not enforce of the schemas; None if it enforces all.
        n_scored: Number of alternatives at each token of a prompt whose tokens are scored; None
            for no scores.
        shows_scores: Whether the answer has the scores as vLLM writes them.
        scores: Index of a prompt -> its tokens with log-probabilities. They are filled in.
    """

    prompts: tuple[Any, ...]
    n: int
    sampling: Sampling
    speculation: Speculation | None
    stream: bool
    usage: bool
    shows_drafts: bool
    tools: ToolUse
    names: dict[str, str]
    echo: bool = False
    suffix: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    lines: LineLimits | None = None
    reasoning: ReasoningFields = NO_REASONING_FIELDS
    drops_oldest: bool = False
    prefill: str = ""
    given: frozenset[str] = frozenset()
    biases: tuple[tuple[str, float], ...] = ()
    each: frozenset[str] = frozenset()
    fit: Callable[[CompletionRequest, LLM], CompletionRequest] | None = None
    more: Any = field(default=None, compare=False)
    unenforced: Unenforced | None = field(default=None, compare=False)
    n_scored: int | None = None
    shows_scores: bool = False
    scores: dict[int, Sequence[TokenInfo]] = field(default_factory=dict, compare=False)

    @property
    def n_choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def operation(self) -> str:
        """OpenTelemetry's name of the operation."""
        is_chat = isinstance([*self.prompts[0][:1], 0][0], dict)
        return "chat" if is_chat else "text_completion"

    @property
    def needs_grammar(self) -> bool:
        has_schema = self.sampling.json_schema is not None or self.tools.has_grammar
        return has_schema and self.sampling.grammar is None

    @property
    def is_chat(self) -> bool:
        """Whether this is a chat request; its answer is then a message."""
        return self.names["prompt"] == "messages"


def seed_of(seed: int, i: int) -> int:
    """Return the seed of choice `i`; a request for one choice with it gives the same text."""
    return (seed + i) % SEEDS


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body in UTF-8; unpaired surrogates become U+FFFD."""
    n_in_texts = (_n_values(text[0]) for text in _TEXTS.finditer(body))
    if (n := _n_values(body)) > VALUES_MAX and n - sum(n_in_texts) > VALUES_MAX:
        fact = "The body has more than {:,} values; each array counts as 4, each field as 12."
        raise ApiError(fact.format(VALUES_MAX), None, "invalid_json")
    infinite: list[float] = []

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            infinite.append(value)
        return value

    try:
        with _without_collections():
            data = json.loads(body, parse_constant=_no_number, parse_float=number)
        if _HALF.search(body):
            text = json.dumps(data, ensure_ascii=False)
            data = json.loads(mended) if (mended := well_formed(text)) != text else data
    except (ValueError, RecursionError) as error:
        at = ""
        if isinstance(error, json.JSONDecodeError):
            at = f" (line {error.lineno}, column {error.colno})"
        raise ApiError(f"The body is not JSON in UTF-8{at}.", None, "invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError("The body must be a JSON object.", None, "invalid_json")
    if infinite:
        _check_finite(data)
    return data


def _n_values(body: bytes) -> int:
    return sum(weight * body.count(mark) for mark, weight in _OF_VALUES)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from looking through new values again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_finite(data: dict[str, Any]) -> None:
    """Check that no field holds a number such as 1e999, which an answer could not repeat.

    Fields that are numbers have limits of their own, and a bias may be infinite.
    """
    for name, value in data.items():
        if name == "body" and isinstance(value, dict):  # of a line of a batch
            _check_finite(value)
        elif name != "logit_bias" and isinstance(value, (dict, list)):
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise invalid_value(name[:100], "contains a number that is too large.") from None


def _no_number(text: str) -> float:
    raise ValueError(text)


def made(make: Callable[[], Any], names: dict[str, str]) -> Any:
    """Return the options that `make` creates; an error names the field of its option."""
    try:
        return make()
    except InvalidOptionError as error:
        raise option_refusal(error, names) from None
    except OverflowError:
        raise ApiError("A number is too large.", None, "invalid_value") from None


# How much of an oversized body is read, as a multiple of the size limit. A client that is still
# sending does not read the response; after this amount it can receive the error.
_MOST_READ = 8
# Encodings of bodies, with the window of `zlib` for each; most of a body, and most parts of one.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MOST_CODINGS, _MOST_PARTS = 3, 64
# Bytes of a body above which it is converted in a thread.
LARGE = 1 << 16
# Key in the ASGI scope of a request: bytes that it takes in memory, about; and bytes of a value.
N_BYTES, _VALUE_BYTES = "gguf_spec.bytes", 16
# Seconds for a body, and the bytes that must arrive in each further second.
BODY_S, BODY_RATE = 20.0, 4_000
# Bytes of all bodies that are being received or wait for their conversion; a body of any size may
# come alone.
BODIES_MAX = 1 << 28


def codings_of(headers: Iterable[str]) -> list[str]:
    """Return the encodings of a body by its headers `content-encoding`, in their order.

    Raises:
        ApiError: One of them is not known.
    """
    words = (word.strip().lower() for one in headers for word in one.split(","))
    found = [word.removeprefix("x-") for word in words if word not in ("", "identity")]
    for word in found:
        if word not in _CODINGS:
            fact = f"The content-encoding {word[:60]!r} is not supported: send gzip, deflate or no"
            known = {"Accept-Encoding": ", ".join(_CODINGS)}
            raise ApiError(f"{fact} encoding.", None, "unsupported_encoding", 415, known)
    if len(found) > _MOST_CODINGS:
        fact = f"The body has more than {_MOST_CODINGS} encodings."
        raise ApiError(fact, None, "unsupported_encoding", 415)
    return found


def unpacked(body: bytes, codings: Iterable[str], most: int) -> bytes:
    """Return a body without its encodings; at no time it has more than `most` bytes.

    Raises:
        ApiError: It is damaged or too large.
    """
    for coding in reversed([*codings]):
        try:
            body = _unpacked(body, coding, most)
        except (zlib.error, EOFError):
            fact = f"The body is not {coding}, as its content-encoding says, or it is cut."
            raise ApiError(fact, None, "invalid_encoding") from None
    return body


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    # Some clients send deflate without the head of zlib: its first two bytes are a multiple of 31.
    has_head = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    wbits = _CODINGS[coding] if coding == "gzip" or has_head else -zlib.MAX_WBITS
    found = b""
    for _ in range(_MOST_PARTS):  # files of gzip may follow each other
        part = zlib.decompressobj(wbits)
        found += part.decompress(body, most + 1 - len(found))
        if len(found) > most:
            fact = f"The body has more than {most:,} bytes when it is unpacked."
            raise ApiError(fact, None, "request_too_large", 413)
        body = part.unused_data
        if not part.eof:
            raise EOFError
        if not body:
            return found
    raise EOFError


async def in_turn(
    turn: asyncio.Lock, n_bytes: int, function: Callable[..., Any], *given: Any
) -> Any:
    """Call a function that does not use the event loop; in a thread if it has much to do.

    Such calls with one lock take turns.
    """
    if n_bytes <= LARGE:
        return function(*given)
    async with turn:
        return await asyncio.to_thread(function, *given)


class BodyReader:
    """Reads the bodies of the requests of a server.

    A large one is converted in a thread, so that other requests are answered. They take turns:
    several threads at once keep the interpreter from the event loop, and need memory for each.
    """

    def __init__(self, settings: Settings, is_ending: Callable[[], bool]) -> None:
        self._settings, self._is_ending = settings, is_ending
        self._n_held = 0  # bytes of bodies that are being received
        self._converting = asyncio.Lock()

    async def read(self, request: Request, read: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what `read` returns for the JSON object of a request, as `receive`."""
        body = await self.receive(request)
        return await self.convert(body, lambda: read(parse(body)))

    async def receive(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            ApiError: The body is too large, arrives too slowly or is compressed in an unknown way,
                the client disconnected, or the server is shutting down.
        """
        parts, codings = list[bytes](), codings_of(request.headers.getlist("content-encoding"))
        try:
            body = await self._read(request, parts)
            if codings:  # one at a time: each needs the memory of a whole body
                most = self._settings.body_bytes
                async with self._converting:
                    body = await asyncio.to_thread(unpacked, body, codings, most)
        except asyncio.TimeoutError:
            fact = "The body did not arrive in time."
            raise ApiError(fact, None, "timeout", 408, {"Connection": "close"}) from None
        finally:
            self._n_held -= sum(map(len, parts))
        if self._is_ending():
            raise shutting_down()
        request.scope[N_BYTES] = len(body) + _VALUE_BYTES * _n_values(body)
        return body

    async def _read(self, request: Request, parts: list[bytes]) -> bytes:
        n, most, began_s = 0, self._settings.body_bytes, time.monotonic()
        is_whole = False
        while not is_whole:
            allowed_s = min(BODY_S + n / BODY_RATE, self._settings.limit_s or math.inf)
            left_s = began_s + allowed_s - time.monotonic()
            message = await asyncio.wait_for(request.receive(), max(0.0, left_s))
            if message["type"] == "http.disconnect":
                raise client_closed()
            part, is_whole = message.get("body", b""), not message.get("more_body")
            n += len(part)
            if n <= most:
                parts.append(part)
                self._hold(len(part), n)
            elif n > _MOST_READ * most:
                break
        if n > most:
            fact = f"The body has more than {most:,} bytes."
            raise ApiError(fact, None, "request_too_large", 413)
        return b"".join(parts)

    def _hold(self, n_more: int, n: int) -> None:
        """Count bytes of a body, `n` so far; refuse it where with the others there are too many."""
        self._n_held += n_more
        if self._n_held > max(n, BODIES_MAX):
            fact = "Too many large requests are being received. Try again later."
            headers = {"Retry-After": "5", "Connection": "close"}
            raise ApiError(fact, None, "too_many_uploads", 429, headers)

    async def convert(
        self, body: bytes, function: Callable[..., Any], *given: Any, n_more: int = 0
    ) -> Any:
        """Return the result of a function that reads a body and does not use the event loop.

        It may read `n_more` bytes beside the body.
        """
        if (n_bytes := len(body) + n_more) <= LARGE:
            return function(*given)
        try:
            self._hold(len(body), len(body))
            return await in_turn(self._converting, n_bytes, function, *given)
        finally:
            self._n_held -= len(body)


# ---- fields of all routes, and of other APIs


# Limits: number of stop strings, characters of one, alternatives per token (logprobs), choices.
STOPS_MAX, STOP_LENGTH_MAX, TOP_LOGPROBS_MAX, CHOICES_MAX = 16, 256, 20, 128
BIASES_MAX = 5_000  # texts with a bias; each is tokenised
STOP_FACT = (
    f"must be a string of at most {STOP_LENGTH_MAX} characters, "
    f"or an array of at most {STOPS_MAX} of them."
)
# Fields of `Sampling` that a body may hold under the same name.
SAME = tuple(name for name, rule in SAMPLING.items() if rule.in_requests)
LOGPROBS = s.whole_number(0, TOP_LOGPROBS_MAX)


def _stops(value: Any, at: str) -> tuple[str, ...]:
    """Return the stop strings; empty strings, which stop nothing, are left out."""
    some = [value] if isinstance(value, str) else value
    if (
        not isinstance(some, list)
        or len(some) > STOPS_MAX
        or not all(isinstance(stop, str) and len(stop) <= STOP_LENGTH_MAX for stop in some)
    ):
        raise invalid_value(at, STOP_FACT)
    return tuple(filter(None, some))


def _sampling() -> dict[str, Shape]:
    """Return the fields that are those of `Sampling`, whose construction checks them.

    `max_tokens` has no default: it is the server's. -1 means as much as the server allows.
    """
    schemas = {name: SAMPLING[name].schema for name in SAME}
    for name in schemas.keys() - {"max_tokens"}:
        if (default := getattr(Sampling, name)) is not None:
            schemas[name] |= {"default": default}
    for name in ("max_tokens", "top_k", "seed"):
        schemas[name] = schemas[name] | {"minimum": -1}
    for name in ("top_p", "typical_p"):
        schemas[name] = {"type": "number", "minimum": 0, "maximum": 1} | (
            {"default": schemas[name]["default"]}
        )
    return {name: s.given(schema) for name, schema in schemas.items()}


_STOP = {"type": "string", "maxLength": STOP_LENGTH_MAX}
STOPS = Shape({"anyOf": [_STOP, s.array_of(_STOP, STOPS_MAX)]}, _stops)
STOP_SEQUENCES = Shape(s.array_of(_STOP, STOPS_MAX), _stops)
_BIASES_FACT = "must be an object from token ids or texts to numbers."


def _biases(value: Any, at: str) -> dict[int | str, Any]:
    """Return biases by token, or by text.

    llama-server also takes pairs, texts whose tokens get the bias, and false to forbid a token.
    """
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        value = {str(token): bias for token, bias in value}
    if not isinstance(value, dict):
        raise invalid_value(at, _BIASES_FACT)
    found: dict[int | str, Any] = {}
    n_texts = sum(not _is_id(key) for key in value)
    if n_texts > BIASES_MAX:
        fact = f"has {n_texts:,} texts, but may have at most {BIASES_MAX:,}; ids may be more."
        raise invalid_value(at, fact)
    for key, bias in value.items():
        found[int(key) if _is_id(key) else key] = -math.inf if bias is False else bias
    accepts = SAMPLING["logit_bias"].accepts_one  # of a token, `Sampling` checks it
    if any(isinstance(k, str) and not (accepts(x) or x == -math.inf) for k, x in found.items()):
        raise invalid_value(at, _BIASES_FACT)
    return found


def _is_id(key: str) -> bool:
    return key.isdecimal() and len(key) < 10


BIASES = Shape(
    {
        "type": "object",
        "description": "By token ids, or by texts whose tokens get the bias.",
        "additionalProperties": SAMPLING["logit_bias"].schema,
    },
    _biases,
)
_BREAKERS = s.checked(
    s.array_of(s.TEXT, SAMPLING["dry_sequence_breakers"].items_max),
    lambda value: isinstance(value, list) and SAMPLING["dry_sequence_breakers"].accepts((*value,)),
    "must be an array of texts.",
).to(tuple)
_STOP_TOKENS = s.checked(
    s.array_of(s.COUNT),
    lambda value: isinstance(value, list) and all(s.is_count(one) and one >= 0 for one in value),
    "must be an array of token ids.",
).to(tuple)
_TIME = {"type": "integer", "description": "Milliseconds; below 1 for no limit."}
_DRAFTING = s.object_of({f"{name}?": rule.schema for name, rule in SPECULATION.items()})
SHARED: dict[str, Shape] = {
    "model": s.TEXT,
    "stream": s.FLAG,
    "stop": STOPS,
    "logit_bias": BIASES,
    "dry_sequence_breakers": _BREAKERS,
    "stop_tokens": _STOP_TOKENS,
    "speculation": s.given({"anyOf": [{"const": "off"}, _DRAFTING]}),
    "t_max_predict_ms": s.checked(_TIME, s.is_count, "must be a whole number."),
    **_sampling(),
}


def model_of(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the schema of the field `model`; `names` is None for any name."""
    return {"type": "string"} if names is None else {"enum": [*names, ""]}


class Body(NamedTuple):
    """Description of a body that asks for an answer.

    Attributes:
        fields: Descriptions of its fields, without those of other APIs.
        needed: Name of the field that must be there.
    """

    route: Route
    fields: Mapping[str, Shape]
    needed: str

    def read(self, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the fields of a body under their names here, without those that are null.

        The second value are the names of those with another name in the body, by their names here.
        """
        found, names, others = dict[str, Any](), dict[str, str](), self._others
        reasoning: dict[str, Any] = {}
        for name, value in data.items():
            here = name if name in self.fields else OTHER_NAMES.get(name, "")
            if value is None:
                continue
            if here in self.fields:
                self._put(found, names, here, name, value)
            elif self.route != "text" and name in REASONING_FIELDS:
                reasoning |= REASONING_FIELDS[name](value, name)
                names["think"] = names["reasoning_effort"] = name
            elif name in others:
                others[name].take(value, name)
            elif value not in s.NOTHING:
                note(name)
        for name, shape in self.fields.items():
            if name in found or name == self.needed:
                found[name] = shape.read(found.get(name), names.get(name, name))
        if "effort" in reasoning:
            reasoning["effort"] = EFFORT.read(reasoning["effort"], names["reasoning_effort"])
        return found | ({"_reasoning": reasoning} if reasoning else {}), names

    def _put(
        self, found: dict[str, Any], names: dict[str, str], here: str, name: str, value: Any
    ) -> None:
        newer = "max_completion_tokens"  # counts where a client sends the older one, too
        if here in found and newer in (name, names.get(here)):
            if name != newer:
                return
        elif here in found and not same(found[here], value):
            raise invalid_value(here, f"differs from {names.get(here, name)}.")
        found[here] = value
        if here != name:
            names[here] = name

    @property
    def _others(self) -> dict[str, OtherField]:
        others = OTHER_FIELDS.items()
        return {k: v for k, v in others if self.route in v.routes and k not in self.fields}

    def schema(self, names: tuple[str, ...] | None) -> dict[str, Any]:
        """Return the JSON schema; `names` are those of the models, None for any name."""
        own = dict(self.fields) | {"model": s.given(model_of(names))}
        own |= {name: own[here] for name, here in OTHER_NAMES.items() if here in own}
        fields = without_effect(self._others) | own
        needed = {self.needed: fields.pop(self.needed)}
        return s.object_of({f"{name}?": one for name, one in fields.items()} | needed, more=True)


# ---- messages


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def _name(value: Any, at: str) -> str:
    name: str = s.TEXT.read(value, at)
    if not _NAME.fullmatch(name):
        raise invalid_value(at, "must be 1 to 128 letters, digits, _ or -.")
    return name


def read_arguments(value: Any, at: str) -> dict[str, Any] | str:
    """Return the arguments of a call: an object, or a text such as that of a cut call."""
    if isinstance(value, dict):
        return value
    text: str = s.TEXT.read(value, at) if value is not None else ""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _image_of(form: str, decode: Callable[[str, str], Image]) -> Read:
    def read(value: Any, at: str) -> Image:
        if not isinstance(value, str):
            raise invalid_value(at, f"must be {form}.")
        try:
            return decode(value, at)
        except ImageError as error:
            hint = error.hint[:1].upper() + error.hint[1:]
            raise ApiError(f"{error.message} {hint}", at, "invalid_image") from None

    return read


# Images are decoded before a request waits for its model; nothing is fetched.
IMAGE_DATA = Shape(s.TEXT.schema, _image_of("an image in base64", image_of_base64))
_URL = Shape(s.TEXT.schema, _image_of("a data: URL", image_of_url))
_URL_OBJECT = s.obj({"url": _URL, "detail?": s.unread(s.TEXT.schema)})


# The image of a `data:` URL, or of an object with one in `url`, as at OpenAI.
IMAGE_URL = Shape(
    {"anyOf": [_URL.schema, _URL_OBJECT.schema]},
    lambda v, at: _URL_OBJECT.read(v, at)["url"] if isinstance(v, dict) else _URL.read(v, at),
)
FUNCTION_NAME = Shape({"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"}, _name)


def _part(kind: str, shape: Shape) -> Shape:
    return s.obj({"type": kind, kind: shape}, ignored=IGNORED_FIELDS)


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: one text, or parts if there are images."""
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


NOT_SEEN = "[an image that this model cannot see]"


def seen(messages: Sequence[Message], llm: LLM) -> Sequence[Message]:
    """Return messages with a text for each image that a model cannot see.

    Images of the question itself stay: without them the answer would be about something else.
    """
    if llm.can_see or all(isinstance(one["content"], str) for one in messages):
        return messages
    last = max((i for i, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    return [
        one
        if isinstance(one["content"], str) or (one["role"] == "user" and i > last)
        else {**one, "content": "".join(part.get("text", NOT_SEEN) for part in one["content"])}
        for i, one in enumerate(messages)
    ]


def of_result(part: Shape, text_kinds: tuple[str, ...] = ("text",)) -> Shape:
    """Return the description of a part of a result; a short text stands for what cannot be read.

    The first of `text_kinds`, the types of parts with text, is that of the short text.
    """

    def read(value: Any, at: str) -> Any:
        try:
            return part.read(value, at)
        except ApiError:
            kind = value.get("type") if isinstance(value, dict) else None
            if not isinstance(kind, str) or kind in text_kinds:
                raise
            note(at, "A short text stands for what cannot be read.")
            kind = re.sub(r"\W", "_", kind)[:60]
            return {"type": text_kinds[0], "text": f"[a part of the type {kind}, not read]"}

    return Shape(part.schema, read)


def _content(may_be_empty: bool = False, is_result: bool = False, **kinds: Shape) -> Shape:
    """Return the description of a content; it is read as one text, or parts if there are images."""
    parts = {kind: _part(kind, shape) for kind, shape in kinds.items()}
    refusal = s.obj({"type": "refusal", "refusal": s.TEXT}, ignored=IGNORED_FIELDS).hidden
    parts["refusal"] = refusal.to(lambda part: {"type": "text", "text": part["refusal"]})
    part = s.tagged("type", parts, f"must be {' or '.join(kinds)}: other parts are not supported.")
    part = of_result(part, ("text", "refusal")) if is_result else part
    some = s.array(part, "must be a string, or an array of parts that is not empty.", 1)

    def read(value: Any, at: str) -> Any:
        if may_be_empty and (value is None or value == []):
            return ""
        return value if isinstance(value, str) else content_of(some.read(value, at))

    return Shape({"anyOf": [s.TEXT.schema, some.schema]}, read)


def _read_call(call: Any, at: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    function = call.get(kind) if kind in ("function", "custom") else None
    if not isinstance(function, dict):
        raise invalid_value(at, "must be a call of the type function.")
    if kind == "custom":
        text = s.TEXT.read(function.get("input"), f"{at}.custom.input")
        function = {"name": function.get("name"), "arguments": {"input": text}}
    # The arguments stay an object: chat templates serialise them to JSON.
    arguments = read_arguments(function.get("arguments"), f"{at}.function.arguments")
    name = _name(function.get("name"), f"{at}.function.name")
    id_ = s.TEXT.read(call.get("id"), f"{at}.id")
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


_CALLED = s.object_of({"name": FUNCTION_NAME, "arguments": s.TEXT})
_CALL = Shape(s.object_of({"id": s.TEXT, "type?": "function", "function": _CALLED}), _read_call)
_CALLS = s.array(_CALL, "must be an array with at least one call.", 1)
_OF_ASSISTANT = "is only allowed in a message of the assistant."


def _message(role: str, content: Shape, more: Fields | None = None, read_as: str = "") -> Shape:
    """Return the description of a message; templates read its role as `read_as`."""
    fields = {
        "role": Shape({"const": role}, lambda *_: read_as or role),
        f"{REASONING}?": s.never(_OF_ASSISTANT),
        "name?": s.or_empty(s.TEXT).hidden,
        "tool_calls?": s.never(_OF_ASSISTANT, []),
        "content": content,
        "tool_call_id?": s.never("is only allowed in a message of the role tool."),
    }
    return s.obj(fields | (more or {}), ignored=IGNORED_FIELDS)


def conversation(roles: Mapping[str, Shape]) -> Shape:
    fact = f"must be one of {', '.join(roles)}."
    message = s.tagged("role", roles, fact, "invalid_value", "must be an object.")
    return s.array(message, "must be an array with at least one message.", 1)


def _with_reasoning(message: Message) -> Message:
    reasoning = message.pop("reasoning", "")
    return message | ({REASONING: reasoning} if reasoning and REASONING not in message else {})


_ONLY_TEXT, _MAYBE = _content(text=s.TEXT), _content(may_be_empty=True, text=s.TEXT)
_RESULT = _content(may_be_empty=True, is_result=True, text=s.TEXT, image_url=IMAGE_URL)
_CALLS_OR_NONE = Shape(_CALLS.schema, lambda v, at: _CALLS.read(v, at) if v != [] else None)
# Messages, in the form that chat templates read: each has a role and a text as content, or an array
# of parts if there are images. Calls have arguments that are objects.
MESSAGES = conversation(
    {
        "system": _message("system", _ONLY_TEXT),
        "developer": _message("developer", _ONLY_TEXT, read_as="system"),  # unknown to templates
        "user": _message("user", _content(text=s.TEXT, image_url=IMAGE_URL)),
        "assistant": _message(
            "assistant",
            _MAYBE,
            {f"{REASONING}?": s.TEXT, "reasoning?": s.TEXT, "tool_calls?": _CALLS_OR_NONE},
        ).to(_with_reasoning),
        "tool": _message("tool", _RESULT, {"tool_call_id": s.TEXT}),
    }
)


# ---- tools


FUNCTION_FIELDS = {
    "name": FUNCTION_NAME,
    "description?": s.or_empty(s.TEXT, ""),
    "parameters?": s.or_empty(s.JSON_SCHEMA, {}),
    "strict?": s.FLAG,
}
_FUNCTION = s.obj(FUNCTION_FIELDS)


def _read_tool(tool: Any, at: str) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise s.unsupported(f"{at}.type", "must be function.")
    for name in tool.keys() - {"type", "function", *IGNORED_FIELDS}:
        note(f"{at}.{name[:100]}")
    if tool.get("function") is None:
        raise invalid_value(f"{at}.function", "is required.")
    return _FUNCTION.read(tool["function"], f"{at}.function")


_TOOL = s.object_of({"type": "function", "function": _FUNCTION})
TOOLS = Shape(
    s.array_of(_TOOL), lambda value, at: [_read_tool(one, place) for one, place in own(value, at)]
)


def own(tools: Any, at: str, kinds: Collection[Any] = ("function", None)) -> list[tuple[Any, str]]:
    """Return the tools that a model can be offered, with their places; others are left out.

    Where there are only others they are refused: what the model answers would be made up. In
    `kinds` None is that of a tool without a type.
    """
    if not isinstance(tools, list):
        raise invalid_value(at, "must be an array of tools.")
    found, left_out = [], ""
    for i, one in enumerate(tools):
        kind = one.get("type") if isinstance(one, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            left_out = f"{at}[{i}].type"
            note(f"{at}[{i}].{kind[:60]}", "Tools of a server are left out.")
        else:
            found.append((one, f"{at}[{i}]"))
    if left_out and not found:
        named = " or ".join(one for one in kinds if one)
        raise s.unsupported(left_out, f"must be {named}: other tools are not supported.")
    return found


def check_different(functions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of functions, which must differ."""
    names = [one["name"] for one in functions]
    if len(set(names)) < len(names):
        raise invalid_value("tools", "must have different names.")
    return names


def given_name(value: Any, names: Collection[str], at: str) -> str:
    """Return the name of a tool that a choice demands, which must be one of `names`."""
    if not isinstance(value, str) or value not in names:
        raise invalid_value(at, f"names the tool {str(value)[:100]!r}, which is not in tools.")
    return value


def tool_use(
    functions: list[dict[str, Any]], mode: str, only: str | None, parallel: bool
) -> ToolUse:
    """Return how the model may call tools.

    Args:
        functions: Functions with a name, and perhaps description, parameters and `strict`.
        mode: `none`, `auto` or `required`.
        only: Name of the single function that must be called, or None.
        parallel: Whether the answer may have several calls.
    """
    if mode == "required" and not functions:
        raise invalid_value("tool_choice", "requires tools.")
    if mode == "none" or not functions:
        return NO_TOOLS
    strict = frozenset(
        one["name"] for one in functions if one.get("strict") and only in (None, one["name"])
    )
    nothing = {"type": "object", "properties": {}}  # one for all, to save memory
    tools = [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one.get("description") or "",
                "parameters": one.get("parameters") or nothing,
            },
        }
        for one in functions
    ]
    return ToolUse(tools, mode == "required", only, parallel and only is None, strict)


TOOL_CHOICES = ("none", "auto", "required")


def _chosen(functions: list[dict[str, Any]], choice: Any, parallel: bool) -> ToolUse:
    names = check_different(functions)
    if not functions and choice not in ("none", "auto", None):
        raise invalid_value("tool_choice", "requires tools.")
    if choice is None or choice in TOOL_CHOICES:
        return tool_use(functions, choice or "auto", None, parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != "function" or not name:
        fact = "must be none, auto, required, or an object with the name of a function."
        raise s.unsupported("tool_choice", fact)
    return tool_use(functions, "required", given_name(name, names, "tool_choice"), parallel)


# ---- reasoning and the form of the answer


def _effort(value: Any, at: str) -> str | None:
    """Return an effort of another API as the nearest one here; None leaves it to the model."""
    if not isinstance(value, str):
        raise invalid_value(at, f"must be one of {', '.join(EFFORTS)}.")
    name = value.strip().lower()
    if name in EFFORTS or not name:
        return name or None
    if name not in _MEANT_EFFORTS:
        note(at, "There is no effort of this name.")
        return None
    if meant := _MEANT_EFFORTS[name]:
        note_taken(at, name, meant)
    return meant


EFFORT = Shape({"enum": [*EFFORTS]}, _effort)
TEMPLATE_KWARGS = s.checked(
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
    lambda value: (
        isinstance(value, dict)
        and all(one is None or isinstance(one, (str, bool, int, float)) for one in value.values())
    ),
    "must be an object of plain values.",
)


class StrictSchema(dict[str, Any]):
    """The schema of an answer, of which each keyword must be enforced."""


def schema_of(value: Any, at: str) -> Any:
    """Return the JSON schema of a response format, or None if it has none."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" or value in ({}, ""):
        return None
    if kind == "json_object":
        # llama-server's form has the schema here.
        return s.JSON_SCHEMA.read(value.get("schema") or {"type": "object"}, f"{at}.schema")
    if kind != "json_schema":
        raise invalid_value(at, "must be of the type text, json_object or json_schema.")
    inner, at = value.get("json_schema", value), f"{at}.json_schema"
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, (dict, bool)):
        raise invalid_value(at, "must contain a schema.")
    for name, one in inner.items():
        kinds: tuple[type, ...] = (bool,) if name == "strict" else (str,)
        if name in ("strict", "name", "description") and not isinstance(one, (*kinds, type(None))):
            raise invalid_value(at, f"has a {name} of another type.")
        if name not in ("schema", "strict", "name", "description", "type"):
            note(f"{at}.{name[:100]}")
    return StrictSchema(schema) if inner.get("strict") and isinstance(schema, dict) else schema


NAMED_SCHEMA = {"name?": s.TEXT, "schema": s.JSON_SCHEMA, "strict?": s.FLAG, "description?": s.TEXT}
PLAIN_FORMAT = s.object_of({"type": {"enum": ["text", "json_object"]}})
_SCHEMA_FORMAT = s.object_of({"type": "json_schema", "json_schema": s.object_of(NAMED_SCHEMA)})
RESPONSE_FORMAT = Shape({"oneOf": [PLAIN_FORMAT, _SCHEMA_FORMAT]}, schema_of)
# Fields of llama-server about what each event of a stream has.
EVENT_FIELDS = {"timings_per_token": s.FLAG, "return_progress": s.FLAG}
# Fields about the form of an answer, of the routes whose answers have probabilities.
FORMATS = EVENT_FIELDS | {
    "json_schema": s.JSON_SCHEMA,
    "guided_json": s.text_or(s.JSON_SCHEMA),
    "response_format": RESPONSE_FORMAT,
    "n_probs": s.whole_number(0, 100),
}


# ---- bodies


_N = s.whole_number(1, CHOICES_MAX)
# Fields of the routes that may have several choices; `include_obfuscation` adds padding at OpenAI.
_CHOICES = FORMATS | {
    "n": Shape(_N.schema | {"default": 1}, _N.read),
    "stream_options": s.obj(
        {
            "include_usage?": s.FLAG,
            "include_speculation?": s.FLAG,
            "continuous_usage_stats?": s.FLAG,
            "include_obfuscation?": s.unread(s.FLAG.schema),
        },
    ),
}
_CHOICE = s.object_of({"type": "function", "function": s.object_of({"name": FUNCTION_NAME})})


def _prompts(mixed: bool) -> Shape:
    """Return the description of prompts; an empty array is one without tokens."""
    some = s.texts(CHOICES_MAX, f"may contain at most {CHOICES_MAX} prompts.", mixed=mixed)
    return some._replace(
        read=lambda value, at: ([],) if value == [] else tuple(some.read(value, at))
    )


# Prompts of llama-server's own route.
MIXED_PROMPTS = _prompts(mixed=True)
# llama-server and user interfaces send a boolean.
_TEXT_LOGPROBS = Shape(
    LOGPROBS.schema,
    lambda value, at: (
        LOGPROBS.read(0 if value is True else value, at) if value is not False else None
    ),
)
TEXT_BODY = Body(
    "text",
    SHARED
    | _CHOICES
    | {
        "prompt": _prompts(mixed=False),
        "suffix": s.given(s.TEXT.schema),
        "best_of": s.given({"type": "integer", "description": "No effect."}),
        "echo": s.FLAG,
        "logprobs": _TEXT_LOGPROBS,
        "prompt_logprobs": _TEXT_LOGPROBS,
    },
    "prompt",
)
CHAT = Body(
    "chat",
    SHARED
    | _CHOICES
    | {
        "messages": MESSAGES,
        "logprobs": s.FLAG,
        "top_logprobs": s.given(LOGPROBS.schema),
        "tools": TOOLS,
        "tool_choice": s.given({"anyOf": [{"enum": [*TOOL_CHOICES]}, _CHOICE]}),
        "parallel_tool_calls": s.FLAG,
        "reasoning_effort": EFFORT,
        "chat_template_kwargs": TEMPLATE_KWARGS,
        "continue_final_message": s.FLAG,
        "add_generation_prompt": s.FLAG,
    },
    "messages",
)


def read_chat(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    data, names = CHAT.read(data)
    parallel = data.get("parallel_tool_calls", True)
    tools = _chosen(data.get("tools", []), data.get("tool_choice"), parallel)
    wants, top = data.get("logprobs", False), data.get("top_logprobs", 0)
    if not (s.is_count(top) and 0 <= top <= TOP_LOGPROBS_MAX) or (top and not wants):
        raise invalid_value(
            "top_logprobs",
            f"must be a whole number from 0 to {TOP_LOGPROBS_MAX}, "
            "and requires logprobs to be true.",
        )
    reasoning = data.get("_reasoning", {})
    effort, values = data.get("reasoning_effort"), data.get("chat_template_kwargs", {})
    effort = effort or reasoning.get("effort")
    names = {
        "prompt": "messages",
        "json_schema": "response_format",
        "think": "reasoning_effort" if effort else "chat_template_kwargs",
    } | names
    chat = {
        "tools": tools,
        "reasoning": ReasoningFields(
            effort, values, reasoning.get("think"), reasoning.get("budget")
        ),
        "logprobs": top if wants else None,
        "json_schema": schema_in(data, names),
        "continues": _continues(data),
    }
    return request_of(data | chat, (data["messages"],), default, most, names)


def _continues(data: dict[str, Any]) -> bool | None:
    """Return whether the last message must be continued; None: if it is of the assistant."""
    continues, begins = data.get("continue_final_message"), data.get("add_generation_prompt")
    if continues and begins:
        raise invalid_value("continue_final_message", "cannot be combined with a new message.")
    return continues if continues is not None else None if begins is None else not begins


def continued(
    messages: Sequence[Message], continues: bool | None = None
) -> tuple[Sequence[Message], str]:
    """Return the messages before an answer, and its beginning: the last one, of the assistant."""
    last = messages[-1]
    is_text = isinstance(last.get("content"), str) and not last.get("tool_calls")
    can = last.get("role") == "assistant" and is_text and len(messages) > 1
    if continues and not can:
        fact = "requires a last message of the assistant with a text, and others before it."
        raise invalid_value("continue_final_message", fact)
    if not can or continues is False or (last.get(REASONING) and not continues):
        return messages, ""
    if last.get(REASONING):
        note(f"messages[].{REASONING}", "A message is continued after its reasoning.")
    return messages[:-1], last["content"]


def schema_in(data: dict[str, Any], names: dict[str, str]) -> Any:
    found = data.get("response_format")
    for name in ("json_schema", "guided_json"):
        if name in data and found is None:
            found, names["json_schema"] = data[name], name
    return found


def read_text(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    data, names = TEXT_BODY.read(data)
    default_length = {"max_tokens"} - data.keys()
    data.setdefault("max_tokens", min(TEXT_MAX_TOKENS, most or TEXT_MAX_TOKENS))
    given, echo, suffix = data["prompt"], data.get("echo", False), data.get("suffix", "")
    are_texts = all(isinstance(prompt, str) for prompt in given)
    shown = data.get("prompt_logprobs")
    scored = [one for one in (shown, data.get("logprobs") if echo else None) if one is not None]
    whole = echo or shown is not None
    if suffix != "" and not (isinstance(suffix, str) and are_texts and not whole):
        fact = "must be a string, requires a prompt that is one, and excludes echo and its scores."
        raise invalid_value("suffix", fact)
    names = {"json_schema": "response_format"} | names | {"prompt": "prompt"}
    data["json_schema"] = schema_in(data, names)
    request = request_of(data, given, default, most, names)
    if not same(data.get("best_of", request.n), request.n):
        note("best_of", "The choices are those of n.")
    own = request.given - default_length
    return replace(
        request,
        echo=echo,
        suffix=suffix or None,
        given=own,
        n_scored=max(scored, default=None),
        shows_scores=shown is not None,
    )


def request_of(
    data: dict[str, Any],
    prompts: tuple[Any, ...],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
) -> CompletionRequest:
    """Return the request that all APIs have in common.

    Args:
        data: Read fields: `SHARED`, and for a chat `tools` (a `ToolUse`), `reasoning` (as
            `ReasoningFields`), `json_schema`, and `logprobs` (None for none).
        prompts: Texts, token ids, or messages.
    """
    tools: ToolUse = data.get("tools", NO_TOOLS)
    if data.get("grammar") and data.get("json_schema") is not None:
        raise invalid_value("grammar", f"cannot be combined with {names['json_schema']}.")
    if data.get("grammar") and tools.has_grammar:
        raise invalid_value("grammar", "cannot be combined with calls that follow a schema.")
    n, options = data.get("n", 1), data.get("stream_options", {})
    if n * len(prompts) > CHOICES_MAX:
        raise invalid_value("n", f"times the number of prompts may be at most {CHOICES_MAX}.")
    more = ("json_schema", "logprobs", "dry_sequence_breakers", "stop_tokens")
    fields = {name: _meant(name, data[name]) for name in (*SAME, *more) if name in data}
    given = frozenset((*fields, *(data.keys() & {"stop", "logit_bias"})))
    biases = data.get("logit_bias", {})
    by_id = {token: bias for token, bias in biases.items() if isinstance(token, int)}
    fields |= {"stop": data.get("stop", ()), "logit_bias": by_id}
    fields["max_tokens"] = _max_tokens(data.get("max_tokens"), most, names)
    if data.get("n_probs") and fields.get("logprobs") is None:
        fields["logprobs"] = data["n_probs"]
    begun = ""
    if isinstance([*prompts[0][-1:], 0][0], dict):
        messages, begun = continued(prompts[0], data.get("continues"))
        prompts = (messages,)
        _name_repeats(messages)
    indent, most_ms = data.get("n_indent", 0), data.get("t_max_predict_ms", 0)
    most_s = min(most_ms, 10**9) / 1000 if most_ms > 0 else None
    asks = {
        "timings": data.get("timings_per_token"),
        "progress": data.get("stream") and data.get("return_progress"),
        "usage": options.get("continuous_usage_stats"),
    }
    if names.get("repeat_penalty") == "repetition_penalty":  # it counts all tokens there
        fields.setdefault("penalty_last_n", -1)
    return CompletionRequest(
        prompts,
        n,
        made(lambda: Sampling(**fields), names),
        _speculation(data.get("speculation"), default, names),
        stream=data.get("stream", False),
        usage=options.get("include_usage", False),
        shows_drafts=options.get("include_speculation", False),
        tools=tools,
        names=names | ({"prefill": names["prompt"]} if begun else {}),
        reasoning=data.get("reasoning", NO_REASONING_FIELDS),
        lines=LineLimits(indent, most_s) if indent or most_s else None,
        prefill=begun,
        given=given,
        biases=tuple((text, bias) for text, bias in biases.items() if isinstance(text, str)),
        each=frozenset(name for name, asked in asks.items() if asked),
    )


def _name_repeats(messages: Sequence[Message]) -> None:
    """Name in the log, every few times, that the same call is made again and again."""
    turns = [one.get("tool_calls") or [] for one in messages if one["role"] == "assistant"]
    calls = [[one["function"] for one in turn] for turn in reversed(turns)]
    n = next((i for i, one in enumerate(calls) if one != calls[0]), len(calls))
    if n and calls[0] and n % _REPEATS == 0:
        fact = "A conversation ends with the same tool call %d times: an agent may be in a loop."
        LOG.warning(fact, n)


def _meant(name: str, value: Any) -> Any:
    """Return a value of an option that other servers write in another way."""
    if name == "grammar" and value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name == "seed" and value < 0:  # -1 draws one; vLLM takes all numbers of 64 bits
        return None if value == -1 else value % SEEDS if value >= -SEEDS // 2 else value
    if name in ("top_p", "typical_p") and value == 0:  # the most likely token alone
        return _TINY
    if name in ("top_k", "top_n_sigma") and value == -1:
        return 0
    return 0 if name == "temperature" and -_MOST_COLD <= value < 0 else value


def _max_tokens(value: Any, most: int | None, names: dict[str, str]) -> Any:
    """Return the maximum length of the answer; -1 means as much as the server allows."""
    if value is None or (s.is_count(value) and value == -1):
        return most
    allowed = "a whole number, 0 or more, or -1 for as many as the server allows"
    is_length = s.is_count(value) and value >= 0
    made(lambda: require("max_tokens", value, allowed, is_length), names)
    if most is not None and value > most:
        raise invalid_value(
            names.get("max_tokens", "max_tokens"),
            f"is {value} but the limit of this server is {most}.",
        )
    return value


def _speculation(value: Any, default: Speculation, names: dict[str, str]) -> Speculation | None:
    if value is None:
        return None
    if value == "off":
        return replace(default, k=0)
    if not isinstance(value, dict):
        raise invalid_value("speculation", 'must be an object, or "off".')
    for name in value:
        if name not in SPECULATION:
            raise unknown(f"speculation.{name[:100]}")
    given = {name: whole(one) for name, one in value.items() if one is not None}
    options: Speculation = made(lambda: replace(default, **given), names)
    return options


def joined(prompt: Any, llm: LLM) -> Any:
    """Return a prompt of token ids and texts as token ids; others as they are."""
    if not (isinstance(prompt, list) and any(isinstance(one, str) for one in prompt)):
        return prompt
    tokens: list[int] = []
    for i, one in enumerate(prompt):
        most, tokenize = max(0, llm.n_ctx - len(tokens)), llm.vocabulary.tokenize
        is_text = isinstance(one, str)
        tokens += tokenize(one, special=True, start=i == 0, most=most) if is_text else [one]
    return tokens
