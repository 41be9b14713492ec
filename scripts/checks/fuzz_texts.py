#!/usr/bin/env python3
"""Compare texts of requests with random options with those that each request gives alone, plainly and with empty caches.

.venv/bin/python scripts/checks/fuzz_texts.py [--seconds 170] [--families tales,llama] [--kernels stock] [--first 0]
.venv/bin/python scripts/checks/fuzz_texts.py --families tales --first 17 --cases 1

A case has a few requests: filters, penalties, grammars, stop strings, log-probabilities, reasoning budgets, context shifts. Each is run with
several draft settings, with caches of other texts, behind a restored session and taken up in the middle, then all of them at once. Text,
tokens, bits of log-probabilities and reason to end must be the same each time. Families: the bundled pair (`tales`), its target with K-quants
(`tales+Q4_K_M`), the small models of the tests, some with a prediction head (`qwen35+head`). A case of one number is the same in each run;
repeat it with the cases before it where it does not differ alone. Ends with 1 where a text differs.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import GgufSpecError
from gguf_spec.quantize import quantize
from gguf_spec.verify import bundled_prompts
from tests.support import families, tiny
from tests.support.batch_requests import ENDS, GRAMMAR, SCHEMA, STARTS

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
FAMILIES = ["tales", "tales+Q4_K_M", "tales+Q6_K", *families.NAMES]
FAMILIES += ["qwen35+head", "step35+head", "tiny+llama", "tiny+mixture"]
# slots of the models that run requests at once; more requests than that wait
N_SLOTS = 4
# opens the reasoning itself; the tags are ordinary tokens of these vocabularies
THINKS = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"
# each is in a request with the probability 0.15
FILTERS = (
    {"top_p": 0.7}, {"min_p": 0.1}, {"typical_p": 0.7}, {"top_n_sigma": 1.2}, {"xtc_probability": 0.5, "xtc_threshold": 0.08},
    {"repeat_penalty": 1.3}, {"frequency_penalty": 0.4, "presence_penalty": 0.3}, {"penalty_last_n": -1, "repeat_penalty": 1.1},
    {"penalty_last_n": 5, "presence_penalty": 1.0}, {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"dry_multiplier": 0.5, "dry_penalty_last_n": 20}, {"logit_bias": dict.fromkeys(range(40, 60), -3.0)}, {"logprobs": None},
    {"logprobs": 3}, {"ignore_eos": True}, {"stop_tokens": (70, 300)},
)  # fmt: skip


class Family:
    """Models of one family: for a request at a time, and for several at once."""

    def __init__(self, name, folder, threads):
        self.kind, _, self.form = name.partition("+")
        # that of an error which was seen once; others are short, for many shifts
        self.n_ctx = 384 if self.form == "Q4_K_M" else random.Random(name).choice((96, 160, 192))
        self.has_head = self.form == "head"
        target, draft = self._files(folder / f"{name}.gguf")
        options = {"n_ctx": self.n_ctx, "threads": threads, "draft_threads": 1}
        self.one = gguf_spec.load(target, draft, **options)
        self.many = gguf_spec.load(
            target, None if self.has_head else draft, parallel=N_SLOTS, **options
        )
        for llm in (self.one, self.many):
            llm.engine.target.weights.chat_template = THINKS

    def _files(self, file):
        """Target and draft."""
        other = file.with_suffix(".draft.gguf")
        if self.kind == "tales":
            source = TALES / "tales-target-Q8_0.gguf"
            if self.form:
                quantize(source, file, self.form)
            return file if self.form else source, TALES / "tales-draft-Q4_0.gguf"
        if self.kind == "tiny":
            made = {"llama": tiny.llama, "mixture": tiny.mixture}[self.form]
            return tiny.write(file, made(seed=1)), tiny.write(other, tiny.llama(seed=1))
        model = families.family(self.kind)
        if self.form:
            return tiny.write(file, families.with_head(model)), "mtp"
        return tiny.write(file, model), tiny.write(other, families.family(self.kind, seed=1))

    def prompt(self, rng, earlier):
        """Token ids, often those of an earlier prompt and others behind them."""
        before = [one["prompt"] for one in earlier if isinstance(one["prompt"][0], int)]
        if before and rng.random() < 0.5:
            known = rng.choice(before)
            more = [rng.randrange(30, 90) for _ in range(rng.choice((0, 1, 7)))]
            return known[: rng.choice((None, -1, len(known) // 2))] + more or [40]
        n = rng.choice((1, 5, 20, self.n_ctx // 3, self.n_ctx // 2, self.n_ctx * 3 // 4))
        if self.kind != "tales":
            piece = [rng.randrange(26, 90) for _ in range(rng.choice((3, 8, n)))]
            return (piece * n)[:n]
        text = rng.choice((*STARTS, *bundled_prompts())) + rng.choice(ENDS)
        while len(text) < 4 * n:
            text += " " + rng.choice(bundled_prompts())
        return self.one.tokenize(text)[:n]

    def request(self, rng, earlier):
        """Arguments of `generate`."""
        options = {"seed": rng.randrange(2**20), "top_k": rng.choice((0, 5, 40, 40))}
        options["temperature"] = rng.choice((0, 0, 0.3, 0.8, 0.8, 1.0, 1.5))
        options |= {"logprobs": 0, "max_tokens": rng.choice((1, 6, 12, 20, 20, 40, 60, None))}
        for one in FILTERS:
            options |= one if rng.random() < 0.15 else {}
        room, kind = self.n_ctx, rng.random()
        tokens = self.prompt(rng, earlier)[: room - 2 - rng.choice((0, 8, room // 2))]
        if kind < 0.1:
            options["grammar"] = GRAMMAR
        elif kind < 0.2:
            options["json_schema"] = SCHEMA
        elif kind < 0.45:  # two shifts, or nearly one
            left = rng.choice((9, 20, 40, 60))
            tokens = (tokens * room)[: room - left]
            options |= {"overflow": "shift", "max_tokens": left + rng.choice((3, left))}
            options["ignore_eos"] = True
        if rng.random() < 0.15:
            tokens = [{"role": "user", "content": rng.choice(STARTS)[: room // 4]}]
            options["think_budget"] = rng.randrange(12)
        return {"prompt": tokens, "sampling": Sampling(**options)}

    def way(self, rng, alone):
        """Draft options that change no text."""
        llm, drafters = self.one if alone else self.many, ["auto", "ngram"]
        if llm.draft_name:  # a recurrent draft is not loaded for requests at once
            drafters += ["mtp"] if self.has_head else ["model", "hybrid"]
        return Speculation(
            rng.choice((0, 1, 2, 3, 4, 6, 9, 16, 33)),
            drafter=rng.choice(drafters),
            adaptive=rng.random() < 0.4,
            strict=alone and rng.random() < 0.2,
        )


def outcome(llm, request, way):
    """All that a request decides, and its near ties."""
    try:
        one = llm.generate(**request, speculation=way)
    except GgufSpecError as error:
        return type(error).__name__, (), str(error), (), 0
    shown = f"{one.reasoning}|{one.text}"
    return shown, one.tokens, one.finish_reason, one.logprobs, one.stats.n_near_ties


class Case:
    """Requests and their references. `compare` yields how a request was run, its reference and what came."""

    def __init__(self, family, rng, path):
        self.family, self.rng, self.path, self.requests = family, rng, path, []
        for _ in range(rng.randrange(2, 6)):
            self.requests.append(family.request(rng, self.requests))
        self.right = [self._alone(request) for request in self.requests]
        for i, request in enumerate(self.requests):
            text = self.right[i][0]
            if rng.random() < 0.15 and len(text) > 30:  # one in the text, one that it begins
                at = rng.randrange(len(text) - 12)
                stop = (text[at : at + rng.randrange(1, 12)], text[at // 2 : at // 2 + 9] + "#")
                request["sampling"] = replace(request["sampling"], stop=stop)
                self.right[i] = self._alone(request)

    def _alone(self, request):
        self.family.one.forget()
        return outcome(self.family.one, request, Speculation(0))

    def compare(self):
        family, rng = self.family, self.rng
        family.one.forget()
        family.many.forget()
        for i in [rng.randrange(len(self.requests)) for _ in range(3 * len(self.requests))]:
            way, how = family.way(rng, alone=True), ""
            if rng.random() < 0.15:
                family.one.save_session(self.path, {})
                family.one.forget()
                family.one.restore_session(self.path)
                how = "behind a restored session, "
            yield f"request {i}, {how}{way}", self.right[i], self._run(i, way)
            if rng.random() < 0.3:
                yield from self._taken_up(i, way)
        for n in range(2):
            ways = [family.way(rng, alone=False) for _ in self.requests]
            with ThreadPoolExecutor(N_SLOTS + 1) as pool:
                left = pool.submit(self._leave, rng.randrange(len(ways)), ways[0])
                begun = [
                    pool.submit(outcome, family.many, *two)
                    for two in zip(self.requests, ways, strict=True)
                ]
                for i, job in enumerate(begun):
                    how = f"request {i} at once with the others ({n}), {ways[i]}"
                    yield how, self.right[i], job.result(120)
                left.result(120)

    def _run(self, i, way):
        return outcome(self.family.one, self.requests[i], way)

    def _taken_up(self, i, way):
        """The rest of a text behind its first tokens as a prompt, where that is promised."""
        s, (_, tokens, reason, logprobs, _) = self.requests[i]["sampling"], self.right[i]
        prompt = self.requests[i]["prompt"]
        depends = s.grammar or s.json_schema is not None or s.overflow == "shift" or s.stop
        if depends or self.family.one._target.exactness.grid or isinstance(prompt[0], dict):
            return
        if len(tokens) > 2:
            at = self.rng.randrange(1, len(tokens))
            rest = replace(s, max_tokens=s.max_tokens and s.max_tokens - at)
            request = {"prompt": [*prompt, *tokens[:at]], "sampling": rest}
            found = outcome(self.family.one, request, way)
            right = (found[0], tokens[at:], reason, logprobs[at:], 0)
            yield f"request {i} from token {at}, {way}", right, found

    def _leave(self, i, way):
        """Run a request that its caller ends after some tokens."""
        n = []
        with contextlib.suppress(GgufSpecError):
            self.family.many.generate(
                **self.requests[i], speculation=way, on_token=lambda t: n.append(t) or len(n) > 5
            )

    def show(self):
        """Print the requests, without options at their defaults."""
        usual = asdict(Sampling())
        for i, request in enumerate(self.requests):
            given = asdict(request["sampling"])
            options = {name: value for name, value in given.items() if value != usual[name]}
            print(f"  {i}: {len(request['prompt'])} tokens or messages, {options}", flush=True)


def run_case(family, rng, path, counts, command):
    """Compare all of a case, and print what differs."""
    case, what = None, ""
    try:
        case = Case(family, rng, path)
        for how, right, found in case.compare():
            counts["compared"] += 1
            if right[:-1] == found[:-1]:
                continue
            if found[-1]:
                counts["near ties"] += 1
                continue
            at = next((i for i, (a, b) in enumerate(zip(right[1], found[1], strict=False)) if a != b), None)  # fmt: skip
            part = next(i for i in range(4) if right[i] != found[i])
            what += f"\n  {how}: token {at} of {len(right[1])}, part {part}, "
            what += f"{str(right[part])[-60:]!r} and {str(found[part])[-60:]!r}"
            counts["differ"] += 1
    except Exception:
        what += f"\n  {traceback.format_exc()}"
        counts["differ"] += 1
    if what:
        print(f"DIFFERS: {command}{what}", flush=True)
        if case:
            case.show()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--kernels", default=os.environ.get("GGUF_SPEC_KERNELS", "auto"))
    parser.add_argument("--threads", type=int, help="of the target; else they follow the load")
    options = parser.parse_args()
    os.environ["GGUF_SPEC_KERNELS"] = options.kernels
    until, counts, models, number = time.monotonic() + options.seconds, Counter(), {}, options.first
    with tempfile.TemporaryDirectory() as folder:
        while number < options.first + options.cases and time.monotonic() < until:
            for name in options.families.split(","):
                if time.monotonic() < until:
                    if name not in models:
                        models[name] = Family(name, Path(folder), options.threads)
                    command = f"{sys.argv[0]} --families {name} --first {number} --cases 1 --kernels {options.kernels}"
                    rng = random.Random(f"{name} {number}")
                    run_case(models[name], rng, Path(folder) / "session", counts, command)
            number += 1
        for one in models.values():
            one.one.close()
            one.many.close()
    found = f"{counts['differ']:,} differ, {counts['near ties']:,} at counted near ties"
    print(f"{counts['compared']:,} comparisons, {found}; cases {options.first} to {number - 1}")
    return int(counts["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
