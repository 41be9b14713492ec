"""Draw the result of `gguf-spec bench --json` as a grouped bar chart in SVG.

.venv/bin/python scripts/docs/plot_bench.py REPORT.json OUT.svg

The chart has its own background, so it is readable on light and on dark pages.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

USELESS = "adaptive, useless draft"

_COLOURS = ("#a8b0ba", "#e3a857", "#2f6fde", "#b4532a")
_INK, _SOFT, _GRID, _GROUND = "#1f2328", "#59636e", "#e4e7eb", "#ffffff"
# Wide fonts, so that text that fits in them also fits in a substitute.
_FONT = "'DejaVu Sans', Verdana, Geneva, sans-serif"
_NARROW = frozenset("fijlrtI1 .,:;'|()[]-")  # narrow characters, for the width estimate
_BAR, _BETWEEN = 30.0, 26.0  # widths of a bar and of the space between groups, in pixels
_LEFT, _RIGHT, _MIN_WIDTH = 56.0, 24.0, 640.0  # margins and minimum width, in pixels
# Heights of the highest bar, of the space above it and of the space below it, in pixels.
_HEIGHT, _ABOVE, _BELOW = 200.0, 26.0, 62.0
_IN_A_ROW = 6  # maximum number of groups in a row


class Bar(NamedTuple):
    """A bar with its spread.

    Attributes:
        median: Height of the bar.
        least: Lower end of the spread line.
        most: Upper end of the spread line.
    """

    median: float
    least: float
    most: float


class Group(NamedTuple):
    """A group of adjacent bars.

    Attributes:
        name: First label line below the bars.
        kind: Second label line.
        note: Third label line, in a smaller font.
        bars: The bars, in the order of the legend.
    """

    name: str
    kind: str
    note: str
    bars: Sequence[Bar]


def chart(report: Mapping[str, Any]) -> str:
    """Return an SVG of plain decoding, the best fixed setting and adaptive drafting by case.

    Args:
        report: The object that `gguf-spec bench --json` prints.
    """
    machine = report["machine"]
    title = report["target"] + (
        f" with {report['draft']}" if report["draft"] else ", drafting from the text alone"
    )
    where = (
        f"{machine['cpu']}, {_count(machine['cores'], 'core')}, "
        f"{_count(machine['threads'], 'thread')}"
    )
    how = (
        f"gguf-spec {report['version']}; tokens per second over those of plain decoding, "
        f"{_rounds(report['n_rounds'], report['is_complete'])}"
    )
    names = ["plain", "best fixed setting, in hindsight", "adaptive"]
    legend = names + ([USELESS] if report["useless"] else [])
    return grouped_bars(title, [where, how], legend, [_group(case) for case in report["cases"]])


def _group(case: Mapping[str, Any]) -> Group:
    results = {one["name"]: one for one in case["results"]}
    shown = [results[name] for name in ("plain", case["best_fixed"], "adaptive")]
    shown += [results[USELESS]] if USELESS in results else []
    kind = f"T = {case['temperature']:g}" if case["temperature"] else "greedy"
    bars = tuple(Bar(**one["speedup"]) for one in shown)
    return Group(case["workload"], kind, f"best: {case['best_fixed']}", bars)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("s" if n > 1 else "")


def _rounds(n: int, all_done: bool) -> str:
    return f"medians of {'' if all_done else 'up to '}{n} rounds" if n > 1 else "one round"


def grouped_bars(
    title: str, lines: Sequence[str], legend: Sequence[str], groups: Sequence[Group]
) -> str:
    """Return an SVG of groups of ratios, with a line at 1.

    Args:
        title: Title of the chart.
        lines: Smaller lines below the title.
        legend: Label of each bar of a group.
        groups: Groups from left to right; a missing bar leaves a gap.
    """
    n = math.ceil(len(groups) / math.ceil(len(groups) / _IN_A_ROW))
    width = max(
        _MIN_WIDTH,
        _LEFT
        + n * max(len(legend) * _BAR + _BETWEEN, *(_width(one.note, 10) + 8 for one in groups))
        + _RIGHT,
    )
    head, y = _head(title, lines, legend, width)
    step, scale = _scale(_highest(groups))
    parts = [*head]
    for i in range(0, len(groups), n):
        n_lines = math.ceil(_highest(groups[i : i + n]) / step - 1e-9)
        base = y + _ABOVE + n_lines * step * scale
        parts += _grid(base, width, step, n_lines, scale)
        for j, one in enumerate(groups[i : i + n]):
            middle = _LEFT + (j + 0.5) * (width - _LEFT - _RIGHT) / n
            parts += _bars(one.bars, middle - len(legend) * _BAR / 2, base, scale)
            for text, size, down, colour in (
                (one.name, 13, 20, _INK),
                (one.kind, 12, 37, _INK),
                (one.note, 10, 53, _SOFT),
            ):
                parts.append(_text(middle, base + down, text, size, colour, "middle"))
        y = base + _BELOW
    wide, high = f"{width:.0f}", f"{y + 8:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 '
        f'{wide} {high}" '
        f'font-family="{_FONT}" role="img">\n<title>{escape(_plain(title))}</title>\n'
        f'<rect width="100%" height="100%" rx="8" fill="{_GROUND}" stroke="{_GRID}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _head(
    title: str, lines: Sequence[str], legend: Sequence[str], width: float
) -> tuple[list[str], float]:
    """Return the SVG elements of title, lines and legend, and the y coordinate of their end."""
    parts: list[str] = []
    y = 18.0
    for text, size, letter, colour, weight in [
        (title, 16, 0.7, _INK, "bold"),
        *((line, 12, 0.56, _SOFT, "normal") for line in lines),
    ]:
        for part in textwrap.wrap(_plain(text), int((width - 2 * _RIGHT) / (letter * size))):
            y += size + 5
            parts.append(_text(_RIGHT, y, part, size, colour, weight=weight))
    x, y = _RIGHT, y + 14
    for name, colour in zip(legend, _COLOURS, strict=False):
        wide = 18 + _width(name, 12)
        if x > _RIGHT and x + wide > width - _RIGHT:
            x, y = _RIGHT, y + 20
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" rx="2" fill="{colour}"/>'
        )
        parts.append(_text(x + 18, y + 10.5, name, 12))
        x += wide + 20
    return parts, y + 14


def _grid(base: float, width: float, step: float, n_lines: int, scale: float) -> Iterator[str]:
    """Yield the grid lines of a row with their labels; the line at 1 is dashed."""
    for i in range(n_lines + 1):
        at = base - i * step * scale
        yield (
            f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{width - _RIGHT:.1f}" y2="{at:.1f}" '
            f'stroke="{_GRID}"/>'
        )
        yield _text(_LEFT - 8, at + 4, f"{i * step:.10g}", 12, _SOFT, "end")
    at = base - scale
    yield (
        f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{width - _RIGHT:.1f}" y2="{at:.1f}" '
        f'stroke="{_SOFT}" stroke-dasharray="5 4"/>'
    )


def _bars(bars: Sequence[Bar], left: float, base: float, scale: float) -> Iterator[str]:
    """Yield the bars of a group, their spreads, and their values except for the first bar."""
    for i, bar in enumerate(bars):
        x, high = left + i * _BAR + 1, bar.median * scale
        middle, top = x + _BAR / 2 - 1, max(bar.median, bar.most) * scale
        colour = _COLOURS[i % len(_COLOURS)]
        yield (
            f'<rect x="{x:.1f}" y="{base - high:.1f}" width="{_BAR - 2:.1f}" height="{high:.1f}" '
            f'rx="2" fill="{colour}"/>'
        )
        if bar.most > bar.least:
            yield (
                f'<line x1="{middle:.1f}" y1="{base - top:.1f}" x2="{middle:.1f}" '
                f'y2="{base - bar.least * scale:.1f}" stroke="{_INK}"/>'
            )
        if i:
            # Keep the line at 1 clear of numbers.
            top = scale if scale - 18 < top < scale else top
            yield _text(middle, base - top - 5, f"{bar.median:.2f}", 11, anchor="middle")


def _highest(groups: Sequence[Group]) -> float:
    return max(1.2, *(max(bar.median, bar.most) for one in groups for bar in one.bars))


def _scale(most: float) -> tuple[float, float]:
    """Return the distance of the grid lines, at most eight up to `most`, and the height of 1."""
    power = 10.0 ** math.floor(math.log10(most / 8))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if most <= 8 * power * n)
    return step, _HEIGHT / (step * math.ceil(most / step - 1e-9))


def _width(text: str, size: float) -> float:
    """Return the approximate width of a text."""
    return size * sum(0.4 if letter in _NARROW else 0.66 for letter in text)


def _plain(text: str) -> str:
    """Remove characters that XML does not allow."""
    return "".join(
        letter for letter in text if unicodedata.category(letter) not in ("Cc", "Cs", "Cn")
    )


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    colour: str = _INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    bold = ' font-weight="bold"' if weight == "bold" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{bold}>{escape(_plain(text))}</text>'
    )


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(chart(report), encoding="utf-8")


if __name__ == "__main__":
    main()
