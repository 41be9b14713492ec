"""Tables at a narrow terminal, and progress where there is none: what a person and a log can read."""

import re
from types import SimpleNamespace

import pytest

from gguf_spec import Progress
from gguf_spec.cli import doctor, download, models, output, serve
from gguf_spec.cli.bench import all_ratios
from tests.unit.test_tune import tuning


@pytest.fixture
def terminal(monkeypatch):
    """Let tables be fitted to a number of columns; None for a pipe."""

    def set_width(width):
        for one in (output, doctor):
            monkeypatch.setattr(one, "columns_of", lambda: width)

    return set_width


TABLE = output.aligned([("MODEL", "SIZE", "UNLOADED IN", "SERVER"), ("qwen2.5-coder-1.5b", "1.0 GiB", "4 min", "http://127.0.0.1:8080")])  # fmt: skip


@pytest.mark.parametrize("width", [None, 80, 200])
def test_a_table_that_fits_stays(terminal, width):
    terminal(width)
    assert output.fitted(TABLE) == TABLE


@pytest.mark.parametrize("width", [40, 60])
def test_a_row_that_does_not_fit_has_several_lines(terminal, width):
    terminal(width)
    lines = output.fitted(TABLE)
    assert all(len(line) <= width for line in lines), lines
    assert lines[0] == "qwen2.5-coder-1.5b"
    assert " ".join(map(str.strip, lines[1:])) == (
        "SIZE 1.0 GiB, UNLOADED IN 4 min, SERVER http://127.0.0.1:8080"
    )
    assert output.fitted(TABLE[1:], has_head=False)[0] == "qwen2.5-coder-1.5b"


@pytest.mark.parametrize("width", [40, 60])
def test_the_costs_of_passes_fit(terminal, width):
    terminal(width)
    of_target, of_draft = {1: 0.0123, 2: 0.0130, 8: 0.0241}, {1: 0.0015, 8: 0.0031}
    lines = doctor.cost_lines(tuning(of_target, of_draft, 0.5, token_s=0.0001, proposal_s=0.0002))
    assert all(len(line) <= width for line in lines), lines
    assert "\n".join(lines).count("target ms") >= 1


@pytest.mark.parametrize("width", [40, 60])
def test_the_reasons_for_drafts_fit(terminal, width):
    terminal(width)
    found = [
        SimpleNamespace(name="smollm2-135m", path=None, fits=fits, gain=1.5, measured=fits, is_guess=False, head="", why="it has the same tokenizer and costs a tenth of the target")
        for fits in (True, False)
    ]  # fmt: skip
    found[1].path = "x.gguf"
    lines = models.draft_lines("target", found)
    assert all(len(line) <= width for line in lines), lines
    assert "gain 1.50" in "\n".join(lines)


@pytest.mark.parametrize("width", [40, 60])
def test_the_ratios_of_a_benchmark_fit(terminal, width):
    terminal(width)
    one = SimpleNamespace(speedup=SimpleNamespace(median=1.25))
    cases = [
        SimpleNamespace(name=name, results=[SimpleNamespace(contender=SimpleNamespace(name="ngram, k = 8"))], result=lambda _: one)
        for name in ("document-4k", "rewrite-1k", "story", "turn20-4k")
    ]  # fmt: skip
    lines = all_ratios(SimpleNamespace(cases=cases))
    assert all(len(line) <= width for line in lines), lines
    assert "turn20-4k 1.25" in " ".join(line.strip() for line in lines)


@pytest.mark.parametrize("width", [40, 60])
def test_the_models_of_servers_fit(terminal, width, monkeypatch, capsys):
    terminal(width)
    held = {"name": "qwen2.5-coder-1.5b", "size": 10**9, "context_length": 16384, "busy": False, "seconds_left": 60}  # fmt: skip
    servers = [SimpleNamespace(url="http://127.0.0.1:8080", pid=7, models=some) for some in ([held], [])]  # fmt: skip
    monkeypatch.setattr("gguf_spec.server.running_servers", lambda: servers)
    serve.ps.callback(as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in shown), shown
    assert shown[0] == "qwen2.5-coder-1.5b" and "(none)" in shown


def told(capsys):
    shown = capsys.readouterr().err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown), shown
    return shown.splitlines()


def test_a_download_in_a_pipe_has_a_line_for_each_stage(capsys):
    entry = SimpleNamespace(name="smollm2", repo="a/b", size_bytes=100_000_000)
    with download._progress(entry, quiet=False) as tell:
        for stage in ("wait", "download", "download", "unpack", "checksum"):
            for done in range(1000):
                tell(Progress(stage, done, 1000, "bytes"))
    shown = told(capsys)
    assert [line.split()[0] for line in shown] == ["the", "downloading", "unpacking", "verifying"]


def test_measurements_in_a_pipe_have_few_lines(capsys):
    now = [0.0]
    lines = output.CountedLines("measuring", "passes", clock=lambda: now[0])
    for done in range(10_000):
        now[0] += 0.01
        lines(Progress("measure", done, 10_000, "passes"))
    shown = told(capsys)
    assert 1 < len(shown) < 10
    assert re.fullmatch(r"measuring, [\d,]+ of 10,000 passes, about \d+ s left", shown[0]), shown


def test_no_bar_of_loading_in_a_pipe(capsys):
    bar = output.LateBar(clock=iter(range(10_000)).__next__)
    for done in range(1000):
        bar(Progress("load", done, 1000, "bytes"))
    bar.remove()
    assert told(capsys) == []
