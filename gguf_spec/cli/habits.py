"""Names that users of other programs type, and hints for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Parameter -> names of the same option in llama.cpp, mlx-lm, llm and transformers. They work but
# are not in the help. A command that uses a name itself keeps it, such as -c of `verify`.
HIDDEN_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("-hf", "--hf-repo"),
    "draft": ("-md", "--model-draft", "--draft-model", "--spec-draft-model"),
    "ctx": ("-c", "--ctx-size", "--n-ctx", "--num-ctx", "--context-length"),
    "threads": ("--n-threads",),
    "parallel": ("-np", "--n-parallel", "--num-parallel"),
    "n_cpu_moe": ("-ncmoe",),
    "cpu_moe": ("-cmoe",),
    "override_tensor": ("-ot",),
    "device": ("-dev",),
    "draft_device": ("-devd", "--device-draft", "--spec-draft-device"),
    "draft_threads": ("-td", "--threads-draft"),
    "gpu_layers": ("-ngl", "--n-gpu-layers", "--num-gpu"),
    "draft_gpu_layers": ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
    "flash_attention": ("-fa", "--flash-attn"),
    "k": ("--draft-max", "--draft-n", "--num-draft-tokens", "--spec-draft-n-max"),
    "max_tokens": ("--n-predict", "--predict", "--num-predict", "--max-new-tokens"),
    "temperature": ("--temp",),
    "typical_p": ("--typical",),
    "top_n_sigma": ("--top-nsigma",),
    "repeat_penalty": ("--repetition-penalty",),
    "penalty_last_n": ("--repeat-last-n",),
    "dry_breaker": ("--dry-sequence-breaker",),
    "json_schema": ("-j",),
    "grammar": ("--grammar-file",),
    "stop": ("-r", "--reverse-prompt"),
    "system": ("-sys", "--system-prompt"),
    "overflow": ("--context-overflow",),
}
# First name of a command -> the command. The names are those of ollama.
SHORT_COMMANDS = {
    "pull": ("models", "pull"),
    "list": ("models", "list"),
    "ls": ("models", "list"),
    "rm": ("models", "remove"),
    "show": ("models", "show"),
}
# Name that is not a command -> command with this function.
_MEANT_COMMANDS = {
    **dict.fromkeys(
        ("ask", "answer", "complete", "infer", "inference", "predict", "prompt"), "generate"
    ),
    **dict.fromkeys(("talk", "repl", "interactive", "conversation"), "chat"),
    **dict.fromkeys(("server", "start", "api", "web", "ui", "daemon"), "serve"),
    **dict.fromkeys(("download", "get", "fetch", "install", "add"), "models pull"),
    **dict.fromkeys(("search", "catalog", "catalogue"), "models list"),
    **dict.fromkeys(("rewrite", "refactor", "replace", "patch"), "edit"),
    **dict.fromkeys(("benchmark", "speed"), "bench"),
    **dict.fromkeys(("check", "test", "diagnose", "status"), "doctor"),
    **dict.fromkeys(("convert", "quantise"), "models quantize"),
    **dict.fromkeys(("set", "settings", "configure", "defaults"), "config"),
    "which": "models path",
    "version": "--version",
}
# Option that no command has -> option with this function.
_MEANT_OPTIONS = {
    **dict.fromkeys(("--length", "--tokens", "--num-tokens", "--limit"), "--max-tokens"),
    **dict.fromkeys(("--context", "--context-size", "--window"), "--ctx"),
    **dict.fromkeys(("--gpu", "--ngl", "--cuda"), "--gpu-layers"),
    **dict.fromkeys(("--lookup", "--prompt-lookup", "--speculative"), "--draft"),
    **dict.fromkeys(("--format", "--schema", "--format-json"), "--json-schema"),
    **dict.fromkeys(("--input", "--input-file", "--prompt-file"), "--file"),
    **dict.fromkeys(("--random-seed", "--rng-seed"), "--seed"),
    **dict.fromkeys(("--cache-type-k", "--cache-type-v", "--kv-bits"), "--kv-type"),
    **dict.fromkeys(("--timings", "--perf"), "--stats"),
    **dict.fromkeys(("--adapter", "--adapter-path"), "--lora"),
}
# Names that delete, replace or do not ask. No hint offers one of them for another word.
_DESTRUCTIVE = {
    "models remove",
    "remove",
    "rm",
    "--force",
    "--yes",
    "-y",
    "/reset",
    "/undo",
    "/load",
}


def nearest_command(typed: str, names: Iterable[str]) -> str | None:
    return nearest(typed, names, _MEANT_COMMANDS)


def nearest_option(typed: str, names: Iterable[str]) -> str | None:
    return nearest(typed.partition("=")[0].replace("_", "-"), names, _MEANT_OPTIONS)


def nearest(typed: str, names: Iterable[str], meant: Mapping[str, str]) -> str | None:
    """Return the name that a word most likely means: by meaning, by its beginning, by its letters.

    Args:
        names: The names that exist. Destructive ones are never returned.
        meant: Other word -> name; used if that name exists.
    """
    safe = [name for name in names if name not in _DESTRUCTIVE]
    typed = typed.lower()
    if meant.get(typed) in safe:
        return meant[typed]
    by_word = {name.rpartition(" ")[2]: name for name in reversed(safe)}
    if typed in by_word:
        return by_word[typed]
    letters = typed.lstrip("-/")
    begun = [name for word, name in by_word.items() if len(letters) > 1 and word.startswith(typed)]
    if begun:
        return min(begun, key=len)
    import difflib

    close = difflib.get_close_matches(typed, by_word, n=1, cutoff=0.7)
    return by_word[close[0]] if close else None
