"""Compare gguf-spec with the llama.cpp wheels of other projects, each installed from a package index into a virtual environment of its own.

    .venv/bin/python scripts/bench/bench_wheels.py -m MODEL.gguf --peer KIND[:SETTING]@PYTHON ... [--workloads ...] [--rounds 3] [--json FILE]

KIND is `xllamacpp` (llama-server's engine in the process), `ik` (ik-llama-cpp-python) or `sync` (llama-cpp-py-sync); PYTHON is the interpreter of the
environment, or a command such as `chroot FOLDER /v/bin/python`, with this file and the model at their paths. `ours` and `ours:plain` are there without
being named; `ours:avx2@env GGUF_SPEC_KERNELS=avx2 .venv/bin/python` is another of ours. DRAFT in the environment is a draft model for ours; else drafts
come from the text. SETTING of xllamacpp: the name of its drafter and its numbers, `ngram_mod,n_match=8,n_max=16`, or `flash=disabled`, `threads=2`.
Each contender is a process that holds the model; all of them answer each prompt in turn, round by round. Greedy, the same token ids of the prompt for
all (sync: the same text). A ratio above 1 means that our default is faster. Leave the machine alone while it runs.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("xllamacpp", "ik", "sync")
N_CTX = 4096


def xllamacpp(model, setting):
    """Return a function of a prompt and a number of tokens: seconds to the first token, tokens a second behind it, text."""
    import xllamacpp as peer

    params = peer.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = model, N_CTX, 1, True
    params.cache_ram_mib, params.verbosity = 0, -1
    for part in filter(None, setting.split(",")):
        name, _, value = part.partition("=")
        if name == "flash":
            kinds = peer.llama_flash_attn_type
            params.flash_attn_type = getattr(kinds, f"LLAMA_FLASH_ATTN_TYPE_{value.upper()}")
        elif name == "threads":
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(value)
        elif not value:
            drafter = getattr(
                peer.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name.upper()}"
            )
            params.speculative.types = [drafter]
            numbers = getattr(params.speculative, name, params.speculative.draft)
        else:
            setattr(numbers, name, int(value))
    server = peer.Server(params)

    def answer(prompt, n_tokens):
        body = {"prompt": prompt["ids"], "n_predict": n_tokens, "temperature": 0.0, "top_k": 1}
        got = server.handle_completions(body | {"cache_prompt": False})
        times = got["timings"]
        speed = times["predicted_n"] / times["predicted_ms"] * 1000
        return times["prompt_ms"] / 1000, speed, got["choices"][0]["text"]

    return answer


def ik(model, setting):
    import numpy
    from ik_llama_cpp import IkLlama
    from ik_llama_cpp import _ctypes_api as ctypes_api

    options = dict(part.split("=") for part in setting.split(",") if part)
    llm = IkLlama(
        model,
        n_ctx=N_CTX,
        verbose=False,
        n_threads=int(options.get("threads", 0)),
        flash_attn=options.get("flash", "on") == "on",
    )

    times = []

    def sample(row, **_):
        """Return the likeliest token; the wheel's own function makes an object for each of 150,000 tokens."""
        times.append(time.perf_counter())
        logits = ctypes_api.llama_get_logits_ith(llm._context._ctx, row)
        return int(numpy.ctypeslib.as_array(logits, (llm._model.n_vocab,)).argmax())

    llm._context.sample = sample

    def answer(prompt, n_tokens):
        times.clear()
        started = time.perf_counter()
        got = llm.generate(prompt["ids"], max_tokens=n_tokens)
        speed = (len(times) - 1) / (times[-1] - times[0])
        return times[0] - started, speed, llm.detokenize(got)

    return answer


def sync(model, setting):
    from llama_cpp_py_sync import Llama

    options = dict(part.split("=") for part in setting.split(",") if part)
    llm = Llama(model, n_ctx=N_CTX, n_threads=int(options.get("threads", 0)) or None)

    def answer(prompt, n_tokens):
        started, times, pieces = time.perf_counter(), [], []
        greedy = {"temperature": 0.0, "top_k": 1, "repeat_penalty": 1.0}
        for piece in llm.generate(prompt["text"], max_tokens=n_tokens, stream=True, **greedy):
            times.append(time.perf_counter())
            pieces.append(piece)
        speed = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        return times[0] - started, speed, "".join(pieces)

    return answer


