"""`gguf-spec completion`: shell completion of commands, options and model names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import DRAFT_WORDS
from .command import Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..models import Entry

_SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command, reads_config=False)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell script that completes commands, options and model names.

    \b
    Examples:
      eval "$(gguf-spec completion bash)"          in ~/.bashrc
      eval "$(gguf-spec completion zsh)"           in ~/.zshrc, after compinit
      gguf-spec completion fish | source           in ~/.config/fish/config.fish
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    shown = kind(context.find_root().command, {}, "gguf-spec", "_GGUF_SPEC_COMPLETE")
    # Not `kind.source()`: it checks the version of an installed bash, which may be another bash
    # than the one that will load the script.
    click.echo(shown.source_template % shown.source_vars())


def model_names(
    _context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the model names that begin with `incomplete`; without a match, complete files."""
    from click.shell_completion import CompletionItem

    found = {name: entry.note for name, entry in _models().items()}
    if param.name == "draft":
        found |= DRAFT_WORDS
    begun = {name: text for name, text in found.items() if name.startswith(incomplete)}
    items = [CompletionItem(name, help=text) for name, text in begun.items()]
    return items or [CompletionItem(incomplete, type="file")]


def names_from(incomplete: str) -> list[str]:
    """Return the names of models on this disk that begin with a text."""
    from ..models import find

    return [name for name, one in _models().items() if name.startswith(incomplete) and find(one)]


def _models() -> dict[str, Entry]:
    from ..errors import GgufSpecError
    from ..models import list_models

    try:
        return {name: one for one in list_models() for name in (one.name, *one.aliases)}
    except GgufSpecError:  # an invalid models.yaml is reported when a model is loaded
        return {}
