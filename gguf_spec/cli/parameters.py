"""Types of command-line parameters about models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class Bias(click.ParamType[tuple[int, float]]):
    """Parameter type for a token id and the bias that is added to its logit."""

    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Parse a text such as `13=-inf`."""
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(
                f"{value!r} is not a token id and a bias, such as 13=-1.5 or 13=-inf.", param, ctx
            )


class AdapterFile(click.ParamType[tuple[str, float]]):
    """Parameter type for a LoRA adapter and its scale.

    The scale is the text after the last colon, if that text is a number; otherwise it is 1.
    """

    name = "FILE[:SCALE]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Parse a text such as `lora.gguf:0.5`; the whole text is a path if that file exists."""
        if isinstance(value, tuple):
            return value
        if not value:
            self.fail(
                "the name is empty; write a file such as lora.gguf or lora.gguf:0.5.", param, ctx
            )
        file, _, scale = str(value).rpartition(":")
        try:
            return (str(value), 1.0) if not file or Path(value).exists() else (file, float(scale))
        except (OSError, ValueError):
            return str(value), 1.0


class ModelName(click.ParamType[str]):
    """Parameter type for a model; the environment variable has one per line."""

    name = "TEXT"
    envvar_list_splitter = "\n"


class Layers(click.ParamType["int | str"]):
    """Parameter type for a number of layers, or `auto`."""

    name = "INTEGER|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Parse a text such as `12`."""
        if value == "auto":
            return "auto"
        try:
            return int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is neither a whole number nor auto.", param, ctx)


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
