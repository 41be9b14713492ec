#!/usr/bin/env python3
"""Natural edits of real files: how many come out right, and how many damage the file.

    .venv/bin/python scripts/bench/bench_edits.py --half tune --way whole
    .venv/bin/python scripts/bench/bench_edits.py --model qwen2.5-coder-7b Qwen/Qwen2.5-Coder-3B-Instruct-GGUF --half report --json edits.json
    .venv/bin/python scripts/bench/bench_edits.py --model smollm2-135m-instruct --draft tales-draft --half all --equal 48
    .venv/bin/python scripts/bench/bench_edits.py --list    # the tasks and their instructions; needs no model

Each task of `tests/data/edits` is run at temperature 0, as `gguf-spec edit --yes` runs it. Ways:

  whole  the whole text is written again (the command of version 0.3, whose prompt is copied here)
  edit   `LLM.edit`, which the command uses

right      the check of the task holds, and no line outside the place that was asked has changed
damaged    written, and lines outside have changed, or what was there is lost, or the file no longer parses
wrong      written, and not what was asked, but nothing else is harmed
unchanged  the same text
refused    nothing was written; in brackets how many of these texts were right

Methods and parameters are chosen with the half `tune`; the half `report` is for figures that are published;
`fresh`, `fresh2`, `fresh3` and `fresh4` were written later by somebody who had not read the rules, and are not to be tuned on. With --json the results are kept
after each task, and tasks that are in the file are not run again. --equal compares the first tokens of what the model writes without drafts
and with drafts from each source, also those that would not pay; --beside N does so while N other requests
are answered, and a large N of --equal compares whole answers. The checks execute functions of the new Python texts in this process.
"""

import argparse
import fnmatch
import json
import re
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from _edit_tasks import DAMAGED, HALVES, REFUSED, RIGHT, UNCHANGED, WRONG, judge, read_tasks

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import GgufSpecError, NotDownloadedError

KINDS = (RIGHT, DAMAGED, WRONG, UNCHANGED, REFUSED)
MODEL = "qwen2.5-coder-1.5b"
MOST_CTX = 32_768
PLAIN = Speculation(k=0)
# lengths of drafts that are made whatever they cost
FIXED = {"ngram": 8, "model": 4, "mtp": 2, "hybrid": 8}


class NotThere(Exception):
    """The way is not in this version of the package."""


def whole(llm, task):
    """Let the model write the whole text again, with the prompt of version 0.3; return text, reasons and statistics."""
    old = task.old
    longest = max((len(run) for run in re.findall(r"`{3,}", old)), default=2)
    fence = "`" * max(3, longest + 1)
    body = old.removesuffix("\n")
    request = f"{fence}\n{body}\n{fence}\n\nTask: {task.ask.strip().rstrip('.')}. Write the whole text again with this change."
    prefill = f"{fence}\n"
    if llm.has_chat_template:
        request = [{"role": "user", "content": request}]
    else:
        request, prefill = f"{request}\n\nThe new text:\n\n{fence}\n", ""
    plain = llm.tokenize(old, special=False)
    named = {*llm.tokenize(old, special=True)} - {*plain}
    n_prompt = len(llm.tokenize(request, prefill=prefill))
    sampling = Sampling(
        temperature=0,
        max_tokens=min(2 * len(plain) + 256, llm.n_ctx - n_prompt),
        stop=[f"\n{fence}"],
        ignore_eos=any(map(llm.vocabulary.is_end, named)),
    )
    result = llm.generate(request, sampling, prefill=prefill)
    reasons = {"length": ("it was not complete",)}.get(result.finish_reason, ())
    text = result.text
    fenced = re.fullmatch(r"(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\1\s*", text.strip(), re.DOTALL)
    if fenced and fence == "```":
        text = fenced[2]
    elif (
        len(re.findall(r"^ *`{3,}", text, re.MULTILINE)) % 2
        > len(re.findall(r"^ *`{3,}", old, re.MULTILINE)) % 2
    ):
        text = re.sub(r"\n`{3,}\s*\Z", "", text)
    if not text.strip():
        return old, ("it was empty",), result.stats
    return text.removesuffix("\n") + "\n" * old.endswith("\n"), reasons, result.stats


def edit(llm, task):
    """Call LLM.edit; return text, reasons and statistics."""
    if not hasattr(llm, "edit"):
        raise NotThere(f"gguf_spec {gguf_spec.__version__} has no LLM.edit")
    result = llm.edit(task.old, task.ask, name=task.file)
    return result.text, tuple(map(str, result.refused)), result.stats


