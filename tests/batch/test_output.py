"""The file with the results: in order, continued after any end, refused if it is of other requests or options."""

import io
import itertools
import json
import os
import stat
import threading
from dataclasses import replace

import pytest

import gguf_spec.batch as run
from gguf_spec import Sampling, Speculation
from gguf_spec.batch import Batch, BatchProgress, LineDefaults
from gguf_spec.errors import BatchFileError
from gguf_spec.runtime.stream import Stream
from tests.batch.conftest import DEFAULTS, answer, of_openai, read, write
from tests.support.fakes import Asked

N = 30
LINES = [
    *({"prompt": "abcab"[: i % 4 + 1], "max_tokens": i % 7 + 1, "id": f"é{i}"} for i in range(N - 3)),
    b"no json", of_openai("o", prompt="ab", n=2), of_openai("p", prompt="ab", top_p=5),
]  # fmt: skip


@pytest.fixture
def right(llm, tmp_path):
    """The file with the results of an undisturbed run."""
    (tmp_path / "right").mkdir()
    answer(llm, tmp_path / "right", LINES)
    write(tmp_path / "in.jsonl", LINES)
    return (tmp_path / "right" / "out.jsonl").read_bytes()


def go_on(llm, tmp_path, defaults=DEFAULTS, **options):
    with Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl") as batch:
        return batch.run(llm, defaults, **options)


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 4])
def test_results_are_in_order_with_any_number_at_once(llm, tmp_path, right, n):
    state = go_on(llm, tmp_path, max_parallel=n)
    assert (tmp_path / "out.jsonl").read_bytes() == right
    assert (state.n_lines, state.n_done, state.n_failed, state.n_before) == (N, N, 2, 0)
    assert [one.get("id") for one in read(tmp_path / "out.jsonl")][: N - 3] == [
        f"é{i}" for i in range(N - 3)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "right"]


@pytest.mark.few(3)
@pytest.mark.parametrize("n_bytes", [0, 1, 17, 300, 1000, 2500, 10**6])
def test_it_continues_behind_any_byte(llm, tmp_path, right, n_bytes, monkeypatch):
    out = tmp_path / "out.jsonl"
    out.write_bytes(right[:n_bytes])
    n_whole = right[:n_bytes].count(b"\n")
    begun = []
    open_ = Stream.__init__
    monkeypatch.setattr(Stream, "__init__", lambda self, *a: begun.append(1) or open_(self, *a))
    state = go_on(llm, tmp_path)
    assert out.read_bytes() == right
    assert (state.n_before, state.n_done, state.n_failed) == (n_whole, N, 2)
    n_of_each = [*[1] * (N - 3), 0, 2, 0]  # generations of each line; and one checks the options
    assert len(begun) == 1 + sum(n_of_each[n_whole:])
    again = go_on(llm, tmp_path)
    assert (again.n_done, again.n_before, again.n_tokens) == (N, N, 0)
    assert out.read_bytes() == right


def test_results_that_ended_early_are_kept_for_the_next_run(llm, tmp_path, right, monkeypatch):
    """The first line does not end before the run is stopped; later lines that ended are not answered again."""
    first, asked = threading.Event(), []

    def wait(prompt):
        asked.append(prompt)
        if len(asked) == 2:  # the first was to check the options
            first.wait(180)

    n_failed = []

    def stop(number, fault):
        n_failed.append(number)
        first.set()
        raise ZeroDivisionError

    monkeypatch.setattr(run, "_AHEAD", 100)
    with pytest.raises(ZeroDivisionError):
        go_on(Asked(llm, wait), tmp_path, max_parallel=2, on_failed=stop)
    out = tmp_path / "out.jsonl"
    assert out.read_bytes() == b""
    kept = (tmp_path / "out.jsonl.ahead").read_bytes().strip().splitlines()
    assert len(kept) == N - 4
    answered = []
    cut = (tmp_path / "out.jsonl.ahead").read_bytes()[:-9]
    (tmp_path / "out.jsonl.ahead").write_bytes(cut + b"\n7\tnonsense\nx\t{}\n")
    go_on(Asked(llm, answered.append), tmp_path, max_parallel=2)
    assert out.read_bytes() == right
    # To check the options, the first line, the one whose record was cut, and the two of line 29.
    assert len(answered) == 5
    assert not (tmp_path / "out.jsonl.ahead").exists()


