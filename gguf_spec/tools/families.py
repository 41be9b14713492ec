"""Tools of a request, and families of models by the syntax of their calls: one entry each.

A family is recognised by markers in the model's chat template, never by the name of a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .notations import JsonNotation, NamedCall, ObjectCall, PairNotation, TagNotation
from .source import words_of


@dataclass(frozen=True)
class ToolUse:
    """Tools of a request, and how the model may call them.

    Attributes:
        tools: The tools in OpenAI's format, for the chat template.
        required: Whether the answer must be a call.
        only: Name of the only tool that may be called; None for all of them.
        parallel: Whether the answer may have several calls.
        strict: Names of the tools whose arguments must follow their schema.
    """

    tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    required: bool = False
    only: str | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Names of the tools that may be called."""
        return [self.only] if self.only else [tool["function"]["name"] for tool in self.tools]

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Tools that may be called, with the JSON schemas of their arguments."""
        functions = (tool["function"] for tool in self.tools)
        found = {one["name"]: one.get("parameters") or {} for one in functions}
        return {name: found[name] for name in self.names}

    @property
    def has_grammar(self) -> bool:
        """Whether the answer must follow a grammar because of the tools."""
        return self.required or bool(self.strict)


NO_TOOLS = ToolUse()


@dataclass(frozen=True)
class Family:
    """Syntax of the tool calls of a family of models.

    The text of an answer has the names of special tokens, see `tokens`.

    Attributes:
        models: Some models, for the documentation.
        marks: Sets of texts; a template that contains all texts of a set is of this family.
        open: Text before the first call.
        between: Text between two calls, before the beginning of the second one.
        close: Text after the last call; it may be missing in an answer.
        tokens: Names of special tokens that belong to calls; they are shown in the answer.
        starts: Text with which an answer that consists of calls begins, without another marker.
        fences: Texts around calls in place of the markers: some models of the family write them
            so, or begin with bare objects, also in doubled braces.
        prompted: Marker of a call that the prompt has already written.
        text_mark: Text with which the prompt's marker becomes text.
        is_parallel: Whether an answer may have several calls.
        id_length: Number of letters and digits that the template demands of an id; 0 for any.
    """

    name: str
    models: str
    marks: tuple[tuple[str, ...], ...]
    call: NamedCall
    open: str = ""
    between: str = ""
    close: str = ""
    tokens: tuple[str, ...] = ()
    starts: str = ""
    fences: tuple[tuple[str, str], ...] = ()
    prompted: str = ""
    text_mark: str = ""
    is_parallel: bool = True
    id_length: int = 0

    @property
    def lead(self) -> str:
        """Text before the first call, with the beginning of that call."""
        return self.open + self.call.begins[0]

    @property
    def markers(self) -> tuple[str, ...]:
        """First words of the texts with which calls begin in the middle of an answer."""
        leads = [self.open + begin for begin in self.call.begins]
        return tuple(dict.fromkeys(words_of(lead)[0] for lead in leads if lead.strip()))

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return calls, names with arguments, in the syntax of the family."""
        written = self.between.join(self.call.write(name, found) for name, found in calls)
        return f"{self.open}{written}{self.close}"


def _tags(open_: str) -> NamedCall:
    tags = TagNotation("<parameter=", ">", "</parameter>\n", pad="\n")
    end = f"</function>\n</{open_}>"
    return NamedCall((f"<{open_}>\n<function=", "<function="), ">\n", tags, end)


def _gemma(quote: str, open_: str, close: str) -> NamedCall:
    return NamedCall((f"{open_}call:",), "{", PairNotation(":", "}", quote), "}" + close)


_GEMMA4 = ("<|tool_call>", "<tool_call|>", '<|"|>')
_FUNCTION_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)  # fmt: skip
_RECIPIENT = "<|channel|>commentary to="
HARMONY = "harmony"

