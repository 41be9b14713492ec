#!/usr/bin/env python3
"""Compare several users at once with llama-server: throughput, time to the first token, time between tokens.

    .venv/bin/python scripts/bench/bench_users.py -m TARGET.gguf [-d DRAFT.gguf] --users 1,2,4,8 [--programs FOLDER]

Each user asks one question about a different part of a real text of about 500 tokens, and reads 128 tokens of the answer (T = 0.8, one seed each).
All begin at the same moment. `one by one` is ours with requests that wait for each other; `together` is ours with a slot for each user;
llama-server has a slot for each user too: with its defaults, without flash attention, and so with the draft model. The end of a text is ignored everywhere, so that
all answer equally long. Leave the machine alone while it runs.

    .venv/bin/python scripts/bench/bench_users.py -m TARGET.gguf --scene staggered,short,crowd [--parallel auto]

measures ours alone, with requests that come one after the other:
  staggered  eight users who begin two seconds apart and ask twice each, prompts of about 230, 450 and 1,000 tokens, 64 tokens of answer
  short      a request of 4 tokens two seconds after one of 4,000, and each of them alone
  crowd      ten short requests a second for a minute beside a prompt of 16,000
The load of the machine is printed with the figures, and the processor time of this process. To compare with another commit, run the same file
with its folder in PYTHONPATH, in turn.
"""

import hashlib
import json
import os
import sys
import threading
import time

from _peers import build, parser_of, post, started

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.bench.workloads import LONG_WORKLOADS


def prompts_of(llm, n_users, n_tokens):
    """Return a prompt for each user: another part of a real text, and a question."""
    text = next(one for one in LONG_WORKLOADS if one.name == "document-4k")
    words = text.form(10_000).text.split()
    words *= 1 + n_tokens // len(words)  # the text has 3,500 words
    found = []
    for user in range(n_users):
        start = user * 317 % max(1, len(words) - n_tokens)
        part = words[start : start + n_tokens]
        while len(llm.tokenize([{"role": "user", "content": " ".join(part)}])) > n_tokens:
            part = part[: int(len(part) * 0.98)]
        question = f"Question {user}: what is this text about, and why?"
        message = {"role": "user", "content": " ".join(part) + "\n\n" + question}
        found.append(llm.tokenize([message]))
    return found


class Times:
    """When the tokens of one user came, in seconds after the start."""

    def __init__(self):
        self.tokens = []

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


def at_once(users, ask):
    """Let all users ask at the same moment; return the times of each, and the seconds of all."""
    times, failed = [Times() for _ in users], []

    def run(user):
        try:
            for n in ask(users[user], user):
                times[user].tokens += [time.perf_counter() - began] * n
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(user,)) for user in range(len(users))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return times, time.perf_counter() - began


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, round(share * (len(values) - 1)))] if values else 0.0


def summary(times, seconds):
    """Return the figures of one run."""
    first = [one.tokens[0] for one in times]
    n = sum(len(one.tokens) for one in times)
    begin = max(first)  # from here on all users decode
    decoding = sum(sum(at > begin for at in one.tokens) for one in times)
    end = max(one.tokens[-1] for one in times)
    return {
        "tokens_per_s": n / seconds,
        "decoding_per_s": decoding / (end - begin) if end > begin else 0.0,
        "first_p50": quantile(first, 0.5),
        "first_p95": quantile(first, 0.95),
        "between_p95": quantile([gap for one in times for gap in one.gaps], 0.95),
    }


def ours(args, parallel, users, speculation=None):
    """Return the figures of ours, the texts, and tokens per pass."""
    llm = gguf_spec.load(
        args.model, args.draft, n_ctx=args.ctx, parallel=parallel, threads=args.threads
    )
    with llm:
        llm.generate("One two three", Sampling(max_tokens=8, seed=1))
        texts = {}

        def ask(prompt, user):
            sampling = Sampling(temperature=0.8, seed=user, max_tokens=args.tokens, ignore_eos=True)
            with llm.stream(prompt, sampling, speculation=speculation) as stream:
                for chunk in stream:
                    yield len(chunk.tokens)
                texts[user] = stream.result.text

        times, seconds = at_once(users, ask)
        return summary(times, seconds), texts


