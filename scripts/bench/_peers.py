"""llama.cpp's own programs and llama-cpp-python's prompt lookup: how they are compiled, which settings they have, how one run of them is timed.

Run as a program, it is one of the two that llama.cpp does not have: our generation, or the prompt lookup, once, in a process of its own.
"""

import argparse
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama.options import physical_cores

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "build"))
import _llama_wheel
import _setup

PROGRAMS = ("llama-lookup", "llama-speculative-simple", "llama-bench", "llama-server")
# Nothing that fetches or needs a library which this machine may lack; none of it is part of decoding.
SLIM = [
    f"-DLLAMA_{name}=OFF"
    for name in ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_APP", "BUILD_UI", "USE_PREBUILT_UI")
]
GREEDY = ["--temp", "0", "--top-k", "1", "--samplers", "top_k"]
SAMPLED = [
    "--temp",
    "0.8",
    "--top-k",
    "40",
    "--top-p",
    "0.95",
    "--min-p",
    "0",
    "--samplers",
    "top_k;top_p;temperature",
]
OURS = {"ours, plain": Speculation(k=0), "ours, adaptive": Speculation()}
START_S = 300  # for a server to load a model
DECODED = re.compile(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s")


# The programs


def build(args):
    """Return the folder of llama.cpp's programs, after compiling them where there are none for this machine and these flags."""
    if args.programs:
        return args.programs.resolve()
    want = _llama_wheel.build_settings(_llama_wheel.NATIVE, {})
    _llama_wheel.check_compiler(want)
    want = {
        name: want[name]
        for name in ("the processor", "the compiler", "CMAKE_ARGS", "CC, CXX, CFLAGS or CXXFLAGS")
    }
    want["the sources"] = str(args.sdist.resolve()) if args.sdist else _llama_wheel.llama_version()
    folder = _setup.cache_folder() / "peers" / _llama_wheel.llama_version()
    marker, programs = folder / "built-with.json", folder / "build" / "bin"
    if (
        marker.exists()
        and json.loads(marker.read_text(encoding="utf-8")) == want
        and all((programs / name).exists() for name in PROGRAMS)
    ):
        return programs
    if not shutil.which("cmake"):
        raise _setup.Problem(
            "no cmake to compile llama.cpp's programs with.",
            "pip install '.[bench]' in the clone, or your system's package.",
        )
    begun = folder / "begun-with.json"  # an interrupted build of the same goes on
    if not begun.exists() or json.loads(begun.read_text(encoding="utf-8")) != want:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    with (folder / "build.log").open("wb") as log:
        sources = fetch_sources(args.sdist, folder, log) / "vendor" / "llama.cpp"
        _setup.say(
            f"Compiling llama.cpp's programs, once: about 8 min with 2 cores. The log: {log.name}"
        )
        begun.write_text(json.dumps(want), encoding="utf-8")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        kind = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"]  # as scikit-build's wheel
        configure = ["cmake", *generator, "-S", sources, "-B", folder / "build", *kind]
        configure += [*want["CMAKE_ARGS"], *SLIM]
        jobs = str(os.cpu_count() or 1)
        make = ["cmake", "--build", folder / "build", "--parallel", jobs, "--target", *PROGRAMS]
        if _setup.call(configure, log) or _setup.call(make, log, None, _llama_wheel.Progress()):
            raise _setup.failure("compiling llama.cpp's programs", log)
    marker.write_text(json.dumps(want), encoding="utf-8")
    return programs


def fetch_sources(sdist, folder, log):
    """Return the unpacked source distribution of llama-cpp-python."""
    if (folder / "begun-with.json").exists() and not (sdist and sdist.is_dir()):
        return next((folder / "source").iterdir())  # of a build that was interrupted
    if not sdist:
        version = _llama_wheel.llama_version()
        wanted = ["--no-deps", "--no-binary=llama-cpp-python", f"llama-cpp-python=={version}"]
        _setup.say("Fetching the sources of llama-cpp-python.")
        if _setup.call([sys.executable, "-m", "pip", "download", "--dest", folder, *wanted], log):
            raise _setup.failure("pip download llama-cpp-python", log)
        sdist = next(folder.glob("llama_cpp_python-*.tar.gz"))
    if sdist.is_dir():
        return sdist.resolve()
    shutil.unpack_archive(sdist, folder / "source")
    return next((folder / "source").iterdir())


class Setting(NamedTuple):
    """A program with options, and what the table calls them."""

    name: str
    program: str
    options: tuple[str, ...] = ()


def flags(prefix, **values):
    return tuple(
        word
        for name, value in values.items()
        for word in (f"--spec-{prefix}-{name.replace('_', '-')}", str(value))
    )


def draft_settings(draft, threads, coarse=False):
    """Return the settings of a draft model: alone, and behind an n-gram drafter, which then goes first."""
    lengths, least = (
        ((1, 2, 3, 4, 6, 8), (0, 0.5))
        if coarse
        else ((1, 2, 3, 4, 5, 6, 7, 8, 11, 15), (0, 0.3, 0.5, 0.75))
    )
    model = ("-md", str(draft), "-td", str(threads), "-tbd", str(threads))
    settings = []
    for n, p in product(lengths, least):
        options = (*model, "--spec-type", "draft-simple", *flags("draft", n_max=n, p_min=p))
        settings.append(Setting(f"N={n} P={p}", "llama-speculative-simple", options))
    ngrams = {
        "ngram-simple": {"size_n": 3, "size_m": 16},
        "ngram-map-k": {"size_n": 3, "size_m": 8},
        "ngram-mod": {"n_match": 4, "n_min": 0, "n_max": 16},
    }
    for (kind, values), n, p in product(
        ngrams.items(), (3,) if coarse else (3, 5), (0.5,) if coarse else (0, 0.5)
    ):
        options = (
            *model,
            "--spec-type",
            f"{kind},draft-simple",
            *flags(kind, **values),
            *flags("draft", n_max=n, p_min=p),
        )
        settings.append(Setting(f"{kind}, then N={n} P={p}", "llama-speculative-simple", options))
    return settings


def ngram_settings(coarse=False):
    """Return the settings of `--spec-type ngram-*`, from far shorter keys and drafts than the defaults (12 to 24, 48 to 64) up to those."""
    sweep = [("ngram-cache", {})]  # its draft of 8 is fixed
    sweep += [
        ("ngram-simple", {"size_n": n, "size_m": m})
        for n, m in product((1, 2, 3, 4, 6, 12), (4, 8, 16, 48))
        if m >= n
    ]  # else it never drafts
    sweep += [
        ("ngram-map-k", {"size_n": n, "size_m": m})
        for n, m in product((1, 2, 3, 6, 12), (4, 8, 16, 48))
    ]
    sweep += [
        ("ngram-map-k4v", {"size_n": n, "size_m": m, "min_hits": h})
        for n, m, h in product((2, 3, 6, 12), (4, 8, 48), (1, 2))
    ]
    lengths = ((0, 4), (0, 8), (0, 16), (0, 64), (48, 64))
    sweep += [
        ("ngram-mod", {"n_match": n, "n_min": least, "n_max": m})
        for n, (least, m) in product((2, 4, 8, 24), lengths)
    ]
    settings = []
    for kind, values in sweep[::4] if coarse else sweep:
        name = " ".join(
            [kind, *(f"{key.replace('_', '-')}={value}" for key, value in values.items())]
        )
        settings.append(
            Setting(name, "llama-speculative-simple", ("--spec-type", kind, *flags(kind, **values)))
        )
    return settings


class Run(NamedTuple):
    speed: float = 0.0
    n_tokens: int = 0
    text: str = ""


def run(command):
    words = [str(word) for word in command]
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=3600,
        check=False,
    )