# The first family that a template matches is taken.
FAMILIES: tuple[Family, ...] = (
    Family(
        HARMONY, "gpt-oss", (("<|channel|>", "<|message|>"),),
        NamedCall((f"{_RECIPIENT}functions.", _RECIPIENT), " <|constrain|>json<|message|>",
                  JsonNotation()),
        is_parallel=False,
    ),
    Family(
        "deepseek-r1", "DeepSeek V3, R1 and its distilled models",
        (("<｜tool▁sep｜>", "```json"),),
        NamedCall(("<｜tool▁call▁begin｜>function<｜tool▁sep｜>",), "\n```json\n", JsonNotation(),
                  "\n```<｜tool▁call▁end｜>"),
        open="<｜tool▁calls▁begin｜>", between="\n", close="<｜tool▁calls▁end｜>",
        tokens=_DEEPSEEK,
    ),
    Family(
        "deepseek-v3.1", "DeepSeek V3.1", (("<｜tool▁sep｜>",),),
        NamedCall(("<｜tool▁call▁begin｜>",), "<｜tool▁sep｜>", JsonNotation(),
                  "<｜tool▁call▁end｜>"),
        open="<｜tool▁calls▁begin｜>", close="<｜tool▁calls▁end｜>", tokens=_DEEPSEEK,
    ),
    Family(
        "functionary-v3.2", "Functionary v3.2", ((">>>all",),),
        NamedCall((">>>",), "\n", JsonNotation()), prompted=">>>", text_mark="all\n",
    ),
    Family(
        "seed", "Seed-OSS", (("<seed:tool_call>",),), _tags("seed:tool_call"), between="\n",
    ),
    Family(
        "qwen3-coder", "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5",
        (("<function=", "<parameter="),), _tags("tool_call"), between="\n",
    ),
    Family(
        "functionary-v3.1", "Functionary v3.1, Llama 3.1 with these tags", (("<function=",),),
        NamedCall(("<function=",), ">", JsonNotation(), "</function>"),
    ),
    Family(
        "glm", "GLM 4.5 to 4.7", (("<tool_call>", "<arg_key>"),),
        NamedCall(("<tool_call>",), "\n", TagNotation(
            "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), "</tool_call>"),
        between="\n",
    ),
    Family(
        "minimax-m2", "MiniMax M2", (("<minimax:tool_call>",),),
        NamedCall(('<invoke name="',), '">\n', TagNotation(
            '<parameter name="', '">', "</parameter>\n"), "</invoke>\n"),
        open="<minimax:tool_call>\n", close="</minimax:tool_call>",
    ),
    Family(
        "minicpm5", "MiniCPM 5", (('<function name="', '<param name="'),),
        NamedCall(('<function name="',), '">', TagNotation('<param name="', '">', "</param>"),
                  "</function>"),
        between="\n",
    ),
    Family(
        "gemma4", "Gemma 4", (("<|tool_call>call:",),),
        _gemma('<|"|>', *_GEMMA4[:2]), tokens=_GEMMA4,
    ),
    Family(
        "functiongemma", "FunctionGemma", (("<start_function_call>",),),
        _gemma("<escape>", *_FUNCTION_GEMMA[:2]), tokens=_FUNCTION_GEMMA,
    ),
    Family(
        "lfm2", "LFM2, LFM2.5",
        (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        NamedCall(("",), "(", PairNotation("=", ")", comma=", ", words=("True", "False", "None")),
                  ")"),
        open="<|tool_call_start|>[", between=", ", close="]<|tool_call_end|>",
        tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    Family(
        "command-r7b", "Command R7B, Command A", (("<|START_ACTION|>",),),
        ObjectCall(before='"tool_call_id": "\0", ', name_key="tool_name",
                   arguments_key="parameters"),
        open="<|START_ACTION|>[", between=", ", close="]<|END_ACTION|>",
        tokens=("<|START_ACTION|>", "<|END_ACTION|>"),
    ),
    Family(
        "command-r", "Command R, Command R+", (("Action:", "tool_name"),),
        ObjectCall(name_key="tool_name", arguments_key="parameters"),
        open="Action:\n```json\n[", between=", ", close="]\n```",
    ),
    Family(
        "phi4", "Phi-4-mini", (("<|/tool|>",), ("<|/tool_call|>",)), ObjectCall(),
        open="<|tool_call|>[", between=", ", close="]<|/tool_call|>",
        tokens=("<|tool_call|>", "<|/tool_call|>"),
    ),
    Family(
        "granite3", "Granite 3", (("<|tool_call|>",),), ObjectCall(),
        open="<|tool_call|>[", between=", ", close="]", tokens=("<|tool_call|>",),
    ),
    Family(
        "functools", "Firefunction v2, Phi-4-mini with vLLM's template", (("functools[",),),
        ObjectCall(), open="functools[", between=", ", close="]",
    ),
    Family(
        "apriel", "Apriel 1.5", (("<tool_calls>[",),), ObjectCall(),
        open="<tool_calls>[", between=", ", close="]</tool_calls>",
    ),
    Family(
        "nemotron", "Nemotron Nano v2", (("<TOOLCALL>[",),), ObjectCall(),
        open="<TOOLCALL>[", between=", ", close="]</TOOLCALL>",
    ),
    Family(
        "mistral-args", "Mistral Small 3.2, Magistral, Devstral, Ministral 3",
        (("[TOOL_CALLS]", "[ARGS]"),),
        NamedCall(("[TOOL_CALLS]",), "[ARGS]", JsonNotation(), skipped="[CALL_ID]"),
        tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), id_length=9,
    ),
    Family(
        "mistral", "Mistral 7B v0.3, Nemo, Mixtral", (("[TOOL_CALLS]",),), ObjectCall(),
        open="[TOOL_CALLS][", between=", ", close="]", tokens=("[TOOL_CALLS]",), id_length=9,
    ),
    Family(
        "hermes", "Hermes 2 and 3, Qwen2.5, Qwen3, QwQ, Granite 4, SmolLM3", (("<tool_call>",),),
        ObjectCall(("<tool_call>\n",), end="\n</tool_call>"), between="\n",
        fences=(("```json", "```"), ("```xml", "```"), ("```", "```"), *(
            (f"<{tag}>", f"</{tag}>") for tag in ("tools", "tool", "function_call", "response"))),
    ),
    Family(
        "llama3", "Llama 3.1 to 3.3, and any other template that has tools", ((),),
        ObjectCall(("", "<|python_tag|>"), arguments_key="parameters"), between="; ",
        tokens=("<|python_tag|>",), starts="{", is_parallel=False,
    ),
)  # fmt: skip


# The form of calls for chat templates without tools, which the message of the system explains.
GENERAL = next(family for family in FAMILIES if family.name == "hermes")
# Variables with which templates are given tools.
TOOL_VARIABLES = ("tools", "xml_tools")


def reads_tools(template: str) -> bool:
    """Return whether a template renders tools."""
    return any(re.search(rf"\b{name}\b", template) for name in TOOL_VARIABLES)


def family_of(template: str) -> Family:
    """Return the family of the calls of a model with this chat template."""
    family = marked_family(template)
    return GENERAL if family is FAMILIES[-1] and not reads_tools(template) else family


@lru_cache(maxsize=8)
def marked_family(template: str) -> Family:
    """Return the family whose marks a chat template contains."""
    return next(
        family
        for family in FAMILIES
        if any(all(mark in template for mark in marks) for marks in family.marks)
    )
