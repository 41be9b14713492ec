"""Options of the command line that commands share."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import gguf_spec
from gguf_spec.cli import options
from gguf_spec.cli.options import ADAPTER
from gguf_spec.errors import InvalidOptionError
from gguf_spec.llama.options import context_options
from gguf_spec.options import LOADING, Draft, Speculation
from gguf_spec.runtime.load import load


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lora.gguf", ("lora.gguf", 1.0)),
        ("lora.gguf:0.5", ("lora.gguf", 0.5)),
        ("lora.gguf:-2", ("lora.gguf", -2.0)),
        ("lora.gguf:1e-1", ("lora.gguf", 0.1)),
        ("lora.gguf:", ("lora.gguf:", 1.0)),
        ("lora.gguf:big", ("lora.gguf:big", 1.0)),
        (r"C:\models\lora.gguf", (r"C:\models\lora.gguf", 1.0)),
        (r"C:\models\lora.gguf:0.25", (r"C:\models\lora.gguf", 0.25)),
        ("C:/models/lora.gguf", ("C:/models/lora.gguf", 1.0)),
        ("a:b.gguf", ("a:b.gguf", 1.0)),
        ("a:1:2", ("a:1", 2.0)),
        (":0.5", (":0.5", 1.0)),
        ("x" * 5000, ("x" * 5000, 1.0)),
    ],
)
def test_a_file_and_its_scale(text, found):
    assert ADAPTER.convert(text, None, None) == found


def test_a_file_that_ends_like_a_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v:1").touch()
    assert ADAPTER.convert("v:1", None, None) == ("v:1", 1.0)
    assert ADAPTER.convert("v:1:0.5", None, None) == ("v:1", 0.5)


def test_no_file():
    with pytest.raises(click.BadParameter, match=r"lora\.gguf:0\.5"):
        ADAPTER.convert("", None, None)


@pytest.fixture
def loaded(monkeypatch):
    """Return the arguments of `load` by a command with the options of models."""
    calls = []
    llm = SimpleNamespace(draft_name=None, notes=(), draft_notes=())

    def load(*args, **given):
        calls.append((args, given))
        return llm

    monkeypatch.setattr(gguf_spec, "load", load, raising=False)
    monkeypatch.delenv("GGUF_SPEC_KERNELS", raising=False)  # of a variant: see scripts/test

    @click.command(context_settings={"auto_envvar_prefix": "GGUF_SPEC"})
    @options.model_options
    @click.option("--other", help="Another draft.")
    def command(**given):
        given["offline"] = True
        options.load_models(given, Speculation(), given["other"])

    def run(*args, env=None):
        result = CliRunner().invoke(command, args, env=env, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return calls.pop()[1]

    return run


def test_the_note_on_a_measurement_is_true_of_each(loaded, monkeypatch):
    """After a disturbed one it is made again at the next load."""
    said = []
    monkeypatch.setattr(options.StatusLine, "show", lambda _, text: said.append(text))
    loaded()["on_measure"]()
    assert said == ["Measuring this model (once; twice, and longer, beside other programs)"]


def test_each_option_reaches_load(loaded):
    asked = {
        "kv_type": "q8_0",
        "draft_kv_type": "q4_0",
        "flash_attention": "on",
        "draft_flash_attention": "off",
        "gpu_layers": 3,
        "draft_gpu_layers": "auto",
        "draft_threads": 3,
        "n_cpu_moe": 2,
        "numa": "isolate",
    }
    flags = [
        text
        for name, value in asked.items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    given = loaded(
        "--draft",
        "d.gguf",
        *flags,
        "--lora",
        "a.gguf",
        "--lora",
        "b.gguf:2",
        "--draft-lora",
        "c.gguf:0.5",
        *("--device", "none", "--draft-device", "A", "--draft-device", "B"),
        *("--override-tensor", "exps=CPU", "--cpu-moe", "--no-mmap", "--mlock"),
    )
    assert (given["device"], given["draft_device"]) == (("none",), ("A", "B"))
    assert given["override_tensor"] == ("exps=CPU",)
    assert (given["cpu_moe"], given["mmap"], given["mlock"]) == (True, False, True)
    assert {name: given[name] for name in asked} == asked
    assert (given["lora"], given["draft_lora"]) == (
        (("a.gguf", 1.0), ("b.gguf", 2.0)),
        (("c.gguf", 0.5),),
    )


def test_without_options_the_defaults_of_load_hold(loaded):
    """A switch with three states among them: it is None, not False."""
    given, parameters = loaded(), inspect.signature(load).parameters
    names = [name for name, rule in LOADING.items() if rule.shape == "one" and name in parameters]
    assert {name: given[name] for name in names} == {
        name: parameters[name].default for name in names
    }


def test_without_them_the_draft_is_as_the_target(loaded):
    given = loaded()
    assert [given[f"draft_{name}"] for name in ("kv_type", "flash_attention", "gpu_layers")] == [
        None,
        None,
        None,
    ]
    assert (given["lora"], given["draft_lora"], given["gpu_layers"]) == ((), (), -1)


def test_an_adapter_belongs_to_the_draft_that_was_named(loaded):
    """`bench` loads another draft beside it, and -k 0 none."""
    given = loaded("--draft-lora", "c.gguf", "--lora", "a.gguf", "--other", "none")
    assert (given["lora"], given["draft_lora"]) == ((("a.gguf", 1.0),), ())


def test_from_the_environment(loaded):
    given = loaded(
        env={
            "GGUF_SPEC_LORA": "a.gguf:0.5 b.gguf",
            "GGUF_SPEC_DRAFT_KV_TYPE": "q8_0",
            "GGUF_SPEC_DRAFT_GPU_LAYERS": "0",
        }
    )
    assert (given["lora"], given["draft_kv_type"], given["draft_gpu_layers"]) == (
        (("a.gguf", 0.5), ("b.gguf", 1.0)),
        "q8_0",
        0,
    )


def test_defaults_of_the_command_line_are_those_of_load():
    parameters = inspect.signature(load).parameters
    defaults = {name: rule.default for name, rule in LOADING.items() if rule.default is not None}
    assert defaults == {name: parameters[name].default for name in defaults}


@pytest.mark.parametrize(
    ("given", "word", "model"),
    [
        (None, "none", None), ("none", "none", None), ("auto", "auto", None),
        ("mtp", "mtp", None), ("ngram", "ngram", None),
        ("smollm2", "", "smollm2"), (Path("auto"), "", Path("auto")),
    ],
)  # fmt: skip
def test_what_a_draft_says(given, word, model):
    """A path is that of a file, also where its name is a word."""
    assert Draft.of(given) == (word, model)


def test_options_of_both_models_from_arguments_of_load():
    target, draft = context_options(
        threads=3,
        draft_kv_type="q8_0",
        draft_threads=1,
        n_cpu_moe=2,
        device="none",
        parallel="auto",
    )
    assert (target.threads, target.kv_type, target.placement.n_cpu_moe) == (3, "f16", 2)
    assert (draft.threads, draft.kv_type, draft.placement.n_cpu_moe) == (1, "q8_0", 0)
    assert draft.placement.devices == target.placement.devices == ("none",)
    with pytest.raises(InvalidOptionError, match=r"^draft_threads is 0"):
        context_options(draft_threads=0)
