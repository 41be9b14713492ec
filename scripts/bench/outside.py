"""Measure the processor time of a token outside of llama.cpp's passes, on tiny models with vocabularies of real size.

    .venv/bin/python scripts/bench/outside.py [--vocab 4096 49152 152064] [--users 1 4 8 16] [--ways NAME ...] [--repeats 5] [--json FILE]
    .venv/bin/python scripts/bench/outside.py --profile "T 0.8" [--users 8] [--vocab 49152]

The models have one layer and random weights. llama.cpp uses one thread, so a pass is computed in the thread that asks for it: what the process
computes, less what that thread computes inside of `llama_decode`, is the time outside. It is processor time, so other programs hardly matter;
the table has medians of several runs, in microseconds a token. Hardware counters of instructions are read where the system has them (`perf stat`
shows whether it does); virtual machines often have none.

Ways: the chains below, each read as a stream in Python; `text drafts` is a greedy text of one token,
with drafts of 16 that are right;
`server` is the stream of a chat completion over HTTP, T = 0.8 and without drafts, whose client is another process.
"""

import argparse
import cProfile
import ctypes
import json
import os
import platform
import pstats
import statistics
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama.bindings import C
from gguf_spec.runtime.request_queue import ParallelQueue
from gguf_spec.runtime.stream import Stream
from gguf_spec.system.files import cache_folder

SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
)
CHAINS = {
    "greedy": {"temperature": 0.0},
    "T 0.8": {},
    "T 0.8, no filter": {"top_k": 0, "top_p": 1.0},
    "T 0.8, top-p alone": {"top_k": 0},
    "penalties": {"repeat_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "logprobs 20": {"logprobs": 20},
    "schema": {"json_schema": SCHEMA},
}
CHAINS["penalties, DRY, XTC"] = CHAINS["penalties"] | {
    "dry_multiplier": 0.8,
    "xtc_probability": 0.5,
}
WAYS = [*CHAINS, "text drafts", "server"]
N_EMBD = 64


def letters():
    """The letter that GPT-2's tokenizer writes for each byte."""
    shown, others = (
        {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)},
        iter(range(0x100, 0x200)),
    )
    return [chr(b if b in shown else next(others)) for b in range(256)]


