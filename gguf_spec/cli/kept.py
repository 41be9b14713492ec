"""`gguf-spec kept`: list and remove the prompts that are kept on disk."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from .command import CONTROL, CommandGroup, flag, json_option, option, together
from .download import at_terminal
from .output import aligned, print_json

_SHOWN = 50  # prompts in the list
_TITLE = 48  # characters
_HEAD = ("id", "tokens", "size", "used", "model", "begins")
_options = together(
    option("--keep", "The folder.  [default: the usual one]", metavar="FOLDER"), json_option()
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def kept(ctx: click.Context) -> None:
    """List and remove the prompts that are kept on disk (serve --keep). Without a command: list.

    \b
    Examples:
      gguf-spec kept
      gguf-spec kept list --all --json
      gguf-spec kept rm 3f2a91c0d4e5
      gguf-spec kept rm --all --yes
    """
    if ctx.invoked_subcommand is None:
        with list_.make_context("list", [], parent=ctx) as shown:
            list_.invoke(shown)


@kept.command("list", short_help="List the prompts.")
@flag("--all all_", f"Show all prompts, not only the {_SHOWN} that were used last.")
@_options
def list_(all_: bool, keep: str | None, as_json: bool) -> None:
    """List the prompts, those that were used last first.

    Prompts that begin alike share files, so the sizes may count some bytes twice. A draft model has
    rows of its own.

    \b
    Examples:
      gguf-spec kept list
      gguf-spec kept list --keep /var/cache/prompts --json
    """
    from ..kept import kept_prompts
    from ..models import format_bytes

    found = kept_prompts(keep, None if all_ or as_json else _SHOWN)
    if as_json:
        print_json(asdict(found) | {"folder": str(found.folder)})
        return
    rows = [_HEAD]
    for one in found.prompts:
        title = one.title if len(one.title) <= _TITLE else f"{one.title[: _TITLE - 3]}..."
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_at))
        size = format_bytes(one.n_bytes)
        rows.append((one.id, f"{one.n_tokens:,}", size, used, one.model, title))
    if found.prompts:
        click.echo("\n".join([*aligned(rows), ""]).translate(CONTROL))
    left_out = found.n_prompts - len(found.prompts)
    more = f" (--all shows {left_out:,} more)" if left_out else ""
    what = f"{found.n_prompts:,} prompt{'' if found.n_prompts == 1 else 's'}{more}"
    budget = f"{format_bytes(found.n_bytes)} of {format_bytes(found.limit_bytes)}"
    click.echo(f"{what} in {found.folder}, {budget}.")


@kept.command("rm", short_help="Remove prompts.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@flag("--all all_", "Remove all prompts in the folder.")
@flag("-y --yes", "Remove all without a question; needed with --json and without a terminal.")
@_options
def rm(ids: tuple[str, ...], all_: bool, yes: bool, keep: str | None, as_json: bool) -> None:
    """Remove prompts by their ids, or all. What other prompts begin with stays.

    Programs that use the folder go on, and read such a prompt again.

    \b
    Examples:
      gguf-spec kept rm 3f2a91c0d4e5
      gguf-spec kept rm --all --yes
    """
    from ..kept import kept_prompts, remove_kept
    from ..models import format_bytes

    if bool(ids) == all_:
        raise click.UsageError("name prompts by their ids, or give --all.")
    if all_ and not yes:
        if as_json or not at_terminal():
            raise click.UsageError("nothing was removed: add --yes to remove all prompts.")
        where = kept_prompts(keep, 0)
        if not click.confirm(f"Remove {where.n_prompts:,} prompts in {where.folder}?", err=True):
            return
    n, freed = remove_kept(keep, None if all_ else ids)
    if as_json:
        print_json({"removed": n, "freed_bytes": freed})
    else:
        click.echo(f"{n:,} prompt{'' if n == 1 else 's'} removed, {format_bytes(freed)} freed.")
