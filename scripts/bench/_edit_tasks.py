"""The tasks of bench_edits.py: files, instructions, solutions, and checks of new texts.

`tests/data/edits/README.md` describes the format.
"""

import ast
import contextlib
import csv
import difflib
import functools
import io
import json
import re
import signal
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import yaml

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "edits"
HALVES = ("tune", "report", "fresh", "fresh2", "fresh3", "fresh4")
RIGHT, DAMAGED, WRONG, UNCHANGED, REFUSED = "right", "damaged", "wrong", "unchanged", "refused"
_MOST_S = 20  # for the code of a new text, which may not end
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BRACES = {".c", ".h", ".js", ".ts", ".css"}


@dataclass(frozen=True)
class Task:
    """One edit.

    Attributes:
        half: "tune", "report", "fresh", "fresh2", "fresh3" or "fresh4".
        name: A short name.
        file: Name of the file, as the model sees it.
        raw: The file as it is stored, with its line ends and byte order mark.
        ask: The instruction.
        trap: What a careless edit would change as well; empty if there is nothing.
        solution: The right text.
        also: Other right texts.
        far: Texts that change too much.
        lines: Numbers of the old lines that may change, from 1.
        gaps: Places where lines may be added: number of old lines before them.
        check: Python code that asserts what was asked.
    """

    half: str
    name: str
    file: str
    raw: str
    ask: str
    trap: str
    solution: str
    also: tuple[str, ...]
    far: tuple[str, ...]
    lines: frozenset[int]
    gaps: frozenset[int]
    check: str

    @property
    def old(self) -> str:
        """The text that an editor shows: line feeds, no byte order mark."""
        return _shown(self.raw)

    @property
    def kind(self) -> str:
        return Path(self.file).suffix.replace(".yml", ".yaml") or self.file

    def stored(self, text: str) -> str:
        """Return a text with the line ends and the byte order mark of the file."""
        if "\r\n" in self.raw:
            text = text.replace("\n", "\r\n")
        return "\ufeff" * self.raw.startswith("\ufeff") + text


@dataclass
class Verdict:
    """What became of a text.

    Attributes:
        kind: RIGHT, DAMAGED, WRONG or UNCHANGED.
        outside: Lines changed, added or removed outside the place that was asked.
        why: The first thing that is not right.
    """

    kind: str
    outside: int = 0
    why: str = ""


class Harm(Exception):
    """What the instruction did not name was changed inside the place that may change."""


def read_tasks(halves=HALVES, folder=FOLDER) -> list[Task]:
    """Return the tasks of some halves, in their order."""
    return [task for half in halves for task in _read_half(half, folder)]


@functools.cache
def _read_half(half, folder) -> list[Task]:
    found = []
    for group in yaml.load((folder / f"{half}.yaml").read_bytes(), _LOADER):
        raw = (folder / half / f"{group['file']}.in").read_bytes().decode("utf-8")
        for entry in group["tasks"]:
            try:
                found.append(_task(half, group["file"], raw, entry))
            except ValueError as error:
                raise ValueError(f"{group['file']}, {entry['name']}: {error}") from None
    return found


def _task(half, file, raw, entry) -> Task:
    old = _shown(raw)
    solution = changed(old, entry["solution"])
    also = tuple(changed(old, edits) for edits in entry.get("also", ()))
    lines, gaps = set(), set()
    for text in (solution, *also):
        _add_places(old.splitlines(), text.splitlines(), lines, gaps)
    for span in entry.get("may", ()):
        first, last = _span(old, span)
        lines |= set(range(first, last + 1))
    for span in entry.get("insert", ()):
        first, last = _span(old, span)
        gaps |= set(range(first - 1, last + (">>" in str(span))))
    _add_blanks(old.splitlines(), lines, gaps)
    gaps |= {gap for line in lines for gap in (line - 1, line)}
    far = tuple(changed(solution, edits) for edits in entry.get("far", ()))
    places = frozenset(lines), frozenset(gaps)
    trap = entry.get("trap", "")
    return Task(half, entry["name"], file, raw, entry["ask"], trap, solution, also, far, *places, entry["check"])  # fmt: skip


def _shown(raw: str) -> str:
    return raw.removeprefix("\ufeff").replace("\r\n", "\n")


