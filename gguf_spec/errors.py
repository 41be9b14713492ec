"""Everything that can go wrong, as types: each carries the real values in its message and one hint.

All errors derive from `GgufSpecError`. `str(error)` says what happened, `error.hint` says what to do about it.
"""

from __future__ import annotations

from pathlib import Path


class GgufSpecError(Exception):
    """The base of all errors of this package.

    Attributes:
        hint: One sentence that says what to do.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidOptionError(GgufSpecError, ValueError):
    """An option has a value outside its range.

    Attributes:
        option: Name of the field, as in `Sampling.top_p`.
        value: The value that was given.
    """

    def __init__(self, option: str, value: object, allowed: str, hint: str | None = None) -> None:
        super().__init__(
            f"{option} is {value!r} but must be {allowed}.",
            hint or f"leave {option} out to take its default.",
        )
        self.option, self.value = option, value


class OffGrammarError(InvalidOptionError):
    """An answer so far holds a token that its grammar does not allow there."""

    def __init__(self, token: int) -> None:
        super().__init__(
            "history", token, "an answer that follows the grammar", "start the answer again."
        )


class ModelError(GgufSpecError):
    """A model file cannot be used.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.path = path


class ModelNotFoundError(ModelError):
    """There is no such file, and no such name in the registry."""


class NotAModelError(ModelError):
    """The file is no GGUF file, or a damaged one."""


class UnsupportedModelError(ModelError):
    """The file is a GGUF file that cannot generate text: no tokenizer, an encoder, an unknown architecture."""


