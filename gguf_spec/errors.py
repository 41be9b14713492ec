"""Exception types of the package.

`str(error)` states the fact with the real values. `error.hint` states how to fix it. Both name
options as in Python; `GgufSpecError.written` gives them with the names of another surface.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias


class Option(NamedTuple):
    """An option, named as in Python.

    Attributes:
        name: Name of the parameter or field, such as `n_ctx`.
        value: The value to set; `...` names the option without a value.
        of_commands: Whether only commands have this option.
    """

    name: str
    value: Any = ...
    of_commands: bool = False


class Pull(NamedTuple):
    """The call that downloads a model: `gguf_spec.pull('smollm2')`.

    Attributes:
        model: Name of the model.
        force: Whether it is downloaded again.
    """

    model: str
    force: bool = False


Write: TypeAlias = Callable[[Option | Pull], "str | None"]
"""Writes a name for one surface; None if the surface has no such option or function."""

# Modules that write traces; Python itself writes that of the main thread.
_TRACES = {"traceback", "threading"}
# Characters of a rejected value that a message shows.
_SHOWN = 200
# A part that some surfaces leave out, or the place of a value or an option.
_PLACE = re.compile(r"\[(?P<optional>[^]]*)\]|\{(?P<name>\w*)(?P<value>=[^}]*)?\}")


def in_python(part: Option | Pull) -> str | None:
    """Write an option or a download as in Python: `n_ctx=8192`."""
    if isinstance(part, Pull):
        return f"gguf_spec.pull({part.model!r}{', force=True' if part.force else ''})"
    if part.of_commands:
        return None
    return part.name if part.value is ... else f"{part.name}={part.value!r}"


class Text(str):
    """A text that names options, so that each surface can write its own names.

    Python shows `n_ctx=8192`, the command line `--ctx 8192`, and the server the field of the
    request. As a `str` it has the names of Python. Its template is a sentence with places:

    - `{n_ctx}` is the name of an option, `{kv_type='f16'}` an option with a value, and `{n_ctx=}`
      one with the value of the keyword argument `n_ctx`.
    - `{}` is the next positional argument: a string, which is not searched for places, an `Option`,
      a `Pull` or a `Text`.
    - `do this | do that.` offers alternatives, joined by commas and "or". Those that name an option
      that the surface lacks are left out.
    - `[; set {model} for another]` is left out if the surface lacks the option.

    Values are arguments, never parts of the template: they may contain the characters of places.
    """

    _made: tuple[str, tuple[str | Option | Pull, ...], dict[str, Any]]

    def __new__(cls, template: str, /, *values: str | Option | Pull, **options: Any) -> Text:
        """Create a text from its template and the values of its places."""
        text = super().__new__(cls, _fill(template, iter(values), options, in_python) or "")
        text._made = template, values, options
        return text

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:  # for copies
        template, values, options = self._made
        return (template, *values), options


def _fill(
    template: str, values: Iterator[str | Option | Pull], options: dict[str, Any], write: Write
) -> str | None:
    """Fill the places of a template for a surface; None if nothing of it can be written there."""
    is_lacking = False

    def written_at(place: re.Match[str]) -> str:
        nonlocal is_lacking
        name, value = place["name"], place["value"]
        if name is None:
            return _fill(place["optional"], values, options, write) or ""
        if not name:
            part = next(values)
        elif value == "=":
            part = Option(name, options[name])
        else:
            part = Option(name, ast.literal_eval(value[1:]) if value else ...)
        text = written(part, write) if isinstance(part, str) else write(part)
        is_lacking |= text is None
        return text or ""

    sentence = template.removesuffix(".")
    texts = []
    for alternative in sentence.split(" | "):
        is_lacking = False
        text = _PLACE.sub(written_at, alternative)  # also moves `values` on
        if not is_lacking:
            texts.append(text)
    if not texts:
        return None
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]])) + template[len(sentence) :]


def written(text: str, write: Write) -> str | None:
    """Return a text as a surface writes it; None if an option in it has no name there."""
    if not isinstance(text, Text):
        return text
    template, values, options = text._made
    return _fill(template, iter(values), options, write)


def reduced(error: Exception, **replaced: Any) -> tuple[Any, ...]:
    """Return how an error is copied and pickled: without a call of its constructor.

    Python would call it with the message alone, and a pool of processes breaks where that fails.

    Args:
        error: The error.
        replaced: Values of attributes that the copy does not keep.
    """
    members = {
        name: getattr(error, name)
        for kind in type(error).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, MemberDescriptorType) and name != "obj"  # what lacks an attribute
    }
    cause = {"__cause__": error.__cause__}  # before the members, because it hides the context
    state = {name: _portable(value) for name, value in (cause | members | vars(error)).items()}
    state.pop("suggested", None)  # computed again
    return Exception.__new__, (type(error), *map(_portable, error.args)), state | replaced


def _portable(value: object) -> object:
    """Return an object, or its text if another process could not read it."""
    if isinstance(value, GgufSpecError):
        return value
    import pickle  # slow to import

    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # any: the object may be of any package
        if isinstance(value, BaseException):
            return Exception(f"{type(value).__name__}: {value}")
        return str(value) if isinstance(value, str) else repr(value)
    return value


class GgufSpecError(Exception):
    """Base class of all errors of this package.

    Attributes:
        hint: One sentence that states how to fix the error.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:  # for copies
        return reduced(self)

    if sys.version_info < (3, 11):  # which prints no notes

        def __str__(self) -> str:
            """Return the fact; in a trace with the hint and the notes below it."""
            caller = sys._getframe().f_back
            in_trace = caller is None or caller.f_globals.get("__name__") in _TRACES
            return "\n".join([super().__str__(), *(self.__notes__ if in_trace else ())])

    @property
    def __notes__(self) -> list[str]:
        """The hint and further notes, which Python prints below the error.

        It is computed because `hint` may be set again; `add_note` appends to the list.
        """
        notes: list[str] = vars(self).setdefault("_notes", [""])
        notes[0] = f"Hint: {self.hint}"
        return notes if self.hint else notes[1:]

    @__notes__.setter
    def __notes__(self, notes: list[str]) -> None:
        vars(self)["_notes"] = ["", *(note for note in notes if note != f"Hint: {self.hint}")]

    @property
    def message(self) -> str:
        """The fact, as in `str(error)`."""
        message: str = self.args[0]
        return message

    @cached_property
    def suggested(self) -> dict[str, Any]:
        """The values that the hint suggests, by option."""
        named: list[Option | Pull] = []
        written(self.hint, named.append)
        options = [part for part in named if isinstance(part, Option)]
        return {option.name: option.value for option in options if option.value is not ...}

    def written(self, write: Write) -> tuple[str, str]:
        """Return message and hint as a surface writes them.

        The hint is empty if the surface has none of the options in it.

        Args:
            write: Writes the name of an option or a function; None if the surface does not have it.
        """
        return written(self.message, write) or self.message, written(self.hint, write) or ""


