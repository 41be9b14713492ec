"""Options that /set changes during a chat: those of the options tables."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import GgufSpecError, InvalidOptionError
from ...options import SAMPLING, SPECULATION, Rule
from ..habits import HIDDEN_NAMES, nearest
from ..text_file import TextFile

if TYPE_CHECKING:
    from ... import Sampling, Speculation

# `overflow` of a chat is not that of one answer.
RULES: dict[str, Rule] = {
    name: rule for name, rule in (SAMPLING | SPECULATION).items() if name != "overflow"
}
_TRUTH = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("off", "false", "no", "0"), False),
}


def _names() -> dict[str, str]:
    """Return the fields by all their names: fields, options, and hidden names of options."""
    found = {name: name for name in RULES}
    for name, rule in RULES.items():
        if not rule.inverted:
            flags = [flag.split("/")[0] for flag in rule.flags]
            parameter = (flags or [name])[-1].lstrip("-").replace("-", "_")
            for flag in (*flags, *HIDDEN_NAMES.get(parameter, ())):
                if flag.startswith("--") or flag == "-k":
                    found.setdefault(flag.lstrip("-").replace("-", "_"), name)
    return found


NAMES = _names()


class Settings:
    """Sampling and speculation options of a chat.

    Attributes:
        sampling: Sampling options of the next answer.
        speculation: Speculation options of the next answer.
    """

    def __init__(self, sampling: Sampling, speculation: Speculation) -> None:
        self._loaded = (sampling, speculation)
        self._changed: dict[str, Any] = {}
        self.sampling, self.speculation = sampling, speculation

    def use(self, sampling: Sampling, speculation: Speculation) -> None:
        """Take the options of another model; what was changed stays changed."""
        self._loaded = (sampling, speculation)
        self._apply(self._changed)

    def change(self, field: str, value: Any) -> None:
        """Change an option; `...` restores the value that it had at the start.

        Raises:
            InvalidOptionError: The value is not allowed. Nothing is changed.
        """
        changed = {name: one for name, one in self._changed.items() if name != field}
        self._apply(changed if value is ... else changed | {field: value})

    def _apply(self, changed: dict[str, Any]) -> None:
        sampling, speculation = self._loaded
        of_sampling = {name: value for name, value in changed.items() if name in SAMPLING}
        of_speculation = {name: value for name, value in changed.items() if name in SPECULATION}
        new = replace(sampling, **of_sampling), replace(speculation, **of_speculation)
        self.sampling, self.speculation = new
        self._changed = changed

    def set(self, text: str) -> str:
        """Carry out /set: show all options, show one, or change one.

        Args:
            text: Nothing, `NAME` or `NAME VALUE`.

        Returns:
            What to tell the user.

        Raises:
            GgufSpecError: There is no such option, or it does not take the value.
        """
        typed, _, value = text.partition(" ")
        if not typed:
            return "\n".join(self._line(name) for name in RULES)
        field = _field(typed)
        if value.strip():
            parsed = _parsed(field, value.strip())
            self._check_draft(field, parsed)
            self.change(field, parsed)
            return self._line(field)
        return f"{self._line(field)}\n{RULES[field].help}"

    def _line(self, field: str) -> str:
        value = getattr(self.sampling if field in SAMPLING else self.speculation, field)
        shown = _shown(value)
        return f"{field:<22}{shown}{' (changed)' if field in self._changed else ''}"

    def _check_draft(self, field: str, value: Any) -> None:
        if field in SPECULATION and value is not ... and not self._loaded[1].k:
            raise GgufSpecError(
                f"the models were loaded without speculation, so {field} has no effect.",
                "start the chat again without -k 0 and --draft none.",
            )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, dict):
        value = [f"{token}={bias:g}" for token, bias in value.items()]
    if isinstance(value, (tuple, list)):
        return " ".join(map(repr, value)) or "none"
    text = str(value)
    return text if len(text) <= 50 else text[:47].rstrip() + "..."


def _field(typed: str) -> str:
    name = typed.lstrip("-").replace("-", "_").lower()
    if name in NAMES:
        return NAMES[name]
    near = nearest(name, NAMES, {})
    raise GgufSpecError(
        f"there is no option {typed}.", f"did you mean {near}?" if near else "/set lists them."
    )


def _parsed(field: str, text: str) -> Any:
    """Return the value of an option as typed; `...` for `default`.

    Raises:
        InvalidOptionError: The text is not of the type of the option.
    """
    rule = RULES[field]
    word = text.lower()
    if word == "default":
        return ...
    try:
        if rule.shape != "one":
            items = [] if word == "none" else [_item(field, one) for one in shlex.split(text)]
            return dict(items) if rule.shape == "mapping" else tuple(items)
        if rule.optional and word == "none":
            return None
        return _one(field, text)
    except (KeyError, ValueError):
        allowed = "on or off" if rule.type == "boolean" else rule.allowed
        raise InvalidOptionError(field, text, allowed) from None


def _one(field: str, text: str) -> Any:
    if RULES[field].type == "boolean":
        return _TRUTH[text.lower()]
    if field in ("grammar", "json_schema"):
        return _text(field, text)
    value = _item(field, text)
    return None if (field, value) == ("max_tokens", -1) else value


def _item(field: str, text: str) -> Any:
    rule = RULES[field]
    if rule.shape == "mapping":
        token, _, bias = text.partition("=")
        return int(token), float(bias)
    return {"number": float, "integer": int}.get(rule.type, str)(text)


def _text(field: str, text: str) -> str:
    """Return a grammar, which is in a file, or a JSON schema, which may be in one."""
    file = text if field == "grammar" else text[1:] if text.startswith("@") else ""
    return TextFile(Path(file).expanduser()).text if file else text
