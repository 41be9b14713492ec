"""Files for other programs: the commands and options of gguf-spec in them exist. gguf-spec-lan, ray-serve, llama-swap, litellm."""

import configparser
import inspect
import os
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import gguf_spec
from gguf_spec.models import list_models
from gguf_spec.server import Settings
from gguf_spec_ray import application, build
from tests.support import children

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"
FILES = ["llama-swap.yaml", "litellm.yaml", "ray-serve.yaml", "gguf-spec-lan.conf"]
# Keys of llama-swap's config-schema.json that are used.
SWAP_KEYS = {"healthCheckTimeout", "macros", "models"}
SWAP_MODEL_KEYS = {"cmd", "proxy", "checkEndpoint", "aliases", "ttl", "concurrencyLimit", "env"}
LITELLM_KEYS = {
    "model_list": None,
    "router_settings": {"routing_strategy", "num_retries", "allowed_fails", "cooldown_time"},
    "litellm_settings": {"request_timeout"},
    "general_settings": {"master_key"},
}
MODELS = {name for entry in list_models() for name in (entry.name, *entry.aliases)}


def read(name):
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def wrong_words(command):
    """Return the words of a `gguf-spec serve` command that it does not take."""
    from gguf_spec.cli.serve import serve

    program, name, *words = shlex.split(command)
    assert (Path(program).name, name) == ("gguf-spec", "serve")
    try:
        serve.make_context("serve", words, resilient_parsing=False)
    except Exception as error:  # what click says of the words
        return str(error)
    return ""


def swapped():
    config = read("llama-swap.yaml")
    for name, model in config["models"].items():
        command = model["cmd"]
        for macro, text in config["macros"].items():
            command = command.replace(f"${{{macro}}}", text)
        yield name, model, command.replace("${PORT}", "5800")


def test_llama_swap():
    config = read("llama-swap.yaml")
    assert set(config) <= SWAP_KEYS
    for _, model, command in swapped():
        assert set(model) <= SWAP_MODEL_KEYS
        assert not wrong_words(command)
        assert "--port 5800" in command
        assert model["proxy"] == "http://127.0.0.1:${PORT}"
        assert re.search(r"--model (\S+)", command)[1] in MODELS
    assert wrong_words("gguf-spec serve --no-such-thing 3")
    assert wrong_words("gguf-spec serve --port many")


def test_variables_are_options():
    from gguf_spec.cli.serve import serve

    known = {f"GGUF_SPEC_{one.name.upper()}" for one in serve.params}
    for name in FILES:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert set(re.findall(r"GGUF_SPEC_[A-Z_]+", text)) <= known, name


WITH_COMMANDS = [name for name in FILES if name not in ("gguf-spec-lan.conf", "ray-serve.yaml")]


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_commands_in_comments(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^#.*?((?<!/)\bgguf-spec serve [^#\n)]*--?[^#\n)]*)", text)
    models = re.findall(r"models pull (\S+?)\.?\s", text)
    assert commands or models
    for command in commands:
        assert not wrong_words(command.rstrip())
    for model in models:
        assert model in MODELS


def test_litellm():
    config = read("litellm.yaml")
    assert set(config) == set(LITELLM_KEYS)
    for name, keys in LITELLM_KEYS.items():
        assert keys is None or set(config[name]) <= keys
    for one in config["model_list"]:
        assert set(one) == {"model_name", "litellm_params"}
        given = one["litellm_params"]
        assert set(given) == {"model", "api_base", "api_key"}
        provider, _, model = given["model"].partition("/")
        assert (provider, model in MODELS) == ("openai", True)
        assert given["api_base"].endswith(
            ":8080/v1"
        )  # the default port, and the base of OpenAI's routes
        assert given["api_key"] == "os.environ/GGUF_SPEC_API_KEY"


def test_ray_serve():
    (one,) = read("ray-serve.yaml")["applications"]
    assert one["import_path"] == f"{build.__module__.rpartition('.')[0]}:{build.__name__}"
    known = {
        *inspect.signature(application).parameters,
        *inspect.signature(gguf_spec.load).parameters,
        *(field.name for field in fields(Settings)),
    }
    assert set(one["args"]) <= known - {"settings", "options"}
    assert one["args"]["model"] in MODELS


def test_the_drop_in():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(EXAMPLES / "gguf-spec-lan.conf")
    assert not wrong_words(unit["Service"]["ExecStart"])
    assert "--host 0.0.0.0" in unit["Service"]["ExecStart"]
    assert unit["Service"]["EnvironmentFile"] == "/etc/gguf-spec/key.env"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_accepts_the_drop_in(tmp_path):
    def verify(text):
        unit = tmp_path / "gguf-spec.service"
        unit.write_text(
            re.sub(r"(?m)^ExecStart=/\S+", "ExecStart=/bin/true", (EXAMPLES / unit.name).read_text(encoding="utf-8")),
            encoding="utf-8",
        )  # fmt: skip
        folder = tmp_path / "gguf-spec.service.d"
        folder.mkdir(exist_ok=True)
        text = re.sub(r"(?m)^ExecStart=/\S+", "ExecStart=/bin/true", text)
        (folder / "lan.conf").write_text(text, encoding="utf-8")
        return children.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False,
            env=os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        )  # fmt: skip

    text = (EXAMPLES / "gguf-spec-lan.conf").read_text(encoding="utf-8")
    done = verify(text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "NoSuchThing" in verify(text + "NoSuchThing=1\n").stderr
