"""`gguf-spec edit`: change a text file as an instruction says."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ContextTooShortError, GgufSpecError, InvalidOptionError
from ..options import DEFAULT_CTX, Sampling, Speculation
from .command import CONTROL, Command, flag, json_option, option
from .download import at_terminal
from .options import load_models, model_options, offline_option, table_option
from .output import (
    LateBar,
    answer_json,
    ctrl_c_cancels,
    print_json,
    speed,
    stats_lines,
    styled,
)
from .text_file import TextFile

if TYPE_CHECKING:
    from rich.console import Console

    from .. import LLM, Completion, Stats

# Longest context for a file without --ctx, in tokens; few small models are trained for more.
_MOST_CTX = 32_768
_N_PLAIN = 8  # tokens of plain decoding that are timed for comparison


@click.command(
    cls=Command,
    usual="yes diff_only output model draft max_tokens temperature ctx stats show_draft as_json",
    own_defaults=("temperature", "draft", "max_tokens"),
    context_settings={"default_map": {"draft": "ngram"}},
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("instruction")
@flag("-y --yes", "Write the file, and download a missing model, without a question.")
@flag("--diff diff_only", "Only show the changes; write nothing.")
@option(
    "-o --output",
    "Write the new text to another file, or - for the standard output.",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE",
)
@option(
    "-n --max-tokens",
    "Maximum length of the new text in tokens.  [default: twice that of the file, and 256]",
    type=int,
)
@option(
    "-t --temperature", "Sampling temperature; 0 always takes the most likely token.", default=0.0
)
@table_option("seed")
@partial(model_options, chat=True, download=False)
@offline_option
@table_option("k")
@flag("--stats", "Show speed and acceptance, on stderr.")
@flag("--show-draft", "Show accepted draft tokens in green.")
@json_option("instead of the changes")
def edit(file: Path, instruction: str, **options: Any) -> int:
    """Change a text file as an instruction says.

    The model writes the new text, and most of it is drafted from the old one, so that unchanged
    parts cost little time. Then the changes are shown, and a question asks whether to write them.
    Without a terminal nothing is written unless --yes or --output says so. The file is replaced at
    once or not at all. Without --ctx a long file gets a longer context.

    Small models make mistakes: read the changes.

    \b
    Examples:
      gguf-spec edit config.json "rename the key host to hostname"
      gguf-spec edit notes.md "correct the spelling" --diff
      gguf-spec edit letter.txt "make it friendlier" --output friendly.txt
    """
    if not instruction.strip():
        raise click.UsageError("INSTRUCTION is empty; say what to change.")
    if options["diff_only"] and (options["yes"] or options["output"]):
        raise click.UsageError("--diff writes nothing and cannot be combined with --yes, --output.")
    if options["max_tokens"] is not None and options["max_tokens"] < 1:
        raise InvalidOptionError("max_tokens", options["max_tokens"], "a whole number, 1 or more")
    source = TextFile(file)
    is_asked = at_terminal() and not options["diff_only"]
    if (options["output"] or options["yes"] or is_asked) and str(options["output"]) != "-":
        source.check_place(options["output"])  # before minutes of work
    sampling = Sampling(temperature=options["temperature"], seed=options["seed"])
    speculation = Speculation(k=0 if options["draft"] == "none" else options["k"])
    # The old and the new text, a quarter more and the instruction, at three bytes a token.
    n_ctx = min(3 * len(source.text.encode()) // 4 + 1024, _MOST_CTX)
    if options["ctx"] is None and n_ctx > DEFAULT_CTX:
        options["ctx"] = n_ctx
    with load_models(options, speculation) as llm:
        prompt = EditPrompt(llm, source.text, instruction, source.path.name)
        sampling = prompt.limited(sampling, options["max_tokens"])
        result = _write(llm, prompt, sampling, options)
        if options["stats"]:
            click.echo(stats_lines(result.stats, result.seed), err=True)
        if result.finish_reason == "cancelled":
            click.echo("Nothing was written.", err=True)
            return 130
        new = prompt.text_of(result)
        facts = answer_json(llm, result, False)
    return _finish(source, new, facts, options)


def _write(llm: LLM, prompt: EditPrompt, sampling: Sampling, options: dict[str, Any]) -> Completion:
    """Generate the new text, and show it while it is written."""
    bar, quiet = LateBar(), options["as_json"]
    with (
        llm.stream(prompt.request, sampling, prefill=prompt.prefill, on_prompt=bar) as stream,
        ctrl_c_cancels(stream),
    ):
        try:
            with _shown(prompt.n_text, quiet=quiet) as show:
                bar.begin(stream.stats.n_prompt)
                for chunk in stream:
                    bar.remove()
                    show(styled(chunk, options["show_draft"]), stream.stats)
        finally:
            bar.remove()
    result = stream.result
    if not quiet:  # --stats has a gain of its own
        is_compared = sys.stderr.isatty() and not options["stats"]
        plain = _plain(llm, prompt, result) if is_compared else None
        show_summary(result.stats, plain)
    return result


def _plain(llm: LLM, prompt: EditPrompt, result: Completion) -> Stats | None:
    """Return the statistics of a few tokens of plain decoding behind the new text.

    They are measured in this process, because an earlier measurement may be of a busier machine.
    Nothing is measured if no draft was accepted, or if the answer was short or stopped.
    """
    tokens = [*llm.tokenize(prompt.request, prefill=prompt.prefill), *result.tokens]
    is_worth = result.stats.n_accepted and result.stats.n_generated > 4 * _N_PLAIN
    if not is_worth or result.finish_reason != "stop" or len(tokens) + _N_PLAIN >= llm.n_ctx:
        return None
    sampling = Sampling(temperature=0, max_tokens=_N_PLAIN, ignore_eos=True)
    return llm.generate(tokens, sampling, speculation=Speculation(k=0)).stats


def _finish(source: TextFile, new: str, facts: dict[str, Any], options: dict[str, Any]) -> int:
    """Show the changes, and write the new text where it is wanted; return the exit code."""
    changes = _diff(source, new)
    output, is_written = options["output"], False
    if str(output) == "-":
        click.echo(source.encoded(new), nl=False)
        return 0
    at_screen = sys.stdout is not None and sys.stdout.isatty()
    for line in changes if not options["as_json"] else ():
        is_head = line.startswith(("---", "+++"))
        colour = None if is_head else {"+": "green", "-": "red", "@": "cyan"}.get(line[0])
        if at_screen:
            click.secho(line.translate(CONTROL), nl=False, fg=colour, bold=is_head or None)
        else:
            click.echo(line, nl=False)
    if output is not None:
        source.write(new, output)
        is_written = True
    elif changes and not options["diff_only"]:
        may_ask = not options["as_json"] and at_terminal()
        question = f"Write {source.path.name}?"
        if options["yes"] or (may_ask and click.confirm(question, err=True)):
            source.write(new)
            is_written = True
    if options["as_json"]:
        print_json(facts | {"text": new, "diff": "".join(changes), "written": is_written})
    else:
        text = "Nothing was written; --yes writes the changes."
        if is_written:
            text = f"{output or source.path} was written."
        elif not changes:
            text = "The model changed nothing; nothing was written."
        elif options["diff_only"] or (sys.stdin and sys.stdin.isatty()):
            text = "Nothing was written."
        click.echo(text, err=True)
    return 0


def _diff(source: TextFile, new: str) -> list[str]:
    """Return the lines of a unified diff, each with its newline."""
    import difflib

    old_lines, new_lines = (text.splitlines(keepends=True) for text in (source.text, new))
    name = source.path.name
    return [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old_lines, new_lines, f"a/{name}", f"b/{name}")
    ]


# The text comes first: small models follow an instruction better that stands next to their answer.
_ASK = "{old}\n\nTask: {instruction}. Write the whole text again with this change."
_FENCED = re.compile(r"(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\1\s*", re.DOTALL)
_LAST_FENCE = re.compile(r"\n`{3,}\s*\Z")
_SPARE = 64  # tokens of the context beyond the expected length of the new text


class EditPrompt:
    """The request for a new version of a text.

    The text is put between two lines of backquotes. The answer is made to begin with such a line,
    so that the text follows at once, and ends at the next one.

    Attributes:
        request: The messages, or the text for a model without a chat template.
        prefill: Beginning of the answer.
        n_text: Number of tokens of the old text.
    """

    _is_users_limit = False  # whether --max-tokens ends the new text

    def __init__(self, llm: LLM, text: str, instruction: str, name: str) -> None:
        """Make the request.

        Args:
            llm: The model.
            text: The old text.
            instruction: What to change.
            name: Name of the file.

        Raises:
            ContextTooShortError: The old and the new text do not fit into the context.
        """
        longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
        self._fence, self._old = "`" * max(3, longest + 1), text
        body = text.removesuffix("\n")
        old = f"{self._fence}\n{body}\n{self._fence}"
        question = _ASK.format(instruction=instruction.strip().rstrip("."), old=old)
        self.prefill = f"{self._fence}\n"
        self.request: str | Sequence[dict[str, str]] = [{"role": "user", "content": question}]
        if not llm.has_chat_template:
            self.request, self.prefill = f"{question}\n\nThe new text:\n\n{self._fence}\n", ""
        plain = llm.tokenize(text, special=False)
        self.n_text = len(plain)
        # A model that copies the name of an end token writes that token, and would end there.
        named = {*llm.tokenize(text, special=True)} - {*plain}
        self._ignore_eos = any(map(llm.vocabulary.is_end, named))
        n_prompt = len(llm.tokenize(self.request, prefill=self.prefill))
        needed = n_prompt + self.n_text + self.n_text // 4 + _SPARE
        if needed > llm.n_ctx:
            what = f"editing {name}, which has {self.n_text:,} tokens,"
            raise ContextTooShortError(what, llm.n_ctx, needed, "split the file", about=True)
        self._n_room = llm.n_ctx - n_prompt

    def limited(self, sampling: Sampling, max_tokens: int | None) -> Sampling:
        """Return sampling options that end with the new text."""
        most = max_tokens or 2 * self.n_text + 4 * _SPARE
        self._is_users_limit = most == max_tokens and most < self._n_room
        most = min(most, self._n_room)
        stop = [f"\n{self._fence}"]
        return replace(sampling, max_tokens=most, stop=stop, ignore_eos=self._ignore_eos)

    def text_of(self, result: Completion) -> str:
        """Return the new text of an answer.

        Raises:
            GgufSpecError: The answer was cut, or is empty.
        """
        if result.finish_reason == "length":
            hint = (
                "the model may repeat itself: use a larger model, a clearer instruction, or a "
                "larger --max-tokens and --ctx."
            )
            if self._is_users_limit:
                hint = f"raise --max-tokens: the old text has {self.n_text:,} tokens."
            raise GgufSpecError(
                f"the new text was not complete after {len(result.tokens):,} tokens; "
                "nothing was written.",
                hint,
            )
        text = result.text
        fenced = _FENCED.fullmatch(text.strip())
        if fenced and not _FENCED.fullmatch(self._old.strip()):
            text = fenced[2]
        elif _is_open(text) and not _is_open(self._old):
            # three backquotes as the end of a text in longer fences
            text = _LAST_FENCE.sub("", text)
        if not text.strip():
            hint = "use a larger model or a clearer instruction."
            raise GgufSpecError("the model wrote no text; nothing was written.", hint)
        ending = "\n" if self._old.endswith("\n") else ""
        return text.removesuffix("\n") + ending


def _is_open(text: str) -> bool:
    """Return whether a text has an odd number of lines that begin or end a block of code."""
    return len(re.findall(r"^ *`{3,}", text, re.MULTILINE)) % 2 == 1


# Speed-up from which drafts are mentioned.
_WORTH_SAYING = 1.1


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def _shown(
    n_expected: int, *, quiet: bool
) -> Iterator[Callable[[Iterable[tuple[str, str]], Stats], None]]:
    """Yield a function that shows styled text and a status line, on stderr, if that is a terminal.

    Args:
        n_expected: Length of the old text in tokens.
        quiet: Whether to show nothing.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    out, rest = _console(), Text()
    if quiet or not out.is_terminal or out.is_dumb_terminal:
        yield lambda _pieces, _stats: None
        return

    def show(pieces: Iterable[tuple[str, str]], stats: Stats) -> None:
        nonlocal rest
        new = ((text.translate(CONTROL), style or "dim") for text, style in pieces)
        *lines, rest = Text.assemble(rest, *new).split("\n", allow_blank=True)
        for line in lines:
            out.print(line)
        status = f"{stats.n_generated:,} of about {n_expected:,} tokens, {speed(stats)}"
        live.update(Group(rest, Text(status, style="dim")))

    with Live(console=out, transient=True, refresh_per_second=12) as live:
        try:
            yield show
        finally:
            out.print(rest)
            live.update("")


def show_summary(stats: Stats, plain: Stats | None) -> None:
    """Show length and speed of the complete text; drafts are mentioned only where they pay.

    Args:
        stats: Statistics of the text.
        plain: Those of plain decoding, measured in this process, if drafts were used.
    """
    out, text = _console(), f"{stats.n_generated:,} tokens, {speed(stats)}"
    if plain and plain.tokens_per_s:
        gain = min(stats.tokens_per_s / plain.tokens_per_s, stats.tokens_per_round)
        if gain >= _WORTH_SAYING:
            text += f", {gain:.1f} times plain decoding ({speed(plain)})"
    if out.is_terminal:
        out.print(text, style="dim")
