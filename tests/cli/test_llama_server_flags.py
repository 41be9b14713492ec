"""The words of llama-server's command line: taken, without effect, or refused by name; none is read as another."""

import re

import click
import pytest

from gguf_spec.cli import options as cli_options
from gguf_spec.cli import serve
from gguf_spec.cli.command import UnknownNameError
from gguf_spec.cli.habits import HIDDEN_NAMES, NO_EFFECT, NOT_HERE
from gguf_spec.errors import InvalidOptionError

# Words -> the parameters that they set.
TAKEN = {
    "-m x.gguf": {"model": ("x.gguf",)},
    "-hf OWNER/REPO": {"model": ("OWNER/REPO",)},
    "-hfr OWNER/REPO:Q8_0": {"model": ("OWNER/REPO:Q8_0",)},
    "-md x.gguf": {"draft": "x.gguf"},
    "--model-draft x.gguf": {"draft": "x.gguf"},
    "-c 4096": {"ctx": 4096},
    "-c 0": {"ctx": 0},
    "--ctx-size 4096": {"ctx": 4096},
    "-t 8": {"threads": 8},
    "-t8": {"threads": 8},
    "-t 0.7": {"temperature": 0.7},
    "-t 1": {"temperature": 1},
    "--threads 8": {"threads": 8},
    "-n 256": {"max_tokens": 256},
    "--n-predict -1": {"max_tokens": -1},
    "-ngl 99": {"gpu_layers": 99},
    "-ngl all": {"gpu_layers": -1},
    "-ngl auto": {"gpu_layers": "auto"},
    "--n-gpu-layers 99": {"gpu_layers": 99},
    "-ngld 99": {"draft_gpu_layers": 99},
    "-dev none": {"device": ("none",)},
    "-devd none": {"draft_device": ("none",)},
    "-ncmoe 4": {"n_cpu_moe": 4},
    "-cmoe": {"cpu_moe": True},
    "-ot exps=CPU": {"override_tensor": ("exps=CPU",)},
    "-fa": {"flash_attention": "on"},
    "-fa on": {"flash_attention": "on"},
    "-fa off": {"flash_attention": "off"},
    "-fa 1": {"flash_attention": "on"},
    "-fa disabled": {"flash_attention": "off"},
    "-fa --port 1": {"flash_attention": "on", "port": 1},
    "--flash-attn on": {"flash_attention": "on"},
    "-ctk q8_0": {"kv_type": "q8_0"},
    "-ctv q8_0": {"kv_type": "q8_0"},
    "-ctk q8_0 -ctv q8_0": {"kv_type": "q8_0"},
    "--cache-type-k q8_0 --cache-type-v q8_0": {"kv_type": "q8_0"},
    "-ctkd q8_0": {"draft_kv_type": "q8_0"},
    "-np 4": {"parallel": 4},
    "-np -1": {"parallel": "auto"},
    "--parallel 4": {"parallel": 4},
    "-td 2": {"draft_threads": 2},
    "--mlock": {"mlock": True},
    "--no-mmap": {"mmap": False},
    "--numa distribute": {"numa": "distribute"},
    "-a name": {"alias": "name"},
    "--alias a,b": {"alias": "a,b"},
    "--host 0.0.0.0": {"host": "0.0.0.0"},
    "--port 9000": {"port": 9000},
    "--api-key secret": {"api_key": "secret"},
    "-to 600": {"timeout": 600.0},
    "--timeout 600": {"timeout": 600.0},
    "--sse-ping-interval 30": {"ping": 30.0},
    "--temp 0.6": {"temperature": 0.6},
    "--top-k 20": {"top_k": 20},
    "--top-p 0.9": {"top_p": 0.9},
    "--min-p 0": {"min_p": 0.0},
    "--repeat-penalty 1.1": {"repeat_penalty": 1.1},
    "--repeat-last-n 64": {"penalty_last_n": 64},
    "--presence-penalty 0.5": {"presence_penalty": 0.5},
    "-s 5": {"seed": 5},
    "--pooling mean": {"pooling": "mean"},
    "--lora a.gguf": {"lora": (("a.gguf", 1.0),)},
    "-mm a.gguf": {"mmproj": "a.gguf"},
    "--rpc host:1": {"rpc": ("host:1",)},
    "--draft-max 16": {"k": 16},
    "-v": {"verbose": 1},
    "--offline": {"offline": True},
}  # fmt: skip
WITHOUT_EFFECT = [
    "--jinja", "--no-webui", "--metrics", "--slots", "--props", "-cb", "--cont-batching", "-kvu", "--no-warmup", "--no-context-shift",
    "--cache-reuse 256", "-cram 1024", "--ctx-checkpoints 8", "-tb 8", "--threads-batch 8", "--threads-http 4", "-b 2048", "--batch-size 2048",
    "-ub 512", "--ubatch-size 512", "--swa-full", "--log-disable", "--log-file x.log", "-lv 3", "--log-prefix", "--log-colors auto", "--embedding",
    "--reranking", "--reasoning-format deepseek", "--reasoning-format auto", "--reasoning-budget -1", "-sm layer", "-mg 0", "--prio 2", "--poll 50",
    "-dt 0.1", "-e", "--check-tensors", "--draft-min 4", "--draft-p-min 0.4", "-cd 4096", "-sps 0.5", "--perf", "-nr", "--rope-scaling none",
]  # fmt: skip
# Words -> a word of the hint.
REFUSED = {
    "--no-jinja": "template", "--context-shift": "--ctx-max", "-sm row": "layer", "-mg 1": "takes 0", "-ts 3,1": "--gpu-layers", "-nkvo": "--gpu-layers",
    "--rope-scaling yarn": "none", "--rope-freq-base 10000": "file", "--override-kv a=b": "file", "-hff x.gguf": "hf:OWNER", "-hft hf_secret": "HF_TOKEN",
    "-mu http://a": "OWNER", "--api-key-file x": "GGUF_SPEC_API_KEY", "--ssl-cert-file x": "proxy", "--slot-save-path x": "--keep FOLDER",
    "--reasoning-format none": "deepseek", "--reasoning-budget 0": "-1", "-j {}": "request", "--grammar x": "request", "-l 5+1": "request",
    "-ctk q8_0 -ctv q4_0": "--kv-type", "--models-dir x": "--store", "--mirostat 2": "sampler", "--chat-template-kwargs {}": "request",
}  # fmt: skip
# The words that issue 80 counts: each form of the usual lines.
USUAL = [
    "-m x.gguf", "-hf OWNER/REPO", "-md x.gguf", "-c 4096", "-c 0", "--ctx-size 4096", "-t 8", "--threads 8", "-tb 8", "-n 256", "-ngl 99", "-ngl all",
    "--n-gpu-layers 99", "-fa", "-fa on", "--flash-attn on", "-ctk q8_0", "-ctv q8_0", "--cache-type-k q8_0 --cache-type-v q8_0", "-np 4",
    "--parallel 4", "-cb", "--cont-batching", "-b 2048", "-ub 512", "--jinja", "--no-webui", "--metrics", "--slots", "--props", "--mlock", "--no-mmap",
    "--log-disable", "-sm layer", "-sm row", "-mg 0", "-ts 3,1", "-dev none", "--host 0.0.0.0", "--port 9000", "--api-key secret", "--api-key-file x",
    "-a name", "--temp 0.6", "--top-k 20", "-to 600", "--reasoning-format deepseek", "--cache-reuse 256", "--slot-save-path x", "--no-context-shift",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(serve, "_has_gpu", lambda: True)


def read(words):
    """Return the parameters that words set, and the options that are named as without effect."""
    context = serve.serve.make_context("serve", words.split())
    source = click.core.ParameterSource.COMMANDLINE
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is source
    }
    return {k: str(v) if k == "mmproj" else v for k, v in given.items()}, context.meta.get(
        serve._LEFT_OUT, []
    )


