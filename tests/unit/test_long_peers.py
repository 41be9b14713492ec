"""scripts/bench/bench_peers.py --long: with programs that answer as llama.cpp's do, from the arguments to the table."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.llama.options import physical_cores

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))
import _long_peers
import bench_peers
from _long_peers import Contender, Figures, Row, compare_long, is_same, row_of, write_prompt

from tests.support.programs import python_program

BUNDLED = Path(__file__).parents[2] / "gguf_spec" / "data" / "tales"
N_TOKENS = 12
PROGRAM = """\
import json, sys
words = sys.argv[1:]
if "bench" in sys.argv[0]:
    print(json.dumps([dict(avg_ts=50.0)]))
    sys.exit()
text = open(words[words.index("-f") + 1], "rb").read()
with open({log!r}, "a") as log:
    print(json.dumps([sys.argv[0].rpartition("/")[2].removesuffix(".py"), *words]), file=log)
attention = words[words.index("-fa") + 1] if "-fa" in words else "auto"
print("the prompt and some text")
speed = dict(auto="10", on="5", off="20")[attention]
print("encoded {n} tokens in 2.0 seconds, speed: 1 t/s\\ndecoded 12 tokens in 1 seconds, speed: " + speed + " t/s", file=sys.stderr)
"""
SERVER = """\
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(dict(content="?", timings=dict(prompt_n=len(asked["prompt"]), prompt_ms=1500.0, predicted_per_second=8.0)))
        self.send_response(200); self.end_headers(); self.wfile.write(body.encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def programs(tmp_path):
    """A folder of programs; those that read a file report `n` tokens."""
    folder, log = tmp_path / "bin", tmp_path / "log"

    def make(n):
        folder.mkdir(exist_ok=True)
        for name in ("llama-lookup", "llama-speculative-simple", "llama-bench"):
            python_program(folder / name, PROGRAM.format(n=n, log=str(log)))
        python_program(folder / "llama-server", SERVER)
        return folder

    return make


def arguments(monkeypatch, *more):
    target, draft = BUNDLED / "tales-target-Q8_0.gguf", BUNDLED / "tales-draft-Q4_0.gguf"
    words = [
        "-m",
        target,
        "-d",
        draft,
        "--threads",
        1,
        "--tokens",
        N_TOKENS,
        "--ctx",
        2048,
        "--runs",
        2,
        *more,
    ]
    return bench_peers.arguments([*map(str, words)])


def n_prompt(tales, name):
    (workload,) = [one for one in _long_peers.LONG_WORKLOADS if one.name == name]
    loaded_by_path = SimpleNamespace(prompt="chat", n_ctx=2048, tokenize=tales.tokenize)
    return len(_long_peers.prompt_ids(loaded_by_path, workload, N_TOKENS))


@pytest.mark.full
def test_the_table(tales, programs, tmp_path, monkeypatch, capsys):
    args = arguments(
        monkeypatch, "--long", "json-1k", "--lengths", "1,3", "--json", tmp_path / "a.json"
    )
    compare_long(args, programs(n_prompt(tales, "json-1k")))
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("workload")
    names = [line[13:55].strip() for line in out[1:]]
    assert names == [
        "ours, plain", "ours, adaptive", "llama-lookup, no draft", "llama-lookup, no draft, -fa on", "llama-lookup, no draft, -fa off",
        *(f"{name}{more}" for name in (
            "llama-lookup N=8", "llama-server, plain", "llama-speculative-simple N=1", "llama-server, draft N=1",
            "llama-speculative-simple N=3", "llama-server, draft N=3", "llama-bench",
        ) for more in ("", ", -fa off")),
    ]  # fmt: skip
    rows = {
        row["contender"]: row
        for row in json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["rows"]
    }
    assert rows["ours, adaptive"]["total_ratios"] == [1.0, 1.0]
    simple = rows["llama-speculative-simple N=1, -fa off"]
    assert (simple["first_s"], simple["speed"], simple["total_s"], len(simple["runs"])) == (
        2.0,
        20.0,
        2.6,
        2,
    )
    assert (rows["llama-server, plain"]["first_s"], rows["llama-server, plain"]["speed"]) == (
        1.5,
        8.0,
    )
    assert rows["llama-lookup N=8"]["speed"] == pytest.approx(10 * 11 / 12)
    commands = [
        json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    ]
    assert all(command[command.index("-b") + 1] == "2048" for command in commands)


@pytest.mark.full
def test_a_program_that_read_other_tokens_is_not_compared(tales, programs, monkeypatch):
    args = arguments(monkeypatch, "--long", "json-1k")
    with pytest.raises(SystemExit, match=r"llama-lookup, no draft read 5 tokens, not \d+"):
        compare_long(args, programs(5))


@pytest.mark.full
def test_a_program_that_is_not_there_has_no_row(tales, programs, monkeypatch, capsys):
    args = arguments(monkeypatch, "--long", "json-1k", "--contenders", "server,plain", "--runs", 1)
    folder = programs(n_prompt(tales, "json-1k"))
    (folder / "llama-server").unlink()
    compare_long(args, folder)
    assert [line[13:55].strip()[:12] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "ours, plain",
        "ours, adapti",
        *["llama-lookup"] * 3,
    ]


def test_ratios_are_those_of_our_adaptive_runs():
    args = SimpleNamespace(tokens=100)
    pairs = [
        (Figures(10, 1.0, 20.0), Figures(10, 2.0, 10.0, "text")),
        (Figures(10, 1.0, 25.0), Figures(10, 1.0, 20.0)),
    ]
    row = row_of(args, "json-1k", Contender("x", "llama-lookup", "on"), pairs, "text")
    assert isinstance(row, Row) and row.contender == "x, -fa on"
    assert (row.first_ratios, row.speed_ratios, row.total_ratios) == (
        [2.0, 1.0],
        [2.0, 1.25],
        [12 / 6, 6 / 5],
    )
    assert (row.first_s, row.speed, row.prompt_per_s, row.same_text) == (1.5, 15.0, 7.5, True)


def test_texts_are_compared_as_far_as_both_go():
    text = "Once upon a time there was a king who had three sons."
    assert is_same(text, f"the prompt {text} And more")
    assert not is_same(text, "the prompt Once upon a time there was a queen")


def test_the_prompt_file_keeps_its_last_line_end(tales, tmp_path):
    ids = tales.tokenize([{"role": "user", "content": "é\n\n"}])
    write_prompt(tales, ids, tmp_path / "a")
    text = (tmp_path / "a").read_text(encoding="utf-8")
    assert text.endswith("assistant\n\n")
    assert tales.tokenize(text[:-1]) == ids


@pytest.mark.parametrize("word", ["gone", "json-1k,gone"])
def test_unknown_workloads_are_refused(monkeypatch, capsys, word):
    with pytest.raises(SystemExit):
        arguments(monkeypatch, "--long", word)
    assert "gone is not one of document-1k" in capsys.readouterr().err


def test_all_long_workloads(monkeypatch):
    args = arguments(monkeypatch, "--long", "all")
    assert len(args.long) == 10 and args.threads == 1 <= physical_cores()
