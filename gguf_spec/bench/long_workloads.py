"""Workloads of `bench` with prompts of about 1,000 and 4,000 tokens of real text.

Each has two forms: messages for models with a chat template, and a plain text that a base model
continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..errors import ContextTooShortError
from ..runtime.llm import LLM
from ..text.chat_template import Message

# Prompt sizes in tokens. A prompt of 3,900 tokens and its answer fit into the default context of
# 4,096 tokens.
SIZES = {
    "1k": 1000,
    "4k": 3900,
}
# Alternatives to a larger context.
SMALLER_WORK = ("set a smaller {n_tokens}", "select other workloads with {names}")


class Conversation(NamedTuple):
    """Messages or texts of a user, turn by turn.

    Attributes:
        turns: The user's text of each turn.
        history: Messages before the first turn.
        prefill: The beginning of each answer.
    """

    turns: tuple[str, ...]
    history: tuple[Message, ...] = ()
    prefill: str = ""


class _Form(NamedTuple):
    """A prompt in both forms.

    Attributes:
        text: Prompt for base models.
        question: Last message, for models with a chat template.
        history: Messages before the last one.
        prefill: Beginning of the answer. Small models do not follow the instruction to write a text
            again, but they continue a text that has begun.
    """

    text: str
    question: str
    history: tuple[Message, ...] = ()
    prefill: str = ""


@dataclass(frozen=True)
class LongWorkload:
    """A workload whose prompt is filled with real text up to a given length.

    Attributes:
        name: Its name.
        about: Description in one sentence.
        n_prompt: Maximum number of prompt tokens. The last sentence, line or record that does not
            fit is left out.
        n_tokens: Number of tokens of an answer.
        temperatures: Sampling temperatures of its cases; 0 is greedy.
        form: Returns the prompt for a number of sentences, lines or records; fewer if the text has
            fewer.
    """

    name: str
    about: str
    n_prompt: int
    n_tokens: int
    temperatures: tuple[float, ...]
    form: Callable[[int], _Form]

    def prompts(self, llm: LLM, n_tokens: int | None = None) -> list[str]:
        """Return the prompt as plain text for any model.

        Args:
            llm: The model that provides tokenizer and context size.
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        return [self._fitting(llm, n_tokens, as_text=True).text]

    def conversations(self, llm: LLM, n_tokens: int | None = None) -> list[Conversation]:
        """Return the prompt in the model's form.

        The form is plain text if `llm.prompt` is `text`, otherwise messages.

        Args:
            llm: The model that provides tokenizer, chat template and context size.
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        as_text = llm.prompt == "text"
        form = self._fitting(llm, n_tokens, as_text)
        return [
            Conversation((form.text,))
            if as_text
            else Conversation((form.question,), form.history, form.prefill)
        ]

    def _fitting(self, llm: LLM, n_tokens: int | None, as_text: bool) -> _Form:
        """Return the longest form of at most `n_prompt` tokens."""
        needed = self.n_prompt + (n_tokens or self.n_tokens)
        if needed > llm.n_ctx:
            raise ContextTooShortError(
                f"the workload {self.name}", llm.n_ctx, needed, *SMALLER_WORK
            )

        def fits(form: _Form) -> bool:
            messages = [*form.history, {"role": "user", "content": form.question}]
            ids = (
                llm.tokenize(form.text) if as_text else llm.tokenize(messages, prefill=form.prefill)
            )
            return len(ids) <= self.n_prompt

        low, high = 1, self.n_prompt  # each piece has at least one token
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(self.form(middle)) else (low, middle)
        return self.form(low)


@cache
def _sentences(name: str) -> tuple[str, ...]:
    """Return the sentences of a bundled text, each with its trailing white space."""
    return tuple(re.findall(r".+?(?:[.!?][\"')]*\s+|\s*\Z)", _read(name), re.DOTALL))


@cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple(_read(name).splitlines(keepends=True))


def _read(name: str) -> str:
    return (files("gguf_spec") / "data" / name).read_text(encoding="utf-8")


# ---- forms


def _document(n: int) -> _Form:
    passage = "".join(_sentences("document.txt")[:n]).strip()
    text = f"{passage}\n\nThis is what the story has told so far, in a few words:"
    return _Form(
        text,
        f"{passage}\n\nWhat does the Mole do in this text, and whom does he meet? Answer in a "
        "few sentences.",
    )


def _rewrite(n: int) -> _Form:
    sentences = _sentences("rewrite.txt")[:n]
    passage, start = "".join(sentences).strip(), _with_queen("".join(sentences[:2])).rstrip()
    text = f"{passage}\n\nThe same passage again, with a queen in place of the king:\n\n{start}"
    return _Form(
        text,
        f"{passage}\n\nWrite this passage again with a queen in place of the king, and change "
        "nothing else.",
        (),
        start,
    )


def _with_queen(text: str) -> str:
    return (
        re.sub(r"\bking", "queen", text)
        .replace(" he ", " she ")
        .replace(" his ", " her ")
        .replace(" him ", " her ")
    )


def _json(n: int) -> _Form:
    records = "\n".join(_record(i, "active") for i in range(n))
    start = "\n".join(_record(i, "archived") for i in range(2))
    text = f'{records}\n\nThe same records again, with the status "archived":\n\n{start}\n'
    question = (
        f'{records}\n\nWrite these records again, one a line, with the status "archived" in '
        'place of "active". Change nothing else.'
    )
    return _Form(text, question, (), f"{start}\n")


def _record(i: int, status: str) -> str:
    """Return record `i` as JSON.

    The lengths of the lists have no common factor, so a combination repeats only after 5,005
    records.
    """
    person = f"{_FIRST[i % len(_FIRST)]} {_LAST[i * 3 % len(_LAST)]}"
    values = {
        "id": 10_001 + 7 * i,
        "customer": person,
        "city": _CITIES[i * 5 % len(_CITIES)],
        "item": _ITEMS[i * 2 % len(_ITEMS)],
    }
    return json.dumps(
        values
        | {"count": 1 + i * i % 9, "price": round(4.5 + i * 37 % 1009 / 10, 2), "status": status}
    )


_FIRST = (
    "Ada",
    "Boris",
    "Chen",
    "Dalia",
    "Emil",
    "Farah",
    "Goran",
    "Hanna",
    "Ivo",
    "Jana",
    "Karim",
)
_LAST = ("Novak", "Lindqvist", "Okafor", "Tanaka", "Moreau", "Silva", "Weber")
_CITIES = (
    "Brno",
    "Uppsala",
    "Lagos",
    "Osaka",
    "Lyon",
    "Porto",
    "Graz",
    "Tartu",
    "Cork",
    "Split",
    "Bergen",
    "Izmir",
    "Utrecht",
)
_ITEMS = ("desk lamp", "garden hose", "tea kettle", "wall clock", "bicycle pump")


def _turn20(n: int) -> _Form:
    sentences = _sentences("turn20.txt")[:n]
    n_turns, history, text = len(_QUESTIONS), list[Message](), ""
    for i, question in enumerate(_QUESTIONS):
        answer = (
            "".join(
                sentences[i * len(sentences) // n_turns : (i + 1) * len(sentences) // n_turns]
            ).strip()
            or "That was all."
        )
        history += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text += f"Child: {question}\n\nGrandmother: {answer}\n\n"
    last = "Now tell me in your own words what has happened so far, and how it might end."
    return _Form(f"{text}Child: {last}\n\nGrandmother:", last, tuple(history))


_QUESTIONS = (
    "Tell me a story about a doctor and his animals.", "Go on, please.", "What happened then?",
    "And what did the Doctor say?", "Go on.", "What did the animals do?", "And then?",
    "Was the Doctor sad about it?", "Please go on.", "What came next?", "Who spoke then?",
    "And what happened after that?", "Go on, I am listening.", "What did his sister think?",
    "And the parrot?", "Then what happened?", "Did anyone help him?", "What did they do next?",
    "Go on with the story.",
)  # fmt: skip


def _code(n: int) -> _Form:
    lines = _lines("code.txt")[:n]
    source, start = "".join(lines).rstrip(), "".join(lines[:12])
    text = (
        f"{source}\n\n\n# The same file again, with the class Model renamed to "
        f"LoadedModel:\n\n{start}"
    )
    question = (
        f"```python\n{source}\n```\n\nRename the class Model to LoadedModel in this Python file. "
        "Write the whole file again."
    )
    return _Form(text, question, (), f"```python\n{start}")


_KINDS: tuple[tuple[str, str, tuple[float, ...], Callable[[int], _Form]], ...] = (
    ("document", "A question about a document.", (0.0, 0.8), _document),
    ("rewrite", "A passage to be written again with small changes.", (0.0,), _rewrite),
    ("json", "JSON records to be repeated with one value changed.", (0.0,), _json),
    ("turn20", "The twentieth turn of a chat.", (0.0, 0.8), _turn20),
    ("code", "A Python file to be repeated with one name changed.", (0.0,), _code),
)

LONG_WORKLOADS = tuple(
    LongWorkload(f"{name}-{size}", about, n_prompt, 128, temperatures, form)
    for size, n_prompt in SIZES.items()
    for name, about, temperatures, form in _KINDS
)
"""All long workloads in all sizes, shorter prompts first."""