def ours(model, setting):
    import gguf_spec

    llm = gguf_spec.load(model, n_ctx=N_CTX, draft=os.environ.get("DRAFT", "ngram"))
    k = 0 if "plain" in setting.split(",") else None

    def answer(prompt, n_tokens):
        speculation = gguf_spec.Speculation() if k is None else gguf_spec.Speculation(k=k)
        started, first, pieces, n = time.perf_counter(), None, [], 0
        stream = llm.stream(
            prompt["ids"],
            gguf_spec.Sampling(temperature=0.0),
            speculation=speculation,
            max_tokens=n_tokens,
        )
        for chunk in stream:
            if first is None:
                first, n = time.perf_counter(), -len(chunk.tokens)
            pieces.append(chunk.text)
            n += len(chunk.tokens)
        llm.forget()
        return first - started, n / (time.perf_counter() - first), "".join(pieces)

    return answer


def serve(kind, model, setting):
    """Answer the lines of stdin."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the libraries print, too
    answer = globals()[kind](model, setting)
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        first_s, speed, text = answer(*json.loads(line))
        print(json.dumps([first_s, speed, text]), file=out, flush=True)


class Contender:
    def __init__(self, label, command, model):
        kind, _, setting = label.partition(":")
        self.label = label
        self.child = subprocess.Popen(
            [*command, Path(__file__).resolve(), "--as", kind, "-m", model, "--setting", setting],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._line()

    def _line(self):
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} ended with {self.child.wait()}")
        return json.loads(line)

    def answer(self, prompt, n_tokens):
        print(json.dumps([prompt, n_tokens]), file=self.child.stdin, flush=True)
        return self._line()


def prompts(model, names):
    """Return name -> ids and text."""
    import gguf_spec
    from gguf_spec.bench.workloads import LONG_WORKLOADS

    found = {}
    with gguf_spec.load(model, n_ctx=N_CTX, draft="none") as llm:
        for one in LONG_WORKLOADS:
            if one.name in names:
                ((question,), history, prefill) = one.conversations(llm, 128)[0]
                ids = llm.tokenize(
                    [*history, {"role": "user", "content": question}], prefill=prefill
                )
                found[one.name] = {
                    "ids": ids,
                    "text": b"".join(map(llm.vocabulary.piece, ids)).decode(),
                }
        if "short" in names:
            ids = llm.tokenize(
                [{"role": "user", "content": "Explain how rainbows form, in plain words."}]
            )
            found["short"] = {"ids": ids, "text": b"".join(map(llm.vocabulary.piece, ids)).decode()}
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--peer", action="append", default=[], metavar="KIND[:SETTING]@PYTHON")
    parser.add_argument("--workloads", default="short,document-1k,json-1k,code-1k,rewrite-1k")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--as", dest="kind", choices=(*KINDS, "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--setting", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        serve(args.kind, args.model, args.setting)
        return
    work = prompts(args.model, args.workloads.split(","))
    peers = [one.rpartition("@")[::2] for one in args.peer]
    contenders = [
        Contender("ours", [sys.executable], args.model),
        Contender("ours:plain", [sys.executable], args.model),
        *(Contender(label, shlex.split(command), args.model) for label, command in peers),
    ]
    rows = []
    for name, prompt in work.items():
        runs = {one.label: [] for one in contenders}
        for _ in range(args.rounds):
            for one in contenders:
                runs[one.label].append(one.answer(prompt, args.tokens))
        base = statistics.median(speed for _, speed, _ in runs["ours"])
        base_first = statistics.median(first for first, _, _ in runs["ours"])
        for label, got in runs.items():
            first = statistics.median(one[0] for one in got)
            speed = statistics.median(one[1] for one in got)
            same = got[0][2] == runs["ours"][0][2]
            rows.append([name, label, len(prompt["ids"]), first, speed, same])
            print(
                f"{name:14} {label:44} first {first:6.2f} s ({first / base_first:4.2f})"
                f"  {speed:6.1f} tok/s ({base / speed:4.2f})  {'same text' if same else ''}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
