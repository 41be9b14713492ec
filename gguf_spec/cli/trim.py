"""`gguf-spec models trim`: write a draft with the most used tokens only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command import Command
from .completion import model_names
from .options import json_option, models_file_option, output_options

if TYPE_CHECKING:
    from ..trim import Trimmed

# Default of --keep, as in `gguf_spec.trim`, which is not imported for the help.
_KEEP = 16384


@click.command(cls=Command, short_help="Write a draft with the most used tokens only.")
@click.argument("draft", shell_complete=model_names)
@click.option(
    "--keep", type=int, default=_KEEP, show_default=True, help="Number of tokens to keep."
)
@click.option(
    "--from",
    "texts",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="TEXT",
    help="Text file whose most frequent tokens are kept; repeatable.  "
    "[default: the first tokens of the vocabulary]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="OUT.gguf",
    help="File to write.  [default: DRAFT-KEEP.gguf in this folder]",
)
@output_options
@models_file_option
@json_option("instead of the line")
def trim(draft: str, texts: tuple[Path, ...], **options: Any) -> int:
    """Write DRAFT again with the rows of its most used tokens, to draft faster.

    DRAFT is a GGUF file or the name of a model on this disk. A small model spends much of each pass
    on its vocabulary. The result drafts for the same models as DRAFT and proposes only the kept
    tokens; the text does not change. Take texts of the kind that you generate for --from: the
    fewer of their tokens are lost, the more drafts are accepted. Bytes and control tokens are
    always kept. The result cannot be used as a model.

    \b
    Examples:
      gguf-spec models trim draft.gguf
      gguf-spec models trim smollm2-135m --keep 8192 --from notes.txt -o small.gguf
      gguf-spec generate -m target.gguf -d small.gguf "Once upon a time"
    """
    from ..models import path
    from ..trim import trim as run

    source = path(draft, options["models_file"])
    out = options["output"] or Path(f"{source.stem}-{options['keep']}.gguf")
    made = run(source, out, keep=options["keep"], texts=texts, force=options["force"])
    if options["as_json"]:
        click.echo(json.dumps(made.to_dict(), ensure_ascii=False))
    elif not options["quiet"]:
        click.echo(_line(made))
    return 0


def _line(made: Trimmed) -> str:
    from ..models import format_bytes

    text = (
        ""
        if made.coverage is None
        else f", {made.coverage:.2%} of the {made.n_text:,} tokens of the texts"
    )
    return (
        f"{made.target}: {made.n_kept:,} of {made.n_vocab:,} tokens{text}, "
        f"{format_bytes(made.target_bytes)} instead of {format_bytes(made.source_bytes)}, "
        f"in {made.seconds:.1f} s"
    )
