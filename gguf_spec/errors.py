"""Exception types of the package.

All of them derive from `GgufSpecError`. `str(error)` states the fact with the real values.
`error.hint` states how to fix it, in one sentence.
"""

from __future__ import annotations

from pathlib import Path


class GgufSpecError(Exception):
    """Base class of all errors of this package.

    Attributes:
        hint: One sentence that states how to fix the error.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidOptionError(GgufSpecError, ValueError):
    """An option has a value outside its range.

    Attributes:
        option: Name of the field, as in `Sampling.top_p`.
        value: The rejected value.
    """

    def __init__(self, option: str, value: object, allowed: str, hint: str | None = None) -> None:
        super().__init__(
            f"{option} is {value!r} but must be {allowed}.",
            hint or f"leave {option} out to take its default.",
        )
        self.option, self.value = option, value


class OffGrammarError(InvalidOptionError):
    """The generated tokens contain a token that the grammar does not allow at its position."""

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
    """Neither a file nor a registry entry has the requested name."""


class NotAModelError(ModelError):
    """The file is damaged or is not in the GGUF format."""


class UnsupportedModelError(ModelError):
    """The GGUF file cannot generate text.

    Causes: it has no tokenizer, it is an encoder, or its architecture is unknown.
    """


class NotEnoughMemoryError(GgufSpecError, MemoryError):
    """The weights and the context do not fit into memory.

    Attributes:
        needed_bytes: Size of weights and context in bytes, or None if llama.cpp did not report it.
        available_bytes: Free memory in bytes, or None if it is unknown.
    """

    def __init__(
        self, message: str, needed_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        super().__init__(
            message,
            "give a smaller --ctx or --kv-type q8_0, take a smaller model, or close other "
            "programs.",
        )
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


class VocabularyMismatchError(GgufSpecError):
    """The vocabularies of draft and target differ.

    Attributes:
        what: The property that differs: `type`, `add_bos`, `bos`, `add_eos`, `eos`, `size` or
            `token`.
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
    """The prompt contains no token."""

    def __init__(self) -> None:
        super().__init__(
            "the prompt is empty.", "write something to go on from, such as 'Once upon a time'."
        )


class PromptTooLongError(GgufSpecError, ValueError):
    """The prompt leaves no room in the context.

    It is also a `ValueError`, the type that llama-cpp-python raises.

    Attributes:
        n_prompt: Number of tokens in the prompt.
        n_ctx: Number of tokens that the context holds.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        larger = 1 << n_prompt.bit_length()
        super().__init__(
            f"the prompt has {n_prompt:,} tokens but the context holds {n_ctx:,}, with one to "
            "spare for an answer.",
            f"raise it with --ctx {larger}, or shorten the prompt.",
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class TemplateError(GgufSpecError):
    """The model has no chat template, or its template rejects the messages."""


class BusyError(GgufSpecError):
    """A thread with an open stream requested another generation from the same LLM."""

    def __init__(self) -> None:
        super().__init__(
            "this LLM is in the middle of a stream that this very thread has open.",
            "read the stream to its end, or close it first.",
        )


class ClosedError(GgufSpecError):
    """The LLM or one of its models is closed."""

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
    """llama.cpp rejected a batch.

    Attributes:
        code: Return code of `llama_decode`.
    """

    def __init__(self, code: int, n_past: int, n_tokens: int, said: str) -> None:
        super().__init__(
            f"llama.cpp could not decode {n_tokens} tokens after {n_past} (code "
            f"{code}){': ' + said if said else ''}.",
            "give a smaller --ctx, or --threads, and report it if it stays.",
        )
        self.code = code


class NoTokenLeftError(GgufSpecError):
    """No token can be sampled.

    Causes: the logits contain no finite value, or `logit_bias` and the grammar forbid every token.
    """

    def __init__(self) -> None:
        super().__init__(
            "every token is forbidden, or the model's logits are not numbers.",
            "check logit_bias and the grammar; without them, the model file is damaged.",
        )


class RollbackError(GgufSpecError):
    """The model cannot remove tokens from the end of its cache (recurrent and hybrid models)."""

    def __init__(self, name: str, n_past: int, to: int) -> None:
        super().__init__(
            f"{name} cannot go back from {n_past} to {to} tokens.",
            "use it without a draft (--draft none).",
        )


class InvalidModelsFileError(GgufSpecError):
    """A models file is unreadable or contains an invalid value.

    Attributes:
        path: The file.
        line: Line number, from 1, or None if the error concerns the whole file.
        key: The key with its parent keys, as in `models.smollm2-1.7b.draft`, or None.
    """

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


class NoSpaceError(StoreError):
    """The disk is full, or the download would fill it.

    Attributes:
        needed_bytes: Bytes to be written, or None if unknown.
        free_bytes: Free bytes on the disk, or None if unknown.
    """

    def __init__(
        self, name: str, message: str, needed_bytes: int | None, free_bytes: int | None
    ) -> None:
        super().__init__(name, message, "make room, or set HF_HOME to a folder on another disk.")
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class CorruptFileError(StoreError):
    """The size or checksum of a file is wrong.

    Attributes:
        expected: The expected size in bytes or sha256.
        found: The actual size in bytes or sha256.
    """

    def __init__(self, name: str, message: str, hint: str, expected: object, found: object) -> None:
        super().__init__(name, message, hint)
        self.expected, self.found = expected, found


class SessionError(GgufSpecError):
    """A session file cannot be written or read."""


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

    def __init__(self, source: Path, target: Path, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.source, self.target = source, target