class NotEnoughMemoryError(GgufSpecError, MemoryError):
    """The weights and the context do not fit into memory.

    Attributes:
        needed_bytes: What weights and context take, or None where llama.cpp did not say.
        available_bytes: What there is, or None where it is not known.
    """

    def __init__(
        self, message: str, needed_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        super().__init__(
            message,
            "give a smaller --ctx or --kv-type q8_0, take a smaller model, or close other programs.",
        )
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


class VocabularyMismatchError(GgufSpecError):
    """The draft does not speak the target's vocabulary.

    Attributes:
        what: What differs: `type`, `add_bos`, `bos`, `add_eos`, `eos`, `size` or `token`.
        target_value: Its value in the target.
        draft_value: Its value in the draft.
        token: The first token id whose text differs, when `what` is `token`.
    """

    def __init__(
        self,
        what: str,
        message: str,
        target_value: object,
        draft_value: object,
        token: int | None = None,
    ) -> None:
        super().__init__(
            message,
            "take a draft of the same model family, or go on without one with --draft none.",
        )
        self.what, self.target_value, self.draft_value, self.token = (
            what,
            target_value,
            draft_value,
            token,
        )


class EmptyPromptError(GgufSpecError):
    """The prompt holds no token."""

    def __init__(self) -> None:
        super().__init__(
            "the prompt is empty.", "write something to go on from, such as 'Once upon a time'."
        )


class PromptTooLongError(GgufSpecError, ValueError):
    """The prompt leaves no room in the context. A `ValueError` too, as llama-cpp-python raises.

    Attributes:
        n_prompt: Tokens in the prompt.
        n_ctx: Tokens the context holds.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        larger = 1 << n_prompt.bit_length()
        super().__init__(
            f"the prompt has {n_prompt:,} tokens but the context holds {n_ctx:,}, with one to spare for an answer.",
            f"raise it with --ctx {larger}, or shorten the prompt.",
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class TemplateError(GgufSpecError):
    """The model has no chat template, or its template refuses the messages."""


class BusyError(GgufSpecError):
    """The thread that has a stream open asked the same LLM for another generation."""

    def __init__(self) -> None:
        super().__init__(
            "this LLM is in the middle of a stream that this very thread has open.",
            "read the stream to its end, or close it first.",
        )


class ClosedError(GgufSpecError):
    """The LLM or one of its models was closed."""

    def __init__(self) -> None:
        super().__init__("this LLM is closed.", "load it again.")


class UnsupportedError(GgufSpecError, AttributeError):
    """A method or attribute of `llama_cpp.Llama` that `gguf_spec.compat.Llama` does not have.

    Attributes:
        name: The method or attribute.
    """

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"gguf_spec.compat.Llama has no {name}.", hint)
        self.name = name


class DecodeError(GgufSpecError):
    """llama.cpp refused a batch.

    Attributes:
        code: What `llama_decode` returned.
    """

    def __init__(self, code: int, n_past: int, n_tokens: int, said: str) -> None:
        super().__init__(
            f"llama.cpp could not decode {n_tokens} tokens after {n_past} (code {code}){': ' + said if said else ''}.",
            "give a smaller --ctx, or --threads, and report it if it stays.",
        )
        self.code = code


class NoTokenLeftError(GgufSpecError):
    """No token can be drawn: the model wrote numbers that are none, or `logit_bias` and the grammar forbid every token."""

    def __init__(self) -> None:
        super().__init__(
            "every token is forbidden, or the model's logits are not numbers.",
            "check logit_bias and the grammar; without them, the model file is damaged.",
        )


class RollbackError(GgufSpecError):
    """A model cannot forget the end of its past (recurrent and hybrid models)."""

    def __init__(self, name: str, n_past: int, to: int) -> None:
        super().__init__(
            f"{name} cannot go back from {n_past} to {to} tokens.",
            "use it without a draft (--draft none).",
        )


class InvalidModelsFileError(GgufSpecError):
    """A models file cannot be read, or says something that cannot be.

    Attributes:
        path: The file.
        line: The line, from 1, or None where it is about the whole file.
        key: The key and those above it, as in `models.smollm2-1.7b.draft`, or None.
    """

    def __init__(
        self, path: Path, message: str, hint: str, line: int | None = None, key: str | None = None
    ) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {message}", hint)
        self.path, self.line, self.key = path, line, key


class StoreError(GgufSpecError):
    """A model cannot be fetched, or is not on this disk.

    Attributes:
        name: The model, as it was asked for.
    """

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.name = name


class NotDownloadedError(StoreError):
    """The model is not on this disk, or not all of its files are."""


class NotOnHubError(StoreError):
    """The hub has no such repository, revision or file.

    Attributes:
        what: What is missing: `repository`, `revision` or `file`.
    """

    def __init__(self, name: str, what: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.what = what


class AccessDeniedError(StoreError):
    """The hub does not give the model to this user: a licence to be accepted, a private repository, a token that is no good."""


class UnreachableError(StoreError):
    """The hub cannot be reached: no network, no such host, a proxy that refuses, no answer in time."""


class HubError(StoreError):
    """The hub answered, but not with the file.

    Attributes:
        status: The HTTP status, or None where that was not what was wrong.
    """

    def __init__(self, name: str, status: int | None, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.status = status


class NoSpaceError(StoreError):
    """The disk is full, or would be.

    Attributes:
        needed_bytes: What is to be written, or None where it is not known.
        free_bytes: What there is, or None where it is not known.
    """

    def __init__(
        self, name: str, message: str, needed_bytes: int | None, free_bytes: int | None
    ) -> None:
        super().__init__(name, message, "make room, or set HF_HOME to a folder on another disk.")
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class CorruptFileError(StoreError):
    """A file does not hold what it should.

    Attributes:
        expected: The size or sha256 it should have.
        found: What it has.
    """

    def __init__(self, name: str, message: str, hint: str, expected: object, found: object) -> None:
        super().__init__(name, message, hint)
        self.expected, self.found = expected, found


class SessionError(GgufSpecError):
    """A saved session cannot be written, or cannot be read back."""


class LoadCancelledError(GgufSpecError):
    """Loading was cancelled by the one who watched its progress."""

    def __init__(self, name: str) -> None:
        super().__init__(f"loading {name} was cancelled.", "load it again.")


class QuantizeError(GgufSpecError):
    """A model cannot be quantised, or what was made of it is not right.

    Attributes:
        source: The model.
        target: What was to be written; there is no such file, or it is as it was.
    """

    def __init__(self, source: Path, target: Path, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.source, self.target = source, target
