"""The config file, and `gguf-spec config`."""

import json
import os
from pathlib import Path

import pytest

from gguf_spec.cli import config as config_file
from tests.cli.test_errors import check


@pytest.fixture
def config(tmp_path):
    """Write a config file; return the environment in which it is read."""
    file = tmp_path / "gguf-spec" / "config.toml"
    file.parent.mkdir()

    def write(text):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return {"XDG_CONFIG_HOME": str(tmp_path), "GGUF_SPEC_MODEL": ""}

    write.file = file
    return write


# tests with a variant of llama.cpp set it: see scripts/test
NO_VARIANT = {"GGUF_SPEC_KERNELS": None}
PLAIN = '[generate]\nmodel = "abc.gguf"\ndraft = "none"\nraw = true\nthreads = 1\ntemperature = 0\n'


def out(result):
    assert (result.stderr, result.returncode) == (b"", 0)
    return result.stdout.decode()


def test_values_are_defaults(here, config):
    assert out(here("generate", "a", env=config(PLAIN))) == "bcdefghijkl\n"
    assert out(here("generate", "a", env=config(PLAIN + "max-tokens = 3\n"))) == "bcd\n"
    assert out(here("generate", "a", env=config(PLAIN + 'stop = ["x", "d"]\n'))) == "bc\n"
    assert out(here("generate", "a", env=config(PLAIN + 'stop = "d"\n'))) == "bc\n"
    assert out(here("generate", "a", env=config(PLAIN + "n_predict = 2\n"))) == "bc\n"


def test_the_option_then_the_environment_then_the_command_then_all(here, config):
    both = "[default]\nmax_tokens = 1\n" + PLAIN
    assert out(here("generate", "a", env=config(both))) == "b\n"
    env = config(both + "max_tokens = 2\n")
    assert out(here("generate", "a", env=env)) == "bc\n"
    assert out(here("generate", "a", env=env | {"GGUF_SPEC_MAX_TOKENS": "3"})) == "bcd\n"
    assert out(here("generate", "a", "-n", 4, env=env | {"GGUF_SPEC_MAX_TOKENS": "3"})) == "bcde\n"


def test_values_for_all_go_before_those_of_a_command_itself(here, config):
    """The value of the user replaces the default length of `chat`, which differs from that of `generate`."""
    flags = ("chat", "-m", "abc.gguf", "-d", "none", "-t", 0, "--json", "--ignore-eos")
    env = config("[default]\nmax_tokens = 5\n")
    one = json.loads(out(here(*flags, "--threads", 1, stdin=b"hi\n", env=env)))
    assert len(one["tokens"]) == 5


