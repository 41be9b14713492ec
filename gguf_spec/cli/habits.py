"""Names that users of other programs type, and hints for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Switch of an earlier release -> the option in its place, and the values for on and off.
RENAMED = {"shared_drafts": ("draft_texts", "memory", "off")}
# Parameter -> names of the same option in llama.cpp, mlx-lm, llm and transformers. They work but
# are not in the help. A command that uses a name itself keeps it, such as -c of `verify`.
HIDDEN_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("-hf", "-hfr", "--hf-repo"),
    "draft": (
        "-md", "--model-draft", "--draft-model", "--spec-draft-model", "-hfd", "-hfrd",
        "--hf-repo-draft", "--spec-draft-hf",
    ),
    "ctx": (
        "-c", "--ctx-size", "--n-ctx", "--num-ctx", "--context-length", "--kv-unified-per-slot",
    ),
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
    "keep_alive": ("--sleep-idle-seconds",),
    "verbose": ("--log-verbose",),
    "n_cpu_moe": ("-ncmoe",),
    "cpu_moe": ("-cmoe",),
    "override_tensor": ("-ot",),
    "device": ("-dev",),
    "draft_device": ("-devd", "--device-draft", "--spec-draft-device"),
    "draft_threads": ("-td", "--threads-draft", "--spec-draft-threads"),
    "gpu_layers": ("-ngl", "--n-gpu-layers", "--num-gpu"),
    "draft_gpu_layers": (
        "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl",
    ),
    "flash_attention": ("-fa", "--flash-attn"),
    "k": ("--draft-max", "--draft-n", "--num-draft-tokens", "--spec-draft-n-max"),
    "max_tokens": ("--n-predict", "--predict", "--num-predict", "--max-new-tokens"),
    "temperature": ("--temp",),
    "typical_p": ("--typical",),
    "top_n_sigma": ("--top-nsigma",),
    "repeat_penalty": ("--repetition-penalty",),
    "penalty_last_n": ("--repeat-last-n",),
    "dry_breaker": ("--dry-sequence-breaker",),
    "logit_bias": ("-l",),
    "json_schema": ("-j",),
    "grammar": ("--grammar-file",),
    "stop": ("-r", "--reverse-prompt"),
    "system": ("-sys", "--system-prompt"),
    "overflow": ("--context-overflow",),
}  # fmt: skip
# Options of llama.cpp's programs without effect here: how these work, or how fast. A word in
# capitals at the end is a value, with ? one that may be left out; of values in brackets only these.
NO_EFFECT = (
    "--jinja", "--webui --ui --no-webui --no-ui", "--metrics", "--slots --no-slots", "--props",
    "--slots-endpoint-disable", "--ui-config --webui-config JSON",
    "--ui-config-file --webui-config-file FILE", "--no-ui-mcp-proxy --no-webui-mcp-proxy",
    "--no-agent -no-ag", "--tools-runtime [none]", "--cors-methods METHODS",
    "--cors-headers HEADERS", "--cors-credentials --no-cors-credentials",
    "--models-autoload", "--models-max N", "--embd-normalize [2]",
    "--cont-batching -cb", "--kv-unified -kvu --no-kv-unified -no-kvu", "--warmup --no-warmup",
    "--no-context-shift", "--cache-prompt", "--cache-reuse N", "--cache-ram -cram N",
    "--cache-idle-slots --no-cache-idle-slots", "--slot-prompt-similarity -sps N",
    "--ctx-checkpoints --swa-checkpoints -ctxcp N", "--checkpoint-min-step -cms N",
    "--grp-attn-n -gan [1]", "--grp-attn-w -gaw N", "--dump-kv-cache -dkvc",
    "--embedding --embeddings --rerank --reranking", "--reasoning-format [auto deepseek]",
    "--reasoning-budget [-1]", "--reasoning -rea [auto]", "--reasoning-effort [default]",
    "--reasoning-budget-message TEXT", "--no-skip-chat-parsing", "--chat-template-kwargs [{}]",
    "--prefill-assistant", "--reuse-port", "--tags TEXT", "--no-escape",
    "--log-disable --log-enable", "--log-new --log-append", "--log-file FILE",
    "--log-colors WHEN?", "--log-jsonl --no-log-jsonl", "--log-format KIND",
    "--verbosity --log-verbosity -lv N", "--log-prefix --no-log-prefix", "--verbose-prompt",
    "--log-timestamps --no-log-timestamps", "--threads-batch -tb N", "--threads-http N",
    "--threads-batch-draft --spec-draft-threads-batch -tbd N", "--batch-size -b N",
    "--ubatch-size -ub N", "--swa-full",
    "--cpu-mask -C MASK", "--cpu-range -Cr RANGE", "--cpu-strict N", "--prio N", "--poll N",
    "--cpu-mask-batch -Cb MASK", "--cpu-range-batch -Crb RANGE", "--cpu-strict-batch N",
    "--prio-batch N", "--poll-batch N",
    "--cpu-mask-draft --spec-draft-cpu-mask -Cd MASK",
    "--cpu-range-draft --spec-draft-cpu-range -Crd RANGE",
    "--cpu-strict-draft --spec-draft-cpu-strict N", "--prio-draft --spec-draft-prio N",
    "--poll-draft --spec-draft-poll N",
    "--cpu-mask-batch-draft --spec-draft-cpu-mask-batch -Cbd MASK",
    "--cpu-strict-batch-draft --spec-draft-cpu-strict-batch N",
    "--prio-batch-draft --spec-draft-prio-batch N", "--poll-batch-draft --spec-draft-poll-batch N",
    "--perf --no-perf", "--defrag-thold -dt N",
    "--repack --no-repack -nr", "--kv-offload -kvo", "--op-offload --no-op-offload", "--no-host",
    "--check-tensors", "--mmproj-offload --mmproj-auto --no-mmproj --no-mmproj-auto",
    "--mtmd-batch-max-tokens N", "--video-fps N", "--video-timestamp-interval N",
    "--video-ffmpeg-dir FOLDER", "--fit -fit WHEN",
    "--fit-target -fitt SIZES", "--fit-ctx -fitc N", "--split-mode -sm [layer]",
    "--main-gpu -mg [0]", "--moe-cache-mib [0]", "--n-cpu-ffn -ncffn [0]",
    "--rope-scaling [none]", "--direct-io -dio --no-direct-io -ndio", "--lazy-mode -lzm MODE",
    "--draft-min --draft-n-min --spec-draft-n-min N", "--draft-p-min --spec-draft-p-min N",
    "--draft-p-split --spec-draft-p-split N", "--ctx-size-draft -cd N", "--spec-default",
    "--spec-draft-backend-sampling --no-spec-draft-backend-sampling", "--spec-draft-sampling KIND",
    "--spec-ngram-mod-n-min N", "--spec-ngram-mod-n-max N", "--spec-ngram-mod-n-match N",
    *(
        f"--spec-ngram-{kind}{what} N"
        for kind in ("", "simple-", "map-k-", "map-k4v-")
        for what in ("size-n", "size-m", "min-hits")
    ),
    "--lookup-cache-static -lcs FILE", "--lookup-cache-dynamic -lcd FILE", "--backend-sampling -bs",
    "--samplers [penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]",
    "--sampler-seq --sampling-seq [edskypmxt]", "--penalize-nl --no-penalize-nl",
    "--mirostat [0]", "--mirostat-lr N", "--mirostat-ent N", "--dynatemp-range [0]",
    "--dynatemp-exp N", "--adaptive-target [-1]", "--adaptive-decay N",
)  # fmt: skip
# Command -> further ones, which would change what another command does.
OF_COMMANDS = {
    "serve": ("--escape -e",),
    "generate": ("--no-conversation -no-cnv --single-turn -st", "--keep N"),
    "chat": (
        "--conversation -cnv --interactive -i --interactive-first -if", "--multiline-input -mli",
    ),
}  # fmt: skip
OF_TERMINALS = (
    "--color -co", "--simple-io", "--display-prompt --no-display-prompt",
    "--show-timings --no-show-timings",
)  # fmt: skip
# First name of an option of which some values have no effect -> the way to the others.
INSTEAD = {
    "--chat-template-kwargs": "send chat_template_kwargs with each request.",
    **dict.fromkeys(
        ("--reasoning", "--reasoning-budget", "--reasoning-effort"),
        "send reasoning_effort, think or thinking with each request.",
    ),
    "--embd-normalize": "send embd_normalize with each request to /embedding.",
    "--n-cpu-ffn": "--override-tensor puts tensors on the CPU.",
    "--mirostat": "this sampler is not there.",
    "--samplers": "send samplers with requests to /completion.",
    "--sampler-seq": "send samplers with requests to /completion.",
}  # fmt: skip
# Options of llama.cpp that set others here, or have another meaning for some values.
OTHER_MEANING = (
    "--cors-origins ORIGINS", "--hf-file -hff FILE", "--load-mode -lm MODE", "--lora-scaled FILES",
    "--spec-type KINDS",
)  # fmt: skip
# Those that have no effect without a GPU, whatever their value is.
ONLY_GPU = {
    "--split-mode", "-sm", "--main-gpu", "-mg", "--tensor-split", "-ts", "--no-kv-offload", "-nkvo",
    "--no-mmproj-offload", "--mmproj-device", "-mmdev", "--moe-cache-mib", "--n-cpu-ffn", "-ncffn",
    "--override-tensor-draft", "--spec-draft-override-tensor", "-otd", "--cpu-moe-draft",
    "--spec-draft-cpu-moe", "-cmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe",
    "--spec-draft-ncmoe", "-ncmoed",
}  # fmt: skip
_OF_THE_DRAFT = "--draft-gpu-layers and --draft-device say where the draft model is."
# Options of llama-server that change what `serve` does, and that it does not have -> the way here.
NOT_HERE = {
    "--no-jinja": "the chat template of the model is used.",
    "--context-shift": "an answer ends where the context is full; see --ctx-max.",
    "--no-cache-prompt": "--prefix-memory 0 keeps no earlier texts.",
    "--no-cont-batching -nocb": "--parallel 1 runs one request at a time.",
    "--tensor-split -ts SHARES": "--device and --gpu-layers say where the layers are.",
    "--no-kv-offload -nkvo": "--gpu-layers says how much is on the GPU.",
    "--no-mmproj-offload": "--device none computes on the CPU.",
    "--mmproj-device -mmdev DEVICE": "--device is for both files.",
    "--override-tensor-draft --spec-draft-override-tensor -otd PAIRS": _OF_THE_DRAFT,
    "--cpu-moe-draft --spec-draft-cpu-moe -cmoed": _OF_THE_DRAFT,
    "--n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed N": _OF_THE_DRAFT,
    **dict.fromkeys(
        (
            "--rope-scale N", "--rope-freq-base N", "--rope-freq-scale N", "--yarn-orig-ctx N",
            "--yarn-ext-factor N", "--yarn-attn-factor N", "--yarn-beta-slow N",
            "--yarn-beta-fast N", "--override-kv TEXT", "--image-min-tokens N",
            "--image-max-tokens N",
        ),
        "the values of the model's file are used.",
    ),
    "--control-vector FILE": "use --lora.",
    "--control-vector-scaled TEXT": "use --lora.",
    "--control-vector-layer-range RANGE": "use --lora.",
    "--lora-init-without-apply": "leave --lora out.",
    "--hf-token -hft TOKEN": "set HF_TOKEN in the environment.",
    "--model-url -mu URL": "write -m OWNER/REPO:QUANT, or a file.",
    "--docker-repo -dr NAME": "write -m OWNER/REPO:QUANT, or a file.",
    "--mmproj-url -mmu URL": "write a file: --mmproj FILE.",
    **dict.fromkeys(
        (
            "--embd-gemma-default", "--gpt-oss-20b-default", "--gpt-oss-120b-default",
            "--vision-gemma-4b-default", "--vision-gemma-12b-default",
            *(f"--fim-qwen-{size}b-default" for size in ("1.5", "3", "7", "30")),
            "--fim-qwen-7b-spec", "--fim-qwen-14b-spec",
        ),
        "name the model: -m OWNER/REPO:QUANT.",
    ),
    "--cache-list -cl": "see gguf-spec models list.",
    "--list-devices": "see gguf-spec doctor.",
    "--completion-bash": "see gguf-spec completion.",
    "--version": "see gguf-spec --version.",
    "--usage -h": "see --help.",
    "--ssl-key-file FILE": "put a proxy with TLS in front of the server.",
    "--ssl-cert-file FILE": "put a proxy with TLS in front of the server.",
    "--api-prefix TEXT": "let a proxy add it.",
    "--path FOLDER": "the page is built in.",
    "--slot-save-path FOLDER": "--keep FOLDER keeps prompts on disk.",
    "--media-path FOLDER": "send images as data: URLs.",
    "--log-prompts-dir FOLDER": "the server writes no texts of clients.",
    "--models-dir FOLDER": "name each model with -m, or use --store.",
    "--models-preset FILE": "--models-file has names of models.",
    "--no-models-autoload": "a model is loaded when a request names it.",
    "--special -sp": "special tokens have no text.",
    "--spm-infill": "the order is that of the model's file.",
    "--skip-chat-parsing": "tool calls and reasoning are parts of the answer.",
    "--reasoning-preserve --no-reasoning-preserve": "the chat template decides.",
    "--no-prefill-assistant": "send continue_final_message with each request.",
    "--tools NAMES": "the client runs the tools; --mcp gives the chat page those of tool servers.",
    "--agent -ag": "the client runs the tools.",
    **dict.fromkeys(
        (
            "--ui-mcp-proxy --webui-mcp-proxy", "--mcp-servers-config FILE",
            "--mcp-servers-json JSON",
        ),
        "name tool servers in the config file, [mcp.NAME]; --mcp offers them.",
    ),
    "--spec-synth-len N": "drafts are accepted as the models decide.",
    "--spec-synth-rates RATES": "drafts are accepted as the models decide.",
    **dict.fromkeys(
        (
            "--ignore-eos", "--logit-bias -l TEXT", "--grammar TEXT", "--grammar-file FILE",
            "--json-schema -j JSON", "--json-schema-file -jf FILE", "--reverse-prompt -r TEXT",
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