def _span(text: str, span) -> tuple[int, int]:
    """Return the first and the last line of a place.

    `A >> B` begins at the first line that contains A and ends before the next one that contains B;
    without B it ends with the text. `A` alone is that line. A number is a line.
    """
    lines = [*text.splitlines(), "END"]
    begin, is_long, end = str(span).partition(" >>")
    first = int(begin) if begin.isdigit() else _line(lines, begin, 0)
    if not is_long:
        return first, first
    return first, _line(lines, end.removeprefix(" ") or "END", first) - 1


def _line(lines: list[str], part: str, start: int) -> int:
    for n, line in enumerate(lines[start:], start + 1):
        if part in line:
            return n
    raise ValueError(f"no line has {part!r}")


def changed(text: str, edits) -> str:
    """Apply edits: [old, new] with a unique old part, or {sub, by, lines} with a regular expression."""
    for edit in edits:
        if isinstance(edit, dict):
            first, last = _span(text, edit.get("lines", "1 >>"))
            parts = text.splitlines(keepends=True)
            part = "".join(parts[first - 1 : last])
            new = re.sub(edit["sub"], edit["by"], part, flags=re.MULTILINE)
            if new == part:
                raise ValueError(f"{edit['sub']!r} changes nothing")
            text = "".join([*parts[: first - 1], new, *parts[last:]])
        else:
            old, new = edit
            if text.count(old) != 1:
                raise ValueError(f"{old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
    return text


def _add_places(old, new, lines, gaps) -> None:
    """Add the lines and gaps of the old text where the new one differs."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i, end, _, _ in matcher.get_opcodes():
        if tag == "insert":
            gaps.add(i)
        elif tag != "equal":
            lines.update(range(i + 1, end + 1))


def _add_blanks(old, lines, gaps) -> None:
    """Add the blank lines beside lines and gaps that may change."""
    blank = {n for n, line in enumerate(old, 1) if not line.strip()}
    todo = {n + step for n in lines for step in (-1, 1)} | {
        n + step for n in gaps for step in (0, 1)
    }
    while todo:
        todo = (todo & blank) - lines
        lines |= todo
        todo = {n + step for n in todo for step in (-1, 1)}


def outside(task: Task, new: str) -> int:
    """Return the least number of lines that were changed, added or removed where none may be.

    Args:
        task: The task.
        new: The new text, as it is stored.
    """
    old_lines, new_lines = (one.removesuffix("\n").split("\n") for one in (task.raw, new))
    # What is the same before the first place and behind the last one is left out: it costs nothing.
    n_before, n_old = 0, len(old_lines)
    first, last = min(task.gaps), max(task.gaps)
    while n_before < min(first, len(new_lines)) and old_lines[n_before] == new_lines[n_before]:
        n_before += 1
    while (
        n_old > max(last, n_before)
        and len(new_lines) > n_before
        and old_lines[n_old - 1] == new_lines[-1]
    ):
        n_old -= 1
        del new_lines[-1]
    row = [0]
    for _ in new_lines[n_before:]:
        row.append(row[-1] + (n_before not in task.gaps))
    for i in range(n_before + 1, n_old + 1):
        line, lost, added = old_lines[i - 1], int(i not in task.lines), int(i not in task.gaps)
        above, row = row, [row[0] + lost]
        for j, one in enumerate(new_lines[n_before:], 1):
            kept = above[j - 1] + (0 if line == one else lost)
            row.append(min(kept, above[j] + lost, row[j - 1] + added))
    return row[-1] + (task.raw.endswith("\n") != new.endswith("\n"))


def judge(task: Task, new: str, stored: str | None = None) -> Verdict:
    """Judge a new text.

    Args:
        task: The task.
        new: The text, with line feeds.
        stored: The text as it is stored; None stores it as the old one.
    """
    stored = task.stored(new) if stored is None else stored
    if stored == task.raw:
        return Verdict(UNCHANGED)
    n = outside(task, stored)
    if _parses(task.file, task.old) and not _parses(task.file, new):
        return Verdict(DAMAGED, n, "it no longer parses")
    check = compile(task.check, f"<check of {task.name}>", "exec")
    try:
        with _limited():
            exec(check, names_of(task, new))
    except Harm as error:
        return Verdict(DAMAGED, n, str(error))
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else _failed(task, error)
        return Verdict(DAMAGED if n else WRONG, n, why)
    return Verdict(DAMAGED if n else RIGHT, n, f"{n} lines outside" if n else "")


def _failed(task: Task, error: BaseException) -> str:
    """Return the line of the check that failed."""
    place, number = error.__traceback__, 0
    while place:
        if place.tb_frame.f_code.co_filename.startswith("<check"):
            number = place.tb_lineno
        place = place.tb_next
    return task.check.splitlines()[number - 1].strip() if number else type(error).__name__


@contextlib.contextmanager
def _limited():
    """End code of a new text that does not end, and keep what it prints away."""

    def stop(_signal, _frame):
        raise TimeoutError("the code of the new text did not end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _MOST_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(repr(error)) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@functools.lru_cache(200)
def _parses(file: str, text: str) -> bool:
    try:
        if Path(file).suffix in _BRACES:
            return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))
        if file.endswith(".py"):
            compile(text, file, "exec")
        data_of(file, text)
        return True
    except Exception:
        return False


def data_of(file: str, text: str):
    """Return the data of a JSON, YAML, TOML or CSV text, or the tree of a Python one."""
    kind = Path(file).suffix
    if kind == ".py":
        return ast.parse(text)
    if kind in (".yaml", ".yml"):
        return yaml.load(text, _LOADER)
    if kind == ".json":
        return json.loads(text)
    if kind == ".toml":
        return tomllib.loads(text)
    if kind == ".csv":
        return list(csv.reader(io.StringIO(text)))
    return text


def names_of(task: Task, new: str) -> dict:
    """Return the names that a check uses."""

    def has(*patterns):
        for pattern in patterns:
            assert re.search(pattern, new, re.MULTILINE), f"not there: {pattern}"

    def lacks(*patterns):
        for pattern in patterns:
            assert not re.search(pattern, new, re.MULTILINE), f"still there: {pattern}"

    def count(pattern, text=new):
        return len(re.findall(pattern, text, re.MULTILINE))

    def part(begin, end, text=new):
        """Return the text from a pattern to the next place of another one."""
        start = re.search(begin, text, re.MULTILINE)
        assert start, f"not there: {begin}"
        stop = re.compile(end, re.MULTILINE).search(text, start.end())
        return text[start.start() : stop.end() if stop else len(text)]

    def run(text=new, **given):
        """Execute a Python text, and return its names."""
        space = {"__name__": "edited", **given}
        exec(compile(text, task.file, "exec"), space)
        return SimpleNamespace(
            **{name: one for name, one in space.items() if name != "__builtins__"}
        )

    def node(path, text=new):
        """Return the node of a function or class, such as Store.total."""
        found = ast.parse(text)
        for name in path.split("."):
            found = next((one for one in found.body if getattr(one, "name", None) == name), None)
            assert found, f"not there: {path}"
        return found

    def code(path, text=new):
        """Return a function or class as normalised code, without comments."""
        return ast.unparse(node(path, text))

    def keep(*patterns):
        """What was there and must stay: without it the text is damaged."""
        for pattern in patterns:
            if not re.search(pattern, new, re.MULTILINE):
                raise Harm(f"lost: {pattern}")

    def raises(error, function, *args, **options):
        try:
            function(*args, **options)
        except error as raised:
            return raised
        raise AssertionError(f"{error.__name__} was not raised")

    def flat(text=new):
        """Return a text with single spaces."""
        return " ".join(text.split())

    def by_line():
        """Each line is the one of a right text: they have the same number of lines."""
        texts = [text.split("\n") for text in (task.solution, *task.also)]
        for n, (line, *right) in enumerate(zip_longest(new.split("\n"), *texts), 1):
            assert line in right, f"line {n}: {line!r}"

    def data(text=new):
        return data_of(task.file, text)

    return {
        "new": new, "old": task.old, "solution": task.solution, "flat": flat, "has": has, "lacks": lacks, "count": count, "part": part,
        "by_line": by_line, "run": run, "node": node, "code": code, "keep": keep, "raises": raises, "data": data,
        "ast": ast, "re": re, "Harm": Harm,
    }  # fmt: skip
