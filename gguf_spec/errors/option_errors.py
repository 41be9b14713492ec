"""Errors about options: values out of range, and combinations that cannot work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .base import GgufSpecError
from .texts import Option, Optionally, Text, advice


class InvalidOptionError(GgufSpecError, ValueError):
    """An option has a value outside its range.

    Attributes:
        option: Name of the parameter or field, as in `Sampling.top_p`.
        value: The rejected value.
        allowed: Description of the allowed values; empty if the error is not about a range.
    """

    def __init__(
        self,
        option: str,
        value: object,
        allowed: str,
        hint: str | None = None,
        *,
        message: str | None = None,
    ) -> None:
        """Create the error.

        Args:
            option: Name of the option.
            value: Its value.
            allowed: The allowed values, as the end of the sentence "must be ...".
            hint: How to fix it; None advises to omit the option.
            message: A sentence that replaces the usual one.
        """
        super().__init__(
            message or Text(Option(option), f" is {value!r} but must be ", allowed, "."),
            hint or advice(Text("omit ", Option(option), " to use its default")),
        )
        self.option, self.value, self.allowed = option, value, allowed

    def translate(self, translate: Callable[[Option], Option | None]) -> None:
        """Replace the options in message, hint and `option`."""
        super().translate(translate)
        self.option = (translate(Option(self.option)) or Option(self.option)).name


class OptionConflictError(InvalidOptionError):
    """Two options cannot be combined.

    Attributes:
        other: The option that excludes `option`, with its value if that matters.
    """

    def __init__(self, option: Option, other: Option | str, hint: str | None = None) -> None:
        super().__init__(
            option.name,
            None if option.value is ... else option.value,
            "",
            hint or "omit one of the two.",
            message=Text(option, " cannot be combined with ", other, "."),
        )
        self.other = other


class NoSpeculationError(InvalidOptionError):
    """The loaded models cannot speculate as requested.

    Causes: there is no draft model, or the target does not support rollback.
    """

    def __init__(self, option: str, value: object, message: str, hint: str) -> None:
        super().__init__(option, value, "", hint, message=message)


class NoQuestionError(InvalidOptionError):
    """The conversation has no question that could be answered again."""

    def __init__(self) -> None:
        super().__init__(
            "retry",
            None,
            "",
            "send a message first.",
            message="the conversation has no question to answer again.",
        )


class ContextTooShortError(InvalidOptionError):
    """The context has too few tokens for a prompt or a workload and its answer.

    Attributes:
        needed: Number of tokens that are needed.
    """

    def __init__(
        self, what: str, n_ctx: int, needed: int, *others: str, about: bool = False
    ) -> None:
        """Create the error.

        Args:
            what: What needs the context, such as `the workload story`.
            n_ctx: Number of tokens that the context holds.
            needed: Number of tokens that are needed.
            others: Alternatives to a larger context, as parts of a sentence.
            about: Whether `needed` is approximate.
        """
        super().__init__(
            "n_ctx",
            n_ctx,
            f"{needed} or more",
            advice(Text("set ", Option("n_ctx", needed)), *others),
            message=f"{what} needs {'about ' if about else ''}{needed:,} tokens "
            f"but the context holds {n_ctx:,}.",
        )
        self.needed = needed


class ContextFailedError(InvalidOptionError):
    """llama.cpp did not create a context with these options."""

    def __init__(self, n_ctx: int, kv_type: Option, flash_attention: Option, reason: str) -> None:
        super().__init__(
            "context",
            n_ctx,
            "",
            advice(
                Text(
                    "set ",
                    Option(kv_type.name, "f16"),
                    " and ",
                    Option(flash_attention.name, "auto"),
                )
            ),
            message=Text(
                f"llama.cpp cannot create a context of {n_ctx:,} tokens with ",
                kv_type,
                " and ",
                flash_attention,
                f": {reason}.",
            ),
        )


class OutputFileError(InvalidOptionError):
    """A file cannot be written at the given path.

    Attributes:
        path: The path.
    """

    def __init__(self, option: str, path: Path, message: str, hint: str) -> None:
        super().__init__(option, str(path), "", hint, message=message)
        self.path = path


class InvalidGrammarError(InvalidOptionError):
    """A grammar or a JSON schema is invalid, or uses what is not supported.

    Attributes:
        reason: Why it cannot be used, without a full stop.
    """

    def __init__(self, option: str, value: str, reason: str) -> None:
        """Create the error.

        Args:
            option: `grammar` or `json_schema`.
            value: The beginning of the grammar or the schema.
            reason: Why it cannot be used, without a full stop.
        """
        super().__init__(
            option,
            value,
            "",
            Text(
                "correct ",
                Option(option),
                Optionally(
                    "; put quotes around it for the shell, or use a file: ",
                    Option(option, "@schema.json", of_commands=True),
                )
                if option == "json_schema"
                else "",
                ".",
            ),
            message=Text(Option(option), f" is {value!r}, which cannot be used: {reason}."),
        )
        self.reason = reason


class GrammarTooLargeError(InvalidGrammarError):
    """The conversion of a JSON schema, or of the tools of a request, takes too much work."""

    def __init__(self, value: str = "") -> None:
        """Create the error.

        Args:
            value: The beginning of the schema.
        """
        reason = "it is too large: its conversion takes too much work"
        super().__init__("json_schema", value, reason)


class OffGrammarError(InvalidOptionError):
    """The generated tokens contain a token that the grammar does not allow at its position."""

    def __init__(self, token: int) -> None:
        super().__init__(
            "history",
            token,
            "",
            "start the answer again.",
            message=f"the grammar does not allow the token {token} at its position in the answer.",
        )