def _shortened(value: object) -> str:
    """Return the `repr` of a value without the middle of a long one."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}...{text[-15:]}"


def _tokens(number: int, is_estimate: bool) -> str:
    """Return a number of tokens as the messages name it: `about 5,120 tokens`."""
    return f"{'about ' if is_estimate else ''}{number:,} tokens"


class InvalidOptionError(GgufSpecError, ValueError):
    """An option has a value outside its range.

    Attributes:
        option: Name of the parameter or field, as in `Sampling.top_p`.
        value: The rejected value.
        allowed: The allowed values, as the end of the sentence "must be ..."; empty if the error
            is not about a range.
    """

    allowed: str
    option: str
    value: object

    def __init__(
        self,
        option: str,
        value: object,
        allowed: str = "",
        hint: str | None = None,
        *,
        message: str | None = None,
    ) -> None:
        """Create the error; `message` replaces the fact, and the hint None advises the default."""
        name = Option(option)
        super().__init__(
            message or Text("{} is {} but must be {}.", name, _shortened(value), allowed),
            hint or Text("omit {} to use its default.", name),
        )
        self.option, self.value, self.allowed = option, value, allowed


class OptionTypeError(InvalidOptionError, TypeError):
    """An option has a value of another type, such as bytes in place of a text."""


class OptionConflictError(InvalidOptionError):
    """Two options cannot be combined.

    Attributes:
        other: The option that excludes `option`, with its value if that matters.
    """

    def __init__(self, option: Option, other: Option | str, hint: str | None = None) -> None:
        super().__init__(
            option.name,
            None if option.value is ... else option.value,
            hint=hint or "omit one of the two.",
            message=Text("{} cannot be combined with {}.", option, other),
        )
        self.other = other


class NoSpeculationError(InvalidOptionError):
    """The loaded models cannot speculate as requested.

    Causes: there is no draft model, or the target does not support rollback.
    """

    def __init__(self, option: str, value: object, message: str, hint: str) -> None:
        super().__init__(option, value, hint=hint, message=message)


class NoQuestionError(InvalidOptionError):
    """The conversation has no question that could be answered again."""

    def __init__(self) -> None:
        message = "the conversation has no question to answer again."
        super().__init__("retry", None, hint="send a message first.", message=message)


class ContextTooShortError(InvalidOptionError):
    """The context has too few tokens for a prompt or a workload and its answer.

    Attributes:
        needed: Number of tokens that are needed.
    """

    def __init__(
        self, what: str, n_ctx: int, needed: int, *others: str, about: bool = False
    ) -> None:
        """Create the error of `what`, such as `the workload story`.

        `others` are alternatives to a larger context, as parts of the template of a `Text`; `about`
        tells whether `needed` is approximate.
        """
        super().__init__(
            "n_ctx",
            n_ctx,
            f"{needed} or more",
            Text(" | ".join(["set {n_ctx=}", *others]) + ".", n_ctx=needed),
            message=f"{what} needs {_tokens(needed, about)} but the context holds {n_ctx:,}.",
        )
        self.needed = needed


class ContextFailedError(InvalidOptionError):
    """llama.cpp did not create a context with these options."""

    def __init__(self, n_ctx: int, kv_type: Option, flash_attention: Option, reason: str) -> None:
        safe = kv_type._replace(value="f16"), flash_attention._replace(value="auto")
        fact = "llama.cpp cannot create a context of {} tokens with {} and {}: {}."
        message = Text(fact, f"{n_ctx:,}", kv_type, flash_attention, reason)
        super().__init__("context", n_ctx, hint=Text("set {} and {}.", *safe), message=message)


class OutputFileError(InvalidOptionError):
    """A file cannot be written at the given path.

    Attributes:
        path: The path.
    """

    def __init__(self, option: str, path: Path, message: str, hint: str) -> None:
        super().__init__(option, str(path), hint=hint, message=message)
        self.path = path


class InvalidGrammarError(InvalidOptionError):
    """A grammar or a JSON schema is invalid, or uses what is not supported.

    Attributes:
        reason: Why it cannot be used, without a full stop.
    """

    def __init__(self, option: str, value: str, reason: str) -> None:
        """Create the error of `grammar` or `json_schema`.

        `value` is the beginning of its text; empty where the reason says which part is wrong.
        """
        in_shell = "[; put quotes around it for the shell, or use a file: {}]"
        hint = Text(
            "correct {}" + (in_shell if option == "json_schema" else "") + ".",
            Option(option),
            Option(option, "@schema.json", of_commands=True),
        )
        shown = value if option == "json_schema" else repr(value)
        is_ = f" is {shown}, which" if shown else ""
        message = Text("{}{} cannot be used: {}.", Option(option), is_, reason)
        super().__init__(option, value, hint=hint, message=message)
        self.reason = reason


class GrammarTooLargeError(InvalidGrammarError):
    """The conversion of a JSON schema, or of the tools of a request, takes too much work."""

    def __init__(self, value: str = "") -> None:
        """Create the error; `value` is the beginning of the schema."""
        reason = "it is too large: its conversion takes too much work"
        super().__init__("json_schema", value, reason)


class OffGrammarError(InvalidOptionError):
    """The generated tokens contain a token that the grammar does not allow at its position."""

    def __init__(self, token: int) -> None:
        message = f"the grammar does not allow the token {token} at its position in the answer."
        super().__init__("history", token, hint="start the answer again.", message=message)


class ModelError(GgufSpecError):
    """A model file cannot be used.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.path = path