@pytest.mark.full
def test_results_of_an_earlier_run_stay_until_they_are_in_the_file(llm, tmp_path, right):
    """Also where all results of this run are written before them."""
    out, ahead = tmp_path / "out.jsonl", tmp_path / "out.jsonl.ahead"
    records = b"".join(
        b"%d\t%s" % (i, line) for i, line in enumerate(right.splitlines(keepends=True), 1) if i % 2
    )
    for n_stop in range(1, N - 2):
        ahead.write_bytes(records)
        out.write_bytes(b"")

        def stop(now, n_stop=n_stop):
            if now.n_done >= n_stop:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            go_on(llm, tmp_path, max_parallel=3, on_progress=stop)
        n_done = out.read_bytes().count(b"\n")
        if n_done == N:
            continue
        left = {int(one.split(b"\t")[0]) for one in ahead.read_bytes().split(b"\n") if one}
        assert left >= {i for i in range(n_done + 1, N + 1) if i % 2}
    go_on(llm, tmp_path, max_parallel=3)
    assert out.read_bytes() == right
    assert not ahead.exists()


def test_few_results_wait_for_an_earlier_one(llm, tmp_path, right, monkeypatch):
    """Others begin only as the first ends, when enough wait."""
    first, n_asked, most, n_calls = threading.Event(), itertools.count(), [0], itertools.count()
    put = run.Output.put

    def watched(self, result):
        put(self, result)
        most.append(len(self.ahead))

    def wait(_):
        if next(n_asked) == 1:  # the first was to check the options
            first.wait(180)

    def release(now):
        if next(n_calls) >= len(most):  # called while it waits, too: nothing else ends any more
            first.set()

    monkeypatch.setattr(run.Output, "put", watched)
    monkeypatch.setattr(run, "_AHEAD", 2)
    go_on(Asked(llm, wait), tmp_path, max_parallel=3, on_progress=release)
    assert 2 * 3 <= max(most) <= 2 * 3 + 2 * 3
    assert (tmp_path / "out.jsonl").read_bytes() == right


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [lines[0] | {"prompt": "b"}, *lines[1:]], "line 1 of .* is not the result of line 1 "),
        (lambda lines: [*lines[:4], *lines[5:]], "line 5 of .* is not the result of line 5 "),
        (lambda lines: [*lines[:4], b"", *lines[4:]], "line 5 of .* is not the result of line 6 "),
        (lambda lines: lines[:9], "results of more lines"),
    ],
)  # fmt: skip
def test_other_requests_are_refused(llm, tmp_path, right, change, said):
    (tmp_path / "out.jsonl").write_bytes(right)
    write(tmp_path / "in.jsonl", change(LINES))
    with pytest.raises(BatchFileError, match=said) as caught:
        Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert caught.value.hint
    assert (tmp_path / "out.jsonl").read_bytes() == right


def test_lines_may_be_added(llm, tmp_path, right):
    (tmp_path / "out.jsonl").write_bytes(right)
    write(tmp_path / "in.jsonl", [*LINES, {"prompt": "ba", "id": "new"}])
    state = go_on(llm, tmp_path)
    assert (state.n_before, state.n_done) == (N, N + 1)
    assert read(tmp_path / "out.jsonl")[-1]["id"] == "new"


@pytest.mark.parametrize(
    "options", [{"seed": 2}, {"temperature": 0.5}, {"max_tokens": 5}, {"stop": ("x",)}], ids=str
)
def test_other_options_are_refused(llm, tmp_path, right, options):
    (tmp_path / "out.jsonl").write_bytes(right[:900])
    other = replace(DEFAULTS, sampling=replace(DEFAULTS.sampling, **options))
    with pytest.raises(BatchFileError, match="of another model or of other options"):
        go_on(llm, tmp_path, other)
    for one in (replace(DEFAULTS, others={"kv_type": "q8_0"}), replace(DEFAULTS, system="x")):
        with pytest.raises(BatchFileError, match="of another model or of other options"):
            go_on(llm, tmp_path, one)
    llm.name = "another"
    with pytest.raises(BatchFileError, match="of another model or of other options"):
        go_on(llm, tmp_path)


