import pytest

import gguf_spec


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(cli, flag):
    result = cli(flag)
    assert (result.returncode, result.stdout.decode(), result.stderr) == (
        0,
        f"gguf-spec {gguf_spec.__version__}\n",
        b"",
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_begins_with_examples(cli, flag):
    text = cli(flag).stdout.decode()
    assert text.startswith("Usage: ")
    assert text.index("Examples:") < text.index("Options:") < text.index("Commands:")
    assert "generate" in text


def test_no_arguments_show_the_help(cli):
    result = cli()
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"Examples:" in result.stderr


def test_help_of_generate(cli):
    result = cli("generate", "--help")
    text = result.stdout.decode()
    assert (result.returncode, result.stderr) == (0, b"")
    assert text.index("Examples:") < text.index(":\n  -m, --model")
    for option in (
        "-f, --file", "-m, --model", "-d, --draft", "--draft-text", "-k ", "--drafter", "--fixed",
        "-n, --max-tokens", "-t, --temperature", "--top-k", "--top-p", "--min-p",
        "--accept", "--strict", "--typical-p", "--dry-multiplier", "--logit-bias", "--grammar", "--json-schema", "--logprobs", "--prefill",
        "--repeat-penalty", "--seed", "--stop", "--ctx", "--threads", "--raw", "-s, --system", "--stats", "--show-draft", "--json",
    ):  # fmt: skip
        assert option in text


def test_help_of_verify(cli):
    result = cli("verify", "--help")
    text = result.stdout.decode()
    assert (result.returncode, result.stderr) == (0, b"")
    assert text.index("Examples:") < text.index(":\n  -m, --model")
    for option in (
        "-m, --model",
        "-d, --draft",
        "-f, --prompts",
        "-c, --count",
        "-n, --max-tokens",
        "--under-load",
        "--draws",
        "--minutes",
        "--seed",
        "--json",
    ):
        assert option in text


def test_every_option_says_what_it_does(cli):
    from click import Option

    from gguf_spec.cli import cli as group

    for name, command in group.commands.items():
        assert command.help, name
        for option in command.params:
            assert not isinstance(option, Option) or option.help, f"{name} {option.name}"