def server(args, folder, n_users, draft, attention):
    """Run llama-server with a slot for each user."""
    command = [folder / "llama-server", "-m", args.model, "-np", n_users, "-c", n_users * args.ctx]
    command += ["-fa", attention, "-t", args.threads, "--no-webui"]
    if draft:
        command += ["-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", 3]
    return started(command)


def theirs(args, folder, users, draft, attention="off"):
    """Return the figures of llama-server, and the texts."""
    texts = {}

    def ask(prompt, user):
        body = {"prompt": prompt, "n_predict": args.tokens, "temperature": 0.8, "seed": user}
        body |= {"stream": True, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
        texts[user] = ""
        with post(f"{address}/completion", body) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    data = json.loads(line[6:])
                    texts[user] += data.get("content", "")
                    if n := len(data.get("tokens") or ()):
                        yield n

    with server(args, folder, len(users), draft, attention) as address:
        at_once([users[0][:20]], ask)
        times, seconds = at_once(users, ask)
        return summary(times, seconds), texts


# Requests that come one after the other


class Asked:
    """A request of a scene: when it comes, what its answer took, and the digest of its text."""

    def __init__(self, name, at, prompt, n_tokens, after=None):
        self.name, self.at, self.prompt, self.n_tokens, self.after = (
            name,
            at,
            prompt,
            n_tokens,
            after,
        )
        self.came, self.tokens, self.text = 0.0, [], ""
        self.is_done = threading.Event()

    @property
    def first(self):
        return self.tokens[0] - self.came

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


def run_scene(llm, asked):
    """Ask each at its time, or when the one before it is answered; return the seconds of all."""
    failed = []

    def run(one):
        try:
            if one.after:
                one.after.is_done.wait()
            wait = one.at + began - time.perf_counter()
            time.sleep(max(0.0, 0.0 if one.after else wait))
            one.came = time.perf_counter()
            sampling = Sampling(temperature=0, max_tokens=one.n_tokens, ignore_eos=True)
            with llm.stream(one.prompt, sampling) as stream:
                for chunk in stream:
                    one.tokens += [time.perf_counter()] * len(chunk.tokens)
                one.text = stream.result.text
        except Exception as error:
            failed.append(error)
        finally:
            one.is_done.set()

    threads = [threading.Thread(target=run, args=(one,)) for one in asked]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - began


def staggered(llm):
    """Eight users, two seconds apart, two questions each."""
    asked = []
    for user in range(8):
        first, second = (
            prompts_of(llm, 8, n)[user]
            for n in ((230, 450, 1000)[(user + turn) % 3] for turn in (0, 1))
        )
        asked.append(Asked("user", 2.0 * user, first, 64))
        asked.append(Asked("user", 0.0, second, 64, after=asked[-1]))
    return [asked]


def short(llm):
    """A short request after a long one; then each alone, on other texts."""
    text = prompts_of(llm, 1, 4000)[0]
    few = [llm.tokenize(word)[:4] for word in ("one two three four", "five six seven eight")]
    other = [*few[1], *text[4:]]
    return [
        [Asked("long", 0.0, text, 16), Asked("short", 2.0, few[0], 16)],
        [Asked("long alone", 0.0, other[1:], 16)],
        [Asked("short alone", 0.0, few[1][1:], 16)],
    ]


def crowd(llm):
    """Ten short requests a second for a minute beside a long prompt."""
    text = prompts_of(llm, 1, 16_000)[0]
    few = [llm.tokenize(f"{i} is a number,")[:6] for i in range(600)]
    return [
        [
            Asked("long", 0.0, text, 8),
            *(Asked("short", 1.0 + i / 10, one, 2) for i, one in enumerate(few)),
        ]
    ]


SCENES = {"staggered": (staggered, 2048), "short": (short, 8192), "crowd": (crowd, 17_408)}


def show_scenes(args):
    """Print the figures of each scene."""
    rows = []
    for name in args.scene.split(","):
        scene, n_ctx = SCENES[name]
        parallel = args.parallel if args.parallel == "auto" else int(args.parallel)
        options = {"max_gap": args.max_gap} if args.max_gap else {}
        with gguf_spec.load(
            args.model, args.draft, n_ctx=n_ctx, parallel=parallel, threads=args.threads, **options
        ) as llm:
            llm.generate(llm.tokenize("One two three"), Sampling(max_tokens=8, seed=1))
            for asked in scene(llm):
                before, load = time.process_time(), os.getloadavg()[0]
                seconds = run_scene(llm, asked)
                cpu_s = time.process_time() - before
                n = sum(len(one.tokens) for one in asked)
                head = f"{name}, {llm.parallel} slots, load {load:.1f}"
                print(
                    f"{head}: {seconds:.1f} s, {cpu_s:.1f} s of processor time, {n / seconds:.1f} tokens/s"
                )
                for kind in dict.fromkeys(one.name for one in asked):
                    some = [one for one in asked if one.name == kind]
                    first = [one.first for one in some]
                    gaps = [gap for one in some for gap in one.gaps]
                    digest = hashlib.sha256(
                        "\0".join(one.text for one in some).encode()
                    ).hexdigest()
                    found = {
                        "scene": name, "of": kind, "n": len(some), "seconds": seconds, "cpu_s": cpu_s,
                        "first": [quantile(first, share) for share in (0.5, 0.95, 1)],
                        "between": [quantile(gaps, share) for share in (0.5, 0.95, 1)],
                        "texts": digest[:12],
                    }  # fmt: skip
                    rows.append(found)
                    at_first = ", ".join(f"{one:.2f}" for one in found["first"])
                    between = ", ".join(f"{1000 * one:.0f}" for one in found["between"])
                    print(
                        f"  {kind} ({len(some)}): first token {at_first} s (50 %, 95 %, longest); "
                        f"between tokens {between} ms; texts {digest[:12]}",
                        flush=True,
                    )
    return rows


def main():
    """Print a table for each number of users."""
    parser = parser_of(__doc__, n_tokens=128)
    parser.set_defaults(ctx=1024)
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--prompt", type=int, default=480, help="tokens of a prompt")
    names = ["one by one", "together", "together plain", "llama-server defaults", "llama-server"]
    parser.add_argument("--only", default=",".join([*names, "llama-server with draft"]))
    parser.add_argument("--scene", help=f"any of {','.join(SCENES)}: requests that come later")
    parser.add_argument("--parallel", default="auto", help="slots of a scene")
    parser.add_argument("--max-gap", type=float, help="as of serve")
    args = parser.parse_args()
    only, rows = args.only.split(","), []
    if args.scene:
        rows = show_scenes(args)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        return
    folder = build(args) if any("llama-server" in name for name in only) else None
    with gguf_spec.load(args.model, None, n_ctx=args.ctx) as llm:
        all_users = prompts_of(llm, max(map(int, args.users.split(","))), args.prompt)
    print(
        f"{'users':>5}  {'':<26}{'tok/s':>8}{'decoding':>10}{'first p50':>11}{'p95':>8}{'between p95':>13}"
    )
    for n in map(int, args.users.split(",")):
        users, alone = all_users[:n], {}
        runs = {
            "one by one": lambda users=users: ours(args, 1, users),
            "together": lambda users=users, n=n: ours(args, n, users),
            "together plain": lambda users=users, n=n: ours(
                args, n, users, gguf_spec.Speculation(0)
            ),
            "llama-server defaults": lambda users=users: theirs(args, folder, users, None, "auto"),
            "llama-server": lambda users=users: theirs(args, folder, users, None),
            "llama-server with draft": lambda users=users: theirs(args, folder, users, args.draft),
        }
        for name in (name for name in runs if name in only):
            if (name.startswith("together") and n == 1) or (
                name.endswith("draft") and not args.draft
            ):
                continue
            found, texts = runs[name]()
            alone = texts if name == "one by one" else alone
            if name.startswith("together") and alone:
                found["same_texts"] = sum(texts[user] == alone[user] for user in texts)
            rows.append({"users": n, "name": name, **found})
            print(
                f"{n:>5}  {name:<26}{found['tokens_per_s']:>8.1f}{found['decoding_per_s']:>10.1f}{found['first_p50']:>10.1f}s"
                f"{found['first_p95']:>7.1f}s{1000 * found['between_p95']:>10.0f} ms"
                + (
                    f"   {found['same_texts']} of {n} texts the same"
                    if "same_texts" in found
                    else ""
                ),
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
