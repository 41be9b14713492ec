"""Names that users of other programs type, and hints for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Parameter -> names of the same option in llama.cpp, mlx-lm, llm and transformers. They work but
# are not in the help. A command that uses a name itself keeps it, such as -c of `verify`.
HIDDEN_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("-hf", "-hfr", "--hf-repo"),
    "draft": ("-md", "--model-draft", "--draft-model", "--spec-draft-model"),
    "ctx": ("-c", "--ctx-size", "--n-ctx", "--num-ctx", "--context-length"),
    "threads": ("--n-threads",),
    "parallel": ("-np", "--n-parallel", "--num-parallel"),
    "kv_type": ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"),
    "draft_kv_type": (
        "-ctkd", "-ctvd", "--cache-type-k-draft", "--cache-type-v-draft", "--spec-draft-type-k",
        "--spec-draft-type-v",
    ),
    "mmproj": ("-mm",),
    "alias": ("-a",),
    "seed": ("-s",),
    "timeout": ("-to",),
    "ping": ("--sse-ping-interval",),
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
}  # fmt: skip
# Options of llama-server that `serve` takes without effect: how it works here in any case, or how
# fast it is. A word in capitals at the end is a value; values in brackets are the only ones taken.
NO_EFFECT = (
    "--jinja", "--webui --ui --no-webui --no-ui", "--metrics", "--slots --no-slots", "--props",
    "--cont-batching -cb", "--kv-unified -kvu --no-kv-unified -no-kvu", "--warmup --no-warmup",
    "--no-context-shift", "--cache-prompt", "--cache-reuse N", "--cache-ram -cram N",
    "--cache-idle-slots --no-cache-idle-slots", "--slot-prompt-similarity -sps N",
    "--ctx-checkpoints --swa-checkpoints -ctxcp N", "--checkpoint-min-step -cms N",
    "--embedding --embeddings --rerank --reranking", "--reasoning-format [auto deepseek]",
    "--reasoning-budget [-1]", "--reasoning -rea [auto]", "--reasoning-effort [default]",
    "--prefill-assistant", "--reuse-port", "--tags TEXT",
    "--escape -e --no-escape", "--log-disable", "--log-file FILE", "--log-colors WHEN",
    "--verbosity --log-verbosity -lv N", "--log-prefix --no-log-prefix",
    "--log-timestamps --no-log-timestamps", "--threads-batch -tb N", "--threads-http N",
    "--threads-batch-draft -tbd N", "--batch-size -b N", "--ubatch-size -ub N", "--swa-full",
    "--cpu-mask -C MASK", "--cpu-range -Cr RANGE", "--cpu-strict N", "--prio N", "--poll N",
    "--cpu-mask-batch -Cb MASK", "--cpu-range-batch -Crb RANGE", "--cpu-strict-batch N",
    "--prio-batch N", "--poll-batch N", "--perf --no-perf", "--defrag-thold -dt N",
    "--repack --no-repack -nr", "--kv-offload -kvo", "--op-offload --no-op-offload", "--no-host",
    "--check-tensors", "--mmproj-offload --mmproj-auto --no-mmproj", "--fit -fit WHEN",
    "--fit-target -fitt SIZES", "--fit-ctx -fitc N", "--split-mode -sm [layer]",
    "--main-gpu -mg [0]", "--rope-scaling [none]", "--load-mode -lm [auto mmap]",
    "--draft-min --draft-n-min --spec-draft-n-min N", "--draft-p-min --spec-draft-p-min N",
    "--draft-p-split --spec-draft-p-split N", "--ctx-size-draft -cd N",
    "--lookup-cache-static -lcs FILE", "--lookup-cache-dynamic -lcd FILE", "--backend-sampling -bs",
)  # fmt: skip
# Those that have no effect without a GPU, whatever their value is.
ONLY_GPU = {
    "--split-mode", "-sm", "--main-gpu", "-mg", "--tensor-split", "-ts", "--no-kv-offload", "-nkvo",
}  # fmt: skip
# Options of llama-server that change what `serve` does, and that it does not have -> the way here.
NOT_HERE = {
    "--no-jinja": "the chat template of the model is used.",
    "--context-shift": "an answer ends where the context is full; see --ctx-max.",
    "--no-cache-prompt": "--prefix-memory 0 keeps no earlier texts.",
    "--no-cont-batching -nocb": "--parallel 1 runs one request at a time.",
    "--tensor-split -ts SHARES": "--device and --gpu-layers say where the layers are.",
    "--no-kv-offload -nkvo": "--gpu-layers says how much is on the GPU.",
    "--n-cpu-ffn -ncffn N": "--override-tensor puts tensors on the CPU.",
    "--lazy-mode -lzm MODE": "--mmap and --no-mmap say how files are read.",
    **dict.fromkeys(
        (
            "--rope-scale N", "--rope-freq-base N", "--rope-freq-scale N", "--yarn-orig-ctx N",
            "--yarn-ext-factor N", "--yarn-attn-factor N", "--yarn-beta-slow N",
            "--yarn-beta-fast N", "--override-kv TEXT",
        ),
        "the values of the model's file are used.",
    ),
    "--control-vector FILE": "use --lora.",
    "--control-vector-scaled TEXT": "use --lora.",
    "--hf-file -hff FILE": "write -m hf:OWNER/REPO/FILE, or -m OWNER/REPO:QUANT.",
    "--hf-token -hft TOKEN": "set HF_TOKEN in the environment.",
    "--model-url -mu URL": "write -m OWNER/REPO:QUANT, or a file.",
    "--docker-repo -dr NAME": "write -m OWNER/REPO:QUANT, or a file.",
    "--mmproj-url -mmu URL": "write a file: --mmproj FILE.",
    "--api-key-file FILE": "set GGUF_SPEC_API_KEY in the environment.",
    "--ssl-key-file FILE": "put a proxy with TLS in front of the server.",
    "--ssl-cert-file FILE": "put a proxy with TLS in front of the server.",
    "--api-prefix TEXT": "let a proxy add it.",
    "--path FOLDER": "the page is built in.",
    "--slot-save-path FOLDER": "--keep FOLDER keeps prompts on disk.",
    "--media-path FOLDER": "send images as data: URLs.",
    "--models-dir FOLDER": "name each model with -m, or use --store.",
    "--special -sp": "special tokens have no text.",
    "--spm-infill": "the order is that of the model's file.",
    "--samplers --sampler-seq --sampling-seq TEXT": "send samplers with requests to /completion.",
    "--mirostat N": "this sampler is not there.",
    "--chat-template-kwargs JSON": "send chat_template_kwargs with each request.",
    "--tools NAMES": "the client runs the tools; --mcp gives the chat page those of tool servers.",
    "--agent -ag": "the client runs the tools.",
    **dict.fromkeys(
        (
            "--ignore-eos", "--logit-bias -l TEXT", "--grammar TEXT", "--grammar-file FILE",
            "--json-schema -j JSON", "--json-schema-file -jf FILE", "--reverse-prompt -r TEXT",
            "--dry-multiplier N", "--dry-base N", "--dry-allowed-length N",
            "--dry-penalty-last-n N", "--dry-sequence-breaker TEXT",
        ),
        "send it with each request.",
    ),
}  # fmt: skip
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
    "kept rm",
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
