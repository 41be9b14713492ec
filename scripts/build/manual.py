"""The manual page of the program, from docs/cli.md: what `--help` of each command prints."""

import itertools
import re

WIDTH = 110  # of the lines in docs/cli.md, in characters


def manual(text, version):
    """Return the manual page from the text of docs/cli.md."""
    commands = re.findall(r"(?ms)^## ([^\n]+)\n\n```text\n(.*?)\n```$", text)
    summary = commands[0][1].split("\n\n")[1].strip().rstrip(".")
    parts = [f'.TH GGUF\\-SPEC 1 "" "gguf\\-spec {version}" "User Commands"', ".SH NAME"]
    parts.append(f"gguf\\-spec \\- {_roff(summary)}")
    for path, text_of_help in commands:
        heading = "DESCRIPTION" if path == "gguf-spec" else path.upper()
        parts += [f".SH {_roff(heading)}", *_help(text_of_help)]
    return "\n".join(parts) + "\n"


def _help(text):
    """Yield the lines of a command's help."""
    text = re.sub(r"(?<=\w)-\n +(?=\w)", "-", text)  # a line was cut behind a hyphen
    for part in re.split(r"\n{2,}", text):
        lines = part.split("\n")
        if lines[0].startswith("Usage: "):
            usage = " ".join(map(str.strip, lines)).removeprefix("Usage: ")
            yield f".PP\n.B {_roff(usage)}"
        elif not lines[0].startswith(" "):
            yield f".PP\n.B {_roff(lines[0].rstrip(':'))}"
            yield from _rows(lines[1:])
        elif _flows(lines):
            yield f".PP\n{_roff(' '.join(map(str.strip, lines)))}"
        else:
            yield f".PP\n.nf\n{_roff(chr(10).join(line[2:] for line in lines))}\n.fi"


def _rows(lines):
    """Yield the rows of a table of two columns."""
    for line in lines:
        if re.match(r" {2}\S", line):
            name, _, about = line.strip().partition("  ")
            yield f".TP\n.B {_roff(name)}"
        else:
            about = line
        if about.strip():
            yield _roff(about.strip())


def _flows(lines):
    """Return whether lines are a paragraph that was cut where the next word had no place."""
    pairs = itertools.pairwise(lines)
    return all(len(line) + 1 + len(after.split()[0]) > WIDTH - 2 for line, after in pairs)


def _roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"(?m)^\.", "\\\\&.", text)
