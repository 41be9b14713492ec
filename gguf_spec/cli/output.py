"""Output at a terminal: text of a model, statistics, JSON, progress lines, and Ctrl-C."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from . import signals
from .command import CONTROL, as_called

if TYPE_CHECKING:
    from rich.console import Console

    from .. import Chunk, Completion, Progress, Stats
    from ..engine import Answer
    from .options import AnyLLM


def styled(chunk: Chunk, show_draft: bool) -> list[tuple[str, str]]:
    """Return the text of a chunk with styles; accepted draft tokens are green if `show_draft`."""
    pieces = chunk.accepted_text if show_draft else ((chunk.text, False),)
    return [(text, "green" if accepted else "") for text, accepted in pieces]


class Thoughts:
    """The reasoning of an answer as styled text: dim, with an empty line after it.

    Hidden reasoning is one word.
    """

    def __init__(self, shown: bool) -> None:
        self._shown, self._open = shown, False

    def before(self, chunk: Chunk) -> list[tuple[str, str]]:
        """Return the pieces to write before the text of a chunk: text and style."""
        pieces = []
        if chunk.reasoning and (self._shown or not self._open):
            text = chunk.reasoning.translate(CONTROL) if self._shown else "Thinking..."
            pieces.append((text, "dim"))
        self._open = self._open or bool(chunk.reasoning)
        if self._open and chunk.text:
            self._open = False
            pieces.append(("\n\n", ""))
        return pieces


def write(out: Console, pieces: Iterable[tuple[str, str]]) -> None:
    """Write styled texts, each at once; at a terminal, control characters are replaced."""
    for text, style in pieces:
        shown = text.translate(CONTROL) if out.is_terminal else text
        out.out(shown, style=style or None, highlight=False, end="")
        out.file.flush()


def answer_json(llm: AnyLLM, result: Completion, with_logprobs: bool) -> dict[str, Any]:
    """Return an answer as the object that --json prints."""
    head = result.to_dict()
    data = {
        "text": result.text,
        "reasoning": result.reasoning,
        "tokens": head["tokens"],
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.stats.n_prompt,
        "seed": result.seed,
        "target": llm.name,
        "draft": (llm.draft_name or "ngram") if llm.speculation.k else None,
        "stats": head["stats"],
    }

    def named(one: dict[str, Any]) -> dict[str, Any]:
        token, logprob = one["token"], round(one["logprob"], 6)
        return {"token": token, "text": llm.token_text(token), "logprob": logprob}

    if with_logprobs:
        data["logprobs"] = [
            named(one) | ({"top": [*map(named, one["top"])]} if one["top"] else {})
            for one in head["logprobs"]
        ]
    return data


def print_json(data: Any, allow_nan: bool = False) -> None:
    import json

    click.echo(json.dumps(data, ensure_ascii=False, allow_nan=allow_nan))


def logprob_lines(llm: AnyLLM, result: Completion) -> str:
    def shown(token: int, logprob: float) -> str:
        return f"{math.exp(logprob):7.2%} {llm.token_text(token)!r}"

    lines = [
        (shown(one.token, one.logprob), *(shown(*other) for other in one.top))
        for one in result.logprobs
    ]
    return "\n".join(aligned(lines))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def columns_of(out: TextIO | None = None) -> int | None:
    """Return the width of the terminal on stdout; None where that is no terminal."""
    out = out or sys.stdout
    if not (out and out.isatty()):
        return None
    import shutil

    return shutil.get_terminal_size().columns


def fitted(table: Sequence[str], *, has_head: bool = True) -> list[str]:
    """Return the lines of a table; at a terminal that is too narrow, several lines for each row.

    Args:
        table: Its lines, with two blanks or more between cells, and no empty cell.
        has_head: Whether the first line names the columns.
    """
    width = columns_of()
    if width is None or all(len(line) <= width for line in table):
        return [*table]
    import re
    import textwrap

    rows = [re.split(r" {2,}", line.strip()) for line in table]
    names = rows.pop(0) if has_head else [""] * max(map(len, rows))
    lines = list[str]()
    for first, *rest in rows:
        cells = (f"{name} {cell}".strip() for name, cell in zip(names[1:], rest, strict=False))
        for text, indent in ((first, ""), (", ".join(cells), "  ")):
            lines += textwrap.wrap(
                text, max(20, width), initial_indent=indent, subsequent_indent="  ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return lines


def speed(s: Stats) -> str:
    return f"{s.tokens_per_s:,.{0 if s.tokens_per_s >= 100 else 1}f} tok/s"


def stats_lines(s: Stats, seed: int) -> str:
    busy = s.draft_s + s.verify_s + s.other_s or 1.0
    cached = f", {s.n_cached} of them cached," if s.n_cached else ""
    prompt = f"prompt: {s.n_prompt} tokens{cached} in {s.prompt_s * 1000:,.0f} ms"
    drafters = s.drafters.items()
    by = ", ".join(f"{name} {taken} of {drafted}" for name, (drafted, taken) in drafters)
    accepted = (
        f"{s.n_accepted} of {s.n_drafted} tokens accepted ({s.acceptance:.0%}; {by}), "
        f"{s.tokens_per_round:.2f} tokens a round"
    )
    what = "plain decoding may choose other tokens there (--strict decides them again)"
    what = "decided again, as plain decoding does" if s.n_decided_again else what
    ties = f"ties    {s.n_near_ties} of {s.n_generated} tokens were near ties: {what}\n"
    gain = (
        f"gain    {s.speedup:.2f} times plain decoding by the clock, "
        f"{s.predicted_speedup:.2f} by measured costs\n"
    )
    return as_called(
        f"speed   {s.n_generated} tokens at {s.tokens_per_s:,.1f} tok/s, "
        f"the first after {s.ttft_s * 1000:,.0f} ms ({prompt})\n"
        "draft   "
        f"{accepted + (s.why_none and f'; {s.why_none}') if s.n_drafted else f'none: {s.why_none}'}"
        "\n"
        f"{gain if s.plain_s and s.n_drafted else ''}"
        f"{ties if s.n_near_ties else ''}"
        f"time    draft {s.draft_s / busy:.0%}, verify {s.verify_s / busy:.0%}, "
        f"Python {s.other_s / busy:.0%}\n"
        f"seed    {seed}"
    )


_PATIENCE_S = 2.0  # seconds before a bar appears
MOVE_S = 0.25  # seconds between two steps of a bar
_BAR = 24  # width of the bar in characters
# Stage of a progress -> text of its bar.
_TITLES = {"prompt": "Reading the prompt", "load": "Loading"}

S = TypeVar("S", bound="StatusLine")


class StatusLine:
    """Line of a terminal that can be replaced, and is removed after a `with` block."""

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        in_pipe: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a line on `out`, or on stderr; only a terminal other than `dumb` shows it.

        A dumb terminal cannot move the cursor to the start of the line. With `in_pipe` that one, a
        pipe and a file get a text in a line of its own, at most one every `LINE_S` seconds.
        """
        out = out or sys.stderr
        self._out = out if out and out.isatty() and os.environ.get("TERM") != "dumb" else None
        self._n_shown, self._in_pipe = 0, in_pipe
        self._clock, self._told = clock, clock()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def show(self, text: str) -> None:
        """Replace the text of the line; it is cut to the width of the terminal."""
        if self._out:
            import shutil

            text = text[: shutil.get_terminal_size().columns - 1]
            self._out.write("\r" + text.ljust(self._n_shown))
            self._out.flush()
            self._n_shown = max(self._n_shown, len(text))
        elif self._in_pipe and self._clock() - self._told >= LINE_S:
            self._told = self._clock()
            click.echo(text, err=True)

    def remove(self) -> None:
        """Remove the text; further calls have no effect."""
        if self._out and self._n_shown:
            self._out.write("\r" + " " * self._n_shown + "\r")
            self._out.flush()
            self._n_shown = 0


