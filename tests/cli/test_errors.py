"""Every bad input: one line of what happened, one of what to do, exit 1 or 2, no trace, nothing on stdout."""

import re

import pytest

from gguf_spec.cli.command import as_called
from tests.support import tiny


def check(result, code, *said):
    stderr = result.stderr.decode()
    assert re.fullmatch(r"Error: [^\n]+\nHint: [^\n]+\n", stderr), stderr
    assert (result.returncode, result.stdout) == (code, b"")
    for words in said:
        assert words in stderr
    return stderr


@pytest.fixture(scope="session")
def bad(tmp_path_factory, work):
    folder = tmp_path_factory.mktemp("bad")
    good = (work / "abc.gguf").read_bytes()
    (folder / "picture.gguf").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / "header.gguf").write_bytes(good[:3000])
    (folder / "weights.gguf").write_bytes(good[:-3000])
    (folder / "empty.gguf").write_bytes(b"")
    tiny.write(folder / "mute.gguf", metadata={"tokenizer.ggml.model": "no_vocab"})
    tiny.write(folder / "new.gguf", metadata={"general.architecture": "tomorrow"})
    tiny.write(folder / "embed.gguf", metadata={"llama.pooling_type": 1})
    tiny.write(folder / "t5.gguf", metadata={"general.architecture": "t5"})
    tiny.write(folder / "adapter.gguf", metadata={"general.type": "adapter"})
    tokens = [f"<other{i}>" for i in range(len(tiny.TOKENS) - 3)] + [*tiny.TOKENS[-3:]]
    tiny.write(folder / "stranger.gguf", tokens=tokens)
    return folder


MODELS = {
    "gone.gguf": ["there is no file", "gone.gguf"],
    "": ["is a directory"],
    "picture.gguf": ["picture.gguf is not a GGUF file but a picture"],
    "empty.gguf": ["empty.gguf is not a GGUF file but empty"],
    "header.gguf": ["header.gguf is a damaged GGUF file", "3,000"],
    "weights.gguf": ["weights.gguf is cut short", "download it again"],
    "mute.gguf": ["mute.gguf has no tokenizer"],
    "new.gguf": ["new.gguf has the architecture 'tomorrow'"],
    "embed.gguf": ["embed.gguf is an embedding model (llama)"],
    "t5.gguf": ["t5.gguf is an encoder (t5)"],
    "adapter.gguf": ["adapter.gguf is not a model but of type 'adapter'"],
}


@pytest.mark.parametrize(("name", "said"), MODELS.items(), ids=lambda value: str(value)[:20])
def test_target(generate_here, bad, name, said):
    check(generate_here("a", "-m", bad / name), 1, *said)


@pytest.mark.parametrize("name", ["gone.gguf", "picture.gguf", "weights.gguf", "mute.gguf"])
def test_draft(generate_here, bad, name):
    check(generate_here("a", "-d", bad / name), 1, *MODELS[name])


@pytest.mark.parametrize("command", ["path", "show", "pull"])
def test_commands_about_models_refuse_what_is_no_model(here, bad, command):
    for name in ("picture.gguf", "empty.gguf"):
        check(here("models", command, bad / name), 1, *MODELS[name])
    check(here("models", command, bad), 1, f"{bad} is a directory with ", " GGUF files")


def test_a_draft_of_another_vocabulary(generate_here, bad):
    check(
        generate_here("a", "-d", bad / "stranger.gguf"),
        1,
        "target and draft have other tokenizers, with only ",
        " tokens in common",
        "--draft none",
    )


def test_a_name_nearly_right(generate_here):
    check(generate_here("a", "-m", "tale"), 1, "tale", "Hint: did you mean tales?")


def test_prompt_longer_than_the_context(generate_here):
    check(
        generate_here("a" * 100, "--ctx", "64"),
        1,
        "the prompt has 100 tokens but the context holds 64",
        "--ctx 128",
    )


def test_a_megabyte_of_one_letter(generate_here):
    check(
        generate_here(stdin=b"a" * (1 << 20)),
        1,
        "the prompt has about 1,048,576 tokens but the context holds 256",
    )


@pytest.mark.parametrize("flags", [["", "--raw"], ["", "--chat"], ["-", "--raw"]])
def test_empty_prompt(generate_here, flags):
    check(generate_here(*flags), 1, "the prompt is empty")


