"""Options: a table with one `Rule` for each, and those of requests as frozen dataclasses.

`SAMPLING` holds the options of a request (those that drafts add are in `SPECULATION`), `LOADING`
those of `load` beside the model and its draft. The dataclasses check every value on construction.
The options of the command line, the fields of server requests and the OpenAPI schema are made from
the tables.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, TypeVar

from .drafters import DRAFTERS, installed
from .errors import InvalidOptionError, Option, OptionConflictError, OptionTypeError, Text

__all__ = ["AUTO_PARALLEL_MAX", "LOADING", "POOLING", "SAMPLING", "Rule", "Sampling", "Speculation"]

F = TypeVar("F", bound=Callable[..., Any])
Accept: TypeAlias = Literal["coupled", "rejection", "block"]
ACCEPT: tuple[Accept, ...] = ("coupled", "rejection", "block")
# drafters that are prediction heads
HEADS = tuple(name for name, kind in DRAFTERS.items() if kind.needs == "head")
# values of `draft` that name no model, and what they mean
DRAFT_WORDS = {name: kind.word for name, kind in DRAFTERS.items() if kind.word}
DRAFT_WORDS["none"] = "plain decoding"


class Draft(NamedTuple):
    """What drafts, as the argument `draft` of `load` says.

    Attributes:
        word: One of `DRAFT_WORDS`; empty for a model.
        model: Name, path or entry of a draft model or of a prediction head; None for a word.
    """

    word: str
    model: Any = None

    @classmethod
    def of(cls, given: Any) -> Draft:
        """Return what an argument says; None is `none`."""
        if given is None or (isinstance(given, str) and given in DRAFT_WORDS):
            return cls(given or "none")
        return cls("", given)


LOGPROBS_MAX = 100  # maximum number of reported alternatives per token
# Largest magnitude of options that are combined with logits, so that logits stay finite.
_MODERATE = 1_000_000
# Most requests that run at once if the number is `auto`.
AUTO_PARALLEL_MAX = 16
# Maximum draft length in tokens. It is fixed because a context reserves its logit rows on creation.
K_MAX = 64
# Longest default context, in tokens.
DEFAULT_CTX = 4096
LONG_CTX = 16_384  # where a tenth of the free memory holds it
# Ids from here on stand for embeddings of images, not for tokens (`llama.vision`).
IMAGE_IDS = 1 << 30
# How embeddings are pooled, by llama.cpp's numbers.
POOLING = ("none", "mean", "cls", "last", "rank")

# Largest number of devices and of patterns, and characters of a pattern.
_ITEMS_MAX, PATTERN_MAX = 64, 256
# llama.cpp's largest number of layers
LAYERS_MAX = 512
_ATTENTION = ("auto", "on", "off")
_SAME = "The same for the draft model.  [default: as the target]"


class Rule(NamedTuple):
    """Allowed values of an option, its help text, and its names outside of Python.

    Attributes:
        type: JSON type of the value, or of the items of a sequence or mapping.
        help: Help text on the command line.
        least: Smallest allowed number, or None.
        most: Largest allowed number, or None.
        above: Whether `least` itself is not allowed.
        choices: Allowed texts; empty for any text.
        others: Returns further allowed texts; called for a text that is not in `choices`.
        optional: Whether None is allowed.
        shape: Whether the value is one such value, a sequence, or a mapping from token ids.
        items_max: Maximum number of items of a sequence, or None.
        flags: Names on the command line; empty for `--field-name`.
        inverted: Whether the flag on the command line sets the option to False.
        in_requests: Whether server requests have a field with this name and these values.
        metavar: Its value in the help of the command line; empty for that of its type.
        default: Default of an option of `load` on the command line; None as `choices` and type say.
        of_speed: Whether an option of `load` changes no text, as those do that begin with `draft_`.
    """

    type: Literal["number", "integer", "boolean", "string", "any"]
    help: str
    least: float | None = None
    most: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    others: Callable[[], Iterable[str]] = tuple
    optional: bool = False
    shape: Literal["one", "sequence", "mapping"] = "one"
    items_max: int | None = None
    flags: tuple[str, ...] = ()
    inverted: bool = False
    in_requests: bool = True
    metavar: str | None = None
    default: Any = None
    of_speed: bool = False

    def accepts(self, value: Any) -> bool:
        """Return whether a value is allowed. A sequence must be a tuple; a mapping is not read."""
        if value is None:
            return self.optional
        if self.shape == "mapping":
            return isinstance(value, Mapping)
        if self.shape == "sequence":
            return (
                isinstance(value, tuple)
                and len(value) <= (self.items_max or len(value))
                and all(self.accepts_one(one) and one != "" for one in value)
            )
        return self.accepts_one(value)

    def accepts_one(self, value: Any) -> bool:
        """Return whether an item, or a value that is neither sequence nor mapping, is allowed."""
        if self.type == "boolean":
            return isinstance(value, bool)
        if self.type == "string":
            return isinstance(value, str) and (
                not self.choices or value in self.choices or value in self.others()
            )
        if self.type == "any":
            return True
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not (isinstance(value, int) if self.type == "integer" else math.isfinite(value)):
            return False
        low = self.least is None or (value > self.least if self.above else value >= self.least)
        return low and (self.most is None or value <= self.most)

    def has_type(self, value: Any) -> bool:
        """Return whether a value has the type of the option; an integer is a number."""
        if self.shape != "one":
            return isinstance(value, tuple if self.shape == "sequence" else Mapping)
        types: dict[str, Any] = {
            "number": (int, float), "integer": int, "boolean": bool, "string": str
        }  # fmt: skip
        is_bool = isinstance(value, bool) and self.type != "boolean"
        return not is_bool and isinstance(value, types.get(self.type, object))

    @property
    def allowed(self) -> str:
        """The allowed values in words; completes a sentence that ends with "must be"."""
        if self.shape == "mapping":
            return "a mapping from token ids to numbers"
        if self.shape == "sequence":
            items = "non-empty strings" if self.type == "string" else "token ids"
            return f"at most {self.items_max} {items}" if self.items_max else items
        if self.choices:
            all_ = [*self.choices, *self.others()]
            return " or ".join(all_) if len(all_) == 2 else f"one of {', '.join(all_)}"
        if self.type in ("boolean", "string"):
            return "True or False" if self.type == "boolean" else "text"
        kind = "a whole number" if self.type == "integer" else ""
        if self.most is None:
            return f"{kind}, {_shown(self.least)} or more"
        limits = f"from {_shown(self.least)} to {_shown(self.most)}"
        if self.above:
            limits = f"above {_shown(self.least)} and at most {_shown(self.most)}"
        return f"{kind} {limits}".strip()

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an item, or of a value that is neither sequence nor mapping."""
        if self.choices:
            return {"enum": list(self.choices)}
        schema: dict[str, Any] = {"type": self.type}
        if self.least is not None:
            schema["exclusiveMinimum" if self.above else "minimum"] = self.least
        if self.most is not None:
            schema["maximum"] = self.most
        return schema