WAYS = {"whole": whole, "edit": edit}


def run_task(llm, way, task):
    """Return the record of one task."""
    start = time.perf_counter()
    try:
        text, refused, stats = WAYS[way](llm, task)
    except GgufSpecError as error:
        text, refused, stats = task.old, (str(error),), None
    seconds = time.perf_counter() - start
    verdict = judge(task, text)
    return {
        "kind": REFUSED if refused else verdict.kind,
        "judged": verdict.kind,
        "outside": verdict.outside,
        "why": "; ".join(refused) or verdict.why,
        "seconds": round(seconds, 2),
        "n_prompt": getattr(stats, "n_prompt", 0),
        "n_generated": getattr(stats, "n_generated", 0),
        "decode_s": round(getattr(stats, "total_s", 0) - getattr(stats, "ttft_s", 0), 3),
        "rounds": getattr(stats, "rounds", 0),
        "text": text,
    }


@contextmanager
def company(llm, n):
    """Answer n other requests at once all the time."""
    is_over = threading.Event()

    def talk(number):
        seed, say = number, llm.ask if llm.has_chat_template else llm.generate
        while not is_over.is_set():
            prompt = f"Give {seed} reasons why a list is not a set."
            say(prompt, Sampling(max_tokens=40, temperature=0.8, seed=seed, ignore_eos=True))
            seed += n

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(n)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        is_over.set()
        for one in threads:
            one.join()


def same_as_plain(llm, task, words):
    """Return whether the first tokens of an edit are the same, by drafter; None without a model."""
    from gguf_spec.edit import EditPlan  # older versions have none

    plan = EditPlan(task.old, task.ask, name=task.file)
    if not plan.needs_model:
        return None
    prompt = plan.prompt(llm)
    has_head = "prediction head" in (llm.draft_name or "")
    fitting = {
        "ngram",
        *["mtp"] * has_head,
        *["model", "hybrid"] * bool(llm.draft_name and not has_head),
    }
    drafters = {"auto": Speculation()} | {
        one: Speculation(drafter=one, k=k, adaptive=False)
        for one, k in FIXED.items()
        if one in fitting
    }

    def tokens(speculation):
        sampling = prompt.limited(Sampling(temperature=0), words.equal)
        return llm.generate(
            prompt.request, sampling, prefill=prompt.prefill, speculation=speculation
        ).tokens

    plain = tokens(PLAIN)
    with company(llm, words.beside):
        return {one: tokens(how) == plain for one, how in drafters.items()}


def show_equal(model, tasks, words):
    """Compare the tasks with each drafter; return whether all are the same."""
    counts, n = Counter(), 0
    with loaded(model, tasks, words) as llm:
        for task in tasks:
            same = same_as_plain(llm, task, words)
            n += same is not None
            counts.update({one: int(is_same) for one, is_same in (same or {}).items()})
            names = [one for one, is_same in (same or {}).items() if not is_same]
            how = f"another text with {', '.join(names)}" if names else "same" if same else "code"
            print(f"{model}, {key_of(task)}: {how}", file=sys.stderr, flush=True)
    for one in counts:
        print(f"{model}, {one}: {counts[one]} of {n} as without drafts")
    return all(counts[one] == n for one in counts)


def judged_again(task, record):
    """Return a record whose text is judged by the check of today."""
    verdict = judge(task, record["text"])
    kind = REFUSED if record["kind"] == REFUSED else verdict.kind
    why = record["why"] if kind == REFUSED else verdict.why
    return record | {"kind": kind, "judged": verdict.kind, "outside": verdict.outside, "why": why}


class Results:
    """Records by model, way and task, in a file if there is one."""

    def __init__(self, path):
        self.path = path
        self.all = json.loads(path.read_text("utf-8")) if path and path.exists() else {}

    def of(self, model, way):
        return self.all.setdefault(model, {}).setdefault(way, {})

    def save(self):
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.all, indent=1, ensure_ascii=False), "utf-8")
            part.replace(self.path)


def key_of(task):
    return f"{task.half}/{task.file}/{task.name}"


def line_of(key, record):
    outside = f", {record['outside']} outside" if record["outside"] else ""
    why = f": {record['why']}" if record["why"] else ""
    return f"{record['kind']:9} {key} ({record['seconds']:.0f} s{outside}){why}"


