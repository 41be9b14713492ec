"""Record texts of the bundled pair and proposals of its draft model, for `scripts/bench/simulate_controller.py` and its tests.

.venv/bin/python scripts/bench/record_traces.py
.venv/bin/python scripts/bench/record_traces.py --texts qwen2.5-coder-1.5b

With --texts the answers of a larger model without a draft model are recorded, for `scripts/bench/ablate_controller.py`: tests/data/text_traces.json.gz
has kind, temperature, prompt and tokens of each.

.venv/bin/python scripts/bench/record_traces.py --questions qwen2.5-coder-1.5b

With --questions its answers to tests/data/questions.yaml are recorded: tests/data/chat_traces.json.gz has their list (`kind`) and in `top` the
likeliest tokens of each place too, each with its chance in hundredths.

Writes tests/data/traces.json.gz: for each prompt and temperature the prompt, the target's tokens by plain decoding, and for each of them the
draft model's proposal behind the true text: token, confidence bucket. Where the proposal is wrong, the next few tokens that the
draft model would propose behind it follow.
"""

import argparse
import gzip
import json
import math
from pathlib import Path

import yaml

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.bench.workloads import LONG_WORKLOADS, WORKLOADS
from gguf_spec.options import read_options
from gguf_spec.runtime.prompt import encode
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.drafters import CoupledDraftSampler, DraftCorrection
from gguf_spec.verify import bundled_prompts

TRACES = Path(__file__).resolve().parents[2] / "tests" / "data" / "traces.json.gz"
TEMPERATURES = (0.0, 0.8, 1.0)
N_TOKENS = 128
N_BEHIND_WRONG = 7  # tokens drafted behind a wrong one
N_STORIES = 8
TEXTS, N_OF_TEXT = TRACES.with_name("text_traces.json.gz"), 192
NOT_RECORDED = ("long", "turn20-1k")
QUESTIONS, ANSWERS = TRACES.with_name("questions.yaml"), TRACES.with_name("chat_traces.json.gz")
N_TOP, LEAST_CHANCE = 8, 0.02  # of `top`


def prompts():
    """Return kind and text of each prompt: stories for the statistics, one to measure the pair with, and texts that repeat."""
    texts = {workload.name: [one[0] for one in workload.texts] for workload in WORKLOADS}
    stories = bundled_prompts()[2 : 3 + N_STORIES]
    return [
        ("measure", stories[0]),
        *(("story", text) for text in stories[1:]),
        *(("repetitive", text) for text in texts["repetitive"] + texts["copy"]),
    ]


def free_draft(draft, guess, history, n):
    """Return the next `n` proposals of the draft model behind `history`, whose last token it has not read; its cache is as it was."""
    n_past, found, history = draft.n_past, [], [*history]
    for _ in range(n):
        token, confidence, _ = guess.token(draft.logits(history[draft.n_past :], 1)[0], history)
        found.append((token, confidence))
        history.append(token)
        if draft.is_end(token):
            break
    draft.rollback(n_past)
    return [[int(value) for value in one] for one in found]


def record(target, draft, prompt, temperature, seed, calibration):
    """Return the trace of one generation as plain values."""
    sampler = Sampler(Sampling(temperature=temperature, ignore_eos=True), SeededRng(seed))
    guess, tokens, proposals = CoupledDraftSampler(sampler, calibration), [*prompt], []
    target.rollback(0)
    draft.rollback(0)
    draft.read(tokens[:-1])
    target.read(tokens[:-1])
    for _ in range(N_TOKENS):
        row = target.logits(tokens[target.n_past :], 1)
        token = sampler.token(row[0], tokens)
        draft.read(tokens[draft.n_past : -1])
        proposed = free_draft(draft, guess, tokens, 1)
        guess.learn(len(tokens), [token], row)
        if proposed[0][0] != token:
            proposed += free_draft(draft, guess, [*tokens, proposed[0][0]], N_BEHIND_WRONG)
            guess.learn(0, [], row)  # forget these places: they followed a wrong token
        proposals.append(proposed)
        tokens.append(int(token))
    return {"prompt": prompt, "tokens": tokens[len(prompt) :], "proposals": proposals}


