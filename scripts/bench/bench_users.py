#!/usr/bin/env python3
"""Compare several users at once with llama-server: throughput, time to the first token, time between tokens.

    .venv/bin/python scripts/bench/bench_users.py -m TARGET.gguf [-d DRAFT.gguf] --users 1,2,4,8 [--programs FOLDER]

Each user asks one question about a different part of a real text of about 500 tokens, and reads 128 tokens of the answer (T = 0.8, one seed each).
All begin at the same moment. `one by one` is ours with requests that wait for each other; `together` is ours with a slot for each user;
llama-server has a slot for each user too: with its defaults, without flash attention, and so with the draft model. The end of a text is ignored everywhere, so that
all answer equally long. Leave the machine alone while it runs.
"""

import json
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


def main():
    """Print a table for each number of users."""
    parser = parser_of(__doc__, n_tokens=128)
    parser.set_defaults(ctx=1024)
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--prompt", type=int, default=480, help="tokens of a prompt")
    names = ["one by one", "together", "together plain", "llama-server defaults", "llama-server"]
    parser.add_argument("--only", default=",".join([*names, "llama-server with draft"]))
    args = parser.parse_args()
    only, rows = args.only.split(","), []
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