def _shown(limit: float | None) -> str:
    words: dict[float, str] = {
        10**6: "a million",
        -(10**6): "minus a million",
        2**64 - 1: "2**64 - 1",
    }
    return words.get(limit, str(limit)) if limit is not None else ""


SAMPLING: dict[str, Rule] = {
    "max_tokens": Rule(
        "integer", "Maximum number of tokens; -1 for as many as the context holds.",
        0, optional=True, flags=("-n", "--max-tokens"),
    ),
    "temperature": Rule(
        "number", "Sampling temperature; 0 always takes the most likely token.",
        0, _MODERATE, flags=("-t", "--temperature"),
    ),
    "top_k": Rule("integer", "Keep this number of the most likely tokens; 0 keeps all.", 0),
    "top_p": Rule(
        "number", "Keep the most likely tokens up to this total probability.", 0, 1, above=True
    ),
    "min_p": Rule(
        "number", "Keep tokens with at least this fraction of the highest probability.", 0, 1
    ),
    "typical_p": Rule(
        "number", "Keep the tokens of most typical surprisal up to this total probability.",
        0, 1, above=True,
    ),
    "top_n_sigma": Rule(
        "number", "Keep logits within this number of standard deviations of the best; 0 keeps all.",
        0, _MODERATE,
    ),
    "xtc_probability": Rule("number", "Probability that XTC removes the most likely tokens.", 0, 1),
    "xtc_threshold": Rule("number", "Minimum probability of the tokens that XTC removes.", 0, 1),
    "repeat_penalty": Rule(
        "number", "Penalty factor for tokens that occurred before; 1 has no effect.", 0.001, 1000
    ),
    "frequency_penalty": Rule(
        "number", "Subtracted from a logit for each time that its token occurred.",
        -_MODERATE, _MODERATE,
    ),
    "presence_penalty": Rule(
        "number", "Subtracted from a logit once if its token occurred.", -_MODERATE, _MODERATE
    ),
    "penalty_last_n": Rule(
        "integer", "Number of recent tokens that the penalties consider; -1 for all.", -1
    ),
    "dry_multiplier": Rule(
        "number", "Strength of the DRY penalty for repeated sequences; 0 disables DRY.",
        0, _MODERATE,
    ),
    "dry_base": Rule(
        "number", "Growth factor of the DRY penalty with each repeated token.", 1, _MODERATE
    ),
    "dry_allowed_length": Rule(
        "integer", "Length from which DRY penalises a repeated sequence.", 0
    ),
    "dry_penalty_last_n": Rule(
        "integer", "Number of recent tokens that DRY considers; -1 for all.", -1
    ),
    # llama.cpp searches every token of the vocabulary for each breaker.
    "dry_sequence_breakers": Rule(
        "string", 'String that ends a repeated sequence for DRY. Repeatable.  [default: \\n : " *]',
        shape="sequence", items_max=50, flags=("--dry-breaker",), in_requests=False,
    ),
    "logit_bias": Rule(
        "number", "Value added to the logit of a token id; -inf forbids it. Repeatable.",
        -_MODERATE, _MODERATE, shape="mapping", in_requests=False,
    ),
    "grammar": Rule("string", "File with a GBNF grammar that the answer follows.", optional=True),
    "json_schema": Rule(
        "any", "JSON schema that the answer follows, or @FILE; {} allows any JSON.",
        optional=True, metavar="JSON", in_requests=False,
    ),
    "seed": Rule(
        "integer", "Seed; the same seed gives the same text.  [default: random, see --stats]",
        0, 2**64 - 1, optional=True,
    ),
    "stop": Rule(
        "string", "End the text before this string. Repeatable.",
        shape="sequence", in_requests=False,
    ),
    "stop_tokens": Rule(
        "integer", "End the text before this token id. Repeatable.",
        0, shape="sequence", flags=("--stop-token",), in_requests=False,
    ),
    "ignore_eos": Rule("boolean", "Do not end at an end token."),
    "logprobs": Rule(
        "integer", "Show the probability of each token and N alternatives, on stderr or in --json.",
        0, LOGPROBS_MAX, optional=True, metavar="N", in_requests=False,
    ),
    "think_budget": Rule(
        "integer", "Maximum number of reasoning tokens; then the model must answer.",
        0, optional=True,
    ),
    "overflow": Rule(
        "string",
        "If the context is full: stop, or shift (drop the older half of the answer and continue).",
        choices=("stop", "shift"), in_requests=False,
    ),
}  # fmt: skip
SPECULATION: dict[str, Rule] = {
    "k": Rule(
        "integer", "Maximum number of draft tokens in a round; 0 for plain decoding.",
        0, K_MAX, flags=("-k",),
    ),
    "drafter": Rule(
        "string",
        f"Source of drafts. {'; '.join(f'{one}: {row.help}' for one, row in DRAFTERS.items())}.",
        choices=tuple(DRAFTERS), others=installed,
    ),
    "adaptive": Rule(
        "boolean", "Draft -k tokens in every round, even if this is slower.",
        flags=("--fixed",), inverted=True,
    ),
    "accept": Rule(
        "string", "Acceptance rule: coupled (same text with any draft), rejection or block.",
        choices=ACCEPT,
    ),
    "exact": Rule(
        "boolean", "Also use wider passes; the text may differ at near ties, which are counted.",
        flags=("--allow-near-ties",), inverted=True,
    ),
    "strict": Rule(
        "boolean", "Decide each near tie as plain decoding does, at the cost of one pass."
    ),
}  # fmt: skip
LOADING: dict[str, Rule] = {
    "reference": Rule(
        "string", "Text file as an additional source of drafts.", flags=("--draft-text",),
        of_speed=True,
    ),
    "n_ctx": Rule(
        "integer", f"Context length in tokens.  [default: as trained, at most {DEFAULT_CTX}, or "
        f"{LONG_CTX} where a tenth of the free memory holds it]",
        2, optional=True, flags=("--ctx",), of_speed=True,
    ),
    "threads": Rule(
        "integer", "Number of threads.  [default: physical cores]", 1, 512, optional=True,
        of_speed=True,
    ),
    "flash_attention": Rule(
        "string", "Flash attention. auto selects the best; a --kv-type below 16 bits requires it.",
        choices=_ATTENTION,
    ),
    "draft_flash_attention": Rule("string", _SAME, choices=_ATTENTION, optional=True),
    "kv_type": Rule(
        "string", "Number type of the cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.",
        default="f16",
    ),
    "draft_kv_type": Rule("string", _SAME, optional=True),
    "gpu_layers": Rule(
        "any",
        "Layers to offload to the GPU; -1 for all, if llama.cpp has a GPU backend; auto for as "
        "many as fit.",
        default=-1,
    ),
    "draft_gpu_layers": Rule("any", _SAME, optional=True),
    "device": Rule(
        "string",
        "Device for the layers, as doctor names it, or none for the CPU alone. Repeatable.  "
        "[default: all GPUs]",
        shape="sequence", items_max=_ITEMS_MAX, metavar="DEVICE",
    ),
    "draft_device": Rule(
        "string", _SAME, shape="sequence", items_max=_ITEMS_MAX, metavar="DEVICE",
    ),
    "cpu_moe": Rule("boolean", "Keep the experts of all layers in main memory."),
    "n_cpu_moe": Rule(
        "integer", "Keep the experts of the first N layers in main memory.", 0, LAYERS_MAX,
        metavar="N", default=0,
    ),
    "override_tensor": Rule(
        "string",
        "PATTERN=DEVICE: put the tensors whose names match a regular expression on a device, or on "
        "CPU. The first match counts. Repeatable.",
        shape="sequence", items_max=_ITEMS_MAX, metavar="PATTERN=DEVICE",
    ),
    "mmap": Rule(
        "boolean",
        "Map the files into memory, or read them into it.  [default: what is faster and fits]",
        optional=True, flags=("--mmap/--no-mmap",), of_speed=True,
    ),
    "mlock": Rule(
        "boolean", "Lock the weights in main memory, so that they are never paged out.",
        of_speed=True,
    ),
    "numa": Rule(
        "string",
        "Placement of threads on a machine with several NUMA nodes.  [default: by the system]",
        choices=("distribute", "isolate", "numactl"), optional=True, of_speed=True,
    ),
    "kernels": Rule(
        "string",
        "Kernels of this package where they work (auto), or llama.cpp's (stock). Names of "
        "instruction sets are for tests.",
        choices=(
            *("auto", "stock", "avx2", "avxvnni", "avx512", "avx512vnni", "amx"),
            *("neondot", "neoni8mm"),
        ),
    ),
    "draft_threads": Rule(
        "integer", "Threads of the draft model.  [default: as the target]", 1, 512, optional=True
    ),
    "mmproj": Rule(
        "string", "Projector of a vision model, for prompts with images.", optional=True
    ),
    "lora": Rule(
        "any", "LoRA adapter of the target; the default of SCALE is 1. Repeatable.",
        shape="sequence",
    ),
    "draft_lora": Rule("any", "The same for the draft model.", shape="sequence"),
    "extra_bufts": Rule(
        "boolean", "Repack the weights for this CPU.  [default: if the self-test succeeds]",
        optional=True, flags=("--extra-bufts/--no-extra-bufts",),
    ),
    "chat_template": Rule(
        "string", "Chat template (Jinja) in place of that of the file.", optional=True
    ),
    "rpc": Rule(
        "string", "Worker that holds a part of the target, see gguf-spec worker. Repeatable.",
        shape="sequence", metavar="HOST:PORT",
    ),
}  # fmt: skip
# Options that only commands for several requests and for embeddings have.
REQUESTS: dict[str, Rule] = {
    "parallel": Rule(
        "any",
        "Number of requests at once; each has a cache of --ctx tokens. auto: as many as raise the "
        "speed by the measured costs, from 4 to 16, in a quarter of the free memory.",
    ),
    "max_gap": Rule(
        "number",
        "Seconds that a request which is being answered waits at most for the prompts of others: "
        "they are read in pieces. Longer pieces are read faster.  [default: 0.4]",
        0.001, 3600, optional=True, metavar="SECONDS",
    ),
    "prefix_memory": Rule(
        "string",
        "Memory for the caches of earlier texts, such as 500MB or 2GiB: a request that begins "
        "like one of them needs not read that part. 0: none. auto: an eighth of the free memory.",
        metavar="SIZE",
    ),
    "keep": Rule(
        "string",
        "Keep prompts on disk, so that they need not be read again after a restart: a folder, the "
        "largest size of the usual one, such as 20GB, or both (FOLDER:20GB). The texts stay the "
        "same. See gguf-spec kept.  [default: nothing is kept]",
        optional=True, metavar="FOLDER|SIZE",
    ),
    "draft_texts": Rule(
        "string",
        "Drafts from earlier texts and what followed in them: off, memory (of this process), disk "
        "(of this model, in the cache folder or beside --keep), or a folder or file with texts to "
        "add. The texts of answers stay the same; their time can show others that a text like it "
        "was there.",
        optional=True, metavar="off|memory|disk|FOLDER",
    ),
    "pooling": Rule(
        "string", "How embeddings are pooled; none gives a row for each token.  "
        "[default: as the file says, else mean]",
        choices=POOLING, optional=True,
    ),
}  # fmt: skip
OPTIONS = LOADING | REQUESTS | SAMPLING | SPECULATION
# Name in Python -> names on the command line, and parameter of the command.
FLAGS = {name: rule.flags or (f"--{name.replace('_', '-')}",) for name, rule in OPTIONS.items()}
PARAMETERS = {
    name: flags[-1].split("/")[0].lstrip("-").replace("-", "_") for name, flags in FLAGS.items()
}
# Metadata of a file -> sampling option.
_IN_FILE = {
    "temp": "temperature", "penalty_repeat": "repeat_penalty",
    **{name: name for name in ("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold")},
    "penalty_last_n": "penalty_last_n",
}  # fmt: skip


