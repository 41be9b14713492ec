"""Compare gguf-spec with llama.cpp's programs on prompts of real length: time to the first token, decoding speed, and both together.

llama.cpp's programs run with their default attention, with `-fa on` and with `-fa off`. Every program reads the same token ids: the prompt is the
text of the ids after the chat template, and the number of tokens that a program reports is checked.
"""

import json
import re
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from _peers import DECODED, GREEDY, OURS, _setup, flags, load_ours, our_sampling, post, run, started

from gguf_spec.bench.workloads import LONG_WORKLOADS

ENCODED = re.compile(r"encoded +(\d+) tokens in +([\d.]+) seconds")


class Prompt(NamedTuple):
    """A prompt as token ids, and a file with its text for the programs that read text."""

    ids: list[int]
    path: Path


class Contender(NamedTuple):
    """A program with options; `attention` is the value of its `-fa`, or None for the default."""

    name: str
    program: str
    attention: str | None = None
    options: tuple[str, ...] = ()

    @property
    def label(self):
        return f"{self.name}, -fa {self.attention}" if self.attention else self.name


class Figures(NamedTuple):
    """One run."""

    n_prompt: int
    first_s: float  # time to the first token
    speed: float  # tokens per second after the prompt
    text: str = ""

    def total_s(self, n_tokens):
        return self.first_s + n_tokens / self.speed


@dataclass
class Row:
    """All runs of a contender on a workload; a ratio above 1 means that our adaptive decoding is faster."""

    workload: str
    contender: str
    prompt_per_s: float
    first_s: float
    speed: float
    total_s: float
    first_ratios: list[float]
    speed_ratios: list[float]
    total_ratios: list[float]
    same_text: bool | None
    runs: list[Figures] = field(default_factory=list)

    def __str__(self):
        ratios = "".join(
            f"{statistics.median(r):>7.2f} [{min(r):.2f}..{max(r):.2f}]"
            for r in (self.first_ratios, self.speed_ratios, self.total_ratios)
        )
        text = {True: "  same text", False: "  other text", None: ""}[self.same_text]
        figures = (
            f"{self.prompt_per_s:>9.1f}{self.first_s:>9.2f}{self.speed:>9.2f}{self.total_s:>9.2f}"
        )
        return f"{self.workload:<13}{self.contender:<42}{figures}  {ratios}{text}"


HEADER = f"{'workload':<13}{'contender':<42}{'prompt/s':>9}{'first s':>9}{'tok/s':>9}{'total s':>9}  ours over it: first token, decoding, total"


def peers_of(args):
    """Return the contenders that are tried with each attention, and those that then run with the default and with the best one."""
    lookup = tuple(map(str, flags("draft", n_max=8)))
    threads = str(args.threads)
    model = ("-md", str(args.draft), "-td", threads, "-tbd", threads, "--spec-type", "draft-simple")
    no_draft = tuple(map(str, flags("draft", n_max=0)))
    plain = Contender("llama-lookup, no draft", "llama-lookup", None, no_draft)
    others = [
        Contender("llama-lookup N=8", "llama-lookup", None, lookup),
        Contender("llama-server, plain", "llama-server"),
    ]
    if args.draft:
        for n in args.lengths:
            options = (*model, *flags("draft", n_max=n))
            name = "llama-speculative-simple"
            others.append(Contender(f"{name} N={n}", name, None, options))
            others.append(Contender(f"llama-server, draft N={n}", "llama-server", None, options))
    others.append(Contender("llama-bench", "llama-bench"))
    return plain, [
        one
        for one in others
        if not args.contenders or any(word in one.name for word in args.contenders)
    ]


