"""The languages of files: how their parts are read, and what in a text is code.

Code, texts and comments are told apart by the tokens of Pygments. Code inside of a text, such as
`${total}`, counts as code, where the tokens or a pattern here show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from time import thread_time
from typing import Any


@dataclass(frozen=True)
class Language:
    """How the files of one language are read.

    Attributes:
        parts: The reader of its parts in `parts.py`.
        lexer: Its name in Pygments; empty where texts are not told from code.
        traits: Words for what it has: `labels` of arguments in calls, `short` for `{ name }` as
            a value and its key, `sigils` before variables, `shell` for words that are variables
            behind a mark only, `hyphens` in names, `folds` for names in any case, `locals` for
            functions whose variables are their own, `styles` for files without variables.
        opens: A pattern for the text up to the mark that begins a text with code inside.
        holes: A pattern for that code, as the group `code`, which the lexer leaves in the text.
        unsure: A pattern, with NAME for a name, for what the lexer takes for code, and is a text.
    """

    parts: str = "keys"
    lexer: str = ""
    traits: frozenset[str] = frozenset()
    opens: str = ""
    holes: str = ""
    unsure: str = ""


_BRACED = r"\{(?P<code>[^{}\"]*)\}"
_DOLLAR = rf"(?<![\\$])\$(?:{_BRACED}|(?P<name>\w+))"
_ESCAPED = r"\\[$@]\{?NAME"
_HASH_IN_QUOTES = r"'[^'\"]*#\{[^']*NAME"
# endings or names, reader of parts, lexer, traits, and the patterns
_TABLE = (
    (".py .pyi", "python", "python"),
    (".c .h", "braces", "c"),
    (".cc .cpp .cxx .hpp", "braces", "cpp"),
    (".m", "braces", "objective-c", "labels"),
    (".cs", "braces", "csharp", "labels", r"\$\Z", rf"(?<!\{{)(?:\{{\{{)*{_BRACED}",
     r"\$@?\"[^\"\n]*\{[^{}\"\n]*\"[^\n]*NAME"),  # a text in the code of a text
    (".dart", "braces", "dart", "labels", "", "", _ESCAPED),
    (".go", "braces", "go"),
    (".java", "braces", "java"),
    (".js .mjs .cjs", "braces", "javascript", "short jsx"),
    (".jsx", "braces", "jsx", "short jsx"),
    (".ts", "braces", "typescript", "short"),
    (".tsx", "braces", "tsx", "short jsx"),
    (".vue", "braces", "vue", "short markup"),
    (".kt .kts", "braces", "kotlin", "labels", "", "", _ESCAPED),
    (".php", "braces", "php", "labels sigils folds", "", "", _ESCAPED),
    (".rs", "braces", "rust", "short labels", r"!\s*[(\[{][^;{}]*\"\Z",
     r"(?<!\{)(?:\{\{)*\{(?P<code>\w+)(?=[:}])", r"'NAME\b(?!')|b?r#*\"[^\"]*\{NAME"),
    (".scala", "braces", "scala", "labels", "", "", _ESCAPED),
    (".swift", "braces", "swift", "labels", "", "", r"#\"[^\n]*NAME"),
    (".zig", "braces", "zig"),
    (".groovy .gradle", "braces", "groovy", "labels", "", _DOLLAR, _ESCAPED),
    (".css", "braces", "css", "styles hyphens"),
    (".scss", "braces", "scss", "styles hyphens sigils"),
    (".less", "braces", "less", "styles hyphens sigils"),
    (".proto", "braces", "protobuf", "styles"),
    (".nginx", "braces", ""),
    (".sh .bash .zsh", "shell", "bash", "shell", "", "", _ESCAPED),
    (".ps1 .psm1", "shell", "powershell", "shell folds", "",
     r"(?<!`)(?P<code>\$\{?\w+)", r"`\$\{?NAME"),
    (".rb", "keys", "ruby", "locals sigils labels", "", "", _HASH_IN_QUOTES + r"|NAME[?!](?!=)"),
    (".ex .exs", "keys", "elixir", "locals sigils labels", "", "", _HASH_IN_QUOTES),
    (".lua", "keys", "lua", "locals labels"),
    (".jl", "keys", "julia", "locals labels", "", "", _ESCAPED),
    (".r", "keys", "r", "locals labels sigils"),
    (".pl .pm", "keys", "perl", "sigils", r"\"\Z", r"(?<!\\)(?P<code>[$@]\w+)(?![\w\[{]|->|::)",
     _ESCAPED),
    (".tf", "keys", "terraform", "hyphens blocks", "", rf"(?<!\$)\${_BRACED}"),
    (".sql", "sql", "sql", "folds"),
    (".mk makefile gnumakefile", "targets", "make", "shell hyphens"),
    (".dockerfile dockerfile", "stages", "docker", "shell"),
    (".json .jsonc .json5 .yaml .yml", "keys", "", "settings"),
    (".toml .ini .cfg .conf .properties .editorconfig .service .desktop .env", "sections", "",
     "settings"),
    (".md .markdown .rst .txt .adoc", "headings", "", "prose"),
    (".csv .tsv", "keys", "", "prose"),
    (".html .htm", "elements", "html", "markup hyphens"),
    (".xml .svg", "elements", "xml", "markup hyphens"),
)  # fmt: skip


def _languages() -> dict[str, Language]:
    found = dict[str, Language]()
    for names, parts, lexer, *more in _TABLE:
        traits, *patterns = more or ("",)
        language = Language(parts, lexer, frozenset(traits.split()), *patterns)
        found |= dict.fromkeys(names.split(), language)
    return found


_LANGUAGES = _languages()
_SHEBANG = re.compile(r"#!.{0,80}?\b(ba|z|da)?sh\b")


def language_of(name: str, first: str = "") -> Language:
    """Return the language of a file.

    Args:
        name: Its name.
        first: Its first line, which may name a shell.
    """
    path = PurePath(name.lower())
    stem = path.name.partition(".")[0] if path.name.startswith("dockerfile") else path.name
    stem = ".env" if stem.startswith(".env") else stem
    found = _LANGUAGES.get(path.suffix) or _LANGUAGES.get(stem)
    if found is None and _SHEBANG.match(first):
        return _LANGUAGES[".sh"]
    return found or Language()


# Lexers are made for what people write: a hostile text may take them the square of its length.
_MOST_LEXED = 1 << 18  # characters
_LONGEST_LINE = 4000
_SECONDS = (0.1, 2e-6)  # of this thread, and more for each character
_CONTEXT = 200  # characters before a text that show whether it has code inside


@dataclass(frozen=True)
class Code:
    """The lines of a text by what they are; what is something else is blank in them.

    Attributes:
        code: The lines with their code only.
        texts: Those with their texts only.
        is_sure: Whether the lexer knew all of it.
        n_sure: The lines before the first one that it did not know.
    """

    code: tuple[str, ...]
    texts: tuple[str, ...]
    is_sure: bool
    n_sure: int = 0


@lru_cache(maxsize=4)
def read_code(text: str, language: Language) -> Code:
    """Return which characters of a text are code, and which are texts."""
    is_long = len(text) > _MOST_LEXED or any(len(one) > _LONGEST_LINE for one in text.split("\n"))
    if not language.lexer or is_long:
        lines = tuple(text.split("\n"))
        return Code(lines, tuple(" " * len(one) for one in lines), False)
    from pygments.lexers import get_lexer_by_name  # it takes time, and most edits need no tokens

    options = {"startinline": True} if language.lexer == "php" and "<?" not in text else {}
    lexer = get_lexer_by_name(language.lexer, **options)
    code, texts, at = list[str](), list[str](), 0
    is_sure, end, known = True, _end(text), len(text)
    for start, kind, piece in _joined(lexer, text):
        if start != at or thread_time() > end:
            is_sure, known = False, min(known, at)
            break
        blank, at = _blank(piece), start + len(piece)
        if kind == "error":
            is_sure, known = False, min(known, start)
        if kind == "comment":
            code.append(blank)
            texts.append(blank)
        elif kind == "code" or (kind == "mark" and "shell" in language.traits):
            code.append(piece)
            texts.append(blank)
        elif kind == "mark":
            is_variable = re.match(r"\$\w+(?:->\w+)?", piece)
            n = is_variable.end() if is_variable else 0
            n_mark = 0 if "sigils" in language.traits else min(n, 1)
            code.append(blank[:n_mark] + piece[n_mark:n] + blank[n:])
            texts.append(blank[:n] + piece[n:])
        else:
            inner = _holes(text, start, piece, kind, language)
            code.append(_kept(piece, inner))
            texts.append(_kept(piece, _between(inner, len(piece))))
    code.append(text[at:])
    texts.append(_blank(text[at:]))
    all_code, all_texts = "".join(code), "".join(texts)
    if "jsx" in language.traits and (inner := _words_of_elements(all_code)):
        words = _kept(all_code, inner)
        all_code = _kept(all_code, _between(inner, len(all_code)))
        all_texts = "".join(b if a in " \n" else a for a, b in zip(words, all_texts, strict=True))
        # a quotation mark in the words of an element begins a text for the lexer
        is_sure = is_sure and not any(re.search(r"['\"`]", text[i:j]) for i, j in inner)
    n_sure = text.count("\n", 0, known)
    return Code(tuple(all_code.split("\n")), tuple(all_texts.split("\n")), is_sure, n_sure)


def _end(text: str) -> float:
    return thread_time() + _SECONDS[0] + _SECONDS[1] * len(text)


def _blank(piece: str) -> str:
    return re.sub(r"[^\n]", " ", piece)


def _kept(piece: str, ranges: list[tuple[int, int]]) -> str:
    """Return a piece of a text with blanks outside of some ranges."""
    result, at = list[str](), 0
    for start, end in ranges:
        result += [_blank(piece[at:start]), piece[start:end]]
        at = end
    return "".join([*result, _blank(piece[at:])])


def _between(ranges: list[tuple[int, int]], n: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for one in ranges for edge in one), n]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _holes(
    text: str, start: int, piece: str, kind: str, language: Language
) -> list[tuple[int, int]]:
    """Return where a text has code inside that its lexer did not see."""
    before = text[max(0, start - _CONTEXT) : start + 1]
    opens = re.search(language.opens, before) if language.opens else kind == "double"
    if not language.holes or not opens:
        return []
    return [one.span(one.lastgroup or 0) for one in re.finditer(language.holes, piece)]


_TAG = re.compile(r"(?<![\w)\]])<(?P<end>/?)[A-Za-z]?[\w.-]*(?:[^<>{}]|\{[^{}]*\})*>")
_BEHIND_TAG = re.compile(r"[^<>{}]*")
_BEHIND_END = re.compile(r"[^<>{};)]*")
_BEHIND_CODE = re.compile(r"\}([^<>{}]*)</")


def _words_of_elements(code: str) -> list[tuple[int, int]]:
    """Return where the text of elements in JavaScript is, which its lexer takes for code."""
    found = list[tuple[int, int]]()
    if "</" not in code and "/>" not in code:
        return found
    for tag in _TAG.finditer(code):
        is_end = tag["end"] or tag[0].endswith("/>")
        words = (_BEHIND_END if is_end else _BEHIND_TAG).match(code, tag.end())
        found += [words.span()] if words else []
    found += [one.span(1) for one in _BEHIND_CODE.finditer(code)]
    merged = list[tuple[int, int]]()
    at = 0
    for start, end in sorted(found):
        if max(start, at) < end:
            merged.append((max(start, at), end))
            at = end
    return merged


def _kind_of(token: Any, *, is_markup: bool) -> str:
    from pygments.token import Comment, Error, Name, Other, String, Text

    if token in Comment.Preproc and token is not Comment.PreprocFile:
        return "mark" if is_markup else "code"
    if token is Other or (is_markup and (token is Name.Attribute or token in Text)):
        return "text"
    if token in String and token is not String.Doc:
        return {String.Interpol: "mark", String.Double: "double"}.get(token, "text")
    if token in Comment or token is String.Doc:
        return "comment"
    return "error" if token is Error else "code"


def _joined(lexer: Any, text: str) -> Iterator[tuple[int, str, str]]:
    """Return the pieces of a text with what each is; a text of several tokens is one piece.

    They are `code`, `comment`, `text`, `double` (a text in double quotes), `mark` (between a text
    and code inside), and `error`.
    """
    from pygments.token import Comment

    is_markup = lexer.name in {"HTML", "XML", "Vue"}
    begun, kind_begun, parts = 0, "", list[str]()
    for start, token, piece in lexer.get_tokens_unprocessed(text):
        kind = _kind_of(token, is_markup=is_markup)
        is_text = {kind, kind_begun} <= {"text", "double"}
        if parts and (is_text or kind == kind_begun == "comment"):
            parts.append(piece)
            continue
        if parts:
            yield begun, kind_begun, "".join(parts)
            parts = []
        if token in Comment.Preproc and '"' in piece:
            at = start
            for one in re.split(r"(\"[^\"\n]*\"?)", piece):
                yield at, "text" if one.startswith('"') else "code", one
                at += len(one)
        else:
            begun, kind_begun, parts = start, kind, [piece]
    if parts:
        yield begun, kind_begun, "".join(parts)


def keywords(text: str, language: Language) -> set[str]:
    """Return the words in a text that its language keeps for itself."""
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Keyword, Operator

    if not language.lexer or len(text) > _MOST_LEXED:
        return set()
    lexer = get_lexer_by_name(language.lexer)
    end = _end(text)
    found = set[str]()
    for _, token, piece in lexer.get_tokens_unprocessed(text):
        if token in Keyword or token is Operator.Word:
            found.add(piece.strip())
        if thread_time() > end:
            break
    return found
