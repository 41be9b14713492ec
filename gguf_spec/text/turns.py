"""What a chat template takes of a conversation, found by trying it, and messages that fit it.

A template may refuse messages, or leave their texts out without a word. Each way to write messages
in another form is only used for a template that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..options import Message

Messages = Sequence[Message]
# Writes calls, names with arguments, as text.
Write = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]


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
