"""Workloads of `bench`: short ones, and prompts of about 1,000 and 4,000 tokens of real text."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

from ..errors import ContextTooShortError, InvalidOptionError
from ..options import Message
from ..runtime.llm import LLM

_T = TypeVar("_T")
_Turns = tuple[str, ...]
_TEMPLATE = 64  # tokens reserved per turn for the chat template
_FEWEST = 16  # minimum length of the long text before a conversation, in tokens


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


class _Conversations:
    """Conversations of a workload, in the form that a model takes."""

    def prompts(self, llm: LLM, n_tokens: int | None = None) -> list[str]:
        """Return the first turn of each conversation as plain text, without a chat template.

        Args:
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        return [one.turns[0] for one in self._in_form(llm, n_tokens, as_text=True)]

    def conversations(self, llm: LLM, n_tokens: int | None = None) -> list[Conversation]:
        """Return the conversations in the model's form.

        The form is texts to continue if `llm.prompt` is `text`, otherwise questions.

        Args:
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        return self._in_form(llm, n_tokens, as_text=llm.prompt == "text")

    @abstractmethod
    def _in_form(self, llm: LLM, n_tokens: int | None, as_text: bool) -> list[Conversation]:
        """Return the conversations as texts to continue, or as questions."""


@dataclass(frozen=True)
class Workload(_Conversations):
    """A type of task with its conversations.

    Attributes:
        about: Description in one sentence.
        n_tokens: Number of tokens of an answer.
        temperatures: Sampling temperatures of its cases; 0 is greedy.
        texts: Conversations for models that continue a text, most of them with one turn.
        questions: Conversations for models that answer messages.
        n_before: Tokens of a long text at the start of each conversation; fewer if the context
            holds fewer.
    """

    name: str
    about: str
    n_tokens: int
    temperatures: tuple[float, ...]
    texts: tuple[_Turns, ...]
    questions: tuple[_Turns, ...]
    n_before: int = 0

    def _in_form(self, llm: LLM, n_tokens: int | None, as_text: bool) -> list[Conversation]:
        n, found = n_tokens or self.n_tokens, []
        for first, *others in self.texts if as_text else self.questions:
            n_turns = sum(len(llm.tokenize(turn)) + n + _TEMPLATE for turn in (first, *others))
            room = llm.n_ctx - n_turns
            if room < (_FEWEST if self.n_before else 0):
                what, needed = f"the workload {self.name}", n_turns + _FEWEST
                raise ContextTooShortError(what, llm.n_ctx, needed, *SMALLER_WORK, about=True)
            before = long_text(llm, min(self.n_before, room)) if self.n_before else ""
            found.append(Conversation((before + first, *others)))
        return found


def long_text(llm: LLM, n_tokens: int) -> str:
    """Return a tale of at most `n_tokens` tokens in which no sentence repeats."""
    # each sentence has several tokens
    return _longest(_sentences, 0, n_tokens, lambda text: len(llm.tokenize(text)) <= n_tokens)


def _longest(make: Callable[[int], _T], low: int, high: int, fits: Callable[[_T], bool]) -> _T:
    """Return what `make` returns for the largest number below `high` with which it fits."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(make(middle)) else (low, middle)
    return make(low)


def _sentences(n: int) -> str:
    """Return the first `n` sentences.

    The lengths of the lists have no common factor, so a combination repeats only after 17,017
    sentences.
    """
    parts = ((_WHO, 1), (_DID, 4), (_WHAT, 5), (_WHERE, 3))
    chosen = (" ".join(words[i * step % len(words)] for words, step in parts) for i in range(n))
    ends = (" " if (i + 1) % 6 else "\n\n" for i in range(n))
    return "".join(f"{sentence}.{end}" for sentence, end in zip(chosen, ends, strict=True))


_WHO = (
    "The miller's youngest son", "An old soldier", "The king's daughter", "A little grey mouse",
    "The shoemaker", "A tall woman in a blue cloak", "The raven", "The cook of the castle",
    "One of the seven brothers", "The fisherman's wife", "A boy from the village",
)  # fmt: skip
_DID = (
    "carried", "looked for", "hid", "found", "sold", "asked for", "dreamed of", "bought", "lost",
    "forgot", "brought home", "talked about", "gave away",
)  # fmt: skip
_WHAT = (
    "a silver cup", "three apples", "an iron key", "the golden ring", "a basket of eggs",
    "a broken mirror", "the red shoes", "a loaf of bread", "the letter", "a bag of salt",
    "two candles", "the feather", "a wooden spoon", "the lantern", "a pair of scissors",
    "a woollen coat", "the drum",
)  # fmt: skip
_WHERE = (
    "behind the mill", "on the way to the sea", "before the sun rose", "under the old bridge",
    "in the market of the town", "when nobody was near", "on the last day of winter",
)  # fmt: skip