def record_texts(model):
    """Write the answers of a model to the first prompts of the workloads."""
    traces = []
    with gguf_spec.load(model, None, n_ctx=2048) as llm:
        for workload in (*WORKLOADS, *LONG_WORKLOADS):
            if workload.name in NOT_RECORDED or workload.name.endswith("-4k"):
                continue
            for seed, text in enumerate(
                workload.prompts(llm)[: 2 if workload.name == "copy" else 1]
            ):
                prompt = [int(token) for token in llm.tokenize(text)]
                for temperature in (0.0, 0.8):
                    sampling = Sampling(
                        temperature, seed=seed, max_tokens=N_OF_TEXT, ignore_eos=True
                    )
                    tokens = [int(token) for token in llm.generate_tokens(prompt, sampling).tokens]
                    traces.append(
                        {"kind": workload.name, "temperature": temperature, "prompt": prompt, "tokens": tokens}
                    )  # fmt: skip
    write(TEXTS, traces)


def record_answers(model):
    """Write the answers of a model to the questions of a chat; where a neighbour computes beside it has no influence on them."""
    traces, form = known_answers(), read_options("", (), None, None)
    with gguf_spec.load(model, None, n_ctx=512, parallel=16) as llm:
        for kind, questions in yaml.safe_load(QUESTIONS.read_text()).items():
            chats = [[{"role": "user", "content": one}] for one in questions]
            with llm.models() as (target, _):
                prompts = [
                    [int(id) for id in encode(target, chat, form, most=500)] for chat in chats
                ]
            for temperature in (0.0, 0.8):
                if any((one["kind"], one["temperature"]) == (kind, temperature) for one in traces):
                    continue
                samplings = [
                    Sampling(temperature, seed=seed, max_tokens=N_OF_TEXT, logprobs=N_TOP)
                    for seed in range(len(questions))
                ]
                answers = llm.generate_many(prompts, samplings)
                for prompt, answer in zip(prompts, answers, strict=True):
                    tops = [
                        [(token, round(100 * math.exp(chance))) for token, chance in one.top if math.exp(chance) >= LEAST_CHANCE]
                        for one in answer.logprobs
                    ]  # fmt: skip
                    tokens = [int(token) for token in answer.tokens]
                    traces.append({"kind": kind, "temperature": temperature, "prompt": prompt, "tokens": tokens, "top": tops})  # fmt: skip
                write(ANSWERS, traces)
                print(kind, temperature, sum(len(one.tokens) for one in answers), flush=True)


def known_answers():
    """Return what an earlier run has recorded; remove the file to record all again."""
    return json.loads(gzip.decompress(ANSWERS.read_bytes())) if ANSWERS.exists() else []


def write(path, traces):
    path.write_bytes(gzip.compress(json.dumps(traces, separators=(",", ":")).encode(), mtime=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--texts", metavar="MODEL", help="record texts of this model instead")
    parser.add_argument("--questions", metavar="MODEL", help="record its answers to questions")
    args = parser.parse_args()
    if args.texts:
        record_texts(args.texts)
        return
    if args.questions:
        record_answers(args.questions)
        return
    traces, calibration = [], None
    with gguf_spec.load("tales", threads=1) as llm, llm.models() as (target, draft):
        for seed, (kind, text) in enumerate(prompts()):
            for temperature in TEMPERATURES if kind != "repetitive" else (0.0,):
                calibration = calibration or DraftCorrection(target.n_vocab)
                prompt = target.weights.tokenize(text, special=False)
                traces.append(
                    {
                        "kind": kind,
                        "temperature": temperature,
                        **record(target, draft, prompt, temperature, seed, calibration),
                    }
                )
    TRACES.parent.mkdir(exist_ok=True)
    write(TRACES, traces)
    right = [
        sum(p[0][0] == t for p, t in zip(one["proposals"], one["tokens"], strict=True)) / N_TOKENS
        for one in traces
    ]
    for one, share in zip(traces, right, strict=True):
        print(one["kind"], one["temperature"], f"{share:.2f}")
    print(f"{TRACES.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
