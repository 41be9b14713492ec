"""The words of llama-server's command line: taken, without effect, or refused by name; none is read as another."""

import math
import re
from pathlib import Path

import click
import pytest

from gguf_spec.cli import foreign, serve
from gguf_spec.cli import options as cli_options
from gguf_spec.cli.command import CommandGroup, UnknownNameError, hidden_names
from gguf_spec.cli.generate import generate
from gguf_spec.cli.habits import HIDDEN_NAMES, NO_EFFECT, NOT_HERE, OF_COMMANDS, OTHER_MEANING
from gguf_spec.errors import GgufSpecError, InvalidOptionError, OptionConflictError
from gguf_spec.server import Settings

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
    "-hfd OWNER/DRAFT": {"draft": "OWNER/DRAFT"},
    "--spec-draft-hf OWNER/DRAFT": {"draft": "OWNER/DRAFT"},
    "--spec-draft-threads 2": {"draft_threads": 2},
    "--spec-draft-ngl 99": {"draft_gpu_layers": 99},
    "--kv-unified-per-slot 4096": {"ctx": 4096},
    "--sleep-idle-seconds 300": {"keep_alive": 300.0},
    "--sleep-idle-seconds -1": {"keep_alive": float("inf")},
    "--sse-ping-interval -1": {"ping": 0.0},
    "-to 0": {"timeout": 0.0},
    "--log-verbose": {"verbose": 1},
    "--dry-multiplier 0.8": {"dry_multiplier": 0.8},
    "--dry-penalty-last-n -1": {"dry_penalty_last_n": -1},
    "--dry-sequence-breaker x": {"dry_breaker": ("x",)},
    "--lora a.gguf,b.gguf:0.5": {"lora": (("a.gguf", 1.0), ("b.gguf", 0.5))},
    "--ctx_size 4096": {"ctx": 4096},
    "--no_mmap": {"mmap": False},
    "--api-key-file x": {"api_key_file": Path("x")},
    "-c4096": {"ctx": 4096},
    "-ngl=99": {"gpu_layers": 99},
    "-mx.gguf": {"model": ("x.gguf",)},
}  # fmt: skip
WITHOUT_EFFECT = [
    "--jinja", "--no-webui", "--metrics", "--slots", "--props", "-cb", "--cont-batching", "-kvu", "--no-warmup", "--no-context-shift",
    "--cache-reuse 256", "-cram 1024", "--ctx-checkpoints 8", "-tb 8", "--threads-batch 8", "--threads-http 4", "-b 2048", "--batch-size 2048",
    "-ub 512", "--ubatch-size 512", "--swa-full", "--log-disable", "--log-file x.log", "-lv 3", "--log-prefix", "--log-colors auto", "--embedding",
    "--reranking", "--reasoning-format deepseek", "--reasoning-format auto", "--reasoning-budget -1", "-sm layer", "-mg 0", "--prio 2", "--poll 50",
    "--mirostat 0", "--mirostat-lr 0.1", "--dynatemp-range 0.0", "--adaptive-target -1", "--samplers penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
    "--spec-draft-prio 2", "-Cd ff", "-Crd 0-3", "-Cbd ff", "--spec-ngram-mod-n-match 24", "--spec-ngram-map-k4v-size-n 12", "--spec-default", "--spec-draft-sampling greedy",
    "-dio", "-dkvc", "-gan 1", "-lzm auto", "-ncffn 0", "--moe-cache-mib 0", "--log-colors", "--log-jsonl", "--cors-headers *", "--no-cors-credentials", "--ui-config {}",
    "--no-agent", "-no-ag", "--models-max 4", "--embd-normalize 2", "--chat-template-kwargs {}", "--video-fps 4", "--no-mmproj-auto", "--penalize-nl",
    "-dt 0.1", "-e", "--check-tensors", "--draft-min 4", "--draft-p-min 0.4", "-cd 4096", "-sps 0.5", "--perf", "-nr", "--rope-scaling none",
]  # fmt: skip
# Words -> a word of the hint.
REFUSED = {
    "--no-jinja": "template", "--context-shift": "--ctx-max", "-sm row": "layer", "-mg 1": "takes 0", "-ts 3,1": "--gpu-layers", "-nkvo": "--gpu-layers",
    "--rope-scaling yarn": "none", "--rope-freq-base 10000": "file", "--override-kv a=b": "file", "-hft hf_secret": "HF_TOKEN",
    "-mu http://a": "OWNER", "--ssl-cert-file x": "proxy", "--slot-save-path x": "--keep FOLDER",
    "--reasoning-format none": "deepseek", "--reasoning-budget 0": "-1", "-j {}": "request", "--grammar x": "request", "-l 5+1": "request",
    "-ctk q8_0 -ctv q4_0": "--kv-type", "--models-dir x": "--store", "--mirostat 2": "sampler", "--chat-template-kwargs {\"a\":1}": "request",
    "--reasoning-budget-message x --reasoning-effort high": "reasoning_effort", "-mmdev none": "--device", "-otd a=CPU": "draft", "-cmoed": "draft", "--image-max-tokens 9": "file",
    "--mcp-servers-config x": "[mcp.NAME]", "--models-preset x": "--models-file", "-cl": "models list", "--list-devices": "doctor", "--fim-qwen-1.5b-default": "OWNER/REPO",
    "--log-prompts-dir x": "texts", "--no-prefill-assistant": "continue_final_message", "--embd-normalize -1": "embd_normalize", "--spec-synth-len 2": "drafts",
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
    monkeypatch.setattr(foreign, "has_gpu", lambda: True)


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
        foreign.LEFT_OUT, []
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
    name = [word for word in words.split() if word.startswith("-")][-1]
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
    monkeypatch.setattr(foreign, "has_gpu", lambda: False)
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
    rows = [*NO_EFFECT, *NOT_HERE, *OTHER_MEANING, *OF_COMMANDS["serve"]]
    names = [
        word for row in rows for word in row.partition(" [")[0].split() if word.startswith("-")
    ]
    own = [name for one in serve.serve.params for name in (*one.opts, *one.secondary_opts)]
    own += [name for one in serve.serve.params for name in HIDDEN_NAMES.get(one.name, ())]
    assert len({*names}) == len(names) and not {*names} & {*own}
    shape = r"-[a-zA-Z]+|--[a-z][a-z0-9.-]+|-no-(kvu|ag|cnv)"
    assert all(re.fullmatch(shape, name) for name in names)


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


# Words of one option -> the options that they set.
SET_OTHERS = {
    "-lm none": {"mmap": False}, "--load-mode mlock": {"mlock": True}, "-lm mmap+mlock": {"mmap": True, "mlock": True}, "-lm dio": {"mmap": None},
    "-lm none --mmap": {"mmap": True}, "--mmap -lm none": {"mmap": True},
    "--spec-type none": {"draft": "none"}, "--spec-type ngram-mod,ngram-simple": {"draft": "ngram"}, "--spec-type draft-mtp": {"draft": "mtp"},
    "--spec-type draft-simple": {"draft": "auto"}, "--spec-type ngram-mod,draft-mtp": {"draft": "auto"}, "-md x.gguf --spec-type draft-eagle3": {"draft": "x.gguf"},
    "-md x.gguf --spec-type ngram-mod": {"draft": "x.gguf"}, "-md x.gguf --spec-type none": {"draft": "none"},
    "--draft 16": {"draft": "auto", "k": 16}, "--draft 16 -k 4": {"draft": "auto", "k": 4}, "--draft none": {"draft": "none"},
    "-hf OWNER/REPO:Q8_0 -hff x.gguf": {"model": ("hf:OWNER/REPO/x.gguf",)}, "-hff x.gguf -m tales -hf OWNER/REPO": {"model": ("tales", "hf:OWNER/REPO/x.gguf")},
    "--cors-origins http://a,http://b": {"cors_origin": ("http://a", "http://b")}, "--cors-origins *": {"cors_origin": ("*",)},
    "--cors-origins localhost --cors-origin http://a": {"cors_origin": ("http://a", "http://localhost:*", "http://127.0.0.1:*")},
    "--lora-scaled a.gguf:0.5,b.gguf:2 --lora c.gguf": {"lora": (("c.gguf", 1.0), ("a.gguf", 0.5), ("b.gguf", 2.0))},
    "--keep 0": {"keep": "0"}, "--keep 256": {"keep": None}, "--keep 20GB": {"keep": "20GB"}, "--keep 2000000": {"keep": "2000000"},
}  # fmt: skip


@pytest.mark.parametrize("words", SET_OTHERS)
def test_what_stands_for_other_options_sets_them(words):
    context = serve.serve.make_context("serve", words.split())
    wanted = SET_OTHERS[words]
    assert {name: context.params[name] for name in wanted} == wanted
    left_out = ["--keep 256"] if words == "--keep 256" else None
    assert context.meta.get(foreign.LEFT_OUT) == left_out


def test_a_file_with_a_comma_in_its_name_is_one_adapter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b.gguf").touch()
    assert read("--lora a,b.gguf")[0] == {"lora": (("a,b.gguf", 1.0),)}


def test_an_unknown_way_of_loading_is_refused():
    with pytest.raises(UnknownNameError, match="sometimes"):
        read("-lm sometimes")


# A word with one dash that no command has -> what is in its hint.
NAMES = {
    "-mlj": "-m VALUE", "-dxy": "-d VALUE", "-ctx": "", "-nx": "-n VALUE", "-ngl99": "-ngl VALUE", "-c=4096": "-c VALUE", "-mmodel": "VALUE",
    "-xyz": "--help", "-vx": "--help", "-model=x": "VALUE", "-model-x": "VALUE", "-tbx": "", "-hfthf_secret5": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "command", ["serve", "generate", "chat", "batch", "edit", "bench", "verify"]
)
@pytest.mark.parametrize("word", NAMES)
def test_no_name_is_read_as_a_short_option(command, word):
    found = CommandGroup.root.commands[command]
    short = {
        name for one in found.params for name in (*one.opts, *hidden_names(one)) if len(name) == 2
    }
    with pytest.raises(UnknownNameError) as caught:
        found.make_context(command, [word, "1"], help_option_names=["-h", "--help"])
    if NAMES[word][:2] in short or NAMES[word].startswith(("--", "V")):
        assert NAMES[word] in caught.value.hint
    assert "secret5" not in caught.value.message + caught.value.hint
    begin = word[: 4 if word.startswith(("-ngl", "-model")) else 3]
    assert begin.rstrip("9") in caught.value.message


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("-n5", {"max_tokens": 5}),
        ("-t0.5", {"temperature": 0.5}),
        ("-t.5", {"temperature": 0.5}),
        ("-mtiny.gguf", {"model": "tiny.gguf"}),
        ("-m/a/b", {"model": "/a/b"}),
        ("-vv", {"verbose": 2}),
        ("-yv", {"yes": True, "verbose": 1}),
        ("-vn5", {"verbose": 1, "max_tokens": 5}),
        ("-n-1", {"max_tokens": -1}),
        ("--stop -ctx", {"stop": ("-ctx",)}),
        ("-p -abc", {"prompt_option": "-abc"}),
        ("--stop --max_tokens", {"stop": ("--max_tokens",)}),
        ("-l 13+1 -l 7=-inf -l 5-0.5", {"logit_bias": ((13, 1.0), (7, -math.inf), (5, -0.5))}),
    ],
)
def test_a_value_may_follow_its_letter(words, given):
    params = generate.make_context("generate", words.split()).params
    assert {name: params[name] for name in given} == given