class ModelNotFoundError(ModelError):
    """Neither a file nor a registry entry has the requested name."""


class NotAModelError(ModelError):
    """The file is damaged or is not in the GGUF format."""


class UnsupportedModelError(ModelError):
    """The GGUF file cannot generate text.

    Causes: it has no tokenizer, it is an encoder, or its architecture is unknown.
    """


class NoGenerationError(UnsupportedModelError):
    """The model computes embeddings and generates no text."""

    def __init__(self, path: Path, architecture: str) -> None:
        message = f"{path.name} is an embedding model ({architecture}), not a text generator."
        hint = "use a chat or base model; this one only computes embeddings."
        super().__init__(path, message, hint)


class NoRankingError(UnsupportedModelError):
    """The model cannot rank documents: it has no classification head, or pools otherwise."""

    def __init__(self, path: Path, reason: str) -> None:
        message = f"{path.name} cannot rank documents: {reason}."
        super().__init__(path, message, "use a reranker model.")


def less_memory(n_ctx: int | None = None, parallel: int | None = None) -> Text:
    """Return advice for models that do not fit into memory.

    Args:
        n_ctx: A context length that would fit; None if it is unknown, 0 if no length fits.
        parallel: A number of parallel requests that would fit; None if it is unknown.
    """
    context = "set {n_ctx=} | " if n_ctx else "set a smaller {n_ctx} | "
    return Text(
        ("set {parallel=} | " if parallel else "")
        + (context + "set {kv_type='q8_0'} | " if n_ctx != 0 else "")
        + "use a smaller model | close other programs.",
        parallel=parallel,
        n_ctx=n_ctx,
    )


