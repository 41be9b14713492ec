"""`gguf-spec generate`: generate one answer to one prompt."""

from __future__ import annotations

import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import Sampling
from .command import file_option, flag, json_option, option
from .foreign import LlamaCommand
from .options import (
    SAMPLING_PARAMETERS,
    STDIN,
    is_given,
    load_models,
    model_options,
    read_text,
    server_option,
    speculation_options,
    table_option,
    table_options,
    think_options,
    to_sampling,
    to_speculation,
    with_file_values,
)
from .output import (
    LateBar,
    Thoughts,
    answer_json,
    ctrl_c_cancels,
    logprob_lines,
    print_json,
    stats_lines,
    styled,
    write,
)

if TYPE_CHECKING:
    from .. import Completion
    from .command import Decorator
    from .options import AnyLLM


image_option: Decorator = file_option(
    "--image", "Image before the prompt; needs --mmproj. Repeatable.", multiple=True
)


@click.command(
    cls=LlamaCommand, usual="model draft file system max_tokens temperature seed ctx stats as_json"
)
@click.argument("prompt", required=False)
@option("-p --prompt prompt_option", "As PROMPT.", hidden=True)
@file_option(
    "-f --file", "Add the text of a file to the prompt. Repeatable.", multiple=True, metavar=None
)
@image_option
@partial(model_options, chat=True)
@table_option("draft_texts", default="disk")
@speculation_options
@table_options([one for one in SAMPLING_PARAMETERS if one != "max_tokens"])
@table_option("max_tokens", show_default="256; an answer ends by itself")
@option(
    "--raw/--chat raw",
    "Continue the prompt, or answer it with the chat template.  [default: by model]",
    default=None,
)
@option("-s --system", "System message; implies --chat.")
@option("--prefill", "Beginning of the answer.", default="")
@table_option("overflow")
@think_options
@flag("--echo", "Start the text with the prompt, unless it is a chat, and the prefill.")
@flag("--stats", "Show speed and acceptance, on stderr.")
@flag("--show-draft", "Show accepted draft tokens in green.")
@json_option("instead of the text")
@server_option
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
    them. All three are optional. - for PROMPT puts the text of the pipe first. An answer with the
    chat template ends by itself, or where the context is full; other texts after 256 tokens, unless
    -n is given.

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
    sampling = to_sampling(options, overflow=True)
    with load_models(options | {"image": image}, to_speculation(options)) as llm:
        chat = system is not None or raw is False or (raw is None and llm.prompt == "chat")
        messages = [{"role": "system", "content": system}] if system else []
        if chat and not text:
            raise EmptyPromptError
        request: str | list[dict[str, str]] = text
        if chat:
            request = [*messages, {"role": "user", "content": text}]
            if not is_given("max_tokens") and sampling.max_tokens == Sampling.max_tokens:
                sampling = replace(sampling, max_tokens=None)  # an answer ends by itself
        return _answer(llm, request, with_file_values(sampling, llm), options | {"image": image})


def _answer(
    llm: AnyLLM, request: str | list[dict[str, str]], sampling: Sampling, options: dict[str, Any]
) -> int:
    from rich.console import Console

    out, shown = Console(highlight=False, soft_wrap=True), ""
    if out.is_terminal and not (options["as_json"] or options["echo"]):
        shown = (request if isinstance(request, str) else "") + options["prefill"]
    bar, thoughts = LateBar(), Thoughts(not options["hide_thinking"])
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
        ctrl_c_cancels(stream),
        bar,
    ):
        bar.begin(stream.stats.n_prompt, llm.prompt_token_s)
        for i, chunk in enumerate(stream):
            if i == 0:
                bar.remove()
                # Only after the progress bar is removed: the bar requires an empty line.
                write(out, [(shown, "dim")])
            if not options["as_json"]:
                write(out, thoughts.before(chunk) if out.is_terminal else ())
                write(out, styled(chunk, options["show_draft"]))
    result = stream.result
    if options["as_json"]:
        print_json(answer_json(llm, result, sampling.logprobs is not None))
    elif not result.text.endswith("\n"):
        click.echo()
    at_screen = sys.stderr is not None and sys.stderr.isatty() and not options["as_json"]
    if at_screen and result.text and (why := _cut(llm, result)):
        click.echo(why, err=True)
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


def _cut(llm: AnyLLM, result: Completion) -> str:
    """Return why an answer did not end by itself; nothing if it did, or if the user set -n."""
    from ..errors import longer_ctx

    n, n_prompt, n_ctx = result.stats.n_generated, result.stats.n_prompt, llm.n_ctx
    if result.finish_reason != "length":
        return ""
    if n_prompt + n >= n_ctx:
        longer = longer_ctx(n_ctx, llm.n_ctx_limit)
        more = f"--ctx {longer} for more" if longer else "no longer one is possible"
        return f"(cut: the context of {n_ctx:,} tokens is full: {more})"
    return "" if is_given("max_tokens") else f"(cut after {n:,} tokens: -n -1 for all)"


# Seconds without data from a pipe before a note says what the command waits for.
_PATIENCE_S = 3.0


def read_prompt(prompt: str | None, files: Sequence[Path]) -> str:
    """Return the prompt, the texts of the files and the text of the pipe, in this order.

    An empty line separates them. One newline at the end of a file or pipe is removed. If the prompt
    is `-`, the text of the pipe takes its place.

    Raises:
        click.UsageError: There is neither a prompt nor a file nor a pipe.
        click.FileError: A file cannot be read.
    """
    has_pipe = sys.stdin is not None and not sys.stdin.isatty()
    if prompt is None and not files and not has_pipe:
        fact = "there is no prompt; write it as an argument, use --file FILE, or use a pipe."
        raise click.UsageError(fact)
    texts = [read_text(file).removesuffix("\n") for file in files]
    if has_pipe and prompt != "-":
        _say_if_waiting(prompt is not None or bool(files))
    piped = ""
    if sys.stdin is not None and (has_pipe or prompt == "-"):
        piped = read_text(STDIN).removesuffix("\n")
    joined = [piped, *texts] if prompt == "-" else [prompt or "", *texts, piped]
    return "\n\n".join(filter(None, joined))


def _say_if_waiting(has_prompt: bool) -> None:
    """Write a note if nothing arrives in a pipe, as from a program that never closes it."""
    if not has_prompt or sys.platform == "win32":  # there `select` cannot wait for a pipe
        return
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _PATIENCE_S)
    except (OSError, ValueError):  # the stream has no file descriptor
        return
    if not ready:
        click.echo(
            "Note: waiting for the end of the standard input, which is added to the prompt; "
            "< /dev/null adds nothing.",
            err=True,
        )


def check_images(files: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Check the images of a command before a model is loaded.

    Raises:
        ImageError: An image cannot be read or is not allowed.
        click.UsageError: There is no projector.
    """
    if not files:
        return
    if options["mmproj"] is None:
        raise click.UsageError("--image needs --mmproj FILE, the projector of the model.")
    from ..images import read_image

    for file in files:
        read_image(file)
