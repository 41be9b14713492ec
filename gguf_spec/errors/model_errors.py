"""Errors about models, prompts, generations, and files that are written from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .base import GgufSpecError
from .texts import Option, Text, advice


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
        super().__init__(
            path,
            f"{path.name} is an embedding model ({architecture}), not a text generator.",
            "use a chat or base model; this one only computes embeddings.",
        )


class NoRankingError(UnsupportedModelError):
    """The model cannot rank documents: it has no classification head, or pools otherwise."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            path, f"{path.name} cannot rank documents: {reason}.", "use a reranker model."
        )


def less_memory(n_ctx: int | None = None, parallel: int | None = None) -> Text:
    """Return advice for models that do not fit into memory.

    Args:
        n_ctx: A context length that would fit; None if it is unknown.
        parallel: A number of parallel requests that would fit; None if it is unknown.
    """
    return advice(
        *([Text("set ", Option("parallel", parallel))] if parallel else []),
        Text("set ", Option("n_ctx", n_ctx)) if n_ctx else Text("set a smaller ", Option("n_ctx")),
        Text("set ", Option("kv_type", "q8_0")),
        "use a smaller model",
        "close other programs",
    )


class NotEnoughMemoryError(GgufSpecError, MemoryError):
    """The weights and the context do not fit into memory.

    Attributes:
        needed_bytes: Size of weights and context in bytes, or None if llama.cpp did not report it.
        available_bytes: Free memory in bytes, or None if it is unknown.
    """

    def __init__(
        self,
        message: str,
        needed_bytes: int | None = None,
        available_bytes: int | None = None,
        fitting_ctx: int | None = None,
        fitting_parallel: int | None = None,
    ) -> None:
        """Create the error.

        Args:
            message: What does not fit.
            needed_bytes: Size of weights and context in bytes.
            available_bytes: Free memory in bytes.
            fitting_ctx: A context length that would fit, which the hint suggests.
            fitting_parallel: A number of parallel requests that would fit, which it suggests, too.
        """
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
            advice("use a draft of the same model family", Text("set ", Option("draft", "none"))),
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
            "the prompt is empty.", "write a text to continue, such as 'Once upon a time'."
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
            f"the prompt has {n_prompt:,} tokens but the context holds {n_ctx:,}, including one "
            "for the answer.",
            advice(Text("set ", Option("n_ctx", larger)), "shorten the prompt"),
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class TextTooLongError(GgufSpecError, ValueError):
    """A text is too long for its embedding.

    Attributes:
        index: Index of the text.
        n_tokens: Number of its tokens.
        most: Largest number of tokens that the model reads at once.
    """

    def __init__(self, index: int, n_tokens: int, most: int, n_ctx_train: int) -> None:
        """Create the error.

        Args:
            index: Index of the text.
            n_tokens: Number of its tokens.
            most: Largest number of tokens that the model reads at once.
            n_ctx_train: Number of tokens that the model was trained for.
        """
        larger = [Text("set ", Option("n_ctx", n_tokens))] if n_tokens <= n_ctx_train else []
        super().__init__(
            f"the text {index} has {n_tokens:,} tokens but the model reads {most:,} at once.",
            advice("shorten the text", "split it", *larger),
        )
        self.index, self.n_tokens, self.most = index, n_tokens, most


class TemplateError(GgufSpecError):
    """The model has no chat template, or its template rejects the messages."""


class NoInfillError(GgufSpecError):
    """The vocabulary has no tokens for filling in the middle of a text."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} cannot fill in the middle of a text: its vocabulary lacks the tokens.",
            "leave out the suffix, or use a model for code completion.",
        )


class BusyError(GgufSpecError):
    """A thread with an open stream requested another generation from the same LLM."""

    def __init__(self) -> None:
        super().__init__(
            "this thread has an open stream of this LLM.",
            "read the stream to its end, or close it first.",
        )


class ClosedError(GgufSpecError):
    """The LLM or one of its models is closed."""

    def __init__(self) -> None:
        super().__init__("this LLM is closed.", "load it again.")


class EventLoopError(GgufSpecError, RuntimeError):
    """An `AsyncLLM` was used in another event loop than before."""

    def __init__(self) -> None:
        super().__init__(
            "this AsyncLLM belongs to another event loop.",
            "create one AsyncLLM for each event loop; several may use the same LLM.",
        )


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

    def __init__(self, code: int, n_past: int, n_tokens: int, reason: str) -> None:
        super().__init__(
            f"llama.cpp could not decode {n_tokens} tokens after {n_past} (code "
            f"{code}){': ' + reason if reason else ''}.",
            advice(
                Text("set a smaller ", Option("n_ctx")),
                Text("set fewer ", Option("threads")),
                "report the error if it persists",
            ),
        )
        self.code = code


class NoTokenLeftError(GgufSpecError):
    """No token can be sampled.

    Causes: the logits contain no finite value, or `logit_bias` and the grammar forbid every token.
    """

    def __init__(self) -> None:
        super().__init__(
            "no token can be sampled: every token is forbidden, or no logit is finite.",
            Text(
                "check ",
                Option("logit_bias"),
                " and ",
                Option("grammar"),
                "; without these options the model file is damaged.",
            ),
        )


class RollbackError(GgufSpecError):
    """The model cannot remove tokens from the end of its cache (recurrent and hybrid models)."""

    def __init__(self, name: str, n_past: int, to: int) -> None:
        super().__init__(
            f"{name} cannot remove tokens from its cache: {n_past} are cached, {to} must remain.",
            advice(Text("use it without a draft: set ", Option("draft", "none"))),
        )


class SessionError(GgufSpecError):
    """A session file cannot be written or read."""

    def __init__(
        self, message: str, hint: str = "name a file that /save or Chat.save wrote."
    ) -> None:
        super().__init__(message, hint)


class NotInstalledError(GgufSpecError, ImportError):
    """A part of this package needs another package, which is not installed.

    Attributes:
        package: The missing package.
        extra: The extra of this package that installs it.
    """

    def __init__(self, name: str, package: str, extra: str) -> None:
        super().__init__(
            f"{name} needs {package}, which is not installed.",
            f"install it with: pip install 'gguf-spec[{extra}]'.",
        )
        self.package, self.extra = package, extra


class WorkerError(GgufSpecError):
    """Workers that hold layers of a model (`rpc`) cannot be reached, or were lost.

    Attributes:
        workers: Their addresses, `HOST:PORT` each.
    """

    def __init__(self, workers: Iterable[str], message: str) -> None:
        super().__init__(message, "start it there with: gguf-spec worker.")
        self.workers = tuple(workers)


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