WRONG = {
    "[generate]\ntempratur = 1": ["[generate] tempratur: generate has no option --tempratur", "did you mean temperature?"],
    "[default]\ntempratur = 1": ["[default] tempratur: no command has option --tempratur"],
    "[genrate]\nk = 1": ["[genrate] is not the name of a command", "[generate]"],
    "[models.pul]\ndraft = true": ["[models.pul] is not the name of a command"],
    "temperature = 1": ["temperature is in no section"],
    "[default]\nyes = true": ["yes cannot be set in [default]"],
    "[default]\nforce = true": ["force cannot be set in [default]"],
    '[generate]\ntemperature = "hot"': ["[generate] temperature is 'hot' but must be a number"],
    "[generate]\ntemperature = true": ["[generate] temperature is True but must be a number"],
    "[generate]\nk = 1.5": ["[generate] k is 1.5 but must be a whole number"],
    "[generate]\nstats = 1": ["[generate] stats is 1 but must be true or false"],
    "[generate]\nstop = [1]": ["[generate] stop is [1] but must be text or a list of that"],
    "[generate]\nmodel = [1]": ["[generate] model is [1] but must be text"],
    '[default]\nflash_attention = "maybe"': ["[default] flash_attention: 'maybe' is not one of"],
    '[generate]\nlogit_bias = ["5"]': ["[generate] logit_bias: '5' is not a token id and a bias"],
    "[generate]\ntemperature = -1": ["--temperature is -1", "correct temperature in [generate] of "],
    "[default]\nctx = 1": ["--ctx is 1", "correct ctx in [default] of "],
    "[generate]\nk = \nstats = true": ["at line 2"],
    "[generate]\n= 1": ["line 2"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=lambda value: str(value)[:25])
def test_what_is_wrong_is_named_with_the_file(here, config, text, said):
    env = config(text)
    check(here("generate", "a", "-m", "abc.gguf", env=env), 2, *said, "config.toml")
    assert here("generate", "--help", env=env).returncode == 0
    assert here("config", "path", env=env).returncode == 0


def test_a_file_that_is_not_text(here, config):
    check(here("generate", "a", env=config(b"\xff\xfe[")), 2, "config.toml: it is not UTF-8")
    config.file.unlink()
    config.file.mkdir()
    check(
        here("generate", "a", env={"XDG_CONFIG_HOME": str(config.file.parents[1])}),
        2,
        "cannot be read",
    )


def test_a_wrong_value_for_another_command_stops_nothing(here, config):
    env = config(PLAIN + '[chat]\ntemperature = "hot"\n')
    assert out(here("generate", "a", env=env)) == "bcdefghijkl\n"
    check(here("config", env=env), 2, "[chat] temperature is 'hot'")


def test_an_option_goes_before_a_value_of_the_file_in_hints(here, config):
    env = config("[generate]\ntemperature = 1\n")
    said = check(
        here("generate", "a", "-m", "abc.gguf", "-t", -1, env=env), 2, "--temperature is -1"
    )
    assert "config.toml" not in said


def test_show(here, config):
    env = config(
        '[default]\nthreads = 2\n[serve]\napi_key = "secret"\n[models.pull]\ndraft = false\n'
    )
    env |= NO_VARIANT
    text = out(here("config", env=env | {"GGUF_SPEC_SEED": "7", "GGUF_SPEC_API_KEY": "hidden"}))
    assert text.splitlines() == [
        str(config.file), "", "[default]", "  threads = 2", "", "[serve]", '  api_key = "(set)"', "",
        "[models.pull]", "  draft = false", "", "environment", '  GGUF_SPEC_API_KEY = "(set)"', '  GGUF_SPEC_SEED = "7"',
    ]  # fmt: skip
    shown = json.loads(out(here("config", "show", "--json", env=env)))
    assert (shown["path"], shown["exists"]) == (str(config.file), True)
    assert shown["values"][0] == {
        "source": "file",
        "section": "default",
        "key": "threads",
        "value": 2,
    }


def test_a_misspelt_variable_and_section_are_named(here, config):
    env = {"GGUF_SPEC_SEEED": "7", "GGUF_SPEC_BUILD_LLAMA": "0"}
    said = here("config", env=env).stderr.decode()
    assert said == "Note: GGUF_SPEC_SEEED sets no option. Did you mean GGUF_SPEC_SEED?\n"
    for name, meant in (("gnerate", "generate"), ("models.pul", "models.pull")):
        said = check(here("config", env=config(f"[{name}]\n")), 2, "is not the name of a command")
        assert f"did you mean [{meant}]?" in said


def test_no_file(here, config, tmp_path):
    env = {"XDG_CONFIG_HOME": str(tmp_path / "none")}
    assert out(here("config", "path", env=env)) == f"{tmp_path}/none/gguf-spec/config.toml\n"
    assert "does not exist" in out(here("config", env=env))


def test_without_a_file_no_other_command_is_imported(here, monkeypatch, tmp_path):
    monkeypatch.setattr(config_file, "_commands", None)
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert out(here("generate", "a", "-m", "abc.gguf", "-d", "none", "--raw", "-t", 0, env=env))


def test_an_editor_that_cannot_be_started(here, tmp_path):
    env = {"XDG_CONFIG_HOME": str(tmp_path), "VISUAL": None, "EDITOR": "/nowhere/editor"}
    said = check(here("config", "edit", env=env), 2, "config.toml: it was not edited: ")
    assert said.endswith("Hint: set VISUAL or EDITOR to an editor on this machine.\n")


def test_a_wrong_value_in_the_environment_is_called_by_its_name(here):
    for value in ("abc", "-1"):  # no number, and out of range
        result = here("generate", "a", env={"GGUF_SPEC_TEMPERATURE": value})
        check(result, 2, "Hint: correct GGUF_SPEC_TEMPERATURE in the environment, or unset it.")
    result = here("generate", "a", env={"GGUF_SPEC_TEMPERATURE": "abc"})
    check(result, 2, "Invalid value for GGUF_SPEC_TEMPERATURE: 'abc' is not a valid float.")


@pytest.mark.full
def test_edit(here, tmp_path):
    env = {"XDG_CONFIG_HOME": str(tmp_path), "EDITOR": "true", "GGUF_SPEC_MODEL": "", **NO_VARIANT}
    file = tmp_path / "gguf-spec" / "config.toml"
    assert out(here("config", "edit", env=env)) == f"{file} has no errors.\n"
    assert "[default]" in file.read_text()
    assert out(here("config", env=env)).splitlines()[-1].startswith("No option")
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho '[genrate]' >> \"$1\"\n")
    editor.chmod(0o755)
    result = here("config", "edit", env=env | {"EDITOR": str(editor), "VISUAL": ""})
    check(result, 2, "[genrate] is not the name of a command")