class Programs:
    """Runs contenders on prompts."""

    def __init__(self, args, folder, llm):
        self.args, self.folder, self.llm = args, folder, llm

    def run(self, contender, prompt):
        """Return the figures of one run, or None if the program fails."""
        try:
            if contender.name in OURS:
                return self.ours(OURS[contender.name], prompt)
            figures = {"llama-server": self.server, "llama-bench": self.llama_bench}.get(
                contender.program, self.program
            )(contender, prompt)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            _setup.say(f"  {contender.label}: {error}")
            return None
        if (
            abs(figures.n_prompt - len(prompt.ids)) > 1
        ):  # a server does not count the token that it decodes last
            raise SystemExit(
                f"{contender.label} read {figures.n_prompt} tokens, not {len(prompt.ids)}: its time cannot be compared."
            )
        return figures

    def ours(self, speculation, prompt):
        self.llm.forget()
        done = self.llm.generate_tokens(
            prompt.ids, our_sampling(self.args.tokens, False, 42), speculation=speculation
        )
        return Figures(len(prompt.ids), done.stats.ttft_s, done.stats.tokens_per_s, done.text)

    def words(self, contender):
        attention = ["-fa", contender.attention] if contender.attention else []
        command = [self.folder / contender.program, "-m", self.args.model]
        return [*command, "-t", self.args.threads, *attention]

    def program(self, contender, prompt):
        args = self.args
        words = [*self.words(contender), "-tb", args.threads, "-c", args.ctx, "-b", args.ctx]
        words += ["-ub", 512, "-fit", "off", "--no-escape", "--ignore-eos", *GREEDY]
        words += ["-f", prompt.path, "-n", args.tokens - 1]
        words += [*([] if args.extra_bufts else ["--no-repack"]), *contender.options]
        for _ in range(5):  # once in a hundred runs they end before their log is written
            done = run(words)
            encoded, decoded = ENCODED.search(done.stderr), DECODED.search(done.stderr)
            if encoded and decoded:
                break
        else:
            raise RuntimeError(
                f"ended with {done.returncode}: {' | '.join(done.stderr.splitlines()[-3:])}"
            )
        n, speed = int(decoded[1]), float(decoded[2])
        if (
            contender.program == "llama-lookup"
        ):  # the first token comes from the pass over the prompt, which its clock leaves out
            speed *= (n - 1) / n
        return Figures(int(encoded[1]), float(encoded[2]), speed, done.stdout[-16 * n :])

    def llama_bench(self, contender, prompt):
        """Time random tokens: the most that the library can do. Sampling and text are left out."""
        args = self.args
        base = [*self.words(contender), "-r", 1, "-ub", 512, "-o", "json"]
        base += ["--repack", int(args.extra_bufts)]
        speeds = []
        for more in (
            ["-p", len(prompt.ids), "-n", 0],
            ["-p", 0, "-n", args.tokens, "-d", len(prompt.ids)],
        ):
            done = run([*base, *more])
            if done.returncode:
                raise RuntimeError(
                    f"ended with {done.returncode}: {' | '.join(done.stderr.splitlines()[-3:])}"
                )
            speeds.append(json.loads(done.stdout)[0]["avg_ts"])
        return Figures(len(prompt.ids), len(prompt.ids) / speeds[0], speeds[1])

    def server(self, contender, prompt):
        args = self.args
        words = [*self.words(contender), "-tb", args.threads, "-c", args.ctx, "-np", 1]
        words += ["-fit", "off", *([] if args.extra_bufts else ["--no-repack"])]
        request = {"prompt": prompt.ids, "n_predict": args.tokens, "temperature": 0, "top_k": 1}
        request |= {"ignore_eos": True, "cache_prompt": False, "stream": False}
        with (
            started([*words, *contender.options]) as address,
            post(f"{address}/completion", request) as reply,
        ):
            done = json.load(reply)
        timings = done["timings"]
        first_s, speed = timings["prompt_ms"] / 1000, timings["predicted_per_second"]
        return Figures(timings["prompt_n"], first_s, speed, done["content"])


def prompt_ids(llm, workload, n_tokens):
    (one,) = workload.conversations(llm, n_tokens)
    if llm.prompt == "text":
        return llm.tokenize(one.turns[0])
    return llm.tokenize(
        [*one.history, {"role": "user", "content": one.turns[0]}], prefill=one.prefill
    )


