"""Options of llama.cpp's programs: set here, without effect, or refused by name."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..options import DRAFT_WORDS
from .command import Command, UnknownNameError, hidden_names
from .habits import INSTEAD, NO_EFFECT, NOT_HERE, OF_COMMANDS, OF_TERMINALS, ONLY_GPU, OTHER_MEANING
from .options import adapter_file

# Keys of the context: options that were given and have no effect, those that need a GPU, and
# option -> value of those that set others.
LEFT_OUT, _OF_GPU = "gguf_spec.left_out", "gguf_spec.of_gpu"
_MEANT = "gguf_spec.meant"
_LEAST_KEPT = 1_000_000  # bytes that `--keep` can mean
# Way of loading -> the options that it sets.
_LOAD_MODES: dict[str, dict[str, bool]] = {
    "auto": {}, "mmap": {}, "dio": {}, "none": {"mmap": False}, "mlock": {"mlock": True},
    "mmap+mlock": {"mmap": True, "mlock": True},
}  # fmt: skip


class LlamaCommand(Command):
    """Command that knows the options of llama.cpp's programs, so that none is read as another."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        return [*own, *foreign_options(self.name or "", _names(own))]

    def make_parser(self, ctx: click.Context) -> Any:
        """Return the parser; that of `serve` takes `--ctx_size`, as llama-server does."""
        parser = super().make_parser(ctx)
        match, known = parser._match_long_opt, parser._long_opt

        def match_dashed(name: str, value: str | None, state: Any) -> None:
            dashed = name.replace("_", "-")
            match(dashed if name not in known and dashed in known else name, value, state)

        if self.name == "serve":
            parser._match_long_opt = match_dashed
        return parser

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, as_meant(args))
        _set_others(ctx)
        left_out = _left_out_for_gpu(ctx.params) if self.name == "serve" else []
        of_gpu = [*ctx.meta.get(_OF_GPU, ()), *left_out]
        why = f": {_why_no_gpu()}" if of_gpu else ""
        for names, end in ((ctx.meta.get(LEFT_OUT), ""), (of_gpu, why)):
            if names:
                are = "have" if len(names) > 1 else "has"
                click.echo(f"Note: {', '.join(names)} {are} no effect here{end}.", err=True)
        return rest


def _names(own: Iterable[click.Parameter]) -> frozenset[str]:
    options = [one for one in own if isinstance(one, click.Option)]
    shown = (name for one in options for name in (*one.opts, *one.secondary_opts))
    return frozenset([*shown, *(name for one in options for name in hidden_names(one))])


def _left_out_for_gpu(given: dict[str, Any]) -> list[str]:
    """Leave out values of options that need a GPU, if llama.cpp is built without; return them.

    The command lines of llama-server have them on every machine, and it takes them, too.
    """

    def is_gpu(name: str) -> bool:
        return name.strip().lower() not in ("none", "cpu", "")

    left = dict[str, Any]()
    for name, usual in (("gpu_layers", -1), ("draft_gpu_layers", None)):
        n = given.get(name)
        left |= {name: usual} if isinstance(n, int) and n > 0 else {}
    for name in ("device", "draft_device"):
        kept = tuple(one for one in given.get(name) or () if not is_gpu(one))
        left |= {name: kept} if kept != (given.get(name) or ()) else {}
    pairs = given.get("override_tensor") or ()
    on_cpu = tuple(one for one in pairs if not is_gpu(one.rpartition("=")[2]))
    left |= {"override_tensor": on_cpu} if on_cpu != tuple(pairs) else {}
    if not left or given.get("rpc") or has_gpu():
        return []
    flags = [f"--{name.replace('_', '-')}" for name in left]
    given |= left
    return flags


def has_gpu() -> bool:
    from ..doctor import can_offload

    return can_offload()


def _why_no_gpu() -> str:
    from ..doctor import why_no_gpu

    return why_no_gpu()


def as_meant(args: list[str]) -> list[str]:
    """Return words in which `-t 8` is `--threads 8`, as in llama.cpp: no temperature is so high.

    Raises:
        UnknownNameError: Two number types of the cache differ.
    """
    args, kinds = [*args], dict[str, str]()
    for i, (name, value) in enumerate(itertools.pairwise([*args, ""])):
        if name == "--":  # a text follows
            break
        n = value if name == "-t" else name[2:] if name.startswith("-t") else ""
        if n.isdecimal() and int(n) > 2:
            args[i] = "--threads" if name == "-t" else f"--threads={n}"
            fact = f"Note: -t {n} is read as --threads {n}; --temperature {n} sets the other."
            click.echo(fact, err=True)
        elif name == "-c" and value.isdecimal():  # `chat` has another one, which takes no value
            args[i] = "--ctx"
        if name in ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"):
            kinds[name[-1]] = value
    if len({*kinds.values()}) > 1:
        hint = "give one: --kv-type TYPE."
        raise UnknownNameError("keys and values of the cache have one number type.", hint, None)
    return args