# Seconds between two lines of progress in a pipe or a file.
LINE_S = 15.0


class LateBar(StatusLine):
    """Progress bar for the prefill and for loading; it appears after two seconds.

    It is a callback. Call `remove` before text is written. After `begin` it moves by the cost of a
    token, as a pass may take long: between two passes at most to the end of the prompt.
    """

    _thread: threading.Thread | None = None
    _last: Progress | None = None
    _at = _token_s = _share = 0.0

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(out, clock=clock)
        self._since, self._percent = self._told, -1
        # Of these two a Ctrl-C in `remove` leaves no lock taken, as it may in an Event.
        self._over, self._lock = queue.SimpleQueue[None](), threading.Lock()

    def begin(self, n_tokens: int, token_s: float = 0.0) -> None:
        """Show how a prompt of `n_tokens` is read, whose tokens cost `token_s` each if known."""
        from .. import Progress

        if self._out:
            self._last, self._at = Progress("prompt", 0, n_tokens, "tokens"), self._clock()
            self._token_s = token_s
            self._thread = threading.Thread(target=self._move, daemon=True)
            self._thread.start()

    def remove(self) -> None:
        if self._thread:
            self._over.put(None)
            self._thread.join()
            self._thread = None
        super().remove()

    def __call__(self, now: Progress) -> None:
        at = self._clock()
        with self._lock:
            n_done = self._last.done if self._last else 0
            if now.done < n_done:  # another file is loaded
                self._share = 0.0
            # The first pass also counts what is cached, so it says nothing about the cost.
            elif self._thread and 0 < n_done < now.done:
                self._token_s = (at - self._at) / (now.done - n_done)
            self._last, self._at = now, at
        self._draw(at)

    def _move(self) -> None:
        while True:
            try:
                return self._over.get(timeout=MOVE_S)
            except queue.Empty:
                self._draw(self._clock())

    def _draw(self, at: float) -> None:
        with self._lock:
            last = self._last
            if last and at - self._since >= _PATIENCE_S:
                n_more = max(0.0, at - self._at) / self._token_s if self._token_s else 0.0
                most = 1.0 if last.done == last.total else 0.99
                share = min((last.done + n_more) / (last.total or 1), most)
                self._share = max(self._share, share)
                self._show(last, self._share)

    def _show(self, now: Progress, share: float) -> None:
        from ..models import format_bytes

        percent, n_full = int(100 * share), int(_BAR * share)
        if percent != self._percent:
            self._percent = percent
            bar = "#" * n_full + "." * (_BAR - n_full)
            total = now.total or 0
            of = format_bytes(total) if now.unit == "bytes" else f"{total:,} {now.unit}"
            self.show(f"{_TITLES[now.stage]} [{bar}] {percent / 100:4.0%} of {of}")


