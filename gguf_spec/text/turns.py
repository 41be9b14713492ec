"""What a chat template takes of a conversation, found by trying it, and messages that fit it.

A template may refuse messages, or leave their texts out without a word. Each way to write messages
in another form is only used for a template that needs it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..options import Message, Tools, well_formed

Messages = Sequence[Message]
# Writes calls, names with arguments, as text.
Write = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]


class Calls(Protocol):
    """How the calls of a model are written; `tools.families.Family` says it for each family."""

    @property
    def prompted(self) -> str:
        """Marker of a call that the prompt has already written."""

    @property
    def is_parallel(self) -> bool:
        """Whether an answer may have several calls."""

    @property
    def id_length(self) -> int:
        """Number of letters and digits that the template demands of an id; 0 for any."""

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]], /) -> str:
        """Return calls, names with arguments, as text."""


@dataclass(frozen=True)
class Needs:
    """Ways to write a conversation that a template needs.

    Attributes:
        typed: Contents are arrays of parts.
        lead: The messages of the system in front are one.
        later: Later messages of the system are marked parts of the user.
        join: Turns of the user and of the assistant alternate, and the user begins.
        no_system: The text of the system is part of the first message of the user.
        alone: The same, where there is nothing but a message of the system.
        results: Results of tools are messages of the user.
        calls: Calls are text of the assistant.
    """

    typed: bool = False
    lead: bool = False
    later: bool = False
    join: bool = False
    no_system: bool = False
    alone: bool = False
    results: bool = False
    calls: bool = False


def forms(messages: Messages, needs: Needs, write: Write) -> Iterator[list[dict[str, Any]]]:
    """Yield messages as a template needs them, and then in forms for stricter templates."""
    steps: tuple[dict[str, bool], ...] = (
        {}, {"lead": True, "later": True}, {"join": True}, {"no_system": True},
        {"results": True}, {"calls": True},
    )  # fmt: skip
    found: list[list[dict[str, Any]]] = []
    for step in steps:
        needs = replace(needs, **step)
        form = fitted(messages, needs, write)
        if form not in found:
            found.append(form)
            yield form


def fitted(messages: Messages, needs: Needs, write: Write) -> list[dict[str, Any]]:
    some = [dict(message) for message in messages]
    if needs.calls:
        some = with_calls_in_text(some, write)
    if needs.results or needs.calls:
        some = with_results_of_user(some)
    n = next((i for i, m in enumerate(some) if m["role"] != "system"), len(some))
    front, rest = some[:n], some[n:]
    if needs.later:
        rest = [_marked(one) if one["role"] == "system" else one for one in rest]
    no_system = front and (needs.no_system or (needs.alone and not rest))
    if front and (needs.lead or no_system):
        front = [{**front[0], "content": _joined(front)}]
    if no_system:
        front[0]["role"] = "user"
        if rest and rest[0]["role"] == "user":
            rest = [{**rest[0], "content": _joined([front.pop(), rest[0]])}, *rest[1:]]
    if needs.join:
        if rest and rest[0]["role"] == "assistant" and not (front and no_system):
            rest = [{"role": "user", "content": ""}, *rest]
        rest = _without_neighbours(rest)
    return [*front, *rest]


def with_calls_in_text(messages: Messages, write: Write) -> list[dict[str, Any]]:
    found = []
    for message in map(dict, messages):
        if calls := message.pop("tool_calls", None):
            functions = [call["function"] for call in calls if "function" in call]
            written = write([(x["name"], object_of(x.get("arguments"))) for x in functions])
            message["content"] = "\n".join(filter(None, (message["content"], written)))
        found.append(message)
    return found


def with_results_of_user(messages: Messages) -> list[dict[str, Any]]:
    results = [f"<tool_response>\n{m['content']}\n</tool_response>" for m in messages]
    return [
        {"role": "user", "content": result} if message["role"] == "tool" else dict(message)
        for message, result in zip(messages, results, strict=True)
    ]


def with_parts(messages: Messages) -> list[dict[str, Any]]:
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]


def object_of(arguments: Any) -> Any:
    """Return the arguments of a call as an object; a text that is none is its only field."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def _marked(message: Message) -> dict[str, Any]:
    return {"role": "user", "content": f"<system>\n{message['content']}\n</system>"}


def _joined(messages: Messages) -> str:
    return "\n\n".join(filter(None, (message["content"] for message in messages)))