def sampling_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling options in the metadata of a file, without those that are not allowed."""
    found = {name: metadata.get(f"general.sampling.{key}") for key, name in _IN_FILE.items()}
    # The numbers of files are 32 bits wide.
    read = {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in found.items()}
    return {k: v for k, v in read.items() if v is not None and SAMPLING[k].accepts(v)}


def default_sampling(
    metadata: Mapping[str, Any], entry: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return default sampling options by name, and where each comes from.

    Those of the start (`given`) count before those of models.yaml (`entry`), and these before those
    of the file.
    """
    values, sources = dict[str, Any](), dict[str, str]()
    origins = {"file": sampling_in(metadata), "models.yaml": entry, "option": given}
    for source, some in origins.items():
        values |= some
        sources |= dict.fromkeys(some, source)
    return values, sources


# Options with texts that are compared with those of answers.
_WRITTEN = ("stop", "dry_sequence_breakers", "grammar")


def well_formed(text: str) -> str:
    """Return a text in which U+FFFD stands for each unpaired surrogate, as in JavaScript.

    Such texts come from clients that cut between the halves of a character, from escapes in JSON,
    and from bytes on the command line that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:  # a decoder that replaces takes a microsecond for each
        text = _SURROGATES.sub(lambda pair: _joined(pair[0]), text)
        text = _SURROGATE.sub("\ufffd", text)
    return text


_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _joined(pair: str) -> str:
    return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def checked(name: str, value: Any) -> Any:
    """Return the value of an option; one text stands for a sequence of it.

    Raises:
        InvalidOptionError: The value is not allowed.
    """
    rule = OPTIONS[name]
    if rule.shape == "sequence":
        texts = (value,) if isinstance(value, str) else value
        value = tuple(texts) if _many(object)(texts) else value
    if not rule.accepts(value):
        kind = InvalidOptionError if rule.has_type(value) else OptionTypeError
        hint = _WITHOUT_LIMIT.get((name, value)) if isinstance(value, int) else None
        raise kind(name, value, rule.allowed, hint and Text(hint))
    if name in _WRITTEN and value is not None:
        return well_formed(value) if isinstance(value, str) else tuple(map(well_formed, value))
    return value


# Value of other programs for "no limit" or "at random" -> hint with the one of this package.
_WITHOUT_LIMIT = {
    ("seed", -1): "omit {seed} for a random seed.",
    ("max_tokens", -1): "set {max_tokens=None} for as many as the context holds.",
    ("top_k", -1): "set {top_k=0} to keep all tokens.",
    ("think_budget", -1): "omit {think_budget} for no limit.",
}


class Argument(NamedTuple):
    """Type of an argument of the Python API.

    Attributes:
        allowed: The type in words; completes a sentence that ends with "must be".
        optional: Whether None is allowed.
        hint: How to write it; empty for the usual hint.
    """

    accepts: Callable[[Any], bool]
    allowed: str
    optional: bool = False
    hint: str = ""


def _of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _many(*types: type) -> Callable[[Any], bool]:
    """Return a test for several values, of these types if it is a sequence."""
    return lambda value: (
        isinstance(value, Iterable)
        and not isinstance(value, (str, bytes, bytearray, Mapping))
        and not (isinstance(value, Sequence) and not all(isinstance(x, types) for x in value))
    )


_TEXT, _FLAG = Argument(_of(str), "a text"), Argument(_of(bool), "True or False")
_MAYBE = Argument(_of(bool), "True, False or None", True)
_CALLED = Argument(callable, "a function or None", True)
_PATH = Argument(_of(str, os.PathLike), "a path")
_ANY_PATH = Argument(_of(str, os.PathLike), "a path or None", True)
_MODEL = Argument(_of(str, os.PathLike), "the name of a model or a path")


def _arguments() -> dict[str, Argument]:
    """Return the types of the arguments of the Python API that have no rule of their own."""
    sampling = Argument(
        _of(Sampling), "a Sampling or None", True, "write Sampling(max_tokens=100, temperature=0)."
    )
    speculation = Argument(
        _of(Speculation), "a Speculation or None", True, "write Speculation(k=8)."
    )
    mapping = Argument(_of(Mapping), "a mapping of names to values, or None", True)
    images = Argument(_many(object), "a list of images", hint="write one image as a list of one.")
    return {
        "sampling": sampling,
        "samplings": Argument(
            lambda value: isinstance(value, Sampling) or _many(Sampling, type(None))(value),
            "a Sampling, a list of them, or None", True, sampling.hint,
        ),
        "speculation": speculation,
        **dict.fromkeys(("prefill", "text", "query", "prefix", "suffix"), _TEXT),
        **dict.fromkeys(("echo", "special", "normalize", "verbose"), _FLAG),
        **dict.fromkeys(("think", "reasoning", "extra_bufts"), _MAYBE),
        **dict.fromkeys(
            (
                "on_token", "on_prompt", "on_result", "on_pass", "on_measure", "on_progress",
                "on_failed", "progress",
            ),
            _CALLED,
        ),
        "path": _PATH,
        **dict.fromkeys(("reference", "models_file", "mmproj"), _ANY_PATH),
        "model": _MODEL,
        "draft": _MODEL._replace(optional=True),
        "llm": Argument(
            lambda value: hasattr(value, "generate"), "an LLM", hint="load one with gguf_spec.load."
        ),
        "source": Argument(
            lambda value: isinstance(value, (str, os.PathLike)) or hasattr(value, "read"),
            "a path or a binary stream",
        ),
        "target": Argument(
            lambda value: isinstance(value, (str, os.PathLike)) or hasattr(value, "write"),
            "a path or a binary stream",
        ),
        "images": images,
        "system": _TEXT._replace(allowed="a text or None", optional=True),
        "tools": Argument(_many(Mapping), "a list of functions in OpenAI's format, or None", True),
        "stop_tokens": Argument(
            _many(SupportsIndex), "token ids", hint="write one id as a list of one."
        ),
        "chat_template_kwargs": mapping,
        "chat_template": _TEXT._replace(allowed="a template in Jinja or None", optional=True),
        "data": mapping._replace(allowed="a mapping of names to values", optional=False),
        "token": Argument(_of(SupportsIndex), "a token id"),
        "most": Argument(_of(SupportsIndex), "a number of tokens or None", True),
        **dict.fromkeys(("options", "documents"), Argument(_many(str), "a list of texts")),
        "files": Argument(_many(Sequence), "a list of pairs of a name and a text"),
        **dict.fromkeys(
            ("flash_attention", "kv_type"), Argument(_of(str), "a text, such as 'auto' or 'f16'")
        ),
        **dict.fromkeys(
            ("draft_flash_attention", "draft_kv_type"),
            Argument(_of(str), "a text, such as 'auto' or 'f16', or None", True),
        ),
        **dict.fromkeys(
            ("lora", "draft_lora"),
            Argument(
                lambda value: isinstance(value, (str, os.PathLike, tuple, list)),
                "a file, a pair of a file and a scale, or a list of these",
            ),
        ),
        "rpc": Argument(
            lambda value: isinstance(value, str) or _many(str)(value),
            "an address such as 'localhost:50052', or a list of them",
        ),
    }  # fmt: skip


def check_types(**given: Any) -> None:
    """Check the types of arguments of the Python API.

    Raises:
        OptionTypeError: A value has another type.
    """
    for name, value in given.items():
        one = ARGUMENTS[name]
        if not (one.accepts(value) or (value is None and one.optional)):
            raise wrong_type(name, value, one.allowed, one.hint)


# Option in other programs -> the same one here, where its name is not alike.
_OTHER_NAMES = {
    "ctx": "n_ctx", "context": "n_ctx", "context_length": "n_ctx", "num_ctx": "n_ctx",
    "n_threads": "threads", "n_gpu_layers": "gpu_layers", "ngl": "gpu_layers",
    "n_predict": "max_tokens", "num_predict": "max_tokens", "max_new_tokens": "max_tokens",
    "max_length": "max_tokens", "length": "max_tokens", "temp": "temperature",
    "repetition_penalty": "repeat_penalty", "system_prompt": "system", "callback": "on_token",
    "use_mmap": "mmap", "use_mlock": "mlock", "draft_model": "draft",
}  # fmt: skip


def no_such_option(name: str, value: object, known: Iterable[str]) -> OptionTypeError:
    """Return the error for a keyword argument that a function lacks."""
    names = [*known]
    near = difflib.get_close_matches(name, names, 1, 0.7)
    near = [_OTHER_NAMES[name]] if _OTHER_NAMES.get(name) in names else near
    elsewhere = LOADING if name in LOADING else REQUESTS if name in REQUESTS else ()
    hint = f"did you mean {near[0]}?" if near else "see help() of the function for its arguments."
    if elsewhere and not near:
        hint = "it is an argument of gguf_spec.load."
    return OptionTypeError(name, value, hint=hint, message=f"there is no argument {name!r}.")


def named(function: F) -> F:
    """Make a keyword argument that a function or a class lacks an `OptionTypeError`.

    For those whose arguments are all named. Others call `no_such_option`.
    """
    if isinstance(function, type):
        function.__init__ = named(function.__init__)  # type: ignore[misc]
        return function
    code = function.__code__
    known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if not options.keys() <= known:
            name = next(name for name in options if name not in known)
            raise no_such_option(name, options[name], sorted(known - {"self"}))
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def with_options(
    sampling: Sampling,
    speculation: Speculation,
    options: Mapping[str, Any],
    known: Iterable[str] = (),
) -> tuple[Sampling, Speculation]:
    """Return the options of a request with single ones, which were given by keyword.

    Args:
        options: Fields of `Sampling` and of `Speculation` with other values.

    Raises:
        OptionTypeError: There is no such field, or it has another type.
        InvalidOptionError: A value is not allowed.
    """
    for name, value in options.items():
        if name not in SAMPLING and name not in SPECULATION:
            raise no_such_option(name, value, (*known, *SAMPLING, *SPECULATION))
    if options:
        sampling = replace(sampling, **{k: v for k, v in options.items() if k in SAMPLING})
        speculation = replace(speculation, **{k: v for k, v in options.items() if k in SPECULATION})
    return sampling, speculation


def wrong_type(option: str, value: object, allowed: str, hint: str = "") -> OptionTypeError:
    """Return the error for a value of another type, whose type it names."""
    named = Text("{} is {} but must be {}.", Option(option), _described(value), allowed)
    name = option.partition("[")[0]  # of the argument, where the text names one of its items
    return OptionTypeError(name, value, allowed, hint or f"give {allowed}.", message=named)


def _described(value: object) -> str:
    """Return a value and its type in a few words."""
    if value is None:
        return "None"
    text, name = repr(value), type(value).__name__
    return f"{text if len(text) <= 60 else text[:50] + '...'} ({name})"


def require(option: str, value: Any, allowed: str, ok: bool) -> None:
    """Raise InvalidOptionError unless a value is allowed; `allowed` ends the sentence "must be"."""
    if not ok:
        raise InvalidOptionError(option, value, allowed)


def _check_rules(options: Any, rules: Mapping[str, Rule]) -> None:
    """Check each field but the defaults against its rule; store sequences as tuples.

    Raises:
        InvalidOptionError: A value is not allowed. The error names the first such field.
    """
    for name in rules:
        value = getattr(options, name)
        if value is not getattr(type(options), name, rules):  # `rules`: a field without a default
            object.__setattr__(options, name, checked(name, value))


@named
@dataclass(frozen=True)
class Sampling:
    """Options for sampling a token from the target's logits and for ending the generation.

    The sampler chain and its order are those of llama.cpp: bias, penalties, DRY, grammar,
    top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature. Target and draft use the same
    chain, so the draft proposes no token that the target cannot emit.

    Attributes:
        temperature: Softmax temperature; 0 always selects the most likely token.
        top_k: Keep the `top_k` most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches `top_p`, in (0,
            1]; 1 keeps all.
        min_p: Keep tokens with at least `min_p` times the probability of the most likely token, in
            [0, 1].
        typical_p: Keep the tokens whose surprisal is nearest to the expected surprisal, up to this
            total probability, in (0, 1]; 1 keeps all (arXiv:2202.00666).
        top_n_sigma: Keep logits within this number of standard deviations of the best logit; 0
            keeps all (arXiv:2411.07641).
        xtc_probability: Probability that XTC removes every token above its threshold except the
            least likely of them, in [0, 1]; 0 disables XTC.
        xtc_threshold: Probability threshold of XTC, in [0, 1]. Above 0.5 XTC has no effect. At 0 it
            keeps only the least likely token.
        repeat_penalty: Divisor of positive logits and factor of negative logits for tokens that
            occurred before; 1 has no effect.
        frequency_penalty: Value subtracted from a logit for each earlier occurrence of its token.
        presence_penalty: Value subtracted once from a logit if its token occurred before.
        penalty_last_n: Number of most recent tokens, prompt included, that the penalties consider;
            -1 for all.
        dry_multiplier: Strength of DRY, which penalises tokens that would continue a repetition; 0
            disables DRY.
        dry_base: Growth factor of the DRY penalty per repeated token, 1 or more.
        dry_allowed_length: Repetitions of fewer tokens are not penalised.
        dry_penalty_last_n: Number of most recent tokens that DRY considers; -1 for all.
        dry_sequence_breakers: Strings that end a repeated sequence for DRY.
        logit_bias: Token id -> value added to its logit; `-inf` forbids the token.
        grammar: GBNF grammar that the generated text follows. If the prompt ends inside of the
            reasoning, the grammar begins after it.
        json_schema: JSON schema that the generated text follows, as a mapping or as JSON; `{}`
            allows any JSON value. Cannot be combined with `grammar`.
        seed: Seed from 0 to 2**64 - 1. None draws a random seed, which the result reports.
        max_tokens: Maximum number of generated tokens; None generates until the context is full.
        overflow: Behaviour when the context is full. `stop` ends the generation. `shift` continues
            from the prompt and the newer half of the generated tokens, which are prefilled again.
            `shift` cannot be combined with a grammar.
        stop: Strings that end the text; they are not part of it, and not searched in the reasoning.
        stop_tokens: Token ids that end the text, in addition to the model's own; they are not part
            of it.
        ignore_eos: Never emit a token that ends the generation, unless the grammar allows no other
            token.
        logprobs: Number of most likely alternatives reported with the log-probability of each
            emitted token; None reports no log-probabilities.
        think_budget: Maximum number of reasoning tokens, for messages to a model with reasoning
            parts. After them the end of the reasoning is forced. None sets no limit.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: Mapping[str, Any] | str | bool | None = None
    seed: int | None = None
    max_tokens: int | None = 256
    overflow: Literal["stop", "shift"] = "stop"
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    think_budget: int | None = None

    def __post_init__(self) -> None:
        _check_rules(self, SAMPLING)
        free = self.grammar is None and self.json_schema is None
        stops = "stop if there is a grammar or a JSON schema"
        require("overflow", self.overflow, stops, self.overflow == "stop" or free)
        one = self.json_schema is None or self.grammar is None
        require("json_schema", self.json_schema, "omitted if there is a grammar", one)
        allowed = "token ids with numbers from minus a million to a million, or -inf"
        for token, bias in self.logit_bias.items():
            is_bias = SAMPLING["logit_bias"].accepts_one(bias) or bias == -math.inf
            ok = SAMPLING["stop_tokens"].accepts_one(token) and is_bias
            require("logit_bias", {token: bias}, allowed, ok)

    @property
    def greedy(self) -> bool:
        """Whether only the most likely token can be sampled."""
        return self.temperature == 0 or self.top_k == 1