@pytest.mark.parametrize("words", TAKEN)
def test_what_has_a_meaning_is_taken(words):
    assert read(words) == (TAKEN[words], [])


@pytest.mark.parametrize("words", WITHOUT_EFFECT)
def test_what_is_harmless_is_named_in_a_line(words, capsys):
    assert read(words) == ({}, [words])
    assert capsys.readouterr().err == f"Note: {words} has no effect here.\n"


@pytest.mark.parametrize("words", REFUSED)
def test_the_rest_is_refused_by_name(words):
    with pytest.raises(UnknownNameError) as caught:
        read(words)
    name = words.split()[0]
    assert REFUSED[words] in caught.value.hint
    assert name in caught.value.message or "-ctv" in words
    assert "hf_secret" not in caught.value.message + caught.value.hint


def test_of_the_usual_words_most_start():
    assert len(USUAL) >= 48 and len({*USUAL}) == len(USUAL)
    assert {*USUAL} <= {*TAKEN, *WITHOUT_EFFECT, *REFUSED}
    assert len([words for words in USUAL if words not in REFUSED]) >= 40


# Words of a line for a GPU -> what is named, and the parameters that stay.
OF_GPU = {
    "-ngl 99": ("--gpu-layers", {"gpu_layers": -1}),
    "--n-gpu-layers 20 -ngld 99": ("--gpu-layers, --draft-gpu-layers", {"gpu_layers": -1, "draft_gpu_layers": None}),
    "-dev CUDA0": ("--device", {"device": ()}),
    "--device CUDA0 --device none": ("--device", {"device": ("none",)}),
    "-devd Vulkan0": ("--draft-device", {"draft_device": ()}),
    "-ot exps=CUDA0 -ot exps=CPU": ("--override-tensor", {"override_tensor": ("exps=CPU",)}),
    "-sm row": ("-sm row", {}), "-mg 1": ("-mg 1", {}), "-ts 3,1": ("-ts 3,1", {}), "--split-mode none": ("--split-mode none", {}),
    "--tensor-split 3,1": ("--tensor-split 3,1", {}), "-nkvo": ("-nkvo", {}), "--no-kv-offload": ("--no-kv-offload", {}),
    "-ngl 99 -ts 1,1 -mg 1": ("-ts 1,1, -mg 1, --gpu-layers", {"gpu_layers": -1}),
    "-ngl 0": ("", {"gpu_layers": 0}), "-ngl all": ("", {"gpu_layers": -1}), "-ngl auto": ("", {"gpu_layers": "auto"}),
    "-dev none": ("", {"device": ("none",)}), "-ot exps=CPU": ("", {"override_tensor": ("exps=CPU",)}),
    "-ngl 99 --rpc host:1": ("", {"gpu_layers": 99, "rpc": ("host:1",)}),
}  # fmt: skip