@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_other_drafts_are_refused_where_texts_depend_on_them(llm, tmp_path, accept):
    """Under `coupled` the texts are the same, and the batch continues."""
    write(tmp_path / "in.jsonl", LINES[:3])
    begun = llm.speculation = Speculation(3, accept=accept, adaptive=False)
    go_on(llm, tmp_path)
    right = (tmp_path / "out.jsonl").read_bytes()
    others = [
        (replace(begun, **one), llm.draft_name)
        for one in ({"k": 2}, {"adaptive": True}, {"drafter": "ngram"})
    ]
    for llm.speculation, llm.draft_name in (*others, (begun, "other.gguf"), (begun, None)):
        (tmp_path / "out.jsonl").write_bytes(right[:9] if accept == "coupled" else right[:-9])
        if accept == "coupled":
            go_on(llm, tmp_path)
        else:
            with pytest.raises(BatchFileError, match="of another model or of other options"):
                go_on(llm, tmp_path)


@pytest.mark.parametrize("data", [b"my notes", b"\nmy notes\n7\t{", b"12 my notes\n", b"\0" * 50])
def test_a_file_beside_it_that_is_not_ours_stays_as_it_is(llm, tmp_path, right, data):
    ahead = tmp_path / "out.jsonl.ahead"
    ahead.write_bytes(data)
    with pytest.raises(
        BatchFileError, match=r"out.jsonl.ahead is not a file of gguf-spec"
    ) as caught:
        Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert caught.value.hint
    assert ahead.read_bytes() == data


def test_a_refusal_removes_nothing(llm, tmp_path, right):
    """The results are complete, so the end of a batch would remove the file beside them."""
    ahead = tmp_path / "out.jsonl.ahead"
    for data, results, fault in (
        (b"my notes", right, "is not a file of gguf-spec"),
        (b'30\t{"id": "ba\n', right + right.splitlines(keepends=True)[0], "of more lines"),
    ):
        (tmp_path / "out.jsonl").write_bytes(results)
        ahead.write_bytes(data)
        with pytest.raises(BatchFileError, match=fault):
            Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
        assert ahead.read_bytes() == data


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "data", [b"", b"\n", b"1", b"\n30\t", b'7\t{"request_id": "batch', b'7\t{"id": "ba\n']
)
def test_a_file_beside_it_that_was_cut_is_ours(llm, tmp_path, right, data):
    (tmp_path / "out.jsonl.ahead").write_bytes(data)
    go_on(llm, tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == right
    assert not (tmp_path / "out.jsonl.ahead").exists()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "data",
    [b"my notes", b"my notes\n", b"{}\n", b'{"id": "batch_x', b'{"id": 7}\n{"id"', b"\0" * 50],
)
def test_a_file_of_something_else_stays_as_it_is(llm, tmp_path, right, data):
    (tmp_path / "out.jsonl").write_bytes(data)
    with pytest.raises(BatchFileError, match=r"line 1 of .* is not a result of gguf-spec batch"):
        Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == data