_TALES = (
    "There was once a poor miller who had three sons, a mill, a donkey and a cat. When he died, "
    "the eldest took the mill, the second the donkey, and for the youngest there was nothing left "
    "but the cat. He sat down upon a stone and did not know what to do, for a cat, he thought, "
    "can catch mice, but it cannot feed a man. The cat, who had heard all of it, came nearer and "
    "looked at him with grave eyes.",
    "A hungry fox saw some fine bunches of grapes hanging from a vine that was trained along a "
    "high trellis, and did his best to reach them by jumping as high as he could into the air. "
    "But it was all in vain, for they were just out of reach. A crow sat upon the trellis and "
    "watched him, and she laughed so loudly that the birds in the garden flew away.",
    "The king had a garden behind the palace, and in it stood a tree which bore golden apples. "
    "The apples were always counted, and when they began to grow ripe it was found that every "
    "night one of them was gone. The gardener sent his eldest son to keep watch, but at midnight "
    "he fell asleep, and in the morning another apple was missing.",
)
_BARGAIN = (
    "'I will give you a good fortune,' said the old man, 'and you will give me a good "
    "fortune.'\n\n",
    "'I will give you a ring,' said the princess, 'and you will give me a ring.'\n\n",
)

WORKLOADS = (
    Workload(
        "story", "An open story, free to go anywhere.", 128, (0.0, 0.8),
        (("Once upon a time there was a king who",), ("In the middle of the forest stood",),
         ("The old woman opened the door and",)),
        (("Tell me a fairy tale about a king and his three daughters.",),
         ("Write a short story that begins in the middle of a forest.",)),
    ),
    Workload(
        "repetitive", "A text of few words that come again and again.", 128, (0.0,),
        (("He had a son" + ", and he had a son" * 3,),
         ("The sun was shining" + ", and the sun shone, and the sun was shining" * 3,)),
        (
            ("For each day of four weeks write the line 'Monday, week 1: we rose early, fed the "
             "hens and went to the mill.' with its day and week.",),
            ("Write the multiplication tables of 3 and of 4, one product a line, as '3 times 1 "
             "is 3'.",),
        ),
    ),
    Workload(
        "copy",
        "An answer that repeats text of the prompt, exactly or with one word changed.",
        128, (0.0,),
        ((_BARGAIN[0] * 4,), (_BARGAIN[1] * 4,)),
        (
            (f"Repeat this text word for word, twice, and write nothing else:\n\n{_TALES[0]}",),
            ("Write this text again, with a wolf in place of the fox, and change nothing else. "
             f"Then write it once more:\n\n{_TALES[1]}",),
        ),
    ),
    Workload(
        "chat",
        "A conversation of three turns; each prompt contains all earlier turns.",
        64, (0.0, 0.8),
        ((
            '"Please tell us a story," said the children.\n\n"Once there was a king," said the '
            'old woman, "who',
            '"\n\n"And what did the king do then?" asked the children.\n\n"The king',
            '"\n\n"Is that the end?" they asked.\n\n"No," said the old woman, "for',
        ),),
        (("Tell me of a king who lost his crown.", "What did he do then?",
          "Now tell me the end, in the words of his daughter."),),
    ),
    Workload(
        "long", "A prompt of 3,500 tokens, or what the context holds.", 128, (0.0, 0.8),
        (("And when all of them had come home, the old king said",),),
        (("Go on with this tale.",),),
        n_before=3500,
    ),
    Workload(
        "short", "Answers of 16 tokens to prompts of about a hundred.", 16, (0.0, 0.8),
        tuple((tale,) for tale in _TALES),
        tuple((f"{tale}\n\nWho is this about? Answer in one sentence.",) for tale in _TALES),
    ),
)  # fmt: skip
"""All short workloads, in the order in which they run."""