def _set_others(ctx: click.Context) -> None:
    """Set the options that an option of llama.cpp stands for; those of the command line stay."""
    given, meant = ctx.params, ctx.meta.get(_MEANT, {})

    def is_free(name: str) -> bool:
        return name in given and ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE

    if mode := meant.get("--load-mode"):
        if mode not in _LOAD_MODES:
            only = f"--load-mode takes one of {', '.join(_LOAD_MODES)}."
            raise UnknownNameError(f"{ctx.command_path} does not know {mode}.", only, ctx)
        given |= {name: on for name, on in _LOAD_MODES[mode].items() if is_free(name)}
    kinds = meant.get("--spec-type", "").split(",")
    words = {"ngram" if one.startswith("ngram") else one.removeprefix("draft-") for one in kinds}
    if len(words) == 1 and words <= {*DRAFT_WORDS} and (is_free("draft") or words == {"none"}):
        (given["draft"],) = words
    if file := meant.get("--hf-file"):
        models = given.get("model") or ()
        *others, last = models if isinstance(models, tuple) and models else (models or "",)
        named = f"hf:{last.partition(':')[0]}/{file}"
        given["model"] = (*others, named) if isinstance(models, tuple) else named
    if "cors_origin" in given:
        origins = meant.get("--cors-origins", "").split(",")
        local = ("http://localhost:*", "http://127.0.0.1:*")
        for one in filter(None, map(str.strip, origins)):
            given["cors_origin"] += local if one == "localhost" else (one,)
    if "lora" in given:
        scaled = filter(None, meant.get("--lora-scaled", "").split(","))
        given["lora"] = tuple(
            one for pair in (*given["lora"], *map(adapter_file, scaled)) for one in _each(*pair)
        )
    draft = str(given.get("draft") or "")  # the length of drafts, in older programs
    if draft.isdecimal() and int(draft) and not Path(draft).exists() and "k" in given:
        given |= {"draft": "auto"} | ({"k": int(draft)} if is_free("k") else {})
    with contextlib.suppress(ValueError):  # tokens that stay where a context shifts
        if (n := int(given.get("keep") or 0)) and -1 <= n < _LEAST_KEPT:  # -1 means all
            ctx.meta.setdefault(LEFT_OUT, []).append(f"--keep {n}")
            given["keep"] = None


def _each(files: str, scale: float) -> list[tuple[str, float]]:
    """Return the adapters of a text with commas, unless it is the name of a file."""
    if "," not in files or Path(files).exists():
        return [(files, scale)]
    *others, last = filter(None, files.split(","))
    return [*map(adapter_file, others), (last, scale)]


@functools.cache
def foreign_options(command: str, taken: frozenset[str]) -> list[click.Option]:
    """Return an option for each name that is not one of the command's own (`taken`)."""
    found: list[click.Option] = []
    refused = NOT_HERE if command == "serve" else {
        row: hint for row, hint in NOT_HERE.items() if row.split()[0] in ONLY_GPU
    }  # fmt: skip
    more = (*OF_COMMANDS.get(command, ()), *(OF_TERMINALS if command != "serve" else ()))
    rows = dict.fromkeys((*NO_EFFECT, *more), "") | refused | dict.fromkeys(OTHER_MEANING, _MEANT)
    for row, hint in rows.items():
        words, _, values = row.partition(" [")
        only = values.rstrip("]").split()
        last = words.split()[-1]
        has_value = bool(only) or not last.startswith("-")
        kind: dict[str, Any] = {} if has_value else {"is_flag": True, "flag_value": ""}
        kind |= {"is_flag": False, "flag_value": ""} if last.endswith("?") else {}
        names = [word for word in words.split() if word.startswith("-")]
        for name in names:
            if name in taken:
                continue
            how = {"name": name, "hint": hint, "taken": only, "first": names[0]}
            found.append(
                click.Option(
                    [name, f"foreign_{len(found)}"],
                    type=str,
                    **kind,
                    default=None,
                    hidden=True,
                    expose_value=False,
                    allow_from_autoenv=False,
                    callback=functools.partial(_foreign, **how),
                )
            )
    return found


def _foreign(
    ctx: click.Context,
    _: click.Parameter,
    value: str | None,
    name: str,
    hint: str,
    taken: list[str],
    first: str,
) -> None:
    if value is None:
        return
    typed = f"{name} {value}".rstrip()
    if hint is _MEANT:
        ctx.meta.setdefault(_MEANT, {})[first] = value
        return
    if name in ONLY_GPU and not has_gpu():
        ctx.meta.setdefault(_OF_GPU, []).append(typed)
        return
    if hint:  # without the value, which may be a secret
        raise UnknownNameError(f"{ctx.command_path} has no option {name}.", hint, ctx)
    if taken and not any(_is_same(value, one) for one in taken):
        only = f"{name} takes {' or '.join(taken)} here; {INSTEAD.get(first, '')}".rstrip("; ")
        raise UnknownNameError(f"{ctx.command_path} does not know {typed}.", only, ctx)
    ctx.meta.setdefault(LEFT_OUT, []).append(typed)


def _is_same(value: str, other: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(value) == float(other)
    return value == other