@pytest.mark.parametrize("words", OF_GPU)
def test_without_a_gpu_backend_its_options_are_named_in_a_line(words, capsys, monkeypatch):
    monkeypatch.setattr(serve, "_has_gpu", lambda: False)
    named, given = OF_GPU[words]
    assert read(words) == (given, [])
    why = f"Note: {re.escape(named)} (has|have) no effect here: this build of llama.cpp has no GPU backend\\.\\n"
    assert re.fullmatch(why if named else "", capsys.readouterr().err)


def test_with_a_gpu_backend_a_number_of_layers_stays(capsys):
    assert read("-ngl 99 -dev CUDA0") == ({"gpu_layers": 99, "device": ("CUDA0",)}, [])
    assert capsys.readouterr().err == ""


def test_several_are_in_one_line(capsys):
    given, left_out = read("-m x.gguf --jinja -c 512 --metrics -ub 64 --port 0 -fa")
    assert given == {"model": ("x.gguf",), "ctx": 512, "port": 0, "flash_attention": "on"}
    assert left_out == ["--jinja", "--metrics", "-ub 64"]
    assert capsys.readouterr().err == "Note: --jinja, --metrics, -ub 64 have no effect here.\n"


def test_threads_are_told_from_the_temperature(capsys):
    read("-t 8")
    assert "-t 8 is read as --threads 8; --temperature 8" in capsys.readouterr().err
    read("-t 0.8 --threads 4")
    assert capsys.readouterr().err == ""


def test_a_name_is_in_one_table():
    """And is no name of an own option, which would be lost."""
    rows = [*NO_EFFECT, *NOT_HERE]
    names = [
        word for row in rows for word in row.partition(" [")[0].split() if word.startswith("-")
    ]
    own = [name for one in serve.serve.params for name in (*one.opts, *one.secondary_opts)]
    own += [name for one in serve.serve.params for name in HIDDEN_NAMES.get(one.name, ())]
    assert len({*names}) == len(names) and not {*names} & {*own}
    assert all(re.fullmatch(r"-[a-zA-Z]+|--[a-z][a-z-]+|-no-kvu", name) for name in names)


def test_they_are_neither_in_the_help_nor_in_the_environment(monkeypatch):
    context = click.Context(serve.serve, info_name="serve")
    assert "--jinja" not in serve.serve.get_help(context)
    for i in range(200):
        monkeypatch.setenv(f"GGUF_SPEC_FOREIGN_{i}", "1")
    assert read("--port 1") == ({"port": 1}, [])


def test_a_name_is_no_chat_template(tmp_path):
    """llama-server has templates by name; here it would be the whole text of each prompt."""
    given, _ = read("--chat-template chatml")
    options = (
        dict.fromkeys(cli_options.PARAMETERS.values()) | given | {"draft": "none", "verbose": 0}
    )
    with pytest.raises(InvalidOptionError, match="chatml"):
        cli_options.load_arguments(options, "none")
    options["chat_template"] = "{{ messages[0].content }}"
    assert cli_options.load_arguments(options, "none")["chat_template"]


@pytest.mark.full
def test_a_line_of_llama_server_starts(here):
    """As far as the model, which is not there."""
    said = here(
        "serve",
        "-m",
        "gone.gguf",
        "--jinja",
        "-c",
        "0",
        "-fa",
        "-ctk",
        "f16",
        "-b",
        "64",
        "--port",
        "0",
        "-ngl",
        "99",
        "--no-webui",
    )
    assert said.returncode == 1 and b"gone.gguf" in said.stderr
    assert b"Note: --jinja, -b 64, --no-webui have no effect here." in said.stderr