OPTIONS = {
    "-k -1": "-k is -1",
    "-k 65": "-k is 65",
    "-t -0.5": "--temperature is -0.5",
    "-t nan": "--temperature is nan",
    "--top-p 0": "--top-p is 0",
    "--top-p 1.5": "--top-p is 1.5",
    "--top-k -1": "--top-k is -1",
    "--min-p 2": "--min-p is 2",
    "--repeat-penalty 0": "--repeat-penalty is 0",
    "--seed -1": "--seed is -1",
    "-n -2": "--max-tokens is -2 but must be a whole number, 0 or more, or -1 for as many as",
    "--threads 0": "--threads is 0",
    "--threads -3": "--threads is -3",
    "--ctx 0": "--ctx is 0",
    "--ctx -1": "--ctx is -1",
    "--kv-type q9": "--kv-type is 'q9'",
    "--flash-attention maybe": "'maybe'",
    "-k four": "'four'",
    "--nonsense": "generate has no option --nonsense.\nHint: gguf-spec generate --help lists the options.",
    "--top_p 1": "Hint: did you mean --top-p?",
    "--templerature 1": "Hint: did you mean --temperature?",
    "--gram x": "Hint: did you mean --grammar?",
    "--context-size 8": "Hint: did you mean --ctx?",
    "--ctx": "--ctx of gguf-spec generate needs a value.\nHint: write --ctx INTEGER. gguf-spec generate --help",
    "--ctx -m tiny": "--ctx of gguf-spec generate needs a value, but -m follows.",
    "-m --temp 0": "-m of gguf-spec generate needs a value, but --temp follows.\nHint: write -m TEXT. gguf-spec",
    "-n --json": "-n of gguf-spec generate needs a value, but --json follows.",
    "--system --raw": "write --system TEXT, or --system=--raw if this is the value.",
    "--json=1": "Option '--json' does not take a value.\nHint: gguf-spec generate --help lists the options.",
    "--stop=--json --nonsense": "has no option --nonsense",
    "b": "takes one PROMPT, but 'b' follows 'a'.",
    "-p b": "PROMPT and --prompt cannot be combined",
    "-s be brief --raw": "--system",
    "--drafter nobody": "--drafter is 'nobody' but must be one of auto, model, mtp, eagle3, ngram, hybrid.",
    "--drafter model -d ngram": "the drafter model needs a draft model, and none is loaded.",
    "--accept gumbel": "--accept is 'gumbel' but must be one of coupled, rejection, block.",
    "--typical-p 0": "--typical-p is 0.0 but must be above 0 and at most 1.",
    "--top-n-sigma -1": "--top-n-sigma is -1.0 but must be from 0 to a million.",
    "--xtc-probability 2": "--xtc-probability is 2.0 but must be from 0 to 1.",
    "--dry-base 0.5": "--dry-base is 0.5 but must be from 1 to a million.",
    "--logprobs 500": "--logprobs is 500 but must be a whole number from 0 to 100.",
    "--stop-token 99999": "--stop-token is 99999 but must be an id from 0 to",
    "--stop-token -4": "--stop-token is (-4,) but must be token ids.",
    "--logit-bias 99999=1": "--logit-bias is 99999 but must be an id from 0 to",
    "--logit-bias 5=1e39": "--logit-bias is {5: 1e+39} but must be",
    "--repeat-penalty 1e-300": "--repeat-penalty is 1e-300 but must be from 0.001 to 1000.",
    "--frequency-penalty 1e39": "--frequency-penalty is 1e+39 but must be from minus a million to a million.",
    "-t 1e39": "--temperature is 1e+39 but must be from 0 to a million.",
    "--strict --accept block": "--strict is True but must be False, or True with the acceptance rule coupled.",
    "--logit-bias 5": "'5' is not a token id and a bias, such as 13=-1.5 or 13=-inf.",
    "--logit-bias 5=inf": "--logit-bias is {5: inf} but must be",
    "--json-schema {": "correct --json-schema; put quotes around it for the shell, or use a file: --json-schema @schema.json.",
    "--grammar abc.gguf": "--grammar is",
}


@pytest.mark.parametrize(("line", "said"), OPTIONS.items(), ids=OPTIONS)
def test_options_out_of_range(generate_here, line, said):
    flags = ["-s", "be brief", "--raw"] if line.startswith("-s") else line.split()
    check(generate_here("a", *flags), 2, said)


def test_an_empty_stop_string(generate_here):
    check(generate_here("a", "--stop", ""), 2, "--stop is ")


@pytest.mark.parametrize(
    "flags",
    [
        ("--json-schema", "@gone.json"),
        ("--grammar", "gone.gbnf"),
        ("--grammar", "."),
        ("--json-schema", "@"),
    ],
)
def test_a_grammar_file_that_is_not_there(generate_here, flags):
    check(generate_here("a", *flags), 1, "Could not open file")


@pytest.mark.parametrize(
    "flags",
    [
        ("--count", "0"),
        ("-n", "0"),
        ("--minutes", "-1"),
        ("--draws", "0"),
        ("--seed", "-1"),
    ],
)
def test_verify_with_nothing_to_do(here, flags):
    check(here("verify", "-m", "abc.gguf", "-d", "abc.gguf", "--threads", 1, *flags), 2)


