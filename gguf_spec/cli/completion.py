"""`gguf-spec completion`: what a shell needs to complete commands, options and names of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SHELLS = ("bash", "zsh", "fish")


@click.command(context_settings={"auto_envvar_prefix": "GGUF_SPEC"})
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands, options and names of models.

    \b
    Examples:
      eval "$(gguf-spec completion bash)"          in ~/.bashrc
      eval "$(gguf-spec completion zsh)"           in ~/.zshrc, after compinit
      gguf-spec completion fish | source           in ~/.config/fish/config.fish
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    variables = kind(
        context.find_root().command, {}, "gguf-spec", "_GGUF_SPEC_COMPLETE"
    ).source_vars()
    click.echo(
        kind.source_template % variables
    )  # not `source`: that asks a bash for its version, which may not be the one it is for


def model_names(
    _context: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names of models that begin so; and for what is none of them, files."""
    from click.shell_completion import CompletionItem

    from ..errors import GgufSpecError
    from ..registry.resolve import entries

    try:
        found = {
            name: entry.note
            for entry in entries().values()
            for name in (entry.name, *entry.aliases)
        }
    except GgufSpecError:  # a models.yaml that cannot be read is told of where a model is loaded
        found = {}
    if param.name == "draft":
        found |= {
            "auto": "the best that is there",
            "ngram": "the text alone",
            "none": "plain decoding",
        }
    items = [
        CompletionItem(name, help=said)
        for name, said in found.items()
        if name.startswith(incomplete)
    ]
    return items or [CompletionItem(incomplete, type="file")]
