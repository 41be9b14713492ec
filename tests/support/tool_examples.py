"""Tools and calls for the tests of all families."""

import json

from gguf_spec.grammar.automaton import Automaton
from gguf_spec.tools.families import FAMILIES, ToolUse
from gguf_spec.tools.reader import ToolReader

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "more": {
            "type": "object",
            "properties": {"on": {"type": "array", "items": {"type": "boolean"}}},
        },
    },
    "required": ["city"],
}
PING = {"type": "object", "properties": {}, "additionalProperties": False}
# Family -> markers of its chat templates.
TEMPLATE_MARKS = {
    "harmony": "<|channel|>final<|message|>",
    "deepseek-r1": "<｜tool▁calls▁begin｜>function<｜tool▁sep｜> ```json",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜><｜tool▁sep｜>",
    "functionary-v3.2": ">>>all", "seed": "<seed:tool_call><function=x><parameter=y>",
    "qwen3-coder": "<tool_call><function=x><parameter=y>",
    "functionary-v3.1": "<function=x>", "glm": "<tool_call>x<arg_key>",
    "minimax-m2": "<minimax:tool_call>", "minicpm5": '<function name="x"><param name="y">',
    "gemma4": "<|tool_call>call:", "functiongemma": "<start_function_call>",
    "lfm2": "<|tool_list_start|>", "command-r7b": "<|START_ACTION|>",
    "command-r": "Action: tool_name", "phi4": "<|tool|><|/tool|>",
    "granite3": "<|tool_call|>", "functools": "functools[", "apriel": "<tool_calls>[",
    "nemotron": "<TOOLCALL>[", "mistral-args": "[TOOL_CALLS] [ARGS]",
    "mistral": "[TOOL_CALLS]", "hermes": "<tool_call>", "llama3": "tools | tojson",
}  # fmt: skip
NAMES = [family.name for family in FAMILIES]


def use(**options):
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("weather", WEATHER), ("ping", PING))
    ]
    return ToolUse(tools, **options)


SCHEMAS = use().schemas
FULL = {"city": 'Sào "P" \\ </b>\n{x}', "days": 3, "unit": "C", "more": {"on": [True, False]}}
CALLS = [
    [("weather", {"city": "Bonn"})],
    [("weather", FULL)],
    [("ping", {})],
    [("weather", FULL), ("ping", {})],
    [("ping", {}), ("ping", {}), ("weather", {"city": ""})],
]
TEXTS = ["", "Hello.", "a < b, [x] {y} <b> >>", "é\n\nAction, for [1]", "1\n2\n"]


def written(family, calls):
    """Calls as the model writes them, after what the prompt has written."""
    return family.write(calls).removeprefix(family.prompted)


def spoken(family, text):
    """A text as the model writes it."""
    return family.text_mark + text


def accepts(gbnf, text):
    automaton = Automaton(gbnf, lambda word: int(word[2:-2]))
    at = automaton.read(automaton.number(automaton.start), text.encode())
    return at >= 0 and () in automaton.states[at][0]


def read(family, pieces, most=None):
    """What a stream of pieces gives: the text, and calls with their arguments as text."""
    reader = ToolReader(family, SCHEMAS, most)
    text, calls, broken = "", [], []
    events = [event for piece in pieces for event in reader.push(piece)]
    for event in [*events, *reader.finish()]:
        if event.kind == "text":
            text += event.text
        elif event.kind == "call":
            calls.append([event.text, ""])
        elif event.kind == "arguments":
            calls[-1][1] += event.text
        elif event.kind == "broken":
            broken.append((event.text, event.rest, *calls.pop()))
    return text, calls, broken


def loaded(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


def is_valid(name, arguments):
    """Whether arguments follow the schema of their tool."""
    if name == "ping":
        return arguments == {}
    more = arguments.get("more", {})
    return (
        isinstance(arguments["city"], str)
        and arguments.keys() <= WEATHER["properties"].keys()
        and arguments.get("days", 0) in range(10)
        and arguments.get("unit", "C") in ("C", "F")
        and more.keys() <= {"on"}
        and all(isinstance(one, bool) for one in more.get("on", []))
    )
