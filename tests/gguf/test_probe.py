"""The probe, with children that behave as broken kernels would."""

import json
import sys

import pytest

import gguf_spec
from gguf_spec.llama import own_kernels, probe, selftest
from gguf_spec.system import files

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def says(text: str) -> str:
    return f"import sys; sys.stdout.write({text!r})"


FAILS = {
    "dies": (DIES, "ended by signal 11"),
    "dies after a good answer": (
        says("0.0\n") + "; sys.stdout.flush(); " + DIES,
        "ended by signal 11",
    ),
    "ends early": ("raise SystemExit(3)", "ended with code 3"),
    "prints nothing": ("pass", "ended with code 0"),
    "prints garbage": (says("hello\n"), "ended with code 0"),
    "prints no number": (says("null"), "gave no number"),
    "prints a list": (says("[1]"), "gave no number"),
    "computes wrong": (says("7.25"), "differ by 7.2"),
    "computes no numbers": (says("NaN"), "differ by nan"),
    "computes infinity": (says("Infinity"), "differ by inf"),
}
WORKS = {
    "exactly": says("0.0"),
    "nearly": says("a warning\n0.15\n"),
}


@pytest.fixture
def child(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def use(code: str) -> None:
        monkeypatch.setattr(probe, "command", lambda *_: [sys.executable, "-c", code])

    return use


@pytest.mark.parametrize(("code", "said"), FAILS.values(), ids=FAILS)
def test_a_child_that_fails(child, caplog, capfd, code, said):
    child(code)
    assert own_kernels.extra_bufts_work() is False
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("gguf_spec.llama.probe", "WARNING")
    note = record.getMessage()
    assert note.startswith("llama.cpp's repacked kernels fail on this machine (")
    assert "\n" not in note
    assert said in note
    caplog.clear()
    child(WORKS["exactly"])
    assert own_kernels.extra_bufts_work() is False, "the answer was not remembered"
    assert caplog.records == [], "said twice"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("code", WORKS.values(), ids=WORKS)
def test_a_child_that_computes_right(child, capfd, code):
    child(code)
    assert own_kernels.extra_bufts_work() is True
    child(DIES)
    assert own_kernels.extra_bufts_work() is True
    assert capfd.readouterr() == ("", "")


def test_no_child_at_all(child, monkeypatch, caplog):
    monkeypatch.setattr(probe, "command", lambda *_: ["/nowhere/python"])
    assert own_kernels.extra_bufts_work() is False
    assert "did not run" in caplog.text


DAMAGED = ["", "{", "[]", "null", '{"no": 1}', "[" * 100_000, '{"ok": false}', '{"ok": "no"}']


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_probe_result_is_measured_again(child, data):
    child(DIES)
    assert own_kernels.extra_bufts_work() is False
    own_kernels.repacking_result().write_text(data, encoding="utf-8")
    child(WORKS["exactly"])
    assert own_kernels.extra_bufts_work() is True
    assert json.loads(own_kernels.repacking_result().read_text(encoding="utf-8"))["ok"] is True
    assert [path.name for path in own_kernels.repacking_result().parent.iterdir()] == [
        own_kernels.repacking_result().name
    ]


def test_a_cache_that_cannot_be_written(child, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    child(WORKS["exactly"])
    assert own_kernels.extra_bufts_work() is True


def test_another_library_or_machine_is_probed_again(child, monkeypatch):
    first = own_kernels.repacking_result()
    monkeypatch.setattr(files, "_cpu", lambda: "flags: other")
    second = own_kernels.repacking_result()
    monkeypatch.setattr("gguf_spec.llama.bindings.llama_parts", lambda: ["libllama.so 3 5"])
    assert len({first, second, own_kernels.repacking_result()}) == 3


@pytest.mark.parametrize(("code", "works"), [(DIES, False), (WORKS["exactly"], True)])
def test_models_are_loaded_by_the_result_of_the_probe(child, gguf_dir, code, works):
    child(code)
    with gguf_spec.load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1) as llm:
        assert [
            model.options.extra_bufts for model in (llm.engine.target, llm.engine.pair.draft)
        ] == [works, works]
        assert llm.generate("Once").finish_reason


def test_no_probe_where_the_caller_decides(child, gguf_dir):
    child(DIES)
    with gguf_spec.load(gguf_dir / "llama.gguf", None, threads=1, extra_bufts=True) as llm:
        assert llm.engine.target.options.extra_bufts is True
    assert not own_kernels.repacking_result().exists()


def test_the_real_child_answers_with_a_small_number(stock_kernels):
    assert probe.command("repacking")[0] == sys.executable
    assert 0 <= selftest.repacking() < 1