def _without_neighbours(messages: Messages) -> list[dict[str, Any]]:
    """Return messages in which neighbours of the user, or of the assistant, are one."""
    found: list[dict[str, Any]] = []
    for message in messages:
        last = found[-1] if found else {}
        is_same = message["role"] == last.get("role") and message["role"] in ("user", "assistant")
        if is_same and not last.get("tool_calls"):
            found[-1] = {**last, **message, "content": _joined([last, message])}
        else:
            found.append(dict(message))
    return found


# ---- what a template needs

# A role for each letter. With `c` a message of the assistant has a call.
_ROLES = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}


def needs_of(render: Callable[[Messages, bool], str], write: Write) -> Needs:
    """Return what a template needs, from short conversations that it is tried with.

    `render` takes messages, and whether their contents are parts. It raises an error where the
    template refuses them.
    """

    def takes(roles: str, **ways: bool) -> bool:
        messages, words = _conversation(roles)
        try:
            text = render(fitted(messages, Needs(**ways), write), typed)
        except Exception:
            return False
        return all(word in text.lower() for word in words)

    typed = False
    if not takes("u"):
        typed = True
        if not takes("u"):
            return Needs()
    ways: dict[str, bool] = {}
    tries = (("suau", "no_system"), ("suuau", "join"), ("suaau", "join"), ("ssuau", "lead"),
             ("suasu", "later"))  # fmt: skip
    for roles, name in () if takes("ssuuaasu") else tries:
        # marked parts of the user may be neighbours of others
        for names in [[name], [name, "join"]] if not takes(roles, **ways) else []:
            one = {**ways, **dict.fromkeys(names, True)}
            if takes(roles, **one):
                ways = one
                break
    if not takes("s", **ways) and takes("s", **ways, alone=True):
        ways["alone"] = True
    for more in ({}, {"results": True}, {"calls": True}):
        if takes("uctau", **ways, **more):
            ways |= more
            break
    return Needs(typed=typed, **ways)