@contextlib.contextmanager
def counted(title: str, unit: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield a progress callback that shows a bar with a count and the time left.

    Where stderr is no terminal it writes a line every `LINE_S` seconds instead.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not (quiet or console.is_terminal):
        yield CountedLines(title, unit)
        return
    columns = (
        progress.TextColumn(title),
        progress.BarColumn(),
        progress.TextColumn(f"{{task.completed}} of {{task.total}} {unit}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", visible=False)  # until the total is known
        yield lambda now: bar.update(task, completed=now.done, total=now.total, visible=True)


class CountedLines:
    """A progress callback for a pipe or a file: lines on stderr, with a count and the time left.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, title: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._unit, self._clock = title, unit, clock
        self._since = self._told = clock()
        self._now: Progress | None = None

    def __call__(self, now: Progress) -> None:
        self._now = now
        if self._clock() - self._told >= LINE_S:
            self._write(self._title)

    def part(self, name: str) -> None:
        """Write a line about a part that has ended."""
        self._write(f"{self._title}: {name} done")

    def _write(self, what: str) -> None:
        self._told, now = self._clock(), self._now
        counts, left = "", ""
        if now and now.total:
            counts = f", {now.done:,} of {now.total:,} {self._unit}"
            if self._unit == "bytes":
                from ..models import format_bytes

                counts = f", {format_bytes(now.done)} of {format_bytes(now.total)}"
            seconds = (self._told - self._since) * (now.total - now.done) / max(1, now.done)
            left = (
                f", about {_duration(seconds)} left"
                if now.total > now.done >= now.total / 20
                else ""
            )
        click.echo(f"{what}{counts}{left}", err=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextlib.contextmanager
def no_echo(reads_lines: bool) -> Iterator[None]:
    """Do not echo the keys of an answer or a load; they are part of the next line that is read.

    Without `reads_lines` the terminal hands them on as they are: else it would take Ctrl-D for the
    end of a line of its own, and the line editor would not get it.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        import termios

        fd = sys.stdin.fileno()
        if os.tcgetpgrp(fd) != os.getpgrp():  # in the background, where a change would stop it
            raise OSError
        before = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError, AttributeError):  # not a Unix terminal
        yield
        return
    quiet = list(before)
    quiet[3] &= ~(termios.ECHO | (0 if reads_lines else termios.ICANON))
    termios.tcsetattr(fd, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        # The terminal may be closed, or be that of another program by now.
        with contextlib.suppress(termios.error, OSError):
            if os.tcgetpgrp(fd) == os.getpgrp():
                termios.tcsetattr(fd, termios.TCSANOW, before)


@contextlib.contextmanager
def ctrl_c_cancels(stream: Answer) -> Iterator[None]:
    """Cancel a stream on Ctrl-C; a second one does not wait for the end of the round."""
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, _frame: object) -> None:
        signals.handled(number)
        stream.cancel()
        signal.signal(signal.SIGINT, before)

    with signals.handlers(stop, "SIGINT"):
        yield