class NotEnoughMemoryError(GgufSpecError, MemoryError):
    """The weights and the context do not fit into memory.

    Attributes:
        needed_bytes: Size of weights and context in bytes, or None if llama.cpp did not report it.
        available_bytes: Free memory in bytes, or None if it is unknown.
    """

    available_bytes: int | None
    needed_bytes: int | None

    def __init__(
        self,
        message: str,
        needed_bytes: int | None = None,
        available_bytes: int | None = None,
        fitting_ctx: int | None = None,
        fitting_parallel: int | None = None,
    ) -> None:
        """Create the error; the last two are numbers that would fit, which the hint suggests."""
        super().__init__(message, less_memory(fitting_ctx, fitting_parallel))
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


class VocabularyMismatchError(GgufSpecError):
    """The vocabularies of draft and target differ.

    Attributes:
        what: The property that differs: `type`, `add_bos`, `bos`, `add_eos`, `eos`, `size`,
            `token`, or `common` for too few common tokens; the values are then the sizes.
        target_value: Its value in the target.
        draft_value: Its value in the draft.
        token: The first token id whose text differs, when `what` is `token`.
    """

    draft_value: object
    target_value: object
    token: int | None
    what: str

    def __init__(
        self,
        what: str,
        message: str,
        target_value: object,
        draft_value: object,
        token: int | None = None,
    ) -> None:
        hint = Text("use a draft of the same model family | set {draft='none'}.")
        super().__init__(message, hint)
        self.what, self.token = what, token
        self.target_value, self.draft_value = target_value, draft_value


class EmptyPromptError(GgufSpecError):
    """The prompt, or a text, contains no token."""

    def __init__(
        self,
        message: str = "the prompt is empty.",
        hint: str = "write a text to continue, such as 'Once upon a time'.",
    ) -> None:
        super().__init__(message, hint)


def longer_ctx(needed: int, limit: int | None) -> int | None:
    """Return a context to advise for more than `needed` tokens; None if none is possible.

    Args:
        limit: The longest context that is possible, by memory and training; None if unknown.
    """
    longer = 1 << needed.bit_length()
    if limit is None:
        return longer
    return min(longer, limit) if needed < limit else None