# Most candidates of `InfillSampling`: each is compared with each.
INFILL_MAX = 100


@dataclass(frozen=True)
class InfillSampling(Sampling):
    """Sampling with llama.cpp's sampler `infill` after the other filters."""


@dataclass(frozen=True)
class WholeGrammarSampling(Sampling):
    """Sampling with a grammar for the whole answer, with the reasoning before the text."""


@named
@dataclass(frozen=True)
class Speculation:
    """Options for the draft length and the acceptance of draft tokens.

    Attributes:
        k: Maximum number of draft tokens per round, 0 to 64. 0 is plain decoding on the same code
            path.
        accept: Acceptance rule. All three rules preserve the target's distribution. Under `coupled`
            the seed alone determines the text: it is the same with any draft and without one.
            `rejection` and `block` resample when a draft token is rejected, so the text depends on
            seed, draft and k.
        strict: Decide each near tie again from a single-token pass of the target, as plain decoding
            does. Each costs one such pass. Different texts become rarer but remain possible,
            because the cache of earlier tokens was still computed in batches.
        drafter: Source of draft tokens, a name of the table in `gguf_spec.drafters` or of a drafter
            of another distribution. `auto` takes only the model if `adaptive` is off.
        adaptive: Choose the draft length by measured costs and estimated acceptance rates, and
            draft nothing if no length is faster than plain decoding. The length depends on measured
            times; under `rejection` and `block` the text therefore does too. If off, every round
            drafts `k` tokens regardless of their cost.
        exact: Verify only in passes whose rows are bit-identical to those of single-token passes,
            on machines where passes over two or more tokens can be so. If off, passes may be wider,
            and the text may differ from that of plain decoding at near ties, which are counted.
    """

    k: int = K_MAX
    accept: Accept = "coupled"
    strict: bool = False
    drafter: str = "auto"
    adaptive: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        _check_rules(self, SPECULATION)
        allowed = "False, or True with the acceptance rule coupled"
        require("strict", self.strict, allowed, self.accept == "coupled" or not self.strict)


