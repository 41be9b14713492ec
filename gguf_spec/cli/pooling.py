"""Option `--pooling`: how one vector is made of a text."""

from __future__ import annotations

import click

from ..options import POOLING

pooling_option = click.option(
    "--pooling",
    type=click.Choice(POOLING),
    help="How embeddings are pooled; none gives a row for each token.  "
    "[default: as the file says, else mean]",
)