def test_a_new_file_where_a_link_says(here, tmp_path):
    """Settings under version control, whose file is not there yet: the link was replaced."""
    env = {"XDG_CONFIG_HOME": str(tmp_path), "EDITOR": "true", "VISUAL": ""}
    file = tmp_path / "gguf-spec" / "config.toml"
    file.parent.mkdir()
    file.symlink_to("../settings.toml")
    assert here("config", "edit", env=env).returncode == 0
    assert file.is_symlink()
    assert (tmp_path / "settings.toml").read_text() == file.read_text() != ""


def test_a_home_folder_in_a_path(here, config, environment):
    home = Path(environment["HOME"])
    (home / "names.yaml").write_text("models:\n", encoding="utf-8")
    env = config('[models.list]\nmodels_file = "~/gone.yaml"\n')
    check(here("models", "list", env=env), 1, f"{home}{os.sep}gone.yaml")


FILES = '[mcp.files]\ncommand = "npx"\nargs = ["-y", "server"]\nenv = { KEY = "a secret" }\n'


def test_tool_servers_are_shown_without_their_secrets(here, config):
    told = out(here("config", env=config(FILES) | NO_VARIANT))
    assert told.endswith(
        '\n[mcp.files]\n  command = "npx"\n  args = ["-y", "server"]\n  env = {"KEY": "(set)"}\n'
    )
    assert "secret" not in told
    values = json.loads(out(here("config", "show", "--json", env=config(FILES) | NO_VARIANT)))[
        "values"
    ]
    assert values[0] == {"source": "file", "section": "mcp.files", "key": "command", "value": "npx"}
    assert out(here("generate", "a", env=config(PLAIN + FILES))) == "bcdefghijkl\n"


@pytest.mark.parametrize(("text", "message"), [
    ("mcp = 1\n", "[mcp] holds tool servers, one section for each."),
    ('[mcp]\ncommand = "a"\n', "[mcp] holds tool servers, one section for each."),
    ("[mcp.files]\n", "[mcp.files] needs either command, a program, or url, an address."),
    ('[mcp.files]\ncomand = "a"\n', "[mcp.files] has no key comand."),
    ('[mcp."a b"]\ncommand = "a"\n', "'a b' cannot name a tool server."),
])  # fmt: skip
def test_tool_servers_that_are_wrong(here, config, text, message):
    check(here("config", env=config(text)), 2, message)


def test_no_tool_server(here, config):
    check(
        here("serve", "-m", "abc.gguf", "--mcp", "--port", 0, env=config("")),
        2,
        "it has no section [mcp.NAME] for a tool server.",
    )


@pytest.mark.parametrize(
    ("words", "file", "variables", "value"),
    [
        (["--shared-drafts"], "", {}, "memory"),
        (["--shared-drafts", "--draft-texts", "off"], "", {}, "off"),
        (["--shared-drafts"], '[default]\ndraft-texts = "off"\n', {}, "memory"),
        ([], "[default]\nshared-drafts = true\n", {}, "memory"),
        ([], "[batch]\nshared_drafts = false\n", {}, "off"),
        ([], '[batch]\nshared_drafts = true\ndraft_texts = "off"\n', {}, "off"),
        ([], "", {"SHARED_DRAFTS": "1"}, "memory"),
        ([], '[batch]\ndraft_texts = "off"\n', {"SHARED_DRAFTS": "true"}, "memory"),
        ([], "", {"SHARED_DRAFTS": "1", "DRAFT_TEXTS": "disk"}, "disk"),
        ([], "", {}, "disk"),
    ],
)
def test_a_switch_of_an_earlier_release(config, monkeypatch, words, file, variables, value):
    """A config file of 0.4 with `shared-drafts` ended every command."""
    from gguf_spec.cli.batch import batch

    for name, text in {
        **config(file),
        **{f"GGUF_SPEC_{n}": v for n, v in variables.items()},
    }.items():
        monkeypatch.setenv(name, text)
    context = batch.make_context("batch", [*words, "in.jsonl", "out.jsonl"])
    assert context.params["draft_texts"] == value


def test_a_variable_of_an_earlier_release_is_shown(here, config):
    shown = out(here("config", env=config("") | {"GGUF_SPEC_SHARED_DRAFTS": "1"}))
    assert "GGUF_SPEC_SHARED_DRAFTS" in shown


def test_a_switch_of_an_earlier_release_that_is_no_switch(here, config):
    check(
        here("config", env=config("[serve]\nshared-drafts = 3\n")),
        2,
        "shared-drafts",
        "has no option",
    )