class PromptTooLongError(GgufSpecError, ValueError):
    """The prompt leaves no room in the context.

    It is also a `ValueError`, the type that llama-cpp-python raises.

    Attributes:
        n_prompt: Number of tokens in the prompt; an estimate if only its beginning was tokenised.
        n_ctx: Number of tokens that the context holds.
        n_ctx_limit: Longest context that the model can have here; None if unknown.
    """

    n_ctx: int
    n_ctx_limit: int | None
    n_prompt: int

    def __init__(
        self,
        n_prompt: int,
        n_ctx: int,
        is_estimate: bool = False,
        n_ctx_limit: int | None = None,
    ) -> None:
        longer = longer_ctx(n_prompt, n_ctx_limit)
        hint = Text("set {n_ctx=} | shorten the prompt.", n_ctx=longer)
        if longer is None:
            hint = Text("shorten the prompt: {} tokens are possible here.", f"{n_ctx_limit:,}")
        super().__init__(
            f"the prompt has {_tokens(n_prompt, is_estimate)} but the context holds {n_ctx:,}, "
            "including one for the answer.",
            hint,
        )
        self.n_prompt, self.n_ctx, self.n_ctx_limit = n_prompt, n_ctx, n_ctx_limit


class TextTooLongError(GgufSpecError, ValueError):
    """A text is too long for its embedding.

    Attributes:
        index: Index of the text.
        n_tokens: Number of its tokens; an estimate if only its beginning was tokenised.
        most: Largest number of tokens that the model reads at once.
    """

    index: int
    most: int
    n_tokens: int

    def __init__(
        self, index: int, n_tokens: int, most: int, n_ctx_train: int, is_estimate: bool = False
    ) -> None:
        """Create the error; the model was trained for `n_ctx_train` tokens."""
        larger = " | set {n_ctx=}" if n_tokens <= n_ctx_train else ""
        super().__init__(
            f"the text {index} has {_tokens(n_tokens, is_estimate)} but the model reads {most:,} "
            "at once.",
            Text("shorten the text | split it" + larger + ".", n_ctx=n_tokens),
        )
        self.index, self.n_tokens, self.most = index, n_tokens, most


class TemplateError(GgufSpecError):
    """The model has no chat template, or its template rejects the messages."""


