"""Option `--parallel`: how many requests share the passes of a model."""

from __future__ import annotations

from typing import Any

import click


class NumberOrAuto(click.ParamType["int | str"]):
    """Parameter type for a whole number or the word `auto`."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Parse a text such as `4`."""
        text = str(value).strip().lower()
        if text == "auto":
            return text
        try:
            return int(text)
        except ValueError:
            self.fail(f"{value!r} is not a number of requests such as 4, or auto.", param, ctx)


parallel_option = click.option(
    "--parallel",
    type=NumberOrAuto(),
    default="auto",
    help="Number of requests at once; each has a cache of --ctx tokens. auto: 4, or less where the "
    "caches need more than a quarter of the free memory.",
)