def test_one_process_at_a_time(llm, tmp_path, right):
    with (
        Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl"),
        pytest.raises(BatchFileError, match="another process writes"),
    ):
        Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    go_on(llm, tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == right


def test_files_that_cannot_be_used(tmp_path):
    source = write(tmp_path / "in.jsonl", LINES)
    for given, target, said in (
        (tmp_path / "none.jsonl", tmp_path / "o", "cannot be read: No such file"),
        (tmp_path, tmp_path / "o", "cannot be read: Is a directory"),
        (source, tmp_path, "cannot be written: Is a directory"),
        (source, tmp_path / "none" / "o", "cannot be written: No such file"),
        (source, source, "is both the file with the requests and that for the results"),
    ):
        with pytest.raises(BatchFileError, match=said):
            Batch(given, target)
    (tmp_path / "p.ahead").mkdir()
    with pytest.raises(BatchFileError, match=r"p\.ahead cannot be read: Is a directory"):
        Batch(source, tmp_path / "p")
    os.link(source, tmp_path / "other")
    with pytest.raises(BatchFileError, match="is both"):
        Batch(source, tmp_path / "other")
    assert source.read_bytes() == write(tmp_path / "copy", LINES).read_bytes()


def test_streams(llm, tmp_path, right):
    """A stream has no time of its own, and cannot be continued as a target."""
    data, out = (tmp_path / "in.jsonl").read_bytes(), io.BytesIO()
    with Batch(io.BytesIO(data), out) as batch:
        assert batch.progress.n_lines is None
        state = batch.run(llm, DEFAULTS, max_parallel=2)
    assert state.n_lines == N
    results = [json.loads(line) for line in out.getvalue().splitlines()]
    assert results[:-2] == [json.loads(line) for line in right.splitlines()][:-2]
    (tmp_path / "out.jsonl").write_bytes(right[:1500])
    with Batch(io.BytesIO(data), tmp_path / "out.jsonl") as batch:
        batch.run(llm, DEFAULTS)
    assert read(tmp_path / "out.jsonl")[:-2] == results[:-2]


def test_a_full_disk(llm, tmp_path, right, monkeypatch):
    """Written results stay; the next run continues behind them."""
    write_, n = run.Output._write, []

    def full(self, file, data):
        n.append(1)
        if len(n) == 9:
            write_(self, file, data[:40])
            raise OSError(28, "No space left on device")
        write_(self, file, data)

    monkeypatch.setattr(run.Output, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        go_on(llm, tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == right[
        : right.index(b"\n" + right.split(b"\n")[8]) + 41
    ]
    go_on(llm, tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == right


def test_results_reach_the_disk_in_steps(llm, tmp_path, right, monkeypatch):
    now, synced = [0.0], []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(now[0]))
    with Batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", clock=lambda: now[0]) as batch:
        batch.run(llm, DEFAULTS, on_progress=lambda _: now.__setitem__(0, now[0] + 0.3))
    assert 5 < len(synced) < N / 2
    assert max(b - a for a, b in itertools.pairwise(synced)) < 1.6


def test_progress():
    now = BatchProgress(100, 30, 2, 10, 600, 40.0)
    assert (now.tokens_per_s, now.seconds_left) == (15.0, 140.0)
    assert BatchProgress(None, 3, 0, 0, 5, 1.0).seconds_left is None
    assert BatchProgress(9, 3, 0, 3, 0, 0.0).seconds_left is None
    assert BatchProgress(9, 3, 0, 3, 0, 0.0).tokens_per_s == 0


@pytest.mark.full
def test_memory_stays_flat(llm, tmp_path, monkeypatch):
    """Of a long file, few lines are in memory at any time."""
    monkeypatch.setattr(LineDefaults, "check", lambda *_: None)
    n_lines, most, put = 3000, [0], run.Output.put

    def watched(self, result):
        put(self, result)
        most[0] = max(most[0], len(self._begun), len(self._earlier))

    monkeypatch.setattr(run.Output, "put", watched)
    write(tmp_path / "in.jsonl", [b"x"] * n_lines)
    state = go_on(llm, tmp_path, LineDefaults(Sampling(seed=1)), max_parallel=2)
    assert (state.n_done, state.n_failed) == (n_lines, n_lines)
    assert most[0] <= 16 * 2 + 4


@pytest.mark.parametrize("name", ["长" * 85, "a" * 249, "a" * 255])
def test_results_that_wait_beside_a_file_with_a_long_name(tmp_path, name):
    path = tmp_path / name
    path.touch(0o600)
    output = run.Output(path)
    output.match(iter(()))
    assert len(list(output.numbered(run.Line(i, b"x", "") for i in (1, 2)))) == 2
    output.put(run.LineResult(2, b"second\n", None))
    modes = [stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()]
    assert modes == [0o600, 0o600], "it has results of a file that others may not read"
    output.put(run.LineResult(1, b"first\n", None))
    output.close(is_whole=True)
    assert path.read_bytes() == b"first\nsecond\n"
    assert [one.name for one in tmp_path.iterdir()] == [name]