# Command -> words of llama-cli, and the options that they set.
OF_COMMAND_LINES = [
    ("generate", "-no-cnv -st --color --no-display-prompt -b 512 -tb 8 --jinja --log-disable --keep 5 --simple-io", {}),
    ("generate", "-t 8 -c 4096 -n 32 -sys x -p y -ub 64", {"threads": 8, "ctx": 4096, "max_tokens": 32, "system": "x", "prompt_option": "y"}),
    ("generate", "-lm none --spec-type none", {"mmap": False, "draft": "none"}),
    ("generate", "--escape", None), ("generate", "-cnv", None), ("generate", "--rope-scale 2", None), ("generate", "--context-shift", None),
    ("chat", "-cnv -i -mli -co --no-warmup", {}), ("chat", "-c 4096 -t 8", {"ctx": 4096, "threads": 8, "continued": False}), ("chat", "-c", {"continued": True}),
    ("chat", "-st", None), ("chat", "-e", None), ("chat", "--keep 5", {"keep": None}),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words", "given"), OF_COMMAND_LINES)
def test_the_words_of_llama_cli(command, words, given, capsys):
    found = CommandGroup.root.commands[command]
    if given is None:
        with pytest.raises(UnknownNameError, match=f"no option {words.split()[0]}\\."):
            found.make_context(command, words.split())
        return
    params = found.make_context(command, words.split()).params
    assert {name: params[name] for name in given} == given
    noted = {
        "-no-cnv",
        "-st",
        "--color",
        "-b",
        "-tb",
        "--jinja",
        "--keep",
        "-ub",
        "-cnv",
        "-i",
        "-mli",
        "--no-warmup",
    }
    said = capsys.readouterr().err
    assert all(word in said for word in words.split() if word in noted)


def test_a_key_in_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("# of the proxy\n\n  secret \n")
    assert serve.key_of(file, None) == "secret"
    with pytest.raises(OptionConflictError, match="combined"):
        serve.key_of(file, "other")
    for text in ("", "# none\n", "one\ntwo\n"):
        file.write_text(text)
        with pytest.raises(GgufSpecError, match="keys in place of one") as caught:
            serve.key_of(file, None)
        assert "two" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1,::1", "/tmp/a.sock", "a b"])
def test_a_server_has_one_address(host):
    with pytest.raises(InvalidOptionError, match="one host name or address"):
        Settings(host=host, api_key="k")


NONE = ["0", "none", "never", "off", "-1", "None", "inf"]


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--timeout", 0),
        ("--ping", 0),
        ("--body-limit", 0),
        ("--max-tokens-limit", None),
        ("--ctx-max", None),
    ],
)
def test_a_limit_can_be_none(option, value, text):
    name = option[2:].replace("-", "_")
    params = serve.serve.make_context("serve", [option, text]).params
    assert params[name] == value
    params |= {"mmproj": None, "mcp": False}
    _, settings = serve._settings(params)
    assert settings.limit_s in (None, 600) and settings.body_bytes in (4_000_000, 256_000_000)


