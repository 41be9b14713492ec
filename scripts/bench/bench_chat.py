"""Questions of a chat, answered plainly and with drafts in turn, on a real model without a draft model.

.venv/bin/python scripts/bench/bench_chat.py [-m qwen2.5-coder-1.5b] [--questions held_out] [-n 24] [--from off store others]

Drafts come from the request's own text (`off`: no store), from a store that is empty at the first question (`store`), or from one that has
40 other answers of `tests/data/chat_traces.json.gz` (`others`). Prints for each the speed over plain decoding by the time outside of the prompts,
what the controller predicted, and the costs that it believes in, as multiples of a pass over one token. The texts must be the same.
Run it on a quiet machine: a pair takes about 20 s, all of it an hour.
"""

import argparse
import statistics
import sys

import yaml
from record_traces import QUESTIONS, known_answers

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.speculative.drafters import StoreDrafter

WIDTHS = (2, 3, 4, 8)


def fill(store, kind, temperature):
    """Put recorded answers into a store, as requests do."""
    for one in known_answers():
        if (one["kind"], one["temperature"]) == (kind, temperature):
            drafter, text = StoreDrafter(store), [*one["prompt"], *one["tokens"]]
            drafter.begin(one["prompt"])
            drafter.begin(text)
            store.add(text)


def pair(llm, question, sampling, plain_first):
    """Return seconds and answers with drafts and plainly."""
    store, found = llm.engine.pair.store, {}
    for plainly in (plain_first, not plain_first):
        llm.engine.pair.store = None if plainly else store
        speculation = Speculation(k=0) if plainly else None
        # the plain answer is not added to the store, or the drafts would be its tokens
        found[plainly] = llm.generate(question, sampling=sampling, speculation=speculation)
    llm.engine.pair.store = store
    return found[False], found[True]


def seconds(answer):
    return answer.stats.total_s - answer.stats.prompt_s


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--questions", default="development", choices=["development", "held_out"])
    parser.add_argument("-n", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("-T", "--temperatures", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--from", dest="sources", nargs="*", default=["off", "store", "others"])
    args = parser.parse_args()
    questions = yaml.safe_load(QUESTIONS.read_text())[args.questions][: args.n]
    others = "earlier" if args.questions == "development" else "development"
    n_wrong = 0
    print(
        "| T | drafts from | mean | median | worst | best | predicted | drafted | accepted | costs of 2, 3, 4, 8 |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for temperature in args.temperatures:
        for source in args.sources:
            texts = "off" if source == "off" else "memory"
            with gguf_spec.load(args.model, "ngram", n_ctx=1024, draft_texts=texts) as llm:
                if source == "others":
                    fill(llm.engine.pair.store, others, temperature)
                done = []
                for i, question in enumerate(questions):
                    sampling = Sampling(temperature, seed=i, max_tokens=args.tokens)
                    chat = [{"role": "user", "content": question}]
                    done.append(pair(llm, chat, sampling, i % 2 == 0))
                    n_wrong += done[-1][0].text != done[-1][1].text
                base = llm.engine.pair.experiences[
                    "sampled" if temperature else "greedy"
                ].target.base
            speeds = [seconds(plain) / seconds(drafted) for drafted, plain in done]
            stats = [drafted.stats for drafted, _ in done]
            predicted = sum(one.plain_s for one in stats) / sum(one.forecast_s for one in stats)
            print(
                f"| {temperature} | {source} | {statistics.mean(speeds):.3f} | {statistics.median(speeds):.3f} | {min(speeds):.3f} | {max(speeds):.3f} | "
                f"{predicted:.3f} | {sum(one.n_drafted for one in stats)} | {sum(one.n_accepted for one in stats)} | "
                + " ".join(f"{base[n] / base[1]:.2f}" for n in WIDTHS) + " |", flush=True)  # fmt: skip
    print(f"{n_wrong} texts differ.")
    sys.exit(bool(n_wrong))


if __name__ == "__main__":
    main()