def _conversation(roles: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return messages of some roles, and the words that their prompt must have."""
    messages, words = list[dict[str, Any]](), list[str]()
    for i, letter in enumerate(roles):
        words.append(f"qwz{i}zwq")
        message: dict[str, Any] = {"role": _ROLES[letter], "content": words[-1]}
        if letter == "c":
            function = {"name": "look", "arguments": {"at": words[-1]}}
            call = {"id": "call00000", "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
        elif letter == "t":
            message |= {"tool_call_id": "call00000", "name": "look"}
        messages.append(message)
    return messages, words


# ---- calls and results of earlier messages, and tools

# A template that reads the tools from the system message, as JSON text.
_IN_SYSTEM = re.compile(r"\bmessage\s*(?:\.\s*tools\b|\[\s*['\"]tools['\"]\s*\])")
# What the message of the system says about tools, where a template does not.
_TOOLS_IN_TEXT = """\
You can use these tools, one in each line:
{tools}

To use one, answer with a call in this form, and wait for its result. Several calls may follow \
each other.
{call}"""
_PLACE = "_place_of_calls"
# Placeholders of calls: a number between two equal private-use characters.
_PLACES = re.compile('"?([\U00100000-\U0010fffd])[0-9]+\\1"?')


def with_tools_in_text(messages: Messages, tools: Tools, calls: Calls) -> list[dict[str, Any]]:
    """Return the messages of a chat with tools for a template that has none.

    The message of the system describes tools and calls, and calls and results become text.
    """
    found = with_results_of_user(with_calls_in_text(messages, calls.write))
    shown = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    form = calls.write([("NAME", {"ARGUMENT": "VALUE"})])
    text = _TOOLS_IN_TEXT.format(tools=shown, call=form)
    if found and found[0]["role"] == "system":
        text = f"{found.pop(0)['content']}\n\n{text}"
    return [{"role": "system", "content": text}, *found]


@dataclass(frozen=True)
class ToolHistory:
    """Messages for one template.

    Attributes:
        messages: A call that the template does not render is a placeholder at the end of a content.
        places: Placeholder -> the call in the model's syntax, or its arguments.
    """

    messages: list[dict[str, Any]]
    places: Mapping[str, str]

    def render(self, render: Callable[[Messages], str], contents: Messages) -> str:
        """Return the prompt for other contents of the messages, with all calls."""
        filled = []
        for new, fitted in zip(contents, self.messages, strict=True):
            filled.append({k: v for k, v in new.items() if k != _PLACE})
            if place := fitted.get(_PLACE):
                filled[-1]["content"] += place
        text = render(filled)
        # in one search: there may be thousands of places
        return _PLACES.sub(self._filled, text)

    def _filled(self, match: re.Match[str]) -> str:
        """Return the text of a place; quotes around it belong to it only as JSON."""
        whole, place = match[0], match[0].strip('"')
        return self.places.get(whole) or whole.replace(place, self.places.get(place, place))


def tool_history(
    messages: Messages, template: str, calls: Calls, tools: Tools | None
) -> ToolHistory:
    """Fit tools, calls and their results to a template.

    - Ids get the length that the template demands.
    - Several calls of a message become several messages where the template renders only one.
    - Calls become text where the template renders none.
    - Arguments that are no JSON are written as they are.
    - Tools become a field of the system message where the template reads them there.
    """
    fitted = [dict(message) for message in messages]
    if calls.id_length:
        fitted = [_with_ids(message, calls.id_length) for message in fitted]
    if not calls.is_parallel:
        fitted = _one_call_each(fitted)
    if tools and _IN_SYSTEM.search(template):
        text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        if not fitted or fitted[0]["role"] != "system":
            fitted = [{"role": "system", "content": ""}, *fitted]
        fitted[0] = {**fitted[0], "tools": text}
    places: dict[str, str] = {}
    called = [message for message in fitted if message.get("tool_calls")]
    taken = json.dumps(fitted, default=str, ensure_ascii=False) + template if called else ""
    (mark,) = unused(taken, 1, 0x100000) if called else ("",)
    for i, message in enumerate(called):
        functions = [call["function"] for call in message["tool_calls"]]
        if "tool_calls" not in template:
            del message["tool_calls"]
            written = [(one["name"], object_of(one["arguments"])) for one in functions]
            text = calls.write(written).removeprefix(calls.prompted)
            message[_PLACE] = place = f"{mark}{i}{mark}"
            places[place] = ("\n" if message["content"] else "") + text
        elif any(isinstance(one["arguments"], str) for one in functions):
            # A text that is no JSON, such as that of a cut call, stands there as it is.
            some = []
            for j, call in enumerate(message["tool_calls"]):
                function = call["function"]
                if isinstance(given := function["arguments"], str):
                    place = f"{mark}{i:09}{j:09}{mark}"
                    places |= {place: given, f'"{place}"': given}
                    function = {**function, "arguments": place}
                some.append({**call, "function": function})
            message["tool_calls"] = some
    return ToolHistory(fitted, places)


def with_text_arguments(messages: Messages, as_text: bool = True) -> list[dict[str, Any]]:
    """Return messages whose calls have their arguments as JSON text, or as objects."""
    found = [dict(one) for one in messages]
    for message in found:
        if message.get("tool_calls"):
            message["tool_calls"] = calls = [dict(call) for call in message["tool_calls"]]
            for call in calls:
                arguments = call["function"]["arguments"]
                if as_text and not isinstance(arguments, str):
                    arguments = json.dumps(arguments, ensure_ascii=False)
                arguments = arguments if as_text else object_of(arguments)
                call["function"] = {**call["function"], "arguments": arguments}
    return found


def _with_ids(message: dict[str, Any], length: int) -> dict[str, Any]:
    if message.get("tool_calls"):
        calls = [{**call, "id": _id(call.get("id"), length)} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _id(message["tool_call_id"], length)}
    return message


def _id(given: object, length: int) -> str:
    """Return an id of some length: the given one, or one that follows from it."""
    text = well_formed(str(given))
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with one call each, and the result of each call after it."""
    fitted, at = list[dict[str, Any]](), 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            fitted.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, at = messages[at:end], end
        for i, call in enumerate(calls):
            first = message if i == 0 else {"role": message["role"], "content": ""}
            fitted.append({**first, "tool_calls": [call]})
            fitted += [one for one in results if one.get("tool_call_id") == call.get("id")]
        ids = [call.get("id") for call in calls]
        fitted += [one for one in results if one.get("tool_call_id") not in ids]
    return fitted


def unused(taken: str, n: int, first: int = 0xF0000) -> list[str]:
    """Return private-use characters that are not in a text, from the plane of a code point on.

    They have no upper or lower case and are not white space.
    """
    found: set[str] = set()
    while len(found) < n:
        if (mark := chr(first + secrets.randbelow(0xFFFE))) not in taken:
            found.add(mark)
    return [*found]
