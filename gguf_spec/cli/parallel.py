"""Options of requests: how many share passes, and the memory for texts of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .. import LLM


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
    help="Number of requests at once; each has a cache of --ctx tokens. auto: as many as raise the "
    "speed by the measured costs, at most 16, in a quarter of the free memory.",
)


prefix_memory_option = click.option(
    "--prefix-memory",
    metavar="SIZE",
    default="auto",
    help="Memory for the caches of earlier texts, such as 500MB or 2GiB: a request that begins "
    "like one of them needs not read that part. 0: none. auto: an eighth of the free memory.",
)

shared_drafts_option = click.option(
    "--shared-drafts",
    is_flag=True,
    help="Let drafts also come from the answers of other requests. The texts stay the same; the "
    "time of an answer can show that another one got a text like it.",
)


def at_once(llm: LLM) -> str:
    """Return how many requests share the passes of a model, and why."""
    n = llm.parallel
    number = "one request at a time" if n == 1 else f"{n} requests at once"
    return f"{number} ({llm.parallel_reason})" if llm.parallel_reason else number