class NoInfillError(GgufSpecError):
    """The vocabulary has no tokens for filling in the middle of a text."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} cannot fill in the middle of a text: its vocabulary lacks the tokens.",
            "use a model for code completion.",
        )


class NoEditError(GgufSpecError):
    """The model did not write the new text of an edit, or not to its end."""


class ImageError(GgufSpecError, ValueError):
    """An image cannot be read: it is damaged, too large, or the model cannot take it."""


class NoVisionError(GgufSpecError):
    """The prompt has an image, but the model was loaded without a projector.

    Attributes:
        name: File of the model.
    """

    def __init__(self, name: str) -> None:
        message = f"{name} was loaded without a projector, so it cannot read images."
        super().__init__(message, Text("set {mmproj} to the projector file of the model."))
        self.name = name


class BusyError(GgufSpecError):
    """A thread with an open stream requested another generation from the same LLM.

    Or a stream is read while something else reads it.
    """

    def __init__(
        self,
        message: str = "this thread has an open stream of this LLM.",
        hint: str = "read the stream to its end, or close it first.",
    ) -> None:
        super().__init__(message, hint)


class ClosedError(GgufSpecError):
    """The LLM or one of its models is closed."""

    def __init__(self) -> None:
        super().__init__("this LLM is closed.", "load it again.")


class ForkedError(ClosedError):
    """The LLM was loaded before a fork: only the parent process can use it."""

    def __init__(
        self,
        message: str = "this LLM was loaded before a fork, by the parent of this process.",
        hint: str = "load in each process instead.",
    ) -> None:
        GgufSpecError.__init__(self, message, hint)


class EventLoopError(GgufSpecError, RuntimeError):
    """An `AsyncLLM` was used in another event loop than before."""

    def __init__(self) -> None:
        fact = "this AsyncLLM belongs to another event loop."
        hint = "create one AsyncLLM for each event loop; several may use the same LLM."
        super().__init__(fact, hint)


class DecodeError(GgufSpecError):
    """llama.cpp rejected a batch.

    Attributes:
        code: Return code of `llama_decode`.
    """

    def __init__(self, code: int, n_past: int, n_tokens: int, reason: str) -> None:
        super().__init__(
            f"llama.cpp could not decode {n_tokens} tokens after {n_past} (code "
            f"{code}){': ' + reason if reason else ''}.",
            Text("set a smaller {n_ctx} | set fewer {threads} | report the error if it persists."),
        )
        self.code = code


class NoTokenLeftError(GgufSpecError):
    """No token can be sampled.

    Causes: the logits contain no finite value, or `logit_bias` and the grammar forbid every token.
    """

    def __init__(self) -> None:
        fact = "no token can be sampled: every token is forbidden, or no logit is finite."
        hint = "check {logit_bias} and {grammar}; without these options the model file is damaged."
        super().__init__(fact, Text(hint))


class RollbackError(GgufSpecError):
    """The model cannot remove tokens from the end of its cache (recurrent and hybrid models)."""

    def __init__(self, name: str, n_past: int, to: int) -> None:
        fact = f"cannot remove tokens from its cache: {n_past} are cached, {to} must remain."
        super().__init__(f"{name} {fact}", Text("use it without a draft: set {draft='none'}."))


class InvalidModelsFileError(GgufSpecError):
    """A models file is unreadable or contains an invalid value.

    Attributes:
        path: The file.
        line: Line number, from 1, or None if the error concerns the whole file.
        key: The key with its parent keys, as in `models.smollm2-1.7b.draft`, or None.
    """

    key: str | None
    line: int | None
    path: Path

    def __init__(
        self, path: Path, message: str, hint: str, line: int | None = None, key: str | None = None
    ) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {message}", hint)
        self.path, self.line, self.key = path, line, key


class StoreError(GgufSpecError):
    """A model cannot be downloaded, or is not on this disk.

    Attributes:
        name: The model name as requested.
    """

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.name = name


class NotDownloadedError(StoreError):
    """The model, or one of its files, is not on this disk."""


class NotOnHubError(StoreError):
    """The hub has no such repository, revision or file.

    Attributes:
        what: The missing item: `repository`, `revision` or `file`.
    """

    def __init__(self, name: str, what: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.what = what


class AccessDeniedError(StoreError):
    """The hub denies this user access to the model.

    Causes: a licence that must be accepted first, a private repository, or an invalid token.
    """


class UnreachableError(StoreError):
    """The hub cannot be reached.

    Causes: no network, an unknown host, a proxy that refuses the connection, or a timeout.
    """


class HubError(StoreError):
    """The hub responded, but did not deliver the file.

    Attributes:
        status: The HTTP status, or None if the status is not the cause.
    """

    def __init__(self, name: str, status: int | None, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.status = status


class PackageError(StoreError):
    """A model cannot be taken from a package of pip's index or npm's registry.

    Attributes:
        what: The missing or wrong item: `pip`, `npm`, `index`, `version`, `wheel` or `member`.
    """

    def __init__(self, name: str, what: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.what = what


class NoSpaceError(StoreError):
    """The disk is full, or the download would fill it.

    Attributes:
        needed_bytes: Bytes to be written, or None if unknown.
        free_bytes: Free bytes on the disk, or None if unknown.
    """

    free_bytes: int | None
    needed_bytes: int | None

    def __init__(
        self,
        name: str,
        message: str,
        needed_bytes: int | None,
        free_bytes: int | None,
        variable: str = "HF_HOME",
    ) -> None:
        hint = f"free disk space, or set {variable} to a folder on another disk."
        super().__init__(name, message, hint)
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class CorruptFileError(StoreError):
    """The size or checksum of a file is wrong.

    Attributes:
        expected: The expected size in bytes or sha256.
        found: The actual size in bytes or sha256.
    """

    expected: object
    found: object

    def __init__(self, name: str, message: str, hint: str, expected: object, found: object) -> None:
        super().__init__(name, message, hint)
        self.expected, self.found = expected, found


class SessionError(GgufSpecError):
    """A session file cannot be written or read."""

    def __init__(
        self, message: str, hint: str = "name a file that /save or Chat.save wrote."
    ) -> None:
        super().__init__(message, hint)


class BatchFileError(GgufSpecError):
    """A file with requests or results cannot be used, or the two do not belong together.

    Attributes:
        path: The file.
        line: Line number, from 1, or None if the error concerns the whole file.
    """

    line: int | None
    path: Path

    def __init__(self, path: Path, message: str, hint: str, line: int | None = None) -> None:
        super().__init__(message, hint)
        self.path, self.line = path, line


class NotInstalledError(GgufSpecError, ImportError):
    """A part of this package needs another package, which is not installed.

    Attributes:
        package: The missing package.
        extra: The extra of this package that installs it; empty for one of `plugins/`.
    """

    extra: str
    package: str

    def __init__(self, name: str, package: str, extra: str = "") -> None:
        here, wheel = f"'.[{extra}]'", f"'gguf-spec[{extra}]'"
        if not extra:
            here, wheel = f". plugins/{package}", package
        hint = (
            f"run pip install {here} in a clone of gguf-spec, or where it came as a wheel, "
            f"install {wheel} in the same way."
        )
        super().__init__(f"{name} needs {package}, which is not installed.", hint)
        self.package, self.extra = package, extra


class MovedError(GgufSpecError, ImportError):
    """A module that is a package of its own: `gguf_spec.compat`, `ray`, `trim`, `worker`."""

    def __init__(self, name: str, package: str = "") -> None:
        package = package or name.replace(".", "_")
        folder = f"plugins/{package.replace('_', '-')}"
        hint = f"run pip install . {folder} in a clone of gguf-spec, and import {package}."
        super().__init__(f"{name} is now the package {package}.", hint)


class PluginError(GgufSpecError, ImportError):
    """A drafter of another distribution cannot be used.

    Attributes:
        name: The drafter.
        distribution: The distribution that has it.
    """

    distribution: str
    name: str

    def __init__(self, name: str, distribution: str, reason: str) -> None:
        fact = f"the drafter {name} of the distribution {distribution} {reason}."
        hint = Text("install another version of {} or set another {drafter}.", distribution)
        super().__init__(fact, hint)
        self.name, self.distribution = name, distribution


class BindingError(GgufSpecError, ImportError):
    """This llama-cpp-python cannot be used.

    Attributes:
        version: Its version.
        reason: What does not fit, without a full stop.
    """

    reason: str
    version: str

    def __init__(self, version: str, reason: str, tested: str, hint: str = "") -> None:
        super().__init__(
            f"llama-cpp-python {version} cannot be used: {reason}.",
            hint
            or f"install {tested}, the version that is tested, and its own library "
            "(LLAMA_CPP_LIB_PATH names another one); in a clone: remove .venv, then scripts/run.",
        )
        self.version, self.reason = version, reason


class WorkerError(GgufSpecError):
    """Workers that hold layers of a model (`rpc`) cannot be reached, or were lost.

    Attributes:
        workers: Their addresses, `HOST:PORT` each.
    """

    def __init__(self, workers: Iterable[str], message: str) -> None:
        super().__init__(message, "start it there with: gguf-spec worker.")
        self.workers: tuple[str, ...] = tuple(workers)


class FrozenAppError(GgufSpecError):
    """A frozen app cannot start a child process of this package, which would be the app again."""

    def __init__(self, message: str) -> None:
        hint = "call gguf_spec.freeze_support() first in the app's main script."
        super().__init__(message, hint)


class LoadCancelledError(GgufSpecError):
    """The progress callback cancelled loading."""

    def __init__(self, name: str) -> None:
        super().__init__(f"loading {name} was cancelled.", "load it again.")


class QuantizeError(GgufSpecError):
    """A model cannot be quantised, or the quantised file failed its check.

    Attributes:
        source: The input model.
        target: The output path. It is absent, or unchanged if it existed before.
    """

    source: Path
    target: Path

    def __init__(self, source: Path, target: Path, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.source, self.target = source, target


__all__ = [  # in the order of the class tree, as the reference lists them
    name
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, GgufSpecError)
]
