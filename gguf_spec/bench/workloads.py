"""Short workloads of `bench`: texts to continue, and the same tasks as questions for chat models.

Small story models do not follow an instruction to copy. The texts to be repeated therefore consist
of a passage stated several times, which even the bundled pair continues to repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import ContextTooShortError, InvalidOptionError
from ..runtime.llm import LLM
from .long_workloads import LONG_WORKLOADS, SMALLER_WORK, Conversation, LongWorkload

_Turns = tuple[str, ...]
_TEMPLATE = 64  # tokens reserved per turn for the chat template
_FEWEST = 16  # minimum length of the long text before a conversation, in tokens


@dataclass(frozen=True)
class Workload:
    """A type of task with its conversations.

    Attributes:
        name: Its name.
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

    def prompts(self, llm: LLM, n_tokens: int | None = None) -> list[str]:
        """Return the first turn of each conversation as plain text, without a chat template.

        Args:
            llm: The model that provides tokenizer and context size.
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        return [before + one[0] for before, one in self._with_before(llm, self.texts, n_tokens)]

    def conversations(self, llm: LLM, n_tokens: int | None = None) -> list[Conversation]:
        """Return the conversations in the model's form.

        The form is texts to continue if `llm.prompt` is `text`, otherwise questions.

        Args:
            llm: The model that provides tokenizer and context size.
            n_tokens: Number of tokens of an answer; None selects the workload's own.

        Raises:
            ContextTooShortError: The context is too small.
        """
        kind = self.texts if llm.prompt == "text" else self.questions
        return [
            Conversation((before + one[0], *one[1:]))
            for before, one in self._with_before(llm, kind, n_tokens)
        ]

    def _with_before(
        self, llm: LLM, kind: Sequence[_Turns], n_tokens: int | None
    ) -> Iterator[tuple[str, _Turns]]:
        n = n_tokens or self.n_tokens
        for one in kind:
            turns = [len(llm.tokenize(turn)) + n + _TEMPLATE for turn in one]
            room = llm.n_ctx - sum(turns)
            if room < (_FEWEST if self.n_before else 0):
                raise ContextTooShortError(
                    f"the workload {self.name}",
                    llm.n_ctx,
                    sum(turns) + _FEWEST,
                    *SMALLER_WORK,
                    about=True,
                )
            yield (long_text(llm, min(self.n_before, room)) if self.n_before else ""), one


def long_text(llm: LLM, n_tokens: int) -> str:
    """Return a tale of at most `n_tokens` tokens in which no sentence repeats."""
    low, high = 0, n_tokens  # each sentence has several tokens
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if len(llm.tokenize(_sentences(middle))) <= n_tokens else (low, middle)
        )
    return _sentences(low)


def _sentences(n: int) -> str:
    """Return the first `n` sentences.

    The lengths of the lists have no common factor, so a combination repeats only after 17,017
    sentences.
    """
    parts = ((_WHO, 1), (_DID, 4), (_WHAT, 5), (_WHERE, 3))
    chosen = (" ".join(words[i * step % len(words)] for words, step in parts) for i in range(n))
    return "".join(
        f"{sentence}.{'' if (i + 1) % 6 else chr(10)}{' ' if (i + 1) % 6 else chr(10)}"
        for i, sentence in enumerate(chosen)
    )


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
        3500,
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
    known: dict[str, Workload | LongWorkload] = {one.name: one for one in WORKLOADS} | {
        one.name: one for one in LONG_WORKLOADS
    }
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