def write_prompt(llm, ids, path):
    """Write the text of the ids for llama.cpp's programs, which add the first token and drop a line end at the end themselves."""
    vocabulary = llm.engine.target.weights.special_tokens
    begins = ids[:1] == [vocabulary["bos"]] and llm.tokenize("a")[:1] == ids[:1]
    text = b"".join(llm.token_bytes(i) or llm.token_text(i).encode() for i in ids[int(begins) :])
    path.write_bytes(text + (b"\n" if text.endswith(b"\n") else b""))


def long_rows(args, folder):
    """Yield the rows of each workload when its runs are done."""
    known = {one.name: one for one in LONG_WORKLOADS}
    with (
        load_ours(args.model, args.draft, vars(args)) as llm,
        tempfile.TemporaryDirectory() as temporary,
    ):
        programs = Programs(args, folder, llm)
        llm.generate(
            "The ship had sailed for", our_sampling(8, False, 1)
        )  # the models are measured now, if they were not
        for name in args.long:
            prompt = Prompt(
                prompt_ids(llm, known[name], args.tokens), Path(temporary) / f"{name}.txt"
            )
            write_prompt(llm, *prompt)
            yield from compare(args, programs, name, prompt)


def compare(args, programs, workload, prompt):
    """Yield the rows of a workload. All contenders take turns, in the opposite order in every second round."""
    ours, (plain, others) = [Contender(name, "") for name in OURS], peers_of(args)
    plains = [replace_attention(plain, attention) for attention in (None, "on", "off")]
    _setup.say(f"{workload}: {len(prompt.ids):,} tokens")
    runs = {}

    def take(contenders):
        for one in contenders:
            runs.setdefault(one, []).append(programs.run(one, prompt))

    take([*ours, *plains])
    totals = {
        one.attention: runs[one][0].total_s(args.tokens) for one in plains[1:] if runs[one][0]
    }
    # Both where they differ by less than the noise.
    best = [one for one, total_s in totals.items() if total_s <= 1.1 * min(totals.values())]
    others = [replace_attention(one, attention) for one in others for attention in (None, *best)]
    take(others)
    everyone = [*ours, *plains, *others]
    for i in range(1, args.runs):
        take(everyone[::-1] if i % 2 else everyone)
    reference = runs[ours[1]]
    for one in everyone:
        pairs = [
            (mine, theirs) for mine, theirs in zip(reference, runs[one], strict=True) if theirs
        ]
        if pairs:
            yield row_of(args, workload, one, pairs, runs[ours[0]][0].text)


def replace_attention(contender, attention):
    return contender._replace(attention=attention)


def row_of(args, workload, contender, pairs, text):
    """Return the medians of a contender and the ratios of its runs to ours of the same round."""
    theirs = [run for _, run in pairs]

    def median(value):
        return statistics.median(value(one) for one in theirs)

    same = None if contender.program == "llama-bench" else is_same(text, theirs[0].text)
    return Row(
        workload, contender.label, median(lambda one: one.n_prompt / one.first_s), median(lambda one: one.first_s), median(lambda one: one.speed),
        median(lambda one: one.total_s(args.tokens)), [its.first_s / mine.first_s for mine, its in pairs],
        [mine.speed / its.speed for mine, its in pairs], [its.total_s(args.tokens) / mine.total_s(args.tokens) for mine, its in pairs], same, theirs,
    )  # fmt: skip


def is_same(ours, theirs):
    """Return whether a program wrote our plain text; its output may have the prompt before it and a few tokens more."""
    ours = ours.rstrip("\n\ufffd")
    return ours[: len(ours) - 16] in theirs if len(ours) > 32 else ours in theirs


def compare_long(args, folder):
    """Print the table, and write it to `args.json`."""
    rows = []
    print(HEADER, flush=True)
    for row in long_rows(args, folder):
        print(row, flush=True)
        rows.append(row)
    if args.json:
        what = {"arguments": vars(args), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(what, indent=1, default=str), encoding="utf-8")