def table_of(rows):
    """Return lines of a Markdown table of (model, way, records)."""
    lines = [
        "| model | way | tasks | right | damaged, written | wrong | unchanged | refused (right) | s an edit | tokens/s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for model, way, records in rows:
        kinds = Counter(one["kind"] for one in records)
        n_right = sum(one["kind"] == REFUSED and one["judged"] == RIGHT for one in records)
        decode_s = sum(one["decode_s"] for one in records)
        speed = sum(one["n_generated"] for one in records) / decode_s if decode_s else 0
        median = statistics.median(one["seconds"] for one in records)
        cells = [
            model,
            way,
            len(records),
            *(kinds[kind] for kind in KINDS[:-1]),
            f"{kinds[REFUSED]} ({n_right})",
            f"{median:.1f}",
            f"{speed:.1f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def show(rows, verbose):
    print("\n".join(table_of(rows)))
    if verbose:
        for model, way, records in rows:
            print(f"\n{model}, {way}")
            for record in records:
                print("  " + line_of(record["key"], record))


def chosen(words):
    """Return the tasks of the options."""
    halves = HALVES if words.half == "all" else [words.half]
    tasks = read_tasks(halves)
    if words.only:
        tasks = [one for one in tasks if fnmatch.fnmatch(key_of(one), f"*{words.only}*")]
    if not tasks:
        raise SystemExit(f"Error: no task of the half {words.half} fits --only {words.only}.")
    return tasks


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", nargs="+", default=[MODEL], help=f"names or files [default: {MODEL}]"
    )
    parser.add_argument("--half", choices=[*HALVES, "all"], default="tune", help="[default: tune]")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), help="[default: all]")
    parser.add_argument(
        "--only", metavar="PATTERN", help="tasks whose half/file/name fits, such as 'tune/*.py/*'"
    )
    parser.add_argument("--draft", default="ngram", help="[default: ngram, as the command]")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results there")
    parser.add_argument("--judge", action="store_true", help="only judge the texts of --json again")
    parser.add_argument(
        "--equal", type=int, metavar="N", help="only compare the first N tokens with each drafter"
    )
    parser.add_argument(
        "--beside", type=int, default=0, metavar="N", help="--equal: beside N other requests"
    )
    parser.add_argument("--list", action="store_true", help="only show the tasks")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line a task, too")
    words = parser.parse_args(arguments)
    if words.judge and not words.json:
        parser.error("--judge needs --json FILE")
    return words


def loaded(model, tasks, words):
    # as the command: the old and the new text, a quarter more and the instruction, at three bytes a token
    n_ctx = min(max(3 * len(task.old.encode()) // 4 + 1024 for task in tasks), MOST_CTX)
    try:
        return gguf_spec.load(
            model,
            words.draft,
            n_ctx=max(n_ctx, 4096),
            threads=words.threads,
            parallel=words.beside + 1,
            draft_texts="memory" if words.beside else "off",
        )
    except NotDownloadedError as error:
        raise SystemExit(f"Error: {error}\nFirst: gguf-spec models pull {model}") from None


def run_model(model, tasks, words, results):
    """Run the tasks that have no record, in each way."""
    todo = [
        (way, task)
        for way in words.way
        for task in tasks
        if key_of(task) not in results.of(model, way)
    ]
    if not todo:
        return
    with loaded(model, tasks, words) as llm:
        missing = set()
        for n, (way, task) in enumerate(todo, 1):
            if way in missing:
                continue
            try:
                record = run_task(llm, way, task)
            except NotThere as error:
                missing.add(way)
                print(f"{model}: the way {way} was left out: {error}.", file=sys.stderr)
                continue
            results.of(model, way)[key_of(task)] = record
            results.save()
            print(
                f"[{n}/{len(todo)}] {model}, {way}: {line_of(key_of(task), record)}",
                file=sys.stderr,
                flush=True,
            )


def main(arguments=None) -> int:
    words = parse(arguments)
    tasks = chosen(words)
    if words.list:
        for task in tasks:
            print(f"{key_of(task)}{' (trap)' if task.trap else ''}: {task.ask}")
        return 0
    if words.equal:
        same = [show_equal(model, tasks, words) for model in words.model]
        return int(not all(same))
    results, rows = Results(words.json), []
    for model in words.model:
        if not words.judge:
            run_model(model, tasks, words, results)
        for way in words.way:
            kept = results.of(model, way)
            found = [(task, kept[key_of(task)]) for task in tasks if key_of(task) in kept]
            records = [judged_again(task, record) | {"key": key_of(task)} for task, record in found]
            if records:
                rows.append((model, way, records))
    show(rows, words.verbose)
    return 0


if __name__ == "__main__":
    sys.exit(main())