def choose_workloads(
    names: Sequence[str] | None, long: bool = False
) -> list[Workload | LongWorkload]:
    """Return the workloads with these names, and all long ones if `long`.

    Without names and without `long`, return `WORKLOADS`.

    Raises:
        InvalidOptionError: A name is unknown.
    """
    every: tuple[Workload | LongWorkload, ...] = (*WORKLOADS, *LONG_WORKLOADS)
    known = {one.name: one for one in every}
    for name in names or ():
        if name not in known:
            raise InvalidOptionError("names", name, f"one of {', '.join(known)}")
    if not names and not long:
        return list(WORKLOADS)
    return [
        one
        for one in known.values()
        if one.name in (names or ()) or (long and isinstance(one, LongWorkload))
    ]


# Prompt sizes in tokens. A prompt of 3,900 tokens and its answer fit into the default context of
# 4,096 tokens.
SIZES = {"1k": 1000, "4k": 3900}
# Alternatives to a larger context.
SMALLER_WORK = ("set a smaller {n_tokens}", "select other workloads with {names}")


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
class LongWorkload(_Conversations):
    """A workload whose prompt is filled with real text up to a given length.

    Attributes:
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

    def _in_form(self, llm: LLM, n_tokens: int | None, as_text: bool) -> list[Conversation]:
        needed = self.n_prompt + (n_tokens or self.n_tokens)
        if needed > llm.n_ctx:
            what = f"the workload {self.name}"
            raise ContextTooShortError(what, llm.n_ctx, needed, *SMALLER_WORK)

        def fits(form: _Form) -> bool:
            messages = [*form.history, {"role": "user", "content": form.question}]
            ids = (
                llm.tokenize(form.text) if as_text else llm.tokenize(messages, prefill=form.prefill)
            )
            return len(ids) <= self.n_prompt

        form = _longest(self.form, 1, self.n_prompt, fits)  # each piece has at least one token
        if as_text:
            return [Conversation((form.text,))]
        return [Conversation((form.question,), form.history, form.prefill)]


@cache
def _sentences_of(name: str) -> tuple[str, ...]:
    """Return the sentences of a bundled text, each with its trailing white space."""
    return tuple(re.findall(r".+?(?:[.!?][\"')]*\s+|\s*\Z)", _read(name), re.DOTALL))


def _read(name: str) -> str:
    return (files("gguf_spec") / "data" / name).read_text(encoding="utf-8")


# ---- forms


def _document(n: int) -> _Form:
    passage = "".join(_sentences_of("document.txt")[:n]).strip()
    text = f"{passage}\n\nThis is what the story has told so far, in a few words:"
    question = (
        f"{passage}\n\nWhat does the Mole do in this text, and whom does he meet? Answer in a "
        "few sentences."
    )
    return _Form(text, question)


def _rewrite(n: int) -> _Form:
    sentences = _sentences_of("rewrite.txt")[:n]
    passage, start = "".join(sentences).strip(), "".join(sentences[:2]).rstrip()
    start = re.sub(r"\bking", "queen", start)
    for he, she in ((" he ", " she "), (" his ", " her "), (" him ", " her ")):
        start = start.replace(he, she)
    text = f"{passage}\n\nThe same passage again, with a queen in place of the king:\n\n{start}"
    question = (
        f"{passage}\n\nWrite this passage again with a queen in place of the king, and change "
        "nothing else."
    )
    return _Form(text, question, (), start)


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
        "count": 1 + i * i % 9,
        "price": round(4.5 + i * 37 % 1009 / 10, 2),
        "status": status,
    }
    return json.dumps(values)


_FIRST = (
    "Ada", "Boris", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Karim",
)  # fmt: skip
_LAST = ("Novak", "Lindqvist", "Okafor", "Tanaka", "Moreau", "Silva", "Weber")
_CITIES = (
    "Brno", "Uppsala", "Lagos", "Osaka", "Lyon", "Porto", "Graz", "Tartu", "Cork", "Split",
    "Bergen", "Izmir", "Utrecht",
)  # fmt: skip
_ITEMS = ("desk lamp", "garden hose", "tea kettle", "wall clock", "bicycle pump")


def _turn20(n: int) -> _Form:
    sentences = _sentences_of("turn20.txt")[:n]
    n_turns, history, text = len(_QUESTIONS), list[Message](), ""
    for i, question in enumerate(_QUESTIONS):
        start, end = (n * len(sentences) // n_turns for n in (i, i + 1))
        answer = "".join(sentences[start:end]).strip() or "That was all."
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
    lines = _read("code.txt").splitlines(keepends=True)[:n]
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
