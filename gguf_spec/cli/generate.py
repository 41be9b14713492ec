"""`gguf-spec generate`: generate one answer to one prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..options import Sampling
from . import ctrl_c
from .command import Command
from .images import check_images, image_option
from .options import (
    json_option,
    load_models,
    model_options,
    sampling_options,
    speculation_options,
    table_option,
    think_options,
    to_sampling,
    to_speculation,
)
from .progress import PromptBar
from .prompt import read_prompt
from .render import Thoughts, answer_json, logprob_lines, show_chunk, stats_lines, write

if TYPE_CHECKING:
    from .. import LLM, Sampling


@click.command(
    cls=Command,
    usual=(
        "model",
        "draft",
        "file",
        "system",
        "max_tokens",
        "temperature",
        "seed",
        "ctx",
        "stats",
        "as_json",
    ),
)
@click.argument("prompt", required=False)
@click.option("-p", "--prompt", "prompt_option", hidden=True, help="As PROMPT.")
@click.option(
    "-f",
    "--file",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Add the text of a file to the prompt. Repeatable.",
)
@image_option
@partial(model_options, chat=True)
@speculation_options
@sampling_options
@click.option(
    "--raw/--chat",
    "raw",
    default=None,
    help="Continue the prompt, or answer it with the chat template.  [default: by model]",
)
@click.option("-s", "--system", help="System message; implies --chat.")
@click.option("--prefill", default="", help="Beginning of the answer.")
@table_option("overflow")
@think_options
@click.option(
    "--echo",
    is_flag=True,
    help="Start the text with the prompt, unless it is a chat, and the prefill.",
)
@click.option("--stats", is_flag=True, help="Show speed and acceptance, on stderr.")
@click.option("--show-draft", is_flag=True, help="Show accepted draft tokens in green.")
@json_option("instead of the text")
def generate(
    prompt: str | None,
    prompt_option: str | None,
    file: tuple[Path, ...],
    image: tuple[Path, ...],
    system: str | None,
    raw: bool | None,
    **options: Any,
) -> int:
    """Continue a prompt, or answer it.

    The prompt is PROMPT, then each --file, then the text of a pipe, with an empty line between
    them. All three are optional. - for PROMPT puts the text of the pipe first.

    \b
    Examples:
      gguf-spec generate "Why is the sky blue?"
      cat notes.txt | gguf-spec generate "Summarise:"
      gguf-spec generate "Which of them is newer?" -f one.txt -f two.txt
      gguf-spec generate "Once upon a time" --seed 1 -n 120 --stats --show-draft
      gguf-spec generate --chat "Tell me a story about a fox and a king."
      gguf-spec generate -m target.gguf -d draft.gguf -t 0 --json < prompt.txt
      gguf-spec generate -m model.gguf --mmproj mmproj.gguf --image cat.jpg "What is this?"
      gguf-spec generate "A king, as JSON:" \\
        --json-schema '{"type": "object", "properties": {"name": {"type": "string"}}}'
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    if system is not None and raw:
        raise click.UsageError("--system needs the chat template, which --raw does not use.")
    if prompt is not None and prompt_option is not None:
        raise click.UsageError("PROMPT and --prompt cannot be combined; write one of them.")
    from ..errors import EmptyPromptError

    check_images(image, options)
    text = read_prompt(prompt_option if prompt is None else prompt, file)
    if not text and (system is not None or raw is False or not options["prefill"]):
        raise EmptyPromptError  # before the models, which take long to load
    sampling, speculation = to_sampling(options), to_speculation(options)
    if (
        click.get_current_context().get_parameter_source("overflow") is not ParameterSource.DEFAULT
    ):  # otherwise the value in models.yaml applies
        sampling = replace(sampling, overflow=options["overflow"])
    with load_models(options, options["draft"] if speculation.k else "none", speculation) as llm:
        chat = system is not None or raw is False or (raw is None and llm.prompt == "chat")
        messages = [{"role": "system", "content": system}] if system else []
        if chat and not text:
            raise EmptyPromptError
        request: str | list[dict[str, str]] = text
        if chat:
            request = [*messages, {"role": "user", "content": text}]
        return _answer(llm, request, sampling, options | {"image": image})


def _answer(
    llm: LLM,
    request: str | list[dict[str, str]],
    sampling: Sampling,
    options: dict[str, Any],
) -> int:
    """Write the answer while it is generated; return the exit code."""
    from rich.console import Console

    out, k = Console(highlight=False, soft_wrap=True), llm.speculation.k
    shown = (
        ""
        if options["as_json"] or options["echo"] or not out.is_terminal
        else (request if isinstance(request, str) else "") + options["prefill"]
    )
    bar, thoughts = PromptBar(), Thoughts(not options["hide_thinking"])
    with (
        llm.stream(
            request,
            sampling,
            images=options["image"],
            prefill=options["prefill"],
            echo=options["echo"],
            on_prompt=bar,
            think=options["think"],
        ) as stream,
        ctrl_c.cancels(stream),
    ):
        try:
            for i, chunk in enumerate(stream):
                if i == 0:
                    bar.remove()
                    # Only after the progress bar is removed: the bar requires an empty line.
                    write(out, shown, "dim")
                if not options["as_json"]:
                    for text, style in thoughts.before(chunk) if out.is_terminal else ():
                        write(out, text, style)
                    show_chunk(out, chunk, options["show_draft"])
        finally:
            bar.remove()
    result = stream.result
    if options["as_json"]:
        click.echo(
            json.dumps(
                answer_json(llm, result, k, sampling.logprobs is not None),
                ensure_ascii=False,
                allow_nan=False,
            )
        )
    elif not result.text.endswith("\n"):
        click.echo()
    if result.reasoning and not result.text and result.finish_reason == "length":
        click.echo(
            f"Note: the reasoning used all {result.stats.n_generated:,} tokens, so there is no "
            "answer. Set a larger -n, a --think-budget, or --no-think.",
            err=True,
        )
    if options["stats"]:
        click.echo(stats_lines(result.stats, result.seed), err=True)
    if result.logprobs and not options["as_json"]:
        click.echo(logprob_lines(llm, result), err=True)
    return 130 if result.finish_reason == "cancelled" else 0