def test_verify_of_a_file_without_prompts(here, work):
    (work / "empty.txt").write_text("\n\n", encoding="utf-8")
    verify = ("verify", "-m", "abc.gguf", "-d", "abc.gguf", "--threads", 1)
    check(
        here(*verify, "-f", "empty.txt"),
        2,
        "--prompts is [] but must be a list of one text or more",
    )
    check(here(*verify, "-f", "gone.txt"), 1, "gone.txt")


@pytest.mark.parametrize("ctx", [5, 6])
def test_verify_in_a_context_that_is_too_small(here, work, ctx):
    (work / "long.txt").write_text("abcde\n", encoding="utf-8")
    prompt = ("-f", "long.txt", "--ctx", ctx)
    check(
        here("verify", "-m", "abc.gguf", "-d", "abc.gguf", "--threads", 1, *prompt),
        2,
        "'abcde'",
        f"tokens but the context holds {ctx}.",
    )


def test_a_chat_without_a_message(generate_here):
    check(generate_here("", "--chat", "--prefill", "ab"), 1, "the prompt is empty")


def test_a_prompt_file_that_is_not_there(generate_here, work):
    check(generate_here("-f", "gone.txt"), 1, "gone.txt")
    check(generate_here("-f", work), 1, str(work))


def test_out_of_memory(generate_here):
    check(generate_here("a", "--ctx", "500000000", "-m", "tales"), 1, "GiB", "--ctx")


def test_no_chat_template(generate_here, tmp_path):
    plain = tiny.write(
        tmp_path / "plain.gguf", tiny.one_text("abc"), metadata={"tokenizer.chat_template": None}
    )
    check(generate_here("a", "-m", plain, "--chat"), 1, "plain.gguf has no chat template", "--raw")


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/m.gguf", "a\nb.gguf"])
def test_names_that_no_file_can_have(generate_here, name):
    check(generate_here("a", "-m", name), 1)


def test_a_name_cannot_steer_the_terminal(generate_here):
    assert "\x1b" not in check(generate_here("a", "-m", "\x1b]2;x\x07.gguf"), 1)


@pytest.mark.full
def test_a_trace_where_it_is_asked_for(generate):
    for flags in (["-vv"], ["-v", "-v"]):
        result = generate("a", "-m", "gone.gguf", *flags)
        assert (result.returncode, result.stdout) == (1, b"")
        assert b"Traceback" in result.stderr


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_a_recurrent_target_is_no_error(generate_here, tmp_path, kind):
    path = tiny.write(tmp_path / f"{kind}.gguf", getattr(tiny, kind)())
    plain, drafted = (
        generate_here("a", "-m", path, "-n", "9", "-d", "none"),
        generate_here("a", "-m", path, "-n", "9", "-d", "ngram"),
    )
    assert (plain.returncode, plain.stderr, drafted.returncode) == (0, b"", 0)
    assert drafted.stdout == plain.stdout


def test_hints_name_the_program_as_it_was_called(here):
    """In a clone `gguf-spec` is not found: `scripts/run` says its own name."""
    called = {"GGUF_SPEC_CALLED": "./scripts/run"}
    said = check(
        here("generate", "a", "-m", "nosuch", env=called), 1, "`./scripts/run models list`"
    )
    assert "gguf-spec" not in said
    check(
        here("run", env=called), 2, "MODEL is missing; ./scripts/run models list shows the names."
    )
    shown = here("models", "list", env=called).stdout.decode()
    assert "; ./scripts/run models pull NAME downloads the others, ./scripts/run models" in shown
    for words in (["generate"], ["models", "pull"], []):  # examples can be typed
        shown = here(*words, "--help", env=called, text=True).stdout
        assert "gguf-spec" not in shown and f"./scripts/run {' '.join(words)}" in shown
    shown = here("completion", "--help", env=called, text=True).stdout
    assert 'eval "$(gguf-spec completion bash)"' in shown, "scripts/run has no completion"


def test_a_name_of_the_program_that_is_no_command_stays(monkeypatch):
    text = "the kernels of gguf-spec are faster; gguf-spec tune, or gguf-spec --help"
    assert as_called(text) == text
    monkeypatch.setenv("GGUF_SPEC_CALLED", r"/my \1 clone/scripts/run")
    run = r"'/my \1 clone/scripts/run'"
    assert as_called(text) == f"the kernels of gguf-spec are faster; {run} tune, or {run} --help"


def test_what_is_missing_is_named(here):
    check(here("edit", "--undo"), 2, "Error: FILE is missing.")
    check(here("edit"), 2, "Error: FILE and INSTRUCTION are missing.")
    missing = here("embed", "a", env={"GGUF_SPEC_MODEL": ""})
    check(missing, 2, "Hint: gguf-spec models recommend embed names one.")


def test_the_values_of_a_missing_argument_are_a_list(here):
    check(here("launch"), 2, "Missing argument 'NAME'. Choose from: claude, codex, opencode, pi, ")
