"""Write the generated documentation: docs/cli.md, docs/python-api.md and parts of other pages. With --check only report stale files.

.venv/bin/python scripts/docs/readme.py [--check]
"""

import json
import re
import sys
from functools import partial
from pathlib import Path

from _reference import commands, reference
from _rooms import table as rooms

from gguf_spec.gguf.architectures import NAMES, architecture
from gguf_spec.protocols.fields import OTHER_FIELDS, OTHER_NAMES, ROUTES
from gguf_spec.registry.resolve import entries
from gguf_spec.system.machine import format_bytes

ROOT = Path(__file__).parents[2]


BAR = "\\|"  # inside of a table


def models():
    """The table of models.yaml."""
    lines = ["| name | size | licence | context | draft |", "|---|---|---|---|---|"]
    for entry in entries().values():
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
        draft = f"`{entry.draft}`" if entry.draft else ""
        lines.append(
            f"| {names} | {format_bytes(entry.size_bytes)} | {entry.license} | {entry.context:,} | {draft} |"
        )
    return "\n".join(lines)


def other_fields():
    """Fields of other APIs: neutral values, what other values do, and why."""
    reasons = {}
    for name, field in OTHER_FIELDS.items():
        values = ", ".join(f"`{json.dumps(one)}`" for one in field.neutral or ()) or "none"
        values, others = (values, "refused" if field.is_refused else "named")
        values, others = ("any", "") if field.neutral is None else (values, others)
        named = ("completions" if route == "text" else route for route in field.routes)
        routes = "all" if field.routes == ROUTES else ", ".join(named)
        key = (others, routes, values, field.reason)
        reasons.setdefault(key, []).append(f"`{name}`")
    order = ("refused", "named", "")
    lines = ["| field | routes | neutral | other values | why |", "|---|---|---|---|---|"]
    lines += [
        f"| {', '.join(names)} | {routes} | {values} | {others} | {reason} |"
        for (others, routes, values, reason), names in sorted(
            reasons.items(), key=lambda one: order.index(one[0][0])
        )
    ]
    renamed = ", ".join(f"`{name}` for `{here}`" for name, here in OTHER_NAMES.items())
    lines += [
        "",
        f"Other names: {renamed}.",
    ]
    return "\n".join(lines)


def code(text):
    """Return a text as code, also with backticks in it."""
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (max(map(len, re.findall("`+", text))) + 1)
    return f"{fence} {text} {fence}"


def tool_families():
    """The families of tool calls."""
    from gguf_spec.tools.families import FAMILIES

    lines = ["| family | models | its template contains | a call | several | arguments |"]
    lines.append("|---|---|---|---|---|---|")
    for one in FAMILIES:
        marks = [" and ".join(map(code, marks)) for marks in one.marks]
        call = one.write([("f", {"x": 1})]).replace("\n", "⏎")
        several = "yes" if one.is_parallel else "read, not forced"
        row = (one.name, one.models, " or ".join(filter(None, marks)) or "none of these",
               code(call), several, one.call.notation.way)  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |")
    return "\n".join(lines)


# What is loaded and run by the tests: the names in tests/support/families.py, checked by a test.
TRIED = (
    "falcon-h1", "gemma3", "gemma4", "gpt-oss", "granitehybrid", "jamba", "lfm2", "lfm2moe", "llama", "mamba", "mamba2",
    "nemotron_h", "nemotron_h_moe", "qwen2", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "rwkv6", "rwkv7", "step35",
)  # fmt: skip


def speculation():
    """How models of each architecture drop rejected tokens, and what they do without."""
    kinds = {
        "removes them from the cache": ([], "text, model", "parallel requests included"),
        "snapshots; longer drafts by a copy": ([], "text, model", "shorter drafts, none with grammars, with parallel requests; plain on workers"),
        "a copy of the state": ([], "text, model", "plain with parallel requests and on workers; accepted tokens are decoded again after a rejection"),
    }  # fmt: skip
    removes, snapshots, copies = kinds.values()
    for name in sorted({*NAMES, *TRIED}):
        facts = architecture(name)
        if facts.output == "text" and facts.cache != "attention":
            (snapshots if facts.has_snapshots else copies)[0].append(name)
        elif name in TRIED:
            removes[0].append(name)
    lines = [
        "| architectures | rejected tokens | drafts | limits |",
        "|---|---|---|---|",
    ]
    for way, (names, drafts, limits) in kinds.items():
        shown = ", ".join(f"`{name}`{'' if name in TRIED else ' (untried)'}" for name in names)
        more = ", and all that are not named below" if names is removes[0] else ""
        lines.append(f"| {shown}{more} | {way} | {drafts} | {limits} |")
    return "\n".join(lines)


PARTS = {
    "docs/architecture.md": {"rooms": rooms},
    "docs/models.md": {"models": models, "speculation": speculation},
    "docs/server-fields.md": {"other fields": other_fields},
    "docs/tools-and-json.md": {"tool families": tool_families},
}


def with_parts(name):
    """Return a page with its generated parts replaced."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for part, make in PARTS[name].items():
        begin, end = (
            f"<!-- {part}: made by scripts/docs/readme.py -->\n",
            f"\n<!-- end of {part} -->",
        )
        before, found, rest = text.partition(begin)
        _old, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise SystemExit(f"{name} must hold {begin.strip()} and {end.strip()}")
        text = before + begin + make() + end + after
    return text


MADE = {name: partial(with_parts, name) for name in PARTS} | {
    "docs/python-api.md": reference,
    "docs/cli.md": commands,
}


def main():
    stale = []
    for name, make in MADE.items():
        file, made = ROOT / name, make()
        if not file.exists() or file.read_text(encoding="utf-8") != made:
            stale.append(name)
            if "--check" not in sys.argv:
                file.write_text(made, encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"stale: {', '.join(stale)}; run scripts/docs/readme.py")


if __name__ == "__main__":
    main()
