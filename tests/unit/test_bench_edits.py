"""The tasks of scripts/bench/bench_edits.py: each check takes right texts, and no other ones."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))
import bench_edits
from _edit_tasks import (
    DAMAGED,
    FOLDER,
    REFUSED,
    RIGHT,
    UNCHANGED,
    WRONG,
    changed,
    judge,
    names_of,
    outside,
    read_tasks,
)

TASKS = read_tasks()
each = pytest.mark.parametrize("task", TASKS, ids=bench_edits.key_of)


def named(name):
    return next(task for task in TASKS if bench_edits.key_of(task) == name)


@each
def test_right_texts_are_right(task):
    for text in (task.solution, *task.also):
        verdict = judge(task, text)
        assert (verdict.kind, verdict.outside, verdict.why) == (RIGHT, 0, "")


@each
def test_the_old_text_is_not_right(task):
    assert judge(task, task.old).kind == UNCHANGED
    with pytest.raises(Exception):  # noqa: B017
        exec(task.check, names_of(task, task.old))


@each
def test_too_far_is_damaged(task):
    assert bool(task.trap) == bool(task.far)
    for text in task.far:
        assert judge(task, text).kind == DAMAGED
        assert outside(task, task.stored(text)) or "lost" in judge(task, text).why


@pytest.mark.few(36)
@each
def test_lost_lines_are_not_right(task):
    lines = task.solution.splitlines(keepends=True)
    third = len(lines) // 3
    for text in (
        "".join(lines[:-3]),
        "".join(lines[3:]),
        "".join(lines[:third] + lines[2 * third :]),
    ):
        assert judge(task, text).kind in (DAMAGED, WRONG)


@each
def test_another_line_end_or_mark_is_damaged(task):
    text = task.solution
    verdict = judge(task, text.removesuffix("\n") if text.endswith("\n") else text + "\n")
    assert verdict.kind == DAMAGED and verdict.outside in (1, 2)  # the CR as well
    if "\r\n" in task.raw:
        assert judge(task, text, text).kind == DAMAGED
    if task.raw.startswith("\ufeff"):
        assert judge(task, text, text).kind == DAMAGED


def test_the_halves_have_the_same_mix():
    half = {one: [task for task in TASKS if task.half == one] for one in ("tune", "report")}
    assert len(TASKS) >= 84
    assert abs(len(half["tune"]) - len(half["report"])) <= 4
    kinds = {one: Counter(task.kind for task in tasks) for one, tasks in half.items()}
    assert set(kinds["tune"]) == set(kinds["report"])
    assert all(abs(kinds["tune"][kind] - kinds["report"][kind]) <= 2 for kind in kinds["tune"])
    for tasks in half.values():
        assert sum(bool(task.trap) for task in tasks) * 2 >= len(tasks)
    assert not {task.raw for task in half["tune"]} & {task.raw for task in half["report"]}
    assert len({bench_edits.key_of(task) for task in TASKS}) == len(TASKS)
    assert all(25 <= task.old.count("\n") <= 180 for one in half.values() for task in one)


@pytest.mark.parametrize(
    ("half", "least", "languages"),
    [("fresh", 10, 20), ("fresh2", 10, 20), ("fresh3", 7, 20), ("fresh4", 10, 18)],
)
def test_the_fresh_tasks(half, least, languages):
    tasks = [task for task in TASKS if task.half == half]
    assert len(tasks) == 62
    assert all(least <= task.old.count("\n") <= 120 for task in tasks)
    assert half == "fresh3" or sum(bool(task.trap) for task in tasks) * 2 >= len(tasks)
    assert len({task.kind for task in tasks if "rename" in task.name}) == languages
    assert not {task.raw for task in tasks} & {task.raw for task in TASKS if task.half != half}


def test_the_small_renames():
    cases = yaml.safe_load((FOLDER.parent / "renames.yaml").read_text("utf-8"))
    keys = {"name", "file", "ask", "may_ask", "simple", "text", "right"}
    assert len({case["name"] for case in cases}) == len(cases) == 44
    assert len({Path(case["file"]).suffix or case["file"] for case in cases}) >= 17
    assert 20 <= sum(case.get("simple", False) for case in cases) <= 24
    for case in cases:
        n_lines = case["text"].count("\n")
        assert keys - {"simple"} <= set(case) <= keys and case["may_ask"] is True
        assert 2 <= n_lines <= 9 and case["text"].endswith("\n")
        assert len(case["right"]) == 1 or "simple" not in case
        assert case["text"] not in case["right"]
        assert all(text.count("\n") == n_lines for text in case["right"])


def test_files_as_they_are_stored():
    raws = [task.raw for task in TASKS]
    for has in (
        lambda raw: "\r\n" in raw,
        lambda raw: raw.startswith("\ufeff"),
        lambda raw: not raw.endswith("\n"),
        lambda raw: "\n\t" in raw,
        lambda raw: " \n" in raw or " \r\n" in raw,
        lambda raw: not raw.isascii(),
    ):
        assert any(map(has, raws))
    assert all(task.stored(task.old) == task.raw for task in TASKS)


def test_lines_outside():
    task = named("tune/player.ini/device-volume")
    right = task.solution
    for edits, n in (
        ([["language=de", "language=en"]], 1),
        ([["language=de\n", ""]], 1),
        ([["language=de\n", "language=de\nfont=12\n"]], 1),
        ([["autoplay=yes\n\n", "autoplay=yes\n"]], 1),
        ([["theme=dark\nvolume=70\n", "volume=70\ntheme=dark\n"]], 2),
        ([["volume=50\n", "volume = 50\n"]], 0),
    ):
        assert outside(task, task.stored(changed(right, edits))) == n


def test_code_that_does_not_end(monkeypatch):
    import _edit_tasks

    monkeypatch.setattr(_edit_tasks, "_MOST_S", 0.05)
    task = named("tune/genericpath.py/parameter-path")
    endless = task.__class__(**{**vars(task), "check": "while True: pass"})
    assert judge(endless, task.solution).why.startswith("TimeoutError")
    leaves = task.__class__(**{**vars(task), "check": "raise SystemExit"})
    assert judge(leaves, task.solution).kind == WRONG


class Model:
    """A model that gives these answers, with and without `edit`."""

    n_ctx, has_chat_template = 4096, True
    vocabulary = SimpleNamespace(is_end=lambda token: False)

    def __init__(self, text, finish_reason="stop"):
        self.text, self.finish_reason = text, finish_reason

    def tokenize(self, text, **options):
        return [0] * 9

    def generate(self, request, sampling, prefill):
        assert (sampling.temperature, sampling.stop, prefill) == (0, ("\n```",), "```\n")
        return SimpleNamespace(text=self.text, finish_reason=self.finish_reason, stats=None)


class EditModel(Model):
    refused = ()

    def edit(self, text, instruction, name):
        assert text and instruction and "/" not in name
        return SimpleNamespace(text=self.text, refused=self.refused, hunks=(), stats=None)


def test_ways():
    task = named("tune/cart.ts/strict-equality")
    body = task.solution.removesuffix("\n")
    run = bench_edits.run_task
    assert run(Model(body), "whole", task)["kind"] == RIGHT
    assert run(Model(f"```ts\n{body}\n```"), "whole", task)["kind"] == RIGHT
    assert run(Model(body, "length"), "whole", task)["kind"] == REFUSED
    assert run(Model(" "), "whole", task)["kind"] == REFUSED
    assert run(Model(task.far[0]), "whole", task)["kind"] == DAMAGED
    assert run(EditModel(task.solution), "edit", task)["kind"] == RIGHT
    refusing = EditModel(task.solution)
    refusing.refused = ("two places",)
    record = run(refusing, "edit", task)
    assert (record["kind"], record["judged"], record["why"]) == (REFUSED, RIGHT, "two places")
    with pytest.raises(bench_edits.NotThere):
        run(Model(body), "edit", task)


def test_results_are_kept_and_judged_again(tmp_path, monkeypatch, capsys):
    task, file = named("tune/cart.ts/strict-equality"), tmp_path / "edits.json"
    calls = []

    class Loaded(EditModel):
        def __enter__(self):
            calls.append("load")
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(
        bench_edits.gguf_spec, "load", lambda *names, **options: Loaded(task.solution)
    )
    words = ["--only", "cart.ts/strict*", "--way", "edit", "--json", str(file), "-v"]
    for _ in range(2):
        assert bench_edits.main(words) == 0
        out = capsys.readouterr().out
        assert f"| {bench_edits.MODEL} | edit | 1 | 1 | 0 | 0 | 0 | 0 (0) |" in out
        assert f"right     {bench_edits.key_of(task)}" in out
    assert calls == ["load"]
    kept = json.loads(file.read_text("utf-8"))
    kept[bench_edits.MODEL]["edit"][bench_edits.key_of(task)]["text"] = task.far[0]
    file.write_text(json.dumps(kept), "utf-8")
    assert bench_edits.main([*words, "--judge"]) == 0
    assert "damaged   tune/cart.ts/strict-equality" in capsys.readouterr().out
    assert bench_edits.main(["--list", "--half", "all"]) == 0
    assert capsys.readouterr().out.count("\n") == len(TASKS)
    with pytest.raises(SystemExit):
        bench_edits.main(["--only", "nothing"])


def test_equal_with_drafters(monkeypatch, capsys):
    class Loaded:
        n_ctx, has_chat_template, draft_name = 4096, True, "a draft"
        vocabulary = Model.vocabulary
        tokenize = Model.tokenize
        wrong, asked = "", []

        def ask(self, prompt, sampling):
            self.asked.append(sampling.seed)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def generate(self, request, sampling, *, prefill, speculation):
            assert (sampling.temperature, sampling.max_tokens) == (0, 5)
            is_wrong = speculation.k and speculation.drafter == self.wrong
            return SimpleNamespace(tokens=[1, 2 if is_wrong else 3])

    monkeypatch.setattr(bench_edits.gguf_spec, "load", lambda *names, **options: Loaded())
    words = ["--model", "one", "--half", "tune", "--only", "cart.ts", "--equal", "5"]
    assert bench_edits.main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in out] == ["auto:", "ngram:", "model:", "hybrid:"]
    n = int(out[0].split()[4])
    assert n and all(line.endswith(f"{n} of {n} as without drafts") for line in out)
    assert not Loaded.asked and bench_edits.main([*words, "--beside", "2"]) == 0
    assert {seed % 2 for seed in Loaded.asked} == {0, 1}, "two others at once"
    Loaded.draft_name = "a file (prediction head)"
    capsys.readouterr()
    assert bench_edits.main(words) == 0
    assert "mtp: " in capsys.readouterr().out
    Loaded.wrong, Loaded.draft_name = "ngram", None
    assert bench_edits.main(words) == 1
    out, progress = capsys.readouterr()
    assert progress.count("another text with ngram") == n
    assert f"ngram: 0 of {n}" in out and "hybrid" not in out


def test_a_model_that_is_not_here():
    for more in ([], ["--equal", "5"]):
        with pytest.raises(SystemExit, match="First: gguf-spec models pull none/such"):
            bench_edits.main(["--model", "none/such", "--only", "cart.ts", *more])