class Peers:
    """Runs the programs."""

    def __init__(self, args, programs):
        self.args, self.programs = args, programs

    def command(self, setting, prompt, n_tokens, sampled=False, seed=42):
        args = self.args
        common = [self.programs / setting.program, "-m", args.model, "-t", args.threads, "-ub", 512]
        common += ["-fa", "auto"]
        if setting.program == "llama-bench":
            words = ["-p", 0, "-n", n_tokens, "-r", 1, "-o", "json"]
            return [*common, *words, "--repack", int(args.extra_bufts)]
        if setting.program in ("python", "ours"):
            words = {name: getattr(args, name) for name in ("model", "draft", "threads", "ctx")}
            words |= {"kind": setting.program, "extra_bufts": args.extra_bufts}
            words |= {"prompt": prompt.read_text(encoding="utf-8"), "n_tokens": n_tokens}
            words |= {"n_draft": [int(n) for n in setting.options]}
            return [sys.executable, Path(__file__).resolve(), json.dumps(words, default=str)]
        common += ["-tb", args.threads, "-c", args.ctx, "-b", 2048, "-fit", "off", "--no-escape"]
        common += ["--ignore-eos", "-s", seed, *(SAMPLED if sampled else GREEDY)]
        common += [] if args.extra_bufts else ["--no-repack"]
        # they stop when they have more than -n tokens
        return [*common, "-f", prompt, "-n", n_tokens - 1, *setting.options]

    def run(self, setting, prompt, n_tokens, sampled=False, seed=42):
        """Return what the program did; a speed of 0 where it does not live through it."""
        for _ in range(5):  # once in a hundred runs they end before their log is written
            done = run(self.command(setting, prompt, n_tokens, sampled, seed))
            decoded = DECODED.search(done.stderr)
            if decoded or done.returncode or setting.program == "llama-bench":
                break
        if done.returncode == 0 and setting.program == "llama-bench":
            return Run(json.loads(done.stdout)[0]["avg_ts"], n_tokens)
        if done.returncode or not decoded:
            _setup.say(
                f"  {setting.program} {setting.name}: ended with {done.returncode}: {' | '.join(done.stderr.splitlines()[-3:])}"
            )
            return Run()
        n, speed = int(decoded[1]), float(decoded[2])
        if n < n_tokens:
            raise SystemExit(
                f"{setting.program} {setting.name} wrote {n} tokens in place of {n_tokens}: its speed cannot be compared."
            )
        if (
            setting.program == "llama-lookup"
        ):  # the first of them comes from the pass over the prompt, which its clock leaves out
            speed *= (n - 1) / n
        return Run(speed, n, done.stdout.partition(prompt.read_text(encoding="utf-8"))[2])

    def best(self, settings, prompts, sampled):
        """Return the fastest setting, and the speed of each in the short run."""
        if len(settings) == 1:
            return settings[0], {}
        speeds = {
            s: self.run(s, prompts[0], max(32, self.args.tokens // 2), sampled).speed
            for s in settings
        }
        finalists = sorted(settings, key=speeds.get, reverse=True)[:3]
        final = {
            s: statistics.harmonic_mean(
                [self.run(s, prompt, self.args.tokens, sampled).speed for prompt in prompts]
            )
            for s in finalists
        }
        return max(final, key=final.get), {s.name: round(speed, 2) for s, speed in speeds.items()}

    def peak_mib(self, setting, prompt):
        """Return the most memory the program held at a time. A small Python starts it: a child's count begins with what its parent holds."""
        code = "import os, sys; n = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:]); _, code, used = os.wait4(n, 0)\n"
        code += "print(used.ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10), file=sys.stderr); sys.exit(code != 0)"
        done = run([sys.executable, "-c", code, *self.command(setting, prompt, 64)])
        if done.returncode:
            raise SystemExit(f"{setting.program} failed: {done.stderr[-500:]}")
        return float(done.stderr.splitlines()[-1])


# Programs of our own, each in a process of its own


def child(words):
    """Run our generation or llama-cpp-python's prompt lookup once, and report as llama.cpp's programs do."""
    if words["kind"] == "ours":
        with load_ours(words["model"], words["draft"], words) as llm:
            llm.generate(words["prompt"], our_sampling(words["n_tokens"], False, 42))
        return
    text, speed = prompt_lookup(**words)
    print(text)
    print(
        f"decoded {words['n_tokens']} tokens in {words['n_tokens'] / speed:.3f} seconds, speed: {speed:.3f} t/s",
        file=sys.stderr,
    )


def prompt_lookup(model, prompt, n_tokens, threads, ctx, extra_bufts, n_draft, **_):
    from llama_cpp import _internals, llama_cpp
    from llama_cpp.llama import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = extra_bufts
    llama_cpp.llama_model_default_params = lambda: params  # Llama() has no argument for it
    drafter = LlamaPromptLookupDecoding(num_pred_tokens=n_draft[0])
    sizes = {"n_ctx": ctx, "n_batch": ctx, "n_ubatch": 512}  # more than n_batch tokens raise
    sizes |= {"n_threads": threads, "n_threads_batch": threads}
    llama = Llama(model, **sizes, flash_attn=True, draft_model=drafter, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    ends = {
        token: -math.inf
        for token in range(llama.n_vocab())
        if llama_cpp.llama_vocab_is_eog(vocab, token)
    }

    class Sampler(
        _internals.LlamaSampler
    ):  # its own way to forbid a token asks Python about every row
        def __init__(self):
            super().__init__()
            self.add_logit_bias(llama.n_vocab(), ends)

    _internals.LlamaSampler = Sampler
    tokens = llama.tokenize(prompt.encode(), special=True)
    generation = llama.generate(tokens, temp=0.0)
    new = [next(generation)]  # the prompt is read for it
    start = time.perf_counter()
    new += islice(generation, n_tokens - 1)
    return prompt + llama.detokenize(new, prev_tokens=tokens).decode(errors="replace"), (
        n_tokens - 1
    ) / (time.perf_counter() - start)


def load_ours(model, draft, options):
    names = {"n_ctx": "ctx", "threads": "threads", "extra_bufts": "extra_bufts"}
    return gguf_spec.load(model, draft, **{name: options[key] for name, key in names.items()})


def our_sampling(n_tokens, sampled, seed):
    options = {"temperature": 0.8 if sampled else 0.0, "top_k": 40, "top_p": 0.95}
    return Sampling(**options, seed=seed, max_tokens=n_tokens, ignore_eos=True)


def parser_of(doc, *, n_tokens):
    """Return a parser with the options that all comparisons with llama.cpp's programs have."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    add, cores = parser.add_argument, physical_cores()
    add("-m", "--model", required=True, type=Path, help="target, a GGUF file")
    add("-d", "--draft", type=Path, help="its draft model; without one some rows are left out")
    add("--tokens", type=int, default=n_tokens, help=f"tokens of a run ({n_tokens})")
    add("--threads", type=int, default=cores, help="the physical cores, unless given")
    add("--ctx", type=int, default=2048, help="tokens of a context (2048)")
    add("--json", type=Path, help="write all figures into this file")
    add("--sdist", type=Path, help="sources of llama-cpp-python, folder or .tar.gz")
    add("--programs", type=Path, help="folder of programs that are already compiled")
    return parser


# llama-server


@contextmanager
def started(words):
    """Lend the address of a server that runs a command; it ends with the block."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [str(word) for word in [*words, "--host", "127.0.0.1", "--port", port]]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as child,
    ):
        try:
            until = time.monotonic() + START_S
            while not is_ready(f"http://127.0.0.1:{port}/health"):
                if child.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = log.read().decode(errors="replace").splitlines()[-3:]
                    raise RuntimeError(f"the server does not start: {' | '.join(last)}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.kill()


def is_ready(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def post(address, request):
    """Return the open answer to a JSON body."""
    headers = {"Content-Type": "application/json"}
    body = urllib.request.Request(address, json.dumps(request).encode(), headers)
    return urllib.request.urlopen(body, timeout=3600)


if __name__ == "__main__":
    child(json.loads(sys.argv[1]))
