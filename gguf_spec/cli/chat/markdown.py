"""Incremental rendering of an answer: simple markdown styles and line wrapping.

Text that was already shown is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from rich.cells import cell_len

Piece = tuple[str, str]  # text and the name of its rich style

CODE = "cyan"  # style of code blocks, whose lines are not wrapped
# Group of `_SPAN` -> style.
_STYLES = {
    "code": "bold cyan",
    "both": "bold italic",
    "bold": "bold",
    "italic": "italic",
    "italic_": "italic",
}
_HELD = 300  # maximum number of characters held back until the end of a span

# Spans begin and end outside of words. This is stricter than CommonMark, so that 2*3*4, **kwargs,
# snake_case and __init__ stay unchanged.
_SPAN = re.compile(
    r"(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)"
    r"|(?<![A-Za-z0-9])(?:\*\*\*(?![\s*])(?P<both>.+?)(?<![\s*])\*\*\*"
    r"|\*\*(?![\s*])(?P<bold>.+?)(?<!\s)\*\*(?!\*)|\*(?![\s*])(?P<italic>.+?)(?<![\s*])\*(?!\*)"
    r"|_(?![\s_])(?P<italic_>.+?)(?<![\s_])_(?!_))(?![A-Za-z0-9])"
)
_MAY_OPEN = re.compile(r"`+|(?<![A-Za-z0-9])(?:\*{1,3}(?=[^\s*]|$)|_(?=[^\s_]|$))")
_SPECIAL = re.compile(r"[*_`]|\\[*_`]|\\$")
# Beginnings of a line that do not yet determine its kind.
_UNDECIDED = re.compile(r"\s*[#>*+_`~-]*\s*")
_FENCE = re.compile(r" *(`{3,}(?!.*`)|~{3,})")
_RULE = re.compile(r" *([-*_])\1{2,} *")
_BEGINNING = re.compile(
    r"(?P<indent> *)(?:(?P<heading>#{1,6}) +|(?P<bullet>[-*+]) +(?=\S)|(?P<quote>>) ?)"
)


class Markdown:
    """Incremental styling of headings, lists, quotes, code, bold and italics.

    A span is held back until its end. All other text stays unchanged.
    """

    def __init__(self) -> None:
        self._line, self._at = "", 0  # current line, and the number of characters returned of it
        self._style, self._fence = "", ""

    def feed(self, text: str) -> list[Piece]:
        """Append text; return the pieces that can be shown."""
        out: list[Piece] = []
        *ended, rest = text.split("\n")
        for part in ended:
            self._line += part
            self._go_on(out, final=True)
            out.append(("\n", ""))
            self._line, self._at, self._style = "", 0, ""
        self._line += rest
        self._go_on(out, final=False)
        return out

    def finish(self) -> list[Piece]:
        out: list[Piece] = []
        self._go_on(out, final=True)
        return out

    def _go_on(self, out: list[Piece], final: bool) -> None:
        if self._at == 0:
            if not final and (_UNDECIDED.fullmatch(self._line) or _FENCE.match(self._line)):
                return
            if self._is_marker(out):
                return
        if self._fence:
            out.append((self._line[self._at :], CODE))
            self._at = len(self._line)
        else:
            self._at = _inline(out, self._line, self._at, self._style, final)

    def _is_marker(self, out: list[Piece]) -> bool:
        """Process the beginning of a line; return whether the whole line is a marker."""
        fence = _FENCE.match(self._line)
        if fence and (
            not self._fence
            or (fence[1].startswith(self._fence) and not self._line[fence.end() :].strip())
        ):
            self._fence = "" if self._fence else fence[1]
        elif self._fence or not _RULE.fullmatch(self._line):
            begins = None if self._fence else _BEGINNING.match(self._line)
            if begins:
                self._at, self._style = begins.end(), "bold" if begins["heading"] else ""
                mark = "• " if begins["bullet"] else "│ " if begins["quote"] else ""
                out.append((begins["indent"] + mark, ""))
            return False
        out.append((self._line, "dim"))
        self._at = len(self._line)
        return True


def _inline(out: list[Piece], line: str, at: int, style: str, final: bool) -> int:
    """Append the decided pieces of a line to `out`.

    Args:
        at: Index of the first character to process.
        style: Style of the text around the spans.

    Returns:
        Index of the first character that is not decided.
    """
    while at < len(line):
        special = _SPECIAL.search(line, at)
        if special is None or special.start() > at:
            end = special.start() if special else len(line)
            out.append((line[at:end], style))
            at = end
            continue
        span = _SPAN.match(line, at)
        if span and (final or span.end() < len(line)):  # the next character matters
            kind = next(kind for kind in _STYLES if span[kind] is not None)
            inner = f"{style} {_STYLES[kind]}".strip()
            if kind == "code":
                out.append((span[kind].strip() or span[kind], inner))
            else:
                _inline(out, span[kind], 0, inner, final=True)
            at = span.end()
        elif line[at] == "\\" and at + 1 < len(line):
            out.append((line[at + 1], style))
            at += 2
        else:
            end = at + len(line[at:]) - len(line[at:].lstrip(line[at]))
            may_hold = not final and len(line) - at < _HELD
            may_open = span or line[at] == "\\" or _MAY_OPEN.match(line, at)
            # A span may follow, or the run of equal characters may continue.
            if may_hold and (may_open or end == len(line)):
                break
            out.append((line[at:end], style))
            at = end
    return at


class Wrap:
    """Incremental line wrapping between words.

    Further lines of a list item are indented to its text. A word is held back until its end.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._out: list[Piece] = []
        self._word: list[Piece] = []
        self._spaces, self._column, self._indent, self._first = "", 0, 0, True

    def feed(self, pieces: Iterable[Piece]) -> list[Piece]:
        for text, style in pieces:
            for part in re.findall(r"\n|[^\S\n]+|\S+", text):
                if part == "\n":
                    self._end_word()
                    self._out.append((part, ""))
                    self._spaces, self._column, self._indent, self._first = "", 0, 0, True
                elif style == CODE:
                    self._end_word()
                    self._out.append((self._spaces + part, style))
                    self._spaces, self._column = "", self._column + cell_len(part)
                elif part.isspace():
                    self._end_word()
                    self._spaces += part
                elif cell_len(part) == len(part):
                    self._word.append((part, style))
                else:  # scripts with wide characters have no spaces: allow a break before each
                    for character in part:
                        if cell_len(character) > 1:
                            self._end_word()
                        self._word.append((character, style))
        out, self._out = self._out, []
        return out

    def finish(self) -> list[Piece]:
        self._end_word()
        out, self._out = self._out, []
        return out

    def _end_word(self) -> None:
        if not self._word:
            return
        width, n_spaces = self._width(), cell_len(self._spaces)
        n = sum(cell_len(text) for text, _ in self._word)
        fits = self._column + n_spaces + n <= width
        if not fits and self._column > self._indent and n <= width - self._indent:
            self._out.append(("\n" + " " * self._indent, ""))
            self._column = self._indent
        else:
            self._out.append((self._spaces, ""))
            self._column += n_spaces
        if self._first:
            word = "".join(text for text, _ in self._word)
            is_marker = word in ("•", "│", "-", "*", ">") or re.fullmatch(r"\d{1,3}[.)]", word)
            indent = self._column + (n + 1 if is_marker else 0)
            self._indent, self._first = min(indent, width // 3), False
        self._out += self._word
        # The terminal itself breaks a word that is wider than the line.
        self._column = (self._column + n - 1) % width + 1
        self._word, self._spaces = [], ""
