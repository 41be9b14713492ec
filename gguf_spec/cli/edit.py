"""`gguf-spec edit`: change a text file as an instruction says."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..edit import EditPlan, Hunk, apply, imported_names, no_longer_valid, patch, run
from ..errors import GgufSpecError, InvalidOptionError, NoEditError
from ..options import DEFAULT_CTX, Sampling, Speculation
from . import signals
from .command import CONTROL, Command, as_called, flag, json_option, option
from .download import at_terminal
from .options import load_models, model_options, offline_option, server_option, table_option
from .output import LateBar, answer_json, ctrl_c_cancels, print_json, speed, stats_lines, styled
from .text_file import TextFile, Undo, files_with, version

if TYPE_CHECKING:
    from rich.console import Console

    from .. import Completion, Stats
    from ..edit import Asked, Edit, EditPrompt
    from .options import AnyLLM

# Longest context for a file without --ctx, in tokens; few small models are trained for more.
_MOST_CTX = 32_768
_MOST_NAMED = 5  # files in a line about a name
_N_PLAIN = 8  # tokens of plain decoding that are timed for comparison


@click.command(
    cls=Command,
    usual="yes diff_only output symbols undo model draft max_tokens ctx stats as_json",
    own_defaults=("temperature", "draft", "max_tokens"),
    context_settings={"default_map": {"draft": "ngram"}},
)
@click.argument("words", nargs=-1, metavar="FILE[:LINES]... INSTRUCTION")
@flag("-y --yes", "Write the file, and download a missing model, without a question.")
@flag("--diff diff_only", "Only show the changes, as a patch for `git apply`; write nothing.")
@flag("--force", "With --yes: write changes that would be asked about.")
@flag("--undo", "Give each FILE the text before its last edit; again: take that back.")
@option(
    "--symbol symbols",
    "Let only this part change, such as Store.total or a heading; several are possible.",
    multiple=True,
    metavar="NAME",
)
@option(
    "-o --output",
    "Write the new text to another file, or - for the standard output.",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE",
)
@option(
    "-n --max-tokens",
    "Maximum length of the new text in tokens.  [default: twice that of the old one, and 256]",
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
@server_option
def edit(words: tuple[str, ...], **options: Any) -> int:
    """Change text files as an instruction says, and nothing else in them.

    A rename, a replacement and the value of a setting are made without a model. Else the model
    writes again what the instruction names, such as "the function total" or "lines 10-40", and the
    rest cannot change; --symbol or FILE:10-40 name it, too. Where nothing is named the model writes
    the whole text again. Most of it is drafted from the old text. Of several files those are
    changed that the instruction names something in; the model also sees the others.

    Then each change is shown, and a question asks whether to take it. Without a terminal nothing is
    written unless --yes or --output says so, and with --yes only what was asked: if lines are gone,
    the text is no longer valid or the same change is made at several places, the changes are kept
    as a patch, the exit code is 1, and --force writes them. --undo brings the old text back.

    \b
    Examples:
      gguf-spec edit config.json "rename the key host to hostname"
      gguf-spec edit app.py "return 0 for an empty list in the function total"
      gguf-spec edit notes.md:10-40 "correct the spelling" --diff
      gguf-spec edit store.py cart.py "rename the method total to sum"
      gguf-spec edit --undo app.py
    """
    if not words:
        what = "FILE is missing" if options["undo"] else "FILE and INSTRUCTION are missing"
        raise click.UsageError(f"{what}.")
    if options["undo"]:
        paths = [_place_of(one, words)[0] for one in words]
        for path in paths:
            more = "" if Undo().restore(path) else f" There is no way back: {_no_undo()}"
            click.echo(f"{path} has the text before its last edit again.{more}", err=True)
        return 0
    *files, instruction = words
    _check_usage(files, instruction, options)
    places = [_place_of(one, words) for one in files]
    sources = [TextFile(path) for path, _ in places]
    if len({source.path for source in sources}) < len(sources):
        raise click.UsageError("a file is named twice.")
    is_asked = at_terminal() and not options["diff_only"]
    if (options["output"] or options["yes"] or is_asked) and str(options["output"]) != "-":
        for source in sources:
            source.check_place(options["output"])  # before minutes of work
    is_only, kept = len(sources) == 1, zip(sources, places, strict=True)
    given = [(one, lines, frozenset[str]()) for one, (_, lines) in kept]
    plans = [(one[0], _plan(*one, instruction, options, is_only=is_only)) for one in given]
    if not is_only:  # a file that imports what another one renames is renamed with it
        names = imported_names([(source.path.resolve(), plan) for source, plan in plans])
        given = [(*one[:2], known) for one, known in zip(given, names, strict=True)]
        plans = [(one[0], _plan(*one, instruction, options, is_only=is_only)) for one in given]
    named = _named(plans)
    if not options["as_json"]:
        _say_elsewhere(named, [source.path for source in sources])
    done = _made(named, options, _left(plans, named))
    return 130 if done is None else _write_all(done, options)


def _plan(
    source: TextFile, lines: list[str], given: frozenset[str], instruction: str,
    options: dict[str, Any], *, is_only: bool,
) -> EditPlan | None:  # fmt: skip
    """Return the plan for a file; None if it has no part with the name, and others may have."""
    scope = [*lines, *options["symbols"]]
    try:
        name = source.path.name
        return EditPlan(source.text, instruction, name=name, scope=scope, given=given)
    except InvalidOptionError:
        if is_only or lines:
            raise
        return None


def _named(plans: list[tuple[TextFile, EditPlan | None]]) -> list[tuple[TextFile, EditPlan]]:
    """Return the files to change: those that the instruction names something in, or else all.

    Raises:
        InvalidOptionError: No file has a part of --symbol.
    """
    found = [(source, plan) for source, plan in plans if plan is not None]
    if not found:
        hint = "name a part as it stands in one of the files, such as Store.total."
        raise InvalidOptionError("scope", "", hint=hint, message="no file has the named part.")
    by_code = [one for one in found if not one[1].needs_model]
    named = by_code or [one for one in found if one[1].is_named] or found
    for source, _ in plans:
        if all(source is not one for one, _ in named):
            click.echo(f"{source.path.name} stays as it is: nothing in it was named.", err=True)
    return named


def _left(
    plans: list[tuple[TextFile, EditPlan | None]], named: list[tuple[TextFile, EditPlan]]
) -> str:
    """Return which file has a name that is renamed in others, and keeps it; empty without one."""
    changed = [source for source, _ in named]
    names = {plan.renamed for _, plan in named} - {""}
    for source, plan in plans:
        rename = plan.reading.rename if plan else None
        if rename and source not in changed and rename.old.rpartition(".")[2] in names:
            return f"{rename.old} stands in {source.path.name}, too, and is left there"
    return ""


def _check_usage(files: list[str], instruction: str, options: dict[str, Any]) -> None:
    if not files:
        raise click.UsageError("INSTRUCTION is missing; say what to change, in quotes.")
    if len(files) > 1 and options["output"]:
        raise click.UsageError("--output takes one file.")
    if version(Path(instruction)) and Path(instruction).is_file():
        raise click.UsageError(
            f"INSTRUCTION is missing: {instruction} is a file. Say what to change, in quotes."
        )
    if not instruction.strip():
        raise click.UsageError("INSTRUCTION is empty; say what to change.")
    if options["diff_only"] and (options["yes"] or options["output"]):
        raise click.UsageError("--diff writes nothing and cannot be combined with --yes, --output.")
    if options["max_tokens"] is not None and options["max_tokens"] < 1:
        raise InvalidOptionError("max_tokens", options["max_tokens"], "a whole number, 1 or more")


class _CancelledError(Exception):
    """Ctrl-C ended an answer."""


@dataclass
class Change:
    """What is to be written to a file.

    Attributes:
        facts: What `--json` says about the generation.
        new: The text to write; None if it is not wanted.
    """

    source: TextFile
    result: Edit
    facts: dict[str, Any]
    changes: bytes
    new: str | None

    @property
    def is_unchanged(self) -> bool:
        """Whether a model wrote the old text again, and nothing else is to be written."""
        is_same = self.result.text == self.source.text == (self.new or self.source.text)
        return is_same and self.result.way != "code"

    @property
    def is_refused(self) -> bool:
        return self.new is not None and bool(self.result.refused)


def _made(
    plans: list[tuple[TextFile, EditPlan]], options: dict[str, Any], left: str
) -> list[Change] | None:
    """Make the changes, and show them or ask about them; return None after Ctrl-C.

    Args:
        left: What is left in a file that was named, so that a change by code is doubtful; or empty.
    """
    if not plans[0][1].needs_model:
        done = [(source, plan.end(None, None)) for source, plan in plans]
        if left:
            done = [(one, replace(edit, refused=edit.refused or (left,))) for one, edit in done]
        return [_decided(source, edit, {}, options, None) for source, edit in done]
    speculation = Speculation(k=0 if options["draft"] == "none" else options["k"])
    # The old and the new text, a quarter more and the instruction, at three bytes a token.
    sizes = [len(source.text.encode()) for source, _ in plans]
    n_others = sum(sizes) - max(sizes)
    n_ctx = min(3 * max(sizes) // 4 + n_others // 3 + 1024, _MOST_CTX)
    if options["ctx"] is None and n_ctx > DEFAULT_CTX:
        options["ctx"] = n_ctx
    changes = list[Change]()
    with load_models(options, speculation) as llm:
        for i, (source, plan) in enumerate(plans):
            known = [(one.source.path, one.new or one.source.text) for one in changes]
            known += [(other.path, other.text) for other, _ in plans[i + 1 :]]
            others = {str(_short(path)): text for path, text in known}
            change = _by_model(llm, source, plan, others, options)
            if change is None:
                click.echo("Nothing was written.", err=True)
                return None
            changes.append(change)
    return changes


def _say_elsewhere(plans: list[tuple[TextFile, EditPlan]], files: list[Path]) -> None:
    """Say which files have a name that is renamed and are not named: they stay as they are."""
    known = {path.resolve() for path in files}
    found = dict[str, set[Path]]()
    for source, plan in plans:
        if name := plan.renamed:
            others = files_with(name, source.path.resolve()) - known
            found[name] = found.get(name, set()) | others
    for name, paths in found.items():
        if paths:
            some = sorted(str(_short(one)) for one in paths)
            more = f" and {len(some) - _MOST_NAMED} more" if len(some) > _MOST_NAMED else ""
            where = "1 other file" if len(some) == 1 else f"{len(some)} other files"
            it = "it, too" if len(some) == 1 else "them, too"
            click.echo(
                f"{name} also stands in {where}: {', '.join(some[:_MOST_NAMED])}{more}. To rename "
                f"it there, name {it}.",
                err=True,
            )


def _by_model(
    llm: AnyLLM, source: TextFile, plan: EditPlan, others: dict[str, str], options: dict[str, Any]
) -> Change | None:
    """Let a model write the new text of a file; return None after Ctrl-C."""
    sampling = Sampling(temperature=options["temperature"], seed=options["seed"])
    facts: dict[str, Any] = {}  # of the first answer

    def write(asked: Asked) -> Completion:
        if not (facts or options["as_json"]):
            if others:
                click.echo(f"{source.path.name}:", err=True)
            if plan.label:
                click.echo(f"Only {plan.label} can change.", err=True)
        result = _write(llm, asked, options)
        if options["stats"]:
            click.echo(stats_lines(result.stats, result.seed), err=True)
        if result.finish_reason == "cancelled":
            raise _CancelledError
        facts.update(facts or answer_json(llm, result, False))
        return result

    def made(sampling: Sampling) -> Edit | None:
        try:
            return run(plan, llm, write, sampling, options["max_tokens"], others)
        except _CancelledError:
            return None

    def again(n: int) -> Edit | None:
        return made(replace(sampling, temperature=max(sampling.temperature, 0.7), seed=n))

    edit = made(sampling)
    return None if edit is None else _decided(source, edit, facts, options, again)


def _place_of(file: str, words: tuple[str, ...]) -> tuple[Path, list[str]]:
    """Return the file of an argument such as `app.py:10-40`, and its lines."""
    path, lines = Path(file), list[str]()
    if not version(path) and (found := re.fullmatch(r"(.+?):(\d+(?:-\d+)?)", file)):
        path, lines = Path(found[1]), [found[2]]
    if not version(path):
        quotes = " Put the instruction in quotes." if file != words[0] else ""
        if file == "-":
            quotes = " A pipe cannot be edited: write its text into a file first."
        raise click.BadParameter(f"File '{path}' does not exist.{quotes}", param_hint="'FILE'")
    if path.is_dir():
        raise click.BadParameter(f"File '{path}' is a directory.", param_hint="'FILE'")
    return path, lines


def _write(llm: AnyLLM, asked: Asked, options: dict[str, Any]) -> Completion:
    bar, quiet = LateBar(), options["as_json"]
    with (
        llm.stream(**asked.arguments, on_prompt=bar) as stream,
        ctrl_c_cancels(stream),
        bar,
        _shown(asked.prompt.n_text, quiet=quiet) as show,
    ):
        bar.begin(stream.stats.n_prompt, llm.prompt_token_s)
        for chunk in stream:
            bar.remove()
            show(styled(chunk, options["show_draft"]), stream.stats)
    result = stream.result
    if not quiet:  # --stats has a gain of its own
        is_compared = sys.stderr.isatty() and not options["stats"]
        plain = _plain(llm, asked.prompt, result) if is_compared else None
        show_summary(result.stats, plain)
    return result


def _plain(llm: AnyLLM, prompt: EditPrompt, result: Completion) -> Stats | None:
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


def _decided(
    source: TextFile,
    result: Edit,
    facts: dict[str, Any],
    options: dict[str, Any],
    again: Callable[[int], Edit | None] | None,
) -> Change:
    """Show the changes of a file, and decide what is written.

    Args:
        facts: What `--json` says about the generation.
        again: Asks the model again with a seed; None for a change without a model.
    """
    new = result.text if options["yes"] or options["output"] else None
    name, folder = _in_patch(source.path)
    changes = patch(source.data, source.encoded(result.text), name)
    if str(options["output"]) == "-":
        _say_doubts(result)
    elif _may_ask(options) and result.hunks:
        new = _chosen_hunks(source, result, again)
    elif not options["as_json"]:
        _show_patch(changes)
        _say_how_much(result)
        if options["diff_only"] and folder and changes:
            click.echo(f"Apply the patch in the folder {folder}.", err=True)
        if n := sum(one.is_outside for one in result.hunks):
            places = "1 more place stays" if n == 1 else f"{n} more places stay"
            they_were = "it was" if n == 1 else "they were"
            click.echo(f"{places} as {they_were}: {_outside(result)}.", err=True)
        _say_doubts(result)
    return Change(source, result, facts, changes, new)


def _may_ask(options: dict[str, Any]) -> bool:
    is_decided = any(options[one] for one in ("as_json", "yes", "diff_only", "output"))
    return not is_decided and at_terminal()


def _write_all(done: list[Change], options: dict[str, Any]) -> int:
    """Write what is wanted, of all files or of none; return the exit code."""
    output, code = options["output"], 0
    is_unchanged = all(one.is_unchanged for one in done)
    if str(output) == "-":
        click.echo(done[0].source.encoded(done[0].result.text), nl=False)
        if is_unchanged:
            click.echo(_unchanged(done[0].result), err=True)
        return int(is_unchanged)
    if options["yes"] and not output and not options["force"] and any(o.is_refused for o in done):
        names = "-".join(one.source.path.name for one in done)
        kept = Undo().keep_patch(names, b"".join(one.changes for one in done))
        where = f" The patch is {kept};" if kept else ""
        fact = f"Nothing was written.{where} the same command with --force writes it."
        click.echo(fact, err=True)
        done = [replace(one, new=None) for one in done]
        code = 1
    written = write_changes(done, output)
    if options["as_json"]:
        facts = [
            one.facts
            | ({} if len(done) == 1 else {"file": str(one.source.path)})
            | one.result.to_dict()
            | {"diff": one.changes.decode("utf-8", "replace"), "written": one in written}
            for one in done
        ]
        print_json(facts[0] if len(facts) == 1 else {"files": facts})
        return code or int(is_unchanged)
    for one in done:
        if one in written:
            _say_written(one.source, output)
            if is_unchanged:  # a copy
                click.echo(_unchanged(one.result), err=True)
        elif not code:
            can_write = not (options["diff_only"] or _may_ask(options))
            _say_why_not(one.source, one.result, can_write=can_write)
    return code or int(is_unchanged)


def write_changes(done: list[Change], output: Path | None) -> list[Change]:
    """Write what is wanted, and return it; after an error or Ctrl-C, all have their old text."""
    begun = list[Change]()
    try:
        for one in done:
            if one.new is not None and (output or one.new != one.source.text):
                begun.append(one)
                one.source.write(one.new, output)
    except BaseException as error:
        if output is None and _take_back(begun) and not isinstance(error, GgufSpecError):
            click.echo("Nothing was written.", err=True)
        raise
    return begun


def _take_back(begun: list[Change]) -> bool:
    """Give files their old texts, name those for which this fails, and return whether none did."""
    n_left = 0
    with signals.handlers(lambda number, _: signals.handled(number)):  # it takes milliseconds
        for one in begun:
            try:
                one.source.take_back()
            except GgufSpecError as error:
                n_left += 1
                click.echo(f"{one.source.path} stays changed: {error}", err=True)
    return not n_left


def _say_written(source: TextFile, output: Path | None) -> None:
    click.echo(f"{output or source.path} was written.", err=True)
    if output is None:
        place = shlex.quote(str(_short(source.path)))
        undo = as_called(f"Undo: gguf-spec edit --undo {place}")
        click.echo(undo if source.is_undoable else f"There is no undo: {_no_undo()}", err=True)
        if at_terminal():
            _say_uncommitted(source)


def _no_undo() -> str:
    return f"{Undo().folder} cannot be written."


def _say_why_not(source: TextFile, result: Edit, *, can_write: bool) -> None:
    if result.text == source.text:
        click.echo(f"{_unchanged(result)} Nothing was written.", err=True)
        return
    more = "; --yes writes the changes." if can_write and not result.refused else "."
    click.echo(f"Nothing was written{more}", err=True)


def _unchanged(result: Edit) -> str:
    what = "nothing that may change" if result.hunks else "nothing"
    if result.way == "code":
        return f"The instruction changed {what}."
    return f"The model changed {what}; use a clearer instruction or a larger model."


def _short(path: Path) -> Path:
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(Path.cwd())
    return path


def _in_patch(path: Path) -> tuple[str, Path | None]:
    """Return the name of a file in a patch, and the folder to apply it in, if it is another one.

    It is the name from the current folder, for `patch` and git. No patch may leave its folder, so
    for a file elsewhere it is the name from its work tree, or without one its own.
    """
    tree = next((one for one in path.parents if (one / ".git").exists()), None)
    try:
        here = Path.cwd()
        name = path.relative_to(here)
    except (OSError, ValueError):
        tree = tree or path.parent
        return path.relative_to(tree).as_posix(), tree
    # git takes a name that begins as the one of the current folder does for one from the work tree
    if (
        tree
        and here.is_relative_to(tree)
        and here != tree
        and name.is_relative_to(here.relative_to(tree))
    ):
        name = path.relative_to(tree)
    return name.as_posix(), None


def _show_patch(changes: bytes) -> None:
    if sys.stdout is None or not sys.stdout.isatty():
        click.echo(changes, nl=False)
        return
    for line in changes.decode("utf-8", "replace").split("\n")[:-1]:
        is_head = line.startswith(("---", "+++"))
        colour = None if is_head else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        click.secho(line.translate(CONTROL), fg=colour, bold=is_head or None)


def _say_how_much(result: Edit) -> None:
    if any(not one.is_outside for one in result.hunks):
        how = ", without a model" if result.way == "code" else ""
        click.echo(f"{result.summary}{how}.", err=True)


def _outside(result: Edit) -> str:
    return f"outside of {', '.join(result.scope)}" if result.scope else "in a part that must stay"


def _say_doubts(result: Edit) -> None:
    for reason in result.refused:
        click.echo(f"Doubtful: {reason}.", err=True)


def _say_uncommitted(source: TextFile) -> None:
    import subprocess

    command = ["git", "-c", "core.fsmonitor=false", "show", f"HEAD:./{source.path.name}"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, cwd=source.path.parent, capture_output=True, timeout=5, check=True
        )
        if done.stdout != source.data:
            click.echo("The file had changes that are in no commit.", err=True)


# ---- one change after the other

_KEYS = """\
y  take this change
n  leave the old lines
a  take this and the rest
q  leave this and the rest
s  split it into lines
e  change the new lines in the editor
r  ask the model again
?  this help"""


def _chosen_hunks(
    source: TextFile, result: Edit, again: Callable[[int], Edit | None] | None
) -> str | None:
    n_asked = 0
    while result.hunks:
        _say_how_much(result)
        _say_doubts(result)
        try:
            taken = _taken(source, result)
        except click.Abort:  # Ctrl-C, or the end of the input
            click.echo("\nNothing was written.", err=True)
            raise
        if taken is not None:
            return _of_chosen(source, result, taken) if taken else None
        n_asked += 1
        result = _other(again, n_asked) or result
    return None


def _of_chosen(source: TextFile, result: Edit, taken: list[Hunk]) -> str | None:
    """Return the text with some changes; None if it is not valid without the others."""
    lines = source.text.split("\n")
    new = apply(lines, taken)
    found = set(no_longer_valid(lines, new, source.path.name)) - {*result.refused}
    for problem in sorted(found):
        click.echo(f"With these changes alone {problem}.", err=True)
    is_wanted = not found or click.confirm("Write them all the same?", default=False, err=True)
    return "\n".join(new) if is_wanted else None


def _other(again: Callable[[int], Edit | None] | None, n: int) -> Edit | None:
    """Ask the model again; return None, and say why, if there is no other change."""
    if again is None:
        click.echo("This change was made without a model.", err=True)
        return None
    try:
        other = again(n)
    except NoEditError as error:
        click.echo(f"No other change: {error}", err=True)
        return None
    if other is None:
        click.echo("No other change.", err=True)
    return other


def _taken(source: TextFile, result: Edit) -> list[Hunk] | None:
    """Ask about each change, those outside last; return what is taken, or None to ask the model."""
    todo = sorted(result.hunks, key=lambda one: one.is_outside)
    taken, n_all = list[Hunk](), len(todo)
    while todo:
        hunk = todo.pop(0)
        _show_hunk(source, hunk, result)
        key = _key(n_all - len(todo), n_all)
        if key == "y":
            taken.append(hunk)
        elif key == "a":
            taken += [hunk, *(one for one in todo if hunk.is_outside or not one.is_outside)]
            break
        elif key == "r":
            return None
        elif key == "q":
            break
        elif key == "s":
            parts = _split(hunk)
            todo, n_all = [*parts, *todo], n_all + len(parts) - 1
        elif key == "e" and (edited := _edited(hunk, source.path.suffix)):
            taken.append(edited)
        elif key != "n":
            click.echo(_KEYS if key == "?" else "It was not changed.", err=True)
            todo.insert(0, hunk)
    if 0 < len(taken) < n_all:
        click.echo(f"{len(taken)} of {n_all} changes taken.", err=True)
    return taken


def _edited(hunk: Hunk, suffix: str) -> Hunk | None:
    """Return a change as the user wrote it in the editor; None if nothing was saved."""
    text = "".join(f"{line}\n" for line in hunk.new)
    try:
        edited = click.edit(text, extension=suffix or ".txt")
    except click.ClickException as error:
        click.echo(error.format_message(), err=True)
        return None
    if edited is None:
        return None
    new = edited.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return replace(hunk, new=tuple(new) if edited else ())


def _split(hunk: Hunk) -> list[Hunk]:
    """Return the changes of single lines of a change; of one line, itself."""
    n = min(len(hunk.old), len(hunk.new))
    if n < 1 or (len(hunk.old) == len(hunk.new) == 1):
        click.echo("It cannot be split.", err=True)
        return [hunk]
    pairs = enumerate(zip(hunk.old, hunk.new, strict=False), hunk.start)
    single = [replace(hunk, start=i, old=(old,), new=(new,)) for i, (old, new) in pairs]
    rest = replace(hunk, start=hunk.start + n, old=hunk.old[n:], new=hunk.new[n:])
    return [*single, rest] if rest.old or rest.new else single


def _show_hunk(source: TextFile, hunk: Hunk, result: Edit) -> None:
    lines = source.text.split("\n")
    where = f" ({_outside(result)})" if hunk.is_outside else ""
    click.secho(f"@@ line {hunk.start + 1}{where} @@", fg="cyan", err=True)
    for mark, colour, some in (
        (" ", None, lines[max(0, hunk.start - 2) : hunk.start]),
        ("-", "red", hunk.old),
        ("+", "green", hunk.new),
        (" ", None, lines[hunk.end : hunk.end + 2]),
    ):
        for line in some:
            click.secho((mark + line).translate(CONTROL), fg=colour, err=True)


def _key(n: int, n_all: int) -> str:
    """Return the key that was pressed, after `Take this change?`; for anything else, `?`."""
    question = f"({n}/{n_all}) Take this change? [y,n,a,q,s,e,r,?]"
    answer = str(click.prompt(question, default="n", err=True)).strip().lower()
    key = {"yes": "y", "no": "n", "all": "a", "quit": "q"}.get(answer, answer)
    return key if key in {*"ynaqser"} else "?"


# Speed-up from which drafts are mentioned.
_WORTH_SAYING = 1.1


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def _shown(
    n_expected: int, *, quiet: bool
) -> Iterator[Callable[[Iterable[tuple[str, str]], Stats], None]]:
    """Yield a function that shows styled text and a status line, if stderr is a terminal."""
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
        live.update(Group(rest, Text(_status(stats, n_expected), style="dim")))

    with Live(console=out, transient=True, refresh_per_second=12) as live:
        try:
            yield show
        finally:
            out.print(rest)
            live.update("")


def _status(stats: Stats, n_expected: int) -> str:
    of_all = f" of about {n_expected:,}" if stats.n_generated <= n_expected else ""
    return f"{stats.n_generated:,}{of_all} tokens, {speed(stats)}"


def show_summary(stats: Stats, plain: Stats | None) -> None:
    """Show length and speed of the complete text; drafts are mentioned only where they pay."""
    out, text = _console(), f"{stats.n_generated:,} tokens, {speed(stats)}"
    if plain and plain.tokens_per_s:
        gain = min(stats.tokens_per_s / plain.tokens_per_s, stats.tokens_per_round)
        if gain >= _WORTH_SAYING:
            text += f", {gain:.1f} times plain decoding ({speed(plain)})"
    if out.is_terminal:
        out.print(text, style="dim")