def write(path, n_vocab):
    """Write a llama of one layer with random weights, whose tokens are bytes and numbered words."""
    rng, part = np.random.default_rng(n_vocab), path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_EMBD)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokens = [*letters(), *(f"Ġw{i}" for i in range(n_vocab - 257)), "<end>"]
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (n_vocab - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["w 1"])
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    shapes |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), (64, 64))
    names = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    names |= dict.fromkeys(("token_embd.weight", "output.weight"), (n_vocab, N_EMBD))
    for name, shape in names.items():
        # logits spread by about 2.5, as those of language models
        scale = 2.5 / 8 if name == "output.weight" else 0.3
        values = (scale * rng.standard_normal(shape)).astype(np.float32)
        if name == "output.weight":
            values[-1] = 0  # the end is no likely token
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(N_EMBD, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


class Meter:
    """Processor time and instructions of this process, and of the passes in it."""

    def __init__(self):
        self.inside_s, self.inside_n, self.n_passes = 0.0, 0, 0
        self._counter = instructions()
        decode, counter, now = C.llama_decode, self._counter, time.thread_time

        def counted(*arguments):
            n = counter()
            result = timed(*arguments)
            self.inside_n += counter() - n
            return result

        def timed(*arguments):
            started = now()
            result = decode(*arguments)
            self.inside_s += now() - started
            self.n_passes += 1
            return result

        # It is part of what it measures, so it does as little as it can. On a processor a pass is
        # over when `llama_decode` returns.
        C.llama_decode = counted if counter() else timed

    def now(self):
        """Seconds, instructions, and passes outside of which they are."""
        return time.process_time() - self.inside_s, self._counter() - self.inside_n, self.n_passes


def instructions():
    """Return a function that counts the instructions of this process; of nothing where there is no counter."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return lambda: 0
    # type hardware, event instructions, of threads that begin later too, without the kernel
    attributes = struct.pack("=IIQQQQQ", 0, 64, 1, 0, 0, 0, 1 << 1 | 1 << 5 | 1 << 6).ljust(
        64, b"\0"
    )
    opened = ctypes.CDLL(None).syscall(298, attributes, 0, -1, -1, 0)
    return (lambda: int.from_bytes(os.read(opened, 8), "little")) if opened >= 0 else lambda: 0


def run_streams(llm, options, n_users, n_tokens, speculation=None, prompt=None):
    """Read `n_users` streams at once, each in a thread; return the number of their tokens."""
    counts = []

    def read(i):
        sampling = Sampling(
            seed=i, max_tokens=n_tokens, ignore_eos="json_schema" not in options, **options
        )
        tokens = prompt or [300 + (7919 * j + i) % 3000 for j in range(32)]
        with llm.stream_tokens(tokens, sampling, speculation=speculation) as stream:
            counts.append(sum(len(chunk.tokens) for chunk in stream))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(n_users)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sum(counts)


CLIENT = """
import json, sys, threading, urllib.request
url, users, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def read(i):
    body = {"messages": [{"role": "user", "content": "w1 w2 w3 %d" % i}], "max_tokens": n, "stream": True, "seed": i, "ignore_eos": True, "speculation": "off"}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        for line in answer: pass
threads = [threading.Thread(target=read, args=(i,)) for i in range(users)]
[one.start() for one in threads]
[one.join() for one in threads]
"""


@contextmanager
def serving(llm, n_users, n_tokens):
    """Serve a model; yield a function in which another process reads streams, with their number of tokens."""
    from gguf_spec.server import serve_in_thread

    with serve_in_thread(llm, port=0) as server:
        command = [sys.executable, "-c", CLIENT, server.url, str(n_users), str(n_tokens)]

        def ask():
            subprocess.run(command, check=True)
            return n_users * n_tokens

        yield ask


def measured(meter, run, n_repeats):
    """Return the medians of microseconds and instructions a token, and of tokens a pass."""
    run()
    found = []
    for _ in range(n_repeats):
        before = meter.now()
        n = run()
        seconds, count, passes = (b - a for a, b in zip(before, meter.now(), strict=True))
        found.append((1e6 * seconds / n, count / n, n / passes))
    return [statistics.median(one) for one in zip(*found, strict=True)]


def runner(llm, way, n_users, n_tokens):
    """Return a function that runs one way once, and returns the number of its tokens."""
    if way == "text drafts":
        always_one = {"temperature": 0.0, "logit_bias": {300: 1e4}}
        drafts = Speculation(16, adaptive=False)
        return lambda: run_streams(llm, always_one, n_users, n_tokens, drafts, [300] * 64)
    return lambda: run_streams(llm, CHAINS[way], n_users, n_tokens, Speculation(0))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=cache_folder() / "outside")
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 49152, 152064])
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="NAME")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--profile", metavar="NAME", help="print cProfile's functions of one way instead"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    meter, found = Meter(), {}
    for n_vocab in args.vocab:
        path = args.folder / f"{n_vocab}-Q8_0.gguf"
        if not path.exists():
            write(path, n_vocab)
        for n_users in args.users:
            with gguf_spec.load(
                path,
                "ngram",
                n_ctx=1024,
                threads=1,
                parallel=n_users,
                kernels=args.kernels,
                prefix_memory=0,
            ) as llm:
                if args.profile:
                    profile(runner(llm, args.profile, n_users, args.tokens))
                    continue
                for way in args.ways:
                    if way != "server":
                        found[n_vocab, n_users, way] = measured(
                            meter, runner(llm, way, n_users, args.tokens), args.repeats
                        )
                if "server" in args.ways:
                    with serving(llm, n_users, args.tokens) as ask:
                        found[n_vocab, n_users, "server"] = measured(meter, ask, args.repeats)
                for way in args.ways:
                    us, count, width = found[n_vocab, n_users, way]
                    print(
                        f"{n_vocab:7} {n_users:3} {way:22} {us:8.0f} us {count:10.0f} instructions {width:6.2f} tokens a pass",
                        flush=True,
                    )
    if found and not any(count for _, count, _ in found.values()):
        print("There is no counter of instructions here.")
    if args.json:
        args.json.write_text(json.dumps([[*key, *value] for key, value in found.items()]))


def profile(run):
    """Print the functions of the thread that computes, by the time in themselves."""
    run()
    profiles, of_one, of_several = (
        cProfile.Profile(time.thread_time),
        Stream.__next__,
        ParallelQueue.work,
    )
    Stream.__next__ = lambda self: profiles.runcall(of_one, self)
    if threading.active_count() > 1:
        Stream.__next__ = of_one
        ParallelQueue.work = lambda self, first: profiles.runcall(of_several, self, first)
    run()
    Stream.__next__, ParallelQueue.work = of_one, of_several
    time.sleep(0.5)  # the thread that computes ends its work
    pstats.Stats(profiles).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