ARGUMENTS = _arguments()


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def duration(text: str) -> float:
    """Parse a duration in seconds: `90`, `5m`, `1h30m`; negative for infinite."""
    text = text.strip()
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", text)
    if re.fullmatch(r"-\d+(\.\d+)?(h|ms|m|s)?", text):
        return math.inf
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError(f"{text!r} is not a duration such as 90, 5m, 1h30m or -1.")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


# ---- prompts

# A message of a chat: `role`, `content` and what the chat template reads besides.
Message = Mapping[str, Any]
# Functions that a model may call, in OpenAI's form.
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PromptOptions:
    """Options of a prompt that is made from messages.

    Attributes:
        prefill: Beginning of the answer.
        tools: Tools that the model may call, in OpenAI's form.
        think: Whether the model reasons before its answer; None leaves it to the template.
        values: Variables of the template.
    """

    prefill: str = ""
    tools: Tools | None = None
    think: bool | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def read_options(
    prefill: str,
    tools: Tools | None,
    think: bool | None,
    values: Mapping[str, Any] | None,
) -> PromptOptions:
    """Return the options of a prompt; the variable `enable_thinking` is the option `think`.

    Raises:
        InvalidOptionError: `think` contradicts the variable, or an argument has another type.
    """
    check_types(prefill=prefill, tools=tools, think=think, chat_template_kwargs=values)
    values = dict(values or {})
    if isinstance(values.get("enable_thinking"), bool):
        switch = values.pop("enable_thinking")
        if think is not None and think is not switch:
            raise OptionConflictError(Option("think", think), f"enable_thinking={switch}")
        think = switch
    return PromptOptions(well_formed(prefill), tools, think, values)


def check_text(options: PromptOptions) -> None:
    """Raise an InvalidOptionError if an option of the prompt of a text applies to messages only."""
    given = {"think": options.think, "chat_template_kwargs": options.values or None}
    for name, value in given.items():
        if value is not None:
            raise _needs_messages(name, value)


def no_reasoning(
    path: Path, option: str, value: object, is_chat: bool = True
) -> InvalidOptionError:
    if not is_chat:
        return _needs_messages(option, value)
    hint = Text("omit {}, or use a model that reasons.", Option(option))
    message = f"the chat template of {path.name} has no reasoning parts."
    return InvalidOptionError(option, value, "", hint, message=message)


def _needs_messages(option: str, value: object) -> InvalidOptionError:
    given = Option(option, value if isinstance(value, bool) else ...)
    hint = Text("send messages, or omit {}.", Option(option))
    message = Text("{} needs messages: a text has no chat template.", given)
    return InvalidOptionError(option, value, "", hint, message=message)