@pytest.mark.parametrize("text", NONE[1:])
def test_a_model_can_stay_and_any_number_can_wait(text):
    words = ["--keep-alive", text, "--queue", text]
    params = serve.serve.make_context("serve", words).params
    assert params["keep_alive"] == math.inf and params["queue"] > 10**9
    params = serve.serve.make_context("serve", ["--keep-alive", "0", "--queue", "0"]).params
    assert (params["keep_alive"], params["queue"]) == (0, 0)


@pytest.mark.parametrize(
    "option", ["--timeout", "--ping", "--queue", "--max-tokens-limit", "--body-limit"]
)
def test_a_limit_that_is_no_number_is_named(option):
    with pytest.raises(click.BadParameter, match="soon") as caught:
        serve.serve.make_context("serve", [option, "soon"])
    assert option in caught.value.format_message()


def test_a_text_behind_two_dashes_stays_as_it_is():
    command = CommandGroup.root.commands["generate"]
    given = command.make_context("generate", ["--", "-t 8"]).params
    assert given["prompt"] == "-t 8"
    assert foreign.as_meant(["-t", "8", "--", "-t", "8"]) == ["--threads", "8", "--", "-t", "8"]
    assert foreign.as_meant(["--", "-c", "100"]) == ["--", "-c", "100"]
